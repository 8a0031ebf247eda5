//! Page-aligned buffers straight from the kernel: pages that were never touched take no memory, and pages that large
//! requests have touched are given back.
//!
//! All mounts of a process have too many buffers to let them keep all their memory: each has room for 1 MiB, and there
//! may be hundreds. So every buffer knows how far it was used, and together they keep at most [`KEPT_BYTES`] beyond the
//! small part that each may keep.

use crate::limits::{KEPT_BYTES, KEPT_SMALL_BYTES, PAGE_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{io, ptr::NonNull, slice};

/// Number of bytes of all buffers of this process that were touched and not given back.
static RESIDENT: AtomicU64 = AtomicU64::new(0);

/// Returns the memory that the requests' buffers of all mounts of this process take, in bytes.
pub fn request_bytes() -> u64 {
    RESIDENT.load(Relaxed)
}

/// Returns true if the buffers of this process keep too much memory.
pub(crate) fn is_too_much_kept() -> bool {
    request_bytes() > KEPT_BYTES
}

/// A zeroed, page-aligned range of memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// Number of bytes from the start on, in whole pages, that may have been touched.
    touched: usize,
    /// True if all of the memory must be resident at any time.
    populated: bool,
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
        let buffer = Self { start, len, touched: 0, populated: false };
        // A huge page would make memory resident that no request has touched. The advice is a wish: kernels without
        // huge pages refuse it.
        // SAFETY: the range is the mapping just made; the advice changes none of its contents.
        let _ = unsafe { madvise(buffer.start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        Ok(buffer)
    }

    /// As [`Buffer::new`], with all of the memory resident: the kernel never has to find a page for it, which would
    /// fail in a process that is being killed, and the request with it.
    pub(crate) fn populated(len: usize) -> io::Result<Self> {
        let mut buffer = Self::new(len)?;
        // SAFETY: the range is the mapping just made; the advice changes none of its contents.
        unsafe { madvise(buffer.start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }?;
        buffer.populated = true;
        buffer.touch(len);
        Ok(buffer)
    }

    /// Returns the start of the buffer, to be handed to the kernel.
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

    /// Returns true if all of the memory is resident.
    pub(crate) fn is_populated(&self) -> bool {
        self.populated
    }

    /// Notes that the first `len` bytes are or were in use.
    pub(crate) fn touch(&mut self, len: usize) {
        let pages = len.min(self.len).next_multiple_of(PAGE_BYTES);
        if pages > self.touched {
            RESIDENT.fetch_add((pages - self.touched) as u64, Relaxed);
            self.touched = pages;
        }
    }

    /// Returns true if the buffer keeps more than the small part that each buffer may keep.
    pub(crate) fn keeps_much(&self) -> bool {
        !self.populated && self.touched > KEPT_SMALL_BYTES
    }

    /// Returns true if [`Buffer::give_back`] of all but the first `keep` bytes would give anything back.
    pub(crate) fn keeps_more_than(&self, keep: usize) -> bool {
        !self.populated && self.touched > keep
    }

    /// Gives the memory behind the first `keep` bytes (whole pages) back to the system: it reads as zeros from now on.
    /// Does nothing to a populated buffer.
    pub(crate) fn give_back(&mut self, keep: usize) {
        let keep = keep.next_multiple_of(PAGE_BYTES);
        if self.populated || self.touched <= keep {
            return;
        }
        let len = self.touched - keep;
        // SAFETY: the range lies within the mapping: `keep < touched`, and `touched` is at most `len` rounded up to
        // pages, of which a mapping has whole ones; `&mut self` says that nobody else of this process uses it.
        let given = unsafe {
            let from = self.start.as_ptr().add(keep);
            madvise(from.cast(), len, Advice::LinuxDontNeed)
        };
        match given {
            Ok(()) => {
                RESIDENT.fetch_sub(len as u64, Relaxed);
                self.touched = keep;
            }
            Err(errno) => tracing::warn!(%errno, len, "memory of a request's buffer cannot be given back"),
        }
    }

    /// Gives memory back, if this buffer keeps much and all buffers together keep too much. For a buffer that waits for
    /// its next request.
    pub(crate) fn settle(&mut self) {
        if self.keeps_much() && is_too_much_kept() {
            self.give_back(KEPT_SMALL_BYTES);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        RESIDENT.fetch_sub(self.touched as u64, Relaxed);
        // SAFETY: start and len are those of the mapping, to which no reference remains.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of pages of the buffer that are in memory, as the kernel tells.
    fn resident_pages(buffer: &Buffer) -> usize {
        let mut pages = vec![0u8; buffer.len.div_ceil(PAGE_BYTES)];
        // SAFETY: the range is the buffer's own mapping, and the vector has a byte for each of its pages.
        let told = unsafe { libc::mincore(buffer.as_mut_ptr().cast(), buffer.len, pages.as_mut_ptr()) };
        assert_eq!(told, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn what_was_touched_is_given_back() {
        let mut buffer = Buffer::new(64 * PAGE_BYTES).unwrap();
        assert_eq!(resident_pages(&buffer), 0);
        buffer.as_mut_slice().fill(7);
        buffer.touch(64 * PAGE_BYTES);
        assert_eq!(resident_pages(&buffer), 64);
        assert!(buffer.keeps_much() && buffer.keeps_more_than(PAGE_BYTES));
        buffer.give_back(2 * PAGE_BYTES);
        assert_eq!(resident_pages(&buffer), 2);
        assert!(!buffer.keeps_much() && !buffer.keeps_more_than(2 * PAGE_BYTES));
        assert_eq!((buffer.as_slice()[2 * PAGE_BYTES - 1], buffer.as_slice()[2 * PAGE_BYTES]), (7, 0));
    }

    #[test]
    fn populated_buffers_stay_as_they_are() {
        let mut buffer = Buffer::populated(16 * PAGE_BYTES).unwrap();
        buffer.give_back(0);
        assert_eq!(resident_pages(&buffer), 16);
    }
}
