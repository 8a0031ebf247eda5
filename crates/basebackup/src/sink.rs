//! Destinations of a backup, and the directories that it is in. Whatever was begun is removed unless it was finished.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::error::{Error, Result};
use crate::limits::SYNCERS;
use crate::manifest;
use crate::plan::{Archive, Attributes};

/// A destination that takes a backup, entry by entry.
pub(crate) trait Sink {
    fn begin(&mut self, archive: &Archive) -> Result<()>;
    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()>;
    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()>;
    /// Begins a file of `bytes` bytes, which follow by [`Sink::write`], in parts.
    fn file(&mut self, path: &Path, bytes: u64, attributes: Attributes) -> Result<()>;
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    fn end_file(&mut self) -> Result<()>;
    fn end(&mut self) -> Result<()>;
    /// Finishes the backup, which then stays; it is durable if `sync`. `manifest` is written last. Returns the number
    /// of bytes that were written.
    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, sync: bool) -> Result<u64>;
}

/// A directory that is being filled. It is reached by its descriptor, so that nobody who may rename a directory above
/// it can lead us elsewhere.
pub(crate) struct Folder {
    /// Path as it was named.
    pub(crate) shown: PathBuf,
    /// Path by its descriptor.
    pub(crate) real: PathBuf,
    opened: File,
    made: bool,
    before: Attributes,
}

impl Folder {
    /// Takes it for ourselves until [`Folder::give`]: nobody else can enter an incomplete backup.
    fn take(&self) -> Result<()> {
        let own = rustix::process::geteuid().as_raw();
        if own == 0 {
            fchown(&self.opened, Some(own), None).map_err(Error::io("take", &self.shown))?;
        }
        let mode = Permissions::from_mode(0o700);
        self.opened.set_permissions(mode).map_err(Error::io("set the mode of", &self.shown))
    }

    /// Gives it to its final owner.
    pub(crate) fn give(&self, attributes: Attributes) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            let owner = (Some(attributes.uid), Some(attributes.gid));
            fchown(&self.opened, owner.0, owner.1).map_err(Error::io("give away", &self.shown))?;
        }
        let mode = Permissions::from_mode(attributes.mode);
        self.opened.set_permissions(mode).map_err(Error::io("set the mode of", &self.shown))
    }

    /// Gives it back to its former owner.
    pub(crate) fn give_back(&self) -> Result<()> {
        self.give(self.before)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.opened.sync_all().map_err(Error::io("sync", &self.shown))
    }
}

/// Directories that were made or filled, and are removed or given back unless they are kept.
#[derive(Default)]
pub(crate) struct Begun {
    pub(crate) folders: Vec<Folder>,
}

impl Begun {
    /// Takes a directory for a backup: an empty one, or one that is made. Its path has no links, so it is where it
    /// seems to be.
    pub(crate) fn begin(&mut self, folder: &Path) -> Result<()> {
        let made = match fs::symlink_metadata(folder) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                made.map_err(Error::io("make", folder))?;
                true
            }
            Err(error) => return Err(Error::io("look at", folder)(error)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let opened = opened.map(File::from).map_err(|errno| Error::io("open", folder)(errno.into()))?;
        let before = opened.metadata().map_err(Error::io("look at", folder))?;
        let real = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let folder = Folder { shown: folder.to_owned(), real, opened, made, before: Attributes::of(&before) };
        refuse_full(&folder)?;
        folder.take()?;
        // Somebody who could write to it a moment ago may have put something there.
        let empty = refuse_full(&folder);
        if empty.is_err() {
            folder.give_back()?;
        }
        empty?;
        self.folders.push(folder);
        Ok(())
    }

    pub(crate) fn keep(&mut self) {
        self.folders.clear();
    }
}

fn refuse_full(folder: &Folder) -> Result<()> {
    let mut entries = fs::read_dir(&folder.real).map_err(Error::io("list", &folder.shown))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::NotEmpty(folder.shown.clone())),
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for folder in self.folders.drain(..).rev() {
            // A remainder that cannot be removed is recognisably incomplete.
            let _best_effort = empty(&folder.real);
            let _best_effort = match folder.made {
                true => fs::remove_dir(&folder.shown).map_err(Error::io("remove", &folder.shown)),
                false => folder.give_back(),
            };
        }
    }
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn create(path: &Path, mode: u32) -> Result<File> {
    let options = File::options().write(true).create_new(true).mode(mode).clone();
    options.open(path).map_err(Error::io("make", path))
}

pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(Error::io("sync", path))
}

/// Syncs several files at a time, so that a journal can commit them together.
pub(crate) fn sync_all(paths: &[PathBuf]) -> Result<()> {
    let share = paths.len().div_ceil(SYNCERS).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = paths
            .chunks(share)
            .map(|part| scope.spawn(|| part.iter().try_for_each(|path| sync(path))))
            .collect();
        let ended = || Error::io("sync", Path::new("files"))(io::Error::other("a thread has ended by a bug"));
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| ended())?)
    })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(crate) fn sync_parent(folder: &Path) -> Result<()> {
    match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// Writes the manifest, first under another name: a manifest that exists is whole.
pub(crate) fn write_manifest(
    folder: &Path,
    bytes: &[u8],
    mode: u32,
    owner: Option<(u32, u32)>,
    durable: bool,
) -> Result<()> {
    let path = folder.join(manifest::FILE);
    let begun = with_suffix(&path, ".tmp");
    let mut file = create(&begun, mode)?;
    file.write_all(bytes).map_err(Error::io("write", &begun))?;
    if let Some((uid, gid)) = owner {
        fchown(&file, Some(uid), Some(gid)).map_err(Error::io("give away", &begun))?;
    }
    if durable {
        file.sync_all().map_err(Error::io("sync", &begun))?;
    }
    fs::rename(&begun, &path).map_err(Error::io("rename", &begun))
}

/// Reads all of a small file.
pub(crate) fn small_file(path: &Path, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(Error::io("read", path))
}
