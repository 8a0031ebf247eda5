//! Mounts that are told apart from all others, also from those that are made at the same place later.
//!
//! The number of a connection would not tell it: the kernel gives it to the next mount as soon as the file system is
//! unmounted. Two things do: an open file `abort` of the connection, which does nothing once the connection is gone
//! (where `/sys/fs/fuse/connections` is mounted); and the mount's own number, which no other mount ever gets (since
//! Linux 6.8, and only as long as a path leads to the mount).

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// `STATX_MNT_ID_UNIQUE`, since Linux 6.8: the mount's number, which no other mount ever has.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A mount of ours that can be aborted.
#[derive(Debug)]
pub struct OneMount(Known);

#[derive(Debug)]
enum Known {
    /// The file that aborts the connection of this number.
    Connection(File, u32),
    /// The place, and the mount's number.
    Place(PathBuf, u64),
}

impl OneMount {
    /// Returns the mount that was just made at `dir`, whose connection has this number; `None` if it cannot be told
    /// apart from others.
    #[must_use]
    pub fn at(dir: &Path, connection: u32) -> Option<Self> {
        if let Some(file) = abort_file(connection) {
            return Some(Self(Known::Connection(file, connection)));
        }
        let (_root, stat) = open(dir, UNIQUE)?;
        let is_it = (stat.stx_dev_major, stat.stx_dev_minor) == (0, connection);
        let is_told = is_it && stat.stx_mask & UNIQUE.bits() != 0;
        is_told.then(|| Self(Known::Place(dir.into(), stat.stx_mnt_id)))
    }

    /// Returns the mount to whose connection `file` of `/dev/fuse` belongs; `None` if the kernel does not tell it
    /// (before Linux 6.15 or so), or `/sys/fs/fuse/connections` is not mounted.
    #[must_use]
    pub fn of_file(file: &OwnedFd) -> Option<Self> {
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        let connection = crate::killed::connection_of(&told)?;
        abort_file(connection).map(|file| Self(Known::Connection(file, connection)))
    }

    /// Returns false if the mount is known to have gone. Asks no server, and goes by no path: a path may lead through a
    /// mount that is just being made, and answers nothing yet.
    #[must_use]
    pub fn may_be_there(&self) -> bool {
        match &self.0 {
            Known::Connection(file, connection) => {
                let number = |found: std::io::Result<fs::Metadata>| found.ok().map(|found| found.ino());
                number(fs::metadata(abort_path(*connection))) == number(file.metadata())
            }
            Known::Place(..) => true,
        }
    }

    /// Aborts the mount's connection if it is still there, and, unless its file is known, still the topmost mount at
    /// its place. The mount stays: what lies below it does not appear. Returns whether it has.
    #[must_use]
    pub fn abort(&self) -> bool {
        match &self.0 {
            Known::Connection(file, _) => write_abort(file),
            Known::Place(dir, id) => {
                let found = open(dir, UNIQUE).filter(|(_, stat)| stat.stx_mnt_id == *id);
                found.is_some_and(|(root, _)| force(&root))
            }
        }
    }
}

/// Aborts connection number `connection`, which is mounted at `dir`, if only killed processes hold it
/// ([`crate::abandoned`]). The mount stays. Returns whether it has (root only).
#[must_use]
pub fn abort_abandoned(dir: &Path, connection: u32) -> bool {
    let is_abandoned = || crate::abandoned().contains(&connection);
    // The open file stays that of this connection, whoever gets its number next.
    if let Some(file) = abort_file(connection) {
        return is_abandoned() && write_abort(&file);
    }
    // While the root is open, no other file system gets its number. Without a mask a user's mount answers root, too.
    let found = open(dir, StatxFlags::empty());
    let found = found.filter(|(_, stat)| (stat.stx_dev_major, stat.stx_dev_minor) == (0, connection));
    found.is_some_and(|(root, _)| is_abandoned() && force(&root))
}

fn abort_path(connection: u32) -> String {
    format!("/sys/fs/fuse/connections/{connection}/abort")
}

fn abort_file(connection: u32) -> Option<File> {
    File::options().write(true).open(abort_path(connection)).ok()
}

fn write_abort(mut file: &File) -> bool {
    file.write_all(b"1").is_ok()
}

/// Opens the root of the topmost mount at a directory. That asks no server, unless its parent is a mount, too.
fn open(dir: &Path, mask: StatxFlags) -> Option<(OwnedFd, Statx)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, dir, flags, Mode::empty()).ok()?;
    let stat = statx(&root, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, mask).ok()?;
    Some((root, stat))
}

/// Aborts the connection of a mount whose root is open: a forced unmount does that first, and then finds it busy.
fn force(root: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    matches!(rustix::mount::unmount(path, UnmountFlags::FORCE), Ok(()) | Err(Errno::BUSY))
}
