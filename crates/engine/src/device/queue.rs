//! The queue of a device: requests that nobody waits for begin when it is their turn.
//!
//! - X1: reads that somebody waits for, commits and checkpoints never wait for a request of another class. (Labels that a
//!   commit waits for, and what is written under the log's lock, are among what checkpoints write.) They pass without
//!   touching the queue.
//! - X2: each other class has a largest number of requests in flight ([`IoClass::terms`](super::IoClass)).
//! - X3: a request whose deadline has passed goes next, whatever the allowance, unless the queue listens (X6). So no class
//!   starves.
//! - X4: of requests whose deadlines lie close together, the one with the lowest address goes first.
//! - X5: before deadlines pass, classes go by their shares, and all together take what the [`allowance`] leaves.
//! - X6: when it is not known any more what reads take alone, nobody goes for two windows, at most once in five seconds.
//! - X7: whoever has a turn waits for the device and for nothing else, and has one turn at a time. So turns end.
//! - X8: nothing is read or written that nobody has asked for.
//!
//! A device that keeps the order of calls has no queue: time would make the order another one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::class::{IoClass, IoKind};
use super::stats::{DeviceCounters, now_ns};
use allowance::{Allowance, Foreground};
use turns::TurnOrder;

mod allowance;
mod turns;

/// Length of the pieces in which the background reads, and writes while others use the device: a device of 125 MB/s
/// takes a millisecond for each.
pub(super) const PIECE_BYTES: u64 = 128 << 10;
/// Length of the pieces in which commits and checkpoints write while somebody reads.
const LOG_PIECE_BYTES: u64 = 256 << 10;
/// Time for which a device counts as used after a request.
const RECENT_NS: u64 = 100_000_000;
/// Time by which a thread wakes later than at the instant it waits for: then that is past, also if another one's turn
/// comes first.
const WAKE_MARGIN: Duration = Duration::from_micros(50);

thread_local! {
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the time for which this thread has waited for turns, in all queues, since it was started.
pub(crate) fn waited() -> Duration {
    Duration::from_nanos(WAITED_NS.get())
}

/// The instant at which a counter was seen to change.
#[derive(Debug, Default)]
struct LastChange {
    value: AtomicU64,
    at_ns: AtomicU64,
}

impl LastChange {
    /// Returns true if the counter has changed lately.
    fn is_recent(&self, value: u64, now_ns: u64) -> bool {
        if self.value.swap(value, Relaxed) != value {
            self.at_ns.store(now_ns.max(1), Relaxed);
            return true;
        }
        let at_ns = self.at_ns.load(Relaxed);
        at_ns > 0 && now_ns.saturating_sub(at_ns) < RECENT_NS
    }
}

/// The queue of a device.
#[derive(Debug, Default)]
pub(super) struct IoQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    reads: LastChange,
    commits: LastChange,
}

#[derive(Debug, Default)]
struct QueueState {
    order: TurnOrder,
    allowance: Allowance,
}

/// Requests of a class that are at the device, until this is dropped.
#[must_use = "the turn ends when it is dropped"]
pub(super) struct IoTurn<'a> {
    queue: &'a IoQueue,
    counters: &'a DeviceCounters,
    class: IoClass,
    requests: u32,
    began_ns: u64,
}

/// Returns the sums of what does not wait for turns.
fn foreground(counters: &DeviceCounters) -> Foreground {
    let reads = counters.of(IoClass::SyncRead, IoKind::Read);
    let commits = counters.of(IoClass::Log, IoKind::Write).bytes();
    Foreground { reads: reads.requests(), reads_ns: reads.total_ns(), committed_bytes: commits }
}

impl QueueState {
    fn look(&mut self, counters: &DeviceCounters, now_ns: u64) {
        let reads = counters.of(IoClass::SyncRead, IoKind::Read).in_flight() > 0;
        let others = self.order.in_flight() > 0;
        self.allowance.look(now_ns, others, reads, || foreground(counters));
    }

    fn is_used(&self) -> bool {
        self.order.in_flight() > 0 || self.order.is_waited_for()
    }
}

impl IoQueue {
    /// Waits until it is the turn of a request at `offset`, one of `wanted` that the caller can make at once, of `bytes`
    /// each. Returns the turn, which says how many of them may be made now.
    ///
    /// `counters` are those of the device that has this queue.
    pub(super) fn wait<'a>(
        &'a self,
        counters: &'a DeviceCounters,
        class: IoClass,
        (offset, bytes): (u64, u64),
        wanted: usize,
    ) -> IoTurn<'a> {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let mut state = self.state.lock();
        let arrived_ns = now_ns();
        if !state.is_used() {
            state.allowance.resume(arrived_ns, || foreground(counters));
        }
        let number = state.order.arrive(class, offset, arrived_ns);
        loop {
            let now_ns = now_ns();
            state.look(counters, now_ns);
            let limit = state.allowance.limit(now_ns);
            if state.order.next(now_ns, limit) == Some(number) {
                let requests = state.order.begin(number, (wanted, bytes), limit);
                let others = state.order.next(now_ns, limit).is_some();
                drop(state);
                if others {
                    self.changed.notify_all();
                }
                WAITED_NS.set(WAITED_NS.get() + now_ns.saturating_sub(arrived_ns));
                return IoTurn { queue: self, counters, class, requests, began_ns: now_ns };
            }
            match state.order.changes_ns(limit) {
                Some(at_ns) => {
                    let rest = Duration::from_nanos(at_ns.saturating_sub(now_ns)) + WAKE_MARGIN;
                    self.changed.wait_for(&mut state, rest);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn end(&self, turn: &IoTurn<'_>) {
        let mut state = self.state.lock();
        let now_ns = now_ns();
        state.order.end(turn.class, turn.requests);
        state.look(turn.counters, now_ns);
        state.allowance.ended(now_ns, now_ns.saturating_sub(turn.began_ns));
        if !state.is_used() {
            state.allowance.rest(now_ns, foreground(turn.counters));
        }
        let others = state.order.is_waited_for();
        drop(state);
        if others {
            self.changed.notify_all();
        }
    }

    /// Has the requests of a class go at once from now on, or wait for their turns again.
    pub(super) fn hurry(&self, class: IoClass, hurried: bool) {
        self.state.lock().order.hurry(class, hurried);
        if hurried {
            self.changed.notify_all();
        }
    }

    /// Returns true if somebody reads and waits for it, or did so a moment ago.
    fn is_read(&self, counters: &DeviceCounters, now_ns: u64) -> bool {
        let reads = counters.of(IoClass::SyncRead, IoKind::Read);
        let is_recent = self.reads.is_recent(reads.bytes(), now_ns);
        is_recent || reads.in_flight() > 0
    }

    /// Returns true if somebody reads and waits for it, or commits, or did so a moment ago.
    fn is_used(&self, counters: &DeviceCounters, now_ns: u64) -> bool {
        let commits = counters.of(IoClass::Log, IoKind::Write);
        let is_recent = self.commits.is_recent(commits.bytes(), now_ns);
        self.is_read(counters, now_ns) || is_recent || commits.in_flight() > 0
    }

    /// Returns the longest write, or copy, of a class that does not keep others from the device for too long, in bytes.
    pub(super) fn piece_bytes(&self, counters: &DeviceCounters, class: IoClass) -> u64 {
        let now_ns = now_ns();
        if class.waits() {
            if self.is_used(counters, now_ns) { PIECE_BYTES } else { u64::MAX }
        } else if self.is_read(counters, now_ns) {
            LOG_PIECE_BYTES
        } else {
            u64::MAX
        }
    }
}

impl IoTurn<'_> {
    /// Returns the number of requests that may be made now: at least one.
    pub(super) fn requests(&self) -> usize {
        self.requests.max(1) as usize
    }
}

impl Drop for IoTurn<'_> {
    fn drop(&mut self) {
        self.queue.end(self);
    }
}

#[cfg(test)]
mod tests;
