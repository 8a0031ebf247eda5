//! Where a backup goes: archives in a directory or on standard output, or plain files. What was begun is taken away unless it was finished.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink};
use std::path::{Path, PathBuf};

use crate::compress::{Compression, Compressor};
use crate::error::{Error, Result};
use crate::limits::{SYNCERS, TAR_PATH_BYTES_MAX};
use crate::manifest;
use crate::plan::{Archive, Attributes};

/// Behind the name of an archive that is not complete.
const PARTIAL: &str = ".partial";
const BLOCK: usize = 512;
const BUFFER_BYTES: usize = 1 << 20;

/// Takes a backup, entry by entry.
pub(crate) trait Sink {
    fn begin(&mut self, archive: &Archive) -> Result<()>;
    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()>;
    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()>;
    /// A file of so many bytes follows by [`Sink::write`], in parts.
    fn file(&mut self, path: &Path, bytes: u64, attributes: Attributes) -> Result<()>;
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    fn end_file(&mut self) -> Result<()>;
    fn end(&mut self) -> Result<()>;
    /// All has come, and is durable if `sync`: it stays. `manifest` is written last. Returns how many bytes were written.
    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, sync: bool) -> Result<u64>;
}

/// Directories that were made or filled, and are taken back unless they are kept.
#[derive(Default)]
struct Begun {
    /// True for those that were made here.
    folders: Vec<(PathBuf, bool)>,
}

impl Begun {
    /// A directory for a backup: an empty one, or one that is made.
    fn begin(&mut self, folder: &Path) -> Result<()> {
        let made = match fs::read_dir(folder) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(Error::Invalid(format!("{} is not empty", folder.display())));
                }
                false
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                made.map_err(Error::io("make", folder))?;
                true
            }
            Err(error) => return Err(Error::io("look into", folder)(error)),
        };
        self.folders.push((folder.to_owned(), made));
        Ok(())
    }

    fn keep(&mut self) {
        self.folders.clear();
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for (folder, made) in self.folders.drain(..).rev() {
            // What cannot be removed is seen to be incomplete.
            let _best_effort = if made { fs::remove_dir_all(&folder) } else { empty(&folder) };
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

fn create(path: &Path, mode: u32) -> Result<File> {
    let options = File::options().write(true).create_new(true).mode(mode).clone();
    options.open(path).map_err(Error::io("make", path))
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(Error::io("sync", path))
}

/// Several at a time: a journal takes them together.
fn sync_all(paths: &[PathBuf]) -> Result<()> {
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

/// Counts what is written.
struct Counted<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes)?;
        self.bytes += done as u64;
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

type Output = Compressor<Counted<BufWriter<Box<dyn Write>>>>;

/// Archives: `base.tar`, and one per tablespace.
pub(crate) struct Tar {
    /// None: standard output.
    folder: Option<PathBuf>,
    compression: Compression,
    begun: Begun,
    /// Names of the archives that are complete, without the part that says that they are not.
    complete: Vec<PathBuf>,
    path: PathBuf,
    output: Option<Output>,
    /// Bytes that a file still lacks to a whole block.
    padding: usize,
    written: u64,
}

impl Tar {
    pub(crate) fn new(folder: Option<&Path>, compression: Compression) -> Result<Self> {
        let mut begun = Begun::default();
        if let Some(folder) = folder {
            begun.begin(folder)?;
        }
        Ok(Self {
            folder: folder.map(Path::to_owned),
            compression,
            begun,
            complete: Vec::new(),
            path: "standard output".into(),
            output: None,
            padding: 0,
            written: 0,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        output.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    fn header(
        &mut self,
        path: &Path,
        kind: tar::EntryType,
        bytes: u64,
        attributes: Attributes,
    ) -> Result<tar::Header> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(attributes.mode);
        header.set_uid(attributes.uid.into());
        header.set_gid(attributes.gid.into());
        header.set_mtime(attributes.modified);
        header.set_size(bytes);
        if path.as_os_str().len() > TAR_PATH_BYTES_MAX {
            return Err(Error::Unsuited(format!("{} is longer than an archive can have it", path.display())));
        }
        header.set_path(path).map_err(Error::io("name in the archive", path))?;
        Ok(header)
    }

    fn entry(&mut self, mut header: tar::Header) -> Result<()> {
        header.set_cksum();
        self.put(header.as_bytes())
    }

    fn close(&mut self) -> Result<()> {
        self.put(&[0; 2 * BLOCK])?;
        let Some(output) = self.output.take() else { return Ok(()) };
        let mut counted = output.finish().map_err(Error::io("write", &self.path))?;
        counted.flush().map_err(Error::io("write", &self.path))?;
        self.written += counted.bytes;
        Ok(())
    }
}

impl Sink for Tar {
    fn begin(&mut self, archive: &Archive) -> Result<()> {
        let name = archive.tablespace.as_ref().map_or_else(|| "base".into(), |of| of.oid.to_string());
        let to: Box<dyn Write> = match &self.folder {
            None => Box::new(File::from(rustix_stdout()?)),
            Some(folder) => {
                let path = folder.join(format!("{name}.tar{}", self.compression.suffix()));
                self.path = with_suffix(&path, PARTIAL);
                self.complete.push(path);
                Box::new(create(&self.path, 0o600)?)
            }
        };
        let counted = Counted { to: BufWriter::with_capacity(BUFFER_BYTES, to), bytes: 0 };
        let output = Compressor::new(counted, self.compression).map_err(Error::io("write", &self.path))?;
        self.output = Some(output);
        Ok(())
    }

    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()> {
        let header = self.header(path, tar::EntryType::Directory, 0, attributes)?;
        self.entry(header)
    }

    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()> {
        let mut header = self.header(path, tar::EntryType::Symlink, 0, attributes)?;
        if target.as_os_str().len() > TAR_PATH_BYTES_MAX {
            return Err(Error::Unsuited(format!(
                "the link {} leads to {}, which is longer than an archive can have it",
                path.display(),
                target.display()
            )));
        }
        header
            .set_link_name_literal(target.as_os_str().as_bytes())
            .map_err(Error::io("name in the archive", target))?;
        self.entry(header)
    }

    fn file(&mut self, path: &Path, bytes: u64, attributes: Attributes) -> Result<()> {
        let header = self.header(path, tar::EntryType::Regular, bytes, attributes)?;
        let block = BLOCK as u64;
        self.padding = usize::try_from(bytes.next_multiple_of(block) - bytes).unwrap_or(0);
        self.entry(header)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes)
    }

    fn end_file(&mut self) -> Result<()> {
        let zeros = [0; BLOCK];
        let padding = std::mem::take(&mut self.padding);
        self.put(zeros.get(..padding).unwrap_or_default())
    }

    fn end(&mut self) -> Result<()> {
        // On standard output the manifest is still to come.
        if self.folder.is_some() { self.close() } else { Ok(()) }
    }

    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, durable: bool) -> Result<u64> {
        let Some(folder) = self.folder.clone() else {
            if let Some(bytes) = manifest {
                let mode = attributes.mode & 0o660;
                self.file(Path::new(manifest::FILE), bytes.len() as u64, Attributes { mode, ..attributes })?;
                self.write(bytes)?;
                self.end_file()?;
            }
            self.close()?;
            return Ok(self.written);
        };
        for path in &self.complete {
            let partial = with_suffix(path, PARTIAL);
            if durable {
                sync(&partial)?;
            }
            fs::rename(&partial, path).map_err(Error::io("rename", &partial))?;
        }
        if let Some(bytes) = manifest {
            write_manifest(&folder, bytes, 0o600, None, durable)?;
            self.written += bytes.len() as u64;
        }
        if durable {
            sync(&folder)?;
            sync_parent(&folder)?;
        }
        self.begun.keep();
        Ok(self.written)
    }
}

fn rustix_stdout() -> Result<std::os::fd::OwnedFd> {
    let duplicate = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    duplicate.map_err(Error::io("write", Path::new("standard output")))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn sync_parent(folder: &Path) -> Result<()> {
    match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// Under another name first: a manifest that is there is whole.
fn write_manifest(
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

/// Plain files, which a server can be started on.
pub(crate) struct Plain {
    folder: PathBuf,
    /// Whether files are given to whom they belonged: root's backups are.
    own: bool,
    begun: Begun,
    current: PathBuf,
    /// What was made, to be synced.
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    file: Option<(PathBuf, File)>,
    written: u64,
}

impl Plain {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut begun = Begun::default();
        begun.begin(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            own: rustix::process::geteuid().is_root(),
            begun,
            current: folder.to_owned(),
            files: Vec::new(),
            folders: Vec::new(),
            file: None,
            written: 0,
        })
    }

    fn settle(&self, path: &Path, attributes: Attributes) -> Result<()> {
        if self.own {
            chown(path, Some(attributes.uid), Some(attributes.gid)).map_err(Error::io("give away", path))?;
        }
        let mode = Permissions::from_mode(attributes.mode & 0o770);
        fs::set_permissions(path, mode).map_err(Error::io("set the mode of", path))
    }
}

impl Sink for Plain {
    fn begin(&mut self, archive: &Archive) -> Result<()> {
        self.current = match &archive.tablespace {
            Some(tablespace) => {
                self.begun.begin(&tablespace.restored)?;
                tablespace.restored.clone()
            }
            None => self.folder.clone(),
        };
        self.settle(&self.current, archive.attributes)?;
        self.folders.push(self.current.clone());
        Ok(())
    }

    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()> {
        let path = self.current.join(path);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::io("make", &path))?;
        self.settle(&path, attributes)?;
        self.folders.push(path);
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()> {
        let path = self.current.join(path);
        symlink(target, &path).map_err(Error::io("make", &path))?;
        if self.own {
            let owner = (Some(attributes.uid), Some(attributes.gid));
            std::os::unix::fs::lchown(&path, owner.0, owner.1).map_err(Error::io("give away", &path))?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, _: u64, attributes: Attributes) -> Result<()> {
        let path = self.current.join(path);
        let file = create(&path, 0o600)?;
        if self.own {
            fchown(&file, Some(attributes.uid), Some(attributes.gid))
                .map_err(Error::io("give away", &path))?;
        }
        let mode = Permissions::from_mode(attributes.mode & 0o770);
        file.set_permissions(mode).map_err(Error::io("set the mode of", &path))?;
        self.file = Some((path, file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        self.written += bytes.len() as u64;
        file.write_all(bytes).map_err(Error::io("write", path))
    }

    fn end_file(&mut self) -> Result<()> {
        if let Some((path, _)) = self.file.take() {
            self.files.push(path);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, durable: bool) -> Result<u64> {
        if durable {
            sync_all(&self.files)?;
            // Files before the directories that name them.
            self.folders.iter().rev().try_for_each(|path| sync(path))?;
        }
        if let Some(bytes) = manifest {
            let owner = self.own.then_some((attributes.uid, attributes.gid));
            write_manifest(&self.folder, bytes, attributes.mode & 0o660, owner, durable)?;
            self.written += bytes.len() as u64;
        }
        if durable {
            sync(&self.folder)?;
            sync_parent(&self.folder)?;
        }
        self.begun.keep();
        Ok(self.written)
    }
}

/// All of a small file.
pub(crate) fn small_file(path: &Path, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(Error::io("read", path))
}
