//! Tree nodes and directories, which a read needs beside its record, have a part of the memory that there is now.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::{Change, Commit, PrimaryCache};
use pagefold_engine::device::{RequestCounts, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

const PAGE: u32 = 4096;
const OBJECT: u64 = 5;
const PAGES: u64 = 200_000;
/// Pages that are written at once.
const RUN: u64 = 250;
/// Number of pages from one that is read to the next.
const STRIDE: u64 = 24_571;
const SMALL: u64 = 4 << 20;
const LARGE: u64 = 64 << 20;

/// A pool whose pages take a few bytes each, and whose nodes and directories take more than a small cache has for them.
fn many_pages() -> Arc<Pool> {
    let device = Arc::new(SimDevice::new(256 << 20, 1));
    let options = CreateOptions { force: false, created: 0, guid: Guid([7; 16]) };
    create_on("tank", &[Arc::clone(&device) as _], &options).unwrap();
    let open = |cache_bytes: u64| {
        let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
        Pool::open_on(vec![Arc::clone(&device) as _], &options).unwrap()
    };
    let pool = open(LARGE);
    for first in (0..PAGES).step_by(RUN as usize) {
        let mut data = vec![0; (RUN * u64::from(PAGE)) as usize];
        for (page, at) in data.chunks_mut(PAGE as usize).zip(first..) {
            page.iter_mut().zip(at.to_le_bytes()).for_each(|(to, byte)| *to = byte ^ 0xA5);
        }
        let offset = first * u64::from(PAGE);
        let write = Change::Write { object: OBJECT, record_size: PAGE, offset, data: &data };
        pool.dataset().apply(&[write]).unwrap();
        pool.commit(false).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    let pool = open(SMALL);
    // Records are not kept, so each read takes a request of its own.
    pool.set_primary_cache(PrimaryCache::Metadata);
    pool
}

/// Reads pages from all over the object, and returns how many requests the device got for each, in hundredths.
fn requests_per_hundred_reads(pool: &Pool) -> u64 {
    let requests = || -> u64 {
        pool.device_status().iter().flat_map(|device| &device.requests).map(RequestCounts::requests).sum()
    };
    let (before, mut page) = (requests(), vec![0; PAGE as usize]);
    let all: Vec<u64> = (0..PAGES / 60).map(|n| n * STRIDE % PAGES).collect();
    for at in &all {
        pool.dataset().read(OBJECT, PAGE, at * u64::from(PAGE), &mut page).unwrap();
        assert!(page.iter().zip(at.to_le_bytes()).all(|(found, byte)| *found == byte ^ 0xA5), "page {at}");
    }
    (requests() - before) * 100 / all.len() as u64
}

#[test]
fn nodes_and_directories_follow_the_memory_that_there_is() {
    let pool = many_pages();
    let small = requests_per_hundred_reads(&pool);
    assert!(small > 120, "{small}: the small cache holds all");
    pool.set_cache_bytes(LARGE);
    requests_per_hundred_reads(&pool);
    assert_eq!(requests_per_hundred_reads(&pool), 100);
    let used = pool.memory();
    assert!(used.nodes_bytes + used.directories_bytes > SMALL, "{used:?}");
    // And they give way.
    pool.set_cache_bytes(SMALL);
    let used = pool.memory();
    assert!(used.nodes_bytes + used.directories_bytes <= SMALL, "{used:?}");
    assert!(requests_per_hundred_reads(&pool) > 120);
}
