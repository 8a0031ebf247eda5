//! Makes free chunks for what is accepted (A1, `dataset/room.rs`).

use std::sync::atomic::Ordering;

use super::{Maintenance, Pool};
use crate::dataset::RoomRequest;
use crate::device::IoClass;
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::{Error, Result};

/// Largest number of chunks that a pass fills, so that the checkpoint after it comes soon.
const PASS_CHUNKS_MAX: u64 = 32;
/// Share of checkpoints in what passes gain, if passes may be that large: one part in this number.
const CHECKPOINT_PART: u64 = 8;
/// Bytes of the root, and of the lists and the catalogue of an empty pool, with what a batch adds to each.
const ROOT_BYTES: u64 = 16 * BLOCK_BYTES as u64;
/// Bytes of padding of the commit of one change: in its batch, and in the directory that may follow.
const COMMIT_BYTES: u64 = 4 * BLOCK_BYTES as u64;

/// Returns the room for a commit of which `redo_bytes` are not accepted yet.
const fn commit_of(redo_bytes: u64) -> RoomRequest {
    RoomRequest { claim_bytes: 0, redo_bytes, edit_bytes: COMMIT_BYTES }
}

impl Pool {
    /// Makes sure that a commit finds memory for tree nodes, and free chunks. The chunks of accepted changes are kept
    /// for the commit (A1), so only those of its padding may be missing.
    pub(super) fn prepare_commit(&self) -> Result<()> {
        self.prepare_commit_of(0)
    }

    /// As [`Pool::prepare_commit`], for a commit of the first `target` changes that were accepted, which is not refused: they
    /// have their chunks (A1). Where there is nothing to gain, its padding may take of the cleaner's.
    pub(super) fn prepare_accepted(&self, target: u64) -> Result<()> {
        match self.prepare_commit() {
            // A checkpoint that was made in search of room has committed them.
            Err(Error::NoSpace(_)) if self.committed.load(Ordering::Acquire) >= target => Ok(()),
            Err(Error::NoSpace(_)) if self.shared.has_room_without_kept(commit_of(0)) => Ok(()),
            prepared => prepared,
        }
    }

    /// As [`Pool::prepare_commit`], for a commit of which `redo_bytes` are not accepted yet.
    pub(super) fn prepare_commit_of(&self, redo_bytes: u64) -> Result<()> {
        if self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.make_tree_room()?;
        self.make_room(commit_of(redo_bytes))
    }

    /// As [`Pool::prepare_commit_of`], for operations that destroy something. Where changes of trees that snapshots hold
    /// have taken all the room, and there is nothing to gain, they may take of the cleaner's chunks: what they free
    /// brings more back.
    pub(super) fn prepare_destroying(&self, redo_bytes: u64) -> Result<()> {
        match self.prepare_commit_of(redo_bytes) {
            Err(Error::NoSpace(_)) if self.shared.has_room_without_kept(commit_of(redo_bytes)) => Ok(()),
            prepared => prepared,
        }
    }

    /// Makes sure that changed tree nodes keep within their share of memory: waits for the checkpoint that is under
    /// way, or makes one.
    pub(super) fn make_tree_room(&self) -> Result<()> {
        if self.nodes.unstored_bytes() < self.sizing().unstored_tree_max() {
            return Ok(());
        }
        let mut state = self.maintenance.lock();
        if self.nodes.dirty_bytes() >= self.sizing().dirty_tree_bytes {
            self.checkpoint_locked(&mut state, false)?;
        }
        Ok(())
    }

    /// Cleans until there is room for `wanted`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if nothing is left to gain.
    pub(super) fn make_room(&self, wanted: RoomRequest) -> Result<()> {
        while !self.shared.has_room(wanted) {
            let mut state = self.maintenance.lock();
            if self.shared.has_room(wanted) {
                break;
            }
            self.check_failed()?;
            if !self.gain_room(&mut state)? && !self.shared.has_room(wanted) {
                let space = self.shared.space();
                let (left, capacity) = (space.available_bytes, space.capacity_bytes);
                return Err(Error::NoSpace(format!(
                    "{} bytes were asked for, {left} of {capacity} are left, and there is no chunk to gain; delete something, or snapshots that hold it",
                    wanted.claim_bytes
                )));
            }
        }
        Ok(())
    }

    /// Cleans until the room that the next checkpoint is promised is free, after a checkpoint has written what was
    /// promised to it (A1). If there is nothing to gain, the next change to be accepted gets the error.
    pub(super) fn restore_room(&self, state: &mut Maintenance) -> Result<()> {
        while !self.shared.has_room(RoomRequest::NONE) && self.gain_room(state)? {}
        Ok(())
    }

    /// Takes one step towards more free chunks. Returns false if there are none to gain.
    pub(super) fn gain_room(&self, state: &mut Maintenance) -> Result<bool> {
        self.shared.devices.hurry(IoClass::Cleaning, true);
        let before = self.shared.spare_chunks();
        let mut steps = 0;
        while self.reap()? {
            steps += 1;
        }
        // The log since the last checkpoint can be neither cleaned nor reused, and changed nodes and the growth of the
        // catalogue count at their largest.
        let is_settled = self.chunks.pending_free() == 0
            && self.nodes.unstored_bytes() == 0
            && 4 * self.shared.room.grown_bytes.load(Ordering::Relaxed) < CHUNK_BYTES;
        if steps > 0 || !is_settled || self.log.lock().window_bytes >= CHUNK_BYTES {
            self.checkpoint_locked(state, false)?;
            if self.shared.spare_chunks() > before {
                return Ok(true);
            }
        }
        let passed = self.clean_pass(state, self.wanted_gain())?.is_some();
        if passed || self.log.lock().window_bytes > 0 {
            self.checkpoint_locked(state, false)?;
        }
        Ok(passed || steps > 0 || self.shared.spare_chunks() > before)
    }

    /// Cleans until the cleaner has all the chunks that it keeps, as far as there is something to gain: other users
    /// take of these chunks.
    pub(super) fn regain(&self, state: &mut Maintenance) -> Result<()> {
        while self.shared.clean_outputs() < self.sizing().bounds.clean_chunks
            && self.clean_pass(state, self.pass_chunks())?.is_some()
        {
            self.checkpoint_locked(state, false)?;
        }
        Ok(())
    }

    /// Returns the number of chunks that a pass may fill.
    pub(super) fn pass_chunks(&self) -> u64 {
        self.sizing().bounds.clean_chunks.min(PASS_CHUNKS_MAX)
    }

    /// Returns the number of chunks that is enough for a pass to gain: then checkpoints are a small part of what is
    /// written. Passes that are smaller than they might be need less room, and give writers theirs earlier.
    pub(super) fn wanted_gain(&self) -> u64 {
        let bytes = self.shared.room.checkpoint_bytes.load(Ordering::Relaxed);
        (bytes * CHECKPOINT_PART)
            .div_ceil(CHUNK_BYTES)
            .clamp(self.least_gain() + 1, self.pass_chunks().max(self.least_gain() + 1))
    }

    /// Returns the least number of chunks that a pass has to gain: one, and those that its checkpoint writes.
    pub(super) fn least_gain(&self) -> u64 {
        1 + 2 * self.shared.room.always_bytes() / CHUNK_BYTES
    }

    /// Notes, after a checkpoint, the sizes from which the room for the next one follows (A1): bytes that every
    /// checkpoint writes, and may write of the catalogue; bytes of all trees; recent bytes per checkpoint; chunks that
    /// the cleaner needs.
    /// The catalogue has not grown any more by the `stored_growth` that the checkpoint has stored.
    pub(super) fn note_sizes(&self, state: &Maintenance, stored_growth: u64) {
        self.shared.room.grown_bytes.fetch_sub(stored_growth, Ordering::Relaxed);
        let roots = state.copies.roots.iter().map(|placed| u64::from(placed.first.len_bytes));
        let versions = state.catalogue_pages.values().map(|bytes| bytes.len() as u64);
        let fixed: u64 = roots.chain(versions).sum();
        // Devices may be left out at any time, and lack more with every write.
        let fixed = fixed + ROOT_BYTES + self.labels.lacks_bytes_max();
        self.shared.room.fixed_bytes.store(fixed, Ordering::Relaxed);
        let datasets = self.datasets.read().clone();
        let nodes: u64 = datasets.iter().map(|dataset| dataset.accounting.lock().node_bytes).sum();
        self.shared.room.node_bytes.store(nodes, Ordering::Relaxed);
        let counters = &self.shared.counters;
        let [nodes, others, copies] =
            [&counters.tree_bytes, &counters.checkpoint_bytes, &counters.copy_bytes]
                .map(|bytes| bytes.load(Ordering::Relaxed));
        let (room, all) = (&self.shared.room, nodes + others + copies);
        let last = all - room.checkpoints_bytes.swap(all, Ordering::Relaxed);
        let lately = room.checkpoint_bytes.load(Ordering::Relaxed);
        room.checkpoint_bytes.store(lately - lately / 4 + last / 4, Ordering::Relaxed);
        self.note_kept(state);
    }

    /// Notes the chunks that the cleaner needs as things are.
    pub(super) fn note_kept(&self, state: &Maintenance) {
        self.shared.room.clean_chunks.store(self.needed_chunks(state), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpenOptions;
    use super::super::testing::{PAGE, fresh, open_with, page, write};
    use super::*;
    use crate::dataset::Change;
    use crate::segment::PageIds;

    /// A database that is told by an fsync that there is no space stops. What was accepted has its chunks (A1).
    #[test]
    fn what_was_accepted_is_committed_where_nothing_is_left_to_gain() {
        let (device, pool) = fresh();
        write(&pool, 0..64, 0);
        pool.export().unwrap();
        drop(pool);
        let pool = open_with(&device, &OpenOptions::default()).unwrap();
        let accept = |at: u64| {
            let (offset, data) = (at * u64::from(PAGE), page(at, 1));
            let change = Change::Write { object: 4, record_size: PAGE, offset, data: &data };
            pool.dataset().apply(&[change]).unwrap();
        };
        let room = &pool.shared.room;
        // The cleaner has come to need all that is spare, and there was no commit since the last checkpoint.
        accept(0);
        room.clean_chunks.fetch_add(pool.shared.spare_chunks() + 1, Ordering::Relaxed);
        assert!(!pool.shared.has_room(RoomRequest::NONE));
        pool.sync().unwrap();
        // Somebody asks for more than there is, and a checkpoint is made for it.
        pool.checkpoint(false).unwrap();
        accept(1);
        let grown_bytes = pool.shared.spare_chunks() * CHUNK_BYTES;
        room.grown_bytes.fetch_add(grown_bytes, Ordering::Relaxed);
        assert!(!pool.shared.has_room(RoomRequest::NONE));
        pool.sync().unwrap();
        room.grown_bytes.fetch_sub(grown_bytes, Ordering::Relaxed);
        assert!(pool.shared.has_room(RoomRequest::NONE));
    }

    /// A writer that finds no room asks for it, and then reserves it. If it asked for less than it reserves, it would
    /// ask again and again, and get the same answer.
    #[test]
    fn room_that_is_asked_for_is_room_that_is_reserved() {
        let (device, pool) = fresh();
        drop(pool);
        // With few ids per page, the table has as many pages as the table of a large pool.
        let options = OpenOptions { table_page_ids: PageIds::new(3), ..OpenOptions::default() };
        let open = || open_with(&device, &options).unwrap();
        // Each opening begins segments.
        for at in 0..60 {
            let pool = open();
            write(&pool, at * 8..at * 8 + 8, 0);
            pool.checkpoint(false).unwrap();
        }
        let pool = open();
        let shared = &pool.shared;
        for (claim_bytes, redo_bytes, edit_bytes) in
            [(0, 0, 0), (0, 1024, 0), (0, 4096, 0), (8192, 300, 0), (1 << 20, 512 << 10, 128 << 10)]
        {
            let asked = shared.promised_bytes(RoomRequest { claim_bytes, redo_bytes, edit_bytes });
            assert!(shared.reserve_redo(redo_bytes));
            shared.claimed_bytes.fetch_add(claim_bytes, Ordering::Relaxed);
            let reserved = shared.promised_bytes(RoomRequest { edit_bytes, ..RoomRequest::NONE });
            shared.release_redo(redo_bytes);
            shared.release(claim_bytes);
            assert_eq!(asked, reserved, "claim {claim_bytes}, redo {redo_bytes}, edits {edit_bytes}");
        }
    }
}
