//! The server of a pool: what the first `mount` starts in the background, and systemd in the foreground.
//!
//! From start to end: take the pool's name (control socket), open the pool (replaying its log if need be),
//! mount, say that we are ready, serve until all is unmounted or told to stop, close the pool cleanly, end. Further datasets and
//! snapshots are mounted when `mount` asks over the control socket.

mod answers;
mod background;
mod events;
mod folding;
mod fullness;
mod mounted;
pub mod plan;
mod policy;
mod report;
mod server;
mod signals;
mod snapdir;

use std::sync::Arc;

pub use fullness::{FULL_PERCENT, percent};
pub use mounted::Wanted;
pub use report::Outcome;

use crate::args::Mount;
use crate::control::Listener;
use crate::failure::{Context, Failure, Result};
use plan::Plan;
use server::Server;

/// Serves a mount until it ends.
pub fn run(args: &Mount) -> Result<()> {
    ignore_sigpipe();
    let outcome = start(args);
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
    report::notify("READY=1");
    running.until_the_end()
}

/// A server whose mount is usable.
struct Running {
    server: Arc<Server>,
    listener: Listener,
}

fn start(args: &Mount) -> Result<Running> {
    if args.report {
        // A session of our own: the terminal's signals are not for us.
        rustix::process::setsid().context(|| "cannot start a session".into())?;
    }
    let signals = signals::Signals::block()?;
    let ring = events::start();
    let plan: Plan = plan::make(args)?;
    let listener = Listener::bind(&plan.known.name)?;
    // From here on nothing is found by relative paths, and no directory is kept busy.
    rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    let server = Server::start(&plan, ring)?;
    signals.handle(Arc::clone(&server))?;
    listener.serve(Arc::new(answers::Answers(Arc::clone(&server))))?;
    Ok(Running { server, listener })
}

impl Running {
    fn until_the_end(self) -> Result<()> {
        self.server.wait_for_unmount();
        report::notify("STOPPING=1");
        let closed = self.server.close();
        // New requests find no server any more; those that wait for the end are answered first.
        self.listener.finish();
        match closed {
            Ok(()) => Ok(()),
            Err(what) => Err(Failure::new(what).hint("mounting the pool again recovers it")),
        }
    }
}

/// A client that goes away while it is answered must not end the server.
fn ignore_sigpipe() {
    // SAFETY: ignoring a signal runs no code of ours, and no other thread exists yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}
