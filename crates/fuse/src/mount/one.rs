//! Mounts that are told apart from all others, also from those that are made at the same place later.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// `STATX_MNT_ID_UNIQUE`, since Linux 6.8: the mount's number, which no other mount ever has.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A mount. Its number on the device of its file system would not tell it: the kernel uses such a number again as soon
/// as the file system is unmounted.
#[derive(Debug)]
pub struct OneMount {
    dir: PathBuf,
    id: u64,
}

impl OneMount {
    /// Returns the topmost mount at `dir`; `None` if it cannot be told apart (before Linux 6.8).
    #[must_use]
    pub fn at(dir: &Path) -> Option<Self> {
        let (_root, stat) = open(dir)?;
        (stat.stx_mask & UNIQUE.bits() != 0).then(|| Self { dir: dir.into(), id: stat.stx_mnt_id })
    }

    /// Aborts the mount's connection if it is still the topmost mount at its place. The mount stays: what lies below it
    /// does not appear. Returns whether it has (root only).
    #[must_use]
    pub fn abort(&self) -> bool {
        let found = open(&self.dir).filter(|(_, stat)| stat.stx_mnt_id == self.id);
        found.is_some_and(|(root, _)| force(&root))
    }
}

/// Aborts connection number `connection` if it is that of the topmost mount at `dir`, and only killed processes hold it
/// ([`crate::abandoned`]). The mount stays. Returns whether it has (root only).
#[must_use]
pub fn abort_abandoned(dir: &Path, connection: u32) -> bool {
    // While the root is open, no other file system gets its number.
    let found = open(dir).filter(|(_, stat)| (stat.stx_dev_major, stat.stx_dev_minor) == (0, connection));
    found.is_some_and(|(root, _)| crate::abandoned().contains(&connection) && force(&root))
}

/// Opens the root of the topmost mount at a directory. That asks no server.
fn open(dir: &Path) -> Option<(OwnedFd, Statx)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, dir, flags, Mode::empty()).ok()?;
    let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&root, "", asked, UNIQUE).ok()?;
    Some((root, stat))
}

/// Aborts the connection of a mount whose root is open: a forced unmount does that first, and then finds it busy.
fn force(root: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    matches!(rustix::mount::unmount(path, UnmountFlags::FORCE), Ok(()) | Err(Errno::BUSY))
}
