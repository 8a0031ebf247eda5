//! Damage to the log is told from its torn end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::{Change, Commit};
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::wal::batch;
use pagefold_engine::{Error, Key};

const MIB: u64 = 1 << 20;
const PAGE: u32 = 8192;

fn devices(device: &Arc<SimDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(device) as Arc<dyn Device>]
}

fn try_open(device: &Arc<SimDevice>, accept_loss: bool) -> pagefold_engine::Result<Arc<Pool>> {
    Pool::open_on(devices(device), &OpenOptions { accept_loss, ..OpenOptions::default() })
}

fn fresh() -> (Arc<SimDevice>, Arc<Pool>) {
    fresh_on(1)
}

/// On a device whose power cuts follow from `seed`.
fn fresh_on(seed: u64) -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(130 * MIB, seed));
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
    create_on("tank", &devices(&device), &options).unwrap();
    let pool = try_open(&device, false).unwrap();
    (device, pool)
}

fn page(seed: u64) -> Vec<u8> {
    let mut state = seed + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..PAGE).map(|_| next()).collect()
}

/// Page `at` of object 4, in a commit of its own.
fn put(pool: &Pool, at: u64) {
    let data = page(at);
    let offset = at * u64::from(PAGE);
    pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    pool.sync().unwrap();
}

fn get(pool: &Pool, at: u64) -> pagefold_engine::Result<Vec<u8>> {
    let mut out = vec![0xAA; PAGE as usize];
    pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).map(|_| out)
}

/// Where the sound batches of the first chunks begin.
fn batches(device: &SimDevice) -> Vec<u64> {
    let mut all = AlignedBuf::zeroed(20 << 20);
    device.read(MIB, &mut all).unwrap();
    let found = (0..all.len()).step_by(4096).filter(|at| batch::Verified::new(&all[*at..]).is_some());
    found.map(|at| MIB + at as u64).collect()
}

fn crash(device: &SimDevice) -> Arc<SimDevice> {
    Arc::new(device.crash(&mut |_| 0))
}

#[test]
fn a_damaged_record_in_the_log_costs_itself_alone() {
    let (device, pool) = fresh();
    (0..6).for_each(|at| put(&pool, at));
    drop(pool);
    let device = crash(&device);
    // The last six batches are those of the pages; in the third, a byte of its page.
    let places = batches(&device);
    device.flip_bit(places[places.len() - 4] + 5000, 3);
    let pool = try_open(&device, false).unwrap();
    assert_eq!(pool.replayed().damaged, 1);
    for at in 0..6 {
        match get(&pool, at) {
            Ok(found) => assert!(at != 2 && found == page(at), "page {at}"),
            Err(error) => assert!(at == 2 && matches!(error, Error::Corrupt { .. }), "page {at}: {error}"),
        }
    }
    // It stays so, and the page can be written again.
    put(&pool, 2);
    drop(pool);
    let pool = try_open(&crash(&device), false).unwrap();
    assert!((0..6).all(|at| get(&pool, at).unwrap() == page(at)));
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn a_damaged_frame_of_what_was_acknowledged_is_an_error_until_the_loss_is_accepted() {
    for byte in [0, 24, 33, 64, 73, 80, 97, 108] {
        let (device, pool) = fresh();
        (0..6).for_each(|at| put(&pool, at));
        drop(pool);
        let device = crash(&device);
        let places = batches(&device);
        let place = places[places.len() - 4];
        device.flip_bit(place + byte, 1);
        let Err(error) = try_open(&device, false) else { panic!("byte {byte}: the loss is silent") };
        let text = error.to_string();
        assert!(text.contains(&format!("byte {place} of sim-1")), "byte {byte}: {text}");
        assert!(text.contains("--accept-loss"), "{text}");

        let pool = try_open(&device, true).unwrap();
        assert_eq!(pool.replayed().damage.map(|damage| damage.offset), Some(place));
        assert!((0..2).all(|at| get(&pool, at).unwrap() == page(at)));
        assert!((2..6).all(|at| get(&pool, at).unwrap() == vec![0; PAGE as usize]));
        // From there on it is a pool like any other, whatever lies behind its log.
        (2..4).for_each(|at| put(&pool, at));
        drop(pool);
        let pool = try_open(&crash(&device), false).unwrap();
        assert_eq!(pool.replayed().damage, None);
        assert!((0..4).all(|at| get(&pool, at).unwrap() == page(at)));
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    }
}

#[test]
fn damage_to_either_checksum_of_a_batch_costs_nothing() {
    for byte in [8, 15, 16, 23] {
        let (device, pool) = fresh();
        (0..4).for_each(|at| put(&pool, at));
        drop(pool);
        let device = crash(&device);
        let places = batches(&device);
        device.flip_bit(places[places.len() - 2] + byte, 7);
        let pool = try_open(&device, false).unwrap();
        assert_eq!(pool.replayed().damaged, 0);
        assert!((0..4).all(|at| get(&pool, at).unwrap() == page(at)), "byte {byte}");
    }
}

/// Nothing follows the last batch that could tell. So one is made to follow when the pool rests.
#[test]
fn damage_to_the_last_batch_is_told_once_the_pool_has_rested() {
    for rested in [false, true] {
        let (device, pool) = fresh();
        (0..3).for_each(|at| put(&pool, at));
        let places = batches(&device);
        if rested {
            pool.attest().unwrap();
            let written = device.stats().counts().writes;
            pool.attest().unwrap();
            assert_eq!(device.stats().counts().writes, written, "once is enough");
        }
        drop(pool);
        let device = crash(&device);
        device.flip_bit(places[places.len() - 1] + 30, 0);
        assert_eq!(try_open(&device, false).is_err(), rested);
    }
}

/// The only batch of a segment alone says where the log goes on: an opening begins a new segment, and so there may be
/// no other.
#[test]
fn damage_to_the_only_batch_before_an_opening_is_told() {
    for byte in [0, 24, 33, 45, 73, 80, 84, 88, 97] {
        let (device, pool) = fresh();
        put(&pool, 0);
        drop(pool);
        let only = *batches(&device).last().unwrap();
        let pool = try_open(&device, false).unwrap();
        (1..4).for_each(|at| put(&pool, at));
        pool.attest().unwrap();
        drop(pool);
        let device = crash(&device);
        device.flip_bit(only + byte, 1);
        let Err(error) = try_open(&device, false) else { panic!("byte {byte}: the loss is silent") };
        assert!(error.to_string().contains(&format!("byte {only} of sim-1")), "byte {byte}: {error}");
    }
}

/// Likewise within one opening, where a batch leaves no room for the next.
#[test]
fn damage_to_a_batch_that_fills_its_segment_is_told() {
    let values = |count: u64| -> Vec<Change<'static>> {
        (0..count).map(|at| Change::Put(Key::new(1, 2, at), vec![at as u8; 32 << 10])).collect()
    };
    for byte in [0, 45, 73, 84, 88] {
        let (device, pool) = fresh();
        let data: Vec<u8> = (0..100).flat_map(page).collect();
        let mut all = values(60);
        all.push(Change::Write { object: 4, record_size: PAGE, offset: 0, data: &data });
        pool.dataset().apply(&all).unwrap();
        pool.sync().unwrap();
        let only = *batches(&device).last().unwrap();
        pool.dataset().apply(&values(60)).unwrap();
        pool.sync().unwrap();
        put(&pool, 1000);
        pool.attest().unwrap();
        drop(pool);
        let last = *batches(&device).last().unwrap();
        assert!(last > only + 4 * MIB, "the log goes on in another chunk: {last}");
        let device = crash(&device);
        device.flip_bit(only + byte, 1);
        assert!(try_open(&device, false).is_err(), "byte {byte}: the loss is silent");
    }
}

#[test]
fn damage_to_the_last_checkpoint_of_an_exported_pool_is_told() {
    let (device, pool) = fresh();
    put(&pool, 0);
    pool.export().unwrap();
    drop(pool);
    let places = batches(&device);
    device.flip_bit(places[places.len() - 1] + 40, 0);
    assert!(try_open(&device, false).is_err());
    assert!(get(&try_open(&device, true).unwrap(), 0).unwrap() == page(0));
}

/// A device that failed a flush may show what it has lost until the power goes. Opening the pool again without a power
/// cut builds on that.
#[test]
fn what_a_failed_flush_has_lost_is_written_again_by_the_next_opening() {
    for seed in 0..20 {
        let (device, pool) = fresh();
        put(&pool, 0);
        let data = page(1);
        let change = Change::Write { object: 4, record_size: PAGE, offset: PAGE.into(), data: &data };
        pool.dataset().apply(&[change]).unwrap();
        pool.commit(false).unwrap();
        device.inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip: 0, times: 1 });
        assert!(pool.checkpoint(false).is_err());
        drop(pool);
        device.clear_faults();
        device.reopen();
        let pool = try_open(&device, false).unwrap();
        put(&pool, 2);
        drop(pool);
        let pool = try_open(&Arc::new(device.crash_seeded(seed)), false).unwrap();
        assert!((0..3).all(|at| get(&pool, at).unwrap() == page(at)), "seed {seed}");
    }
}

/// The flush of a superblock failed, the device shows it all the same, and the pool is opened by it. From then on
/// chunks are given out that only the checkpoint before refers to: a power cut must not bring that one back.
#[test]
fn the_superblock_that_a_pool_was_opened_by_is_durable() {
    for (seed, skip) in (1..9).flat_map(|seed| (0..3).map(move |skip| (seed, skip))) {
        let (device, pool) = fresh_on(seed);
        for round in 0..3 {
            (0..4).for_each(|at| put(&pool, at + round));
            pool.checkpoint(false).unwrap();
        }
        device.inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip, times: 1 });
        let _failed = pool.checkpoint(false);
        drop(pool);
        device.clear_faults();
        device.reopen();
        let pool = try_open(&device, false).unwrap();
        // All that is free is written over.
        for at in 0..600 {
            let data = page(at);
            let offset = (100 + at) * u64::from(PAGE);
            let change = Change::Write { object: 4, record_size: PAGE, offset, data: &data };
            pool.dataset().apply(&[change]).unwrap();
        }
        pool.sync().unwrap();
        drop(pool);
        let pool = try_open(&Arc::new(device.crash_seeded(seed)), false)
            .unwrap_or_else(|error| panic!("seed {seed}, {skip}: {error}"));
        assert!((0..6).all(|at| get(&pool, at).unwrap() == page(at)), "seed {seed}, {skip}");
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new(), "seed {seed}, {skip}");
    }
}

/// A batch lost its tail, and the one after it is whole. What takes its place at the next opening has the same tail;
/// cut in its turn, it must not complete the first one, which would bring back both.
#[test]
fn a_torn_batch_is_not_completed_by_what_takes_its_place() {
    const SECTORS: usize = 24;
    const TAIL: usize = 16;
    let accept = |pool: &Pool, at| {
        let data = page(at);
        let offset = at * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
        pool.commit(false).unwrap();
    };
    let all_but = |device: &SimDevice, lost: usize| {
        let mut sectors = 0..;
        Arc::new(device.crash(&mut |contents| if sectors.next() == Some(lost) { 0 } else { contents - 1 }))
    };
    let (device, pool) = fresh();
    accept(&pool, 0);
    accept(&pool, 1);
    drop(pool);
    assert_eq!(device.unflushed_sectors(), 2 * SECTORS);
    let torn = all_but(&device, TAIL);
    let pool = try_open(&torn, false).unwrap();
    assert!(get(&pool, 0).unwrap() != page(0) && get(&pool, 1).unwrap() != page(1));
    accept(&pool, 0);
    drop(pool);
    assert_eq!(torn.unflushed_sectors(), SECTORS);
    let pool = try_open(&all_but(&torn, 0), false).unwrap();
    assert!(get(&pool, 1).unwrap() != page(1), "what a power cut had taken is back");
}
