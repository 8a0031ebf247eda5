//! Room: the free chunks that accepted changes, and everything that must follow from them, will take.
//!
//! - A1: every accepted change finds free chunks when it is committed, and so do the checkpoint after it, the cleaner's
//!   next pass, and the checkpoint by which that pass counts. Changes are admitted while the free chunks cover all of
//!   these in the worst case. So no work that is under way ever runs out of space, and the cleaner can always begin.
//!   Only what destroys snapshots and datasets may take of the cleaner's chunks, where there is nothing left to gain.
//!
//! [`super::Shared::reserve`] first asks another question, whether the pool may hold more: a writer is refused if the
//! pool is full, and waits for the cleaner if there is only no room now.

use std::sync::atomic::{AtomicU64, Ordering};

/// Chunks that are begun and not filled: the log's last one, that of second copies, and one where operations did not
/// fit the end of a chunk.
pub(crate) const BEGUN_CHUNKS: u64 = 3;
/// Largest size, in bytes, of the pages of the segment table that one pass changes by moving segments.
pub(crate) const PASS_TABLE_BYTES: u64 = 32 << 20;
/// Memory of the tree nodes that a value changes when it is accepted, in bytes: a leaf and a branch, counted twice as
/// all changed nodes are.
pub(super) const EDIT_ROOM_BYTES: u64 = 128 << 10;

/// Figures of room that admission cannot get from elsewhere.
#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes of one copy of what a checkpoint writes even if nothing changed: lists, catalogue, root.
    pub fixed_bytes: AtomicU64,
    /// Bytes by which the catalogue may have grown since the last checkpoint, or is about to grow.
    pub grown_bytes: AtomicU64,
    /// Stored bytes of one copy of the nodes of all datasets.
    pub node_bytes: AtomicU64,
    /// Free chunks that the cleaner needs at present in order to begin. By its own passes it gets from these to all
    /// that it keeps ([`super::Bounds::clean_chunks`]).
    pub clean_chunks: AtomicU64,
    /// Bytes that the log has used of its current chunk.
    pub log_used_bytes: AtomicU64,
    /// Bytes that checkpoints have written since the pool was opened.
    pub checkpoints_bytes: AtomicU64,
    /// Mean of the bytes that recent checkpoints wrote.
    pub checkpoint_bytes: AtomicU64,
    /// Nanoseconds that recent commits took to write a MiB; 0 if nobody measures time.
    pub commit_ns_per_mib: AtomicU64,
}

impl Room {
    pub(super) fn new(clean_chunks: u64) -> Self {
        Self {
            fixed_bytes: AtomicU64::default(),
            grown_bytes: AtomicU64::default(),
            node_bytes: AtomicU64::default(),
            clean_chunks: clean_chunks.into(),
            log_used_bytes: AtomicU64::default(),
            checkpoints_bytes: AtomicU64::default(),
            checkpoint_bytes: AtomicU64::default(),
            commit_ns_per_mib: AtomicU64::default(),
        }
    }

    /// Returns the bytes of one copy of what the next checkpoint writes even if no page changed.
    pub(crate) fn always_bytes(&self) -> u64 {
        self.fixed_bytes.load(Ordering::Relaxed) + self.grown_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes for which room is wanted beyond all that is accepted. What is reserved already ([`Shared::reserve`],
/// [`Shared::reserve_redo`]) counts as accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomRequest {
    /// Bytes to be claimed.
    pub claim_bytes: u64,
    /// Bytes of operations in the log.
    pub redo_bytes: u64,
    /// Bytes that are taken at once: memory of tree nodes that values change, padding.
    pub edit_bytes: u64,
}

impl RoomRequest {
    /// No more than what is accepted.
    pub(crate) const NONE: Self = Self { claim_bytes: 0, redo_bytes: 0, edit_bytes: 0 };
}
