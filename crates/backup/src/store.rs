//! The one door to objects: in a directory, here or on another host, in a bucket, or in memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::limits::READS;
use crate::location::{Location, Patience};
use crate::remote::Remote;

/// Counts of requests that were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Requests {
    /// Number of objects written.
    pub puts: u64,
    /// Number of objects, or parts of them, read.
    pub gets: u64,
    /// Number of requests for an object's length.
    pub heads: u64,
    /// Number of objects deleted.
    pub deletes: u64,
    /// Number of lists, each of up to a thousand objects.
    pub lists: u64,
    /// Number of bytes written.
    pub put_bytes: u64,
    /// Number of bytes read.
    pub get_bytes: u64,
}

#[derive(Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    put_bytes: AtomicU64,
    get_bytes: AtomicU64,
}

/// A store of objects.
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: String,
    runtime: Runtime,
    counters: Counters,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| Error::Local { doing: "cannot prepare requests".into(), source })
}

impl Store {
    /// Opens the store of a location, without asking whether there is a repository. `create` makes a missing directory.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such directory; [`Error::Connection`] to another host; [`Error::Invalid`] if
    /// the environment or the location is wrong.
    pub fn open(location: &Location, create: bool) -> Result<Self> {
        let settings = match location {
            Location::Bucket(bucket) => bucket.service.settings(),
            Location::Directory(_) | Location::Host(_) => Vec::new(),
        };
        Self::open_with(location, create, &settings, Patience::default())
    }

    /// Opens a store as [`Store::open`] does, with `settings` of a bucket's access (`AWS_ACCESS_KEY_ID` and so on) in
    /// place of those of the environment: a process that lives long keeps no keys there.
    ///
    /// # Errors
    /// Errors as of [`Store::open`].
    pub fn open_with(
        location: &Location,
        create: bool,
        settings: &[(String, String)],
        patience: Patience,
    ) -> Result<Self> {
        match location {
            Location::Directory(path) => Self::new(Arc::new(Directory::open(path, create)?), ""),
            Location::Host(host) => {
                let runtime = runtime()?;
                let remote = runtime.block_on(Remote::open(host, create))?;
                Ok(Self::on(runtime, Arc::new(remote), ""))
            }
            Location::Bucket(bucket) => Self::new(bucket.open(settings, patience)?, &bucket.prefix),
        }
    }

    /// Makes a store of any kind, with the repository below `prefix`.
    ///
    /// # Errors
    /// [`Error::Local`] if no runtime can be made.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self> {
        Ok(Self::on(runtime()?, inner, prefix))
    }

    fn on(runtime: Runtime, inner: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { inner, prefix: prefix.into(), runtime, counters: Counters::default() }
    }

    /// Returns the counts of requests so far.
    pub fn requests(&self) -> Requests {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Requests {
            puts: get(&counters.puts),
            gets: get(&counters.gets),
            heads: get(&counters.heads),
            deletes: get(&counters.deletes),
            lists: get(&counters.lists),
            put_bytes: get(&counters.put_bytes),
            get_bytes: get(&counters.get_bytes),
        }
    }

    fn path(&self, object: &str) -> Path {
        if self.prefix.is_empty() {
            Path::from(object)
        } else {
            Path::from(format!("{}/{object}", self.prefix))
        }
    }

    fn failed(op: &'static str, object: &str) -> impl FnOnce(object_store::Error) -> Error {
        let object = object.to_owned();
        move |source| match source {
            source if lacks_bucket(&source) => Error::NoBucket,
            object_store::Error::NotFound { .. } if op == "read" => Error::Missing { object },
            source => Error::Store { op, object, source },
        }
    }

    /// Writes an object under a name that nobody else uses.
    pub(crate) fn put(&self, object: &str, bytes: Bytes) -> Result<()> {
        self.runtime.block_on(self.put_later(object, bytes))
    }

    /// Writes an object as `put` does, for callers that wait for several.
    pub(crate) async fn put_later(&self, object: &str, bytes: Bytes) -> Result<()> {
        add(&self.counters.puts, 1);
        add(&self.counters.put_bytes, bytes.len() as u64);
        let put = self.inner.put(&self.path(object), bytes.into()).await;
        put.map(drop).map_err(Self::failed("write", object))
    }

    /// Waits for work that makes requests.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Writes an object unless there is one of this name; returns true if it did. After a lost response it may return
    /// false though it did.
    pub(crate) fn create(&self, object: &str, bytes: Bytes) -> Result<bool> {
        self.runtime.block_on(self.create_later(object, bytes))
    }

    /// Writes an object as `create` does, for callers that wait for several.
    pub(crate) async fn create_later(&self, object: &str, bytes: Bytes) -> Result<bool> {
        add(&self.counters.puts, 1);
        add(&self.counters.put_bytes, bytes.len() as u64);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.inner.put_opts(&self.path(object), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(error) => Err(Self::failed("write", object)(error)),
        }
    }

    /// Reads an object of at most `max` bytes; `None` if there is none.
    pub(crate) fn get(&self, object: &str, max: usize) -> Result<Option<Bytes>> {
        add(&self.counters.gets, 1);
        self.runtime.block_on(async {
            let found = match self.inner.get(&self.path(object)).await {
                Ok(found) => found,
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(Self::failed("read", object)(error)),
            };
            if found.meta.size > max as u64 {
                let detail = format!("it has {} bytes, and may have {max} at most", found.meta.size);
                return Err(Error::damaged(object, detail));
            }
            let bytes = found.bytes().await.map_err(Self::failed("read", object))?;
            add(&self.counters.get_bytes, bytes.len() as u64);
            Ok(Some(bytes))
        })
    }

    /// Reads parts of objects, in the order of `wanted`. A part that its object does not have is damage.
    pub(crate) fn ranges(&self, wanted: &[(String, Range<u64>)]) -> Result<Vec<Bytes>> {
        let one = |(object, range): &(String, Range<u64>)| {
            let (object, range) = (object.clone(), range.clone());
            async move {
                add(&self.counters.gets, 1);
                let len = range.end - range.start;
                let bytes = match self.inner.get_range(&self.path(&object), range.clone()).await {
                    Ok(bytes) => bytes,
                    Err(object_store::Error::NotFound { .. }) => return Err(Error::Missing { object }),
                    // A range behind the end is another error in each store, so an object that is too short is detected
                    // here.
                    Err(error) => match self.inner.head(&self.path(&object)).await {
                        Ok(meta) if meta.size < range.end => {
                            return Err(too_short(&object, meta.size, range.end));
                        }
                        _ => return Err(Self::failed("read", &object)(error)),
                    },
                };
                add(&self.counters.get_bytes, bytes.len() as u64);
                if bytes.len() as u64 != len {
                    return Err(too_short(&object, range.start + bytes.len() as u64, range.end));
                }
                Ok(bytes)
            }
        };
        self.runtime.block_on(async {
            let mut reads = stream::iter(wanted.iter().map(one)).buffered(READS);
            let mut all = Vec::with_capacity(wanted.len());
            while let Some(read) = reads.next().await {
                all.push(read?);
            }
            Ok(all)
        })
    }

    /// Returns an object's length; `None` if there is none.
    pub(crate) fn head(&self, object: &str) -> Result<Option<u64>> {
        add(&self.counters.heads, 1);
        match self.runtime.block_on(self.inner.head(&self.path(object))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Self::failed("read", object)(error)),
        }
    }

    /// Visits the objects below a folder: the last part of the name, and the length.
    pub(crate) fn list(&self, folder: &str, visit: &mut dyn FnMut(&str, u64)) -> Result<()> {
        let path = self.path(folder);
        self.runtime.block_on(async {
            let mut found = self.inner.list(Some(&path));
            let mut count = 0_u64;
            while let Some(meta) = found.next().await {
                let meta = meta.map_err(Self::failed("list", folder))?;
                count += 1;
                visit(meta.location.filename().unwrap_or_default(), meta.size);
            }
            add(&self.counters.lists, count / 1000 + 1);
            Ok(())
        })
    }

    /// Returns true if the folder has an object whose name comes after `name`, or any object if `name` is empty.
    pub(crate) fn has_after(&self, folder: &str, name: &str) -> Result<bool> {
        let (path, after) = (self.path(folder), self.path(&format!("{folder}/{name}")));
        self.runtime.block_on(async {
            add(&self.counters.lists, 1);
            let found = self.inner.list_with_offset(Some(&path), &after);
            // Some stores do not know from where to list, and list all.
            let behind = |found: &ObjectMeta| std::future::ready(found.location > after);
            let found = std::pin::pin!(found.try_filter(behind)).next().await;
            Ok(found.transpose().map_err(Self::failed("list", folder))?.is_some())
        })
    }

    /// Deletes objects; one that does not exist counts as deleted.
    pub(crate) fn delete(&self, objects: &[String]) -> Result<()> {
        self.runtime.block_on(async {
            let one = |object: &String| {
                let object = object.clone();
                async move {
                    add(&self.counters.deletes, 1);
                    match self.inner.delete(&self.path(&object)).await {
                        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                        Err(error) => Err(Self::failed("delete", &object)(error)),
                    }
                }
            };
            let mut deletes = stream::iter(objects.iter().map(one)).buffer_unordered(READS);
            while let Some(deleted) = deletes.next().await {
                deleted?;
            }
            Ok(())
        })
    }
}

/// Returns true if a store says that it has no such bucket. Each store says so in its own words.
fn lacks_bucket(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"]
        .iter()
        .any(|words| text.contains(words))
}

fn too_short(object: &str, len: u64, end: u64) -> Error {
    Error::damaged(
        object,
        format!("it is truncated: it has {len} bytes, and what is to be read ends at {end}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_the_bucket_is_told_from_one_without_the_object() {
        let failed = |words: &str| {
            let source =
                format!("Client error with status 404 Not Found: <Error><Code>{words}</Code></Error>").into();
            Store::failed("list", "packs")(object_store::Error::NotFound { path: "packs".into(), source })
        };
        for words in ["NoSuchBucket", "ContainerNotFound"] {
            let error = failed(words);
            assert!(matches!(error, Error::NoBucket) && !error.to_string().contains('<'), "{error}");
        }
        assert!(matches!(failed("NoSuchKey"), Error::Store { .. }));
    }
}
