//! Pools of which a half becomes a pool of its own, while they are used, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod mirrored;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, OneDevice, SimDevice, SimOp};
use pagefold_engine::pool::{DeviceState, Guid, Label, Pool};

const HALF: Guid = Guid(*b"a half of a tank");

/// The devices by the pool that their labels name, without those that hold none.
fn by_pool(sims: &[Arc<SimDevice>]) -> BTreeMap<Guid, Sims> {
    let mut found: BTreeMap<Guid, Sims> = BTreeMap::new();
    for sim in sims {
        if let Ok(label) = Label::read(OneDevice::of(sim.as_ref())) {
            found.entry(label.pool).or_default().push(Arc::clone(sim));
        }
    }
    found
}

fn half_of(sims: &[Arc<SimDevice>]) -> Sims {
    by_pool(sims).remove(&HALF).unwrap_or_default()
}

#[test]
fn a_half_is_a_pool_of_its_own_and_the_rest_goes_on() {
    for (groups, members) in [(1, 2), (2, 2), (1, 3), (3, 2)] {
        let sims = fresh(groups, members);
        let pool = open(&sims);
        write(&pool, 0..300, 1);
        pool.snapshot(&[""], "before", 1).unwrap();
        write(&pool, 100..200, 2);
        let last: Vec<u16> = (1..=groups).map(|group| (group * members) as u16 - 1).collect();
        assert_eq!(pool.planned_split(&[]).unwrap(), last);
        assert_eq!(pool.split("half", HALF, &[]).unwrap().len(), groups);
        let left: Vec<u16> = (0..(groups * members) as u16).filter(|number| !last.contains(number)).collect();
        assert_eq!(numbers(&pool), left);
        assert!(pool.device_status().iter().all(|device| device.state == DeviceState::Online));
        write(&pool, 300..400, 3);
        has(&pool, 300..400, 3);
        // The half holds what the pool held then, and nothing of what came later.
        let half_sims = half_of(&sims);
        assert_eq!(half_sims.len(), groups);
        let half = open(&half_sims);
        assert_eq!((half.name(), half.guid()), ("half", HALF));
        assert!(half.replayed().clean, "it was exported: {:?}", half.replayed());
        let verify = |pool: &Pool| {
            has(pool, 0..100, 1);
            has(pool, 100..200, 2);
            has(pool, 200..300, 1);
            is_sound(pool);
        };
        verify(&half);
        assert!(half.list().unwrap().iter().any(|listed| listed.path == "@before"));
        // Each goes on for itself.
        write(&half, 300..500, 4);
        write(&pool, 0..300, 5);
        has(&half, 0..100, 1);
        half.scrub_start(1, 0).unwrap();
        while half.scrub_step(2).unwrap().is_some() {}
        assert_eq!(half.status().scrub.damaged, 0);
        drop((pool, half));
        let crashed = after(&sims, Some(5));
        let mut pools = by_pool(&crashed);
        let half = open(&pools.remove(&HALF).unwrap());
        verify(&half);
        has(&half, 300..500, 4);
        let (_, ours) = pools.pop_first().unwrap();
        let pool = open(&ours);
        has(&pool, 0..300, 5);
        has(&pool, 300..400, 3);
        is_sound(&pool);
        // Together they are no pool.
        drop((pool, half));
        assert!(matches!(try_open(&crashed), Err(Error::Invalid(_))));
    }
}

#[test]
fn devices_can_be_chosen() {
    let sims = fresh(2, 2);
    let pool = open(&sims);
    write(&pool, 0..100, 1);
    assert_eq!(pool.planned_split(&[0]).unwrap(), [0, 3]);
    pool.split("half", HALF, &[2, 0]).unwrap();
    assert_eq!(numbers(&pool), [1, 3]);
    write(&pool, 0..100, 2);
    let half = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[2])]);
    has(&half, 0..100, 1);
    // The rest is no mirror; the half can get its mirrors, and be split itself.
    assert!(matches!(pool.planned_split(&[]), Err(Error::Invalid(_))));
    for (beside, seed) in [(0, 50), (2, 51)] {
        half.attach(beside, sim(seed), false).unwrap();
    }
    fill(&half);
    let quarter = Guid(*b"a quarter, again");
    half.split("quarter", quarter, &[0, 2]).unwrap();
    let quarter = open(&by_pool(&sims).remove(&quarter).unwrap());
    has(&quarter, 0..100, 1);
    has(&half, 0..100, 1);
    is_sound(&quarter);
}

#[test]
fn senseless_wishes_are_refused() {
    let refused = |pool: &Pool, name: &str, guid: Guid, named: &[u16]| {
        let refused = pool.split(name, guid, named);
        assert!(matches!(refused, Err(Error::Invalid(_) | Error::Busy(_))), "{refused:?}");
        refused.unwrap_err().to_string()
    };
    let pool = open(&fresh(2, 1));
    assert!(refused(&pool, "half", HALF, &[]).contains("no mirror"));
    let sims = fresh(2, 2);
    let pool = open(&sims);
    write(&pool, 0..200, 1);
    refused(&pool, "1half", HALF, &[]);
    refused(&pool, "half", Guid::NONE, &[]);
    refused(&pool, "half", pool.guid(), &[]);
    assert!(refused(&pool, "half", HALF, &[0, 1]).contains("one mirror"));
    assert!(refused(&pool, "half", HALF, &[9]).contains("number 9"));
    // A device that is not whole, named or not.
    pool.offline(1).unwrap();
    assert!(refused(&pool, "half", HALF, &[1]).contains("wait until it is whole"));
    assert!(refused(&pool, "half", HALF, &[]).contains("only device"));
    pool.online(Arc::clone(&sims[1]) as _).unwrap();
    refused(&pool, "half", HALF, &[1]);
    fill(&pool);
    // A replacement, and a removal.
    pool.attach(0, sim(9), true).unwrap();
    assert!(refused(&pool, "half", HALF, &[]).contains("replaced"));
    fill(&pool);
    pool.remove_group(1).unwrap();
    assert!(refused(&pool, "half", HALF, &[]).contains("removed"));
    pool.keep_group(1).unwrap();
    // A spare that stands in.
    pool.add_spares(vec![sim(30) as Arc<dyn Device>]).unwrap();
    sims[3].inject(InjectedFault { op: SimOp::Write, range: 0..1 << 40, skip: 0, times: u64::MAX });
    write(&pool, 200..2000, 1);
    while pool.spare_step(5).unwrap() {}
    fill(&pool);
    assert!(refused(&pool, "half", HALF, &[]).contains("stands in"));
    assert!(half_of(&sims).is_empty());
    has(&pool, 0..2000, 1);
}

/// The half has nothing that is not its own.
#[test]
fn spares_and_a_balance_stay_with_the_pool() {
    let mut sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..4000, 1);
    let new = sims_of(&[20, 21]);
    pool.add_groups(vec![handles(&new)]).unwrap();
    sims.extend(new);
    pool.add_spares(vec![sim(30) as Arc<dyn Device>]).unwrap();
    assert!(pool.balance().unwrap());
    pool.balance_step(1).unwrap();
    pool.split("half", HALF, &[]).unwrap();
    assert_eq!(pool.spares().len(), 1);
    while pool.balance_step(1).unwrap().is_some() {}
    has(&pool, 0..4000, 1);
    let half = open(&half_of(&sims));
    assert!(half.spares().is_empty() && !half.balance_status().under_way);
    has(&half, 0..4000, 1);
    is_sound(&half);
}

fn sims_of(seeds: &[u64]) -> Sims {
    seeds.iter().map(|seed| sim(*seed)).collect()
}

/// Pages are written one after the other, each durably: the half has all of them up to one, which was written during the
/// call.
#[test]
fn a_half_holds_what_was_acknowledged_at_one_instant() {
    for round in 0..3 {
        let sims = fresh(2, 2);
        let pool = open(&sims);
        let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (mut least, mut most) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while !stop.load(Ordering::SeqCst) {
                    write(&pool, at..at + 1, 1);
                    at += 1;
                    acknowledged.store(at, Ordering::SeqCst);
                }
            });
            while acknowledged.load(Ordering::SeqCst) < 20 * (round + 1) {
                std::thread::yield_now();
            }
            least = acknowledged.load(Ordering::SeqCst);
            pool.split("half", HALF, &[]).unwrap();
            most = acknowledged.load(Ordering::SeqCst) + 1;
            stop.store(true, Ordering::SeqCst);
        });
        let half = open(&half_of(&sims));
        has(&half, 0..least, 1);
        let is_there = |at: &u64| {
            let mut out = vec![0; PAGE as usize];
            half.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).unwrap();
            out.iter().any(|byte| *byte != 0)
        };
        let held = (0..most + 50).take_while(is_there).count() as u64;
        assert!((least..=most).contains(&held), "{held}, and {least} to {most} were acknowledged");
        assert_eq!((held..most + 50).filter(is_there).count(), 0);
        has(&half, 0..held, 1);
        has(&pool, 0..acknowledged.load(Ordering::SeqCst), 1);
        is_sound(&half);
        is_sound(&pool);
    }
}

/// The power of one device fails at each point, and then that of all: the split has happened as a whole, or not at all; and
/// each device is of one pool.
#[test]
fn a_power_cut_at_any_point_leaves_one_pool_or_two() {
    for groups in [1, 2] {
        let mut seen = BTreeMap::new();
        for calls in 0..90 * groups as u64 {
            let victim = calls as usize % (2 * groups);
            let sims = fresh(groups, 2);
            let pool = open(&sims);
            write(&pool, 0..120, 1);
            sims[victim].cut_after(calls / (2 * groups as u64));
            let split = pool.split("half", HALF, &[]);
            let written = try_write(&pool, 120..140, 1);
            drop(pool);
            let all = after(&sims, Some(calls));
            if split.is_ok() {
                assert_eq!(half_of(&all).len(), groups, "calls {calls}");
            }
            // The pool is opened first, with what its devices are by their labels.
            let mut pools = by_pool(&all);
            pools.remove(&HALF);
            let (_, ours) = pools.pop_first().unwrap();
            let pool = open(&ours);
            has(&pool, 0..120, 1);
            if written.is_ok() {
                has(&pool, 120..140, 1);
            }
            write(&pool, 140..160, 1);
            let half = half_of(&all);
            let there = numbers(&pool);
            let left = if half.is_empty() { 2 * groups } else { groups };
            assert_eq!(there.len(), left, "calls {calls}: {there:?}, {split:?}");
            *seen.entry((split.is_ok(), half.is_empty())).or_insert(0) += 1;
            fill(&pool);
            is_sound(&pool);
            if half.is_empty() {
                // It can be split now, unless a device was left out when its power failed.
                if states(&pool).iter().all(|state| *state == DeviceState::Online) {
                    pool.split("half", HALF, &[]).unwrap();
                }
            } else {
                assert_eq!(half.len(), groups, "calls {calls}: {split:?}");
                let half = open(&half);
                assert_eq!(half.name(), "half");
                has(&half, 0..120, 1);
                write(&half, 120..180, 7);
                is_sound(&half);
                has(&pool, 140..160, 1);
            }
        }
        let of = |split, none| seen.get(&(split, none)).copied().unwrap_or(0);
        // Some calls fail when the split is done already: then the next opening has finished it.
        assert!(of(false, true) > 20 && of(true, false) > 5 && of(false, false) > 1, "{seen:?}");
        assert_eq!(of(true, true), 0, "{seen:?}");
    }
}

/// Devices that were to leave, and whose split has not happened, get what they lack.
#[test]
fn a_split_that_fails_is_undone() {
    let sims = fresh(2, 2);
    let pool = open(&sims);
    write(&pool, 0..120, 1);
    // The labels of one that stays cannot be written.
    sims[0].inject(InjectedFault { op: SimOp::Write, range: 0..4096, skip: 0, times: 1 });
    let failed = pool.split("half", HALF, &[]);
    assert!(failed.is_err(), "{failed:?}");
    assert!(half_of(&sims).is_empty());
    write(&pool, 120..200, 1);
    fill(&pool);
    assert_eq!(states(&pool), [DeviceState::Online; 4]);
    pool.split("half", HALF, &[]).unwrap();
    has(&open(&half_of(&sims)), 0..200, 1);
}

/// A device cannot be given its new label: the split has happened all the same, and nobody gets the device back.
#[test]
fn a_device_that_has_no_new_label_yet_is_left_alone() {
    for again in [false, true] {
        let sims = fresh(2, 2);
        let pool = open(&sims);
        write(&pool, 0..120, 1);
        // The last copy of the label, which is written before the first one.
        let last = 129 * MIB..129 * MIB + 4096;
        sims[3].inject(InjectedFault { op: SimOp::Write, range: last, skip: 0, times: u64::MAX });
        let failed = pool.split("half", HALF, &[]).unwrap_err().to_string();
        assert!(failed.contains("the pool is split"), "{failed}");
        assert_eq!(half_of(&sims).len(), 1);
        write(&pool, 120..200, 1);
        for refused in [pool.detach(3), pool.online(Arc::clone(&sims[3]) as _).map(|_| ())] {
            assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        }
        assert!(fill(&pool) == 0, "nobody writes to it");
        sims[3].clear_faults();
        let pool = if again {
            // Whoever splits the pool again finishes that first.
            let refused = pool.split("other", Guid(*b"another half ..."), &[]);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            pool
        } else {
            drop(pool);
            open(&[&sims[0], &sims[2], &sims[3]].map(Arc::clone))
        };
        assert_eq!(numbers(&pool), [0, 2]);
        has(&pool, 0..200, 1);
        let half = open(&half_of(&sims));
        has(&half, 0..120, 1);
        is_sound(&half);
        is_sound(&pool);
    }
}

/// An older copy takes the place of a device whose split is done, before that has its new label.
#[test]
fn an_older_copy_of_a_device_that_leaves_is_no_half() {
    for forgotten in [false, true] {
        let sims = fresh(1, 2);
        let pool = open(&sims);
        write(&pool, 0..120, 1);
        pool.checkpoint(false).unwrap();
        let old = after(&sims[1..], None).remove(0);
        write(&pool, 0..120, 2);
        let last = 129 * MIB..129 * MIB + 4096;
        sims[1].inject(InjectedFault { op: SimOp::Write, range: last, skip: 0, times: u64::MAX });
        let failed = pool.split("half", HALF, &[]).unwrap_err().to_string();
        assert!(failed.contains("the pool is split"), "{failed}");
        sims[1].clear_faults();
        drop(pool);
        if forgotten {
            // The pool was open without it in between.
            assert_eq!(numbers(&open(&sims[..1])), [0]);
        }
        let pool = open(&[&sims[0], &old].map(Arc::clone));
        assert!(half_of(&[old]).is_empty());
        assert!(fill(&pool) == 0, "nobody writes to it");
        drop(pool);
        let pool = open(&sims);
        assert_eq!(numbers(&pool), [0]);
        let half = open(&half_of(&sims));
        has(&half, 0..120, 2);
        is_sound(&half);
    }
}

/// Where the pool did not write, the half keeps what it wrote while it was a pool of its own: batches of the same log, with
/// numbers that the pool has yet to reach.
#[test]
fn a_half_that_was_used_more_than_the_pool_comes_back() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..50, 1);
    pool.split("half", HALF, &[]).unwrap();
    let half_sims = half_of(&sims);
    let half = open(&half_sims);
    for version in 2..400 {
        write(&half, 0..8, version);
    }
    drop(half);
    pool.attach(0, half_sims[0].clone(), false).unwrap();
    fill(&pool);
    for version in 2..40 {
        write(&pool, 0..50, version);
        let pool = open(&without_unflushed(&sims));
        has(&pool, 0..50, version);
    }
}
