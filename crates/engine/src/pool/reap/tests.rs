//! Destroyed datasets that cannot be read for a while.

use std::sync::Arc;

use super::TRIES;
use crate::dataset::{Change, Dataset};
use crate::device::{InjectedFault, SimDevice, SimOp};
use crate::pool::Pool;
use crate::pool::testing::{PAGE, fresh, leaves, open, page};
use crate::{Key, Ptr};

/// Makes a dataset of some leaves and destroys it. Returns its root and its leaves.
fn gone() -> (Arc<SimDevice>, Arc<Pool>, Ptr, Vec<Ptr>) {
    let (device, pool) = fresh();
    pool.create_dataset("gone", 1).unwrap();
    let gone = pool.version("gone").unwrap();
    for at in 0..4000_u64 {
        let data = at.to_le_bytes().repeat(PAGE as usize / 8);
        let offset = at * u64::from(PAGE);
        gone.apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    // Each leaf of these is longer than what a device reads at least.
    for object in 10..1500 {
        gone.apply(&[Change::Put(Key::new(object, 1, 0), page(object, 1)[..500].to_vec())]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    let root = gone.tree.stored_root().flatten().unwrap();
    let leaves: Vec<Ptr> = leaves(&gone.tree).into_iter().map(|(leaf, _)| leaf).collect();
    assert!(leaves.len() > 8);
    drop(gone);
    pool.destroy_dataset("gone").unwrap();
    pool.checkpoint(false).unwrap();
    (device, pool, root, leaves)
}

fn used(pool: &Pool) -> u64 {
    pool.shared.segments.used_by_records().1
}

fn reap(pool: &Pool) {
    while pool.is_reaping() {
        if !pool.reap().unwrap() {
            pool.checkpoint(false).unwrap();
        }
    }
    pool.checkpoint(false).unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// A device that fails reads for some seconds cost the space of all that was destroyed before.
#[test]
fn what_is_not_read_for_a_while_is_freed_after_the_next_opening() {
    let (_device, pool, ..) = gone();
    let before = used(&pool);
    reap(&pool);
    let (after, freed) = (used(&pool), before - used(&pool));
    assert!(freed > 1_000_000, "{freed}");
    for at_leaf in [false, true] {
        let (device, pool, root, leaves) = gone();
        let unread = if at_leaf { leaves[leaves.len() / 2] } else { root };
        let places = [unread.addr, unread.addr.copy()]
            .map(|addr| pool.shared.segments.locate(&pool.shared.devices, addr).unwrap());
        drop(pool);
        let pool = open(&device);
        for place in places {
            let range = place.offset..place.offset + u64::from(place.len_bytes);
            device.inject(InjectedFault { op: SimOp::Read, range, skip: 0, times: u64::MAX });
        }
        for _ in 0..4 * TRIES {
            pool.reap().unwrap();
        }
        device.clear_faults();
        assert!(!pool.is_reaping(), "other work goes on");
        let left = used(&pool).saturating_sub(after);
        assert!(if at_leaf { left < freed / 4 * 3 } else { left > freed / 2 }, "{left} of {freed}");
        pool.checkpoint(false).unwrap();
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
        drop(pool);
        let pool = open(&device);
        reap(&pool);
        let stays = used(&pool).saturating_sub(after);
        assert!(stays < freed / 20, "{stays} of {freed} bytes are not freed");
    }
}
