//! Room: the free chunks that what was accepted, and what must follow from it, will take.
//!
//! - A1: whatever is accepted finds free chunks when it is committed, and so does the checkpoint after it, the cleaner's next pass, and the
//!   checkpoint by which that counts. Changes are admitted while the free chunks cover all of these, at their worst; so nothing that
//!   is under way ever runs out of space, and the cleaner can always begin.
//!
//! Whether the pool may hold more is another question, which [`super::Shared::reserve`] asks first: who finds it full is refused, who only finds
//! no room now waits for the cleaner.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Shared;
use super::throttle::Left;
use crate::limits::{ATOMIC_WRITE_MAX, CHUNK_BYTES};

/// Bytes of a chunk that the log fills for sure: a record of a MiB may not fit into what is left of it.
const LOG_CHUNK_BYTES: u64 = CHUNK_BYTES / 4 * 3;
/// Chunks that are begun and not filled: the log's last one, that of second copies, and one where operations did not fit the end of a chunk.
pub const BEGUN_CHUNKS: u64 = 3;
/// Memory of tree nodes that a page changes at most when it is committed, by its own size: a leaf and a branch, by a page of 4 KiB.
const PAGE_NODES: u64 = 16;
/// Pages that are new add one part in so many of their bytes to the tree: two copies of a pointer for a page of 4 KiB.
const NEW_PAGES_NODES: u64 = 64;
/// All nodes of a tree take about three and a half times their stored bytes in memory, and twice that counts for those that changed.
const TREE_MEMORY: u64 = 8;
/// The same, stored: both copies of a leaf and a branch by a page of 4 KiB; of what all nodes take, and what two copies of entries that are coded
/// anew for a page of 4 KiB add: its own, and its neighbour's, which is told by the difference to it.
const PAGE_NODES_STORED: u64 = 14;
const COPIES_STORED: u64 = 2;
const NEW_PAGES_NODES_STORED: u64 = 32;
/// Least bytes of what is accepted that a record dies for, and least memory of a changed node, which replaces two records: itself and its copy.
const PAGE_BYTES_MIN: u64 = 512;
const NODE_BYTES_MIN: u64 = 2048;
/// Pages of the segment table that a pass changes by moving segments take so many bytes at most.
pub const PASS_TABLE_BYTES: u64 = 32 << 20;
/// What a value changes at once when it is accepted: memory of a leaf and a branch, counted twice as all that changed is.
pub(super) const EDIT_ROOM_BYTES: u64 = 128 << 10;
/// Room that is left when writers are as slow as they get: one of a MiB finds it yet.
const MARGIN_BYTES: u64 = ATOMIC_WRITE_MAX as u64;
/// Longest time that a writer is delayed at once for a commit.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// What admission knows of room beside what it can ask for.
#[derive(Debug)]
pub struct Room {
    /// Bytes that a checkpoint writes even if nothing changed: lists, catalogue, root; one copy.
    pub fixed_bytes: AtomicU64,
    /// Stored bytes of the nodes that datasets have, one copy.
    pub node_bytes: AtomicU64,
    /// Free chunks that the cleaner needs to begin with, as things are now: from these it comes to all that it keeps
    /// ([`super::Bounds::clean_chunks`]) by itself.
    pub clean_chunks: AtomicU64,
    /// Bytes that the log has used of its chunk.
    pub log_used_bytes: AtomicU64,
    /// Bytes that checkpoints have written since the pool was opened.
    pub checkpoints_bytes: AtomicU64,
    /// Bytes that a checkpoint writes lately.
    pub checkpoint_bytes: AtomicU64,
    /// Nanoseconds that commits take lately to write a MiB; 0 where nobody keeps time.
    pub commit_ns_per_mib: AtomicU64,
}

impl Room {
    pub(super) fn new(clean_chunks: u64) -> Self {
        Self {
            fixed_bytes: AtomicU64::default(),
            node_bytes: AtomicU64::default(),
            clean_chunks: clean_chunks.into(),
            log_used_bytes: AtomicU64::default(),
            checkpoints_bytes: AtomicU64::default(),
            checkpoint_bytes: AtomicU64::default(),
            commit_ns_per_mib: AtomicU64::default(),
        }
    }
}

impl Shared {
    /// Bytes that commits and two checkpoints will write at their worst of what is accepted, if so many `more` bytes are claimed, and `edits` bytes
    /// taken at once.
    pub fn promised_bytes(&self, more: u64, edits: u64) -> u64 {
        self.promised_of(self.claimed_bytes.load(Ordering::Acquire).saturating_add(more), edits)
    }

    fn promised_of(&self, claimed: u64, edits: u64) -> u64 {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let changed = self.nodes.unstored_nodes();
        let to_change = claimed.saturating_mul(PAGE_NODES);
        let to_change = to_change.min(TREE_MEMORY * get(&self.room.node_bytes) + claimed / NEW_PAGES_NODES);
        let redo = get(&self.redo_bytes);
        let nodes = claimed.saturating_mul(PAGE_NODES_STORED);
        let nodes = nodes.min(COPIES_STORED * get(&self.room.node_bytes) + claimed / NEW_PAGES_NODES_STORED);
        // All that changes replaces something.
        let dead = claimed.saturating_add(redo) / PAGE_BYTES_MIN
            + (2 * changed.memory + to_change + edits) / NODE_BYTES_MIN;
        let tables: u64 = self.segments.to_store(dead, PASS_TABLE_BYTES).iter().sum();
        let tables = 2 * (tables + 2 * get(&self.room.fixed_bytes));
        let nodes = nodes.saturating_add(COPIES_STORED * changed.stored);
        claimed.saturating_add(edits).saturating_add(redo + nodes + tables)
    }

    /// Free chunks that have to be there then, but for those of the cleaner.
    fn promised_chunks(&self, more: u64, edits: u64) -> u64 {
        self.promised_bytes(more, edits).div_ceil(LOG_CHUNK_BYTES) + BEGUN_CHUNKS
    }

    /// Chunks that the cleaner needs to begin with.
    pub fn kept_chunks(&self) -> u64 {
        self.room.clean_chunks.load(Ordering::Acquire)
    }

    /// Free chunks, and how many have to be left of them for the cleaner: what a pass has begun of these comes back, and more, by its checkpoint
    /// (G6).
    fn free_and_kept(&self) -> (u64, u64) {
        let kept = self.kept_chunks();
        let (free, lent) = self.chunks.free_and_lent();
        (free, kept.saturating_sub(lent))
    }

    /// Whether so many `more` bytes may be claimed now, and `edits` bytes be taken at once (A1).
    pub fn has_room(&self, more: u64, edits: u64) -> bool {
        let (free, kept) = self.free_and_kept();
        self.promised_chunks(more, edits) + kept <= free
    }

    /// Chunks that the cleaner may begin now.
    pub fn clean_outputs(&self) -> u64 {
        self.chunks.free().saturating_sub(self.promised_chunks(0, 0))
    }

    /// Whether the cleaner could begin, if it were asked now. A commit or checkpoint may just have begun chunks that it had to leave room in, so
    /// that the next change has to wait ([`Shared::has_room`]).
    pub fn is_cleanable(&self) -> bool {
        let (free, kept) = self.free_and_kept();
        free.saturating_sub(self.promised_chunks(0, 0)) + BEGUN_CHUNKS > kept
    }

    /// Chunks that are free beyond all that is promised.
    pub fn spare_chunks(&self) -> u64 {
        let (free, kept) = self.free_and_kept();
        free.saturating_sub(self.promised_chunks(0, 0) + kept)
    }

    /// Room for writers. A commit's worth of bytes counts as claimed in any case: what is promised for the first of them is soon promised again. What
    /// the log has used of its chunk counts as taken of the next one, so that the room does not fall by a whole chunk at once.
    pub(super) fn left(&self) -> Left {
        let (free, kept) = self.free_and_kept();
        let claimed = self.claimed_bytes.load(Ordering::Acquire).max(self.bounds.dirty_soft_bytes);
        let chunks = free.saturating_sub(kept + BEGUN_CHUNKS);
        let of_next = self.room.log_used_bytes.load(Ordering::Relaxed) * LOG_CHUNK_BYTES / CHUNK_BYTES;
        let taken = self.promised_of(claimed, 0) + of_next + MARGIN_BYTES;
        let spare_bytes = (chunks * LOG_CHUNK_BYTES).saturating_sub(taken);
        Left { spare_bytes, low_bytes: self.bounds.low_chunks * LOG_CHUNK_BYTES }
    }

    /// Whether the cleaner should be at work.
    pub fn wants_cleaning(&self) -> bool {
        let Left { spare_bytes, low_bytes } = self.left();
        spare_bytes < low_bytes
    }

    /// Delay of a writer that was granted so many bytes, so that commits keep up: the more bytes wait for them, the longer it is. A writer that has
    /// `waited` before it was granted them is delayed by [`DELAY_MAX`] at most altogether.
    pub fn commit_delay(&self, bytes: u64, waited: Duration) -> Duration {
        let (dirty, limit) =
            (self.dirty_bytes.load(Ordering::Relaxed), self.dirty_limit.load(Ordering::Relaxed));
        let (missing, left) = (dirty.saturating_sub(limit / 2), limit.saturating_sub(dirty).max(1));
        let ns_per_mib = self.room.commit_ns_per_mib.load(Ordering::Relaxed);
        let cost = (u128::from(ns_per_mib) * u128::from(bytes)) >> 20;
        let ns = cost * u128::from(missing) / u128::from(left);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(DELAY_MAX.saturating_sub(waited))
    }
}
