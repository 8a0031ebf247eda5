//! Writes a backup as plain files, on which a server can be started.
//!
//! Everything is ours until it is complete. Only then is it given to its owners, the outermost directory last: the
//! owner of the database has no way in while we, who may be root, write there.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::plan::{Archive, Attributes};
use crate::sink::{Begun, Sink, create, sync, sync_all, sync_parent, write_manifest};

/// A sink that writes plain files.
pub(crate) struct Plain {
    /// True if files are given to their owners, as for root's backups.
    own: bool,
    /// Directories: that of the data first, then tablespaces.
    begun: Begun,
    /// Final owner and mode of each of these directories, by index.
    outer: Vec<(usize, Attributes)>,
    /// Index of the directory that is being filled.
    current: usize,
    /// Paths, by descriptors, of everything that was made, to be synced and given away.
    files: Vec<PathBuf>,
    folders: Vec<(PathBuf, Attributes)>,
    file: Option<(PathBuf, File)>,
    written: u64,
}

impl Plain {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut begun = Begun::default();
        begun.begin(folder)?;
        Ok(Self {
            own: rustix::process::geteuid().is_root(),
            begun,
            outer: Vec::new(),
            current: 0,
            files: Vec::new(),
            folders: Vec::new(),
            file: None,
            written: 0,
        })
    }

    /// Returns an entry's path by the descriptor of its directory, and its path as people see it.
    fn paths(&self, path: &Path) -> (PathBuf, PathBuf) {
        match self.begun.folders.get(self.current) {
            Some(folder) => (folder.real.join(path), folder.shown.join(path)),
            None => (path.to_owned(), path.to_owned()),
        }
    }

    /// Gives directories to their owners, the innermost first.
    fn settle(&self) -> Result<()> {
        for (path, attributes) in self.folders.iter().rev() {
            if self.own {
                lchown(path, Some(attributes.uid), Some(attributes.gid))
                    .map_err(Error::io("give away", path))?;
            }
            let mode = Permissions::from_mode(attributes.mode & 0o770);
            fs::set_permissions(path, mode).map_err(Error::io("set the mode of", path))?;
        }
        Ok(())
    }
}

impl Sink for Plain {
    fn begin(&mut self, archive: &Archive) -> Result<()> {
        self.current = 0;
        if let Some(tablespace) = &archive.tablespace {
            self.begun.begin(&tablespace.restored)?;
            self.current = self.begun.folders.len() - 1;
        }
        self.outer.push((self.current, archive.attributes));
        Ok(())
    }

    fn directory(&mut self, path: &Path, attributes: Attributes) -> Result<()> {
        let (path, shown) = self.paths(path);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::io("make", &shown))?;
        self.folders.push((path, attributes));
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &Path, attributes: Attributes) -> Result<()> {
        let (path, shown) = self.paths(path);
        symlink(target, &path).map_err(Error::io("make", &shown))?;
        if self.own {
            let owner = (Some(attributes.uid), Some(attributes.gid));
            lchown(&path, owner.0, owner.1).map_err(Error::io("give away", &shown))?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, _: u64, attributes: Attributes) -> Result<()> {
        let (path, shown) = self.paths(path);
        let file = create(&path, 0o600).map_err(|error| error.at(&shown))?;
        if self.own {
            let owner = (Some(attributes.uid), Some(attributes.gid));
            fchown(&file, owner.0, owner.1).map_err(Error::io("give away", &shown))?;
        }
        let mode = Permissions::from_mode(attributes.mode & 0o770);
        file.set_permissions(mode).map_err(Error::io("set the mode of", &shown))?;
        self.files.push(path);
        self.file = Some((shown, file));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((shown, file)) = &mut self.file else { return Ok(()) };
        self.written += bytes.len() as u64;
        file.write_all(bytes).map_err(Error::io("write", shown))
    }

    fn end_file(&mut self) -> Result<()> {
        self.file = None;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, manifest: Option<&[u8]>, attributes: Attributes, durable: bool) -> Result<u64> {
        self.settle()?;
        if durable {
            sync_all(&self.files)?;
            // Files are synced before the directories that name them.
            self.folders.iter().rev().try_for_each(|(path, _)| sync(path))?;
        }
        if let (Some(bytes), Some(data)) = (manifest, self.begun.folders.first()) {
            let owner = self.own.then_some((attributes.uid, attributes.gid));
            write_manifest(&data.real, bytes, attributes.mode & 0o660, owner, durable)
                .map_err(|error| error.at(&data.shown.join(crate::manifest::FILE)))?;
            self.written += bytes.len() as u64;
        }
        for (place, attributes) in &self.outer {
            let Some(folder) = self.begun.folders.get(*place) else { continue };
            folder.give(Attributes { mode: attributes.mode & 0o770, ..*attributes })?;
            if durable {
                folder.sync()?;
                sync_parent(&folder.shown)?;
            }
        }
        self.begun.keep();
        Ok(self.written)
    }
}
