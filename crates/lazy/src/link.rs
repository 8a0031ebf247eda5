//! The pages of a backup over a local socket: who has network and keys reads them, and the server of a pool, which has neither, asks.
//!
//! Whoever connects hears a greeting first, then asks and hears an answer, one after the other. Numbers are little endian.
//!
//! | bytes | of the greeting |
//! |---|---|
//! | 8 | `PFlazy`, version 1, 0 |
//! | 16 | the token of the backup |
//! | 8 | seconds that a read may wait for the store |
//!
//! | bytes | of a question |
//! |---|---|
//! | 1 | 1 pages, 2 figures, 3 wishes, 4 other wishes |
//! | 8 | object |
//! | 4 | recordsize; of other wishes, 1: what nobody reads is to be brought, too |
//! | 8 | byte offset; of other wishes, so many bytes a second of that at most, 0: no bound |
//! | 4 | how many bytes |
//!
//! Wishes are answered by 9 bytes: those of other wishes as above.
//!
//! An answer is a byte (0 done, 1 damaged, 2 the store does not answer, 3 anything else), a length (4), and bytes: what was asked for, or why not.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::wire::Reader;
use pagefold_engine::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::absent::Token;
use crate::dataset::BackupDataset;
use crate::limits::{ANSWER_MARGIN, CONNECTIONS_MAX, PIECE_BYTES};
use crate::overlay::Lower;

const MAGIC: [u8; 8] = *b"PFlazy\x01\0";
const GREETING_BYTES: usize = 32;
const QUESTION_BYTES: usize = 25;
const ANSWER_HEAD_BYTES: usize = 5;
const PAGES: u8 = 1;
const FIGURES: u8 = 2;
const WISHES: u8 = 3;
const WISH: u8 = 4;
const DONE: u8 = 0;
const DAMAGED: u8 = 1;
const AWAY: u8 = 2;
const OTHER: u8 = 3;
/// Pause between two tries to reach who reads the backup.
const RECONNECT: Duration = Duration::from_millis(200);
/// How often a server looks whether anybody is connected.
const LOOK: Duration = Duration::from_millis(100);

/// What is said to whoever connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The backup.
    pub token: Token,
    /// How long a read may wait for the store; whole seconds count.
    pub patience: Duration,
}

/// What is wanted of those who have datasets over a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What nobody reads is to be brought, too.
    pub hydrate: bool,
    /// At most so many bytes of records a second.
    pub rate: Option<u64>,
}

impl Wishes {
    fn encode(self) -> Vec<u8> {
        let mut out = vec![u8::from(self.hydrate)];
        out.extend_from_slice(&self.rate.unwrap_or(0).to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "wishes");
        let hydrate = reader.u8()? != 0;
        let rate = Some(reader.u64()?).filter(|rate| *rate > 0);
        reader.end()?;
        Ok(Self { hydrate, rate })
    }
}

impl Greeting {
    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.token.0);
        out.extend_from_slice(&self.patience.as_secs().to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "greeting");
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(reader.bad("it is none of this version"));
        }
        let mut token = [0; 16];
        token.copy_from_slice(reader.take(16)?);
        let patience = Duration::from_secs(reader.u64()?.min(24 * 60 * 60));
        reader.end()?;
        Ok(Self { token: Token(token), patience })
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody listens.
    #[error("nobody reads the backup for it: {0}")]
    Nobody(io::Error),
    /// Somebody else does.
    #[error("who listens there does not read the backup of this dataset: {0}")]
    Other(String),
}

/// Who reads the backup, as the server of a pool reaches it.
pub struct Link {
    socket: PathBuf,
    greeting: Greeting,
    connections: Mutex<Connections>,
    freed: Condvar,
}

#[derive(Default)]
struct Connections {
    idle: Vec<Arc<UnixStream>>,
    /// Over which something was asked.
    busy: Vec<Arc<UnixStream>>,
    used: usize,
    /// Nothing is asked any more.
    closed: bool,
}

impl Connections {
    fn of(stream: UnixStream) -> Self {
        Self { idle: vec![Arc::new(stream)], ..Self::default() }
    }
}

/// A connection that is used: its place is given back when this is dropped.
struct Used<'a>(&'a Link);

impl Drop for Used<'_> {
    fn drop(&mut self) {
        self.0.connections.lock().used -= 1;
        self.0.freed.notify_one();
    }
}

impl Link {
    /// Connects to who reads the backup with this token.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn open(socket: PathBuf, token: Token) -> Result<Self, LinkError> {
        let (stream, greeting) = connect(&socket, token)?;
        let connections = Mutex::new(Connections::of(stream));
        Ok(Self { socket, greeting, connections, freed: Condvar::new() })
    }

    /// As [`Link::open`], connecting when something is read: for who goes on with a mount, whether or not it can be read just now.
    pub fn later(socket: PathBuf, token: Token, patience: Duration) -> Self {
        let (greeting, connections) = (Greeting { token, patience }, Mutex::default());
        Self { socket, greeting, connections, freed: Condvar::new() }
    }

    /// Ends what is asked, with an error, and lets nothing more be asked: who has it waits for no store.
    pub fn close(&self) {
        let mut connections = self.connections.lock();
        connections.closed = true;
        connections.idle.clear();
        for stream in &connections.busy {
            // One that has ended already is as good.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What it said.
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// What is wanted just now.
    ///
    /// # Errors
    /// As of reading pages, but without waiting.
    pub fn wishes(&self) -> Result<Wishes> {
        Wishes::decode(&self.ask_for_bytes(&question(WISHES, 0, 0, 0, 0), Duration::ZERO)?)
    }

    /// Has something else be wanted.
    ///
    /// # Errors
    /// As of reading pages, but without waiting.
    pub fn wish(&self, wishes: Wishes) -> Result<()> {
        let question = question(WISH, 0, wishes.hydrate.into(), wishes.rate.unwrap_or(0), 0);
        self.ask_for_bytes(&question, Duration::ZERO).map(drop)
    }

    /// Its figures, as the program says them in JSON.
    ///
    /// # Errors
    /// As of reading pages, but without waiting.
    pub fn figures(&self) -> Result<String> {
        let bytes = self.ask_for_bytes(&question(FIGURES, 0, 0, 0, 0), Duration::ZERO)?;
        String::from_utf8(bytes).map_err(|_| Error::corrupt("figures", "they are not UTF-8"))
    }

    /// Figures of whoever listens at a socket, whatever backup it reads.
    ///
    /// # Errors
    /// If nobody does.
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

    /// Asks until there is an answer, or nobody has been there for so long.
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
            // Connections that were there before who reads the backup was started again are used up first.
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

    /// Asks over a connection, which is idle again when there was an answer.
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

fn question(kind: u8, object: u64, record_size: u32, offset: u64, len: u32) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&object.to_le_bytes());
    out.extend_from_slice(&record_size.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out
}

/// Asks; an error of the connection is the outer one, what was answered the inner.
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

/// Who answers for a backup.
pub struct Answers {
    /// The backup.
    pub dataset: Arc<BackupDataset>,
    /// What is said to whoever connects.
    pub greeting: Greeting,
    /// What is wanted of those who have datasets over it.
    pub wishes: Mutex<Wishes>,
    /// What is told of figures.
    pub figures: Box<dyn Fn() -> String + Send + Sync>,
}

/// Answers whoever connects, until nobody has been connected for `idle`; for ever without.
///
/// # Errors
/// Of the socket.
pub fn serve(listener: &UnixListener, answers: &Arc<Answers>, idle: Option<Duration>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let connected = Arc::new(AtomicUsize::new(0));
    let mut last = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) if connected.load(Ordering::Acquire) < 2 * CONNECTIONS_MAX => {
                let (answers, place) = (Arc::clone(answers), Place::take(&connected));
                let answering = move || {
                    let _place = place;
                    if let Err(error) = answers.answer(stream) {
                        tracing::debug!(%error, "a connection ended");
                    }
                };
                thread::Builder::new().name("answering".into()).spawn(answering)?;
            }
            Ok(_) => tracing::warn!("too many are connected: one more is not heard"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if connected.load(Ordering::Acquire) > 0 {
            last = Instant::now();
        } else if idle.is_some_and(|idle| last.elapsed() >= idle) {
            return Ok(());
        }
    }
}

/// A connection that is counted.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Answers {
    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.write_all(&self.greeting.encode())?;
        let mut bytes = Vec::new();
        loop {
            let mut asked = [0; QUESTION_BYTES];
            if let Err(error) = stream.read_exact(&mut asked) {
                let ended = error.kind() == io::ErrorKind::UnexpectedEof;
                return if ended { Ok(()) } else { Err(error) };
            }
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

    /// Does what was asked, into `out`; or the status and why not.
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
