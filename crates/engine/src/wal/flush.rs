//! Flushes the log, while it is written.
//!
//! The log's lock is not held while devices flush, so that the next batches are written meanwhile. What a flush covers
//! follows from counts per device: of the writes that have returned, and of those that a flush which began afterwards
//! has covered.
//!
//! With a log device ([`super::LogDevice`]) a batch is durable as soon as that one is flushed. What the other devices
//! got is flushed by the next checkpoint, or when a commit needs something that the log device has not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::device::{Devices, IoClass};
use crate::{Error, Result};

/// The state of flushing: which writes of the log are on stable storage.
///
/// T6: flushes end in the order in which they began, and once one has failed all that end after it fail. A device tells
/// a failure only to one of several concurrent flushes, but it concerns what all of them wait for (contract W6). So what a
/// flush has covered counts as flushed only once it ends well.
pub(crate) struct Flushes {
    devices: Devices,
    /// Of each group, by its number, as far as anything was written to it. One of a lower number may come later.
    marks: boxcar::Vec<Mark>,
    /// Batches below `written_batch` have been written; those below `flushed_batch` are on stable storage.
    written_batch: AtomicU64,
    flushed_batch: AtomicU64,
    /// Batches below this number are on stable storage where they belong, so that no log device has to have them.
    settled_batch: AtomicU64,
    /// Number of the group that is the log device, plus one; 0 if there is none.
    log_device: AtomicU32,
    log_mark: Mark,
    /// True if the log device failed: what it has does not count any more.
    log_failed: AtomicBool,
    order: Mutex<FlushTurns>,
    ended: Condvar,
}

/// How far batches are that have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchWritten {
    /// A flush has to follow.
    NotDurable,
    /// All survive the loss of power, the last ones perhaps on the log device alone.
    Durable,
    /// All are on stable storage in their places.
    Settled,
}

/// Counts of a device's writes.
#[derive(Default)]
struct Mark {
    written: AtomicU64,
    /// Of these, the writes up to the last one that a commit has to wait for: no log device has it.
    needed: AtomicU64,
    flushed: AtomicU64,
}

impl Mark {
    /// Notes a write that has returned.
    fn wrote(&self, is_needed: bool) {
        let written = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        if is_needed {
            self.needed.fetch_max(written, Ordering::AcqRel);
        }
    }

    /// Returns true if a commit waits for a flush.
    fn is_due(&self) -> bool {
        self.flushed.load(Ordering::Acquire) < self.needed.load(Ordering::Acquire)
    }

    /// Returns true if a flush has covered every write.
    fn is_settled(&self) -> bool {
        self.flushed.load(Ordering::Acquire) >= self.written.load(Ordering::Acquire)
    }
}

/// The writes that a flush has covered.
#[derive(Default)]
struct Covered<'a> {
    /// Writes to groups, by the counts of all that had returned when the flush began; and those to the log device.
    groups: SmallVec<[(u16, &'a Mark, u64); 4]>,
    log_written: u64,
    /// Batches below this number are where they belong.
    settled_batch: u64,
}

#[derive(Default)]
struct FlushTurns {
    begun: u64,
    ended: u64,
    failed: bool,
}

impl Flushes {
    /// Creates the state for devices on which nothing waits for a flush.
    pub(crate) fn new(devices: Devices) -> Self {
        Self {
            devices,
            marks: boxcar::Vec::new(),
            written_batch: 0.into(),
            flushed_batch: 0.into(),
            settled_batch: 0.into(),
            log_device: 0.into(),
            log_mark: Mark::default(),
            log_failed: false.into(),
            order: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Returns the number below which all batches are on stable storage.
    pub(crate) fn flushed_batch(&self) -> u64 {
        self.flushed_batch.load(Ordering::Acquire)
    }

    /// Notes that all batches below `number` have been written, and whether a flush has to follow.
    pub(super) fn wrote_batch(&self, number: u64, written: BatchWritten) {
        self.written_batch.fetch_max(number, Ordering::AcqRel);
        if written != BatchWritten::NotDurable {
            self.flushed_batch.fetch_max(number, Ordering::AcqRel);
        }
        if written == BatchWritten::Settled {
            self.settled_batch.fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Returns the number below which all batches are on stable storage where they belong.
    pub(crate) fn settled_batch(&self) -> u64 {
        self.settled_batch.load(Ordering::Acquire)
    }

    /// Notes that a write has returned that is not durable by itself.
    pub(crate) fn wrote(&self, device: u16) {
        self.note(device, true);
    }

    /// Does the same for a write that no commit waits for: the log device has the same, or nothing refers to it before a
    /// checkpoint counts.
    pub(crate) fn wrote_for_checkpoint(&self, device: u16) {
        self.note(device, false);
    }

    fn note(&self, device: u16, is_needed: bool) {
        loop {
            if let Some(mark) = self.marks.get(usize::from(device)) {
                return mark.wrote(is_needed);
            }
            self.marks.push(Mark::default());
        }
    }

    /// Returns true if flushes have covered every write.
    pub(super) fn nothing_waits(&self) -> bool {
        self.log_mark.is_settled() && self.marks.iter().all(|(_, mark)| mark.is_settled())
    }

    /// Has batches count that are on the log device, which is group `group`; or on no other device than their own.
    pub(super) fn set_log_device(&self, group: Option<u16>) {
        self.log_device.store(group.map_or(0, |group| u32::from(group) + 1), Ordering::Release);
        self.log_failed.store(false, Ordering::Release);
    }

    fn log_device(&self) -> Option<u16> {
        let group = self.log_device.load(Ordering::Acquire).checked_sub(1)?;
        u16::try_from(group).ok().filter(|_| !self.log_failed.load(Ordering::Acquire))
    }

    /// Returns true if a batch that goes to the log device is durable when that one is flushed: nothing that it follows
    /// waits for another flush.
    pub(super) fn log_device_suffices(&self) -> bool {
        self.log_device().is_some() && !self.marks.iter().any(|(_, mark)| mark.is_due())
    }

    /// Returns true if a durable write to the log device is all that such a batch needs.
    pub(super) fn log_device_is_flushed(&self) -> bool {
        self.log_mark.is_settled()
    }

    /// Notes that a write to the log device has returned that is not durable by itself.
    pub(super) fn wrote_to_log_device(&self) {
        self.log_mark.wrote(true);
    }

    /// Has commits wait for the other devices from now on: the log device failed.
    pub(super) fn give_up_log_device(&self, error: &Error) {
        if let Some(group) = self.log_device()
            && !self.log_failed.swap(true, Ordering::AcqRel)
        {
            self.devices.give_up(group, error);
        }
    }

    /// Has commits wait for the other devices from now on, since the log device is to leave.
    pub(crate) fn leave_log_device(&self) {
        self.log_failed.store(true, Ordering::Release);
    }

    /// Returns true if the log device failed, or is to leave.
    pub(crate) fn has_lost_log_device(&self) -> bool {
        self.log_failed.load(Ordering::Acquire)
    }

    /// Returns when everything that was written before the call survives the loss of power.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush_turn(IoClass::Log, false)
    }

    /// Returns when everything that was written before the call is on stable storage where it belongs, so that no log
    /// device has to have it.
    pub(crate) fn settle_as(&self, class: IoClass) -> Result<()> {
        self.flush_turn(class, true)
    }

    fn flush_turn(&self, class: IoClass, everything: bool) -> Result<()> {
        let turn = {
            let mut order = self.order.lock();
            order.begun += 1;
            order.begun
        };
        // Read before the devices' counts, which then include all batches below this number.
        let written_batch = self.written_batch.load(Ordering::Acquire);
        let log_device = self.log_device().filter(|_| !everything && self.log_device_suffices());
        let mut flushed = match log_device {
            Some(group) => self.flush_log_device(class, group),
            None => self.flush_devices(class, written_batch),
        };
        let mut order = self.order.lock();
        while order.ended + 1 < turn {
            self.ended.wait(&mut order);
        }
        // The failure of the log device concerns all whose flushes end after it, too: they wait for the other devices.
        if log_device.is_some() && (flushed.is_err() || self.has_lost_log_device()) {
            drop(order);
            flushed = self.flush_devices(class, written_batch);
            order = self.order.lock();
        }
        order.ended = turn;
        let failed_before = order.failed;
        order.failed |= flushed.is_err();
        if let Ok(covered) = &flushed
            && !failed_before
        {
            self.count_flushed(covered, written_batch);
        }
        drop(order);
        self.ended.notify_all();
        match flushed {
            Ok(_) if failed_before => Err(Error::Failed("an earlier flush of the log failed".into())),
            flushed => flushed.map(drop),
        }
    }

    /// Has what a flush has covered count as flushed, with the batches below `written_batch`. All flushes that began
    /// before it have ended well.
    fn count_flushed(&self, covered: &Covered<'_>, written_batch: u64) {
        for (_, mark, written) in &covered.groups {
            mark.flushed.fetch_max(*written, Ordering::AcqRel);
        }
        self.log_mark.flushed.fetch_max(covered.log_written, Ordering::AcqRel);
        self.settled_batch.fetch_max(covered.settled_batch, Ordering::AcqRel);
        self.flushed_batch.fetch_max(written_batch, Ordering::AcqRel);
    }

    fn flush_log_device(&self, class: IoClass, group: u16) -> Result<Covered<'_>> {
        let log_written = self.log_mark.written.load(Ordering::Acquire);
        if self.log_mark.flushed.load(Ordering::Acquire) < log_written {
            let flushed = self.devices.of_class(class).flush_some([group]).map_err(Error::from);
            flushed.inspect_err(|error| self.give_up_log_device(error))?;
        }
        Ok(Covered { log_written, ..Covered::default() })
    }

    fn flush_devices(&self, class: IoClass, written_batch: u64) -> Result<Covered<'_>> {
        // Read before the flush, which then covers all of these writes.
        let log_written = self.log_mark.written.load(Ordering::Acquire);
        let marks = self.marks.iter().filter_map(|(number, mark)| Some((u16::try_from(number).ok()?, mark)));
        let due: SmallVec<[(u16, &Mark, u64); 4]> = marks
            .map(|(number, mark)| (number, mark, mark.written.load(Ordering::Acquire)))
            .filter(|(_, mark, written)| mark.flushed.load(Ordering::Acquire) < *written)
            .collect();
        self.devices.of_class(class).flush_some(due.iter().map(|(number, ..)| *number))?;
        // By now all that the log device got is where it belongs.
        Ok(Covered { groups: due, log_written, settled_batch: written_batch })
    }
}

#[cfg(test)]
mod tests;
