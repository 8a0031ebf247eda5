//! A file's contents in a second object, while [`crate::rewrite`] fills that with pages of another size.
//!
//! - M1: a byte that is not on the list of what is yet to be copied is the same in the second object as in the file; behind the file's end it is zero
//!   there.
//! - M2: what changes the file's contents and keeps M1 for them is one change of the dataset ([`Filling::mirror`]).

use std::ops::Range;

use pagefold_engine::dataset::Change;
use pagefold_engine::types::Key;

use crate::codec::{Inode, kind};
use crate::freeing::Freeing as Ranges;
use crate::limits::{TODO_RANGES_MAX, ZEROS};
use crate::rewrite::Ended;

/// An object that is being filled. It lies beside the inode's lock, which guards it.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) object: u64,
    pub(crate) recordsize: u32,
    /// Ranges of bytes that are yet to be copied.
    pub(crate) todo: Ranges,
    /// Changes of the file so far: what was read without the lock is of use if there were none meanwhile.
    pub(crate) changes: u64,
    /// It is not to be gone on with.
    pub(crate) ended: Option<Ended>,
}

impl Filling {
    /// Nothing is copied of `size_bytes` bytes.
    pub(crate) fn new(object: u64, recordsize: u32, size_bytes: u64) -> Self {
        let mut todo = Ranges::default();
        todo.add(0..size_bytes);
        Self { object, recordsize, todo, changes: 0, ended: None }
    }

    /// Adds to `changes`, after which the inode `old` is `new`, what they are for the second object, or takes note that the bytes have to be copied again.
    ///
    /// Zeros are mirrored while they are few. Of what is shared or cut off by the thousand pages the copier takes a piece at a time.
    pub(crate) fn mirror(&mut self, old: &Inode, new: &Inode, changes: &mut Vec<Change<'_>>) {
        self.changes += 1;
        if self.ended.is_some() {
            return;
        }
        if new.object != old.object {
            self.ended = Some(Ended::Moved);
            return;
        }
        let page = u64::from(old.recordsize);
        let bytes = |from: u64, to: u64| from.saturating_mul(page)..to.saturating_mul(page);
        let end = old.size.max(new.size);
        let mut more = Vec::new();
        for change in changes.iter() {
            match *change {
                Change::Write { object, offset, data, .. } if object == old.object => {
                    self.write(offset, data, &mut more);
                }
                Change::Punch { object, from, to } if object == old.object => {
                    let range = bytes(from, to);
                    self.zero(range.start..range.end.min(end), &mut more);
                }
                Change::Share { to_object, to_page, count, .. } if to_object == old.object => {
                    self.todo.add(bytes(to_page, to_page.saturating_add(count)));
                }
                _ => {}
            }
        }
        for range in new.freeing.ranges() {
            let fresh = old.freeing.split(range.clone()).into_iter().filter(|(_, was_freed)| !was_freed);
            fresh.for_each(|(pages, _)| self.todo.add(bytes(pages.start, pages.end)));
        }
        if new.size < old.size {
            self.todo.add(new.size..old.size);
        }
        if new.compression != old.compression {
            more.push(code_pages(self.object, new));
        }
        while self.todo.ranges().len() > TODO_RANGES_MAX {
            self.todo = self.todo.in_pairs();
        }
        changes.append(&mut more);
    }

    fn write<'a>(&self, offset: u64, data: &'a [u8], more: &mut Vec<Change<'a>>) {
        let (object, record_size) = (self.object, self.recordsize);
        for (part, is_todo) in self.todo.split(offset..offset.saturating_add(data.len() as u64)) {
            let within = (part.start - offset) as usize..(part.end - offset) as usize;
            if let (false, Some(data)) = (is_todo, data.get(within)) {
                more.push(Change::Write { object, record_size, offset: part.start, data });
            }
        }
    }

    fn zero(&mut self, bytes: Range<u64>, more: &mut Vec<Change<'_>>) {
        let len = usize::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(usize::MAX);
        match ZEROS.get(..len) {
            Some(zeros) => self.write(bytes.start, zeros, more),
            None => self.todo.add(bytes),
        }
    }
}

/// The change that has the pages of `object` coded as those of a file's are.
pub(crate) fn code_pages(object: u64, of: &Inode) -> Change<'static> {
    let key = Key::new(object, Key::COMPRESSION, 0);
    match of.compression {
        Some(codec) => Change::Put(key, vec![codec.to_stored()]),
        None => Change::Delete(key),
    }
}

/// Where it is listed that `object` is being filled.
pub(crate) const fn key(object: u64) -> Key {
    Key::new(0, kind::FILLING, object)
}
