//! Makes pools on simulated devices, for tests of this room.

use std::sync::Arc;

use super::{CreateOptions, Guid, OpenOptions, Pool, create_groups_on, create_on};
use crate::dataset::Change;
use crate::device::{Device, SimDevice};
use crate::tree::{Tree, Visit};
use crate::{Key, Ptr, Result};

/// Size of pages in bytes.
pub(super) const PAGE: u32 = 8192;

/// Opens the pool on a device, with little memory.
pub(super) fn try_open(device: &Arc<SimDevice>) -> Result<Arc<Pool>> {
    open_with(device, &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() })
}

/// Opens the pool on a device with these options.
pub(super) fn open_with(device: &Arc<SimDevice>, options: &OpenOptions) -> Result<Arc<Pool>> {
    Pool::open_on(vec![Arc::clone(device) as Arc<dyn Device>], options)
}

/// Opens the pool on a device, and panics if that fails.
pub(super) fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    try_open(device).unwrap()
}

/// Makes a new pool on a device of 192 MiB.
pub(super) fn fresh() -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(192 << 20, 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"read from a disc") };
    create_on("tank", &devices, &options).unwrap();
    let pool = open(&device);
    (device, pool)
}

/// Makes a page that does not compress.
pub(super) fn page(at: u64, generation: u64) -> Vec<u8> {
    let mut state = (at << 8 | generation) + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..PAGE).map(|_| next()).collect()
}

/// Writes pages of object 4, durably.
pub(super) fn write(pool: &Pool, pages: impl Iterator<Item = u64>, generation: u64) {
    for at in pages {
        let (offset, data) = (at * u64::from(PAGE), page(at, generation));
        pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    pool.sync().unwrap();
}

/// Makes a pool of so many groups of one device each.
pub(super) fn of_groups(count: u64) -> Arc<Pool> {
    let groups: Vec<Vec<Arc<dyn Device>>> =
        (1..=count).map(|seed| vec![Arc::new(SimDevice::new(134 << 20, seed)) as Arc<dyn Device>]).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"groups of one!!!") };
    create_groups_on("tank", &groups, &options).unwrap();
    Pool::open_on(groups.concat(), &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap()
}

/// Returns the stored leaves of a tree, each with its first key.
pub(super) fn leaves(tree: &Tree) -> Vec<(Ptr, Key)> {
    let (mut leaves, mut last) = (Vec::new(), None);
    let walked = tree.walk(&mut |visit| {
        match visit {
            Visit::Node { ptr, level, .. } => last = (level == 0).then_some(ptr),
            Visit::Entry(key, _) => leaves.extend(last.take().map(|ptr| (ptr, key))),
            Visit::Damaged { .. } => {}
        }
        Ok(())
    });
    walked.unwrap();
    leaves
}

/// Damages both copies of a node.
pub(super) fn damage(device: &SimDevice, pool: &Pool, ptr: Ptr) {
    for addr in [ptr.addr, ptr.addr.copy()] {
        let place = pool.shared.segments.locate(&pool.shared.devices, addr).unwrap();
        device.flip_bit(place.offset + 8, 1);
    }
}
