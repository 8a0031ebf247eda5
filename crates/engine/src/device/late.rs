//! Requests that nobody waits for any more, until the kernel has ended them.
//!
//! The thread that made them gives its ring away with them. Another thread, which there is as long as there are such
//! requests, waits for all of them, and has the rings count what they took and free their memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::thread;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

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
