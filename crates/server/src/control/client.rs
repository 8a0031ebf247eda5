//! The client's side of the control socket.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, UCred, recv, sockopt};
use rustix::process::{PidfdFlags, pidfd_open};

use super::descriptor;
use super::frame::{self, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use super::model::{Reply, Request};
use super::pieces::{PieceReader, PieceWriter};
use crate::failure::{Context, Failure, Result};
use crate::{files, notices, timeouts};

/// A connection to the server of a mounted pool.
pub struct Client {
    pool: String,
    /// Place where the server listens.
    path: PathBuf,
    stream: UnixStream,
    /// The server's process, if it lived when the connection was made.
    process: Option<OwnedFd>,
    /// True once the connection broke.
    lost: bool,
    /// True once the server has not answered in time.
    silent: bool,
}

/// Returns an error if a socket belongs neither to root nor to our own user: what its owner says would be believed.
fn check_peer(pool: &str, path: &Path, peer: Option<UCred>) -> Result<()> {
    let believed = peer.is_some_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
    if believed {
        return Ok(());
    }
    let who = peer.map_or_else(|| "nobody knows who".into(), |peer| format!("user {}", peer.uid.as_raw()));
    Err(Failure::new(format!("{who} listens at {}, in the place of pool {pool}'s server", path.display()))
        .hint("look who that is; root's servers and your own are asked, nobody else's"))
}

/// Returns true if somebody has the lock of a name.
fn is_taken(lock: &Path) -> bool {
    // Nothing else that somebody may have put there is waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(lock) = open(lock, flags, Mode::empty()) else { return false };
    // Whoever wants the name at this instant tries again a moment later.
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

impl Client {
    /// Connects to the server of `pool`; `None` if there is none. Waits a moment for one that is about to listen.
    pub fn connect(pool: &str) -> Result<Option<Self>> {
        if !files::is_private(&files::runtime_dir())? {
            return Ok(None);
        }
        let end = Instant::now() + timeouts::NEXT_SERVER;
        Self::connect_when_it_listens(pool, &files::socket_of(pool), &mut || {
            thread::sleep(timeouts::TURN_STEP);
            Instant::now() < end
        })
    }

    /// Connects to the server of `pool` that listens at `path`. If there is none, but somebody has the pool's name, one is
    /// about to listen: it begins, or goes on for one that died. Otherwise it has closed the pool, and is about to end.
    /// Calls `pause` before each further attempt; `None` once that has returned false, or nobody has the name.
    pub(super) fn connect_when_it_listens(
        pool: &str,
        path: &Path,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>> {
        loop {
            let found = Self::connect_at(pool, path.to_owned())?;
            if found.is_some() || !is_taken(&path.with_file_name(format!("{pool}.lock"))) || !pause() {
                return Ok(found);
            }
        }
    }

    /// Connects to the server of `pool` that listens at `path`; `None` if there is none.
    pub(super) fn connect_at(pool: &str, path: PathBuf) -> Result<Option<Self>> {
        match UnixStream::connect(&path) {
            Ok(stream) => {
                let peer = sockopt::socket_peercred(&stream).ok();
                check_peer(pool, &path, peer)?;
                let process = peer.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
                Ok(Some(Self { pool: pool.to_owned(), path, stream, process, lost: false, silent: false }))
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(Failure::new(format!(
                "cannot reach the server of pool {pool} at {}: {error}",
                path.display()
            ))
            .hint("only root and the user who mounted the pool may")),
        }
    }

    /// Connects to the servers of all mounted pools that this user can reach, sorted by the pools' names.
    pub fn all() -> Result<Vec<Self>> {
        Self::sockets()?.iter().filter_map(|pool| Self::connect(pool).transpose()).collect()
    }

    /// Does the same as [`Client::all`], with a result for each: one that cannot be reached hides no other.
    pub fn each() -> Result<Vec<(String, Result<Self>)>> {
        let found = Self::sockets()?.into_iter();
        Ok(found.filter_map(|pool| Some((pool.clone(), Self::connect(&pool).transpose()?))).collect())
    }

    /// Returns the names of the pools that have a socket here.
    fn sockets() -> Result<Vec<String>> {
        if !files::is_private(&files::runtime_dir())? {
            return Ok(Vec::new());
        }
        let Ok(entries) = std::fs::read_dir(files::runtime_dir()) else { return Ok(Vec::new()) };
        let mut pools: Vec<String> = entries
            .flatten()
            .map(|entry| PathBuf::from(entry.file_name()))
            .filter(|name| name.extension().is_some_and(|extension| extension == "sock"))
            .filter_map(|name| Some(name.file_stem()?.to_str()?.to_owned()))
            .collect();
        pools.sort();
        Ok(pools)
    }

    /// Returns the pool whose server this is.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the number of the server's process, to stand behind its name in a message; empty if it is not known.
    pub fn named(&self) -> String {
        let peer = sockopt::socket_peercred(&self.stream).ok();
        peer.map_or_else(String::new, |peer| format!(" (process {})", peer.pid.as_raw_nonzero()))
    }

    /// Waits until the server's process has ended.
    pub fn wait_for_end(&self) -> Result<()> {
        match &self.process {
            Some(process) => {
                let has_ended = |within: Duration| {
                    let within = timespec(within);
                    retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&within))) != Ok(0)
                };
                if has_ended(timeouts::TELL_AFTER) {
                    return Ok(());
                }
                notices::tell(&format!(
                    "waiting: the server of pool {}{} has to end",
                    self.pool,
                    self.named()
                ));
                if has_ended(timeouts::END_OF_SERVER) {
                    return Ok(());
                }
                Err(Failure::new(format!(
                    "the server of pool {}{} has closed the pool, or is about to, and does not end",
                    self.pool,
                    self.named()
                ))
                .hint(format!("its log may say why: pagefold events {}", self.pool)))
            }
            // The process had ended before a descriptor for it could be opened.
            None => Ok(()),
        }
    }

    /// Sends a request that is answered at once, and returns the reply.
    pub fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.exchange(request, Some(timeouts::ANSWER))
    }

    /// Does the same for at most `patience`, and as long as `goes_on` returns true, which is asked several times a second.
    /// Returns `None` once that has returned false. The connection is of no use then, nor after an error.
    pub fn ask_while(
        &mut self,
        request: &Request,
        patience: Duration,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Reply>> {
        let end = Instant::now() + patience;
        let sent = self.send(request, Some(patience));
        while sent.is_ok() && !self.has_word_within(timeouts::ANSWER_STEP)? {
            if !goes_on() {
                return Ok(None);
            }
            if Instant::now() >= end {
                return self.understand(Err(io::ErrorKind::TimedOut.into())).map(Some);
            }
        }
        let reply = sent.and_then(|()| self.read());
        self.understand(reply).map(Some)
    }

    /// Returns true if the server has not answered the last request in time.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Sends a request that others may delay. After a second, calls `tell`, which says what is waited for. `patience`
    /// is the time after which the server answers at the latest.
    pub fn ask_telling(
        &mut self,
        request: &Request,
        patience: Option<Duration>,
        tell: &mut dyn FnMut(),
    ) -> Result<Reply> {
        let limit = patience.map(|patience| patience + timeouts::ANSWER_MARGIN);
        let reply = self.send(request, limit).and_then(|()| {
            let soon = timespec(timeouts::TELL_AFTER);
            let answered = |stream: &UnixStream| {
                retry_on_intr(|| poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&soon)))
            };
            if answered(&self.stream)? == 0 {
                tell();
            }
            self.read()
        });
        self.understand(reply)
    }

    /// Sends a request that takes as long as the devices do.
    pub fn ask_and_wait(&mut self, request: &Request) -> Result<Reply> {
        self.exchange(request, None)
    }

    /// Returns true if the last request got no answer because the server had ended or was ending; waits for its end.
    pub fn has_ended(&self) -> bool {
        self.lost && self.wait_for_end().is_ok()
    }

    /// Returns a reader of the bytes that follow a reply. Its errors are explained by [`Client::lost`].
    pub fn pieces(&self) -> PieceReader<'_> {
        PieceReader::new(&self.stream)
    }

    /// Returns a writer of the bytes that follow a request. [`Client::last_reply`] tells why it failed.
    pub fn piece_writer(&self) -> PieceWriter<'_> {
        PieceWriter::new(&self.stream)
    }

    /// Sends a descriptor, for which the server waits.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn send_descriptor(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        let sent = descriptor::send(&self.stream, fd);
        sent.map_err(|error| self.lost(&error))
    }

    /// Waits until `input` has something to read, and returns true; or returns false if the server sends something, or
    /// ends, before that.
    pub fn wait_for(&self, input: BorrowedFd<'_>) -> Result<bool> {
        let mut both =
            [PollFd::from_borrowed_fd(input, PollFlags::IN), PollFd::new(&self.stream, PollFlags::IN)];
        retry_on_intr(|| poll(&mut both, None)).context(|| "cannot wait for input".into())?;
        Ok(both[1].revents().is_empty())
    }

    /// Returns true if the server has sent something, or has ended.
    pub fn has_word(&self) -> Result<bool> {
        self.has_word_within(Duration::ZERO)
    }

    fn has_word_within(&self, time: Duration) -> Result<bool> {
        let time = timespec(time);
        let mut stream = [PollFd::new(&self.stream, PollFlags::IN)];
        let found = retry_on_intr(|| poll(&mut stream, Some(&time)));
        Ok(found.context(|| "cannot look for a reply of the server".into())? > 0)
    }

    /// Returns the reply at the end of a stream.
    pub fn last_reply(&mut self) -> Result<Reply> {
        let reply = self.stream.set_read_timeout(None).and_then(|()| self.read());
        self.understand(reply)
    }

    /// Returns true if the connection broke.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Notes that the connection broke, and returns the failure to report.
    pub fn lost(&mut self, error: &io::Error) -> Failure {
        self.lost = true;
        let pool = &self.pool;
        Failure::new(format!("lost the server of pool {pool}: {error}"))
            .hint(format!("its log may say why; mounting {pool} again recovers it"))
    }

    fn exchange(&mut self, request: &Request, patience: Option<Duration>) -> Result<Reply> {
        let reply = self.send(request, patience).and_then(|()| self.read());
        self.understand(reply)
    }

    /// Connects again if the server has closed the connection because nothing was asked for long, or because others needed
    /// its place. One that has ended since is lost: what was asked before may not be true of the next.
    fn renew(&mut self) {
        let unread = recv(&self.stream, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if self.lost || !matches!(unread, Ok((0, _)) | Err(Errno::CONNRESET)) {
            return;
        }
        let pid_of = |stream| sockopt::socket_peercred(stream).ok().map(|peer| peer.pid);
        let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        let lives = self.process.as_ref().is_some_and(|process| {
            retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], now)) == Ok(0)
        });
        if lives
            && let Ok(Some(again)) = Self::connect_at(&self.pool, self.path.clone())
            && pid_of(&again.stream) == pid_of(&self.stream)
        {
            self.stream = again.stream;
        }
    }

    /// Sends a request, whose reply may take as long as `patience`. A server that has no place for this connection closes
    /// it, but says so before: that is no error here, but the reply that is read next.
    fn send(&mut self, request: &Request, patience: Option<Duration>) -> io::Result<()> {
        self.renew();
        self.stream.set_read_timeout(patience)?;
        let sent = frame::write(&mut self.stream, request, REQUEST_BYTES_MAX);
        sent.or_else(|error| {
            let closed = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
            let told = closed
                && matches!(
                    recv(&self.stream, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT),
                    Ok((1.., _))
                );
            if told { Ok(()) } else { Err(error) }
        })
    }

    fn read(&mut self) -> io::Result<Reply> {
        let reply: Option<Reply> = frame::read(&mut self.stream, REPLY_BYTES_MAX)?;
        reply.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn understand(&mut self, reply: io::Result<Reply>) -> Result<Reply> {
        let pool = &self.pool;
        match reply {
            Ok(Reply::Error { what, hint }) => {
                let failure = Failure::new(what);
                Err(match hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                })
            }
            Ok(reply) => Ok(reply),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                self.silent = true;
                Err(Failure::new(format!("the server of pool {pool} does not answer"))
                    .hint(format!("its log may say why: pagefold events {pool}")))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                // The server lives. What it says next cannot be told apart from that, so it is asked over another
                // connection; this one may be closed already.
                let _ = self.stream.shutdown(Shutdown::Both);
                Err(self.misunderstood())
            }
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// Returns the error for a reply that does not fit the request, which means that the server is of another version.
    pub fn misunderstood(&self) -> Failure {
        Failure::new(format!(
            "the server of pool {} gave an answer that does not fit the question",
            self.pool
        ))
        .hint("it is of another version of pagefold: unmount the pool and mount it again")
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_no_place_is_believed_though_it_has_closed_the_connection() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        let (pool, path) = ("tank".into(), PathBuf::new());
        let mut client = Client { pool, path, stream, process: None, lost: false, silent: false };
        let reply = Reply::Error { what: "all places are taken".into(), hint: None };
        frame::write(&mut server, &reply, REPLY_BYTES_MAX).unwrap();
        drop(server);
        assert_eq!(client.ask(&Request::Sync {}).unwrap_err().what(), "all places are taken");
        assert!(!client.is_lost());
        assert!(client.ask(&Request::Sync {}).is_err() && client.is_lost(), "there is no word more");
    }

    #[test]
    fn a_server_whose_reply_is_not_understood_is_not_waited_for_as_one_that_ended() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let (pool, path, process) = ("tank".into(), PathBuf::new(), Some(own));
        let mut client = Client { pool, path, stream, process, lost: false, silent: false };
        frame::write(&mut server, &"of a later version", REPLY_BYTES_MAX).unwrap();
        let failure = client.ask(&Request::Sync {}).unwrap_err();
        assert!(failure.what().contains("does not fit the question"), "{failure}");
        assert!(!client.is_lost() && !client.has_ended());
    }
}
