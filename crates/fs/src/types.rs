//! The typed vocabulary of the file system's calls.

use std::fmt;

/// Number of an inode. Never used twice within a file system, so it needs no generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kinds of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    /// A file with data.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the kind as in directory entries (`d_type` of readdir(3)); shifted left by 12 it is the kind in
    /// `st_mode`.
    pub const fn d_type(self) -> u8 {
        match self {
            Self::Fifo => 1,
            Self::CharDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }

    /// Returns the kind that a `d_type` means; `None` for a value that is none of the seven.
    pub const fn from_d_type(d_type: u8) -> Option<Self> {
        Some(match d_type {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the kind in the bits of `st_mode`; no kind bits at all mean a regular file, as for mknod(2).
    pub const fn from_mode(mode: u32) -> Option<Self> {
        match (mode >> 12) & 0xF {
            0 => Some(Self::Regular),
            bits => Self::from_d_type(bits as u8),
        }
    }
}

/// Point in time: seconds since 1970 (may be negative) and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Whole seconds since 1970-01-01 00:00 UTC, rounded down.
    pub secs: i64,
    /// Nanoseconds past `secs`.
    pub nanos: u32,
}

/// Gives the time. The server uses [`SystemClock`]; a simulation brings its own.
pub trait Clock: Send + Sync {
    /// Returns the time now.
    fn now(&self) -> Time;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(past) => {
                Time { secs: i64::try_from(past.as_secs()).unwrap_or(i64::MAX), nanos: past.subsec_nanos() }
            }
            // A machine whose clock says "before 1970" gets 1970.
            Err(_) => Time::default(),
        }
    }
}

/// An inode's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Number of the inode.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky: the low 12 bits of `st_mode`.
    pub perm: u16,
    /// Number of directory entries that name the inode; for directories 2 + subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as the kernel encodes it (32 bits); 0 unless a device.
    pub rdev: u32,
    /// Length in bytes; of a directory the bytes of its entries.
    pub size: u64,
    /// Number of units of 512 bytes that are stored, after compression.
    pub blocks: u64,
    /// Recordsize in bytes (the default where none has been decided yet): the best I/O size.
    pub blksize: u32,
    /// Last read.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// True if the inode has capabilities (`security.capability`).
    pub capable: bool,
}

impl Attr {
    /// Returns `st_mode`: kind and permissions.
    pub const fn mode(&self) -> u32 {
        ((self.kind.d_type() as u32) << 12) | self.perm as u32
    }
}

/// A name that was found or made. The caller owes one [`crate::Fs::forget`] for each `Entry` it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Distinguishes uses of one number; numbers are not reused, so it is always the same.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// The process that makes a call; it owns what the call creates. The kernel checks permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Mask for new permissions; a directory's default ACL takes its place.
    pub umask: u32,
}

/// Changes of a timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetTime {
    /// Leave the timestamp (or let the operation's own rules decide).
    #[default]
    Omit,
    /// Set it to the present.
    Now,
    /// Set it to this time.
    Set(Time),
}

/// Attributes to change; the default changes none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// New permission bits (low 12 bits of `st_mode`; others are ignored).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: SetTime,
    /// Modification time.
    pub mtime: SetTime,
    /// Change time; `Omit` sets it to now where anything changes.
    pub ctime: SetTime,
    /// A change of `size` clears set-user-id and set-group-id (the caller lacks CAP_FSETID).
    /// A change of owner or group always does.
    pub kill_suid: bool,
}

/// Effects of an open on the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// O_TRUNC.
    pub truncate: bool,
    /// O_EXCL; only for [`crate::Fs::create`].
    pub exclusive: bool,
    /// The truncation clears set-user-id and set-group-id.
    pub kill_suid: bool,
}

/// Options of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// The offset is ignored: write at the end of the file (O_APPEND).
    pub append: bool,
    /// Clear set-user-id and set-group-id.
    pub kill_suid: bool,
}

/// Outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Byte offset at which the data was written.
    pub offset: u64,
    /// Number of bytes written: all, or the first MiB of a longer buffer.
    pub len: usize,
}

/// Flavours of rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replace the target if there is one.
    #[default]
    Replace,
    /// Fail with `Exists` if there is a target (RENAME_NOREPLACE).
    NoReplace,
    /// Exchange both (RENAME_EXCHANGE).
    Exchange,
}

/// Flavours of fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Mode 0 or KEEP_SIZE: the range will be written.
    Allocate {
        /// Do not lengthen the file.
        keep_size: bool,
    },
    /// PUNCH_HOLE | KEEP_SIZE.
    PunchHole,
    /// ZERO_RANGE.
    ZeroRange {
        /// Do not lengthen the file.
        keep_size: bool,
    },
    /// COLLAPSE_RANGE.
    Collapse,
    /// INSERT_RANGE.
    Insert,
}

/// Targets that lseek(2) looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// Ways to set an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// XATTR_CREATE: fail with `Exists` if the attribute exists.
    Create,
    /// XATTR_REPLACE: fail with `NoAttr` if the attribute does not exist.
    Replace,
}

/// One entry of a directory, as `readdir` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// The inode that the name stands for.
    pub ino: Ino,
    /// Cookie that lets the next call continue after this entry; below 2^63, stable while entries change.
    pub cookie: u64,
    /// Kind of that inode.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// Figures of the whole file system, in physical terms: bytes after compression, as in `st_blocks`; before compression
/// where the pool has a thin capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Blocks that the pool can hold.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free to everybody.
    pub blocks_available: u64,
    /// Number of inodes that there can be; large, since inodes are made as needed.
    pub files: u64,
    /// Number of inodes that can still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}
