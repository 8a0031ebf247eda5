//! Pools of mirrors on simulated devices.
#![allow(dead_code, clippy::unwrap_used, reason = "not every test needs all of it")]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions, DeviceState, Guid, OpenOptions, Pool, create_groups_on, create_with_log_on,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u32 = 8192;
pub(crate) const SIZE: u64 = 134 * MIB;

pub(crate) type Sims = Vec<Arc<SimDevice>>;

pub(crate) fn handles(sims: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }
}

pub(crate) fn try_open(sims: &[Arc<SimDevice>]) -> pagefold_engine::Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &options())
}

pub(crate) fn open(sims: &[Arc<SimDevice>]) -> Arc<Pool> {
    try_open(sims).unwrap()
}

pub(crate) fn sim(seed: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(SIZE, seed))
}

pub(crate) fn sims(numbers: Range<u64>) -> Sims {
    numbers.map(sim).collect()
}

/// A new pool of `groups` mirrors, each of so many devices.
pub(crate) fn fresh(groups: usize, members: usize) -> Sims {
    fresh_from(0, groups, members)
}

/// The same, on devices with numbers from `first` on.
pub(crate) fn fresh_from(first: u64, groups: usize, members: usize) -> Sims {
    let sims = sims(first..first + (groups * members) as u64);
    let layout: Vec<Vec<Arc<dyn Device>>> = sims.chunks(members).map(handles).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
    create_groups_on("tank", &layout, &options).unwrap();
    sims
}

/// Seed of the first device of a log device.
pub(crate) const LOG: u64 = 900;

/// Makes a pool of so many devices, each by itself, and a log device, or a mirror of several, behind them.
pub(crate) fn fresh_with_log(devices: u64, logs: u64) -> Sims {
    fresh_mirrors_with_log(devices, 1, logs)
}

/// The same, with mirrors of so many devices.
pub(crate) fn fresh_mirrors_with_log(mirrors: u64, members: u64, logs: u64) -> Sims {
    let (data, log) = (sims(0..mirrors * members), sims(LOG..LOG + logs));
    let layout: Vec<_> = data.chunks(members as usize).map(handles).collect();
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
    create_with_log_on("tank", &layout, &handles(&log), &options).unwrap();
    data.into_iter().chain(log).collect()
}

/// The devices after the power failed: all that was not flushed is lost.
pub(crate) fn without_unflushed(all: &[Arc<SimDevice>]) -> Sims {
    all.iter().map(|sim| Arc::new(sim.crash(&mut |_| 0))).collect()
}

/// All devices after the power has failed: with everything that was written, or, with a seed, with what chance leaves.
pub(crate) fn after(sims: &[Arc<SimDevice>], seed: Option<u64>) -> Sims {
    let crashed = |sim: &Arc<SimDevice>| match seed {
        Some(seed) => sim.crash_seeded(seed),
        None => sim.crash(&mut |contents| contents - 1),
    };
    sims.iter().map(|sim| Arc::new(crashed(sim))).collect()
}

/// States of all devices at each moment at which the power may fail.
pub(crate) struct Moments {
    all: Arc<Mutex<Vec<Sims>>>,
    sims: Sims,
}

impl Moments {
    /// Keeps one of so many from now on.
    pub(crate) fn of(sims: &Sims, one_in: u64) -> Self {
        let all: Arc<Mutex<Vec<Sims>>> = Arc::default();
        let calls = Arc::new(AtomicU64::default());
        for sim in sims {
            let (all, calls, of) = (Arc::clone(&all), Arc::clone(&calls), sims.clone());
            sim.watch(move || {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                if call.is_multiple_of(one_in) {
                    all.lock().unwrap().push(after(&of, Some(call)));
                }
            });
        }
        Self { all, sims: sims.clone() }
    }

    pub(crate) fn end(self) -> Vec<Sims> {
        self.sims.iter().for_each(|sim| sim.watch(|| {}));
        std::mem::take(&mut self.all.lock().unwrap())
    }
}

/// A page that does not compress, of a version.
pub(crate) fn page(at: u64, version: u64) -> Vec<u8> {
    let mut state = at.wrapping_mul(0x9E37_79B9) + version;
    let mut data = Vec::with_capacity(PAGE as usize);
    while data.len() < PAGE as usize {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        data.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    data
}

/// Writes pages, and syncs nothing.
pub(crate) fn try_apply(pool: &Pool, pages: Range<u64>, version: u64) -> pagefold_engine::Result<()> {
    for at in pages {
        let (offset, data) = (at * u64::from(PAGE), page(at, version));
        pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }])?;
    }
    Ok(())
}

pub(crate) fn try_write(pool: &Pool, pages: Range<u64>, version: u64) -> pagefold_engine::Result<()> {
    try_apply(pool, pages, version)?;
    pool.sync()
}

pub(crate) fn write(pool: &Pool, pages: Range<u64>, version: u64) {
    try_write(pool, pages, version).unwrap();
}

#[track_caller]
pub(crate) fn has(pool: &Pool, pages: Range<u64>, version: u64) {
    for at in pages {
        let mut out = vec![0; PAGE as usize];
        pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).unwrap();
        assert!(out == page(at, version), "page {at} of version {version}");
    }
}

#[track_caller]
pub(crate) fn is_sound(pool: &Pool) {
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

pub(crate) fn states(pool: &Pool) -> Vec<DeviceState> {
    pool.device_status().iter().map(|device| device.state).collect()
}

pub(crate) fn numbers(pool: &Pool) -> Vec<u16> {
    pool.device_status().iter().map(|device| device.number).collect()
}

/// Numbers of the devices that leave when others have taken their places.
pub(crate) fn leaving(pool: &Pool) -> Vec<u16> {
    pool.device_status().iter().filter(|device| device.leaves).map(|device| device.number).collect()
}

/// Fills all devices. Returns the bytes that were copied.
pub(crate) fn fill(pool: &Pool) -> u64 {
    let mut copied = 0;
    while let Some(bytes) = pool.fill_step(5).unwrap() {
        copied += bytes;
    }
    copied
}

/// Each device by itself has everything, sound.
#[track_caller]
pub(crate) fn each_has_all(sims: &[Arc<SimDevice>], pages: Range<u64>, version: u64) {
    for alone in sims {
        let image = Arc::new(alone.crash(&mut |contents| contents - 1));
        let read_only = OpenOptions { read_only: true, ..options() };
        let pool = Pool::open_on(handles(&[image]), &read_only).unwrap();
        has(&pool, pages.clone(), version);
        is_sound(&pool);
    }
}
