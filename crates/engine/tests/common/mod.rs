//! A pool on a simulated device.
#![allow(dead_code, clippy::unwrap_used, reason = "not every test needs all of it")]

use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u32 = 8192;

pub(crate) fn devices(device: &Arc<SimDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(device) as Arc<dyn Device>]
}

pub(crate) fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    Pool::open_on(devices(device), &OpenOptions::default()).unwrap()
}

pub(crate) fn fresh(mib: u64) -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(mib * MIB, 1));
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
    create_on("tank", &devices(&device), &options).unwrap();
    let pool = open(&device);
    (device, pool)
}
