//! The server of a pool, which the first `mount` starts in the background, and systemd in the foreground.
//!
//! From start to end it takes the pool's name (the control socket), opens the pool (replaying its log if need be),
//! mounts, reports that it is ready, serves until all is unmounted or it is told to stop, closes the pool cleanly, and
//! ends. Further datasets and snapshots are mounted when `mount` asks over the control socket.

mod answers;
mod background;
mod budget;
mod devices;
pub mod events;
mod export;
mod exports;
mod fullness;
mod fuse;
mod handover;
mod limits;
mod looked_into;
mod memory;
mod mounted;
mod opening;
mod policy;
mod pool_lock;
mod properties;
mod recompress;
mod remount;
mod rewrites;
mod rewriting;
mod server;
mod signals;
mod snapshotter;
mod spare_memory;
mod stopping;
mod stream_list;
mod streams;
#[cfg(test)]
mod toy;

use std::sync::Arc;

use crate::control::Listener;
use crate::failure::{Context, Failure, Result};
use crate::mountopts::MountOptions;
use crate::registry::Known;
use crate::report::{self, StartReport};
use crate::supervisor::{self, Link};
use fuse::FuseFrontEnd;
use handover::Handover;
use pool_lock::PoolLock;
use server::{Beginning, Server};

pub use export::MountRequest;
pub use fullness::{FULL_PERCENT, percent};
pub use fuse::{fuse_options, is_takeover_wanted, mount_failed};

/// The way in which a process is to be the server of a pool.
pub struct ServerOptions {
    /// Options of the pool's first mount.
    pub options: MountOptions,
    /// Properties of the whole pool among them.
    pub given: Vec<(&'static str, String)>,
    /// Descriptor by which this process reaches its supervisor, if it has one.
    pub supervisor: Option<i32>,
    /// True if another process waits for the report that the mount is usable, on standard output.
    pub report: bool,
}

/// The first mount of a server. It is not asked for by a server that goes on for another one, which must touch nothing
/// on its mounts.
pub trait FirstMount {
    /// Finds the pool's devices.
    ///
    /// # Errors
    /// There is no such pool.
    fn pool(&self) -> Result<Known>;

    /// Finds the pool's devices and the directory.
    ///
    /// # Errors
    /// There is no such pool, or no directory to mount at.
    fn request(&self) -> Result<(Known, MountRequest)>;
}

/// Runs the server that `start` has started until its last mount has ended, after reporting that the mount is usable.
///
/// # Errors
/// The server could not be started, which is reported, too, or could not close the pool.
pub fn run(report: bool, start: impl FnOnce() -> Result<RunningServer>) -> Result<()> {
    let running = match start() {
        Ok(running) => running,
        Err(failure) if report => {
            // The command that started this process prints the failure; the returned error goes to the log.
            report::send(&StartReport::failed(&failure));
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    if report {
        report::send(&StartReport::Ready {});
    }
    running.server.handover.notify("READY=1");
    running.until_the_end()
}

/// Starts as a server, or becomes the supervisor of servers. A supervisor does not return; it ends this process.
///
/// # Errors
/// The pool cannot be opened or mounted; advice says what to do.
pub fn start(how: ServerOptions, first: &dyn FirstMount) -> Result<RunningServer> {
    if how.supervisor.is_none() && is_takeover_wanted(&how.options)? {
        return supervise(&how, first);
    }
    if how.report && how.supervisor.is_none() {
        own_session()?;
    }
    let signals = signals::Signals::block()?;
    let ring = events::start();
    let handover = handover(&how)?;
    let (server, listener) = match handover.followed() {
        Some(known) => go_on(how, &known, ring, handover)?,
        None => begin(how, first, ring, handover)?,
    };
    // This starts a thread, which must not happen before the process has confined itself.
    limits::start_logging_counts()?;
    signals.handle(Arc::clone(&server))?;
    listener.serve(Arc::new(answers::Answers(Arc::clone(&server))))?;
    Ok(RunningServer { server, listener })
}

/// Takes the pool's name and devices, and supervises servers until one ends by itself; then ends this process.
fn supervise(how: &ServerOptions, first: &dyn FirstMount) -> Result<RunningServer> {
    if how.report {
        own_session()?;
        // The process that started this one has made paths absolute.
        rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    }
    let pool_lock = PoolLock::take(first.pool()?, (how.options.read_only, how.options.rescue))?;
    let confine = how.options.confine.unwrap_or_default();
    std::process::exit(supervisor::run(confine, pool_lock.into_items()?)?)
}

/// Starts a session of our own, which the terminal's signals do not reach.
fn own_session() -> Result<()> {
    rustix::process::setsid().map(drop).context(|| "cannot start a session".into())
}

/// Takes over the state that the supervisor keeps, if there is a supervisor.
fn handover(how: &ServerOptions) -> Result<Handover> {
    let Some(line) = how.supervisor else { return Ok(Handover::none()) };
    let (link, inherited) = Link::connect(line)?;
    Handover::from_link(link, inherited, !how.options.read_only)
}

fn begin(
    how: ServerOptions,
    first: &dyn FirstMount,
    ring: Arc<events::Ring>,
    handover: Handover,
) -> Result<(Arc<Server>, Listener)> {
    let (known, wanted) = first.request()?;
    let listener = handover.listen(&known.name)?;
    leave_directory()?;
    let front = Arc::new(FuseFrontEnd::start(&known.name, &wanted.options)?);
    let beginning = Beginning { ring, handover, front, given: how.given };
    Ok((Server::start(&known, &wanted, beginning)?, listener))
}

/// Goes on for the previous server. Nothing on the mounts may be touched before they are served again.
fn go_on(
    how: ServerOptions,
    known: &Known,
    ring: Arc<events::Ring>,
    handover: Handover,
) -> Result<(Arc<Server>, Listener)> {
    let listener = handover.listen(&known.name)?;
    leave_directory()?;
    let front = Arc::new(FuseFrontEnd::resume(&known.name, &how.options)?);
    let beginning = Beginning { ring, handover, front, given: how.given };
    Ok((Server::resume(known, &how.options, beginning)?, listener))
}

/// Changes to the root directory: from here on no relative path is used, and no directory is kept busy.
fn leave_directory() -> Result<()> {
    rustix::process::chdir("/").context(|| "cannot change to /".into())
}

/// A server whose mount is usable.
pub struct RunningServer {
    server: Arc<Server>,
    listener: Listener,
}

impl RunningServer {
    fn until_the_end(self) -> Result<()> {
        self.server.exports.wait_for_unmount();
        self.server.handover.notify("STOPPING=1");
        let closed = self.server.close();
        // New requests find no server any more; replies that wait for the end are sent first.
        self.listener.finish();
        self.server.handover.let_go_of_devices();
        self.server.ring.finish();
        match closed {
            Ok(()) => Ok(()),
            Err(what) => Err(Failure::new(what).hint("mounting the pool again recovers it")),
        }
    }
}
