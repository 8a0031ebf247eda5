//! Counts memory that others than the engine take of a pool's budget. Whoever takes it counts it here, and the record
//! cache leaves it room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the bytes that an allocation takes: allocators round up to size classes, of which there are four from one
/// power of two to the next (mimalloc, jemalloc).
#[must_use]
pub const fn allocated_bytes(len_bytes: u64) -> u64 {
    let len_bytes = if len_bytes < 16 { 16 } else { len_bytes };
    len_bytes.next_multiple_of((1 << len_bytes.ilog2()) / 4)
}

/// Returns true if a cache of a bound of `now_bytes` is to get another one of `wanted_bytes`. Small differences are left:
/// they come with every count of memory.
pub(crate) const fn is_other_bound(wanted_bytes: u64, now_bytes: u64) -> bool {
    wanted_bytes.abs_diff(now_bytes) > wanted_bytes / 64
}

/// Bytes of one kind that are in memory, and their bound.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    bound_bytes: AtomicU64,
}

impl Gauge {
    /// Creates a gauge with nothing in memory yet and a bound of `bound_bytes`.
    #[must_use]
    pub fn new(bound_bytes: u64) -> Self {
        Self { bytes: 0.into(), bound_bytes: bound_bytes.into() }
    }

    /// Returns the bytes in memory now.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the bound in bytes.
    pub fn bound_bytes(&self) -> u64 {
        self.bound_bytes.load(Relaxed)
    }

    /// Changes the bound, in bytes.
    pub(crate) fn set_bound(&self, bytes: u64) {
        self.bound_bytes.store(bytes, Relaxed);
    }

    /// Returns true if there are more bytes than the bound allows.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.bound_bytes()
    }

    /// Adds bytes that are now in memory.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts bytes that were given back. They have to have been added before.
    pub fn sub(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
    }

    /// Sets the bytes in memory now, for a caller that has counted them elsewhere.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Relaxed);
    }
}

/// Memory that a process has for a pool, beside what the engine counts itself.
#[derive(Debug, Default)]
pub struct Beside {
    /// Inodes that file systems keep.
    pub inodes: Arc<Gauge>,
    /// Buffers of requests under way, and those that are kept for the next.
    pub requests: Gauge,
    /// Resident memory of the process as the system reports it, files not counted; 0 if nobody looks.
    pub resident: Gauge,
}
