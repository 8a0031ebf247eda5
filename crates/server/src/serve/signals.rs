//! Handles signals: SIGTERM and SIGINT end a server cleanly; another one some seconds later ends it at once.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Caught;

use super::server::Server;
use crate::control::UnmountMode;
use crate::failure::{Context, Result};
use crate::timeouts;

/// Exit status of a server that was told twice, as if the signal had killed it.
const QUIT_STATUS: i32 = 128 + SIGTERM;

/// Signals that no longer end the process by themselves.
pub(crate) struct Signals(Caught);

impl Signals {
    /// Catches SIGTERM, SIGINT and SIGHUP from now on.
    pub(crate) fn block() -> Result<Self> {
        Caught::new([SIGTERM, SIGINT, SIGHUP]).map(Self).context(|| "cannot catch signals".into())
    }

    /// Handles them for `server`, in the background.
    pub(crate) fn handle(mut self, server: Arc<Server>) -> Result<()> {
        let spawned = thread::Builder::new().name("signals".into()).spawn(move || {
            let mut told: Option<Instant> = None;
            for signal in self.0.forever() {
                if signal == SIGHUP {
                    continue;
                }
                if let Some(first) = told {
                    if first.elapsed() < timeouts::ONE_WISH {
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

/// Ends streams and unmounts; detaches mounts that stay in use, and at last cuts off their users, also those in other
/// mount namespaces.
fn end(server: &Server) {
    server.exports.refuse_mounts();
    server.exports.cut_streams(true);
    if !unmount(server) {
        tracing::warn!("a mount is in use: detaching it");
        if let Err(error) = server.detach(&server.exports.all(), UnmountMode::Lazy) {
            tracing::warn!(error, "cannot detach a mount");
        }
        if let Err(error) = server.sync() {
            tracing::error!(error, "cannot sync");
        }
    }
    // A mount that is taken away here may live on elsewhere.
    if !server.exports.wait_until_unmounted(timeouts::TOLD_TO_END_AT_LAST) {
        tracing::warn!("a mount is still in use: cutting its users off");
        if let Err(error) = server.detach(&server.exports.all(), UnmountMode::Force) {
            tracing::error!(error, "cannot cut off the users of a mount");
        }
    }
}

/// Unmounts, and gives the users of the mounts some time to leave. Returns true if nothing is mounted any more where
/// this server sees it.
fn unmount(server: &Server) -> bool {
    let patience = Instant::now() + timeouts::TOLD_TO_END;
    loop {
        match server.detach(&server.exports.all(), UnmountMode::Normal) {
            Ok(None) => return true,
            Ok(Some(_)) if Instant::now() < patience => thread::sleep(timeouts::TOLD_TO_END_STEP),
            Ok(Some(_)) => return false,
            Err(error) => {
                tracing::warn!(error, "cannot unmount");
                return false;
            }
        }
    }
}
