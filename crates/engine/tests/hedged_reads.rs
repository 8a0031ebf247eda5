//! A mirror one of whose devices hangs: its pool is read, and gives the device up.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;
#[macro_use]
mod passed_on;

use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mirrored::*;
use pagefold_engine::Result;
use pagefold_engine::device::{AlignedBuf, Device, FileDevice, HedgeCounts, OpenMode, create_file_device};
use pagefold_engine::pool::{CreateOptions, DeviceState, Guid, Pool, create_groups_on};

const PAGES: std::ops::Range<u64> = 0..2000;

/// A device whose reads hang while it is told so: they are then reads of a pipe.
struct Hanging {
    inner: FileDevice,
    pipe: PipeReader,
    hangs: Arc<AtomicBool>,
}

impl Device for Hanging {
    passed_on!();

    fn file(&self) -> Option<BorrowedFd<'_>> {
        if self.hangs.load(Ordering::SeqCst) { Some(self.pipe.as_fd()) } else { self.inner.file() }
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
}

/// The part that a test keeps of a device that a pool has.
struct Handle {
    device: Weak<Hanging>,
    hangs: Arc<AtomicBool>,
    writer: PipeWriter,
}

impl Handle {
    fn hedges(&self) -> HedgeCounts {
        self.device.upgrade().unwrap().stats().hedges()
    }
}

/// A mirror with all pages, opened on devices that can hang.
fn open_hanging(dir: &Path) -> (Vec<Handle>, Arc<Pool>) {
    let paths = [0, 1].map(|at| dir.join(format!("disc{at}")));
    paths.iter().for_each(|path| create_file_device(path, SIZE).unwrap());
    let mut handles = Vec::new();
    let mut all: Vec<Arc<dyn Device>> = Vec::new();
    for path in &paths {
        let inner = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
        let (pipe, writer) = std::io::pipe().unwrap();
        let hangs = Arc::new(AtomicBool::new(false));
        let device = Arc::new(Hanging { inner, pipe, hangs: Arc::clone(&hangs) });
        handles.push(Handle { device: Arc::downgrade(&device), hangs, writer });
        all.push(device);
    }
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"one that it asks") };
    create_groups_on("tank", std::slice::from_ref(&all), &options).unwrap();
    let pool = Pool::open_on(all, &mirrored::options()).unwrap();
    write(&pool, PAGES, 1);
    (handles, pool)
}

#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pool_is_read_and_gives_its_device_up_while_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (mut handles, pool) = open_hanging(dir.path());
    has(&pool, PAGES, 1);
    // A device that is only slow may have been overtaken, or have answered first after all.
    let before = [0, 1].map(|at| handles[at].hedges());
    handles[0].hangs.store(true, Ordering::SeqCst);
    // Whatever is read, from whichever thread, comes from the other one.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| has(&pool, PAGES, 1));
        }
    });
    let HedgeCounts { hedged, won } = handles[0].hedges();
    let (hedged, won) = (hedged - before[0].hedged, won - before[0].won);
    assert!(hedged > 0 && hedged == won, "{hedged} and {won}");
    assert_eq!(handles[1].hedges().won, before[1].won, "the one that hangs has no answer");
    assert_eq!(states(&pool), [DeviceState::Online, DeviceState::Online]);
    // A read that nobody waits for keeps nobody from taking the device away.
    pool.offline(0).unwrap();
    pool.close_device(0).unwrap();
    assert!(handles[0].device.upgrade().is_none());
    pool.detach(0).unwrap();
    has(&pool, PAGES, 1);
    pool.export().unwrap();
    drop(pool);
    // Bytes that come now are for nobody.
    let _ = handles[0].writer.write_all(&[0xEE; 8192]);
    let again = FileDevice::open(&dir.path().join("disc1"), OpenMode::ReadWrite).unwrap();
    has(&Pool::open_on(vec![Arc::new(again)], &options()).unwrap(), PAGES, 1);
}

#[test]
fn a_pool_is_exported_while_a_device_hangs_that_nobody_has_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let (handles, pool) = open_hanging(dir.path());
    handles[1].hangs.store(true, Ordering::SeqCst);
    // A slow device may be spared for a while: either of the two may be asked first.
    let asked = |version: &u64| {
        write(&pool, PAGES, *version);
        has(&pool, PAGES, *version);
        handles[1].hedges().hedged > 0
    };
    let version = (1..100).find(asked).unwrap();
    pool.export().unwrap();
    drop(pool);
    until(|| handles.iter().all(|one| one.device.upgrade().is_none()));
    let reopened = |at| {
        let path = dir.path().join(format!("disc{at}"));
        Arc::new(FileDevice::open(&path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>
    };
    let pool = Pool::open_on(vec![reopened(0), reopened(1)], &options()).unwrap();
    has(&pool, PAGES, version);
    is_sound(&pool);
}
