//! Opening a pool that has much to do again.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[macro_use]
mod passed_on;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{PAGE, fresh};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::{OpenOptions, Pool};
use pagefold_engine::{Key, Result};

const OBJECT: u64 = 5;
const PAGES: u64 = 30_000;

const STEPS: u64 = 4000;

/// Reads that have to be seen at once, where reading ahead is allowed.
const EXPECTED: usize = 5;

/// The time for which a read that is alone stays for a second one.
const MOMENT: Duration = Duration::from_millis(1);

/// The longest time for which a read waits for others that are to come while it is under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts how many reads are under way at once. While `gathering`, a read that is not the only one stays until
/// [`EXPECTED`] of them have been seen, so that the count does not depend on how busy the machine is.
struct Counting {
    inner: Arc<SimDevice>,
    gathering: AtomicBool,
    reads: Mutex<Reads>,
    another: Condvar,
}

#[derive(Default)]
struct Reads {
    now: usize,
    most: usize,
}

impl Counting {
    fn begin_read(&self) {
        let mut reads = self.reads.lock().unwrap();
        reads.now += 1;
        reads.most = reads.most.max(reads.now);
        self.another.notify_all();
        if self.gathering.load(Ordering::SeqCst) {
            // A read alone gives the next one the time to come; in company, all the others have to.
            let alone = |reads: &mut Reads| reads.now == 1 && reads.most < EXPECTED;
            let (reads, _) = self.another.wait_timeout_while(reads, MOMENT, alone).unwrap();
            let too_few = |reads: &mut Reads| reads.now > 1 && reads.most < EXPECTED;
            let (_reads, waited) = self.another.wait_timeout_while(reads, PATIENCE, too_few).unwrap();
            if waited.timed_out() {
                self.gathering.store(false, Ordering::SeqCst);
            }
        }
    }

    fn end_read(&self) {
        self.reads.lock().unwrap().now -= 1;
        self.another.notify_all();
    }
}

impl Device for Counting {
    passed_on!();

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.begin_read();
        let read = self.inner.read(offset, buf);
        self.end_read();
        read
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A page with hardly anything on it, so that there can be many.
fn page(seed: u64) -> Vec<u8> {
    let mut out = vec![0; PAGE as usize];
    out[100..108].copy_from_slice(&(seed + 1).to_le_bytes());
    out
}

/// Random writes of one and of several pages, which overlap; values; now and then a punch, a copy, or another page
/// size. Returns what each page has.
fn change(pool: &Pool, contents: &mut [Option<u64>]) {
    let mut random = Lcg(11);
    let dataset = pool.dataset();
    for step in 0..STEPS {
        let at = random.below(PAGES - 8);
        match step % 1000 {
            500 => {
                dataset.apply(&[Change::Punch { object: OBJECT, from: at, to: at + 7 }]).unwrap();
                contents[at as usize..at as usize + 7].fill(None);
            }
            700 => {
                let to_page = random.below(PAGES - 8);
                let share = Change::Share {
                    from_object: OBJECT,
                    from_page: at,
                    to_object: OBJECT,
                    to_page,
                    count: 3,
                };
                dataset.apply(&[share]).unwrap();
                let copied: Vec<Option<u64>> = contents[at as usize..at as usize + 3].to_vec();
                contents[to_page as usize..to_page as usize + 3].copy_from_slice(&copied);
            }
            _ => {
                let many = if step % 3 == 0 { 1 + random.below(6) } else { 1 };
                let seeds = at..at + many;
                let data: Vec<u8> = seeds.clone().flat_map(|page_at| page(page_at + step * PAGES)).collect();
                let write = Change::Write {
                    object: OBJECT,
                    record_size: PAGE,
                    offset: at * u64::from(PAGE),
                    data: &data,
                };
                dataset
                    .apply(&[write, Change::Put(Key::new(OBJECT, 0x11, 0), step.to_le_bytes().to_vec())])
                    .unwrap();
                seeds.for_each(|page_at| contents[page_at as usize] = Some(page_at + step * PAGES));
            }
        }
        if step % 20 == 0 {
            pool.sync().unwrap();
        }
    }
    pool.sync().unwrap();
}

#[test]
fn what_is_read_ahead_and_done_in_another_order_comes_to_the_same() {
    let (device, pool) = fresh(512);
    let mut contents: Vec<Option<u64>> = (0..PAGES).map(Some).collect();
    for at in 0..PAGES {
        let data = page(at);
        let write =
            Change::Write { object: OBJECT, record_size: PAGE, offset: at * u64::from(PAGE), data: &data };
        pool.dataset().apply(&[write]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    let checkpoint = pool.status().checkpoint;
    change(&pool, &mut contents);
    assert_eq!(pool.status().checkpoint, checkpoint, "there is nothing to do again");
    let before = (pool.status().stored_bytes, pool.dataset().usage(OBJECT).unwrap());
    drop(pool);
    for (reads_at_once, expected) in [(1, 1..=1), (64, EXPECTED..=64)] {
        let counting = Arc::new(Counting {
            inner: Arc::clone(&device),
            gathering: true.into(),
            reads: Mutex::default(),
            another: Condvar::new(),
        });
        let options = OpenOptions { read_only: true, reads_at_once, ..OpenOptions::default() };
        let pool = Pool::open_on(vec![Arc::clone(&counting) as Arc<dyn Device>], &options).unwrap();
        counting.gathering.store(false, Ordering::SeqCst);
        let most = counting.reads.lock().unwrap().most;
        assert!(expected.contains(&most), "{most} reads at once instead of {expected:?}");
        assert_eq!((pool.status().stored_bytes, pool.dataset().usage(OBJECT).unwrap()), before);
        let report = pool.check_open(&mut |_| {});
        assert_eq!(report.messages, Vec::<String>::new());
        drop(pool);
    }
    let pool = common::open(&device);
    for (at, seed) in (0..).zip(&contents) {
        let mut found = vec![0xaa; PAGE as usize];
        pool.dataset().read(OBJECT, PAGE, at * u64::from(PAGE), &mut found).unwrap();
        let expected = seed.map_or_else(|| vec![0; PAGE as usize], page);
        assert!(found == expected, "page {at}");
    }
    let value = pool.dataset().get(&Key::new(OBJECT, 0x11, 0)).unwrap().unwrap();
    assert_eq!(value, (STEPS - 1).to_le_bytes());
}
