//! The kernel's end of a connection: what it can be told, and further files of the connection.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use zerocopy::IntoBytes;

use crate::protocol::{NOTIFY_INVAL_INODE, NotifyInvalInodeOut, OutHeader};

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const DEV_IOC_CLONE: libc::c_ulong = 0x8004_E500;

/// The kernel's end of a connection.
#[derive(Clone, Debug)]
pub struct Kernel(Weak<OwnedFd>);

impl Kernel {
    pub(crate) fn new(device: &Arc<OwnedFd>) -> Self {
        Self(Arc::downgrade(device))
    }

    /// Returns true if the kernel refers to an inode, or if that cannot be told. The kernel also drops the inode's
    /// attributes from its cache.
    pub fn holds(&self, ino: u64) -> bool {
        // Without a device there is no connection any more, and so nothing refers to the inode.
        self.0.upgrade().is_some_and(|device| kernel_holds(&device, ino))
    }

    /// Calls `what` with a file of the connection; returns `None` if it has ended.
    pub(crate) fn with_device<T>(&self, what: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        self.0.upgrade().map(|device| what(&device))
    }
}

/// Sends the kernel a notification.
pub(crate) fn notify(device: &OwnedFd, code: i32, body: &[u8]) -> io::Result<()> {
    let len = (size_of::<OutHeader>() + body.len()) as u32;
    let mut message = OutHeader { len, error: code, unique: 0 }.as_bytes().to_vec();
    message.extend_from_slice(body);
    rustix::io::write(device, &message).map(drop).map_err(io::Error::from)
}

/// Returns true if the kernel refers to an inode of the connection, or if that cannot be told. The kernel also drops
/// the inode's attributes from its cache.
fn kernel_holds(device: &OwnedFd, ino: u64) -> bool {
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

/// Returns another descriptor of the same connection, with its own list of requests in processing.
pub(crate) fn clone_device(device: &OwnedFd) -> io::Result<OwnedFd> {
    let fresh = rustix::fs::open(
        "/dev/fuse",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let source: u32 = device.as_raw_fd().cast_unsigned();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the descriptor to clone, and touches nothing else of ours.
    let done = unsafe { libc::ioctl(fresh.as_raw_fd(), DEV_IOC_CLONE, &raw const source) };
    if done == 0 { Ok(fresh) } else { Err(io::Error::last_os_error()) }
}
