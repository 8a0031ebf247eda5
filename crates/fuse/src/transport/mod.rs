//! Receives requests and sends replies: over `/dev/fuse`, or over a ring per CPU (FUSE over io_uring).

mod dev;
mod ring;

use crate::init::Agreement;
use crate::kernel::{Kernel, notify};
use crate::mount::{self, Mounter, Unmount};
use crate::protocol::NOTIFY_RESEND;
use crate::request::{Handler, Request};
use crate::stats::Stats;
use ring::NoRings;
use std::{fs, io, os::fd::OwnedFd, path::PathBuf, sync::Arc};

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
    /// Minor number of the mount's device.
    pub(crate) device_minor: u32,
    pub(crate) mounter: Arc<dyn Mounter>,
    /// True if another process may have to go on: then nothing about the connection may be known to this process alone.
    pub(crate) takeover: bool,
}

impl Wiring {
    /// Ends the connection: if requests can no longer be answered, errors are better than programs that hang.
    fn abort(&self) {
        let mount = (self.dir.as_path(), self.device_minor);
        if let Err(error) = mount::take_away(&*self.mounter, mount, Unmount::Abort) {
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

/// Returns true if this process may make rings.
pub(crate) fn can_make_rings() -> bool {
    ring::can_be_made()
}

/// Starts answering. /dev/fuse is always read: if requests travel over rings, forgets and interrupts still come that
/// way, and everything does if the kernel refuses the rings that it has agreed to.
pub(crate) fn start(wiring: Wiring, agreement: Agreement, must_ring: bool) -> io::Result<Box<dyn Running>> {
    if !agreement.over_ring() {
        return dev::start(wiring, Vec::new());
    }
    match ring::start(&wiring) {
        Ok(rings) => Ok(Box::new(All(vec![rings, dev::start(wiring, Vec::new())?]))),
        Err(NoRings::Refused(error)) if !must_ring => {
            tracing::warn!(%error, "FUSE over io_uring is not to be had; using /dev/fuse");
            dev::start(wiring, Vec::new())
        }
        Err(NoRings::Refused(error) | NoRings::Missing(error)) => Err(error),
    }
}

/// Goes on answering on a connection whose server died.
pub(crate) fn resume(wiring: Wiring, agreement: &Agreement) -> io::Result<Box<dyn Running>> {
    notify(&wiring.device, NOTIFY_RESEND, &[])?;
    let mut asked = dev::drain(&wiring.device, &wiring.stats)?;
    let again = asked.iter_mut().filter(|request| request.is_again()).count();
    tracing::info!(requests = asked.len(), again, dir = %wiring.dir.display(), "took over the mount");
    wiring.handler.taken_over(&mut asked);
    wiring.handler.agreed(agreement, &Kernel::new(&wiring.device));
    dev::start(wiring, asked)
}

/// Returns true if the kernel asks again the requests that a server which died has left unanswered: Linux 6.9 and
/// newer.
pub fn kernel_resends() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0);
    (number(), number()) >= (6, 9)
}

/// Reads one request from `/dev/fuse` on the caller's thread.
pub(crate) fn read_one(device: &Arc<OwnedFd>, stats: &Arc<Stats>) -> io::Result<Request> {
    dev::read_one(device, stats)
}
