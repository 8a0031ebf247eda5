//! Threads with a table of files of their own, for messages to the kernel that nothing can interrupt.
//!
//! A thread that tells the kernel to drop pages waits until no request has them locked, and no signal ends that wait. If
//! the process is killed meanwhile, the thread stays, and with it every file of its table. That would be all of them:
//! the devices, which no other server could lock, and the connection, whose requests fail only when its last file is
//! closed, although they are what the thread waits for. So each of these threads has a table with a single file,
//! another one of the connection ([`clone_device`]). When the process is killed the kernel closes the others, the
//! requests that were being answered over `/dev/fuse` fail, their pages are unlocked, and the thread ends. (Requests
//! over a ring fail only when the connection is aborted.)

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;

use crate::blocking::Birth;
use crate::kernel::{Kernel, clone_device};

thread_local! {
    /// The file of the connection in this thread's own table; `None` in a thread that shares the process's table.
    static OWN: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Returns what gives a new thread a table of its own; `None` if the connection has ended, or there is no other file of
/// it to be had.
pub(crate) fn part(kernel: &Kernel) -> Option<Birth> {
    let device = kernel.with_device(clone_device)?;
    let device = device.inspect_err(|error| tracing::debug!(%error, "no clone of /dev/fuse")).ok()?;
    let kept = device.as_raw_fd();
    let (done, parted) = mpsc::channel::<()>();
    let on_thread = move || {
        block_signals();
        match keep_only(kept) {
            // SAFETY: the thread's own table has this descriptor, and nothing else there owns it.
            Ok(()) => OWN.set(Some(unsafe { OwnedFd::from_raw_fd(kept) })),
            Err(error) => tracing::debug!(%error, "no table of files for a thread"),
        }
        let _ = done.send(());
    };
    let beside = move || {
        // The process's table loses the descriptor once the thread has its own; or has ended, or never was started.
        let _ = parted.recv();
        drop(device);
    };
    Some(Birth { on_thread: Box::new(on_thread), beside: Box::new(beside) })
}

/// Calls `tell` with the thread's own file of the connection, or with the process's; returns `Ok` if the connection has
/// ended.
pub(crate) fn tell(kernel: &Kernel, tell: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
    // A thread with a table of its own must not become the last owner of a file of the process: it could not close it.
    OWN.with_borrow(|own| match own {
        Some(device) => tell(device),
        None => kernel.with_device(|device| tell(device)).unwrap_or(Ok(())),
    })
}

/// Leaves signals to other threads: a handler would find none of the files that it uses.
fn block_signals() {
    // SAFETY: the set is filled before it is read, and only this thread's mask changes.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Gives the calling thread a table of its own with no file but `kept`.
fn keep_only(kept: i32) -> io::Result<()> {
    let kept = kept.cast_unsigned();
    if let Some(below) = kept.checked_sub(1) {
        close_range(0, below, libc::CLOSE_RANGE_UNSHARE)?;
    }
    close_range(kept + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the flag makes the kernel copy the table first, so that no file of another thread is closed; this thread
    // uses none but the one that is kept.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
