//! Has the parts that all index pages of InnoDB share: FIL header, page header, infimum and supremum, page directory,
//! trailer.
//!
//! Names and places are those of `fil0fil.h` and `page0types.h`. All numbers have their high byte first.

use crate::wire::{be16, be32, be64};

/// Page type of index pages, FIL_PAGE_INDEX.
const INDEX_PAGE: u16 = 17_855;
/// Bytes of FIL header and page header.
const HEADERS: usize = 94;
/// Bytes of a record's header, before its origin.
pub(crate) const RECORD: usize = 5;
/// Origins of the two records that every page has.
pub(crate) const INFIMUM: usize = 99;
pub(crate) const SUPREMUM: usize = 112;
/// Offset at which records begin.
pub(crate) const HEAP: usize = 120;
/// Bytes of the trailer.
const TRAILER: usize = 8;
/// Bytes of an entry of the page directory.
const SLOT: usize = 2;
/// Number of records that the heap numbers first: infimum and supremum.
pub(crate) const SYSTEM_RECORDS: usize = 2;
/// Largest number of records beside these: the heap numbers records in 13 bits.
pub(crate) const MAX_RECORDS: usize = (1 << 13) - SYSTEM_RECORDS;
/// Stands for no page.
pub(crate) const NO_PAGE: u32 = u32::MAX;
/// Bit of the number of records: the page has the compact format.
const COMPACT: u16 = 1 << 15;
/// Bytes of the addresses of file segments, which only root pages have.
pub(crate) const SEGMENTS: usize = 20;

/// Status bits of records.
pub(crate) mod status {
    pub(crate) const ORDINARY: u8 = 0;
    pub(crate) const NODE: u8 = 1;
    pub(super) const INFIMUM: u8 = 2;
    pub(super) const SUPREMUM: u8 = 3;
}

/// FIL header and page header of a page. A decoder fills in slots and places after it has read the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InnodbHeader {
    pub(crate) number: u32,
    pub(crate) previous: u32,
    pub(crate) next: u32,
    pub(crate) lsn: u64,
    pub(crate) space: u32,
    /// Number of entries of the page directory, infimum's and supremum's included.
    pub(crate) slots: usize,
    /// Offset behind the last record.
    pub(crate) heap_top: usize,
    /// Number of records that were ever placed, infimum and supremum included.
    pub(crate) heap: usize,
    /// Origin of the first free record; 0 if there is none.
    pub(crate) free: usize,
    /// Number of bytes of free records.
    pub(crate) garbage: usize,
    /// Origin of the record that was inserted last; 0 if there is none.
    pub(crate) last_insert: usize,
    pub(crate) direction: u8,
    pub(crate) same_direction: u16,
    /// Number of records in the list, infimum and supremum not counted.
    pub(crate) records: usize,
    pub(crate) max_trx: u64,
    pub(crate) level: u16,
    pub(crate) index: u64,
    pub(crate) segments: [u8; SEGMENTS],
}

impl InnodbHeader {
    /// Returns the headers of an index page in the compact format, with infimum and supremum in their places; `None` if
    /// `page` is no such page.
    pub(crate) fn parse(page: &[u8]) -> Option<Self> {
        let word = |at: usize| usize::from(be16(page, at));
        let header = Self {
            number: be32(page, 4),
            previous: be32(page, 8),
            next: be32(page, 12),
            lsn: be64(page, 16),
            space: be32(page, 34),
            slots: word(38),
            heap_top: word(40),
            heap: usize::from(be16(page, 42) & !COMPACT),
            free: word(44),
            garbage: word(46),
            last_insert: word(48),
            direction: page.get(51).copied()?,
            same_direction: be16(page, 52),
            records: word(54),
            max_trx: be64(page, 56),
            level: be16(page, 64),
            index: be64(page, 66),
            segments: *page.get(74..)?.first_chunk()?,
        };
        let kind = be16(page, 24) == INDEX_PAGE && be16(page, 42) & COMPACT != 0;
        let plain = page.get(26..34)? == [0; 8] && page[50] == 0;
        let counted = (SYSTEM_RECORDS..=SYSTEM_RECORDS + MAX_RECORDS).contains(&header.heap)
            && header.records + SYSTEM_RECORDS <= header.heap
            && (2..=header.records + 2).contains(&header.slots);
        let placed =
            counted && HEAP <= header.heap_top && header.heap_top <= directory(page.len(), header.slots)?;
        (kind && plain && placed && header.system_records(page)).then_some(header)
    }

    /// Returns true if infimum and supremum are as in every page, but for the fields that depend on records and
    /// directory.
    fn system_records(&self, page: &[u8]) -> bool {
        let mut expected = [0; HEAP - HEADERS];
        write_system_records(&mut expected, page[HEADERS + 8 + RECORD] & 0xF, be16(page, INFIMUM - 2));
        page[HEADERS..HEAP] == expected
    }

    /// Writes the headers, but not infimum and supremum.
    pub(crate) fn write(&self, page: &mut [u8]) {
        let mut put32 = |at: usize, value: u32| page[at..at + 4].copy_from_slice(&value.to_be_bytes());
        put32(4, self.number);
        put32(8, self.previous);
        put32(12, self.next);
        put32(34, self.space);
        page[16..24].copy_from_slice(&self.lsn.to_be_bytes());
        page[24..26].copy_from_slice(&INDEX_PAGE.to_be_bytes());
        let words = [
            self.slots as u16,
            self.heap_top as u16,
            self.heap as u16 | COMPACT,
            self.free as u16,
            self.garbage as u16,
            self.last_insert as u16,
            u16::from(self.direction),
            self.same_direction,
            self.records as u16,
        ];
        for (i, word) in words.into_iter().enumerate() {
            page[38 + 2 * i..40 + 2 * i].copy_from_slice(&word.to_be_bytes());
        }
        page[56..64].copy_from_slice(&self.max_trx.to_be_bytes());
        page[64..66].copy_from_slice(&self.level.to_be_bytes());
        page[66..74].copy_from_slice(&self.index.to_be_bytes());
        page[74..HEADERS].copy_from_slice(&self.segments);
    }
}

/// Writes infimum and supremum to their 26 bytes. `owned` is the number of records that supremum owns, `first` the
/// place of the first record relative to infimum.
pub(crate) fn write_system_records(to: &mut [u8], owned: u8, first: u16) {
    let [high, low] = first.to_be_bytes();
    to[..RECORD].copy_from_slice(&[1, 0, status::INFIMUM, high, low]);
    to[RECORD..13].copy_from_slice(b"infimum\0");
    to[13..18].copy_from_slice(&[owned, 0, 1 << 3 | status::SUPREMUM, 0, 0]);
    to[18..].copy_from_slice(b"supremum");
}

/// As [`write_system_records`], to a page. `first` is the origin of the first record.
pub(crate) fn put_system_records(page: &mut [u8], owned: u8, first: usize) {
    let next = (first as u16).wrapping_sub(INFIMUM as u16);
    write_system_records(&mut page[HEADERS..HEAP], owned, next);
}

/// Returns where a directory of `slots` entries begins in a page of `page_bytes`.
pub(crate) fn directory(page_bytes: usize, slots: usize) -> Option<usize> {
    page_bytes.checked_sub(TRAILER + SLOT * slots)
}

/// Returns where entry `n` of the directory is.
pub(crate) fn slot(page_bytes: usize, n: usize) -> usize {
    page_bytes - TRAILER - SLOT * (n + 1)
}

/// Kinds of checksums: the ways in which the first four and the last eight bytes of a page follow from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ends {
    /// As MariaDB writes them from 10.5 on: zeros; low half of the LSN, CRC-32C of all before it.
    #[default]
    Full = 0,
    /// As MySQL writes them: CRC-32C of the bytes that do not change outside of the page's latch; the same again, low
    /// half of the LSN.
    Crc32 = 1,
    /// Anything else.
    Other = 2,
}

/// Number of bytes that [`Ends`] describes.
pub(crate) const ENDS: usize = 4 + TRAILER;

/// Returns the CRC-32C of MySQL's `crc32`, which leaves out the bytes that are written outside of the page's latch.
fn crc32(page: &[u8]) -> u32 {
    crc32c::crc32c(&page[4..26]) ^ crc32c::crc32c(&page[38..page.len() - TRAILER])
}

impl Ends {
    pub(crate) fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Full,
            1 => Self::Crc32,
            _ => Self::Other,
        }
    }

    /// Returns the kind of the ends of `page`.
    pub(crate) fn of(page: &[u8]) -> Self {
        let tail = page.len() - TRAILER;
        let (first, last, before) = (be32(page, 0), be32(page, tail + 4), be32(page, tail));
        let lsn = be32(page, 20);
        if first == 0 && before == lsn && last == crc32c::crc32c(&page[..tail + 4]) {
            Self::Full
        } else if last == lsn && first == before && first == crc32(page) {
            Self::Crc32
        } else {
            Self::Other
        }
    }

    /// Returns the bytes of `page` that [`Ends::write`] writes.
    pub(crate) fn bytes(page: &[u8]) -> [u8; ENDS] {
        let mut bytes = [0; ENDS];
        bytes[..4].copy_from_slice(&page[..4]);
        bytes[4..].copy_from_slice(&page[page.len() - TRAILER..]);
        bytes
    }

    /// Writes the ends of `page`, in which all else is in place; writes `other` if they do not follow from it.
    pub(crate) fn write(self, page: &mut [u8], other: &[u8; ENDS]) {
        let tail = page.len() - TRAILER;
        let lsn = page[20..24].first_chunk().copied().unwrap_or([0; 4]);
        match self {
            Self::Full => {
                page[..4].fill(0);
                page[tail..tail + 4].copy_from_slice(&lsn);
                let sum = crc32c::crc32c(&page[..tail + 4]).to_be_bytes();
                page[tail + 4..].copy_from_slice(&sum);
            }
            Self::Crc32 => {
                let sum = crc32(page).to_be_bytes();
                page[..4].copy_from_slice(&sum);
                page[tail..tail + 4].copy_from_slice(&sum);
                page[tail + 4..].copy_from_slice(&lsn);
            }
            Self::Other => {
                page[..4].copy_from_slice(&other[..4]);
                page[tail..].copy_from_slice(&other[4..]);
            }
        }
    }

    /// Clears the ends, which are not known while stale bytes are decoded.
    pub(crate) fn clear(page: &mut [u8]) {
        let tail = page.len() - TRAILER;
        page[..4].fill(0);
        page[tail..].fill(0);
    }
}
