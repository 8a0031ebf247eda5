//! The time that reads of a device take.
//!
//! The members of a mirror that are about as fast are read in turn; one that is much slower is left to those who would
//! wait longer for the others. A device may be slow for a while, so its time is forgotten: a second later it counts for
//! half, and in the end the device is tried again. So this is no mean that [`super::stats`] could tell.
//!
//! A read that is overdue ([`Patience`]) counts before it has ended: the device takes at least as long as that read has
//! been under way.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::patience::Patience;
use super::stats::{Began, now_ns};

/// A device that takes more than this many times as long as the fastest one is slow.
const SLOW: u64 = 4;
/// Part that a read has in the mean: one in this many.
const MEAN_PART: u64 = 8;

/// Time for which a read that failed counts.
const FAILURE_NS: u64 = 1_000_000_000;

/// Mean time of the reads of a device, of which the last ones count most.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// Mean in nanoseconds; 0 before the first read.
    mean_ns: AtomicU64,
    /// Time of the last read.
    noted_ns: AtomicU64,
    /// Number of reads under way that are overdue, and the time at which the first of them began.
    overdue: AtomicU32,
    overdue_since_ns: AtomicU64,
    /// True if it was told that reads are overdue for long.
    is_told: AtomicBool,
    patience: Patience,
}

impl Latency {
    /// Notes a read that has ended, and took so long.
    pub(super) fn note(&self, took_ns: u64) {
        let now = now_ns();
        let mean = self.at(now);
        let took = took_ns.max(1);
        let next = if mean == 0 { took } else { mean - mean / MEAN_PART + took / MEAN_PART };
        // Of reads that end at the same time one may be lost, which the mean does not need.
        self.mean_ns.store(next.max(1), Ordering::Relaxed);
        self.noted_ns.store(now, Ordering::Relaxed);
        self.patience.note(took, now);
    }

    /// Returns how long a read of the device is waited for before another one is asked, too.
    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Notes that a read that began then is overdue. [`Latency::overdue_ended`] has to follow.
    pub(super) fn overdue(&self, began: Began) {
        if self.overdue.fetch_add(1, Ordering::Relaxed) == 0 {
            self.overdue_since_ns.store(began.ns(), Ordering::Relaxed);
        }
    }

    /// Notes that a read that was overdue has ended.
    pub(super) fn overdue_ended(&self) {
        if self.overdue.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    /// Returns true if it has to be told that reads are overdue for long: once, until none is overdue any more.
    pub(super) fn is_to_be_told(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Notes that a read failed, however soon: as if it had taken a second.
    pub(super) fn note_failure(&self) {
        self.mean_ns.store(FAILURE_NS, Ordering::Relaxed);
        self.noted_ns.store(now_ns(), Ordering::Relaxed);
    }

    fn at(&self, now: u64) -> u64 {
        let idle_s = now.saturating_sub(self.noted_ns.load(Ordering::Relaxed)) / 1_000_000_000;
        self.mean_ns.load(Ordering::Relaxed) >> idle_s.min(63)
    }

    /// Returns the mean time of a read, in nanoseconds, or the age of one that is overdue; 0 if it is not known, or not
    /// any more.
    pub(super) fn ns(&self) -> u64 {
        let now = now_ns();
        let mean = self.at(now);
        if self.overdue.load(Ordering::Relaxed) == 0 {
            return mean;
        }
        mean.max(now.saturating_sub(self.overdue_since_ns.load(Ordering::Relaxed)))
    }
}

/// Returns how much a further read of a device has to wait, if so many are under way: in reads of the fastest device,
/// which takes `fastest_ns`. Devices that are about as fast differ by the reads under way alone.
pub(super) const fn wait(reads: u32, latency_ns: u64, fastest_ns: u64) -> u64 {
    let turns = reads as u64 + 1;
    match latency_ns.checked_div(fastest_ns) {
        Some(times) if times >= SLOW => turns.saturating_mul(times),
        _ => turns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_mean_follows_the_reads_and_is_forgotten() {
        let latency = Latency::default();
        assert_eq!(latency.ns(), 0);
        latency.mean_ns.store(80_000, Ordering::Relaxed);
        latency.noted_ns.store(5 * S, Ordering::Relaxed);
        assert_eq!([5, 6, 8, 90].map(|second| latency.at(second * S)), [80_000, 40_000, 10_000, 0]);
        let latency = Latency::default();
        latency.note(1);
        let before = latency.ns();
        assert!(before > 0);
        latency.note_failure();
        assert!(latency.ns() > before, "a failure comes soon, and says nothing good");
    }

    #[test]
    fn a_read_that_is_overdue_counts_before_it_ends() {
        let latency = Latency::default();
        latency.note(1000);
        let began = Began::now();
        latency.overdue(began);
        latency.overdue(began);
        while began.elapsed_ns() < 2_000_000 {
            std::thread::yield_now();
        }
        assert!(latency.ns() >= 2_000_000);
        latency.overdue_ended();
        assert!(latency.ns() >= 2_000_000, "the other one is under way");
        latency.overdue_ended();
        assert!(latency.ns() <= 1000);
    }

    #[test]
    fn a_slow_device_is_read_when_the_others_are_busier_still() {
        assert_eq!(wait(0, 100, 100), wait(0, 399, 100));
        assert!(wait(0, 10_000, 100) > wait(50, 100, 100));
        assert!(wait(0, 10_000, 100) < wait(200, 100, 100));
        assert_eq!(wait(3, 0, 0), 4, "nothing is known");
    }
}
