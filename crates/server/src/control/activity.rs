//! Figures of what a pool reads and writes: by cause, and by device and class of requests.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One monotonic counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the counter, e.g. `data_written`.
    pub name: String,
    /// Number of operations.
    pub operations: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Counters at one instant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    /// Milliseconds since the pool was opened.
    pub age_ms: u64,
    /// Sum of the devices' sizes in bytes.
    #[serde(default)]
    pub size_bytes: u64,
    /// Bytes of the devices in chunks that are in use.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// All counters.
    pub counters: Vec<Counter>,
    /// Figures of records that took the place of others.
    #[serde(default)]
    pub rewrites: Vec<RewriteFigures>,
    /// Requests to each device, by group and number.
    #[serde(default)]
    pub devices: Vec<DeviceActivity>,
}

/// Requests to a device since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceActivity {
    /// Its number.
    pub number: u16,
    /// Bytes of its group in chunks that are in use.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Bytes of its group in other chunks.
    #[serde(default)]
    pub free_bytes: u64,
    /// Number of its group: devices of one group are mirrors of each other.
    pub group: u16,
    /// True if it is of the log device: then bytes in use are those of commits that the other devices have not made durable.
    #[serde(default)]
    pub log: bool,
    /// State, as that of the device in `status`.
    pub state: String,
    /// Its path; empty if it is missing.
    #[serde(with = "crate::raw::path")]
    pub path: PathBuf,
    /// Figures of each class and kind of which there were requests.
    pub requests: Vec<RequestFigures>,
    /// Its reads that were sent to another device of its mirror, too, because they took too long.
    #[serde(default)]
    pub hedged_reads: u64,
    /// Those of them that the other device answered first.
    #[serde(default)]
    pub hedges_won: u64,
}

/// Requests of one class and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFigures {
    /// Class: `sync_read`, `log`, `async_read`, `async_write`, `cleaning`, `recompression`, `filling`, `scrub`, `discard`.
    pub class: String,
    /// Kind: `read`, `write`, `flush`, `discard`.
    pub kind: String,
    /// Requests that wait for their turns: now, not within an interval.
    #[serde(default)]
    pub waiting: u64,
    /// Requests that have begun and not ended: now, too.
    pub in_flight: u64,
    /// Requests that were done.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Sum of the times that requests took that were done, in nanoseconds, the time of waiting included.
    pub total_ns: u64,
    /// Number of requests that were done, by the time that they took, ascending; those of which there are none are left
    /// out.
    pub latencies: Vec<LatencyFigures>,
}

/// Requests that took some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// A power of two, in nanoseconds: these requests took less, and at least half of it. The smallest, 1024, counts
    /// all that took less; the largest, 2^34, all that took longer, too.
    pub below_ns: u64,
    /// Number of requests.
    pub operations: u64,
}

/// Figures of records that took the place of others, for one kind of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteFigures {
    /// Kind of pages: `rewritten_database` or `rewritten_other`.
    pub name: String,
    /// Number of records.
    pub operations: u64,
    /// Length of the records in bytes.
    pub bytes: u64,
    /// Number of records by length, ascending.
    pub lengths: Vec<LengthFigures>,
}

/// Records of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthFigures {
    /// Largest length counted here, in bytes. The smallest is larger than the largest of the entry before, and at least
    /// eight ninths of this one.
    pub at_most_bytes: u32,
    /// Number of records.
    pub operations: u64,
}

impl RewriteFigures {
    /// Returns a length in bytes that `percent` of the records do not exceed; `None` if there are no records.
    pub fn percentile(&self, percent: u64) -> Option<u32> {
        let total: u64 = self.lengths.iter().map(|length| length.operations).sum();
        let rank = (u128::from(total) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = self.lengths.iter().find(|length| {
            seen += u128::from(length.operations);
            seen >= rank
        });
        reached.map(|length| length.at_most_bytes)
    }
}
