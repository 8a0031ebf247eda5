//! Requests to devices are counted by class: each load in its own and in no other.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod mirrored;
#[macro_use]
mod passed_on;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use mirrored::*;
use pagefold_engine::Result;
use pagefold_engine::dataset::Attempt;
use pagefold_engine::device::{
    AlignedBuf, Device, InjectedFault, IoClass, IoKind, RequestCounts, SimDevice, SimOp,
};
use pagefold_engine::pool::{Pool, Source, TrimState};

/// Requests by class and kind, of all devices of a pool.
type Requests = BTreeMap<(&'static str, &'static str), u64>;

fn all_counts(pool: &Pool) -> Vec<RequestCounts> {
    pool.device_status().into_iter().flat_map(|device| device.requests).collect()
}

fn requests(pool: &Pool) -> Requests {
    let mut sums = Requests::new();
    for of in all_counts(pool) {
        *sums.entry((of.class.name(), of.kind.name())).or_default() += of.requests();
    }
    sums
}

#[track_caller]
fn nothing_is_in_flight(pool: &Pool) {
    let left: Vec<RequestCounts> = all_counts(pool).into_iter().filter(|of| of.in_flight > 0).collect();
    assert_eq!(left, []);
}

/// Returns what `work` has asked the devices of a pool for: classes and kinds.
#[track_caller]
fn asked(pool: &Pool, work: impl FnOnce()) -> Vec<(&'static str, &'static str)> {
    let before = requests(pool);
    work();
    nothing_is_in_flight(pool);
    let after = requests(pool);
    let more = |of: &(&_, &u64)| *of.1 > before.get(of.0).copied().unwrap_or_default();
    after.iter().filter(more).map(|(of, _)| *of).collect()
}

fn errors(pool: &Pool, class: IoClass, kind: IoKind) -> u64 {
    let of = all_counts(pool).into_iter().filter(|of| (of.class, of.kind) == (class, kind));
    of.map(|of| of.errors).sum()
}

const READ: &str = "read";
const WRITE: &str = "write";
const FLUSH: &str = "flush";

#[test]
fn each_load_is_counted_in_its_class_and_in_no_other() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..10, 1);
    pool.checkpoint(false).unwrap();

    try_apply(&pool, 0..2000, 1).unwrap();
    let commits = asked(&pool, || pool.sync().unwrap());
    assert!(commits.contains(&("log", WRITE)), "{commits:?}");
    assert!(commits.iter().all(|(class, _)| *class == "log"), "{commits:?}");
    let checkpoint = asked(&pool, || pool.checkpoint(false).unwrap());
    assert_eq!(checkpoint, [("async_read", READ), ("async_write", FLUSH), ("async_write", WRITE)]);
    pool.export().unwrap();
    drop(pool);

    let pool = open(&sims);
    assert_eq!(asked(&pool, || has(&pool, 0..2000, 1)), [("sync_read", READ)]);
    // The search for pages that a model may be learned from looks at some of each object.
    assert_eq!(asked(&pool, || assert!(pool.seek((0, 0)).is_ok())), [("async_read", READ)]);

    write(&pool, 0..1500, 2);
    pool.checkpoint(false).unwrap();
    let mut cleaning = asked(&pool, || assert!(pool.clean().unwrap().segments > 0));
    // A checkpoint makes what was moved count.
    cleaning.retain(|(class, _)| !checkpoint.iter().any(|(of_checkpoint, _)| of_checkpoint == class));
    assert_eq!(cleaning, [("cleaning", READ), ("cleaning", WRITE)]);
    pool.checkpoint(false).unwrap();

    pool.scrub_start(3, 0).unwrap();
    let scrub = asked(&pool, || assert!(pool.scrub_step(3).unwrap().is_some()));
    assert_eq!(scrub, [("scrub", READ)]);

    pool.trim_start(7, 0).unwrap();
    let trim = asked(&pool, || while pool.trim_step(9).unwrap().is_some() {});
    assert_eq!((trim, pool.trim_status().state), (vec![("discard", "discard")], TrimState::Finished));
}

#[test]
fn a_stream_is_read_in_the_background() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    pool.snapshot(&[""], "s", 0).unwrap();
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    let mut sent = Vec::new();
    let source = Source::Snapshot { path: "@s", from: None };
    let stream = asked(&pool, || assert!(pool.send(&source, &mut sent, &mut |_| {}).is_ok()));
    assert_eq!(stream, [("async_read", READ)]);
    assert!(sent.len() > 2000 * PAGE as usize);
}

#[test]
fn filling_a_device_is_counted_as_that_on_both() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    pool.checkpoint(false).unwrap();
    let new = sim(9);
    pool.attach(0, Arc::clone(&new) as Arc<dyn Device>, false).unwrap();
    let filling = asked(&pool, || assert!(pool.fill_step(5).unwrap().unwrap() > 0));
    assert!(filling.contains(&("filling", READ)) && filling.contains(&("filling", WRITE)), "{filling:?}");
    fill(&pool);
    let of = |at: usize, kind| {
        let counts = &pool.device_status()[at].requests;
        let of = counts.iter().find(|of| (of.class, of.kind) == (IoClass::Filling, kind));
        of.map_or(0, |of| of.bytes)
    };
    assert!(of(0, IoKind::Read) > 2000 * u64::from(PAGE));
    assert_eq!(of(0, IoKind::Read), of(1, IoKind::Write));
    assert_eq!((of(0, IoKind::Write), of(1, IoKind::Read)), (0, 0));
}

#[test]
fn what_fails_is_an_error_of_its_class_and_in_flight_no_more() {
    let sims = fresh(1, 2);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&sims);
    sims[0].inject(InjectedFault { op: SimOp::Read, range: 0..SIZE, skip: 0, times: u64::MAX });
    let repairing = asked(&pool, || has(&pool, 0..2000, 1));
    assert!(errors(&pool, IoClass::SyncRead, IoKind::Read) > 0);
    // A record that one device could not give is written again there.
    assert_eq!(repairing, [("async_write", WRITE), ("sync_read", READ)]);
    assert_eq!(errors(&pool, IoClass::Log, IoKind::Write), 0);
    for op in [SimOp::Write, SimOp::Flush] {
        sims[0].inject(InjectedFault { op, range: 0..SIZE, skip: 0, times: u64::MAX });
    }
    write(&pool, 0..10, 2);
    nothing_is_in_flight(&pool);
    assert_eq!(errors(&pool, IoClass::Log, IoKind::Write) + errors(&pool, IoClass::Log, IoKind::Flush), 1);
    sims[1].inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    assert!(try_write(&pool, 0..10, 3).is_err());
    nothing_is_in_flight(&pool);
}

#[test]
fn a_read_that_the_caller_makes_is_in_flight_from_its_plan_on() {
    let sims = fresh(1, 1);
    let pool = open(&sims);
    write(&pool, 0..2000, 1);
    has(&pool, 0..2000, 1);
    let mut out = vec![0; PAGE as usize];
    let mut fetch = |page: u64| match pool.dataset().try_read(4, PAGE, page * u64::from(PAGE), &mut out) {
        Ok(Attempt::Fetch(fetch)) => Some(fetch),
        _ => None,
    };
    let before = requests(&pool);
    let in_flight = || all_counts(&pool).iter().map(|of| of.in_flight).sum::<u64>();
    let mut fetched: Vec<_> = (0..2000).filter_map(&mut fetch).take(2).collect();
    assert_eq!((fetched.len(), in_flight()), (2, 2));
    let given_up = fetched.pop();
    drop(given_up);
    assert_eq!((in_flight(), requests(&pool)), (1, before.clone()));
    let mut fetch = fetched.pop().unwrap();
    let (offset, into) = fetch.request();
    let mut buf = AlignedBuf::scratch(into.len());
    sims[0].read(offset, &mut buf).unwrap();
    into.copy_from_slice(&buf);
    assert!(fetch.finish(&mut out).unwrap());
    nothing_is_in_flight(&pool);
    let reads = |of: &Requests| of[&("sync_read", READ)];
    assert_eq!(reads(&requests(&pool)), reads(&before) + 1);
}

/// A device whose flushes wait until somebody says so.
struct Held {
    inner: Arc<SimDevice>,
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Device for Held {
    passed_on!();

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        if durable {
            self.begun.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        self.inner.write(offset, buf, durable)
    }
}

#[test]
fn a_commit_that_a_device_does_not_end_is_seen_in_flight() {
    let sims = fresh(1, 1);
    let (begun, has_begun) = channel();
    let (go, go_on) = channel();
    let held = Held { inner: Arc::clone(&sims[0]), begun, go_on: Mutex::new(go_on) };
    let pool = Pool::open_on(vec![Arc::new(held) as Arc<dyn Device>], &options()).unwrap();
    try_apply(&pool, 0..1, 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.sync().unwrap());
        has_begun.recv().unwrap();
        let waiting: Vec<_> = all_counts(&pool).into_iter().filter(|of| of.in_flight > 0).collect();
        let [commit] = &waiting[..] else { panic!("{waiting:?}") };
        assert_eq!((commit.class, commit.kind, commit.in_flight), (IoClass::Log, IoKind::Write, 1));
        go.send(()).unwrap();
    });
    nothing_is_in_flight(&pool);
    let of_log = all_counts(&pool).into_iter().find(|of| of.class == IoClass::Log).unwrap();
    assert_eq!(of_log.requests(), of_log.latencies.iter().sum::<u64>());
    assert!(of_log.total_ns > 0 && of_log.bytes >= 4096);
}
