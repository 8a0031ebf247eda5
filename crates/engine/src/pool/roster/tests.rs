use std::sync::Arc;

use crate::device::{Device, OneDevice, SimDevice};
use crate::pool::label::{Label, Superblock};
use crate::pool::testing::{fresh, write};
use crate::pool::{DeviceState, OpenOptions, Pool};

fn handle(sim: &Arc<SimDevice>) -> Arc<dyn Device> {
    Arc::clone(sim) as Arc<dyn Device>
}

#[test]
fn a_device_that_has_a_superblock_before_other_labels_tell_of_it_is_no_half_that_went_on() {
    let (first, pool) = fresh();
    write(&pool, 0..3, 1);
    let new = Arc::new(SimDevice::new(192 << 20, 2));
    // The power goes when the new device has its label, and no other label tells of it.
    first.cut_after(0);
    assert!(pool.attach(0, handle(&new), false).is_err());
    drop(pool);
    let [first, new] = [first, new].map(|sim| Arc::new(sim.crash(&mut |contents| contents - 1)));
    // A checkpoint that was under way on another thread has given it a superblock.
    let label = |sim: &Arc<SimDevice>| Label::read(OneDevice::of(sim.as_ref())).unwrap();
    let newest = Superblock::read_all(OneDevice::of(first.as_ref()), &label(&first))[0];
    newest.write(OneDevice::of(new.as_ref()), &label(&new)).unwrap();
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
    let pool = Pool::open_on(vec![handle(&first), handle(&new)], &options).unwrap();
    let states: Vec<_> = pool.device_status().iter().map(|device| device.state).collect();
    assert_eq!(states, [DeviceState::Online, DeviceState::Filling]);
}
