//! The queue of a device: what is made in the background gives way to reads that somebody waits for, and loses nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;
#[macro_use]
mod passed_on;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mirrored::*;
use pagefold_engine::Result;
use pagefold_engine::device::{AlignedBuf, Device, IoClass, RequestCounts, SimDevice};
use pagefold_engine::pool::Pool;

/// A device that notes what it is asked for, and does not end one short read before it is told to.
struct Watched {
    inner: Arc<SimDevice>,
    /// Numbers of reads that were made at once.
    batches: Mutex<Vec<usize>>,
    /// Lengths of reads.
    reads: Mutex<Vec<usize>>,
    /// Lengths of writes that are not durable.
    writes: Mutex<Vec<usize>>,
    request_bytes_max: AtomicU64,
    holds: AtomicBool,
    held: Mutex<(Sender<()>, Receiver<()>)>,
}

impl Watched {
    fn over(inner: &Arc<SimDevice>, held: (Sender<()>, Receiver<()>)) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            batches: Mutex::default(),
            reads: Mutex::default(),
            writes: Mutex::default(),
            request_bytes_max: AtomicU64::new(u64::MAX),
            holds: AtomicBool::new(false),
            held: Mutex::new(held),
        })
    }

    fn longest_read(&self) -> usize {
        std::mem::take(&mut *self.reads.lock().unwrap()).into_iter().max().unwrap_or_default()
    }

    fn take_batches(&self) -> Vec<usize> {
        std::mem::take(&mut self.batches.lock().unwrap())
    }

    fn longest_write(&self) -> usize {
        std::mem::take(&mut *self.writes.lock().unwrap()).into_iter().max().unwrap_or_default()
    }
}

impl Device for Watched {
    passed_on!();

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        if buf.len() < 32 << 10 && self.holds.swap(false, Ordering::SeqCst) {
            let (begun, go_on) = &*self.held.lock().unwrap();
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.batches.lock().unwrap().push(1);
        self.reads.lock().unwrap().push(buf.len());
        self.inner.read(offset, buf)
    }

    fn read_many(&self, requests: &mut [&mut (u64, AlignedBuf)]) -> Result<()> {
        self.batches.lock().unwrap().push(requests.len());
        self.reads.lock().unwrap().extend(requests.iter().map(|request| request.1.len()));
        requests.iter_mut().try_for_each(|(offset, buf)| self.inner.read(*offset, buf))
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        if !durable {
            self.writes.lock().unwrap().push(buf.len());
        }
        self.inner.write(offset, buf, durable)
    }

    fn request_bytes_max(&self) -> u64 {
        self.request_bytes_max.load(Ordering::SeqCst)
    }
}

const PAGES: std::ops::Range<u64> = 0..3000;

struct Setup {
    sims: Sims,
    device: Arc<Watched>,
    pool: Arc<Pool>,
    begun: Receiver<()>,
    go_on: Sender<()>,
}

/// A pool with all pages on one device that is watched.
fn watched() -> Setup {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, PAGES, 1);
    pool.export().unwrap();
    drop(pool);
    let (told, begun) = channel();
    let (go_on, goes_on) = channel();
    let device = Watched::over(&sims[0], (told, goes_on));
    let pool = Pool::open_on(vec![Arc::clone(&device) as Arc<dyn Device>], &options()).unwrap();
    // From here on nodes of the tree are in memory.
    has(&pool, 2999..3000, 1);
    Setup { sims, device, pool, begun, go_on }
}

/// Ends the read that is held, also if the test fails.
struct GoOn<'a>(&'a Sender<()>);

impl Drop for GoOn<'_> {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

impl Setup {
    /// Does `work` while a read of page 2500 is under way that somebody waits for.
    fn while_read(&self, work: impl FnOnce()) {
        thread::scope(|scope| {
            self.device.holds.store(true, Ordering::SeqCst);
            let pool = &self.pool;
            let reader = scope.spawn(move || has(pool, 2500..2501, 1));
            self.begun.recv().unwrap();
            let _go_on = GoOn(&self.go_on);
            work();
            assert!(!reader.is_finished(), "the read is under way");
        });
    }

    fn of(&self, class: IoClass) -> Vec<RequestCounts> {
        let all = self.pool.device_status().into_iter().flat_map(|device| device.requests);
        all.filter(|of| of.class == class).collect()
    }
}

fn scrub(pool: &Pool) {
    pool.scrub_start(3, 0).unwrap();
    // It has stored that it is under way: for a moment, the device counts as used by a commit.
    thread::sleep(Duration::from_millis(200));
    while pool.scrub_step(3).unwrap().is_some() {}
    let status = pool.status().scrub;
    assert_eq!((status.damaged, status.unreadable), (0, 0));
    assert!(status.sound > PAGES.end);
}

#[test]
fn a_scrub_reads_much_at_once_unless_somebody_waits_for_a_read() {
    let setup = watched();
    scrub(&setup.pool);
    // A while after the last read.
    thread::sleep(Duration::from_millis(1100));
    setup.device.take_batches();
    scrub(&setup.pool);
    let batches = setup.device.take_batches();
    assert!(batches.iter().any(|requests| *requests > 4), "{batches:?}");
    setup.while_read(|| {
        setup.device.take_batches();
        scrub(&setup.pool);
        let batches = setup.device.take_batches();
        assert!(batches.len() > 100 && batches.iter().all(|requests| *requests == 1), "{batches:?}");
    });
    let counts = setup.of(IoClass::Scrub);
    assert!(counts.iter().all(|of| (of.waiting, of.in_flight) == (0, 0)), "{counts:?}");
    assert!(counts.iter().all(|of| of.bytes <= of.requests() * (128 << 10)), "{counts:?}");
}

#[test]
fn a_long_read_is_made_of_requests_that_the_device_takes_as_one() {
    let setup = watched();
    // Each time other pages, which are in no cache.
    let read = |request_bytes_max: u64, from: u64| {
        setup.device.request_bytes_max.store(request_bytes_max, Ordering::SeqCst);
        setup.device.longest_read();
        let mut out = vec![0; 1 << 20];
        setup.pool.dataset().read(4, PAGE, from * u64::from(PAGE), &mut out).unwrap();
        assert!(out.chunks(PAGE as usize).zip(from..).all(|(read, at)| read == page(at, 1)));
        setup.device.longest_read()
    };
    let whole = read(u64::MAX, 0);
    assert!(whole > 512 << 10, "{whole} bytes");
    for (most, from) in [(512 << 10, 500), (128 << 10, 1000)] {
        let longest = read(most, from);
        assert!(longest > most as usize / 2 && longest <= most as usize, "{longest} of {most} bytes");
    }
}

#[test]
fn commits_are_written_as_they_are_unless_somebody_waits_for_a_read() {
    let setup = watched();
    // The first write reads nodes, the second one notices that, and then nothing is read for a moment.
    write(&setup.pool, 0..1500, 2);
    write(&setup.pool, 0..100, 2);
    thread::sleep(Duration::from_millis(150));
    setup.device.longest_write();
    write(&setup.pool, 0..1500, 2);
    let whole = setup.device.longest_write();
    assert!(whole > 512 << 10, "{whole} bytes");
    setup.while_read(|| {
        write(&setup.pool, 0..1500, 3);
        setup.pool.checkpoint(false).unwrap();
    });
    let piece = setup.device.longest_write();
    assert!(piece > 0 && piece <= 256 << 10, "{piece} bytes");
    drop(setup.pool);
    let pool = open(&after(&setup.sims, None));
    has(&pool, 0..1500, 3);
    is_sound(&pool);
}

#[test]
fn a_device_is_filled_in_pieces_while_others_are_read_and_written() {
    let setup = watched();
    let new = sim(9);
    let device = Watched::over(&new, (channel().0, channel().1));
    setup.pool.attach(0, Arc::clone(&device) as Arc<dyn Device>, false).unwrap();
    setup.while_read(|| {
        thread::scope(|scope| {
            scope.spawn(|| while setup.pool.fill_step(5).unwrap().is_some_and(|bytes| bytes > 0) {});
            (2..6).for_each(|version| write(&setup.pool, 0..300, version));
        });
    });
    fill(&setup.pool);
    let of = |bytes: &RequestCounts| bytes.bytes.checked_div(bytes.requests());
    let longest = setup.of(IoClass::Filling).iter().filter_map(of).max();
    assert!(longest.is_some_and(|mean| mean <= 128 << 10), "{longest:?} bytes in the mean");
    setup.pool.export().unwrap();
    drop(setup.pool);
    // The new device has everything by itself.
    let pool = open(&[new]);
    has(&pool, 300..3000, 1);
    has(&pool, 0..300, 5);
}
