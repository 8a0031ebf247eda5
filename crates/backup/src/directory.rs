//! A directory as a store of objects: both a local repository and the serving side of a remote one use it.
//!
//! - D1: what was acknowledged as written survives a crash of the machine: the object, its name, and every folder above
//!   it.
//! - D2: of several creates of one name one wins, and D1 applies to the object by the time that a loser hears that the
//!   name is taken. There is one exception: a process that is killed between the link and the flush of its folder
//!   leaves an object to which D1 does not apply.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_engine::device::AlignedBuf;
use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::limits::DIRECT_ALIGN_BYTES;

/// Folders of all that a repository keeps besides its commits. Uploads leave files there if they are killed.
pub(crate) const UPLOADED: [&str; 3] = ["packs", "wal", "binlog"];
/// Folder of commits.
const COMMITS: &str = "log";
/// Permissions of a repository's directory that is made here: nobody else reads what may not be encrypted.
const OWN: u32 = 0o700;
/// Permissions of other folders, before the umask.
const ANY: u32 = 0o777;
/// Age from which a file of an upload counts as left behind: no upload of one object takes nearly as long.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 3600);
/// Length in bytes from which an object is written without the page cache: copying it there took more of a processor
/// than all else that a backup does.
const DIRECT_BYTES_MIN: usize = 1 << 20;
/// Bytes that are written at a time if they do not lie in memory as a direct write needs them, and are copied: a buffer
/// of as many stays in the processor's cache.
const DIRECT_STEP_BYTES: usize = 512 << 10;

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

/// Makes a directory with these permissions, and those above it that are missing, so that they survive a crash. One that
/// is there stays as it is.
fn make(path: &FilePath, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(FilePath::new("."));
    make(above, ANY)?;
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(above)?.sync_all()
}

/// Sees whether there is a directory of this name. One below a directory that the caller may not enter may well exist.
fn see(path: &FilePath) -> Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::Invalid(format!("{} is not a directory", path.display()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(Error::NotFound(format!("there is no directory {}", path.display())))
        }
        Err(source) => {
            Err(Error::Local { doing: format!("cannot look at the directory {}", path.display()), source })
        }
    }
}

/// A file that is written from its beginning on, past the page cache as far as the file system takes that.
struct DirectFile {
    file: File,
    is_direct: bool,
    at: u64,
}

impl DirectFile {
    /// Makes a file, which must not be there.
    fn create(path: &FilePath) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        // A file system that refuses an open for direct writes may have made the file all the same.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        match rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT) {
            Ok(()) => Ok(Self { file, is_direct: true, at: 0 }),
            Err(rustix::io::Errno::INVAL) => Ok(Self { file, is_direct: false, at: 0 }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a file beside the object at `path`, named as `object_store` names such files, and returns its path, too.
    /// Nobody else has it: the process of a connection that broke may still be writing the same object.
    fn create_beside(path: &FilePath) -> io::Result<(Self, PathBuf)> {
        let mut number = 1_u64;
        loop {
            let mut part = path.as_os_str().to_owned();
            part.push(format!("#{number}"));
            match Self::create(FilePath::new(&part)) {
                Ok(file) => return Ok((file, part.into())),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes bytes that lie in memory as direct writes need them; their length may be any.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_direct && !bytes.len().is_multiple_of(DIRECT_ALIGN_BYTES) {
            let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % DIRECT_ALIGN_BYTES);
            self.write(whole)?;
            self.use_cache()?;
            return self.write(rest);
        }
        match self.file.write_all_at(bytes, self.at) {
            // It was opened so, and refuses to be written so.
            Err(error) if self.is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                self.use_cache()?;
                self.file.write_all_at(bytes, self.at)?;
            }
            written => written?,
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn use_cache(&mut self) -> io::Result<()> {
        self.is_direct = false;
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        Ok(rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?)
    }
}

/// Writes a long object so that it is durable, also its name.
fn put_directly(path: &FilePath, payload: &PutPayload) -> io::Result<()> {
    let no_folder = || io::Error::new(io::ErrorKind::InvalidInput, "an object needs a folder and a name");
    let folder = path.parent().filter(|_| path.file_name().is_some()).ok_or_else(no_folder)?;
    make(folder, ANY)?;
    let (file, part) = DirectFile::create_beside(path)?;
    let written = write_directly(file, payload).and_then(|()| std::fs::rename(&part, path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&part);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

fn write_directly(mut file: DirectFile, payload: &PutPayload) -> io::Result<()> {
    let mut pieces = payload.iter();
    if let (Some(one), None) = (pieces.next(), pieces.next())
        && one.as_ptr().align_offset(DIRECT_ALIGN_BYTES) == 0
    {
        file.write(one)?;
        return file.file.sync_all();
    }
    let mut step = AlignedBuf::scratch(DIRECT_STEP_BYTES);
    let mut filled = 0;
    for mut bytes in payload.iter().map(AsRef::<[u8]>::as_ref) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(step.len() - filled));
            step.get_mut(filled..filled + now.len()).unwrap_or_default().copy_from_slice(now);
            (filled, bytes) = (filled + now.len(), later);
            if filled == step.len() {
                file.write(&step)?;
                filled = 0;
            }
        }
    }
    file.write(step.get(..filled).unwrap_or_default())?;
    file.file.sync_all()
}

impl Directory {
    /// Opens the directory; `create` makes it if it is missing, for its owner alone.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Local`] if it cannot be made; [`Error::Invalid`].
    pub(crate) fn open(path: &FilePath, create: bool) -> Result<Self> {
        if create {
            make(path, OWN).map_err(|source| Error::Local {
                doing: format!("cannot make the directory {}", path.display()),
                source,
            })?;
        } else {
            see(path)?;
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
        if options.mode == PutMode::Overwrite && bytes.content_length() >= DIRECT_BYTES_MIN {
            let path = self.inner.path_to_filesystem(at)?;
            let put = tokio::task::spawn_blocking(move || put_directly(&path, &bytes)).await?;
            return match put {
                Ok(()) => Ok(PutResult { e_tag: None, version: None, extensions: Default::default() }),
                Err(source) => {
                    Err(object_store::Error::Generic { store: "directory", source: source.into() })
                }
            };
        }
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
    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn long_objects_are_written_whole_and_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for len in [0, 1, 4095, 4096, DIRECT_STEP_BYTES - 1, DIRECT_STEP_BYTES, (3 << 20) + 4097] {
            let content: Vec<u8> =
                (0..len as u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
            let (path, pieces) = (folder.path().join("packs/one"), content.chunks(300_001));
            let payload: PutPayload = pieces.map(bytes::Bytes::copy_from_slice).collect();
            put_directly(&path, &payload).unwrap();
            assert!(std::fs::read(&path).unwrap() == content, "{len} bytes");
        }
        // One piece that lies as a direct write needs it.
        let sevens = vec![7; (1 << 20) + 2 * DIRECT_ALIGN_BYTES + 1];
        let skipped = sevens.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        let aligned = bytes::Bytes::from(sevens).slice(skipped..);
        for len in [0, 1, 4095, 4096, 8192, (1 << 20) + 4097] {
            let path = folder.path().join("packs/one");
            put_directly(&path, &aligned.slice(..len).into()).unwrap();
            assert!(std::fs::read(&path).unwrap() == vec![7; len], "{len} bytes");
        }
        // A folder has the name.
        std::fs::create_dir_all(folder.path().join("packs/two/three")).unwrap();
        put_directly(&folder.path().join("packs/two"), &PutPayload::from_static(b"x")).unwrap_err();
        assert_eq!(names_in(&folder.path().join("packs")), ["one", "two"]);
    }

    fn names_in(folder: &FilePath) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn two_writers_of_one_object_share_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("packs/one"), folder.path().join("packs/one#1"));
        std::fs::create_dir(folder.path().join("packs")).unwrap();
        // The process before this one is still writing what nobody waits for any more.
        std::fs::write(&other, "a part of it").unwrap();
        put_directly(&path, &PutPayload::from_static(b"all of it")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        assert_eq!(std::fs::read(&other).unwrap(), b"a part of it");
        // A failure takes away nothing of somebody else's either.
        std::fs::create_dir_all(folder.path().join("packs/two/three")).unwrap();
        std::fs::write(folder.path().join("packs/two#1"), "a part of it").unwrap();
        put_directly(&folder.path().join("packs/two"), &PutPayload::from_static(b"x")).unwrap_err();
        assert_eq!(names_in(&folder.path().join("packs")), ["one", "one#1", "two", "two#1"]);
    }

    #[test]
    fn a_file_that_refuses_direct_writes_is_written_without() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = DirectFile::create(&folder.path().join("one")).unwrap();
        // No device takes a write that lies so in memory.
        let odd = AlignedBuf::zeroed(8192);
        file.write(odd.get(1..4097).unwrap()).unwrap();
        assert!(!file.is_direct);
        file.write(odd.get(..8192).unwrap()).unwrap();
        assert_eq!(file.file.metadata().unwrap().len(), 12288);
    }
}
