//! A log device gets each commit first. All that was acknowledged is there after a crash, also if the other devices have
//! nothing of it; and the pool goes on without the log device whenever nothing is on it alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::Error;
use pagefold_engine::dataset::Commit;
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::limits::RESERVED_BYTES;
use pagefold_engine::pool::{DeviceState, OpenOptions, Pool, SpareState};

fn flushes(sim: &Arc<SimDevice>) -> u64 {
    sim.stats().counts().flushes
}

fn written(sim: &Arc<SimDevice>) -> u64 {
    sim.stats().counts().written_bytes
}

fn fault(op: SimOp, times: u64) -> InjectedFault {
    InjectedFault { op, range: 0..SIZE, skip: 0, times }
}

/// Writes pages, and makes them durable for two who wait: then a flush follows.
fn write_for_two(pool: &Pool, version: u64) {
    try_apply(pool, 0..10, version).unwrap();
    pool.join_commit(Box::new(|done| done.unwrap()));
    pool.join_commit(Box::new(|done| done.unwrap()));
    pool.end_commit(pool.begin_commit()).unwrap();
}

fn is_there(pool: &Pool) -> bool {
    pool.log_device_status().is_some()
}

#[test]
fn commits_wait_for_the_log_device_alone() {
    let all = fresh_with_log(2, 1);
    let pool = open(&all);
    let before = [flushes(&all[0]), flushes(&all[1])];
    for version in 0..50 {
        write(&pool, 0..3, version);
        write_for_two(&pool, version);
    }
    assert_eq!([flushes(&all[0]), flushes(&all[1])], before);
    assert!(pool.log_device_status().unwrap().used_bytes > 0);
    let after = without_unflushed(&all);
    let again = open(&after);
    // All of the log device is read, once.
    let read_bytes = after[2].stats().counts().read_bytes;
    assert!(read_bytes < after[2].size_bytes() + 40 * MIB, "{read_bytes} bytes were read");
    has(&again, 0..10, 49);
    assert!(again.replayed().batches >= 100);
    is_sound(&again);
    drop(again);
    // All that was only on the log device is in its place by now.
    let pool = open(&after);
    has(&pool, 0..10, 49);
    is_sound(&pool);
}

#[test]
fn all_that_was_acknowledged_is_there_whenever_the_power_fails() {
    for seed in 0..12 {
        let all = fresh_with_log(1 + seed % 2, 1 + seed % 3 / 2);
        let pool = open(&all);
        let mut version = 0;
        for round in 0..20 {
            version += 1;
            write(&pool, 0..2, version);
            if (round + seed) % 5 == 0 {
                try_apply(&pool, 100..160, version).unwrap();
                pool.commit(false).unwrap();
            }
            if (round + seed) % 7 == 0 {
                pool.checkpoint(false).unwrap();
            }
        }
        for cut in 0..6 {
            let after = after(&all, Some(seed * 100 + cut));
            let moments = Moments::of(&after, 5);
            let pool = open(&after);
            has(&pool, 0..2, version);
            is_sound(&pool);
            write(&pool, 0..1, 1000 + cut);
            drop(pool);
            // Also if the power fails while that opening takes place.
            for moment in moments.end() {
                let pool = open(&moment);
                has(&pool, 1..2, version);
                is_sound(&pool);
            }
        }
    }
}

#[test]
fn a_log_device_that_is_full_is_used_again() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    let mut last = 0;
    for version in 0..900 {
        write(&pool, 0..40, version);
        last = version;
    }
    let status = pool.log_device_status().unwrap();
    assert!(written(&all[1]) > status.size_bytes, "it was filled more than once");
    let pool = open(&without_unflushed(&all));
    has(&pool, 0..40, last);
    is_sound(&pool);
}

#[test]
fn a_pool_goes_on_when_its_log_device_fails() {
    for (op, skip) in [(SimOp::Write, 0), (SimOp::Write, 3), (SimOp::Flush, 0), (SimOp::Flush, 2)] {
        let all = fresh_with_log(2, 1);
        let pool = open(&all);
        write(&pool, 0..10, 1);
        all[2].inject(InjectedFault { skip, ..fault(op, u64::MAX) });
        for version in 2..8 {
            write_for_two(&pool, version);
        }
        // Also if the power fails right now, and the log device is no more.
        let now = without_unflushed(&all);
        has(&open(&now), 0..10, 7);
        pool.maintain().unwrap();
        assert!(!is_there(&pool), "it has left the pool");
        write(&pool, 0..10, 8);
        let pool = open(&without_unflushed(&all[..2]));
        has(&pool, 0..10, 8);
        assert!(!is_there(&pool));
        is_sound(&pool);
    }
}

#[test]
fn a_log_device_that_fails_a_superblock_costs_nothing() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    all[1].inject(fault(SimOp::Write, u64::MAX));
    pool.checkpoint(false).unwrap();
    write(&pool, 0..10, 2);
    pool.maintain().unwrap();
    assert!(!is_there(&pool));
    has(&open(&without_unflushed(&all[..1])), 0..10, 2);
}

/// Found by the simulator: the power of the log device fails a moment before that of the others, which have a superblock
/// that it lacks, and that said that it is needed.
#[test]
fn a_log_device_without_the_last_superblock_keeps_no_pool_from_being_opened() {
    for skip in 0..12 {
        let all = fresh_with_log(2, 1);
        let pool = open(&all);
        write(&pool, 0..10, 1);
        let moments = Moments::of(&all, 1);
        all[2].inject(InjectedFault { skip, ..fault(SimOp::Write, u64::MAX) });
        all[2].inject(InjectedFault { skip: 0, ..fault(SimOp::Flush, u64::MAX) });
        pool.checkpoint(false).unwrap();
        write(&pool, 10..20, 1);
        let mut moments = moments.end();
        moments.push(without_unflushed(&all));
        for moment in moments {
            let pool = open(&moment);
            has(&pool, 0..10, 1);
            is_sound(&pool);
        }
        has(&open(&without_unflushed(&all)), 0..20, 1);
    }
}

/// Found by the simulator (seed 410094): the log device failed while the pool was being opened, before there was a
/// superblock. The only other device got one which said that the log device was needed, and after the next power cut the
/// pool was refused with both: the log device was a copy that had gone on apart.
#[test]
fn a_log_device_that_fails_while_the_pool_is_opened_is_not_needed_any_more() {
    for (devices, skip, last) in (0..24).map(|n| (1 + n % 2, n / 2 % 4, n / 8)) {
        let all = fresh_with_log(devices, 1);
        let pool = open(&all);
        write(&pool, 0..5, 1);
        match last {
            0 => {}
            1 => pool.checkpoint(false).unwrap(),
            // Nobody waits for this commit, and the log device does not get it.
            _ => {
                pool.checkpoint(false).unwrap();
                try_apply(&pool, 0..1, 1).unwrap();
                pool.commit(false).unwrap();
            }
        }
        drop(pool);
        let all = after(&all, None);
        let log = all.last().unwrap();
        log.inject(InjectedFault { skip, ..fault(SimOp::Flush, 1) });
        let moments = Moments::of(&all, 2);
        // It is refused as long as nothing else has the last commits.
        let opened = try_open(&all);
        let mut all_moments = moments.end();
        if let Ok(pool) = &opened {
            write(pool, 5..8, 2);
            let last = without_unflushed(&all);
            has(&open(&last), 5..8, 2);
            all_moments.push(last);
        }
        for moment in all_moments {
            let pool = open(&moment);
            has(&pool, 0..5, 1);
            is_sound(&pool);
        }
    }
}

#[test]
fn a_pool_that_was_closed_opens_without_its_log_device() {
    let all = fresh_with_log(2, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&all[..2]);
    has(&pool, 0..10, 1);
    assert!(!is_there(&pool));
    write(&pool, 0..10, 2);
    drop(pool);
    // When it comes back it is no device of the pool any more.
    let pool = open(&all);
    has(&pool, 0..10, 2);
    assert!(!is_there(&pool));
}

#[test]
fn a_pool_that_crashed_is_not_opened_without_its_log_device() {
    let all = fresh_with_log(2, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    pool.checkpoint(false).unwrap();
    write(&pool, 0..10, 2);
    let after = without_unflushed(&all);
    let error = try_open(&after[..2]).map(drop).unwrap_err().to_string();
    assert!(error.contains("log device") && error.contains("--accept-loss"), "{error}");
    let given_up = OpenOptions { accept_loss: true, ..options() };
    let pool = Pool::open_on(handles(&after[..2]), &given_up).unwrap();
    has(&pool, 0..10, 1);
    assert!(!is_there(&pool));
    is_sound(&pool);
    write(&pool, 0..10, 3);
    drop(pool);
    let pool = open(&after);
    has(&pool, 0..10, 3);
}

#[test]
fn an_older_copy_of_the_log_device_is_refused() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    let older = without_unflushed(&all)[1].clone();
    pool.checkpoint(false).unwrap();
    write(&pool, 0..10, 2);
    let after = without_unflushed(&all);
    assert!(matches!(try_open(&[after[0].clone(), older]), Err(Error::NotCurrent { .. })));
    has(&open(&after), 0..10, 2);
}

#[test]
fn one_half_of_a_mirrored_log_device_suffices() {
    for gone in [1, 2] {
        let all = fresh_with_log(1, 2);
        let pool = open(&all);
        write(&pool, 0..10, 1);
        let mut after = without_unflushed(&all);
        after.remove(gone);
        let pool = open(&after);
        has(&pool, 0..10, 1);
        assert!(is_there(&pool));
        is_sound(&pool);
    }
    // One that fails is left out, and the other one goes on.
    let all = fresh_with_log(1, 2);
    let pool = open(&all);
    all[1].inject(fault(SimOp::Write, u64::MAX));
    write(&pool, 0..10, 1);
    pool.maintain().unwrap();
    assert!(is_there(&pool));
    let before = flushes(&all[0]);
    write(&pool, 0..10, 2);
    assert_eq!(flushes(&all[0]), before);
    has(&open(&without_unflushed(&all)), 0..10, 2);
}

/// Many batches may carry the number and the chain of the one with which the log goes on, since all of a log device may be of
/// somebody who means harm: they are read one by one, until one counts.
#[test]
fn a_batch_that_both_halves_of_a_log_device_have_is_read_once() {
    let all = fresh_with_log(1, 2);
    let pool = open(&all);
    for version in 0..20 {
        write(&pool, 0..40, version);
    }
    let after = without_unflushed(&all);
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::for_rescue() };
    drop(Pool::open_on(handles(&after), &options).unwrap());
    let read = [1, 2].map(|at: usize| after[at].stats().counts().read_bytes);
    assert!(read[0] > read[1] + 20 * 40 * u64::from(PAGE), "{read:?}");
}

#[test]
fn a_mirror_of_the_log_device_is_whole_when_it_was_filled() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    let new = sim(LOG + 7);
    pool.attach(1, new.clone(), false).unwrap();
    write(&pool, 0..10, 2);
    fill(&pool);
    assert_eq!(states(&pool), [DeviceState::Online; 3]);
    write(&pool, 0..10, 3);
    let after = without_unflushed(&[all[0].clone(), new]);
    has(&open(&after), 0..10, 3);
}

/// The log goes on where it is on the other devices, and what lies before is never copied to the new one.
#[test]
fn a_device_that_replaces_the_log_device_has_all_from_then_on() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    for version in 1..60 {
        write(&pool, 0..60, version);
    }
    let new = sim(LOG + 7);
    pool.attach(1, new.clone(), false).unwrap();
    fill(&pool);
    pool.detach(1).unwrap();
    let now = [all[0].clone(), new];
    for version in 60..64 {
        write(&pool, 0..60, version);
        let after = open(&without_unflushed(&now));
        has(&after, 0..60, version);
        is_sound(&after);
    }
}

/// Where the log goes on, a device that comes back has a part of a batch of an earlier turn. What is behind the beginning of
/// that batch is not hidden by it.
#[test]
fn a_half_of_the_log_device_that_was_away_hides_nothing_by_what_it_had_before() {
    let all = fresh_with_log(1, 2);
    let pool = open(&all);
    for version in 0..3 {
        write(&pool, 0..100, version);
    }
    drop(pool);
    // The log device is filled from its start on again.
    let pool = open(&all);
    pool.offline(2).unwrap();
    write(&pool, 0..100, 3);
    pool.online(Arc::clone(&all[2]) as Arc<dyn Device>).unwrap();
    fill(&pool);
    assert_eq!(states(&pool), [DeviceState::Online; 3]);
    for version in 4..10 {
        write(&pool, 0..3, version);
        let after = without_unflushed(&[Arc::clone(&all[0]), Arc::clone(&all[2])]);
        let again = open(&after);
        has(&again, 0..3, version);
        has(&again, 3..100, 3);
        is_sound(&again);
    }
}

#[test]
fn a_log_device_is_added_and_removed_while_the_pool_is_used() {
    let all = fresh(2, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    let capacity = pool.status().capacity_bytes;
    let log = sim(LOG);
    pool.add_log_device(handles(std::slice::from_ref(&log))).unwrap();
    assert_eq!(pool.status().capacity_bytes, capacity);
    assert!(matches!(pool.add_log_device(handles(&[sim(LOG + 1)])), Err(Error::Invalid(_))));
    let before = flushes(&all[0]);
    write(&pool, 0..10, 2);
    assert_eq!(flushes(&all[0]), before);
    let with: Sims = all.iter().cloned().chain([log.clone()]).collect();
    has(&open(&without_unflushed(&with)), 0..10, 2);
    let group = pool.log_device_status().unwrap().group;
    pool.remove_group(group).unwrap();
    assert!(!is_there(&pool));
    write(&pool, 0..10, 3);
    has(&open(&without_unflushed(&all)), 0..10, 3);
    // The last device that holds data does not leave, whether there is a log device or not.
    pool.add_log_device(handles(&[sim(LOG + 2)])).unwrap();
    pool.remove_group(0).unwrap();
    while pool.removal_step(1).unwrap().is_some() {}
    assert!(matches!(pool.remove_group(1), Err(Error::Invalid(_))));
    has(&pool, 0..10, 3);
    is_sound(&pool);
}

#[test]
fn a_power_cut_while_a_log_device_is_added_or_removed_costs_nothing() {
    for adds in [true, false] {
        let (all, log) = match adds {
            true => (fresh(1, 1), sim(LOG)),
            false => {
                let all = fresh_with_log(1, 1);
                (vec![all[0].clone()], all[1].clone())
            }
        };
        let with: Sims = all.iter().cloned().chain([log.clone()]).collect();
        let pool = match adds {
            true => open(&all),
            false => open(&with),
        };
        write(&pool, 0..10, 1);
        let moments = Moments::of(&with, 1);
        match adds {
            true => pool.add_log_device(handles(&[log])).unwrap(),
            false => pool.remove_group(pool.log_device_status().unwrap().group).unwrap(),
        }
        write(&pool, 10..20, 1);
        for moment in moments.end() {
            let pool = open(&moment);
            has(&pool, 0..10, 1);
            write(&pool, 0..10, 2);
            has(&open(&without_unflushed(&moment)), 0..10, 2);
            drop(pool);
        }
    }
}

#[test]
fn a_pool_that_crashed_is_not_read_only_opened_when_its_log_device_has_the_rest() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    let after = without_unflushed(&all);
    let reading = OpenOptions { read_only: true, ..options() };
    assert!(matches!(Pool::open_on(handles(&after), &reading), Err(Error::NotReplayed(_))));
    has(&open(&after), 0..10, 1);
}

/// The simulator's seed 2611300245: where a batch belongs a crash had torn it, and on the log device a bit had flipped.
#[test]
fn a_flipped_bit_of_a_batch_that_only_the_log_device_has_costs_a_page_at_most() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..40, 1);
    let end = RESERVED_BYTES + pool.log_device_status().unwrap().used_bytes;
    let mut opened = 0;
    for offset in (RESERVED_BYTES..end).step_by(3001) {
        // Of a batch that was not flushed where it belongs, a part is there.
        let after = [Arc::new(all[0].crash_seeded(offset)), Arc::new(all[1].crash_seeded(offset))];
        after[1].flip_bit(offset, 3);
        match try_open(&after) {
            Ok(pool) => {
                let mut out = vec![0; PAGE as usize];
                let mut is_lost =
                    |at: u64| pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).is_err();
                let lost = (0..40).filter(|at| is_lost(*at)).count();
                assert!(lost <= 1, "{lost} pages are lost to one bit at byte {offset}");
                opened += 1;
                // It has been written where it belongs.
                drop(pool);
                drop(open(&after));
            }
            // The bit was of a header or of a directory, which cannot be done without.
            Err(error) => assert!(error.to_string().contains("does not hold"), "byte {offset}: {error}"),
        }
    }
    assert!(opened > 40, "{opened}");
}

/// Its batches have the numbers of those that follow instead. They are neither taken for these, nor do they show that these
/// are damaged.
#[test]
fn a_log_device_that_was_given_up_can_be_added_again() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..10, 1);
    pool.checkpoint(false).unwrap();
    for version in 2..100 {
        write(&pool, 0..10, version);
    }
    let after = without_unflushed(&all);
    let given_up = OpenOptions { accept_loss: true, ..options() };
    let pool = Pool::open_on(handles(&after[..1]), &given_up).unwrap();
    write(&pool, 0..10, 200);
    pool.add_log_device(handles(&after[1..])).unwrap();
    write(&pool, 0..10, 201);
    let pool = open(&without_unflushed(&after));
    has(&pool, 0..10, 201);
    is_sound(&pool);
}

#[test]
fn a_log_device_that_was_given_up_unread_does_not_replace_what_followed() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    write(&pool, 0..40, 1);
    pool.checkpoint(false).unwrap();
    for version in 2..10 {
        write(&pool, 0..10, version);
    }
    let after = without_unflushed(&all);
    after[1].inject(InjectedFault { range: RESERVED_BYTES..SIZE, ..fault(SimOp::Read, u64::MAX) });
    assert!(try_open(&after).is_err());
    let given_up = OpenOptions { accept_loss: true, ..options() };
    let pool = Pool::open_on(handles(&after), &given_up).unwrap();
    has(&pool, 10..40, 1);
    write(&pool, 0..10, 300);
    // From now on it can be read again.
    let pool = open(&without_unflushed(&after));
    has(&pool, 0..10, 300);
    is_sound(&pool);
}

/// It would be erased with the log device, and be lost.
#[test]
fn a_log_device_does_not_leave_with_a_spare_that_stands_in() {
    let all = fresh_with_log(1, 2);
    let pool = open(&all);
    let spare = sim(70);
    pool.add_spares(handles(std::slice::from_ref(&spare))).unwrap();
    write(&pool, 0..10, 1);
    all[2].inject(fault(SimOp::Write, u64::MAX));
    write(&pool, 0..10, 2);
    assert!(pool.spare_step(1).unwrap());
    let stands_in = pool.spares()[0].device.unwrap();
    let refused = pool.remove_group(1).unwrap_err().to_string();
    assert!(refused.contains("stands in"), "{refused}");
    pool.detach(stands_in).unwrap();
    pool.remove_group(1).unwrap();
    assert_eq!(pool.spares()[0].state, SpareState::Available);
    has(&pool, 0..10, 2);
}

#[test]
fn no_spare_steps_in_for_a_log_device_of_which_nothing_is_left() {
    let all = fresh_with_log(1, 1);
    let pool = open(&all);
    pool.add_spares(handles(&[sim(70)])).unwrap();
    all[1].inject(fault(SimOp::Write, u64::MAX));
    write(&pool, 0..10, 1);
    assert!(!pool.spare_step(1).unwrap());
    pool.maintain().unwrap();
    assert!(!is_there(&pool));
    assert_eq!(pool.spares()[0].state, SpareState::Available);
}
