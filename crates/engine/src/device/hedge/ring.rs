//! Reads through an io_uring that a thread waits for only as long as it wants to.
//!
//! The ring has the memory of its reads, as their plans, until the kernel has ended them: invariant of everything below.
//! A ring that is dropped before leaks that memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

use crate::device::late::{self, LateRing};
use crate::device::{LateRead, PlannedRead};

/// Largest number of reads that are made at once.
pub(super) const READS_MAX: usize = 64;
/// Number of entries of the ring: all of those reads can hang, and be sent to another member each.
const ENTRIES: usize = 2 * READS_MAX;

/// A read that the kernel makes.
enum InKernel {
    /// Somebody waits for it: it is for this read of those that are made at once.
    Awaited(PlannedRead, usize),
    /// Nobody waits for it any more.
    Late(LateRead),
}

/// A ring, and the reads that the kernel makes for it.
pub(super) struct HedgeRing {
    ring: IoUring,
    reads: Vec<Option<InKernel>>,
    under_way: usize,
}

impl HedgeRing {
    /// # Errors
    /// Those of the kernel, which may not have io_uring, or not be able to wait for a time (before Linux 5.11).
    pub(super) fn open() -> io::Result<Self> {
        let ring = late::open_ring(ENTRIES as u32)?;
        Ok(Self { ring, reads: (0..ENTRIES).map(|_| None).collect(), under_way: 0 })
    }

    /// Returns the number of reads that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns true if no other read can be prepared until one has ended.
    pub(super) fn is_full(&self) -> bool {
        self.under_way == self.reads.len()
    }

    /// Prepares a read, and returns its place in the ring; returns the plan if there is no room for it.
    #[allow(clippy::result_large_err, reason = "the plan goes back to the caller, who has it by value")]
    pub(super) fn push(&mut self, mut plan: PlannedRead, of: usize) -> Result<usize, PlannedRead> {
        let free = self.reads.iter().position(Option::is_none);
        let fd = plan.file().map(|fd| types::Fd(fd.as_raw_fd()));
        let (offset, into) = plan.request();
        let (start, len) = (into.as_mut_ptr(), u32::try_from(into.len()));
        let (Some(at), Some(fd), Ok(len)) = (free, fd, len) else { return Err(plan) };
        let read = opcode::Read::new(fd, start, len).offset(offset).build().user_data(at as u64);
        // SAFETY: the plan has the memory, which stays where it is, and the device. It is in `reads` from here on until
        // the completion was seen; after that the memory is not freed, but leaked, should `self` be dropped before.
        if unsafe { self.ring.submission().push(&read) }.is_err() {
            return Err(plan);
        }
        if let Some(slot) = self.reads.get_mut(at) {
            *slot = Some(InKernel::Awaited(plan, of));
        }
        self.under_way += 1;
        Ok(at)
    }

    /// Returns a read that somebody waits for, by its place.
    pub(super) fn awaited(&mut self, at: usize) -> Option<&mut PlannedRead> {
        match self.reads.get_mut(at)? {
            Some(InKernel::Awaited(plan, _)) => Some(plan),
            _ => None,
        }
    }

    /// Begins the reads that were pushed, and waits until `want` reads have ended, or so many nanoseconds have passed,
    /// or something else has woken the thread. Returns true if the time has passed.
    ///
    /// # Errors
    /// Those of the kernel; then it is not known which reads have begun.
    pub(super) fn wait(&mut self, want: usize, rest_ns: u64) -> io::Result<bool> {
        late::wait(&self.ring, want, Some(rest_ns))
    }

    /// Takes a read that somebody waits for and that has ended, with what it is for, and what the kernel says of it.
    pub(super) fn ended(&mut self) -> Option<(PlannedRead, usize, i32)> {
        while let Some(completion) = self.ring.completion().next() {
            let slot = self.reads.get_mut(usize::try_from(completion.user_data()).unwrap_or(usize::MAX));
            let Some(read) = slot.and_then(Option::take) else { continue };
            self.under_way -= 1;
            match read {
                InKernel::Awaited(plan, of) => return Some((plan, of, completion.result())),
                InKernel::Late(late) => late.end(completion.result()),
            }
        }
        None
    }

    /// Leaves alone what somebody has waited for, and has got elsewhere.
    pub(super) fn leave_all(&mut self) {
        self.leave(|plan, _| {
            plan.is_lost();
            true
        });
    }

    /// Leaves alone those reads that somebody waits for of which `is_left` returns true. It gets what they are for, too.
    pub(super) fn leave(&mut self, mut is_left: impl FnMut(&PlannedRead, usize) -> bool) {
        for slot in &mut self.reads {
            let is_left = matches!(slot, Some(InKernel::Awaited(plan, of)) if is_left(plan, *of));
            *slot = match slot.take() {
                Some(InKernel::Awaited(plan, _)) if is_left => Some(InKernel::Late(plan.leave())),
                other => other,
            };
        }
    }
}

impl LateRing for HedgeRing {
    fn take_ended(&mut self) {
        while self.ended().is_some() {}
    }

    fn has_ended(&self) -> bool {
        self.under_way == 0
    }

    /// Tells of devices that have not answered late reads for long.
    fn tell(&self) -> bool {
        let mut is_told = true;
        for read in self.reads.iter().flatten() {
            if let InKernel::Late(late) = read {
                is_told &= late.tell();
            }
        }
        is_told
    }
}

/// It can be polled for reads that have ended.
impl AsFd for HedgeRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has the descriptor as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for HedgeRing {
    fn drop(&mut self) {
        for read in self.reads.drain(..).flatten() {
            match read {
                InKernel::Awaited(plan, _) => plan.leak(),
                InKernel::Late(late) => late.leak(),
            }
        }
    }
}
