//! A reader who goes on where he has ended: what the kernel will want next comes with the request before.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::{Attempt, Change};
use pagefold_engine::device::{AlignedBuf, Device, RequestCounts, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

const PAGE: u32 = 8192;
const OBJECT: u64 = 5;
const PAGES: u64 = 200;
/// Length of the device in bytes.
const BYTES: u64 = 256 << 20;

/// A page that cannot be compressed.
fn page(at: u64, version: u64) -> Vec<u8> {
    let mut state = at * 1000 + version + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..PAGE).map(|_| next()).collect()
}

fn write(pool: &Pool, at: u64, version: u64) {
    let data = &page(at, version)[..];
    let offset = at * u64::from(PAGE);
    pool.dataset().apply(&[Change::Write { object: OBJECT, record_size: PAGE, offset, data }]).unwrap();
}

fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    let pool = Pool::open_on(vec![Arc::clone(device) as _], &OpenOptions::default()).unwrap();
    // The nodes of the tree and the directories of the segments come into memory.
    read(&pool, PAGES - 1, 1).unwrap();
    read(&pool, 0, 1).unwrap();
    pool
}

/// A pool with pages that are not in its memory.
fn cold() -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(BYTES, 1));
    let options = CreateOptions { force: false, created: 0, guid: Guid([7; 16]) };
    create_on("tank", &[Arc::clone(&device) as _], &options).unwrap();
    let pool = Pool::open_on(vec![Arc::clone(&device) as _], &OpenOptions::default()).unwrap();
    (0..PAGES).for_each(|at| write(&pool, at, 0));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    (device, pool)
}

/// Returns the number of requests that the devices of a pool have got.
fn requests(pool: &Pool) -> u64 {
    pool.device_status().iter().flat_map(|device| &device.requests).map(RequestCounts::requests).sum()
}

/// Reads `count` pages from `first` on as the kernel's requests are answered, and returns them.
fn read(pool: &Pool, first: u64, count: u64) -> pagefold_engine::Result<Vec<u8>> {
    let (offset, mut out) = (first * u64::from(PAGE), vec![0xAA; (count * u64::from(PAGE)) as usize]);
    let is_read = match pool.dataset().try_read(OBJECT, PAGE, offset, &mut out)? {
        Attempt::Done => true,
        Attempt::Fetch(fetch) => fetch.read(&mut out)?,
        Attempt::Wait => false,
    };
    if !is_read {
        pool.dataset().read(OBJECT, PAGE, offset, &mut out)?;
    }
    Ok(out)
}

/// Reads pages, verifies them, and returns the number of requests that the device got for them.
#[track_caller]
fn cost(pool: &Pool, first: u64, count: u64) -> u64 {
    let before = requests(pool);
    let content = read(pool, first, count).unwrap();
    assert!((first..first + count).flat_map(|at| page(at, 0)).eq(content), "pages from {first} on");
    requests(pool) - before
}

#[test]
fn the_next_pages_come_with_the_first_ones_that_were_read_on() {
    let (_device, pool) = cold();
    // These are the kernel's requests for somebody who reads page after page.
    assert_eq!(cost(&pool, 20, 1), 1);
    assert_eq!(cost(&pool, 21, 4), 1);
    assert_eq!(cost(&pool, 25, 12), 0);
    // Long requests are as good as they can be.
    assert_eq!(cost(&pool, 41, 16), 1);
    assert_eq!(cost(&pool, 57, 16), 1);
}

#[test]
fn readers_of_pages_anywhere_read_nothing_else() {
    let (_device, pool) = cold();
    assert_eq!(cost(&pool, 20, 4), 1);
    assert_eq!(cost(&pool, 24 + 4, 4), 1);
    assert_eq!(cost(&pool, 24, 1), 1);
    assert_eq!(cost(&pool, 32, 1), 1);
    assert_eq!(cost(&pool, 100, 1), 1);
    assert_eq!(cost(&pool, 101, 1), 1, "whoever reads a page at a time holds none of the next ones");
}

#[test]
fn a_page_that_was_overwritten_is_read_as_it_is_now() {
    let (_device, pool) = cold();
    assert_eq!((cost(&pool, 20, 1), cost(&pool, 21, 4)), (1, 1));
    write(&pool, 26, 1);
    pool.sync().unwrap();
    assert_eq!(read(&pool, 26, 1).unwrap(), page(26, 1));
    assert_eq!(read(&pool, 25, 2).unwrap(), [page(25, 0), page(26, 1)].concat());
}

#[test]
fn pages_that_lie_elsewhere_get_no_request_before_they_are_wanted() {
    let (device, pool) = cold();
    write(&pool, 27, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!((cost(&pool, 20, 1), cost(&pool, 21, 4)), (1, 1));
    assert_eq!(cost(&pool, 25, 2), 0);
    let before = requests(&pool);
    assert_eq!(read(&pool, 27, 1).unwrap(), page(27, 1));
    assert_eq!(requests(&pool) - before, 1);
}

#[test]
fn damage_behind_what_is_wanted_fails_nobody_else() {
    let (device, pool) = cold();
    let mut all = AlignedBuf::zeroed(BYTES as usize);
    device.read(0, &mut all).unwrap();
    let bytes = page(26, 0);
    let at = all.windows(64).position(|window| *window == bytes[..64]).unwrap();
    device.flip_bit(at as u64 + 100, 3);
    assert_eq!((cost(&pool, 20, 1), cost(&pool, 21, 4)), (1, 1));
    assert_eq!(cost(&pool, 25, 1), 0);
    assert!(read(&pool, 26, 1).is_err() && read(&pool, 25, 4).is_err());
    assert_eq!(cost(&pool, 27, 1), 0);
}
