//! Computes the sizes that follow from the size of a pool: its capacity, its reserves, when a checkpoint is due.

use super::clean::OUTPUT_BYTES;
use crate::dataset::{BEGUN_CHUNKS, Bounds};
use crate::limits::CHUNK_BYTES;
use crate::space::Chunk;

/// Number of chunks in use that cannot be cleaned: the log's open and next one, and those that checkpoints and the
/// cleaner have begun.
const FIXED_CHUNKS: u64 = 4;
/// Number of free chunks that commits and checkpoints are sure to find when the pool is full: three that are begun and
/// not filled, the log's, that of second copies, and one by which a checkpoint or an opening may set the cleaner back.
/// Further needs depend on what is dirty (`dataset/room.rs`).
const COMMIT_CHUNKS: u64 = 6;
/// Chunks that the cleaner keeps where there is much to gain (`clean/choose.rs`), as a part of all chunks: one in this
/// number, and at least one more than may be begun. A large pool keeps no more than that, however full it is.
const LENDING_PART: u64 = 1024;
/// Thousandths of all other chunks that live records may take at most: the fuller they are, the more the cleaner moves
/// for each chunk that it gains. At this value a pass moves four chunks for one, if all are equally full; and with
/// random overwrites at 95 % of it the device is written at most one and a quarter times what an ideal cleaner needs
/// (docs/decisions/0034-throttle-and-capacity.md).
const FULL_PERMILLE: u64 = 750;
/// Space beyond the capacity that names, attributes and nodes may take when things are deleted: one part in this number
/// of both together.
const SLACK_PART: u64 = 64;
/// Least such space, in bytes: enough for the last page of a file that is truncated, with names and attributes.
const SLACK_BYTES_MIN: u64 = 2 << 20;

/// Bytes of accepted pages that may always wait for a commit.
const DIRTY_LIMIT_MIN: u64 = 512 << 10;
/// Largest number of bytes of memory that accepted pages may take.
const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// Largest share of the cache budget that accepted pages may take: one part in this number. Their records take as much
/// again while they are committed.
const DIRTY_CACHE_PART: u64 = 6;
/// Largest number of bytes of memory that dirty tree nodes may take before a checkpoint is due, whatever the cache
/// budget is.
const DIRTY_TREE_BYTES_MAX: u64 = 128 << 20;

/// Returns the bytes that a pool may hold whose groups use so many bytes of their devices each.
pub fn capacity_bytes(groups: &[u64]) -> u64 {
    let chunks = groups.iter().map(|bytes| u64::from(Chunk::count(*bytes))).sum();
    Sizing::new(chunks, 0, None).bounds.capacity_bytes
}

/// Sizes of an open pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    pub(super) bounds: Bounds,
    /// Bytes of dirty tree nodes in memory at which a checkpoint is due. Commits wait for it when dirty and immutable
    /// nodes take half as much again.
    pub(super) dirty_tree_bytes: u64,
    /// Bytes of log since the last checkpoint at which the next is due.
    pub(super) window_bytes: u64,
    /// Bytes of accepted pages that may wait for a commit, as far as memory is concerned.
    dirty_memory_bytes: u64,
    /// Bytes that the caches may take, and bytes of log that were asked for.
    cache_bytes: u64,
    log_bytes: Option<u64>,
}

impl Sizing {
    /// Computes the sizes of a pool of `total_chunks` whose caches may take `cache_bytes`.
    pub(super) fn new(total_chunks: u64, cache_bytes: u64, log_bytes: Option<u64>) -> Self {
        let total_bytes = total_chunks * CHUNK_BYTES;
        let dirty_hard_bytes = (total_bytes / 16).clamp(4 << 20, DIRTY_BYTES_MAX);
        let dirty_tree_max = (total_bytes / 64).clamp(2 << 20, DIRTY_TREE_BYTES_MAX);
        // With the nodes that a checkpoint is writing they may take half as much again; clean nodes have a quarter of
        // the budget.
        let dirty_tree_bytes = dirty_tree_max.min(cache_bytes / 16 * 3).max(2 << 20);
        // The reserves follow from the pool's size alone, so that its capacity is the same for every server. This
        // number leaves most space to data: with more kept chunks, each pass gains more.
        let clean_chunks = total_chunks.isqrt().saturating_sub(1).clamp(4, 32);
        let cleanable = total_chunks.saturating_sub(FIXED_CHUNKS + COMMIT_CHUNKS + clean_chunks);
        // If all chunks are that full, a pass that fills `clean_chunks` chunks gains one, and what its checkpoint
        // writes.
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
                least_clean_chunks: (total_chunks / LENDING_PART).clamp(BEGUN_CHUNKS + 1, clean_chunks)
                    - BEGUN_CHUNKS,
                low_chunks: (total_chunks / 128).clamp(2, 16),
            },
            dirty_tree_bytes,
            window_bytes: window,
            dirty_memory_bytes: dirty_hard_bytes.min((cache_bytes / DIRTY_CACHE_PART).max(4 << 20)),
            cache_bytes,
            log_bytes,
        }
    }

    /// Returns the sizes that the same pool has with `total_chunks`.
    pub(super) fn with_chunks(&self, total_chunks: u64) -> Self {
        Self::new(total_chunks, self.cache_bytes, self.log_bytes)
    }

    /// Returns the bytes of memory that changed and immutable tree nodes may take before commits wait for a checkpoint.
    pub(super) fn unstored_tree_max(&self) -> u64 {
        self.dirty_tree_bytes + self.dirty_tree_bytes / 2
    }

    /// Returns how many bytes of accepted pages may wait for a commit, if each KiB of pages makes `tree_growth` bytes
    /// of changed tree nodes: a commit may add a quarter of the tree nodes at which a checkpoint is due.
    pub(super) fn dirty_limit(&self, tree_growth: u64) -> u64 {
        let by_tree = (self.dirty_tree_bytes / 4).saturating_mul(1024) / tree_growth.max(1);
        by_tree.clamp(DIRTY_LIMIT_MIN, self.dirty_memory_bytes)
    }
}
