//! Counters of the requests of a device since it was opened, by class and kind.
//!
//! Requests are counted where they are made, not by the devices: by [`super::lane`], and for reads that are planned
//! first by [`super::member::ReadUnderWay`]. A request is timed from there to its end, so that whatever makes requests wait
//! for each other counts, too. It costs two readings of the clock and five additions to two lines of the cache.
//! Classes that wait for their turns ([`super::queue`]) are counted twice more: they wait first, and then they are in flight.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::class::{IoClass, IoKind};
use crate::{Error, Result};

/// Number of ranges of latencies that are told apart.
pub const LATENCY_RANGES: usize = 25;
/// Bits of the nanoseconds below which the first range lies: a microsecond. Each range ends at twice the end of the one
/// before; the last one has all above, from 2^33 ns on.
const FIRST_RANGE_BITS: u32 = 10;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the nanoseconds since some instant.
pub(super) fn now_ns() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the range that a latency lies in.
fn range_of(took_ns: u64) -> usize {
    let bits = u64::BITS - took_ns.leading_zeros();
    (bits.saturating_sub(FIRST_RANGE_BITS) as usize).min(LATENCY_RANGES - 1)
}

/// The instant at which a request began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began(u64);

impl Began {
    pub(super) fn now() -> Self {
        Self(now_ns())
    }

    /// Returns the instant, as [`now_ns`] would have told it.
    pub(super) const fn ns(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds since then.
    pub(super) fn elapsed_ns(self) -> u64 {
        now_ns().saturating_sub(self.0)
    }
}

/// Counters of the requests of one class and kind. They lie in cache lines of their own: other classes are other
/// threads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RequestStats {
    waiting: AtomicU64,
    in_flight: AtomicU64,
    bytes: AtomicU64,
    total_ns: AtomicU64,
    errors: AtomicU64,
    latencies: [AtomicU64; LATENCY_RANGES],
}

/// Values of the counters of one class and kind, at one moment. A request that failed counts as an error alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// Class of the requests.
    pub class: IoClass,
    /// Kind of the requests.
    pub kind: IoKind,
    /// Requests that wait for their turns.
    pub waiting: u64,
    /// Requests that have begun and not ended.
    pub in_flight: u64,
    /// Bytes of the requests that were done.
    pub bytes: u64,
    /// Sum of the times that they took, in nanoseconds, from when they were made: the time of waiting counts.
    pub total_ns: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Number of requests that were done, by the time that they took; see [`RequestCounts::latency_below_ns`].
    pub latencies: [u64; LATENCY_RANGES],
}

impl RequestCounts {
    /// Returns the number of requests that were done.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.latencies.iter().sum()
    }

    /// Returns the end of a range of latencies in nanoseconds, a power of two: what is counted there took less, and at
    /// least half as long. The first range has all that took less, and the last one all that took longer.
    #[must_use]
    pub const fn latency_below_ns(range: usize) -> u64 {
        1 << (FIRST_RANGE_BITS + range as u32)
    }
}

impl RequestStats {
    /// Counts a request that waits for its turn. [`RequestStats::start`] or [`RequestStats::leave`] has to follow.
    pub(super) fn arrive(&self) -> Began {
        self.waiting.fetch_add(1, Relaxed);
        Began::now()
    }

    /// Counts a request that has waited and begins now.
    pub(super) fn start(&self) {
        self.leave();
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Counts a request that waits no longer.
    pub(super) fn leave(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Counts a request that begins. One of the next three has to follow.
    pub(super) fn begin(&self) -> Began {
        self.in_flight.fetch_add(1, Relaxed);
        Began::now()
    }

    /// Counts a request that is done. Returns the nanoseconds that it took.
    pub(super) fn end(&self, began: Began, bytes: u64) -> u64 {
        let took_ns = began.elapsed_ns();
        self.latencies[range_of(took_ns)].fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.total_ns.fetch_add(took_ns, Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        took_ns
    }

    /// Counts a request that has failed. It is an error of the device's only if that has failed to do it.
    pub(super) fn fail(&self, error: &Error) {
        if matches!(error, Error::Io { .. }) {
            self.errors.fetch_add(1, Relaxed);
        }
        self.give_up();
    }

    /// Counts a request that was not made after all.
    pub(super) fn give_up(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Makes a request, and counts it.
    pub(super) fn make<T>(&self, bytes: u64, request: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = self.begin();
        let made = request();
        self.ended(began, bytes, &made);
        made
    }

    /// Counts a request that has ended in one way or the other.
    pub(super) fn ended<T>(&self, began: Began, bytes: u64, made: &Result<T>) {
        match made {
            Ok(_) => drop(self.end(began, bytes)),
            Err(error) => self.fail(error),
        }
    }

    /// Returns the number of requests that were done.
    pub(super) fn requests(&self) -> u64 {
        self.latencies.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Returns the bytes of the requests that were done.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the sum of the times that they took, in nanoseconds.
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns.load(Relaxed)
    }

    /// Returns the number of requests that have begun and not ended.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    fn counts(&self, class: IoClass, kind: IoKind) -> RequestCounts {
        RequestCounts {
            class,
            kind,
            waiting: self.waiting.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            total_ns: self.total_ns.load(Relaxed),
            errors: self.errors.load(Relaxed),
            latencies: std::array::from_fn(|range| self.latencies[range].load(Relaxed)),
        }
    }
}

/// Counters of a device, to which any thread may add. They are independent of each other: a reader may see that a write
/// was counted and its bytes were not yet.
#[derive(Debug, Default)]
pub(super) struct DeviceCounters(Box<[[RequestStats; IoKind::COUNT]; IoClass::COUNT]>);

/// Sums of the counters of a device, at one moment. Only requests that were done are counted, except in the counters of
/// errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes, durable ones included.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes; a durable write counts as a write alone.
    pub flushes: u64,
    /// Discards that reached the device.
    pub discards: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
}

impl DeviceCounters {
    pub(super) fn of(&self, class: IoClass, kind: IoKind) -> &RequestStats {
        &self.0[class as usize][kind as usize]
    }

    /// Returns the present values of the counters, by class and kind; those of requests that were never made are left
    /// out.
    pub(super) fn requests(&self) -> Vec<RequestCounts> {
        let all = IoClass::ALL.into_iter().flat_map(|class| IoKind::ALL.map(|kind| (class, kind)));
        let all = all.map(|(class, kind)| self.of(class, kind).counts(class, kind));
        let is_used =
            |of: &RequestCounts| of.waiting + of.in_flight > 0 || of.errors > 0 || of.requests() > 0;
        all.filter(is_used).collect()
    }

    /// Returns the present sums of the counters.
    pub(super) fn counts(&self) -> DeviceCounts {
        let mut sums = DeviceCounts::default();
        for of in self.requests() {
            sums.errors += of.errors;
            let requests = of.requests();
            match of.kind {
                IoKind::Read => {
                    sums.reads += requests;
                    sums.read_bytes += of.bytes;
                    sums.read_errors += of.errors;
                }
                IoKind::Write => {
                    sums.writes += requests;
                    sums.written_bytes += of.bytes;
                    sums.write_errors += of.errors;
                }
                IoKind::Flush => {
                    sums.flushes += requests;
                    sums.write_errors += of.errors;
                }
                IoKind::Discard => {
                    sums.discards += requests;
                    sums.discarded_bytes += of.bytes;
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_range_that_it_lies_in() {
        for range in 0..LATENCY_RANGES {
            let below_ns = RequestCounts::latency_below_ns(range);
            assert_eq!((range_of(below_ns / 2), range_of(below_ns - 1)), (range, range));
        }
        assert_eq!((range_of(0), range_of(u64::MAX)), (0, LATENCY_RANGES - 1));
        assert_eq!(RequestCounts::latency_below_ns(LATENCY_RANGES - 1), 1 << 34);
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_done() {
        let stats = DeviceCounters::default();
        let of = stats.of(IoClass::Log, IoKind::Write);
        let began = of.begin();
        assert_eq!(stats.requests()[0].in_flight, 1);
        of.end(began, 4096);
        of.make(512, || Ok(())).unwrap();
        let [counts] = stats.requests()[..] else { panic!("one kind of requests was made") };
        assert_eq!((counts.class, counts.kind, counts.in_flight), (IoClass::Log, IoKind::Write, 0));
        assert_eq!((counts.requests(), counts.bytes, counts.errors), (2, 4608, 0));
        assert_eq!((stats.counts().writes, stats.counts().written_bytes), (2, 4608));
    }

    #[test]
    fn a_request_that_waits_is_not_in_flight_before_it_starts() {
        let stats = DeviceCounters::default();
        let of = stats.of(IoClass::Scrub, IoKind::Read);
        let began = of.arrive();
        of.arrive();
        let at = |stats: &DeviceCounters| {
            stats.requests().first().map(|of| (of.waiting, of.in_flight, of.requests()))
        };
        assert_eq!(at(&stats), Some((2, 0, 0)));
        of.start();
        assert_eq!(at(&stats), Some((1, 1, 0)));
        of.leave();
        of.end(began, 512);
        assert_eq!(at(&stats), Some((0, 0, 1)));
    }

    #[test]
    fn requests_that_fail_or_are_given_up_are_in_flight_no_more() {
        let stats = DeviceCounters::default();
        let of = stats.of(IoClass::Scrub, IoKind::Read);
        of.begin();
        of.give_up();
        assert_eq!(stats.requests(), []);
        let refused = of.make(512, || Err::<(), _>(Error::Invalid("not a block".into())));
        assert!(refused.is_err() && stats.requests().is_empty(), "the device was not asked");
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        let failed = Error::Io { op: "read", device: "a device".into(), offset: 0, len_bytes: 512, source };
        assert!(of.make(512, || Err::<(), _>(failed)).is_err());
        let [counts] = stats.requests()[..] else { panic!("a request has failed") };
        assert_eq!((counts.requests(), counts.errors, counts.in_flight, counts.bytes), (0, 1, 0, 0));
        assert_eq!((stats.counts().read_errors, stats.counts().write_errors), (1, 0));
    }
}
