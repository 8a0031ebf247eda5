//! One writer per device: advisory locks, and the processes that hold them.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::mode::OpenMode;
use crate::{Error, Result};

/// A file that is locked as long as this is there.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: File,
    /// True if another holder has a copy of the descriptor, and keeps it locked.
    is_handed: AtomicBool,
}

impl LockedFile {
    pub(super) const fn new(file: File, is_handed: bool) -> Self {
        Self { file, is_handed: AtomicBool::new(is_handed) }
    }

    /// Returns a copy of the descriptor for somebody who keeps it locked from now on.
    pub(super) fn hand_over(&self) -> io::Result<File> {
        let copy = self.file.try_clone()?;
        self.is_handed.store(true, Ordering::Relaxed);
        Ok(copy)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// Unlocks the device explicitly: a process that was forked a moment ago may have a copy of the descriptor until it
/// executes its program.
impl Drop for LockedFile {
    fn drop(&mut self) {
        if !*self.is_handed.get_mut() {
            unlock(&self.file);
        }
    }
}

/// Takes the lock that `mode` needs. The lock ends with the last copy of the descriptor.
pub(super) fn lock(file: &File, path: &Path, mode: OpenMode) -> Result<()> {
    let operation = match mode {
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        OpenMode::Unlocked => return Ok(()),
    };
    match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(busy(path)),
        Err(e) => {
            let device = path.to_path_buf();
            Err(Error::Io { op: "lock", device, offset: 0, len_bytes: 0, source: e.into() })
        }
    }
}

/// Releases a device's lock, even if other processes still have a copy of the descriptor.
pub fn unlock(file: impl AsFd) {
    if let Err(error) = rustix::fs::flock(file, FlockOperation::Unlock) {
        tracing::warn!(%error, "a device's lock goes with its descriptor");
    }
}

/// Returns true if the lock is held by a process that has ended: the kernel releases it once the last request of its
/// io_uring is done.
pub(super) fn is_left_behind(path: &Path) -> bool {
    let ended = |pid: i32| match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state follows the process's name, which may contain anything.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    holder(path).is_some_and(ended)
}

/// Returns the error for a device that somebody else holds. It names the holder if the kernel does.
pub(super) fn busy(path: &Path) -> Error {
    let name = path.display();
    Error::Busy(match holder(path) {
        Some(pid) => format!("{name} is in use by process {pid}; unmount or export its pool there first"),
        None => format!("{name} is in use: mounted, or part of an array, a volume group or another pool"),
    })
}

/// Returns the process that holds a lock on the file, if it is listed (locks of other pid namespaces are not).
fn holder(path: &Path) -> Option<i32> {
    let meta = std::fs::metadata(path).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    parse_holder(&locks, &format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// Finds the holder of a flock on `id` ("major:minor:inode") in the text of /proc/locks.
pub(super) fn parse_holder(locks: &str, id: &str) -> Option<i32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // A waiter has an arrow in front of its kind, and so is skipped.
        let (kind, _advisory, _access) = (fields.next()?, fields.next()?, fields.next()?);
        let (pid, file) = (fields.next()?.parse().ok()?, fields.next()?);
        (kind == "FLOCK" && file == id && pid > 0).then_some(pid)
    })
}
