//! The part of the segment table that checkpoints store, and that is loaded again.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use super::Segments;
use crate::segment::deaths::stored_bytes_max;
use crate::segment::entry::{Part, Segment};
use crate::segment::page::apply_deaths;
use crate::types::COPIES;
use crate::{Addr, Ptr};

/// A checkpoint is due when changed pages exceed the table's limit of memory divided by this.
const CHANGED_PART: u64 = 2;

/// The changed pages and dead records of the table at one instant, for a checkpoint to store.
#[derive(Debug, Default)]
pub struct TableSnapshot {
    /// Number and stored form of each page that changed. The form is empty if the page has no segments any more.
    pub pages: Vec<(u64, Vec<u8>)>,
    /// Records that died since their page was last stored, and whose page is not stored now either; ascending by
    /// address.
    pub dead: Vec<Ptr>,
    /// Segments without live records, to be dropped when the checkpoint is durable.
    pub dropped: Vec<u64>,
}

impl Segments {
    /// Returns the most bytes that the next checkpoint stores of the table if `dead` records die before it; and the
    /// most that the one after it stores if as many die again, and a pass moves segments whose pages take at most
    /// `moved_bytes` in all.
    pub(crate) fn to_store(&self, dead: u64, moved_bytes: u64) -> [u64; 2] {
        let inner = self.inner.read();
        let all = inner.stored_bytes;
        let ids = inner.segments.page_ids();
        let fresh = inner.deaths.fresh().saturating_add(dead);
        let first = stored_bytes_max(fresh, all, ids).saturating_add(inner.dirty_bytes);
        let second = stored_bytes_max(dead, all, ids).saturating_add(moved_bytes);
        [first, second].map(|bytes| bytes.min(all))
    }

    /// Returns true if a checkpoint is due, since too many dead records are kept, or more of the table has changed than
    /// may stay in memory.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let inner = self.inner.read();
        let may_change = self.paging.get().map_or(u64::MAX, |paging| paging.most_bytes() / CHANGED_PART);
        inner.deaths.are_many() || inner.dirty_bytes > may_change
    }

    /// Returns the most bytes that a page of the table takes where it is stored.
    pub(crate) fn page_bytes(&self, page: u64) -> u64 {
        self.inner.read().page_bytes(page)
    }

    /// Reads the pages that are away and that the next snapshot is to store because many of their records died, and
    /// those that may have segments without live records. A page that cannot be read stays as it is stored.
    pub(crate) fn read_heavy(&self, page_ptrs: &BTreeMap<u64, Ptr>) {
        let wanted: Vec<u64> = {
            let vacated = std::mem::take(&mut self.inner.write().vacated);
            let inner = self.inner.read();
            if inner.segments.away_bytes() == 0 {
                return;
            }
            let heavy = inner.heavy(page_ptrs, &|_| true);
            let away = heavy.into_iter().filter(|page| inner.segments.away(*page).is_some());
            away.chain(vacated).collect()
        };
        for page in wanted {
            if let Err(error) = self.bring(page) {
                tracing::warn!(%error, page, "a page of the segment table cannot be brought up to date");
            }
        }
    }

    /// Returns the pages that changed since the last snapshot, for a checkpoint whose log begins in segment `open`.
    /// `page_ptrs` refers to the stored pages. Those that will be replaced are made dead first, which may change
    /// further pages: what is stored must show no replaced page as live.
    pub fn snapshot(&self, page_ptrs: &BTreeMap<u64, Ptr>, open: u64) -> TableSnapshot {
        {
            let mut inner = self.inner.write();
            for page in inner.heavy(page_ptrs, &|page| inner.segments.away(page).is_none()) {
                inner.touch(page);
            }
        }
        let mut replaced: HashSet<u64> = HashSet::new();
        loop {
            let fresh: Vec<u64> =
                self.inner.read().dirty.iter().copied().filter(|page| !replaced.contains(page)).collect();
            if fresh.is_empty() {
                break;
            }
            let old: Vec<Ptr> = fresh.iter().filter_map(|page| page_ptrs.get(page)).copied().collect();
            replaced.extend(fresh);
            self.mark_dead(&old);
        }
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let mut snapshot = TableSnapshot { dropped: inner.take_vacant(open), ..TableSnapshot::default() };
        let bound = std::mem::take(&mut inner.dirty_bytes);
        for page in std::mem::take(&mut inner.dirty) {
            let mut bytes = Vec::new();
            let mut previous = 0;
            for segment in inner.segments.page(page).unwrap_or_default() {
                if snapshot.dropped.binary_search(&segment.id).is_err() {
                    segment.encode(previous, &mut bytes);
                    previous = segment.id;
                }
            }
            snapshot.pages.push((page, bytes));
            inner.under_way.insert(page);
        }
        debug_assert!(snapshot.pages.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() <= bound);
        inner.deaths.settle();
        snapshot.dead = inner.deaths.sorted();
        snapshot
    }

    /// Notes that the checkpoint counts which has stored the pages of all snapshots. Their stored form can be read now,
    /// so pages are put away.
    pub(crate) fn stored(&self) {
        self.inner.write().under_way.clear();
        self.put_away();
    }

    /// Loads the list that a checkpoint has stored of records that died since their pages were stored. These pages have
    /// to be loaded later.
    pub(crate) fn load_dead(&self, dead: &[Ptr]) {
        let mut inner = self.inner.write();
        for ptr in dead {
            let page = inner.segments.page_of(ptr.addr.segment());
            inner.deaths.push(page, *ptr);
        }
        inner.deaths.settle();
    }

    /// Puts the segments of a stored page into the table, as [`decode_page`](crate::segment::decode_page) has read them. Records that died since are
    /// made dead. Segments without live records are left out if their numbers in the log are below `open`, since the
    /// checkpoint has dropped them. Calls `visit` with each segment that is left. Returns a record that is listed as
    /// dead and is not live by the page, if there is one.
    pub fn load_page(
        &self,
        page: u64,
        mut segments: Vec<Segment>,
        open: u64,
        visit: &mut dyn FnMut(&Segment),
    ) -> Option<Addr> {
        let mut inner = self.inner.write();
        let there = |addr: Addr| segments.binary_search_by_key(&addr.segment(), |segment| segment.id).is_ok();
        let lost = inner.deaths.of(page).iter().map(|ptr| ptr.addr).find(|addr| !there(*addr));
        let unknown = apply_deaths(&mut segments, inner.deaths.of(page)).or(lost);
        segments.retain(|segment| segment.live.count() > 0 || (segment.id & !COPIES) >= open);
        segments.iter().for_each(visit);
        if segments.is_empty() {
            // The next checkpoint gives the stored form up.
            inner.touch(page);
        }
        inner.load(page, segments);
        let most = inner.segments.here() as u64 * self.entry_bytes.load(Ordering::Relaxed);
        drop(inner);
        if self.paging.get().is_some_and(|paging| most > paging.most_bytes()) {
            self.put_away();
        }
        unknown
    }

    /// Returns a record that is listed as dead and whose page is not among `pages`, which ascend; `None` if there is
    /// none.
    pub(crate) fn dead_elsewhere(&self, pages: &[u64]) -> Option<Addr> {
        let inner = self.inner.read();
        let page = inner.deaths.pages().find(|page| pages.binary_search(page).is_err())?;
        inner.deaths.of(page).first().map(|ptr| ptr.addr)
    }

    /// Marks a page to be stored again by the next checkpoint.
    pub fn mark_dirty(&self, page: u64) {
        self.inner.write().touch(page);
    }

    /// Drops those of the segments that have no live records. Returns the parts that they had.
    pub(crate) fn drop_dead(&self, ids: &[u64]) -> Vec<Part> {
        let mut inner = self.inner.write();
        ids.iter().flat_map(|id| inner.drop_dead(*id)).collect()
    }
}
