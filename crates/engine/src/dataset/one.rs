//! Reads within one page without waiting. Databases do these all day, so such a read takes one look-up per place where
//! the page may be, and allocates memory only for what is kept, and for a page of which just a part is wanted.

use std::sync::Arc;

use super::live::LiveDataset;
use super::model_reads::Loaded;
use super::page_fetch::{Attempt, PageFetch};
use super::part::{copy_part, decode_part};
use super::shared::count;
use crate::{Addr, Error, Result};

/// Longest page that is left to the caller to fetch, in bytes. Decoding a longer page takes as long as the thread
/// switches that this saves, and is better spread over threads than done by the one thread that answers all requests of
/// a CPU.
const FETCH_BYTES_MAX: usize = 64 << 10;

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
        self.read_ends.note(object, page.saturating_add(1));
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
        let reading = self.shared.models.reading();
        let prepared = self.shared.segments.prepare(&self.shared.devices, addr);
        prepared.map_or(Attempt::Wait, |record| {
            let shared = Arc::clone(&self.shared);
            let (page_bytes, within) = (page_bytes as u32, within as u32);
            Attempt::Fetch(PageFetch { record, shared, reading, page_bytes, within })
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
