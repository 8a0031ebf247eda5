//! Parses the bytes of a request into a typed operation, once. Nothing in a request is trusted: lengths, names and flags
//! are checked here, and a request that does not hold together is refused.
//!
//! An operation borrows nothing, so that it can go with its request to another thread: names and data are [`Span`]s of
//! the request's arguments. Operations are grouped by how they are carried out, so that every match of them is
//! complete.

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

/// A place of bytes among the arguments of the request that they were parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Returns the number of bytes.
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl<'a> Arguments<'a> {
    /// No arguments.
    pub const NONE: Self = Self { head: &[], tail: None };

    /// Returns bytes of these arguments; none if `span` comes from longer ones.
    pub fn bytes(self, span: Span) -> &'a [u8] {
        let (start, len) = (span.start as usize, span.len as usize);
        self.following().get(start..start.saturating_add(len)).unwrap_or_default()
    }

    /// Returns the piece that has the bytes behind the structure.
    fn following(self) -> &'a [u8] {
        self.tail.unwrap_or(self.head)
    }
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

/// Returns the pairs of a BATCH_FORGET: a node id, and the number of references that end.
pub fn forgets(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes
        .chunks_exact(size_of::<p::ForgetOne>())
        .filter_map(|chunk| p::ForgetOne::read_from_bytes(chunk).ok())
        .map(|one| (one.nodeid, one.nlookup))
}

/// Operations that the kernel asks for. The inode that an operation is about is in the request's header. Names have 1
/// to 255 bytes without NUL and slash.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Operation {
    Read {
        offset: u64,
        size: u32,
        /// True if the kernel keeps the answer in its page cache, for others to read.
        into_cache: bool,
    },
    Write(Write),
    Query(Query),
    ReadDir {
        offset: u64,
        size: u32,
        plus: bool,
    },
    Change(Change),
    Create(Create),
    Open {
        flags: u32,
        kill_privileges: bool,
    },
    Release {
        /// Its `fh`.
        handle: u64,
    },
    OpenDir,
    ReleaseDir,
    Flush,
    Sync {
        data_only: bool,
    },
    SyncDir,
    SyncFs,
    StatFs,
    Forget {
        lookups: u64,
    },
    /// Forgotten references: [`forgets`] reads them.
    BatchForget(Span),
    Interrupt {
        unique: u64,
    },
    Init(p::InitIn),
    Destroy,
    /// An operation of the protocol that this front end does not offer: the kernel is told ENOSYS and does not ask
    /// again.
    NotOffered(Opcode),
}

/// A WRITE.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are the system call's own names")]
pub struct Write {
    pub offset: u64,
    pub data: Span,
    pub handle: u64,
    pub flags: u32,
    pub write_back: bool,
    /// True if the data stays in the kernel's page cache, for others to read.
    pub from_cache: bool,
    pub kill_privileges: bool,
}

/// Operations that only read names and attributes, or look for data.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Query {
    Lookup { name: Span },
    Attributes,
    StatX { mask: u32 },
    ReadLink,
    GetXattr { name: Span, size: u32 },
    ListXattr { size: u32 },
    Seek { offset: u64, whence: u32 },
}

/// Operations that change names, attributes or ranges of data; they must not be carried out twice.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Change {
    Attributes(SetAttributes),
    Symlink { name: Span, target: Span },
    MakeNode { name: Span, mode: u32, umask: u32, device: u32 },
    MakeDir { name: Span, mode: u32, umask: u32 },
    Unlink { name: Span },
    RemoveDir { name: Span },
    Rename { name: Span, new_parent: u64, new_name: Span, flags: u32 },
    Link { ino: u64, new_name: Span },
    SetXattr { name: Span, value: Span, flags: u32, kill_sgid: bool },
    RemoveXattr { name: Span },
    Allocate { offset: u64, len: u64, mode: u32 },
    CopyFileRange { offset_in: u64, ino_out: u64, offset_out: u64, len: u64, flags: u64, wide: bool },
}

/// Operations that make a file and open it; they must not be carried out twice.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Create {
    Named { name: Span, flags: u32, mode: u32, umask: u32 },
    Temporary { flags: u32, mode: u32, umask: u32 },
}

impl Operation {
    /// Returns true if the operation changes files or names, so that it must not be carried out twice.
    pub const fn changes_something(&self) -> bool {
        match self {
            Self::Write(_) | Self::Change(_) | Self::Create(_) => true,
            Self::Read { .. }
            | Self::Query(_)
            | Self::ReadDir { .. }
            | Self::Open { .. }
            | Self::Release { .. }
            | Self::OpenDir
            | Self::ReleaseDir
            | Self::Flush
            | Self::Sync { .. }
            | Self::SyncDir
            | Self::SyncFs
            | Self::StatFs
            | Self::Forget { .. }
            | Self::BatchForget(_)
            | Self::Interrupt { .. }
            | Self::Init(_)
            | Self::Destroy
            | Self::NotOffered(_) => false,
        }
    }
}
