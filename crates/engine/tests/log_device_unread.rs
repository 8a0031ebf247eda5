//! Blocks of a log device that cannot be read. They keep a pool from being opened only if a commit that no other device has
//! may lie there; and then no more is lost than that, if the loss is accepted.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::ops::Range;
use std::sync::Arc;

use mirrored::*;
use pagefold_engine::dataset::Commit;
use pagefold_engine::device::{InjectedFault, SimDevice, SimOp};
use pagefold_engine::limits::RESERVED_BYTES;
use pagefold_engine::pool::{OpenOptions, Pool};

const BLOCK: u64 = 4096;

fn fails(sim: &SimDevice, op: SimOp, range: Range<u64>) {
    sim.inject(InjectedFault { op, range, skip: 0, times: u64::MAX });
}

fn without_what_is_lost(sims: &[Arc<SimDevice>]) -> pagefold_engine::Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &OpenOptions { accept_loss: true, ..options() })
}

/// A pool that crashed: pages `0..40` were written in version 1 and in version 2, each by a commit of its own. `settled` says
/// how many of the latter are where they belong, too.
fn crashed(logs: u64, settled: u64) -> Sims {
    let all = fresh_with_log(1, logs);
    let pool = open(&all);
    (0..40).for_each(|at| write(&pool, at..at + 1, 1));
    pool.checkpoint(false).unwrap();
    for at in 0..40 {
        write(&pool, at..at + 1, 2);
        if at + 1 == settled {
            pool.checkpoint(false).unwrap();
        }
    }
    without_unflushed(&all)
}

/// Returns the number of the first pages that have version 2; all others have version 1.
#[track_caller]
fn newer(pool: &Pool) -> u64 {
    let mut out = vec![0; PAGE as usize];
    let mut is_newer = |at: u64| {
        pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).unwrap();
        out == page(at, 2)
    };
    let count = (0..40).take_while(|at| is_newer(*at)).count() as u64;
    has(pool, count..40, 1);
    is_sound(pool);
    count
}

#[test]
fn a_block_in_which_no_commit_lies_is_not_missed() {
    for accept_loss in [false, true] {
        let all = crashed(1, 0);
        fails(&all[1], SimOp::Read, SIZE - 8 * MIB..SIZE - 8 * MIB + BLOCK);
        let pool = Pool::open_on(handles(&all), &OpenOptions { accept_loss, ..options() }).unwrap();
        assert_eq!(newer(&pool), 40);
        assert!(pool.log_device_status().is_some());
        write(&pool, 0..40, 3);
        has(&open(&without_unflushed(&all)), 0..40, 3);
    }
}

#[test]
fn no_block_costs_more_than_the_commits_behind_it() {
    let (mut opened, mut refused) = (0, 0);
    for settled in [0, 20] {
        let before = crashed(1, settled);
        for offset in (RESERVED_BYTES..RESERVED_BYTES + 3 * MIB / 2).step_by(11 * BLOCK as usize) {
            let all = after(&before, None);
            fails(&all[1], SimOp::Read, offset..offset + BLOCK);
            let pool = match try_open(&all) {
                Ok(pool) => {
                    opened += 1;
                    assert_eq!(newer(&pool), 40, "byte {offset}");
                    pool
                }
                Err(error) => {
                    refused += 1;
                    let error = error.to_string();
                    assert!(error.contains("log device") && error.contains("--accept-loss"), "{error}");
                    let pool = without_what_is_lost(&all).unwrap();
                    assert!(newer(&pool) >= settled, "byte {offset}");
                    pool
                }
            };
            let left = newer(&pool);
            write(&pool, 50..60, 3);
            drop(pool);
            // The block can be read again.
            let pool = open(&without_unflushed(&all));
            assert_eq!(newer(&pool), left, "byte {offset}");
            has(&pool, 50..60, 3);
        }
    }
    assert!(opened > 10 && refused > 10, "{opened}, {refused}");
}

/// Each half of a mirror has a block that it cannot read, in one batch.
#[test]
fn what_one_half_cannot_read_the_other_one_has() {
    let all = crashed(2, 0);
    for offset in (RESERVED_BYTES..RESERVED_BYTES + MIB).step_by(2 * BLOCK as usize) {
        fails(&all[1], SimOp::Read, offset..offset + BLOCK);
        fails(&all[2], SimOp::Read, offset + BLOCK..offset + 2 * BLOCK);
    }
    assert_eq!(newer(&open(&all)), 40);
}

/// A batch that was torn on the log device cannot be erased there: the pool goes on without the log device.
#[test]
fn a_log_device_that_fails_to_be_erased_leaves_the_pool() {
    let all = crashed(1, 0);
    let pool = open(&all);
    write(&pool, 0..40, 2);
    try_apply(&pool, 50..60, 3).unwrap();
    pool.commit(false).unwrap();
    let mut left = 0;
    for seed in 0..30 {
        let all = after(&all, Some(seed));
        fails(&all[1], SimOp::Write, RESERVED_BYTES..RESERVED_BYTES + 4 * MIB);
        let pool = open(&all);
        assert_eq!(newer(&pool), 40);
        left += u64::from(pool.log_device_status().is_none());
    }
    assert!(left > 0);
}
