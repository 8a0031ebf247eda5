//! Copies the attributes and the data of files from one version to the other.

use std::ops::Range;

use pagefold_engine::dataset::Change;
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_engine::types::Key;

use super::Work;
use crate::codec::{Inode, kind};
use crate::diff::InodeNumber;
use crate::error::Result;
use crate::limits::FREE_PAGES_MAX;

/// Number of values that one change copies.
const BATCH: usize = 64;

impl<'a> Work<'a> {
    /// Gives inode `number` of the target the extended attributes, ACLs and link target of our inode `ino`.
    pub(super) fn copy_attributes(&self, ino: InodeNumber, number: InodeNumber) -> Result<()> {
        let keys = |ino| (Key::new(ino, kind::XATTR, 0), Key::new(ino, kind::ACL + 1, 0));
        loop {
            let (from, to) = keys(number);
            let old = self.target.range(&from, &to, BATCH)?;
            let changes: Vec<_> = old.iter().map(|(key, _)| Change::Delete(*key)).collect();
            self.target.apply(&changes)?;
            if old.len() < BATCH {
                break;
            }
        }
        let (mut from, to) = keys(ino);
        loop {
            let new = self.ours.dataset.range(&from, &to, BATCH)?;
            let put =
                |(key, value): &(Key, Vec<u8>)| Change::Put(Key { object: number, ..*key }, value.clone());
            let changes: Vec<_> = new.iter().map(put).collect();
            self.target.apply(&changes)?;
            let Some((last, _)) = new.last().filter(|_| new.len() == BATCH) else { return Ok(()) };
            from = Key { offset: last.offset.saturating_add(1), ..*last };
        }
    }

    /// Copies those pages of a file that differ.
    pub(super) fn copy_data(&mut self, is: &Inode) -> Result<()> {
        if is.object == 0 {
            return Ok(());
        }
        match self.objects.get(&is.object).copied() {
            Some(to) => self.copy_run(is, to, 0..u64::MAX),
            None => {
                let runs = self.ours.pages.get(&is.object).into_iter().flatten();
                runs.cloned().try_for_each(|run| self.copy_run(is, is.object, run))
            }
        }
    }

    /// Makes the pages `run` of object `to` of the target the same as those of our file.
    fn copy_run(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            // Pages that are yet to be freed count as holes.
            let freed = is.freeing.first_in(at..run.end);
            let hole = freed.as_ref().map_or(run.end, |pages| pages.start);
            self.copy_stored(is, to, at..hole)?;
            at = freed.map_or(run.end, |pages| pages.end);
            self.punch(to, hole..at)?;
        }
        Ok(())
    }

    /// As [`Self::copy_run`], for pages of which none is to be freed.
    fn copy_stored(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let data = self.ours.dataset.next_data(is.object, at)?.unwrap_or(u64::MAX).min(run.end);
            self.punch(to, at..data)?;
            at = data;
            if at == run.end {
                break;
            }
            let hole = self.ours.dataset.next_hole(is.object, at)?.min(run.end);
            self.copy_pages(is, to, at..hole)?;
            at = hole;
        }
        Ok(())
    }

    /// Frees pages of the target, a bounded slice per change.
    pub(super) fn punch(&mut self, object: u64, pages: Range<u64>) -> Result<()> {
        let mut at = pages.start;
        while let Some(from) = self.target.next_data(object, at)?.filter(|from| *from < pages.end) {
            at = from.saturating_add(FREE_PAGES_MAX).min(pages.end);
            self.target.apply(&[Change::Punch { object, from, to: at }])?;
            (self.go_on)()?;
        }
        Ok(())
    }

    fn copy_pages(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let size = u64::from(is.recordsize);
        let most = (ATOMIC_WRITE_MAX as u64 / size).max(1);
        let mut at = run.start;
        while at < run.end {
            let pages = most.min(run.end - at);
            let mut data = vec![0; (pages * size) as usize];
            let offset = at * size;
            self.ours.dataset.read(is.object, is.recordsize, offset, &mut data)?;
            let write = Change::Write { object: to, record_size: is.recordsize, offset, data: &data };
            self.target.apply(&[write])?;
            self.copied.bytes += data.len() as u64;
            at += pages;
            (self.go_on)()?;
        }
        Ok(())
    }
}
