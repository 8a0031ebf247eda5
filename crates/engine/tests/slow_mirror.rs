//! A mirror one of whose devices is slow, or fails reads: the other one is read.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;
#[macro_use]
mod passed_on;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mirrored::*;
use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::Pool;
use pagefold_engine::{Error, Result};

/// A device that takes a while for each read, or fails one in so many.
struct Bad {
    inner: Arc<SimDevice>,
    delay: Duration,
    fails_one_in: u64,
    reads: AtomicU64,
    /// The next read waits until somebody is told, or nobody is left who could tell.
    hangs_until: Mutex<Option<Receiver<()>>>,
}

impl Device for Bad {
    passed_on!();

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let hangs_until = self.hangs_until.lock().unwrap().take();
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(told) = hangs_until {
            let _ = told.recv();
        }
        thread::sleep(self.delay);
        if self.fails_one_in > 0 && number % self.fails_one_in == self.fails_one_in - 1 {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            let device = self.path().to_path_buf();
            return Err(Error::Io { op: "read", device, offset, len_bytes: buf.len() as u64, source });
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
}

const PAGES: std::ops::Range<u64> = 0..3000;

/// A mirror with all pages, opened on devices that are as bad as is said: their delays in microseconds, and how many of
/// their reads one fails of.
fn open_bad(delays_us: [u64; 2], fails_one_in: [u64; 2]) -> (Vec<Arc<Bad>>, Arc<Pool>) {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, PAGES, 1);
    pool.export().unwrap();
    drop(pool);
    let bad = |(at, inner): (usize, &Arc<SimDevice>)| {
        let delay = Duration::from_micros(delays_us[at]);
        let (inner, fails_one_in, reads) = (Arc::clone(inner), fails_one_in[at], AtomicU64::default());
        Arc::new(Bad { inner, delay, fails_one_in, reads, hangs_until: Mutex::default() })
    };
    let all: Vec<Arc<Bad>> = sims.iter().enumerate().map(bad).collect();
    let devices = all.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect();
    let pool = Pool::open_on(devices, &options()).unwrap();
    all.iter().for_each(|one| one.reads.store(0, Ordering::Relaxed));
    (all, pool)
}

fn reads(all: &[Arc<Bad>]) -> [u64; 2] {
    [0, 1].map(|at| all[at].reads.load(Ordering::Relaxed))
}

#[test]
fn a_device_that_is_much_slower_is_hardly_read() {
    let (all, pool) = open_bad([0, 100_000], [0, 0]);
    has(&pool, PAGES, 1);
    let [fast, slow] = reads(&all);
    assert!(fast + slow > 2500 && slow * 10 < fast, "{fast} and {slow} reads");
}

#[test]
fn a_device_that_fails_reads_is_hardly_read_and_nothing_is_missed() {
    let (all, pool) = open_bad([50, 50], [0, 3]);
    has(&pool, PAGES, 1);
    let [good, failing] = reads(&all);
    assert!(good > 2000 && failing * 4 < good, "{good} and {failing} reads");
}

/// Both fail reads, and what one has failed the other one fails as well now and then: it is read again.
#[test]
fn reads_that_all_devices_fail_now_and_then_are_made_again() {
    let (all, pool) = open_bad([0, 0], [3, 4]);
    has(&pool, PAGES, 1);
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    drop(pool);
    let devices = all.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect();
    has(&Pool::open_on(devices, &options()).unwrap(), PAGES, 1);
}

#[test]
fn a_device_is_closed_when_the_last_request_to_it_is_done() {
    let (mut all, pool) = open_bad([0, 200_000], [0, 0]);
    let slow = Arc::downgrade(&all.remove(1));
    pool.scrub_start(1, 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.scrub_step(2).unwrap());
        thread::sleep(Duration::from_millis(50));
        pool.offline(1).unwrap();
        pool.close_device(1).unwrap();
        assert_eq!(slow.strong_count(), 0, "reads of it are under way");
    });
}

#[test]
fn a_device_is_not_closed_by_asking_twice_while_a_request_to_it_is_under_way() {
    let (mut all, pool) = open_bad([0, 0], [0, 0]);
    let (tell, told) = channel();
    *all[1].hangs_until.lock().unwrap() = Some(told);
    let slow = Arc::downgrade(&all.remove(1));
    pool.scrub_start(1, 0).unwrap();
    let (first, second) = thread::scope(|scope| {
        let scrub = scope.spawn(|| pool.scrub_step(2).unwrap());
        let has_begun = || slow.upgrade().is_none_or(|slow| slow.reads.load(Ordering::Relaxed) > 0);
        while !has_begun() && !scrub.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        pool.offline(1).unwrap();
        let first = pool.close_device(1);
        let second = scope.spawn(|| pool.close_device(1).map(|()| slow.strong_count()));
        // If it does not wait, it ends meanwhile.
        thread::sleep(Duration::from_millis(200));
        drop(tell);
        (first, second.join().unwrap())
    });
    assert!(matches!(first, Err(Error::Busy(_))), "{first:?}");
    assert_eq!(second.unwrap(), 0, "a read of it is under way");
}
