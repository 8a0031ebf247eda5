//! State of a device while it is open: the counters of its requests, and its queue, which goes by them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::class::{IoClass, IoKind};
use super::queue::{IoQueue, IoTurn};
use super::stats::{DeviceCounters, DeviceCounts, RequestCounts, RequestStats};

/// Counters of a device, to which those who make requests add, and the queue in which some of these wait for their turns.
#[derive(Debug, Default)]
pub struct DeviceStats {
    counters: DeviceCounters,
    queue: IoQueue,
    hedged: AtomicU64,
    hedges_won: AtomicU64,
}

/// Reads of a device of a mirror that were sent to another one, too, because they were overdue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HedgeCounts {
    /// Reads that were sent to another device, too.
    pub hedged: u64,
    /// Those of them that the other device answered first.
    pub won: u64,
}

impl DeviceStats {
    pub(super) fn of(&self, class: IoClass, kind: IoKind) -> &RequestStats {
        self.counters.of(class, kind)
    }

    /// Returns the present values of the counters, by class and kind; those of requests that were never made are left
    /// out.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestCounts> {
        self.counters.requests()
    }

    /// Returns the present sums of the counters.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        self.counters.counts()
    }

    /// Returns the number of its reads that were sent to another device, too.
    #[must_use]
    pub fn hedges(&self) -> HedgeCounts {
        HedgeCounts { hedged: self.hedged.load(Relaxed), won: self.hedges_won.load(Relaxed) }
    }

    /// Counts a read that is sent to another device, too.
    pub(super) fn hedge(&self) {
        self.hedged.fetch_add(1, Relaxed);
    }

    /// Counts a read that another device has answered before this one.
    pub(super) fn hedge_won(&self) {
        self.hedges_won.fetch_add(1, Relaxed);
    }

    /// See [`IoQueue::wait`].
    pub(super) fn wait(&self, class: IoClass, place: (u64, u64), wanted: usize) -> IoTurn<'_> {
        self.queue.wait(&self.counters, class, place, wanted)
    }

    /// See [`IoQueue::hurry`].
    pub(super) fn hurry(&self, class: IoClass, hurried: bool) {
        self.queue.hurry(class, hurried);
    }

    /// See [`IoQueue::piece_bytes`].
    pub(super) fn piece_bytes(&self, class: IoClass) -> u64 {
        self.queue.piece_bytes(&self.counters, class)
    }
}
