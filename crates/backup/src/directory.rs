//! A directory as a store of objects: both a local repository and the serving side of a remote one use it.
//!
//! - D1: what was acknowledged as written survives a crash of the machine: the object, its name, and every folder above
//!   it.
//! - D2: of several creates of one name one wins, and D1 applies to the object by the time that a loser hears that the
//!   name is taken. There is one exception: a process that is killed between the link and the flush of its folder
//!   leaves an object to which D1 does not apply.

use std::fs::File;
use std::io;
use std::path::{Path as FilePath, PathBuf};

use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

use crate::error::{Error, Result};

/// A store of objects in a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    inner: LocalFileSystem,
    root: PathBuf,
}

impl std::fmt::Display for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.root.display().fmt(f)
    }
}

/// Makes a directory and those above it that are missing, so that they survive a crash.
fn make(path: &FilePath) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(FilePath::new("."));
    make(above)?;
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(above)?.sync_all()
}

impl Directory {
    /// Opens the directory; `create` makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Local`] if it cannot be made; [`Error::Invalid`].
    pub(crate) fn open(path: &FilePath, create: bool) -> Result<Self> {
        if create {
            make(path).map_err(|source| Error::Local {
                doing: format!("cannot make the directory {}", path.display()),
                source,
            })?;
        } else if !path.is_dir() {
            return Err(Error::NotFound(format!("there is no directory {}", path.display())));
        }
        let inner = LocalFileSystem::new_with_prefix(path).map_err(|error| {
            Error::Invalid(format!("the directory {} cannot be used: {error}", path.display()))
        })?;
        Ok(Self { inner: inner.with_fsync(true), root: path.into() })
    }

    /// Returns the path of a link that somebody has put on the way to `name`, if there is one.
    pub(crate) fn link_in(&self, name: &str) -> Option<PathBuf> {
        let mut path = self.root.clone();
        name.split('/').find_map(|part| {
            path.push(part);
            path.is_symlink().then(|| path.clone())
        })
    }

    fn flush_folder_of(&self, at: &Path) -> StoreResult<()> {
        let path = self.inner.path_to_filesystem(at)?;
        let folder = path.parent().unwrap_or(&self.root);
        let flushed = File::open(folder).and_then(|folder| folder.sync_all());
        flushed.map_err(|source| object_store::Error::Generic { store: "directory", source: source.into() })
    }
}

#[async_trait::async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        let put = self.inner.put_opts(at, bytes, options).await;
        if matches!(put, Err(object_store::Error::AlreadyExists { .. })) {
            self.flush_folder_of(at)?;
        }
        put
    }
    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }
    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(at, options).await
    }
    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(all)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
