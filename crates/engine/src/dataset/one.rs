//! Reads within one page without waiting. Databases do these all day, so such a read takes one look-up per place where
//! the page may be, and allocates memory only for what is kept, and for a page of which just a part is wanted.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::deliver::{Keep, Wanted, deliver};
use super::live::LiveDataset;
use super::models::Loaded;
use super::part::{copy_part, decode_part};
use super::shared::{Shared, count};
use crate::segment::RecordFetch;
use crate::{Addr, Error, Result};

/// Longest page that is left to the caller to fetch, in bytes. Decoding a longer page takes as long as the thread
/// switches that this saves, and is better spread over threads than done by the one thread that answers all requests of
/// a CPU.
const FETCH_BYTES_MAX: usize = 64 << 10;

/// Outcome of a read that must not wait.
pub enum Attempt {
    /// The buffer is filled.
    Done,
    /// The buffer can be filled after one device read, which the caller may do in its own way.
    Fetch(PageFetch),
    /// Nothing was read: [`super::Dataset::read`] does it, and waits.
    Wait,
}

/// A read within one page whose record has to come from a device.
pub struct PageFetch {
    record: RecordFetch,
    shared: Arc<Shared>,
    page_bytes: usize,
    within: usize,
}

impl PageFetch {
    /// Returns a descriptor to read from, if the device has one. It stays open as long as `self` lives.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.record.file()
    }

    /// Returns the offset on the device, and the memory that must be filled with what is read there. The memory stays
    /// where it is until `self` is finished or dropped.
    pub fn request(&mut self) -> (u64, &mut [u8]) {
        self.record.request()
    }

    /// Reads through the device, which waits, and then does the same as [`PageFetch::finish`].
    ///
    /// # Errors
    /// Errors of the device, and those of [`PageFetch::finish`].
    pub fn read(mut self, out: &mut [u8]) -> Result<bool> {
        self.record.read()?;
        self.deliver(out)
    }

    /// Fills `out`, which is as long as the buffer of the attempt, from what was read. Returns false if the record is
    /// not there (any more); [`super::Dataset::read`] then finds the reason.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the object was read with another recordsize.
    pub fn finish(self, out: &mut [u8]) -> Result<bool> {
        self.record.count();
        self.deliver(out)
    }

    fn deliver(&self, out: &mut [u8]) -> Result<bool> {
        let Ok(record) = self.record.record() else { return Ok(false) };
        let addr = self.record.addr();
        let models = Loaded(&self.shared);
        let keep = Keep::of(&self.shared, false);
        let wanted = Wanted { page_bytes: self.page_bytes, within: self.within, out: &mut *out };
        match deliver(&self.shared, &models, (addr, record), wanted, keep) {
            Ok(()) => {}
            // [`super::Dataset::read`] may wait for the model or the bases, and it counts damage.
            Err(Error::Busy(_) | Error::Corrupt { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        count(&self.shared.counters.read_bytes, out.len() as u64);
        Ok(true)
    }
}

impl LiveDataset {
    /// Fills `buf` from byte `within` of a page on. `buf` does not reach beyond the page.
    pub(super) fn try_read_page(
        &self,
        object: u64,
        page: u64,
        page_bytes: usize,
        within: usize,
        buf: &mut [u8],
    ) -> Result<Attempt> {
        if !self.fill_from_memory(object, page, within, buf)? {
            let mut ptr = [None];
            if !self.tree.try_pages(object, page, &mut ptr) {
                return Ok(Attempt::Wait);
            }
            let [ptr] = ptr;
            let Some(ptr) = ptr else {
                buf.fill(0);
                return Ok(self.done(buf));
            };
            match self.fill_from_cache(ptr.addr, page_bytes, within, buf) {
                Ok(true) => {}
                Ok(false) if page_bytes > FETCH_BYTES_MAX => return Ok(Attempt::Wait),
                Ok(false) => return Ok(self.fetch_later(ptr.addr, page_bytes, within)),
                // The record's model or a base is not in memory, or the record is damaged, which
                // [`super::Dataset::read`] counts.
                Err(Error::Busy(_) | Error::Corrupt { .. }) => return Ok(Attempt::Wait),
                Err(error) => return Err(error),
            }
        }
        Ok(self.done(buf))
    }

    fn done(&self, buf: &[u8]) -> Attempt {
        count(&self.shared.counters.read_bytes, buf.len() as u64);
        Attempt::Done
    }

    fn fetch_later(&self, addr: Addr, page_bytes: usize, within: usize) -> Attempt {
        let prepared = self.shared.segments.prepare(&self.shared.devices, addr);
        prepared.map_or(Attempt::Wait, |record| {
            let shared = Arc::clone(&self.shared);
            Attempt::Fetch(PageFetch { record, shared, page_bytes, within })
        })
    }

    /// Fills `buf` from a page that is not in the log yet.
    fn fill_from_memory(&self, object: u64, page: u64, within: usize, buf: &mut [u8]) -> Result<bool> {
        let found = self.stages.read().page(object, page).cloned();
        found.map_or(Ok(false), |page| copy_part(&page, within, buf).map(|()| true))
    }

    fn fill_from_cache(&self, addr: Addr, page_bytes: usize, within: usize, buf: &mut [u8]) -> Result<bool> {
        let cache = &self.shared.cache;
        if let Some(page) = cache.page(addr, page_bytes) {
            copy_part(&page, within, buf)?;
            return Ok(true);
        }
        let Some(record) = cache.get(addr) else { return Ok(false) };
        let models = Loaded(&self.shared);
        decode_part(page_bytes, &models, (addr, &record), within, buf, |page| cache.offer_page(addr, page))?;
        Ok(true)
    }
}
