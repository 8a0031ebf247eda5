//! Records that are coded again at their addresses.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod kinds;
mod late;

use std::sync::Arc;

use pagefold_codec::testing::sqlite::{Tree, tree_page};
use pagefold_codec::testing::{Keys, Random, Schema, btree_page, heap_page};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions, Guid, LearnOptions, OpenOptions, PageRange, Pool, RecompressReport, create_on,
};
use pagefold_engine::record::model_of;

const PAGE: usize = 8192;
const PAGES: u64 = 700;
const LEARN: LearnOptions = LearnOptions { pages_min: 60, sample_pages: 100 };

fn open(device: &Arc<SimDevice>, salt: u64) -> Arc<Pool> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Pool::open_on(devices, &OpenOptions { salt, cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap()
}

fn new_pool(compression: &str) -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(256 << 20, 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"coded once again") };
    create_on("tank", &devices, &options).unwrap();
    let pool = open(&device, 0);
    pool.set_property("compression", Some(compression)).unwrap();
    pool.set_compression(compression.parse().unwrap());
    (device, pool)
}

fn heap(seed: u64) -> Vec<Vec<u8>> {
    let (mut random, schema) = (Random::new(seed), Schema::simple(false));
    (0..PAGES).map(|block| heap_page(&mut random, &schema, block as usize)).collect()
}

fn write(pool: &Pool, object: u64, from: u64, pages: &[Vec<u8>]) {
    for (at, page) in (from..).zip(pages) {
        let change = Change::Write { object, record_size: PAGE as u32, offset: at * PAGE as u64, data: page };
        pool.dataset().apply(&[change]).unwrap();
    }
    pool.sync().unwrap();
}

fn assert_holds(pool: &Pool, object: u64, pages: &[Vec<u8>]) {
    let mut found = vec![0; PAGE];
    for (at, page) in (0_u64..).zip(pages) {
        pool.dataset().read(object, PAGE as u32, at * PAGE as u64, &mut found).unwrap();
        assert!(found == *page, "page {at} of object {object} differs");
    }
}

fn assert_sound(pool: &Pool) {
    pool.sync().unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

fn modelled(pool: &Pool, object: u64) -> usize {
    let mut ptrs = vec![None; PAGES as usize];
    pool.live().tree.pages(object, 0, &mut ptrs).unwrap();
    ptrs.into_iter().flatten().filter(|ptr| model_of(&pool.read_record(ptr.addr).unwrap()).is_some()).count()
}

fn stored(pool: &Pool, object: u64) -> u64 {
    pool.dataset().usage(object).unwrap().stored_bytes
}

fn whole(object: u64) -> PageRange {
    PageRange { object, from: 0, to: u64::MAX }
}

/// All calls that the ranges take.
fn recompress(pool: &Pool, ranges: &[PageRange]) -> RecompressReport {
    let mut all = RecompressReport::default();
    let mut at = Some((0, 0));
    while let Some(from) = at {
        let report = pool.recompress(ranges, from, 400).unwrap();
        all.pages += report.pages;
        all.recompressed += report.recompressed;
        all.before_bytes += report.before_bytes;
        all.after_bytes += report.after_bytes;
        all.written_bytes += report.written_bytes;
        at = report.next;
    }
    all
}

/// A pool with an object whose pages were stored before there was a model of it.
fn before_the_model() -> (Arc<SimDevice>, Arc<Pool>, Vec<Vec<u8>>) {
    let (device, pool) = new_pool("page-1");
    let pages = heap(2);
    write(&pool, 5, 0, &pages);
    assert_eq!(pool.learn(&LEARN).unwrap().unwrap().adopted, Some(1));
    assert_eq!(modelled(&pool, 5), 0);
    (device, pool, pages)
}

/// An index is made when its table has been loaded, and lies behind it. Whenever the model was learned meanwhile, a
/// recompression has one that knows both.
#[test]
fn an_object_that_has_grown_since_its_model_was_learned_gets_another_when_it_is_recompressed() {
    let mut random = Random::new(3);
    let mut trees = [Tree::simple(false), Tree::index(true)];
    trees.iter_mut().for_each(|tree| tree.page_bytes = PAGE);
    let mut file: Vec<Vec<u8>> =
        (0..500).map(|number| tree_page(&mut random, &trees[usize::from(number >= 400)], number)).collect();
    let index = file.split_off(400);
    let recompressed = |learned_early: bool| {
        let (_device, pool) = new_pool("page-1");
        write(&pool, 5, 0, &file);
        if learned_early {
            assert_eq!(pool.learn(&LEARN).unwrap().unwrap().adopted, Some(1));
        }
        write(&pool, 5, file.len() as u64, &index);
        recompress(&pool, &[whole(5)]);
        assert_holds(&pool, 5, &[file.as_slice(), &index].concat());
        assert_sound(&pool);
        (stored(&pool, 5), recompress(&pool, &[whole(5)]).recompressed)
    };
    let ((early, again), (late, _)) = (recompressed(true), recompressed(false));
    assert!(early * 100 < late * 103, "{early} bytes, {late} with the model learned at the end");
    assert_eq!(again, 0, "one recompression is enough");
}

/// Models of small objects are learned when they are recompressed and at no other time, and only where they pay for
/// their own bytes.
#[test]
fn small_objects_get_a_model_when_they_are_recompressed() {
    let (_device, pool) = new_pool("page-1");
    let mut random = Random::new(4);
    let mut index = |pages: usize| -> Vec<Vec<u8>> {
        (0..pages).map(|block| btree_page(&mut random, Keys::Ints, false, block)).collect()
    };
    let (small, tiny) = (index(12), index(2));
    // The pool holds so much else that the gain of a model for `small` is little.
    let noise: Vec<Vec<u8>> = (0..300).map(|seed| Random::new(seed).bytes(PAGE)).collect();
    write(&pool, 7, 0, &noise);
    write(&pool, 5, 0, &small);
    write(&pool, 6, 0, &tiny);
    assert_eq!(pool.learn(&LearnOptions::default()).unwrap(), None);
    let (before, of_tiny) = (stored(&pool, 5), stored(&pool, 6));

    let report = recompress(&pool, &[whole(7), whole(5), whole(6)]);
    assert!(report.recompressed > 0, "{report:?}");
    assert_eq!((modelled(&pool, 5), modelled(&pool, 6)), (12, 0));
    let with_model = stored(&pool, 5) + pool.status().model_bytes;
    assert!(2 * with_model < before, "{with_model} of {before} bytes");
    assert_eq!(stored(&pool, 6), of_tiny);
    assert_holds(&pool, 5, &small);
    assert_holds(&pool, 6, &tiny);
    assert_holds(&pool, 7, &noise);
    assert_sound(&pool);
}

#[test]
fn what_was_stored_before_the_model_gets_it_and_keeps_its_address() {
    let (device, pool, pages) = before_the_model();
    let mut before = vec![None; PAGES as usize];
    pool.live().tree.pages(5, 0, &mut before).unwrap();
    let (usage, used) = (stored(&pool, 5), pool.status().used_bytes);

    let report = recompress(&pool, &[whole(5)]);
    assert_eq!((report.pages, report.recompressed), (PAGES, PAGES));
    assert!(report.after_bytes * 10 < report.before_bytes * 9, "{report:?}");
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    let mut after = vec![None; PAGES as usize];
    pool.live().tree.pages(5, 0, &mut after).unwrap();
    assert!(before.iter().zip(&after).all(|(a, b)| a.unwrap().addr == b.unwrap().addr));
    assert_eq!(usage - stored(&pool, 5), report.before_bytes - report.after_bytes);
    assert!(used - pool.status().used_bytes > (report.before_bytes - report.after_bytes) / 2);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);

    assert_eq!(recompress(&pool, &[whole(5)]).recompressed, 0, "there is nothing left to gain");
    drop(pool);
    let pool = open(&Arc::new(device.crash(&mut |_| 0)), 1);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
}

#[test]
fn space_is_accounted_for_exactly_when_such_pages_die() {
    let (_, pool, pages) = before_the_model();
    recompress(&pool, &[whole(5)]);
    // Overwritten, punched, truncated; in memory the pointers of the tree have the new lengths.
    write(&pool, 5, 100, &pages[..50]);
    pool.dataset().apply(&[Change::Punch { object: 5, from: 300, to: 420 }]).unwrap();
    pool.sync().unwrap();
    assert_sound(&pool);
    pool.clean().unwrap();
    assert_sound(&pool);
    pool.dataset().apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    assert_sound(&pool);
    assert_eq!(stored(&pool, 5), 0);
}

#[test]
fn a_record_that_two_files_share_stays_shared() {
    let (device, pool, pages) = before_the_model();
    let share = Change::Share { from_object: 5, from_page: 0, to_object: 6, to_page: 0, count: PAGES };
    pool.dataset().apply(&[share]).unwrap();
    pool.sync().unwrap();
    let report = recompress(&pool, &[whole(5)]);
    assert_eq!(report.recompressed, PAGES);
    assert_eq!(modelled(&pool, 6), PAGES as usize);
    assert_eq!(stored(&pool, 6), stored(&pool, 5), "all pointers to a record say the same");
    for object in [5, 6] {
        assert_holds(&pool, object, &pages);
    }
    assert_sound(&pool);
    drop(pool);
    let pool = open(&Arc::new(device.crash(&mut |_| 0)), 1);
    // The last pointers to these records tell lengths of before.
    pool.dataset().apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    assert_holds(&pool, 6, &pages);
    assert_sound(&pool);
    pool.dataset().apply(&[Change::Punch { object: 6, from: 100, to: 650 }]).unwrap();
    pool.sync().unwrap();
    assert_sound(&pool);
}

#[test]
fn a_crash_undoes_it_or_not_and_what_was_shared_meanwhile_is_accounted_for() {
    let (device, pool, pages) = before_the_model();
    pool.checkpoint(false).unwrap();
    // The second flush after the pass is the checkpoint's: the move is published, and not durable.
    for calls in [4, 8, 12, 16, 20, 24, 28, 32] {
        let device = Arc::new(device.crash(&mut |_| 0));
        let pool = open(&device, calls);
        device.cut_after(calls);
        let failed = pool.recompress(&[whole(5)], (0, 0), 16 << 10).is_err();
        let _ = pool.dataset().apply(&[Change::Share {
            from_object: 5,
            from_page: 0,
            to_object: 7,
            to_page: 0,
            count: 9,
        }]);
        let _ = pool.sync();
        drop(pool);
        let pool = open(&Arc::new(device.crash(&mut |_| 0)), calls + 100);
        assert_holds(&pool, 5, &pages);
        assert_sound(&pool);
        if failed {
            assert_eq!(recompress(&pool, &[whole(5)]).recompressed % PAGES, 0);
            assert_holds(&pool, 5, &pages);
        }
        pool.dataset().apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
        pool.sync().unwrap();
        assert_sound(&pool);
    }
}

#[test]
fn the_property_decides_and_nothing_becomes_longer() {
    let (_, pool) = new_pool("lz4");
    let pages = heap(4);
    write(&pool, 5, 0, &pages);
    let lz4 = stored(&pool, 5);
    assert_eq!(recompress(&pool, &[whole(5)]).recompressed, 0);
    pool.set_compression("zstd-9".parse().unwrap());
    let ranges = [PageRange { object: 5, from: 0, to: 300 }, PageRange { object: 9, from: 0, to: 10 }];
    let part = recompress(&pool, &ranges);
    assert_eq!((part.pages, part.recompressed), (300, 300));
    assert_eq!(recompress(&pool, &[whole(5)]).recompressed, PAGES - 300);
    let zstd = stored(&pool, 5);
    assert!(zstd * 20 < lz4 * 19, "{zstd} of {lz4} bytes");
    for compression in ["lz4", "off"] {
        pool.set_compression(compression.parse().unwrap());
        assert_eq!(recompress(&pool, &[whole(5)]).recompressed, 0);
    }
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}
