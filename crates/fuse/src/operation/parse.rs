//! Parses a request's code and arguments into the operation.

use super::cursor::Cursor;
use super::{Arguments, Change, Create, Operation, ParseError, Query, SetAttributes, SetTime, Span, Write};
use crate::protocol::{self as p, Opcode};

impl Operation {
    /// Parses the arguments of a request with the code `opcode`.
    ///
    /// # Errors
    /// [`ParseError`] for an unknown code or arguments that do not hold together.
    pub fn parse(opcode: u32, arguments: Arguments<'_>) -> Result<Self, ParseError> {
        let op = Opcode::from_wire(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        let c = &mut Cursor::new(op, arguments);
        Ok(match op {
            Opcode::Read => read(c)?,
            Opcode::Write => Self::Write(write(c)?),
            Opcode::Lookup => Self::Query(Query::Lookup { name: c.name()? }),
            Opcode::Getattr => Self::Query(Query::Attributes),
            Opcode::Statx => Self::Query(Query::StatX { mask: c.fixed::<p::StatxIn>()?.sx_mask }),
            Opcode::Readlink => Self::Query(Query::ReadLink),
            Opcode::Getxattr => Self::Query(get_xattr(c)?),
            Opcode::Listxattr => Self::Query(Query::ListXattr { size: c.fixed::<p::GetxattrIn>()?.size }),
            Opcode::Lseek => Self::Query(seek(c)?),
            Opcode::Readdir => read_dir(c, false)?,
            Opcode::Readdirplus => read_dir(c, true)?,
            Opcode::Setattr => Self::Change(Change::Attributes(set_attributes(c)?)),
            Opcode::Symlink => Self::Change(symlink(c)?),
            Opcode::Mknod => Self::Change(make_node(c)?),
            Opcode::Mkdir => Self::Change(make_dir(c)?),
            Opcode::Unlink => Self::Change(Change::Unlink { name: c.new_name()? }),
            Opcode::Rmdir => Self::Change(Change::RemoveDir { name: c.new_name()? }),
            Opcode::Rename => Self::Change(rename(c)?),
            Opcode::Rename2 => Self::Change(rename_with_flags(c)?),
            Opcode::Link => Self::Change(link(c)?),
            Opcode::Setxattr => Self::Change(set_xattr(c)?),
            Opcode::Removexattr => Self::Change(Change::RemoveXattr { name: c.name_of_xattr()? }),
            Opcode::Fallocate => Self::Change(allocate(c)?),
            Opcode::CopyFileRange => Self::Change(copy_range(c, false)?),
            Opcode::CopyFileRange64 => Self::Change(copy_range(c, true)?),
            Opcode::Create => Self::Create(create(c)?),
            Opcode::Tmpfile => Self::Create(temporary(c)?),
            Opcode::Open => open(c)?,
            Opcode::Release => Self::Release { handle: c.fixed::<p::ReleaseIn>()?.fh },
            Opcode::Opendir => Self::OpenDir,
            Opcode::Releasedir => Self::ReleaseDir,
            Opcode::Flush => Self::Flush,
            Opcode::Fsync => sync(c)?,
            Opcode::Fsyncdir => Self::SyncDir,
            Opcode::Syncfs => Self::SyncFs,
            Opcode::Statfs => Self::StatFs,
            Opcode::Forget => Self::Forget { lookups: c.fixed::<p::ForgetIn>()?.nlookup },
            Opcode::BatchForget => Self::BatchForget(batch_forget(c)?),
            Opcode::Interrupt => Self::Interrupt { unique: c.fixed::<p::InterruptIn>()?.unique },
            Opcode::Init => Self::Init(init(c)?),
            Opcode::Destroy => Self::Destroy,
            Opcode::Access | Opcode::Bmap | Opcode::Ioctl | Opcode::Poll | Opcode::NotifyReply => {
                Self::NotOffered(op)
            }
            Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => Self::NotOffered(op),
        })
    }
}

fn read(c: &mut Cursor<'_>) -> Result<Operation, ParseError> {
    let read: p::ReadIn = c.fixed()?;
    c.range(read.offset, u64::from(read.size))?;
    let into_cache = read.read_flags & p::READ_LOCKOWNER == 0;
    Ok(Operation::Read { offset: read.offset, size: read.size, into_cache })
}

fn write(c: &mut Cursor<'_>) -> Result<Write, ParseError> {
    let write: p::WriteIn = c.fixed()?;
    c.range(write.offset, u64::from(write.size))?;
    Ok(Write {
        offset: write.offset,
        data: c.bytes(write.size)?,
        handle: write.fh,
        flags: write.flags,
        write_back: write.write_flags & p::WRITE_CACHE != 0,
        from_cache: write.write_flags & p::WRITE_LOCKOWNER == 0,
        kill_privileges: write.write_flags & p::WRITE_KILL_SUIDGID != 0,
    })
}

fn get_xattr(c: &mut Cursor<'_>) -> Result<Query, ParseError> {
    let get: p::GetxattrIn = c.fixed()?;
    Ok(Query::GetXattr { name: c.name_of_xattr()?, size: get.size })
}

fn seek(c: &mut Cursor<'_>) -> Result<Query, ParseError> {
    let seek: p::LseekIn = c.fixed()?;
    Ok(Query::Seek { offset: seek.offset, whence: seek.whence })
}

fn read_dir(c: &mut Cursor<'_>, plus: bool) -> Result<Operation, ParseError> {
    let read: p::ReadIn = c.fixed()?;
    Ok(Operation::ReadDir { offset: read.offset, size: read.size, plus })
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

fn symlink(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let (name, target) = (c.new_name()?, c.string()?);
    if target.is_empty() || target.len() as usize > p::LINK_BYTES_MAX {
        return Err(c.bad("a target that is empty or longer than 4095 bytes"));
    }
    Ok(Change::Symlink { name, target })
}

fn make_node(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let node: p::MknodIn = c.fixed()?;
    Ok(Change::MakeNode { name: c.new_name()?, mode: node.mode, umask: node.umask, device: node.rdev })
}

fn make_dir(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let dir: p::MkdirIn = c.fixed()?;
    Ok(Change::MakeDir { name: c.new_name()?, mode: dir.mode, umask: dir.umask })
}

fn rename(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let new_parent = c.fixed::<p::RenameIn>()?.newdir;
    Ok(Change::Rename { name: c.new_name()?, new_parent, new_name: c.new_name()?, flags: 0 })
}

fn rename_with_flags(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let p::Rename2In { newdir: new_parent, flags, .. } = c.fixed()?;
    Ok(Change::Rename { name: c.new_name()?, new_parent, new_name: c.new_name()?, flags })
}

fn link(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let link: p::LinkIn = c.fixed()?;
    Ok(Change::Link { ino: link.oldnodeid, new_name: c.new_name()? })
}

fn set_xattr(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    // The longer structure: a kernel without SETXATTR_EXT is refused at INIT.
    let set: p::SetxattrIn = c.fixed()?;
    if set.size > p::XATTR_BYTES_MAX {
        return Err(c.bad("a value of more than 64 KiB"));
    }
    let name = c.name_of_xattr()?;
    let kill_sgid = set.setxattr_flags & p::SETXATTR_ACL_KILL_SGID != 0;
    Ok(Change::SetXattr { name, value: c.bytes(set.size)?, flags: set.flags, kill_sgid })
}

fn allocate(c: &mut Cursor<'_>) -> Result<Change, ParseError> {
    let allocate: p::FallocateIn = c.fixed()?;
    c.range(allocate.offset, allocate.length)?;
    Ok(Change::Allocate { offset: allocate.offset, len: allocate.length, mode: allocate.mode })
}

fn copy_range(c: &mut Cursor<'_>, wide: bool) -> Result<Change, ParseError> {
    let copy: p::CopyFileRangeIn = c.fixed()?;
    c.range(copy.off_in, copy.len)?;
    c.range(copy.off_out, copy.len)?;
    Ok(Change::CopyFileRange {
        offset_in: copy.off_in,
        ino_out: copy.nodeid_out,
        offset_out: copy.off_out,
        len: copy.len,
        flags: copy.flags,
        wide,
    })
}

fn create(c: &mut Cursor<'_>) -> Result<Create, ParseError> {
    let p::CreateIn { flags, mode, umask, .. } = c.fixed()?;
    Ok(Create::Named { name: c.new_name()?, flags, mode, umask })
}

fn temporary(c: &mut Cursor<'_>) -> Result<Create, ParseError> {
    let p::CreateIn { flags, mode, umask, .. } = c.fixed()?;
    Ok(Create::Temporary { flags, mode, umask })
}

fn open(c: &mut Cursor<'_>) -> Result<Operation, ParseError> {
    let open: p::OpenIn = c.fixed()?;
    Ok(Operation::Open { flags: open.flags, kill_privileges: open.open_flags & p::OPEN_KILL_SUIDGID != 0 })
}

fn sync(c: &mut Cursor<'_>) -> Result<Operation, ParseError> {
    let sync: p::FsyncIn = c.fixed()?;
    Ok(Operation::Sync { data_only: sync.fsync_flags & p::FSYNC_FDATASYNC != 0 })
}

fn batch_forget(c: &mut Cursor<'_>) -> Result<Span, ParseError> {
    let batch: p::BatchForgetIn = c.fixed()?;
    c.list(batch.count, size_of::<p::ForgetOne>())
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
