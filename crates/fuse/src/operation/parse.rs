//! Parses a request's code and arguments into the operation.

use super::cursor::Cursor;
use super::{Arguments, ForgetList, Operation, ParseError, SetAttributes, SetTime};
use crate::protocol::{self as p, Opcode};

impl<'a> Operation<'a> {
    /// Parses the arguments of a request with the code `opcode`.
    ///
    /// # Errors
    /// [`ParseError`] for an unknown code or arguments that do not hold together.
    pub fn parse(opcode: u32, arguments: Arguments<'a>) -> Result<Self, ParseError> {
        let op = Opcode::from_wire(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        let mut c = Cursor::new(op, arguments);
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
            Opcode::Init => Self::Init(init(&c)?),
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

fn init(c: &Cursor<'_>) -> Result<p::InitIn, ParseError> {
    // Before 7.36 the request ends after the first word of flags; what is missing is zero.
    let bytes: [u8; size_of::<p::InitIn>()] = c.prefix(16)?;
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

/// Parses requests that make or remove one name.
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

/// Parses requests with two inodes.
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
        let into_cache = read.read_flags & p::READ_LOCKOWNER == 0;
        return Ok(Operation::Read { offset: read.offset, size: read.size, into_cache });
    }
    let write: p::WriteIn = c.fixed()?;
    c.range(write.offset, u64::from(write.size))?;
    Ok(Operation::Write {
        offset: write.offset,
        data: c.bytes(write.size)?,
        handle: write.fh,
        flags: write.flags,
        write_back: write.write_flags & p::WRITE_CACHE != 0,
        from_cache: write.write_flags & p::WRITE_LOCKOWNER == 0,
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
