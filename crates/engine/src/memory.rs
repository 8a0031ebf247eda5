//! Memory that counts against a pool's budget though it is not the engine's: whoever takes it says so here, and the record cache leaves it room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an allocation takes: allocators round up to size classes, of which there are four from one power of two to the
/// next (mimalloc, jemalloc).
#[must_use]
pub const fn allocated_bytes(len_bytes: u64) -> u64 {
    let len_bytes = if len_bytes < 16 { 16 } else { len_bytes };
    len_bytes.next_multiple_of((1 << len_bytes.ilog2()) / 4)
}

/// Bytes of one kind that are in memory, and how many there may be.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    bound_bytes: AtomicU64,
}

impl Gauge {
    /// Nothing yet, of at most `bound_bytes`.
    #[must_use]
    pub fn new(bound_bytes: u64) -> Self {
        Self { bytes: 0.into(), bound_bytes: bound_bytes.into() }
    }

    /// Bytes in memory now.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// How many there may be.
    pub fn bound_bytes(&self) -> u64 {
        self.bound_bytes.load(Relaxed)
    }

    /// Changes how many there may be.
    pub fn set_bound(&self, bytes: u64) {
        self.bound_bytes.store(bytes, Relaxed);
    }

    /// Whether there are more than there may be.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.bound_bytes()
    }

    /// So many more are in memory.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// So many were given back, of those that were added.
    pub fn sub(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
    }

    /// So many are in memory now: for who has counted them elsewhere.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Relaxed);
    }
}

/// What a process has in memory for a pool, beside what the engine counts itself.
#[derive(Debug, Default)]
pub struct Beside {
    /// Inodes that file systems keep.
    pub inodes: Arc<Gauge>,
    /// Buffers of requests under way, and those that are kept for the next.
    pub requests: Gauge,
    /// Resident memory of the process as the system tells, files not counted; 0 where nobody looks.
    pub resident: Gauge,
}
