//! Requests that nobody waits for any more, until the kernel has ended them.
//!
//! The thread that made them gives its ring away with them. Another thread, which there is as long as there are such
//! requests, waits for all of them, and has the rings count what they took and free their memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use io_uring::{IoUring, types};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

/// Rings for one use of them, as long as the kernel lets this program have some that can be waited for a time.
pub(super) struct Rings {
    is_refused: AtomicBool,
    /// Consequence if there are none.
    without: &'static str,
}

impl Rings {
    pub(super) const fn new(without: &'static str) -> Self {
        Self { is_refused: AtomicBool::new(false), without }
    }

    /// Returns true once the kernel has refused a ring for good, or one has failed.
    pub(super) fn are_refused(&self) -> bool {
        self.is_refused.load(Relaxed)
    }

    /// Returns what `open` returns; `None` if there can be no ring.
    pub(super) fn open<R>(&self, open: impl FnOnce() -> io::Result<R>) -> Option<R> {
        if self.are_refused() {
            return None;
        }
        let error = match open() {
            Ok(ring) => return Some(ring),
            Err(error) => error,
        };
        let is_lasting = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES));
        if (is_lasting || error.kind() == io::ErrorKind::Unsupported) && !self.is_refused.swap(true, Relaxed)
        {
            tracing::warn!(%error, "no io_uring: {}", self.without);
        }
        None
    }

    /// Notes that a ring has failed, which no ring should.
    pub(super) fn fail(&self, error: &io::Error) {
        tracing::error!(%error, "io_uring failed: {} from now on", self.without);
        self.is_refused.store(true, Relaxed);
    }
}

/// Makes a ring that can be waited for a time, and given to another thread.
///
/// # Errors
/// Those of the kernel, which may not have io_uring, or not be able to wait for a time (before Linux 5.11).
pub(super) fn open_ring(entries: u32) -> io::Result<IoUring> {
    // Not one whose completions only its own thread can take: they may come when that does something else, or has ended.
    let ring = IoUring::new(entries)?;
    if ring.params().is_feature_ext_arg() { Ok(ring) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Begins the requests that were pushed, and waits until `want` have ended, or so many nanoseconds have passed, or something
/// else has woken the thread. Returns true if the time has passed.
///
/// # Errors
/// Those of the kernel; then it is not known which requests have begun.
pub(super) fn wait(ring: &IoUring, want: usize, rest_ns: Option<u64>) -> io::Result<bool> {
    let waited = match rest_ns {
        None => ring.submitter().submit_and_wait(want),
        Some(rest_ns) => {
            let time = types::Timespec::new().sec(rest_ns / 1_000_000_000);
            let time = time.nsec((rest_ns % 1_000_000_000) as u32);
            ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&time))
        }
    };
    let Err(error) = waited else { return Ok(false) };
    match error.raw_os_error() {
        Some(libc::ETIME) => Ok(true),
        // EBUSY and EAGAIN: the kernel cannot take more now, and what it has goes on.
        Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(false),
        _ => Err(error),
    }
}

/// A ring with requests that nobody waits for. It can be polled for those that have ended.
pub(super) trait LateRing: AsFd + Send {
    /// Ends what the kernel has ended.
    fn take_ended(&mut self);

    /// Returns true if nothing is under way.
    fn has_ended(&self) -> bool;

    /// Tells of devices that have not answered for long. Returns true if it need not be asked again.
    fn tell(&self) -> bool;
}

/// Rings that have come, and whether there is a thread that takes them.
struct Arrivals {
    rings: Vec<Box<dyn LateRing>>,
    is_served: bool,
}

static ARRIVALS: Mutex<Arrivals> = Mutex::new(Arrivals { rings: Vec::new(), is_served: false });

/// Wakes the thread; `None` if there can be no such thing: then it looks several times a second.
static WAKE: LazyLock<Option<OwnedFd>> =
    LazyLock::new(|| rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok());

/// Time after which the thread looks again, if something else may have to be done than what wakes it.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Takes a ring whose requests nobody waits for.
pub(super) fn keep(ring: Box<dyn LateRing>) {
    let mut arrivals = ARRIVALS.lock();
    arrivals.rings.push(ring);
    if arrivals.is_served {
        drop(arrivals);
        if let Some(wake) = WAKE.as_ref() {
            // The counter cannot be full: the thread empties it.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        return;
    }
    match thread::Builder::new().name("pf-late".into()).spawn(serve) {
        Ok(_) => arrivals.is_served = true,
        Err(error) => {
            tracing::error!(%error, "no thread waits for late requests; their memory is lost until the program ends");
            arrivals.rings.clear();
        }
    }
}

fn serve() {
    let mut rings: Vec<Box<dyn LateRing>> = Vec::new();
    // True if nobody waits to be told of.
    let mut is_told = true;
    loop {
        {
            let mut arrivals = ARRIVALS.lock();
            is_told &= arrivals.rings.is_empty();
            rings.append(&mut arrivals.rings);
            if rings.is_empty() {
                arrivals.is_served = false;
                return;
            }
        }
        let wake = WAKE.as_ref();
        let all = rings.iter().map(|ring| PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = all.chain(wake.map(|wake| PollFd::new(wake, PollFlags::IN))).collect();
        let looks = !is_told || wake.is_none();
        // An error, or an interruption, leads to one more look.
        let _ = rustix::event::poll(&mut all, looks.then_some(&LOOK));
        if let Some(wake) = wake {
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
        rings.iter_mut().for_each(|ring| ring.take_ended());
        rings.retain(|ring| !ring.has_ended());
        is_told = rings.iter().fold(true, |is_told, ring| is_told & ring.tell());
    }
}
