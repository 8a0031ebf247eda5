//! Memory of nodes that are not stored yet, of each tree and of all trees together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all trees of a pool hold, in bytes.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) dirty: Arc<AtomicU64>,
    pub(super) frozen: Arc<AtomicU64>,
}

/// One tree's part of a total, in bytes; it goes with the tree.
pub(super) struct Share {
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
}

impl Share {
    /// A part of nothing yet.
    pub(super) fn new(total: &Arc<AtomicU64>) -> Self {
        Self { bytes: AtomicU64::new(0), total: Arc::clone(total) }
    }

    pub(super) fn get(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes it, and returns what it was.
    pub(super) fn set(&self, bytes: u64) -> u64 {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
        before
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
