//! The file system's calls.

use std::sync::Arc;

use pagefold_engine::dataset::{Dataset, Usage};

use crate::error::{FsError, Result};
use crate::options::{FormatOptions, FsOptions};
use crate::types::{
    Attr, Caller, Clock, DirEntry, Entry, Fallocate, FileKind, Ino, OpenFlags, RenameMode, Seek, SetAttr,
    StatFs, WriteFlags, Written, XattrMode,
};

/// A mounted file system; shared by any number of threads.
pub struct Fs {
    dataset: Arc<dyn Dataset>,
}

#[expect(unused_variables, reason = "signatures first; the bodies land within the hour")]
impl Fs {
    /// Makes an empty file system in `dataset`.
    /// Errors: `Exists` where it holds one already.
    pub fn format(dataset: &dyn Dataset, clock: &dyn Clock, options: &FormatOptions) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Opens the file system in `dataset`, once at a time. Orphans of a crash are found; [`Fs::reap`] removes them.
    /// Errors: `Stale` where it holds none.
    pub fn mount(dataset: Arc<dyn Dataset>, clock: Arc<dyn Clock>, options: FsOptions) -> Result<Self> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// The inode of `name` in `parent`; counts as one reference (see [`Fs::forget`]).
    /// `.` and `..` are the directory and its parent.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Gives `count` references back. An unlinked inode without references and opens is left to [`Fs::reap`].
    pub fn forget(&self, ino: Ino, count: u64) {}

    /// Attributes.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Changes attributes, all or none, and returns the new ones.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Makes a regular file, fifo, socket or device; not opened.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: Ino, name: &[u8], perm: u32, caller: &Caller) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: &Caller) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Names an inode once more; the first name of a [`Fs::tmpfile`].
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Moves a name.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Makes (or, unless exclusive, finds) a regular file and opens it: one reference and one open.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Makes a regular file without a name and opens it (O_TMPFILE): one reference and one open.
    pub fn tmpfile(&self, parent: Ino, perm: u32, caller: &Caller) -> Result<Entry> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Opens a regular file; owes one [`Fs::release`]. Returns the attributes after any truncation.
    pub fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Attr> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Closes what [`Fs::open`], [`Fs::create`] or [`Fs::tmpfile`] opened.
    pub fn release(&self, ino: Ino) {}

    /// Fills `buf` from byte `offset` on; returns how many bytes, fewer only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Writes at most the first MiB of `data`, as a whole or not at all.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<Written> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// A descriptor was closed: nothing to write back here, errors have been told with each write.
    pub fn flush(&self, ino: Ino) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Returns when everything done before is durable (whatever the inode).
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// As [`Fs::fsync`], of a directory.
    pub fn fsyncdir(&self, ino: Ino, datasync: bool) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Returns when everything done before is durable.
    pub fn sync(&self) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Opens a directory; owes one [`Fs::releasedir`].
    pub fn opendir(&self, ino: Ino) -> Result<Attr> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Tells the entries after `cookie` (0: from the start, with `.` and `..`) until `emit` returns false;
    /// an entry for which it did so has not been told.
    pub fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// As [`Fs::readdir`] with attributes; every `Entry` for which `emit` returned true is one reference.
    /// `.` and `..` come without.
    pub fn readdirplus(
        &self,
        ino: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Closes a directory.
    pub fn releasedir(&self, ino: Ino) {}

    /// Space of the pool.
    pub fn statfs(&self) -> Result<StatFs> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Sets an extended attribute. `kill_sgid`: where an access ACL is set, set-group-id is cleared too.
    pub fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// An extended attribute's value.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// All names of extended attributes, each followed by a zero byte.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Allocates, punches, zeroes, collapses or inserts a range of `len` bytes.
    /// Errors: `Invalid` where collapse or insert are not aligned to the recordsize (`Attr::blksize`).
    pub fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: Fallocate) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Next data or hole at or after `offset`. Errors: `NoData` where there is none.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Copies up to `len` bytes, sharing whole records where both sides line up; returns how many (fewer than asked
    /// does not mean the end of the file; 0 does).
    pub fn copy_file_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// What the file's pages take.
    pub fn usage(&self, ino: Ino) -> Result<Usage> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Frees up to `pages` pages of deleted files; true if there is more to do. Call it from a background thread, and after mounting.
    pub fn reap(&self, pages: u64) -> Result<bool> {
        Err(FsError::Unsupported("not built yet"))
    }

    /// Writes access times that so far are only in memory; called in the background every few seconds, and before unmounting.
    pub fn flush_times(&self) -> Result<()> {
        Err(FsError::Unsupported("not built yet"))
    }
}
