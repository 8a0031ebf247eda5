//! Spares: one steps in for a device of a mirror that fails, goes back when that is mended, and nothing is lost whatever
//! fails meanwhile.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../mirrored/mod.rs"]
mod mirrored;
mod power;

use std::sync::Arc;

use DeviceState::{Faulted, Filling, Missing, Offline, Online};
use SpareState::{Available, InUse, Unavailable};
use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, OneDevice, SimDevice, SimOp};
use pagefold_engine::pool::{
    CreateOptions, DeviceState, Guid, Label, Pool, SpareLabel, SpareState, can_open, create_on, reguid_on,
    rename_on,
};

fn device(sim: &Arc<SimDevice>) -> Arc<dyn Device> {
    Arc::clone(sim) as Arc<dyn Device>
}

fn label(sim: &Arc<SimDevice>) -> Option<SpareLabel> {
    SpareLabel::read(OneDevice::of(sim.as_ref())).unwrap()
}

/// A pool of mirrors of two with so many spares; these are the last devices.
fn with_spares(groups: usize, spares: u64) -> (Sims, Arc<Pool>) {
    let mut sims = fresh(groups, 2);
    let pool = open(&sims);
    let mut new: Sims = (0..spares).map(|seed| sim(70 + seed)).collect();
    pool.add_spares(handles(&new)).unwrap();
    // In the order in which the pool tells of them.
    new.sort_by_key(|sim| label(sim).unwrap().id);
    sims.extend(new);
    write(&pool, 0..400, 1);
    (sims, pool)
}

fn fail_writes(sim: &SimDevice) {
    sim.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
}

/// Makes a device fail, and has the pool notice.
fn fail(pool: &Pool, sim: &SimDevice, pages: std::ops::Range<u64>) {
    fail_writes(sim);
    pages.for_each(|at| write(pool, at..at + 1, 2));
    // It may be of a group to which nothing of this went.
    pool.checkpoint(false).unwrap();
}

fn mend(sim: &SimDevice) {
    sim.clear_faults();
    sim.reopen();
}

fn spares(pool: &Pool) -> Vec<SpareState> {
    pool.spares().iter().map(|spare| spare.state).collect()
}

/// Does all that there is to do, at `now`.
fn settle(pool: &Pool, now: u64) {
    for _ in 0..50 {
        let stepped = pool.spare_step(now).unwrap();
        if fill(pool) == 0 && !stepped {
            return;
        }
    }
    panic!("it does not come to rest: {:?}, {:?}", states(pool), pool.spares());
}

#[test]
fn a_spare_steps_in_for_a_device_that_fails() {
    let (sims, pool) = with_spares(1, 1);
    assert_eq!(spares(&pool), [Available]);
    assert!(!pool.spare_step(1).unwrap(), "nothing is wrong");
    fail(&pool, &sims[1], 0..50);
    assert_eq!(states(&pool), [Online, Faulted]);
    assert!(pool.spare_step(1).unwrap());
    assert_eq!(states(&pool), [Online, Faulted, Filling]);
    let told = pool.spares();
    assert_eq!((told[0].state, told[0].stands_for, told[0].device), (InUse, Some(1), Some(2)));
    assert_eq!(told[0].size_bytes, SIZE);
    settle(&pool, 2);
    assert_eq!(states(&pool), [Online, Faulted, Online]);
    write(&pool, 50..100, 2);
    pool.export().unwrap();
    drop(pool);
    // The spare has everything by itself.
    each_has_all(&sims[2..], 0..100, 2);
    each_has_all(&sims[2..], 100..400, 1);
    let pool = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[2])]);
    assert_eq!(spares(&pool), [InUse], "it is known after the pool was closed");
}

#[test]
fn a_spare_goes_back_when_its_device_is_whole_again() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    // Also while it is filled.
    for fills in [false, true] {
        assert!(pool.spare_step(1).unwrap());
        if fills {
            settle(&pool, 1);
        }
        mend(&sims[1]);
        pool.online(device(&sims[1])).unwrap();
        assert!(states(&pool).contains(&Filling));
        assert!(!pool.spare_step(1).unwrap(), "its device is not whole yet");
        settle(&pool, 1);
        assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![Available]));
        assert!(label(&sims[2]).is_some());
        fail(&pool, &sims[1], 50..100);
    }
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Faulted, Online], vec![InUse]));
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[0]), Arc::clone(&sims[2])], 0..100, 2);
}

#[test]
fn a_spare_goes_back_when_its_device_was_replaced() {
    let (mut sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    sims[1] = sim(99);
    pool.attach(1, device(&sims[1]), true).unwrap();
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![Available]));
    pool.export().unwrap();
    each_has_all(&sims[..2], 0..50, 2);
    let pool = open(&sims);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![Available]));
}

#[test]
fn detaching_the_device_that_failed_makes_the_spare_one_for_good() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    pool.detach(1).unwrap();
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![]));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[2])]);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![]));
    has(&pool, 0..50, 2);
}

/// By its birth a device that was a spare is told from one that is.
#[test]
fn a_spare_for_good_and_one_that_is_added_later_are_not_confused() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    pool.detach(1).unwrap();
    assert_eq!((numbers(&pool), spares(&pool)), (vec![0, 2], vec![]), "the spare is a device for good");
    let second = sim(90);
    pool.add_spares(handles(&[Arc::clone(&second)])).unwrap();
    fail(&pool, &sims[0], 50..100);
    settle(&pool, 2);
    assert_eq!(states(&pool), [Faulted, Online, Online]);
    let stands = pool.spares()[0].device.unwrap();
    // The one that is detached leaves, and the other one stands in as before.
    pool.detach(2).unwrap();
    assert_eq!((numbers(&pool), spares(&pool)), (vec![0, stands], vec![InUse]));
    assert_eq!(label(&sims[2]), None);
    each_has_all(&[second], 0..100, 2);
}

#[test]
fn a_spare_that_was_sent_back_does_not_step_in_for_the_same_failure() {
    let (sims, pool) = with_spares(1, 2);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    pool.detach(2).unwrap();
    for opened in [false, true] {
        let pool = if opened {
            pool.export().unwrap();
            open(&sims)
        } else {
            Arc::clone(&pool)
        };
        settle(&pool, 1);
        assert_eq!((states(&pool), spares(&pool)), (vec![Online, Faulted], vec![Available; 2]));
    }
    drop(pool);
    let pool = open(&sims);
    mend(&sims[1]);
    pool.online(device(&sims[1])).unwrap();
    settle(&pool, 1);
    assert_eq!(states(&pool), [Online, Online]);
    fail(&pool, &sims[1], 50..100);
    settle(&pool, 1);
    assert_eq!(states(&pool), [Online, Faulted, Online], "that is another failure");
}

#[test]
fn what_somebody_took_offline_is_not_replaced() {
    let (_sims, pool) = with_spares(1, 1);
    pool.offline(1).unwrap();
    settle(&pool, 1);
    settle(&pool, 1 << 40);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Offline], vec![Available]));
}

#[test]
fn a_device_that_is_missing_is_replaced_after_a_while() {
    let (sims, pool) = with_spares(1, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[2])]);
    pool.set_device_rule("sparewait", "1m").unwrap();
    for now in [1000, 1059] {
        settle(&pool, now);
        assert_eq!((states(&pool), spares(&pool)), (vec![Online, Missing], vec![Available]));
    }
    settle(&pool, 1060);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Missing, Online], vec![InUse]));
    write(&pool, 0..50, 2);
    pool.online(device(&sims[1])).unwrap();
    settle(&pool, 1061);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Online], vec![Available]));
}

#[test]
fn no_spare_steps_in_if_that_is_turned_off() {
    let (sims, pool) = with_spares(1, 1);
    pool.set_property("autospare", Some("off")).unwrap();
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Faulted], vec![Available]));
    pool.set_device_rule("autospare", "on").unwrap();
    settle(&pool, 1);
    assert_eq!(spares(&pool), [InUse]);
    // One that has stepped in goes back all the same.
    pool.set_device_rule("autospare", "off").unwrap();
    mend(&sims[1]);
    pool.online(device(&sims[1])).unwrap();
    settle(&pool, 1);
    assert_eq!(spares(&pool), [Available]);
}

#[test]
fn the_smallest_spare_that_fits_steps_in_and_each_for_one_device() {
    let mut sims = fresh(2, 2);
    let pool = open(&sims);
    let sizes = [SIZE + 40 * MIB, SIZE + 4 * MIB];
    let new: Sims = sizes.iter().map(|size| Arc::new(SimDevice::new(*size, 5))).collect();
    pool.add_spares(handles(&new)).unwrap();
    write(&pool, 0..400, 1);
    let too_small = Arc::new(SimDevice::new(SIZE - 8 * MIB, 5));
    let error = pool.add_spares(vec![device(&too_small)]).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    let stand_for =
        |size: u64| pool.spares().iter().find(|spare| spare.size_bytes == size).unwrap().stands_for;
    assert_eq!(sizes.map(stand_for), [None, Some(1)]);
    fail(&pool, &sims[2], 0..50);
    settle(&pool, 1);
    assert_eq!(sizes.map(stand_for), [Some(2), Some(1)]);
    sims.extend(new);
    drop(pool);
    // The device that failed is gone for good, and nothing is missed.
    let sims: Sims = [0, 3, 4, 5].map(|at| Arc::clone(&sims[at])).to_vec();
    let pool = open(&sims);
    has(&pool, 0..50, 2);
    has(&pool, 50..400, 1);
    is_sound(&pool);
}

#[test]
fn of_two_failures_one_waits_for_a_spare() {
    let (sims, pool) = with_spares(2, 1);
    for at in [1, 3] {
        fail(&pool, &sims[at], 0..50);
    }
    settle(&pool, 1);
    assert_eq!(states(&pool).iter().filter(|state| **state == Faulted).count(), 2);
    assert_eq!(pool.spares()[0].stands_for, Some(1));
    mend(&sims[1]);
    pool.online(device(&sims[1])).unwrap();
    settle(&pool, 1);
    assert_eq!(pool.spares()[0].stands_for, Some(3), "it goes from one to the other");
    pool.add_spares(vec![device(&sim(90))]).unwrap();
    fail(&pool, &sims[1], 50..100);
    settle(&pool, 1);
    assert_eq!(spares(&pool), [InUse, InUse]);
}

/// The other device of the same mirror fails, while the first one is mended: the spare has all that is needed.
#[test]
fn a_spare_stays_for_the_other_device_of_its_mirror() {
    let (sims, pool) = with_spares(1, 1);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    mend(&sims[1]);
    pool.online(device(&sims[1])).unwrap();
    fill(&pool);
    fail(&pool, &sims[0], 50..100);
    assert_eq!(states(&pool), [Faulted, Online, Online]);
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Faulted, Online, Online], vec![InUse]));
    assert_eq!(pool.spares()[0].stands_for, Some(0));
}

#[test]
fn another_spare_steps_in_when_one_fails_itself() {
    for fills in [false, true] {
        let (sims, pool) = with_spares(1, 2);
        fail(&pool, &sims[1], 0..50);
        assert!(pool.spare_step(1).unwrap());
        let first = 0;
        if fills {
            settle(&pool, 1);
        }
        fail(&pool, &sims[2 + first], 50..100);
        assert_eq!(states(&pool), [Online, Faulted, Faulted]);
        settle(&pool, 1);
        assert_eq!(states(&pool), [Online, Faulted, Online]);
        assert_eq!((spares(&pool)[first], spares(&pool)[1 - first]), (Unavailable, InUse));
        pool.export().unwrap();
        drop(pool);
        let pool = open(&sims);
        settle(&pool, 2);
        assert_eq!((spares(&pool)[first], spares(&pool)[1 - first]), (Unavailable, InUse));
        // It counts again when somebody says so.
        mend(&sims[2 + first]);
        drop(pool);
        let pool = open(&sims);
        settle(&pool, 3);
        assert!(pool.online_spare(&device(&sims[2 + first])).unwrap());
        assert_eq!((spares(&pool)[first], spares(&pool)[1 - first]), (Available, InUse));
        has(&pool, 0..100, 2);
    }
}

/// It fails the very first writes by which it is to become a member.
#[test]
fn a_spare_that_cannot_be_written_is_passed_over() {
    for calls in 0..20 {
        let (sims, pool) = with_spares(1, 2);
        fail(&pool, &sims[1], 0..50);
        sims[2].cut_after(calls);
        settle(&pool, 1);
        let wanted = if sims[2].is_off() { [Unavailable, InUse] } else { [InUse, Available] };
        assert_eq!(spares(&pool), wanted, "after {calls} calls");
        assert_eq!(states(&pool), [Online, Faulted, Online]);
    }
}

#[test]
fn a_spare_that_somebody_has_overwritten_is_not_used() {
    let other = |sims: &Sims| {
        let options = CreateOptions { force: true, created: 0, guid: Guid(*b"another pool's..") };
        create_on("other", &[device(&sims[2])], &options).unwrap();
    };
    for opened in [false, true] {
        let (sims, mut pool) = with_spares(1, 1);
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"another pool's..") };
        let error = create_on("other", &[device(&sims[2])], &options).unwrap_err();
        assert!(error.to_string().contains("is a spare of pool 'tank'"), "{error}");
        if opened {
            pool.export().unwrap();
            drop(pool);
            other(&sims);
            pool = open(&sims[..2]);
            assert_eq!(spares(&pool), [Unavailable]);
        } else {
            other(&sims);
        }
        fail(&pool, &sims[1], 0..50);
        settle(&pool, 1);
        assert_eq!((states(&pool), spares(&pool)), (vec![Online, Faulted], vec![Unavailable]));
        assert!(!pool.online_spare(&device(&sims[2])).unwrap());
        assert_eq!(Label::read(OneDevice::of(sims[2].as_ref())).unwrap().name, "other");
        drop(pool);
        open(&sims[2..]);
    }
}

#[test]
fn spares_are_removed_and_belong_to_nobody_then() {
    let (sims, pool) = with_spares(1, 2);
    fail(&pool, &sims[1], 0..50);
    settle(&pool, 1);
    for spare in pool.spares() {
        let removed = pool.remove_spare(spare.id);
        assert_eq!(removed.is_ok(), spare.state == Available, "{removed:?}");
    }
    assert_eq!(spares(&pool), [InUse]);
    assert_eq!(sims[2..].iter().filter(|sim| label(sim).is_some()).count(), 0);
    assert!(pool.remove_spare(4711).is_err());
    drop(pool);
    let pool = open(&sims);
    assert_eq!(spares(&pool), [InUse]);
    assert!(can_open(&handles(&sims)));
}

#[test]
fn spares_alone_are_no_pool() {
    let (sims, pool) = with_spares(1, 1);
    pool.export().unwrap();
    let error = try_open(&sims[2..]).err().unwrap();
    assert!(error.to_string().contains("only spares"), "{error}");
    // A copy of one is left alone.
    let copy = after(&sims[2..], None).remove(0);
    let all = [&sims[..], &[copy]].concat();
    assert_eq!(spares(&open(&all)), [Available]);
}

#[test]
fn spares_follow_their_pool_to_another_name_and_guid() {
    let (sims, pool) = with_spares(1, 1);
    pool.export().unwrap();
    drop(pool);
    rename_on(handles(&sims), "dozer").unwrap();
    assert_eq!(label(&sims[2]).unwrap().name, "dozer");
    let copies = after(&sims, None);
    let guid = reguid_on(&handles(&copies), Guid(*b"the second pool.")).unwrap();
    assert_eq!(label(&copies[2]).unwrap().pool, guid);
    for all in [&sims, &copies] {
        assert_eq!(spares(&open(all)), [Available]);
    }
    // That of one pool is none of the other.
    let mixed = [&copies[..2], &sims[2..]].concat();
    assert_eq!(spares(&open(&mixed)), [Unavailable]);
}

/// Reads fail, or are wrong, and the device stays in use.
#[test]
fn a_spare_steps_in_for_a_device_that_gathers_errors_until_they_are_cleared() {
    for op in [SimOp::Read, SimOp::Flush] {
        let (sims, pool) = with_spares(1, 1);
        pool.checkpoint(false).unwrap();
        assert!(!pool.spare_step(100).unwrap());
        match op {
            SimOp::Read => sims[1].inject(InjectedFault { op, range: 8 * MIB..SIZE, skip: 0, times: 400 }),
            _ => (MIB..12 * MIB).step_by(4096).for_each(|at| sims[1].flip_bit(at + 99, 3)),
        }
        pool.scrub_start(1, 0).unwrap();
        while pool.scrub_step(1).unwrap().is_some() {}
        sims[1].clear_faults();
        assert_eq!(states(&pool), [Online, Online]);
        settle(&pool, 105);
        assert_eq!(
            (states(&pool), spares(&pool)),
            (vec![Online; 3], vec![InUse]),
            "{:?}",
            pool.faults().devices
        );
        // It is closed meanwhile, and nobody has said that it is mended.
        pool.export().unwrap();
        drop(pool);
        let pool = open(&sims);
        settle(&pool, 5000);
        assert_eq!(spares(&pool), [InUse]);
        pool.clear_faults(Some(0), 5001).unwrap();
        settle(&pool, 5002);
        assert_eq!(spares(&pool), [InUse], "those of another one were cleared");
        pool.clear_faults(Some(1), 5003).unwrap();
        settle(&pool, 5004);
        assert_eq!((states(&pool), spares(&pool)), (vec![Online; 2], vec![Available]));
        has(&pool, 0..400, 1);
    }
}

/// The device had no mirror, begins to fail, and dies.
#[test]
fn a_device_alone_gets_a_mirror_before_it_dies() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..400, 1);
    let spare = sim(8);
    pool.add_spares(vec![device(&spare)]).unwrap();
    pool.checkpoint(false).unwrap();
    assert!(!pool.spare_step(100).unwrap());
    sims[0].inject(InjectedFault { op: SimOp::Read, range: 8 * MIB..SIZE, skip: 0, times: 100 });
    pool.scrub_start(1, 0).unwrap();
    while pool.scrub_step(1).unwrap().is_some() {}
    sims[0].clear_faults();
    settle(&pool, 105);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online; 2], vec![InUse]));
    fail(&pool, &sims[0], 0..50);
    assert_eq!(states(&pool), [Faulted, Online]);
    // It is the last one that is whole now, and stays.
    settle(&pool, 106);
    pool.clear_faults(None, 107).unwrap();
    settle(&pool, 108);
    assert_eq!((states(&pool), spares(&pool)), (vec![Faulted, Online], vec![InUse]));
    assert!(pool.detach(1).is_err(), "it is the only one");
    pool.detach(0).unwrap();
    assert_eq!((states(&pool), spares(&pool)), (vec![Online], vec![]));
    has(&pool, 0..50, 2);
    has(&pool, 50..400, 1);
}

#[test]
fn a_full_pool_gets_its_spare() {
    let (sims, pool) = with_spares(1, 1);
    let mut at = 400;
    while try_write(&pool, at..at + 50, 1).is_ok() {
        at += 50;
        pool.maintain().unwrap();
    }
    assert!(at > 5000, "{at} pages");
    fail_writes(&sims[1]);
    pool.checkpoint(false).unwrap();
    settle(&pool, 1);
    assert_eq!((states(&pool), spares(&pool)), (vec![Online, Faulted, Online], vec![InUse]));
    has(&pool, 0..at, 1);
}
