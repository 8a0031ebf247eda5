//! The directory of a segment: where each slot lies within the segment's extent.
//!
//! Stored form (all of it under one crc32c, kept in the [`super::DirRef`]):
//!
//! | field | size |
//! |---|---|
//! | magic `PFdr` | 4 |
//! | segment id | 8 |
//! | number of entries | 4 |
//! | per entry: slot - previous slot - 1 | varint |
//! | per entry: start - previous end (zigzag) | varint |
//! | per entry: stored length | varint |
//! | per entry: checksum | 4 |

use crate::limits::{CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::wire::{Reader, put_signed, put_varint};
use crate::{Error, Result};

const MAGIC: u32 = u32::from_le_bytes(*b"PFdr");
const HEADER_BYTES: usize = 16;
/// Longest stored form of one entry whose slot and start follow from the previous (1 + 5 + 3 + 4), rounded up.
const ENTRY_BYTES_MAX: usize = 16;

/// One record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Slot in the segment.
    pub slot: u32,
    /// First byte, from the start of the segment's extent.
    pub start: u32,
    /// Stored length in bytes.
    pub len_bytes: u32,
    /// [`super::seal`] of address and bytes.
    pub checksum: u32,
}

/// All records of a segment, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    entries: Vec<DirEntry>,
}

impl Directory {
    /// Adds an entry; its slot must be above all others.
    pub fn push(&mut self, entry: DirEntry) {
        debug_assert!(self.entries.last().is_none_or(|last| last.slot < entry.slot));
        self.entries.push(entry);
    }

    /// The entry of `slot`.
    pub fn get(&self, slot: u32) -> Option<DirEntry> {
        let dense = self.entries.get(slot as usize).filter(|entry| entry.slot == slot);
        if let Some(entry) = dense {
            return Some(*entry);
        }
        let at = self.entries.binary_search_by_key(&slot, |entry| entry.slot).ok()?;
        self.entries.get(at).copied()
    }

    /// All entries, ascending by slot.
    pub fn entries(&self) -> &[DirEntry] {
        &self.entries
    }

    /// Memory it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<DirEntry>() + size_of::<Self>()
    }

    /// Upper bound of the stored length of a directory of `entries` entries, in bytes.
    pub const fn stored_bytes_max(entries: usize) -> usize {
        HEADER_BYTES + entries * ENTRY_BYTES_MAX
    }

    /// The stored form.
    pub fn encode(&self, segment: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.entries.len() * 9);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&segment.to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        let (mut next_slot, mut end) = (0, 0);
        for entry in &self.entries {
            put_varint(&mut out, u64::from(entry.slot - next_slot));
            put_signed(&mut out, i64::from(entry.start) - i64::from(end));
            put_varint(&mut out, u64::from(entry.len_bytes));
            out.extend_from_slice(&entry.checksum.to_le_bytes());
            next_slot = entry.slot + 1;
            end = entry.start + entry.len_bytes;
        }
        out
    }

    /// Reads the stored form of the directory of `segment`, whose bytes lie in `extent_bytes`.
    pub fn decode(bytes: &[u8], segment: u64, extent_bytes: u32) -> Result<Self> {
        let mut reader = Reader::new(bytes, "segment directory");
        if reader.u32()? != MAGIC || reader.u64()? != segment {
            return Err(reader.bad("it is not the directory of this segment"));
        }
        let count = reader.u32()? as usize;
        // An entry takes at least 7 bytes: a count beyond that would allocate by the word of the device.
        if count > reader.remaining() / 7 {
            return Err(reader.bad("it has more entries than bytes"));
        }
        let mut entries = Vec::with_capacity(count);
        let (mut next_slot, mut end) = (0_u64, 0_i64);
        for _ in 0..count {
            let slot = next_slot.saturating_add(reader.varint()?);
            let start = end.saturating_add(reader.signed()?);
            let len_bytes = reader.varint_u32()?;
            let checksum = reader.u32()?;
            let stop = start.saturating_add(i64::from(len_bytes));
            if slot >= 1 << crate::types::SLOT_BITS
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
        reader.end()?;
        Ok(Self { entries })
    }
}

impl TryFrom<Vec<DirEntry>> for Directory {
    type Error = Error;
    fn try_from(entries: Vec<DirEntry>) -> Result<Self> {
        let ascending = entries.windows(2).all(|pair| matches!(pair, [a, b] if a.slot < b.slot));
        if ascending {
            Ok(Self { entries })
        } else {
            Err(Error::corrupt("segment directory", "slots do not ascend"))
        }
    }
}

const _: () = assert!(CHUNK_BYTES <= u32::MAX as u64);
