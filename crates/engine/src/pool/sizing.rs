//! Sizes that follow from the size of a pool: what it holds, what is kept back, when to checkpoint.

use super::clean::OUTPUT_BYTES;
use crate::dataset::{BEGUN_CHUNKS, Bounds};
use crate::limits::CHUNK_BYTES;

/// Chunks in use that cannot be cleaned: the log's open and next one, and those that checkpoints and the cleaner have begun.
const FIXED_CHUNKS: u64 = 4;
/// Free chunks that commits and checkpoints are sure to find when the pool is full: three that are begun and not filled, the log's, that of second
/// copies, and one by which a checkpoint or an opening may set the cleaner back. What more they need depends on what is dirty (`dataset/room.rs`).
const COMMIT_CHUNKS: u64 = 6;
/// Chunks that the cleaner keeps where there is much to gain (`clean/choose.rs`): one part in so many of all chunks, and at least
/// [`LEAST_CLEAN_CHUNKS`]. A large pool keeps no more than that, however full it is.
const LENDING_PART: u64 = 1024;
const LEAST_CLEAN_CHUNKS: u64 = BEGUN_CHUNKS + 1;
/// Parts of a thousand of the chunks beside these that live records may take at most: the fuller, the more the cleaner moves for each chunk that it
/// gains. At this a pass moves four chunks for one, if all are equally full, and of random overwrites
/// at 95 % of it the device is written at most one and a quarter times what an ideal cleaner needs (docs/decisions/0034-throttle-and-capacity.md).
const FULL_PERMILLE: u64 = 750;
/// What names, attributes and nodes may take beyond the capacity when things are deleted, as a part of it.
const SLACK_PART: u64 = 64;
/// At least the last page of a file that is truncated, with names and attributes.
const SLACK_BYTES_MIN: u64 = 2 << 20;

/// So many bytes of accepted pages may always wait for a commit.
const DIRTY_LIMIT_MIN: u64 = 512 << 10;
/// Most memory that accepted pages may take.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// And at most one part in so many of the cache budget: as much again is taken by their records while they are committed.
const DIRTY_CACHE_PART: u64 = 6;
/// Most memory that dirty tree nodes may take before a checkpoint is due, whatever the cache budget is.
const DIRTY_TREE_BYTES_MAX: u64 = 128 << 20;

/// Sizes of an open pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    pub(super) bounds: Bounds,
    /// Dirty tree nodes in memory at which a checkpoint is due. Commits wait for it when those and the frozen ones
    /// take half as much again.
    pub(super) dirty_tree_bytes: u64,
    /// Log since the last checkpoint at which the next is due.
    pub(super) window_bytes: u64,
    /// Accepted pages that may wait for a commit, as far as memory is concerned.
    dirty_memory_bytes: u64,
}

impl Sizing {
    /// Sizes of a pool of `total_chunks` whose caches may take `cache_bytes`.
    pub(super) fn new(total_chunks: u64, cache_bytes: u64, log_bytes: Option<u64>) -> Self {
        let total_bytes = total_chunks * CHUNK_BYTES;
        let dirty_hard_bytes = (total_bytes / 16).clamp(4 << 20, DIRTY_BYTES_MAX);
        let dirty_tree_max = (total_bytes / 64).clamp(2 << 20, DIRTY_TREE_BYTES_MAX);
        // With those that a checkpoint is writing they may be half as many again, and clean ones have a quarter of the budget.
        let dirty_tree_bytes = dirty_tree_max.min(cache_bytes / 16 * 3).max(2 << 20);
        // What the pool keeps back follows from its size alone, so that its capacity is the same for every server.
        // With so many the most is left to data: more chunks that are kept gain more of each pass.
        let clean_chunks = total_chunks.isqrt().saturating_sub(1).clamp(4, 32);
        let cleanable = total_chunks.saturating_sub(FIXED_CHUNKS + COMMIT_CHUNKS + clean_chunks);
        // A pass that fills so many chunks gains one, and what its checkpoint writes, if all chunks are as full as that.
        let full_permille = FULL_PERMILLE.min(clean_chunks * 10_000 / (clean_chunks * 10 + 13));
        let full_bytes = cleanable * OUTPUT_BYTES / 1000 * full_permille;
        let slack_bytes = (full_bytes / SLACK_PART).max(SLACK_BYTES_MIN).min(full_bytes / 2);
        let window = log_bytes.unwrap_or(256 << 20).min(total_bytes / 8).max(16 << 20);
        Self {
            bounds: Bounds {
                capacity_bytes: full_bytes - slack_bytes,
                dirty_soft_bytes: (2 << 20).min(dirty_hard_bytes / 2),
                dirty_hard_bytes,
                slack_bytes,
                clean_chunks,
                least_clean_chunks: (total_chunks / LENDING_PART).max(LEAST_CLEAN_CHUNKS).min(clean_chunks),
                low_chunks: (total_chunks / 128).clamp(2, 16),
            },
            dirty_tree_bytes,
            window_bytes: window,
            dirty_memory_bytes: dirty_hard_bytes.min((cache_bytes / DIRTY_CACHE_PART).max(4 << 20)),
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
        by_tree.clamp(DIRTY_LIMIT_MIN, self.dirty_memory_bytes)
    }
}
