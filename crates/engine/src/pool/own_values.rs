//! Values of the pool's own tree that are logged by themselves, between checkpoints.

use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::redo::{REDO_FIXED_BYTES, Redo};
use crate::dataset::{Dataset, count};
use crate::{Key, Result};

impl Pool {
    /// Logs the value that `take` returns, of `bytes_max` bytes at most, as that of `key`, durably. `take` is called
    /// with the log's lock held, as at a checkpoint: what changes later is stored later. On a full pool nothing is
    /// taken; the next checkpoint has room of its own.
    ///
    /// # Errors
    /// Of the devices; then the pool has failed.
    pub(super) fn store_own_value(
        &self,
        key: Key,
        bytes_max: usize,
        take: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Result<()> {
        let claim = (REDO_FIXED_BYTES + bytes_max) as u64;
        if self.shared.reserve(claim, 0, 0).is_err() {
            return Ok(());
        }
        let logged = self.log_own_value(key, take);
        self.shared.release(claim);
        logged?;
        self.flushes.flush().inspect_err(|error| self.shared.fail(error))
    }

    fn log_own_value(&self, key: Key, take: &dyn Fn() -> Option<Vec<u8>>) -> Result<()> {
        self.prepare_commit()?;
        // Once the log has the value, every opening has to put it into the tree.
        self.own.get(&key)?;
        let mut log = self.log.lock();
        self.check_failed()?;
        if self.shared.read_only.load(Ordering::Relaxed) {
            // The pool was exported meanwhile.
            return Ok(());
        }
        let Some(value) = take() else { return Ok(()) };
        let mut ops = Vec::new();
        Redo::Put(self.own.id, key, &value).encode(&mut ops);
        let appended = log.writer.append(0, &[], ops.len(), |_| ops, false);
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        log.window_bytes += appended.written_bytes;
        count(&self.shared.counters.framing_bytes, appended.framing_bytes);
        let placed = self.own.replay_value(key, Some(&value));
        placed.inspect_err(|error| self.shared.fail(error))
    }
}
