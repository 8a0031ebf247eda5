//! Errors that were met: keeps their counts in the pool over openings, as a value in the pool's own tree.
//!
//! Every checkpoint puts changed counts into the tree. New errors are logged before that ([`Pool::store_new_faults`],
//! once a second at most), so that a crash takes back no more than counts that have not doubled. A pool that was opened
//! read-only, or has failed, counts in memory alone.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use super::Pool;
use crate::dataset::Dataset;
use crate::faults::{FaultKind, FaultReport, Subject};
use crate::limits::BASES_MAX;
use crate::tree::Value;
use crate::{Addr, Error, Key, Result};

/// Bytes by which the stored form may grow while it is being logged.
const GROWTH_BYTES: usize = 4096;
/// Largest number of damaged batches of one replay that are counted.
const LOG_BATCHES_MAX: u64 = 1 << 16;
/// Largest number of entries of trees among which the files of damaged records are looked for: some minutes. The next
/// is the number that is looked at between other things.
const SEARCHED_MAX: usize = 400_000_000;
const SEARCHED_AT_ONCE: usize = 4096;
/// Key of the counts in the pool's own tree.
const KEY: Key = Key::new(0, Key::FAULTS, 0);

/// Returns the key that follows `key`.
fn behind(key: Key) -> Key {
    match key.offset.checked_add(1) {
        Some(offset) => Key { offset, ..key },
        None => match key.kind.checked_add(1) {
            Some(kind) => Key::new(key.object, kind, 0),
            None => Key::new(key.object.saturating_add(1), 0, 0),
        },
    }
}

impl Pool {
    /// Returns the errors that were met since they were cleared, those of earlier openings included.
    pub fn faults(&self) -> FaultReport {
        self.take_device_errors();
        let mut report = self.shared.segments.faults.report();
        report.devices.resize_with(self.shared.devices.numbers(), Default::default);
        report
    }

    /// Forgets errors, of one device or all of them, at `now` (seconds since 1970). On return that is durable, unless
    /// the pool takes no changes or is full: then the next checkpoint stores it, if there is one. Returns what was
    /// forgotten.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the pool does not have; of storing it.
    pub fn clear_faults(&self, device: Option<u16>, now: u64) -> Result<FaultReport> {
        if device.is_some_and(|device| self.shared.devices.state(device).is_none()) {
            return Err(Error::Invalid("the pool has no such device".into()));
        }
        self.take_device_errors();
        let cleared = self.shared.segments.faults.clear(device, now);
        if self.shared.check_writable().is_ok() {
            self.store_faults()?;
            self.mend_suspects(device)?;
        }
        Ok(cleared)
    }

    /// Logs the counts if something new is among them.
    ///
    /// # Errors
    /// Of the devices; then the pool has failed.
    pub(crate) fn store_new_faults(&self) -> Result<()> {
        self.take_device_errors();
        if !self.shared.segments.faults.wants_store() || self.shared.check_writable().is_err() {
            return Ok(());
        }
        self.store_faults()
    }

    fn store_faults(&self) -> Result<()> {
        let faults = &self.shared.segments.faults;
        let most = faults.report().encode().len() + GROWTH_BYTES;
        self.store_own_value(KEY, most, &|| faults.take_changed().map(|report| report.encode()))
    }

    /// Puts changed counts into the tree, at the quiesce point of a checkpoint.
    pub(super) fn place_faults(&self) -> Result<()> {
        self.take_device_errors();
        match self.shared.segments.faults.take_changed() {
            Some(report) => self.own.replay_value(KEY, Some(&report.encode())),
            None => Ok(()),
        }
    }

    /// Loads the counts that earlier openings have stored, and counts `batches` of the log that this one has found
    /// damaged. Counts that cannot be read are reported and begin anew: no pool is lost for want of its counts.
    pub(super) fn load_faults(&self, batches: u64) {
        let faults = &self.shared.segments.faults;
        let stored =
            self.own.get(&KEY).and_then(|stored| stored.as_deref().map(FaultReport::decode).transpose());
        match stored {
            Ok(stored) => faults.load(stored.unwrap_or_default()),
            Err(error) => tracing::error!(%error, "the counts of errors cannot be read and begin anew"),
        }
        for _ in 0..batches.min(LOG_BATCHES_MAX) {
            faults.count(FaultKind::Checksum, Subject::Log, None, 0);
        }
    }

    /// Finds the files of records that are listed by their addresses alone, as a scrub lists them: in datasets first,
    /// then in snapshots, the newest first. Goes through whole trees, so it ends early when the pool is being closed,
    /// or when it has looked at [`SEARCHED_MAX`] entries.
    pub(super) fn name_struck(&self) {
        let faults = &self.shared.segments.faults;
        let mut wanted: HashSet<Addr> = faults.records().into_iter().collect();
        let mut versions: Vec<_> = {
            let catalogue = self.catalogue.read();
            let all = catalogue.versions.iter();
            all.map(|(id, version)| {
                (version.snapshot_of().is_some(), Reverse(*id), Arc::clone(&version.data))
            })
            .collect()
        };
        versions.sort_by_key(|(is_snapshot, id, _)| (*is_snapshot, *id));
        let mut left = SEARCHED_MAX;
        for (_, Reverse(dataset), data) in versions {
            let mut from = Key::FIRST;
            loop {
                if wanted.is_empty() || left == 0 || self.signal.lock().stop {
                    return;
                }
                // Files behind damage to the tree itself are not looked for.
                let Ok(entries) = data.tree.range(&from, &Key::LAST, SEARCHED_AT_ONCE.min(left)) else {
                    break;
                };
                left -= entries.len();
                for (key, value) in &entries {
                    if let Value::Page(ptr) = value
                        && wanted.remove(&ptr.addr)
                    {
                        let page =
                            if key.kind == Key::PAGE { key.offset } else { key.offset / BASES_MAX as u64 };
                        let size = data.record_size(key.object).unwrap_or_default();
                        let subject = Subject::Object { dataset, object: key.object };
                        faults.found(ptr.addr, subject, page.saturating_mul(size.into()));
                    }
                }
                match entries.last() {
                    Some((last, _)) if *last < Key::LAST => from = behind(*last),
                    _ => break,
                }
            }
        }
    }

    /// Counts damage that the pool's own work has met in a record, unless the record was freed meanwhile.
    pub(super) fn count_met(&self, error: &Error) {
        if let Some(addr) = error.place().and_then(|at| at.addr)
            && self.shared.segments.is_live(addr).unwrap_or(true)
        {
            self.shared.segments.faults.count_error(error, Subject::Record(addr.original()));
        }
    }

    /// Takes over the errors that the devices have counted themselves.
    fn take_device_errors(&self) {
        let here = self.shared.devices.here();
        let counts = here.iter().map(|device| (device.number, device.one().counts()));
        let errors = counts.map(|(number, counts)| (number, (counts.read_errors, counts.write_errors)));
        self.shared.segments.faults.take(errors);
    }
}

#[cfg(test)]
mod tests;
