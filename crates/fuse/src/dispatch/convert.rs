//! Converts the file system's types to the protocol's structures, and back.

use crate::limits::{ATTRIBUTES_VALID, ATTRIBUTES_VALID_CHANGING, CACHE_VALID};
use crate::operation::{SetAttributes, SetTime};
use crate::protocol as p;
use pagefold_fs as fs;
use pagefold_fs::{Attr, Entry, FileKind, Time};
use std::time::{Duration, SystemTime};

pub(super) fn attributes(attr: &Attr) -> p::Attr {
    p::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs.cast_unsigned(),
        mtime: attr.mtime.secs.cast_unsigned(),
        ctime: attr.ctime.secs.cast_unsigned(),
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Set-user-ID and set-group-ID.
const SET_ID: u16 = 0o6000;

/// Returns the time for which the kernel may believe the attributes. Only the kernel changes files, so attributes stay
/// true until it asks us to change them, with two exceptions. The space that a regular file takes on the device is
/// known once its last write is compressed, and changes again when its pages are recompressed. And a change of contents
/// or of the owner takes set-id bits and capabilities away here, without the kernel's copy of the mode being updated:
/// so the kernel gets no copy of such a mode.
fn valid(attr: &Attr) -> Duration {
    if attr.kind == FileKind::Directory {
        return CACHE_VALID;
    }
    if attr.perm & SET_ID != 0 || attr.capable {
        return Duration::ZERO;
    }
    if attr.kind != FileKind::Regular {
        return CACHE_VALID;
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX).saturating_sub(attr.ctime.secs);
    if age < ATTRIBUTES_VALID.as_secs().cast_signed() { ATTRIBUTES_VALID_CHANGING } else { ATTRIBUTES_VALID }
}

pub(super) fn attr_out(attr: &Attr) -> p::AttrOut {
    p::AttrOut { attr_valid: valid(attr).as_secs(), attr_valid_nsec: 0, dummy: 0, attr: attributes(attr) }
}

pub(super) fn entry_out(entry: &Entry) -> p::EntryOut {
    p::EntryOut {
        nodeid: entry.ino.0,
        generation: entry.generation,
        entry_valid: CACHE_VALID.as_secs(),
        attr_valid: valid(&entry.attr).as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attributes(&entry.attr),
    }
}

/// Returns the answer for a name that does not exist, which the kernel remembers.
pub(super) fn no_entry() -> p::EntryOut {
    p::EntryOut { entry_valid: CACHE_VALID.as_secs(), ..p::EntryOut::default() }
}

pub(super) fn statx_out(attr: &Attr) -> p::StatxOut {
    let time = |time: Time| p::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 };
    // The kernel's 32-bit device numbers: 12 bits of major between the low 8 and the high 12 bits of minor.
    let (rdev_major, rdev_minor) =
        ((attr.rdev >> 8) & 0xFFF, (attr.rdev & 0xFF) | ((attr.rdev >> 12) & 0xFFF00));
    let stat = p::Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode() as u16,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major,
        rdev_minor,
        ..p::Statx::default()
    };
    p::StatxOut { attr_valid: valid(attr).as_secs(), stat, ..p::StatxOut::default() }
}

pub(super) fn set_attr(set: &SetAttributes) -> fs::SetAttr {
    let time = |time: Option<SetTime>| match time {
        None => fs::SetTime::Omit,
        Some(SetTime::Now) => fs::SetTime::Now,
        Some(SetTime::At(secs, nanos)) => fs::SetTime::Set(Time { secs, nanos }),
    };
    fs::SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
        ctime: time(set.ctime),
        kill_suid: set.kill_privileges,
    }
}

/// Returns the mode for flags of renameat2(2); `None` for flags that are not offered (whiteouts).
pub(super) fn rename_mode(flags: u32) -> Option<fs::RenameMode> {
    match flags {
        0 => Some(fs::RenameMode::Replace),
        libc::RENAME_NOREPLACE => Some(fs::RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Some(fs::RenameMode::Exchange),
        _ => None,
    }
}

/// Returns the operation for a mode of fallocate(2); `None` for combinations that it does not define or that are not
/// offered.
pub(super) fn allocate_mode(mode: u32) -> Option<fs::Fallocate> {
    const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE.cast_unsigned();
    const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned();
    const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE.cast_unsigned();
    const COLLAPSE: u32 = libc::FALLOC_FL_COLLAPSE_RANGE.cast_unsigned();
    const INSERT: u32 = libc::FALLOC_FL_INSERT_RANGE.cast_unsigned();
    let keep_size = mode & KEEP_SIZE != 0;
    match mode & !KEEP_SIZE {
        0 => Some(fs::Fallocate::Allocate { keep_size }),
        PUNCH if keep_size => Some(fs::Fallocate::PunchHole),
        ZERO => Some(fs::Fallocate::ZeroRange { keep_size }),
        COLLAPSE if !keep_size => Some(fs::Fallocate::Collapse),
        INSERT if !keep_size => Some(fs::Fallocate::Insert),
        _ => None,
    }
}

/// Returns the mode for flags of setxattr(2); `None` for both at once or unknown ones.
pub(super) fn xattr_mode(flags: u32) -> Option<fs::XattrMode> {
    match flags.cast_signed() {
        0 => Some(fs::XattrMode::Set),
        libc::XATTR_CREATE => Some(fs::XattrMode::Create),
        libc::XATTR_REPLACE => Some(fs::XattrMode::Replace),
        _ => None,
    }
}

pub(super) fn statfs_out(stat: &fs::StatFs) -> p::StatfsOut {
    p::StatfsOut {
        blocks: stat.blocks,
        bfree: stat.blocks_free,
        bavail: stat.blocks_available,
        files: stat.files,
        ffree: stat.files_free,
        bsize: stat.block_size,
        namelen: stat.name_max,
        frsize: stat.block_size,
        ..p::StatfsOut::default()
    }
}

/// `fh` of files that were opened for direct I/O.
pub(super) const DIRECT_HANDLE: u64 = 1;

/// Returns the answer to an open with `flags` of open(2): cached pages stay across opens; direct I/O passes the cache,
/// and its writes within the file run in parallel.
pub(crate) fn opened(flags: u32) -> p::OpenOut {
    use p::fopen::{DIRECT_IO, KEEP_CACHE, PARALLEL_DIRECT_WRITES};
    if flags & libc::O_DIRECT.cast_unsigned() == 0 {
        p::OpenOut { open_flags: KEEP_CACHE, ..p::OpenOut::default() }
    } else {
        let open_flags = KEEP_CACHE | DIRECT_IO | PARALLEL_DIRECT_WRITES;
        p::OpenOut { fh: DIRECT_HANDLE, open_flags, ..p::OpenOut::default() }
    }
}
