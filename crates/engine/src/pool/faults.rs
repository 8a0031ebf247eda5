//! Errors that were met, kept in the pool over openings: a value in the pool's own tree.
//!
//! Every checkpoint puts what changed into the tree. What is new is logged before ([`Pool::store_new_faults`], once a second at most), so that a
//! crash takes back no more than counts that have not doubled. A pool that was opened read-only, or has failed, counts in memory alone.

use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::redo::{REDO_FIXED_BYTES, Redo};
use crate::dataset::{Dataset, count};
use crate::faults::{Fault, FaultReport, Subject};
use crate::{Error, Key, Result};

/// What the stored form may grow by while it is being logged.
const GROWTH_BYTES: usize = 4096;
/// Damaged batches of one replay that are counted.
const LOG_BATCHES_MAX: u64 = 1 << 16;
/// Where they are in the pool's own tree.
const KEY: Key = Key::new(0, Key::FAULTS, 0);

impl Pool {
    /// Errors that were met since they were cleared, those of earlier openings included.
    pub fn faults(&self) -> FaultReport {
        self.take_device_errors();
        let mut report = self.shared.segments.faults.report();
        report.devices.resize_with(self.shared.devices.len(), Default::default);
        report
    }

    /// Forgets errors, of one device or all of them, at `now` (seconds since 1970). On return that is durable, unless the pool takes no
    /// changes. Returns what was forgotten.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the pool does not have; of storing it.
    pub fn clear_faults(&self, device: Option<u16>, now: u64) -> Result<FaultReport> {
        if device.is_some_and(|device| usize::from(device) >= self.shared.devices.len()) {
            return Err(Error::Invalid("the pool has no such device".into()));
        }
        self.take_device_errors();
        let cleared = self.shared.segments.faults.clear(device, now);
        if self.shared.check_writable().is_ok() {
            self.store_faults()?;
        }
        Ok(cleared)
    }

    /// Logs what was counted if something new is among it.
    ///
    /// # Errors
    /// Of the devices; then the pool has failed.
    pub fn store_new_faults(&self) -> Result<()> {
        self.take_device_errors();
        if !self.shared.segments.faults.wants_store() || self.shared.check_writable().is_err() {
            return Ok(());
        }
        self.store_faults()
    }

    fn store_faults(&self) -> Result<()> {
        let faults = &self.shared.segments.faults;
        let claim = (REDO_FIXED_BYTES + faults.report().encode().len() + GROWTH_BYTES) as u64;
        if self.shared.reserve(claim, 0, 0).is_err() {
            // The next checkpoint has room of its own.
            return Ok(());
        }
        let logged = self.log_faults();
        self.shared.release(claim);
        logged?;
        self.flushes.flush().inspect_err(|error| self.shared.fail(error))
    }

    fn log_faults(&self) -> Result<()> {
        self.prepare_commit()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        if self.shared.read_only.load(Ordering::Relaxed) {
            // Exported meanwhile.
            return Ok(());
        }
        // With the log's lock, as at a checkpoint: what is taken later is stored later.
        let Some(report) = self.shared.segments.faults.take_changed() else { return Ok(()) };
        let value = report.encode();
        let mut ops = Vec::new();
        Redo::Put(self.own.id, KEY, &value).encode(&mut ops);
        let appended = log.writer.append(0, &[], ops.len(), |_| ops, false);
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        log.window_bytes += appended.written_bytes;
        count(&self.shared.counters.framing_bytes, appended.framing_bytes);
        let placed = self.own.replay_value(KEY, Some(&value));
        placed.inspect_err(|error| self.shared.fail(error))
    }

    /// Puts what changed into the tree, at the cut of a checkpoint.
    pub(super) fn place_faults(&self) -> Result<()> {
        self.take_device_errors();
        match self.shared.segments.faults.take_changed() {
            Some(report) => self.own.replay_value(KEY, Some(&report.encode())),
            None => Ok(()),
        }
    }

    /// Takes up what earlier openings have stored; and `batches` of the log that this one has found damaged. What cannot be read is told and
    /// begun anew: no pool is lost for want of its counts.
    pub(super) fn load_faults(&self, batches: u64) {
        let faults = &self.shared.segments.faults;
        let stored = self.own.get(&KEY).and_then(|stored| stored.as_deref().map(FaultReport::decode).transpose());
        match stored {
            Ok(stored) => faults.load(stored.unwrap_or_default()),
            Err(error) => tracing::error!(%error, "the counts of errors cannot be read and begin anew"),
        }
        for _ in 0..batches.min(LOG_BATCHES_MAX) {
            faults.count(Fault::Checksum, Subject::Log, None, 0);
        }
    }

    /// Counts damage that the pool's own work has met in a record, unless that was freed meanwhile.
    pub(super) fn count_met(&self, error: &Error) {
        if let Some(addr) = error.place().and_then(|at| at.addr)
            && self.shared.segments.is_live(addr).unwrap_or(true)
        {
            self.shared.segments.faults.count_error(error, Subject::Record(addr.original()));
        }
    }

    /// Takes over what the devices have counted themselves.
    fn take_device_errors(&self) {
        let counts = self.shared.devices.iter().map(|device| device.stats().counts());
        self.shared.segments.faults.take(counts.map(|counts| (counts.read_errors, counts.write_errors)));
    }
}

#[cfg(test)]
mod tests;
