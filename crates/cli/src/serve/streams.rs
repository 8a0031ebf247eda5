//! Streams over the control socket. They count as users of the pool, as mounts do, so that the server stays until they
//! have ended.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::server::Server;
use crate::control::{
    Moving, PieceReader, PieceWriter, REPLY_BYTES_MAX, Reply, Request, Sendable, write_frame,
};
use crate::failure::{Context, Failure, Result};
use crate::{names, operations, rebase, streams};

/// A stream that is under way.
pub struct UnderWay<'a> {
    server: &'a Server,
    number: u64,
    /// Number of the dataset that must not be mounted meanwhile.
    target: Option<u64>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.server.stream_ended(self.number, self.target);
    }
}

/// Streams of a server.
#[derive(Default)]
pub struct Streams {
    /// Their connections, by number.
    connections: Vec<(u64, UnixStream)>,
    last: u64,
    /// True if no more streams may begin.
    closed: bool,
}

impl Streams {
    /// Returns true if no stream is under way.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Ends all streams as if their clients had gone. With `for_good`, no more streams begin.
    pub fn cut(&mut self, for_good: bool) {
        self.closed |= for_good;
        for (_, connection) in &self.connections {
            if let Err(error) = connection.shutdown(Shutdown::Both) {
                tracing::warn!(%error, "cannot cut off a stream");
            }
        }
    }

    /// Registers a stream and returns its number.
    pub fn begin(&mut self, connection: &UnixStream) -> Result<u64> {
        if self.closed {
            return Err(Failure::new("the server is just ending").hint("try again in a moment"));
        }
        let connection = connection.try_clone().context(|| "cannot follow a stream".into())?;
        self.last += 1;
        self.connections.push((self.last, connection));
        Ok(self.last)
    }

    /// Removes a stream that has ended.
    pub fn end(&mut self, number: u64) {
        self.connections.retain(|(other, _)| *other != number);
    }
}

/// Sends a reply to the client of a stream.
pub(super) fn send_reply(mut connection: &UnixStream, reply: &Reply) -> Result<()> {
    write_frame(&mut connection, reply, REPLY_BYTES_MAX).context(|| "cannot answer".into())
}

/// Returns true if the client has gone, or was cut off.
pub(super) fn has_gone(connection: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(connection, &mut [0_u8], flags), Err(Errno::AGAIN | Errno::INTR))
}

impl Server {
    /// Carries out a request for which [`Request::is_stream`] is true; returns the last reply.
    pub(super) fn stream(&self, request: &Request, connection: &UnixStream) -> Result<Reply> {
        let done = match request {
            Request::Send { what } => self.send(what, connection),
            Request::Receive { path, force } => self.receive(path, *force, connection),
            Request::Diff { old, new, ranges } => self.diff((old, new), *ranges, connection),
            Request::Rebase { what } => self.rebase(what, connection),
            Request::Rewrite { what } => self.rewrite(what, connection),
            _ => Err(Failure::new("that is no stream")),
        };
        match &done {
            Ok(_) => tracing::info!(?request, "done"),
            Err(failure) => tracing::warn!(?request, failure = failure.what(), "failed"),
        }
        done
    }

    fn send(&self, what: &Sendable, connection: &UnixStream) -> Result<Reply> {
        let _under_way = self.stream_begins(connection, None)?;
        let expected_bytes = streams::expected(&self.pool, what)?;
        send_reply(connection, &Reply::Stream { expected_bytes })?;
        let mut out = PieceWriter::new(connection);
        let sent = streams::send(&self.pool, what, &mut out, &mut |_| {});
        out.end().context(|| "cannot end the stream".into())?;
        Ok(Reply::Transferred { all: sent? })
    }

    fn receive(&self, path: &str, force: bool, connection: &UnixStream) -> Result<Reply> {
        let target = self.pool.version(path).ok().map(|dataset| dataset.id);
        let _under_way = self.stream_begins(connection, target)?;
        send_reply(connection, &Reply::Ready {})?;
        let mut input = PieceReader::new(connection);
        let all = streams::receive(&self.pool, path, force, &mut input, &mut |_| {})?;
        Ok(Reply::Transferred { all })
    }

    fn diff(&self, (old, new): (&str, &str), ranges: bool, connection: &UnixStream) -> Result<Reply> {
        let _under_way = self.stream_begins(connection, None)?;
        send_reply(connection, &Reply::Stream { expected_bytes: 0 })?;
        let mut out = std::io::BufWriter::new(PieceWriter::new(connection));
        let told = streams::diff(&self.pool, old, new, ranges, &mut out);
        let out = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        out.and_then(PieceWriter::end).context(|| "cannot end the stream".into())?;
        told.map(|()| Reply::Done {})
    }

    fn rebase(&self, what: &Moving, connection: &UnixStream) -> Result<Reply> {
        operations::clear_way_to_move(&self.pool, what, self)?;
        let target = self.pool.version(&what.path).ok().map(|dataset| dataset.id);
        let _under_way = self.stream_begins(connection, target)?;
        let go_on = &mut || !has_gone(connection);
        let rebased = rebase::perform(&self.pool, what, self, &self.dataset_lock, go_on)?;
        Ok(Reply::Rebased { rebased })
    }

    /// Registers a stream. With `target`, it writes into that dataset, which must not be mounted.
    pub(super) fn stream_begins(&self, connection: &UnixStream, target: Option<u64>) -> Result<UnderWay<'_>> {
        let name = |id| names::full(self.pool.name(), &self.pool.path_of(id).unwrap_or_default());
        let number = self.begin_stream(connection, target, &name)?;
        Ok(UnderWay { server: self, number, target })
    }
}
