//! Reading pages.
//!
//! A read is planned first (which pages are in memory, which records must be fetched), then fetched, then decoded. If a
//! record fails its checksum the read is planned anew: the record may have been freed, and its place used anew, between
//! look-up and read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::deliver::{Keep, Wanted, deliver};
use super::live::LiveDataset;
use super::model_reads::{Fetched, Loaded};
use super::page_fetch::Attempt;
use super::part::{copy_part, decode_part};
use super::pending::PageBuf;
use super::read_amplification::ChainedPage;
use super::shared::count;
use crate::device::{Devices, IoClass};
use crate::faults::Subject;
use crate::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
use crate::record::{Models, Record, bases_of};
use crate::{Addr, Error, Ptr, Result};

/// Largest number of times that a read is planned, if records disappear under it.
const ATTEMPTS: u32 = 4;

/// Largest number of pages of a failed read among which the damaged page is sought: as many as a request of the kernel
/// has.
const SEARCHED_PAGES: u64 = 512;

/// Source of the bytes of one page.
enum PageSource {
    Zeros,
    Page(PageBuf),
    Record(Addr, Record),
    Fetch(Ptr),
}

/// The part of a page that a read wants, and its place in the caller's buffer.
struct PagePart<'a> {
    page: u64,
    source: PageSource,
    within: usize,
    out: &'a mut [u8],
}

impl LiveDataset {
    /// As [`super::Dataset::read`], by requests of another class.
    pub(crate) fn read_as(
        &self,
        class: IoClass,
        (object, record_size): (u64, u32),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        self.read_pages(&self.shared.devices.of_class(class), object, record_size, offset, buf)
    }

    /// Reads by requests of the class of `devices`.
    pub(super) fn read_pages(
        &self,
        devices: &Devices,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let none = &mut |_: &[PagePart<'_>]| {};
        let goes_on = self.goes_on(object, record_size, offset, buf.len());
        let reads_next = goes_on && buf.len() <= FIRST_BYTES_MAX && devices.class() == IoClass::SyncRead;
        self.read_planned(devices, (object, record_size), offset, buf, reads_next, none)
    }

    /// Notes where a read ends, and returns true if it begins where another one has ended.
    fn goes_on(&self, object: u64, record_size: u32, offset: u64, len: usize) -> bool {
        let size = u64::from(record_size.max(1));
        self.read_ends.goes_on(object, offset / size, offset.saturating_add(len as u64).div_ceil(size))
    }

    /// Reads a page of which a part is to be written. Its content is remembered with its record: its delta needs it. If the
    /// writer goes through the pages in order, the content of those that follow is read at once.
    pub(super) fn read_base(&self, object: u64, record_size: u32, page: u64, buf: &mut [u8]) -> Result<()> {
        let of = (object, record_size);
        let pages = self.base_streams.pages_to_read(object, page, record_size);
        if pages > 1 {
            let mut all = vec![0; pages as usize * record_size as usize];
            // If one of the others cannot be read, this one may be.
            if self.read_and_hold(of, page, &mut all).is_ok() {
                let (first, _) = all.split_at(record_size as usize);
                buf.copy_from_slice(first);
                return Ok(());
            }
        }
        self.read_and_hold(of, page, buf)
    }

    /// Reads pages from `first` on, and remembers the content of each with its record.
    fn read_and_hold(&self, (object, record_size): (u64, u32), first: u64, buf: &mut [u8]) -> Result<()> {
        let mut of = Vec::new();
        let offset = first * u64::from(record_size);
        let planned = &mut |parts: &[PagePart<'_>]| {
            of.clear();
            of.extend(parts.iter().map(|part| match &part.source {
                PageSource::Record(addr, _) | PageSource::Fetch(Ptr { addr, .. }) => Some(*addr),
                PageSource::Zeros | PageSource::Page(_) => None,
            }));
        };
        self.read_planned(&self.shared.devices, (object, record_size), offset, buf, false, planned)?;
        for (addr, page) in of.into_iter().zip(buf.chunks(record_size as usize)) {
            if let Some(addr) = addr {
                self.shared.recent.hold(addr, &PageBuf::from(page));
            }
        }
        Ok(())
    }

    /// Reads, and shows each plan to `planned`; the last one is what was read. With `reads_next` what is likely to be read
    /// next is read in the same request, if it lies right behind.
    fn read_planned(
        &self,
        devices: &Devices,
        (object, record_size): (u64, u32),
        offset: u64,
        buf: &mut [u8],
        reads_next: bool,
        planned: &mut dyn FnMut(&[PagePart<'_>]),
    ) -> Result<()> {
        check_record_size(record_size)?;
        count(&self.shared.counters.read_bytes, buf.len() as u64);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            // Records that are in memory are decoded later, too.
            let _reading = self.shared.models.reading();
            let parts = self.plan(object, record_size, offset, buf, true)?;
            planned(&parts);
            match self.fill(devices, (object, record_size), parts, reads_next) {
                // The place of a record that was freed meanwhile looks damaged or unknown; the next plan finds its
                // successor.
                Err(error @ Error::Corrupt { .. }) => last = Some(error),
                Err(error) if error.is_damage() => {
                    last = Some(error);
                    break;
                }
                done => return done,
            }
        }
        self.check_known_size(object, record_size)?;
        let error = last.unwrap_or_else(|| Error::corrupt("page", "it cannot be read"));
        Err(self.count_unreadable((object, record_size), (offset, buf.len()), error))
    }

    /// Returns an error if the pages of an object are known to have another size: a caller's mistake, which looks like
    /// damage.
    fn check_known_size(&self, object: u64, record_size: u32) -> Result<()> {
        match self.record_size(object) {
            Ok(known) if known != 0 && known != record_size => Err(Error::Invalid(format!(
                "object {object} has pages of {known} bytes, and was read as if they had {record_size}: use the recordsize that it was written with"
            ))),
            _ => Ok(()),
        }
    }

    /// Counts a read that has failed for good as an error of its object.
    fn count_unreadable(
        &self,
        (object, record_size): (u64, u32),
        (offset, len): (u64, usize),
        error: Error,
    ) -> Error {
        let subject = Subject::Object { dataset: self.id, object };
        let addr = error.place().and_then(|at| at.addr);
        let size = u64::from(record_size);
        let first = offset / size;
        let pages = (offset + len as u64).div_ceil(size).saturating_sub(first).min(SEARCHED_PAGES);
        let mut ptrs = vec![None; pages as usize];
        // If the page map cannot be read, or the record is a base of the page, the error is counted at the start of the
        // read.
        let known = self.tree.pages(object, first, &mut ptrs).is_ok();
        let at = ptrs.iter().position(|ptr| ptr.is_some_and(|ptr| Some(ptr.addr) == addr)).filter(|_| known);
        let struck = at.map_or(offset, |at| offset.max((first + at as u64) * size));
        self.shared.count_damage(error, subject, addr, struck)
    }

    /// Returns true if a page is in memory as it is, or is not stored.
    pub(super) fn has_at_hand(&self, object: u64, page: u64) -> bool {
        let is_accepted = || self.stages.read().page(object, page).is_some();
        let mut ptr = [None];
        is_accepted()
            || self.tree.try_pages(object, page, &mut ptr)
                && ptr[0].is_none_or(|ptr| self.shared.recent.get(ptr.addr).is_some())
    }

    /// Reads if all pages are in memory, and prepares the read if it lies within one page.
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
        if buf.len() >= PARALLEL_BYTES {
            // Decoding this many bytes would delay requests that wait behind the caller.
            return Ok(Attempt::Wait);
        }
        let buf_len = buf.len();
        let parts = match self.plan(object, record_size, offset, buf, false) {
            Ok(parts) => parts,
            Err(Error::Busy(_)) => return Ok(Attempt::Wait),
            Err(error) => return Err(error),
        };
        if parts.iter().any(|part| matches!(part.source, PageSource::Fetch(_))) {
            return Ok(Attempt::Wait);
        }
        let models = Loaded(&self.shared);
        match parts.into_iter().try_for_each(|mut part| fill_part(record_size, &models, &mut part)) {
            Ok(()) => {}
            Err(Error::Busy(_)) => return Ok(Attempt::Wait),
            Err(error) => return Err(error),
        }
        self.goes_on(object, record_size, offset, buf_len);
        count(&self.shared.counters.read_bytes, len);
        Ok(Attempt::Done)
    }

    fn plan<'a>(
        &self,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &'a mut [u8],
        may_block: bool,
    ) -> Result<Vec<PagePart<'a>>> {
        let size = u64::from(record_size);
        let first = offset / size;
        let end = (offset + buf.len() as u64).div_ceil(size);
        let count_pages = end.saturating_sub(first) as usize;
        // Memory is searched before the tree (D2).
        let mut written: Vec<Option<PageBuf>> = Vec::new();
        {
            let stages = self.stages.read();
            if stages.has_pages() {
                written = (first..end).map(|page| stages.page(object, page).cloned()).collect();
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
                (Some(page), _) => PageSource::Page(page),
                (None, None) => PageSource::Zeros,
                (None, Some(ptr)) => match self.shared.recent.get(ptr.addr) {
                    Some(page) => PageSource::Page(page),
                    None => {
                        let cached = self.shared.cache.get(ptr.addr);
                        cached.map_or(PageSource::Fetch(ptr), |record| PageSource::Record(ptr.addr, record))
                    }
                },
            };
            parts.push(PagePart { page: at / size, source, within, out });
            rest = tail;
            at += len as u64;
        }
        Ok(parts)
    }

    /// Fills the parts, on several cores where that pays.
    fn fill(
        &self,
        devices: &Devices,
        of: (u64, u32),
        mut parts: Vec<PagePart<'_>>,
        reads_next: bool,
    ) -> Result<()> {
        let total: usize = parts.iter().map(|part| part.out.len()).sum();
        let scan = parts.len() > 1 && total >= SCAN_BYTES;
        if !scan || total < PARALLEL_BYTES {
            return self.fetch(devices, of, &mut parts, (scan, reads_next));
        }
        let others = FILLING.fetch_add(1, Relaxed);
        let filled = if others == 0 {
            let half = parts.len() / 2;
            let (left, right) = parts.split_at_mut(half);
            let fetch = |parts| self.fetch(devices, of, parts, (scan, reads_next));
            let (left, right) = rayon::join(|| fetch(left), || fetch(right));
            left.and(right)
        } else {
            self.fetch(devices, of, &mut parts, (scan, reads_next))
        };
        FILLING.fetch_sub(1, Relaxed);
        filled
    }

    /// Returns the records that are likely to be read after `parts`, of several pages whose last one has to be read from
    /// a device: those of the pages behind them which are not in memory, as far as that is known without reading.
    fn next_addrs(&self, object: u64, parts: &[PagePart<'_>]) -> Vec<Addr> {
        let last = parts.last().filter(|last| parts.len() > 1 && matches!(last.source, PageSource::Fetch(_)));
        let Some(last) = last else { return Vec::new() };
        let mut ptrs = vec![None; parts.len() * NEXT_PAGES];
        if !self.tree.try_pages(object, last.page.saturating_add(1), &mut ptrs) {
            return Vec::new();
        }
        let addrs = ptrs.into_iter().map_while(|ptr| ptr.map(|ptr| ptr.addr));
        addrs.take_while(|addr| !self.shared.cache.has(*addr)).collect()
    }

    /// Fills the parts. Records are decoded where they were read to, and only those that are kept are copied. With
    /// `reads_next` those that are likely to be read next are kept, if they come with the others.
    fn fetch(
        &self,
        devices: &Devices,
        (object, record_size): (u64, u32),
        parts: &mut [PagePart<'_>],
        (scan, reads_next): (bool, bool),
    ) -> Result<()> {
        let mut addrs: Vec<Addr> = Vec::new();
        let mut wanted: Vec<usize> = Vec::new();
        // Deltas whose bases have to be read too. They wait, since that is done for all of them at once.
        let mut waiting: Vec<(usize, Addr, Record)> = Vec::new();
        let mut missing: Vec<Addr> = Vec::new();
        let cache = &self.shared.cache;
        for (position, part) in parts.iter_mut().enumerate() {
            match &part.source {
                PageSource::Fetch(ptr) => {
                    addrs.push(ptr.addr);
                    wanted.push(position);
                }
                PageSource::Record(addr, record) => {
                    let before = missing.len();
                    missing.extend(bases_of(record)?.into_iter().filter(|base| !cache.has(*base)));
                    if missing.len() > before {
                        waiting.push((position, *addr, record.clone()));
                    } else {
                        fill_part(record_size, &*self.shared, part)?;
                    }
                }
                PageSource::Zeros | PageSource::Page(_) => fill_part(record_size, &*self.shared, part)?,
            }
        }
        let keep = Keep::of(&self.shared, scan);
        let needed = addrs.len();
        if reads_next {
            addrs.extend(self.next_addrs(object, parts));
        }
        self.shared.segments.read_with_next(devices, (&addrs, needed), &mut |at, record| {
            if at >= needed {
                addrs.get(at).into_iter().for_each(|addr| keep.keep_ahead(&self.shared, *addr, record));
                return Ok(());
            }
            let position = wanted.get(at).copied();
            let part = position.and_then(|position| parts.get_mut(position));
            let (Some(addr), Some(part), Some(position)) = (addrs.get(at), part, position) else {
                return Ok(());
            };
            let before = missing.len();
            missing.extend(bases_of(record)?.into_iter().filter(|base| !cache.has(*base)));
            if missing.len() > before {
                keep.keep(&self.shared, *addr, record);
                waiting.push((position, *addr, record.into()));
                return Ok(());
            }
            let wanted =
                Wanted { page_bytes: record_size as usize, within: part.within, out: &mut *part.out };
            deliver(&self.shared, &*self.shared, (*addr, record), wanted, &keep)
        })?;
        if waiting.is_empty() {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        self.shared.read_amplification.charge((self.id, object), missing.len());
        self.fill_deltas(devices, (object, record_size), parts, (waiting, &missing))
    }

    /// Fills the parts that are `waiting` for `missing` records.
    fn fill_deltas(
        &self,
        devices: &Devices,
        (object, record_size): (u64, u32),
        parts: &mut [PagePart<'_>],
        (waiting, missing): (Vec<(usize, Addr, Record)>, &[Addr]),
    ) -> Result<()> {
        let mut models = Fetched { shared: &self.shared, bases: HashMap::with_capacity(missing.len()) };
        let keep = Keep::of(&self.shared, false);
        self.shared.segments.read(devices, missing, &mut |at, record| {
            let Some(addr) = missing.get(at) else { return Ok(()) };
            keep.keep(&self.shared, *addr, record);
            models.bases.insert(*addr, record.into());
            Ok(())
        })?;
        // Whoever reads page by page may come again. A scan will not, and nobody waits for what is done in the background.
        let is_single = parts.len() == 1 && devices.class() == IoClass::SyncRead;
        for (position, addr, record) in waiting {
            let Some(part) = parts.get_mut(position) else { continue };
            decode_part(record_size as usize, &models, (addr, &record), part.within, part.out, |_| {})?;
            if is_single && part.out.len() == record_size as usize {
                let content = PageBuf::from(&*part.out);
                let page = ChainedPage { dataset: self.id, object, page: part.page, addr, content };
                self.shared.read_amplification.offer(page);
            }
        }
        Ok(())
    }
}

/// Length up to which a read of several pages is taken for one of the kernel's first ones for somebody who reads on, in
/// bytes. The next one is four times as long, and so on, until nothing is gained by reading what it will want before.
const FIRST_BYTES_MAX: usize = 64 << 10;
/// Number of pages, for each that is wanted, that the kernel asks for next.
const NEXT_PAGES: usize = 4;

/// Length from which on a read of several pages is taken for part of a scan, in bytes.
const SCAN_BYTES: usize = 128 << 10;
/// Length from which on it pays to fill a read on several cores, in bytes.
const PARALLEL_BYTES: usize = 256 << 10;

/// Number of reads of at least [`PARALLEL_BYTES`] that are under way. If there are several, each keeps to its own
/// thread: the cores are busy already, and moving pages between them costs more than it gains.
static FILLING: AtomicUsize = AtomicUsize::new(0);

/// Fills a part whose source is in memory.
fn fill_part(record_size: u32, models: &dyn Models, part: &mut PagePart<'_>) -> Result<()> {
    let PagePart { source, within, out, .. } = part;
    match source {
        PageSource::Zeros => {
            out.fill(0);
            Ok(())
        }
        PageSource::Page(page) => copy_part(page, *within, out),
        PageSource::Record(addr, record) => {
            decode_part(record_size as usize, models, (*addr, record), *within, out, |_| {})
        }
        PageSource::Fetch(ptr) => Err(Error::corrupt(format!("record {}", ptr.addr), "it was not read")),
    }
}

fn check_record_size(record_size: u32) -> Result<()> {
    if record_size.is_power_of_two() && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "recordsize {record_size} is not a power of two from {RECORDSIZE_MIN} to {RECORDSIZE_MAX}"
    )))
}
