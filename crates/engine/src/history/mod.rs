//! The space of a pool over time: a few samples, and the forecast that follows from them.
//!
//! - Z1: the samples are bounded: [`HOURLY_MAX`] of the last hours, [`DAILY_MAX`] of the days before.
//! - Z2: their times ascend, and none is later than the clock of the last call of [`SpaceHistory::observe`] that was
//!   believed.
//!
//! Between two samples nothing has changed, or not an hour has passed. So the value at any instant is that of the
//! sample before it.

mod forecast;

pub use forecast::{DAY_SECONDS, Forecast, Outlook};

use crate::wire::{Reader, put_varint};
use crate::{Error, Result};

/// Seconds between two samples.
pub const HOUR_SECONDS: u64 = 3600;
/// Largest number of samples that are kept however close they are.
pub const HOURLY_MAX: usize = 48;
/// Largest number of samples before these, one a day.
pub const DAILY_MAX: usize = 28;
/// 2026-01-01 in seconds since 1970: a clock that is before it was never set.
const CLOCK_MIN: u64 = 1_767_225_600;
/// Version of the stored form.
const VERSION: u8 = 1;

/// The space of a pool at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceSample {
    /// Time in seconds since 1970.
    pub time: u64,
    /// Stored bytes in use.
    pub used_bytes: u64,
    /// Bytes of all pages before compression.
    pub logical_bytes: u64,
}

impl SpaceSample {
    fn holds_as(&self, other: &Self) -> bool {
        (self.used_bytes, self.logical_bytes) == (other.used_bytes, other.logical_bytes)
    }
}

/// Samples of a pool's space, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceHistory {
    samples: Vec<SpaceSample>,
}

impl SpaceHistory {
    /// Returns the samples, oldest first.
    pub fn samples(&self) -> &[SpaceSample] {
        &self.samples
    }

    /// Returns true if [`SpaceHistory::observe`] might take a sample at `time`.
    pub fn wants(&self, time: u64) -> bool {
        let is_due = |last: &SpaceSample| time < last.time || time - last.time >= HOUR_SECONDS;
        time >= CLOCK_MIN && self.samples.last().is_none_or(is_due)
    }

    /// Takes a sample, if an hour has passed since the last one and something has changed, or a day has passed. Returns
    /// true if the samples have changed.
    ///
    /// A clock that was set back takes with it the samples that are later than it: they were of a wrong clock. One that
    /// was never set is not believed.
    pub fn observe(&mut self, now: SpaceSample) -> bool {
        if now.time < CLOCK_MIN {
            return false;
        }
        let before = self.samples.len();
        self.samples.retain(|sample| sample.time <= now.time);
        let is_cut = self.samples.len() < before;
        if let Some(last) = self.samples.last() {
            let age = now.time - last.time;
            if age < HOUR_SECONDS || (age < DAY_SECONDS && now.holds_as(last)) {
                return is_cut;
            }
        }
        self.samples.push(now);
        self.thin_out();
        true
    }

    /// Keeps the newest samples, and of those before them the first one of each day.
    fn thin_out(&mut self) {
        let older = self.samples.len().saturating_sub(HOURLY_MAX);
        let (mut at, mut day) = (0, None);
        self.samples.retain(|sample| {
            let is_older = at < older;
            at += 1;
            let of = sample.time / DAY_SECONDS;
            !is_older || day.replace(of) != Some(of)
        });
        let surplus = self.samples.len().saturating_sub(HOURLY_MAX + DAILY_MAX);
        self.samples.drain(..surplus);
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.samples.len() as u64);
        let mut before = 0;
        for sample in &self.samples {
            put_varint(&mut out, sample.time - before);
            put_varint(&mut out, sample.used_bytes);
            put_varint(&mut out, sample.logical_bytes);
            before = sample.time;
        }
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `bytes` are no samples; [`Error::Unsupported`] for those of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "history of space");
        match reader.u8()? {
            VERSION => {}
            version => {
                return Err(Error::Unsupported(format!(
                    "the history of space has version {version}, not {VERSION}"
                )));
            }
        }
        let count = reader.varint()?;
        if count > (HOURLY_MAX + DAILY_MAX) as u64 {
            return Err(reader.bad("it has too many samples"));
        }
        let mut samples: Vec<SpaceSample> = Vec::new();
        for _ in 0..count {
            let before = samples.last().map_or(0, |last| last.time);
            let step = reader.varint()?;
            let time = before.checked_add(step).filter(|_| step > 0);
            let time = time.ok_or_else(|| reader.bad("its times do not ascend"))?;
            let (used_bytes, logical_bytes) = (reader.varint()?, reader.varint()?);
            samples.push(SpaceSample { time, used_bytes, logical_bytes });
        }
        reader.end()?;
        Ok(Self { samples })
    }
}

#[cfg(test)]
mod tests;
