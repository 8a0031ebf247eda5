//! From the bytes of a request to a typed operation. Nothing in a request is trusted: lengths, names and flags are
//! checked here, once, and a request that does not hold together is refused.

use crate::protocol::{self as p, Opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Why a request was refused before it reached the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The code is none that this version knows.
    #[error("unknown request code {0}")]
    UnknownOpcode(u32),
    /// A name of more than 255 bytes, which the kernel passes on.
    #[error("a name of more than {} bytes", p::NAME_BYTES_MAX)]
    NameTooLong,
    /// Arguments end too early, overlap, or contradict each other.
    #[error("malformed {op} request: {what}")]
    Malformed {
        /// Name of the request code.
        op: &'static str,
        /// What does not hold.
        what: &'static str,
    },
}

/// The arguments of a request, wherever the transport put them.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// The operation's own structure; what follows it too where the transport delivers both in one piece.
    pub head: &'a [u8],
    /// What follows the structure, where the transport delivers it apart (io_uring).
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

/// What SETATTR changes; `None` leaves as it is.
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
    /// Set-user-ID and, where the group may execute, set-group-ID end.
    pub kill_privileges: bool,
}

/// Forgotten references: pairs of node id and count.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(&'a [u8]);

impl ForgetList<'_> {
    /// (node id, how many references end).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .chunks_exact(size_of::<p::ForgetOne>())
            .filter_map(|chunk| p::ForgetOne::read_from_bytes(chunk).ok())
            .map(|one| (one.nodeid, one.nlookup))
    }
}

/// What the kernel asks for. The inode that it is about is in the request's header. Names have 1 to 255 bytes
/// without NUL and slash.
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
    },
    Write {
        offset: u64,
        data: &'a [u8],
        handle: u64,
        flags: u32,
        write_back: bool,
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
    /// Known to the protocol, but nothing that this front end offers: the kernel is told ENOSYS and does not ask again.
    NotOffered(Opcode),
}

/// Takes a request's arguments apart, front to back.
struct Cursor<'a> {
    op: Opcode,
    head: &'a [u8],
    tail: Option<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    fn bad(&self, what: &'static str) -> ParseError {
        ParseError::Malformed { op: self.op.name(), what }
    }

    /// The operation's own structure.
    fn fixed<T: FromBytes + IntoBytes + Immutable + KnownLayout>(&mut self) -> Result<T, ParseError> {
        let (value, rest) =
            T::read_from_prefix(self.head).map_err(|_| self.bad("shorter than its own structure"))?;
        self.head = rest;
        Ok(value)
    }

    /// Everything after the structure.
    fn rest(&mut self) -> &'a [u8] {
        self.tail.unwrap_or(self.head)
    }

    fn set_rest(&mut self, rest: &'a [u8]) {
        match &mut self.tail {
            Some(tail) => *tail = rest,
            None => self.head = rest,
        }
    }

    /// Bytes up to the next NUL.
    fn string(&mut self) -> Result<&'a [u8], ParseError> {
        let rest = self.rest();
        let end = rest.iter().position(|&b| b == 0).ok_or_else(|| self.bad("a string does not end"))?;
        self.set_rest(&rest[end + 1..]);
        Ok(&rest[..end])
    }

    /// A name in a directory.
    fn name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.string()?;
        match name {
            [] => Err(self.bad("an empty name")),
            _ if name.len() > p::NAME_BYTES_MAX => Err(ParseError::NameTooLong),
            _ if name.contains(&b'/') => Err(self.bad("a name with a slash")),
            _ => Ok(name),
        }
    }

    /// A name that is about to be made or removed: neither `.` nor `..`.
    fn new_name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.name()?;
        if name == b"." || name == b".." { Err(self.bad("the name . or ..")) } else { Ok(name) }
    }

    /// Exactly `len` bytes that follow.
    fn bytes(&mut self, len: u32) -> Result<&'a [u8], ParseError> {
        let rest = self.rest();
        let (bytes, rest) =
            rest.split_at_checked(len as usize).ok_or_else(|| self.bad("less data than announced"))?;
        self.set_rest(rest);
        Ok(bytes)
    }

    /// An offset and length whose sum a file can have.
    fn range(&self, offset: u64, len: u64) -> Result<(), ParseError> {
        match offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(self.bad("a range beyond the largest file")),
        }
    }
}

impl<'a> Operation<'a> {
    /// Parses the arguments of a request with the code `opcode`.
    ///
    /// # Errors
    /// [`ParseError`] for an unknown code or arguments that do not hold together.
    pub fn parse(opcode: u32, arguments: Arguments<'a>) -> Result<Self, ParseError> {
        let op = Opcode::from_wire(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        let mut c = Cursor { op, head: arguments.head, tail: arguments.tail };
        Ok(match op {
            Opcode::Lookup => Self::Lookup { name: c.name()? },
            Opcode::Forget => Self::Forget { lookups: c.fixed::<p::ForgetIn>()?.nlookup },
            Opcode::BatchForget => Self::BatchForget(batch_forget(&mut c)?),
            Opcode::Getattr => Self::GetAttributes,
            Opcode::Setattr => Self::SetAttributes(set_attributes(&mut c)?),
            Opcode::Statx => Self::StatX { mask: c.fixed::<p::StatxIn>()?.sx_mask },
            Opcode::Readlink => Self::ReadLink,
            Opcode::Access | Opcode::Bmap | Opcode::Ioctl | Opcode::Poll | Opcode::NotifyReply => {
                Self::NotOffered(op)
            }
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => Self::NotOffered(op),
            Opcode::Statfs => Self::StatFs,
            Opcode::Syncfs => Self::SyncFs,
            Opcode::Init => Self::Init(init(&mut c)?),
            Opcode::Destroy => Self::Destroy,
            Opcode::Interrupt => Self::Interrupt { unique: c.fixed::<p::InterruptIn>()?.unique },
            Opcode::Symlink | Opcode::Mknod | Opcode::Mkdir | Opcode::Unlink | Opcode::Rmdir => {
                directory(&mut c)?
            }
            Opcode::Rename | Opcode::Rename2 | Opcode::Link => linking(&mut c)?,
            Opcode::Create | Opcode::Tmpfile | Opcode::Open => opening(&mut c)?,
            Opcode::Opendir => Self::OpenDir,
            Opcode::Read | Opcode::Write => data(&mut c)?,
            Opcode::Readdir | Opcode::Readdirplus => {
                let read: p::ReadIn = c.fixed()?;
                Self::ReadDir { offset: read.offset, size: read.size, plus: op == Opcode::Readdirplus }
            }
            Opcode::Release => Self::Release,
            Opcode::Releasedir => Self::ReleaseDir,
            Opcode::Flush => Self::Flush,
            Opcode::Fsync => {
                Self::Sync { data_only: c.fixed::<p::FsyncIn>()?.fsync_flags & p::FSYNC_FDATASYNC != 0 }
            }
            Opcode::Fsyncdir => Self::SyncDir,
            Opcode::Setxattr | Opcode::Getxattr | Opcode::Listxattr | Opcode::Removexattr => xattr(&mut c)?,
            Opcode::Fallocate | Opcode::Lseek | Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                ranges(&mut c)?
            }
        })
    }
}

fn batch_forget<'a>(c: &mut Cursor<'a>) -> Result<ForgetList<'a>, ParseError> {
    let batch: p::BatchForgetIn = c.fixed()?;
    let len = (batch.count as usize).checked_mul(size_of::<p::ForgetOne>());
    let list =
        len.and_then(|len| c.rest().get(..len)).ok_or_else(|| c.bad("fewer entries than announced"))?;
    Ok(ForgetList(list))
}

fn init(c: &mut Cursor<'_>) -> Result<p::InitIn, ParseError> {
    // Before 7.36 the request ends after the first word of flags; what is missing is zero.
    let mut bytes = [0u8; size_of::<p::InitIn>()];
    let len = c.head.len().min(bytes.len());
    if len < 16 {
        return Err(c.bad("shorter than its own structure"));
    }
    bytes[..len].copy_from_slice(&c.head[..len]);
    let mut init: p::InitIn = zerocopy::transmute!(bytes);
    if u64::from(init.flags) & p::init::INIT_EXT == 0 {
        init.flags2 = 0;
    }
    Ok(init)
}

fn set_attributes(c: &mut Cursor<'_>) -> Result<SetAttributes, ParseError> {
    use p::fattr;
    let set: p::SetattrIn = c.fixed()?;
    let given = |bit: u32| set.valid & bit != 0;
    let time = |bit: u32, now: u32, seconds: u64, nanoseconds: u32| match (given(now), given(bit)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(seconds.cast_signed(), nanoseconds)),
        (false, false) => None,
    };
    if given(fattr::SIZE) {
        c.range(set.size, 0)?;
    }
    let nanoseconds =
        [(fattr::ATIME, set.atimensec), (fattr::MTIME, set.mtimensec), (fattr::CTIME, set.ctimensec)];
    if nanoseconds.iter().any(|&(bit, value)| given(bit) && value >= 1_000_000_000) {
        return Err(c.bad("a second of more than 999,999,999 nanoseconds"));
    }
    Ok(SetAttributes {
        mode: given(fattr::MODE).then_some(set.mode),
        uid: given(fattr::UID).then_some(set.uid),
        gid: given(fattr::GID).then_some(set.gid),
        size: given(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec),
        ctime: time(fattr::CTIME, 0, set.ctime, set.ctimensec),
        kill_privileges: given(fattr::KILL_SUIDGID),
    })
}

/// Requests that make or remove one name.
fn directory<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    Ok(match c.op {
        Opcode::Symlink => {
            let (name, target) = (c.new_name()?, c.string()?);
            if target.is_empty() || target.len() > p::LINK_BYTES_MAX {
                return Err(c.bad("a target that is empty or longer than 4095 bytes"));
            }
            Operation::Symlink { name, target }
        }
        Opcode::Mknod => {
            let node: p::MknodIn = c.fixed()?;
            Operation::MakeNode { name: c.new_name()?, mode: node.mode, umask: node.umask, device: node.rdev }
        }
        Opcode::Mkdir => {
            let dir: p::MkdirIn = c.fixed()?;
            Operation::MakeDir { name: c.new_name()?, mode: dir.mode, umask: dir.umask }
        }
        Opcode::Unlink => Operation::Unlink { name: c.new_name()? },
        Opcode::Rmdir => Operation::RemoveDir { name: c.new_name()? },
        other => Operation::NotOffered(other),
    })
}

/// Requests with two inodes.
fn linking<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    let (new_parent, flags) = match c.op {
        Opcode::Link => {
            let link: p::LinkIn = c.fixed()?;
            return Ok(Operation::Link { ino: link.oldnodeid, new_name: c.new_name()? });
        }
        Opcode::Rename => (c.fixed::<p::RenameIn>()?.newdir, 0),
        _ => {
            let rename: p::Rename2In = c.fixed()?;
            (rename.newdir, rename.flags)
        }
    };
    Ok(Operation::Rename { name: c.new_name()?, new_parent, new_name: c.new_name()?, flags })
}

fn opening<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    if c.op == Opcode::Open {
        let open: p::OpenIn = c.fixed()?;
        let kill_privileges = open.open_flags & p::OPEN_KILL_SUIDGID != 0;
        return Ok(Operation::Open { flags: open.flags, kill_privileges });
    }
    let create: p::CreateIn = c.fixed()?;
    let p::CreateIn { flags, mode, umask, .. } = create;
    if c.op == Opcode::Tmpfile {
        return Ok(Operation::TemporaryFile { flags, mode, umask });
    }
    Ok(Operation::Create { name: c.new_name()?, flags, mode, umask })
}

fn data<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    if c.op == Opcode::Read {
        let read: p::ReadIn = c.fixed()?;
        c.range(read.offset, u64::from(read.size))?;
        return Ok(Operation::Read { offset: read.offset, size: read.size });
    }
    let write: p::WriteIn = c.fixed()?;
    c.range(write.offset, u64::from(write.size))?;
    Ok(Operation::Write {
        offset: write.offset,
        data: c.bytes(write.size)?,
        handle: write.fh,
        flags: write.flags,
        write_back: write.write_flags & p::WRITE_CACHE != 0,
        kill_privileges: write.write_flags & p::WRITE_KILL_SUIDGID != 0,
    })
}

fn xattr<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    Ok(match c.op {
        Opcode::Setxattr => {
            // The longer structure: a kernel without SETXATTR_EXT is refused at INIT.
            let set: p::SetxattrIn = c.fixed()?;
            if set.size > p::XATTR_BYTES_MAX {
                return Err(c.bad("a value of more than 64 KiB"));
            }
            let name = c.name_of_xattr()?;
            let kill_sgid = set.setxattr_flags & p::SETXATTR_ACL_KILL_SGID != 0;
            Operation::SetXattr { name, value: c.bytes(set.size)?, flags: set.flags, kill_sgid }
        }
        Opcode::Getxattr => {
            let get: p::GetxattrIn = c.fixed()?;
            Operation::GetXattr { name: c.name_of_xattr()?, size: get.size }
        }
        Opcode::Listxattr => Operation::ListXattr { size: c.fixed::<p::GetxattrIn>()?.size },
        _ => Operation::RemoveXattr { name: c.name_of_xattr()? },
    })
}

impl<'a> Cursor<'a> {
    /// The name of an extended attribute: 1 to 255 bytes, slashes allowed.
    fn name_of_xattr(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.string()?;
        if name.is_empty() || name.len() > p::NAME_BYTES_MAX {
            return Err(self.bad("an attribute's name that is empty or longer than 255 bytes"));
        }
        Ok(name)
    }
}

fn ranges<'a>(c: &mut Cursor<'a>) -> Result<Operation<'a>, ParseError> {
    Ok(match c.op {
        Opcode::Fallocate => {
            let f: p::FallocateIn = c.fixed()?;
            c.range(f.offset, f.length)?;
            Operation::Allocate { offset: f.offset, len: f.length, mode: f.mode }
        }
        Opcode::Lseek => {
            let seek: p::LseekIn = c.fixed()?;
            Operation::Seek { offset: seek.offset, whence: seek.whence }
        }
        _ => {
            let copy: p::CopyFileRangeIn = c.fixed()?;
            c.range(copy.off_in, copy.len)?;
            c.range(copy.off_out, copy.len)?;
            Operation::CopyFileRange {
                offset_in: copy.off_in,
                ino_out: copy.nodeid_out,
                offset_out: copy.off_out,
                len: copy.len,
                flags: copy.flags,
                wide: c.op == Opcode::CopyFileRange64,
            }
        }
    })
}
