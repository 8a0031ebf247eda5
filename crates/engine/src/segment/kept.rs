//! Directories in memory: leaves without the entries of records that are dead.
//!
//! Where pages are written in no order, most records of a segment are dead long before it is cleaned. Nobody asks for
//! them, so their entries are left out when a leaf is read, and dropped after checkpoints when many have died. But
//! while a pool is opened, replay makes records live. So an entry that is missing says nothing: the leaf is read again,
//! and keeps what was asked for.

use std::sync::Arc;

use super::directory::{DirEntry, DirRef, Directory, LEAF_SLOTS};
use super::kept_leaf::{KEPT_ENTRY_BYTES, KeptLeaf};
use super::piece::{Piece, PieceKey};
use super::table::Segments;
use crate::Addr;
use crate::space::Extent;

/// A leaf is made smaller if at most so many parts in four of its entries are those of live records.
const LIVE_QUARTERS: usize = 3;
/// Leaves are looked through as soon as this part of their entries, one in so many, may have become those of dead
/// records.
const DEAD_SHARE: u64 = 8;

impl Segments {
    /// Puts the leaves of a directory that was just written into the cache, with all entries.
    pub(super) fn keep_written(&self, id: u64, place: (Extent, DirRef), directory: &Directory) {
        self.keep_leaves(id, place, directory, &|_| None);
    }

    /// Puts the leaves of a directory that was read for `asked` into the cache.
    pub(super) fn keep_read(&self, asked: Addr, place: (Extent, DirRef), directory: &Directory) {
        let id = asked.segment();
        self.keep_leaves(id, place, directory, &|leaf| self.without_dead(id, leaf, Some(asked.slot())));
    }

    /// Puts the leaves of a directory into the cache, each as `smaller` makes it, or with all entries.
    fn keep_leaves(
        &self,
        id: u64,
        (extent, dir): (Extent, DirRef),
        directory: &Directory,
        smaller: &dyn Fn(&[DirEntry]) -> Option<Vec<DirEntry>>,
    ) {
        for (number, entries) in directory.leaves() {
            let fewer = smaller(entries);
            let Some(leaf) = KeptLeaf::of(fewer.as_deref().unwrap_or(entries)) else { continue };
            let key = PieceKey::leaf(id, extent, dir, number * LEAF_SLOTS);
            self.directories.insert(key, Piece::Leaf(Arc::new(leaf)));
        }
    }

    /// Returns the entry of a record, if it is in memory.
    pub(super) fn kept_entry(&self, addr: Addr, extent: Extent, dir: DirRef) -> Option<DirEntry> {
        match self.directories.get(&PieceKey::leaf(addr.segment(), extent, dir, addr.slot()))? {
            Piece::Leaf(leaf) => leaf.get(addr.slot()),
            Piece::Index(_) => None,
        }
    }

    /// Drops from memory the entries of records that have died, where they are many. Each checkpoint calls this.
    pub(crate) fn trim_directories(&self) {
        let entries = self.directories.weight() / KEPT_ENTRY_BYTES;
        if self.inner.read().died < entries / DEAD_SHARE {
            return;
        }
        self.inner.write().died = 0;
        for (key, piece) in self.directories.iter() {
            let Piece::Leaf(leaf) = piece else { continue };
            let Some(fewer) = self.without_dead(key.segment, &leaf.entries(), None) else { continue };
            match KeptLeaf::of(&fewer) {
                // It may have been dropped meanwhile, or read anew; then what is there stays, or is read once more.
                Some(kept) => drop(self.directories.replace(key, Piece::Leaf(Arc::new(kept)), true)),
                None => drop(self.directories.remove(&key)),
            }
        }
    }

    /// Returns those of a leaf's entries whose records are live, and that of `asked`; `None` if that saves little, or if
    /// nothing in memory tells.
    fn without_dead(&self, id: u64, entries: &[DirEntry], asked: Option<u32>) -> Option<Vec<DirEntry>> {
        let inner = self.inner.read();
        // A segment that is gone has no live records.
        let live = inner.segments.get(id).ok()?.map(|segment| &segment.live);
        let is_live = |slot| live.is_some_and(|live| live.get(slot));
        let stays = |entry: &&DirEntry| is_live(entry.slot) || asked == Some(entry.slot);
        let count = entries.iter().filter(stays).count();
        if count * 4 > entries.len() * LIVE_QUARTERS {
            return None;
        }
        let mut kept = Vec::with_capacity(count);
        kept.extend(entries.iter().filter(stays));
        Some(kept)
    }
}

#[cfg(test)]
mod tests;
