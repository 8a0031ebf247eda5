//! The queue of a block device, as the kernel tells of it (Linux, Documentation/ABI/stable/sysfs-block).

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::queue::PIECE_BYTES;
use crate::limits::BLOCK_BYTES;

/// The folder of a queue in sysfs.
pub(super) struct BlockQueue(PathBuf);

impl BlockQueue {
    /// Returns the queue of a block device, or of the one whose file system has a file. `None` if the kernel names none:
    /// file systems over several devices, in memory or of networks.
    pub(super) fn of(file: &File) -> Option<Self> {
        let meta = file.metadata().ok()?;
        let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has no queue of its own: the queue is that of its device, one folder up.
        ["queue", "../queue"].iter().map(|queue| device.join(queue)).find(|queue| queue.is_dir()).map(Self)
    }

    /// Returns false if the kernel says that the device takes no discards.
    pub(super) fn takes_discards(&self) -> bool {
        number(&self.0.join("discard_max_bytes")) != Some(0)
    }

    /// Returns the length of the longest request that the kernel does not divide, in bytes: by its limits of sectors and
    /// of segments, each of which may be as small as a block of memory. It is at least [`PIECE_BYTES`].
    ///
    /// A longer read through an io_uring costs more than its parts (Linux 6.18): the kernel tries it without waiting,
    /// refuses to divide it then, and has a thread of its own make it. A throttle of cgroup v1 counts both.
    pub(super) fn request_bytes_max(&self) -> u64 {
        let by_sectors = number(&self.0.join("max_sectors_kb")).map(|kib| kib.saturating_mul(1 << 10));
        let by_segments =
            number(&self.0.join("max_segments")).map(|most| most.saturating_mul(BLOCK_BYTES as u64));
        let most = [by_sectors, by_segments].into_iter().flatten().filter(|most| *most > 0).min();
        most.map_or(u64::MAX, |most| (most - most % BLOCK_BYTES as u64).max(PIECE_BYTES))
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_sectors_and_segments_allow() {
        let folder = tempfile::tempdir().unwrap();
        let queue = BlockQueue(folder.path().to_path_buf());
        let tell = |name: &str, number: u64| {
            std::fs::write(folder.path().join(name), format!("{number}\n")).unwrap();
        };
        assert_eq!((queue.request_bytes_max(), queue.takes_discards()), (u64::MAX, true), "nothing is told");
        tell("max_segments", 128);
        assert_eq!(queue.request_bytes_max(), 512 << 10);
        tell("max_sectors_kb", 255);
        assert_eq!(queue.request_bytes_max(), 252 << 10, "whole blocks");
        tell("max_segments", 1);
        assert_eq!(queue.request_bytes_max(), PIECE_BYTES);
        tell("discard_max_bytes", 0);
        assert!(!queue.takes_discards());
    }
}
