//! Parses blocks of InnoDB's redo log: a stream of mini-transactions, each a sequence of records, an end byte and a
//! checksum.
//!
//! Formats are those of `storage/innobase/include/mtr0types.h`, `mtr0log.h` and `mtr/mtr0mtr.cc` of MariaDB 10.8 and
//! later, which have neither blocks nor headers in the log: a mini-transaction begins where the one before ends.
//! Numbers are big endian.

/// Flag of a record's first byte: the record is of the same page as the one before.
pub(crate) const SAME_PAGE: u8 = 0x80;
/// Mask of a record's kind: the first byte without that flag, and without the length in the low four bits.
pub(crate) const KIND: u8 = 0x70;
/// The first of the kinds whose data begins with a place in the page, or with an operation.
pub(crate) const EXTENDED: u8 = 0x20;
/// Bytes of a mini-transaction's end: one with a bit of the log's sequence, and CRC-32C.
pub(crate) const END_BYTES: usize = 5;
/// Largest number of bytes of a record: a page, and the fields that describe it. Longer records are not taken.
const RECORD_MAX: usize = 64 << 10;

/// A number of one to five bytes: the numbers of each length begin where those of the length below end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Varint {
    pub(crate) value: u32,
    pub(crate) bytes: usize,
}

/// The least number of each length.
const LEAST: [u32; 5] = [0, 0x80, 0x4080, 0x20_4080, 0x1020_4080];
/// The high bits of the first byte, by length.
const LEADS: [u8; 5] = [0, 0x80, 0xC0, 0xE0, 0xF0];

/// Returns the number at `at`.
pub(crate) fn varint(page: &[u8], at: usize) -> Option<Varint> {
    let first = *page.get(at)?;
    let bytes = match first {
        0..0x80 => 1,
        0x80..0xC0 => 2,
        0xC0..0xE0 => 3,
        0xE0..0xF0 => 4,
        0xF0 => 5,
        _ => return None,
    };
    let rest = page.get(at + 1..at + bytes)?;
    let high = u32::from(first - LEADS[bytes - 1]);
    let value = rest.iter().fold(high, |value, &byte| value << 8 | u32::from(byte));
    Some(Varint { value: value.checked_add(LEAST[bytes - 1])?, bytes })
}

/// Writes a number at `at`, and returns the number of bytes that it takes; `None` beyond the page.
pub(crate) fn put_varint(page: &mut [u8], at: usize, value: u32) -> Option<usize> {
    let bytes = LEAST.iter().take_while(|&&least| value >= least).count();
    let digits = (value - LEAST[bytes - 1]).to_be_bytes();
    let place = page.get_mut(at..at + bytes)?;
    if bytes == 5 {
        place[1..].copy_from_slice(&digits);
        place[0] = LEADS[4];
    } else {
        place.copy_from_slice(&digits[4 - bytes..]);
        place[0] |= LEADS[bytes - 1];
    }
    Some(bytes)
}

/// A record, all of which is in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedoRecord {
    pub(crate) first: u8,
    /// The number that tells the length, if the first byte does not.
    pub(crate) more: Option<u32>,
    /// Tablespace and page, unless the page is that of the record before.
    pub(crate) page: Option<(u32, u32)>,
    /// Places at which data begins and ends.
    pub(crate) data: usize,
    pub(crate) end: usize,
}

impl RedoRecord {
    /// Returns the record at `at`; `None` if there is none in the block.
    pub(crate) fn parse(block: &[u8], at: usize) -> Option<Self> {
        let first = *block.get(at)?;
        let mut next = at + 1;
        let mut more = None;
        let mut bytes = usize::from(first & 15);
        if bytes == 0 {
            let told = varint(block, next)?;
            next += told.bytes;
            bytes = length(told)?;
            more = Some(told.value);
        }
        let end = next.checked_add(bytes).filter(|&end| end <= block.len())?;
        let mut page = None;
        if first & SAME_PAGE == 0 {
            let space = varint(block, next)?;
            let number = varint(block, next + space.bytes)?;
            next += space.bytes + number.bytes;
            page = Some((space.value, number.value));
        }
        (next <= end).then_some(Self { first, more, page, data: next, end })
    }

    /// Returns the kind of the record, in the tablespace with the mark `space`.
    pub(crate) fn key(&self, block: &[u8], space: u8) -> [u8; 3] {
        let begins = if self.first & KIND >= EXTENDED && self.data < self.end { block[self.data] } else { 0 };
        [self.first, begins, space]
    }
}

/// Returns the number of bytes behind a length that has bytes of its own.
pub(crate) fn length(told: Varint) -> Option<usize> {
    let bytes = usize::try_from(told.value).ok()?.checked_add(15)?.checked_sub(told.bytes)?;
    (bytes <= RECORD_MAX).then_some(bytes)
}

/// Returns the place of the end byte of the mini-transaction that begins at `at`, if its checksum is right.
pub(crate) fn transaction(block: &[u8], at: usize) -> Option<usize> {
    let mut next = at;
    while *block.get(next)? > 1 {
        next = RedoRecord::parse(block, next)?.end;
    }
    let crc = u32::from_be_bytes(*block.get(next + 1..)?.first_chunk()?);
    (next > at && crc == crc32c::crc32c(&block[at..next])).then_some(next)
}

/// Largest number of bytes that are looked at to find where a block's first mini-transaction begins, in lengths of the
/// block.
const LOOKS: usize = 64;
/// Stands for records that lead to no end byte.
const NONE: u32 = u32::MAX;

/// Returns where the first mini-transaction with a right checksum begins.
pub(crate) fn begin(block: &[u8]) -> Option<usize> {
    // The place of the end byte to which the records from each byte on lead. Bytes are taken from the last to the
    // first, so that none is followed twice.
    let mut ends = vec![NONE; block.len() + 1];
    for at in (0..block.len()).rev() {
        ends[at] = match block[at] {
            0 | 1 => at as u32,
            _ => RedoRecord::parse(block, at).map_or(NONE, |record| ends[record.end]),
        };
    }
    let mut left = LOOKS * block.len();
    for (at, &end) in ends.iter().enumerate() {
        let end = end as usize;
        let Some(&crc) = block.get(end.saturating_add(1)..).and_then(|rest| rest.first_chunk()) else {
            continue;
        };
        if end <= at {
            continue;
        }
        left = left.checked_sub(end - at)?;
        if u32::from_be_bytes(crc) == crc32c::crc32c(&block[at..end]) {
            return Some(at);
        }
    }
    None
}
