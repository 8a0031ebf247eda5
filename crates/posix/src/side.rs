//! Holds one of the two trees, with its open files and mappings, and makes the calls on it.

mod attributes;
mod contents;
mod mapping;
mod outcome;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::{self, Access, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::{Errno, Result};

use crate::observe::{View, some, view};
use crate::op::{MAPS, Op, PEOPLE, Path, SLOTS, Step, Target};
use crate::scene;
use mapping::Mapping;
pub use outcome::Outcome;

struct Open {
    fd: OwnedFd,
    flags: i32,
}

/// A tree with the files that are open in it.
pub struct Side {
    /// The history's directory.
    pub dir: PathBuf,
    /// Directory some levels above it, which contains it, since paths of histories have `..`.
    pub top: PathBuf,
    root: OwnedFd,
    slots: [Option<Open>; SLOTS],
    maps: [Option<Mapping>; MAPS],
}

/// Gives the calling thread the identity of a person, until [`become_root`] takes it back.
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
    /// Makes a new directory `name` below `parent`, which is open to everybody.
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

    /// Returns the absolute path, for calls that know no base.
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

    /// Returns the attributes of a target, as root sees them, or `None` if there is no such file.
    pub fn observe(&self, target: &Target) -> Option<View> {
        match target {
            Target::Path(path, follow) => view(self.base(path), &path.text, *follow, false).ok(),
            Target::Slot(slot) => view(self.slot(*slot)?, b"", true, false).ok(),
        }
    }

    /// Sets permissions, as root.
    ///
    /// # Errors
    /// Those of chmod(2).
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

    /// Does a step as its person.
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
            Op::StatSome { target, mask, flags } => {
                let flags = AtFlags::from_bits_retain(flags.cast_unsigned());
                match target {
                    Target::Path(path, follow) => {
                        let links = if *follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                        some(self.base(path), &path.text, flags | links, *mask)
                    }
                    Target::Slot(slot) => {
                        let Some(fd) = self.slot(*slot) else { return Ok(Outcome::Skipped) };
                        some(fd, b"", flags | AtFlags::EMPTY_PATH, *mask)
                    }
                }
                .map(Outcome::Told)
            }
            Op::List { path } => {
                let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
                let fd = fs::openat(self.base(path), &path.text[..], flags, Mode::empty())?;
                list(fd.as_fd()).map(Outcome::Names)
            }
            _ => Ok(Outcome::Skipped),
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Returns the names in a directory with their kinds, sorted.
///
/// # Errors
/// Those of getdents64(2).
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
