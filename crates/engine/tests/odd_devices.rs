//! Devices that are larger than what is used of them, that have grown, or that say what cannot be.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use common::{MIB, PAGE, devices, fresh, open};
use pagefold_engine::Error;
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

const PIB: u64 = 1 << 50;
const OPTIONS: CreateOptions = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };

fn put(pool: &Pool, at: u64) {
    let data = vec![at as u8 + 1; PAGE as usize];
    let offset = at * u64::from(PAGE);
    pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    pool.sync().unwrap();
}

fn has(pool: &Pool, at: u64) -> bool {
    let mut out = vec![0; PAGE as usize];
    pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).unwrap();
    out == vec![at as u8 + 1; PAGE as usize]
}

/// The same content on a device of another size.
fn resized(device: &SimDevice, size_bytes: u64) -> Arc<SimDevice> {
    let grown = SimDevice::new(size_bytes, 2);
    for offset in device.written_blocks() {
        let mut block = AlignedBuf::zeroed(4096);
        device.read(offset, &mut block).unwrap();
        grown.write(offset, &block, true).unwrap();
    }
    Arc::new(grown)
}

fn wipe(device: &SimDevice, offset: u64, len_bytes: u64) {
    device.write(offset, &AlignedBuf::zeroed(len_bytes as usize), true).unwrap();
}

#[test]
fn a_grown_device_that_lost_its_first_label_is_still_known() {
    for mib in [130, 131, 300, 1025] {
        // Its first block, and all that is reserved at its start.
        for lost_bytes in [4096, MIB] {
            for grown_bytes in [4096, 3 * MIB, 500 * MIB + 8192, PIB] {
                let (device, pool) = fresh(mib);
                put(&pool, 0);
                pool.checkpoint(false).unwrap();
                put(&pool, 1);
                drop(pool);
                let device = resized(&device, mib * MIB + grown_bytes);
                wipe(&device, 0, lost_bytes);
                let pool = Pool::open_on(devices(&device), &OpenOptions::default());
                let pool = pool.unwrap_or_else(|error| panic!("{mib} MiB and {grown_bytes}: {error}"));
                assert!(has(&pool, 0) && has(&pool, 1));
                put(&pool, 2);
                drop(pool);
                assert!(has(&open(&device), 2));
            }
        }
    }
}

#[test]
fn a_device_of_sixteen_pebibytes_costs_what_is_used_of_it() {
    let (device, pool) = {
        let device = Arc::new(SimDevice::new(16 * PIB, 1));
        create_on("tank", &devices(&device), &OPTIONS).unwrap();
        (Arc::clone(&device), open(&device))
    };
    for round in 0..3 {
        put(&pool, round);
        pool.checkpoint(false).unwrap();
    }
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    assert!(pool.status().available_bytes > 8 * PIB);
    drop(pool);
    let before = device.stats().counts();
    let pool = open(&device);
    assert!((0..3).all(|at| has(&pool, at)));
    pool.export().unwrap();
    let counts = device.stats().counts();
    assert!(counts.reads - before.reads < 200, "{} reads", counts.reads - before.reads);
    assert!(counts.read_bytes - before.read_bytes < 64 * MIB);
}

#[test]
fn a_device_that_is_too_large_is_refused() {
    let device = Arc::new(SimDevice::new(7 << 60, 1));
    let Err(error) = create_on("tank", &devices(&device), &OPTIONS) else { panic!("7 EiB were accepted") };
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("sim-1 is too large") && text.contains("16 PiB"), "{text}");
}
