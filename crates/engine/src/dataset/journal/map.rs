//! The journal's memory: a file in the kernel's memory that exists as long as any process holds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Seals of the file: no process that holds it can change its size, so reading it never ends in SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A head of `head_bytes`, and a ring that is mapped twice in a row, so that anything that begins in it can be read and
/// written in one piece.
pub(super) struct Map {
    file: OwnedFd,
    start: NonNull<u8>,
    head_bytes: usize,
    ring_bytes: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread.
unsafe impl Send for Map {}
// SAFETY: words are atomic; whoever writes bytes has reserved them for itself (`Journal::reserve`).
unsafe impl Sync for Map {}

impl Map {
    /// Creates memory, all zeros. Both sizes are multiples of the page size.
    pub(super) fn create(head_bytes: usize, ring_bytes: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("pagefold-journal", flags)?;
        rustix::fs::ftruncate(&file, (head_bytes + ring_bytes) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Self::of(file, head_bytes, ring_bytes)
    }

    /// Maps the memory of `file`. Everything behind the head is the ring.
    pub(super) fn open(file: OwnedFd, head_bytes: usize, ring_max: usize) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(wrong("its size is not sealed"));
        }
        let bytes = rustix::fs::fstat(&file)?.st_size;
        let ring = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_sub(head_bytes));
        match ring.filter(|ring| (1..=ring_max).contains(ring) && ring.is_power_of_two()) {
            Some(ring) => Self::of(file, head_bytes, ring),
            None => Err(wrong("it has an impossible size")),
        }
    }

    fn of(file: OwnedFd, head_bytes: usize, ring_bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let once = head_bytes + ring_bytes;
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), once + ring_bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        let map = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = Self { file, start: map, head_bytes, ring_bytes };
        // SAFETY: replaces the first part of the reservation above, which nobody uses yet.
        unsafe { mmap(start, once, access, MapFlags::SHARED | MapFlags::FIXED, &map.file, 0) }?;
        let (again, offset) = (start.wrapping_byte_add(once), head_bytes as u64);
        // SAFETY: replaces the rest of the reservation.
        unsafe { mmap(again, ring_bytes, access, MapFlags::SHARED | MapFlags::FIXED, &map.file, offset) }?;
        Ok(map)
    }

    /// Returns the file, for any process that is to hold it.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn ring_bytes(&self) -> u64 {
        self.ring_bytes as u64
    }

    /// Returns word number `index` of the head.
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        let at = index % (self.head_bytes / size_of::<AtomicU64>()) * size_of::<AtomicU64>();
        // SAFETY: within the head, aligned, and never accessed but as an atomic word.
        unsafe { self.start.add(at).cast().as_ref() }
    }

    fn place(&self, position: u64) -> usize {
        self.head_bytes + (position % self.ring_bytes()) as usize
    }

    /// Returns the word at `position` of the ring, which is a multiple of 8.
    pub(super) fn ring_word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: within the first copy of the ring and aligned, as the ring's size is a multiple of 8; `write` writes
        // bytes that may be words only before anybody looks for a word there.
        unsafe { self.start.add(self.place(position) & !7).cast().as_ref() }
    }

    /// Writes `bytes` at `position`, where the caller has reserved as much; at most a ring's worth.
    pub(super) fn write(&self, position: u64, bytes: &[u8]) {
        let len = bytes.len().min(self.ring_bytes);
        // SAFETY: both copies of the ring are mapped one behind the other, so `len` bytes from anywhere in the first
        // are mapped; no other thread touches what the caller has reserved.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.place(position)).as_ptr(), len);
        };
    }

    /// Returns a copy of up to a ring's worth of bytes from `position` on. Nobody may be writing them.
    pub(super) fn read(&self, position: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; (len as usize).min(self.ring_bytes)];
        // SAFETY: as in `write`.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.add(self.place(position)).as_ptr(),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        };
        bytes
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the reservation, to which no reference remains.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.head_bytes + 2 * self.ring_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
