//! A store of objects on another host.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use tokio::sync::Mutex;

use super::frame::{Answer, PROTOCOL, Request, VERSION};
use super::link::{Link, Lost, Wire};
use super::ssh::Host;
use crate::error::{Error, Result};
use crate::limits::{PART_BYTES, PARTS_AHEAD};
use crate::location::RETRY_TIMEOUT;

/// First pause before another connection is tried; each next one is twice as long ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Name of this kind of store in messages.
const STORE: &str = "ssh";

/// A function that makes a connection.
pub(crate) type Dial = Box<dyn Fn() -> std::io::Result<Wire> + Send + Sync>;

struct Inner {
    host: Host,
    dial: Dial,
    link: Mutex<Option<Arc<Link>>>,
}

/// Objects in a directory of another host.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Inner>);

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.host.fmt(f)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.host.fmt(f)
    }
}

/// Reasons why a directory cannot be served.
enum Unserved {
    Lost(Lost),
    Missing,
    /// The host refused, for the reason that it gave.
    Told(String),
}

impl From<Lost> for Unserved {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl Unserved {
    /// Returns true if another attempt may do better: the line is down, or the host is starting.
    fn passes(&self) -> bool {
        match self {
            Self::Lost(Lost::Broken(_)) => true,
            // Status 255 is ssh's own; a process without a code was killed.
            Self::Lost(Lost::Ended(status)) => {
                status.is_none_or(|status| status.code().is_none_or(|code| code == SSH_FAILED || code == 0))
            }
            _ => false,
        }
    }

    /// Returns the error that the user reads, with a hint.
    fn told(self, host: &Host) -> Error {
        let name = host.name();
        let install = format!(
            "install pagefold on {name}, or tell how it is called there: --remote-command /opt/bin/pagefold"
        );
        let refused = |message: String, hint: &str| Error::Connection { message, hint: Some(hint.into()) };
        let status = match &self {
            Self::Lost(Lost::Ended(Some(status))) => status.code(),
            _ => None,
        };
        match (self, status) {
            (Self::Missing, _) => {
                Error::NotFound(format!("there is no directory {} on {name}", host.directory().display()))
            }
            (Self::Told(what), _) => Error::Connection { message: format!("{name}: {what}"), hint: None },
            (Self::Lost(Lost::Ended(_)), Some(SSH_FAILED)) => refused(
                format!("ssh has no connection to {name}"),
                &format!("see whether this works: ssh {name} true"),
            ),
            (Self::Lost(Lost::Ended(_)), Some(126 | 127)) => {
                refused(format!("\"{}\" cannot be run on {name}", host.program()), &install)
            }
            (Self::Lost(Lost::Ended(_)), Some(2)) => refused(
                format!("\"{} backup serve\" is not understood on {name}", host.program()),
                &format!("install this version of pagefold on {name}, too"),
            ),
            (Self::Lost(lost @ Lost::Noise(_)), _) => refused(
                format!("{name} does not answer as pagefold: {lost}"),
                "the shell there must print nothing when it runs a command: see the start-up files of the user (~/.bashrc)",
            ),
            (Self::Lost(lost @ Lost::Version(..)), _) => {
                refused(format!("{name}: {lost}"), "install the same version of pagefold at both ends")
            }
            (Self::Lost(lost), _) => Error::Connection { message: format!("{name}: {lost}"), hint: None },
        }
    }
}

/// Status by which ssh reports that it has no connection.
const SSH_FAILED: i32 = 255;

fn generic(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: STORE, source: what.into() }
}

/// Returns the error for an answer that is none of the expected ones.
fn failed(at: &Path, answer: Answer) -> object_store::Error {
    let path = at.to_string();
    match answer {
        Answer::Missing => object_store::Error::NotFound { path, source: "the host does not have it".into() },
        Answer::Taken => object_store::Error::AlreadyExists { path, source: "the host has it".into() },
        Answer::Refused(what) => object_store::Error::PermissionDenied { path, source: what.into() },
        Answer::Failed(what) => generic(what),
        _ => generic("the host gave an answer to something else"),
    }
}

impl Remote {
    /// Connects; `make` makes the directory if it is missing. A failure now is not tried again, since it is likely to
    /// be a wrong name.
    ///
    /// # Errors
    /// [`Error::Connection`]; [`Error::NotFound`] if there is no such directory.
    pub(crate) async fn open(host: &Host, make: bool) -> Result<Self> {
        let dialled = host.clone();
        Self::open_by(host, make, Box::new(move || dialled.dial())).await
    }

    pub(super) async fn open_by(host: &Host, make: bool, dial: Dial) -> Result<Self> {
        let remote = Self(Arc::new(Inner { host: host.clone(), dial, link: Mutex::default() }));
        let link = remote.0.connect(make).await.map_err(|unserved| unserved.told(host))?;
        *remote.0.link.lock().await = Some(Arc::new(link));
        Ok(remote)
    }

    /// Lists the objects of a folder whose names there come behind `after`.
    fn list_after(&self, folder: &str, after: Option<String>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let folder = folder.to_owned();
        let inner = Arc::clone(&self.0);
        // Each page has the names after the last one of the page before.
        let pages = stream::try_unfold(Some(after), move |after| {
            let (inner, folder) = (Arc::clone(&inner), folder.clone());
            async move {
                let Some(after) = after else { return Ok(None) };
                match inner.ask(Request::List { folder: folder.clone(), after: after.clone() }).await? {
                    Answer::Names { more, entries } => {
                        let last = entries.last().map(|(name, _)| name.clone());
                        // A host that lists the same names again would be asked for ever.
                        if more && (last.is_none() || last <= after) {
                            return Err(generic("the host lists names in no order"));
                        }
                        let page = entries
                            .into_iter()
                            .map(move |(name, size)| Ok(meta(Path::from(format!("{folder}/{name}")), size)));
                        Ok(Some((stream::iter(page), Some(last).filter(|_| more))))
                    }
                    other => Err(failed(&Path::from(folder), other)),
                }
            }
        });
        futures_util::TryStreamExt::try_flatten(pages).boxed()
    }
}

impl Inner {
    async fn connect(&self, make: bool) -> std::result::Result<Link, Unserved> {
        let wire = (self.dial)()
            .map_err(|error| Unserved::Told(format!("ssh cannot be run: {error}; is it installed?")))?;
        let link = Link::open(wire).await?;
        let hello = Request::Hello {
            protocol: PROTOCOL,
            make,
            version: VERSION.into(),
            directory: self.host.directory().as_os_str().as_encoded_bytes().to_vec(),
        };
        match link.ask(hello).await? {
            Answer::Welcome => Ok(link),
            Answer::Missing => Err(Unserved::Missing),
            Answer::Failed(what) | Answer::Refused(what) => Err(Unserved::Told(what)),
            _ => Err(Lost::Protocol("an answer to something else".into()).into()),
        }
    }

    /// Returns the connection, or another one if it was lost.
    async fn link(&self) -> std::result::Result<Arc<Link>, Unserved> {
        let mut link = self.link.lock().await;
        match &*link {
            Some(link) => Ok(Arc::clone(link)),
            None => Ok(Arc::clone(link.insert(Arc::new(self.connect(false).await?)))),
        }
    }

    /// Returns the answer to a request. If the connection breaks, it asks again over another one, for as long as
    /// requests to other stores are tried again.
    async fn ask(&self, request: Request) -> StoreResult<Answer> {
        let begun = Instant::now();
        let mut pause = PAUSE;
        loop {
            let unserved = match self.link().await {
                Err(unserved) => unserved,
                Ok(link) => match link.ask(request.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(lost) => {
                        let mut current = self.link.lock().await;
                        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &link)) {
                            *current = None;
                        }
                        Unserved::Lost(lost)
                    }
                },
            };
            if !unserved.passes() || begun.elapsed() + pause > RETRY_TIMEOUT {
                return Err(generic(unserved.told(&self.host)));
            }
            tracing::warn!(host = self.host.name(), "the connection was lost: another one is made");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads a part of an object; returns the object's size, and the bytes of the range that it has.
    async fn part(&self, at: &Path, range: Range<u64>) -> StoreResult<(u64, Bytes)> {
        let (begin, len) = (range.start, (range.end - range.start) as u32);
        match self.ask(Request::Get { name: at.to_string(), begin, len }).await? {
            Answer::Part { size, bytes }
                if bytes.len() as u64 == size.saturating_sub(begin).min(u64::from(len)) =>
            {
                Ok((size, bytes))
            }
            Answer::Part { .. } => Err(generic("the host gave back a part of another length")),
            other => Err(failed(at, other)),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Remote {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        let (name, bytes) = (at.to_string(), Bytes::from(bytes));
        let request = match options.mode {
            PutMode::Overwrite => Request::Put { name, bytes },
            PutMode::Create => Request::Create { name, bytes },
            PutMode::Update(_) => return Err(not_offered("updates")),
        };
        match self.0.ask(request).await? {
            Answer::Done => Ok(PutResult { e_tag: None, version: None, extensions: Default::default() }),
            other => Err(failed(at, other)),
        }
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        Err(not_offered("uploads in parts"))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let conditional = options.if_match.is_some()
            || options.if_none_match.is_some()
            || options.if_modified_since.is_some()
            || options.if_unmodified_since.is_some()
            || options.version.is_some();
        let wanted = match options.range {
            _ if conditional => return Err(not_offered("conditional reads")),
            None => 0..u64::MAX,
            Some(GetRange::Bounded(range)) => range,
            Some(GetRange::Offset(begin)) => begin..u64::MAX,
            Some(GetRange::Suffix(_)) => return Err(not_offered("reads from the end")),
        };
        let first = match options.head {
            true => wanted.start..wanted.start,
            false => wanted.start..wanted.end.min(wanted.start.saturating_add(PART_BYTES as u64)),
        };
        let (size, bytes) = self.0.part(at, first.clone()).await?;
        if !options.head && wanted.start >= size && wanted.start > 0 {
            return Err(generic(format!("a part from byte {} of an object of {size}", wanted.start)));
        }
        let range = wanted.start..wanted.end.min(size).max(wanted.start);
        let meta = meta(at.clone(), size);
        let rest =
            if options.head { size..size } else { first.start.saturating_add(bytes.len() as u64)..range.end };
        let starts = rest.clone().step_by(PART_BYTES);
        let (inner, place) = (Arc::clone(&self.0), at.clone());
        let later = stream::iter(starts).map(move |begin| {
            let (inner, place) = (Arc::clone(&inner), place.clone());
            let part = begin..rest.end.min(begin + PART_BYTES as u64);
            async move { inner.part(&place, part).await.map(|(_, bytes)| bytes) }
        });
        let parts = stream::once(async { Ok(bytes) }).chain(later.buffered(PARTS_AHEAD));
        let payload = GetResultPayload::Stream(parts.boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let inner = Arc::clone(&self.0);
        let one = move |at: StoreResult<Path>| {
            let inner = Arc::clone(&inner);
            async move {
                let at = at?;
                match inner.ask(Request::Delete { name: at.to_string() }).await? {
                    Answer::Done => Ok(at),
                    other => Err(failed(&at, other)),
                }
            }
        };
        all.map(one).buffered(PARTS_AHEAD).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.list_after(prefix.map_or("", Path::as_ref), None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let folder = prefix.map_or("", Path::as_ref);
        let after = offset.as_ref().strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        let listed = self.list_after(folder, after.map(str::to_owned));
        // The host may be wrong.
        let offset = offset.clone();
        let is_after = move |meta: &ObjectMeta| std::future::ready(meta.location > offset);
        futures_util::TryStreamExt::try_filter(listed, is_after).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> StoreResult<ListResult> {
        Err(not_offered("lists of folders"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> StoreResult<()> {
        Err(not_offered("copies"))
    }
}

fn not_offered(what: &str) -> object_store::Error {
    object_store::Error::NotSupported { source: format!("{what} are not offered over ssh").into() }
}

/// Returns the figures of an object. Backups do not ask when it was written.
fn meta(location: Path, size: u64) -> ObjectMeta {
    ObjectMeta { location, last_modified: Default::default(), size, e_tag: None, version: None }
}
