//! Streams of snapshots: from one pool to another, in parts, interrupted, damaged.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions, Guid, LearnOptions, OpenOptions, Pool, ReceiveOptions, Source, Token, Transfer, create_on,
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

/// Gives all of it in small pieces, and then fails as a connection does.
struct Torn<'a>(&'a [u8]);

impl Read for Torn<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let len = buf.len().min(4096);
        self.0.read(&mut buf[..len])
    }
}

/// Cuts streams off at `cuts` places each and goes on from there, every other time after a power cut.
fn interrupted(
    path: &str,
    stream: &[u8],
    source: &SendBench,
    mut target: SendBench,
    cuts: &[usize],
) -> SendBench {
    let mut stream = stream.to_vec();
    for (n, cut) in cuts.iter().enumerate() {
        let part = &stream[..(stream.len() * cut / 100).min(stream.len() - 1)];
        let error = target.pool.receive(path, &KEEP, &mut Torn(part), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        if n % 2 == 1 {
            target = target.crash(n as u64);
        }
        target.assert_sound();
        if let Some(partial) = target.pool.partial(path) {
            assert_eq!(partial.path, path);
            stream = resume(&source.pool, &partial.token.to_string());
        }
    }
    receive(&target.pool, path, &KEEP, &stream).unwrap();
    assert_eq!(target.pool.partials(), []);
    target
}

#[test]
fn goes_on_where_it_was_interrupted() {
    let (source, full, incremental) = source();
    for cuts in [vec![0], vec![50, 50, 50, 90], vec![99, 99], vec![10, 95, 1, 70, 99]] {
        let target = interrupted("copy", &full, &source, SendBench::new(2), &cuts);
        assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "db@one"));
        let target = interrupted("copy", &incremental, &source, target, &cuts);
        assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
        target.assert_sound();
    }
}

#[test]
fn a_part_is_for_one_stream_and_can_be_given_up() {
    let (source, full, _) = source();
    let target = SendBench::new(2);
    receive(&target.pool, "copy", &KEEP, &full[..full.len() - 9]).unwrap_err();
    let partial = target.pool.partial("copy").unwrap();
    assert!(partial.stored_bytes > MIB, "{partial:?}");
    assert_eq!(target.paths(), [""]);
    assert!(matches!(receive(&target.pool, "copy", &KEEP, &full), Err(Error::Busy(_))));
    assert!(matches!(target.pool.create_dataset("copy/x", 1), Err(Error::NotFound(_))));
    let rest = resume(&source.pool, &partial.token.to_string());
    assert!(matches!(receive(&target.pool, "other", &KEEP, &rest), Err(Error::Invalid(_))));
    target.pool.abort_receive("copy").unwrap();
    assert!(matches!(target.pool.abort_receive("copy"), Err(Error::NotFound(_))));
    assert!(matches!(receive(&target.pool, "copy", &KEEP, &rest), Err(Error::Invalid(_))));
    target.assert_sound();
    assert!(target.pool.status().used_bytes < MIB, "{:?}", target.pool.status());
    for wrong in ["", "1-", "1-00", "2-aa", &partial.token.to_string()[..60]] {
        assert!(wrong.parse::<Token>().is_err());
    }
    // Its snapshot is gone.
    source.pool.destroy_snapshots(&["db@one"]).unwrap();
    let gone = source.pool.send(&Source::Resume(&partial.token), &mut Vec::new(), &mut |_| {});
    assert!(matches!(gone, Err(Error::NotFound(_))));
}

#[test]
fn a_pool_without_room_keeps_what_it_had() {
    let source = SendBench::of_size(1, 400);
    for page in 0..20_000 {
        write(&*source.pool.dataset(), 5, PAGE, page, &noise(page, PAGE as usize));
    }
    source.pool.snapshot(&[""], "large", 1).unwrap();
    let stream = send(&source.pool, "@large", None);
    let target = SendBench::of_size(2, 140);
    fill(&*target.pool.dataset());
    let before = content(&target.pool, "");
    assert!(matches!(receive(&target.pool, "copy", &DISCARD, &stream), Err(Error::NoSpace(_))));
    assert_eq!((target.paths(), target.pool.partials()), (vec![String::new()], vec![]));
    target.assert_sound();
    assert_eq!(content(&target.pool, ""), before);
    assert!(target.pool.status().used_bytes < 10 * MIB, "{:?}", target.pool.status());
}

#[test]
fn models_come_along_once() {
    let source = SendBench::new(1);
    source.pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..600).map(|block| heap_page(&mut random, &schema, block)).collect();
    let dataset = source.pool.dataset();
    let write_all = |object| {
        for (at, page) in (0..).zip(&pages) {
            write(&*dataset, object, PAGE, at, page);
        }
        source.pool.sync().unwrap();
    };
    write_all(5);
    source.pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap().adopted.unwrap();
    write_all(5);
    source.pool.snapshot(&[""], "one", 1).unwrap();
    let full = send(&source.pool, "@one", None);
    assert!(full.len() * 4 < pages.len() * PAGE as usize, "{} bytes", full.len());
    for (at, page) in (0..).zip(&pages[..100]) {
        write(&*dataset, 5, PAGE, 10 + at, page);
    }
    source.pool.snapshot(&[""], "two", 1).unwrap();
    let incremental = send(&source.pool, "@two", Some("@one"));

    let target = SendBench::new(2);
    target.pool.set_compression("page-1".parse().unwrap());
    // So that numbers of models differ.
    for (at, page) in (0..).zip(&pages[..300]) {
        write(&*target.pool.dataset(), 9, PAGE, at, page);
    }
    target.pool.sync().unwrap();
    target.pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap().adopted.unwrap();
    receive(&target.pool, "copy", &KEEP, &full).unwrap();
    target.pool.checkpoint(false).unwrap();
    receive(&target.pool, "copy", &KEEP, &incremental).unwrap();
    assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "@one"));
    assert_eq!(content(&target.pool, "copy@two"), content(&source.pool, "@two"));
    let models = |pool: &Pool| pool.check_open(&mut |_| {}).models;
    assert_eq!((models(&source.pool), models(&target.pool)), (1, 2));
    target.assert_sound();
    let target = target.crash(1);
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "@two"));
    target.assert_sound();
}

#[test]
fn deltas_are_sent_in_full() {
    let source = SendBench::new(1);
    let dataset = source.pool.dataset();
    for page in 0..20 {
        write(&*dataset, 5, PAGE, page, &noise(page, PAGE as usize));
    }
    source.pool.sync().unwrap();
    source.pool.snapshot(&[""], "one", 1).unwrap();
    for round in 0..3_u64 {
        for page in 0..20 {
            let offset = page * u64::from(PAGE) + 100 * round;
            let change = Change::Write { object: 5, record_size: PAGE, offset, data: b"other" };
            dataset.apply(&[change]).unwrap();
        }
        source.pool.sync().unwrap();
    }
    let bases = source.pool.live().bases_between(5, 0, 20).unwrap();
    assert_eq!(bases.len(), 20, "the pages are deltas");
    source.pool.snapshot(&[""], "two", 1).unwrap();
    let target = SendBench::new(2);
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@one", None)).unwrap();
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@two", Some("@one"))).unwrap();
    assert_eq!(content(&target.pool, "a@one"), content(&source.pool, "@one"));
    assert_eq!(content(&target.pool, "a@two"), content(&source.pool, "@two"));
    receive(&target.pool, "b", &KEEP, &send(&source.pool, "@two", None)).unwrap();
    assert_eq!(content(&target.pool, "b"), content(&source.pool, "@two"));
    target.assert_sound();
}

/// Lengths of the frames of a stream: payloads, in bytes.
fn frames(stream: &[u8]) -> Vec<usize> {
    let (mut at, mut all) = (8, Vec::new());
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
        all.push(len);
        at += 4 + 1 + len + 8;
    }
    all
}

/// A delta of some bytes becomes a record as long as the page, and thousands of them fit into what is read at a time.
#[test]
fn frames_are_bounded_by_the_records_that_deltas_become() {
    for (record_size, pages) in [(PAGE, 1500), (4 << 10, 3000), (128 << 10, 100)] {
        let source = SendBench::new(1);
        let dataset = source.pool.dataset();
        for page in 0..pages {
            write(&*dataset, 5, record_size, page, &noise(page, record_size as usize));
        }
        source.pool.sync().unwrap();
        source.pool.snapshot(&[""], "one", 1).unwrap();
        for page in 0..pages {
            let offset = page * u64::from(record_size) + 100;
            dataset.apply(&[Change::Write { object: 5, record_size, offset, data: b"other" }]).unwrap();
            // Values come behind the pages, some in a frame with the last of them.
            dataset.apply(&[Change::Put(Key::new(6, 1, page), vec![7; 100])]).unwrap();
        }
        source.pool.sync().unwrap();
        let deltas = source.pool.totals().pages_delta;
        assert!(deltas * 10 >= pages * 9, "{deltas} of {pages} pages are deltas");
        source.pool.snapshot(&[""], "two", 1).unwrap();
        let (one, two) = (send(&source.pool, "@one", None), send(&source.pool, "@two", Some("@one")));
        let longest = frames(&two).into_iter().max().unwrap();
        assert!(longest < MIB as usize + 2 * record_size as usize, "a frame of {longest} bytes");
        let target = SendBench::new(2);
        receive(&target.pool, "a", &KEEP, &one).unwrap();
        let target = interrupted("a", &two, &source, target, &[30, 60, 90]);
        assert_eq!(content(&target.pool, "a@two"), content(&source.pool, "@two"));
        receive(&target.pool, "b", &KEEP, &send(&source.pool, "@two", None)).unwrap();
        assert_eq!(content(&target.pool, "b"), content(&source.pool, "@two"));
        target.assert_sound();
    }
}

#[test]
fn memory_and_frames_are_bounded_by_what_is_sent() {
    let source = SendBench::new(1);
    let dataset = source.pool.dataset();
    for page in 0..6000 {
        write(&*dataset, 5, 4096, page, &[page as u8 | 1; 4096]);
    }
    source.pool.snapshot(&[""], "one", 1).unwrap();
    write(&*dataset, 5, 4096, 3000, &noise(1, 4096));
    source.pool.snapshot(&[""], "two", 1).unwrap();
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    source.pool.snapshot(&[""], "three", 1).unwrap();
    let two = send(&source.pool, "@two", Some("@one"));
    assert!(two.len() < 4096 + 300, "{} bytes for a page", two.len());
    let three = send(&source.pool, "@three", Some("@two"));
    assert!(three.len() < 300, "{} bytes for no page", three.len());
    let target = SendBench::new(2);
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@one", None)).unwrap();
    for stream in [two, three] {
        receive(&target.pool, "a", &KEEP, &stream).unwrap();
    }
    assert!(content(&target.pool, "a").is_empty());
    target.assert_sound();
}

/// Returns the number of damaged streams to try: 10,000 with `PAGEFOLD_MUTATIONS=10000`.
fn mutations() -> u64 {
    std::env::var("PAGEFOLD_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// One or a few damages of a stream.
fn damaged(stream: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    for _ in 0..1 + random.next() % 3 {
        let len = bytes.len() as u64;
        let at = (random.next() % len) as usize;
        match random.next() % 6 {
            0 => bytes[at] ^= 1 << (random.next() % 8),
            1 => bytes[at] = bytes[at].wrapping_add(1 + (random.next() % 255) as u8),
            2 => bytes.truncate(at.max(1)),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, random.next() as u8),
            _ => {
                let from = (random.next() % len) as usize;
                let count = (random.next() % 5000) as usize;
                let piece: Vec<u8> = bytes[from..bytes.len().min(from + count)].to_vec();
                let end = bytes.len().min(at + piece.len());
                bytes.splice(at..end, piece);
            }
        }
    }
    bytes
}

#[test]
fn damaged_streams_are_rejected_whole() {
    let source = SendBench::new(1);
    source.pool.create_dataset("db", 1).unwrap();
    let dataset = source.pool.open_dataset("db").unwrap();
    let small = |n: u64| {
        for object in 2..6 {
            put(&*dataset, object, &noise(object + n, 50));
            write(&*dataset, object, 4096, n, &noise(object * n, 4096));
        }
    };
    (1..6).for_each(small);
    source.pool.snapshot(&["db"], "one", 1).unwrap();
    (4..9).for_each(small);
    source.pool.snapshot(&["db"], "two", 1).unwrap();
    let (full, incremental) =
        (send(&source.pool, "db@one", None), send(&source.pool, "db@two", Some("db@one")));
    let target = SendBench::new(2);
    receive(&target.pool, "copy", &DISCARD, &full).unwrap();
    let before = content(&target.pool, "copy");
    let mut random = Random::new(1);
    for n in 0..mutations() {
        let (path, stream) = if n % 2 == 0 { ("new", &full) } else { ("copy", &incremental) };
        let bytes = damaged(stream, &mut random);
        if bytes.starts_with(stream) {
            // Bytes behind the end of a stream are not read.
            continue;
        }
        let keep = ReceiveOptions { keep: n % 3 == 0, ..DISCARD };
        assert!(receive(&target.pool, path, &keep, &bytes).is_err(), "mutation {n} is taken for a stream");
        if target.pool.partial(path).is_some() {
            assert!(keep.keep);
            target.pool.abort_receive(path).unwrap();
        }
        assert_eq!((target.paths().len(), target.pool.partials()), (3, vec![]));
        if n % 100 == 0 {
            target.assert_sound();
            assert_eq!(content(&target.pool, "copy"), before);
        }
    }
    target.assert_sound();
    assert_eq!(content(&target.pool, "copy@one"), before);
    receive(&target.pool, "copy", &DISCARD, &incremental).unwrap();
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
}
