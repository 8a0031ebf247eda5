//! Reads that do not wait: what they answer, what they leave to the caller, and what happens in between.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::{Attempt, Change, PageFetch};
use pagefold_engine::device::{AlignedBuf, Device, FileDevice, OpenMode, SimDevice, create_file_device};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

const PAGE: u32 = 8192;
const OBJECT: u64 = 5;
const PAGES: u64 = 40;

fn page(at: u64, version: u8) -> Vec<u8> {
    (0..PAGE).map(|i| (u64::from(i) / 7 * (at + 1)) as u8 ^ version).collect()
}

fn write(pool: &Pool, at: u64, version: u8) {
    let data = &page(at, version)[..];
    let offset = at * u64::from(PAGE);
    pool.dataset().apply(&[Change::Write { object: OBJECT, record_size: PAGE, offset, data }]).unwrap();
}

/// A pool with pages that are not in its memory.
fn cold(device: &Arc<dyn Device>) -> Arc<Pool> {
    let devices = || vec![Arc::clone(device)];
    create_on("tank", &devices(), &CreateOptions { force: false, created: 0, guid: Guid([7; 16]) }).unwrap();
    let pool = Pool::open_on(devices(), &OpenOptions::default()).unwrap();
    (0..PAGES).for_each(|at| write(&pool, at, 0));
    pool.export().unwrap();
    drop(pool);
    Pool::open_on(devices(), &OpenOptions::default()).unwrap()
}

fn simulated() -> Arc<dyn Device> {
    Arc::new(SimDevice::new(256 << 20, 1))
}

fn attempt(pool: &Pool, at: u64, within: u64, out: &mut [u8]) -> Attempt {
    pool.dataset().try_read(OBJECT, PAGE, at * u64::from(PAGE) + within, out).unwrap()
}

/// Returns the read that an attempt at a page that is not cached leaves to its caller. Loads the tree's nodes first.
fn fetch(pool: &Pool, at: u64, out: &mut [u8]) -> PageFetch {
    let mut other = vec![0; PAGE as usize];
    pool.dataset().read(OBJECT, PAGE, 0, &mut other).unwrap();
    match attempt(pool, at, 0, out) {
        Attempt::Fetch(page) => page,
        Attempt::Done => panic!("page {at} is in memory"),
        Attempt::Wait => panic!("page {at} cannot be found without waiting"),
    }
}

#[test]
fn a_page_is_fetched_once_and_then_comes_from_memory() {
    let device = simulated();
    let pool = cold(&device);
    let mut out = vec![0xAA; PAGE as usize];
    assert!(fetch(&pool, 3, &mut out).read(&mut out).unwrap());
    assert_eq!(out, page(3, 0));
    let reads = device.stats().counts().reads;
    for _ in 0..3 {
        out.fill(0xAA);
        assert!(matches!(attempt(&pool, 3, 0, &mut out), Attempt::Done));
        assert_eq!(out, page(3, 0));
        let mut part = [0; 100];
        assert!(matches!(attempt(&pool, 3, 4000, &mut part), Attempt::Done));
        assert_eq!(part[..], page(3, 0)[4000..4100]);
    }
    assert_eq!(device.stats().counts().reads, reads);
    let cache = pool.status().record_cache;
    assert_eq!(cache.pages, 1, "a page read again is held decoded: {cache:?}");
}

#[test]
fn holes_and_accepted_pages_need_no_device() {
    let pool = cold(&simulated());
    let mut out = vec![0xAA; PAGE as usize];
    drop(fetch(&pool, 3, &mut out));
    assert!(matches!(attempt(&pool, PAGES + 5, 0, &mut out), Attempt::Done));
    assert_eq!(out, vec![0; PAGE as usize]);
    write(&pool, 3, 9);
    assert!(matches!(attempt(&pool, 3, 0, &mut out), Attempt::Done));
    assert_eq!(out, page(3, 9));
}

#[test]
fn long_pages_are_left_to_those_who_wait() {
    let device = simulated();
    let pool = cold(&device);
    let data: Vec<u8> = (0..1_u32 << 20).map(|i| (i / 5) as u8).collect();
    let change = Change::Write { object: 9, record_size: 1 << 20, offset: 0, data: &data };
    pool.dataset().apply(&[change]).unwrap();
    pool.export().unwrap();
    drop(pool);
    let pool = Pool::open_on(vec![Arc::clone(&device)], &OpenOptions::default()).unwrap();
    let mut out = vec![0xAA; PAGE as usize];
    drop(fetch(&pool, 3, &mut out));
    assert!(matches!(pool.dataset().try_read(9, 1 << 20, 0, &mut out).unwrap(), Attempt::Wait));
    pool.dataset().read(9, 1 << 20, 8192, &mut out).unwrap();
    assert_eq!(out, data[8192..16384]);
    assert!(matches!(pool.dataset().try_read(9, 1 << 20, 8192, &mut out).unwrap(), Attempt::Done));
    assert_eq!(out, data[8192..16384]);
}

#[test]
fn what_is_fetched_is_the_page_as_it_was_when_asked_for() {
    let pool = cold(&simulated());
    let mut out = vec![0xAA; PAGE as usize];
    let before = fetch(&pool, 3, &mut out);
    write(&pool, 3, 9);
    pool.sync().unwrap();
    assert!(before.read(&mut out).unwrap());
    assert_eq!(out, page(3, 0));
    assert!(matches!(attempt(&pool, 3, 0, &mut out), Attempt::Done));
    assert_eq!(out, page(3, 9));
}

#[test]
fn bytes_that_are_not_the_records_are_not_delivered() {
    let device = simulated();
    let pool = cold(&device);
    let mut out = vec![0xAA; PAGE as usize];
    let mut planned = fetch(&pool, 3, &mut out);
    let (offset, room) = planned.request();
    let mut blocks = AlignedBuf::zeroed(room.len());
    device.read(offset, &mut blocks).unwrap();
    let good = AlignedBuf::from_bytes(&blocks);
    blocks.iter_mut().for_each(|byte| *byte ^= 1);
    device.write(offset, &blocks, false).unwrap();
    assert!(!planned.read(&mut out).unwrap());
    // The place was someone else's for a moment; nothing of it stays behind.
    device.write(offset, &good, false).unwrap();
    assert!(fetch(&pool, 3, &mut out).read(&mut out).unwrap());
    assert_eq!(out, page(3, 0));
}

#[test]
fn files_can_be_read_past_the_device() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tank.pf");
    create_file_device(&path, 256 << 20).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite).unwrap());
    let pool = cold(&device);
    let mut out = vec![0xAA; PAGE as usize];
    let mut planned = fetch(&pool, 3, &mut out);
    let file = std::fs::File::from(planned.file().unwrap().try_clone_to_owned().unwrap());
    let (offset, room) = planned.request();
    file.read_exact_at(room, offset).unwrap();
    let reads = device.stats().counts().reads;
    assert!(planned.finish(&mut out).unwrap());
    assert_eq!(out, page(3, 0));
    assert_eq!(device.stats().counts().reads, reads + 1, "such reads are counted too");
}
