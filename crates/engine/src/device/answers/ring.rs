//! One request at a time through an io_uring of the thread, which is waited for as long as somebody wants to.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use io_uring::{IoUring, opcode, squeue, types};

use super::{LeftMemory, Owed, Request};
use crate::device::late::{self, LateRing};
use crate::device::lock::LockedFile;

/// Number of entries of a ring.
const ENTRIES: u32 = 2;

thread_local! {
    /// The ring of the thread; `None` before its first request, while it is in use, and after it was given away.
    static RING: Cell<Option<Box<CallRing>>> = const { Cell::new(None) };
}

/// True once the kernel has refused a ring for good.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// How a request came to an end.
pub(super) enum Called {
    /// The kernel says this of it.
    Ended(i32),
    /// Nobody waits for it any more.
    Left,
}

/// A ring with at most one request.
pub(super) struct CallRing {
    ring: IoUring,
    /// Memory and file of a request that was left alone.
    left: Option<(LeftMemory, Arc<LockedFile>, Owed)>,
}

/// Returns the ring of the thread, or a new one; `None` if there can be none.
pub(super) fn take_ring() -> Option<Box<CallRing>> {
    if let Some(ring) = RING.take() {
        return Some(ring);
    }
    if IS_REFUSED.load(Relaxed) {
        return None;
    }
    // Not one whose completions only its own thread can take: see `super::super::late`.
    let opened = IoUring::new(ENTRIES).and_then(|ring| match ring.params().is_feature_ext_arg() {
        true => Ok(ring),
        false => Err(io::ErrorKind::Unsupported.into()),
    });
    match opened {
        Ok(ring) => Some(Box::new(CallRing { ring, left: None })),
        Err(error) => {
            let is_lasting = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES));
            if (is_lasting || error.kind() == io::ErrorKind::Unsupported) && !IS_REFUSED.swap(true, Relaxed) {
                tracing::warn!(%error, "no io_uring: a write to a mirror waits for its devices however long that takes");
            }
            None
        }
    }
}

impl Request<'_> {
    /// Returns the request for a ring.
    pub(super) fn entry(&mut self, file: &LockedFile) -> squeue::Entry {
        let fd = types::Fd(file.as_raw_fd());
        // No device is asked for 4 GiB at once; what is left of a longer request would be another one.
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(1 << 30);
        match self {
            Self::Read { buf, at, offset } => {
                let into = buf.get_mut(*at..).unwrap_or_default();
                opcode::Read::new(fd, into.as_mut_ptr(), len(into)).offset(*offset).build()
            }
            Self::Write { buf, part, offset, durable } => {
                let bytes = buf.get(part.clone()).unwrap_or_default();
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, bytes.as_ptr(), len(bytes)).offset(*offset).rw_flags(flags).build()
            }
            Self::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }
}

impl CallRing {
    /// Makes a request, and waits until it has ended, or `goes_on` returns false, which is asked whenever the thread has
    /// waited for another `slice_ns`.
    ///
    /// # Errors
    /// Those of the kernel. It is not known then whether the request has begun.
    ///
    /// # Safety
    /// What the entry points to has to stay as it is until the kernel has ended the request. If this does not return
    /// [`Called::Ended`], that may be after the call.
    pub(super) unsafe fn call(
        &mut self,
        entry: &squeue::Entry,
        slice_ns: u64,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<Called> {
        // SAFETY: the caller promises it.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            return Err(io::Error::other("a ring has no room for a request"));
        }
        let time =
            types::Timespec::new().sec(slice_ns / 1_000_000_000).nsec((slice_ns % 1_000_000_000) as u32);
        loop {
            let waited = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time));
            if let Some(completion) = self.ring.completion().next() {
                return Ok(Called::Ended(completion.result()));
            }
            match waited.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) | Err((Some(libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
                Err((Some(libc::ETIME), _)) => {
                    if !goes_on() {
                        return Ok(Called::Left);
                    }
                }
                Err((_, error)) => {
                    tracing::error!(%error, "io_uring failed; writes to mirrors wait for their devices from now on");
                    IS_REFUSED.store(true, Relaxed);
                    return Err(error);
                }
            }
        }
    }

    /// Keeps the ring for the next request of the thread.
    pub(super) fn put_back(self: Box<Self>) {
        RING.set(Some(self));
    }

    /// Leaves the request alone, with what it needs.
    pub(super) fn leave(mut self: Box<Self>, left: (LeftMemory, Arc<LockedFile>, Owed)) {
        self.left = Some(left);
        late::keep(self);
    }
}

impl LateRing for CallRing {
    fn take_ended(&mut self) {
        if self.ring.completion().next().is_some() {
            self.left = None;
        }
    }

    fn has_ended(&self) -> bool {
        self.left.is_none()
    }

    fn tell(&self) -> bool {
        true
    }
}

/// It can be polled for the end of its request.
impl AsFd for CallRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has the descriptor as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for CallRing {
    fn drop(&mut self) {
        if let Some((memory, file, owed)) = self.left.take() {
            // The kernel may still use the memory, and the device be written to.
            std::mem::forget((memory, file, owed));
        }
    }
}
