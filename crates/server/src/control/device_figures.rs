//! Figures of the devices of a pool, of its spares and its log device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One device of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Its number; a device that is missing is named by it.
    #[serde(default)]
    pub number: u16,
    /// Number of its group: devices of one group are mirrors of each other.
    #[serde(default)]
    pub group: u16,
    /// `ONLINE`, `FILLING`, `OFFLINE`, `FAULTED`, `MISSING`; empty if that is not known.
    #[serde(default)]
    pub state: String,
    /// True if another device takes its place.
    #[serde(default)]
    pub leaves: bool,
    /// True if everything moves off its group, which leaves the pool then.
    #[serde(default)]
    pub removing: bool,
    /// True if it is of the log device: no data lies on it.
    #[serde(default)]
    pub log: bool,
    /// Bytes of its group that are in use.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Its path; empty if it is missing.
    #[serde(with = "crate::raw::path")]
    pub path: PathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Failed reads, writes and flushes since errors were cleared.
    pub io_errors: u64,
    /// Errors since they were cleared, by kind.
    #[serde(flatten)]
    pub errors: DeviceErrors,
    /// True if it is a file that was deleted: it is lost when the pool is unmounted.
    #[serde(default)]
    pub deleted: bool,
    /// True if the device takes discards; `None`: that is not known.
    #[serde(default)]
    pub discards: Option<bool>,
    /// Mean time of its reads of late, in nanoseconds, or the time for which it has not answered one, if it is slow:
    /// another device of its mirror is much faster.
    #[serde(default)]
    pub slow_ns: Option<u64>,
}

/// How fast a device gave what was read of it in large pieces since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadSpeed {
    /// Number of the device.
    pub device: u16,
    /// Bytes per second, on average.
    pub bytes_per_s: u64,
}

/// A spare of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SpareFigures {
    /// Number by which the pool knows it, in hexadecimal.
    pub id: String,
    /// `AVAIL`, `INUSE` (it stands in for a device) or `UNAVAIL` (it is not here, or has failed).
    pub state: String,
    /// The path that it had last; empty if it is not known.
    #[serde(with = "crate::raw::path")]
    pub path: PathBuf,
    /// Its size in bytes; 0 if it is not here.
    pub size_bytes: u64,
    /// Number of the device that it is, while it is in use.
    pub device: Option<u16>,
    /// Number of the device for which it stands in.
    pub stands_for: Option<u16>,
}

/// The log device of a pool, which gets each commit first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDeviceFigures {
    /// Number of its group.
    pub group: u16,
    /// Bytes of it that commits may take.
    pub size_bytes: u64,
    /// Bytes of these that hold commits which the other devices have not made durable yet.
    pub used_bytes: u64,
}

/// Errors of a device since they were cleared, over all openings of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceErrors {
    /// Number of reads that failed.
    pub read_errors: u64,
    /// Number of writes and flushes that failed.
    pub write_errors: u64,
    /// Number of reads whose data did not match their checksum.
    pub checksum_errors: u64,
    /// Number of failed and wrong reads that a second copy answered.
    pub corrected: u64,
    /// Number of records that were written again from their other copy.
    pub repaired: u64,
}

impl DeviceErrors {
    /// Returns true if there are no errors.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the counts as a text for people.
    pub fn text(&self) -> String {
        let Self { read_errors, write_errors, checksum_errors, corrected, repaired } = *self;
        let kinds = [
            ("failed reads", read_errors),
            ("failed writes", write_errors),
            ("wrong checksums", checksum_errors),
            ("answered by a second copy", corrected),
            ("repaired", repaired),
        ];
        let told =
            kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}"));
        told.collect::<Vec<_>>().join(", ")
    }
}
