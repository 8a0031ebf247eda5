//! The copy-on-write B+tree of a dataset: an ordered map from [`Key`] to [`Value`].
//!
//! # Life of a node
//!
//! ```text
//!             apply           make_immutable, fork     persist                settle
//!   clean  ----------->  changed  ------------->  shared  ------->  written  ---------->  clean
//!     |                     |                        |                 |
//!     | apply: `freed`      | apply: dropped         | apply: a version unreferences it; told by comparing versions
//! ```
//!
//! *Clean* nodes are stored. A tree refers to them by [`Ptr`], and finds them in the [`NodeCache`] or loads them.
//! *Changed* nodes exist in memory only and belong to one tree, which edits them in place. [`Tree::make_immutable`] and
//! `Tree::fork` make all changed nodes *shared*, in constant time: from then on two references lead to the root, the
//! tree's and the other version's, and whatever is below a shared node is shared too. An edit of a shared node copies
//! it first.
//!
//! # Invariants
//!
//! 1. A node is edited in place only if a single reference leads to it and it has not been written
//!    (`Editor::own`). References to changed nodes are copied only by `make_immutable`, or while the writers' lock is
//!    held.
//! 2. Clean nodes have only clean descendants; written nodes have only written and clean ones (`Node::settled`,
//!    invariant 1).
//! 3. Each stored node that a tree stops referring to is reported once. A clean node goes to `freed` at once
//!    (`Editor::own`, `Editor::take`, `Editor::discard`). A written node is found by comparing `Tree::written` of
//!    another version with the tree's own, before the versions that have it are settled (`Tree::settle`).
//! 4. Each value that is overwritten or deleted is reported once (`Editor`).
//! 5. Keys of a node lie within the separators around it in its parent; the level falls by one with each step
//!    down. Checked when a node is loaded (`read::Want`), because stored bytes are not trusted.
//! 6. No lock that readers need is held during I/O. Writers (`apply`, `make_immutable`, `settle`, ...) exclude each
//!    other by a lock of their own, under which they do I/O. So the tree does not change between the loading of what an
//!    edit needs and the edit.
//!
//! # Modules
//!
//! - `leaf`, `branch`, `node`, `values`: nodes; `codec`, `varint`: their stored form; `cache`: clean nodes in memory.
//! - `read`: looks keys up; `edit`, `editor`: changes; `delete_range`: deletes ranges without reading what lies wholly
//!   within.
//! - `immutable`: versions, for checkpoints and snapshots; `unstored`: sizes of nodes that are not stored yet.
//! - `diff`: differences of two versions; `reap`: walks a tree that is given up; `visit`: walks for checks.
//! - `damage`: keys that can be looked up although nodes cannot be read.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::Result;
use crate::types::{Key, Ptr};

mod cache;
mod codec;
mod damage;
mod delete_range;
mod diff;
mod edit;
mod editor;
mod entry;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod immutable;
mod interval;
mod node;
mod read;
mod reap;
mod unstored;
mod values;
mod varint;
mod visit;

#[cfg(test)]
mod tests;

pub use cache::NodeCache;
pub(crate) use cache::NodeCacheStats;
pub(crate) use damage::without;
pub(crate) use delete_range::Applied;
pub use diff::Difference;
pub(crate) use diff::Differences;
pub(crate) use immutable::{ImmutableTree, Settling, WrittenNodes};
pub(crate) use reap::reap;
pub use visit::Visit;
#[cfg(test)]
use visit::visit;

use node::{Child, Shape};
use unstored::Share;

/// The value of a key in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, at most [`crate::limits::VALUE_BYTES_MAX`].
    Bytes(Box<[u8]>),
    /// A record.
    Page(Ptr),
}

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Sets the value of a key, whatever it was.
    Put(Key, Value),
    /// Removes a key. Nothing happens if it does not exist.
    Delete(Key),
    /// Removes all keys from the first (inclusive) to the second (exclusive).
    DeleteRange(Key, Key),
}

/// The source of nodes' records.
pub trait NodeStore: Send + Sync {
    /// Returns the verified and decompressed bytes of the record at `ptr`.
    ///
    /// # Errors
    /// Whatever keeps the record from being read. The tree passes it on.
    fn load(&self, ptr: Ptr) -> Result<Vec<u8>>;
}

/// A dataset's tree. All methods may be called from any thread.
pub struct Tree {
    live: RwLock<Live>,
    /// Serialises writers. It is taken before `live`.
    writer: Mutex<()>,
    store: Arc<dyn NodeStore>,
    cache: Arc<NodeCache>,
    shape: Shape,
    dirty: Share,
    /// Size of the nodes of the last [`ImmutableTree`], until [`Tree::settle`].
    immutable: Share,
}

/// The state of a tree that readers see.
struct Live {
    /// The root; `None` if there are no entries.
    root: Option<Child>,
}

impl Tree {
    /// Creates the tree with the given root; an empty one for `None`. Reads nothing.
    pub fn new(root: Option<Ptr>, store: Arc<dyn NodeStore>, cache: Arc<NodeCache>) -> Self {
        Self::with_root(root.map(Child::clean), store, cache, Shape::STORED)
    }

    fn with_root(
        root: Option<Child>,
        store: Arc<dyn NodeStore>,
        cache: Arc<NodeCache>,
        shape: Shape,
    ) -> Self {
        let totals = cache.unstored();
        let (dirty, immutable) = (Share::new(&totals.dirty), Share::new(&totals.immutable));
        let live = RwLock::new(Live { root });
        Self { live, writer: Mutex::default(), store, cache, shape, dirty, immutable }
    }

    /// Returns true if somebody is changing the tree just now, and may be reading nodes for it.
    pub(crate) fn is_changing(&self) -> bool {
        self.writer.is_locked()
    }

    /// Returns the memory that the nodes changed since the last [`Tree::make_immutable`] take, in bytes: about an upper
    /// bound of what the next checkpoint writes.
    #[cfg(test)]
    fn dirty_bytes(&self) -> u64 {
        self.dirty.get().memory
    }
}
