//! Reads pages and records of the write-ahead log.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{
    ALIGNED, CONTINUES, CRC_AT, FLAGS, Found, Header, LONG, LONG_HEADER, MANAGER_LOG, OPERATION, OVERWRITES,
    RECORD_HEADER, Reader, SHORT_HEADER, SWITCH,
};
use crate::error::{Error, Result};
use crate::limits::{WAL_READ_BYTES, WAL_RECORD_BYTES_MAX};

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
    pub(super) fn header(&mut self, at: u64) -> Result<Option<Header>> {
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
    pub(super) fn record(&mut self, at: u64, before: Option<u64>, record: &mut Vec<u8>) -> Result<Found> {
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
