//! Pages that read as zeros and are yet to be freed.
//!
//! Truncating or punching is one small change, whatever it frees: the inode notes the range, which reads as zeros from
//! then on, and [`Fs::reap`] frees its pages, a bounded slice per change. A write into the range before that takes its
//! pages out of the range. An inode has few ranges ([`FREEING_RANGES_MAX`]): a change that could make too many frees
//! the shortest ones first.

use std::ops::Range;

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::aside;
use pagefold_engine::types::Key;

use crate::codec::{Inode, freeing_key, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Locked;
use crate::limits::FREE_PAGES_MAX;

/// State of one call of [`Fs::reap`].
pub(crate) struct ReapTurn {
    /// Number of pages that may still be freed.
    pub(crate) budget: u64,
    /// The first damage that was met.
    pub(crate) damage: Option<FsError>,
}

impl ReapTurn {
    /// Takes the outcome of one item. An item that is damaged is passed over: it keeps its space, and nothing else does.
    pub(crate) fn past_damage(&mut self, outcome: Result<bool>) -> Result<bool> {
        match outcome {
            Err(error) if error.is_damage() => {
                self.damage.get_or_insert(error);
                Ok(true)
            }
            outcome => outcome,
        }
    }
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
    pub(crate) fn reap_freeing(&self, turn: &mut ReapTurn) -> Result<bool> {
        let mut from = freeing_key(0);
        let to = Key::new(0, kind::FREEING + 1, 0);
        loop {
            let batch = self.dataset.range(&from, &to, crate::limits::READDIR_BATCH)?;
            for (key, _) in &batch {
                from = Key { offset: key.offset.saturating_add(1), ..*key };
                let freed = self.free_inode(key.offset, &mut turn.budget);
                if !turn.past_damage(freed)? {
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

/// Has `changes` say that they are made to free something, which full pools admit, also where no page of `object` goes.
pub(crate) fn tell_freeing(object: u64, changes: &mut Vec<Change<'_>>) {
    if !changes.iter().any(|change| matches!(change, Change::Punch { .. })) {
        changes.push(Change::Punch { object, from: 0, to: 0 });
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
