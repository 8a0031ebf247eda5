//! Takes exports away, and completes their ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagefold_engine::pool::Pool;

use super::export::StopMode;
use super::exports::Exports;
use super::mounted::Mounted;
use crate::control::UnmountMode;
use crate::{raw, timeouts};

/// The part of a server that ends exports. Each export has a thread that waits for its end and calls
/// [`Stopping::ended`].
pub(super) struct Stopping {
    pub(super) pool: Arc<Pool>,
    pub(super) exports: Arc<Exports>,
    /// True if the pool is open read-only.
    pub(super) read_only: bool,
}

impl Stopping {
    /// Takes mounts away, the last in the list first. Returns the directory of a mount that is in use; it and those
    /// before it in the list stay. By force or lazily, a mount that cannot be taken away keeps no other from going.
    pub(super) fn detach(
        &self,
        mounts: &[Arc<Mounted>],
        mode: UnmountMode,
    ) -> Result<Option<PathBuf>, String> {
        let mut failed = None;
        for mounted in mounts.iter().rev() {
            let stopped = match mode {
                UnmountMode::Force => self.cut_off(mounted).map(|()| None),
                UnmountMode::Lazy => mounted.export.stop(StopMode::Lazy),
                UnmountMode::Normal => mounted.export.stop(StopMode::Idle),
            };
            match stopped {
                Ok(None) => {}
                Ok(Some(in_use)) => return Ok(Some(in_use)),
                Err(error) if mode == UnmountMode::Normal => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (mode, failed) {
            (UnmountMode::Force, failed) => self.end_cut_off(mounts, failed)?,
            (_, Some(error)) => return Err(error),
            (_, None) => {}
        }
        Ok(None)
    }

    /// Completes the end of mounts whose users were cut off. If nothing else is mounted, the pool is closed, no matter
    /// who still holds the mounts, or whether one of them could not be taken away, which `failed` tells: it ends with this
    /// process. Otherwise their file systems are in use until the last requests were answered.
    fn end_cut_off(&self, mounts: &[Arc<Mounted>], failed: Option<String>) -> Result<(), String> {
        let goes = |mounted: &Arc<Mounted>| mounts.iter().any(|other| Arc::ptr_eq(other, mounted));
        if self.exports.all().iter().all(goes) {
            if let Some(error) = failed {
                tracing::warn!(error, "a mount that cannot be taken away has no server from now on");
            }
            self.exports.cut_streams(false);
            mounts.iter().for_each(|mounted| self.ended(mounted));
            return Ok(());
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for mounted in mounts {
            if self.exports.wait_until_ended(mounted, Some(timeouts::CUT_OFF)).is_none() {
                let dir = raw::text(mounted.export.place());
                return Err(format!(
                    "{dir} is detached, and the programs that have files there open keep it in use"
                ));
            }
        }
        Ok(())
    }

    /// Takes a mount away and ends its connection; programs that still use it get errors.
    fn cut_off(&self, mounted: &Mounted) -> Result<(), String> {
        mounted.export.stop(StopMode::CutOff)?;
        if self.exports.wait_until_ended(mounted, Some(timeouts::CUT_OFF_GRACE)).is_some() {
            return Ok(());
        }
        if let Err(error) = mounted.export.stop(StopMode::Abort) {
            // The connection ends with this process at the latest; the pool refuses changes before that.
            tracing::warn!(%error, "cannot end the connection to the kernel");
        }
        Ok(())
    }

    /// Handles the end of a mount: makes its data durable, and removes it from the list.
    pub(super) fn ended(&self, mounted: &Mounted) {
        if mounted.ending.swap(true, Ordering::AcqRel) {
            return;
        }
        // Syncing comes first: the user who unmounted it has been told already that the mount is gone.
        let synced = if self.read_only { Ok(()) } else { self.sync() };
        tracing::info!(dir = raw::text(mounted.export.place()), "unmounted");
        mounted.kept.ended();
        let settled = mounted.settle();
        let mut outcome = synced.and(settled);
        if outcome.is_ok() && self.exports.all().len() > 1 && !self.read_only {
            outcome = self.sync();
        }
        if let Err(error) = &outcome {
            tracing::error!(error, "what was written last may not be durable");
        }
        self.exports.left(mounted, outcome);
    }

    /// Makes everything written so far durable, whatever the `sync` property says.
    pub(super) fn sync(&self) -> Result<(), String> {
        self.pool.sync().map_err(|error| error.to_string())
    }
}
