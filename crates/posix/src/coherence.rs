//! Lets threads read and write the same blocks by every way there is, and compares them with a model: after a write has
//! completed, everybody who begins to read sees it, or something newer.
//!
//! Each block has a version, which is in each 16 bytes of it. A writer holds the block's lock. It notes the new version
//! as begun before it writes, and as completed afterwards. A reader needs no lock: it notes the version that is
//! completed before the read, and the one that is begun after it, and all versions that it read must lie between the
//! two.

mod ways;

use std::fmt;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use io_uring::{IoUring, opcode, types};
use pagefold_sim::random::Random;
use rustix::fs::{self, Advice};
use ways::{Aligned, READS, WRITES, Way, Ways};

/// Bytes of a block: a page, since the kernel writes back stores into a mapping by the page.
const BLOCK_BYTES: usize = 4096;
/// Number of blocks of a file. It is small, so that threads meet.
const BLOCKS: usize = 48;
/// Number of files.
const FILES: usize = 3;
/// Largest number of blocks of one call.
const SPAN: u64 = 6;
/// Number of threads.
const THREADS: u64 = 8;
/// Largest number of a thread's asynchronous writes that are under way at a time.
const DEPTH: usize = 6;
/// Number of operations after which a thread opens one of its files anew.
const REOPEN_EVERY: u64 = 300;

/// Versions of a block.
#[derive(Default)]
struct Block {
    lock: Mutex<()>,
    /// Version that was begun last.
    begun: AtomicU64,
    /// Version that has completed last.
    completed: AtomicU64,
}

/// State that all threads share.
struct Model {
    files: Vec<PathBuf>,
    blocks: Vec<Block>,
    stop: AtomicBool,
    writes: [AtomicU64; WRITES.len()],
    reads: [AtomicU64; READS.len()],
    blocks_read: AtomicU64,
}

/// Numbers of operations that were done.
pub struct Report {
    counts: Vec<(String, u64)>,
    blocks: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            write!(f, "{what} {count}, ")?;
        }
        write!(f, "{} blocks compared", self.blocks)
    }
}

fn stamp(file: usize, block: usize, version: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&((file << 32 | block) as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// An asynchronous write under way, with the locks of its blocks.
struct Pending<'a> {
    data: Aligned,
    file: usize,
    first: usize,
    versions: Vec<u64>,
    _locks: Vec<MutexGuard<'a, ()>>,
}

struct Worker<'a> {
    model: &'a Model,
    random: Random,
    ring: IoUring,
    ways: Vec<Ways>,
    pending: Vec<Option<Pending<'a>>>,
}

/// User data of a read in the ring; that of a write is its slot.
const READ: u64 = u64::MAX;

impl<'a> Worker<'a> {
    fn new(model: &'a Model, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let ways = model.files.iter().map(|path| Ways::open(path, &mut random)).collect::<Result<_>>()?;
        let ring = IoUring::new(64).context("an io_uring")?;
        Ok(Self { model, random, ring, ways, pending: (0..DEPTH).map(|_| None).collect() })
    }

    fn run(&mut self) -> Result<()> {
        let mut done = 0_u64;
        while !self.model.stop.load(SeqCst) {
            done += 1;
            if done.is_multiple_of(REOPEN_EVERY) {
                self.settle()?;
                let file = self.random.below(FILES as u64) as usize;
                self.ways[file] = Ways::open(&self.model.files[file], &mut self.random)?;
            }
            match self.random.below(20) {
                0..9 => self.write()?,
                9 => {
                    let file = self.random.below(FILES as u64) as usize;
                    fs::fadvise(&self.ways[file].buffered, 0, None, Advice::DontNeed)?;
                }
                _ => self.read()?,
            }
            if self.random.percent(20) {
                self.settle()?;
            }
        }
        self.settle()
    }

    fn range(&mut self) -> (usize, usize, usize) {
        let count = 1 + self.random.below(SPAN) as usize;
        let first = self.random.below((BLOCKS - count + 1) as u64) as usize;
        (self.random.below(FILES as u64) as usize, first, count)
    }

    /// Waits for all asynchronous writes, and notes their versions as completed.
    fn settle(&mut self) -> Result<()> {
        while self.pending.iter().any(Option::is_some) {
            self.complete()?;
        }
        Ok(())
    }

    /// Waits for one completion. Returns the result if it is that of a read, and `None` otherwise.
    fn complete(&mut self) -> Result<Option<i32>> {
        self.ring.submit_and_wait(1).context("wait for io_uring")?;
        let Some(entry) = self.ring.completion().next() else { return Ok(None) };
        if entry.user_data() == READ {
            return Ok(Some(entry.result()));
        }
        let Some(mut write) = self.pending.get_mut(entry.user_data() as usize).and_then(Option::take) else {
            bail!("a completion of a write that was not begun");
        };
        let len = write.data.slice().len();
        ensure!(entry.result() == len as i32, "a write of {len} bytes came to {}", entry.result());
        self.model.completed(write.file, write.first, &write.versions);
        Ok(None)
    }

    fn write(&mut self) -> Result<()> {
        let which = self.random.below(WRITES.len() as u64) as usize;
        let way = WRITES[which];
        let (file, first, count) = self.range();
        // A thread that holds locks must not wait for one that may want them, so locked blocks are left to others.
        let model = self.model;
        let blocks = &model.blocks[file * BLOCKS + first..][..count];
        let Some(locks) = blocks.iter().map(|block| block.lock.try_lock().ok()).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        let versions: Vec<u64> = blocks.iter().map(|block| block.begun.fetch_add(1, SeqCst) + 1).collect();
        let mut data = Aligned::new(count * BLOCK_BYTES);
        for (n, bytes) in data.slice().chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let stamp = stamp(file, first + n, versions[n]);
            bytes.chunks_exact_mut(16).for_each(|bytes| bytes.copy_from_slice(&stamp));
        }
        model.writes[which].fetch_add(1, SeqCst);
        let at = first * BLOCK_BYTES;
        match way {
            Way::AsyncDirect | Way::AsyncLaterDirect => {
                let slot = match self.pending.iter().position(Option::is_none) {
                    Some(slot) => slot,
                    None => {
                        self.settle()?;
                        0
                    }
                };
                let bytes = data.slice();
                let fd = types::Fd(self.ways[file].file(way).as_raw_fd());
                let entry = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32)
                    .offset(at as u64)
                    .build()
                    .user_data(slot as u64);
                // SAFETY: data and file stay until the completion: `settle` comes before either goes. The memory of
                // `data` is on the heap, and does not move with it.
                unsafe { self.ring.submission().push(&entry) }.context("fill the io_uring")?;
                self.pending[slot] = Some(Pending { data, file, first, versions, _locks: locks });
                self.ring.submit().context("submit to io_uring")?;
                return Ok(());
            }
            Way::Mapped | Way::MappedPrivately => {
                self.ways[file].shared.store(at, data.slice());
                if self.random.percent(30) {
                    self.ways[file].shared.sync()?;
                }
            }
            Way::Buffered | Way::Direct | Way::LaterDirect => {
                let written = rustix::io::pwrite(self.ways[file].file(way), data.slice(), at as u64)?;
                ensure!(written == count * BLOCK_BYTES, "{way:?}: a write was cut short to {written}");
            }
        }
        model.completed(file, first, &versions);
        drop(locks);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let which = self.random.below(READS.len() as u64) as usize;
        let way = READS[which];
        let (file, first, count) = self.range();
        let mut data = Aligned::new(count * BLOCK_BYTES);
        let at = first * BLOCK_BYTES;
        let model = self.model;
        let blocks = &model.blocks[file * BLOCKS + first..][..count];
        let before: Vec<u64> = blocks.iter().map(|block| block.completed.load(SeqCst)).collect();
        match way {
            Way::AsyncDirect | Way::AsyncLaterDirect => {
                let bytes = data.slice();
                let fd = types::Fd(self.ways[file].file(way).as_raw_fd());
                let entry = opcode::Read::new(fd, bytes.as_mut_ptr(), bytes.len() as u32)
                    .offset(at as u64)
                    .build()
                    .user_data(READ);
                // SAFETY: data and file stay until the completion, which is waited for here.
                unsafe { self.ring.submission().push(&entry) }.context("fill the io_uring")?;
                let result = loop {
                    if let Some(result) = self.complete()? {
                        break result;
                    }
                };
                ensure!(result == (count * BLOCK_BYTES) as i32, "{way:?}: a read came to {result}");
            }
            Way::Mapped => self.ways[file].shared.load(at, data.slice()),
            Way::MappedPrivately => self.ways[file].private.load(at, data.slice()),
            Way::Buffered | Way::Direct | Way::LaterDirect => {
                let read = rustix::io::pread(self.ways[file].file(way), data.slice(), at as u64)?;
                ensure!(read == count * BLOCK_BYTES, "{way:?}: a read was cut short to {read}");
            }
        }
        model.reads[which].fetch_add(1, SeqCst);
        model.blocks_read.fetch_add(count as u64, SeqCst);
        for (n, bytes) in data.slice().chunks_exact(BLOCK_BYTES).enumerate() {
            let after = blocks[n].begun.load(SeqCst);
            judge(file, first + n, bytes, before[n], after).with_context(|| format!("read by {way:?}"))?;
        }
        Ok(())
    }
}

/// Verifies that a block holds only versions from `before` to `after`.
fn judge(file: usize, block: usize, bytes: &[u8], before: u64, after: u64) -> Result<()> {
    for (n, found) in bytes.chunks_exact(16).enumerate() {
        let mut version = [0; 8];
        version.copy_from_slice(&found[8..]);
        let version = u64::from_le_bytes(version);
        ensure!(
            found == stamp(file, block, version) && (before..=after).contains(&version),
            "file {file}, block {block}, byte {}: found version {version} of {}, but {before} had been completed before \
             the read, and {after} was the last that was begun",
            n * 16,
            found[..8].escape_ascii()
        );
    }
    Ok(())
}

impl Model {
    fn new(dir: &Path) -> Result<Self> {
        let files: Vec<_> = (0..FILES).map(|n| dir.join(format!("blocks-{n}"))).collect();
        for (file, path) in files.iter().enumerate() {
            let stamps = (0..BLOCKS).flat_map(|block| stamp(file, block, 0).repeat(BLOCK_BYTES / 16));
            std::fs::write(path, stamps.collect::<Vec<u8>>())?;
        }
        Ok(Self {
            files,
            blocks: (0..FILES * BLOCKS).map(|_| Block::default()).collect(),
            stop: AtomicBool::new(false),
            writes: Default::default(),
            reads: Default::default(),
            blocks_read: AtomicU64::new(0),
        })
    }

    fn completed(&self, file: usize, first: usize, versions: &[u64]) {
        for (block, version) in self.blocks[file * BLOCKS + first..].iter().zip(versions) {
            block.completed.store(*version, SeqCst);
        }
    }

    fn report(&self) -> Report {
        let count = |what: &str, ways: &[Way], counts: &[AtomicU64]| -> Vec<(String, u64)> {
            let told = ways.iter().zip(counts);
            told.map(|(way, count)| (format!("{way:?} {what}"), count.load(SeqCst))).collect()
        };
        let mut counts = count("writes", &WRITES, &self.writes);
        counts.extend(count("reads", &READS, &self.reads));
        Report { counts, blocks: self.blocks_read.load(SeqCst) }
    }
}

/// Reads and writes in `dir` for the length of `time`, and removes the files that it made.
///
/// # Errors
/// Tells the first block that was older than a completed write, or that nobody wrote, or the call that failed.
pub fn run(dir: &Path, time: Duration, seed: u64) -> Result<Report> {
    let model = Model::new(dir)?;
    let deadline = Instant::now() + time;
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (model, found) = (&model, &found);
                scope.spawn(move || {
                    let seed = seed.wrapping_mul(1_000_003) ^ thread;
                    if let Err(error) = Worker::new(model, seed).and_then(|mut worker| worker.run()) {
                        model.stop.store(true, SeqCst);
                        found.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    }
                })
            })
            .collect();
        while Instant::now() < deadline && !model.stop.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
        model.stop.store(true, SeqCst);
        drop(threads);
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = found.into_iter().next() {
        return Err(error);
    }
    // At the end a reader who was not there finds the versions that were completed last.
    for (file, path) in model.files.iter().enumerate() {
        for (block, bytes) in std::fs::read(path)?.chunks_exact(BLOCK_BYTES).enumerate() {
            let version = model.blocks[file * BLOCKS + block].completed.load(SeqCst);
            judge(file, block, bytes, version, version).context("at the end")?;
        }
        std::fs::remove_file(path)?;
    }
    Ok(model.report())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_or_never_written_is_found() {
        let block = |version: u64| stamp(1, 7, version).repeat(BLOCK_BYTES / 16);
        for version in 4..=6 {
            assert!(judge(1, 7, &block(version), 4, 6).is_ok());
        }
        assert!(judge(1, 7, &block(3), 4, 6).is_err(), "older than what had completed");
        assert!(judge(1, 7, &block(7), 4, 6).is_err(), "not begun yet");
        assert!(judge(1, 8, &block(5), 4, 6).is_err(), "another block");
        let mut mixed = block(5);
        mixed[BLOCK_BYTES - 16..].copy_from_slice(&stamp(1, 7, 3));
        assert!(judge(1, 7, &mixed, 4, 6).is_err(), "the last bytes are old");
        mixed[BLOCK_BYTES - 16..].copy_from_slice(&stamp(1, 7, 6));
        assert!(judge(1, 7, &mixed, 4, 6).is_ok(), "a write is under way");
    }
}
