//! Many reads at once through io_uring.
//!
//! Each thread has its own ring. If the kernel refuses one (because it is old, or in a container that forbids it), the
//! caller falls back to blocking reads. It also does so for requests that a ring did not read in full, since a blocking
//! read says what is wrong.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::AlignedBuf;

/// Largest number of requests in one call of [`read_batch`], and number of entries of the ring.
pub(super) const DEPTH: usize = 64;

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const GETEVENTS: u32 = 1;

thread_local! {
    static RING: RefCell<ThreadRing> = const { RefCell::new(ThreadRing::Untried) };
}

enum ThreadRing {
    Untried,
    Refused,
    Ready(Box<IoUring>),
}

/// Reads up to [`DEPTH`] requests; more are left alone. Bit `n` of the result is set if request `n` was filled.
pub(super) fn read_batch(file: &File, requests: &mut [&mut (u64, AlignedBuf)]) -> u64 {
    RING.with_borrow_mut(|slot| {
        if matches!(slot, ThreadRing::Untried) {
            *slot = open();
        }
        let ThreadRing::Ready(ring) = slot else { return 0 };
        let mut batch = RingBatch { ring, in_ring: 0, filled: 0 };
        batch.push(file, requests);
        let outcome = batch.run(requests);
        let filled = batch.filled;
        if let Err(error) = outcome {
            tracing::warn!(%error, "io_uring failed; this thread goes on with blocking reads");
            *slot = ThreadRing::Refused;
        }
        filled
    })
}

fn open() -> ThreadRing {
    // Completions are processed when this thread asks for them, instead of interrupting it. This needs Linux 6.1.
    let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32);
    match deferred.or_else(|_| IoUring::new(DEPTH as u32)) {
        Ok(ring) => ThreadRing::Ready(Box::new(ring)),
        Err(error) => {
            tracing::debug!(%error, "no io_uring; this thread uses blocking reads");
            ThreadRing::Refused
        }
    }
}

/// Requests that are under way. Invariant: the kernel writes into their buffers until `in_ring` is 0, so
/// [`RingBatch::run`] does not return before.
struct RingBatch<'a> {
    ring: &'a mut IoUring,
    /// Number of requests that were pushed and not completed.
    in_ring: usize,
    filled: u64,
}

impl RingBatch<'_> {
    fn push(&mut self, file: &File, requests: &mut [&mut (u64, AlignedBuf)]) {
        let fd = types::Fd(file.as_raw_fd());
        for (n, (offset, buf)) in requests.iter_mut().enumerate().take(DEPTH) {
            let Ok(len_bytes) = u32::try_from(buf.len()) else { return };
            let read = opcode::Read::new(fd, buf.as_mut_ptr(), len_bytes).offset(*offset);
            let entry = read.build().user_data(n as u64);
            // SAFETY: file and buffer are borrowed by the caller, who calls `run`, which returns when the kernel is
            // done with them.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                return;
            }
            self.in_ring += 1;
        }
    }

    fn run(&mut self, requests: &[&mut (u64, AlignedBuf)]) -> io::Result<()> {
        while self.in_ring > 0 {
            match self.ring.submit_and_wait(self.in_ring) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.drain(requests);
                    return Err(e);
                }
            }
            self.reap(requests);
        }
        Ok(())
    }

    fn reap(&mut self, requests: &[&mut (u64, AlignedBuf)]) {
        for completion in self.ring.completion() {
            self.in_ring -= 1;
            let n = completion.user_data();
            let asked = requests.get(n as usize).map(|request| request.1.len());
            if asked.is_some_and(|asked| usize::try_from(completion.result()) == Ok(asked)) {
                self.filled |= 1 << n;
            }
        }
    }

    /// Waits, after a failed submission, for the requests that the kernel has taken. Those that it has not taken die
    /// with the ring.
    fn drain(&mut self, requests: &[&mut (u64, AlignedBuf)]) {
        self.in_ring -= self.ring.submission().len();
        self.reap(requests);
        while self.in_ring > 0 {
            // SAFETY: submits nothing and passes no argument.
            let waited = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
            if waited.is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.reap(requests);
        }
    }
}
