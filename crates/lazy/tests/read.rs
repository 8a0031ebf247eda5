//! Backups that are read part by part: the same as what was backed up, and what becomes of it when the store is slow, fails or lies.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Bench, DATASET, MODELLED, PAGE, noise, read, write};
use pagefold_engine::dataset::{Attempt, Change, Dataset};
use pagefold_engine::{Error, Key};
use pagefold_lazy::ReadOptions;
use pagefold_lazy::limits::RETRY_MAX;

const OBJECTS: [u64; 5] = [3, 4, 5, 6, 99];

/// Numbers below `bound` from a seed.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

fn assert_same(found: &dyn Dataset, expected: &dyn Dataset) {
    let all = |dataset: &dyn Dataset| dataset.range(&Key::FIRST, &Key::LAST, usize::MAX).unwrap();
    let values = all(expected);
    assert!(values.len() >= 500 && all(found) == values);
    for (key, value) in values.iter().step_by(37) {
        assert_eq!(found.get(key).unwrap().as_ref(), Some(value));
        assert_eq!(found.get(&Key::new(key.object, key.kind, key.offset + 1)).unwrap(), None);
    }
    let (middle, _) = &values[values.len() / 2];
    let few = |dataset: &dyn Dataset| dataset.range(middle, &Key::LAST, 7).unwrap();
    assert_eq!(few(found), few(expected));
    for object in OBJECTS {
        assert!(read(found, object, 0, 12 << 20) == read(expected, object, 0, 12 << 20), "object {object}");
        for page in (0..1400).step_by(13) {
            assert_eq!(found.next_data(object, page).unwrap(), expected.next_data(object, page).unwrap());
            assert_eq!(found.next_hole(object, page).unwrap(), expected.next_hole(object, page).unwrap());
        }
    }
    let mut state = 7;
    for _ in 0..500 {
        let object = OBJECTS[below(&mut state, 5) as usize];
        let (offset, len) = (below(&mut state, 11 << 20), below(&mut state, 200_000) as usize);
        assert!(read(found, object, offset, len) == read(expected, object, offset, len));
    }
}

#[test]
fn a_backup_reads_as_what_was_backed_up() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(secret);
        let (lazy, original) = (bench.lazy(), bench.original());
        assert_same(&*lazy, &*original);
        let usage = lazy.usage(6).unwrap();
        assert_eq!(usage.pages, MODELLED);
        assert!(
            usage.stored_bytes > 0 && usage.stored_bytes < MODELLED * u64::from(PAGE) / 2,
            "by a model: {usage:?}"
        );
        let (found, expected) = (lazy.usage(3).unwrap(), original.usage(3).unwrap());
        assert_eq!(found.pages, expected.pages);
    }
}

#[test]
fn it_cannot_be_changed_and_does_not_answer_from_memory_alone() {
    let lazy = Bench::new(None).lazy();
    let put = Change::Put(Key::new(1, 2, 3), vec![1]);
    assert!(matches!(lazy.apply(&[put]), Err(Error::ReadOnly(_))));
    let mut page = [0; 100];
    assert!(matches!(lazy.try_read(3, PAGE, 0, &mut page), Ok(Attempt::Wait)));
    assert!(lazy.read(3, 0, 0, &mut page).is_err(), "no recordsize");
    assert!(matches!(lazy.read(3, 2 * PAGE, 0, &mut page), Err(Error::Corrupt { .. })), "another recordsize");
    lazy.sync().unwrap();
}

#[test]
fn little_is_read_for_little_and_memory_stays_bounded() {
    let bench = Bench::new(None);
    let options = ReadOptions { cache_bytes: 1 << 20, ..ReadOptions::default() };
    let lazy = bench.lazy_with(options);
    let before = lazy.figures().requests.get_bytes;
    assert_eq!(lazy.get(&Key::new(150, 2, 7)).unwrap().unwrap().len(), 40);
    read(&*lazy, 3, 777 * u64::from(PAGE), 100);
    let total = lazy.contents().backup().totals.record_bytes;
    let share = lazy.figures().requests.get_bytes - before;
    assert!(share < total / 20, "{share} of {total} bytes");
    for _ in 0..3 {
        read(&*lazy, 3, 0, 10 << 20);
        assert!(lazy.figures().kept_bytes <= 1 << 20, "{:?}", lazy.figures());
    }
}

#[test]
fn who_reads_on_waits_for_few_requests() {
    let bench = Bench::new(None);
    let lazy = bench.lazy();
    // The manifest is in memory then.
    lazy.next_hole(3, 0).unwrap();
    read(&*lazy, 3, 0, 1);
    bench.odd.delay_ms.store(20, Ordering::SeqCst);
    bench.odd.most_at_once.store(0, Ordering::SeqCst);
    let before = bench.odd.reads.load(Ordering::SeqCst);
    for at in (0..10 << 20).step_by(64 << 10) {
        read(&*lazy, 3, at, 64 << 10);
    }
    let requests = bench.odd.reads.load(Ordering::SeqCst) - before;
    let at_once = bench.odd.most_at_once.load(Ordering::SeqCst);
    assert!(requests < 40 && at_once >= 2, "{requests} requests for 160 reads, {at_once} at once");
}

/// The memory is smaller than what is read, and full of what nobody wants any more.
#[test]
fn who_reads_all_reads_hardly_a_block_twice() {
    let bench = Bench::new(None);
    let options = ReadOptions { cache_bytes: 8 << 20, ..ReadOptions::default() };
    let lazy = bench.lazy_with(options);
    for object in [4, 5, 6] {
        read(&*lazy, object, 0, 12 << 20);
    }
    bench.odd.delay_ms.store(5, Ordering::SeqCst);
    let before = lazy.figures().requests.get_bytes;
    let next = AtomicU64::new(0);
    // As hydration does it: each thread takes the next MiB.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1 << 20, Ordering::SeqCst);
                    if at >= 10 << 20 {
                        break;
                    }
                    read(&*lazy, 3, at, 1 << 20);
                }
            });
        }
    });
    let (read, stored) = (lazy.figures().requests.get_bytes - before, lazy.usage(3).unwrap().stored_bytes);
    assert!(stored > 8 << 20, "more than is kept: {stored}");
    assert!(read < stored + stored / 8, "{read} bytes were read of {stored}");
}

#[test]
fn readers_of_the_same_share_a_request() {
    let bench = Bench::new(None);
    let lazy = bench.lazy();
    lazy.next_hole(3, 0).unwrap();
    read(&*lazy, 3, 0, 1);
    bench.odd.delay_ms.store(50, Ordering::SeqCst);
    let before = lazy.figures().requests.gets;
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| read(&*lazy, 3, 900 * u64::from(PAGE), 100));
        }
    });
    assert_eq!(lazy.figures().requests.gets - before, 1);
}

#[test]
fn a_store_that_fails_for_a_while_is_waited_for() {
    let bench = Bench::new(None);
    let (lazy, original) = (bench.lazy(), bench.original());
    bench.odd.failing.store(3, Ordering::SeqCst);
    assert!(read(&*lazy, 3, 0, 1 << 20) == read(&*original, 3, 0, 1 << 20));
    assert_eq!(lazy.figures().outage, None);
}

#[test]
fn a_store_that_stays_away_is_an_error_after_a_bounded_time_and_no_lasting_one() {
    let bench = Bench::new(None);
    let (lazy, original) = (bench.lazy(), bench.original());
    read(&*lazy, 3, 0, 1);
    bench.odd.failing.store(u64::MAX, Ordering::SeqCst);
    let tried = || bench.odd.reads.load(Ordering::SeqCst);
    let before = tried();
    let mut bytes = [0; 10];
    let error = lazy.read(3, PAGE, 9 << 20, &mut bytes).unwrap_err();
    assert!(matches!(&error, Error::Io { op: "read", .. }) && error.is_damage(), "{error}");
    let first = tried() - before;
    // It has been away for so long: who comes now does not wait as long again.
    lazy.read(3, PAGE, 9 << 20, &mut bytes).unwrap_err();
    let second = tried() - before - first;
    assert!(second * 2 < first, "{first} requests, then {second}");
    assert!(lazy.figures().outage.unwrap().1.contains("no route"));
    // All that was read before is still there, and the rest is once the store is.
    read(&*lazy, 3, 0, 1);
    bench.odd.failing.store(0, Ordering::SeqCst);
    assert!(read(&*lazy, 3, 9 << 20, 1 << 20) == read(&*original, 3, 9 << 20, 1 << 20));
    assert_eq!(lazy.figures().outage, None);
}

#[test]
fn an_outage_long_ago_takes_no_patience_from_the_next() {
    let bench = Bench::new(None);
    let options = ReadOptions { patience: Duration::from_secs(1), ..ReadOptions::default() };
    let (lazy, original) = (bench.lazy_with(options), bench.original());
    read(&*lazy, 3, 0, 1);
    bench.odd.failing.store(u64::MAX, Ordering::SeqCst);
    lazy.read(3, PAGE, 9 << 20, &mut [0; 10]).unwrap_err();
    // Nobody reads while the store comes back, and is away again.
    std::thread::sleep(2 * RETRY_MAX + Duration::from_millis(200));
    bench.odd.failing.store(2, Ordering::SeqCst);
    assert!(read(&*lazy, 3, 9 << 20, 10) == read(&*original, 3, 9 << 20, 10));
    assert_eq!(lazy.figures().outage, None);
}

#[test]
fn nobody_waits_where_nobody_wants_it() {
    let bench = Bench::new(None);
    let options = ReadOptions {
        patience: Duration::from_secs(3600),
        wanted: Box::new(|| false),
        ..ReadOptions::default()
    };
    let lazy = bench.lazy_with(options);
    bench.odd.failing.store(u64::MAX, Ordering::SeqCst);
    assert!(matches!(lazy.read(3, PAGE, 0, &mut [0; 10]), Err(Error::Io { .. })));
}

#[test]
fn a_store_that_shows_nothing_is_away_and_one_that_lost_objects_is_damaged() {
    let bench = Bench::new(None);
    let lazy = bench.lazy();
    read(&*lazy, 3, 0, 1);
    bench.odd.empty.store(true, Ordering::SeqCst);
    assert!(matches!(lazy.read(3, PAGE, 9 << 20, &mut [0; 10]), Err(Error::Io { .. })));
    bench.odd.empty.store(false, Ordering::SeqCst);
    bench.damage(|bytes| bytes.truncate(100));
    let error = lazy.read(3, PAGE, 9 << 20, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("packs/"), "{error}");
}

#[test]
fn what_was_changed_is_an_error_and_never_wrong_data() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(secret);
        let (lazy, original) = (bench.lazy(), bench.original());
        // All manifests are in memory: it is the records that are struck.
        for object in OBJECTS {
            lazy.next_hole(object, 0).unwrap();
            lazy.usage(object).unwrap();
        }
        bench.damage(|bytes| (5000..bytes.len()).step_by(400_000).for_each(|at| bytes[at] ^= 4));
        let (mut failed, mut read) = (0, 0);
        for page in 0..1300 {
            let offset = page * u64::from(PAGE);
            let (mut found, mut expected) = (vec![0; PAGE as usize], vec![0; PAGE as usize]);
            original.read(3, PAGE, offset, &mut expected).unwrap();
            match lazy.read(3, PAGE, offset, &mut found) {
                Ok(()) => {
                    assert!(found == expected);
                    read += 1;
                }
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                    failed += 1;
                }
            }
        }
        assert!(failed > 100 && read > 100, "{failed} failed, {read} read");
    }
}

/// A bench of two backups; the second has one page of three from the first.
fn with_two_backups() -> Bench {
    let bench = Bench::with(None, |pool| {
        pool.create_dataset(DATASET, 1).unwrap();
        let dataset = pool.open_dataset(DATASET).unwrap();
        (0..2000).for_each(|page| write(&*dataset, 3, page, &noise(page + 1, PAGE as usize)));
        (0..500).for_each(|at| {
            dataset.apply(&[Change::Put(Key::new(100 + at, 2, 7), noise(at, 40))]).unwrap();
        });
    });
    let dataset = bench.pool.open_dataset(DATASET).unwrap();
    for page in (0..2000).filter(|page| page % 3 != 0) {
        write(&*dataset, 3, page, &noise(page + 7777, PAGE as usize));
    }
    bench.back_up("two", Some("db@one"));
    bench
}

#[test]
fn prunes_and_repacks_do_not_break_who_reads_a_backup_that_stays() {
    let bench = with_two_backups();
    let (lazy, original) = (bench.lazy(), bench.pool.version("db@two").unwrap());
    let repository = bench.repository();
    repository.forget(&[1]).unwrap();
    for round in 0..2_u64 {
        read(&*lazy, 3, round * u64::from(PAGE), 1);
        if round == 1 {
            // The second repacking strikes who has found the first one's manifest.
            let dataset = bench.pool.open_dataset(DATASET).unwrap();
            (0..700).for_each(|page| write(&*dataset, 3, page * 2, &noise(page, PAGE as usize)));
            bench.back_up("three", Some("db@two"));
            repository.forget(&[3]).unwrap();
        }
        let repacked = repository.repack(1 << 30, false).unwrap();
        assert!(round == 1 || repacked.packs > 0 && repacked.backups == 1, "{repacked:?}");
        (0..2).for_each(|_| drop(repository.prune(None, false, false).unwrap()));
        for page in (round..2000).step_by(17) {
            let offset = page * u64::from(PAGE);
            assert!(read(&*lazy, 3, offset, 100) == read(&*original, 3, offset, 100), "page {page}");
        }
    }
    assert!(read(&*lazy, 3, 0, 16 << 20) == read(&*original, 3, 0, 16 << 20));
    let all = |dataset: &dyn Dataset| dataset.range(&Key::FIRST, &Key::LAST, usize::MAX).unwrap();
    assert!(all(&*lazy) == all(&*original));
}

#[test]
fn a_backup_that_is_forgotten_is_an_error_and_not_another_backup() {
    let bench = with_two_backups();
    let lazy = bench.lazy();
    read(&*lazy, 3, 0, 1);
    let repository = bench.repository();
    repository.forget(&[2]).unwrap();
    (0..2).for_each(|_| drop(repository.prune(None, false, false).unwrap()));
    let error = lazy.read(3, PAGE, 9 << 20, &mut [0; 20_000]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
