//! The ways to read and write blocks: through the page cache, past it, through a mapping, asynchronously.

use std::path::Path;

use anyhow::{Context, Result};
use pagefold_sim::random::Random;
use rustix::fs::{self, Mode, OFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::{BLOCK_BYTES, BLOCKS};

/// Ways to read and write blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Buffered,
    /// Opened with O_DIRECT.
    Direct,
    /// Opened with O_DIRECT, through io_uring.
    AsyncDirect,
    /// Made direct by fcntl(2).
    LaterDirect,
    /// Made direct by fcntl(2), through io_uring.
    AsyncLaterDirect,
    /// Through a shared mapping.
    Mapped,
    /// Through a private mapping.
    MappedPrivately,
}

pub(super) const WRITES: [Way; 6] =
    [Way::Buffered, Way::Direct, Way::AsyncDirect, Way::LaterDirect, Way::AsyncLaterDirect, Way::Mapped];
pub(super) const READS: [Way; 7] = [
    Way::Buffered,
    Way::Direct,
    Way::AsyncDirect,
    Way::LaterDirect,
    Way::AsyncLaterDirect,
    Way::Mapped,
    Way::MappedPrivately,
];

/// Memory that begins on a page.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        Self { bytes, start, len }
    }

    pub(super) fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// A mapping of a whole file, touched by single loads and stores.
pub(super) struct Map {
    start: *mut u64,
    len: usize,
}

impl Map {
    pub(super) fn new(file: &impl std::os::fd::AsFd, how: MapFlags) -> Result<Self> {
        let len = BLOCKS * BLOCK_BYTES;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, how, file, 0) };
        Ok(Self { start: start.context("map a file")?.cast(), len })
    }

    fn word(&self, at: usize) -> *mut u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        self.start.wrapping_add(at / 8)
    }

    pub(super) fn load(&self, at: usize, into: &mut [u8]) {
        for (n, bytes) in into.chunks_exact_mut(8).enumerate() {
            // SAFETY: an aligned word within the mapping; others may change it, as a device would.
            let word = unsafe { self.word(at + n * 8).read_volatile() };
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
    }

    pub(super) fn store(&self, at: usize, from: &[u8]) {
        for (n, bytes) in from.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            // SAFETY: as above, in a mapping that may be written.
            unsafe { self.word(at + n * 8).write_volatile(u64::from_ne_bytes(word)) };
        }
    }

    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: the mapping is ours and has this length.
        unsafe { rustix::mm::msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.context("msync")
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _gone_with_the_process = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}

/// One file, opened by every way.
pub(super) struct Ways {
    pub(super) buffered: std::fs::File,
    direct: std::fs::File,
    later: std::fs::File,
    pub(super) shared: Map,
    pub(super) private: Map,
}

impl Ways {
    pub(super) fn open(path: &Path, random: &mut Random) -> Result<Self> {
        let open = |flags: OFlags| -> Result<std::fs::File> {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
            Ok(fs::open(path, flags, Mode::empty()).context("open a file")?.into())
        };
        // The order of opening makes a difference to the kernel, so both orders are tried.
        let direct_first = random.percent(50);
        let early = direct_first.then(|| open(OFlags::DIRECT)).transpose()?;
        let buffered = open(OFlags::empty())?;
        let direct = match early {
            Some(direct) => direct,
            None => open(OFlags::DIRECT)?,
        };
        let later = open(OFlags::empty())?;
        fs::fcntl_setfl(&later, OFlags::DIRECT).context("make a file direct")?;
        // A mapping of a direct handle drops all cached pages of the file, also those that a buffered write is sending.
        let of = if random.percent(50) { &buffered } else { &direct };
        let shared = Map::new(of, MapFlags::SHARED)?;
        let private = Map::new(&buffered, MapFlags::PRIVATE)?;
        Ok(Self { buffered, direct, later, shared, private })
    }

    pub(super) fn file(&self, way: Way) -> &std::fs::File {
        match way {
            Way::Direct | Way::AsyncDirect => &self.direct,
            Way::LaterDirect | Way::AsyncLaterDirect => &self.later,
            Way::Buffered | Way::Mapped | Way::MappedPrivately => &self.buffered,
        }
    }
}
