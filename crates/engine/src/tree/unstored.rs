//! Counts the sizes of nodes that are not stored yet, of each tree and of all trees together.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of nodes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeBytes {
    /// Size in memory.
    pub memory: u64,
    /// Largest size of one copy in storage, with all that a record takes beside its bytes.
    pub stored: u64,
}

impl AddAssign for NodeBytes {
    fn add_assign(&mut self, more: Self) {
        self.memory += more.memory;
        self.stored += more.stored;
    }
}

impl SubAssign for NodeBytes {
    /// Subtracts, but stops at zero: another tree may have counted a node that is this one's alone now. So the sum of
    /// all trees is never too small.
    fn sub_assign(&mut self, less: Self) {
        self.memory = self.memory.saturating_sub(less.memory);
        self.stored = self.stored.saturating_sub(less.stored);
    }
}

/// The sums over all trees of a pool.
#[derive(Default)]
pub(super) struct UnstoredTotals {
    pub(super) dirty: Arc<Total>,
    pub(super) immutable: Arc<Total>,
}

impl UnstoredTotals {
    /// Moves what trees left behind from the dirty to the immutable sum, since a checkpoint writes from now on what is
    /// dirty. Trees that are still there do so themselves ([`Share::set`]).
    pub(super) fn make_left_immutable(&self) {
        self.immutable.leave(self.dirty.take_left());
    }

    /// Subtracts what trees left behind from the immutable sum, since that checkpoint has written it.
    pub(super) fn settle_left(&self) {
        self.immutable.take_left();
    }
}

/// Sizes of nodes as atomics.
#[derive(Default)]
struct Counts {
    memory: AtomicU64,
    stored: AtomicU64,
}

impl Counts {
    fn get(&self) -> NodeBytes {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        NodeBytes { memory: get(&self.memory), stored: get(&self.stored) }
    }

    fn swap(&self, bytes: NodeBytes) -> NodeBytes {
        let swap = |part: &AtomicU64, bytes: u64| part.swap(bytes, Ordering::Relaxed);
        NodeBytes { memory: swap(&self.memory, bytes.memory), stored: swap(&self.stored, bytes.stored) }
    }

    fn add(&self, bytes: NodeBytes) {
        self.memory.fetch_add(bytes.memory, Ordering::Relaxed);
        self.stored.fetch_add(bytes.stored, Ordering::Relaxed);
    }

    fn sub(&self, bytes: NodeBytes) {
        self.memory.fetch_sub(bytes.memory, Ordering::Relaxed);
        self.stored.fetch_sub(bytes.stored, Ordering::Relaxed);
    }
}

/// A sum of [`NodeBytes`]: the shares of trees, and the shares that trees left behind.
///
/// A tree that is dropped may share its nodes with others, which have not counted them, and the next checkpoint still
/// writes them. So its share stays in the sum until that checkpoint has been made.
#[derive(Default)]
pub(super) struct Total {
    all: Counts,
    left: Counts,
}

impl Total {
    pub(super) fn get(&self) -> NodeBytes {
        self.all.get()
    }

    fn leave(&self, bytes: NodeBytes) {
        self.all.add(bytes);
        self.left.add(bytes);
    }

    fn take_left(&self) -> NodeBytes {
        let left = self.left.swap(NodeBytes::default());
        self.all.sub(left);
        left
    }
}

/// One tree's part of a total.
pub(super) struct Share {
    part: Counts,
    total: Arc<Total>,
}

impl Share {
    /// Creates a share of nothing yet.
    pub(super) fn new(total: &Arc<Total>) -> Self {
        Self { part: Counts::default(), total: Arc::clone(total) }
    }

    pub(super) fn get(&self) -> NodeBytes {
        self.part.get()
    }

    /// Changes the share, and returns what it was.
    pub(super) fn set(&self, bytes: NodeBytes) -> NodeBytes {
        // The new part is added first, so that the sum is never too small.
        self.total.all.add(bytes);
        let before = self.part.swap(bytes);
        self.total.all.sub(before);
        before
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.total.left.add(self.part.get());
    }
}
