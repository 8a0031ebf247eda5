//! Mirrors: a pool goes on while each group has one good device, loses nothing, and makes others whole again.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{DeviceState, OpenOptions, Pool, TableSeen, Witness};

use DeviceState::{Faulted, Filling, Missing, Offline, Online};

fn device(sim: &Arc<SimDevice>) -> Arc<dyn Device> {
    Arc::clone(sim) as Arc<dyn Device>
}

#[test]
fn each_device_of_a_mirror_has_all_by_itself() {
    for members in [2, 3] {
        let sims = fresh(1, members);
        let pool = open(&sims);
        write(&pool, 0..500, 1);
        pool.export().unwrap();
        each_has_all(&sims, 0..500, 1);
    }
}

#[test]
fn a_pool_opens_without_a_device_and_fills_it_when_it_comes_back() {
    let sims = fresh(2, 2);
    let pool = open(&sims);
    write(&pool, 0..500, 1);
    pool.export().unwrap();
    drop(pool);
    // Either device of each group may be missing.
    let pool = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[3])]);
    assert_eq!(states(&pool), [Online, Missing, Missing, Online]);
    has(&pool, 0..500, 1);
    write(&pool, 100..200, 2);
    drop(pool);
    // It crashed. What was away is filled.
    let pool = open(&sims);
    assert_eq!(states(&pool), [Online, Filling, Filling, Online]);
    assert!(fill(&pool) >= 100 * u64::from(PAGE));
    assert_eq!(states(&pool), [Online; 4]);
    write(&pool, 200..300, 3);
    drop(pool);
    let pool = open(&[Arc::clone(&sims[1]), Arc::clone(&sims[2])]);
    has(&pool, 0..100, 1);
    has(&pool, 100..200, 2);
    has(&pool, 200..300, 3);
}

#[test]
fn a_group_without_a_device_is_missed() {
    let sims = fresh(2, 2);
    let error = try_open(&[Arc::clone(&sims[0]), Arc::clone(&sims[1])]).err().unwrap();
    assert!(matches!(error, Error::NotAPool(_)), "{error}");
    assert!(error.to_string().contains("has 3 devices and 2 of them are here"), "{error}");
}

#[test]
fn a_device_that_was_away_is_not_taken_for_whole_by_itself_later() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..50, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims[..1]);
    write(&pool, 0..50, 2);
    pool.export().unwrap();
    drop(pool);
    // The other one does not know that, and is as it was. Together the newer one counts.
    let pool = open(&sims);
    assert_eq!(states(&pool), [Online, Filling]);
    has(&pool, 0..50, 2);
    drop(pool);
    // While it was not filled, it is no pool alone.
    let error = try_open(&sims[1..]).err().unwrap();
    assert!(matches!(error, Error::NotAPool(_)), "{error}");
}

#[test]
fn halves_that_went_on_separately_are_not_opened_together() {
    let sims = fresh(1, 2);
    open(&sims).export().unwrap();
    for half in [&sims[..1], &sims[1..]] {
        let pool = open(half);
        write(&pool, 0..10, 1);
        pool.export().unwrap();
    }
    let error = try_open(&sims).err().unwrap();
    assert!(matches!(error, Error::NotCurrent { .. }), "{error}");
    open(&sims[..1]);
}

#[test]
fn a_device_that_fails_is_left_out_and_nothing_is_lost() {
    for op in [SimOp::Write, SimOp::Flush] {
        let sims = fresh(1, 2);
        let pool = open(&sims);
        write(&pool, 0..200, 1);
        sims[0].inject(InjectedFault { op, range: 0..SIZE, skip: 3, times: u64::MAX });
        write(&pool, 0..200, 2);
        pool.checkpoint(false).unwrap();
        write(&pool, 200..300, 3);
        assert_eq!(states(&pool), [Faulted, Online]);
        has(&pool, 0..200, 2);
        drop(pool);
        let image = Arc::new(sims[1].crash_seeded(7));
        let pool = open(&[image]);
        assert_eq!(states(&pool), [Faulted, Online]);
        has(&pool, 0..200, 2);
        has(&pool, 200..300, 3);
        drop(pool);
        // The one that failed is not opened alone, whatever it has.
        sims[0].clear_faults();
        sims[0].reopen();
    }
}

#[test]
fn all_devices_failing_fails_the_pool_as_one_does() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..20, 1);
    for sim in &sims {
        sim.inject(InjectedFault { op: SimOp::Flush, range: 0..SIZE, skip: 0, times: u64::MAX });
        sim.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    }
    assert!(try_write(&pool, 0..20, 2).is_err());
    assert_eq!(states(&pool), [Online, Online]);
    has(&pool, 0..1, 2);
    drop(pool);
    for sim in &sims {
        sim.clear_faults();
        sim.reopen();
    }
    let pool = open(&sims);
    has(&pool, 1..20, 1);
}

#[test]
fn a_device_that_was_offline_gets_what_it_missed_and_no_more() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..4000, 1);
    pool.checkpoint(false).unwrap();
    pool.offline(1).unwrap();
    assert_eq!(states(&pool), [Online, Offline]);
    assert!(pool.offline(0).unwrap_err().to_string().contains("the only device"));
    write(&pool, 0..300, 2);
    pool.online(Arc::clone(&sims[1]) as Arc<dyn Device>).unwrap();
    assert_eq!(states(&pool), [Online, Filling]);
    write(&pool, 300..400, 2);
    let copied = fill(&pool);
    assert!(copied < 12 * MIB, "{copied} bytes were copied for {} written", 300 * PAGE);
    assert_eq!(states(&pool), [Online, Online]);
    has(&pool, 0..400, 2);
    pool.export().unwrap();
    each_has_all(&sims, 400..4000, 1);
    each_has_all(&sims, 0..400, 2);
}

#[test]
fn an_older_copy_in_its_place_lacks_everything() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..1000, 1);
    pool.checkpoint(false).unwrap();
    let old = Arc::new(sims[1].crash(&mut |contents| contents - 1));
    write(&pool, 0..1000, 2);
    pool.checkpoint(false).unwrap();
    pool.offline(1).unwrap();
    write(&pool, 0..10, 3);
    pool.online(Arc::clone(&old) as Arc<dyn Device>).unwrap();
    assert!(fill(&pool) > 1000 * u64::from(PAGE));
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[0]), old], 10..1000, 2);
}

#[test]
fn devices_are_attached_replaced_and_detached() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..700, 1);
    let small = Arc::new(SimDevice::new(SIZE - 4 * MIB, 7));
    assert!(pool.attach(0, small, false).unwrap_err().to_string().contains("are needed"));
    assert!(pool.detach(0).unwrap_err().to_string().contains("the only device"));
    let [second, third] = [sim(8), sim(9)];
    assert_eq!(pool.attach(0, Arc::clone(&second) as Arc<dyn Device>, false).unwrap(), 1);
    assert_eq!(states(&pool), [Online, Filling]);
    write(&pool, 700..800, 1);
    fill(&pool);
    assert_eq!(states(&pool), [Online, Online]);
    each_has_all(&[Arc::clone(&sims[0]), Arc::clone(&second)], 0..800, 1);
    // The first one goes, when the third has all.
    assert_eq!(pool.attach(0, Arc::clone(&third) as Arc<dyn Device>, true).unwrap(), 2);
    assert!(pool.device_status()[0].leaves);
    fill(&pool);
    assert_eq!(numbers(&pool), [1, 2]);
    assert!(matches!(try_open(&sims).err().unwrap(), Error::NotAPool(_)), "it holds no pool any more");
    write(&pool, 0..100, 2);
    pool.detach(1).unwrap();
    write(&pool, 100..200, 2);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&[third]);
    assert_eq!(states(&pool), [Online]);
    has(&pool, 0..200, 2);
    has(&pool, 200..800, 1);
}

#[test]
fn replacing_goes_on_after_a_crash() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..700, 1);
    let new = sim(5);
    pool.attach(0, Arc::clone(&new) as Arc<dyn Device>, true).unwrap();
    for _ in 0..2 {
        pool.fill_step(1).unwrap();
    }
    drop(pool);
    let both = [Arc::clone(&sims[0]), Arc::clone(&new)];
    let pool = open(&both);
    assert_eq!(states(&pool), [Online, Filling]);
    assert!(pool.device_status()[0].leaves);
    fill(&pool);
    assert_eq!(states(&pool), [Online]);
    has(&pool, 0..700, 1);
    drop(pool);
    has(&open(&[new]), 0..700, 1);
}

/// The power fails at each point within a replacement: the old device leaves all the same, and not too early.
#[test]
fn an_old_device_leaves_also_if_the_power_failed_when_the_new_one_was_whole() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..50, 1);
    let both = vec![Arc::clone(&sims[0]), sim(5)];
    pool.attach(0, device(&both[1]), true).unwrap();
    let moments = Moments::of(&both, 1);
    fill(&pool);
    let images = moments.end();
    drop(pool);
    let mut both_were_whole = 0;
    for after in images {
        let pool = open(&after);
        has(&pool, 0..50, 1);
        both_were_whole += u64::from(states(&pool) == [Online, Online]);
        fill(&pool);
        assert_eq!((numbers(&pool), states(&pool)), (vec![1], vec![Online]));
        drop(pool);
        has(&open(&after[1..]), 0..50, 1);
    }
    assert!(both_were_whole > 2, "{both_were_whole}");
}

/// The power fails while an opening is confirmed: the device that is being filled has that already, the other one has
/// not, and goes on without it.
#[test]
fn a_device_that_is_filled_may_know_of_an_opening_that_the_others_do_not() {
    let sims = fresh(1, 1);
    let both = vec![Arc::clone(&sims[0]), sim(5)];
    let pool = open(&both[..1]);
    write(&pool, 0..50, 1);
    pool.attach(0, device(&both[1]), false).unwrap();
    pool.checkpoint(false).unwrap();
    write(&pool, 50..100, 1);
    drop(pool);
    let images: Arc<Mutex<Vec<Sims>>> = Arc::default();
    for sim in &both {
        let (images, both) = (Arc::clone(&images), both.clone());
        sim.watch(move || {
            let first = both[0].crash(&mut |_| 0);
            let second = both[1].crash(&mut |contents| contents - 1);
            images.lock().unwrap().push(vec![Arc::new(first), Arc::new(second)]);
        });
    }
    drop(open(&both));
    both.iter().for_each(|sim| sim.watch(|| {}));
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 4, "{}", images.len());
    for both in images {
        let alone = open(&both[..1]);
        has(&alone, 0..100, 1);
        write(&alone, 0..20, 2);
        drop(alone);
        let pool = open(&both);
        assert_eq!(states(&pool), [Online, Filling]);
        fill(&pool);
        drop(pool);
        let pool = open(&both[1..]);
        has(&pool, 0..20, 2);
        has(&pool, 20..100, 1);
        is_sound(&pool);
    }
}

/// The mirror must not have less than it had before.
#[test]
fn an_old_device_does_not_leave_because_another_one_than_its_own_is_whole() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..300, 1);
    pool.offline(1).unwrap();
    write(&pool, 0..100, 2);
    let new = sim(5);
    pool.attach(0, device(&new), true).unwrap();
    pool.online(device(&sims[1])).unwrap();
    assert_eq!(states(&pool), [Online, Filling, Filling]);
    while states(&pool)[1] == Filling {
        pool.fill_step(5).unwrap();
    }
    assert_eq!((numbers(&pool), leaving(&pool)), (vec![0, 1, 2], vec![0]));
    assert_eq!(states(&pool), [Online, Online, Filling]);
    // It does when its own is.
    fill(&pool);
    assert_eq!((numbers(&pool), leaving(&pool)), (vec![1, 2], vec![]));
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[1]), new], 0..100, 2);
}

#[test]
fn an_old_device_does_not_leave_if_the_new_one_cannot_be_called_whole() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..300, 1);
    let new = sim(5);
    pool.attach(0, device(&new), true).unwrap();
    // Its label has all of that so far. The one that calls it whole cannot be written.
    new.inject(InjectedFault { op: SimOp::Write, range: 0..4096, skip: 0, times: u64::MAX });
    fill(&pool);
    assert_eq!((numbers(&pool), states(&pool)), (vec![0, 1, 2], vec![Online, Online, Faulted]));
    assert_eq!(leaving(&pool), [0]);
    // Mended, it takes the place.
    new.clear_faults();
    pool.online(device(&new)).unwrap();
    fill(&pool);
    assert_eq!((numbers(&pool), leaving(&pool)), (vec![1, 2], vec![]));
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[1]), new], 0..300, 1);
}

#[test]
fn a_device_stays_if_the_one_in_its_place_could_not_be_attached() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..100, 1);
    let new = sim(5);
    new.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    assert!(pool.attach(0, device(&new), true).is_err());
    assert_eq!((numbers(&pool), leaving(&pool)), (vec![0, 1], vec![]));
    // Another one that is filled changes nothing about that.
    pool.offline(1).unwrap();
    write(&pool, 0..50, 2);
    pool.online(device(&sims[1])).unwrap();
    fill(&pool);
    assert_eq!((numbers(&pool), states(&pool)), (vec![0, 1], vec![Online, Online]));
    // It can be replaced still, by one device at a time.
    new.clear_faults();
    assert_eq!(pool.attach(0, device(&new), true).unwrap(), 2);
    assert!(matches!(pool.attach(0, sim(6), true), Err(Error::Busy(_))));
    assert_eq!(leaving(&pool), [0]);
    fill(&pool);
    assert_eq!(numbers(&pool), [1, 2]);
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[1]), new], 0..50, 2);
}

#[test]
fn a_device_stays_if_the_one_in_its_place_fails_and_is_detached() {
    for crashes in [false, true] {
        let sims = fresh(1, 2);
        let mut pool = open(&sims);
        write(&pool, 0..300, 1);
        pool.offline(1).unwrap();
        write(&pool, 0..100, 2);
        let new = sim(5);
        pool.attach(0, device(&new), true).unwrap();
        pool.online(device(&sims[1])).unwrap();
        new.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
        write(&pool, 100..200, 2);
        assert_eq!((states(&pool), leaving(&pool)), (vec![Online, Filling, Faulted], vec![0]));
        pool.detach(2).unwrap();
        assert_eq!((states(&pool), leaving(&pool)), (vec![Online, Filling], vec![]));
        let mut both = sims;
        if crashes {
            drop(pool);
            both = after(&both, Some(3));
            pool = open(&both);
            assert_eq!(leaving(&pool), []);
        }
        fill(&pool);
        assert_eq!((numbers(&pool), states(&pool)), (vec![0, 1], vec![Online, Online]));
        pool.export().unwrap();
        each_has_all(&both, 0..200, 2);
    }
}

/// A device that takes another one's place fails before it is whole, and a third one takes its.
#[test]
fn a_device_that_takes_a_place_is_replaced_itself() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..300, 1);
    let [second, third] = [sim(5), sim(6)];
    pool.attach(0, device(&second), true).unwrap();
    second.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    write(&pool, 0..50, 2);
    pool.attach(2, device(&third), true).unwrap();
    assert_eq!((states(&pool), leaving(&pool)), (vec![Online, Online, Faulted, Filling], vec![0, 2]));
    fill(&pool);
    assert_eq!((numbers(&pool), states(&pool)), (vec![1, 3], vec![Online, Online]));
    pool.export().unwrap();
    each_has_all(&[Arc::clone(&sims[1]), third], 0..50, 2);
}

#[test]
fn a_missing_device_is_replaced() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..100, 1);
    pool.export().unwrap();
    drop(pool);
    let new = sim(5);
    let pool = open(&sims[1..]);
    assert_eq!(states(&pool), [Missing, Online]);
    pool.attach(0, Arc::clone(&new) as Arc<dyn Device>, true).unwrap();
    fill(&pool);
    assert_eq!(states(&pool), [Online, Online]);
    drop(pool);
    // It comes back, and has no place any more.
    let pool = open(&[Arc::clone(&sims[0]), Arc::clone(&sims[1]), Arc::clone(&new)]);
    assert_eq!(states(&pool), [Online, Online]);
    drop(pool);
    has(&open(&[new]), 0..100, 1);
}

/// The power fails on both at once, and what was not flushed survives by chance on each.
#[test]
fn a_power_cut_leaves_all_that_was_acknowledged_whichever_device_is_read() {
    for seed in 0..60 {
        let sims = fresh(1, 2);
        let pool = open(&sims);
        write(&pool, 0..40, 1);
        pool.checkpoint(false).unwrap();
        write(&pool, 0..20, 2);
        try_apply(&pool, 20..40, 3).unwrap();
        let is_last = seed % 2 == 0;
        pool.checkpoint(is_last).unwrap();
        // Nothing follows the last checkpoint.
        let (acknowledged, version) = if is_last { (20..40, 3) } else { (40..50, 1) };
        match try_write(&pool, 40..50, 1) {
            Err(Error::ReadOnly(_)) if is_last => {}
            written => written.unwrap(),
        }
        let after: Sims = sims.iter().map(|sim| Arc::new(sim.crash_seeded(seed))).collect();
        drop(pool);
        let pool = open(&after);
        has(&pool, 0..20, 2);
        has(&pool, acknowledged.clone(), version);
        write(&pool, 50..60, 1);
        drop(pool);
        for alone in &after {
            let pool = open(&[Arc::new(alone.crash(&mut |_| 0))]);
            has(&pool, 0..20, 2);
            has(&pool, acknowledged.clone(), version);
            has(&pool, 50..60, 1);
        }
    }
}

/// Found by the simulator: the last batches are written again from the device that had them when they were read; and if
/// that one fails meanwhile, what another one has in their place was written and called durable.
#[test]
fn a_device_that_fails_while_the_pool_is_opened_does_not_spoil_the_other() {
    for calls in 0..40 {
        let sims = fresh(1, 2);
        let pool = open(&sims);
        write(&pool, 0..10, 1);
        // The second device misses the last batches, and the first has them, not flushed.
        sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
        sims[0].inject(InjectedFault { op: SimOp::Flush, range: 0..SIZE, skip: 0, times: u64::MAX });
        assert!(try_write(&pool, 10..20, 1).is_err());
        drop(pool);
        for sim in &sims {
            sim.clear_faults();
            sim.reopen();
        }
        // While the pool is opened, the first one goes.
        sims[0].cut_after(calls);
        drop(try_open(&sims));
        let after: Sims = sims.iter().map(|sim| Arc::new(sim.crash(&mut |contents| contents - 1))).collect();
        let pool = open(&after);
        has(&pool, 0..10, 1);
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
        drop(pool);
        open(&after[1..]);
    }
}

/// Found by killing servers: the mirror's label told of a new device that had no label yet, and so was missing.
#[test]
fn a_device_that_is_detached_is_a_member_or_none_whenever_the_power_fails() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..10, 1);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The commits of others tell of every device that was left out.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                write(&pool, 0..1, 1);
            }
        });
        let mut seen = Vec::new();
        for _ in 0..20 {
            let mirror = pool.device_status().last().unwrap().number;
            let moments = Moments::of(&sims, 1);
            pool.detach(mirror).unwrap();
            seen.extend(moments.end().iter().map(|moment| states(&open(moment))));
            pool.attach(0, Arc::clone(&sims[1]) as Arc<dyn Device>, false).unwrap();
            fill(&pool);
        }
        ends.store(true, Ordering::Relaxed);
        assert!(seen.len() > 20);
        assert!(!seen.iter().any(|states| states.contains(&Offline)), "{seen:?}");
    });
}

#[test]
fn a_device_that_is_attached_is_found_whenever_the_power_fails() {
    for replace in [false, true] {
        let (old, new) = (fresh(1, 1), sim(77));
        let pool = open(&old);
        write(&pool, 0..10, 1);
        let with: Sims = old.iter().cloned().chain([new.clone()]).collect();
        let moments = Moments::of(&with, 1);
        pool.attach(0, new, replace).unwrap();
        let moments = moments.end();
        assert!(moments.len() > 10);
        for moment in moments {
            let pool = open(&moment);
            has(&pool, 0..10, 1);
            assert!(!states(&pool).contains(&DeviceState::Missing), "{:?}", states(&pool));
            let is_begun = pool.device_status().len() > 1;
            fill(&pool);
            if !is_begun {
                pool.attach(0, moment[1].clone(), replace).unwrap();
                fill(&pool);
            }
            has(&pool, 0..10, 1);
            is_sound(&pool);
        }
    }
}

/// Who is told of the tables of a mirror knows after a crash that the half that was left out is not the pool.
#[test]
fn a_half_that_was_left_out_is_not_taken_for_the_pool_by_those_who_were_told() {
    let sims = fresh(1, 2);
    let told: Arc<Mutex<Vec<TableSeen>>> = Arc::default();
    let telling = Arc::clone(&told);
    let witness = Witness::new(|_| ()).with_tables(move |table| telling.lock().unwrap().push(*table));
    let pool = Pool::open_on(handles(&sims), &OpenOptions { witness: Some(witness), ..options() }).unwrap();
    write(&pool, 0..3, 1);
    let before = *told.lock().unwrap().last().unwrap();
    pool.offline(1).unwrap();
    // It is told before anything is acknowledged that the half does not have.
    let last = *told.lock().unwrap().last().unwrap();
    assert!(last.group == 0 && last.epoch > before.epoch);
    write(&pool, 0..3, 2);
    let all = without_unflushed(&sims);
    let since = |table: TableSeen| OpenOptions { since_tables: vec![table], ..options() };
    for read_only in [false, true] {
        let options = OpenOptions { read_only, ..since(last) };
        let refused = Pool::open_on(handles(&all[1..]), &options).map(|_| ()).unwrap_err();
        assert!(
            matches!(&refused, Error::NotCurrent { what, .. } if what.contains("went on with other devices")),
            "{refused}"
        );
    }
    // The other half is the pool, and both are.
    has(&Pool::open_on(handles(&all[..1]), &since(last)).unwrap(), 0..3, 2);
    has(&Pool::open_on(handles(&all), &since(last)).unwrap(), 0..3, 2);
    // By what was known before, and by those who know nothing, it is.
    has(&Pool::open_on(handles(&without_unflushed(&sims)[1..]), &since(before)).unwrap(), 0..3, 1);
    let apart = TableSeen { draw: last.draw + 1, ..last };
    assert!(Pool::open_on(handles(&all), &since(apart)).is_err());
}
