//! A file of the log as `archive_command` and `restore_command` know it: reads its name, its first page, and the times
//! at which its transactions ended.
//!
//! Layouts are those of `access/xlog_internal.h`, `access/xlogrecord.h` and `access/xact.h`. The long header of a
//! segment's first page has, behind the header that `wal` describes, the system identifier (24, 8 bytes), the bytes of
//! a segment (32, 4) and of a page (36, 4).

use std::fmt;

use crate::limits::WAL_RECORD_BYTES_MAX;

const LONG_HEADER: usize = 40;
const SHORT_HEADER: usize = 24;
const CONTINUES: u16 = 1;
const LONG: u16 = 2;
const OVERWRITES: u16 = 8;
const RECORD_HEADER: usize = 24;
const CRC_AT: usize = 20;
const ALIGNED: usize = 8;
const MANAGER_LOG: u8 = 0;
const SWITCH: u8 = 0x40;
const LOG_OPERATION: u8 = 0xF0;
const MANAGER_TRANSACTIONS: u8 = 1;
const TRANSACTION_OPERATION: u8 = 0x70;
/// Operations of commit, abort, and both of prepared transactions: a recovery to a time may stop at these records.
const ENDS: [u8; 4] = [0x00, 0x20, 0x30, 0x40];
/// Marks of parts of a record that carry no block (`XLR_BLOCK_ID_*`).
const DATA_SHORT: u8 = 255;
const DATA_LONG: u8 = 254;
const ORIGIN: u8 = 253;
const TOPLEVEL: u8 = 252;
/// Microseconds from 1970 to 2000, the year from which PostgreSQL counts.
const EPOCH_US: i64 = 946_684_800_000_000;

/// Kinds of files, as their names tell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A whole segment.
    Segment,
    /// The last segment of a timeline that was left (`.partial`).
    Partial,
    /// A file about a base backup that begins in the segment, at this offset (`.OFFSET.backup`).
    Label(u32),
    /// The history of a timeline (`.history`).
    History,
}

/// The name of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Timeline of the file.
    pub timeline: u32,
    /// Upper half of the segment's place; 0 for a history.
    pub log: u32,
    /// Lower half, in segments; 0 for a history.
    pub segment: u32,
    /// Kind of the file.
    pub part: Part,
}

impl Name {
    /// Parses a name; `None` if no server makes such a name.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |at: usize| hex(text.get(at..at + 8)?);
        let timeline = number(0).filter(|timeline| *timeline > 0)?;
        if text.get(8..) == Some(".history") {
            return Some(Self { timeline, log: 0, segment: 0, part: Part::History });
        }
        let (log, segment) = (number(8)?, number(16)?);
        let rest = text.get(24..)?;
        let part = match rest {
            "" => Part::Segment,
            ".partial" => Part::Partial,
            label => Part::Label(hex(label.strip_prefix('.')?.strip_suffix(".backup")?)?),
        };
        Some(Self { timeline, log, segment, part })
    }

    /// Returns the number of the segment, for segments of this length.
    pub fn number(&self, segment_bytes: u64) -> u64 {
        let per_log = (1_u64 << 32).checked_div(segment_bytes).unwrap_or(1);
        u64::from(self.log) * per_log + u64::from(self.segment)
    }

    /// Returns the name of the segment before this one on the same timeline, for segments of this length; `None` if
    /// this is none, or the first.
    #[must_use]
    pub fn before(&self, segment_bytes: u64) -> Option<Self> {
        let per_log = (1_u64 << 32).checked_div(segment_bytes).filter(|count| *count > 0)?;
        let number = self.number(segment_bytes).checked_sub(1).filter(|_| self.part == Part::Segment)?;
        let (log, segment) = (number.checked_div(per_log)?, number.checked_rem(per_log)?);
        Some(Self { log: u32::try_from(log).ok()?, segment: u32::try_from(segment).ok()?, ..*self })
    }
}

fn hex(text: &str) -> Option<u32> {
    let is_hex = text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    if is_hex { u32::from_str_radix(text, 16).ok() } else { None }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.timeline)?;
        if self.part == Part::History {
            return f.write_str(".history");
        }
        write!(f, "{:08X}{:08X}", self.log, self.segment)?;
        match self.part {
            Part::Partial => f.write_str(".partial"),
            Part::Label(offset) => write!(f, ".{offset:08X}.backup"),
            Part::Segment | Part::History => Ok(()),
        }
    }
}

/// The description of a segment in its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the cluster.
    pub system: u64,
    /// Timeline on which that page was written: that of the name, or an earlier one.
    pub timeline: u32,
    /// Place in the log where the segment begins.
    pub address: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn place(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

impl Head {
    /// Reads the head of a segment; `None` if the bytes do not begin as one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = Self {
            system: place(bytes, 24)?,
            timeline: number(bytes, 4)?,
            address: place(bytes, 8)?,
            segment_bytes: number(bytes, 32)?,
            page_bytes: number(bytes, 36)?,
        };
        let is_size = |size: u32, min: u32, max: u32| size.is_power_of_two() && size >= min && size <= max;
        let is_right = half(bytes, 0)? != 0
            && half(bytes, 2)? & LONG != 0
            && is_size(head.segment_bytes, 1 << 20, 1 << 30)
            && is_size(head.page_bytes, 1 << 10, 64 << 10)
            && head.address.is_multiple_of(head.segment_bytes.into());
        is_right.then_some(head)
    }
}

/// Times at which transactions ended, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// End of the transaction that ended first.
    pub first: i64,
    /// End of the one that ended last.
    pub last: i64,
}

impl Times {
    /// Returns the times with another one added.
    pub fn with(times: Option<Self>, time: i64) -> Self {
        times.map_or(Self { first: time, last: time }, |times| Self {
            first: times.first.min(time),
            last: times.last.max(time),
        })
    }
}

/// Returns the time at which a transaction was committed or aborted by this whole record, in microseconds since 1970;
/// `None` for other records.
pub fn end_of_transaction(record: &[u8]) -> Option<i64> {
    let (info, manager) = (*record.get(16)?, *record.get(17)?);
    if manager != MANAGER_TRANSACTIONS || !ENDS.contains(&(info & TRANSACTION_OPERATION)) {
        return None;
    }
    let mut at = RECORD_HEADER;
    loop {
        let len = match *record.get(at)? {
            DATA_SHORT => usize::from(*record.get(at + 1)?),
            DATA_LONG => number(record, at + 1)? as usize,
            ORIGIN => {
                at += 3;
                continue;
            }
            TOPLEVEL => {
                at += 5;
                continue;
            }
            // The part refers to a block, which no record of this kind does.
            _ => return None,
        };
        let begin = record.len().checked_sub(len)?;
        return array(record, begin).map(i64::from_le_bytes)?.checked_add(EPOCH_US);
    }
}

/// Returns the times of the transactions whose records lie in a segment as a whole; `None` if there are none.
pub fn times(segment: &[u8]) -> Option<Times> {
    let head = Head::parse(segment)?;
    let mut walk =
        Walk { segment, page_bytes: head.page_bytes as usize, address: head.address, record: Vec::new() };
    let mut at = walk.first()?;
    let mut times = None;
    while let Some(next) = walk.record(at) {
        if let Some(time) = end_of_transaction(&walk.record) {
            times = Some(Times::with(times, time));
        }
        at = next;
    }
    times
}

/// A walk over the records of one segment. It ends where there is no record: the rest of the segment was not written,
/// or its last record goes on in the next segment.
struct Walk<'a> {
    segment: &'a [u8],
    page_bytes: usize,
    address: u64,
    record: Vec<u8>,
}

impl Walk<'_> {
    /// Returns a page's flags, the bytes of a record that goes on in it, and the length of its header.
    fn header(&self, page: usize) -> Option<(u16, usize, usize)> {
        let bytes = self.segment.get(page..)?;
        let flags = half(bytes, 2)?;
        let len = if flags & LONG == 0 { SHORT_HEADER } else { LONG_HEADER };
        let is_right = place(bytes, 8)? == self.address + page as u64;
        is_right.then_some((flags, number(bytes, 16)? as usize, len))
    }

    /// Returns the offset of the first record that begins in the segment.
    fn first(&self) -> Option<usize> {
        let mut page = 0;
        loop {
            let (flags, rest, len) = self.header(page)?;
            if flags & CONTINUES == 0 || flags & OVERWRITES != 0 {
                return Some(page + len);
            }
            if rest <= self.page_bytes.checked_sub(len)? {
                return Some((page + len + rest).next_multiple_of(ALIGNED));
            }
            page += self.page_bytes;
        }
    }

    /// Reads the record at `at`; returns the offset of the next one.
    fn record(&mut self, at: usize) -> Option<usize> {
        let mut page = at - at % self.page_bytes;
        let mut here = at;
        if here == page {
            here += self.header(page)?.2;
        }
        let total = number(self.segment, here)? as usize;
        if !(RECORD_HEADER..=WAL_RECORD_BYTES_MAX).contains(&total) {
            return None;
        }
        self.record.clear();
        loop {
            let end = (page + self.page_bytes).min(here + (total - self.record.len()));
            self.record.extend_from_slice(self.segment.get(here..end)?);
            here = end;
            if self.record.len() == total {
                break;
            }
            page += self.page_bytes;
            let (flags, rest, len) = self.header(page)?;
            if flags & OVERWRITES != 0 {
                // The record was never finished; the next one begins here.
                self.record.clear();
                return Some(page);
            }
            if flags & CONTINUES == 0 || rest != total - self.record.len() {
                return None;
            }
            here = page + len;
        }
        let crc = number(&self.record, CRC_AT)?;
        let body = crc32c::crc32c(self.record.get(RECORD_HEADER..)?);
        if crc32c::crc32c_append(body, self.record.get(..CRC_AT)?) != crc {
            return None;
        }
        let is_switch = self.record.get(17) == Some(&MANAGER_LOG)
            && self.record.get(16).is_some_and(|info| info & LOG_OPERATION == SWITCH);
        (!is_switch).then(|| here.next_multiple_of(ALIGNED))
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
