//! Datasets that are not complete: the same as a restored one, whatever is read, changed, lost and brought.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;
mod readers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Bench, PAGE, noise, open, pool, read, write};
use pagefold_engine::dataset::{Attempt, Change, Dataset};
use pagefold_engine::pool::Pool;
use pagefold_engine::{Error, Key};
use pagefold_fs::testing::MemDataset;
use pagefold_lazy::{BackupDataset, Hydrating, KIND, Lower, Overlay, origin_of, without_marks};

const OBJECTS: [u64; 6] = [3, 4, 5, 6, 7, 8];
const BYTES: usize = 12 << 20;

fn overlay(pool: &Pool, lower: &Arc<BackupDataset>) -> Arc<Overlay> {
    let upper = pool.open_dataset("part").unwrap();
    Arc::new(Overlay::open(upper, Arc::clone(lower) as Arc<dyn Lower>, true).unwrap())
}

fn assert_same(found: &dyn Dataset, expected: &dyn Dataset) {
    let all = |dataset: &dyn Dataset| dataset.range(&Key::FIRST, &Key::LAST, usize::MAX).unwrap();
    assert!(all(found) == all(expected));
    for object in OBJECTS {
        assert!(read(found, object, 0, BYTES) == read(expected, object, 0, BYTES), "object {object}");
    }
}

fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// The same change of both.
fn change(both: [&dyn Dataset; 2], state: &mut u64) {
    let object = OBJECTS[below(state, 6) as usize];
    let page = u64::from(PAGE);
    let data = noise(*state, below(state, 40_000) as usize + 1);
    let (offset, at, count) = (below(state, 10 << 20), below(state, 1300), below(state, 20) + 1);
    let other = OBJECTS[below(state, 6) as usize];
    let value = Key::new(100 + below(state, 600), 2, 7);
    let kind = below(state, 6);
    for dataset in both {
        let changes: Vec<Change<'_>> = match kind {
            0 => vec![
                Change::Write { object, record_size: PAGE, offset, data: &data },
                Change::Put(value, data[..data.len().min(50)].to_vec()),
            ],
            1 => vec![Change::Punch { object, from: at, to: at + count }],
            2 if other != object => {
                vec![Change::Share {
                    from_object: object,
                    from_page: at,
                    to_object: other,
                    to_page: at + 3,
                    count,
                }]
            }
            3 => vec![
                Change::Punch { object, from: at, to: at + 2 },
                Change::Write { object, record_size: PAGE, offset: at * page + 77, data: &data },
            ],
            4 => vec![Change::Delete(value)],
            _ => vec![Change::Punch { object: 7, from: 0, to: u64::MAX }],
        };
        dataset.apply(&changes).unwrap();
    }
}

#[test]
fn it_is_as_a_restored_one_whatever_is_done_to_both() {
    let bench = Bench::new(Some("horse"));
    let (_, target) = pool(2);
    bench.build(&target, "part");
    bench.restore(&target, "whole");
    let lower = bench.lazy();
    let part = overlay(&target, &lower);
    let whole = target.open_dataset("whole").unwrap();
    let mut state = 3;
    for step in 0..300 {
        change([&*part, &*whole], &mut state);
        let object = OBJECTS[below(&mut state, 6) as usize];
        let (offset, len) = (below(&mut state, 11 << 20), below(&mut state, 100_000) as usize);
        assert!(read(&*part, object, offset, len) == read(&*whole, object, offset, len), "step {step}");
        let page = offset / u64::from(PAGE);
        assert_eq!(
            part.next_data(object, page).unwrap(),
            whole.next_data(object, page).unwrap(),
            "step {step}"
        );
        assert_eq!(
            part.next_hole(object, page).unwrap(),
            whole.next_hole(object, page).unwrap(),
            "step {step}"
        );
        if step % 100 == 50 {
            target.sync().unwrap();
        }
    }
    let (absent, bytes) = part.absent();
    assert!(absent > 100 && bytes > 0, "most was not read");
    target.sync().unwrap();
    assert_eq!(part.usage(3).unwrap().pages, whole.usage(3).unwrap().pages);
    // A new start finds the same, and reading all of it makes it complete.
    let part = overlay(&target, &lower);
    assert_eq!(part.absent().0, absent);
    assert_same(&*part, &*whole);
    assert!(part.is_complete() && part.absent() == (0, 0));
    target.sync().unwrap();
    let plain = target.open_dataset("part").unwrap();
    assert_eq!(origin_of(&*plain).unwrap(), None);
    assert!(plain.range(&Key::new(u64::MAX, KIND, 0), &Key::LAST, 10).unwrap().is_empty());
    assert_same(&*plain, &*whole);
    assert_eq!(target.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn a_power_cut_while_pages_are_brought_loses_nothing_that_was_durable() {
    let bench = Bench::new(None);
    let lower = bench.lazy();
    let (mut device, mut target) = pool(2);
    bench.build(&target, "part");
    bench.restore(&target, "whole");
    target.sync().unwrap();
    let mut absent = u64::MAX;
    for round in 0..12_u64 {
        let whole = target.open_dataset("whole").unwrap();
        let part = overlay(&target, &lower);
        assert!(part.absent().0 <= absent, "what is not absent never is again");
        absent = part.absent().0;
        // The same is written to both, and each round makes it durable at another place.
        let page = round * 50;
        let data = noise(round + 777, PAGE as usize);
        write(&*part, 3, page, &data);
        write(&*whole, 3, page, &data);
        target.sync().unwrap();
        device.cut_after(3 + round * 2);
        let _hydrating = Hydrating::start(Arc::clone(&part), None).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            let _failed_by_the_cut = read_some(&*part, round);
            if target.sync().is_err() {
                break;
            }
        }
        drop(_hydrating);
        drop((part, whole, target));
        device = Arc::new(device.crash_seeded(round));
        target = open(&device, round + 1);
        let (part, whole) = (overlay(&target, &lower), target.open_dataset("whole").unwrap());
        for page in (0..1300).step_by(91).chain([round * 50]) {
            let offset = page * u64::from(PAGE);
            assert!(
                read(&*part, 3, offset, PAGE as usize) == read(&*whole, 3, offset, PAGE as usize),
                "round {round}"
            );
        }
        assert_same(
            &Overlay::open(target.open_dataset("part").unwrap(), Arc::clone(&lower) as Arc<dyn Lower>, false)
                .unwrap(),
            &*whole,
        );
    }
}

fn read_some(part: &dyn Dataset, round: u64) -> pagefold_engine::Result<()> {
    let mut bytes = vec![0; 100_000];
    part.read(3, PAGE, round * 700_000, &mut bytes)
}

#[test]
fn what_nobody_reads_is_brought_and_then_the_store_is_not_needed() {
    let bench = Bench::new(Some("horse"));
    let lower = bench.lazy();
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let origin = origin_of(&*target.open_dataset("part").unwrap()).unwrap().unwrap();
    assert_eq!((origin.backup, origin.place.as_str()), (1, "nowhere"));
    let part = overlay(&target, &lower);
    let total = part.absent().0;
    // Some of it fails at first.
    bench.odd.failing.store(2, Ordering::SeqCst);
    let hydrating = Hydrating::start(Arc::clone(&part), None).unwrap();
    let begun = Instant::now();
    while !part.is_complete() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} of {total}", hydrating.progress());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(hydrating);
    bench.odd.failing.store(u64::MAX, Ordering::SeqCst);
    drop((part, lower));
    target.sync().unwrap();
    let plain = target.open_dataset("part").unwrap();
    assert_eq!(origin_of(&*plain).unwrap(), None);
    assert_same(&*plain, &*bench.original());
    assert_eq!(target.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn the_rate_is_kept() {
    let bench = Bench::new(None);
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let part = overlay(&target, &bench.lazy());
    let before = part.absent().1;
    let begun = Instant::now();
    let hydrating = Hydrating::start(Arc::clone(&part), Some(2 << 20)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(hydrating);
    let brought = before - part.absent().1;
    let most = (begun.elapsed().as_secs_f64() + 1.0) * f64::from(2 << 20) + 4.0 * f64::from(1 << 20);
    assert!(brought > 0 && (brought as f64) < most, "{brought} bytes in {:?}", begun.elapsed());
}

#[test]
fn a_snapshot_of_it_reads_right_and_says_that_it_is_not_complete() {
    let bench = Bench::new(None);
    let lower = bench.lazy();
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let part = overlay(&target, &lower);
    read(&*part, 3, 0, 3 << 20);
    target.snapshot(&["part"], "half", 9).unwrap();
    write(&*part, 3, 1200, &noise(1, PAGE as usize));
    let hydrating = Hydrating::start(Arc::clone(&part), None).unwrap();
    while !part.is_complete() {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(hydrating);
    let half = target.open_dataset("part@half").unwrap();
    assert!(origin_of(&*half).unwrap().is_some());
    let absent = half.range(&Key::new(u64::MAX, KIND, 0), &Key::LAST, usize::MAX).unwrap();
    let over = Overlay::open(half, Arc::clone(&lower) as Arc<dyn Lower>, false).unwrap();
    assert_same(&over, &*bench.original());
    assert!(!over.is_complete() && !absent.is_empty());
    assert!(
        over.range(&Key::new(u64::MAX, 0, 0), &Key::LAST, 10).unwrap().is_empty(),
        "the marks are not shown"
    );
    let hidden = without_marks(target.open_dataset("part@half").unwrap());
    assert!(hidden.range(&Key::new(u64::MAX, 0, 0), &Key::LAST, 10).unwrap().is_empty());
}

#[test]
fn what_cannot_be_kept_is_still_read() {
    let bench = Bench::new(None);
    let (lower, original) = (bench.lazy(), bench.original());
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let source = target.open_dataset("part").unwrap();
    // As in the pool, where there is room for values alone.
    let full = Arc::new(MemDataset::new(4 << 20));
    for (key, value) in source.range(&Key::FIRST, &Key::LAST, usize::MAX).unwrap() {
        full.apply(&[Change::Put(key, value)]).unwrap();
    }
    let part = Overlay::open(Arc::clone(&full) as Arc<dyn Dataset>, lower as Arc<dyn Lower>, true).unwrap();
    assert_same(&part, &*original);
    assert!(!part.is_complete() && full.pages() > 0);
    let data = noise(1, 100);
    let into_page = Change::Write { object: 3, record_size: PAGE, offset: 9 << 20 | 5, data: &data };
    assert!(matches!(part.apply(&[into_page]), Err(Error::NoSpace(_))));
    part.apply(&[Change::Punch { object: 3, from: 0, to: u64::MAX }]).unwrap();
    assert!(read(&part, 3, 0, 1 << 20).iter().all(|byte| *byte == 0));
}

#[test]
fn a_store_that_is_away_fails_reads_of_what_is_absent_and_no_others() {
    let bench = Bench::new(None);
    let lower = bench.lazy();
    let (_, target) = pool(2);
    bench.build(&target, "part");
    let part = overlay(&target, &lower);
    let first = read(&*part, 3, 0, 1 << 20);
    bench.odd.failing.store(u64::MAX, Ordering::SeqCst);
    assert!(read(&*part, 3, 0, 1 << 20) == first);
    let mut page = [0; PAGE as usize];
    assert!(!matches!(part.try_read(3, PAGE, 0, &mut page), Ok(Attempt::Wait)));
    assert!(matches!(part.try_read(3, PAGE, 10 << 20, &mut page), Ok(Attempt::Wait)));
    assert!(matches!(part.read(3, PAGE, 10 << 20, &mut page), Err(Error::Io { .. })));
    // A whole page needs nothing of the store; a part of one does.
    write(&*part, 3, 1299, &noise(5, PAGE as usize));
    assert!(read(&*part, 3, 1299 * u64::from(PAGE), PAGE as usize) == noise(5, PAGE as usize));
    let some = Change::Write { object: 3, record_size: PAGE, offset: 10 << 20, data: &[1] };
    assert!(matches!(part.apply(&[some]), Err(Error::Io { .. })));
}
