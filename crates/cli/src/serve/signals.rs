//! SIGTERM and SIGINT end a server cleanly; another one some seconds later ends it at once.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Caught;

use super::server::Server;
use crate::control::UnmountMode;
use crate::failure::{Context, Result};

/// How long users of the mounts get to leave it before it is detached.
const GRACE: Duration = Duration::from_secs(5);
/// How long they get after that before the connection is cut, so that the pool can be closed.
const LAST_GRACE: Duration = Duration::from_secs(30);
/// Between two attempts to unmount.
const RETRY: Duration = Duration::from_millis(200);
/// Within this time a second signal is the first one again: who switches the machine off tells all processes, and the holder passes on
/// what it was told.
const ONE_WISH: Duration = Duration::from_secs(2);
/// Exit status of a server that was told twice: as if the signal had killed it.
const QUIT_STATUS: i32 = 128 + SIGTERM;

/// Signals that no longer end the process by themselves.
pub struct Signals(Caught);

impl Signals {
    /// Catches SIGTERM, SIGINT and SIGHUP from now on.
    pub fn block() -> Result<Self> {
        Caught::new([SIGTERM, SIGINT, SIGHUP]).map(Self).context(|| "cannot catch signals".into())
    }

    /// Handles them for `server`, in the background.
    pub fn handle(mut self, server: Arc<Server>) -> Result<()> {
        let spawned = thread::Builder::new().name("signals".into()).spawn(move || {
            let mut told: Option<Instant> = None;
            for signal in self.0.forever() {
                if signal == SIGHUP {
                    continue;
                }
                if let Some(first) = told {
                    if first.elapsed() < ONE_WISH {
                        continue;
                    }
                    tracing::warn!(
                        signal,
                        "told to end a second time: ending at once; the pool recovers at the next mount"
                    );
                    std::process::exit(QUIT_STATUS);
                }
                told = Some(Instant::now());
                tracing::info!(signal, "told to end");
                let server = Arc::clone(&server);
                let spawned = thread::Builder::new().name("ending".into()).spawn(move || end(&server));
                if let Err(error) = spawned {
                    tracing::error!(%error, "cannot start a thread to unmount");
                }
            }
        });
        spawned.context(|| "cannot start a thread".into())?;
        Ok(())
    }
}

/// Ends streams, and unmounts, detaching and at last cutting off whoever does not leave.
fn end(server: &Server) {
    server.cut_streams(true);
    let patience = Instant::now() + GRACE;
    loop {
        match server.detach(&server.mounts(), UnmountMode::Normal) {
            Ok(None) => return,
            Ok(Some(_)) if Instant::now() < patience => thread::sleep(RETRY),
            Ok(Some(_)) => break,
            Err(error) => {
                tracing::warn!(error, "cannot unmount");
                break;
            }
        }
    }
    tracing::warn!("a mount is in use: detaching it");
    if let Err(error) = server.detach(&server.mounts(), UnmountMode::Lazy) {
        tracing::warn!(error, "cannot detach a mount");
    }
    if let Err(error) = server.sync() {
        tracing::error!(error, "cannot sync");
    }
    if !server.wait_until_unmounted(LAST_GRACE) {
        tracing::warn!("a mount is still in use: cutting its users off");
        if let Err(error) = server.detach(&server.mounts(), UnmountMode::Force) {
            tracing::error!(error, "cannot cut off the users of a mount");
        }
    }
}
