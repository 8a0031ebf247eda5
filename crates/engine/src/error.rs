//! Defines the errors of the engine, worded so that the caller knows what to do.

use std::io;
use std::path::PathBuf;

use crate::types::Addr;

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place of something damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedAt {
    /// Number of the device.
    pub device: u16,
    /// First byte on the device.
    pub offset: u64,
    /// Address of the record, if it is a record.
    pub addr: Option<Addr>,
    /// True if it was counted as an error of the device.
    pub counted: bool,
}

impl DamagedAt {
    /// Creates a place at which nothing was counted yet.
    pub(crate) const fn new(device: u16, offset: u64, addr: Option<Addr>) -> Self {
        Self { device, offset, addr, counted: false }
    }
}

/// Words of the error of a write for which the file system, or the thin volume, that holds the device has no room.
pub const HOST_FULL: &str = "; the file system or thin volume that holds it is full";

/// Returns what is to be said of an error of the operating system, if it is that the host has no room.
fn of_full_host(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HOST_FULL,
        _ => "",
    }
}

/// Returns what to do about the failed write that `cause` tells of.
pub(crate) fn remedy(cause: &str) -> &'static str {
    if cause.contains(HOST_FULL) {
        "make room there, export the pool and import it again"
    } else {
        "export it, mend the device and import it again"
    }
}

/// The reason why a call of the engine failed.
///
/// Messages name the object (device, segment, offset) and keep the errno of the operating system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system failed a call on a device.
    #[error("{op} failed on {device} at byte {offset} ({len_bytes} bytes): {source}{full}", full = of_full_host(source))]
    Io {
        /// Operation that was attempted: `read`, `write`, `flush`, `open`, `lock`.
        op: &'static str,
        /// The device, as the user named it.
        device: PathBuf,
        /// Byte offset on the device.
        offset: u64,
        /// Length of the transfer.
        len_bytes: u64,
        /// The operating system's own error.
        #[source]
        source: io::Error,
    },
    /// A device cannot be opened.
    #[error("cannot open {device}: {source}; {advice}")]
    Open {
        /// The device, as the user named it.
        device: PathBuf,
        /// The operating system's own error.
        #[source]
        source: io::Error,
        /// Advice for the user.
        advice: &'static str,
    },
    /// Bytes that were read do not match their checksum or are not well formed.
    #[error("damaged {what}: {detail}")]
    Corrupt {
        /// Thing that was being read, with its address.
        what: String,
        /// Condition that did not hold.
        detail: String,
        /// Its place, if that is known.
        at: Option<DamagedAt>,
    },
    /// No room: the pool (or a quota) cannot take the change.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// The device or pool is in use by another process.
    #[error("{0}")]
    Busy(String),
    /// The device holds no pool, or not the one that was asked for.
    #[error("{0}")]
    NotAPool(String),
    /// Devices hold an older copy of a pool, or a copy that was changed without the others.
    #[error("{what}")]
    NotCurrent {
        /// Names of these devices, and how they differ from the pool.
        what: String,
        /// Devices to leave out, if others of the pool may be current; empty if all of them are a copy.
        stale: Vec<PathBuf>,
    },
    /// The pool was made by a version with features that this one does not know.
    #[error("{0}")]
    Unsupported(String),
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no dataset or snapshot of this name.
    #[error("{0}")]
    NotFound(String),
    /// There is already a dataset or snapshot of this name.
    #[error("{0}")]
    Exists(String),
    /// A write or flush failed earlier. Nothing more is acknowledged until the pool has been reopened (W6).
    #[error("the pool stopped accepting changes: {0}; {then}", then = remedy(.0))]
    Failed(String),
    /// The pool was not closed, and has to be opened for writing before it can be read.
    #[error("{0}")]
    NotReplayed(String),
    /// The pool or mount is read-only.
    #[error("read-only: {0}")]
    ReadOnly(String),
}

impl Error {
    /// Returns true if what was to be read is damaged, or its device failed to read it.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Io { op: "read", .. })
    }

    /// Creates an error for a damaged object: `what` it is, and in `detail` what did not hold.
    pub fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), detail: detail.into(), at: None }
    }

    /// Creates an error as [`Error::corrupt`] does, for an object at a known place.
    pub(crate) fn corrupt_at(at: DamagedAt, what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), detail: detail.into(), at: Some(at) }
    }

    /// Returns the place of the damage, if that is known.
    pub(crate) fn place(&self) -> Option<DamagedAt> {
        match self {
            Self::Corrupt { at, .. } => *at,
            _ => None,
        }
    }

    /// Returns true if it was counted already, by device and by what it struck ([`crate::faults`]).
    pub fn is_counted(&self) -> bool {
        match self {
            Self::Corrupt { at, .. } => at.is_some_and(|at| at.counted),
            Self::Io { op, .. } => *op == "read",
            _ => false,
        }
    }

    /// Returns the same error, marked as counted.
    #[must_use]
    pub(crate) fn counted(mut self) -> Self {
        if let Self::Corrupt { at: Some(at), .. } = &mut self {
            at.counted = true;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_told_from_a_broken_device() {
        let failed = |errno: i32| {
            let (device, source) = (PathBuf::from("/pools/a.pf"), io::Error::from_raw_os_error(errno));
            let cause = Error::Io { op: "write", device, offset: 0, len_bytes: 4096, source }.to_string();
            (cause.clone(), Error::Failed(cause).to_string())
        };
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            let (cause, failed) = failed(errno);
            assert!(cause.contains("/pools/a.pf") && cause.ends_with(HOST_FULL), "{cause}");
            assert!(failed.contains("make room there") && !failed.contains("mend the device"), "{failed}");
        }
        let (cause, failed) = failed(libc::EIO);
        assert!(!cause.contains(HOST_FULL) && failed.contains("mend the device"), "{failed}");
    }
}
