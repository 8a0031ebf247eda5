//! Streams of snapshots: from one pool to another, in parts, interrupted, damaged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod contents;
mod damage;
mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;

use pagefold_codec::testing::Random;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions, Guid, OpenOptions, Pool, ReceiveOptions, Source, Token, Transfer, create_on,
};
use pagefold_engine::tree::{Value, Visit};
use pagefold_engine::{Error, Key, Result};

const MIB: u64 = 1 << 20;
const PAGE: u32 = 8192;
const KEEP: ReceiveOptions = ReceiveOptions { created: 5, keep: true, force: false };
const DISCARD: ReceiveOptions = ReceiveOptions { created: 5, keep: false, force: false };

struct SendBench {
    device: Arc<SimDevice>,
    pool: Arc<Pool>,
}

fn open(device: &Arc<SimDevice>, salt: u64) -> Arc<Pool> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Pool::open_on(devices, &OpenOptions { salt, cache_bytes: 16 << 20, ..OpenOptions::default() }).unwrap()
}

impl SendBench {
    fn new(guid: u8) -> Self {
        Self::of_size(guid, 256)
    }

    fn of_size(guid: u8, mib: u64) -> Self {
        let device = Arc::new(SimDevice::new(mib * MIB, 1));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid([guid; 16]) };
        create_on("tank", &devices, &options).unwrap();
        let pool = open(&device, 0);
        Self { device, pool }
    }

    /// The power goes; what was not flushed is there or not.
    fn crash(self, seed: u64) -> Self {
        drop(self.pool);
        let device = Arc::new(self.device.crash_seeded(seed));
        let pool = open(&device, seed);
        Self { device, pool }
    }

    fn assert_sound(&self) {
        self.pool.sync().unwrap();
        while self.pool.is_reaping() {
            if !self.pool.reap().unwrap() {
                self.pool.checkpoint(false).unwrap();
            }
        }
        let report = self.pool.check_open(&mut |_| {});
        assert_eq!(report.messages, Vec::<String>::new());
    }

    fn paths(&self) -> Vec<String> {
        self.pool.list().unwrap().into_iter().map(|listed| listed.path).collect()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next() as u8).collect()
}

fn write(dataset: &dyn Dataset, object: u64, record_size: u32, page: u64, data: &[u8]) {
    let offset = page * u64::from(record_size);
    dataset.apply(&[Change::Write { object, record_size, offset, data }]).unwrap();
}

fn put(dataset: &dyn Dataset, object: u64, value: &[u8]) {
    dataset.apply(&[Change::Put(Key::new(object, 2, 7), value.to_vec())]).unwrap();
}

/// Objects with values, compressible, noisy and zero pages, holes, and shared records.
fn fill(dataset: &dyn Dataset) {
    for object in 2..9 {
        put(dataset, object, &noise(object, object as usize * 30));
        for page in 0..object * 6 {
            let data = match page % 5 {
                0 => noise(object * 1000 + page, PAGE as usize),
                1 => vec![0; PAGE as usize],
                _ => format!("row {page} of {object} ").into_bytes().repeat(1000)[..PAGE as usize].to_vec(),
            };
            write(dataset, object, PAGE, page * (1 + object % 2), &data);
        }
    }
    write(dataset, 20, MIB as u32, 0, &noise(20, MIB as usize));
    put(dataset, 21, &noise(21, 60_000));
    for (from_object, to_object) in [(5, 6), (6, 40), (5, 4)] {
        let share = Change::Share { from_object, from_page: 0, to_object, to_page: 3, count: 12 };
        dataset.apply(&[share]).unwrap();
    }
}

/// Changes some of what `fill` made.
fn change(dataset: &dyn Dataset) {
    put(dataset, 3, b"other");
    dataset.apply(&[Change::Delete(Key::new(4, 2, 7))]).unwrap();
    write(dataset, 7, PAGE, 3, &noise(77, PAGE as usize));
    dataset.apply(&[Change::Punch { object: 6, from: 2, to: 9 }]).unwrap();
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    // Of another recordsize from now on.
    write(dataset, 5, 16384, 1, &noise(55, 16384));
    dataset
        .apply(&[Change::Share { from_object: 7, from_page: 0, to_object: 50, to_page: 0, count: 5 }])
        .unwrap();
}

/// All that a dataset or snapshot holds, with pages as they read.
fn content(pool: &Pool, path: &str) -> BTreeMap<Key, Vec<u8>> {
    pool.sync().unwrap();
    let version = pool.version(path).unwrap();
    let mut found = BTreeMap::new();
    let walked = version.tree.walk(&mut |visit| {
        match visit {
            Visit::Entry(key, Value::Bytes(bytes)) if key.kind < Key::ENGINE_KINDS => {
                found.insert(key, bytes.into_vec());
            }
            Visit::Entry(key, Value::Page(_)) if key.kind == Key::PAGE => {
                found.insert(key, Vec::new());
            }
            Visit::Entry(..) | Visit::Node { .. } => {}
            Visit::Damaged { ptr, error, .. } => panic!("{ptr:?}: {error}"),
        }
        Ok(())
    });
    walked.unwrap();
    for (key, value) in found.iter_mut().filter(|(key, _)| key.kind == Key::PAGE) {
        let size = version.record_size(key.object).unwrap();
        value.resize(size as usize, 0);
        version.read(key.object, size, key.offset * u64::from(size), value).unwrap();
    }
    found
}

fn send(pool: &Pool, path: &str, from: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let sent = pool.send(&Source::Snapshot { path, from }, &mut out, &mut |_| {}).unwrap();
    assert_eq!(sent.stream_bytes, out.len() as u64);
    out
}

fn resume(pool: &Pool, token: &str) -> Vec<u8> {
    let token: Token = token.parse().unwrap();
    let mut out = Vec::new();
    pool.send(&Source::Resume(&token), &mut out, &mut |_| {}).unwrap();
    out
}

fn receive(pool: &Pool, path: &str, options: &ReceiveOptions, mut stream: &[u8]) -> Result<Transfer> {
    pool.receive(path, options, &mut stream, &mut |_| {})
}

/// A source with two snapshots of `db`, a whole stream of the first and what changed until the second.
fn source() -> (SendBench, Vec<u8>, Vec<u8>) {
    let source = SendBench::new(1);
    source.pool.create_dataset("db", 1).unwrap();
    let dataset = source.pool.open_dataset("db").unwrap();
    fill(&*dataset);
    source.pool.snapshot(&["db"], "one", 10).unwrap();
    change(&*dataset);
    source.pool.snapshot(&["db"], "two", 20).unwrap();
    write(&*dataset, 7, PAGE, 4, &noise(78, PAGE as usize));
    let full = send(&source.pool, "db@one", None);
    let incremental = send(&source.pool, "db@two", Some("db@one"));
    (source, full, incremental)
}

#[test]
fn whole_and_then_what_changed() {
    let (source, full, incremental) = source();
    assert!(incremental.len() * 4 < full.len(), "{} of {}", incremental.len(), full.len());
    let target = SendBench::new(2);
    let done = receive(&target.pool, "copy", &DISCARD, &full).unwrap();
    assert_eq!(done.stream_bytes, full.len() as u64);
    assert_eq!(target.paths(), ["", "copy", "copy@one"]);
    assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "db@one"));
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@one"));
    // A record that several pages share is stored once.
    let stored = |pool: &Pool, path: &str| pool.listed(path).unwrap().referenced_bytes;
    let (there, here) = (stored(&source.pool, "db@one"), stored(&target.pool, "copy@one"));
    assert!(here < there + there / 20, "{here} bytes are stored of what took {there}");
    target.assert_sound();

    target.pool.set_property_of("copy", "note", Some("stays")).unwrap();
    target.pool.create_dataset("copy/below", 1).unwrap();
    target.pool.hold("copy@one", "backup", 1).unwrap();
    receive(&target.pool, "copy", &DISCARD, &incremental).unwrap();
    assert_eq!(target.paths(), ["", "copy", "copy@one", "copy@two", "copy/below"]);
    assert_eq!(content(&target.pool, "copy@two"), content(&source.pool, "db@two"));
    assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "db@one"));
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
    assert_eq!(target.pool.property_of("copy", "note").unwrap().as_deref(), Some("stays"));
    assert_eq!(target.pool.listed("copy@two").unwrap().created, 20);
    target.assert_sound();

    let target = target.crash(3);
    assert_eq!(content(&target.pool, "copy@two"), content(&source.pool, "db@two"));
    target.assert_sound();
    // On it goes from there, to a third pool and back to the first.
    let third = SendBench::new(3);
    receive(&third.pool, "x", &DISCARD, &send(&target.pool, "copy@one", None)).unwrap();
    receive(&third.pool, "x", &DISCARD, &incremental).unwrap();
    receive(&source.pool, "db/back", &DISCARD, &send(&third.pool, "x@two", None)).unwrap();
    assert_eq!(content(&source.pool, "db/back"), content(&source.pool, "db@two"));
    third.assert_sound();
    source.assert_sound();
}

#[test]
fn an_empty_snapshot_and_one_that_is_not_stored() {
    let source = SendBench::new(1);
    source.pool.snapshot(&[""], "empty", 1).unwrap();
    let target = SendBench::new(2);
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@empty", None)).unwrap();
    assert!(content(&target.pool, "a").is_empty());
    fill(&*source.pool.dataset());
    source.pool.snapshot(&[""], "full", 1).unwrap();
    let incremental = send(&source.pool, "@full", Some("@empty"));
    receive(&target.pool, "a", &KEEP, &incremental).unwrap();
    assert_eq!(content(&target.pool, "a"), content(&source.pool, ""));
    target.assert_sound();
}

#[test]
fn what_cannot_be_received_is_refused() {
    let (source, full, incremental) = source();
    let target = SendBench::new(2);
    let refused = |path: &str, options: &ReceiveOptions, stream: &[u8]| {
        let before = target.paths();
        let error = receive(&target.pool, path, options, stream).unwrap_err();
        assert_eq!((target.paths(), target.pool.partials()), (before, Vec::new()));
        error
    };
    assert!(matches!(refused("copy", &KEEP, &incremental), Error::NotFound(_)));
    assert!(matches!(refused("", &KEEP, &full), Error::Exists(_) | Error::Invalid(_)));
    assert!(matches!(refused("no/parent", &KEEP, &full), Error::NotFound(_)));
    assert!(matches!(refused("%x", &KEEP, &full), Error::Invalid(_)));
    receive(&target.pool, "copy", &KEEP, &full).unwrap();
    assert!(matches!(refused("copy", &KEEP, &full), Error::Exists(_)));
    // Its newest snapshot is another one.
    target.pool.snapshot(&["copy"], "mine", 1).unwrap();
    assert!(
        refused("copy", &KEEP, &incremental).to_string().contains("newest snapshot of 'copy' is 'copy@mine'")
    );
    target.pool.destroy_snapshots(&["copy@mine"]).unwrap();
    // It was changed.
    put(&*target.pool.open_dataset("copy").unwrap(), 9, b"mine");
    assert!(refused("copy", &KEEP, &incremental).to_string().contains("was changed since 'copy@one'"));
    let force = ReceiveOptions { force: true, ..KEEP };
    receive(&target.pool, "copy", &force, &incremental).unwrap();
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
    assert!(matches!(refused("copy", &KEEP, &incremental), Error::Exists(_)));
    let wrong = source.pool.send(
        &Source::Snapshot { path: "db@one", from: Some("db@two") },
        &mut Vec::new(),
        &mut |_| {},
    );
    assert!(matches!(wrong, Err(Error::Invalid(_))));
    target.assert_sound();
}

#[test]
fn nobody_destroys_what_is_sent_or_received() {
    let (source, full, _) = source();
    let mut busy = 0;
    source
        .pool
        .send(&Source::Snapshot { path: "db@two", from: Some("db@one") }, &mut Vec::new(), &mut |_| {
            for path in ["db@one", "db@two"] {
                busy += u32::from(matches!(source.pool.destroy_snapshots(&[path]), Err(Error::Busy(_))));
            }
        })
        .unwrap();
    assert!(busy >= 4);
    source.pool.destroy_snapshots(&["db@one"]).unwrap();
    let target = SendBench::new(2);
    let mut stream = full.as_slice();
    target
        .pool
        .receive("a", &KEEP, &mut stream, &mut |_| {
            assert!(matches!(target.pool.abort_receive("a"), Err(Error::Busy(_))));
            let again = receive(&target.pool, "a", &KEEP, &full);
            assert!(matches!(again, Err(Error::Busy(_))), "{again:?}");
            assert_eq!(target.paths(), [""]);
        })
        .unwrap();
}
