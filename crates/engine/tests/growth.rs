//! Devices that grow: a pool takes that up while it is used, at one instant, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, SimOp};
use pagefold_engine::pool::{DeviceState, Pool};

/// Larger than a device by a reserved place, and by several.
const GROWN: [u64; 2] = [300 * MIB, 1100 * MIB];

fn capacity(pool: &Pool) -> u64 {
    pool.space().capacity_bytes
}

/// Writes pages until there is no room, from `first` on. Returns the first that was not written.
fn fill_up(pool: &Pool, first: u64) -> u64 {
    let mut at = first;
    loop {
        match try_write(pool, at..at + 100, 1) {
            Ok(()) => at += 100,
            Err(Error::NoSpace(_)) => {
                let _ = pool.sync();
                return at;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_full_pool_goes_on_when_its_device_has_grown() {
    for grown in GROWN {
        for members in [1, 2] {
            let mut sims = fresh(1, members);
            let pool = open(&sims);
            let before = capacity(&pool);
            let end = fill_up(&pool, 0);
            assert_eq!(pool.take_up_growth(Some(0)).unwrap(), 0, "nothing has grown");
            sims[0].grow(grown);
            if members == 2 {
                assert_eq!(pool.take_up_growth(Some(0)).unwrap(), 0, "its mirror has not grown");
                sims[1].grow(grown);
            }
            assert_eq!(pool.take_up_growth(None).unwrap(), 1);
            let after = capacity(&pool);
            assert!(after > before + before / 2, "{before} and {after} bytes");
            let later = fill_up(&pool, end);
            assert!(later > end + end / 2, "{end} and {later} pages");
            pool.checkpoint(false).unwrap();
            // It is as large after a crash, and after an export; each device alone is enough.
            sims = self::after(&sims, Some(3));
            drop(pool);
            let pool = open(&sims);
            assert_eq!(capacity(&pool), after);
            has(&pool, 0..later - 100, 1);
            is_sound(&pool);
            pool.export().unwrap();
            drop(pool);
            for alone in self::after(&sims, None) {
                let pool = open(&[alone]);
                assert_eq!(capacity(&pool), after);
                has(&pool, later - 600..later - 100, 1);
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_point_leaves_the_pool_as_large_as_before_or_larger() {
    let mut seen = [0, 0];
    // Every point with one device, and a quarter of them with two, others for each size.
    for (turn, grown) in GROWN.into_iter().enumerate() {
        for members in [1, 2] {
            let points = (turn..140).step_by(if members == 1 && turn == 0 { 1 } else { 4 });
            for (calls, victim) in points.flat_map(|calls| (0..members).map(move |at| (calls as u64, at))) {
                let sims = fresh(1, members);
                let pool = open(&sims);
                write(&pool, 0..100, 1);
                let before = capacity(&pool);
                sims.iter().for_each(|sim| sim.grow(grown));
                sims[victim].cut_after(calls);
                let done = pool.take_up_growth(None);
                let written = match &done {
                    Ok(_) => try_write(&pool, 100..200, 1).and_then(|()| pool.checkpoint(false)),
                    Err(_) => try_write(&pool, 100..110, 1),
                };
                drop(pool);
                let after = self::after(&sims, Some(calls));
                let pool = open(&after);
                let now = capacity(&pool);
                assert!(now == before || now > 2 * before, "{before} and {now} bytes");
                seen[usize::from(now > before)] += 1;
                has(&pool, 0..100, 1);
                if written.is_ok() {
                    has(&pool, 100..110, 1);
                }
                // It can be taken up again, and used.
                assert_eq!(pool.take_up_growth(None).unwrap_or(1), usize::from(now == before));
                write(&pool, 200..300, 1);
                pool.export().unwrap();
                drop(pool);
                let pool = open(&after);
                assert!(capacity(&pool) > before);
                has(&pool, 200..300, 1);
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 20), "{seen:?}");
}

#[test]
fn a_mirror_with_a_device_that_is_not_in_use_does_not_grow() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..100, 1);
    sims.iter().for_each(|sim| sim.grow(GROWN[0]));
    pool.offline(1).unwrap();
    let error = pool.take_up_growth(Some(0)).unwrap_err().to_string();
    assert!(error.contains("device 1") && error.contains("detach"), "{error}");
    assert_eq!(pool.take_up_growth(None).unwrap(), 0);
    pool.online(Arc::clone(&sims[1]) as Arc<dyn Device>).unwrap();
    assert_eq!(pool.take_up_growth(Some(0)).unwrap(), 1);
    fill(&pool);
    pool.export().unwrap();
    each_has_all(&sims, 0..100, 1);
}

/// The way to a larger mirror: larger discs take the places of the small ones.
#[test]
fn a_mirror_grows_when_its_small_devices_were_replaced() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    let before = capacity(&pool);
    let end = fill_up(&pool, 0);
    let large: Sims =
        [8, 9].map(|seed| Arc::new(pagefold_engine::device::SimDevice::new(GROWN[0], seed))).into();
    for (number, new) in large.iter().enumerate() {
        pool.attach(number as u16, Arc::clone(new) as Arc<dyn Device>, true).unwrap();
        fill(&pool);
        assert_eq!(pool.take_up_growth(None).unwrap(), usize::from(number == 1));
    }
    assert!(capacity(&pool) > before + before / 2);
    fill_up(&pool, end);
    pool.export().unwrap();
    each_has_all(&large, 0..end, 1);
}

/// A device fails while its label is written: it is left out, and the others grow.
#[test]
fn a_device_that_fails_meanwhile_is_left_out() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..100, 1);
    sims.iter().for_each(|sim| sim.grow(GROWN[1]));
    sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..u64::MAX, skip: 0, times: u64::MAX });
    assert_eq!(pool.take_up_growth(None).unwrap(), 1);
    let states: Vec<_> = states(&pool);
    assert_eq!(states, [DeviceState::Online, DeviceState::Faulted]);
    fill_up(&pool, 100);
    drop(pool);
    let both = after(&sims, Some(5));
    let pool = open(&both);
    has(&pool, 0..1000, 1);
    pool.online(Arc::clone(&both[1]) as Arc<dyn Device>).unwrap();
    fill(&pool);
    pool.export().unwrap();
    each_has_all(&both, 0..1000, 1);
}

#[test]
fn growth_is_taken_up_by_the_way_if_that_is_wanted() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    let before = capacity(&pool);
    sims[0].grow(GROWN[0]);
    pool.growth_step().unwrap();
    assert_eq!(capacity(&pool), before);
    pool.set_autoexpand(true);
    pool.growth_step().unwrap();
    assert!(capacity(&pool) > before);
}

/// Others ask for figures, write and make checkpoints while a full pool grows again and again.
#[test]
fn a_pool_grows_under_those_who_use_it() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    fill_up(&pool, 0);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let goes_on = || !ended.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    let space = pool.space();
                    assert!(space.available_bytes <= space.capacity_bytes);
                    let _ = (pool.status(), pool.totals(), pool.device_status(), pool.fill_status());
                }
            });
        }
        scope.spawn(|| {
            let mut at = 0;
            while goes_on() {
                let _ = try_write(&pool, at % 4000..at % 4000 + 10, 2);
                at += 10;
                if at % 300 == 0 {
                    let _ = pool.checkpoint(false);
                }
            }
        });
        for step in 1..=150 {
            sims.iter().for_each(|sim| sim.grow(SIZE + step * 8 * MIB));
            pool.take_up_growth(None).unwrap();
            pool.fill_step(step).unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    pool.export().unwrap();
    drop(pool);
    is_sound(&open(&sims));
}
