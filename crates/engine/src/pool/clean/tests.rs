//! The cleaner on pools of simulated devices.

use super::super::testing::{fresh, open, page, write};
use super::*;
use crate::device::{InjectedFault, SimOp};

/// Returns the chunks in use by segments.
fn chunks_of(pool: &Pool) -> BTreeSet<Chunk> {
    let mut chunks = BTreeSet::new();
    pool.shared
        .segments
        .for_each(|segment| chunks.extend(segment.parts.iter().map(|part| part.extent.chunk)))
        .unwrap();
    chunks
}

/// Does passes as long as there is something to gain.
fn clean_all(pool: &Pool) {
    let mut state = pool.maintenance.lock();
    pool.checkpoint_locked(&mut state, false).unwrap();
    while pool.clean_pass(&mut state, 8).unwrap().is_some() {
        pool.checkpoint_locked(&mut state, false).unwrap();
    }
}

/// Asserts that what is counted of every chunk follows from the segments that lie in it.
fn verify_occupancy(pool: &Pool) {
    let mut counted: std::collections::BTreeMap<Chunk, (u64, usize)> = std::collections::BTreeMap::new();
    pool.shared
        .segments
        .for_each(|segment| {
            for (part, held) in segment.parts.iter().zip(&segment.held) {
                let of = counted.entry(part.extent.chunk).or_default();
                *of = (of.0 + held, of.1 + 1);
            }
        })
        .unwrap();
    for (chunk, (held, parts)) in counted {
        let told = pool.shared.segments.occupied(chunk).unwrap();
        let overhead = if held > 0 { parts as u64 * crate::segment::PART_OVERHEAD_BYTES } else { 0 };
        assert_eq!((told.packed_bytes(), told.parts() as usize), (held + overhead, parts), "{chunk:?}");
    }
}

#[test]
fn a_pass_leaves_more_free_chunks_than_there_were_or_does_not_begin() {
    let (_, pool) = fresh();
    write(&pool, 0..6000, 0);
    for round in 1..=6 {
        // A third of all pages is written again.
        write(&pool, (0..6000).filter(|at| at % 3 == round % 3), round);
        let mut state = pool.maintenance.lock();
        pool.checkpoint_locked(&mut state, false).unwrap();
        let free = pool.chunks.free();
        let report = pool.clean_pass(&mut state, 8).unwrap();
        pool.checkpoint_locked(&mut state, false).unwrap();
        verify_occupancy(&pool);
        match report {
            Some(report) => {
                assert!(report.gained() >= 1, "{report:?}");
                assert!(
                    pool.chunks.free() > free,
                    "{} free chunks were {free}: {report:?}",
                    pool.chunks.free()
                );
            }
            None => assert_eq!(pool.chunks.free(), free),
        }
    }
    for at in 0..6000 {
        let round = (0..=6).rev().find(|round| *round == 0 || at % 3 == round % 3).unwrap();
        let mut content = vec![0; 8192];
        pool.dataset().read(4, 8192, at * 8192, &mut content).unwrap();
        assert!(content == page(at, round), "page {at}");
    }
}

#[test]
fn records_that_survive_alone_take_no_block_of_their_own() {
    let (device, pool) = fresh();
    // One page of each segment of the log stays live.
    for round in 0..20 {
        write(&pool, (0..400).chain([1000 + round]), round);
    }
    write(&pool, 0..400, 99);
    let (one, before) = (pool.shared.segments.used_bytes(), chunks_of(&pool).len());
    clean_all(&pool);
    verify_occupancy(&pool);
    assert!(chunks_of(&pool).len() < before / 3, "{} of {before} chunks are left", chunks_of(&pool).len());
    // The records are as many; parts and nodes are others.
    assert!(pool.shared.segments.used_bytes() < one + one / 50);
    drop(pool);
    let pool = open(&device);
    verify_occupancy(&pool);
    let report = pool.check_open(&mut |_| {});
    assert_eq!((report.errors, report.messages), (0, vec![]));
}

#[test]
fn only_the_parts_in_cleaned_chunks_are_moved() {
    let (_, pool) = fresh();
    write(&pool, 0..3000, 0);
    write(&pool, (0..3000).filter(|at| at % 4 != 0), 1);
    pool.checkpoint(false).unwrap();
    clean_all(&pool);
    let several = |pool: &Pool| {
        let mut found = Vec::new();
        pool.shared
            .segments
            .for_each(|segment| {
                if segment.id < COPIES && segment.parts.len() > 1 {
                    found.push((segment.id, segment.parts.clone()));
                }
            })
            .unwrap();
        found
    };
    let (id, parts) =
        several(&pool).into_iter().next().expect("some segment is broken at the end of a chunk");
    // Cleans only the chunk of the segment's first part.
    let first = parts[0].extent.chunk;
    let mut state = pool.maintenance.lock();
    let plan = CleanPlan {
        sources: BTreeSet::from([first]),
        pages: pool.shared.segments.occupied(first).unwrap().pages().collect(),
        ..CleanPlan::default()
    };
    pool.clean_planned(&mut state, &plan).unwrap();
    let now = pool.shared.segments.get(id).unwrap().unwrap().parts;
    assert_ne!(now[0].extent.chunk, first);
    assert!(
        now.iter().any(|part| part.lies_as(&parts[parts.len() - 1])),
        "the other part stays where it was"
    );
    verify_occupancy(&pool);
}

/// A chunk with records that cannot be read is passed over until they are gone; then it is a chunk like others.
#[test]
fn a_chunk_that_is_free_again_is_no_longer_passed_over() {
    let (device, pool) = fresh();
    write(&pool, 0..3000, 0);
    write(&pool, (0..3000).filter(|at| at % 4 != 0), 1);
    pool.checkpoint(false).unwrap();
    let before = {
        let mut state = pool.maintenance.lock();
        device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times: u64::MAX });
        pool.clean_pass(&mut state, 8).unwrap();
        device.clear_faults();
        pool.checkpoint_locked(&mut state, false).unwrap();
        state.cleaner.unreadable.len()
    };
    write(&pool, 0..3000, 2);
    pool.checkpoint(false).unwrap();
    let left = pool.maintenance.lock().cleaner.unreadable.clone();
    assert!(
        left.len() < before && left.iter().all(|chunk| !pool.chunks.is_free(*chunk)),
        "{left:?}, {before}"
    );
}
