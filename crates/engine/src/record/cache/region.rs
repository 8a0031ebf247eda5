//! Provides stretches of memory that are filled once, from front to end, and read by all.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes in a page of the system's memory.
const PAGE_BYTES: usize = 4096;

/// A memory mapping of its own, in huge pages where these are to be had. Without them, copying from pages all over a
/// cache of many MiB costs more in address translation than in copying.
#[derive(Debug)]
pub(super) struct Region {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    /// First byte of the aligned part that is used.
    start: NonNull<u8>,
    len_bytes: usize,
    /// Bytes of what was written that are still wanted, as far as callers of [`Region::forget`] tell.
    live_bytes: AtomicU64,
}

// SAFETY: the mapping belongs to the region; nothing about it is bound to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access only reads bytes that a `Filler` has written before it told anybody where they are, and that
// are never written again.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of `len_bytes`, a power of two.
    pub(super) fn new(len_bytes: usize) -> io::Result<Self> {
        // The mapping is twice as long, so that an aligned part is within. What is never touched takes no memory.
        let mapping_bytes = len_bytes * 2;
        let mapping = map(mapping_bytes)?;
        let skip = mapping.addr().get().next_multiple_of(len_bytes) - mapping.addr().get();
        // SAFETY: `skip` is below `len_bytes`, and the mapping twice as long.
        let start = unsafe { mapping.add(skip) };
        let region = Self { mapping, mapping_bytes, start, len_bytes, live_bytes: 0.into() };
        // This is only a wish: without huge pages the region is slower and otherwise the same.
        // SAFETY: the range lies in the mapping, which nobody else knows yet.
        let _ = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        Ok(region)
    }

    /// Creates a region of at least `len_bytes`, without huge pages.
    pub(super) fn small(len_bytes: usize) -> io::Result<Self> {
        let len_bytes = len_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let start = map(len_bytes)?;
        Ok(Self { mapping: start, mapping_bytes: len_bytes, start, len_bytes, live_bytes: 0.into() })
    }

    /// Returns its length in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the bytes of what was written that are still wanted.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Relaxed)
    }

    /// Notes that a stretch of `len_bytes` is wanted no more.
    pub(super) fn forget(&self, len_bytes: u32) {
        self.live_bytes.fetch_sub(len_bytes.into(), Relaxed);
    }

    /// Returns bytes that a [`Filler`] has written.
    ///
    /// # Safety
    /// `start..start + len_bytes` is a stretch that [`Filler::push`] returned for this region.
    pub(super) unsafe fn bytes(&self, start: usize, len_bytes: usize) -> &[u8] {
        // SAFETY: such a stretch lies within the region, is initialised and never written again.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(start), len_bytes) }
    }
}

/// Maps memory, which is not resident before it is touched.
fn map(len_bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no memory in use.
    let mapping = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    }?;
    Ok(NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?)
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping, to which no reference remains.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The only writer of a region. Nobody else knows what lies behind `used`.
#[derive(Debug)]
pub(super) struct Filler {
    region: std::sync::Arc<Region>,
    used: usize,
    /// Keeps the type from being shared between threads.
    alone: PhantomData<Cell<()>>,
}

impl Filler {
    /// Creates a region and its only filler.
    pub(super) fn new(len_bytes: usize) -> io::Result<Self> {
        Ok(Self::of(Region::new(len_bytes)?))
    }

    /// Creates the only filler of a region that nobody else has. It fills the region from its front, whatever that had.
    pub(super) fn of(mut region: Region) -> Self {
        *region.live_bytes.get_mut() = 0;
        Self { region: std::sync::Arc::new(region), used: 0, alone: PhantomData }
    }

    /// Returns the region.
    pub(super) fn region(&self) -> &std::sync::Arc<Region> {
        &self.region
    }

    /// Copies `bytes` behind what is there. Returns their position in the region, or `None` if they do not fit.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        let start = self.used;
        if bytes.len() > self.region.len_bytes - start {
            return None;
        }
        // SAFETY: the stretch lies within the region, and behind all that was ever handed out.
        unsafe {
            let target = self.region.start.as_ptr().add(start);
            target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.used += bytes.len();
        self.region.live_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Some(start)
    }
}
