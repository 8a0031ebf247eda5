//! Buffers aligned for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::limits::BLOCK_BYTES;

/// A zero-initialised byte buffer whose start and length are multiples of the block size.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the buffer owns its memory exclusively, like a Vec<u8>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of at least `len_bytes`, rounded up to whole blocks (at least one).
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let len_bytes = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let layout = Self::layout(len_bytes);
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { start, len_bytes }
    }

    fn layout(len_bytes: usize) -> Layout {
        // SAFETY: the alignment is a power of two, and lengths are far below isize::MAX.
        unsafe { Layout::from_size_align_unchecked(len_bytes, BLOCK_BYTES) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len_bytes)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: start is valid for len_bytes initialised bytes for as long as self lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}
