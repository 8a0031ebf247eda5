//! A flush that fails leaves what was written before it on the device or not, for good, and reads do not tell. The next
//! process goes on with what they show, and then the power fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use mirrored::*;
use pagefold_engine::device::{InjectedFault, SimOp};
use pagefold_engine::pool::Pool;

/// Makes a flush of each of these devices fail, after so many.
fn fail_a_flush(sims: &Sims, skip: u64) {
    let fault = InjectedFault { op: SimOp::Flush, range: 0..SIZE, skip, times: 1 };
    sims.iter().for_each(|sim| sim.inject(fault.clone()));
}

/// Another process has the devices.
fn another_process(sims: &Sims) {
    sims.iter().for_each(|sim| {
        sim.clear_faults();
        sim.reopen();
    });
}

/// Found by the simulator: a flush of the first copy of the label failed, and the second one was written then.
#[test]
fn a_pool_keeps_a_label_when_flushes_of_labels_fail() {
    for (skip, seed) in (0..3).flat_map(|skip| (0..16).map(move |seed| (skip, seed))) {
        let all = fresh(1, 1);
        let pool = open(&all);
        write(&pool, 0..20, 1);
        fail_a_flush(&all, skip);
        for number in 1..3 {
            assert!(pool.attach(0, sim(number), false).is_err());
        }
        drop(pool);
        let pool = open(&after(&all, Some(seed)));
        has(&pool, 0..20, 1);
    }
}

#[test]
fn a_pool_keeps_a_label_when_flushes_of_labels_fail_in_two_processes() {
    for (first, second) in (0..3).flat_map(|first| (0..8).map(move |second| (first, second))) {
        let all = fresh(1, 1);
        let pool = open(&all);
        write(&pool, 0..20, 1);
        fail_a_flush(&all, first);
        assert!(pool.attach(0, sim(1), false).is_err());
        drop(pool);
        another_process(&all);
        fail_a_flush(&all, second);
        if let Ok(pool) = try_open(&all) {
            let _ = pool.attach(0, sim(2), false);
        }
        for seed in 0..16 {
            let pool = open(&after(&all, Some(seed)));
            has(&pool, 0..20, 1);
        }
    }
}

/// Does something that changes labels, of which a flush fails on all old devices; goes on in another process, and has the
/// power fail during its opening and later.
#[track_caller]
fn goes_on_after(groups: usize, grown: u64, change: &dyn Fn(&Pool, &Sims) -> pagefold_engine::Result<()>) {
    // By the numbers of devices chance decides what failed flushes keep.
    for (first, members) in [(1200, 1), (1400, 2)] {
        let mut failed = 0;
        for skip in 0..60 {
            let mut all = fresh_from(first, groups, members);
            all.iter().for_each(|sim| sim.grow(grown));
            let pool = open(&all);
            write(&pool, 0..40, 1);
            let more = sims(first + 50..first + 50 + members as u64);
            fail_a_flush(&all, skip);
            let done = change(&pool, &more).and_then(|()| try_write(&pool, 60..70, 1));
            drop(pool);
            all.extend(more);
            another_process(&all);
            if done.is_ok() {
                break;
            }
            failed += 1;
            let moments = Moments::of(&all, 3);
            let pool = open(&all);
            has(&pool, 0..40, 1);
            let moments = moments.end();
            write(&pool, 0..20, 2);
            pool.checkpoint(false).unwrap();
            write(&pool, 40..60, 2);
            drop(pool);
            for moment in moments {
                has(&open(&moment), 0..40, 1);
            }
            for seed in 0..4 {
                let pool = open(&after(&all, Some(seed)));
                has(&pool, 0..20, 2);
                has(&pool, 20..40, 1);
                has(&pool, 40..60, 2);
                is_sound(&pool);
            }
        }
        assert!(failed > 3, "{failed} flushes have failed");
    }
}

#[test]
fn a_pool_goes_on_after_a_failed_flush_when_groups_were_added() {
    goes_on_after(1, 0, &|pool, new| pool.add_groups(vec![handles(new)]));
}

#[test]
fn a_pool_goes_on_after_a_failed_flush_when_a_group_was_removed() {
    goes_on_after(2, 0, &|pool, _| {
        pool.remove_group(1)?;
        while pool.removal_step(1)?.is_some() {}
        Ok(())
    });
}

#[test]
fn a_pool_goes_on_after_a_failed_flush_when_devices_have_grown() {
    goes_on_after(1, 3 * SIZE, &|pool, _| {
        pool.take_up_growth(None)?;
        try_write(pool, 60..100, 1)?;
        pool.checkpoint(false)
    });
}
