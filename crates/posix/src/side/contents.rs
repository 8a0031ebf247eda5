//! Makes calls on the contents, lengths and holes of open files.

use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{self, FallocateFlags, FileType, FlockOperation, SeekFrom};
use rustix::io::{Errno, Result};

use super::{Outcome, Side, last_errno};
use crate::op::{Op, Target};

/// Bytes to which direct reads and writes are aligned on both sides.
const DIRECT_BYTES: u64 = 4096;

impl Side {
    /// Makes a call on one open file.
    pub(super) fn file(&self, op: &Op) -> Result<Outcome> {
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

    /// Returns true if the open file takes aligned requests only.
    fn is_direct(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|open| open.flags & libc::O_DIRECT != 0)
    }

    pub(super) fn read(&self, slot: usize, at: Option<u64>, len: usize) -> Result<Outcome> {
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

    pub(super) fn write(&self, slot: usize, at: Option<u64>, data: &[u8], pieces: usize) -> Result<Outcome> {
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

    /// Calls copy_file_range until all is copied, since the number of bytes that one call copies is the file system's
    /// own affair.
    pub(super) fn copy(
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
}

/// Returns a buffer with `len` bytes from a page's start on, and the index of that start.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0; len + DIRECT_BYTES as usize];
    let start = buffer.as_ptr().align_offset(DIRECT_BYTES as usize);
    (buffer, start)
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

/// Seeks data or a hole. The bounds of holes are a file system's own affair, so the result only has to lie within the
/// file; contents are compared at the end.
fn seek_data(fd: BorrowedFd<'_>, to: SeekFrom, offset: i64) -> Result<Outcome> {
    let size = fs::fstat(fd)?.st_size;
    let found = match fs::seek(fd, to) {
        // There is no data from there on: the rest of the file is a hole.
        Err(Errno::NXIO) if (0..size).contains(&offset) => size.cast_unsigned(),
        found => found?,
    };
    fs::seek(fd, SeekFrom::Start(0))?;
    let within = (offset..=size).contains(&found.cast_signed());
    Ok(if within { Outcome::Done } else { Outcome::Number(found) })
}
