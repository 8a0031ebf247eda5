//! A check, and an opening for a rescue, read after a crash what only the log device has, as an opening does that writes; and
//! they write nothing. Without the log device they say that something may be missing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::dataset::Commit;
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{CheckReport, OpenOptions, Pool, check_on};

fn rescue(all: &[Arc<SimDevice>]) -> Arc<Pool> {
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::for_rescue() };
    Pool::open_on(handles(all), &options).unwrap()
}

fn check(all: &[Arc<SimDevice>]) -> (Arc<Pool>, CheckReport) {
    check_on(handles(all), 8 << 20, &mut |_| {}).unwrap()
}

/// Returns the bytes of all devices, block by block, of those blocks that are not zeros.
fn bytes(all: &[Arc<SimDevice>]) -> Vec<(usize, u64, u32)> {
    let mut found = Vec::new();
    for (at, sim) in all.iter().enumerate() {
        let mut buf = AlignedBuf::zeroed(MIB as usize);
        for offset in (0..SIZE).step_by(MIB as usize) {
            sim.read(offset, &mut buf).unwrap();
            found.push((at, offset, crc32c::crc32c(&buf)));
        }
    }
    found
}

/// The messages of a check that tell of the log device.
fn of_log_device(report: &CheckReport) -> usize {
    report.messages.iter().filter(|message| message.contains("log device")).count()
}

/// A pool that crashed, with pages `0..40` in version 1 where they belong, and in version 2 on the log device alone; and
/// pages `100..600` there, too.
fn crashed(mirrors: u64, members: u64, logs: u64) -> Sims {
    let all = fresh_mirrors_with_log(mirrors, members, logs);
    let pool = open(&all);
    write(&pool, 0..40, 1);
    pool.checkpoint(false).unwrap();
    write(&pool, 0..40, 2);
    for first in 0..10 {
        write(&pool, 100 + first * 50..150 + first * 50, 2);
    }
    without_unflushed(&all)
}

#[test]
fn a_rescue_and_a_check_read_what_only_the_log_device_has() {
    for (mirrors, members, logs) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 2)] {
        let after = crashed(mirrors, members, logs);
        let before = bytes(&after);
        let pool = rescue(&after);
        has(&pool, 0..40, 2);
        has(&pool, 100..600, 2);
        is_sound(&pool);
        assert!(pool.rescue().unwrap().is_clean(), "{:?}", pool.rescue());
        let replayed = pool.replayed();
        drop(pool);
        let (pool, report) = check(&after);
        assert_eq!((report.errors, report.messages), (0, Vec::new()));
        has(&pool, 0..40, 2);
        drop(pool);
        assert_eq!(bytes(&after), before, "something was written");
        // An opening that writes gives the same.
        let pool = open(&after);
        assert_eq!(pool.replayed(), replayed);
        has(&pool, 0..40, 2);
        has(&pool, 100..600, 2);
    }
}

#[test]
fn a_rescue_gives_what_an_opening_gives_whatever_the_crash_left() {
    for seed in 0..12 {
        let all = fresh_mirrors_with_log(1 + seed % 2, 1 + seed / 2 % 2, 1 + seed % 3 / 2);
        let pool = open(&all);
        for version in 1..30 {
            write(&pool, 0..3, version);
            try_apply(&pool, 100..120, version).unwrap();
            pool.commit(false).unwrap();
            if version % 9 == 0 {
                pool.checkpoint(false).unwrap();
            }
        }
        write(&pool, 0..3, 30);
        for cut in 0..5 {
            let after = after(&all, Some(seed * 100 + cut));
            let (pool, report) = check(&after);
            assert_eq!((report.errors, report.messages), (0, Vec::new()), "seed {seed}, cut {cut}");
            has(&pool, 0..3, 30);
            let replayed = pool.replayed();
            drop(pool);
            let pool = open(&after);
            assert_eq!(pool.replayed(), replayed, "seed {seed}, cut {cut}");
            has(&pool, 0..3, 30);
        }
    }
}

#[test]
fn without_the_log_device_they_say_that_something_may_be_missing() {
    let after = crashed(2, 1, 1);
    let pool = rescue(&after[..2]);
    has(&pool, 0..40, 1);
    let told = pool.rescue().unwrap().messages();
    assert!(
        told.len() == 1 && told[0].contains("log device") && told[0].contains("acknowledged"),
        "{told:?}"
    );
    drop(pool);
    let (pool, report) = check(&after[..2]);
    assert_eq!((report.errors, of_log_device(&report)), (1, 1), "{:?}", report.messages);
    has(&pool, 0..40, 1);
}

#[test]
fn a_log_device_that_is_not_needed_is_not_missed() {
    let all = fresh_with_log(2, 1);
    let pool = open(&all);
    write(&pool, 0..40, 1);
    pool.export().unwrap();
    drop(pool);
    assert!(rescue(&all[..2]).rescue().unwrap().is_clean());
    let (pool, report) = check(&all[..2]);
    assert_eq!((report.errors, report.messages), (0, Vec::new()));
    has(&pool, 0..40, 1);
}

/// The first commits after the checkpoint are before the damage, and are read; what is behind it is lost, and that is told.
#[test]
fn of_a_log_device_that_fails_some_reads_the_rest_is_read() {
    let after = crashed(1, 1, 1);
    // The chunks of a log device are filled one after the other, from the first one on.
    let behind = 3 * MIB;
    after[1].inject(InjectedFault {
        op: SimOp::Read,
        range: behind..behind + 4096,
        skip: 0,
        times: u64::MAX,
    });
    let pool = rescue(&after);
    has(&pool, 0..40, 2);
    let told = pool.rescue().unwrap().messages();
    assert!(told.iter().any(|message| message.contains("log device")), "{told:?}");
    drop(pool);
    let (pool, report) = check(&after);
    assert_eq!(of_log_device(&report), 1, "{:?}", report.messages);
    has(&pool, 0..40, 2);
}
