//! Groups of devices that become equally full while the pool is used, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{DeviceState, Obstacle, Pool, Shift};

const CHUNK: u64 = pagefold_engine::limits::CHUNK_BYTES;

/// Does all that is to be done for a balance. Returns the bytes that were moved.
#[track_caller]
fn finish(pool: &Pool) -> u64 {
    let mut moved = 0;
    for _ in 0..10_000 {
        match pool.balance_step(7).unwrap() {
            Some(bytes) => moved += bytes,
            None => {
                let status = pool.balance_status();
                assert_eq!((status.under_way, status.obstacle, status.left_bytes), (false, None, 0));
                assert_eq!((status.finished, status.moved_bytes), (7, moved));
                return moved;
            }
        }
    }
    panic!("the balance does not end: {:?}", pool.balance_status());
}

/// Chunks of each group: those in use, and all.
fn fills(pool: &Pool) -> Vec<(u64, u64)> {
    let all = pool.device_status();
    let groups = all.chunk_by(|a, b| a.group == b.group).filter_map(|group| group.first());
    let of = |allocated: u64, free: u64| (allocated / CHUNK, (allocated + free) / CHUNK);
    groups.map(|device| of(device.allocated_bytes, device.free_bytes)).collect()
}

/// Chunks that lie beyond what each group is to have.
fn uneven(pool: &Pool) -> f64 {
    let fills = fills(pool);
    let (used, total) = fills.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let more = |(of, all): &(u64, u64)| *of as f64 - *all as f64 * used as f64 / total as f64;
    fills.iter().map(more).filter(|more| *more > 0.0).sum()
}

#[track_caller]
fn is_even(pool: &Pool) {
    assert!(pool.planned_balance().is_empty(), "{:?}", fills(pool));
    assert!(uneven(pool) <= 2.0 * fills(pool).len() as f64, "{:?}", fills(pool));
}

/// A pool whose first group is full by the given part, and whose others were added then, with what it holds.
fn lopsided(members: usize, groups: usize, percent: u64) -> (Sims, Arc<Pool>, u64) {
    let mut sims = fresh(1, members);
    let pool = open(&sims);
    let (mut end, capacity) = (0, pool.space().capacity_bytes);
    while pool.space().used_bytes < capacity / 100 * percent {
        write(&pool, end..end + 50, 1);
        end += 50;
    }
    for group in 1..groups {
        let new: Sims = (0..members).map(|member| sim((10 * group + member) as u64)).collect();
        pool.add_groups(vec![handles(&new)]).unwrap();
        sims.extend(new);
    }
    (sims, pool, end)
}

#[test]
fn devices_that_were_added_get_their_part_and_nothing_is_lost() {
    for members in [1, 2] {
        for groups in [2, 3] {
            let (sims, pool, end) = lopsided(members, groups, 60);
            pool.snapshot(&[""], "before", 1).unwrap();
            let needed = uneven(&pool) as u64 * CHUNK;
            let planned: u64 = pool.planned_balance().iter().map(|Shift { chunks, .. }| chunks * CHUNK).sum();
            assert!(planned > 0 && planned <= needed, "{planned} of {needed}");
            assert!(pool.balance().unwrap());
            let moved = finish(&pool);
            assert!(moved <= needed / 10 * 12, "{moved} bytes were moved, and {needed} lay beyond");
            is_even(&pool);
            has(&pool, 0..end, 1);
            is_sound(&pool);
            // Records that were moved are at their new places after a crash, too, and it is not forgotten that all is even.
            let crashed = after(&sims, Some(3));
            drop(pool);
            let pool = open(&crashed);
            assert!(!pool.balance_status().under_way);
            assert!(!pool.balance().unwrap(), "it is even: {:?}", fills(&pool));
            assert_eq!(pool.balance_step(7).unwrap(), None);
            has(&pool, 0..end, 1);
        }
    }
}

#[test]
fn devices_of_other_sizes_get_what_is_theirs() {
    let (mut sims, pool, end) = lopsided(1, 1, 70);
    let large = Arc::new(SimDevice::new(3 * sims[0].size_bytes(), 5));
    pool.add_groups(vec![handles(&[Arc::clone(&large)])]).unwrap();
    sims.push(large);
    assert!(pool.balance().unwrap());
    finish(&pool);
    is_even(&pool);
    let fills = fills(&pool);
    assert!(fills[1].0 > 2 * fills[0].0, "{fills:?}");
    has(&pool, 0..end, 1);
    is_sound(&pool);
}

/// Writers go on meanwhile: it ends all the same, and moves no more for it.
#[test]
fn it_ends_while_the_pool_is_written_to() {
    let (_, pool, end) = lopsided(1, 2, 60);
    let needed = uneven(&pool) as u64 * CHUNK;
    assert!(pool.balance().unwrap());
    let mut version = 2;
    let mut steps = 0;
    while pool.balance_status().under_way {
        steps += 1;
        assert!(steps < 1000, "{:?}", pool.balance_status());
        pool.balance_step(7).unwrap();
        let at = steps * 40 % (end - 40);
        write(&pool, at..at + 40, version);
        pool.maintain().unwrap();
        write(&pool, at..at + 40, 1);
        version += 1;
    }
    assert!(pool.balance_status().moved_bytes <= needed / 10 * 12);
    has(&pool, 0..end, 1);
    is_sound(&pool);
}

#[test]
fn senseless_wishes_are_refused() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    let invalid = |done: pagefold_engine::Result<String>| {
        assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
    };
    invalid(pool.balance().map(|begun| begun.to_string()));
    invalid(pool.stop_balance().map(|()| String::new()));
    let (sims, pool, _) = lopsided(1, 2, 50);
    assert!(pool.balance().unwrap());
    invalid(pool.balance().map(|begun| begun.to_string()));
    pool.stop_balance().unwrap();
    invalid(pool.stop_balance().map(|()| String::new()));
    assert_eq!(pool.balance_step(7).unwrap(), None);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    assert!(!pool.balance_status().under_way, "it was stopped");
}

/// The power fails at each point: the pool opens, the balance goes on, and nothing is lost.
#[test]
fn a_power_cut_at_any_point_leaves_a_pool_in_which_it_goes_on() {
    let mut went_on = 0;
    for calls in 0..40 {
        let (sims, pool, end) = lopsided(1, 2, 30);
        assert!(pool.balance().unwrap());
        sims[calls as usize % 2].cut_after(calls);
        while matches!(pool.balance_step(7), Ok(Some(_))) {}
        let written = try_write(&pool, end..end + 20, 1);
        drop(pool);
        let sims = after(&sims, Some(calls));
        let pool = open(&sims);
        let status = pool.balance_status();
        went_on += u64::from(status.under_way);
        assert_eq!(status.moved_bytes, 0);
        if status.under_way {
            finish(&pool);
        }
        is_even(&pool);
        has(&pool, 0..end, 1);
        if written.is_ok() {
            has(&pool, end..end + 20, 1);
        }
        is_sound(&pool);
    }
    assert!(went_on > 8, "{went_on}");
}

#[test]
fn it_goes_on_after_an_export() {
    let (sims, pool, end) = lopsided(2, 3, 60);
    assert!(pool.balance().unwrap());
    assert!(pool.balance_step(7).unwrap() > Some(0));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    assert!(pool.balance_status().under_way && pool.balance_status().left_bytes > 0);
    finish(&pool);
    is_even(&pool);
    has(&pool, 0..end, 1);
}

#[test]
fn a_removal_comes_first() {
    let (sims, pool, end) = lopsided(1, 3, 40);
    assert!(pool.balance().unwrap());
    pool.remove_group(1).unwrap();
    assert_eq!(pool.balance_step(7).unwrap(), None);
    assert_eq!(pool.balance_status().obstacle, Some(Obstacle::Removal));
    while pool.removal_step(7).unwrap().is_some() {}
    finish(&pool);
    is_even(&pool);
    assert_eq!(pool.device_status().len(), 2);
    has(&pool, 0..end, 1);
    // If all others leave, there is nothing to balance any more.
    pool.add_groups(vec![handles(&[sim(77)])]).unwrap();
    assert!(pool.balance().unwrap());
    for group in [2, 3] {
        pool.remove_group(group).unwrap();
        while pool.removal_step(7).unwrap().is_some() {}
    }
    finish(&pool);
    is_sound(&pool);
    drop(sims);
}

/// A mirror of which a device is missing is balanced as any other; the device gets what it lacks when it is back.
#[test]
fn mirrors_without_one_of_their_devices_are_balanced() {
    let (sims, pool, end) = lopsided(2, 2, 50);
    pool.offline(1).unwrap();
    pool.offline(2).unwrap();
    assert!(pool.balance().unwrap());
    finish(&pool);
    is_even(&pool);
    for number in [1, 2] {
        pool.online(Arc::clone(&sims[number]) as _).unwrap();
    }
    while pool.fill_step(7).unwrap().is_some() {}
    assert!(pool.device_status().iter().all(|device| device.state == DeviceState::Online));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&[Arc::clone(&sims[1]), Arc::clone(&sims[2])]);
    has(&pool, 0..end, 1);
    is_sound(&pool);
}

/// A pool that is nearly full has room for passes all the same, or waits; writers are refused no sooner for it.
#[test]
fn a_pool_that_is_nearly_full_is_balanced() {
    let (_, pool, mut end) = lopsided(1, 1, 80);
    let new = sim(9);
    pool.add_groups(vec![handles(&[new])]).unwrap();
    assert!(pool.balance().unwrap());
    let capacity = pool.space().capacity_bytes;
    while pool.space().used_bytes < capacity / 100 * 95 {
        write(&pool, end..end + 50, 1);
        end += 50;
    }
    finish(&pool);
    has(&pool, 0..end, 1);
    is_sound(&pool);
}

#[test]
fn what_cannot_be_read_stays_and_the_balance_ends() {
    let (sims, pool, end) = lopsided(1, 2, 60);
    pool.checkpoint(false).unwrap();
    assert!(pool.balance().unwrap());
    sims[0].inject(InjectedFault { op: SimOp::Read, range: MIB..1 << 40, skip: 0, times: u64::MAX });
    let mut steps = 0;
    while pool.balance_step(7).unwrap().is_some() {
        steps += 1;
        assert!(steps < 500);
    }
    let status = pool.balance_status();
    assert!(!status.under_way && status.finished == 7 && status.left_bytes > 0, "{status:?}");
    sims[0].clear_faults();
    has(&pool, 0..end, 1);
}
