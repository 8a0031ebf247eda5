//! Sizes that follow from the size of a pool: what it holds, what is kept back, when to checkpoint.

use crate::dataset::Bounds;
use crate::limits::CHUNK_BYTES;

/// Chunks kept for the log's open and next segment, a fold's output and a checkpoint's table.
const INTERNAL_CHUNKS: u64 = 6;
/// Chunks with second copies that hold little: one is being filled, one waits to be folded.
const COPY_CHUNKS: u64 = 2;
/// Parts of a hundred of the usable chunks that live records may take: folding needs dead space to gain from.
const FILL_PERCENT: u64 = 95;

/// So many bytes of accepted pages may always wait for a commit.
const DIRTY_LIMIT_MIN: u64 = 512 << 10;
/// Most memory that accepted pages may take.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// Most memory that dirty tree nodes may take before a checkpoint is due, whatever the cache budget is.
const DIRTY_TREE_BYTES_MAX: u64 = 128 << 20;

/// Sizes of an open pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    pub(super) bounds: Bounds,
    /// Chunks that only checkpoints and folding may use.
    pub(super) reserve_chunks: u64,
    /// Dirty tree nodes in memory at which a checkpoint is due. Commits wait for it when those and the frozen ones
    /// take half as much again.
    pub(super) dirty_tree_bytes: u64,
    /// Log since the last checkpoint at which the next is due.
    pub(super) window_bytes: u64,
}

impl Sizing {
    /// Sizes of a pool of `total_chunks` whose caches may take `cache_bytes`.
    pub(super) fn new(total_chunks: u64, cache_bytes: u64, log_bytes: Option<u64>) -> Self {
        let total_bytes = total_chunks * CHUNK_BYTES;
        let dirty_hard_bytes = (total_bytes / 16).clamp(4 << 20, DIRTY_BYTES_MAX);
        // What the pool keeps back follows from its size alone, so that its capacity is the same for every server.
        let dirty_tree_max = (total_bytes / 64).clamp(2 << 20, DIRTY_TREE_BYTES_MAX);
        // With those that a checkpoint is writing they may be half as many again, and clean ones have a quarter of the budget.
        let dirty_tree_bytes = dirty_tree_max.min(cache_bytes / 16 * 3).max(2 << 20);
        // Nodes are written twice.
        let reserve_chunks = INTERNAL_CHUNKS + 2 * dirty_tree_max.div_ceil(4 * CHUNK_BYTES);
        let held_back = reserve_chunks + COPY_CHUNKS + 2 * dirty_hard_bytes.div_ceil(CHUNK_BYTES) + 4;
        let held_back = held_back.max(total_chunks / 16);
        let capacity_bytes = total_chunks.saturating_sub(held_back) * CHUNK_BYTES / 100 * FILL_PERCENT;
        let window = log_bytes.unwrap_or(256 << 20).min(total_bytes / 8).max(16 << 20);
        Self {
            bounds: Bounds {
                capacity_bytes,
                dirty_soft_bytes: (2 << 20).min(dirty_hard_bytes / 2),
                dirty_hard_bytes,
            },
            reserve_chunks,
            dirty_tree_bytes,
            window_bytes: window,
        }
    }

    /// Memory that changed and frozen tree nodes may take before commits wait for a checkpoint.
    pub(super) fn unstored_tree_max(&self) -> u64 {
        self.dirty_tree_bytes + self.dirty_tree_bytes / 2
    }

    /// How many bytes of accepted pages may wait for a commit, where it makes so many bytes of changed tree nodes of each
    /// KiB of pages: it may add a quarter of what is due for a checkpoint.
    pub(super) fn dirty_limit(&self, tree_growth: u64) -> u64 {
        let by_tree = (self.dirty_tree_bytes / 4).saturating_mul(1024) / tree_growth.max(1);
        by_tree.clamp(DIRTY_LIMIT_MIN, self.bounds.dirty_hard_bytes)
    }

    /// Free chunks that a commit of `dirty_bytes` wants to see.
    pub(super) fn commit_chunks(&self, dirty_bytes: u64) -> u64 {
        self.reserve_chunks + dirty_bytes.div_ceil(CHUNK_BYTES) + 3
    }
}
