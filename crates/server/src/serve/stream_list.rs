//! The streams of a server that are under way, by number.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::failure::{Context, Failure, Result};

/// Streams of a server.
#[derive(Default)]
pub(super) struct StreamList {
    /// Their connections, by number.
    connections: Vec<(u64, UnixStream)>,
    last: u64,
    /// True if no more streams may begin.
    closed: bool,
}

impl StreamList {
    /// Returns true if no stream is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Ends all streams as if their clients had gone. With `for_good`, no more streams begin.
    pub(super) fn cut(&mut self, for_good: bool) {
        self.closed |= for_good;
        for (_, connection) in &self.connections {
            if let Err(error) = connection.shutdown(Shutdown::Both) {
                tracing::warn!(%error, "cannot cut off a stream");
            }
        }
    }

    /// Registers a stream and returns its number.
    pub(super) fn begin(&mut self, connection: &UnixStream) -> Result<u64> {
        if self.closed {
            return Err(Failure::new("the server is just ending").hint("try again in a moment"));
        }
        let connection = connection.try_clone().context(|| "cannot follow a stream".into())?;
        self.last += 1;
        self.connections.push((self.last, connection));
        Ok(self.last)
    }

    /// Removes a stream that has ended.
    pub(super) fn end(&mut self, number: u64) {
        self.connections.retain(|(other, _)| *other != number);
    }
}
