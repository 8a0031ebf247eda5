//! Devices that leave a pool which is used: everything moves off them, and then they are gone, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{DeviceState, Obstacle, Pool};

fn capacity(pool: &Pool) -> u64 {
    pool.space().capacity_bytes
}

/// Does all that is to be done for a removal. Returns the bytes that were moved.
#[track_caller]
fn finish(pool: &Pool) -> u64 {
    let mut moved = 0;
    for _ in 0..10_000 {
        match pool.removal_step(7).unwrap() {
            Some(bytes) => moved += bytes,
            None => {
                let status = pool.removal_status();
                assert_eq!((status.obstacle, status.finished, status.left_bytes), (None, 7, 0));
                return moved;
            }
        }
    }
    panic!("the removal does not end: {:?}", pool.removal_status());
}

/// Numbers of groups and devices.
fn layout(pool: &Pool) -> Vec<(u16, u16)> {
    pool.device_status().iter().map(|device| (device.group, device.number)).collect()
}

#[test]
fn a_group_leaves_with_all_of_its_devices_and_nothing_is_lost() {
    for members in [1, 2] {
        for leaves in [0, 1, 2] {
            let sims = fresh(3, members);
            let pool = open(&sims);
            let before = capacity(&pool);
            write(&pool, 0..3000, 1);
            pool.snapshot(&[""], "before", 1).unwrap();
            write(&pool, 1000..2000, 2);
            pool.remove_group(leaves).unwrap();
            assert!(capacity(&pool) < before, "its room counts no more");
            // It is used meanwhile.
            for round in 0..5 {
                pool.removal_step(7).unwrap();
                write(&pool, 2000 + round * 100..2100 + round * 100, 3);
            }
            finish(&pool);
            let status = pool.removal_status();
            assert!(status.group == Some(leaves) && status.moved_bytes > 0, "{status:?}");
            let stay: Sims = sims
                .chunks(members)
                .enumerate()
                .filter(|(group, _)| *group != usize::from(leaves))
                .flat_map(|(_, sims)| sims.to_vec())
                .collect();
            assert_eq!(pool.device_status().len(), stay.len());
            let verify = |pool: &Pool| {
                has(pool, 0..1000, 1);
                has(pool, 1000..2000, 2);
                has(pool, 2000..2500, 3);
                has(pool, 2500..3000, 1);
                is_sound(pool);
                assert!(!layout(pool).iter().any(|(group, _)| *group == leaves));
            };
            verify(&pool);
            // After a crash the others are enough; and the one that left is no part of it any more.
            let crashed = after(&stay, Some(u64::from(leaves)));
            let all: Sims = after(&sims, Some(u64::from(leaves)));
            drop(pool);
            verify(&open(&crashed));
            let with_it = open(&all);
            verify(&with_it);
            with_it.export().unwrap();
            drop(with_it);
            assert!(try_open(&sims[usize::from(leaves) * members..][..members]).is_err());
            // A device that was removed can be added again, and gets another number.
            let pool = open(&crashed);
            let small = capacity(&pool);
            pool.add_groups(vec![handles(&sims[usize::from(leaves) * members..][..members])]).unwrap();
            assert!(capacity(&pool) > small);
            assert!(layout(&pool).iter().any(|(group, _)| *group == 3));
            write(&pool, 3000..4000, 4);
            verify(&pool);
            has(&pool, 3000..4000, 4);
        }
    }
}

#[test]
fn devices_come_and_go_many_times() {
    let mut sims = fresh(2, 1);
    let pool = open(&sims);
    write(&pool, 0..1500, 1);
    for round in 0..8 {
        // The older one leaves: in the end none of the first is left.
        let oldest = layout(&pool)[0];
        let oldest = layout(&pool).into_iter().min().unwrap_or(oldest);
        pool.remove_group(oldest.0).unwrap();
        finish(&pool);
        let new = sim(100 + round);
        pool.add_groups(vec![handles(&[Arc::clone(&new)])]).unwrap();
        sims.push(new);
        write(&pool, 1500 + round * 50..1550 + round * 50, 2);
    }
    assert_eq!(layout(&pool).iter().map(|(group, _)| *group).collect::<Vec<_>>(), [8, 9]);
    has(&pool, 0..1500, 1);
    has(&pool, 1500..1900, 2);
    is_sound(&pool);
    pool.export().unwrap();
    drop(pool);
    let last = sims.split_off(sims.len() - 2);
    let pool = open(&last);
    has(&pool, 0..1500, 1);
    has(&pool, 1500..1900, 2);
}

#[test]
fn senseless_wishes_are_refused() {
    let sims = fresh(2, 2);
    let pool = open(&sims);
    write(&pool, 0..500, 1);
    let is_invalid =
        |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
    is_invalid(pool.remove_group(2));
    is_invalid(pool.remove_group(u16::MAX));
    is_invalid(pool.keep_group(0));
    assert_eq!(pool.removal_step(7).unwrap(), None);
    pool.remove_group(0).unwrap();
    is_invalid(pool.remove_group(0));
    is_invalid(pool.remove_group(1));
    finish(&pool);
    is_invalid(pool.remove_group(0));
    is_invalid(pool.keep_group(0));
    is_invalid(pool.remove_group(1));
    has(&pool, 0..500, 1);
}

#[test]
fn a_removal_that_is_given_up_leaves_a_pool_as_large_as_before() {
    let sims = fresh(2, 1);
    let pool = open(&sims);
    let before = capacity(&pool);
    write(&pool, 0..4000, 1);
    pool.remove_group(0).unwrap();
    pool.removal_step(7).unwrap();
    pool.removal_step(7).unwrap();
    pool.keep_group(0).unwrap();
    assert_eq!(capacity(&pool), before);
    assert_eq!(pool.removal_step(7).unwrap(), None);
    assert_eq!(pool.removal_status().group, None);
    write(&pool, 4000..6000, 2);
    has(&pool, 0..4000, 1);
    is_sound(&pool);
    // It is as large after a crash, too, and can be begun again.
    let sims = after(&sims, Some(1));
    drop(pool);
    let pool = open(&sims);
    assert_eq!(capacity(&pool), before);
    has(&pool, 4000..6000, 2);
}

#[test]
fn what_does_not_fit_the_others_is_not_begun() {
    let sims = fresh(2, 1);
    let pool = open(&sims);
    let before = capacity(&pool);
    let mut at = 0;
    while pool.space().used_bytes < before / 10 * 7 {
        write(&pool, at..at + 100, 1);
        at += 100;
    }
    let refused = pool.remove_group(1);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert_eq!(capacity(&pool), before);
    write(&pool, at..at + 100, 1);
    has(&pool, 0..at + 100, 1);
    is_sound(&pool);
}

/// Overwritten again and again, the other device has hardly a free chunk: room is made first, and writers go on.
#[test]
fn an_aged_pool_that_is_nearly_as_full_as_the_others_can_be() {
    for leaves in [0, 1] {
        let sims = fresh(2, 1);
        let pool = open(&sims);
        let alone = capacity(&open(&fresh(1, 1)));
        let mut end = 0;
        while pool.space().used_bytes < alone / 100 * 85 {
            write(&pool, end..end + 50, 0);
            end += 50;
        }
        for version in 1..=6 {
            for at in (0..end).filter(|at| (at * 7 + version).is_multiple_of(3)) {
                try_apply(&pool, at..at + 1, version).unwrap();
            }
            pool.sync().unwrap();
            pool.maintain().unwrap();
        }
        let newest = |at: u64| {
            (0..=6).rev().find(|version| *version == 0 || (at * 7 + version).is_multiple_of(3)).unwrap()
        };
        pool.remove_group(leaves).unwrap();
        let mut steps = 0;
        while pool.removal_status().finished == 0 {
            steps += 1;
            assert!(steps < 500, "{:?}", pool.removal_status());
            pool.removal_step(7).unwrap();
            // When it is written again it holds as much as before.
            let at = steps % end;
            write(&pool, at..at + 1, newest(at));
        }
        for at in 0..end {
            has(&pool, at..at + 1, newest(at));
        }
        is_sound(&pool);
        pool.export().unwrap();
        drop(pool);
        let stay = open(&sims[usize::from(1 - leaves)..][..1]);
        (0..end).for_each(|at| has(&stay, at..at + 1, newest(at)));
    }
}

#[test]
fn damage_that_cannot_be_moved_is_told_and_the_rest_can_be_deleted() {
    let sims = fresh(2, 1);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    pool.checkpoint(false).unwrap();
    pool.remove_group(1).unwrap();
    // The device that leaves cannot be read any more.
    sims[1].inject(InjectedFault { op: SimOp::Read, range: MIB..120 * MIB, skip: 0, times: u64::MAX });
    let mut steps = 0;
    while pool.removal_step(7).unwrap().is_some() {
        steps += 1;
        assert!(steps < 500);
    }
    let status = pool.removal_status();
    assert_eq!((status.obstacle, status.finished), (Some(Obstacle::Damage), 0));
    assert!(status.left_bytes > 0 && status.left_bytes < 32 * MIB, "{status:?}");
    // Nothing was lost by it: the device reads again.
    sims[1].clear_faults();
    has(&pool, 0..2000, 1);
    write(&pool, 0..2000, 2);
    finish(&pool);
    has(&pool, 0..2000, 2);
}

/// A label says that the group is gone already, and another one could not be written: the group cannot be kept any more.
#[test]
fn a_group_that_some_labels_call_gone_is_not_kept() {
    let sims = fresh(3, 1);
    let pool = open(&sims);
    write(&pool, 0..120, 1);
    pool.remove_group(1).unwrap();
    while pool.removal_status().left_bytes > 0 {
        pool.removal_step(7).unwrap();
    }
    sims[2].inject(InjectedFault { op: SimOp::Write, range: 0..4096, skip: 0, times: 1 });
    pool.removal_step(7).unwrap_err();
    let kept = pool.keep_group(1);
    assert!(matches!(kept, Err(Error::Invalid(_))), "{kept:?}");
    finish(&pool);
    assert_eq!(pool.device_status().len(), 2);
    has(&pool, 0..120, 1);
}

/// The power of either group fails at each point of a removal: the pool opens with all devices, and goes on.
#[test]
fn a_power_cut_at_any_point_leaves_a_pool_that_goes_on_with_it() {
    for members in [1, 2] {
        let mut seen = [0; 3];
        for calls in 0..100 * members as u64 {
            let victim = calls as usize % 2 * members;
            let leaves = (calls / 7 % 2) as u16;
            let sims = fresh(2, members);
            let pool = open(&sims);
            write(&pool, 0..120, 1);
            sims[victim..victim + members].iter().for_each(|sim| sim.cut_after(calls));
            let begun = pool.remove_group(leaves);
            if begun.is_ok() {
                while matches!(pool.removal_step(7), Ok(Some(_))) {}
            }
            let written = try_write(&pool, 120..140, 1);
            drop(pool);
            let after = self::after(&sims, Some(calls));
            let pool = open(&after);
            has(&pool, 0..120, 1);
            if written.is_ok() {
                has(&pool, 120..140, 1);
            }
            let left = pool.device_status().len() == members;
            let leaving = !left && pool.removal_status().group.is_some();
            seen[if left { 2 } else { usize::from(leaving) }] += 1;
            if !left && !leaving {
                pool.remove_group(leaves).unwrap();
            }
            if !left {
                finish(&pool);
            }
            write(&pool, 140..200, 2);
            has(&pool, 0..120, 1);
            is_sound(&pool);
            // Without those that left; and of the others each alone is enough, unless it failed and was left out.
            let stay = pool.device_status().into_iter().filter(|device| device.state == DeviceState::Online);
            let stay: Vec<usize> = stay.map(|device| device.number.into()).collect();
            assert!(!stay.is_empty());
            for number in stay {
                let pool = open(&self::after(&after[number..=number], Some(calls + 1)));
                has(&pool, 0..120, 1);
                has(&pool, 140..200, 2);
            }
        }
        assert!(seen[0] > 0 && seen[1] > 5 && seen[2] > 5, "{seen:?}");
    }
}

/// Some labels say that a group is gone, and others do not, and one of those that do is away: nothing lies on the group.
#[test]
fn labels_that_say_nothing_yet_lead_to_a_group_that_is_empty() {
    for calls in 0..60 {
        let sims = fresh(3, 1);
        let pool = open(&sims);
        write(&pool, 0..120, 1);
        pool.remove_group(1).unwrap();
        while pool.removal_status().left_bytes > 0 {
            pool.removal_step(7).unwrap();
        }
        // The next calls write labels.
        sims[if calls % 2 == 0 { 0 } else { 2 }].cut_after(calls / 2);
        let _ = pool.removal_step(7);
        drop(pool);
        let after = self::after(&sims, Some(calls));
        let stay: Vec<Arc<SimDevice>> = vec![Arc::clone(&after[0]), Arc::clone(&after[2])];
        // With the device, it is gone at the latest after another step.
        let pool = open(&after);
        has(&pool, 0..120, 1);
        while pool.removal_step(7).unwrap().is_some() {}
        assert_eq!(pool.device_status().len(), 2);
        pool.export().unwrap();
        drop(pool);
        let pool = open(&stay);
        has(&pool, 0..120, 1);
        is_sound(&pool);
    }
}

/// The labels could not say that a group leaves: it stays, whatever lies on it, and can be removed later.
#[test]
fn a_removal_that_could_not_be_begun_has_not_begun() {
    for is_new in [true, false] {
        let mut sims = fresh(if is_new { 1 } else { 2 }, 1);
        let pool = open(&sims);
        write(&pool, 0..120, 1);
        if is_new {
            let new = sim(100);
            pool.add_groups(vec![handles(&[Arc::clone(&new)])]).unwrap();
            sims.push(new);
        }
        let before = capacity(&pool);
        sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..4096, skip: 0, times: 1 });
        pool.remove_group(1).unwrap_err();
        assert_eq!((capacity(&pool), pool.removal_status().group), (before, None));
        assert_eq!(pool.removal_step(7).unwrap(), None);
        assert_eq!(layout(&pool), [(0, 0), (1, 1)]);
        write(&pool, 120..2400, 1);
        let sims = after(&sims, Some(1));
        drop(pool);
        let pool = open(&sims);
        assert_eq!((capacity(&pool), pool.removal_status().group), (before, None));
        has(&pool, 0..2400, 1);
        is_sound(&pool);
        pool.remove_group(1).unwrap();
        finish(&pool);
        assert_eq!(layout(&pool), [(0, 0)]);
        has(&pool, 0..2400, 1);
    }
}

#[test]
fn a_group_that_could_not_be_kept_leaves_all_the_same() {
    let sims = fresh(2, 1);
    let pool = open(&sims);
    write(&pool, 0..2400, 1);
    pool.remove_group(1).unwrap();
    pool.removal_step(7).unwrap();
    sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..4096, skip: 0, times: 1 });
    pool.keep_group(1).unwrap_err();
    assert_eq!(pool.removal_status().group, Some(1));
    finish(&pool);
    has(&pool, 0..2400, 1);
}

/// A device that leaves could not be read for a while. Nobody repairs anything, and it leaves when it can be read again.
#[test]
fn what_could_not_be_read_for_a_while_is_moved_later() {
    let sims = fresh(2, 1);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    pool.checkpoint(false).unwrap();
    pool.remove_group(1).unwrap();
    sims[1].inject(InjectedFault { op: SimOp::Read, range: MIB..120 * MIB, skip: 0, times: u64::MAX });
    for _ in 0..3 {
        while pool.removal_step(7).unwrap().is_some() {}
        assert_eq!(pool.removal_status().obstacle, Some(Obstacle::Damage));
    }
    sims[1].clear_faults();
    finish(&pool);
    has(&pool, 0..2000, 1);
    is_sound(&pool);
}

#[test]
fn a_spare_that_is_too_small_is_refused_also_when_a_group_has_left() {
    let pool = open(&fresh(2, 1));
    write(&pool, 0..100, 1);
    pool.remove_group(1).unwrap();
    finish(&pool);
    let small: Arc<dyn Device> = Arc::new(SimDevice::new(SIZE - 2 * MIB, 9));
    assert!(pool.add_spares(vec![small]).unwrap_err().to_string().contains("could stand in for none"));
}
