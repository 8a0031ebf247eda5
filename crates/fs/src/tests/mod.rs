//! Tests of the calls, on the dataset in memory. Every test ends with a check of what is stored.

mod alloc;
mod attr;
mod check;
mod codec;
mod dir;
mod freeing;
mod io;
mod lost;
mod model;
mod names;
mod orphan;
mod paths;
mod rewrite;
mod threads;
mod xattr;

use std::sync::Arc;

use crate::named::Places;
use crate::testing::{ManualClock, MemDataset};
use crate::{Caller, Entry, FormatOptions, Fs, FsOptions, Ino, OpenFlags, WriteFlags};

pub(super) const ROOT: Ino = Ino::ROOT;
pub(super) const USER: Caller = Caller { uid: 1000, gid: 100, umask: 0o022 };
const FORMAT: FormatOptions = FormatOptions { seed: 7, uid: 0, gid: 0, perm: 0o755 };

/// A mounted file system, with its dataset and clock.
pub(super) struct Bed {
    pub(super) fs: Arc<Fs>,
    pub(super) dataset: Arc<MemDataset>,
    pub(super) clock: Arc<ManualClock>,
}

impl Bed {
    pub(super) fn new() -> Self {
        Self::with(u64::MAX, FsOptions::default())
    }

    pub(super) fn with(limit_bytes: u64, options: FsOptions) -> Self {
        let dataset = Arc::new(MemDataset::new(limit_bytes));
        let clock = Arc::new(ManualClock::default());
        Fs::format(&*dataset, &*clock, &FORMAT).unwrap();
        let fs = Fs::mount(dataset.clone(), clock.clone(), options).unwrap();
        Self { fs, dataset, clock }
    }

    /// Returns a file system that uses so few bits of hash that names collide.
    pub(super) fn colliding(bits: u32) -> Self {
        let Self { dataset, clock, .. } = Self::new();
        let narrow = |seed| Places::narrow(seed, bits);
        let fs = Fs::mount_with(dataset.clone(), clock.clone(), FsOptions::default(), narrow).unwrap();
        Self { fs, dataset, clock }
    }

    /// Returns the file system as it is found after a crash at this instant.
    pub(super) fn crash(&self) -> Self {
        let dataset = Arc::new(self.dataset.crashed());
        let (options, places) = (self.fs.options.clone(), self.fs.places);
        let fs = Fs::mount_with(dataset.clone(), self.clock.clone(), options, |_| places).unwrap();
        Self { fs, dataset, clock: self.clock.clone() }
    }

    pub(super) fn create(&self, parent: Ino, name: &str) -> Entry {
        self.fs.create(parent, name.as_bytes(), 0o644, OpenFlags::default(), &USER).unwrap()
    }

    pub(super) fn mkdir(&self, parent: Ino, name: &str) -> Entry {
        self.fs.mkdir(parent, name.as_bytes(), 0o755, &USER).unwrap()
    }

    pub(super) fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        let written = self.fs.write(ino, offset, data, WriteFlags::default()).unwrap();
        assert_eq!(written.len, data.len());
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xEE; len];
        let n = self.fs.read(ino, offset, &mut buf).unwrap();
        buf.truncate(n);
        buf
    }

    pub(super) fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.fs
            .readdir(dir, 0, &mut |e| {
                names.push(String::from_utf8_lossy(e.name).into_owned());
                true
            })
            .unwrap();
        names.retain(|n| n != "." && n != "..");
        names.sort_unstable();
        names
    }

    /// Asserts that the checker finds nothing wrong, now and after everything that can be reaped was.
    pub(super) fn check(&self) {
        self.check_now();
        while self.fs.reap(1000).unwrap() {}
        self.check_now();
    }

    fn check_now(&self) {
        let report = crate::check::check_with(&*self.dataset, Some(self.fs.places)).unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        let freed = self.dataset.most_freed();
        assert!(freed <= self.fs.free_pages_max(), "one change has freed {freed} pages");
    }
}

/// Returns bytes that differ by place and seed, none of them zero.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8 | 1
    };
    (0..len).map(step).collect()
}

/// Asserts that a result is an error of this pattern.
macro_rules! assert_err {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("expected {}, got {:?}", stringify!($pattern), other),
        }
    };
}
pub(super) use assert_err;
