//! The way that requests travel, and the switch of the kernel for rings.

use std::{fs, io};

/// Transports of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The ring if the administrator has switched it on ([`enable_ring`]), `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// Reads and writes of `/dev/fuse`, one thread per request under way.
    Dev,
    /// FUSE over io_uring, switched on if need be and possible; a mount fails if it cannot be had.
    IoUring,
}

/// Parameter of the kernel's module that lets servers use rings; off by default.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns true if the kernel lets servers use rings.
pub fn ring_enabled() -> bool {
    fs::read_to_string(ENABLE_URING).is_ok_and(|text| text.trim() == "Y")
}

/// Lets servers use rings, until the machine restarts; for all FUSE mounts made from now on. To make that last:
/// `options fuse enable_uring=1` in `/etc/modprobe.d`.
///
/// # Errors
/// `NotFound` before Linux 6.14, `PermissionDenied` for users other than root.
pub fn enable_ring() -> io::Result<()> {
    if ring_enabled() {
        return Ok(());
    }
    // The parameter is not created if it does not exist.
    let mut parameter = fs::OpenOptions::new().write(true).open(ENABLE_URING)?;
    io::Write::write_all(&mut parameter, b"Y")
}
