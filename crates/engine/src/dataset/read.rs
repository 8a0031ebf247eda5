//! Reading pages.
//!
//! A read is planned first (which pages are in memory, which records must be fetched), then fetched, then
//! decoded. A record that fails its checksum is looked up once more: it may have been freed, and its place used
//! anew, between look-up and read.

use std::sync::Arc;

use super::live::LiveDataset;
use super::one::Attempt;
use super::pending::PageBuf;
use super::shared::{PrimaryCache, count};
use crate::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
use crate::record::decode;
use crate::{Addr, Error, Ptr, Result};

/// How often a read is planned anew when records disappear under it.
const ATTEMPTS: u32 = 4;

/// Where the bytes of one page come from.
enum Source {
    Zeros,
    Page(PageBuf),
    Record(Arc<[u8]>),
    Fetch(Ptr),
}

/// The part of a page that a read wants, and where in the caller's buffer it goes.
struct Part<'a> {
    source: Source,
    within: usize,
    out: &'a mut [u8],
}

impl LiveDataset {
    pub(super) fn read_pages(
        &self,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        check_record_size(record_size)?;
        count(&self.shared.counters.read_bytes, buf.len() as u64);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut parts = self.plan(object, record_size, offset, buf, true)?;
            match self.fetch(&mut parts) {
                Ok(()) => return decode_parts(record_size, parts),
                // A record that was freed meanwhile is damaged or unknown where it was; the next plan finds its successor.
                Err(error @ Error::Corrupt { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::corrupt("page", "it cannot be read")))
    }

    /// Reads what is in memory, and prepares the read of what lies within one page.
    pub(super) fn try_read_pages(
        &self,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Attempt> {
        check_record_size(record_size)?;
        let len = buf.len() as u64;
        let size = u64::from(record_size);
        let within = offset % size;
        if within + len <= size {
            return self.try_read_page(object, offset / size, record_size as usize, within as usize, buf);
        }
        let parts = match self.plan(object, record_size, offset, buf, false) {
            Ok(parts) => parts,
            Err(Error::Busy(_)) => return Ok(Attempt::Wait),
            Err(error) => return Err(error),
        };
        if parts.iter().any(|part| matches!(part.source, Source::Fetch(_))) {
            return Ok(Attempt::Wait);
        }
        count(&self.shared.counters.read_bytes, len);
        decode_parts(record_size, parts)?;
        Ok(Attempt::Done)
    }

    fn plan<'a>(
        &self,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &'a mut [u8],
        may_block: bool,
    ) -> Result<Vec<Part<'a>>> {
        let size = u64::from(record_size);
        let first = offset / size;
        let end = (offset + buf.len() as u64).div_ceil(size);
        let count_pages = end.saturating_sub(first) as usize;
        // In memory first (D2): what leaves there is in the tree already.
        let mut written: Vec<Option<PageBuf>> = Vec::new();
        {
            let stages = self.stages.read();
            let accepting = &stages.accepting.pages;
            let committing =
                stages.committing.as_ref().map(|pending| &pending.pages).filter(|pages| !pages.is_empty());
            if !accepting.is_empty() || committing.is_some() {
                written = (first..end)
                    .map(|page| {
                        let key = (object, page);
                        accepting.get(&key).or_else(|| committing?.get(&key)).cloned()
                    })
                    .collect();
            }
        }
        let mut ptrs = vec![None; count_pages];
        if written.iter().flatten().count() < count_pages {
            if may_block {
                self.tree.pages(object, first, &mut ptrs)?;
            } else if !self.tree.try_pages(object, first, &mut ptrs) {
                return Err(Error::Busy("the page map is not in memory".into()));
            }
        }
        let mut parts = Vec::with_capacity(count_pages);
        let mut rest = buf;
        let mut at = offset;
        for (position, ptr) in ptrs.into_iter().enumerate() {
            let within = (at % size) as usize;
            let len = rest.len().min(record_size as usize - within);
            let (out, tail) = rest.split_at_mut(len);
            let page = written.get_mut(position).and_then(Option::take);
            let source = match (page, ptr) {
                (Some(page), _) => Source::Page(page),
                (None, None) => Source::Zeros,
                (None, Some(ptr)) => {
                    self.shared.cache.get(ptr.addr).map_or(Source::Fetch(ptr), Source::Record)
                }
            };
            parts.push(Part { source, within, out });
            rest = tail;
            at += len as u64;
        }
        Ok(parts)
    }

    fn fetch(&self, parts: &mut [Part<'_>]) -> Result<()> {
        let mut addrs: Vec<Addr> = Vec::new();
        let mut wanted: Vec<usize> = Vec::new();
        for (position, part) in parts.iter().enumerate() {
            if let Source::Fetch(ptr) = part.source {
                addrs.push(ptr.addr);
                wanted.push(position);
            }
        }
        if addrs.is_empty() {
            return Ok(());
        }
        let keep = self.shared.primary_cache() == PrimaryCache::All;
        self.shared.segments.read(&self.shared.devices, &addrs, &mut |at, bytes| {
            let record: Arc<[u8]> = bytes.into();
            if let (Some(addr), true) = (addrs.get(at), keep) {
                self.shared.cache.insert(*addr, Arc::clone(&record));
            }
            if let Some(part) = wanted.get(at).and_then(|position| parts.get_mut(*position)) {
                part.source = Source::Record(record);
            }
            Ok(())
        })
    }
}

/// From here on it pays to decode on several cores, in bytes of one read.
const PARALLEL_BYTES: usize = 256 << 10;

fn decode_parts(record_size: u32, parts: Vec<Part<'_>>) -> Result<()> {
    let total: usize = parts.iter().map(|part| part.out.len()).sum();
    if total >= PARALLEL_BYTES && parts.len() > 1 {
        use rayon::prelude::*;
        return parts.into_par_iter().with_min_len(8).try_for_each(|part| decode_part(record_size, part));
    }
    parts.into_iter().try_for_each(|part| decode_part(record_size, part))
}

fn decode_part(record_size: u32, part: Part<'_>) -> Result<()> {
    let Part { source, within, out } = part;
    match source {
        Source::Zeros => out.fill(0),
        Source::Page(page) => {
            let bytes = page.get(within..within + out.len());
            let bytes =
                bytes.ok_or_else(|| Error::Invalid("an object was read with another recordsize".into()))?;
            out.copy_from_slice(bytes);
        }
        Source::Record(record) if within == 0 && out.len() == record_size as usize => decode(&record, out)?,
        Source::Record(record) => {
            let mut page = vec![0; record_size as usize];
            decode(&record, &mut page)?;
            out.copy_from_slice(page.get(within..within + out.len()).unwrap_or_default());
        }
        Source::Fetch(ptr) => return Err(Error::corrupt(format!("record {}", ptr.addr), "it was not read")),
    }
    Ok(())
}

fn check_record_size(record_size: u32) -> Result<()> {
    if record_size.is_power_of_two() && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "recordsize {record_size} is not a power of two from {RECORDSIZE_MIN} to {RECORDSIZE_MAX}"
    )))
}
