//! Page-aligned buffers straight from the kernel: pages that were never touched take no memory.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{io, ptr::NonNull, slice};

/// A zeroed, page-aligned range of memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its mapping; nothing about it is bound to a thread.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps `len` bytes (more than zero).
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no memory in use.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { start, len })
    }

    /// As [`Buffer::new`], with all of its memory: the kernel never has to find a page for it, which fails in a process that is
    /// being killed, and the request with it.
    pub(crate) fn populated(len: usize) -> io::Result<Self> {
        let buffer = Self::new(len)?;
        // SAFETY: the range is the mapping just made; the advice changes none of its contents.
        unsafe {
            rustix::mm::madvise(buffer.start.as_ptr().cast(), len, rustix::mm::Advice::LinuxPopulateWrite)
        }?;
        Ok(buffer)
    }

    /// Where it starts; for handing to the kernel.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` initialised (zeroed) bytes and lives as long as `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: start and len are those of the mapping, to which no reference remains.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
