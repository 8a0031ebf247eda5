//! The promise to accepted changes: the free chunks that they and all that follows from them take in the worst case.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::room::{BEGUN_CHUNKS, PASS_TABLE_BYTES, RoomRequest};
use super::shared::Shared;
use super::throttle::Left;
use crate::limits::{ATOMIC_WRITE_MAX, CHUNK_BYTES};

/// Bytes of a chunk that the log certainly fills: a record of a MiB may not fit into the rest.
const LOG_CHUNK_BYTES: u64 = CHUNK_BYTES / 4 * 3;
/// Memory of the tree nodes that committing a page changes at most, as a multiple of the page's size: a leaf and a
/// branch for a page of 4 KiB.
const PAGE_NODES: u64 = 16;
/// New pages add at most one part in so many of their bytes to the tree: two copies of a pointer for a page of 4 KiB.
const NEW_PAGES_NODES: u64 = 64;
/// Memory that all nodes of a tree take, counted as changed, as a multiple of their stored bytes. Nodes take about
/// three and a half times as much in memory as stored, and changed nodes count twice.
const TREE_MEMORY: u64 = 8;
/// As [`PAGE_NODES`], but stored bytes: both copies of a leaf and a branch for a page of 4 KiB.
const PAGE_NODES_STORED: u64 = 14;
/// As [`TREE_MEMORY`], but stored bytes: each node is stored twice.
const COPIES_STORED: u64 = 2;
/// As [`NEW_PAGES_NODES`], but stored bytes: two copies of the entries that are coded anew for a page of 4 KiB. These
/// are its own and that of its neighbour, which is stored as the difference to it.
const NEW_PAGES_NODES_STORED: u64 = 32;
/// Least number of accepted bytes for which one record dies.
const PAGE_BYTES_MIN: u64 = 512;
/// Least memory of a changed node, which replaces two records: the node and its copy.
const NODE_BYTES_MIN: u64 = 2048;
/// Room that is left when writers are delayed most, in bytes: a write of a MiB still fits.
const MARGIN_BYTES: u64 = ATOMIC_WRITE_MAX as u64;
/// Longest time that a writer is delayed at once for commits.
const DELAY_MAX: Duration = Duration::from_millis(100);

impl Shared {
    /// Returns the bytes that commits and two checkpoints will write in the worst case for what is accepted and
    /// `wanted`.
    pub(crate) fn promised_bytes(&self, wanted: RoomRequest) -> u64 {
        self.promised_of(self.claimed_bytes.load(Ordering::Acquire), wanted)
    }

    fn promised_of(&self, claimed: u64, wanted: RoomRequest) -> u64 {
        let (claimed, edits) = (claimed.saturating_add(wanted.claim_bytes), wanted.edit_bytes);
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let changed = self.nodes.unstored_nodes();
        let to_change = claimed.saturating_mul(PAGE_NODES);
        let to_change = to_change.min(TREE_MEMORY * get(&self.room.node_bytes) + claimed / NEW_PAGES_NODES);
        let redo = get(&self.redo_bytes).saturating_add(wanted.redo_bytes);
        let nodes = claimed.saturating_mul(PAGE_NODES_STORED);
        let nodes = nodes.min(COPIES_STORED * get(&self.room.node_bytes) + claimed / NEW_PAGES_NODES_STORED);
        // Each change replaces something, whose records die.
        let dead = claimed.saturating_add(redo) / PAGE_BYTES_MIN
            + (2 * changed.memory + to_change + edits) / NODE_BYTES_MIN;
        let tables: u64 = self.segments.to_store(dead, PASS_TABLE_BYTES).iter().sum();
        let tables = 2 * (tables + 2 * self.room.always_bytes());
        let nodes = nodes.saturating_add(COPIES_STORED * changed.stored);
        claimed.saturating_add(edits).saturating_add(redo + nodes + tables)
    }

    /// Returns the number of free chunks that the promised bytes need ([`Shared::promised_bytes`]), with those that are
    /// begun and not filled, and without those of the cleaner.
    fn promised_chunks(&self, wanted: RoomRequest) -> u64 {
        self.promised_bytes(wanted).div_ceil(LOG_CHUNK_BYTES) + BEGUN_CHUNKS
    }

    /// Returns the number of free chunks that the cleaner needs in order to begin.
    pub(crate) fn kept_chunks(&self) -> u64 {
        self.room.clean_chunks.load(Ordering::Acquire)
    }

    /// Returns the number of free chunks, and how many of them must be left for the cleaner. Chunks that the current
    /// pass has begun are not required again: the checkpoint of the pass gives them back, and more (G6).
    fn free_and_kept(&self) -> (u64, u64) {
        let kept = self.kept_chunks();
        let (free, lent) = self.chunks.free_and_lent();
        (free, kept.saturating_sub(lent))
    }

    /// Returns true if there is room for all that is accepted and `wanted` (A1).
    pub(crate) fn has_room(&self, wanted: RoomRequest) -> bool {
        let (free, kept) = self.free_and_kept();
        self.promised_chunks(wanted) + kept <= free
    }

    /// Returns true if there is room for all that is accepted and `wanted`, and a chunk is left for the cleaner, though
    /// not all that it needs.
    pub(crate) fn has_room_without_kept(&self, wanted: RoomRequest) -> bool {
        self.promised_chunks(wanted) < self.chunks.free()
    }

    /// Returns the number of chunks that the cleaner may begin now.
    pub(crate) fn clean_outputs(&self) -> u64 {
        self.chunks.free().saturating_sub(self.promised_chunks(RoomRequest::NONE))
    }

    /// Returns true if the cleaner could begin now. There may be room for it and none for the next change
    /// ([`Shared::has_room`]): a commit or checkpoint may just have begun chunks that it had to leave unfilled.
    pub(crate) fn is_cleanable(&self) -> bool {
        let (free, kept) = self.free_and_kept();
        free.saturating_sub(self.promised_chunks(RoomRequest::NONE)) + BEGUN_CHUNKS > kept
    }

    /// Returns the number of chunks that are free beyond all that is promised.
    pub(crate) fn spare_chunks(&self) -> u64 {
        let (free, kept) = self.free_and_kept();
        free.saturating_sub(self.promised_chunks(RoomRequest::NONE) + kept)
    }

    /// Returns the room for writers. A commit's worth of bytes counts as claimed in any case, since what is promised
    /// for its first bytes is soon promised again. The bytes that the log has used of its chunk count as taken from the
    /// next chunk, so that the room does not fall by a whole chunk at once.
    pub(super) fn left(&self) -> Left {
        let (free, kept) = self.free_and_kept();
        let claimed = self.claimed_bytes.load(Ordering::Acquire).max(self.bounds.get().dirty_soft_bytes);
        let chunks = free.saturating_sub(kept + BEGUN_CHUNKS);
        let of_next = self.room.log_used_bytes.load(Ordering::Relaxed) * LOG_CHUNK_BYTES / CHUNK_BYTES;
        let taken = self.promised_of(claimed, RoomRequest::NONE) + of_next + MARGIN_BYTES;
        let spare_bytes = (chunks * LOG_CHUNK_BYTES).saturating_sub(taken);
        Left { spare_bytes, low_bytes: self.bounds.get().low_chunks * LOG_CHUNK_BYTES }
    }

    /// Returns true if the cleaner should be at work.
    pub(crate) fn wants_cleaning(&self) -> bool {
        let Left { spare_bytes, low_bytes } = self.left();
        spare_bytes < low_bytes
    }

    /// Returns the delay of a writer that was granted `bytes`, so that commits keep up: the delay grows with the bytes
    /// that wait for commits. A writer that has `waited` before it was granted them is delayed by at most `DELAY_MAX`
    /// in all.
    pub(crate) fn commit_delay(&self, bytes: u64, waited: Duration) -> Duration {
        let (dirty, limit) =
            (self.dirty_bytes.load(Ordering::Relaxed), self.dirty_limit.load(Ordering::Relaxed));
        let (missing, left) = (dirty.saturating_sub(limit / 2), limit.saturating_sub(dirty).max(1));
        let ns_per_mib = self.room.commit_ns_per_mib.load(Ordering::Relaxed);
        let cost = (u128::from(ns_per_mib) * u128::from(bytes)) >> 20;
        let ns = cost * u128::from(missing) / u128::from(left);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(DELAY_MAX.saturating_sub(waited))
    }
}
