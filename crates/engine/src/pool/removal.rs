//! Removes groups of devices from a pool that is used: everything moves off a group, and then it is gone.
//!
//! - E1: a group that leaves gets nothing new: its chunks are closed ([`crate::space`]). That begins only if the pool can do
//!   without them: what is stored fits the capacity that is left, and all that is promised (A1) finds free chunks elsewhere.
//! - E2: labels say that a group leaves, so that an opening goes on. Its chunks are emptied by passes like the cleaner's
//!   ([`super::clean`]), which fill only chunks that are spare.
//! - E3: a group is gone when all of its chunks are free, also for the state that a crash would lead back to (S1). Then the
//!   labels of the others say so, one after the other. If a crash leaves some that do not, it counts as gone if those that do
//!   are here, and otherwise as a group on which nothing lies. Its number is never given out again.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::mirrors::elapsed_ns;
use super::moving::{Moved, Obstacle};
use super::{Maintenance, Pool};
use crate::dataset::{RoomRequest, count};
use crate::limits::CHUNK_BYTES;
use crate::{Error, Result};

/// State of the last removal of a group since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalStatus {
    /// Number of the group; `None` if none was removed.
    pub group: Option<u16>,
    /// Time at which it began, or went on after the pool was opened, in seconds since 1970.
    pub started: u64,
    /// Time at which the group was gone, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were moved so far.
    pub moved_bytes: u64,
    /// Bytes of its chunks that are in use.
    pub left_bytes: u64,
    /// Reason why it does not go on at present.
    pub obstacle: Option<Obstacle>,
    /// Time that its steps have worked so far, in nanoseconds; rests between them are not counted.
    pub work_ns: u64,
}

impl Pool {
    /// Begins to remove a group of devices: everything moves to the others ([`Pool::removal_step`]), and then it leaves the
    /// pool. Until then the pool needs it. Goes on after the pool was closed, or crashed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such group, or no other one, if it leaves already, or if a spare stands in for a device of it; [`Error::NoSpace`] if the
    /// others have too little room; [`Error::ReadOnly`]; errors of devices.
    pub fn remove_group(&self, group: u16) -> Result<()> {
        self.shared.check_writable()?;
        if self.labels.log_group() == Some(group) {
            return self.without_stand_in(&[group], || self.remove_log_device());
        }
        if self.known_group(group)? {
            return Err(Error::Invalid("it is being removed already".into()));
        }
        if self.labels.staying() < 2 {
            return Err(Error::Invalid("the pool has no other device that takes what lies on it".into()));
        }
        self.without_stand_in(&[group], || {
            self.shared.segments.set_leaving(group, true);
            let begun = self.close_group(group).and_then(|()| {
                let told = self.labels.set_leaving(group, true);
                told.inspect_err(|_| self.reopen_group(&self.maintenance.lock(), group))
            });
            if begun.is_err() {
                self.shared.segments.set_leaving(group, false);
            }
            begun
        })
    }

    /// Returns true if a group leaves.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such group.
    fn known_group(&self, group: u16) -> Result<bool> {
        let table = self
            .labels
            .table(group)
            .filter(|table| group < self.labels.counted() && !table.members.is_empty());
        table.map(|table| table.leaves).ok_or_else(|| Error::Invalid("the pool has no such device".into()))
    }

    /// Ends the removal of a group before it is gone. What was moved stays where it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not being removed, or if labels may say that it is gone already; [`Error::ReadOnly`]; errors of devices.
    pub fn keep_group(&self, group: u16) -> Result<()> {
        self.shared.check_writable()?;
        let state = self.maintenance.lock();
        if !self.known_group(group)? {
            return Err(Error::Invalid("it is not being removed".into()));
        }
        // A label that says so may be on a device already, and an opening would believe it (E3).
        if self.labels.may_be_gone(group) {
            return Err(Error::Invalid("nothing lies on it any more, and it is about to leave".into()));
        }
        self.labels.set_leaving(group, false)?;
        self.reopen_group(&state, group);
        self.shared.segments.set_leaving(group, false);
        *self.removal.lock() = RemovalStatus::default();
        Ok(())
    }

    /// Closes the chunks of a group, once the pool can do without them (E1).
    fn close_group(&self, group: u16) -> Result<()> {
        loop {
            let mut state = self.maintenance.lock();
            self.fits_without(group)?;
            // The log takes no chunk before it is known that the other groups have some.
            let log = self.log.lock();
            self.chunks.close_device(group);
            self.count_chunks();
            self.note_kept(&state);
            if self.shared.has_room(RoomRequest::NONE) {
                return Ok(());
            }
            self.reopen_group(&state, group);
            drop(log);
            if self.clean_pass(&mut state, self.wanted_gain())?.is_none() {
                return Err(Error::NoSpace("the other devices have no chunk to gain".into()));
            }
            self.checkpoint_locked(&mut state, false)?;
        }
    }

    fn reopen_group(&self, state: &Maintenance, group: u16) {
        self.chunks.reopen_device(group);
        self.count_chunks();
        self.note_kept(state);
    }

    /// Returns an error unless all that is stored and reserved fits the capacity that is left without a group.
    fn fits_without(&self, group: u16) -> Result<()> {
        let chunks = self.chunks.total().saturating_sub(self.chunks.count_of(group));
        let capacity = self.sizing().with_chunks(chunks).bounds.capacity_bytes;
        let used = self.shared.space().used_bytes + self.shared.reserved_bytes.load(Ordering::Acquire);
        if used <= capacity {
            return Ok(());
        }
        Err(Error::NoSpace(format!(
            "{used} bytes are stored or reserved, and the other devices have room for {capacity}; delete something, or make the pool larger first"
        )))
    }

    /// Returns the state of the last removal of a group.
    pub fn removal_status(&self) -> RemovalStatus {
        let mut status = *self.removal.lock();
        if let Some(group) = self.labels.leaving().first().copied() {
            if status.group != Some(group) || status.finished > 0 {
                // Its first step is yet to come.
                status = RemovalStatus { group: Some(group), ..RemovalStatus::default() };
            }
            status.left_bytes = self.chunks.used_count(group) * CHUNK_BYTES;
        }
        status
    }

    /// Moves some of what lies on a group that leaves. Returns the bytes moved; `None` if there is nothing to do, or if it
    /// cannot go on at present. When nothing lies there any more, the group is gone, at `now` (seconds since 1970).
    ///
    /// # Errors
    /// Errors of devices, and of a checkpoint.
    pub fn removal_step(&self, now: u64) -> Result<Option<u64>> {
        let leaving = self.labels.leaving();
        let Some(group) = leaving.first().copied().filter(|_| self.shared.check_writable().is_ok()) else {
            return Ok(None);
        };
        let mut state = self.maintenance.lock();
        if self.shared.check_writable().is_err() {
            // The pool was exported meanwhile.
            return Ok(None);
        }
        // It may have been kept meanwhile.
        if !self.known_group(group).unwrap_or(false) {
            return Ok(Some(0));
        }
        self.note_removal(group, now);
        self.begin_elsewhere(&mut state, group)?;
        if self.chunks.is_vacant(group) {
            self.end_removal(group, now)?;
            return Ok(Some(0));
        }
        let begun = Instant::now();
        match self.move_off(&mut state, group)? {
            Ok(bytes) => {
                let mut removal = self.removal.lock();
                removal.moved_bytes += bytes;
                removal.work_ns += elapsed_ns(begun);
                removal.obstacle = None;
                Ok(Some(bytes))
            }
            Err(obstacle) => {
                self.removal.lock().obstacle = Some(obstacle);
                Ok(None)
            }
        }
    }

    fn note_removal(&self, group: u16, now: u64) {
        let mut removal = self.removal.lock();
        if removal.group != Some(group) || removal.finished > 0 {
            *removal = RemovalStatus { group: Some(group), started: now, ..RemovalStatus::default() };
        }
    }

    /// Has the log, the cleaner and second copies go on in chunks of other groups.
    fn begin_elsewhere(&self, state: &mut Maintenance, group: u16) -> Result<()> {
        self.leave_begun(state, |device| device == group);
        let mut log = self.log.lock();
        let is_there =
            |position: crate::wal::Position| position.chunk.device == group || position.next.device == group;
        while is_there(log.writer.position()) {
            let rolled_bytes = log.writer.roll().inspect_err(|error| self.shared.fail(error))?;
            log.window_bytes += rolled_bytes;
            count(&self.shared.counters.framing_bytes, rolled_bytes);
        }
        Ok(())
    }

    /// Moves what some chunks of a group hold, and makes a checkpoint. Returns the bytes that were moved, or why it cannot
    /// go on.
    fn move_off(&self, state: &mut Maintenance, group: u16) -> Result<Result<u64, Obstacle>> {
        let plan = |state: &Maintenance, outputs| self.plan_move_off(state, group, outputs);
        match self.move_planned(state, None, &plan)? {
            Moved::Bytes(bytes) => Ok(Ok(bytes)),
            Moved::NoRoom => Ok(Err(Obstacle::Room)),
            Moved::Nothing => self.free_rest(state, group),
        }
    }

    /// Frees chunks of a group from which nothing has to be moved: they are part of the log since the last checkpoint, or the
    /// next one frees them.
    fn free_rest(&self, state: &mut Maintenance, group: u16) -> Result<Result<u64, Obstacle>> {
        let before = self.chunks.used_count(group);
        // Chunks of second copies that one checkpoint gives up are freed by the next one.
        for _ in 0..2 {
            self.checkpoint_locked(state, false)?;
        }
        self.restore_room(state)?;
        let freed = self.chunks.used_count(group) < before;
        // The next step is made after a while, and may find what this one did not.
        state.cleaner.try_again(|chunk| chunk.device == group);
        Ok(if freed { Ok(0) } else { Err(Obstacle::Damage) })
    }

    /// Takes a group out of the pool on which nothing lies (E3).
    fn end_removal(&self, group: u16, now: u64) -> Result<()> {
        let taken = self.labels.remove_group(group)?;
        self.chunks.remove_device(group);
        self.shared.segments.set_leaving(group, false);
        self.removal.lock().finished = now;
        for (number, path) in taken {
            self.shared.segments.faults.clear(Some(number), 0);
            tracing::info!(group, device = %path.display(), "the device has left the pool");
            self.tell_of_leave(&path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
