//! Times that callers waited before a change was accepted, by reason, so that the source of the longest waits can be
//! found.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of steps by which waits are counted. The step of a wait is the power of two below its length in microseconds.
const STEPS: usize = 24;

/// A reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Reason {
    /// The gate, while a commit or a checkpoint quiesces the pool.
    Gate,
    /// A commit: as much is accepted as may be, claims fill the pool or a quota, or writers are delayed so that commits
    /// keep up.
    Commit,
    /// A commit, because the journal or the list of operations is full.
    Log,
    /// Chunks: there was no room before the cleaner had worked.
    Room,
    /// The delay by which writers keep to what the cleaner gains.
    Delay,
    /// The whole time from beginning to end, where any of these was waited for.
    All,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 6] = [Self::Gate, Self::Commit, Self::Log, Self::Room, Self::Delay, Self::All];
}

/// Waits for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Waits by length: step n counts those of at least 2^n and less than 2^(n+1) microseconds, and step 0 also those
    /// below one microsecond.
    pub steps: [u64; STEPS],
    /// Longest wait.
    pub longest: Duration,
    /// Sum of all waits.
    pub total: Duration,
}

#[derive(Debug, Default)]
struct WaitCounters {
    steps: [AtomicU64; STEPS],
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
}

/// Waits by reason.
#[derive(Debug, Default)]
pub(crate) struct Waits([WaitCounters; Reason::ALL.len()]);

impl Waits {
    /// Calls `wait`, and counts the time that it takes.
    pub(super) fn time<T>(&self, reason: Reason, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = wait();
        self.note(reason, begun.elapsed());
        done
    }

    pub(super) fn note(&self, reason: Reason, took: Duration) {
        let Some(counted) = self.0.get(reason as usize) else { return };
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let step = (ns / 1000).checked_ilog2().unwrap_or(0) as usize;
        if let Some(step) = counted.steps.get(step.min(STEPS - 1)) {
            step.fetch_add(1, Ordering::Relaxed);
        }
        counted.longest_ns.fetch_max(ns, Ordering::Relaxed);
        counted.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the counts, and sets them to zero.
    pub(crate) fn take(&self, reason: Reason) -> Waited {
        let Some(counted) = self.0.get(reason as usize) else { return Waited::default() };
        let take = |number: &AtomicU64| number.swap(0, Ordering::Relaxed);
        let mut waited = Waited {
            longest: Duration::from_nanos(take(&counted.longest_ns)),
            total: Duration::from_nanos(take(&counted.total_ns)),
            ..Waited::default()
        };
        for (to, from) in waited.steps.iter_mut().zip(&counted.steps) {
            *to = take(from);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_length() {
        let waits = Waits::default();
        for us in [0, 1, 2, 3, 1000, 1_000_000_000] {
            waits.note(Reason::Room, Duration::from_micros(us));
        }
        let waited = waits.take(Reason::Room);
        assert_eq!((waited.steps[0], waited.steps[1], waited.steps[9], waited.steps[23]), (2, 2, 1, 1));
        assert_eq!(waited.longest, Duration::from_secs(1000));
        assert_eq!(waits.take(Reason::Room), Waited::default());
        assert_eq!(waits.take(Reason::Gate), Waited::default());
        assert_eq!(waits.time(Reason::Gate, || 3), 3);
        assert_eq!(waits.take(Reason::Gate).steps.iter().sum::<u64>(), 1);
    }
}
