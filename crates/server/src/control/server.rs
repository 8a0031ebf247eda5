//! The server's side of the control socket.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt;

use super::frame::{self, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use super::model::{Reply, Request};
use super::places::{CONNECTIONS_MAX, LONG_MAX, Place, Places, Turn};
use crate::failure::{Context, Failure, Result};
use crate::{files, timeouts};

/// Longest time for which a client may be silent, or slow to take its reply.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Longest time that the first request may take to come: a client connects when it has something to ask.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(90);
/// Longest time for which a client that gets no place may be slow to take its reply.
const REFUSAL_MAX: Duration = Duration::from_millis(100);

/// Answers requests; called from many threads.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Returns the reply to one request.
    fn handle(&self, request: Request) -> Reply;
    /// Carries out a request for which [`Request::is_stream`] is true, over its connection. Returns the last reply.
    fn stream(&self, request: Request, connection: &UnixStream) -> Reply;
}

/// The listening socket of a pool's server; removed when dropped.
pub(crate) struct Listener {
    path: PathBuf,
    listener: UnixListener,
    /// Lock that is held as long as the server lives, so that no two servers have one name.
    _lock: OwnedFd,
    /// Number of requests that were read and not answered yet, without those that wait for events
    /// ([`Request::follows`]).
    unanswered: Arc<AtomicUsize>,
}

impl Listener {
    /// Takes the place of the server of `pool`. Fails if there is one already.
    pub(crate) fn bind(pool: &str) -> Result<Self> {
        Self::bind_in(&files::runtime_dir(), pool)
    }

    /// Listens under a name that [`lock_name`] took.
    pub(crate) fn listen(pool: &str, lock: OwnedFd) -> Result<Self> {
        Self::listen_in(&files::runtime_dir(), pool, lock)
    }

    /// Does the same as [`Listener::bind`] in a directory of the caller's choice.
    pub(super) fn bind_in(dir: &Path, pool: &str) -> Result<Self> {
        let lock = lock_name_in(dir, pool)?;
        Self::listen_in(dir, pool, lock)
    }

    pub(super) fn listen_in(dir: &Path, pool: &str, lock: OwnedFd) -> Result<Self> {
        let path = dir.join(format!("{pool}.sock"));
        let binding = || format!("cannot listen at {}", path.display());
        // The process that listened here has died, since its lock is ours.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(binding),
            _ => {}
        }
        let listener = UnixListener::bind(&path).context(binding)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).context(binding)?;
        Ok(Self { path, listener, _lock: lock, unanswered: Arc::default() })
    }

    /// Answers requests from background threads until the process ends or the listener is dropped.
    pub(crate) fn serve(&self, handler: Arc<dyn Handler>) -> Result<()> {
        let listener =
            self.listener.try_clone().context(|| format!("cannot listen at {}", self.path.display()))?;
        let unanswered = Arc::clone(&self.unanswered);
        let spawned = thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &handler, &unanswered));
        spawned.context(|| "cannot start a thread".into())?;
        Ok(())
    }
}

/// Takes the name of the server of `pool`; the lock is held as long as any process has the descriptor. Fails if the
/// pool has a server.
pub(crate) fn lock_name(pool: &str) -> Result<OwnedFd> {
    lock_name_in(&files::runtime_dir(), pool)
}

pub(super) fn lock_name_in(dir: &Path, pool: &str) -> Result<OwnedFd> {
    files::make_private(dir)?;
    let lock = files::lock_file(&dir.join(format!("{pool}.lock")))?;
    take(&lock, &dir.join(format!("{pool}.sock"))).map_err(|_| {
        Failure::new(format!("a pool named {pool} is mounted already"))
            .hint(format!("see where: pagefold list {pool}"))
    })?;
    Ok(lock.into())
}

/// Takes the lock of a name. If it is held although nobody listens, a server is just ending (or starting); this waits
/// for that.
fn take(lock: &File, socket: &Path) -> rustix::io::Result<()> {
    let deadline = Instant::now() + timeouts::LAST_REPLIES + timeouts::LAST_REPLIES;
    loop {
        let taken = flock(lock, FlockOperation::NonBlockingLockExclusive);
        if taken.is_ok() || UnixStream::connect(socket).is_ok() || Instant::now() > deadline {
            return taken;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl Listener {
    /// Removes the socket, and waits a moment for replies that are being made.
    pub(crate) fn finish(self) {
        // If this fails, the next server removes the socket.
        let _ = fs::remove_file(&self.path);
        let deadline = Instant::now() + timeouts::LAST_REPLIES;
        while self.unanswered.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If this fails, the next server removes the socket.
        let _ = fs::remove_file(&self.path);
    }
}

/// Counts one request for as long as it lives.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept(listener: &UnixListener, handler: &Arc<dyn Handler>, unanswered: &Arc<AtomicUsize>) {
    let places = Places::default();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                // The process may be out of descriptors, for instance: that passes, and only the log can be told.
                tracing::warn!(%error, "cannot accept on the control socket");
                thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        if !may_ask(&stream) {
            continue;
        }
        let Some(place) = places.take(&stream) else {
            refuse(&stream);
            continue;
        };
        let handler = Arc::clone(handler);
        let unanswered = Arc::clone(unanswered);
        let spawned = thread::Builder::new().name("control-client".into()).spawn(move || {
            converse(stream, &place, handler.as_ref(), &unanswered);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread for a control connection");
        }
    }
}

/// Tells a client that there is no place for it, as its reply to whatever it asks.
fn refuse(mut stream: &UnixStream) {
    tracing::warn!(connections = CONNECTIONS_MAX, "a control connection was refused: all places are taken");
    let reply = Reply::Error {
        what: "the pool's server has no place for this connection: it is answering as many as it can".into(),
        hint: Some("try again when some of them have their answers".into()),
    };
    // A client that does not take its reply has gone, or gets none.
    let _ = stream
        .set_write_timeout(Some(REFUSAL_MAX))
        .and_then(|()| frame::write(&mut stream, &reply, REPLY_BYTES_MAX));
}

/// Returns the reply to a request that takes long while too many of these are under way.
fn too_many_long() -> Reply {
    Reply::Error {
        what: format!(
            "the pool's server follows events or carries streams for {LONG_MAX} others, which is as many as it can"
        ),
        hint: Some("end one of them, or wait until one has ended".into()),
    }
}

/// Returns true for root and our own user, who alone are answered.
fn may_ask(stream: &UnixStream) -> bool {
    match sockopt::socket_peercred(stream) {
        Ok(peer) => {
            let allowed = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
            if !allowed {
                tracing::warn!(uid = peer.uid.as_raw(), "refused a control connection of another user");
            }
            allowed
        }
        Err(_) => false,
    }
}

/// Carries out a stream without a time limit: the client may be slow, and its end is noticed.
fn converse_at_length(stream: &mut UnixStream, handler: &dyn Handler, request: Request) {
    let patience = |stream: &UnixStream, patience| {
        stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)).is_ok()
    };
    if !patience(stream, None) {
        return;
    }
    let reply = handler.stream(request, stream);
    let told = patience(stream, Some(SILENCE_MAX)) && frame::write(stream, &reply, REPLY_BYTES_MAX).is_ok();
    if told {
        // If it were closed with bytes unread, the connection would lose the reply: the client ends it.
        let _ = io::copy(stream, &mut io::sink());
    }
}

fn converse(mut stream: UnixStream, place: &Place, handler: &dyn Handler, unanswered: &Arc<AtomicUsize>) {
    if stream.set_read_timeout(Some(FIRST_REQUEST_MAX)).is_err()
        || stream.set_write_timeout(Some(SILENCE_MAX)).is_err()
    {
        return;
    }
    loop {
        match frame::read::<Request>(&mut stream, REQUEST_BYTES_MAX) {
            Ok(Some(request)) => {
                match place.asked(request.follows() || request.is_stream()) {
                    Turn::Now => {}
                    Turn::TooManyLong => {
                        let _ = frame::write(&mut stream, &too_many_long(), REPLY_BYTES_MAX);
                        return;
                    }
                    Turn::Ended => return,
                }
                let _counted = (!request.follows()).then(|| {
                    unanswered.fetch_add(1, Ordering::AcqRel);
                    Slot(Arc::clone(unanswered))
                });
                if request.is_stream() {
                    return converse_at_length(&mut stream, handler, request);
                }
                let reply = handler.handle(request);
                match frame::write(&mut stream, &reply, REPLY_BYTES_MAX) {
                    Ok(()) => {}
                    // Nothing of that reply was sent.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        let what = format!("the server's reply cannot be told: {error}");
                        let reply = Reply::Error { what, hint: None };
                        if frame::write(&mut stream, &reply, REPLY_BYTES_MAX).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
                place.answered();
                if stream.set_read_timeout(Some(SILENCE_MAX)).is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                // The bytes that follow cannot be told apart from the broken message: it is answered, and the
                // connection closed.
                if error.kind() == io::ErrorKind::InvalidData {
                    let reply = Reply::Error { what: error.to_string(), hint: None };
                    let _ = frame::write(&mut stream, &reply, REPLY_BYTES_MAX);
                }
                return;
            }
        }
    }
}
