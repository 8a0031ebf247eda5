//! Keeps a second object equal to a file, while [`crate::rewrite`] fills it with pages of another size.
//!
//! - M1: a byte outside the ranges that are yet to be copied is the same in the second object as in the file; behind
//!   the file's end it is zero in the second object.
//! - M2: a change of the file's contents and the changes that keep M1 for it are one change of the dataset
//!   ([`Filling::mirror`]).

use std::ops::Range;

use pagefold_engine::dataset::Change;
use pagefold_engine::types::Key;

use crate::codec::{Inode, kind};
use crate::limits::{TODO_RANGES_MAX, ZEROS};
use crate::ranges::Ranges;

/// Reasons why a rewrite was given up although nothing failed in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file was truncated to nothing, or bytes were moved within it (FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE).
    Moved,
    /// The file's last name was removed.
    Deleted,
    /// A change of the file could not be mirrored, and was made without the second object; the text says why.
    NotMirrored(String),
}

/// An object that is being filled. The inode's lock `changing` guards it.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) object: u64,
    pub(crate) recordsize: u32,
    /// Ranges of bytes that are yet to be copied.
    pub(crate) todo: Ranges,
    /// Number of changes of the file so far: data that was read without the lock can be used if this number is the same
    /// after.
    pub(crate) changes: u64,
    /// Reason why filling has ended, if it has.
    pub(crate) ended: Option<Ended>,
}

impl Filling {
    /// Returns an object into which nothing of a file of `size_bytes` bytes has been copied.
    pub(crate) fn new(object: u64, recordsize: u32, size_bytes: u64) -> Self {
        let mut todo = Ranges::default();
        todo.add(0..size_bytes);
        Self { object, recordsize, todo, changes: 0, ended: None }
    }

    /// Mirrors `changes`, which turn the inode `old` into `new`: adds to them the changes that they mean for the second
    /// object, or notes that bytes have to be copied again.
    ///
    /// Zeros are mirrored if they are few. Pages that are shared or cut off, perhaps thousands of them, are copied
    /// again, piece by piece.
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

/// Returns the change after which the pages of `object` are coded as those of the file `of`.
pub(crate) fn code_pages(object: u64, of: &Inode) -> Change<'static> {
    let key = Key::new(object, Key::COMPRESSION, 0);
    match of.compression {
        Some(codec) => Change::Put(key, vec![codec.to_stored()]),
        None => Change::Delete(key),
    }
}

/// Returns the key that lists `object` as being filled.
pub(crate) const fn key(object: u64) -> Key {
    Key::new(0, kind::FILLING, object)
}
