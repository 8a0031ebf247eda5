//! Devices are told what is free, once, and nothing that any opening may need is lost by it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{PAGE, devices, fresh, open};
use pagefold_engine::Error;
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{OpenOptions, Pool, TrimState};

const CHUNK: u64 = 4 << 20;

fn page(at: u64) -> Vec<u8> {
    let mut state = at + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..PAGE).map(|_| next()).collect()
}

fn write(pool: &Pool, object: u64, pages: u64) {
    for at in 0..pages {
        let (offset, data) = (at * u64::from(PAGE), page(at + object));
        pool.dataset().apply(&[Change::Write { object, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    pool.sync().unwrap();
}

fn punch(pool: &Pool, object: u64) {
    pool.dataset().apply(&[Change::Punch { object, from: 0, to: u64::MAX }]).unwrap();
}

fn is_whole(pool: &Pool, object: u64, pages: u64) -> bool {
    (0..pages).all(|at| {
        let mut out = vec![0; PAGE as usize];
        pool.dataset().read(object, PAGE, at * u64::from(PAGE), &mut out).unwrap();
        out == page(at + object)
    })
}

fn trim(pool: &Pool) -> u64 {
    pool.trim_start(7, 0).unwrap();
    while pool.trim_step(9).unwrap().is_some() {}
    let status = pool.trim_status();
    assert_eq!(
        (status.state, status.started, status.finished, status.errors),
        (TrimState::Finished, 7, 9, 0)
    );
    status.done_bytes
}

#[test]
fn what_is_free_is_told_once_and_what_is_not_stays() {
    let (device, pool) = fresh(200);
    write(&pool, 4, 700);
    write(&pool, 5, 7000);
    pool.checkpoint(false).unwrap();
    let told = trim(&pool);
    assert_eq!((told, pool.untrimmed_bytes()), (device.stats().counts().discarded_bytes, 0));
    assert!((100..200 * (1 << 20)).contains(&told));
    punch(&pool, 5);
    // Freed by the checkpoint with which it begins.
    let told = trim(&pool);
    assert!(told >= 7000 * u64::from(PAGE) - 2 * CHUNK, "{told}");
    let again = trim(&pool);
    assert!(again <= 3 * CHUNK, "only what checkpoints have written and left: {again}");
    assert!(is_whole(&pool, 4, 700));
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    drop(pool);
    for seed in 0..4 {
        let device = Arc::new(device.crash_seeded(seed));
        let pool = open(&device);
        assert!(is_whole(&pool, 4, 700));
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    }
}

/// Waits until at least so many bytes were discarded.
fn wait_for_discards(device: &SimDevice, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while device.stats().counts().discarded_bytes < bytes {
        assert!(Instant::now() < deadline, "{:?}", device.stats().counts());
        sleep(Duration::from_millis(20));
    }
}

/// Deleted data is freed by a checkpoint, and an idle pool had none.
#[test]
fn an_idle_pool_tells_of_what_was_deleted() {
    let (device, pool) = fresh(200);
    pool.set_autotrim(true);
    write(&pool, 4, 700);
    write(&pool, 5, 7000);
    pool.checkpoint(false).unwrap();
    let running = pool.run().unwrap();
    punch(&pool, 5);
    pool.sync().unwrap();
    wait_for_discards(&device, 7000 * u64::from(PAGE) - 2 * CHUNK);
    // It makes none for the chunks that checkpoints themselves leave.
    let before = pool.totals().checkpoints;
    sleep(Duration::from_secs(5));
    assert!(pool.totals().checkpoints <= before + 1);
    running.stop();
    assert!(is_whole(&pool, 4, 700));
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// Data that is deleted while a checkpoint is under way waits for another one.
#[test]
fn an_idle_pool_tells_of_what_was_deleted_during_a_checkpoint() {
    let (device, pool) = fresh(300);
    pool.set_autotrim(true);
    write(&pool, 4, 7000);
    write(&pool, 5, 7000);
    pool.checkpoint(false).unwrap();
    let running = pool.run().unwrap();
    punch(&pool, 4);
    pool.sync().unwrap();
    let (flushes, is_deleted) = (device.stats().counts().flushes, Arc::new(AtomicBool::new(false)));
    let (weak, deleted) = (Arc::downgrade(&device), Arc::clone(&is_deleted));
    let (reached, is_reached) = mpsc::channel();
    // The first call after a flush is the superblock's: the checkpoint knows what it frees.
    device.watch(move || {
        if weak.upgrade().is_some_and(|device| device.stats().counts().flushes > flushes) {
            let _ = reached.send(());
            let until = Instant::now() + Duration::from_secs(3);
            while !deleted.load(Ordering::Acquire) && Instant::now() < until {
                sleep(Duration::from_millis(1));
            }
        }
    });
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();
    punch(&pool, 5);
    // Commits are made in the background.
    let dead = pool.totals().commits;
    let until = Instant::now() + Duration::from_secs(2);
    while pool.totals().commits == dead && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
    is_deleted.store(true, Ordering::Release);
    device.watch(|| ());
    wait_for_discards(&device, 14000 * u64::from(PAGE) - 3 * CHUNK);
    running.stop();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// A power cut at any write, flush or discard of trims between changes.
#[test]
fn a_crash_in_the_middle_of_trims_loses_nothing() {
    let (device, pool) = fresh(130);
    write(&pool, 4, 300);
    pool.set_autotrim(true);
    let crashed: Arc<parking::Crashes> = Arc::default();
    let (weak, into) = (Arc::downgrade(&device), Arc::clone(&crashed));
    device.watch(move || into.look(&weak));
    for round in 0..3 {
        write(&pool, 5, 1200);
        punch(&pool, 5);
        while pool.autotrim_step().unwrap().is_some() {}
        pool.checkpoint(false).unwrap();
        while pool.autotrim_step().unwrap().is_some() {}
        assert!(round == 0 || device.stats().counts().discards > 0);
    }
    device.watch(|| ());
    let images = crashed.take();
    assert!(images.len() > 20, "{}", images.len());
    for image in images {
        let pool = open(&Arc::new(image));
        assert!(is_whole(&pool, 4, 300));
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    }
}

/// Copies of a device at moments at which power may be cut.
mod parking {
    use std::sync::{Mutex, Weak};

    use super::SimDevice;

    #[derive(Default)]
    pub(super) struct Crashes(Mutex<(u64, Vec<SimDevice>)>);

    impl Crashes {
        pub(super) fn look(&self, device: &Weak<SimDevice>) {
            let Some(device) = device.upgrade() else { return };
            let mut all = self.0.lock().unwrap();
            all.0 += 1;
            if all.0.is_multiple_of(3) && all.1.len() < 60 {
                let image = device.crash_seeded(all.0);
                all.1.push(image);
            }
        }

        pub(super) fn take(&self) -> Vec<SimDevice> {
            std::mem::take(&mut self.0.lock().unwrap().1)
        }
    }
}

#[test]
fn a_trim_is_one_at_a_time_can_be_stopped_and_is_not_for_readers() {
    let (device, pool) = fresh(200);
    assert!(!pool.trim_stop());
    assert_eq!(pool.trim_step(1).unwrap(), None);
    pool.trim_start(1, 4 << 20).unwrap();
    assert!(matches!(pool.trim_start(1, 0), Err(Error::Busy(_))));
    assert_eq!(pool.trim_step(1).unwrap(), Some(CHUNK), "no more at once than its rate is for a second");
    assert!(pool.trim_stop());
    assert_eq!((pool.trim_step(2).unwrap(), pool.trim_status().state), (None, TrimState::Stopped));
    assert_eq!(device.stats().counts().discarded_bytes, CHUNK);
    pool.export().unwrap();
    drop(pool);
    let pool =
        Pool::open_on(devices(&device), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    assert!(matches!(pool.trim_start(1, 0), Err(Error::ReadOnly(_))));
    pool.set_autotrim(true);
    assert_eq!(pool.autotrim_step().unwrap(), None);
}
