//! Stored lacks: what the members of mirrors lack that are not whole, as each checkpoint stores it.
//!
//! So a member that was away is filled with what it missed, also if the pool was closed meanwhile, or crashed.
//!
//! - U1: a checkpoint stores, for each member that is not whole, the regions that it lacks, and how it can be told that
//!   the member is as it was then ([`Leaving`]). They are taken after the quiesce point.
//! - U2: a member that has a superblock of a checkpoint has all that the checkpoint refers to, but for the regions that it
//!   lacked then. It lacks what was written since: behind the log position of the checkpoint, and the second copies that
//!   its root names ([`Since`]). Nothing else was written since that anybody refers to. While the pool is open, that is
//!   what [`crate::device`] notes from one superblock to the next.
//! - U3: a member that is not as it was lacks everything. Before it gets a superblock, its label gets a table that no
//!   stored lacks name, so that no later opening takes it for what it was.
//!
//! Each member has a record of its own, of kind `Root`, which the root names:
//!
//! | field | size |
//! |---|---|
//! | magic `PFlack` and version 1 | 8 |
//! | number of the device | varint |
//! | its birth | 8 |
//! | table that its label has: epoch of the group (0: its label calls it whole) | varint |
//! | table that its label has: random number | 8 |
//! | checkpoint whose superblock it has: address of the root (0: this one) | varint |
//! | number of ranges of regions | varint |
//! | per range: first region - end of the range before (the first: its first region) | varint |
//! | per range: number of regions | varint |

use std::collections::BTreeSet;

use super::root::Root;
use crate::device::REGION_BYTES;
use crate::limits::CHUNK_BYTES;
use crate::ranges::Ranges;
use crate::space::Chunk;
use crate::wire::{Reader, put_varint};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"PFlack\x01\0";
/// Largest number of ranges that are stored of one member. If it lacks more, those with the smallest gaps between them
/// become one.
const RANGES_MAX: usize = 4096;
/// Longest stored form of a range, and of all that is before the ranges, in bytes.
const RANGE_BYTES_MAX: u64 = 20;
const HEAD_BYTES_MAX: u64 = 8 + 3 + 8 + 10 + 8 + 10 + 3;

/// Tells a device that was left out and comes back as it was from one that did not: from an older copy, or from one that
/// went on by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// Epoch and random number of the table in its label. `None`: its label calls it whole, and has one of the tables
    /// that the present one came from.
    pub(super) told: Option<(u64, u64)>,
    /// Address of the root that its superblock names; 0 if it has none.
    pub(super) root: u64,
}

/// The regions that a member lacks, with its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lacks {
    /// Number of the device.
    pub(super) number: u16,
    /// Its birth.
    pub(super) birth: u64,
    /// See [`Leaving::told`].
    pub(super) told: Option<(u64, u64)>,
    /// Address of the root that its superblock names; `None`: that of the checkpoint.
    pub(super) root: Option<u64>,
    /// The regions.
    pub(super) regions: Ranges,
}

impl Lacks {
    /// Returns the stored form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, self.number.into());
        out.extend_from_slice(&self.birth.to_le_bytes());
        let (epoch, draw) = self.told.unwrap_or_default();
        put_varint(&mut out, epoch);
        out.extend_from_slice(&draw.to_le_bytes());
        put_varint(&mut out, self.root.unwrap_or_default());
        let regions = self.regions.merged(RANGES_MAX);
        put_varint(&mut out, regions.iter().count() as u64);
        let mut end = 0;
        for range in regions.iter() {
            put_varint(&mut out, range.start - end);
            put_varint(&mut out, range.end - range.start);
            end = range.end;
        }
        out
    }

    /// Decodes the stored form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "what a member of a mirror lacks");
        if reader.take(8)? != MAGIC {
            return Err(reader.bad("it has another magic"));
        }
        let number = u16::try_from(reader.varint()?).map_err(|_| reader.bad("its number cannot be"))?;
        let birth = reader.u64()?;
        let told = (reader.varint()?, reader.u64()?);
        let root = Some(reader.varint()?).filter(|root| *root > 0);
        let told = Some(told).filter(|(epoch, _)| *epoch > 0);
        let regions = read_ranges(&mut reader)?;
        reader.end()?;
        Ok(Self { number, birth, told, root, regions })
    }

    /// Returns the largest number of bytes of the stored form for a member of a group that uses `bytes` of its devices.
    pub(super) fn bytes_max(bytes: u64) -> u64 {
        // Ranges do not touch each other.
        let ranges = (bytes / REGION_BYTES / 2 + 1).min(RANGES_MAX as u64);
        HEAD_BYTES_MAX + RANGE_BYTES_MAX * ranges
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Lacks {
    /// Returns some of these regions as lacking, for tests.
    pub(super) fn sample(ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> Self {
        let mut regions = Ranges::default();
        ranges.into_iter().for_each(|range| regions.insert_range(range));
        Self { number: 3, birth: u64::MAX - 1, told: Some((9, 5)), root: Some(1 << 40), regions }
    }

    /// Returns one of each kind.
    pub(super) fn samples() -> [Self; 4] {
        [
            Self::sample([]),
            Self::sample(std::iter::once(crate::device::ALL)),
            Self::sample([0..1, 2..3, 500..u64::MAX]),
            Self { told: None, root: None, ..Self::sample([7..9, 11..12]) },
        ]
    }
}

fn read_ranges(reader: &mut Reader<'_>) -> Result<Ranges> {
    let count = reader.varint()?;
    if count > RANGES_MAX as u64 {
        return Err(reader.bad("it has more ranges than can be"));
    }
    let mut regions = Ranges::default();
    let mut end = 0_u64;
    for at in 0..count {
        let (gap, len) = (reader.varint()?, reader.varint()?);
        let start = end.checked_add(gap).filter(|_| at == 0 || gap > 0);
        let range = start.and_then(|start| Some(start..start.checked_add(len).filter(|_| len > 0)?));
        let range = range.ok_or_else(|| reader.bad("its ranges cannot be"))?;
        end = range.end;
        regions.insert_range(range);
    }
    Ok(regions)
}

/// Chunks with all that was written since a checkpoint took its lacks, and that anybody refers to (U2).
#[derive(Debug, Default)]
pub(super) struct Since(BTreeSet<Chunk>);

impl Since {
    /// Takes the chunks that replay found batches in, with the one in which it began, and the checkpoint's root.
    pub(super) fn checkpoint(log: impl IntoIterator<Item = Chunk>, root: &Root) -> Self {
        let parts = root.copies.iter().flat_map(|(_, parts)| parts);
        let copies = parts.map(|part| part.extent.chunk);
        Self(log.into_iter().chain(copies).collect())
    }

    /// Adds the chunk with a byte of a group.
    pub(super) fn add(&mut self, group: u16, offset: u64) {
        self.0.insert(Chunk::at(group, offset));
    }

    /// Adds the regions of a group.
    pub(super) fn add_to(&self, group: u16, regions: &mut Ranges) {
        for chunk in self.0.iter().filter(|chunk| chunk.device == group) {
            let first = chunk.offset() / REGION_BYTES;
            regions.insert_range(first..first + CHUNK_BYTES / REGION_BYTES);
        }
    }
}

/// Decodes what members lack. One that cannot be read is left out: such a member lacks everything.
pub(super) fn decode_all(records: impl IntoIterator<Item = Result<Vec<u8>>>) -> Vec<Lacks> {
    let decode = |bytes: Result<Vec<u8>>| bytes.and_then(|bytes| Lacks::decode(&bytes));
    let tell = |error: &Error| {
        tracing::warn!(%error, "it is not known any more what a member of a mirror lacks; it gets everything");
    };
    records.into_iter().filter_map(|bytes| decode(bytes).inspect_err(tell).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> Lacks {
        Lacks::sample(ranges)
    }

    #[test]
    fn the_stored_form_reads_back() {
        for lacks in Lacks::samples() {
            assert_eq!(Lacks::decode(&lacks.encode()).unwrap(), lacks);
        }
    }

    #[test]
    fn ranges_that_are_many_become_fewer_and_cover_as_much() {
        let many = lacks((0..3 * RANGES_MAX as u64).map(|at| at * 5 + at % 3..at * 5 + at % 3 + 1));
        let stored = many.encode();
        assert!(stored.len() as u64 <= Lacks::bytes_max(u64::MAX));
        let read = Lacks::decode(&stored).unwrap();
        assert!(read.regions.iter().count() <= RANGES_MAX);
        assert_eq!(many.regions.count_without(&read.regions), 0);
        assert!(
            read.regions.len() < 12 * RANGES_MAX as u64,
            "the smallest gaps went: {}",
            read.regions.len()
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let sound = lacks([3..4, 9..12]).encode();
        for len in 0..sound.len() {
            assert!(Lacks::decode(&sound[..len]).is_err(), "{len} bytes of it");
        }
        let end = sound.len();
        // An empty range, ranges that touch, more than fit.
        for (at, value) in [(end - 1, 0), (end - 2, 0), (0, b'Q'), (end - 5, 3)] {
            let mut bad = sound.clone();
            bad[at] = value;
            assert!(Lacks::decode(&bad).is_err(), "byte {at}");
        }
        let mut far = lacks([]).encode();
        far.pop();
        put_varint(&mut far, 1);
        put_varint(&mut far, u64::MAX);
        put_varint(&mut far, 2);
        assert!(Lacks::decode(&far).is_err());
    }
}
