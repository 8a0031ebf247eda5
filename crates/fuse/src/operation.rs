//! Parses the bytes of a request into a typed operation. Nothing in a request is trusted: lengths, names and flags are
//! checked here, once, and a request that does not hold together is refused.

mod cursor;
mod parse;

use crate::protocol::{self as p, Opcode};
use zerocopy::FromBytes;

/// Reasons why a request is refused before it reaches the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// This version does not know the code.
    #[error("unknown request code {0}")]
    UnknownOpcode(u32),
    /// A name has more than 255 bytes; the kernel passes such names on.
    #[error("a name of more than {} bytes", p::NAME_BYTES_MAX)]
    NameTooLong,
    /// Arguments end too early, overlap, or contradict each other.
    #[error("malformed {op} request: {what}")]
    Malformed {
        /// Name of the request code.
        op: &'static str,
        /// The fault that was found.
        what: &'static str,
    },
}

/// The arguments of a request, wherever the transport put them.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// The operation's own structure; if the transport delivers everything in one piece, also the bytes that follow it.
    pub head: &'a [u8],
    /// The bytes that follow the structure, if the transport delivers them apart (io_uring).
    pub tail: Option<&'a [u8]>,
}

/// A time that SETATTR sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// Seconds (signed, as the kernel keeps them) and nanoseconds since 1970.
    At(i64, u32),
}

/// Attributes that SETATTR changes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (and file type, to be ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// Last status change.
    pub ctime: Option<SetTime>,
    /// True if the set-user-ID bit is cleared, and the set-group-ID bit if the group may execute.
    pub kill_privileges: bool,
}

/// Forgotten references: pairs of node id and count.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(&'a [u8]);

impl ForgetList<'_> {
    /// Returns pairs of a node id and the number of references that end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .chunks_exact(size_of::<p::ForgetOne>())
            .filter_map(|chunk| p::ForgetOne::read_from_bytes(chunk).ok())
            .map(|one| (one.nodeid, one.nlookup))
    }
}

/// Operations that the kernel asks for. The inode that an operation is about is in the request's header. Names have 1
/// to 255 bytes without NUL and slash.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(ForgetList<'a>),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    },
    MakeDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        ino: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_privileges: bool,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
    },
    TemporaryFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Read {
        offset: u64,
        size: u32,
        /// True if the kernel keeps the answer in its page cache, for others to read.
        into_cache: bool,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        handle: u64,
        flags: u32,
        write_back: bool,
        /// True if the data stays in the kernel's page cache, for others to read.
        from_cache: bool,
        kill_privileges: bool,
    },
    StatFs,
    Release,
    Flush,
    Sync {
        data_only: bool,
    },
    SyncDir,
    SyncFs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kill_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    OpenDir,
    ReadDir {
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDir,
    Allocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        offset_in: u64,
        ino_out: u64,
        offset_out: u64,
        len: u64,
        flags: u64,
        wide: bool,
    },
    StatX {
        mask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Init(p::InitIn),
    Destroy,
    /// An operation of the protocol that this front end does not offer: the kernel is told ENOSYS and does not ask
    /// again.
    NotOffered(Opcode),
}
