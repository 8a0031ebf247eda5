//! Describes openings of a pool, by which its copies are told apart.
//!
//! Every opening for writing takes a number and a nonce before anything else that it writes counts
//! ([`super::identity`]), and every superblock names the opening that wrote it, and those before. So of two devices
//! with the same label it is known which one went on, and which one stayed as it was; or that both went on separately,
//! if neither knows the other's opening.

use crate::wire::Reader;
use crate::{Error, Result};

/// Number of earlier openings that an opening names.
pub const EARLIER_OPENINGS: usize = 128;
/// Largest number of an opening.
const NUMBER_MAX: u64 = 1 << 48;

/// Identity of an opening of a pool for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpeningId {
    /// Number of the opening, which rises with every opening; 0 stands for none.
    pub number: u64,
    /// Random number: two copies that are opened separately have the same number and different nonces.
    pub nonce: u64,
}

/// An opening that another one followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// Identity of that opening.
    pub id: OpeningId,
    /// Number of the last checkpoint that the opening after it found. A copy that has later checkpoints of this opening
    /// went on by itself.
    pub generation: u64,
}

/// An opening, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Identity of this opening.
    pub id: OpeningId,
    /// Time of the opening, in seconds since 1970, by the clock of its machine.
    pub time: u64,
    /// Openings before it, newest first; number 0 where there are no more.
    pub earlier: [Earlier; EARLIER_OPENINGS],
}

impl Opening {
    /// Returns the first opening of a pool, which is its creation.
    pub fn first(nonce: u64, time: u64) -> Self {
        Self { id: OpeningId { number: 1, nonce }, time, earlier: [Earlier::default(); EARLIER_OPENINGS] }
    }

    /// Returns the opening that follows this one, whose last checkpoint is `generation`. Its number is above `seen`: an
    /// opening may have written its superblock to some devices, and nothing more.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such number.
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

    /// Returns the opening right before this one.
    pub(crate) fn before(&self) -> OpeningId {
        self.earlier[0].id
    }

    /// Returns the last checkpoint of opening `other`, if that is among those before this one.
    fn names(&self, other: OpeningId) -> Option<u64> {
        let found = self.earlier.iter().find(|earlier| earlier.id == other && other.number > 0);
        found.map(|earlier| earlier.generation)
    }

    /// Returns true if an opening with this number would be among those that this one names.
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

/// The point that a device or a pool has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The opening that wrote last.
    pub opening: Opening,
    /// Number of the last checkpoint.
    pub generation: u64,
    /// True if the log may have more than the checkpoint, since the pool was not exported.
    pub open: bool,
}

/// Relation of one standing to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both are the same.
    Same,
    /// This one went on from the other.
    After,
    /// The other went on from this one: this is an older copy.
    Before,
    /// Each went on separately, or may have: if a copy was made after a crash, only its log can tell.
    Apart,
}

impl Standing {
    /// Returns the relation of this standing to another one of the same pool. If one has been opened more often since
    /// than it names openings, the one with the lower number is taken for the older one.
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
