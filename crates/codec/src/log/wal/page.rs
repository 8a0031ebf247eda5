//! Parses pages of PostgreSQL's write-ahead log, and the heads of its records.
//!
//! Formats are those of `src/include/access/xlog_internal.h` (pages), `xlogrecord.h` (records) and
//! `src/backend/access/transam/xloginsert.c` (the bytes that a record's checksum covers) of PostgreSQL 9.5 to 18. All
//! numbers are little endian, as on every usual machine.

use crate::wire::{le16, le32};

/// Flags of a page: it begins within a record; it has the long header of a segment's first page. `KNOWN_INFO` has all
/// flags that exist.
pub(crate) const CONTINUES: u16 = 1;
pub(crate) const LONG: u16 = 2;
const KNOWN_INFO: u16 = 15;
/// Bytes of the two kinds of page header.
pub(crate) const SHORT_HEADER: usize = 24;
pub(crate) const LONG_HEADER: usize = 40;
/// Bytes of a record's own header, and the place of the checksum in it.
pub(crate) const RECORD_HEADER: usize = 24;
pub(crate) const CRC_AT: usize = 20;
/// Records begin at multiples of this.
pub(crate) const ALIGNED: usize = 8;

/// Flags of a block reference, beside the fork in its low four bits.
pub(crate) const HAS_IMAGE: u8 = 0x10;
pub(crate) const HAS_DATA: u8 = 0x20;
pub(crate) const SAME_REL: u8 = 0x80;
/// Flags of an image: it has a hole; up to version 14, and from version 15 on, that it is compressed.
const HAS_HOLE: u8 = 1;
const COMPRESSED_OLD: u8 = 2;
const COMPRESSED: u8 = 0x1C;
const MAGIC_15: u16 = 0xD110;
/// Marks before a record's main data: its length has one byte, or four.
pub(crate) const MAIN_SHORT: u8 = 255;
pub(crate) const MAIN_LONG: u8 = 254;
/// Largest number of a block reference.
const BLOCK_ID_MAX: u8 = 32;
/// Largest number of blocks of a record that has a pattern: splits of B-tree pages have five.
pub(crate) const BLOCKS_MAX: usize = 5;

/// Tablespace, database and file of a relation.
pub(crate) type Rel = [u8; 12];

/// Returns true if an image's hole has a length of its own.
pub(crate) fn has_hole_length(magic: u16, image_info: u8) -> bool {
    let compressed = if magic < MAGIC_15 { COMPRESSED_OLD } else { COMPRESSED };
    image_info & HAS_HOLE != 0 && image_info & compressed != 0
}

/// A block reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) id: u8,
    pub(crate) flags: u8,
    pub(crate) image_info: u8,
    pub(crate) data: usize,
    pub(crate) image: usize,
    /// Place of the relation, if it is told; otherwise of the block number.
    pub(crate) rel_at: usize,
}

/// The head of a record, all of which is in the page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordHead {
    pub(crate) manager: u8,
    pub(crate) info: u8,
    pub(crate) blocks: [BlockRef; BLOCKS_MAX],
    pub(crate) count: usize,
    /// [`MAIN_SHORT`], [`MAIN_LONG`], or 0 without main data.
    pub(crate) main_kind: u8,
    pub(crate) main: usize,
    /// Place at which data begins.
    pub(crate) end: usize,
}

impl RecordHead {
    /// Returns the head of the record at `at`; `None` unless its data is as long as the record says.
    pub(crate) fn parse(page: &[u8], at: usize) -> Option<Self> {
        if page.len() < at + RECORD_HEADER {
            return None;
        }
        let magic = le16(page, 0);
        let total = le32(page, at) as usize;
        let mut head = Self { manager: page[at + 17], info: page[at + 16], ..Self::default() };
        let mut data_bytes = 0;
        let mut next = at + RECORD_HEADER;
        // A record without any data has no length of main data either.
        while next - at + data_bytes < total {
            let id = *page.get(next)?;
            match id {
                MAIN_SHORT => {
                    head.main = usize::from(*page.get(next + 1)?);
                    next += 2;
                }
                MAIN_LONG => {
                    head.main = u32::from_le_bytes(*page.get(next + 1..)?.first_chunk()?) as usize;
                    next += 5;
                }
                _ => {
                    if id > BLOCK_ID_MAX || head.count == BLOCKS_MAX {
                        return None;
                    }
                    let (block, after) = Self::block(page, next, magic)?;
                    data_bytes += block.data + block.image;
                    head.blocks[head.count] = block;
                    head.count += 1;
                    next = after;
                    continue;
                }
            }
            head.main_kind = id;
            data_bytes += head.main;
            break;
        }
        head.end = next;
        (next <= page.len() && next - at + data_bytes == total).then_some(head)
    }

    fn block(page: &[u8], at: usize, magic: u16) -> Option<(BlockRef, usize)> {
        let &[id, flags, ..] = page.get(at..at + 4)? else { return None };
        let mut block = BlockRef { id, flags, data: usize::from(le16(page, at + 2)), ..BlockRef::default() };
        if flags & HAS_DATA == 0 && block.data > 0 {
            return None;
        }
        let mut next = at + 4;
        if flags & HAS_IMAGE != 0 {
            block.image_info = *page.get(next + 4)?;
            block.image = usize::from(le16(page, next));
            next += if has_hole_length(magic, block.image_info) { 7 } else { 5 };
        }
        block.rel_at = next;
        next += if flags & SAME_REL == 0 { 16 } else { 4 };
        (next <= page.len()).then_some((block, next))
    }

    /// Returns the kind of the record, with the relation of each block as `relation` numbers it.
    pub(crate) fn key(&self, mut relation: impl FnMut(&BlockRef) -> u8) -> Vec<u8> {
        let mut key = vec![self.manager, self.info, self.main_kind];
        for block in &self.blocks[..self.count] {
            let rel = if block.flags & SAME_REL == 0 { relation(block) } else { 0 };
            key.extend([block.id, block.flags, block.image_info, rel]);
        }
        key
    }
}

/// Returns the relation of `block`.
pub(crate) fn rel_of(page: &[u8], block: &BlockRef) -> Rel {
    page.get(block.rel_at..).and_then(|rest| rest.first_chunk().copied()).unwrap_or_default()
}

/// Returns the checksum of a record, all of which is `record`: it covers data, then the header up to the checksum.
pub(crate) fn checksum(record: &[u8]) -> u32 {
    let (header, body) = record.split_at(RECORD_HEADER.min(record.len()));
    crc32c::crc32c_append(crc32c::crc32c(body), &header[..CRC_AT.min(header.len())])
}

/// Returns the bytes of the header of a page; `None` if `page` is no page of a log whose block size is its length.
pub(crate) fn header_bytes(page: &[u8]) -> Option<usize> {
    let (magic, info) = (le16(page, 0), le16(page, 2));
    let address = page.get(8..16)?.first_chunk().copied().map(u64::from_le_bytes)?;
    let sane = (0xD0..=0xD1).contains(&(magic >> 8))
        && info & !KNOWN_INFO == 0
        && page.len().is_power_of_two()
        && address.is_multiple_of(page.len() as u64)
        && (info & CONTINUES != 0) == (le32(page, 16) != 0)
        && le32(page, 20) == 0;
    if !sane {
        return None;
    }
    if info & LONG == 0 {
        return Some(SHORT_HEADER);
    }
    (le32(page, 36) as usize == page.len()).then_some(LONG_HEADER)
}

/// Returns the heads of the page's records that can be parsed, and where they begin.
pub(crate) fn heads(page: &[u8]) -> Vec<(usize, RecordHead)> {
    let mut found = vec![];
    let Some(header) = header_bytes(page) else { return found };
    let mut at = (header + le32(page, 16) as usize).next_multiple_of(ALIGNED);
    while at + ALIGNED <= page.len() {
        let total = le32(page, at) as usize;
        if total < RECORD_HEADER {
            break;
        }
        found.extend(RecordHead::parse(page, at).map(|head| (at, head)));
        at = at.saturating_add(total).next_multiple_of(ALIGNED);
    }
    found
}
