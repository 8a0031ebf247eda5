//! Mirrors whose devices are damaged, or fail to be read: what one has wrong comes from another one, and is mended.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;

use std::sync::Arc;

use mirrored::*;
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{DeviceState, Pool};

use DeviceState::{Filling, Online};

/// A mirror of two that holds so many pages, and was closed.
fn filled(pages: u64) -> Sims {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..pages, 1);
    pool.export().unwrap();
    sims
}

/// Scrubs all of a pool. Nothing that it finds may stay.
fn scrub(pool: &Pool, now: u64) -> u64 {
    pool.scrub_start(now, 0).unwrap();
    while pool.scrub_step(now + 1).unwrap().is_some() {}
    let scrub = pool.status().scrub;
    assert_eq!(scrub.repaired, scrub.damaged + scrub.unreadable, "{scrub:?}");
    scrub.repaired
}

#[test]
fn what_one_device_has_wrong_comes_from_the_other_and_is_mended() {
    let sims = filled(2000);
    let mut bits = 0;
    for at in sims[1].written_blocks() {
        if (2 * MIB..120 * MIB).contains(&at) {
            sims[1].flip_bit(at + 77, 3);
            bits += 1;
        }
    }
    assert!(bits > 2000);
    let pool = open(&sims);
    has(&pool, 0..2000, 1);
    scrub(&pool, 1);
    let faults = pool.faults();
    assert!(faults.devices[1].repaired > 1000, "{faults:?}");
    assert_eq!(faults.devices[0].checksums, 0);
    assert_eq!(scrub(&pool, 3), 0);
    pool.export().unwrap();
    each_has_all(&sims, 0..2000, 1);
}

/// Damages what a device has in every fourth zone of 64 KiB, from zone `first` on.
fn rot(sim: &SimDevice, first: u64) {
    let zone = |at: u64| at / (64 << 10);
    let blocks = sim.written_blocks().into_iter().filter(|at| (2 * MIB..120 * MIB).contains(at));
    let mut bits = 0;
    for at in blocks.filter(|at| zone(*at) % 4 == first) {
        sim.flip_bit(at + 77, 3);
        bits += 1;
    }
    assert!(bits > 400, "{bits}");
}

/// Both devices have damage, each elsewhere: together they have everything, so nothing may be lost when one of them is
/// replaced, whichever of them a region was copied from.
#[test]
fn a_replaced_device_stays_until_the_copy_of_it_was_verified() {
    for replaced in [0_u16, 1] {
        let sims = filled(2000);
        rot(&sims[0], 0);
        rot(&sims[1], 2);
        let pool = open(&sims);
        let new = sim(5);
        pool.attach(replaced, Arc::clone(&new) as Arc<dyn Device>, true).unwrap();
        fill(&pool);
        assert_eq!(numbers(&pool), if replaced == 0 { [1, 2] } else { [0, 2] });
        has(&pool, 0..2000, 1);
        pool.export().unwrap();
        drop(pool);
        each_has_all(&[new], 0..2000, 1);
    }
}

/// Returns the place of a page on a device that has it raw, as pages are that do not compress.
fn place_of(sim: &SimDevice, at: u64) -> Option<u64> {
    let wanted = page(at, 1);
    sim.written_blocks().into_iter().filter(|start| start + 2 * 4096 <= SIZE).find_map(|start| {
        let mut blocks = AlignedBuf::scratch(8 << 10);
        sim.read(start, &mut blocks).ok()?;
        let found = blocks.windows(64).take(4096).position(|bytes| *bytes == wanted[..64])?;
        Some(start + found as u64)
    })
}

/// A record is mended from the other device; what else lies in its first and last block stays, for it may be right here
/// alone.
#[test]
fn mending_a_record_leaves_its_neighbours_alone() {
    let sims = filled(200);
    let mut hit = 0;
    // The end of one record and the beginning of the next one, in one block.
    for at in (10..190).step_by(4) {
        let [first, second] = [at, at + 1].map(|at| place_of(&sims[0], at).unwrap());
        let end = first + u64::from(PAGE) - 1;
        if second > end && second / 4096 == end / 4096 {
            sims[0].flip_bit(end, 1);
            sims[1].flip_bit(second, 1);
            hit += 1;
        }
    }
    assert!(hit > 20, "{hit}");
    let pool = open(&sims);
    has(&pool, 0..200, 1);
    scrub(&pool, 1);
    pool.export().unwrap();
    drop(pool);
    each_has_all(&sims, 0..200, 1);
}

/// A copy comes from a device that stays, where that can be read: the other one is replaced for a reason.
#[test]
fn a_device_that_is_replaced_is_copied_only_if_no_other_one_can_be_read() {
    for readable in [true, false] {
        let sims = filled(2000);
        rot(&sims[0], 0);
        let pool = open(&sims);
        if !readable {
            let fault = InjectedFault { op: SimOp::Read, range: 2 * MIB..SIZE, skip: 0, times: u64::MAX };
            sims[1].inject(fault);
        }
        pool.attach(0, sim(5) as Arc<dyn Device>, true).unwrap();
        while states(&pool)[2] == Filling {
            pool.fill_step(5).unwrap();
        }
        sims[1].clear_faults();
        let mut repaired = 0;
        while pool.fill_step(5).unwrap().is_some() {
            repaired = repaired.max(pool.faults().devices.get(2).map_or(0, |of| of.repaired));
        }
        assert_eq!(numbers(&pool), [1, 2]);
        assert_eq!(repaired > 0, !readable, "{repaired}");
        let of_new = pool.faults().devices[2];
        assert_eq!((of_new.checksums, of_new.repaired), (0, 0), "it was given what was wrong elsewhere");
        has(&pool, 0..2000, 1);
    }
}

#[test]
fn reads_that_fail_are_answered_by_the_other() {
    let sims = filled(1000);
    sims[0].inject(InjectedFault { op: SimOp::Read, range: 2 * MIB..SIZE, skip: 0, times: u64::MAX });
    let pool = open(&sims);
    has(&pool, 0..1000, 1);
    assert_eq!(states(&pool), [Online, Online]);
    assert!(pool.faults().devices[0].reads > 0);
}

/// A mirror of which one half has damage, and the other one, which has all of it right, was replaced and fails reads since.
fn replaced_and_unread() -> (Sims, Arc<Pool>) {
    let sims = filled(2000);
    rot(&sims[1], 2);
    let pool = open(&sims);
    pool.attach(0, sim(5) as Arc<dyn Device>, true).unwrap();
    while states(&pool)[2] == Filling {
        pool.fill_step(5).unwrap();
    }
    sims[0].inject(InjectedFault { op: SimOp::Read, range: 2 * MIB..SIZE, skip: 0, times: u64::MAX });
    (sims, pool)
}

/// A path to the device that is replaced fails for a while: what it alone has right is not given up.
#[test]
fn a_replaced_device_that_fails_reads_stays_until_it_could_be_read() {
    let (sims, pool) = replaced_and_unread();
    fill(&pool);
    assert_eq!(numbers(&pool), [0, 1, 2]);
    sims[0].clear_faults();
    while pool.fill_step(100).unwrap().is_some() {}
    assert_eq!(numbers(&pool), [1, 2]);
    has(&pool, 0..2000, 1);
}

/// Records that it can never read are as lost as before.
#[test]
fn a_replaced_device_that_never_can_be_read_leaves_in_the_end() {
    let (_sims, pool) = replaced_and_unread();
    let mut pauses = 0;
    while numbers(&pool) != [1, 2] {
        pauses += u64::from(pool.fill_step(1000 * (pauses + 1)).unwrap().is_none());
        assert!(pauses < 10, "it stays");
    }
    assert_eq!(pauses, 3);
}

/// Beside a mirror a device that has none is read once, and what is wrong on it is counted once.
#[test]
fn a_scrub_reads_a_device_without_a_mirror_once() {
    let all = fresh_mirrors_with_log(1, 1, 2);
    let pool = open(&all);
    write(&pool, 0..1000, 1);
    pool.checkpoint(false).unwrap();
    let before = all[0].stats().counts().read_bytes;
    scrub(&pool, 1);
    let read_bytes = all[0].stats().counts().read_bytes - before;
    assert!(read_bytes < 3 * 1000 * u64::from(PAGE) / 2, "{read_bytes}");
    let damaged = place_of(&all[0], 500).unwrap() + 100;
    all[0].flip_bit(damaged, 1);
    pool.scrub_start(3, 0).unwrap();
    while pool.scrub_step(4).unwrap().is_some() {}
    assert_eq!(pool.status().scrub.damaged, 1);
}
