//! Counts requests and their latencies per request code, for `iostat`.

use crate::protocol::Opcode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of a latency histogram: bucket `n` counts latencies of `2^n <= ns < 2^(n+1)`, the last everything longer.
pub const LATENCY_BUCKETS: usize = 36;

#[derive(Debug)]
struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    total_ns: AtomicU64,
    buckets: [AtomicU64; LATENCY_BUCKETS],
}

/// Live counters of a session.
#[derive(Debug)]
pub struct Stats {
    by_opcode: Vec<Counters>,
}

/// Requests of one code since the session began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpcodeStats {
    /// The code.
    pub opcode: Opcode,
    /// Number of requests that ended.
    pub requests: u64,
    /// Number of them that ended with an error (a LOOKUP that finds nothing among them).
    pub errors: u64,
    /// Time from receipt to answer of all of them, in nanoseconds.
    pub total_ns: u64,
    /// Number of requests per latency; see [`LATENCY_BUCKETS`].
    pub latency_ns_log2: [u64; LATENCY_BUCKETS],
}

impl OpcodeStats {
    /// Returns the mean latency in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.requests).unwrap_or(0)
    }

    /// Returns the upper bound in nanoseconds of the bucket that holds the quantile `q` (0 to 1).
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = (self.requests as f64 * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.latency_ns_log2.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return 2u64 << bucket;
            }
        }
        0
    }
}

impl Default for Stats {
    fn default() -> Self {
        let counters = || Counters {
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self { by_opcode: (0..Opcode::TABLE_LEN).map(|_| counters()).collect() }
    }
}

impl Stats {
    /// Counts the end of a request; unknown codes are not counted.
    pub(crate) fn record(&self, opcode: u32, took: Duration, failed: bool) {
        let Some(counters) = self.by_opcode.get(opcode as usize) else { return };
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1);
        counters.requests.fetch_add(1, Relaxed);
        counters.total_ns.fetch_add(ns, Relaxed);
        counters.buckets[bucket].fetch_add(1, Relaxed);
        if failed {
            counters.errors.fetch_add(1, Relaxed);
        }
    }

    /// Returns the request codes seen so far, with their figures.
    pub fn snapshot(&self) -> Vec<OpcodeStats> {
        let of = |&opcode: &Opcode| {
            let counters = self.by_opcode.get(opcode as usize)?;
            let requests = counters.requests.load(Relaxed);
            (requests > 0).then(|| OpcodeStats {
                opcode,
                requests,
                errors: counters.errors.load(Relaxed),
                total_ns: counters.total_ns.load(Relaxed),
                latency_ns_log2: std::array::from_fn(|i| counters.buckets[i].load(Relaxed)),
            })
        };
        Opcode::ALL.iter().filter_map(of).collect()
    }

    /// Returns the number of requests with this code that ended so far.
    pub fn requests(&self, opcode: Opcode) -> u64 {
        self.by_opcode.get(opcode as usize).map_or(0, |c| c.requests.load(Relaxed))
    }
}
