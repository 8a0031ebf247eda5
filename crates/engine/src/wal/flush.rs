//! Flushes the log, while it is written.
//!
//! The log's lock is not held while devices flush, so that the next batches are written meanwhile. What a flush covers
//! follows from counts per device: of the writes that have returned, and of those that a flush which began afterwards
//! has covered.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::device::{Devices, IoClass};
use crate::{Error, Result};

/// The state of flushing: which writes of the log are on stable storage.
///
/// T6: flushes end in the order in which they began, and once one has failed all that end after it fail. A device tells
/// a failure only to one of several concurrent flushes, but it concerns what all of them wait for (contract W6).
pub(crate) struct Flushes {
    devices: Devices,
    /// Of each group, by its number, as far as anything was written to it. One of a lower number may come later.
    marks: boxcar::Vec<Mark>,
    /// Batches below `written_batch` have been written; those below `flushed_batch` are on stable storage.
    written_batch: AtomicU64,
    flushed_batch: AtomicU64,
    order: Mutex<FlushTurns>,
    ended: Condvar,
}

/// Counts of a device's writes.
#[derive(Default)]
struct Mark {
    written: AtomicU64,
    flushed: AtomicU64,
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
        let (written_batch, flushed_batch) = Default::default();
        Self {
            devices,
            marks: boxcar::Vec::new(),
            written_batch,
            flushed_batch,
            order: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Returns the number below which all batches are on stable storage.
    pub(crate) fn flushed_batch(&self) -> u64 {
        self.flushed_batch.load(Ordering::Acquire)
    }

    /// Notes that all batches below `number` have been written, and, with `durable`, that nothing waits for a flush.
    pub(super) fn wrote_batch(&self, number: u64, durable: bool) {
        self.written_batch.fetch_max(number, Ordering::AcqRel);
        if durable {
            self.flushed_batch.fetch_max(number, Ordering::AcqRel);
        }
    }

    /// Notes that a write has returned that is not durable by itself.
    pub(crate) fn wrote(&self, device: u16) {
        loop {
            if let Some(mark) = self.marks.get(usize::from(device)) {
                mark.written.fetch_add(1, Ordering::AcqRel);
                return;
            }
            self.marks.push(Mark::default());
        }
    }

    /// Returns true if flushes have covered every write.
    pub(super) fn nothing_waits(&self) -> bool {
        self.marks
            .iter()
            .all(|(_, mark)| mark.flushed.load(Ordering::Acquire) >= mark.written.load(Ordering::Acquire))
    }

    /// Returns when everything that was written before the call is on stable storage.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush_as(IoClass::Log)
    }

    /// As [`Flushes::flush`], by requests of another class.
    pub(crate) fn flush_as(&self, class: IoClass) -> Result<()> {
        let turn = {
            let mut order = self.order.lock();
            order.begun += 1;
            order.begun
        };
        // Read before the devices' counts, which then include all batches below this number.
        let written_batch = self.written_batch.load(Ordering::Acquire);
        let flushed = self.flush_devices(class);
        let mut order = self.order.lock();
        while order.ended + 1 < turn {
            self.ended.wait(&mut order);
        }
        order.ended = turn;
        let failed_before = order.failed;
        order.failed |= flushed.is_err();
        if !order.failed {
            self.flushed_batch.fetch_max(written_batch, Ordering::AcqRel);
        }
        drop(order);
        self.ended.notify_all();
        match flushed {
            Ok(()) if failed_before => Err(Error::Failed("an earlier flush of the log failed".into())),
            flushed => flushed,
        }
    }

    fn flush_devices(&self, class: IoClass) -> Result<()> {
        // Read before the flush, which then covers all of these writes.
        let marks = self.marks.iter().filter_map(|(number, mark)| Some((u16::try_from(number).ok()?, mark)));
        let due: SmallVec<[(u16, &Mark, u64); 4]> = marks
            .map(|(number, mark)| (number, mark, mark.written.load(Ordering::Acquire)))
            .filter(|(_, mark, written)| mark.flushed.load(Ordering::Acquire) < *written)
            .collect();
        self.devices.of_class(class).flush_some(due.iter().map(|(number, ..)| *number))?;
        for (_, mark, written) in due {
            mark.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
