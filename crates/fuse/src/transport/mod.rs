//! Receives requests and sends replies: over `/dev/fuse`, or over a ring per CPU (FUSE over io_uring).

mod dev;
mod ring;

use crate::init::Agreement;
use crate::mount::{Mounter, Unmount};
use crate::protocol::{NOTIFY_INVAL_INODE, NOTIFY_RESEND, NotifyInvalInodeOut, OutHeader};
use crate::request::{Handler, Request};
use crate::stats::Stats;
use std::{fs, io, os::fd::OwnedFd, path::PathBuf, sync::Arc};
use zerocopy::IntoBytes;

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

/// Everything that a transport needs to run.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) stats: Arc<Stats>,
    /// Largest number of threads on /dev/fuse.
    pub(crate) threads_max: usize,
    /// The mount point.
    pub(crate) dir: PathBuf,
    pub(crate) mounter: Arc<dyn Mounter>,
    /// True if another process may have to go on: then nothing about the connection may be known to this process alone.
    pub(crate) takeover: bool,
}

impl Wiring {
    /// Ends the connection: if requests can no longer be answered, errors are better than programs that hang.
    fn abort(&self) {
        if let Err(error) = self.mounter.unmount(&self.dir, Unmount::Abort) {
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

/// Starts answering. /dev/fuse is always read: if requests travel over rings, forgets and interrupts still come that
/// way, and everything does if the rings cannot be had.
pub(crate) fn start(wiring: Wiring, agreement: Agreement, must_ring: bool) -> io::Result<Box<dyn Running>> {
    if !agreement.over_ring() {
        return dev::start(wiring, Vec::new());
    }
    match ring::start(&wiring) {
        Ok(rings) => Ok(Box::new(All(vec![rings, dev::start(wiring, Vec::new())?]))),
        Err(error) if must_ring => Err(error),
        Err(error) => {
            tracing::warn!(%error, "FUSE over io_uring is not to be had; using /dev/fuse");
            dev::start(wiring, Vec::new())
        }
    }
}

/// Goes on answering on a connection whose server died.
pub(crate) fn resume(wiring: Wiring) -> io::Result<Box<dyn Running>> {
    notify(&wiring.device, NOTIFY_RESEND, &[])?;
    let mut asked = dev::drain(&wiring.device, &wiring.stats)?;
    let again = asked.iter_mut().filter(|request| request.is_again()).count();
    tracing::info!(requests = asked.len(), again, dir = %wiring.dir.display(), "took over the mount");
    wiring.handler.taken_over(&mut asked);
    dev::start(wiring, asked)
}

/// Sends the kernel a notification.
fn notify(device: &OwnedFd, code: i32, body: &[u8]) -> io::Result<()> {
    let len = (size_of::<OutHeader>() + body.len()) as u32;
    let mut message = OutHeader { len, error: code, unique: 0 }.as_bytes().to_vec();
    message.extend_from_slice(body);
    rustix::io::write(device, &message).map(drop).map_err(io::Error::from)
}

/// Returns true if the kernel asks again the requests that a server which died has left unanswered: Linux 6.9 and
/// newer.
pub fn kernel_resends() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0);
    (number(), number()) >= (6, 9)
}

/// Returns true if the kernel refers to an inode of the connection, or if that cannot be told. The kernel also drops
/// the inode's attributes from its cache.
pub(crate) fn kernel_holds(device: &OwnedFd, ino: u64) -> bool {
    let what = NotifyInvalInodeOut { ino, off: -1, len: 0 };
    match notify(device, NOTIFY_INVAL_INODE, what.as_bytes()) {
        Err(error) => error.raw_os_error() != Some(libc::ENOENT),
        Ok(()) => true,
    }
}

/// Makes the kernel drop what it has cached of an inode's bytes, and its attributes. Waits for reads of these bytes
/// into the kernel's cache.
pub(crate) fn drop_pages(device: &OwnedFd, ino: u64, offset: u64, len: u64) -> io::Result<()> {
    let what = NotifyInvalInodeOut { ino, off: offset.cast_signed(), len: len.cast_signed() };
    match notify(device, NOTIFY_INVAL_INODE, what.as_bytes()) {
        // The kernel does not know the inode, or the connection has ended: nothing is cached.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN)) => {
            Ok(())
        }
        told => told,
    }
}

/// Returns another file of the same connection, with its own list of requests in processing.
pub(crate) fn clone_device(device: &OwnedFd) -> io::Result<OwnedFd> {
    dev::clone_device(device)
}

/// Reads one request from `/dev/fuse` on the caller's thread.
pub(crate) fn read_one(device: &Arc<OwnedFd>, stats: &Arc<Stats>) -> io::Result<Request> {
    dev::read_one(device, stats)
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
