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

mod reader;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::control::{Control, lsn};
use crate::error::{Error, Result};
use crate::limits::WAL_SEGMENTS_BACK;
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

#[cfg(test)]
#[path = "wal_tests.rs"]
mod tests;
