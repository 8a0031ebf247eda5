use std::time::Duration;

use super::super::testing::{fresh, write};
use super::{AutotrimPace, LONGEST_REST, STEP_CHUNKS};
use crate::dataset::Change;
use crate::device::Device;
use crate::limits::CHUNK_BYTES;
use crate::pool::Pool;
use crate::space::Chunk;

#[test]
fn a_device_that_takes_seconds_is_told_of_less_at_a_time_and_soon_again() {
    let mut pace = AutotrimPace::default();
    assert!(pace.rest_after(Duration::from_secs(9)) <= LONGEST_REST, "a minute would pass otherwise");
    assert!(pace.most_chunks < STEP_CHUNKS);
    for _ in 0..9 {
        pace.rest_after(Duration::from_secs(1));
    }
    assert_eq!(pace.most_chunks, 1);
}

#[test]
fn a_device_that_is_fast_is_told_of_as_much_as_before_and_works_a_share_of_the_time() {
    let mut pace = AutotrimPace::default();
    for _ in 0..9 {
        pace.rest_after(Duration::from_secs(1));
    }
    for _ in 0..9 {
        assert_eq!(pace.rest_after(Duration::from_millis(10)), Duration::from_millis(70));
    }
    assert_eq!(pace.most_chunks, STEP_CHUNKS);
    // One that is neither keeps the number.
    pace.rest_after(Duration::from_millis(100));
    assert_eq!(pace.most_chunks, STEP_CHUNKS);
}

/// Returns the chunk in which a page's record lies.
fn chunk_of(pool: &Pool, page: u64) -> Chunk {
    let mut ptr = [None];
    pool.dataset.tree.pages(4, page, &mut ptr).unwrap();
    let located = pool.shared.segments.locate(&pool.shared.devices, ptr[0].unwrap().addr).unwrap();
    Chunk::at(located.device, located.offset)
}

/// Survivors of one segment lie in two chunks. A chunk of which all is deleted is not freed by a checkpoint as long as its
/// segments live on elsewhere; and an idle pool must not make one checkpoint after the other because of it.
#[test]
fn chunks_whose_segments_live_on_elsewhere_are_freed_by_the_way() {
    let (device, pool) = fresh();
    write(&pool, 0..9000, 0);
    write(&pool, (0..9000).filter(|at| at % 2 == 0), 1);
    {
        let mut state = pool.maintenance.lock();
        pool.checkpoint_locked(&mut state, false).unwrap();
        while pool.clean_pass(&mut state, 8).unwrap().is_some() {
            pool.checkpoint_locked(&mut state, false).unwrap();
        }
    }
    pool.set_autotrim(true);
    while pool.autotrim_step().unwrap().is_some() {}
    let survivors: Vec<u64> = (0..9000).filter(|at| at % 2 == 1).collect();
    let chunks: Vec<&[u64]> = survivors.chunk_by(|a, b| chunk_of(&pool, *a) == chunk_of(&pool, *b)).collect();
    assert!(chunks.len() >= 8, "{}", chunks.len());
    for pages in chunks.into_iter().step_by(2) {
        let punch = |page: &u64| Change::Punch { object: 4, from: *page, to: page + 1 };
        pages.chunks(64).for_each(|some| {
            pool.dataset().apply(&some.iter().map(punch).collect::<Vec<_>>()).unwrap();
        });
    }
    pool.sync().unwrap();
    let told = device.stats().counts().discarded_bytes;
    let mut stuck = 0;
    let mut rounds = || {
        for _ in 0..4 {
            pool.free_for_autotrim(&mut stuck).unwrap();
            while pool.autotrim_step().unwrap().is_some() {}
        }
    };
    rounds();
    let before = pool.totals().checkpoints;
    rounds();
    assert_eq!(pool.totals().checkpoints, before, "an idle pool goes on making checkpoints");
    let told = device.stats().counts().discarded_bytes - told;
    assert!(told >= 4 * CHUNK_BYTES, "{told}");
}
