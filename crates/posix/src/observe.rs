//! Reads attributes in a form that can be compared between two file systems.

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io::Result;

/// Times that count as the clock's, and not as set by a call, in seconds since 1970: from 2023 to 2031.
const CLOCK: std::ops::Range<i64> = 1_700_000_000..1_950_000_000;

/// A time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The clock's, which differs from side to side.
    Clock,
    /// One that a call has set: seconds and nanoseconds.
    Set(i64, u32),
}

impl Moment {
    fn of(time: &StatxTimestamp) -> Self {
        if CLOCK.contains(&time.tv_sec) { Self::Clock } else { Self::Set(time.tv_sec, time.tv_nsec) }
    }
}

/// The attributes of a file, without those that are a file system's own affair: blocks, inode numbers, sizes of
/// directories.
#[derive(Clone)]
pub struct View {
    /// For comparison with another view of the same side.
    raw: Statx,
    /// Permissions and kind.
    pub mode: u16,
    /// Number of links.
    pub nlink: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Major and minor number of the device that the node stands for.
    pub device: (u32, u32),
    /// Access, modification, change.
    pub times: [Moment; 3],
    /// Permissions and kind as they are told if nothing else is asked for, when the kernel may answer from its cache.
    pub mode_alone: u16,
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        self.without_times() == other.without_times() && self.times == other.times
    }
}

impl Eq for View {}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{{:o} (alone {:o}) nlink {} owner {:?} size {} device {:?} times {:?}}}",
            self.mode, self.mode_alone, self.nlink, self.owner, self.size, self.device, self.times
        )
    }
}

impl View {
    /// Returns all attributes but times.
    pub fn without_times(&self) -> impl PartialEq + fmt::Debug + use<> {
        (self.mode, self.mode_alone, self.nlink, self.owner, self.size, self.device)
    }

    /// Returns the inode's number on its side.
    pub fn ino(&self) -> u64 {
        self.raw.stx_ino
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(u32::from(self.mode))
    }

    /// Returns true if only one of both has lost a set-group-ID bit that means nothing: that of a file which the group
    /// may not execute. Linux takes the bit away if a caller writes who is not in the group, but the kernel does not
    /// tell a FUSE server the groups of a caller.
    pub fn differs_in_idle_sgid(&self, other: &Self) -> bool {
        const SGID: u16 = 0o2000;
        let idle = |mode: u16| mode & 0o010 == 0;
        self.kind() == FileType::RegularFile && self.mode ^ other.mode == SGID && idle(self.mode)
    }

    /// Tells for each of the three times if it differs from an earlier view of the same file; `None` for another file.
    pub fn changes(&self, earlier: &Self) -> Option<[bool; 3]> {
        let times = |raw: &Statx| {
            [raw.stx_atime, raw.stx_mtime, raw.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
        };
        if self.raw.stx_ino != earlier.raw.stx_ino {
            return None;
        }
        let (now, then) = (times(&self.raw), times(&earlier.raw));
        Some([0, 1, 2].map(|at| now[at] != then[at]))
    }
}

/// Reads the attributes of `path` below `base`, or of `base` itself. With `fresh` the server is asked even if the
/// kernel has them cached.
///
/// # Errors
/// Those of statx(2).
pub fn view(base: BorrowedFd<'_>, path: &[u8], follow: bool, fresh: bool) -> Result<View> {
    let mut flags = if path.is_empty() && follow { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    flags.set(AtFlags::SYMLINK_NOFOLLOW, !follow);
    flags.set(AtFlags::STATX_FORCE_SYNC, fresh);
    // This call comes first: after the other one, the kernel has the attributes cached.
    let alone = statx(base, path, flags, StatxFlags::MODE)?;
    let raw = statx(base, path, flags, StatxFlags::BASIC_STATS)?;
    let kind = FileType::from_raw_mode(u32::from(raw.stx_mode));
    Ok(View {
        raw,
        mode: raw.stx_mode,
        mode_alone: alone.stx_mode,
        nlink: raw.stx_nlink,
        owner: (raw.stx_uid, raw.stx_gid),
        size: if kind == FileType::Directory { 0 } else { raw.stx_size },
        device: (raw.stx_rdev_major, raw.stx_rdev_minor),
        // Writing to a pipe changes the times of its inode on ext4; the kernel does not do that for FUSE.
        times: match kind {
            FileType::Fifo => [Moment::Clock; 3],
            _ => [&raw.stx_atime, &raw.stx_mtime, &raw.stx_ctime].map(Moment::of),
        },
    })
}

/// Reads a few attributes, and returns those that were asked for as text. Times, inode number and blocks are left out,
/// since they differ between the sides.
///
/// # Errors
/// Those of statx(2).
pub fn some(base: BorrowedFd<'_>, path: &[u8], flags: AtFlags, mask: u32) -> Result<String> {
    let asked = StatxFlags::from_bits_retain(mask);
    let raw = statx(base, path, flags, asked)?;
    let kind = FileType::from_raw_mode(u32::from(raw.stx_mode));
    let mut told = String::new();
    let mut tell = |flag: StatxFlags, what: &dyn fmt::Debug| {
        if asked.contains(flag) {
            told += &if raw.stx_mask & flag.bits() == 0 { "none ".into() } else { format!("{what:?} ") };
        }
    };
    tell(StatxFlags::TYPE, &kind);
    tell(StatxFlags::MODE, &(raw.stx_mode & 0o7777));
    tell(StatxFlags::NLINK, &raw.stx_nlink);
    tell(StatxFlags::UID, &raw.stx_uid);
    tell(StatxFlags::GID, &raw.stx_gid);
    tell(StatxFlags::SIZE, &if kind == FileType::Directory { 0 } else { raw.stx_size });
    Ok(told)
}
