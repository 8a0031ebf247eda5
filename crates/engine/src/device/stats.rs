//! Counters of the calls of a device since it was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a device, to which any thread may add. They are independent of each other: a reader may see that a write
/// was counted and its bytes were not yet.
#[derive(Debug, Default)]
pub struct DeviceStats {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    discarded_bytes: AtomicU64,
    errors: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
}

/// Values of [`DeviceStats`] at one moment. Only calls that succeeded are counted, except in the counters of errors.
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
    /// Calls that failed.
    pub errors: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
}

impl DeviceStats {
    /// Returns the present values of the counters.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            discarded_bytes: self.discarded_bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
        }
    }

    pub(crate) fn read(&self, len_bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(len_bytes as u64, Relaxed);
    }

    pub(super) fn write(&self, len_bytes: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(len_bytes as u64, Relaxed);
    }

    pub(super) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub(super) fn discard(&self, len_bytes: u64) {
        self.discards.fetch_add(1, Relaxed);
        self.discarded_bytes.fetch_add(len_bytes, Relaxed);
    }

    /// Counts a call that failed: `read`, `write`, `flush`, or another one.
    pub(super) fn error(&self, op: &str) {
        self.errors.fetch_add(1, Relaxed);
        let of_kind = match op {
            "read" => &self.read_errors,
            "write" | "flush" => &self.write_errors,
            _ => return,
        };
        of_kind.fetch_add(1, Relaxed);
    }
}
