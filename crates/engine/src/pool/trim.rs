//! Trims: devices are told which chunks hold nothing, so that a thin volume, a sparse file or a drive can use them for something else.
//!
//! `Pool::trim_start` and [`Pool::trim_step`] go through all that is free once; with [`Pool::set_autotrim`] what becomes free is told by the way. What may be
//! discarded, and when, is the affair of [`crate::space`] (S2).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::device::Device;
use crate::limits::CHUNK_BYTES;
use crate::space::{Untrimmed, stretches};
use crate::{Error, Result};

/// Chunks that are discarded at a time, at most: a quarter of a GiB.
const STEP_CHUNKS: u64 = 64;

/// How far a trim is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrimState {
    /// There was none since the pool was opened.
    #[default]
    Never,
    /// It is under way.
    Running,
    /// It was stopped.
    Stopped,
    /// It has come to its end.
    Finished,
}

/// The last trim since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimStatus {
    /// How far it is.
    pub state: TrimState,
    /// Seconds since 1970 at which it was started.
    pub started: u64,
    /// Seconds since 1970 at which it came to its end.
    pub finished: u64,
    /// Bytes that devices were told of.
    pub done_bytes: u64,
    /// Bytes that there were to tell of when it was started.
    pub total_bytes: u64,
    /// Most bytes per second; 0: as many as there can be.
    pub rate: u64,
    /// Discards that failed.
    pub errors: u64,
}

impl Pool {
    /// The last trim since the pool was opened.
    pub fn trim_status(&self) -> TrimStatus {
        *self.trim.lock()
    }

    /// Free bytes of which devices that take discards were not told since the pool was opened.
    pub fn untrimmed_bytes(&self) -> u64 {
        self.chunks.untrimmed(Untrimmed::All, &|device| self.discards(device)) * CHUNK_BYTES
    }

    /// Begins to tell devices of all that is free, at most `rate` bytes per second (0: as fast as they go). Makes a checkpoint first, after which
    /// what was deleted before is free.
    ///
    /// # Errors
    /// [`Error::Busy`] while one is under way, [`Error::ReadOnly`], [`Error::Unsupported`] where no device takes discards; those of a checkpoint.
    pub fn trim_start(&self, now: u64, rate: u64) -> Result<()> {
        self.shared.check_writable()?;
        if self.trim.lock().state == TrimState::Running {
            return Err(Error::Busy("a trim is under way".into()));
        }
        if !self.shared.devices.iter().any(|device| device.discards()) {
            return Err(Error::Unsupported(format!(
                "no device of pool '{}' takes discards; a file does if it was sparse when it was opened",
                self.name()
            )));
        }
        self.checkpoint(false)?;
        let total_bytes = self.untrimmed_bytes();
        let state = TrimState::Running;
        *self.trim.lock() = TrimStatus { state, started: now, total_bytes, rate, ..TrimStatus::default() };
        Ok(())
    }

    /// Stops the trim that is under way; false: there is none.
    pub fn trim_stop(&self) -> bool {
        let mut trim = self.trim.lock();
        let running = trim.state == TrimState::Running;
        if running {
            trim.state = TrimState::Stopped;
        }
        running
    }

    /// The next step of a trim that is under way. Returns the bytes that were discarded; `None`: there is nothing to do.
    ///
    /// # Errors
    /// Of devices. The chunks that were to be discarded are passed over, and the pool is as good as before.
    pub fn trim_step(&self, now: u64) -> Result<Option<u64>> {
        let TrimStatus { state, rate, .. } = self.trim_status();
        if state != TrimState::Running {
            return Ok(None);
        }
        // Not much more at once than a second is good for.
        let most = if rate == 0 { STEP_CHUNKS } else { (rate / CHUNK_BYTES).clamp(1, STEP_CHUNKS) };
        let done = self.discard_some(Untrimmed::All, most);
        let mut trim = self.trim.lock();
        match done {
            Ok(Some(bytes)) => trim.done_bytes += bytes,
            Err(_) => trim.errors += 1,
            Ok(None) if trim.state == TrimState::Running => {
                (trim.state, trim.finished) = (TrimState::Finished, now);
            }
            Ok(None) => {}
        }
        done
    }

    /// Whether devices are told by the way of what becomes free.
    pub fn autotrim(&self) -> bool {
        self.autotrim.load(Ordering::Relaxed)
    }

    /// Has devices be told by the way of what becomes free from now on, or not.
    pub fn set_autotrim(&self, on: bool) {
        self.autotrim.store(on, Ordering::Relaxed);
    }

    /// Tells a device of some of what became free lately, if that is wanted. Returns the bytes that were discarded; `None`: there is nothing to do.
    ///
    /// # Errors
    /// As of [`Pool::trim_step`].
    pub fn autotrim_step(&self) -> Result<Option<u64>> {
        if self.autotrim() { self.discard_some(Untrimmed::Fresh, STEP_CHUNKS) } else { Ok(None) }
    }

    fn discard_some(&self, which: Untrimmed, most: u64) -> Result<Option<u64>> {
        if self.shared.check_writable().is_err() {
            return Ok(None);
        }
        let discard =
            &mut |device: u16, chunks: Range<u64>| match self.shared.devices.get(usize::from(device)) {
                Some(device) => discard_chunks(device.as_ref(), chunks),
                None => Ok(()),
            };
        let done = self.chunks.trim(which, most, &|device| self.discards(device), discard)?;
        Ok(done.map(|chunks| chunks * CHUNK_BYTES))
    }

    fn discards(&self, device: u16) -> bool {
        self.shared.devices.get(usize::from(device)).is_some_and(|device| device.discards())
    }
}

/// Tells a device that some of its chunks hold nothing.
pub(super) fn discard_chunks(device: &dyn Device, chunks: Range<u64>) -> Result<()> {
    stretches(chunks).into_iter().try_for_each(|(offset, len_bytes)| device.discard(offset, len_bytes))
}
