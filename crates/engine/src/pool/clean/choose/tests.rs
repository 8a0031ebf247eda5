use super::*;

#[test]
fn sparse_chunks_are_worth_more_than_full_ones_and_old_ones_more_than_young_ones() {
    let half = CHUNK_BYTES / 2;
    assert!(score(half, 90, 100) > score(half + 100_000, 90, 100));
    assert!(score(half, 10, 100) > score(half, 90, 100));
    assert!(score(0, 100, 100) > score(1000, 1, 100));
    // A chunk that is nearly full is not taken for its age alone.
    assert!(score(half, 100, 100) > score(CHUNK_BYTES / 100 * 95, 1, 100));
    assert_eq!(score(CHUNK_BYTES * 2, 1, 100), 0.0);
}

#[test]
fn survivors_fill_what_is_begun_first() {
    let sum = |live_bytes, begun_bytes| Sum { live_bytes, begun_bytes }.outputs();
    assert_eq!((sum(0, 0), sum(1, 0), sum(1, 1), sum(OUTPUT_BYTES + 1, 0)), (0, 1, 0, 2));
    assert_eq!(sum(OUTPUT_BYTES + 1000, 1000), 1);
}
