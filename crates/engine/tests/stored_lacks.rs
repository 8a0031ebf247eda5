//! A member of a mirror gets what it has missed, and lacks nothing then, also if the pool was closed or has crashed
//! meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use DeviceState::{Faulted, Filling, Missing, Offline, Online};
use mirrored::*;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::DeviceState;

/// Pages that are written first, in bytes 47 MiB.
const ALL: std::ops::Range<u64> = 0..6000;
/// Most that may be copied to a device that missed a few pages: the chunks that were written since, and those that the
/// log was replayed from.
const FEW_BYTES: u64 = 32 * MIB;

/// A pool of a mirror of two, each with all pages of version 1.
fn filled() -> Sims {
    filled_with(ALL)
}

fn filled_with(pages: std::ops::Range<u64>) -> Sims {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, pages, 1);
    pool.export().unwrap();
    sims
}

fn device(sim: &Arc<SimDevice>) -> Arc<dyn Device> {
    Arc::clone(sim) as Arc<dyn Device>
}

/// Fills, copying no more than `most` bytes; then each device has pages 0 to 99 of `version`, and the others of version 1.
#[track_caller]
fn fills_with_few(sims: &[Arc<SimDevice>], pool: &Arc<pagefold_engine::pool::Pool>, version: u64, most: u64) {
    assert!(states(pool).contains(&Filling), "{:?}", states(pool));
    let copied = fill(pool);
    assert!(copied <= most, "{copied} bytes were copied, {most} at most");
    assert_eq!(states(pool), [Online, Online]);
    pool.export().unwrap();
    each_has_all(sims, 0..100, version);
    each_has_all(sims, 100..ALL.end, 1);
}

#[test]
fn a_device_that_was_away_gets_what_it_missed() {
    for crashes in [false, true] {
        let mut sims = filled();
        // It is away in several openings.
        for version in 2..5 {
            let pool = open(&sims[..1]);
            assert_eq!(states(&pool), [Online, Missing]);
            write(&pool, 0..100, version);
            if version == 3 {
                pool.checkpoint(false).unwrap();
            }
            if crashes {
                sims[0] = after(&sims[..1], Some(version)).remove(0);
            } else {
                pool.export().unwrap();
            }
        }
        let pool = open(&sims);
        fills_with_few(&sims, &pool, 4, FEW_BYTES);
    }
}

#[test]
fn a_device_that_comes_back_while_the_pool_is_open_gets_what_it_missed() {
    let sims = filled();
    let pool = open(&sims[..1]);
    write(&pool, 0..100, 2);
    pool.online(device(&sims[1])).unwrap();
    fills_with_few(&sims, &pool, 2, FEW_BYTES);
}

#[test]
fn a_device_that_was_offline_stays_so_and_gets_what_it_missed() {
    let sims = filled();
    let pool = open(&sims);
    write(&pool, 0..50, 2);
    pool.offline(1).unwrap();
    write(&pool, 50..100, 2);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    assert_eq!(states(&pool), [Online, Offline]);
    pool.online(device(&sims[1])).unwrap();
    fills_with_few(&sims, &pool, 2, FEW_BYTES);
}

/// It fails, and the power goes before a checkpoint has stored what it lacks.
#[test]
fn a_device_that_failed_right_before_a_crash_gets_what_it_missed() {
    for seed in 0..6 {
        let sims = filled();
        let pool = open(&sims);
        write(&pool, 0..30, 2);
        pool.checkpoint(false).unwrap();
        write(&pool, 30..50, 2);
        sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: seed % 3, times: u64::MAX });
        (50..100).for_each(|at| write(&pool, at..at + 1, 2));
        assert_eq!(states(&pool), [Online, Faulted]);
        drop(pool);
        let sims = after(&sims, Some(seed));
        let pool = open(&sims);
        assert_eq!(states(&pool), [Online, Faulted]);
        pool.online(device(&sims[1])).unwrap();
        fills_with_few(&sims, &pool, 2, FEW_BYTES);
    }
}

#[test]
fn filling_goes_on_where_it_was() {
    for crashes in [false, true] {
        let sims = filled();
        let pool = open(&sims[..1]);
        let new = sim(7);
        assert_eq!(pool.attach(1, Arc::clone(&new) as Arc<dyn Device>, true).unwrap(), 2);
        let (mut copied, all) = (0, ALL.end * u64::from(PAGE));
        while copied < all * 3 / 4 {
            copied += pool.fill_step(5).unwrap().unwrap();
        }
        pool.checkpoint(false).unwrap();
        write(&pool, 0..100, 2);
        let left = pool.fill_status().left_bytes;
        let mut both = vec![Arc::clone(&sims[0]), new];
        if crashes {
            both = after(&both, Some(3));
        } else {
            pool.export().unwrap();
        }
        drop(pool);
        let pool = open(&both);
        assert_eq!(states(&pool), [Online, Missing, Filling]);
        fills_with_few(&both, &pool, 2, left + FEW_BYTES);
    }
}

#[test]
fn an_older_copy_of_a_device_lacks_everything_however_often_the_pool_is_opened() {
    let sims = filled();
    let old = after(&sims[1..], None).remove(0);
    let pool = open(&sims);
    write(&pool, ALL, 1);
    pool.checkpoint(false).unwrap();
    pool.offline(1).unwrap();
    write(&pool, 0..100, 2);
    pool.export().unwrap();
    drop(pool);
    let mut both = vec![Arc::clone(&sims[0]), old];
    let pool = open(&both);
    assert_eq!(states(&pool), [Online, Offline]);
    pool.online(device(&both[1])).unwrap();
    drop(pool);
    for seed in 0..3 {
        // It is not taken for what it was by an opening that follows a crash, either.
        both = after(&both, Some(seed));
        let pool = open(&both);
        assert_eq!(states(&pool), [Online, Filling]);
        drop(pool);
    }
    let pool = open(&both);
    assert!(fill(&pool) > ALL.end * u64::from(PAGE) / 2);
    pool.export().unwrap();
    each_has_all(&both, 0..100, 2);
    each_has_all(&both, 100..ALL.end, 1);
}

/// The same without an `online` between: the older copy is there when the pool is opened.
#[test]
fn an_older_copy_of_a_device_that_was_filled_lacks_everything() {
    let sims = filled();
    let pool = open(&sims[..1]);
    write(&pool, 0..2000, 2);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    for _ in 0..3 {
        pool.fill_step(5).unwrap();
    }
    let old = after(&sims[1..], None).remove(0);
    while pool.fill_step(5).unwrap().is_some_and(|copied| copied > 0) {}
    write(&pool, 2000..3000, 2);
    pool.export().unwrap();
    drop(pool);
    let mut both = vec![Arc::clone(&sims[0]), old];
    for seed in 0..4 {
        let pool = open(&both);
        assert_eq!(states(&pool), [Online, Filling]);
        drop(pool);
        both = after(&both, Some(seed));
    }
    let pool = open(&both);
    fill(&pool);
    pool.export().unwrap();
    each_has_all(&both, 0..3000, 2);
    each_has_all(&both, 3000..ALL.end, 1);
}

/// Of all power cuts within a history in which a device goes, comes back and is filled, none makes it whole that lacks
/// something.
#[test]
fn no_power_cut_makes_a_device_whole_that_lacks_something() {
    for calls in (0..300).step_by(7) {
        for victim in 0..2 {
            let sims = filled_with(0..800);
            let pool = open(&sims[..1]);
            try_write(&pool, 0..60, 2).unwrap();
            pool.checkpoint(false).unwrap();
            pool.online(device(&sims[1])).unwrap();
            sims[victim].cut_after(calls);
            let mut written = 60;
            let mut work = || -> pagefold_engine::Result<()> {
                for _ in 0..4 {
                    try_write(&pool, written..written + 10, 2)?;
                    written += 10;
                    pool.fill_step(5)?;
                    pool.checkpoint(false)?;
                    pool.fill_step(5)?;
                }
                while pool.fill_step(5)?.is_some() {}
                Ok(())
            };
            // It ends early if the power of the only device that is whole goes.
            let _ = work();
            drop(pool);
            let both = after(&sims, Some(calls));
            let pool = open(&both);
            for device in pool.device_status() {
                if matches!(device.state, Faulted | Offline | Missing) {
                    pool.online(Arc::clone(&both[usize::from(device.number)]) as Arc<dyn Device>).unwrap();
                }
            }
            fill(&pool);
            assert_eq!(states(&pool), [Online, Online]);
            pool.export().unwrap();
            each_has_all(&both, 0..written, 2);
            each_has_all(&both, 100..800, 1);
        }
    }
}
