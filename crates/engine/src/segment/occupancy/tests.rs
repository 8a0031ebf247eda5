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
        occupancy.enter(chunk(index), 10 + u64::from(index), held);
    }
    let emptiest = |held: u64, _| -(held as f64);
    assert_eq!(order(&occupancy, &emptiest), [3, 1, 0, 2]);
    occupancy.shrink(chunk(2), CHUNK_BYTES - 200_000);
    occupancy.grow(chunk(1), 1 << 20);
    assert_eq!(order(&occupancy, &emptiest), [3, 2, 1, 0]);
    occupancy.leave(chunk(3), 13, 0);
    assert_eq!(order(&occupancy, &emptiest), [2, 1, 0]);
    assert!(occupancy.get(chunk(3)).is_none());
}

#[test]
fn of_equally_full_chunks_the_oldest_comes_first() {
    let mut occupancy = Occupancy::default();
    for (index, segment) in [(0, 30), (1, COPIES | 10), (2, 20)] {
        occupancy.enter(chunk(index), segment, 1 << 20);
    }
    assert_eq!(order(&occupancy, &|_, youngest| -(youngest as f64)), [1, 2, 0]);
    // A younger part makes the chunk younger.
    occupancy.enter(chunk(1), 40, 0);
    assert_eq!(order(&occupancy, &|_, youngest| -(youngest as f64)), [2, 0, 1]);
}

#[test]
fn a_segment_may_have_two_parts_in_a_chunk() {
    let mut occupancy = Occupancy::default();
    occupancy.enter(chunk(0), 7, 1000);
    occupancy.enter(chunk(0), 7, 500);
    occupancy.leave(chunk(0), 7, 1000);
    let left = occupancy.get(chunk(0)).unwrap();
    assert_eq!((left.segments(), left.packed_bytes()), (&[7][..], 500 + PART_OVERHEAD_BYTES));
}
