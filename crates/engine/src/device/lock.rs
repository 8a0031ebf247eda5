//! One writer per device: advisory locks, and who holds them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::OpenMode;
use crate::{Error, Result};

/// Tries for a block device: udev takes a shared lock on it for moments, whenever somebody closes it.
const BLOCK_DEVICE_TRIES: u32 = 20;
/// Pause between the tries.
const PAUSE: Duration = Duration::from_millis(25);

/// Takes the lock that `mode` asks for. It goes with the last copy of the descriptor.
pub(super) fn lock(file: &File, path: &Path, mode: OpenMode, is_block: bool) -> Result<()> {
    let operation = match mode {
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        OpenMode::Unlocked => return Ok(()),
    };
    let mut tries = if is_block { BLOCK_DEVICE_TRIES } else { 1 };
    loop {
        match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if tries > 1 => {
                tries -= 1;
                std::thread::sleep(PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(busy(path)),
            Err(e) => {
                let device = path.to_path_buf();
                return Err(Error::Io { op: "lock", device, offset: 0, len_bytes: 0, source: e.into() });
            }
        }
    }
}

/// The error for a device that somebody else has, with who it is as far as the kernel tells.
pub(super) fn busy(path: &Path) -> Error {
    let name = path.display();
    Error::Busy(match holder(path) {
        Some(pid) => format!("{name} is in use by process {pid}; unmount or export its pool there first"),
        None => format!("{name} is in use: mounted, or part of an array, a volume group or another pool"),
    })
}

/// Who holds a lock on the file (locks of other pid namespaces are not listed).
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
        // A waiter has an arrow in front of its kind, and so is passed over.
        let (kind, _advisory, _access) = (fields.next()?, fields.next()?, fields.next()?);
        let (pid, file) = (fields.next()?.parse().ok()?, fields.next()?);
        (kind == "FLOCK" && file == id && pid > 0).then_some(pid)
    })
}
