//! Reports to the process that started the server that it is ready, or why not: to the `mount` command through a pipe,
//! to systemd through its notification socket.

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The message in the pipe: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum StartReport {
    /// The mount is usable.
    Ready {},
    /// The mount has failed.
    Failed {
        /// The error, and the object that it concerns.
        what: String,
        /// Advice to the user.
        hint: Option<String>,
    },
}

impl StartReport {
    /// Returns the outcome of a failed start.
    pub fn failed(failure: &Failure) -> Self {
        Self::Failed { what: failure.what().to_owned(), hint: failure.advice().map(str::to_owned) }
    }
}

/// Writes the outcome to the pipe on standard output and closes it, so that nobody waits any longer.
pub fn send(outcome: &StartReport) {
    let sent = serde_json::to_string(outcome).map_err(io::Error::from).and_then(|line| {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{line}")?;
        stdout.flush()
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell the mount command how the start went");
    }
    close_stdout();
}

/// Closes standard output, by putting /dev/null in its place.
pub(crate) fn close_stdout() {
    let closed = std::fs::File::options()
        .write(true)
        .open("/dev/null")
        .and_then(|null| rustix::stdio::dup2_stdout(&null).map_err(io::Error::from));
    if let Err(error) = closed {
        tracing::warn!(%error, "cannot close standard output");
    }
}

/// Sends a state (`READY=1`, `STOPPING=1`, `STATUS=...`) to systemd, if it started us.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
