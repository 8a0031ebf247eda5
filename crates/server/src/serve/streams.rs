//! Streams over the control socket. They count as users of the pool, as mounts do, so that the server stays until they
//! have ended.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagefold_engine::pool::Pool;
use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::exports::Exports;
use crate::control::{Moving, PieceReader, PieceWriter, REPLY_BYTES_MAX, Reply, Sendable, write_frame};
use crate::failure::{Context, Result};
use crate::passage::{Inlet, Unpoured, passage};
use crate::{names, operations, rebase, streams};

/// Time for which a client may be silent before it is seen to whether the receiver still wants anything.
const PAUSE: Duration = Duration::from_millis(50);

/// A stream that is under way.
pub(crate) struct UnderWay<'a> {
    exports: &'a Exports,
    number: u64,
    /// Number of the dataset that must not be mounted meanwhile.
    target: Option<u64>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.exports.stream_ended(self.number, self.target);
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

/// Reads a stream for a receiver that is busy with what came before, until it ends or the receiver has.
fn read_ahead(connection: &UnixStream, mut inlet: Inlet, received: &AtomicBool) {
    let mut pieces = PieceReader::new(connection);
    let pause = Timespec::try_from(PAUSE).ok();
    while !received.load(Ordering::Acquire) {
        match poll(&mut [PollFd::new(connection, PollFlags::IN)], pause.as_ref()) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return inlet.fail(error.into()),
        }
        match inlet.pour(&mut pieces) {
            Ok(0) | Err(Unpoured::Output(_)) => return,
            Ok(_) => {}
            Err(Unpoured::Source(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(Unpoured::Source(error)) => return inlet.fail(error),
        }
    }
}

/// The parts of a server that streams use.
#[derive(Clone, Copy)]
pub(super) struct StreamContext<'a> {
    pub(super) pool: &'a Pool,
    pub(super) exports: &'a Exports,
    pub(super) dataset_lock: &'a RwLock<()>,
}

impl<'a> StreamContext<'a> {
    pub(super) fn send(&self, what: &Sendable, connection: &UnixStream) -> Result<Reply> {
        let _under_way = self.begin(connection, None)?;
        let expected_bytes = streams::expected(self.pool, what)?;
        send_reply(connection, &Reply::Stream { expected_bytes })?;
        let mut out = PieceWriter::new(connection);
        let sent = streams::send(self.pool, what, &mut out, &mut |_| {});
        out.end().context(|| "cannot end the stream".into())?;
        Ok(Reply::Transferred { all: sent? })
    }

    pub(super) fn receive(&self, path: &str, force: bool, connection: &UnixStream) -> Result<Reply> {
        let target = self.pool.version(path).ok().map(|dataset| dataset.id);
        let _under_way = self.begin(connection, target)?;
        send_reply(connection, &Reply::Ready {})?;
        let (mut outlet, inlet) = passage();
        let received = AtomicBool::new(false);
        let all = thread::scope(|scope| {
            thread::Builder::new()
                .name("stream".into())
                .spawn_scoped(scope, || read_ahead(connection, inlet, &received))
                .context(|| "cannot start a thread for the stream".into())?;
            let all = streams::receive(self.pool, path, force, &mut outlet, &mut |_| {});
            received.store(true, Ordering::Release);
            // A thread that waits for room has none to wait for.
            drop(outlet);
            all
        })?;
        Ok(Reply::Transferred { all })
    }

    pub(super) fn diff(
        &self,
        (old, new): (&str, &str),
        ranges: bool,
        connection: &UnixStream,
    ) -> Result<Reply> {
        let _under_way = self.begin(connection, None)?;
        send_reply(connection, &Reply::Stream { expected_bytes: 0 })?;
        let mut out = std::io::BufWriter::new(PieceWriter::new(connection));
        let told = streams::diff(self.pool, old, new, ranges, &mut out);
        let out = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        out.and_then(PieceWriter::end).context(|| "cannot end the stream".into())?;
        told.map(|()| Reply::Done {})
    }

    pub(super) fn rebase(&self, what: &Moving, connection: &UnixStream) -> Result<Reply> {
        operations::clear_way_to_move(self.pool, what, self.exports)?;
        let target = self.pool.version(&what.path).ok().map(|dataset| dataset.id);
        let _under_way = self.begin(connection, target)?;
        let go_on = &mut || !has_gone(connection);
        let rebased = rebase::perform(self.pool, what, self.exports, self.dataset_lock, go_on)?;
        Ok(Reply::Rebased { rebased })
    }

    /// Registers a stream. With `target`, it writes into that dataset, which must not be mounted.
    pub(super) fn begin(&self, connection: &UnixStream, target: Option<u64>) -> Result<UnderWay<'a>> {
        let name = |id| names::full(self.pool.name(), &self.pool.path_of(id).unwrap_or_default());
        let number = self.exports.begin_stream(connection, target, &name)?;
        Ok(UnderWay { exports: self.exports, number, target })
    }
}
