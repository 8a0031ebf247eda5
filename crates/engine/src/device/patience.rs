//! The time for which a read of a member of a mirror is waited for before another member is asked, too.
//!
//! It follows from what the member's own reads took: a multiple of the time that about one of a hundred exceeds. That time
//! is followed by steps, so that nothing has to be kept: it falls by one part in [`FALL_PART`] with each read that took
//! less, and rises by one part in [`RISE_PART`] with each that took longer. It rests where both are equal, which is where
//! one of about 120 reads takes longer.
//!
//! When a device has hung, all reads that it had end at once. That happened once, so within the bound the time at most
//! doubles.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The bound is so many times the time that one read of a hundred exceeds.
const TIMES: u64 = 4;
/// Shortest and longest bound. A read that takes less than the shortest one is no reason to read twice.
const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 2_000_000_000;
/// Part of the time by which it falls with a read that took less, and rises with one that took longer: one in so many.
const FALL_PART: u64 = 1024;
const RISE_PART: u64 = 8;

/// Times that are told apart: outside of them the bound is the shortest or longest one.
const HIGH_MIN_NS: u64 = SHORTEST_NS / TIMES;
const HIGH_MAX_NS: u64 = LONGEST_NS / TIMES;

/// The time for which a read of a device is waited for.
#[derive(Debug)]
pub(super) struct Patience {
    /// Time that about one read of a hundred exceeds.
    high_ns: AtomicU64,
    /// The same when it began to rise last, and the instant of that.
    risen_from_ns: AtomicU64,
    risen_since_ns: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            high_ns: AtomicU64::new(HIGH_MIN_NS),
            risen_from_ns: AtomicU64::new(HIGH_MIN_NS),
            risen_since_ns: AtomicU64::new(0),
        }
    }
}

impl Patience {
    /// Returns the time after which a read is overdue, in nanoseconds.
    pub(super) fn bound_ns(&self) -> u64 {
        self.high_ns.load(Relaxed).saturating_mul(TIMES)
    }

    /// Notes that a read took so long, and has ended now. Of reads that end at the same time one may be lost.
    pub(super) fn note(&self, took_ns: u64, now_ns: u64) {
        let high = self.high_ns.load(Relaxed);
        if took_ns > high {
            self.rise(high, took_ns, now_ns);
        } else if high > HIGH_MIN_NS {
            self.high_ns.store((high - high / FALL_PART).max(HIGH_MIN_NS), Relaxed);
        }
    }

    fn rise(&self, high: u64, took_ns: u64, now_ns: u64) {
        let since = self.risen_since_ns.load(Relaxed);
        if since == 0 || now_ns.saturating_sub(since) > high.saturating_mul(TIMES) {
            self.risen_since_ns.store(now_ns.max(1), Relaxed);
            self.risen_from_ns.store(high, Relaxed);
        }
        let most = self.risen_from_ns.load(Relaxed).saturating_mul(2).min(took_ns).min(HIGH_MAX_NS);
        self.high_ns.store((high + high / RISE_PART).min(most).max(high), Relaxed);
    }
}

#[cfg(test)]
mod tests;
