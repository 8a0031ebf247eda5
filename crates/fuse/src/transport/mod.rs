//! How requests arrive and replies leave: over `/dev/fuse`, or over a ring per CPU (FUSE over io_uring).

mod dev;
mod ring;

use crate::init::Agreement;
use crate::request::{Handler, Request};
use crate::stats::Stats;
use std::{fs, io, os::fd::OwnedFd, sync::Arc};

/// Which transport a session uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The ring where the kernel offers it, `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// Reads and writes of `/dev/fuse`, one thread per request under way.
    Dev,
    /// FUSE over io_uring; a mount fails where the kernel does not offer it.
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

/// Whether the kernel lets a server speak over a ring.
pub(crate) fn ring_enabled() -> bool {
    fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|text| text.trim() == "Y")
}
