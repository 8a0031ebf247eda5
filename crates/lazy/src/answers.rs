//! The side that reads the backup: answers every client that connects.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::wire::Reader;
use pagefold_engine::{Error, Result};
use parking_lot::Mutex;

use crate::dataset::BackupDataset;
use crate::frames::{
    AWAY, DAMAGED, DONE, FIGURES, Greeting, OTHER, PAGES, QUESTION_BYTES, WISH, WISHES, Wishes,
};
use crate::limits::{ANSWERED_MAX, CROWDED, PIECE_BYTES, UNASKED_MAX};

/// Error numbers of Linux.
const EBADF: i32 = 9;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const ENOTSOCK: i32 = 88;
const EOPNOTSUPP: i32 = 95;

/// Pause between two looks for new connections.
const LOOK: Duration = Duration::from_millis(100);

/// The parts that answer for a backup.
pub struct Answers {
    /// The backup.
    pub dataset: Arc<BackupDataset>,
    /// Greeting for every client.
    pub greeting: Greeting,
    /// Wishes for the servers of datasets over it.
    pub wishes: Mutex<Wishes>,
    /// Function that returns the figures.
    pub figures: Box<dyn Fn() -> String + Send + Sync>,
}

/// Answers every client, until nobody has been connected for `idle`; for ever if that is `None`.
///
/// # Errors
/// Errors of the socket.
pub fn serve(listener: &UnixListener, answers: &Arc<Answers>, idle: Option<Duration>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let connected = Arc::new(AtomicUsize::new(0));
    let mut last = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) if connected.load(Ordering::Acquire) < ANSWERED_MAX => {
                let (answers, permit) = (Arc::clone(answers), ConnectionPermit::take(&connected));
                let answering = move || {
                    if let Err(error) = answers.answer(stream, &permit) {
                        tracing::debug!(%error, "a connection ended");
                    }
                };
                if let Err(error) = thread::Builder::new().name("answering".into()).spawn(answering) {
                    tracing::warn!(%error, "a connection is not heard, as no thread can be started");
                }
            }
            Ok(_) => tracing::warn!("too many are connected: one more is not heard"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if !lasts(&error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
        if connected.load(Ordering::Acquire) > 0 {
            last = Instant::now();
        } else if idle.is_some_and(|idle| last.elapsed() >= idle) {
            return Ok(());
        }
    }
}

/// Returns true if no connection can ever be accepted again: this is no socket that listens. Any other error is taken for
/// one that passes, as on a server's control socket: a dataset over the backup cannot be read any more once this process
/// has ended.
fn lasts(error: &io::Error) -> bool {
    const LASTING: [i32; 5] = [EBADF, EFAULT, EINVAL, ENOTSOCK, EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| LASTING.contains(&code))
}

/// A permit of a connection: permits are counted.
struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl ConnectionPermit {
    /// Returns true if so many are connected that those that ask nothing have to go.
    fn is_crowded(&self) -> bool {
        self.0.load(Ordering::Acquire) > CROWDED
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the next question; `None` if the client has closed the connection, or has to give up its permit. A client
/// whose connection ended asks over a new one.
fn next_question(
    stream: &mut UnixStream,
    permit: &ConnectionPermit,
) -> io::Result<Option<[u8; QUESTION_BYTES]>> {
    let mut asked = [0; QUESTION_BYTES];
    let (kind, rest) = asked.split_at_mut(1);
    loop {
        match stream.read(kind) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if permit.is_crowded() {
                    return Ok(None);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.read_exact(rest)?;
    Ok(Some(asked))
}

impl Answers {
    fn answer(&self, mut stream: UnixStream, permit: &ConnectionPermit) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(UNASKED_MAX))?;
        stream.write_all(&self.greeting.encode())?;
        let mut bytes = Vec::new();
        loop {
            let Some(asked) = next_question(&mut stream, permit)? else { return Ok(()) };
            let read = self.find(&asked, &mut bytes);
            let (status, body) = match &read {
                Ok(()) => (DONE, bytes.as_slice()),
                Err((status, why)) => (*status, why.as_bytes()),
            };
            let mut out = vec![status];
            out.extend_from_slice(&(body.len() as u32).to_le_bytes());
            stream.write_all(&out)?;
            stream.write_all(body)?;
        }
    }

    /// Carries out a question, with its result in `out`; or returns the status, and why it failed.
    fn find(&self, asked: &[u8; QUESTION_BYTES], out: &mut Vec<u8>) -> Result<(), (u8, String)> {
        let parse = || {
            let mut reader = Reader::new(asked, "question");
            Ok((reader.u8()?, reader.u64()?, reader.u32()?, reader.u64()?, reader.u32()?))
        };
        let parsed: Result<_> = parse();
        let (kind, object, record_size, offset, len) = parsed.map_err(|error| (OTHER, error.to_string()))?;
        out.clear();
        match kind {
            PAGES if u64::from(len) <= PIECE_BYTES => {
                out.resize(len as usize, 0);
                self.dataset.read(object, record_size, offset, out).map_err(|error| match error {
                    Error::Corrupt { .. } | Error::Unsupported(_) => (DAMAGED, error.to_string()),
                    Error::Io { .. } => (AWAY, error.to_string()),
                    other => (OTHER, other.to_string()),
                })?;
            }
            FIGURES => out.extend_from_slice((self.figures)().as_bytes()),
            WISHES => out.extend_from_slice(&self.wishes.lock().encode()),
            WISH => {
                let rate = Some(offset).filter(|rate| *rate > 0);
                *self.wishes.lock() = Wishes { hydrate: record_size != 0, rate };
            }
            _ => return Err((OTHER, "that cannot be asked".into())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_that_could_not_be_accepted_is_not_the_end() {
        // ECONNABORTED, EMFILE, ENFILE, ENOMEM, ENOBUFS, EPERM, EPROTO of Linux.
        for code in [103, 24, 23, 12, 105, 1, 71] {
            assert!(!lasts(&io::Error::from_raw_os_error(code)), "{code}");
        }
        // EBADF, EINVAL, ENOTSOCK: nobody will ever connect.
        for code in [9, 22, 88] {
            assert!(lasts(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
