//! One request at a time through an io_uring of the thread, which is waited for as long as somebody wants to.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::{LeftMemory, Owed, Request};
use crate::device::late::{self, LateRing, Rings};
use crate::device::lock::LockedFile;

/// Number of entries of a ring.
const ENTRIES: u32 = 2;

thread_local! {
    /// The ring of the thread; `None` before its first request, while it is in use, and after it was given away.
    static RING: Cell<Option<Box<CallRing>>> = const { Cell::new(None) };
}

static RINGS: Rings = Rings::new("a write to a mirror waits for its devices however long that takes");

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
    RINGS.open(|| Ok(Box::new(CallRing { ring: late::open_ring(ENTRIES)?, left: None })))
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
    /// The memory and the file that the entry points to have to stay as they are until the kernel has ended the request. If
    /// this does not return [`Called::Ended`], that may be after the call.
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
        loop {
            let is_over = late::wait(&self.ring, 1, Some(slice_ns)).inspect_err(|error| RINGS.fail(error))?;
            if let Some(completion) = self.ring.completion().next() {
                return Ok(Called::Ended(completion.result()));
            }
            if is_over && !goes_on() {
                return Ok(Called::Left);
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
