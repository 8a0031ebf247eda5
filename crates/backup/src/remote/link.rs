//! A connection to a serving host: requests go out numbered, answers come back in any order.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::frame::{Answer, Frame, MAGIC, PROTOCOL, Request};
use crate::location::REQUEST_TIMEOUT;

/// Number of requests that wait to be sent.
const QUEUE: usize = 16;
/// Time that a program with nothing more to say has to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of bytes of a shell's noise that are told.
const NOISE_BYTES_MAX: usize = 200;

/// A new connection: its two ends, and the program to which they belong.
pub(crate) struct Wire {
    pub(crate) input: Box<dyn Read + Send>,
    pub(crate) output: Box<dyn Write + Send>,
    pub(crate) child: Option<Child>,
}

/// Reasons why there is no connection, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The connection broke; another one may hold.
    Broken(String),
    /// The program at the other end, or one on the way, ended before it sent a greeting.
    Ended(Option<ExitStatus>),
    /// Something other than the program speaks first.
    Noise(String),
    /// The other side has another version: of the protocol, of the program.
    Version(u32, String),
    /// The other side violates the protocol.
    Protocol(String),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(what) => write!(f, "the connection was lost: {what}"),
            Self::Ended(Some(status)) => write!(f, "the connection could not be made: {status}"),
            Self::Ended(None) => f.write_str("the connection could not be made"),
            Self::Noise(text) => write!(f, "it says \"{}\"", text.trim().escape_debug()),
            Self::Version(protocol, program) => {
                write!(f, "its pagefold {program} has version {protocol} of the protocol, not {PROTOCOL}")
            }
            Self::Protocol(what) => write!(f, "what it says cannot be understood: {what}"),
        }
    }
}

type Told<T> = oneshot::Sender<Result<T, Lost>>;

#[derive(Default)]
struct Pending {
    waiting: HashMap<u64, Told<Answer>>,
    lost: Option<Lost>,
}

struct Connection {
    pending: Mutex<Pending>,
    child: Mutex<Option<Child>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Gives the connection up: waiting callers get the reason, and the program is ended.
    fn lose(&self, lost: &Lost) {
        let waiting = {
            let mut pending = lock(&self.pending);
            pending.lost.get_or_insert_with(|| lost.clone());
            std::mem::take(&mut pending.waiting)
        };
        for told in waiting.into_values() {
            let _ = told.send(Err(lost.clone()));
        }
        if let Some(child) = lock(&self.child).as_mut() {
            let _ = child.kill();
        }
    }

    /// Waits for a while until the program has ended.
    fn end(&self) -> Option<ExitStatus> {
        let begun = Instant::now();
        let mut child = lock(&self.child).take()?;
        while begun.elapsed() < END_TIMEOUT {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        child.wait().ok()
    }
}

/// A connection.
pub(crate) struct Link {
    requests: mpsc::Sender<(u64, Request)>,
    shared: Arc<Connection>,
    next: AtomicU64,
}

impl Link {
    /// Waits for the greeting; after it, requests can be made.
    pub(crate) async fn open(wire: Wire) -> Result<Self, Lost> {
        let Wire { input, output, child } = wire;
        let shared = Arc::new(Connection { pending: Mutex::default(), child: Mutex::new(child) });
        let (requests, queue) = mpsc::channel(QUEUE);
        let (told, greeted) = oneshot::channel();
        let reading = Arc::clone(&shared);
        let writing = Arc::clone(&shared);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(work);
            thread.map(drop).map_err(|error| Lost::Broken(format!("cannot start a thread: {error}")))
        };
        let link = Self { requests, shared, next: AtomicU64::new(0) };
        spawn("backup-answers", Box::new(move || read(&reading, input, told)))?;
        spawn("backup-requests", Box::new(move || write(&writing, output, queue)))?;
        match tokio::time::timeout(REQUEST_TIMEOUT, greeted).await {
            Ok(Ok(greeted)) => greeted.map(|()| link),
            Ok(Err(_)) => Err(Lost::Broken("it ended".into())),
            Err(_) => {
                let lost = Lost::Broken(format!("no answer for {} s", REQUEST_TIMEOUT.as_secs()));
                link.shared.lose(&lost);
                Err(lost)
            }
        }
    }

    /// Sends a request, and returns its answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Answer, Lost> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (told, answer) = oneshot::channel();
        {
            let mut pending = lock(&self.shared.pending);
            match &pending.lost {
                Some(lost) => return Err(lost.clone()),
                None => pending.waiting.insert(number, told),
            };
        }
        let asked = async {
            // If nobody sends any more, the waiting callers were told why.
            let _ = self.requests.send((number, request)).await;
            answer.await.unwrap_or_else(|_| Err(Lost::Broken("it ended".into())))
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, asked).await {
            Ok(answer) => answer,
            Err(_) => {
                let lost = Lost::Broken(format!("no answer for {} s", REQUEST_TIMEOUT.as_secs()));
                self.shared.lose(&lost);
                Err(lost)
            }
        }
    }
}

fn write(shared: &Connection, mut output: Box<dyn Write + Send>, mut queue: mpsc::Receiver<(u64, Request)>) {
    // The output is closed when nobody asks any more: the serving side takes that as the end.
    while let Some((number, request)) = queue.blocking_recv() {
        let (head, payload) = request.encode(number);
        let written = output.write_all(&head).and_then(|()| output.write_all(&payload));
        let Err(error) = written.and_then(|()| output.flush()) else { continue };
        queue.close();
        // The reading thread knows better why the connection has ended, and says so soon.
        let begun = Instant::now();
        while lock(&shared.pending).lost.is_none() && begun.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        return shared.lose(&Lost::Broken(error.to_string()));
    }
}

fn read(shared: &Connection, mut input: Box<dyn Read + Send>, told: Told<()>) {
    if let Err(lost) = greet(&mut input) {
        // The program is not killed before it was asked for its status, which says why it ended.
        let lost = match lost {
            Lost::Ended(_) => Lost::Ended(shared.end()),
            lost => lost,
        };
        let _ = told.send(Err(lost.clone()));
        shared.lose(&lost);
        shared.end();
        return;
    }
    let _ = told.send(Ok(()));
    let lost = loop {
        let frame = match Frame::read_answer(&mut input) {
            Ok(Some(frame)) => frame,
            Ok(None) => break Lost::Broken("it was closed at the other end".into()),
            Err(super::frame::FrameError::Bad(what)) => break Lost::Protocol(what),
            Err(error) => break Lost::Broken(error.to_string()),
        };
        let answer = match Answer::decode(&frame) {
            Ok(answer) => answer,
            Err(error) => break Lost::Protocol(error.to_string()),
        };
        let Some(told) = lock(&shared.pending).waiting.remove(&frame.number) else {
            break Lost::Protocol(match answer {
                Answer::Failed(text) => text,
                _ => "an answer to what was not asked".into(),
            });
        };
        // The caller may have given up.
        let _ = told.send(Ok(answer));
    };
    shared.lose(&lost);
    shared.end();
}

/// Reads the greeting of the other side.
fn greet(input: &mut impl Read) -> Result<(), Lost> {
    let mut heard = Vec::new();
    let mut more = [0; NOISE_BYTES_MAX];
    while heard.len() < MAGIC.len() && MAGIC.starts_with(&heard) {
        let wanted = more.get_mut(..MAGIC.len() - heard.len()).unwrap_or_default();
        match input.read(wanted) {
            Ok(0) => break,
            Ok(count) => heard.extend_from_slice(more.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Lost::Broken(error.to_string())),
        }
    }
    if heard.is_empty() {
        return Err(Lost::Ended(None));
    }
    if heard != MAGIC {
        // The rest of the line tells who speaks.
        let count = if heard.contains(&b'\n') { 0 } else { input.read(&mut more).unwrap_or(0) };
        heard.extend_from_slice(more.get(..count).unwrap_or_default());
        let text = String::from_utf8_lossy(&heard);
        return Err(Lost::Noise(text.lines().next().unwrap_or_default().to_owned()));
    }
    let cut = |_| Lost::Broken("it ended with the greeting".into());
    let mut protocol = [0; 4];
    input.read_exact(&mut protocol).map_err(cut)?;
    let mut len = [0; 1];
    input.read_exact(&mut len).map_err(cut)?;
    let mut version = vec![0; usize::from(len[0])];
    input.read_exact(&mut version).map_err(cut)?;
    let protocol = u32::from_le_bytes(protocol);
    match protocol == PROTOCOL {
        true => Ok(()),
        false => Err(Lost::Version(protocol, String::from_utf8_lossy(&version).into_owned())),
    }
}
