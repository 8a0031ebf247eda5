//! Random operations on one file through the kernel (buffered, direct and mapped), compared with a vector of bytes,
//! over both transports.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{Aligned, Mount, RingOn, options, pattern};
use pagefold_fs::FsOptions;
use pagefold_fuse::Transport;
use proptest::prelude::*;
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Largest size of the file, in bytes.
const FILE_MAX: usize = 512 << 10;

#[derive(Clone, Debug)]
enum Op {
    Write { direct: bool, at: usize, len: usize, seed: u64 },
    Store { at: usize, len: usize, seed: u64 },
    Read { direct: bool, at: usize, len: usize },
    Load { at: usize, len: usize },
    Truncate { len: usize },
    Punch { at: usize, len: usize },
    Zero { at: usize, len: usize },
    Copy { from: usize, to: usize, len: usize },
    Sync,
    DropCache,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Positions and lengths are at and around pages, and anywhere.
    let at = || prop_oneof![(0..FILE_MAX / 4096).prop_map(|page| page * 4096), 0..FILE_MAX];
    let len = || {
        prop_oneof![1usize..200, 1usize..20_000, 1usize..200_000, (1usize..20).prop_map(|pages| pages * 4096)]
    };
    let op = prop_oneof![
        4 => (any::<bool>(), at(), len(), any::<u64>()).prop_map(|(direct, at, len, seed)| Op::Write { direct, at, len, seed }),
        2 => (at(), len(), any::<u64>()).prop_map(|(at, len, seed)| Op::Store { at, len, seed }),
        4 => (any::<bool>(), at(), len()).prop_map(|(direct, at, len)| Op::Read { direct, at, len }),
        2 => (at(), len()).prop_map(|(at, len)| Op::Load { at, len }),
        1 => at().prop_map(|len| Op::Truncate { len }),
        1 => (at(), len()).prop_map(|(at, len)| Op::Punch { at, len }),
        1 => (at(), len()).prop_map(|(at, len)| Op::Zero { at, len }),
        1 => (at(), at(), len()).prop_map(|(from, to, len)| Op::Copy { from, to, len }),
        1 => Just(Op::Sync),
        1 => Just(Op::DropCache),
    ];
    proptest::collection::vec(op, 1..60)
}

/// The file in three ways of access, and the bytes that it should hold.
struct Subject {
    buffered: File,
    direct: File,
    model: Vec<u8>,
}

impl Subject {
    fn new(mount: &Mount, name: &str) -> Self {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            options.open(mount.path(name)).unwrap()
        };
        Self { buffered: open(0), direct: open(libc::O_DIRECT), model: Vec::new() }
    }

    /// Returns the part of a range that lies within the file.
    fn within(&self, at: usize, len: usize) -> std::ops::Range<usize> {
        let end = (at + len).min(self.model.len());
        at.min(end)..end
    }

    /// Runs `f` on the file's bytes in memory.
    fn mapped<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let len = self.model.len();
        // SAFETY: a new shared mapping of the whole file, whose length nobody else changes.
        unsafe {
            let start = rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &self.buffered,
                0,
            )
            .unwrap();
            let result = f(std::slice::from_raw_parts_mut(start.cast(), len));
            // Client and server are one process here. munmap would write back with the address space locked, and the
            // server's threads would wait for that lock: so the pages are written back first.
            rustix::mm::msync(start, len, rustix::mm::MsyncFlags::SYNC).unwrap();
            rustix::mm::munmap(start, len).unwrap();
            result
        }
    }

    fn grow(&mut self, end: usize) {
        if end > self.model.len() {
            self.model.resize(end, 0);
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Write { direct, at, len, seed } => {
                let len = len.min(FILE_MAX - at);
                let data = Aligned::of(&pattern(seed, len));
                let file = if direct { &self.direct } else { &self.buffered };
                prop_assert_eq!(file.write_at(&data, at as u64).unwrap(), len);
                self.grow(at + len);
                self.model[at..at + len].copy_from_slice(&data);
            }
            Op::Store { at, len, seed } => {
                let range = self.within(at, len);
                if !range.is_empty() {
                    let data = pattern(seed, range.len());
                    self.mapped(|bytes| bytes[range.clone()].copy_from_slice(&data));
                    self.model[range].copy_from_slice(&data);
                }
            }
            Op::Read { direct, at, len } => {
                let mut back = Aligned::new(len);
                let file = if direct { &self.direct } else { &self.buffered };
                let got = file.read_at(&mut back, at as u64).unwrap();
                let range = self.within(at, len);
                prop_assert!(back[..got] == self.model[range], "{} bytes at {}", len, at);
            }
            Op::Load { at, len } => {
                let range = self.within(at, len);
                if !range.is_empty() {
                    let same = self.mapped(|bytes| bytes[range.clone()] == self.model[range]);
                    prop_assert!(same, "{} bytes at {}", len, at);
                }
            }
            Op::Truncate { len } => {
                self.buffered.set_len(len as u64).unwrap();
                self.model.resize(len, 0);
            }
            Op::Punch { at, len } => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.buffered, flags, at as u64, len as u64).unwrap();
                let range = self.within(at, len);
                self.model[range].fill(0);
            }
            Op::Zero { at, len } => {
                let len = len.min(FILE_MAX - at);
                rustix::fs::fallocate(&self.buffered, FallocateFlags::ZERO_RANGE, at as u64, len as u64)
                    .unwrap();
                self.grow(at + len);
                self.model[at..at + len].fill(0);
            }
            Op::Copy { from, to, len } => self.copy(from, to, len),
            Op::Sync => self.buffered.sync_all().unwrap(),
            Op::DropCache => {
                rustix::fs::fadvise(&self.buffered, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
        }
        prop_assert_eq!(self.buffered.metadata().unwrap().len(), self.model.len() as u64);
        Ok(())
    }

    /// Does copy_file_range(2) within the file, on ranges that do not overlap.
    fn copy(&mut self, from: usize, to: usize, len: usize) {
        let source = self.within(from, len.min(from.abs_diff(to)).min(FILE_MAX - to));
        let (mut at, mut into) = (source.start as u64, to as u64);
        while at < source.end as u64 {
            let left = source.end - at as usize;
            let copied = rustix::fs::copy_file_range(
                &self.buffered,
                Some(&mut at),
                &self.buffered,
                Some(&mut into),
                left,
            );
            assert!(copied.unwrap() > 0);
        }
        if !source.is_empty() {
            self.grow(to + source.len());
            self.model.copy_within(source, to);
        }
    }
}

fn compare(mount: &Mount, cases: u32) {
    let number = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&ops(), |ops| {
        number.set(number.get() + 1);
        let name = format!("file-{}", number.get());
        let mut subject = Subject::new(mount, &name);
        for op in &ops {
            subject.apply(op)?;
        }
        prop_assert!(std::fs::read(mount.path(&name)).unwrap() == subject.model, "at the end");
        std::fs::remove_file(mount.path(&name)).unwrap();
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn mount(transport: Transport) -> Mount {
    Mount::with(&options(transport), FsOptions::default(), u64::MAX)
}

#[test]
fn random_operations_over_dev() {
    compare(&mount(Transport::Dev), 150);
}

#[test]
fn random_operations_over_the_ring() {
    match RingOn::new() {
        Some(_on) => compare(&mount(Transport::IoUring), 150),
        // The kernel has no ring: `Auto` falls back to /dev/fuse.
        None => compare(&mount(Transport::Auto), 20),
    }
}
