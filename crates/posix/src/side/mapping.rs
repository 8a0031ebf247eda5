//! Makes calls on files that are mapped into memory.

use std::os::fd::OwnedFd;

use rustix::fs;
use rustix::io::Result;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::{Outcome, Side, last_errno};
use crate::op::Op;

pub(super) struct Mapping {
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

impl Side {
    pub(super) fn mapping(&mut self, op: &Op) -> Result<Outcome> {
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

/// Reads or writes a mapping by a call that returns an error where a load or store would end the process. Returns the
/// number of bytes.
fn through_kernel(mapping: &Mapping, offset: usize, bytes: &mut [u8], write: bool) -> Result<usize> {
    let offset = offset.min(mapping.len);
    // From the file's end to the end of its page, nobody promises any content, so that part is left out. Pages beyond
    // it must give errors.
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
