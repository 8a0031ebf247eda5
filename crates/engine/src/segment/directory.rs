//! Directories of segments, which say where each slot lies within the segment's extent.
//!
//! Stored form: an index, and leaves with the entries of [`LEAF_SLOTS`] consecutive slots each. So one record of very
//! many is found by reading a few kilobytes.
//!
//! | field | size |
//! |---|---|
//! | magic `PFdr` | 4 |
//! | segment id | 8 |
//! | number of leaves | 4 |
//! | per leaf: its number (slot / [`LEAF_SLOTS`]) - previous number - 1 | varint |
//! | per leaf: number of entries - 1 | varint |
//! | per leaf: end of the entry before it | varint |
//! | per leaf: stored length | varint |
//! | per leaf: crc32c of its stored form | 4 |
//! | leaves, per entry: slot - previous slot - 1 (the leaf's first: slot - first slot of the leaf) | varint |
//! | leaves, per entry: start - previous end (zigzag) | varint |
//! | leaves, per entry: stored length | varint |
//! | leaves, per entry: checksum | 4 |
//!
//! One crc32c covers all before the leaves. It is kept in the [`DirRef`].

use crate::limits::{CHUNK_BYTES, RECORD_BYTES_MAX, SEGMENT_SLOTS_MAX};
use crate::wire::{Reader, put_signed, put_varint};
use crate::{Error, Result};

/// Number of slots whose entries share a leaf. A leaf with an entry for each takes 9 KiB, and is read by one request.
pub(super) const LEAF_SLOTS: u32 = 1024;
/// Largest number of leaves of a directory.
const LEAVES_MAX: usize = (SEGMENT_SLOTS_MAX / LEAF_SLOTS) as usize;
/// First bytes of a directory.
pub(super) const MAGIC: [u8; 4] = *b"PFdr";
const HEADER_BYTES: usize = 16;
/// Longest stored form of a leaf in the index (1 + 2 + 4 + 2 + 4).
const LEAF_REF_BYTES_MAX: usize = 13;
/// Longest stored form of one entry (2 + 5 + 3 + 4), rounded up.
const ENTRY_BYTES_MAX: usize = 16;
/// Shortest stored form of one entry.
const ENTRY_BYTES_MIN: usize = 7;

/// One record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Slot in the segment.
    pub slot: u32,
    /// First byte, from the start of the segment's extent.
    pub start: u32,
    /// Stored length in bytes.
    pub len_bytes: u32,
    /// [`super::record_checksum`] of address and bytes.
    pub checksum: u32,
}

impl DirEntry {
    const fn end(&self) -> u32 {
        self.start + self.len_bytes
    }
}

/// Where a segment's directory lies within its extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirRef {
    /// First byte, from the start of the extent.
    pub start: u32,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Length of its index in bytes, which comes first.
    pub index_bytes: u32,
    /// First byte of its second copy, from the start of the chunk; 0 if there is none.
    pub second: u32,
    /// crc32c of the index, which has the checksums of the leaves.
    pub checksum: u32,
}

/// Records of a segment, by slot: all of them, or those of a leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    entries: Vec<DirEntry>,
}

/// The stored form of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDirectory {
    /// The whole stored form.
    pub bytes: Vec<u8>,
    /// Length of the index in bytes, which comes first.
    pub index_bytes: u32,
}

impl StoredDirectory {
    /// Returns the reference to it if it lies at `start` of its extent, and once more at `second` of its chunk (0 if it
    /// does not).
    pub fn at(&self, start: u32, second: u32) -> DirRef {
        let index = self.bytes.get(..self.index_bytes as usize).unwrap_or_default();
        let len_bytes = self.bytes.len() as u32;
        DirRef { start, len_bytes, index_bytes: self.index_bytes, second, checksum: crc32c::crc32c(index) }
    }
}

impl Directory {
    /// Adds an entry. Its slot must be above all others.
    pub fn push(&mut self, entry: DirEntry) {
        debug_assert!(self.entries.last().is_none_or(|last| last.slot < entry.slot));
        self.entries.push(entry);
    }

    /// Returns the entry of `slot`.
    pub fn get(&self, slot: u32) -> Option<DirEntry> {
        let dense = slot.checked_sub(self.entries.first()?.slot)?;
        if let Some(entry) = self.entries.get(dense as usize).filter(|entry| entry.slot == slot) {
            return Some(*entry);
        }
        let at = self.entries.binary_search_by_key(&slot, |entry| entry.slot).ok()?;
        self.entries.get(at).copied()
    }

    /// Returns all entries, ascending by slot.
    pub fn entries(&self) -> &[DirEntry] {
        &self.entries
    }

    /// Returns its leaves with their numbers, ascending. Leaves without entries are left out.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (u32, &[DirEntry])> {
        let alike = |a: &DirEntry, b: &DirEntry| a.slot / LEAF_SLOTS == b.slot / LEAF_SLOTS;
        let leaves = self.entries.chunk_by(alike);
        leaves.filter_map(|entries| Some((entries.first()?.slot / LEAF_SLOTS, entries)))
    }

    /// Returns an upper bound of the stored length of a directory of `entries` entries, in bytes.
    pub const fn stored_bytes_max(entries: usize) -> usize {
        let leaves = if entries < LEAVES_MAX { entries } else { LEAVES_MAX };
        HEADER_BYTES + leaves * LEAF_REF_BYTES_MAX + entries * ENTRY_BYTES_MAX
    }

    /// Returns the stored form.
    pub fn encode(&self, segment: u64) -> StoredDirectory {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.entries.len() * 9);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&segment.to_le_bytes());
        bytes.extend_from_slice(&(self.leaves().count() as u32).to_le_bytes());
        let (mut next_number, mut end) = (0, 0);
        let mut all = Vec::with_capacity(self.entries.len() * 9);
        for (number, entries) in self.leaves() {
            let first = all.len();
            put_varint(&mut bytes, u64::from(number - next_number));
            put_varint(&mut bytes, entries.len() as u64 - 1);
            put_varint(&mut bytes, u64::from(end));
            let mut next_slot = number * LEAF_SLOTS;
            for entry in entries {
                put_varint(&mut all, u64::from(entry.slot - next_slot));
                put_signed(&mut all, i64::from(entry.start) - i64::from(end));
                put_varint(&mut all, u64::from(entry.len_bytes));
                all.extend_from_slice(&entry.checksum.to_le_bytes());
                next_slot = entry.slot + 1;
                end = entry.end();
            }
            let leaf = all.get(first..).unwrap_or_default();
            put_varint(&mut bytes, leaf.len() as u64);
            bytes.extend_from_slice(&crc32c::crc32c(leaf).to_le_bytes());
            next_number = number + 1;
        }
        let index_bytes = bytes.len() as u32;
        bytes.append(&mut all);
        StoredDirectory { bytes, index_bytes }
    }

    /// Reads the stored form of the directory of `segment`, whose records lie in an extent of `extent_bytes`. The
    /// caller has to verify the index; the leaves are verified here.
    pub fn decode(bytes: &[u8], segment: u64, extent_bytes: u32) -> Result<Self> {
        let mut reader = Reader::new(bytes, WHAT);
        let index = Index::read(&mut reader, segment)?;
        let mut entries = Vec::with_capacity(index.leaves.iter().map(|leaf| leaf.entries as usize).sum());
        for leaf in &index.leaves {
            leaf.decode(reader.take(leaf.len_bytes as usize)?, extent_bytes, &mut entries)?;
        }
        reader.end()?;
        Ok(Self { entries })
    }
}

const WHAT: &str = "segment directory";

/// The index of a directory: says where its leaves lie.
#[derive(Debug)]
pub(super) struct Index {
    leaves: Vec<LeafRef>,
}

/// An entry of the index, for one leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafRef {
    number: u32,
    entries: u32,
    /// End of the entry before it, from the start of the segment's extent.
    base: u32,
    /// First byte of the leaf, from the end of the index.
    start: u32,
    /// Stored length in bytes.
    pub(super) len_bytes: u32,
    checksum: u32,
}

impl Index {
    /// Reads the stored index of the directory of `segment`.
    pub(super) fn decode(bytes: &[u8], segment: u64) -> Result<Self> {
        let mut reader = Reader::new(bytes, WHAT);
        let index = Self::read(&mut reader, segment)?;
        reader.end()?;
        Ok(index)
    }

    /// Reads the index of the directory of `segment`, which more bytes may follow.
    pub(super) fn read(reader: &mut Reader<'_>, segment: u64) -> Result<Self> {
        if reader.take(MAGIC.len())? != MAGIC || reader.u64()? != segment {
            return Err(reader.bad("it is not the directory of this segment"));
        }
        let count = reader.u32()? as usize;
        if count > LEAVES_MAX {
            return Err(reader.bad("it has more leaves than a segment has slots for"));
        }
        let mut leaves = Vec::with_capacity(count);
        let (mut next_number, mut start) = (0_u64, 0);
        for _ in 0..count {
            let number = next_number.saturating_add(reader.varint()?);
            let more = reader.varint()?;
            let base = reader.varint_u32()?;
            let len_bytes = reader.varint_u32()?;
            let checksum = reader.u32()?;
            if number >= LEAVES_MAX as u64 || more >= u64::from(LEAF_SLOTS) {
                return Err(reader.bad("a leaf has slots that there cannot be"));
            }
            let (number, entries) = (number as u32, more as u32 + 1);
            let possible = entries as usize * ENTRY_BYTES_MIN..=entries as usize * ENTRY_BYTES_MAX;
            if !possible.contains(&(len_bytes as usize)) {
                return Err(reader.bad("a leaf is longer or shorter than its entries can be"));
            }
            leaves.push(LeafRef { number, entries, base, start, len_bytes, checksum });
            next_number = u64::from(number) + 1;
            start += len_bytes;
        }
        Ok(Self { leaves })
    }

    /// Returns its leaves, ascending.
    pub(super) fn leaves(&self) -> &[LeafRef] {
        &self.leaves
    }

    /// Returns the leaf that would have the entry of `slot`, if there is one.
    pub(super) fn leaf(&self, slot: u32) -> Option<LeafRef> {
        let at = self.leaves.binary_search_by_key(&(slot / LEAF_SLOTS), |leaf| leaf.number).ok()?;
        self.leaves.get(at).copied()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<LeafRef>() + size_of::<Self>()
    }
}

impl LeafRef {
    /// Returns its first byte, from the start of the directory to which `dir` refers.
    pub(super) fn start(&self, dir: DirRef) -> u32 {
        dir.index_bytes + self.start
    }

    /// Verifies the stored leaf, and reads its entries, whose records lie in an extent of `extent_bytes`.
    pub(super) fn read(&self, bytes: &[u8], extent_bytes: u32) -> Result<Directory> {
        let mut entries = Vec::with_capacity(self.entries as usize);
        self.decode(bytes, extent_bytes, &mut entries)?;
        Ok(Directory { entries })
    }

    fn decode(&self, bytes: &[u8], extent_bytes: u32, entries: &mut Vec<DirEntry>) -> Result<()> {
        let mut reader = Reader::new(bytes, WHAT);
        if crc32c::crc32c(bytes) != self.checksum {
            return Err(reader.bad("the checksum of a leaf does not hold"));
        }
        let first = u64::from(self.number * LEAF_SLOTS);
        let (mut next_slot, mut end) = (first, i64::from(self.base));
        for _ in 0..self.entries {
            let slot = next_slot.saturating_add(reader.varint()?);
            let start = end.saturating_add(reader.signed()?);
            let len_bytes = reader.varint_u32()?;
            let checksum = reader.u32()?;
            let stop = start.saturating_add(i64::from(len_bytes));
            if slot >= first + u64::from(LEAF_SLOTS)
                || start < 0
                || stop > i64::from(extent_bytes)
                || len_bytes as usize > RECORD_BYTES_MAX
            {
                return Err(reader.bad("an entry lies outside of the segment"));
            }
            entries.push(DirEntry { slot: slot as u32, start: start as u32, len_bytes, checksum });
            next_slot = slot + 1;
            end = stop;
        }
        reader.end()
    }
}

impl TryFrom<Vec<DirEntry>> for Directory {
    type Error = Error;
    fn try_from(entries: Vec<DirEntry>) -> Result<Self> {
        let ascending = entries.windows(2).all(|pair| matches!(pair, [a, b] if a.slot < b.slot));
        if ascending { Ok(Self { entries }) } else { Err(Error::corrupt(WHAT, "slots do not ascend")) }
    }
}

impl From<&[DirEntry]> for Directory {
    /// Copies entries of another directory.
    fn from(entries: &[DirEntry]) -> Self {
        Self { entries: entries.to_vec() }
    }
}

const _: () = assert!(CHUNK_BYTES <= u32::MAX as u64);
const _: () = assert!(
    SEGMENT_SLOTS_MAX.is_multiple_of(LEAF_SLOTS) && SEGMENT_SLOTS_MAX <= 1 << crate::types::SLOT_BITS
);
