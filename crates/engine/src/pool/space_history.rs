//! The pool's space over time, kept as a value in the pool's own tree: by that its owner is told when it will be full,
//! whichever machine and server asks.
//!
//! A new sample, once an hour at most, is logged by itself ([`Pool::store_history`]), so that a crash takes back no more
//! than that hour, however slowly the pool is written to. What could not be logged is stored by the next checkpoint. A
//! pool that was opened read-only takes no samples.

use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::Dataset;
use crate::history::{Forecast, SpaceHistory, SpaceSample};
use crate::{Key, Result};

/// Key of the samples in the pool's own tree.
const KEY: Key = Key::new(0, Key::SPACE, 0);
/// Upper bound of their stored form, in bytes.
const STORED_BYTES_MAX: usize = 4096;

/// The samples of an open pool.
#[derive(Debug, Default)]
pub(super) struct KeptHistory {
    history: SpaceHistory,
    /// True if they are not in the log or tree as they are here.
    is_new: bool,
}

impl Pool {
    /// Takes a sample of the pool's space if one is due at `now`, in seconds since 1970. To be called at least once an
    /// hour.
    pub fn note_space(&self, now: u64) {
        if self.shared.check_writable().is_err() || !self.space_history.lock().history.wants(now) {
            return;
        }
        let sample = self.sample(now);
        let mut kept = self.space_history.lock();
        kept.is_new |= kept.history.observe(sample);
    }

    /// Returns the samples that were taken, oldest first.
    pub fn space_history(&self) -> SpaceHistory {
        self.space_history.lock().history.clone()
    }

    /// Returns when the pool is full if it goes on growing as it has; `None` as long as it has less than a day of
    /// history at `now`, in seconds since 1970.
    pub fn forecast(&self, now: u64) -> Option<Forecast> {
        let limit_bytes = self.shared.bounds.get().capacity_bytes;
        let limit_bytes = limit_bytes.saturating_sub(self.shared.reserved_bytes.load(Ordering::Acquire));
        let sample = self.sample(now);
        self.space_history.lock().history.forecast(sample, limit_bytes)
    }

    fn sample(&self, time: u64) -> SpaceSample {
        let (used_bytes, logical_bytes) = (self.shared.space().used_bytes, self.page_totals().logical_bytes);
        SpaceSample { time, used_bytes, logical_bytes }
    }

    /// Logs the samples, if there is a new one.
    ///
    /// # Errors
    /// Of the devices; then the pool has failed.
    pub(super) fn store_history(&self) -> Result<()> {
        if !self.space_history.lock().is_new || self.shared.check_writable().is_err() {
            return Ok(());
        }
        self.store_own_value(KEY, STORED_BYTES_MAX, &|| self.take_new_history())
    }

    /// Puts new samples into the tree, at the quiesce point of a checkpoint.
    pub(super) fn place_history(&self) -> Result<()> {
        self.take_new_history().map_or(Ok(()), |value| self.own.replay_value(KEY, Some(&value)))
    }

    fn take_new_history(&self) -> Option<Vec<u8>> {
        let mut kept = self.space_history.lock();
        std::mem::take(&mut kept.is_new).then(|| kept.history.encode())
    }

    /// Loads the samples that earlier openings have stored. Samples that cannot be read are reported and begin anew: no
    /// pool is lost for want of them.
    pub(super) fn load_history(&self) {
        let stored = self.own.get(&KEY);
        let stored = stored.and_then(|stored| stored.as_deref().map(SpaceHistory::decode).transpose());
        match stored {
            Ok(stored) => self.space_history.lock().history = stored.unwrap_or_default(),
            Err(error) => {
                tracing::error!(%error, "what the pool held before cannot be read; forecasts begin anew");
            }
        }
    }
}

#[cfg(test)]
mod tests;
