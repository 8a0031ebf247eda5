//! Adding devices to a pool that is open: it grows at one instant, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{OpenOptions, Pool, capacity_bytes};

fn capacity(pool: &Pool) -> u64 {
    pool.space().capacity_bytes
}

#[test]
fn a_full_pool_goes_on_with_more_devices() {
    let mut all = fresh(1, 1);
    let pool = open(&all);
    let before = capacity(&pool);
    assert_eq!(before, capacity_bytes(&[SIZE]));
    let full = (0..).step_by(50).find(|at| try_write(&pool, *at..at + 50, 1).is_err()).unwrap();
    assert!(matches!(try_write(&pool, full..full + 50, 1), Err(Error::NoSpace(_))));
    let new = sims(1..4);
    // A device, and a mirror.
    pool.add_groups(vec![handles(&new[..1]), handles(&new[1..])]).unwrap();
    all.extend(new);
    assert_eq!(capacity(&pool), capacity_bytes(&[SIZE; 3]));
    assert!(capacity(&pool) > 3 * before);
    try_write(&pool, full..full * 5 / 2, 1).unwrap();
    has(&pool, 0..full * 5 / 2, 1);
    is_sound(&pool);
    pool.export().unwrap();
    drop(pool);
    // Either device of the mirror may be missing, the others not.
    for (missing, works) in [(0, false), (1, false), (2, true), (3, true)] {
        let left: Sims =
            all.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, sim)| Arc::clone(sim)).collect();
        let read_only = OpenOptions { read_only: true, ..options() };
        let opened = Pool::open_on(handles(&left), &read_only);
        assert_eq!(opened.is_ok(), works, "without {missing}: {:?}", opened.err());
    }
    let pool = open(&all);
    has(&pool, 0..full * 5 / 2, 1);
    assert_eq!(pool.device_status().len(), 4);
    let again = sims(4..5);
    pool.add_groups(vec![handles(&again)]).unwrap();
    all.extend(again);
    try_write(&pool, 0..full, 2).unwrap();
    drop(pool);
    // It was not exported.
    let pool = open(&all);
    has(&pool, 0..full, 2);
    has(&pool, full..full * 5 / 2, 1);
    assert_eq!(capacity(&pool), capacity_bytes(&[SIZE; 4]));
}

/// The power fails after each call to a device: the pool has the new devices, or does not know them and opens without
/// them.
#[test]
fn a_power_cut_at_any_point_leaves_the_pool_with_the_new_devices_or_without_them() {
    let (mut with, mut without) = (0, 0);
    for members in [1, 2] {
        for (cut, calls) in (0..=members).flat_map(|cut| (0..200).map(move |calls| (cut, calls))) {
            let old = fresh(1, members as usize);
            let new = sims(members..members * 2);
            let all: Sims = old.iter().chain(&new).cloned().collect();
            let pool = open(&old);
            try_write(&pool, 0..100, 1).unwrap();
            // The cut is of all: none is written after it.
            let victim = &all[cut as usize];
            victim.cut_after(calls);
            let done = pool.add_groups(vec![handles(&new)]).and_then(|()| try_write(&pool, 100..200, 1));
            let reached = victim.is_off();
            drop(pool);
            if reached && members == 2 && done.is_ok() {
                // A mirror goes on without its device.
                continue;
            }
            for seed in [None, Some(calls)] {
                let all = after(&all, seed);
                let pool = open(&all);
                has(&pool, 0..100, 1);
                if done.is_ok() {
                    has(&pool, 100..200, 1);
                }
                is_sound(&pool);
                let grown = capacity(&pool) > capacity_bytes(&[SIZE]);
                if done.is_ok() {
                    assert!(grown);
                }
                try_write(&pool, 0..10, 2).unwrap();
                pool.export().unwrap();
                drop(pool);
                if grown {
                    with += 1;
                    assert!(try_open(&all[..members as usize]).is_err());
                } else {
                    without += 1;
                    // Others can be added in their place, and these do no harm.
                    let other: Sims = all[..members as usize]
                        .iter()
                        .map(|sim| Arc::new(sim.crash(&mut |contents| contents - 1)))
                        .collect();
                    let left: Sims = all[members as usize..]
                        .iter()
                        .map(|sim| Arc::new(sim.crash(&mut |contents| contents - 1)))
                        .collect();
                    let fresh = sims(10..10 + members);
                    let pool = open(&[other.as_slice(), &left].concat());
                    pool.add_groups(vec![handles(&fresh)]).unwrap();
                    try_write(&pool, 10..20, 2).unwrap();
                    drop(pool);
                    let pool = open(&[left.as_slice(), &other, &fresh].concat());
                    has(&pool, 0..20, 2);
                    drop(pool);
                    // They can be added now.
                    let pool = open(&all[..members as usize]);
                    pool.add_groups(vec![handles(&all[members as usize..])]).unwrap();
                    has(&pool, 0..10, 2);
                    drop(pool);
                }
                let pool = open(&all);
                has(&pool, 0..10, 2);
                has(&pool, 10..100, 1);
                assert_eq!(capacity(&pool), capacity_bytes(&[SIZE; 2]));
            }
            if !reached {
                break;
            }
        }
    }
    assert!(with > 10 && without > 10, "{with} with the new devices, {without} without");
}

#[test]
fn a_device_that_fails_is_not_added() {
    let old = fresh(1, 1);
    let pool = open(&old);
    try_write(&pool, 0..100, 1).unwrap();
    let new = sims(1..2);
    new[0].inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    assert!(matches!(pool.add_groups(vec![handles(&new)]), Err(Error::Io { .. })));
    assert_eq!(capacity(&pool), capacity_bytes(&[SIZE]));
    assert_eq!(pool.device_status().len(), 1);
    // The pool goes on, and takes another one.
    try_write(&pool, 100..200, 1).unwrap();
    let other = sims(2..3);
    pool.add_groups(vec![handles(&other)]).unwrap();
    try_write(&pool, 200..300, 1).unwrap();
    drop(pool);
    let pool = open(&[Arc::clone(&old[0]), Arc::clone(&other[0])]);
    has(&pool, 0..300, 1);
}

#[test]
fn senseless_wishes_are_refused() {
    let old = fresh(1, 2);
    let pool = open(&old);
    let small: Arc<dyn Device> = Arc::new(SimDevice::new(20 * MIB, 9));
    let is_invalid = |groups| matches!(pool.add_groups(groups), Err(Error::Invalid(_)));
    assert!(is_invalid(vec![vec![small]]));
    assert!(is_invalid(vec![vec![]]));
    assert!(is_invalid(vec![handles(&sims(1..6))]));
    assert_eq!(pool.device_status().len(), 2);
    drop(pool);
    let read_only = OpenOptions { read_only: true, ..options() };
    let pool = Pool::open_on(handles(&old), &read_only).unwrap();
    assert!(matches!(pool.add_groups(vec![handles(&sims(1..2))]), Err(Error::ReadOnly(_))));
}

/// A label of a mirror is written again, because a device failed, while others are being added: it may not tell of these
/// before they count.
#[test]
fn a_mirror_that_loses_a_device_meanwhile_does_not_tell_of_groups_that_do_not_count_yet() {
    for skip in 0..30 {
        let old = fresh(1, 2);
        let new = sims(2..3);
        let pool = open(&old);
        try_write(&pool, 0..100, 1).unwrap();
        old[1].inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip, times: u64::MAX });
        let done = pool.add_groups(vec![handles(&new)]);
        done.unwrap();
        try_write(&pool, 100..200, 1).unwrap();
        drop(pool);
        let all: Sims = [&old[0], &new[0]].map(Arc::clone).to_vec();
        let pool = open(&after(&all, None));
        has(&pool, 0..200, 1);
        is_sound(&pool);
    }
}
