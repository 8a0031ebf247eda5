use super::*;
use crate::dataset::RoomRequest;
use crate::pool::testing::{of_groups, write};

/// Bytes that writers leave, so that a checkpoint may take some of them.
const LEFT_BYTES: u64 = 12 << 20;

/// Writers would be promised the chunks that a pass has not filled yet.
#[test]
fn chunks_that_a_pass_is_to_fill_are_promised_to_nobody_else() {
    let pool = of_groups(3);
    write(&pool, 0..10_000, 1);
    pool.remove_group(0).unwrap();
    let mut state = pool.maintenance.lock();
    pool.checkpoint_locked(&mut state, false).unwrap();
    let plan = |state: &Maintenance, outputs: u64| {
        assert_eq!(outputs, PASS_CHUNKS_MAX);
        while pool.shared.reserve(1 << 20, u64::MAX, LEFT_BYTES).is_ok() {}
        pool.plan_move_off(state, 0, outputs)
    };
    let moved = pool.move_planned(&mut state, None, &plan).unwrap();
    assert!(matches!(moved, Moved::Bytes(bytes) if bytes > 8 << 20), "{moved:?}");
    assert!(pool.shared.has_room(RoomRequest::NONE), "what was accepted has no room any more");
}
