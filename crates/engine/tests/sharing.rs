//! Records that several pages have: counted, looked up a batch at a time, and forgotten when nothing is shared any more.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::pool::Pool;

mod common;
use common::{MIB, PAGE, fresh, open};

fn write(pool: &Pool, object: u64, pages: std::ops::Range<u64>, seed: u64) {
    for page in pages {
        let data: Vec<u8> = (0..PAGE).map(|i| (u64::from(i) * (seed | 1) + page * 7 + 1) as u8).collect();
        let offset = page * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object, record_size: PAGE, offset, data: &data }]).unwrap();
    }
}

fn share(pool: &Pool, from: (u64, u64), to: (u64, u64), count: u64) {
    let share =
        Change::Share { from_object: from.0, from_page: from.1, to_object: to.0, to_page: to.1, count };
    pool.dataset().apply(&[share]).unwrap();
}

fn punch(pool: &Pool, object: u64, from: u64, to: u64) {
    pool.dataset().apply(&[Change::Punch { object, from, to }]).unwrap();
}

fn assert_clean(pool: &Pool) {
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// Nodes that were looked at while 1,500 pages were overwritten by one commit, in a pool where one other page is shared, or none.
fn lookups(shared: bool) -> u64 {
    let (device, pool) = fresh(256);
    write(&pool, 5, 0..1500, 3);
    write(&pool, 7, 0..1, 5);
    pool.sync().unwrap();
    if shared {
        share(&pool, (7, 0), (8, 0), 1);
    }
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    write(&pool, 5, 0..1500, 9);
    let before = pool.status().node_cache;
    pool.sync().unwrap();
    let after = pool.status().node_cache;
    assert_clean(&pool);
    after.hits + after.misses - before.hits - before.misses
}

#[test]
fn what_little_is_shared_is_looked_up_once_for_a_batch() {
    let (with, without) = (lookups(true), lookups(false));
    assert!(with <= without + 20, "{with} nodes were looked at, and {without} where nothing is shared");
}

#[test]
fn nobody_looks_when_nothing_is_shared_any_more() {
    let (device, pool) = fresh(256);
    let shares = |pool: &Arc<Pool>| pool.version("").unwrap().shares_records();
    write(&pool, 5, 0..40, 3);
    pool.sync().unwrap();
    assert!(!shares(&pool));
    share(&pool, (5, 0), (6, 0), 40);
    share(&pool, (5, 0), (6, 40), 1);
    assert!(shares(&pool));
    pool.snapshot(&[""], "kept", 1).unwrap();
    pool.clone_snapshot("@kept", "clone", 2).unwrap();
    punch(&pool, 6, 0, 40);
    assert!(shares(&pool), "page 0 has two places yet");
    // Overwritten, it has one.
    write(&pool, 5, 0..1, 8);
    pool.sync().unwrap();
    assert!(!shares(&pool));
    assert!(pool.version("clone").unwrap().shares_records());
    assert_clean(&pool);
    drop(pool);
    let pool = open(&device);
    assert!(!shares(&pool));
    assert!(pool.version("clone").unwrap().shares_records());
    // Going back brings them back.
    pool.rollback("@kept", false).unwrap();
    assert!(shares(&pool));
    assert_clean(&pool);
}

/// Any sequence of shares, overwritings and punches leaves the counts that the pages say.
#[test]
fn counts_are_those_of_the_pages() {
    let (_device, pool) = fresh(256);
    let mut state = 7_u64;
    let mut roll = |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % sides
    };
    write(&pool, 5, 0..64, 3);
    for round in 0..600 {
        let (object, page, count) = (5 + roll(3), roll(64), 1 + roll(20));
        match roll(6) {
            0 => write(&pool, object, page..page + count, round),
            1 => punch(&pool, object, page, page + count),
            // Onto itself, too, and what was not committed.
            _ => share(&pool, (object, page), (5 + roll(3), roll(64)), count),
        }
        if roll(5) == 0 {
            pool.sync().unwrap();
        }
        if roll(60) == 0 {
            pool.checkpoint(false).unwrap();
            assert_clean(&pool);
        }
    }
    for object in 5..8 {
        punch(&pool, object, 0, u64::MAX);
    }
    pool.checkpoint(false).unwrap();
    assert_clean(&pool);
    assert!(!pool.version("").unwrap().shares_records());
    assert!(pool.dataset().space().used_bytes < MIB, "{:?}", pool.dataset().space());
}
