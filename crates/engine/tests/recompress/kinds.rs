//! Kinds of objects that are coded apart: sweeps, logs, and objects with a codec of their own.

use pagefold_codec::testing::Random;
use pagefold_codec::testing::logs::{redo_blocks, wal_pages};
use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, IoClass, IoKind};
use pagefold_engine::pool::Pool;
use pagefold_engine::record::{Compression, model_of};

use super::late::recompress_late;
use super::{
    LEARN, PAGE, assert_holds, assert_sound, before_the_model, heap, new_pool, open, recompress, stored,
    whole, write,
};

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
    recompress_late(&pool);
    assert_eq!(pool.late(), []);
    let coded = models_of(&pool, 5, first.len());
    assert!(coded.iter().all(|model| *model == Some(1)), "{coded:?}");
    assert!(stored(&pool, 5) * 10 < before * 8, "{} of {before}", stored(&pool, 5));

    // The next file: written without the model, coded again by the one that there is.
    write_sized(&pool, 6, 0, second);
    assert!(models_of(&pool, 6, second.len()).iter().all(Option::is_none));
    let asked = |kind| {
        let all = device.stats().requests();
        let of = all.iter().find(|of| (of.class, of.kind) == (IoClass::Recompression, kind));
        of.map_or(0, |of| of.bytes)
    };
    let before = [IoKind::Read, IoKind::Write].map(asked);
    let report = recompress(&pool, &[whole(6)]);
    assert_eq!(report.recompressed, 80);
    let after = [IoKind::Read, IoKind::Write].map(asked);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
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
    recompress_late(&pool);
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

#[test]
fn logs_of_all_datasets_wait_to_be_coded_again() {
    const WAL: u8 = 20;
    let (_, pool) = new_pool("page-1");
    pool.create_dataset("a", 0).unwrap();
    let dataset = pool.version("a").unwrap();
    let pages = wal_pages(&mut Random::new(4), PAGE, 280);
    for (at, page) in pages.iter().enumerate() {
        let (record_size, offset) = (PAGE as u32, (at * PAGE) as u64);
        dataset.apply(&[Change::Write { object: 5, record_size, offset, data: page }]).unwrap();
    }
    pool.sync().unwrap();
    assert_eq!(pool.late(), [((dataset.id, 5), 25)]);
    recompress_late(&pool);
    assert_eq!(pool.late(), []);
    assert_eq!(by_codec(&pool, "a", 5), [(WAL, 280)]);
    assert_sound(&pool);
}
