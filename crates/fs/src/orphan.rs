//! Orphans: inodes and data objects that nothing names any more.
//!
//! Deleting is O(1): the change that takes the last name away puts the inode on a list (keys of object 0). Reaping
//! removes what is on the lists, a bounded slice per change, in an order that a crash can interrupt anywhere: pages
//! first, then attributes, then inode and list entry in one change.

use std::sync::atomic::Ordering;

use pagefold_engine::dataset::{Change, Reaper};
use pagefold_engine::types::Key;

use crate::codec::{Inode, freeing_key, kind};
use crate::error::Result;
use crate::freeing::ReapTurn;
use crate::fs::Fs;
use crate::inode::Retired;
use crate::limits::{READDIR_BATCH, REAP_PAGES};
use crate::types::{FileKind, Ino};

/// Returns the change that puts inode `ino` on the list.
pub(crate) fn put_inode(ino: u64) -> Change<'static> {
    Change::Put(Key::new(0, kind::ORPHAN_INODE, ino), vec![1])
}

/// Returns the change that takes inode `ino` off the list.
pub(crate) fn delete_inode(ino: u64) -> Change<'static> {
    Change::Delete(Key::new(0, kind::ORPHAN_INODE, ino))
}

/// Returns the change that puts data object `object` on the list.
pub(crate) fn put_data(object: u64) -> Change<'static> {
    Change::Put(Key::new(0, kind::ORPHAN_DATA, object), vec![1])
}

impl Reaper for Fs {
    fn reap_some(&self) {
        if let Err(error) = self.reap(REAP_PAGES) {
            tracing::warn!(%error, "cannot free what was deleted or cut out of files");
        }
    }
}

impl Fs {
    /// Gives `count` references back. An unlinked inode without references and opens is left to [`Fs::reap`].
    pub fn forget(&self, ino: Ino, count: u64) {
        let unused = match self.nodes.peek(ino.0) {
            Some(node) if self.nodes.are_counted() => node.drop_lookups(count),
            // It is not known whether these were the last references, so an unlinked inode is looked at again.
            Some(node) => node.snapshot().nlink == 0,
            None => !self.nodes.are_counted(),
        };
        if unused {
            self.note_orphan();
        }
    }

    /// Closes what [`Fs::open`], [`Fs::create`] or [`Fs::tmpfile`] opened.
    pub fn release(&self, ino: Ino) {
        if let Some(node) = self.nodes.peek(ino.0)
            && node.drop_open()
        {
            self.note_orphan();
        }
    }

    /// Frees up to about `pages` pages of deleted files and of what was cut out of others; returns true if there is
    /// more to do. Called from a background thread, and by changes that find no space. Does nothing on a read-only
    /// mount.
    ///
    /// Errors: damage, once everything else was freed; other errors of the dataset at once.
    pub fn reap(&self, pages: u64) -> Result<bool> {
        let _one = self.reaping.lock();
        if self.is_read_only() || !self.orphans.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let mut turn = ReapTurn { budget: pages, damage: None };
        let done = self
            .reap_data(&mut turn)
            .and_then(|data| Ok(data && self.reap_freeing(&mut turn)?))
            .and_then(|freed| Ok(freed && self.reap_inodes(&mut turn)?));
        let left = match (done, turn.damage) {
            (Ok(true), Some(damage)) => Err(damage),
            (done, _) => done.map(|done| !done),
        };
        if !matches!(left, Ok(false)) {
            self.note_orphan();
        }
        left
    }

    /// Frees the objects on the lists. Returns true if only objects in use are left, false if the budget was used up
    /// first.
    fn reap_data(&self, turn: &mut ReapTurn) -> Result<bool> {
        Ok(self.reap_objects(kind::FILLING, turn)? && self.reap_objects(kind::ORPHAN_DATA, turn)?)
    }

    /// As [`Fs::reap_data`], for one list.
    fn reap_objects(&self, list: u8, turn: &mut ReapTurn) -> Result<bool> {
        let (mut from, to) = (Key::new(0, list, 0), Key::new(0, list + 1, 0));
        loop {
            let batch = self.dataset.range(&from, &to, READDIR_BATCH)?;
            for (key, _) in &batch {
                from = Key { offset: key.offset.saturating_add(1), ..*key };
                let reaped = self.reap_object(key, &mut turn.budget);
                if !turn.past_damage(reaped)? {
                    return Ok(false);
                }
            }
            if batch.len() < READDIR_BATCH {
                return Ok(true);
            }
        }
    }

    /// Frees an object on a list, unless it is in use. Returns false if the budget was used up first.
    fn reap_object(&self, key: &Key, budget: &mut u64) -> Result<bool> {
        if self.is_in_use(key)? {
            return Ok(true);
        }
        if !self.punch_all(key.offset, budget)? || *budget == 0 {
            return Ok(false);
        }
        *budget -= 1;
        let codec = Key::new(key.offset, Key::COMPRESSION, 0);
        self.dataset.apply(&[Change::Delete(*key), Change::Delete(codec)])?;
        Ok(true)
    }

    /// Returns true if an object on a list is to be left alone. An object that is not spared any more may have become a
    /// file's data object, and then it is on no list any more.
    fn is_in_use(&self, key: &Key) -> Result<bool> {
        let is_spared = self.spared.lock().contains(&key.offset);
        Ok(is_spared || self.dataset.get(key)?.is_none())
    }

    /// As [`Fs::reap_data`], for the inodes that nobody uses any more.
    fn reap_inodes(&self, turn: &mut ReapTurn) -> Result<bool> {
        let mut from = Key::new(0, kind::ORPHAN_INODE, 0);
        let to = Key::new(0, kind::ORPHAN_INODE + 1, 0);
        loop {
            let batch = self.dataset.range(&from, &to, READDIR_BATCH)?;
            for (key, _) in &batch {
                from = Key::new(0, kind::ORPHAN_INODE, key.offset.saturating_add(1));
                match self.retire(key.offset) {
                    Retired::Gone => {}
                    Retired::InUse => continue,
                    Retired::Held | Retired::Unknown => {
                        self.note_orphan();
                        continue;
                    }
                }
                let reaped = self.reap_inode(key.offset, &mut turn.budget);
                if !turn.past_damage(reaped)? {
                    return Ok(false);
                }
            }
            if batch.len() < READDIR_BATCH {
                return Ok(true);
            }
        }
    }

    fn retire(&self, ino: u64) -> Retired {
        match (self.nodes.retire(ino, false), self.holds.get()) {
            (Retired::Unknown, Some(holds)) if holds(Ino(ino)) => Retired::InUse,
            // If the kernel does not refer to the inode now, it never will: nothing leads to it any more.
            (Retired::Unknown, Some(_)) => self.nodes.retire(ino, true),
            (known, _) => known,
        }
    }

    fn reap_inode(&self, ino: u64, budget: &mut u64) -> Result<bool> {
        if *budget == 0 {
            return Ok(false);
        }
        let mut last_changes = vec![Change::Delete(Inode::key(ino)), delete_inode(ino)];
        if let Some(bytes) = self.dataset.get(&Inode::key(ino))? {
            let inode = Inode::decode(ino, &bytes)?;
            if inode.nlink > 0 {
                // The inode was named after the list was read. An inode without a name that is out of the cache cannot
                // get one any more.
                return Ok(true);
            }
            if inode.kind == FileKind::Regular && inode.object != 0 {
                // The pages of most files go in the same change as the inode. A file with pages to be freed may have
                // some behind its end.
                let pages = inode.size.div_ceil(u64::from(inode.recordsize));
                if pages <= self.free_pages_max() && inode.freeing.is_empty() {
                    *budget = budget.saturating_sub(pages);
                } else if !self.punch_all(inode.object, budget)? {
                    return Ok(false);
                }
                last_changes.push(Change::Punch { object: inode.object, from: 0, to: u64::MAX });
                Inode::code_pages(Some(&inode), None, &mut last_changes);
                if !inode.freeing.is_empty() {
                    last_changes.push(Change::Delete(freeing_key(ino)));
                }
            }
        }
        *budget = budget.saturating_sub(1);
        // The inode itself has the first of its keys; it goes last, with the list entry.
        let (first, end) = (Key::new(ino, kind::INODE + 1, 0), Key::new(ino, Key::ENGINE_KINDS, 0));
        loop {
            let batch = self.dataset.range(&first, &end, READDIR_BATCH)?;
            let mut changes: Vec<_> = batch.iter().map(|(key, _)| Change::Delete(*key)).collect();
            let last = batch.len() < READDIR_BATCH;
            if last {
                changes.append(&mut last_changes);
            }
            self.dataset.apply(&changes)?;
            if last {
                return Ok(true);
            }
        }
    }

    /// Frees an object's pages; returns false if the budget was used up first.
    fn punch_all(&self, object: u64, budget: &mut u64) -> Result<bool> {
        let mut page = 0;
        while let Some(from) = self.dataset.next_data(object, page)? {
            if *budget == 0 {
                return Ok(false);
            }
            let slice = self.free_pages_max().min(*budget);
            let to = from.saturating_add(slice);
            self.dataset.apply(&[Change::Punch { object, from, to }])?;
            *budget -= slice;
            page = to;
        }
        Ok(true)
    }
}
