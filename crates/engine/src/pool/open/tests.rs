use std::sync::Arc;

use crate::device::{Device, SimDevice};
use crate::pool::testing::{PAGE, page, write};
use crate::pool::{CreateOptions, DeviceState, Guid, OpenOptions, Pool, create_groups_on};
use crate::{Error, Result};

const SIZE: u64 = 134 << 20;

fn handles(sims: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

fn try_open(sims: &[Arc<SimDevice>]) -> Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() })
}

#[test]
fn a_device_that_is_not_here_stays_whole_while_the_pool_cannot_be_opened_without_it() {
    let sims: Vec<_> = (1..3).map(|seed| Arc::new(SimDevice::new(SIZE, seed))).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"one is not there") };
    create_groups_on("tank", &[handles(&sims)], &options).unwrap();
    let pool = try_open(&sims).unwrap();
    write(&pool, 0..3, 1);
    let batch = sims[0].latest_place(0).unwrap();
    pool.attest().unwrap();
    drop(pool);
    // The log of one device is damaged, and the other one is not found at first.
    sims[0].flip_bit(batch + 40, 1);
    let refused = try_open(&sims[..1]).err().unwrap();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    let pool = try_open(&sims).unwrap();
    let states: Vec<_> = pool.device_status().iter().map(|device| device.state).collect();
    assert_eq!(states, [DeviceState::Online; 2]);
    let mut found = vec![0; PAGE as usize];
    pool.dataset().read(4, PAGE, 2 * u64::from(PAGE), &mut found).unwrap();
    assert_eq!(found, page(2, 1));
}
