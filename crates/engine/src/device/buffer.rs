//! Buffers that are aligned for direct I/O, and reused.
//!
//! A fresh buffer has to be zeroed, since Rust knows no other sound initial state; at 1 MiB that is 256 page faults,
//! for bytes that the next read overwrites. Dropped buffers therefore wait in a list, and [`AlignedBuf::scratch`] hands
//! them out again as they are: initialised, with arbitrary content. Small buffers wait in a list of their thread. Large
//! ones wait in a list of all threads: dozens of threads that each keep a few would keep more memory than many a cache
//! has.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::BLOCK_BYTES;

/// Size classes kept for reuse: 4 KiB, 8 KiB, ... 4 MiB, a chunk.
const CLASSES: usize = 11;
/// Classes that are kept per thread: up to 64 KiB.
const SMALL_CLASSES: usize = 5;
/// Largest number of bytes kept per small class and thread: 576 KiB per thread in all, since [`CLASS_BUFFERS`] bounds
/// the smallest class further.
const CLASS_BYTES: usize = 128 << 10;
/// Largest number of buffers kept per small class and thread.
const CLASS_BUFFERS: usize = 16;
/// Bytes kept of all large classes, for all threads.
const LARGE_BYTES: usize = 16 << 20;
/// Time after which large buffers that nobody has needed are freed.
const IDLE: Duration = Duration::from_secs(5);

thread_local! {
    static FREE: RefCell<Small> = RefCell::new(Small::default());
}

/// Sum, over all threads, of the most bytes that small buffers of each took while they waited.
static SMALL_BYTES: AtomicU64 = AtomicU64::new(0);

/// Small buffers of a thread that wait to be reused.
#[derive(Default)]
struct Small {
    free: [Vec<Arc<Raw>>; SMALL_CLASSES],
    bytes: usize,
    /// Largest value of `bytes` so far. [`SMALL_BYTES`] is updated only when it grows, since all threads come by here
    /// with each read.
    most: usize,
}

impl Drop for Small {
    fn drop(&mut self) {
        SMALL_BYTES.fetch_sub(self.most as u64, Relaxed);
    }
}

/// Returns the memory of all threads' buffers that wait for the next read, in bytes. For small buffers it is the most
/// that each thread has kept.
pub(crate) fn kept_bytes() -> u64 {
    LARGE.lock().bytes as u64 + SMALL_BYTES.load(Relaxed)
}

static LARGE: Mutex<Large> = Mutex::new(Large::new());

/// Large buffers that wait to be reused.
struct Large {
    free: [Vec<Arc<Raw>>; CLASSES - SMALL_CLASSES],
    bytes: usize,
    /// Least value of `bytes` since idle buffers were last taken out, and that instant.
    least: usize,
    idle_taken: Option<Instant>,
}

impl Large {
    const fn new() -> Self {
        Self { free: [const { Vec::new() }; CLASSES - SMALL_CLASSES], bytes: 0, least: 0, idle_taken: None }
    }

    fn take(&mut self, class: usize) -> Option<Arc<Raw>> {
        let raw = self.free.get_mut(class)?.pop()?;
        self.bytes -= raw.capacity_bytes;
        self.least = self.least.min(self.bytes);
        Some(raw)
    }

    /// Puts a buffer into the list; returns it if there are enough.
    fn put(&mut self, class: usize, raw: Arc<Raw>) -> Option<Arc<Raw>> {
        if self.bytes + raw.capacity_bytes > LARGE_BYTES {
            return Some(raw);
        }
        self.bytes += raw.capacity_bytes;
        self.free[class].push(raw);
        None
    }

    /// Takes out what nobody has needed since the last call: as many bytes as there were at any time, the largest first.
    fn take_idle(&mut self) -> Vec<Arc<Raw>> {
        let mut idle = Vec::new();
        let mut left = self.least;
        for free in self.free.iter_mut().rev() {
            while let Some(raw) = free.pop_if(|raw| raw.capacity_bytes <= left) {
                left -= raw.capacity_bytes;
                self.bytes -= raw.capacity_bytes;
                idle.push(raw);
            }
        }
        self.least = self.bytes;
        idle
    }
}

/// Frees large buffers that nobody has needed for [`IDLE`]. To be called more often than that.
pub(crate) fn free_idle() {
    let mut large = LARGE.lock();
    let now = Instant::now();
    if large.idle_taken.is_none_or(|taken| now.duration_since(taken) >= IDLE) {
        large.idle_taken = Some(now);
        let idle = large.take_idle();
        // They are freed without the lock.
        drop(large);
        drop(idle);
    }
}

/// A byte buffer whose start and length are multiples of the block size.
pub struct AlignedBuf {
    raw: ManuallyDrop<Arc<Raw>>,
    /// Start of `raw`.
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: `start` points into `raw`, which may go to and be read by other threads.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

/// The memory of a buffer, which stays as it is as long as this is there: a buffer that is written to meanwhile gets
/// other memory.
pub(super) struct SharedBytes(
    #[allow(dead_code, reason = "it is kept, and read by the kernel alone")] Arc<Raw>,
);

impl AlignedBuf {
    /// Returns a buffer of zeros of at least `len_bytes`, rounded up to whole blocks (at least one).
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let len_bytes = whole_blocks(len_bytes);
        if let Some(raw) = reuse(len_bytes) {
            let mut buf = Self::of(raw, len_bytes);
            buf.fill(0);
            return buf;
        }
        Self::of(Raw::zeroed(capacity_for(len_bytes)), len_bytes)
    }

    fn of(raw: Arc<Raw>, len_bytes: usize) -> Self {
        let start = raw.start;
        Self { raw: ManuallyDrop::new(raw), start, len_bytes }
    }

    /// Returns a buffer with arbitrary content, for a caller that overwrites all of it (as
    /// [`crate::device::Device::read`] does). The length is as in [`AlignedBuf::zeroed`].
    #[must_use]
    pub fn scratch(len_bytes: usize) -> Self {
        let len_bytes = whole_blocks(len_bytes);
        let raw = reuse(len_bytes).unwrap_or_else(|| Raw::zeroed(capacity_for(len_bytes)));
        Self::of(raw, len_bytes)
    }

    /// Returns the memory for somebody who reads it after this buffer may have been dropped or changed.
    pub(super) fn share(&self) -> SharedBytes {
        SharedBytes(Arc::clone(&self.raw))
    }

    /// Gets memory of its own, with the same content.
    #[cold]
    fn unshare(&mut self) {
        *self = Self::from_bytes(self);
    }

    /// Returns a buffer that holds `bytes`, padded with zeros to whole blocks.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buf = Self::scratch(bytes.len());
        let (head, tail) = buf.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        tail.fill(0);
        buf
    }

    /// Shortens the buffer to `len_bytes`, rounded up to whole blocks (at least one); never lengthens it.
    pub(crate) fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = self.len_bytes.min(whole_blocks(len_bytes));
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: `raw` is taken once, here, and never used again.
        let raw = unsafe { ManuallyDrop::take(&mut self.raw) };
        recycle(raw);
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `raw` owns `capacity_bytes >= len_bytes` initialised bytes for as long as self lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.raw).is_none() {
            self.unshare();
        }
        // SAFETY: as in deref; self is borrowed exclusively, and nobody else has the memory.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len_bytes)
    }
}

/// Owned, aligned, fully initialised memory. It is written only through the one [`AlignedBuf`] that has it alone.
struct Raw {
    start: NonNull<u8>,
    capacity_bytes: usize,
}

// SAFETY: the memory is owned exclusively, like that of a Vec<u8>.
unsafe impl Send for Raw {}
// SAFETY: shared access only reads.
unsafe impl Sync for Raw {}

impl Raw {
    fn zeroed(capacity_bytes: usize) -> Arc<Self> {
        let layout = Self::layout(capacity_bytes);
        // SAFETY: the layout has a non-zero size, since capacities are at least one block.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Arc::new(Self { start, capacity_bytes })
    }

    fn layout(capacity_bytes: usize) -> Layout {
        // A length near isize::MAX cannot be allocated: the process ends as it does for any Vec of that size.
        let refused = Layout::new::<[u8; BLOCK_BYTES]>();
        Layout::from_size_align(capacity_bytes, BLOCK_BYTES).unwrap_or_else(|_| handle_alloc_error(refused))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity_bytes)) }
    }
}

fn whole_blocks(len_bytes: usize) -> usize {
    len_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(usize::MAX)
}

/// Returns the class that holds buffers of `len_bytes`, if such buffers are kept.
fn class_of(len_bytes: usize) -> Option<usize> {
    let class = (len_bytes / BLOCK_BYTES).checked_next_power_of_two()?.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn capacity_for(len_bytes: usize) -> usize {
    class_of(len_bytes).map_or(len_bytes, |class| BLOCK_BYTES << class)
}

fn reuse(len_bytes: usize) -> Option<Arc<Raw>> {
    let class = class_of(len_bytes)?;
    if let Some(class) = class.checked_sub(SMALL_CLASSES) {
        return LARGE.lock().take(class);
    }
    let small = |free: &RefCell<Small>| {
        let mut small = free.borrow_mut();
        let raw = small.free[class].pop()?;
        small.bytes -= raw.capacity_bytes;
        Some(raw)
    };
    FREE.try_with(small).ok().flatten()
}

fn recycle(mut raw: Arc<Raw>) {
    // Memory that somebody else has still is freed by the last one.
    let Some(class) = Arc::get_mut(&mut raw).and_then(|raw| class_of(raw.capacity_bytes)) else { return };
    if let Some(class) = class.checked_sub(SMALL_CLASSES) {
        let more = LARGE.lock().put(class, raw);
        // It is freed without the lock.
        drop(more);
        return;
    }
    let keep = (CLASS_BYTES / raw.capacity_bytes).clamp(1, CLASS_BUFFERS);
    // If the thread's list no longer exists, dropping the closure frees the buffer.
    let _ = FREE.try_with(move |free| {
        let mut small = free.borrow_mut();
        if small.free[class].len() < keep {
            small.bytes += raw.capacity_bytes;
            if small.bytes > small.most {
                SMALL_BYTES.fetch_add((small.bytes - small.most) as u64, Relaxed);
                small.most = small.bytes;
            }
            small.free[class].push(raw);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 128 << 10;

    #[test]
    fn large_buffers_that_nobody_needs_are_freed_and_those_in_use_stay() {
        let mut large = Large::new();
        for _ in 0..2 * LARGE_BYTES / SIZE {
            drop(large.put(0, Raw::zeroed(SIZE)));
        }
        drop(large.put(3, Raw::zeroed(SIZE << 3)));
        assert_eq!(large.bytes, LARGE_BYTES, "no more than the bound");
        assert!(large.take_idle().is_empty(), "all of them came since the last call");
        // Eight are in use at a time.
        for _ in 0..20 {
            let used: Vec<_> = (0..8).map_while(|_| large.take(0)).collect();
            assert_eq!(used.len(), 8);
            for raw in used {
                assert!(large.put(0, raw).is_none());
            }
        }
        assert_eq!(large.take_idle().len(), LARGE_BYTES / SIZE - 8);
        assert_eq!(large.bytes, 8 * SIZE);
        assert_eq!(large.take_idle().len(), 8, "nobody has taken one since");
        assert_eq!((large.bytes, large.take_idle().len()), (0, 0));
    }
}
