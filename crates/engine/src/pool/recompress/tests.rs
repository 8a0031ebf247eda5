use std::sync::Arc;

use pagefold_codec::Kinds;
use pagefold_codec::testing::{Random, Schema, heap_page};

use super::*;
use crate::Key;
use crate::dataset::{Attempt, Change, ModelEntry};
use crate::device::{AlignedBuf, Device, SimDevice};
use crate::pool::LearnOptions;
use crate::pool::models::{ModelCandidate, learn_better};
use crate::pool::testing::{PAGE, damage, fresh, leaves, open};
use crate::record::{ModelId, Models};

const PAGES: u64 = 300;

/// While pages are coded again by a model, another one takes its place before any segment lists the first: a checkpoint
/// between two passes must not drop that one.
#[test]
fn a_model_that_is_coded_by_stays() {
    let (_device, pool) = fresh();
    pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> =
        (0..PAGES).map(|block| heap_page(&mut random, &schema, block as usize)).collect();
    for (at, data) in (0..).zip(&pages) {
        let offset = at * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object: 5, record_size: PAGE, offset, data }]).unwrap();
    }
    pool.sync().unwrap();
    let options = LearnOptions { pages_min: 60, sample_pages: 100 };
    let adopted = pool.learn(&options).unwrap().unwrap().adopted.unwrap();

    let (range, mut report) = (PageRange { object: 5, from: 0, to: u64::MAX }, RecompressReport::default());
    let dataset = pool.version_by_id(pool.dataset.id).unwrap();
    let targets = targets(&dataset, &[range], (0, 0), 1000, &mut report).unwrap();
    let mut plan = pool.plan(&dataset, &[range], &targets).unwrap();
    assert!(plan.models.contains_key(&5) && !plan.targets.is_empty());

    let model = pool.shared.model(adopted).unwrap();
    let entry = pool.shared.models.get(adopted).unwrap();
    let (again, bytes) = (pagefold_codec::Model::from_bytes(&model.to_bytes()).unwrap(), model.to_bytes());
    let newer = pool.adopt(again, bytes, |ptr, codec| ModelEntry { ptr, codec, ..entry }).unwrap();
    assert!(newer.is_some_and(|newer| newer.id() > adopted));

    let mut state = pool.maintenance.lock();
    while !plan.targets.is_empty() {
        pool.recompress_pass(&dataset, &mut state, &mut plan, (1000, &mut report)).unwrap();
        pool.checkpoint_locked(&mut state, false).unwrap();
    }
    drop(state);
    assert_eq!(report.recompressed, PAGES);
    drop(plan);
    pool.checkpoint(false).unwrap();
    for (at, page) in (0..).zip(&pages) {
        let mut found = vec![0; PAGE as usize];
        let read = pool.dataset().read(5, PAGE, at * u64::from(PAGE), &mut found);
        read.unwrap_or_else(|error| panic!("page {at}: {error}"));
        assert!(found == *page, "page {at}");
    }
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// A pool with an object that is coded by a model of three of its pages, its pages, and that model. Its generation is
/// the last that there can be, as a stream may say.
fn coded_badly() -> (Arc<SimDevice>, Arc<Pool>, Vec<Vec<u8>>, ModelId) {
    let (device, pool) = fresh();
    pool.set_property("compression", Some("page-1")).unwrap();
    pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> =
        (0..PAGES).map(|block| heap_page(&mut random, &schema, block as usize)).collect();
    let learned = learn_better(&pages[..3], None, PAGES, (Kinds::Any, 1)).unwrap();
    let ModelCandidate { model, bytes, sampled_pages, record_bytes } = learned;
    let adopted = pool.adopt(model, bytes, |ptr, codec| ModelEntry {
        ptr,
        codec,
        dataset: pool.dataset.id,
        object: 5,
        generation: u32::MAX,
        sampled_pages,
        object_pages: 3,
        record_bytes,
        late: false,
    });
    let bad = adopted.unwrap().unwrap().id();
    for (at, data) in (0..).zip(&pages) {
        let offset = at * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object: 5, record_size: PAGE, offset, data }]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    assert!(pool.shared.segments.users_of_model(bad) > 0);
    (device, pool, pages, bad)
}

fn recompress_all(pool: &Pool) {
    let range = PageRange { object: 5, from: 0, to: u64::MAX };
    assert_eq!(pool.recompress(&[range], (0, 0), 1000).unwrap().recompressed, PAGES);
}

fn assert_holds(pool: &Pool, pages: &[Vec<u8>]) {
    let mut found = vec![0; PAGE as usize];
    for (at, page) in (0..).zip(pages) {
        pool.dataset().read(5, PAGE, at * u64::from(PAGE), &mut found).unwrap();
        assert!(found == *page, "page {at}");
    }
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// A server that ran long kept all models away from which pages were coded, and at 1,024 of them learned no more.
#[test]
fn a_model_that_was_coded_away_from_goes_when_its_readers_have_ended() {
    let (_device, pool, pages, bad) = coded_badly();
    let has_it = || pool.shared.models.get(bad).is_some();
    let (first, second) = (pool.shared.models.reading(), pool.shared.models.reading());
    recompress_all(&pool);
    let third = pool.shared.models.reading();
    assert_eq!(pool.shared.segments.users_of_model(bad), 0);
    drop(first);
    pool.checkpoint(false).unwrap();
    assert!(has_it(), "a reader may have found a record by it");
    drop(second);
    pool.checkpoint(false).unwrap();
    assert!(!has_it(), "nobody needs it any more");
    drop(third);
    assert_holds(&pool, &pages);
}

/// A record that was read before it was coded again must not come into the cache afterwards: its model goes.
#[test]
fn a_record_as_it_was_is_not_kept_in_memory() {
    let (device, pool, pages, bad) = coded_badly();
    drop(pool);
    let pool = open(&device);
    let (page, offset) = (200, 200 * u64::from(PAGE));
    let mut found = vec![0; PAGE as usize];
    // So that the model and the nodes of the tree are in memory.
    pool.dataset().read(5, PAGE, 0, &mut found).unwrap();
    let attempt = pool.dataset().try_read(5, PAGE, offset, &mut found).unwrap();
    let Attempt::Fetch(mut fetch) = attempt else { unreachable!("the record is in memory") };
    let (at, memory) = fetch.request();
    let mut read = AlignedBuf::zeroed(memory.len());
    device.read(at, &mut read).unwrap();
    memory.copy_from_slice(&read);
    recompress_all(&pool);
    assert!(fetch.finish(&mut found).unwrap());
    assert!(found == pages[page]);
    pool.checkpoint(false).unwrap();
    assert!(pool.shared.models.get(bad).is_none());
    assert_holds(&pool, &pages);
}

/// One leaf that could not be read hid the models of all objects.
#[test]
fn a_damaged_leaf_hides_no_model() {
    let (device, pool, _pages, _) = coded_badly();
    let usage = Key::new(5, Key::USAGE, 0);
    let all = leaves(&pool.version("").unwrap().tree);
    let (leaf, _) = all.iter().rev().find(|(_, first)| *first <= usage).copied().unwrap();
    damage(&device, &pool, leaf);
    drop(pool);
    let pool = open(&device);
    assert!(pool.version("").unwrap().usage(5).is_err());
    let found: Vec<(Option<u64>, u64)> =
        pool.modelled().unwrap().iter().map(|one| (one.object, one.pages)).collect();
    assert_eq!(found, [(Some(5), 3)]);
}

/// Records that leave a quarter of each chunk unused took a chunk more than there were to spare.
#[test]
fn the_chunks_for_a_segment_are_known_before_it_is_packed() {
    let (_device, pool) = fresh();
    for lens in
        [vec![1 << 20; 7], vec![1 << 20, 9, 900_000, 4000, 1 << 20, 1 << 20, 1 << 20, 1], vec![100; 5000]]
    {
        let mut packer = Packer::new(&pool, None);
        for id in 1..4 {
            let records: Vec<Survivor> =
                (0..).zip(&lens).map(|(slot, len)| (slot, 0, vec![7; *len])).collect();
            let expected = packer.begun_now() as u64 + packer.chunks_for(&records);
            packer.pack(id, 0, &records).unwrap();
            assert_eq!(packer.begun_now() as u64, expected, "segment {id} of {} records", lens.len());
        }
        packer.give_up(None);
    }
}
