//! Failures that the simulator found, each in as few steps as possible.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Commit};
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::limits::RESERVED_BYTES;
use pagefold_engine::pool::{OpenOptions, Pool};
use pagefold_engine::segment::PageIds;

use common::{MIB, PAGE, devices, fresh, open};

fn write(object: u64, page: u64, data: &[u8]) -> Change<'_> {
    Change::Write { object, record_size: PAGE, offset: page * u64::from(PAGE), data }
}

fn read(pool: &Pool, object: u64, page: u64) -> Vec<u8> {
    let mut out = vec![0xAA; PAGE as usize];
    pool.dataset().read(object, PAGE, page * u64::from(PAGE), &mut out).unwrap();
    out
}

/// Returns a source of bytes that do not compress.
fn noise() -> impl FnMut(usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    move |len| (0..len).map(|_| next()).collect()
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
    let mut noise = noise();
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

/// Seed 16 of pools with small chunks and a large catalogue: nothing was promised to the checkpoint for what the
/// catalogue grew by.
#[test]
fn what_the_catalogue_grows_by_is_promised_to_the_next_checkpoint() {
    let (_device, pool) = fresh(130);
    pool.checkpoint(false).unwrap();
    let text = |seed: u64| -> String {
        let mut state = seed + 1;
        let letter = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'0' + (state >> 58) as u8)
        };
        (0..8 << 10).map(letter).collect()
    };
    for at in 0..100 {
        pool.set_property(&format!("user:{at}"), Some(&text(at))).unwrap();
    }
    for at in 0..100 {
        pool.create_dataset(&format!("d{at}"), 1).unwrap();
        pool.snapshot(&[""], &format!("s{at}"), 1).unwrap();
    }
    let (promised, before) = (pool.promised_bytes(), pool.totals());
    pool.checkpoint(false).unwrap();
    let after = pool.totals();
    let written = [after.tree_bytes, after.checkpoint_bytes, after.copy_bytes].iter().sum::<u64>()
        - [before.tree_bytes, before.checkpoint_bytes, before.copy_bytes].iter().sum::<u64>();
    assert!(written > (8 * 100) << 10, "the checkpoint stores the properties: {written}");
    assert!(written <= promised, "{written} bytes are written, {promised} were promised");
    // The growth is stored, and counts no more.
    assert!(pool.promised_bytes() < promised, "{} after {promised}", pool.promised_bytes());
}

/// Seed 2638 of pools with small chunks that are opened again and again: each opening, and each export, began chunks,
/// and nobody cleaned while the pool was too full to accept anything.
#[test]
fn a_full_pool_may_be_opened_and_exported_any_number_of_times() {
    let (device, pool) = fresh(130);
    drop(pool);
    // With few ids per page, the table has as many pages as the table of a large pool.
    let options = OpenOptions { table_page_ids: PageIds::new(3), ..OpenOptions::default() };
    let open = |device: &Arc<SimDevice>| Pool::open_on(devices(device), &options).unwrap();
    let pool = open(&device);
    let mut noise = noise();
    let mut page = || noise(PAGE as usize);
    let pages = (0..).find(|at| pool.dataset().apply(&[write(4, *at, &page())]).is_err()).unwrap();
    for at in 0..pages {
        let _ = pool.dataset().apply(&[write(4, at * 7 % pages, &page())]);
    }
    pool.sync().unwrap();
    drop(pool);
    let data = RESERVED_BYTES..device.size_bytes() - RESERVED_BYTES;
    let mut failed = 0;
    for round in 0..40 {
        let images: Vec<_> = (0..8).map(|_| Arc::new(device.crash(&mut |versions| versions - 1))).collect();
        let pool = open(&device);
        // Where an opening has begun to clean, and cannot go on, what is there can still be read. (Its first writes are
        // others.)
        let cleaned = pool.totals().moved_bytes > 0;
        for (skip, image) in (0..).zip(images).filter(|_| cleaned) {
            image.inject(InjectedFault { op: SimOp::Write, range: data.clone(), skip, times: u64::MAX });
            let Ok(unwritable) = Pool::open_on(devices(&image), &options) else { continue };
            failed += u64::from(unwritable.status().failure.is_some());
            assert!(read(&unwritable, 4, pages / 2) == read(&pool, 4, pages / 2));
        }
        pool.verify_reserves().unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 2 == 0 {
            pool.export().unwrap();
        }
    }
    assert!(failed > 0, "no opening failed while it cleaned");
    let pool = open(&device);
    pool.dataset().apply(&[Change::Punch { object: 4, from: 0, to: pages / 8 }]).unwrap();
    pool.sync().unwrap();
    pool.dataset().apply(&[write(4, 0, &page())]).unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}
