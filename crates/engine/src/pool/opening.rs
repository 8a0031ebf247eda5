//! Openings: what tells the copies of a pool apart.
//!
//! Every opening for writing claims a number and a nonce before anything else that it writes counts ([`super::identity`]), and every superblock names the
//! opening that wrote it, with those before it. So of two devices that say that they are the same it is known which one went on, and which one stayed as it
//! was; and that both went on, each for itself, if neither knows the other's opening.

use crate::wire::Reader;
use crate::{Error, Result};

/// Openings before it that an opening names.
pub const EARLIER_OPENINGS: usize = 32;
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

/// An opening, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// What identifies it.
    pub id: OpeningId,
    /// When it was, in seconds since 1970, as far as its machine knew.
    pub time: u64,
    /// Those before it, newest first; number 0 where there were no more.
    pub earlier: [OpeningId; EARLIER_OPENINGS],
}

impl Opening {
    /// The making of a pool is its first opening.
    pub fn first(nonce: u64, time: u64) -> Self {
        Self { id: OpeningId { number: 1, nonce }, time, earlier: Default::default() }
    }

    /// The opening after this one, with a number above `seen`: an opening may have been claimed on some devices and nothing more.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where there is no such number.
    pub fn next(&self, seen: u64, nonce: u64, time: u64) -> Result<Self> {
        let number = seen.max(self.id.number) + 1;
        if number > NUMBER_MAX {
            return Err(Error::corrupt("superblock", "the number of its opening cannot be"));
        }
        let mut earlier = self.earlier;
        earlier.rotate_right(1);
        earlier[0] = self.id;
        Ok(Self { id: OpeningId { number, nonce }, time, earlier })
    }

    /// The opening right before it.
    pub fn before(&self) -> OpeningId {
        self.earlier[0]
    }

    /// Whether `other` is one of those before it.
    fn names(&self, other: OpeningId) -> bool {
        other.number > 0 && self.earlier.contains(&other)
    }

    /// Whether an opening of this number would be among those that it names.
    fn reaches(&self, number: u64) -> bool {
        self.earlier[EARLIER_OPENINGS - 1].number <= number
    }

    /// Appends the stored form.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |id: &OpeningId| {
            out.extend_from_slice(&id.number.to_le_bytes());
            out.extend_from_slice(&id.nonce.to_le_bytes());
        };
        put(&self.id);
        self.earlier.iter().for_each(put);
        out.extend_from_slice(&self.time.to_le_bytes());
    }

    /// Reads the stored form.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut next = || -> Result<OpeningId> { Ok(OpeningId { number: reader.u64()?, nonce: reader.u64()? }) };
        let id = next()?;
        let mut earlier = [OpeningId::default(); EARLIER_OPENINGS];
        for one in &mut earlier {
            *one = next()?;
        }
        let mut numbers = std::iter::once(&id).chain(&earlier).map(|id| id.number).peekable();
        while let Some(number) = numbers.next() {
            let falls = numbers.peek().is_none_or(|next| *next < number || number == 0 && *next == 0);
            if !falls || number > NUMBER_MAX {
                return Err(Error::corrupt("opening", "its number cannot be"));
            }
        }
        if id.number == 0 {
            return Err(Error::corrupt("opening", "it has no number"));
        }
        Ok(Self { id, time: reader.u64()?, earlier })
    }
}

/// How far a device or a pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The opening that wrote last.
    pub opening: Opening,
    /// The number of its last checkpoint.
    pub generation: u64,
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
    /// Each went on for itself.
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
        let follows = |newer: &Opening, older: &Opening| {
            let number = older.id.number;
            newer.names(older.id) || newer.id.number > number && !newer.reaches(number)
        };
        if follows(ours, theirs) {
            Relation::After
        } else if follows(theirs, ours) {
            Relation::Before
        } else {
            Relation::Apart
        }
    }
}

#[cfg(test)]
mod tests;
