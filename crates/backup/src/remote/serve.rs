//! Serves a directory to a client: `backup serve`. It trusts nothing that comes in (R1, R2).

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path as FilePath, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::frame::{
    Answer, Frame, FrameError, PROTOCOL, REQUEST_BYTES_MAX, Request, VERSION, greeting, is_name,
};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::limits::{DIRECTORY_BYTES_MAX, NAMES_PER_ANSWER, SERVE_BYTES, SERVE_WORKERS};

/// Restrictions on a client.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// Directory at or below which all served directories lie, whatever the client asks for.
    pub restrict: Option<PathBuf>,
    /// True if nothing may be deleted or overwritten; probes of `init` may be deleted.
    pub append_only: bool,
}

/// Largest length of the first request in bytes: a directory and some words.
const HELLO_BYTES_MAX: u64 = DIRECTORY_BYTES_MAX as u64 + 128;
/// Prefix of the objects with which `init` tests a store; they hold nothing.
const PROBES: &str = "probe/";

/// Serves one client until it has no more requests. A request that fails is reported to the client, not to the caller.
///
/// # Errors
/// [`Error::Connection`] if the connection breaks or the client sends what is no request; [`Error::Local`].
pub fn serve(options: &ServeOptions, mut input: impl Read, output: impl Write + Send) -> Result<()> {
    let output = Mutex::new(output);
    write(&output, &greeting(VERSION), &Bytes::new())?;
    let Some((hello, ())) =
        Frame::read(&mut input, HELLO_BYTES_MAX, |_| ()).map_err(|error| broken(&output, &error))?
    else {
        return Ok(());
    };
    let request = Request::decode(&hello).map_err(|error| broken(&output, &error))?;
    let (answer, directory) = match open(options, request) {
        Ok(directory) => (Answer::Welcome, Some(directory)),
        Err(answer) => (answer, None),
    };
    answer_to(&output, hello.number, &answer)?;
    let Some(directory) = directory else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|source| Error::Local { doing: "cannot prepare to serve".into(), source })?;
    let served = Served { directory, runtime, append_only: options.append_only };
    served.all(&mut input, &output)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(what: impl std::fmt::Display) -> Error {
    Error::Connection { message: format!("the client's connection broke: {what}"), hint: None }
}

/// Tells the client why it is not heard any more, if that is its own fault.
fn broken<W: Write>(output: &Mutex<W>, error: &FrameError) -> Error {
    // A line that broke is no fault of the client's: it makes another connection if it gets no answer.
    if let FrameError::Bad(what) = error {
        let _ = answer_to(output, u64::MAX, &Answer::Failed(format!("the host does not understand: {what}")));
    }
    lost(error)
}

fn write<W: Write>(output: &Mutex<W>, head: &[u8], payload: &Bytes) -> Result<()> {
    let mut output = lock(output);
    let written = output.write_all(head).and_then(|()| output.write_all(payload));
    written.and_then(|()| output.flush()).map_err(lost)
}

fn answer_to<W: Write>(output: &Mutex<W>, number: u64, answer: &Answer) -> Result<()> {
    let (head, payload) = answer.encode(number);
    write(output, &head, &payload)
}

/// Opens the directory that a client asks for, if it may have it.
fn open(options: &ServeOptions, hello: Request) -> std::result::Result<Directory, Answer> {
    let Request::Hello { protocol, make, version, directory } = hello else {
        return Err(Answer::Refused("the first request names no directory".into()));
    };
    if protocol != PROTOCOL {
        return Err(Answer::Refused(format!(
            "this is pagefold {VERSION} with version {PROTOCOL} of the protocol, and you are {version} with {protocol}"
        )));
    }
    let path = FilePath::new(OsStr::from_bytes(&directory));
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || directory.contains(&0) {
        return Err(Answer::Refused("the directory is not absolute, or has '..' in it".into()));
    }
    let path = match &options.restrict {
        Some(top) => within(top, path)?,
        None => path.to_owned(),
    };
    Directory::open(&path, make).map_err(|error| match error {
        Error::NotFound(_) => Answer::Missing,
        error => Answer::Failed(error.to_string()),
    })
}

/// Returns the path without links, if it lies at or below `top`. The part that does not exist yet has no links.
fn within(top: &FilePath, path: &FilePath) -> std::result::Result<PathBuf, Answer> {
    let real = |path: &FilePath| {
        let real = path.canonicalize();
        real.map_err(|error| Answer::Failed(format!("cannot look at {}: {error}", path.display())))
    };
    let refused = || Answer::Refused(format!("only directories below {} are served to you", top.display()));
    let there = path.ancestors().find(|above| above.symlink_metadata().is_ok()).ok_or_else(refused)?;
    let missing = path.strip_prefix(there).map_err(|_| refused())?;
    let found = there.canonicalize().map_err(|_| refused())?;
    match found.starts_with(real(top)?) {
        true if missing.as_os_str().is_empty() => Ok(found),
        true => Ok(found.join(missing)),
        false => Err(refused()),
    }
}

/// Bytes of requests that are in memory.
#[derive(Default)]
struct Budget {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A share of a budget, which is returned when it is dropped.
struct Share<'a>(&'a Budget, usize);

impl Budget {
    /// Waits until there is room; a request that is alone gets it whatever its length.
    fn take(&self, bytes: usize) -> Share<'_> {
        let mut taken = lock(&self.taken);
        while *taken > 0 && *taken + bytes > SERVE_BYTES {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
        Share(self, bytes)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= self.1;
        self.0.freed.notify_all();
    }
}

struct Served {
    directory: Directory,
    runtime: Runtime,
    append_only: bool,
}

/// A request with its number, and its share of the memory.
type QueuedRequest<'a> = (u64, Request, Share<'a>);

impl Served {
    /// Reads requests, and works on several at once. Requests that were read are finished, whatever becomes of the
    /// connection.
    fn all<W: Write + Send>(&self, input: &mut impl Read, output: &Mutex<W>) -> Result<()> {
        let budget = Budget::default();
        std::thread::scope(|scope| {
            let (jobs, queue) = sync_channel::<QueuedRequest<'_>>(0);
            let queue = std::sync::Arc::new(Mutex::new(queue));
            for _ in 0..SERVE_WORKERS {
                let queue = std::sync::Arc::clone(&queue);
                let worker = std::thread::Builder::new().name("serve".into());
                worker
                    .spawn_scoped(scope, move || self.work(&queue, output))
                    .map_err(|source| Error::Local { doing: "cannot start a thread".into(), source })?;
            }
            loop {
                let frame = Frame::read(input, REQUEST_BYTES_MAX, |bytes| budget.take(bytes));
                let Some((frame, share)) = frame.map_err(|error| broken(output, &error))? else {
                    return Ok(());
                };
                let request = Request::decode(&frame).map_err(|error| broken(output, &error))?;
                if jobs.send((frame.number, request, share)).is_err() {
                    return Err(lost("nobody works on requests: a bug"));
                }
            }
        })
    }

    fn work<W: Write>(&self, queue: &Mutex<Receiver<QueuedRequest<'_>>>, output: &Mutex<W>) {
        loop {
            let Ok((number, request, share)) = lock(queue).recv() else { return };
            let answer = self.runtime.block_on(self.answer(request));
            // If nobody hears the answer, the end of the requests comes next.
            let _ = answer_to(output, number, &answer);
            drop(share);
        }
    }

    async fn answer(&self, request: Request) -> Answer {
        let name = match &request {
            Request::Hello { .. } => return Answer::Refused("the directory was named before".into()),
            Request::Get { name, .. }
            | Request::Put { name, .. }
            | Request::Create { name, .. }
            | Request::List { folder: name, .. }
            | Request::Delete { name } => name,
        };
        if let Some(link) = self.directory.link_in(name) {
            return Answer::Refused(format!("{} is a link: no link is followed", link.display()));
        }
        match request {
            Request::Get { name, begin, len } => self.get(&Path::from(name), begin, len).await,
            Request::Put { name, bytes } if self.append_only => self.put_once(&Path::from(name), bytes).await,
            Request::Put { name, bytes } => self.put(&Path::from(name), bytes, PutMode::Overwrite).await,
            Request::Create { name, bytes } => self.put(&Path::from(name), bytes, PutMode::Create).await,
            Request::List { folder, after } => self.list(&Path::from(folder), after).await,
            Request::Delete { name } if self.append_only && !name.starts_with(PROBES) => {
                Answer::Refused("nothing may be deleted: the host serves this key with --append-only".into())
            }
            Request::Delete { name } => match self.directory.delete(&Path::from(name)).await {
                Ok(()) => Answer::Done,
                Err(error) => told(error),
            },
            Request::Hello { .. } => Answer::Refused("the directory was named before".into()),
        }
    }

    async fn get(&self, at: &Path, begin: u64, len: u32) -> Answer {
        let end = begin.saturating_add(len.into());
        let empty = |size| Answer::Part { size, bytes: Bytes::new() };
        // A part behind the end is an error to a directory, but not here: the size is the answer.
        let size = match self.directory.head(at).await {
            Ok(meta) if len == 0 || begin >= meta.size => return empty(meta.size),
            Ok(meta) => meta.size,
            Err(error) => return told(error),
        };
        let options = GetOptions { range: Some(GetRange::Bounded(begin..end)), ..GetOptions::default() };
        match self.directory.get_opts(at, options).await {
            Ok(found) => match found.bytes().await {
                Ok(bytes) => Answer::Part { size, bytes },
                Err(error) => told(error),
            },
            Err(error) => told(error),
        }
    }

    async fn put(&self, at: &Path, bytes: Bytes, mode: PutMode) -> Answer {
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.directory.put_opts(at, bytes.into(), options).await {
            Ok(_) => Answer::Done,
            Err(error) => told(error),
        }
    }

    /// Writes an object, but overwrites none. If the same write was done before and its answer was lost, it counts as
    /// done.
    async fn put_once(&self, at: &Path, bytes: Bytes) -> Answer {
        match self.put(at, bytes.clone(), PutMode::Create).await {
            Answer::Taken => match self.directory.get(at).await {
                Ok(found) if found.meta.size == bytes.len() as u64 => match found.bytes().await {
                    Ok(old) if old == bytes => Answer::Done,
                    Ok(_) => overwrites(),
                    Err(error) => told(error),
                },
                Ok(_) => overwrites(),
                Err(error) => told(error),
            },
            other => other,
        }
    }

    /// Returns the first names after `after`, in order, as many as an answer takes. Names that are not ours are left
    /// out.
    async fn list(&self, folder: &Path, after: Option<String>) -> Answer {
        // Figures of the objects before are not asked for.
        let mut all = match &after {
            Some(after) if is_name(after) => {
                let after = Path::from(format!("{folder}/{after}"));
                self.directory.list_with_offset(Some(folder), &after)
            }
            _ => self.directory.list(Some(folder)),
        };
        let mut first = std::collections::BTreeMap::new();
        let mut more = false;
        while let Some(found) = all.next().await {
            let meta = match found {
                Ok(meta) => meta,
                Err(error) => return told(error),
            };
            let whole = meta.location.to_string();
            let Some(name) = whole.strip_prefix(folder.as_ref()).and_then(|rest| rest.strip_prefix('/'))
            else {
                continue;
            };
            let is_later = after.as_ref().is_none_or(|after| name > after.as_str());
            if !is_later || !is_name(&whole) || self.directory.link_in(&whole).is_some() {
                continue;
            }
            first.insert(name.to_owned(), meta.size);
            if first.len() > NAMES_PER_ANSWER {
                first.pop_last();
                more = true;
            }
        }
        Answer::Names { more, entries: first.into_iter().collect() }
    }
}

fn overwrites() -> Answer {
    Answer::Refused("nothing may be overwritten: the host serves this key with --append-only".into())
}

fn told(error: object_store::Error) -> Answer {
    match error {
        object_store::Error::NotFound { .. } => Answer::Missing,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => Answer::Taken,
        error => Answer::Failed(error.to_string()),
    }
}
