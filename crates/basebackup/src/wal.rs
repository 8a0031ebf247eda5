//! Reads the write-ahead log, as far as a backup needs it: which segments there are, and where the last whole record
//! ends.
//!
//! A record counts if its checksum holds, it says where the one before begins, and the headers of its pages are right
//! for their places (`access/xlogreader.c` reads so, and recovery ends at the first record that does not count).
//! Layouts are those of `access/xlogrecord.h` and `access/xlog_internal.h`:
//!
//! | page: offset | length | | record: offset | length | |
//! |---|---|---|---|---|---|
//! | 0 | 2 | magic | 0 | 4 | length |
//! | 2 | 2 | flags | 8 | 8 | where the record before begins |
//! | 4 | 4 | timeline | 16 | 1 | operation |
//! | 8 | 8 | its location | 17 | 1 | resource manager |
//! | 16 | 4 | bytes of a record that goes on here | 20 | 4 | CRC-32C of the rest, then of all before |

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::control::{Control, lsn};
use crate::error::{Error, Result};
use crate::limits::{WAL_READ_BYTES, WAL_RECORD_BYTES_MAX, WAL_SEGMENTS_BACK};
use crate::segment::{Times, end_of_transaction, times};

const SHORT_HEADER: u64 = 24;
const LONG_HEADER: u64 = 40;
const CONTINUES: u16 = 1;
const LONG: u16 = 2;
const OVERWRITES: u16 = 8;
const FLAGS: u16 = 15;
const RECORD_HEADER: usize = 24;
const CRC_AT: usize = 20;
const ALIGNED: u64 = 8;
/// The log's own resource manager, and its operation after which the rest of a segment is unused.
const MANAGER_LOG: u8 = 0;
const SWITCH: u8 = 0x40;
const OPERATION: u8 = 0xF0;

/// A stretch of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Timeline of the stretch.
    pub timeline: u32,
    /// Place of its first byte.
    pub start: u64,
    /// Place behind its last byte.
    pub end: u64,
}

/// The segments in a folder.
pub struct Wal {
    folder: PathBuf,
    page_bytes: u64,
    segment_bytes: u64,
    /// Segments by timeline and number: those that have a whole segment's length.
    segments: BTreeMap<(u32, u64), String>,
    /// Names of the files that tell where timelines begin.
    pub histories: Vec<String>,
}

fn parse_segment(name: &str, segment_bytes: u64) -> Option<(u32, u64)> {
    if name.len() != 24 || !name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F')) {
        return None;
    }
    let part = |at: usize| u32::from_str_radix(name.get(at..at + 8)?, 16).ok();
    let per_log = (1_u64 << 32) / segment_bytes;
    Some((part(0)?, u64::from(part(8)?) * per_log + u64::from(part(16)?)))
}

/// Returns the file name of a segment.
pub fn segment_name(timeline: u32, number: u64, segment_bytes: u64) -> String {
    let per_log = (1_u64 << 32) / segment_bytes;
    format!("{timeline:08X}{:08X}{:08X}", number / per_log, number % per_log)
}

fn is_history(name: &str) -> bool {
    let hex = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.strip_suffix(".history").is_some_and(hex)
}

impl Wal {
    /// Finds the segments in `folder`, of the cluster that `control` describes.
    pub fn open(folder: &Path, control: &Control) -> Result<Self> {
        let segment_bytes = u64::from(control.wal_segment_bytes);
        let (mut segments, mut histories) = (BTreeMap::new(), Vec::new());
        for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
            let entry = entry.map_err(Error::io("list", folder))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let found = entry.metadata().map_err(Error::io("look at", &entry.path()))?;
            if !found.is_file() {
                continue;
            }
            if is_history(&name) {
                histories.push(name);
            } else if let Some(number) = parse_segment(&name, segment_bytes)
                && found.len() == segment_bytes
            {
                segments.insert(number, name);
            }
        }
        histories.sort();
        let page_bytes = control.wal_page_bytes.into();
        Ok(Self { folder: folder.to_owned(), page_bytes, segment_bytes, segments, histories })
    }

    /// Returns the stretch of the log from which a crash at this instant would be recovered.
    ///
    /// Errors: it does not have the checkpoint's record, or it ends before a place that the cluster needs, or on
    /// another timeline.
    pub fn after_crash(&self, control: &Control) -> Result<Range> {
        let timeline = control.timeline;
        let end = self.end_of_records(timeline, control.redo, None)?;
        if end <= control.checkpoint || end < control.min_recovery {
            let needed = control.checkpoint.max(control.min_recovery);
            return Err(Error::Damaged(format!(
                "the log in {} has whole records from {} to {} only, and recovery needs those to {}",
                self.folder.display(),
                lsn(control.redo),
                lsn(end),
                lsn(needed)
            )));
        }
        // The first records of the next timeline are on its segment of the same number.
        let number = end / self.segment_bytes;
        if let Some(((newer, _), _)) =
            self.segments.range((timeline + 1, 0)..).find(|((_, other), _)| *other >= number)
        {
            return Err(Error::Unsuited(format!(
                "the cluster has gone from timeline {timeline} to {newer}, and no checkpoint has been made on that yet"
            )));
        }
        Ok(Range { timeline, start: control.redo, end })
    }

    /// Checks that all whole records from `start` to `stop` are here.
    pub fn between(&self, timeline: u32, start: u64, stop: u64) -> Result<Range> {
        let end = self.end_of_records(timeline, start, Some(stop))?;
        if end != stop {
            return Err(Error::Damaged(format!(
                "the log in {} has whole records from {} to {} only, and the backup ends at {}",
                self.folder.display(),
                lsn(start),
                lsn(end),
                lsn(stop)
            )));
        }
        Ok(Range { timeline, start, end })
    }

    /// Returns the files that have this stretch, and those behind it that were written to: their first pages say where
    /// they lie.
    pub fn files(&self, range: &Range) -> Result<Vec<String>> {
        let (first, last) = (range.start / self.segment_bytes, (range.end - 1) / self.segment_bytes);
        let mut names = Vec::new();
        for ((timeline, number), name) in self.segments.range((range.timeline, first)..) {
            let is_wanted = *timeline == range.timeline
                && (*number <= last || self.is_written(*timeline, *number, name)?);
            if !is_wanted {
                break;
            }
            names.push(name.clone());
        }
        Ok(names)
    }

    fn is_written(&self, timeline: u32, number: u64, name: &str) -> Result<bool> {
        let path = self.folder.join(name);
        let mut head = [0; SHORT_HEADER as usize];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut head, 0));
        read.map_err(Error::io("read", &path))?;
        let header = Header::parse(&head);
        Ok(header.is_some_and(|header| {
            header.address == number * self.segment_bytes && header.timeline == timeline
        }))
    }

    /// Returns the stretch as [`Wal::after_crash`] does, and the times of the transactions whose records are in it.
    pub fn times_after_crash(&self, control: &Control) -> Result<(Range, Option<Times>)> {
        let range = self.after_crash(control)?;
        let mut times = None;
        self.records(range.timeline, range.start, Some(range.end), &mut |record| {
            if let Some(time) = end_of_transaction(record) {
                times = Some(Times::with(times, time));
            }
        })?;
        Ok((range, times))
    }

    /// Returns a location behind which nothing was written on the timeline of the last checkpoint; it is less than a
    /// page too far. Reads the headers of few pages: the log is written from its beginning to its end, and headers left
    /// from older segments show that they are old.
    pub fn written_to(&self, control: &Control) -> Result<u64> {
        let (timeline, first) = (control.timeline, control.redo / self.segment_bytes);
        let mut reader =
            Reader { wal: self, timeline, file: None, buffer: Vec::new(), buffer_at: 0, magic: None };
        let mut last = first;
        while self.segments.contains_key(&(timeline, last + 1))
            && reader.header((last + 1) * self.segment_bytes)?.is_some()
        {
            last += 1;
        }
        let (mut low, mut high) = (0, self.segment_bytes / self.page_bytes);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match reader.header(last * self.segment_bytes + middle * self.page_bytes)? {
                Some(_) => low = middle,
                None => high = middle,
            }
        }
        Ok(last * self.segment_bytes + high * self.page_bytes)
    }

    /// Returns the end of the last transaction whose record lies before `end`, in microseconds since 1970. Searches the
    /// segment that ends there, as a whole, and a few before it; `None` if they have none.
    pub fn last_end_before(&self, timeline: u32, end: u64) -> Result<Option<i64>> {
        let last = end.saturating_sub(1) / self.segment_bytes;
        for number in (last.saturating_sub(WAL_SEGMENTS_BACK)..=last).rev() {
            let Some(name) = self.segments.get(&(timeline, number)) else { break };
            let path = self.folder.join(name);
            let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
            if let Some(times) = times(&bytes) {
                return Ok(Some(times.last));
            }
        }
        Ok(None)
    }

    /// Returns the end of the last whole record that begins before `stop`, reading from the record at `start` on.
    fn end_of_records(&self, timeline: u32, start: u64, stop: Option<u64>) -> Result<u64> {
        self.records(timeline, start, stop, &mut |_| {})
    }

    /// Returns the same as [`Wal::end_of_records`], and visits the records.
    fn records(
        &self,
        timeline: u32,
        start: u64,
        stop: Option<u64>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<u64> {
        let mut reader =
            Reader { wal: self, timeline, file: None, buffer: Vec::new(), buffer_at: 0, magic: None };
        let (mut at, mut end, mut before) = (start, start, None);
        let mut record = Vec::new();
        while stop.is_none_or(|stop| end < stop) {
            match reader.record(at, before, &mut record)? {
                Found::Record { start, end: found, next } => {
                    visit(&record);
                    before = Some(start);
                    end = found;
                    at = next;
                }
                Found::Overwritten { next } => (at, before) = (next, None),
                Found::Nothing => break,
            }
        }
        Ok(end)
    }
}

struct Header {
    magic: u16,
    flags: u16,
    timeline: u32,
    address: u64,
    rest: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let at = |at: usize| bytes.get(at..);
        Some(Self {
            magic: u16::from_le_bytes(*at(0)?.first_chunk()?),
            flags: u16::from_le_bytes(*at(2)?.first_chunk()?),
            timeline: u32::from_le_bytes(*at(4)?.first_chunk()?),
            address: u64::from_le_bytes(*at(8)?.first_chunk()?),
            rest: u32::from_le_bytes(*at(16)?.first_chunk()?),
        })
    }

    fn len(&self) -> u64 {
        if self.flags & LONG == 0 { SHORT_HEADER } else { LONG_HEADER }
    }
}

enum Found {
    Record {
        start: u64,
        end: u64,
        next: u64,
    },
    /// A record that was never finished because of a crash; the next one begins on this page.
    Overwritten {
        next: u64,
    },
    Nothing,
}

struct Reader<'a> {
    wal: &'a Wal,
    timeline: u32,
    file: Option<(u64, File)>,
    buffer: Vec<u8>,
    buffer_at: u64,
    magic: Option<u16>,
}

impl Reader<'_> {
    /// Returns the page at this location; `None` if there is no such segment.
    fn page(&mut self, at: u64) -> Result<Option<&[u8]>> {
        let page_bytes = usize::try_from(self.wal.page_bytes).unwrap_or(usize::MAX);
        let is_there =
            at >= self.buffer_at && at + self.wal.page_bytes <= self.buffer_at + self.buffer.len() as u64;
        if !is_there && !self.fill(at)? {
            return Ok(None);
        }
        let from = usize::try_from(at - self.buffer_at).unwrap_or(usize::MAX);
        Ok(self.buffer.get(from..from.saturating_add(page_bytes)))
    }

    fn fill(&mut self, at: u64) -> Result<bool> {
        let number = at / self.wal.segment_bytes;
        let Some(name) = self.wal.segments.get(&(self.timeline, number)) else { return Ok(false) };
        let path = self.wal.folder.join(name);
        let file = match self.file.take() {
            Some((open, file)) if open == number => file,
            _ => File::open(&path).map_err(Error::io("open", &path))?,
        };
        let offset = at % self.wal.segment_bytes;
        let bytes = (self.wal.segment_bytes - offset).min(WAL_READ_BYTES as u64);
        self.buffer.resize(usize::try_from(bytes).unwrap_or(WAL_READ_BYTES), 0);
        file.read_exact_at(&mut self.buffer, offset).map_err(Error::io("read", &path))?;
        self.buffer_at = at;
        self.file = Some((number, file));
        Ok(true)
    }

    /// Returns the header of the page at this location; `None` if it does not belong there.
    fn header(&mut self, at: u64) -> Result<Option<Header>> {
        let (timeline, segment_bytes, known) = (self.timeline, self.wal.segment_bytes, self.magic);
        let Some(header) = self.page(at)?.and_then(Header::parse) else { return Ok(None) };
        let is_first = at.is_multiple_of(segment_bytes);
        let is_right = header.address == at
            && header.timeline == timeline
            && header.flags & !FLAGS == 0
            && (header.flags & LONG != 0) == is_first
            && header.magic != 0
            && known.is_none_or(|magic| magic == header.magic);
        if is_right {
            self.magic = Some(header.magic);
        }
        Ok(is_right.then_some(header))
    }

    /// Reads the record at `at`, or behind the header of the page that begins there; `before` is the place of the
    /// record before.
    fn record(&mut self, at: u64, before: Option<u64>, record: &mut Vec<u8>) -> Result<Found> {
        let page_bytes = self.wal.page_bytes;
        let mut page = at - at % page_bytes;
        let Some(header) = self.header(page)? else { return Ok(Found::Nothing) };
        let mut here = at;
        if here == page {
            // A page that begins with the rest of another record has no record at its first byte.
            if header.flags & CONTINUES != 0 && header.flags & OVERWRITES == 0 {
                return Ok(Found::Nothing);
            }
            here = page + header.len();
        }
        let start = here;
        record.clear();
        let mut total = None;
        loop {
            let from = usize::try_from(here - page).unwrap_or(usize::MAX);
            let Some(rest) = self.page(page)?.and_then(|page| page.get(from..)) else {
                return Ok(Found::Nothing);
            };
            let wanted = total.map_or(usize::MAX, |total: usize| total - record.len());
            let part = rest.get(..wanted.min(rest.len())).unwrap_or_default();
            let Some(length) = total.or_else(|| length_of(part)) else { return Ok(Found::Nothing) };
            let part = part.get(..length.saturating_sub(record.len()).min(part.len())).unwrap_or_default();
            total = Some(length);
            record.extend_from_slice(part);
            here += part.len() as u64;
            if record.len() == length {
                break;
            }
            page += page_bytes;
            let Some(header) = self.header(page)? else { return Ok(Found::Nothing) };
            if header.flags & OVERWRITES != 0 {
                return Ok(Found::Overwritten { next: page });
            }
            if header.flags & CONTINUES == 0 || header.rest as usize != length - record.len() {
                return Ok(Found::Nothing);
            }
            here = page + header.len();
        }
        Ok(self.judged(record, start, here, before))
    }

    fn judged(&self, record: &[u8], start: u64, here: u64, before: Option<u64>) -> Found {
        let Some(head) = record.first_chunk::<RECORD_HEADER>() else { return Found::Nothing };
        let [.., a, b, c, d] = *head;
        let crc = u32::from_le_bytes([a, b, c, d]);
        let prev = head.get(8..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u64::from_le_bytes);
        let follows = before.map_or(prev < start, |before| prev == before);
        let body = record.get(RECORD_HEADER..).unwrap_or_default();
        let sum = crc32c::crc32c_append(crc32c::crc32c(body), head.get(..CRC_AT).unwrap_or_default());
        if !follows || sum != crc {
            return Found::Nothing;
        }
        let end = here.next_multiple_of(ALIGNED);
        let is_switch =
            head.get(17) == Some(&MANAGER_LOG) && head.get(16).is_some_and(|info| info & OPERATION == SWITCH);
        let next = if is_switch { end.next_multiple_of(self.wal.segment_bytes) } else { end };
        Found::Record { start, end, next }
    }
}

/// Returns a record's length, from its first bytes, which lie on one page.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (RECORD_HEADER..=WAL_RECORD_BYTES_MAX).contains(&length).then_some(length)
}

#[cfg(test)]
#[path = "wal_tests.rs"]
mod tests;
