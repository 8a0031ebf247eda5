//! One of the two trees: its open files and mappings, and the calls on it.

use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::{
    self, Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags,
    SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::observe::{View, view};
use crate::op::{MAPS, Op, PEOPLE, Path, SLOTS, Step, Target, Time};
use crate::scene;

/// Bytes to which direct reads and writes are aligned on both sides.
const DIRECT_BYTES: u64 = 4096;

/// What a call gave.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done: there is no such open file, or it is not for this.
    Skipped,
    /// Success.
    Done,
    /// A count or an offset.
    Number(u64),
    /// Data.
    Bytes(Vec<u8>),
    /// Names and the kinds that the listing tells, sorted.
    Names(Vec<(Vec<u8>, String)>),
    /// Attributes.
    View(Box<View>),
    /// Several results, or what a scene saw.
    Told(String),
    /// errno.
    Failed(Errno),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Skipped => f.write_str("skipped"),
            Self::Done => f.write_str("done"),
            Self::Number(n) => write!(f, "{n}"),
            Self::Bytes(bytes) if bytes.len() > 48 => {
                write!(f, "{} bytes {}…", bytes.len(), bytes[..32].escape_ascii())
            }
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Names(names) => {
                let mut list = f.debug_list();
                for (name, kind) in names {
                    list.entry(&format!("{} {kind}", name.escape_ascii()));
                }
                list.finish()
            }
            Self::View(view) => view.fmt(f),
            Self::Told(text) => f.write_str(text),
            Self::Failed(errno) => write!(f, "{errno:?}"),
        }
    }
}

struct Open {
    fd: OwnedFd,
    flags: i32,
}

struct Mapping {
    start: *mut u8,
    len: usize,
    file: OwnedFd,
    offset: u64,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this start and length, and nothing refers to it: it is only read and written
        // through the kernel.
        let _gone_with_the_process = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}

/// A tree with what is open in it.
pub struct Side {
    /// The history's directory.
    pub dir: PathBuf,
    /// What holds it, some levels above: histories have `..`.
    pub top: PathBuf,
    root: OwnedFd,
    slots: [Option<Open>; SLOTS],
    maps: [Option<Mapping>; MAPS],
}

/// Makes the calling thread a person; root again by [`become_root`].
fn become_person(who: usize) -> Result<()> {
    let person = PEOPLE[who];
    if who == 0 {
        return Ok(());
    }
    let groups: Vec<Gid> = person.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(None, Some(Gid::from_raw(person.gid)), None)?;
    rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(person.uid)), None)
}

fn become_root() -> Result<()> {
    rustix::thread::set_thread_res_uid(None, Some(Uid::ROOT), None)?;
    rustix::thread::set_thread_res_gid(None, Some(Gid::ROOT), None)?;
    rustix::thread::set_thread_groups(&[])
}

impl Side {
    /// A new directory `name` below `parent`, open to everybody.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(parent: &std::path::Path, name: &str) -> anyhow::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let top = parent.join(name);
        let dir = top.join("1/2/3/4/5/6/7/8");
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777))?;
        let root = fs::open(&dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { dir, top, root, slots: Default::default(), maps: Default::default() })
    }

    /// Closes everything.
    pub fn close(&mut self) {
        self.maps = Default::default();
        self.slots = Default::default();
    }

    fn base(&self, path: &Path) -> BorrowedFd<'_> {
        path.base.and_then(|slot| self.slots[slot].as_ref()).map_or(self.root.as_fd(), |open| open.fd.as_fd())
    }

    /// For calls that know no base.
    fn absolute(&self, path: &Path) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt;
        if path.text.is_empty() {
            return Vec::new();
        }
        [self.dir.as_os_str().as_bytes(), b"/", &path.text].concat()
    }

    fn slot(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        self.slots[slot].as_ref().map(|open| open.fd.as_fd())
    }

    /// Attributes of what a step is about, seen by root. `None` where there is nothing.
    pub fn observe(&self, target: &Target) -> Option<View> {
        match target {
            Target::Path(path, follow) => view(self.base(path), &path.text, *follow, false).ok(),
            Target::Slot(slot) => view(self.slot(*slot)?, b"", true, false).ok(),
        }
    }

    /// Sets permissions, as root.
    ///
    /// # Errors
    /// What chmod(2) says.
    pub fn set_mode(&self, target: &Target, mode: u16) -> Result<()> {
        let mode = Mode::from_raw_mode(u32::from(mode));
        match target {
            Target::Path(path, _) => fs::chmodat(self.base(path), &path.text[..], mode, AtFlags::empty()),
            Target::Slot(slot) => {
                let fd = self.slot(*slot).ok_or(Errno::BADF)?;
                fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)
            }
        }
    }

    /// Does what the step says, as who it says.
    ///
    /// # Errors
    /// When the caller's identity cannot be changed; errors of the call itself are outcomes.
    pub fn execute(&mut self, step: &Step) -> anyhow::Result<Outcome> {
        become_person(step.who).context("take an identity")?;
        let result = self.call(&step.op);
        if step.who != 0 {
            become_root().context("return to root")?;
        }
        Ok(match result {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Failed(errno),
        })
    }

    fn call(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Open { slot, path, flags, mode } => {
                let how = OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC;
                let fd = fs::openat(self.base(path), &path.text[..], how, Mode::from_bits_retain(*mode))?;
                self.slots[*slot] = Some(Open { fd, flags: *flags });
                Ok(Outcome::Done)
            }
            Op::Close { slot } => Ok(self.slots[*slot].take().map_or(Outcome::Skipped, |_| Outcome::Done)),
            Op::Read { slot, at, len } => self.read(*slot, *at, *len),
            Op::Write { slot, at, data, pieces } => self.write(*slot, *at, &data.bytes(), *pieces),
            Op::Copy { from, to, offset_in, offset_out, len } => {
                self.copy(*from, *to, *offset_in, *offset_out, *len)
            }
            Op::Map { .. }
            | Op::MapRead { .. }
            | Op::MapWrite { .. }
            | Op::MapSync { .. }
            | Op::Unmap { .. } => self.mapping(op),
            Op::Seek { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::Sync { .. }
            | Op::Lock { .. } => self.file(op),
            Op::Mode { .. } | Op::Owner { .. } | Op::Times { .. } => self.attributes(op),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
                self.xattr(op)
            }
            Op::Umask { mask } => {
                rustix::process::umask(Mode::from_bits_retain(*mask));
                Ok(Outcome::Done)
            }
            Op::ListWhile { names, read, seed } => {
                scene::list_while(self.root.as_fd(), *names, *read, *seed).map(Outcome::Told)
            }
            Op::Busy => scene::busy(&self.dir).map(Outcome::Told),
            _ => self.names(op),
        }
    }

    /// Calls on names.
    fn names(&self, op: &Op) -> Result<Outcome> {
        let done = |()| Outcome::Done;
        match op {
            Op::MakeDir { path, mode } => {
                fs::mkdirat(self.base(path), &path.text[..], Mode::from_bits_retain(*mode)).map(done)
            }
            Op::RemoveDir { path } => {
                fs::unlinkat(self.base(path), &path.text[..], AtFlags::REMOVEDIR).map(done)
            }
            Op::Unlink { path } => fs::unlinkat(self.base(path), &path.text[..], AtFlags::empty()).map(done),
            Op::Symlink { text, path } => {
                fs::symlinkat(&text.0[..], self.base(path), &path.text[..]).map(done)
            }
            Op::ReadLink { path } => fs::readlinkat(self.base(path), &path.text[..], Vec::new())
                .map(|text| Outcome::Bytes(text.into_bytes())),
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                fs::linkat(self.base(from), &from.text[..], self.base(to), &to.text[..], flags).map(done)
            }
            Op::LinkSlot { slot, to } => {
                let Some(fd) = self.slot(*slot) else { return Ok(Outcome::Skipped) };
                let from = format!("/proc/self/fd/{}", fd.as_raw_fd());
                fs::linkat(fs::CWD, from, self.base(to), &to.text[..], AtFlags::SYMLINK_FOLLOW).map(done)
            }
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                fs::renameat_with(self.base(from), &from.text[..], self.base(to), &to.text[..], flags)
                    .map(done)
            }
            Op::MakeNode { path, mode, device } => {
                let kind = FileType::from_raw_mode(*mode);
                let mode = Mode::from_raw_mode(*mode);
                fs::mknodat(self.base(path), &path.text[..], kind, mode, *device).map(done)
            }
            Op::Access { path, mode, flags } => {
                let mode = Access::from_bits_retain(mode.cast_unsigned());
                let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
                fs::accessat(self.base(path), &path.text[..], mode, flags).map(done)
            }
            Op::Stat { target } => match target {
                Target::Path(path, follow) => view(self.base(path), &path.text, *follow, false),
                Target::Slot(slot) => {
                    let Some(fd) = self.slot(*slot) else { return Ok(Outcome::Skipped) };
                    view(fd, b"", true, false)
                }
            }
            .map(|view| Outcome::View(Box::new(view))),
            Op::List { path } => {
                let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
                let fd = fs::openat(self.base(path), &path.text[..], flags, Mode::empty())?;
                list(fd.as_fd()).map(Outcome::Names)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    /// Calls on one open file.
    fn file(&self, op: &Op) -> Result<Outcome> {
        if let Op::Truncate { target: Target::Path(path, _), len } = op {
            let path = CString::new(self.absolute(path)).map_err(|_| Errno::INVAL)?;
            // SAFETY: `path` is a string that ends in NUL and lives during the call.
            let result = unsafe { libc::truncate64(path.as_ptr(), *len) };
            return if result == 0 { Ok(Outcome::Done) } else { Err(last_errno()) };
        }
        let (Op::Seek { slot, .. }
        | Op::Truncate { target: Target::Slot(slot), .. }
        | Op::Allocate { slot, .. }
        | Op::Sync { slot, .. }
        | Op::Lock { slot, .. }) = op
        else {
            return Ok(Outcome::Skipped);
        };
        let Some(fd) = self.slot(*slot) else { return Ok(Outcome::Skipped) };
        match *op {
            Op::Seek { whence, offset, .. } => seek(fd, whence, offset),
            Op::Truncate { len, .. } => {
                // SAFETY: a descriptor of ours and a number.
                let result = unsafe { libc::ftruncate64(fd.as_raw_fd(), len) };
                if result == 0 { Ok(Outcome::Done) } else { Err(last_errno()) }
            }
            Op::Allocate { mode, offset, len, .. } => {
                let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
                fs::fallocate(fd, mode, offset.cast_unsigned(), len.cast_unsigned()).map(|()| Outcome::Done)
            }
            Op::Sync { data_only, .. } => {
                let result = if data_only { fs::fdatasync(fd) } else { fs::fsync(fd) };
                result.map(|()| Outcome::Done)
            }
            Op::Lock { how, .. } => {
                let how = match how {
                    libc::LOCK_SH => FlockOperation::NonBlockingLockShared,
                    libc::LOCK_EX => FlockOperation::NonBlockingLockExclusive,
                    _ => FlockOperation::NonBlockingUnlock,
                };
                fs::flock(fd, how).map(|()| Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    fn attributes(&self, op: &Op) -> Result<Outcome> {
        let done = |()| Outcome::Done;
        let owner = |id: u32| (id != u32::MAX).then_some(id);
        let links = |follow: bool| if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let (Op::Mode { target, .. } | Op::Owner { target, .. } | Op::Times { target, .. }) = op else {
            return Ok(Outcome::Skipped);
        };
        match target {
            Target::Path(path, follow) => {
                let (base, text) = (self.base(path), &path.text[..]);
                match *op {
                    Op::Mode { mode, .. } => {
                        fs::chmodat(base, text, Mode::from_bits_retain(mode), AtFlags::empty()).map(done)
                    }
                    Op::Owner { uid, gid, .. } => {
                        let (uid, gid) = (owner(uid).map(Uid::from_raw), owner(gid).map(Gid::from_raw));
                        fs::chownat(base, text, uid, gid, links(*follow)).map(done)
                    }
                    Op::Times { atime, mtime, .. } => {
                        fs::utimensat(base, text, &times(atime, mtime), links(*follow)).map(done)
                    }
                    _ => Ok(Outcome::Skipped),
                }
            }
            Target::Slot(slot) => {
                let Some(fd) = self.slot(*slot) else { return Ok(Outcome::Skipped) };
                match *op {
                    Op::Mode { mode, .. } => fs::fchmod(fd, Mode::from_bits_retain(mode)).map(done),
                    Op::Owner { uid, gid, .. } => {
                        fs::fchown(fd, owner(uid).map(Uid::from_raw), owner(gid).map(Gid::from_raw)).map(done)
                    }
                    Op::Times { atime, mtime, .. } => fs::futimens(fd, &times(atime, mtime)).map(done),
                    _ => Ok(Outcome::Skipped),
                }
            }
        }
    }

    fn xattr(&self, op: &Op) -> Result<Outcome> {
        let done = |()| Outcome::Done;
        let (Op::SetXattr { target, .. }
        | Op::GetXattr { target, .. }
        | Op::ListXattr { target, .. }
        | Op::RemoveXattr { target, .. }) = op
        else {
            return Ok(Outcome::Skipped);
        };
        let path = match target {
            Target::Path(path, _) => self.absolute(path),
            Target::Slot(slot) if self.slots[*slot].is_none() => return Ok(Outcome::Skipped),
            Target::Slot(_) => Vec::new(),
        };
        let path = &path[..];
        let mut buffer = vec![
            0;
            match op {
                Op::GetXattr { size, .. } | Op::ListXattr { size, .. } => *size,
                _ => 0,
            }
        ];
        let got = |buffer: &[u8], len: usize| match buffer.len() {
            0 => Outcome::Number(len as u64),
            _ => Outcome::Bytes(buffer[..len].to_vec()),
        };
        match (op, target) {
            (Op::SetXattr { name, value, flags, .. }, target) => {
                let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
                match target {
                    Target::Path(_, true) => fs::setxattr(path, &name.0[..], &value.0, flags),
                    Target::Path(_, false) => fs::lsetxattr(path, &name.0[..], &value.0, flags),
                    Target::Slot(slot) => {
                        fs::fsetxattr(self.slot(*slot).ok_or(Errno::BADF)?, &name.0[..], &value.0, flags)
                    }
                }
                .map(done)
            }
            (Op::RemoveXattr { name, .. }, target) => match target {
                Target::Path(_, true) => fs::removexattr(path, &name.0[..]),
                Target::Path(_, false) => fs::lremovexattr(path, &name.0[..]),
                Target::Slot(slot) => fs::fremovexattr(self.slot(*slot).ok_or(Errno::BADF)?, &name.0[..]),
            }
            .map(done),
            (Op::GetXattr { name, .. }, target) => {
                let len = match target {
                    Target::Path(_, true) => fs::getxattr(path, &name.0[..], &mut buffer[..]),
                    Target::Path(_, false) => fs::lgetxattr(path, &name.0[..], &mut buffer[..]),
                    Target::Slot(slot) => {
                        fs::fgetxattr(self.slot(*slot).ok_or(Errno::BADF)?, &name.0[..], &mut buffer[..])
                    }
                }?;
                Ok(got(&buffer, len))
            }
            (_, target) => {
                let len = match target {
                    Target::Path(_, true) => fs::listxattr(path, &mut buffer[..]),
                    Target::Path(_, false) => fs::llistxattr(path, &mut buffer[..]),
                    Target::Slot(slot) => {
                        fs::flistxattr(self.slot(*slot).ok_or(Errno::BADF)?, &mut buffer[..])
                    }
                }?;
                // The order of names is a file system's own affair.
                let mut names: Vec<_> = buffer[..len.min(buffer.len())].split(|&b| b == 0).collect();
                names.sort_unstable();
                Ok(Outcome::Told(format!("{len} bytes: {}", names.join(&b' ').escape_ascii())))
            }
        }
    }

    /// Whether the open file takes aligned requests only.
    fn is_direct(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|open| open.flags & libc::O_DIRECT != 0)
    }

    fn read(&self, slot: usize, at: Option<u64>, len: usize) -> Result<Outcome> {
        let Some(fd) = self.slot(slot) else { return Ok(Outcome::Skipped) };
        if self.is_direct(slot) {
            let Some(at) = at else { return Ok(Outcome::Skipped) };
            let len = len.next_multiple_of(DIRECT_BYTES as usize);
            let (mut buffer, start) = aligned(len);
            let len =
                rustix::io::pread(fd, &mut buffer[start..start + len], at / DIRECT_BYTES * DIRECT_BYTES)?;
            return Ok(Outcome::Bytes(buffer[start..start + len].to_vec()));
        }
        let mut buffer = vec![0; len];
        let len = match at {
            Some(at) => {
                let (front, back) = buffer.split_at_mut(len / 3);
                rustix::io::preadv(fd, &mut [IoSliceMut::new(front), IoSliceMut::new(back)], at)
            }
            None => rustix::io::read(fd, &mut buffer[..]),
        }?;
        buffer.truncate(len);
        Ok(Outcome::Bytes(buffer))
    }

    fn write(&self, slot: usize, at: Option<u64>, data: &[u8], pieces: usize) -> Result<Outcome> {
        let Some(fd) = self.slot(slot) else { return Ok(Outcome::Skipped) };
        let number = |len: usize| Outcome::Number(len as u64);
        if self.is_direct(slot) {
            let appends = self.slots[slot].as_ref().is_some_and(|open| open.flags & libc::O_APPEND != 0);
            let Some(at) = at.filter(|_| !appends) else { return Ok(Outcome::Skipped) };
            let len = data.len().next_multiple_of(DIRECT_BYTES as usize);
            let (mut buffer, start) = aligned(len);
            buffer[start..start + data.len()].copy_from_slice(data);
            let at = at / DIRECT_BYTES * DIRECT_BYTES;
            return rustix::io::pwrite(fd, &buffer[start..start + len], at).map(number);
        }
        if pieces < 2 {
            return match at {
                Some(at) => rustix::io::pwrite(fd, data, at),
                None => rustix::io::write(fd, data),
            }
            .map(number);
        }
        let parts: Vec<IoSlice<'_>> =
            data.chunks(data.len().div_ceil(pieces).max(1)).map(IoSlice::new).collect();
        match at {
            Some(at) => rustix::io::pwritev(fd, &parts, at),
            None => rustix::io::writev(fd, &parts),
        }
        .map(number)
    }

    /// copy_file_range until all is copied: how much one call copies is the file system's own affair.
    fn copy(
        &self,
        from: usize,
        to: usize,
        mut offset_in: u64,
        mut offset_out: u64,
        len: usize,
    ) -> Result<Outcome> {
        if self.is_direct(from) || self.is_direct(to) {
            return Ok(Outcome::Skipped);
        }
        let (Some(from), Some(to)) = (self.slot(from), self.slot(to)) else { return Ok(Outcome::Skipped) };
        let mut copied = 0;
        while copied < len {
            match fs::copy_file_range(from, Some(&mut offset_in), to, Some(&mut offset_out), len - copied) {
                Ok(0) => break,
                Ok(n) => copied += n,
                Err(errno) if copied == 0 => return Err(errno),
                Err(errno) => return Ok(Outcome::Told(format!("{copied}, then {errno:?}"))),
            }
        }
        Ok(Outcome::Number(copied as u64))
    }

    fn mapping(&mut self, op: &Op) -> Result<Outcome> {
        if let Op::Map { map, slot, page, pages, write, shared } = *op {
            let Some(fd) = self.slot(slot) else { return Ok(Outcome::Skipped) };
            let how = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
            let rights = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
            let len = pages * 4096;
            let (file, offset) = (rustix::io::fcntl_dupfd_cloexec(fd, 0)?, page * 4096);
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, how, fd, offset)? };
            self.maps[map] = Some(Mapping { start: start.cast(), len, file, offset });
            return Ok(Outcome::Done);
        }
        if let Op::Unmap { map } = *op {
            return Ok(self.maps[map].take().map_or(Outcome::Skipped, |_| Outcome::Done));
        }
        let (Op::MapRead { map, .. } | Op::MapWrite { map, .. } | Op::MapSync { map }) = *op else {
            return Ok(Outcome::Skipped);
        };
        let Some(mapping) = &self.maps[map] else { return Ok(Outcome::Skipped) };
        match op {
            Op::MapRead { offset, len, .. } => {
                let mut buffer = vec![0; *len];
                let count = through_kernel(mapping, *offset, &mut buffer, false)?;
                buffer.truncate(count);
                Ok(Outcome::Bytes(buffer))
            }
            Op::MapWrite { offset, data, .. } => {
                through_kernel(mapping, *offset, &mut data.bytes(), true).map(|n| Outcome::Number(n as u64))
            }
            _ => {
                // SAFETY: the mapping is ours and has this length.
                unsafe { rustix::mm::msync(mapping.start.cast(), mapping.len, MsyncFlags::SYNC) }
                    .map(|()| Outcome::Done)
            }
        }
    }
}

/// Reads or writes a mapping by a call that fails where a load or store would end the process.
fn through_kernel(mapping: &Mapping, offset: usize, bytes: &mut [u8], write: bool) -> Result<usize> {
    let offset = offset.min(mapping.len);
    // Behind the file's end, to the end of its page, is what nobody promises anything about. Pages beyond are for errors.
    let size = fs::fstat(&mapping.file)?.st_size.cast_unsigned();
    let until = usize::try_from(size.saturating_sub(mapping.offset)).unwrap_or(usize::MAX).min(mapping.len);
    let end = if offset < until { until } else { mapping.len };
    let at_end = offset >= until && offset < until.next_multiple_of(4096);
    let len = if at_end { 0 } else { bytes.len().min(end - offset) };
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: mapping.start.wrapping_add(offset).cast(), iov_len: len };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: `local` is `bytes`; `remote` lies in a mapping that nothing else of this process refers to, and the
    // kernel verifies each of its pages.
    let count = unsafe {
        if write {
            libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
        }
    };
    usize::try_from(count).map_err(|_| last_errno())
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// A buffer with `len` bytes from a page's start on, and where that is.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0; len + DIRECT_BYTES as usize];
    let start = buffer.as_ptr().align_offset(DIRECT_BYTES as usize);
    (buffer, start)
}

fn times(atime: Time, mtime: Time) -> Timestamps {
    let one = |time: Time| match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Time::At(tv_sec, tv_nsec) => Timespec { tv_sec, tv_nsec },
    };
    Timestamps { last_access: one(atime), last_modification: one(mtime) }
}

fn seek(fd: BorrowedFd<'_>, whence: i32, offset: i64) -> Result<Outcome> {
    // A position in a directory is a file system's own affair.
    if fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
        return Ok(Outcome::Skipped);
    }
    let to = match whence {
        libc::SEEK_CUR => SeekFrom::Current(offset),
        libc::SEEK_END => SeekFrom::End(offset),
        libc::SEEK_DATA => SeekFrom::Data(offset.cast_unsigned()),
        libc::SEEK_HOLE => SeekFrom::Hole(offset.cast_unsigned()),
        _ => SeekFrom::Start(offset.cast_unsigned()),
    };
    if matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE) {
        return seek_data(fd, to, offset);
    }
    fs::seek(fd, to).map(Outcome::Number)
}

/// Where holes begin and end is a file system's own affair; what lies in them is compared at the end.
fn seek_data(fd: BorrowedFd<'_>, to: SeekFrom, offset: i64) -> Result<Outcome> {
    let size = fs::fstat(fd)?.st_size;
    let found = match fs::seek(fd, to) {
        // No data from there on: all that remains is a hole.
        Err(Errno::NXIO) if (0..size).contains(&offset) => size.cast_unsigned(),
        found => found?,
    };
    fs::seek(fd, SeekFrom::Start(0))?;
    let within = (offset..=size).contains(&found.cast_signed());
    Ok(if within { Outcome::Done } else { Outcome::Number(found) })
}

/// Names with their kinds, sorted.
///
/// # Errors
/// What getdents64(2) says.
pub fn list(fd: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, String)>> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = fs::RawDir::new(fd, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        names.push((entry.file_name().to_bytes().to_vec(), format!("{:?}", entry.file_type())));
    }
    names.sort_unstable();
    Ok(names)
}
