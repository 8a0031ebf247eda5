//! Openings: what tells the copies of a pool apart.
//!
//! Every opening for writing claims a number and a nonce before anything else that it writes counts ([`super::identity`]), and every superblock names the
//! opening that wrote it, with those before it. So of two devices that say that they are the same it is known which one went on, and which one stayed as it
//! was; and that both went on, each for itself, if neither knows the other's opening.

use crate::wire::Reader;
use crate::{Error, Result};

/// Openings before it that an opening names.
pub const EARLIER_OPENINGS: usize = 128;
/// Numbers of openings are at most this.
const NUMBER_MAX: u64 = 1 << 48;

/// What identifies an opening of a pool for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpeningId {
    /// Rises with every opening; 0 stands for none.
    pub number: u64,
    /// Drawn at random: two copies that are opened apart from each other have the same number and another nonce.
    pub nonce: u64,
}

/// An opening that another one followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// What identifies it.
    pub id: OpeningId,
    /// The number of the last checkpoint that the opening after it found: a copy that has later ones of this opening went on by itself.
    pub generation: u64,
}

/// An opening, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// What identifies it.
    pub id: OpeningId,
    /// When it was, in seconds since 1970, as far as its machine knew.
    pub time: u64,
    /// Those before it, newest first; number 0 where there were no more.
    pub earlier: [Earlier; EARLIER_OPENINGS],
}

impl Opening {
    /// The making of a pool is its first opening.
    pub fn first(nonce: u64, time: u64) -> Self {
        Self { id: OpeningId { number: 1, nonce }, time, earlier: [Earlier::default(); EARLIER_OPENINGS] }
    }

    /// The opening after this one, of which checkpoint `generation` is the last. Its number is above `seen`: an opening may have been claimed on some devices
    /// and nothing more.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where there is no such number.
    pub fn next(&self, generation: u64, seen: u64, nonce: u64, time: u64) -> Result<Self> {
        let number = seen.max(self.id.number) + 1;
        if number > NUMBER_MAX {
            return Err(Error::corrupt("superblock", "the number of its opening cannot be"));
        }
        let mut earlier = self.earlier;
        earlier.rotate_right(1);
        earlier[0] = Earlier { id: self.id, generation };
        Ok(Self { id: OpeningId { number, nonce }, time, earlier })
    }

    /// The opening right before it.
    pub fn before(&self) -> OpeningId {
        self.earlier[0].id
    }

    /// Where the one with this identity is among those before it, what it came to.
    fn names(&self, other: OpeningId) -> Option<u64> {
        let found = self.earlier.iter().find(|earlier| earlier.id == other && other.number > 0);
        found.map(|earlier| earlier.generation)
    }

    /// Whether an opening of this number would be among those that it names.
    fn reaches(&self, number: u64) -> bool {
        self.earlier[EARLIER_OPENINGS - 1].id.number <= number
    }

    /// Appends the stored form.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |number: u64| out.extend_from_slice(&number.to_le_bytes());
        [self.id.number, self.id.nonce, self.time].into_iter().for_each(&mut put);
        for Earlier { id, generation } in &self.earlier {
            [id.number, id.nonce, *generation].into_iter().for_each(&mut put);
        }
    }

    /// Reads the stored form.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let id = OpeningId { number: reader.u64()?, nonce: reader.u64()? };
        let time = reader.u64()?;
        let mut earlier = [Earlier::default(); EARLIER_OPENINGS];
        for one in &mut earlier {
            let id = OpeningId { number: reader.u64()?, nonce: reader.u64()? };
            *one = Earlier { id, generation: reader.u64()? };
        }
        let mut numbers = std::iter::once(id).chain(earlier.map(|one| one.id)).map(|id| id.number).peekable();
        while let Some(number) = numbers.next() {
            let falls = numbers.peek().is_none_or(|next| *next < number || number == 0 && *next == 0);
            if !falls || number > NUMBER_MAX {
                return Err(Error::corrupt("opening", "its number cannot be"));
            }
        }
        if id.number == 0 {
            return Err(Error::corrupt("opening", "it has no number"));
        }
        Ok(Self { id, time, earlier })
    }
}

/// How far a device or a pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The opening that wrote last.
    pub opening: Opening,
    /// The number of its last checkpoint.
    pub generation: u64,
    /// There may be more in its log than the checkpoint has: it was not exported.
    pub open: bool,
}

/// How one standing is to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same.
    Same,
    /// It went on from the other.
    After,
    /// The other went on from it: it is an older copy.
    Before,
    /// Each went on for itself, or may have: of a copy that was made after a crash only its log tells.
    Apart,
}

impl Standing {
    /// How this one is to another of the same pool. Where one has been opened more often since than it names openings, the one with fewer is taken for
    /// the older one.
    pub fn relation(&self, other: &Self) -> Relation {
        let (ours, theirs) = (&self.opening, &other.opening);
        if ours.id == theirs.id {
            return match self.generation.cmp(&other.generation) {
                std::cmp::Ordering::Equal => Relation::Same,
                std::cmp::Ordering::Greater => Relation::After,
                std::cmp::Ordering::Less => Relation::Before,
            };
        }
        let follows = |newer: &Opening, older: &Self| match newer.names(older.opening.id) {
            Some(generation) => {
                older.generation < generation || older.generation == generation && !older.open
            }
            None => {
                let number = older.opening.id.number;
                newer.id.number > number && !newer.reaches(number)
            }
        };
        if follows(ours, other) {
            Relation::After
        } else if follows(theirs, self) {
            Relation::Before
        } else {
            Relation::Apart
        }
    }
}

#[cfg(test)]
mod tests;
