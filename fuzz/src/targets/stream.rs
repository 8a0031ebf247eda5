//! Attacks `receive` with streams.

use std::cell::RefCell;
use std::sync::Arc;

use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::fuzzing::checksummed_stream;
use pagefold_engine::pool::{
    CreateOptions, Guid, LearnOptions, OpenOptions, Pool, ReceiveOptions, Source, create_on,
};
use pagefold_engine::{Key, Result};

/// Number of pages of the relation that a model is learned of.
const PAGES: usize = 40;

fn pool(guid: u8) -> Option<Arc<Pool>> {
    let devices = vec![Arc::new(SimDevice::new(140 << 20, 1)) as Arc<dyn Device>];
    create_on("fuzz", &devices, &CreateOptions { force: false, created: 0, guid: Guid([guid; 16]) }).ok()?;
    let options = OpenOptions { cache_bytes: 4 << 20, salt: 1, ..OpenOptions::default() };
    let pool = Pool::open_on(devices, &options).ok()?;
    pool.set_compression("page-1".parse().ok()?);
    Some(pool)
}

/// Makes the streams of two snapshots: values, records of several kinds, one that pages share, and a model.
fn streams() -> Result<[Vec<u8>; 2]> {
    let Some(pool) = pool(1) else { return Ok([Vec::new(), Vec::new()]) };
    let dataset = pool.dataset();
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..PAGES).map(|block| heap_page(&mut random, &schema, block)).collect();
    let write = |object, page: u64, data: &[u8]| {
        dataset.apply(&[Change::Write { object, record_size: 8192, offset: page * 8192, data }])
    };
    for (at, page) in (0..).zip(&pages) {
        write(5, at, page)?;
    }
    pool.sync()?;
    pool.learn(&LearnOptions { pages_min: 12, sample_pages: 40 })?;
    for (at, page) in (0..).zip(pages.iter().take(8)) {
        write(5, at, page)?;
    }
    dataset.apply(&[Change::Punch { object: 5, from: 8, to: u64::MAX }])?;
    dataset.apply(&[Change::Put(Key::new(5, 16, 0), b"value".to_vec())])?;
    write(6, 1, &b"row of a table ".repeat(500))?;
    pool.sync()?;
    let share = Change::Share { from_object: 6, from_page: 1, to_object: 7, to_page: 0, count: 1 };
    dataset.apply(&[share])?;
    pool.snapshot(&[""], "one", 1)?;
    dataset.apply(&[Change::Punch { object: 5, from: 2, to: 4 }, Change::Delete(Key::new(5, 16, 0))])?;
    if let Some(page) = pages.last() {
        write(5, 7, page)?;
    }
    pool.snapshot(&[""], "two", 1)?;
    let stream = |path, from| {
        let mut out = Vec::new();
        pool.send(&Source::Snapshot { path, from }, &mut out, &mut |_| {}).map(|_| out)
    };
    Ok([stream("@one", None)?, stream("@two", Some("@one"))?])
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    streams().unwrap_or_default().into()
}

/// Makes a pool that has received the first stream.
fn target() -> Option<Arc<Pool>> {
    let target = pool(2)?;
    let stream = seeds().into_iter().next()?;
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut |_| {}).ok()?;
    Some(target)
}

const OPTIONS: ReceiveOptions = ReceiveOptions { created: 1, keep: false, force: true };

thread_local! {
    static TARGET: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

/// Receives a stream into a new dataset, and into one that has the first snapshot. A stream that is refused must leave
/// nothing behind.
pub(super) fn receive(bytes: &[u8]) -> bool {
    let stream = checksummed_stream(bytes);
    let Some(pool) = TARGET.with_borrow_mut(|target| target.take().or_else(self::target)) else {
        return false;
    };
    let mut accepted = false;
    for path in ["new", "copy"] {
        let before: Vec<String> = paths(&pool);
        let received = pool.receive(path, &OPTIONS, &mut stream.as_slice(), &mut |_| {}).is_ok();
        assert!(received || (paths(&pool) == before && pool.partials().is_empty()));
        accepted |= received;
    }
    while pool.reap().unwrap_or(false) {}
    if pool.status().failure.is_none() && !accepted {
        TARGET.with_borrow_mut(|target| *target = Some(pool));
    }
    accepted
}

fn paths(pool: &Pool) -> Vec<String> {
    pool.list().unwrap_or_default().into_iter().map(|listed| listed.path).collect()
}
