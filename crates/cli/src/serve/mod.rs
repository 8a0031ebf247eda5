//! The server of a pool: what the first `mount` starts in the background, and systemd in the foreground.
//!
//! From start to end: take the pool's name (control socket), open the pool (replaying its log if need be),
//! mount, say that we are ready, serve until all is unmounted or told to stop, close the pool cleanly, end. Further datasets and
//! snapshots are mounted when `mount` asks over the control socket.

mod answers;
mod background;
mod claim;
pub mod events;
mod folding;
mod fullness;
mod keep;
mod keeper;
mod limits;
mod memory;
pub mod mounted;
pub mod plan;
mod policy;
mod remount;
pub mod report;
mod rewriting;
mod server;
mod signals;
mod snapdir;
mod streams;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

pub use fullness::{FULL_PERCENT, percent};
pub use mounted::Wanted;
pub use report::Outcome;

use crate::args::Mount;
use crate::control::Listener;
use crate::failure::{Context, Failure, Result};
use crate::holder::{self, Link};
use crate::registry::Known;
use crate::{launch, mounter, startup};
use claim::Claim;
use keep::Keep;
use plan::Plan;
use server::Server;

/// Serves a mount until it ends; as the holder of servers that do, or as one of them.
pub fn run(args: &Mount) -> Result<()> {
    launch::settle(args.held_by.or(args.mounts_for), args.report && args.held_by.is_none())?;
    crate::ignore_sigpipe();
    if let Some(line) = args.mounts_for {
        return mounter::run(args, line);
    }
    let outcome = settle(args)
        .and_then(|()| wants_holder(args))
        .and_then(|wanted| if wanted { hold(args) } else { start(args) });
    let running = match outcome {
        Ok(running) => running,
        Err(failure) if args.report => {
            // The command that started us prints it; what is returned goes to the log.
            report::tell(&Outcome::failed(&failure));
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    if args.report {
        report::tell(&Outcome::Ready {});
    }
    running.server.keep.notify("READY=1");
    running.until_the_end()
}

fn wants_holder(args: &Mount) -> Result<bool> {
    Ok(args.held_by.is_none() && keep::is_wanted(&startup::options(args)?)?)
}

/// Takes the pool's name and devices, and holds servers until one ends by itself, and then this process.
fn hold(args: &Mount) -> Result<Running> {
    if args.report {
        own_session()?;
        // Paths were made absolute by who started us.
        rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    }
    let options = startup::options(args)?;
    let claim = Claim::take(args.source.as_deref().unwrap_or_default(), options.read_only)?;
    std::process::exit(holder::run(options.confine.unwrap_or_default(), claim.into_kept()?)?)
}

/// Started without what `mount` finds out beforehand, as by systemd: finds the directory and the pool's own options, and starts once
/// more with them. To find the directory the pool is opened, and what may be started for that (threads) is not to be there when this
/// process confines itself.
fn settle(args: &Mount) -> Result<()> {
    if args.pool_options.is_some() || args.held_by.is_some() {
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

/// A session of our own: the terminal's signals are not for us.
fn own_session() -> Result<()> {
    rustix::process::setsid().map(drop).context(|| "cannot start a session".into())
}

/// A server whose mount is usable.
struct Running {
    server: Arc<Server>,
    listener: Listener,
}

fn start(args: &Mount) -> Result<Running> {
    if args.report && args.held_by.is_none() {
        own_session()?;
    }
    let signals = signals::Signals::block()?;
    let ring = events::start();
    let keep = keep(args)?;
    let (server, listener) = match keep.followed() {
        Some(known) => go_on(args, &known, ring, keep)?,
        None => begin(args, ring, keep)?,
    };
    // A thread: not before this process has confined itself.
    limits::tell_counts()?;
    signals.handle(Arc::clone(&server))?;
    listener.serve(Arc::new(answers::Answers(Arc::clone(&server))))?;
    Ok(Running { server, listener })
}

/// What the holder keeps for us, if there is one.
fn keep(args: &Mount) -> Result<Keep> {
    let Some(line) = args.held_by else { return Ok(Keep::nothing()) };
    let (link, inherited) = Link::connect(line)?;
    let options = startup::options(args)?;
    Keep::with(link, inherited, !options.read_only)
}

fn begin(args: &Mount, ring: Arc<events::Ring>, keep: Keep) -> Result<(Arc<Server>, Listener)> {
    let plan: Plan = plan::make(args)?;
    let listener = keep.listen(&plan.known.name)?;
    leave_directory()?;
    Ok((Server::start(&plan, ring, keep)?, listener))
}

/// Goes on for a server that died. Nothing on the mounts may be touched before they are served again.
fn go_on(
    args: &Mount,
    known: &Known,
    ring: Arc<events::Ring>,
    keep: Keep,
) -> Result<(Arc<Server>, Listener)> {
    let listener = keep.listen(&known.name)?;
    leave_directory()?;
    let server = Server::resume(known, &startup::options(args)?, startup::given(args)?, ring, keep)?;
    Ok((server, listener))
}

/// From here on nothing is found by relative paths, and no directory is kept busy.
fn leave_directory() -> Result<()> {
    rustix::process::chdir("/").context(|| "cannot change to /".into())
}

impl Running {
    fn until_the_end(self) -> Result<()> {
        self.server.wait_for_unmount();
        self.server.keep.notify("STOPPING=1");
        let closed = self.server.close();
        // New requests find no server any more; those that wait for the end are answered first.
        self.listener.finish();
        self.server.keep.let_go_of_devices();
        self.server.ring.finish();
        match closed {
            Ok(()) => Ok(()),
            Err(what) => Err(Failure::new(what).hint("mounting the pool again recovers it")),
        }
    }
}
