//! The server of a pool, which the first `mount` starts in the background, and systemd in the foreground.
//!
//! From start to end it takes the pool's name (the control socket), opens the pool (replaying its log if need be),
//! mounts, reports that it is ready, serves until all is unmounted or it is told to stop, closes the pool cleanly, and
//! ends. Further datasets and snapshots are mounted when `mount` asks over the control socket.

#![deny(clippy::print_stderr, reason = "write_line does not panic where standard error fails")]

mod answers;
mod background;
pub mod events;
mod export;
mod exports;
mod fullness;
pub mod fuse;
mod handover;
mod limits;
mod memory;
mod mounted;
mod opening;
pub mod plan;
mod policy;
mod pool_lock;
mod properties;
mod recompress;
mod remount;
pub mod report;
mod rewrites;
mod rewriting;
mod server;
mod signals;
mod snapshotter;
mod stopping;
mod stream_list;
mod streams;
#[cfg(test)]
mod toy;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

pub use export::MountRequest;
pub use fullness::{FULL_PERCENT, percent};
pub use report::StartReport;

use crate::args::Mount;
use crate::control::Listener;
use crate::failure::{Context, Failure, Result};
use crate::registry::Known;
use crate::supervisor::{self, Link};
use crate::{mounter, spawn, startup};
use fuse::FuseFrontEnd;
use handover::Handover;
use plan::MountPlan;
use pool_lock::PoolLock;
use server::{Beginning, Server};

/// Runs as the server of a mount until that ends, as the supervisor of servers, or as a mounter.
pub fn run(args: &Mount) -> Result<()> {
    spawn::settle(args.supervisor.or(args.mounts_for), args.report && args.supervisor.is_none())?;
    crate::ignore_sigpipe();
    if let Some(line) = args.mounts_for {
        return mounter::run(args, line);
    }
    let outcome = settle(args)
        .and_then(|()| wants_supervisor(args))
        .and_then(|wanted| if wanted { supervise(args) } else { start(args) });
    let running = match outcome {
        Ok(running) => running,
        Err(failure) if args.report => {
            // The command that started this process prints the failure; the returned error goes to the log.
            report::send(&StartReport::failed(&failure));
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    if args.report {
        report::send(&StartReport::Ready {});
    }
    running.server.handover.notify("READY=1");
    running.until_the_end()
}

fn wants_supervisor(args: &Mount) -> Result<bool> {
    Ok(args.supervisor.is_none() && fuse::is_takeover_wanted(&startup::options(args)?)?)
}

/// Takes the pool's name and devices, and supervises servers until one ends by itself; then ends this process.
fn supervise(args: &Mount) -> Result<RunningServer> {
    if args.report {
        own_session()?;
        // The process that started this one has made paths absolute.
        rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    }
    let options = startup::options(args)?;
    let pool_lock = PoolLock::take(args.source.as_deref().unwrap_or_default(), options.read_only)?;
    std::process::exit(supervisor::run(options.confine.unwrap_or_default(), pool_lock.into_items()?)?)
}

/// Finds the directory and the pool's own options, and runs the program again with them, if this process was started
/// without them, as by systemd. Finding the directory opens the pool, which may start threads; these must not exist
/// when a process confines itself.
fn settle(args: &Mount) -> Result<()> {
    if args.pool_options.is_some() || args.supervisor.is_some() {
        return Ok(());
    }
    let plan = plan::make(args)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = words.iter().position(|word| word == "serve").map_or(0, |at| at + 1);
    words.insert(verb, format!("--pool-options={}", plan.pool_options()?.join(",")).into());
    if args.dir.is_none() {
        words.push(plan.wanted.dir.into());
    }
    let error = Command::new(program).args(words).exec();
    Err(Failure::new(format!("cannot start the server: {error}")))
}

/// Starts a session of our own, which the terminal's signals do not reach.
fn own_session() -> Result<()> {
    rustix::process::setsid().map(drop).context(|| "cannot start a session".into())
}

/// A server whose mount is usable.
struct RunningServer {
    server: Arc<Server>,
    listener: Listener,
}

fn start(args: &Mount) -> Result<RunningServer> {
    if args.report && args.supervisor.is_none() {
        own_session()?;
    }
    let signals = signals::Signals::block()?;
    let ring = events::start();
    let handover = handover(args)?;
    let (server, listener) = match handover.followed() {
        Some(known) => go_on(args, &known, ring, handover)?,
        None => begin(args, ring, handover)?,
    };
    // This starts a thread, which must not happen before the process has confined itself.
    limits::start_logging_counts()?;
    signals.handle(Arc::clone(&server))?;
    listener.serve(Arc::new(answers::Answers(Arc::clone(&server))))?;
    Ok(RunningServer { server, listener })
}

/// Takes over the state that the supervisor keeps, if there is a supervisor.
fn handover(args: &Mount) -> Result<Handover> {
    let Some(line) = args.supervisor else { return Ok(Handover::none()) };
    let (link, inherited) = Link::connect(line)?;
    let options = startup::options(args)?;
    Handover::from_link(link, inherited, !options.read_only)
}

fn begin(args: &Mount, ring: Arc<events::Ring>, handover: Handover) -> Result<(Arc<Server>, Listener)> {
    let plan: MountPlan = plan::make(args)?;
    let listener = handover.listen(&plan.known.name)?;
    leave_directory()?;
    let MountPlan { known, wanted, given, .. } = plan;
    let front = Arc::new(FuseFrontEnd::start(&known.name, &wanted.options)?);
    Ok((Server::start(&known, &wanted, Beginning { ring, handover, front, given })?, listener))
}

/// Goes on for the previous server. Nothing on the mounts may be touched before they are served again.
fn go_on(
    args: &Mount,
    known: &Known,
    ring: Arc<events::Ring>,
    handover: Handover,
) -> Result<(Arc<Server>, Listener)> {
    let listener = handover.listen(&known.name)?;
    leave_directory()?;
    let (options, given) = (startup::options(args)?, startup::given(args)?);
    let front = Arc::new(FuseFrontEnd::resume(&known.name, &options)?);
    let server = Server::resume(known, &options, Beginning { ring, handover, front, given })?;
    Ok((server, listener))
}

/// Changes to the root directory: from here on no relative path is used, and no directory is kept busy.
fn leave_directory() -> Result<()> {
    rustix::process::chdir("/").context(|| "cannot change to /".into())
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
