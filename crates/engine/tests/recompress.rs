//! Records that are coded again at their addresses.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_codec::testing::logs::{redo_blocks, wal_pages};
use pagefold_codec::testing::sqlite::{Tree, tree_page};
use pagefold_codec::testing::{Keys, Random, Schema, btree_page, heap_page};
use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions, Guid, LearnOptions, OpenOptions, PageRange, Pool, RecompressReport, create_on,
};
use pagefold_engine::record::{Compression, model_of};

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

#[test]
fn objects_whose_model_came_late_are_known_until_they_are_coded_again() {
    let (_, pool, pages) = before_the_model();
    assert_eq!(pool.late(), [((1, 5), 0)]);
    write(&pool, 5, 0, &pages[..10]);
    assert_eq!(pool.late(), [((1, 5), 10)]);
    let mut at = 0;
    for step in 1..=4 {
        let next = pool.recompress_late((1, 5), at, 200).unwrap();
        assert_eq!(next.is_none(), step == 4, "700 pages");
        at = next.unwrap_or(at);
    }
    assert_eq!(pool.late(), []);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

#[test]
fn what_is_coded_again_gets_a_model_first() {
    let (device, pool) = new_pool("page-1");
    let pages = heap(2);
    write(&pool, 5, 0, &pages);
    drop(pool);
    // Who wrote these pages is forgotten: nobody learns from them by himself.
    let pool = open(&device, 1);
    assert_eq!(pool.learn(&LEARN).unwrap(), None);
    let report = recompress(&pool, &[whole(5)]);
    assert_eq!((report.recompressed, modelled(&pool, 5)), (PAGES, PAGES as usize));
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// All calls that the objects take which wait to be coded again.
fn recompress_late(pool: &Pool) {
    while let Some((of, _)) = pool.late().first().copied() {
        let mut at = Some(0);
        while let Some(from) = at {
            at = pool.recompress_late(of, from, 300).unwrap();
        }
    }
}

#[test]
fn what_waits_to_be_coded_again_waits_over_restarts_until_all_of_it_was() {
    let (device, pool, pages) = before_the_model();
    assert_eq!(pool.recompress_late((1, 5), 0, 300).unwrap(), Some(300));
    drop(pool);
    let device = Arc::new(device.crash(&mut |_| 0));
    let pool = open(&device, 1);
    assert_eq!(pool.late(), [((1, 5), 0)]);
    recompress_late(&pool);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_sound(&pool);
    pool.checkpoint(false).unwrap();
    drop(pool);
    let pool = open(&Arc::new(device.crash(&mut |_| 0)), 2);
    assert_eq!((pool.late(), modelled(&pool, 5)), (vec![], PAGES as usize));
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// All that the search finds.
fn seek(pool: &Pool) {
    let mut at = Some((0, 0));
    while let Some(from) = at {
        at = pool.seek(from).unwrap();
    }
}

#[test]
fn objects_that_nobody_counted_are_sought() {
    let (device, pool) = new_pool("zstd-1");
    let pages = heap(2);
    let noise: Vec<Vec<u8>> = (0..100).map(|seed| Random::new(seed).bytes(PAGE)).collect();
    write(&pool, 5, 0, &pages);
    write(&pool, 6, 0, &noise);
    write(&pool, 7, 0, &pages[..7]);
    seek(&pool);
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "compression says so");
    drop(pool);
    let pool = open(&device, 1);
    pool.set_compression("auto".parse().unwrap());
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "who wrote them is forgotten");
    seek(&pool);
    let learned = pool.learn(&LearnOptions::IDLE).unwrap().unwrap();
    assert_eq!((learned.object, learned.adopted, learned.first), (5, Some(1), true));
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "neither noise nor what is too small");
    recompress_late(&pool);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_holds(&pool, 5, &pages);
    assert_holds(&pool, 6, &noise);
    assert_sound(&pool);
}

/// A page with its row hints changed, as who reads a table after a load does.
fn hinted(page: &[u8]) -> Vec<u8> {
    let mut hinted = page.to_vec();
    hinted[0..4].iter_mut().for_each(|byte| *byte ^= 1);
    hinted
}

fn deltas(pool: &Pool) -> u64 {
    pool.totals().pages_delta
}

#[test]
fn a_sweep_over_an_object_with_a_model_is_stored_in_full() {
    let (_device, pool, mut pages) = before_the_model();
    recompress_late(&pool);
    let sweep = |pages: &mut [Vec<u8>]| pages.iter_mut().for_each(|page| *page = hinted(page));
    // In memory, as for who has just written them.
    write(&pool, 5, 0, &pages);
    let full = stored(&pool, 5);
    let before = deltas(&pool);
    sweep(&mut pages[100..200]);
    write(&pool, 5, 100, &pages[100..200]);
    assert_eq!(deltas(&pool), before);
    sweep(&mut pages[300..320]);
    write(&pool, 5, 300, &pages[300..320]);
    assert!(deltas(&pool) > before, "a few pages are deltas where that is shorter");
    assert!(stored(&pool, 5) < full + full / 20);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

#[test]
fn a_sweep_over_an_object_without_a_model_is_stored_as_deltas() {
    let (_device, pool) = new_pool("auto");
    let mut pages: Vec<Vec<u8>> = (0..100).map(|seed| Random::new(seed).bytes(PAGE)).collect();
    write(&pool, 5, 0, &pages);
    pages.iter_mut().for_each(|page| *page = hinted(page));
    write(&pool, 5, 0, &pages);
    assert_eq!(deltas(&pool), 100);
    assert_holds(&pool, 5, &pages);
}

/// Whoever has a page in memory that is coded again in the background makes deltas against what is stored now.
#[test]
fn records_at_hand_are_those_that_are_stored() {
    let (_device, pool, mut pages) = before_the_model();
    recompress_late(&pool);
    let before = (deltas(&pool), stored(&pool, 5));
    pages[40] = hinted(&pages[40]);
    write(&pool, 5, 40, &pages[40..41]);
    assert_eq!(deltas(&pool), before.0 + 1);
    assert!(stored(&pool, 5) < before.1 + 200, "{} {}", stored(&pool, 5), before.1);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// Models of the records of an object's pages of `record_size` bytes.
fn models_of(pool: &Pool, object: u64, pages: usize) -> Vec<Option<u32>> {
    let mut ptrs = vec![None; pages];
    pool.live().tree.pages(object, 0, &mut ptrs).unwrap();
    ptrs.into_iter().flatten().map(|ptr| model_of(&pool.read_record(ptr.addr).unwrap())).collect()
}

fn write_sized(pool: &Pool, object: u64, from: usize, pages: &[Vec<u8>]) {
    for (at, page) in (from..).zip(pages) {
        let (record_size, offset) = (page.len() as u32, (at * page.len()) as u64);
        pool.dataset().apply(&[Change::Write { object, record_size, offset, data: page }]).unwrap();
    }
    pool.sync().unwrap();
}

#[test]
fn log_files_share_a_model_that_commits_never_use() {
    let (device, pool) = new_pool("page-1");
    let pages = wal_pages(&mut Random::new(4), PAGE, 360);
    let (first, second) = pages.split_at(280);
    write_sized(&pool, 5, 0, first);
    assert_eq!(pool.learn(&LEARN).unwrap(), None, "a log's file has no model of its own");
    // Counted from the page on that makes it worth it.
    assert_eq!(pool.late(), [((1, 5), 25)], "it waits to be coded again");
    let before = stored(&pool, 5);
    while let Some(from) = pool.recompress_late((1, 5), 0, 1000).unwrap() {
        assert!(from > 0);
    }
    assert_eq!(pool.late(), []);
    let coded = models_of(&pool, 5, first.len());
    assert!(coded.iter().all(|model| *model == Some(1)), "{coded:?}");
    assert!(stored(&pool, 5) * 10 < before * 8, "{} of {before}", stored(&pool, 5));

    // The next file: written without the model, coded again by the one that there is.
    write_sized(&pool, 6, 0, second);
    assert!(models_of(&pool, 6, second.len()).iter().all(Option::is_none));
    let report = recompress(&pool, &[whole(6)]);
    assert_eq!(report.recompressed, 80);
    assert!(models_of(&pool, 6, second.len()).iter().all(|model| *model == Some(1)));
    // Pages coded by the model stay as they are, and pages that are written again are coded without it.
    assert_eq!(recompress(&pool, &[whole(5), whole(6)]).recompressed, 0);
    write_sized(&pool, 6, 10, &[second[11].clone()]);
    assert_eq!(models_of(&pool, 6, 11)[10], None);
    write_sized(&pool, 6, 10, &[second[10].clone()]);
    assert_sound(&pool);
    drop(pool);
    let pool = open(&device, 1);
    assert_holds(&pool, 5, first);
    assert_holds(&pool, 6, second);
    assert_sound(&pool);
}

#[test]
fn a_log_of_innodb_is_known_by_its_checkpoints() {
    let (_, pool) = new_pool("page-1");
    let mut blocks = redo_blocks(&mut Random::new(5), 4096, 300);
    let mut checkpoint = vec![0; 4096];
    checkpoint[6..8].copy_from_slice(&[9, 9]);
    let crc = crc32c::crc32c(&checkpoint[..60]).to_be_bytes();
    checkpoint[60..64].copy_from_slice(&crc);
    blocks[1] = checkpoint;
    write_sized(&pool, 5, 0, &blocks);
    assert_eq!(pool.late().len(), 1);
    let before = stored(&pool, 5);
    assert_eq!(pool.recompress_late((1, 5), 0, 1000).unwrap(), None);
    let coded = models_of(&pool, 5, blocks.len()).iter().filter(|model| **model == Some(1)).count();
    assert!(coded > 290, "{coded}");
    assert!(stored(&pool, 5) * 10 < before * 9, "{} of {before}", stored(&pool, 5));
    for (at, block) in blocks.iter().enumerate() {
        let mut found = vec![0; 4096];
        pool.dataset().read(5, 4096, at as u64 * 4096, &mut found).unwrap();
        assert!(found == *block, "block {at}");
    }
    assert_sound(&pool);
}

/// Pages by the codecs that store them.
fn by_codec(pool: &Pool, path: &str, object: u64) -> Vec<(u8, u64)> {
    let id = pool.version(path).unwrap().id;
    let mut found = std::collections::BTreeMap::new();
    let mut at = Some((0, 0));
    while let Some(from) = at {
        let report = pool.codecs(id, &[whole(object)], from, 300).unwrap();
        report.codecs.iter().for_each(|(codec, of)| *found.entry(*codec).or_default() += of.pages);
        at = report.next;
    }
    found.into_iter().collect()
}

#[test]
fn objects_and_datasets_have_codecs_of_their_own() {
    const LZ4: u8 = 2;
    const ZSTD: u8 = 3;
    let (device, pool) = new_pool("zstd");
    let set = |pool: &Pool, path: &str, value| pool.set_property_of(path, "compression", value).unwrap();
    let own = |codec: &str| {
        let codec: Compression = codec.parse().unwrap();
        Change::Put(Key::new(5, Key::COMPRESSION, 0), vec![codec.to_stored()])
    };
    pool.create_dataset("a", 0).unwrap();
    pool.create_dataset("a/b", 0).unwrap();
    set(&pool, "a", Some("lz4"));
    let pages = heap(7);
    let write_to = |pool: &Pool, path: &str, object: u64| {
        let data: Vec<u8> = pages[..100].concat();
        let change = Change::Write { object, record_size: PAGE as u32, offset: 0, data: &data };
        pool.version(path).unwrap().apply(&[change]).unwrap();
        pool.sync().unwrap();
    };
    pool.dataset().apply(&[own("lz4")]).unwrap();
    for (path, object, codec) in [("", 5, LZ4), ("", 6, ZSTD), ("a", 5, LZ4), ("a/b", 5, LZ4)] {
        write_to(&pool, path, object);
        assert_eq!(by_codec(&pool, path, object), [(codec, 100)], "{path} {object}");
    }
    pool.snapshot(&["a"], "s", 0).unwrap();
    pool.clone_snapshot("a@s", "c", 0).unwrap();
    set(&pool, "a/b", Some("zstd-1"));
    pool.version("a").unwrap().apply(&[own("zstd-9")]).unwrap();
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device, 1);
    for (path, object, codec) in
        [("", 5, LZ4), ("", 6, ZSTD), ("a", 6, LZ4), ("a/b", 5, ZSTD), ("c", 6, ZSTD)]
    {
        write_to(&pool, path, object);
        assert_eq!(by_codec(&pool, path, object), [(codec, 100)], "{path} {object}");
    }
    // Each is brought over as its setting says now, and what a snapshot shares with it.
    let id = pool.version("a").unwrap().id;
    assert_eq!(pool.recompress_in(id, &[whole(5), whole(6)], (0, 0), 1000).unwrap().recompressed, 100);
    assert_eq!(by_codec(&pool, "a", 5), [(ZSTD, 100)]);
    assert_eq!(by_codec(&pool, "a", 6), [(LZ4, 100)]);
    assert_eq!(by_codec(&pool, "a@s", 5), [(ZSTD, 100)]);
    // A mount's option goes before the property, and the object's own before both.
    pool.version("a").unwrap().set_mount_compression(Some(Compression::Off));
    let own = Change::Put(Key::new(8, Key::COMPRESSION, 0), vec![Compression::Lz4.to_stored()]);
    pool.version("a").unwrap().apply(&[own]).unwrap();
    for (object, codec) in [(7, 1), (8, LZ4)] {
        write_to(&pool, "a", object);
        assert_eq!(by_codec(&pool, "a", object), [(codec, 100)]);
    }
    assert_sound(&pool);
}
