//! Pages stored by models: learned, adopted, kept over crashes, dropped.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_codec::testing::innodb::{InnodbTable, index_page};
use pagefold_codec::testing::sqlite::{Tree, overflow_page, tree_page};
use pagefold_codec::testing::{Keys, Random, Schema, btree_page, heap_page};
use pagefold_engine::dataset::{Attempt, Change};
use pagefold_engine::device::{Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{CreateOptions, Guid, LearnOptions, Learned, OpenOptions, Pool, create_on};
use pagefold_engine::record::model_of;

const PAGE: usize = 8192;
const OPTIONS: LearnOptions = LearnOptions { pages_min: 60, sample_pages: 60 };
/// Pages of the object that most tests write.
const PAGES: usize = 120;

struct ModelBench {
    device: Arc<SimDevice>,
    pool: Arc<Pool>,
    salt: u64,
}

fn open(device: &Arc<SimDevice>, salt: u64) -> Arc<Pool> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Pool::open_on(devices, &OpenOptions { salt, cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap()
}

impl ModelBench {
    fn new() -> Self {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"pool with models") };
        create_on("tank", &devices, &options).unwrap();
        let pool = open(&device, 0);
        pool.set_property("compression", Some("page-1")).unwrap();
        pool.set_compression("page-1".parse().unwrap());
        Self { device, pool, salt: 0 }
    }

    /// The power goes; what was not flushed is lost.
    fn crash(self) -> Self {
        let Self { device, pool, salt } = self;
        drop(pool);
        let device = Arc::new(device.crash(&mut |_| 0));
        let pool = open(&device, salt + 1);
        Self { device, pool, salt: salt + 1 }
    }

    fn write(&self, object: u64, pages: &[Vec<u8>]) {
        for (at, page) in (0_u64..).zip(pages) {
            let (record_size, offset) = (page.len() as u32, at * page.len() as u64);
            let change = Change::Write { object, record_size, offset, data: page };
            self.pool.dataset().apply(&[change]).unwrap();
        }
        self.pool.sync().unwrap();
    }

    fn learn(&self) -> Option<Learned> {
        self.pool.learn(&OPTIONS).unwrap()
    }

    fn assert_holds(&self, object: u64, pages: &[Vec<u8>]) {
        for (at, page) in (0_u64..).zip(pages) {
            let mut found = vec![0; page.len()];
            let (record_size, offset) = (page.len() as u32, at * page.len() as u64);
            self.pool.dataset().read(object, record_size, offset, &mut found).unwrap();
            assert!(found == *page, "page {at} of object {object} differs");
        }
    }

    /// Returns the number of pages of `object` that each model codes; 0 stands for no model.
    fn models_of(&self, object: u64, pages: usize) -> std::collections::BTreeMap<u32, usize> {
        let mut ptrs = vec![None; pages];
        self.pool.live().tree.pages(object, 0, &mut ptrs).unwrap();
        let mut found = std::collections::BTreeMap::new();
        for ptr in ptrs.into_iter().flatten() {
            let record = self.pool.read_record(ptr.addr).unwrap();
            *found.entry(model_of(&record).unwrap_or(0)).or_default() += 1;
        }
        found
    }

    fn assert_sound(&self) -> u64 {
        self.pool.sync().unwrap();
        let report = self.pool.check_open(&mut |_| {});
        assert_eq!(report.messages, Vec::<String>::new());
        report.models
    }
}

fn heap(seed: u64, pages: usize) -> Vec<Vec<u8>> {
    let (mut random, schema) = (Random::new(seed), Schema::simple(seed % 2 == 1));
    (0..pages).map(|block| heap_page(&mut random, &schema, block)).collect()
}

fn btree(seed: u64, pages: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    (0..pages).map(|block| btree_page(&mut random, Keys::Ints, false, block)).collect()
}

#[test]
fn pages_are_coded_by_the_model_learned_from_their_object() {
    let bench = ModelBench::new();
    let (first, second) = (heap(2, PAGES), heap(4, PAGES));
    let index = btree(3, PAGES);
    bench.write(5, &first);
    bench.write(6, &index);
    assert_eq!(bench.models_of(5, PAGES), [(0, PAGES)].into());
    let before = bench.pool.dataset().usage(5).unwrap().stored_bytes;

    let learned = [bench.learn().unwrap(), bench.learn().unwrap()];
    assert_eq!(
        learned,
        [
            Learned { dataset: 1, object: 5, adopted: Some(1), first: true },
            Learned { dataset: 1, object: 6, adopted: Some(2), first: true },
        ]
    );
    assert_eq!(bench.learn(), None, "both have what they want");
    bench.write(5, &second);
    bench.write(6, &index);
    assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
    assert_eq!(bench.models_of(6, PAGES), [(2, PAGES)].into());
    let after = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert!(after * 100 < before * 80, "{after} of {before} bytes");
    bench.assert_holds(5, &second);
    bench.assert_holds(6, &index);
    assert_eq!(bench.assert_sound(), 2);
}

#[test]
fn pages_of_innodb_are_coded_by_models() {
    let mut bench = ModelBench::new();
    let mut random = Random::new(8);
    let mut pages: Vec<Vec<u8>> = vec![];
    for aged in [false, true] {
        let table = InnodbTable::simple(aged);
        pages.extend((0..PAGES / 2).map(|number| index_page(&mut random, &table, number)));
    }
    bench.write(5, &pages);
    let before = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 5, adopted: Some(1), first: true }));
    bench.write(5, &pages);
    // Some of the aged ones are noise where nothing is in use.
    assert!(bench.models_of(5, PAGES)[&1] > PAGES * 3 / 4);
    let after = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert!(after < before, "{after} of {before} bytes");
    bench = bench.crash();
    bench.assert_holds(5, &pages);
    assert_eq!(bench.assert_sound(), 1);
}

/// A file holds tables, indexes and overflow pages, one beside the other: one model has them all.
#[test]
fn databases_of_sqlite_are_coded_by_one_model() {
    let mut bench = ModelBench::new();
    let mut random = Random::new(8);
    let mut trees = [Tree::simple(false), Tree::index(true)];
    trees.iter_mut().for_each(|tree| tree.page_bytes = PAGE);
    let mut page = |number: usize| match number % 5 {
        0 => overflow_page(&mut random, PAGE, number),
        n => tree_page(&mut random, &trees[n % 2], number),
    };
    let first: Vec<Vec<u8>> = (0..PAGES).map(&mut page).collect();
    let second: Vec<Vec<u8>> = (PAGES..2 * PAGES).map(&mut page).collect();
    bench.write(5, &first);
    let before = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 5, adopted: Some(1), first: true }));
    // Other pages, so that none is stored as what has changed of the one before.
    bench.write(5, &second);
    let by_it = bench.models_of(5, PAGES)[&1];
    assert!(by_it > PAGES * 9 / 10, "{by_it} of {PAGES} pages");
    let after = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert!(after * 100 < before * 80, "{after} of {before} bytes");
    bench = bench.crash();
    bench.assert_holds(5, &second);
    assert_eq!(bench.assert_sound(), 1);
}

#[test]
fn models_survive_crashes_and_are_loaded_when_they_are_needed() {
    let mut bench = ModelBench::new();
    let pages = heap(2, PAGES);
    bench.write(5, &pages);
    assert_eq!(bench.learn().unwrap().adopted, Some(1));
    bench.write(5, &pages);
    for checkpoint in [false, true] {
        if checkpoint {
            bench.pool.checkpoint(false).unwrap();
        }
        bench = bench.crash();
        // Nobody has read the model yet: who must not wait is told to.
        let mut buf = vec![0; PAGE];
        let dataset = bench.pool.dataset();
        match dataset.try_read(5, PAGE as u32, 0, &mut buf).unwrap() {
            Attempt::Fetch(page) => assert!(!page.read(&mut buf).unwrap()),
            Attempt::Wait => {}
            Attempt::Done => panic!("a page was read without its model"),
        }
        bench.assert_holds(5, &pages);
        buf.fill(0);
        assert!(matches!(dataset.try_read(5, PAGE as u32, 0, &mut buf).unwrap(), Attempt::Done));
        assert!(buf == pages[0]);
        assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
        assert_eq!(bench.assert_sound(), 1);
    }
    // It goes on coding what is new.
    let more = heap(6, PAGES);
    bench.write(5, &more);
    assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
    bench.assert_holds(5, &more);
}

#[test]
fn a_model_lives_as_long_as_a_record_needs_it() {
    let bench = ModelBench::new();
    let (pages, index) = (heap(2, PAGES), btree(3, PAGES));
    bench.write(5, &pages);
    bench.write(6, &index);
    while bench.learn().is_some() {}
    bench.write(5, &pages);
    bench.write(6, &index);
    // A clone of one page holds the model when the relation is gone.
    let share = Change::Share { from_object: 5, from_page: 7, to_object: 9, to_page: 0, count: 1 };
    bench.pool.dataset().apply(&[share]).unwrap();
    bench.pool.dataset().apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    for _ in 0..4 {
        bench.pool.clean().unwrap();
    }
    assert_eq!(bench.assert_sound(), 2);
    bench.assert_holds(9, &pages[7..8]);
    bench.pool.dataset().apply(&[Change::Punch { object: 9, from: 0, to: u64::MAX }]).unwrap();
    let (mut rounds, mut random) = (0, Random::new(7));
    while bench.assert_sound() == 2 {
        rounds += 1;
        assert!(rounds < 20, "the model is kept for nothing");
        // Until the log goes on in another segment: what is part of it is not cleaned.
        bench.write(12, &(0..64).map(|_| random.bytes(PAGE)).collect::<Vec<_>>());
        bench.pool.clean().unwrap();
        bench.pool.checkpoint(false).unwrap();
    }
    bench.assert_holds(6, &index);
    let bench = bench.crash();
    assert_eq!(bench.assert_sound(), 1);
    bench.assert_holds(6, &index);
}

/// A relation is removed, cleaned away and its model dropped, and the power goes after `calls` writes and flushes:
/// whether its pages are there afterwards, and how many models.
fn dropped_until(calls: u64) -> (bool, u64) {
    let bench = ModelBench::new();
    let (pages, index, mut random) = (heap(2, PAGES), btree(3, PAGES), Random::new(7));
    bench.write(5, &pages);
    bench.write(6, &index);
    while bench.learn().is_some() {}
    bench.write(5, &pages);
    // The log goes on in other segments, so that those of the pages can be cleaned.
    for _ in 0..12 {
        bench.write(12, &(0..64).map(|_| random.bytes(PAGE)).collect::<Vec<_>>());
    }
    bench.pool.checkpoint(false).unwrap();
    bench.pool.dataset().apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    bench.device.cut_after(calls);
    let _ = bench.pool.clean();
    let bench = bench.crash();
    let found = bench.pool.dataset().usage(5).unwrap().pages > 0;
    if found {
        bench.assert_holds(5, &pages);
    }
    bench.assert_holds(6, &index);
    (found, bench.assert_sound())
}

#[test]
fn a_drop_that_no_checkpoint_kept_is_undone() {
    let outcomes: Vec<(bool, u64)> = (0..40).map(dropped_until).collect();
    let first = outcomes.iter().position(|(found, _)| !found).unwrap();
    assert!(first > 4, "the cleaning pass was never interrupted");
    assert!(outcomes[..first].iter().all(|outcome| *outcome == (true, 2)), "{outcomes:?}");
    assert_eq!(outcomes.last(), Some(&(false, 1)), "the model is kept for nothing");
}

/// It is not known whether such an object still has pages: its model stays, and the pool goes on.
#[test]
fn entries_that_cannot_be_read_do_not_end_checkpoints() {
    let bench = ModelBench::new();
    bench.write(5, &heap(2, PAGES));
    bench.write(6, &btree(3, PAGES));
    assert!([bench.learn(), bench.learn()].iter().all(Option::is_some));
    bench.pool.export().unwrap();
    let bench = bench.crash();
    // Both copies of the first node that it needs: that of an object's usage.
    bench.device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times: 2 });
    let made = bench.pool.checkpoint(false);
    bench.device.clear_faults();
    made.unwrap();
    assert_eq!(bench.pool.faults().devices[0].reads, 2);
    assert_eq!(bench.assert_sound(), 2);
    bench.write(5, &heap(4, PAGES));
    assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
}

#[test]
fn what_does_not_look_like_a_database_or_does_not_gain_gets_no_model() {
    let bench = ModelBench::new();
    let mut random = Random::new(1);
    bench.write(5, &(0..PAGES).map(|_| random.bytes(PAGE)).collect::<Vec<_>>());
    assert_eq!(bench.learn(), None);
    // Headers of pages, and nothing else that anybody knows.
    let mut alien = || {
        let mut pages = heap(2, PAGES);
        for page in &mut pages {
            page[24..].copy_from_slice(&random.bytes(PAGE - 24));
        }
        pages
    };
    bench.write(6, &alien());
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 6, adopted: None, first: true }));
    assert_eq!(bench.learn(), None, "not again before there are twice as many");
    let alien = alien();
    bench.write(6, &alien);
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 6, adopted: None, first: true }));
    // Other settings use no models.
    bench.write(7, &heap(2, PAGES));
    bench.pool.set_compression("zstd-1".parse().unwrap());
    assert_eq!(bench.learn(), None);
    bench.assert_holds(6, &alien);
    assert_eq!(bench.assert_sound(), 0);
}

#[test]
fn a_relation_that_became_another_gets_another_model() {
    let bench = ModelBench::new();
    bench.write(5, &heap(2, PAGES));
    assert_eq!(bench.learn().unwrap().adopted, Some(1));
    let index = btree(3, PAGES);
    bench.write(5, &index);
    assert_eq!(bench.models_of(5, PAGES), [(0, PAGES)].into(), "no page is what the model describes");
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 5, adopted: Some(2), first: false }));
    bench.write(5, &index);
    assert_eq!(bench.models_of(5, PAGES), [(2, PAGES)].into());
    bench.pool.checkpoint(false).unwrap();
    assert_eq!(bench.assert_sound(), 1, "nothing needs the first one");
    bench.assert_holds(5, &index);
}

/// Pages with headers of PostgreSQL's, and behind them the same phrases with random numbers between them, as no format has
/// them.
fn phrases(seed: u64, pages: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let known: Vec<String> = (0..100).map(|_| format!("{:016x} ", random.next())).collect();
    let (mut random, mut pages) = (Random::new(seed), heap(2, pages));
    for page in &mut pages {
        let mut text = String::new();
        while text.len() < PAGE {
            text += &known[random.below(known.len())];
            text += &random.below(1_000_000).to_string();
        }
        page[24..].copy_from_slice(&text.as_bytes()[..PAGE - 24]);
    }
    pages
}

#[test]
fn pages_of_no_known_format_are_coded_by_a_dictionary_until_another_model_gains() {
    let bench = ModelBench::new();
    let (first, second) = (phrases(1, PAGES), phrases(2, PAGES));
    bench.write(5, &first);
    let before = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 5, adopted: Some(1), first: true }));
    bench.write(5, &second);
    assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
    let after = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert!(after * 100 < before * 95, "{after} of {before} bytes");
    let bench = bench.crash();
    bench.assert_holds(5, &second);
    // The dictionary codes pages of a table, too, but a model that takes them apart makes less of them.
    let table = heap(2, PAGES);
    bench.write(5, &table);
    assert_eq!(bench.models_of(5, PAGES), [(1, PAGES)].into());
    let before = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert_eq!(bench.learn(), Some(Learned { dataset: 1, object: 5, adopted: Some(2), first: false }));
    bench.write(5, &table);
    assert_eq!(bench.models_of(5, PAGES), [(2, PAGES)].into());
    let after = bench.pool.dataset().usage(5).unwrap().stored_bytes;
    assert!(after * 100 < before * 90, "{after} of {before} bytes");
    bench.assert_holds(5, &table);
    bench.assert_sound();
}

#[test]
fn a_clone_is_coded_by_the_models_of_what_it_was_made_of() {
    let bench = ModelBench::new();
    let pages = heap(2, PAGES);
    bench.write(5, &pages);
    assert_eq!(bench.learn().unwrap().adopted, Some(1));
    bench.pool.snapshot(&[""], "s", 1).unwrap();
    bench.pool.clone_snapshot("@s", "clone", 2).unwrap();
    let modelled = |pool: &Pool| {
        let before = pool.totals().pages_modelled;
        let clone = pool.open_dataset("clone").unwrap();
        let data = &heap(4, 1)[0];
        clone.apply(&[Change::Write { object: 5, record_size: data.len() as u32, offset: 0, data }]).unwrap();
        clone.sync().unwrap();
        pool.totals().pages_modelled - before
    };
    assert_eq!(modelled(&bench.pool), 1);
    let bench = bench.crash();
    assert_eq!(modelled(&bench.pool), 1, "after a restart, too");
    bench.assert_sound();
}
