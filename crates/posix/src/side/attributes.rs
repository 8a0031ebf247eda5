//! Makes calls on permissions, owners, times and extended attributes.

use rustix::fs::{self, AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use super::{Outcome, Side};
use crate::op::{Op, Target, Time};

impl Side {
    pub(super) fn attributes(&self, op: &Op) -> Result<Outcome> {
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

    pub(super) fn xattr(&self, op: &Op) -> Result<Outcome> {
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
}

fn times(atime: Time, mtime: Time) -> Timestamps {
    let one = |time: Time| match time {
        Time::Now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Time::At(tv_sec, tv_nsec) => Timespec { tv_sec, tv_nsec },
    };
    Timestamps { last_access: one(atime), last_modification: one(mtime) }
}
