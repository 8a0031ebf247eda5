use std::time::Duration;

use super::{AutotrimPace, LONGEST_REST, STEP_CHUNKS};

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
