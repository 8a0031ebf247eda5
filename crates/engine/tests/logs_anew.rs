//! A log that begins anew writes a part of each of its pages first: what that reads, and that nothing of it is lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use common::{PAGE, fresh, open};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::Pool;

const OBJECT: u64 = 5;
const PAGES: u64 = 64;
const BLOCK: usize = 512;

/// A page as a log has it: text that differs from page to page.
fn page(at: u64, round: u64) -> Vec<u8> {
    let entries = (0_u64..).flat_map(|entry| {
        let id = (entry + at * 977 + round).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        format!("{round} {at} {entry} update accounts set balance = {id};\n").into_bytes()
    });
    entries.take(PAGE as usize).collect()
}

fn write(pool: &Pool, offset: u64, data: &[u8]) {
    pool.dataset().apply(&[Change::Write { object: OBJECT, record_size: PAGE, offset, data }]).unwrap();
}

/// A pool with a log whose pages were written once, and are not in memory.
fn cold_log() -> (Arc<SimDevice>, Arc<Pool>) {
    let (device, pool) = fresh(256);
    (0..PAGES).for_each(|at| write(&pool, at * u64::from(PAGE), &page(at, 0)));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    // The nodes of the tree.
    pool.dataset().read(OBJECT, PAGE, 0, &mut vec![0; PAGE as usize]).unwrap();
    (device, pool)
}

/// Writes the first block of each of these pages, each durable, and returns the reads that it takes.
fn begin_pages(device: &SimDevice, pool: &Pool, pages: impl Iterator<Item = u64>) -> u64 {
    let before = device.stats().counts().reads;
    for at in pages {
        write(pool, at * u64::from(PAGE), &page(at, 1)[..BLOCK]);
        pool.sync().unwrap();
    }
    device.stats().counts().reads - before
}

#[test]
fn a_log_that_begins_anew_reads_its_old_content_in_few_requests() {
    let (device, pool) = cold_log();
    let reads = begin_pages(&device, &pool, 1..PAGES);
    // One, two, four and eight pages, and then sixteen at a time, twice if they lie at the end of a segment.
    assert!(reads <= 16, "{reads} reads for {PAGES} pages");
    for at in 1..PAGES {
        let mut found = vec![0; PAGE as usize];
        pool.dataset().read(OBJECT, PAGE, at * u64::from(PAGE), &mut found).unwrap();
        assert_eq!(found[..BLOCK], page(at, 1)[..BLOCK]);
        assert_eq!(found[BLOCK..], page(at, 0)[BLOCK..], "the rest of page {at}");
    }
}

#[test]
fn pages_anywhere_are_read_alone() {
    let (device, pool) = cold_log();
    let reads = begin_pages(&device, &pool, (1..PAGES).map(|at| at * 29 % PAGES));
    assert_eq!(reads, PAGES - 1);
}

#[test]
fn a_damaged_page_ahead_keeps_nobody_from_writing() {
    let (device, pool) = cold_log();
    let mut ptr = [None];
    pool.live().tree.pages(OBJECT, 12, &mut ptr).unwrap();
    let record = pool.read_record(ptr[0].unwrap().addr).unwrap();
    let mut bytes = AlignedBuf::zeroed(64 << 20);
    device.read(0, &mut bytes).unwrap();
    let at = bytes.windows(record.len()).position(|window| window == record).unwrap();
    device.flip_bit(at as u64 + record.len() as u64 / 2, 3);
    begin_pages(&device, &pool, 1..12);
    begin_pages(&device, &pool, 14..PAGES);
    let mut found = vec![0; PAGE as usize];
    pool.dataset().read(OBJECT, PAGE, 11 * u64::from(PAGE), &mut found).unwrap();
    assert_eq!(found[..BLOCK], page(11, 1)[..BLOCK]);
    assert!(pool.dataset().read(OBJECT, PAGE, 12 * u64::from(PAGE), &mut found).is_err());
    write(&pool, 12 * u64::from(PAGE), &page(12, 1));
    pool.dataset().read(OBJECT, PAGE, 12 * u64::from(PAGE), &mut found).unwrap();
    assert_eq!(found, page(12, 1));
}
