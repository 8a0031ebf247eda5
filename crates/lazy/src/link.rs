//! The side of a pool's server, which has neither network nor keys: asks the process that reads the backup.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pagefold_engine::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::frames::{
    ANSWER_HEAD_BYTES, DAMAGED, DONE, FIGURES, GREETING_BYTES, Greeting, PAGES, WISH, WISHES, Wishes,
    question,
};
use crate::limits::{ANSWER_MARGIN, CONNECTIONS_MAX, PIECE_BYTES};
use crate::origin::Token;
use crate::overlay::Lower;

/// Pause between two tries to reach the process that reads the backup.
const RECONNECT: Duration = Duration::from_millis(200);

/// Reasons why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody listens at the socket.
    #[error("nobody reads the backup for it: {0}")]
    Nobody(io::Error),
    /// The process that listens does not read this backup.
    #[error("who listens there does not read the backup of this dataset: {0}")]
    Other(String),
}

/// The process that reads the backup, as the server of a pool reaches it.
pub struct Link {
    socket: PathBuf,
    greeting: Greeting,
    connections: Mutex<Connections>,
    freed: Condvar,
}

#[derive(Default)]
struct Connections {
    idle: Vec<Arc<UnixStream>>,
    /// Connections over which a question is being asked.
    busy: Vec<Arc<UnixStream>>,
    used: usize,
    /// True if no more questions may be asked.
    closed: bool,
}

impl Connections {
    fn of(stream: UnixStream) -> Self {
        Self { idle: vec![Arc::new(stream)], ..Self::default() }
    }
}

/// A connection that is used: its place is free again when this is dropped.
struct Used<'a>(&'a Link);

impl Drop for Used<'_> {
    fn drop(&mut self) {
        self.0.connections.lock().used -= 1;
        self.0.freed.notify_one();
    }
}

impl Link {
    /// Connects to the process that reads the backup with this token.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn open(socket: PathBuf, token: Token) -> Result<Self, LinkError> {
        let (stream, greeting) = connect(&socket, token)?;
        let connections = Mutex::new(Connections::of(stream));
        Ok(Self { socket, greeting, connections, freed: Condvar::new() })
    }

    /// Makes a link that connects only when something is read: for a server that goes on with a mount, whether or not
    /// the backup can be read just now.
    pub fn later(socket: PathBuf, token: Token, patience: Duration) -> Self {
        let (greeting, connections) = (Greeting { token, patience }, Mutex::default());
        Self { socket, greeting, connections, freed: Condvar::new() }
    }

    /// Ends all questions with an error, and permits no more: so nobody waits for a store.
    pub fn close(&self) {
        let mut connections = self.connections.lock();
        connections.closed = true;
        connections.idle.clear();
        for stream in &connections.busy {
            // A connection that has ended already needs no shutdown.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns the greeting of the process that reads the backup.
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// Returns the present wishes.
    ///
    /// # Errors
    /// Errors as of reading pages, but without waiting.
    pub fn wishes(&self) -> Result<Wishes> {
        Wishes::decode(&self.ask_for_bytes(&question(WISHES, 0, 0, 0, 0), Duration::ZERO)?)
    }

    /// Replaces the wishes.
    ///
    /// # Errors
    /// Errors as of reading pages, but without waiting.
    pub fn wish(&self, wishes: Wishes) -> Result<()> {
        let question = question(WISH, 0, wishes.hydrate.into(), wishes.rate.unwrap_or(0), 0);
        self.ask_for_bytes(&question, Duration::ZERO).map(drop)
    }

    /// Returns the figures of the process that reads the backup, in JSON.
    ///
    /// # Errors
    /// Errors as of reading pages, but without waiting.
    pub fn figures(&self) -> Result<String> {
        let bytes = self.ask_for_bytes(&question(FIGURES, 0, 0, 0, 0), Duration::ZERO)?;
        String::from_utf8(bytes).map_err(|_| Error::corrupt("figures", "they are not UTF-8"))
    }

    /// Returns the figures of the process that listens at a socket, whatever backup it reads.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn figures_at(socket: &Path) -> Result<String> {
        let (stream, greeting) = greeted(socket).map_err(|error| away(&error.to_string()))?;
        let connections = Mutex::new(Connections::of(stream));
        Self { socket: socket.into(), greeting, connections, freed: Condvar::new() }.figures()
    }

    fn ask_for_bytes(&self, question: &[u8], patience: Duration) -> Result<Vec<u8>> {
        self.ask(question, patience, &mut |stream, len| {
            let mut bytes = vec![0; len as usize];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// Asks until there is an answer, or until nobody has been reachable for `patience`.
    fn ask<T>(
        &self,
        question: &[u8],
        patience: Duration,
        take: &mut dyn FnMut(&mut &UnixStream, u32) -> io::Result<T>,
    ) -> Result<T> {
        let _used = self.take_place();
        let begun = Instant::now();
        loop {
            let known = self.connections.lock().idle.pop();
            let fresh = known.is_none();
            let stream = match known {
                Some(stream) => Ok(stream),
                None => connect(&self.socket, self.greeting.token).map(|(stream, _)| Arc::new(stream)),
            };
            let failed = match stream {
                Ok(stream) => match self.exchange(&stream, question, take) {
                    Ok(answer) => return answer,
                    Err(error) => error,
                },
                Err(error) => io::Error::other(error.to_string()),
            };
            if self.connections.lock().closed {
                return Err(away("the dataset is being unmounted"));
            }
            // Connections from before the reading process was started again are used up first.
            if !fresh {
                continue;
            }
            if begun.elapsed() >= patience {
                tracing::debug!(error = %failed, "who reads the backup cannot be reached");
                return Err(away(&failed.to_string()));
            }
            thread::sleep(RECONNECT);
        }
    }

    /// Asks over a connection, which is idle again after the answer.
    fn exchange<T>(
        &self,
        stream: &Arc<UnixStream>,
        question: &[u8],
        take: &mut dyn FnMut(&mut &UnixStream, u32) -> io::Result<T>,
    ) -> io::Result<Result<T>> {
        let mut connections = self.connections.lock();
        if connections.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        connections.busy.push(Arc::clone(stream));
        drop(connections);
        let answer = exchange(stream, question, take);
        let mut connections = self.connections.lock();
        connections.busy.retain(|busy| !Arc::ptr_eq(busy, stream));
        if answer.is_ok() && !connections.closed {
            connections.idle.push(Arc::clone(stream));
        }
        answer
    }

    fn take_place(&self) -> Used<'_> {
        let mut connections = self.connections.lock();
        while connections.used >= CONNECTIONS_MAX {
            self.freed.wait(&mut connections);
        }
        connections.used += 1;
        Used(self)
    }
}

fn connect(socket: &Path, token: Token) -> Result<(UnixStream, Greeting), LinkError> {
    let (stream, greeting) = greeted(socket)?;
    if greeting.token != token {
        return Err(LinkError::Other("it reads another one".into()));
    }
    Ok((stream, greeting))
}

fn greeted(socket: &Path) -> Result<(UnixStream, Greeting), LinkError> {
    let mut stream = UnixStream::connect(socket).map_err(LinkError::Nobody)?;
    let mut bytes = [0; GREETING_BYTES];
    stream.set_read_timeout(Some(ANSWER_MARGIN)).map_err(LinkError::Nobody)?;
    stream.read_exact(&mut bytes).map_err(LinkError::Nobody)?;
    let greeting = Greeting::decode(&bytes).map_err(|error| LinkError::Other(error.to_string()))?;
    stream.set_read_timeout(Some(greeting.patience + ANSWER_MARGIN)).map_err(LinkError::Nobody)?;
    Ok((stream, greeting))
}

fn away(why: &str) -> Error {
    let source = io::Error::other(why.to_owned());
    Error::Io { op: "read", device: "the backup".into(), offset: 0, len_bytes: 0, source }
}

/// Asks a question. The outer error is one of the connection, the inner one is the answer's.
fn exchange<T>(
    mut stream: &UnixStream,
    question: &[u8],
    take: &mut dyn FnMut(&mut &UnixStream, u32) -> io::Result<T>,
) -> io::Result<Result<T>> {
    stream.write_all(question)?;
    let mut head = [0; ANSWER_HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let [status, len @ ..] = head;
    let len = u32::from_le_bytes(len);
    if u64::from(len) > PIECE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer says to be too long"));
    }
    if status == DONE {
        return take(&mut stream, len).map(Ok);
    }
    let mut text = Vec::new();
    stream.take(len.into()).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Err(match status {
        DAMAGED => Error::corrupt("the backup", text),
        _ => away(&text),
    }))
}

impl Lower for Link {
    fn read_pages(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for part in buf.chunks_mut(PIECE_BYTES as usize) {
            let question = question(PAGES, object, record_size, at, part.len() as u32);
            at += part.len() as u64;
            self.ask(&question, self.greeting.patience, &mut |stream, len| {
                if len as usize != part.len() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer has another length"));
                }
                stream.read_exact(part)
            })?;
        }
        Ok(())
    }
}
