//! Tells devices which chunks hold nothing, so that a thin volume, a sparse file or a drive can use their space for
//! something else.
//!
//! `Pool::trim_start` and [`Pool::trim_step`] go through all free chunks once; with [`Pool::set_autotrim`] devices are
//! also told in passing of chunks that become free. [`crate::space`] decides what may be discarded, and when (S2).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Pool;
use super::pack::Begun;
use crate::device::Devices;
use crate::limits::CHUNK_BYTES;
use crate::space::{Untrimmed, stretches};
use crate::{Error, Result};

/// Largest number of chunks that are discarded at a time: a quarter of a GiB.
const STEP_CHUNKS: u64 = 64;

/// Smallest number of chunks for which an idle pool makes a checkpoint, so that they can be discarded. A checkpoint itself
/// leaves fewer.
const CHECKPOINT_CHUNKS: u64 = 4;

/// Discarding by the way takes one part in this many of the time: some drives do nothing else meanwhile.
const AUTOTRIM_SHARE: u32 = 8;

/// A step of discarding by the way that takes longer than the first is followed by a smaller one; one that takes less than
/// the second, by a larger one.
const LONG_STEP: Duration = Duration::from_millis(200);
const SHORT_STEP: Duration = Duration::from_millis(50);

/// Longest rest after a step of discarding by the way, however long that took.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The number of chunks that a step of autotrim discards, and the rest after it. A busy device, or one that writes out what it
/// had in memory first, takes seconds for many chunks: with a share of the time alone, a minute would pass until the
/// next ones.
#[derive(Debug)]
pub(super) struct AutotrimPace {
    most_chunks: u64,
}

impl Default for AutotrimPace {
    fn default() -> Self {
        Self { most_chunks: STEP_CHUNKS }
    }
}

impl AutotrimPace {
    /// Takes note that a step took so long. Returns how long to rest.
    pub(super) fn rest_after(&mut self, took: Duration) -> Duration {
        if took > LONG_STEP {
            self.most_chunks = (self.most_chunks / 4).max(1);
        } else if took < SHORT_STEP {
            self.most_chunks = (self.most_chunks * 2).min(STEP_CHUNKS);
        }
        (took * (AUTOTRIM_SHARE - 1)).min(LONGEST_REST)
    }
}

/// Stage that a trim has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrimState {
    /// There was no trim since the pool was opened.
    #[default]
    Never,
    /// The trim is under way.
    Running,
    /// The trim was stopped.
    Stopped,
    /// The trim has come to its end.
    Finished,
}

/// State of the last trim since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimStatus {
    /// Stage that it has reached.
    pub state: TrimState,
    /// Time at which it was started, in seconds since 1970.
    pub started: u64,
    /// Time at which it came to its end, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that devices were told of.
    pub done_bytes: u64,
    /// Bytes that devices had not been told of when it was started.
    pub total_bytes: u64,
    /// Largest number of bytes per second; 0: no bound.
    pub rate: u64,
    /// Number of discards that failed.
    pub errors: u64,
}

impl Pool {
    /// Returns the state of the last trim since the pool was opened.
    pub fn trim_status(&self) -> TrimStatus {
        *self.trim.lock()
    }

    /// Returns the free bytes that devices which take discards were not told of since the pool was opened.
    pub fn untrimmed_bytes(&self) -> u64 {
        self.chunks.untrimmed(Untrimmed::All, &|device| self.discards(device)) * CHUNK_BYTES
    }

    /// Begins to tell devices of all free chunks, at most `rate` bytes per second (0: no bound), at `now` (seconds
    /// since 1970). Makes a checkpoint first, so that the chunks of what was deleted before are free.
    ///
    /// # Errors
    /// [`Error::Busy`] while a trim is under way; [`Error::ReadOnly`]; [`Error::Unsupported`] if no device takes
    /// discards; errors of a checkpoint.
    pub fn trim_start(&self, now: u64, rate: u64) -> Result<()> {
        self.shared.check_writable()?;
        if self.trim.lock().state == TrimState::Running {
            return Err(Error::Busy("a trim is under way".into()));
        }
        if !self.any_discards() {
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

    /// Stops the trim that is under way; returns false if there is none.
    pub fn trim_stop(&self) -> bool {
        let mut trim = self.trim.lock();
        let running = trim.state == TrimState::Running;
        if running {
            trim.state = TrimState::Stopped;
        }
        running
    }

    /// Does the next step of a trim that is under way. Returns the bytes that were discarded, or `None` if there is
    /// nothing to do.
    ///
    /// # Errors
    /// Errors of devices. The trim goes on after the chunks that could not be discarded, and the pool is as good as
    /// before.
    pub fn trim_step(&self, now: u64) -> Result<Option<u64>> {
        let TrimStatus { state, rate, .. } = self.trim_status();
        if state != TrimState::Running {
            return Ok(None);
        }
        // One step discards no more than the rate allows in a second, but at least a chunk.
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

    /// Returns true if devices are told in passing of chunks that become free.
    pub(crate) fn autotrim(&self) -> bool {
        self.autotrim.load(Ordering::Relaxed)
    }

    /// Sets whether devices are told in passing of chunks that become free.
    pub fn set_autotrim(&self, on: bool) {
        self.autotrim.store(on, Ordering::Relaxed);
    }

    /// Tells a device of some chunks that became free lately, if autotrim is on. Returns the bytes that were discarded,
    /// or `None` if there is nothing to do.
    ///
    /// # Errors
    /// As [`Pool::trim_step`].
    pub fn autotrim_step(&self) -> Result<Option<u64>> {
        self.autotrim_step_at(&AutotrimPace::default())
    }

    /// As [`Pool::autotrim_step`], with as many chunks as the pace allows.
    pub(super) fn autotrim_step_at(&self, pace: &AutotrimPace) -> Result<Option<u64>> {
        if self.autotrim() { self.discard_some(Untrimmed::Fresh, pace.most_chunks) } else { Ok(None) }
    }

    /// Makes a checkpoint if that frees chunks that autotrim then discards: an idle pool makes none by itself, however much
    /// was deleted. `stuck` is the number of chunks that the last call could not free: they wait for others.
    ///
    /// # Errors
    /// Those of a checkpoint, and of a pass of the cleaner.
    pub(super) fn free_for_autotrim(&self, stuck: &mut u64) -> Result<()> {
        if !self.autotrim() || !self.any_discards() || self.shared.check_writable().is_err() {
            return Ok(());
        }
        let dead = self.dead_chunks();
        *stuck = dead.min(*stuck);
        if self.chunks.pending_free() + dead - *stuck < CHECKPOINT_CHUNKS {
            return Ok(());
        }
        let mut state = self.maintenance.lock();
        self.checkpoint_locked(&mut state, false)?;
        // Segments of which parts lie in these chunks have records that live elsewhere. A pass takes the chunks from them,
        // and writes next to nothing.
        let is_dead = |begun: &Begun| {
            self.shared.segments.occupied(begun.chunk).is_some_and(|occupied| occupied.packed_bytes() == 0)
        };
        let begun = [state.cleaner.begun, state.copies.begun].into_iter().flatten().filter(is_dead).count();
        let dead = self.dead_chunks().saturating_sub(begun as u64);
        if dead >= CHECKPOINT_CHUNKS && self.clean_pass(&mut state, dead)?.is_some() {
            self.checkpoint_locked(&mut state, false)?;
        }
        *stuck = self.dead_chunks();
        self.restore_room(&mut state)
    }

    fn dead_chunks(&self) -> u64 {
        let open = self.log.lock().writer.position().segment;
        self.shared.segments.dead_chunks(open)
    }

    fn discard_some(&self, which: Untrimmed, most: u64) -> Result<Option<u64>> {
        if self.shared.check_writable().is_err() {
            return Ok(None);
        }
        let discard =
            &mut |device: u16, chunks: Range<u64>| discard_chunks(&self.shared.devices, device, chunks);
        let done = self.chunks.trim(which, most, &|device| self.discards(device), discard)?;
        Ok(done.map(|chunks| chunks * CHUNK_BYTES))
    }

    fn any_discards(&self) -> bool {
        self.shared.devices.here().iter().any(|device| device.one().discards())
    }

    fn discards(&self, device: u16) -> bool {
        self.shared.devices.discards(device)
    }
}

/// Tells a device that some of its chunks hold nothing.
pub(super) fn discard_chunks(devices: &Devices, device: u16, chunks: Range<u64>) -> Result<()> {
    let mut stretches = stretches(chunks).into_iter();
    stretches.try_for_each(|(offset, len_bytes)| devices.discard(device, offset, len_bytes))
}

#[cfg(test)]
mod tests;
