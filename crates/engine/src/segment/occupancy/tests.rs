use super::*;

fn chunk(index: u32) -> Chunk {
    Chunk { device: 0, index }
}

fn order(occupancy: &Occupancy, score: &dyn Fn(u64, u64) -> f64) -> Vec<u32> {
    let mut found = Vec::new();
    occupancy.by_score(score, &mut |chunk, _| {
        found.push(chunk.index);
        true
    });
    found
}

#[test]
fn the_highest_score_comes_first_and_changes_with_what_lives() {
    let mut occupancy = Occupancy::default();
    for (index, held) in [(0, CHUNK_BYTES / 2), (1, 100_000), (2, CHUNK_BYTES), (3, 0)] {
        occupancy.enter(chunk(index), 0, 10 + u64::from(index), held);
    }
    let emptiest = |held: u64, _| -(held as f64);
    assert_eq!(order(&occupancy, &emptiest), [3, 1, 0, 2]);
    occupancy.shrink(chunk(2), CHUNK_BYTES - 200_000);
    occupancy.grow(chunk(1), 1 << 20);
    assert_eq!(order(&occupancy, &emptiest), [3, 2, 1, 0]);
    occupancy.leave(chunk(3), 0, 0);
    assert_eq!(order(&occupancy, &emptiest), [2, 1, 0]);
    assert!(occupancy.get(chunk(3)).is_none());
}

#[test]
fn of_equally_full_chunks_the_oldest_comes_first() {
    let mut occupancy = Occupancy::default();
    for (index, segment) in [(0, 30), (1, COPIES | 10), (2, 20)] {
        occupancy.enter(chunk(index), 0, segment, 1 << 20);
    }
    assert_eq!(order(&occupancy, &|_, youngest| -(youngest as f64)), [1, 2, 0]);
    // A younger part makes the chunk younger.
    occupancy.enter(chunk(1), 0, 40, 0);
    assert_eq!(order(&occupancy, &|_, youngest| -(youngest as f64)), [2, 0, 1]);
}

#[test]
fn a_segment_may_have_two_parts_in_a_chunk() {
    let mut occupancy = Occupancy::default();
    occupancy.enter(chunk(0), 3, 7, 1000);
    occupancy.enter(chunk(0), 3, 7, 500);
    occupancy.leave(chunk(0), 3, 1000);
    let left = occupancy.get(chunk(0)).unwrap();
    assert_eq!(left.pages().collect::<Vec<_>>(), [3]);
    assert_eq!((left.parts(), left.packed_bytes()), (1, 500 + PART_OVERHEAD_BYTES));
}

/// Memory grows with the pages that have survivors in a chunk, not with the segments that have some.
#[test]
fn of_many_segments_the_pages_are_kept() {
    let mut occupancy = Occupancy::default();
    let before = occupancy.memory_bytes();
    for segment in 1..=1000 {
        occupancy.enter(chunk(0), segment / 64, segment, 100);
    }
    let grown = occupancy.memory_bytes() - before;
    assert!(grown < 64 * 60 + 1000, "{grown} bytes");
    for segment in 1..=1000 {
        let left = occupancy.get(chunk(0)).unwrap();
        assert_eq!((left.parts(), left.youngest()), (1001 - segment as u32, 1000));
        assert_eq!(left.pages().count() as u64, 1000 / 64 - segment / 64 + 1);
        occupancy.leave(chunk(0), segment / 64, 100);
    }
    assert!(occupancy.get(chunk(0)).is_none());
    assert_eq!(occupancy.pointed_bytes, 0);
}
