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
use crate::limits::CHUNK_BYTES;

/// Bytes of a chunk that the log fills for sure: a record of a MiB may not fit into what is left of it.
const LOG_CHUNK_BYTES: u64 = CHUNK_BYTES / 4 * 3;
/// Chunks that are begun and not filled: the log's last one, that of second copies, and one where operations did not fit the end of a chunk.
const BEGUN_CHUNKS: u64 = 3;
/// Memory of tree nodes that a page changes at most when it is committed, by its own size: a leaf and a branch, by a page of 4 KiB.
const PAGE_NODES: u64 = 16;
/// Pages that are new add one part in so many of their bytes to the tree: two copies of a pointer for a page of 4 KiB.
const NEW_PAGES_NODES: u64 = 64;
/// All nodes of a tree take about three and a half times their stored bytes in memory, and twice that counts for those that changed.
const TREE_MEMORY: u64 = 8;
/// Least bytes of what is accepted that a record dies for, and least memory of a changed node, which replaces two records: itself and its copy.
const PAGE_BYTES_MIN: u64 = 512;
const NODE_BYTES_MIN: u64 = 2048;
/// Pages of the segment table that a pass changes by moving segments take so many bytes at most.
pub const PASS_TABLE_BYTES: u64 = 32 << 20;
/// What a value changes at once when it is accepted: memory of a leaf and a branch, counted twice as all that changed is.
pub(super) const EDIT_ROOM_BYTES: u64 = 128 << 10;
/// Longest time that a writer is delayed at once.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// What admission knows of room beside what it can ask for.
#[derive(Debug, Default)]
pub struct Room {
    /// Bytes that a checkpoint writes even if nothing changed: lists, catalogue, root; one copy.
    pub fixed_bytes: AtomicU64,
    /// Stored bytes of the nodes that datasets have, one copy.
    pub node_bytes: AtomicU64,
    /// Nanoseconds that the cleaner takes lately to gain a MiB; 0 where nobody keeps time.
    pub clean_ns_per_mib: AtomicU64,
    /// Nanoseconds that commits take lately to write a MiB.
    pub commit_ns_per_mib: AtomicU64,
}

impl Shared {
    /// Bytes that commits and two checkpoints will write at their worst of what is accepted, if so many `more` bytes are claimed, and `edits` bytes
    /// taken at once.
    pub fn promised_bytes(&self, more: u64, edits: u64) -> u64 {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let claimed = self.claimed_bytes.load(Ordering::Acquire).saturating_add(more);
        let changed = 2 * self.nodes.unstored_bytes();
        let to_change = claimed.saturating_mul(PAGE_NODES);
        let to_change = to_change.min(TREE_MEMORY * get(&self.room.node_bytes) + claimed / NEW_PAGES_NODES);
        let redo = get(&self.redo_bytes);
        // All that changes replaces something.
        let dead =
            claimed.saturating_add(redo) / PAGE_BYTES_MIN + (changed + to_change + edits) / NODE_BYTES_MIN;
        let tables: u64 = self.segments.to_store(dead, PASS_TABLE_BYTES).iter().sum();
        let tables = 2 * (tables + 2 * get(&self.room.fixed_bytes));
        claimed.saturating_add(edits).saturating_add(redo + changed + to_change + tables)
    }

    /// Free chunks that have to be there then, but for those of the cleaner.
    fn promised_chunks(&self, more: u64, edits: u64) -> u64 {
        self.promised_bytes(more, edits).div_ceil(LOG_CHUNK_BYTES) + BEGUN_CHUNKS
    }

    /// Whether so many `more` bytes may be claimed now, and `edits` bytes be taken at once (A1).
    pub fn has_room(&self, more: u64, edits: u64) -> bool {
        self.promised_chunks(more, edits) + self.bounds.clean_chunks <= self.chunks.free()
    }

    /// Chunks that the cleaner may begin now.
    pub fn clean_outputs(&self) -> u64 {
        self.chunks.free().saturating_sub(self.promised_chunks(0, 0))
    }

    /// Whether the cleaner could begin, if it were asked now. A commit or checkpoint may just have begun chunks that it had to leave room in, so
    /// that the next change has to wait ([`Shared::has_room`]).
    pub fn is_cleanable(&self) -> bool {
        self.clean_outputs() + BEGUN_CHUNKS > self.bounds.clean_chunks
    }

    /// Chunks that are free beyond all that is promised.
    pub fn spare_chunks(&self) -> u64 {
        self.clean_outputs().saturating_sub(self.bounds.clean_chunks)
    }

    /// Whether the cleaner should be at work.
    pub fn wants_cleaning(&self) -> bool {
        self.spare_chunks() < self.bounds.low_chunks
    }

    /// How long who was granted so many bytes, while so many chunks are spare, is to wait before the next: nothing while the cleaner is ahead, and the longer the less it is.
    /// Half way down writers come as fast as it gains, so that there is no cliff.
    pub fn delay(&self, bytes: u64, spare: u64) -> Duration {
        let share = |cost_ns_per_mib: &AtomicU64, missing: u64, left: u64| {
            let cost = (u128::from(cost_ns_per_mib.load(Ordering::Relaxed)) * u128::from(bytes)) >> 20;
            let ns = cost * u128::from(missing) / u128::from(left.max(1));
            Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
        };
        let low = self.bounds.low_chunks;
        let clean = share(&self.room.clean_ns_per_mib, low.saturating_sub(spare), spare);
        let (dirty, limit) =
            (self.dirty_bytes.load(Ordering::Relaxed), self.dirty_limit.load(Ordering::Relaxed));
        let commit =
            share(&self.room.commit_ns_per_mib, dirty.saturating_sub(limit / 2), limit.saturating_sub(dirty));
        clean.max(commit).min(DELAY_MAX)
    }
}
