//! Keeps the memory of the segment table bounded: puts pages away that were not asked for lately, and reads a page when
//! an entry of it is needed.
//!
//! - G7: a page is put away only if it is as the last checkpoint has stored it, but for records that died since. So no
//!   page that is away has a segment that moved meanwhile, and its stored form stays where it is until the next
//!   checkpoint counts (S1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLockWriteGuard;

use super::Segments;
use super::inner::Inner;
use crate::segment::entries::{EntriesPage, IsAway};
use crate::segment::entry::Segment;
use crate::segment::page::Settled;
use crate::{Error, Result};

/// Number of pages that are put away under one hold of the table's lock.
const PUT_AWAY_AT_ONCE: usize = 64;

/// The source of stored pages of the segment table.
pub(crate) trait TablePages: Send + Sync {
    /// Returns the entries of a page, as the last checkpoint has stored it.
    ///
    /// # Errors
    /// Those of the device; [`Error::Corrupt`] if the page is damaged.
    fn read(&self, segments: &Segments, page: u64) -> Result<Vec<Segment>>;
}

/// Bound in bytes of the memory that entries may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableBound {
    /// It stays as it is.
    Fixed(u64),
    /// It follows the memory budget ([`Segments::set_table_bound`]).
    Follows(u64),
}

/// The source of pages that are away, and the memory that entries may take, in bytes.
pub(in crate::segment) struct Paging {
    pages: Arc<dyn TablePages>,
    most_bytes: AtomicU64,
    follows: bool,
}

impl Paging {
    pub(in crate::segment) fn most_bytes(&self) -> u64 {
        self.most_bytes.load(Ordering::Relaxed)
    }
}

impl Segments {
    /// Allows pages to be put away: the table may take about as much memory as `bound` says, and reads pages from
    /// `pages` again.
    pub(crate) fn page_from(&self, pages: Arc<dyn TablePages>, bound: TableBound) {
        let (TableBound::Fixed(most_bytes) | TableBound::Follows(most_bytes)) = bound;
        let follows = matches!(bound, TableBound::Follows(_));
        drop(self.paging.set(Paging { pages, most_bytes: AtomicU64::new(most_bytes), follows }));
    }

    /// Sets the memory in bytes that entries may take, unless it is fixed. Pages are put away by the next checkpoint.
    pub(crate) fn set_table_bound(&self, most_bytes: u64) {
        if let Some(paging) = self.paging.get().filter(|paging| paging.follows) {
            paging.most_bytes.store(most_bytes, Ordering::Relaxed);
        }
    }

    /// Returns the number of pages that were read because an entry of them was needed.
    pub(crate) fn pages_read(&self) -> u64 {
        self.pages_read.load(Ordering::Relaxed)
    }

    /// Returns the number of entries that may be in memory.
    fn entries_max(&self) -> usize {
        let most = self
            .paging
            .get()
            .map(|paging| paging.most_bytes() / self.entry_bytes.load(Ordering::Relaxed).max(1));
        most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
    }

    /// Puts pages away as long as the table takes more than it may.
    pub(crate) fn put_away(&self) {
        if self.paging.get().is_none() {
            return;
        }
        self.table_bytes();
        let entries = self.entries_max();
        // Each page is passed twice at most, so that this ends even if no page may go.
        let mut steps = 2 * self.inner.read().segments.pages();
        while steps > 0 && self.inner.read().segments.here() > entries {
            if !self.inner.write().put_away(entries, PUT_AWAY_AT_ONCE, None) {
                return;
            }
            steps = steps.saturating_sub(PUT_AWAY_AT_ONCE);
        }
    }

    /// Returns what `attempt` finds, after reading the pages that it needs.
    pub(in crate::segment) fn look<T>(
        &self,
        attempt: impl Fn(&Inner) -> std::result::Result<T, IsAway>,
    ) -> Result<T> {
        let tried = attempt(&self.inner.read());
        match tried {
            Ok(found) => Ok(found),
            Err(IsAway(page)) => self.with_page(page, |inner| attempt(inner)),
        }
    }

    /// Does `work`, after reading the pages that it needs. `work` may be called several times, and must not have
    /// changed anything when it returns that a page is away.
    pub(in crate::segment) fn work<T>(
        &self,
        mut work: impl FnMut(&mut Inner) -> std::result::Result<T, IsAway>,
    ) -> Result<T> {
        let done = work(&mut self.inner.write());
        match done {
            Ok(done) => Ok(done),
            Err(IsAway(page)) => self.with_page(page, work),
        }
    }

    fn with_page<T>(
        &self,
        mut page: u64,
        mut work: impl FnMut(&mut Inner) -> std::result::Result<T, IsAway>,
    ) -> Result<T> {
        loop {
            match work(&mut *self.bring(page)?) {
                Ok(done) => return Ok(done),
                Err(IsAway(next)) => page = next,
            }
        }
    }

    /// Returns the locked table with this page in memory, if there is such a page.
    pub(in crate::segment) fn bring(&self, page: u64) -> Result<RwLockWriteGuard<'_, Inner>> {
        loop {
            let Some((version, read)) = self.read_away(page)? else { return Ok(self.inner.write()) };
            let mut inner = self.inner.write();
            if let Some(settled) = settle(&inner, page, version, read)? {
                inner.bring_back(page, settled);
                inner.put_away(self.entries_max(), PUT_AWAY_AT_ONCE, Some(page));
                return Ok(inner);
            }
        }
    }

    /// Visits the entries of a page. If it is away, it stays so.
    fn visit_page(&self, page: u64, visit: &mut dyn FnMut(&Segment)) -> Result<()> {
        loop {
            let away = self.read_away(page)?;
            let inner = self.inner.read();
            let settled = match away {
                Some((version, read)) => settle(&inner, page, version, read)?,
                None => None,
            };
            match (&settled, inner.segments.page(page)) {
                (Some(settled), _) => settled.segments.iter().for_each(&mut *visit),
                (None, Ok(segments)) => segments.iter().for_each(&mut *visit),
                (None, Err(IsAway(_))) => continue,
            }
            return Ok(());
        }
    }

    /// Calls `visit` with every entry, in the order of ids.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub fn for_each(&self, visit: impl FnMut(&Segment)) -> Result<()> {
        self.for_each_from(0, visit)
    }

    /// Calls `visit` with every entry from this number on, in the order of ids.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn for_each_from(&self, id: u64, mut visit: impl FnMut(&Segment)) -> Result<()> {
        let mut visit = |segment: &Segment| {
            if segment.id >= id {
                visit(segment);
            }
        };
        let mut next = self.page_ids().page(id);
        loop {
            let mut away = None;
            {
                let inner = self.inner.read();
                for (number, page) in inner.segments.pages_from(next) {
                    match page {
                        EntriesPage::Here(segments, _) => segments.iter().for_each(&mut visit),
                        EntriesPage::Away(_) => {
                            away = Some(number);
                            break;
                        }
                    }
                }
            }
            let Some(page) = away else { return Ok(()) };
            self.visit_page(page, &mut visit)?;
            next = page + 1;
        }
    }

    /// Reads a page that is away as it is stored. Returns its version and its entries; `None` if it is not away.
    fn read_away(&self, page: u64) -> Result<Option<(u64, Vec<Segment>)>> {
        let Some(version) = self.inner.read().segments.away(page).map(|away| away.version) else {
            return Ok(None);
        };
        let paging = self.paging.get();
        let paging = paging.ok_or_else(|| Error::corrupt("segment table", "its pages are nowhere"))?;
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        paging.pages.read(self, page).map(|read| Some((version, read)))
    }
}

/// Brings the entries of a page that was read up to date. `None` if the page is no longer away in that version.
fn settle(inner: &Inner, page: u64, version: u64, read: Vec<Segment>) -> Result<Option<Settled>> {
    match inner.segments.away(page) {
        Some(away) if away.version == version => {
            away.settle(inner.segments.page_ids(), page, read, &inner.deaths).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
