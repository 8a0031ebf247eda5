//! Carries out calls that change names, attributes or ranges of data, or make a file.

use super::convert::{allocate_mode, attr_out, entry_out, opened, rename_mode, set_attr, xattr_mode};
use super::{answer, done, failed};
use crate::coherence::Coherence;
use crate::operation::{Change, Create, SetAttributes};
use crate::protocol as p;
use crate::{Errno, Request};
use pagefold_fs::{Attr, Caller, Entry, FileKind, Fs, FsError, Ino, OpenFlags, SetAttr};

/// Carries out a change.
pub(super) fn apply(fs: &Fs, request: Request, change: Change) {
    let ino = Ino(request.ino());
    let caller = |umask: u32| Caller { uid: request.uid(), gid: request.gid(), umask };
    let bytes = |span| request.argument(span);
    match change {
        Change::Attributes(set) => {
            let nothing = set == SetAttributes::default();
            let uid = request.uid();
            let result = if nothing { set_nothing(fs, ino, uid) } else { fs.setattr(ino, &set_attr(&set)) };
            answer(request, result, attr_out);
        }
        Change::Symlink { name, target } => {
            let made = fs.symlink(ino, bytes(name), bytes(target), &caller(0));
            entry(request, made);
        }
        Change::MakeNode { name, mode, umask, device } => {
            let made = FileKind::from_mode(mode)
                .ok_or(FsError::Invalid("a kind of file that mknod(2) does not know"))
                .and_then(|kind| fs.mknod(ino, bytes(name), kind, mode & 0o7777, device, &caller(umask)));
            entry(request, made);
        }
        Change::MakeDir { name, mode, umask } => {
            let made = fs.mkdir(ino, bytes(name), mode & 0o7777, &caller(umask));
            entry(request, made);
        }
        Change::Unlink { name } => {
            let result = fs.unlink(ino, bytes(name));
            done(request, result);
        }
        Change::RemoveDir { name } => {
            let result = fs.rmdir(ino, bytes(name));
            done(request, result);
        }
        Change::Rename { name, new_parent, new_name, flags } => {
            let result = rename_mode(flags)
                .ok_or(FsError::Invalid("rename flags"))
                .and_then(|mode| fs.rename(ino, bytes(name), Ino(new_parent), bytes(new_name), mode));
            done(request, result);
        }
        Change::Link { ino: target, new_name } => {
            let made = fs.link(Ino(target), ino, bytes(new_name));
            entry(request, made);
        }
        Change::SetXattr { name, value, flags, kill_sgid } => {
            let result = xattr_mode(flags)
                .ok_or(FsError::Invalid("flags of setxattr(2)"))
                .and_then(|mode| fs.setxattr(ino, bytes(name), bytes(value), mode, kill_sgid));
            done(request, result);
        }
        Change::RemoveXattr { name } => {
            let result = fs.removexattr(ino, bytes(name));
            done(request, result);
        }
        Change::Allocate { offset, len, mode } => {
            let result = allocate_mode(mode)
                .ok_or(FsError::Unsupported("this mode of fallocate(2)"))
                .and_then(|mode| fs.fallocate(ino, offset, len, mode, kills(&request)));
            done(request, result);
        }
        Change::CopyFileRange { flags, .. } if flags != 0 => request.error(Errno::INVAL),
        Change::CopyFileRange { offset_in, ino_out, offset_out, len, wide: false, .. } => {
            let (len, kills) = (len.min(u64::from(u32::MAX)), kills(&request));
            let copied = fs.copy_file_range(ino, offset_in, Ino(ino_out), offset_out, len, kills);
            answer(request, copied, |&copied| p::WriteOut { size: copied as u32, padding: 0 });
        }
        Change::CopyFileRange { offset_in, ino_out, offset_out, len, wide: true, .. } => {
            let copied = fs.copy_file_range(ino, offset_in, Ino(ino_out), offset_out, len, kills(&request));
            answer(request, copied, |&bytes_copied| p::CopyFileRangeOut { bytes_copied });
        }
    }
}

/// Returns true if a change of contents takes set-id bits away. For writes and truncations the kernel tells whether the
/// caller may keep them; for fallocate and copy_file_range it does not.
fn kills(request: &Request) -> bool {
    request.uid() != 0
}

/// Carries out a SETATTR that sets nothing. It is a chown(2) with neither user nor group, or announces a change of
/// contents by somebody who may not keep set-id bits. The kernel does not tell which, and has not asked whether the
/// caller owns the file: so for others than the owner and root nothing is taken away. The change of contents that
/// follows an announcement does that itself.
fn set_nothing(fs: &Fs, ino: Ino, uid: u32) -> Result<Attr, FsError> {
    let attr = fs.getattr(ino)?;
    if uid == 0 || uid == attr.uid { fs.setattr(ino, &SetAttr::default()) } else { Ok(attr) }
}

pub(super) fn entry(request: Request, found: Result<Entry, FsError>) {
    answer(request, found, entry_out);
}

/// Makes a file and opens it.
pub(super) fn create(fs: &Fs, coherence: &Coherence, request: Request, create: Create) {
    let ino = Ino(request.ino());
    let caller = |umask: u32| Caller { uid: request.uid(), gid: request.gid(), umask };
    let (made, flags) = match create {
        Create::Named { name, flags, mode, umask } => {
            let truncate = has(flags, libc::O_TRUNC);
            let how = OpenFlags { truncate, exclusive: has(flags, libc::O_EXCL), kill_suid: truncate };
            (fs.create(ino, request.argument(name), mode & 0o7777, how, &caller(umask)), flags)
        }
        Create::Temporary { flags, mode, umask } => (fs.tmpfile(ino, mode & 0o7777, &caller(umask)), flags),
    };
    made_open(coherence, request, made, flags);
}

/// Returns true if the flags of open(2) have this one.
pub(super) fn has(flags: u32, flag: i32) -> bool {
    flags & flag.cast_unsigned() != 0
}

/// Answers with a file that was made and is open.
pub(super) fn made_open(coherence: &Coherence, request: Request, made: Result<Entry, FsError>, flags: u32) {
    match made {
        Ok(entry) => {
            note_direct(coherence, entry.ino, flags);
            request.answer_pair(&entry_out(&entry), &opened(flags));
        }
        Err(error) => failed(request, &error),
    }
}

/// Notes a handle opened for direct I/O, whose use makes the kernel drop pages, before anybody has the handle.
pub(super) fn note_direct(coherence: &Coherence, ino: Ino, flags: u32) {
    if has(flags, libc::O_DIRECT) {
        coherence.direct.opened(ino.0);
    }
}
