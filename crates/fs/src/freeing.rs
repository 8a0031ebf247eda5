//! Pages that read as zeros and are yet to be freed.
//!
//! Truncating or punching is one small change, whatever it frees: the inode notes the range, which reads as zeros from
//! then on, and [`Fs::reap`] frees its pages, a bounded slice per change. A write into the range before that takes its
//! pages out of the range. An inode has few ranges ([`FREEING_RANGES_MAX`]): a change that could make too many frees
//! the shortest ones first.

use std::ops::Range;
use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::aside;
use pagefold_engine::types::Key;

use crate::codec::{Inode, kind};
use crate::error::Result;
use crate::fs::Fs;
use crate::inode::Locked;
use crate::limits::{FREE_PAGES_MAX, FREEING_RANGES_MAX};

/// Ranges of pages (of bytes in [`crate::mirror`]): ascending, not empty, and apart from each other. Takes no
/// allocation if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freeing(Option<Arc<[Range<u64>]>>);

impl Freeing {
    /// Returns `None` unless the ranges are ascending, not empty, apart, and at most [`FREEING_RANGES_MAX`].
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Option<Self> {
        let apart = ranges.windows(2).all(|pair| matches!(pair, [a, b] if a.end < b.start));
        let sound =
            apart && ranges.iter().all(|range| !range.is_empty()) && ranges.len() <= FREEING_RANGES_MAX;
        sound.then(|| Self::of(ranges))
    }

    fn of(ranges: Vec<Range<u64>>) -> Self {
        Self(if ranges.is_empty() { None } else { Some(ranges.into()) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the position of the first range that ends behind `page`.
    fn position(&self, page: u64) -> usize {
        self.ranges().partition_point(|range| range.end <= page)
    }

    /// Returns the part of the first range that overlaps `pages` which lies in `pages`.
    pub(crate) fn first_in(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let range = self.ranges().get(self.position(pages.start))?;
        let overlap = range.start.max(pages.start)..range.end.min(pages.end);
        (!overlap.is_empty()).then_some(overlap)
    }

    /// Returns the end of the range that contains `page`; `None` if none does.
    pub(crate) fn end_of(&self, page: u64) -> Option<u64> {
        let range = self.ranges().get(self.position(page))?;
        (range.start <= page).then_some(range.end)
    }

    /// Splits `pages` into stretches, in order; each has true if it lies in a range.
    pub(crate) fn split(&self, pages: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut found = Vec::new();
        let mut at = pages.start;
        while at < pages.end {
            let freed = self.first_in(at..pages.end);
            let next = freed.as_ref().map_or(pages.end, |range| range.start);
            if at < next {
                found.push((at..next, false));
            }
            at = next;
            if let Some(range) = freed {
                at = range.end;
                found.push((range, true));
            }
        }
        found
    }

    pub(crate) fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let (mut start, mut end) = (pages.start, pages.end);
        let mut kept = Vec::with_capacity(self.ranges().len() + 1);
        for range in self.ranges() {
            if range.end < pages.start || range.start > pages.end {
                kept.push(range.clone());
            } else {
                (start, end) = (start.min(range.start), end.max(range.end));
            }
        }
        kept.push(start..end);
        kept.sort_unstable_by_key(|range| range.start);
        *self = Self::of(kept);
    }

    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        if self.first_in(pages.clone()).is_none() {
            return;
        }
        let sides = |range: &Range<u64>| {
            let left = range.start..range.end.min(pages.start);
            let right = range.start.max(pages.end)..range.end;
            [left, right].into_iter().filter(|side| !side.is_empty())
        };
        *self = Self::of(self.ranges().iter().flat_map(sides).collect());
    }

    /// Returns half as many ranges: each covers two neighbours and what lies between them.
    pub(crate) fn in_pairs(&self) -> Self {
        let joined = |pair: &[Range<u64>]| Some(pair.first()?.start..pair.last()?.end);
        Self::of(self.ranges().chunks(2).filter_map(joined).collect())
    }

    /// Returns true if a change may add ranges. A change splits at most two ranges, or adds one.
    fn has_room(&self) -> bool {
        self.ranges().len() + 2 <= FREEING_RANGES_MAX
    }

    fn shortest(&self) -> Option<Range<u64>> {
        self.ranges().iter().min_by_key(|range| range.end - range.start).cloned()
    }
}

/// Returns the key that lists inode `ino` as one with pages to be freed.
pub(crate) const fn key(ino: u64) -> Key {
    Key::new(0, kind::FREEING, ino)
}

impl Fs {
    /// Returns the largest number of pages that one change frees.
    pub(crate) fn free_pages_max(&self) -> u64 {
        self.options.free_pages.unwrap_or(FREE_PAGES_MAX).max(1)
    }

    /// Returns true if more pages may be stored in a range than one change frees.
    fn are_many(&self, object: u64, pages: &Range<u64>) -> bool {
        let most = self.free_pages_max();
        // If the sum cannot be read, there may be many.
        pages.end - pages.start > most && self.dataset.usage(object).map_or(true, |usage| usage.pages > most)
    }

    /// Adds the changes after which `pages` of a file read as zeros. If they are few, they are freed. Otherwise the
    /// first of them are freed, so that a full pool admits the change, and [`Fs::reap`] frees the rest.
    pub(crate) fn cut_pages(&self, inode: &mut Inode, pages: Range<u64>, changes: &mut Vec<Change<'_>>) {
        if pages.is_empty() || inode.object == 0 {
            return;
        }
        let many = self.are_many(inode.object, &pages);
        let now = if many { pages.start..pages.start + self.free_pages_max() } else { pages.clone() };
        changes.push(Change::Punch { object: inode.object, from: now.start, to: now.end });
        inode.freeing.remove(now.clone());
        if many {
            inode.freeing.add(now.end..pages.end);
        }
    }

    /// Makes room for a change that may add ranges. The caller must not have changed the inode yet.
    pub(crate) fn bound_freeing(&self, locked: &mut Locked<'_>) -> Result<()> {
        while !locked.new.freeing.has_room() {
            let Some(range) = locked.new.freeing.shortest() else { break };
            self.free_slice(locked, range, self.free_pages_max())?;
        }
        Ok(())
    }

    /// Frees up to about `pages` pages of `range`, which is one of the inode's, by one change.
    fn free_slice(&self, locked: &mut Locked<'_>, range: Range<u64>, pages: u64) -> Result<()> {
        let inode = &mut locked.new;
        let found = self.dataset.next_data(inode.object, range.start)?;
        let mut changes = Vec::with_capacity(3);
        let done = match found.filter(|page| *page < range.end) {
            Some(from) => {
                let to = from.saturating_add(pages.min(self.free_pages_max())).min(range.end);
                changes.push(Change::Punch { object: inode.object, from, to });
                to
            }
            None => range.end,
        };
        inode.freeing.remove(range.start..done);
        locked.put(&mut changes);
        // This may come before a request's own change, which another server that goes on after it must still carry out:
        // hence `aside`.
        aside(|| self.dataset.apply(&changes))?;
        locked.publish();
        locked.settle();
        Ok(())
    }

    /// Frees the pages that inodes on the list have yet to free; returns false if the budget was used up first.
    pub(crate) fn reap_freeing(&self, budget: &mut u64) -> Result<bool> {
        let mut from = key(0);
        let to = Key::new(0, kind::FREEING + 1, 0);
        loop {
            let batch = self.dataset.range(&from, &to, crate::limits::READDIR_BATCH)?;
            for (key, _) in &batch {
                from = Key { offset: key.offset.saturating_add(1), ..*key };
                if !self.free_inode(key.offset, budget)? {
                    return Ok(false);
                }
            }
            if batch.len() < crate::limits::READDIR_BATCH {
                return Ok(true);
            }
        }
    }

    fn free_inode(&self, ino: u64, budget: &mut u64) -> Result<bool> {
        // An inode that has no name and that nobody uses is removed as a whole.
        let Some(node) = self.nodes.get_named(self.dataset(), ino)? else { return Ok(true) };
        loop {
            // The lock is taken for each slice, so that other changes of the file get their turn.
            let mut locked = Locked::lock(&node);
            let Some(range) = locked.new.freeing.ranges().first().cloned() else { return Ok(true) };
            if *budget == 0 {
                return Ok(false);
            }
            let pages = self.free_pages_max().min(*budget);
            self.free_slice(&mut locked, range, pages)?;
            *budget -= pages;
        }
    }
}

/// Takes the pages of a write of `len` bytes at `offset` out of all ranges, and adds the changes that must come before
/// the write: the rest of a page that is written in part has to be zeros.
pub(crate) fn uncover(inode: &mut Inode, offset: u64, len: u64, changes: &mut Vec<Change<'_>>) {
    if inode.freeing.is_empty() || len == 0 || inode.recordsize == 0 {
        return;
    }
    let record_size = u64::from(inode.recordsize);
    let end = offset.saturating_add(len);
    let pages = offset / record_size..end.div_ceil(record_size);
    let mut edges = vec![pages.start, pages.end - 1];
    edges.dedup();
    for page in edges {
        let start = page.saturating_mul(record_size);
        let whole = start >= offset && start.saturating_add(record_size) <= end;
        if !whole && inode.freeing.end_of(page).is_some() {
            changes.push(Change::Punch { object: inode.object, from: page, to: page + 1 });
        }
    }
    inode.freeing.remove(pages);
}
