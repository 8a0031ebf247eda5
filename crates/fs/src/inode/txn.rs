//! Changes of one inode, and of several at once.

use pagefold_engine::dataset::{Change, Dataset};
use parking_lot::MutexGuard;

use super::Node;
use crate::codec::{Inode, freeing_key};
use crate::error::{FsError, Result};
use crate::mirror::{Ended, Filling};

/// One inode, locked for a change. The change works on a copy: if it fails, nothing has changed.
pub(crate) struct Locked<'n> {
    node: &'n Node,
    changing: MutexGuard<'n, Option<Box<Filling>>>,
    old: Inode,
    atime_dirty: bool,
    pub(crate) new: Inode,
}

impl<'n> Locked<'n> {
    pub(crate) fn lock(node: &'n Node) -> Self {
        let changing = node.changing.lock();
        let cached = node.cached.read();
        let (old, atime_dirty) = (cached.inode.clone(), cached.atime_dirty);
        drop(cached);
        Self { node, changing, new: old.clone(), old, atime_dirty }
    }

    fn is_changed(&self) -> bool {
        self.new != self.old || self.atime_dirty
    }

    /// Adds the changes that store the new state.
    pub(crate) fn put(&self, changes: &mut Vec<Change<'_>>) {
        match (self.old.freeing.is_empty(), self.new.freeing.is_empty()) {
            (true, false) => changes.push(Change::Put(freeing_key(self.node.ino), vec![1])),
            (false, true) => changes.push(Change::Delete(freeing_key(self.node.ino))),
            _ => {}
        }
        Inode::code_pages(Some(&self.old), Some(&self.new), changes);
        changes.push(self.new.put(self.node.ino));
    }

    /// Adds the changes that `changes` mean for the second object of a file that is being rewritten.
    fn mirror(&mut self, changes: &mut Vec<Change<'_>>) {
        if let Some(filling) = self.changing.as_mut() {
            filling.mirror(&self.old, &self.new, changes);
        }
    }

    /// Returns true if `object` is being filled for this file and nothing is left to be copied.
    pub(crate) fn is_filled(&self, object: u64) -> bool {
        self.changing.as_ref().is_some_and(|filling| {
            filling.object == object && filling.ended.is_none() && filling.todo.is_empty()
        })
    }

    /// Forgets the second object.
    pub(crate) fn stop_filling(&mut self) {
        *self.changing = None;
    }

    /// As [`apply`], for one inode.
    pub(crate) fn apply(&mut self, dataset: &dyn Dataset, changes: Vec<Change<'_>>) -> Result<()> {
        apply(std::slice::from_mut(self), dataset, changes)
    }

    /// Makes the new state, which was applied and published, the state that the next change starts from.
    pub(crate) fn settle(&mut self) {
        let cached = self.node.cached.read();
        (self.old, self.atime_dirty) = (cached.inode.clone(), cached.atime_dirty);
        drop(cached);
        self.new = self.old.clone();
    }

    /// Publishes the new state, which has been applied. An access time that a reader set meanwhile stays, and stays
    /// dirty.
    pub(crate) fn publish(&self) {
        let mut cached = self.node.cached.write();
        let atime = cached.inode.atime;
        cached.inode = self.new.clone();
        if atime != self.old.atime && self.new.atime == self.old.atime {
            cached.inode.atime = atime;
        } else {
            cached.atime_dirty = false;
        }
    }
}

/// Applies `changes` of these inodes as one, together with the changes that they mean for second objects of files that
/// are being rewritten. If that fails, `changes` are applied without those, and the rewrites end: users of a file see
/// no errors of its rewrite.
fn apply(locked: &mut [Locked<'_>], dataset: &dyn Dataset, mut changes: Vec<Change<'_>>) -> Result<()> {
    let own = changes.len();
    locked.iter_mut().for_each(|locked| locked.mirror(&mut changes));
    match dataset.apply(&changes) {
        Err(error) if changes.len() > own => {
            for filling in locked.iter_mut().filter_map(|locked| locked.changing.as_mut()) {
                filling.ended.get_or_insert_with(|| Ended::NotMirrored(error.to_string()));
            }
            changes.truncate(own);
            Ok(dataset.apply(&changes)?)
        }
        applied => Ok(applied?),
    }
}

/// Several inodes locked for a change that is applied as one.
pub(crate) struct Txn<'n> {
    locked: Vec<Locked<'n>>,
}

impl<'n> Txn<'n> {
    /// Locks the nodes in the order of their numbers; the same node may occur more than once.
    pub(crate) fn lock(nodes: &[&'n Node]) -> Self {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable_by_key(|node| node.ino);
        sorted.dedup_by_key(|node| node.ino);
        Self { locked: sorted.into_iter().map(Locked::lock).collect() }
    }

    /// Returns the new state of a locked inode, to read and change.
    pub(crate) fn edit(&mut self, ino: u64) -> Result<&mut Inode> {
        self.locked(ino).map(|locked| &mut locked.new)
    }

    /// Returns a locked inode.
    pub(crate) fn locked(&mut self, ino: u64) -> Result<&mut Locked<'n>> {
        self.locked.iter_mut().find(|locked| locked.node.ino == ino).ok_or(FsError::Stale)
    }

    /// Returns the new state of a locked inode.
    pub(crate) fn get(&self, ino: u64) -> Result<&Inode> {
        self.locked.iter().find(|l| l.node.ino == ino).map(|l| &l.new).ok_or(FsError::Stale)
    }

    /// Applies `changes` and those of the inodes as one.
    pub(crate) fn commit(&mut self, dataset: &dyn Dataset, mut changes: Vec<Change<'_>>) -> Result<()> {
        self.locked.iter().filter(|l| l.is_changed()).for_each(|locked| locked.put(&mut changes));
        if !changes.is_empty() {
            apply(&mut self.locked, dataset, changes)?;
        }
        self.locked.iter().for_each(Locked::publish);
        Ok(())
    }
}
