//! The kernel's FUSE protocol, 7.33 to 7.45: numbers and structures as `linux/fuse.h` and the kernel's documentation
//! (Documentation/filesystems/fuse.rst, fuse-io-uring.rst) define them. Nothing here interprets; see `operation`.
//!
//! All integers are in the machine's byte order. Structures end on 8 bytes; their sizes are asserted below.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const VERSION_MAJOR: u32 = 7;
/// Newest minor version that this front end speaks.
pub const VERSION_MINOR: u32 = 45;
/// Oldest minor version that it accepts (Linux 5.12): the first with every structure and with the capability
/// [`init::SETXATTR_EXT`] used here.
pub const VERSION_MINOR_MIN: u32 = 33;

/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Longest name in a directory, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest extended attribute value that the kernel passes, in bytes.
pub const XATTR_BYTES_MAX: u32 = 64 << 10;
/// Longest symbolic link target, in bytes (`PATH_MAX` with its end).
pub const LINK_BYTES_MAX: usize = 4095;

/// Declares a wire structure that consists of plain integers without hidden padding.
macro_rules! wire {
    ($(#[$meta:meta])* $name:ident = $size:literal { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[allow(missing_docs, reason = "fields are the protocol's own names")]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire! {
    /// Starts every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions after the last argument, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
}
wire! {
    /// Starts every reply; `error` is zero or a negative errno.
    OutHeader = 16 { len: u32, error: i32, unique: u64, }
}
wire! {
    /// Attributes of an inode.
    Attr = 88 {
        ino: u64, size: u64,
        /// In units of 512 bytes.
        blocks: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
}
wire! {
    /// Answers every request that finds or makes an inode.
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
}
wire! {
    /// Answers GETATTR and SETATTR.
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
}
wire! {
    /// FORGET.
    ForgetIn = 8 { nlookup: u64, }
}
wire! {
    /// One of BATCH_FORGET's list.
    ForgetOne = 16 { nodeid: u64, nlookup: u64, }
}
wire! {
    /// BATCH_FORGET; `count` times [`ForgetOne`] follow.
    BatchForgetIn = 8 { count: u32, dummy: u32, }
}
wire! {
    /// GETATTR.
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64, }
}
wire! {
    /// MKNOD; the name follows.
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
}
wire! {
    /// MKDIR; the name follows.
    MkdirIn = 8 { mode: u32, umask: u32, }
}
wire! {
    /// RENAME; both names follow.
    RenameIn = 8 { newdir: u64, }
}
wire! {
    /// RENAME2; both names follow.
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32, }
}
wire! {
    /// LINK; the new name follows.
    LinkIn = 8 { oldnodeid: u64, }
}
wire! {
    /// SETATTR.
    SetattrIn = 88 {
        /// Attributes that are set: `FATTR_*`.
        valid: u32,
        padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
}
wire! {
    /// OPEN and OPENDIR.
    OpenIn = 8 { flags: u32, open_flags: u32, }
}
wire! {
    /// CREATE and TMPFILE; the name follows.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
}
wire! {
    /// Answers OPEN; `open_flags` is `FOPEN_*`.
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32, }
}
wire! {
    /// RELEASE and RELEASEDIR.
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
}
wire! {
    /// FLUSH.
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
}
wire! {
    /// READ, READDIR and READDIRPLUS.
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
}
wire! {
    /// WRITE; `size` bytes follow.
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
}
wire! {
    /// Answers WRITE and COPY_FILE_RANGE.
    WriteOut = 8 { size: u32, padding: u32, }
}
wire! {
    /// Answers STATFS.
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
}
wire! {
    /// FSYNC and FSYNCDIR.
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32, }
}
wire! {
    /// SETXATTR with `SETXATTR_EXT`; the name and `size` bytes of value follow.
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
}
wire! {
    /// GETXATTR (the name follows) and LISTXATTR. A `size` of zero asks for the length.
    GetxattrIn = 8 { size: u32, padding: u32, }
}
wire! {
    /// Answers GETXATTR and LISTXATTR of size zero.
    GetxattrOut = 8 { size: u32, padding: u32, }
}
wire! {
    /// ACCESS.
    AccessIn = 8 { mask: u32, padding: u32, }
}
wire! {
    /// INIT, up to its second word of flags (48 further bytes are reserved).
    InitIn = 20 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, }
}
wire! {
    /// Answers INIT.
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
}
wire! {
    /// INTERRUPT: the request that nobody waits for any longer.
    InterruptIn = 8 { unique: u64, }
}
wire! {
    /// FALLOCATE.
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
}
wire! {
    /// LSEEK.
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
}
wire! {
    /// Answers LSEEK.
    LseekOut = 8 { offset: u64, }
}
wire! {
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
wire! {
    /// Answers COPY_FILE_RANGE_64.
    CopyFileRangeOut = 8 { bytes_copied: u64, }
}
wire! {
    /// SYNCFS.
    SyncfsIn = 8 { padding: u64, }
}
wire! {
    /// STATX.
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
}
wire! {
    /// A time in [`Statx`].
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
}
wire! {
    /// Attributes as `statx(2)` has them.
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
wire! {
    /// Answers STATX.
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
}
wire! {
    /// Starts an entry of READDIR's answer; the name follows, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
}
wire! {
    /// State of a request in a ring entry (FUSE over io_uring).
    RingEntryInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
}

/// Bytes of the request or reply header in a ring entry.
pub const RING_HEADER_BYTES: usize = 128;
/// Bytes of the operation's own header in a ring entry.
pub const RING_OP_BYTES: usize = 128;
/// Registers a ring entry and fetches its first request.
pub const RING_CMD_REGISTER: u32 = 1;
/// Answers a ring entry's request and fetches the next.
pub const RING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// `FATTR_*`: attributes that SETATTR sets.
#[allow(missing_docs, reason = "the protocol's own names")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `FOPEN_*`: how the kernel treats an open file.
#[allow(missing_docs, reason = "the protocol's own names")]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Capabilities in INIT; those from bit 32 on travel in `flags2`.
#[allow(missing_docs, reason = "the protocol's own names")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bit of a request's number: the request is asked again, because the process that read it before died
/// (`FUSE_UNIQUE_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Code of a notification: drop what is cached of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Code of a notification: ask again the requests that were read and not answered.
pub const NOTIFY_RESEND: i32 = 7;
wire! {
    /// NOTIFY_INVAL_INODE; a negative offset leaves pages alone.
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64, }
}

/// `FUSE_READ_LOCKOWNER`: the request is a direct read, and has a lock owner; reads into the page cache have none.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `FUSE_WRITE_LOCKOWNER`: the same for a write.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `FUSE_WRITE_CACHE`: written back from the page cache (stores of a shared mapping), not by a write call.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_WRITE_KILL_SUIDGID`: set-user-ID and set-group-ID bits end with this write.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_OPEN_KILL_SUIDGID`: the same for truncation by open.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `FUSE_FSYNC_FDATASYNC`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: setting the access ACL also clears the set-group-ID bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Declares the request codes with their names.
macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// Request codes.
        #[allow(missing_docs, reason = "the protocol's own names")]
        #[repr(u32)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// Every request code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the code of a number on the wire; `None` for one that this version does not know.
            pub const fn from_wire(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
            /// Returns the name, as the kernel's documentation writes it without `FUSE_`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8, Mkdir = 9, Unlink = 10,
    Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, Statfs = 17, Release = 18, Fsync = 20,
    Setxattr = 21, Getxattr = 22, Listxattr = 23, Removexattr = 24, Flush = 25, Init = 26, Opendir = 27,
    Readdir = 28, Releasedir = 29, Fsyncdir = 30, Getlk = 31, Setlk = 32, Setlkw = 33, Access = 34, Create = 35,
    Interrupt = 36, Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42,
    Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47, Syncfs = 50, Tmpfile = 51,
    Statx = 52, CopyFileRange64 = 53,
}

impl Opcode {
    /// One past the largest code: the length of a table by code.
    pub const TABLE_LEN: usize = 54;
}
