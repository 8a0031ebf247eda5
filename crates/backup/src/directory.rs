//! A directory as a store of objects: both a local repository and the serving side of a remote one use it.
//!
//! - D1: what was acknowledged as written survives a crash of the machine: the object, its name, and every folder above
//!   it.
//! - D2: of several creates of one name one wins, and D1 applies to the object by the time that a loser hears that the
//!   name is taken. There is one exception: a process that is killed between the link and the flush of its folder
//!   leaves an object to which D1 does not apply.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

use crate::error::{Error, Result};

/// Folders in which uploads leave files if they are killed.
const UPLOADED: [&str; 3] = ["packs", "wal", "binlog"];
/// Folder of commits.
const COMMITS: &str = "log";
/// Age from which a file of an upload counts as left behind: no upload of one object takes nearly as long.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 3600);

/// A store of objects in a directory.
///
/// `object_store` writes an object into `NAME#NUMBER` before it gives it its name, and lists no such file. A file that a
/// killed upload has left is found while its folder is listed, and deleted with the next commit: thus prunes delete it, and
/// what only reads deletes nothing.
#[derive(Debug)]
pub(crate) struct Directory {
    inner: LocalFileSystem,
    root: PathBuf,
    /// Files of killed uploads that were found.
    left: Mutex<BTreeSet<PathBuf>>,
}

/// Returns true if an upload writes into a file of this name.
fn is_of_upload(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(of, number)| {
        !of.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns the files in a folder that killed uploads have left.
fn left_in(folder: &FilePath) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !is_of_upload(&entry.file_name().to_string_lossy()) {
            continue;
        }
        // An upload that is under way may rename it just now.
        let Ok(meta) = entry.metadata() else { continue };
        let age = meta.modified().ok().and_then(|modified| modified.elapsed().ok());
        if meta.is_file() && age.is_some_and(|age| age > LEFT_BEHIND) {
            left.push(entry.path());
        }
    }
    Ok(left)
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
        Ok(Self { inner: inner.with_fsync(true), root: path.into(), left: Mutex::default() })
    }

    /// Returns the path of a link that somebody has put on the way to `name`, if there is one.
    pub(crate) fn link_in(&self, name: &str) -> Option<PathBuf> {
        let mut path = self.root.clone();
        name.split('/').find_map(|part| {
            path.push(part);
            path.is_symlink().then(|| path.clone())
        })
    }

    fn left(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for files of killed uploads in a folder that is listed.
    fn look(&self, folder: &str) {
        // A link may lead to somebody else's files.
        if UPLOADED.contains(&folder) && self.link_in(folder).is_none() {
            // The list itself tells if the folder cannot be read.
            self.left().extend(left_in(&self.root.join(folder)).unwrap_or_default());
        }
    }

    /// Deletes the files of killed uploads that were found.
    fn sweep(&self) {
        for path in std::mem::take(&mut *self.left()) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a file of a killed upload stays");
                }
                _ => {}
            }
        }
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
        if put.is_ok() && at.parts().next().is_some_and(|part| part.as_ref() == COMMITS) {
            self.sweep();
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
        self.look(prefix.map_or("", Path::as_ref));
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
