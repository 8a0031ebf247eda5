//! Failures that the simulator found, each in as few steps as possible.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Commit};
use pagefold_engine::pool::Pool;

use common::{MIB, PAGE, fresh, open};

fn write(object: u64, page: u64, data: &[u8]) -> Change<'_> {
    Change::Write { object, record_size: PAGE, offset: page * u64::from(PAGE), data }
}

fn read(pool: &Pool, object: u64, page: u64) -> Vec<u8> {
    let mut out = vec![0xAA; PAGE as usize];
    pool.dataset().read(object, PAGE, page * u64::from(PAGE), &mut out).unwrap();
    out
}

/// Seed 9: an object without pages knows no recordsize, and its holes said 0 to the target.
#[test]
fn sharing_holes_of_an_empty_object_keeps_the_targets_accounts() {
    let (_device, pool) = fresh(130);
    pool.dataset().apply(&[write(4, 1, &[7; PAGE as usize]), write(4, 9, &[8; PAGE as usize])]).unwrap();
    pool.sync().unwrap();
    let holes = Change::Share { from_object: 5, from_page: 0, to_object: 4, to_page: 1, count: 1 };
    pool.dataset().apply(&[holes]).unwrap();
    pool.sync().unwrap();
    assert_eq!(pool.status().logical_bytes, u64::from(PAGE));
    pool.dataset().apply(&[Change::Punch { object: 4, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    assert_eq!(pool.status().logical_bytes, 0);
}

/// The base of a partial write is the page as the share left it, not as an earlier write of the same change did.
#[test]
fn a_partial_write_of_a_page_shared_in_the_same_change_is_refused() {
    let (_device, pool) = fresh(130);
    pool.dataset().apply(&[write(4, 0, &[1; PAGE as usize])]).unwrap();
    let share = Change::Share { from_object: 4, from_page: 0, to_object: 5, to_page: 0, count: 1 };
    let mixed = [write(5, 0, &[2; PAGE as usize]), share, write(5, 0, &[3; 10])];
    assert!(pool.dataset().apply(&mixed).is_err());
    assert!(read(&pool, 5, 0).iter().all(|byte| *byte == 0), "nothing was changed");
}

/// Two batches are written; the power goes, and only the second is on the device. After that the first change is made
/// again, byte for byte. The second batch was never part of this history and must not come back.
#[test]
fn a_batch_that_was_lost_stays_lost_when_the_one_before_it_is_written_again() {
    let (device, pool) = fresh(130);
    let (one, two) = ([1; PAGE as usize], [2; PAGE as usize]);
    pool.dataset().apply(&[write(4, 0, &one)]).unwrap();
    pool.commit(false).unwrap();
    let first_sectors = device.unflushed_sectors();
    pool.dataset().apply(&[write(4, 1, &two)]).unwrap();
    pool.commit(false).unwrap();
    let mut sector = 0;
    let device = Arc::new(device.crash(&mut |contents| {
        sector += 1;
        if sector <= first_sectors { 0 } else { contents - 1 }
    }));
    drop(pool);
    let pool = open(&device);
    assert!(read(&pool, 4, 0) == [0; PAGE as usize] && read(&pool, 4, 1) == [0; PAGE as usize]);
    pool.dataset().apply(&[write(4, 0, &one)]).unwrap();
    pool.sync().unwrap();
    drop(pool);
    let pool = open(&device);
    assert!(read(&pool, 4, 0) == one);
    assert!(read(&pool, 4, 1) == [0; PAGE as usize], "a change that was never made is there");
}

/// Seed 255: a cleaning pass left out records that had died since the last checkpoint, and the log told replay to look
/// for the checkpoint's tree in the copies. The power goes at every call of the pass, and everything written is kept.
#[test]
fn a_cleaning_pass_that_no_checkpoint_followed_is_undone() {
    for calls in 0..64 {
        let (device, pool) = fresh(130);
        let page = |seed: u8| [seed; PAGE as usize];
        for at in 0..8 {
            pool.dataset().apply(&[write(4, u64::from(at), &page(at + 1))]).unwrap();
        }
        pool.sync().unwrap();
        drop(pool);
        // Opening begins a segment; with the checkpoint, the one before it is no part of the log any more.
        let pool = open(&device);
        pool.checkpoint(false).unwrap();
        // A record dies and the log knows; another dies and the log never will.
        pool.dataset().apply(&[write(4, 0, &page(99))]).unwrap();
        pool.sync().unwrap();
        pool.dataset().apply(&[Change::Punch { object: 4, from: 1, to: 2 }]).unwrap();
        device.cut_after(calls);
        let cleaned = pool.clean();
        drop(pool);
        let pool = open(&Arc::new(device.crash(&mut |contents| contents - 1)));
        assert!(read(&pool, 4, 0) == page(99), "after {calls} calls");
        let punched = read(&pool, 4, 1);
        assert!(punched == page(2) || punched == page(0), "after {calls} calls");
        for at in 2..8 {
            assert!(read(&pool, 4, u64::from(at)) == page(at + 1), "after {calls} calls");
        }
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
        if let Ok(cleaned) = cleaned {
            assert!(cleaned.segments > 0, "there was nothing to clean");
            return;
        }
    }
    panic!("the pass never ends");
}

/// Changes that free space are admitted on a full pool, and take what the pool keeps back. That must not be a way to
/// fill the pool.
#[test]
fn changes_that_free_little_and_store_more_are_refused_in_the_end() {
    let (_device, pool) = fresh(130);
    let mut state = 1_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    };
    for at in 0.. {
        if pool.dataset().apply(&[write(4, at * 128, &noise(MIB as usize))]).is_err() {
            break;
        }
    }
    for at in 0..200_u64 {
        let gone = Change::Delete(Key::new(1, 1, at));
        let data = noise(512 << 10);
        let changed = pool.dataset().apply(&[gone, write(5, at * 64, &data)]);
        assert_eq!(pool.status().failure, None, "after {at} changes");
        if changed.is_err() {
            pool.dataset().apply(&[Change::Punch { object: 4, from: 0, to: u64::MAX }]).unwrap();
            pool.sync().unwrap();
            pool.dataset().apply(&[write(4, 0, &data)]).unwrap();
            pool.sync().unwrap();
            return;
        }
        pool.sync().unwrap();
    }
    panic!("the pool takes more than it can hold");
}
