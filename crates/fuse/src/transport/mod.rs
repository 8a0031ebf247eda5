//! How requests arrive and replies leave: over `/dev/fuse`, or over a ring per CPU (FUSE over io_uring).

mod dev;
mod ring;

use crate::init::Agreement;
use crate::request::{Handler, Request};
use crate::stats::Stats;
use std::{fs, io, os::fd::OwnedFd, path::PathBuf, sync::Arc};

/// Which transport a session uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The ring where the administrator has switched it on ([`enable_ring`]), `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// Reads and writes of `/dev/fuse`, one thread per request under way.
    Dev,
    /// FUSE over io_uring, switched on if need be and possible; a mount fails where it is not to be had.
    IoUring,
}

/// What a transport needs to run.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) stats: Arc<Stats>,
    /// Threads on /dev/fuse at most.
    pub(crate) threads_max: usize,
    /// The mount point.
    pub(crate) dir: PathBuf,
}

impl Wiring {
    /// Ends the connection: where requests can no longer be answered, errors are better than programs that hang.
    fn abort(&self) {
        if let Err(error) = crate::mount::abort(&self.dir) {
            tracing::error!(%error, dir = %self.dir.display(), "cannot abort the connection; `umount -f` does");
        }
    }
}

/// The threads of a running transport.
pub(crate) trait Running: Send {
    /// Returns when the connection has ended and every thread with it.
    fn join(self: Box<Self>);
}

/// Several sets of threads.
struct All(Vec<Box<dyn Running>>);

impl Running for All {
    fn join(self: Box<Self>) {
        self.0.into_iter().for_each(Running::join);
    }
}

/// Starts answering. /dev/fuse is always read: where requests travel over rings, forgets and interrupts still come
/// that way, and everything does if the rings cannot be had.
pub(crate) fn start(wiring: Wiring, agreement: Agreement, must_ring: bool) -> io::Result<Box<dyn Running>> {
    if !agreement.over_ring() {
        return dev::start(wiring);
    }
    match ring::start(&wiring) {
        Ok(rings) => Ok(Box::new(All(vec![rings, dev::start(wiring)?]))),
        Err(error) if must_ring => Err(error),
        Err(error) => {
            tracing::warn!(%error, "FUSE over io_uring is not to be had; using /dev/fuse");
            dev::start(wiring)
        }
    }
}

/// Reads one request from `/dev/fuse` on the caller's thread.
pub(crate) fn read_one(device: &Arc<OwnedFd>, stats: &Arc<Stats>) -> io::Result<Request> {
    dev::read_one(device, stats)
}

/// The module's parameter that lets servers speak over rings; the kernel's default is off.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel lets a server speak over a ring.
pub fn ring_enabled() -> bool {
    fs::read_to_string(ENABLE_URING).is_ok_and(|text| text.trim() == "Y")
}

/// Lets servers speak over rings, until the machine restarts; for all FUSE mounts made from now on. Lasting:
/// `options fuse enable_uring=1` in `/etc/modprobe.d`.
///
/// # Errors
/// `NotFound` before Linux 6.14, `PermissionDenied` for others than root.
pub fn enable_ring() -> io::Result<()> {
    if ring_enabled() {
        return Ok(());
    }
    // Not created where it does not exist.
    let mut parameter = fs::OpenOptions::new().write(true).open(ENABLE_URING)?;
    io::Write::write_all(&mut parameter, b"Y")
}
