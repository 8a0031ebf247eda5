//! Snapshots and clones while everything else goes on. What they hold after crashes, `crates/sim` tells.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagefold_engine::dataset::{Change, Commit, Dataset};
use pagefold_engine::device::{InjectedFault, SimOp};
use pagefold_engine::pool::{OpenOptions, Pool};
use pagefold_engine::segment::PageIds;
use pagefold_engine::{Error, Key};

use common::{MIB, PAGE, devices, fresh, open};

fn counter(dataset: &dyn Dataset, object: u64) -> u64 {
    let value = dataset.get(&Key::new(object, 1, 0)).unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Generation `n` of a dataset: the same number in values and pages of several objects, by one change.
fn write(dataset: &dyn Dataset, n: u64) -> pagefold_engine::Result<()> {
    let page: Vec<u8> = n.to_le_bytes().repeat(PAGE as usize / 8);
    let mut changes = Vec::new();
    for object in 1..4_u64 {
        changes.push(Change::Put(Key::new(object, 1, 0), n.to_le_bytes().to_vec()));
        let offset = n % 50 * u64::from(PAGE);
        changes.push(Change::Write { object, record_size: PAGE, offset, data: &page });
    }
    dataset.apply(&changes)
}

/// The generation that a dataset holds, all of it.
fn generation(dataset: &dyn Dataset) -> u64 {
    let n = counter(dataset, 1);
    for object in 1..4_u64 {
        assert_eq!(counter(dataset, object), n);
        for at in (n.saturating_sub(49).max(1))..=n {
            let mut page = vec![0; PAGE as usize];
            dataset.read(object, PAGE, at % 50 * u64::from(PAGE), &mut page).unwrap();
            assert!(page.chunks(8).all(|found| found == at.to_le_bytes()), "page of {at} in {n}");
        }
    }
    n
}

fn settle(pool: &Pool) {
    pool.sync().unwrap();
    while pool.is_reaping() {
        if !pool.reap().unwrap() {
            pool.checkpoint(false).unwrap();
        }
    }
    pool.checkpoint(false).unwrap();
    let report = pool.check_open(&mut |_| {});
    assert!(report.messages.is_empty(), "{:?}", report.messages);
}

/// Two datasets are written, committed, checkpointed and cleaned at once, while snapshots of both come, are cloned, and
/// go.
#[test]
fn snapshots_are_whole_under_load() {
    let (device, pool) = fresh(400);
    pool.create_dataset("db", 1).unwrap();
    let done = AtomicBool::new(false);
    let written = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for (path, written) in ["", "db"].into_iter().zip(&written) {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let dataset = pool.open_dataset(path).unwrap();
                for n in 1.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    write(&*dataset, n).unwrap();
                    written.store(n, Ordering::Relaxed);
                }
            });
        }
        let (pool, done) = (&pool, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                pool.checkpoint(false).unwrap();
                pool.commit(false).unwrap();
                pool.reap().unwrap();
                pool.clean().unwrap();
            }
        });
        let mut held: Vec<(String, [u64; 2])> = Vec::new();
        for round in 0..120_u64 {
            let name = format!("s{round}");
            let least = written.each_ref().map(|n| n.load(Ordering::Relaxed));
            pool.snapshot(&["", "db"], &name, 1).unwrap();
            let found =
                ["", "db"].map(|of| generation(&*pool.open_dataset(&format!("{of}@{name}")).unwrap()));
            assert!(found[0] >= least[0] && found[1] >= least[1], "{found:?} of {least:?}");
            held.push((name.clone(), found));
            if round % 4 == 0 {
                let clone = format!("clone{round}");
                pool.clone_snapshot(&format!("db@{name}"), &clone, 1).unwrap();
                let dataset = pool.open_dataset(&clone).unwrap();
                write(&*dataset, found[1] + 1).unwrap();
                assert_eq!(generation(&*dataset), found[1] + 1);
            }
            if round % 3 == 2 {
                let at = (round * 7919) as usize % held.len();
                let (name, found) = held[at].clone();
                for (of, n) in ["", "db"].into_iter().zip(found) {
                    let path = format!("{of}@{name}");
                    assert_eq!(generation(&*pool.open_dataset(&path).unwrap()), n);
                    match pool.destroy_snapshots(&[&path]) {
                        Ok(()) => {}
                        Err(Error::Busy(_)) => {
                            let clone = name.replace('s', "clone");
                            pool.destroy_dataset(&clone).unwrap();
                            pool.destroy_snapshots(&[&path]).unwrap();
                        }
                        Err(error) => unreachable!("{error}"),
                    }
                }
                held.remove(at);
            }
        }
        for (name, found) in &held {
            for (of, n) in ["", "db"].into_iter().zip(found) {
                assert_eq!(generation(&*pool.open_dataset(&format!("{of}@{name}")).unwrap()), *n);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    settle(&pool);
    let listed = pool.list().unwrap();
    drop(pool);
    let pool = open(&device);
    let again: Vec<String> = pool.list().unwrap().into_iter().map(|one| one.path).collect();
    assert_eq!(again, listed.iter().map(|one| one.path.clone()).collect::<Vec<_>>());
    settle(&pool);
}

/// A MiB that has nothing in common with that of another seed.
fn noise(seed: u64) -> Vec<u8> {
    let word = |at: u64| {
        let mixed = at.wrapping_add(seed.wrapping_mul(0xD134_2543_DE82_EF95));
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    (0..MIB / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// Destroying snapshots frees the bytes that were announced, and the space can be used again.
#[test]
fn destroying_frees_what_is_told() {
    let (_device, pool) = fresh(256);
    let dataset = pool.dataset();
    let write = |object, seed| {
        let data = noise(seed);
        let change = Change::Write { object, record_size: PAGE, offset: 0, data: &data };
        dataset.apply(&[change]).unwrap();
        pool.sync().unwrap();
    };
    (1..5).for_each(|object| write(object, object));
    settle(&pool);
    let before = pool.status().used_bytes;
    for (round, name) in (10..).zip(["a", "b", "c", "d"]) {
        pool.snapshot(&[""], name, 1).unwrap();
        write(1, round);
        write(round % 3 + 2, round);
    }
    settle(&pool);
    let used = pool.listed("").unwrap();
    assert!(
        used.snapshots_bytes > 6 * MIB
            && used.used_bytes > used.referenced_bytes + used.snapshots_bytes - MIB
    );
    let sets: [&[&str]; 5] = [&["@a"], &["@b", "@c"], &["@a", "@c"], &["@a", "@b", "@c"], &["@d"]];
    let told = sets.map(|set| pool.freed_by_destroying(set).unwrap());
    assert!(told[3] > told[1] && told[1] >= MIB && told[2] >= told[0]);
    for (set, told) in [(sets[3], told[3]), (sets[4], told[4])] {
        let told = told.max(pool.freed_by_destroying(set).unwrap());
        let unreferenced = pool.unreferenced_bytes();
        pool.destroy_snapshots(set).unwrap();
        assert_eq!(pool.unreferenced_bytes() - unreferenced, told);
    }
    settle(&pool);
    let after = pool.status().used_bytes;
    assert!(after.abs_diff(before) < 64 << 10, "{before} bytes before, {after} after");
    assert_eq!(pool.listed("").unwrap().snapshots_bytes, 0);
}

/// A pool that is full by what a snapshot holds takes the destruction, and then writes again.
#[test]
fn a_full_pool_is_emptied_by_destroying() {
    let (_device, pool) = fresh(136);
    let dataset = pool.dataset();
    let fill = |round: u64| -> pagefold_engine::Result<()> {
        for object in 1..200_u64 {
            let data = noise(object << 32 | round);
            let object = object % 12;
            dataset.apply(&[Change::Write {
                object: 1 + object,
                record_size: PAGE,
                offset: 0,
                data: &data,
            }])?;
            pool.snapshot(&[""], &format!("{round}-{object}-{}", data[0]), 1).or_else(
                |error| match error {
                    Error::Exists(_) => Ok(()),
                    other => Err(other),
                },
            )?;
        }
        Ok(())
    };
    for round in 0..3 {
        assert!(matches!(fill(round), Err(Error::NoSpace(_))));
        let names: Vec<String> =
            pool.list().unwrap().into_iter().filter(|one| one.is_snapshot).map(|one| one.path).collect();
        assert!(names.len() > 5);
        pool.destroy_snapshots(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        settle(&pool);
        assert!(pool.status().available_bytes > 35 * MIB);
    }
}

/// Nobody frees in the background what was destroyed: the writes do it that find no space.
#[test]
fn a_full_pool_takes_writes_right_after_destroying() {
    let (_device, pool) = fresh(136);
    pool.create_dataset("db", 1).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let fill = |object: u64, path: &dyn Dataset| {
        let write = |at: u64| {
            let data = noise(object << 32 | at);
            path.apply(&[Change::Write { object, record_size: PAGE, offset: at << 20, data: &data }])
        };
        (0..).find(|at| matches!(write(*at), Err(Error::NoSpace(_)))).unwrap()
    };
    let first = fill(1, &*db);
    assert!(first > 50, "{first}");
    // A snapshot holds what is deleted, a quarter at a time.
    for round in 0..3_u64 {
        pool.snapshot(&["db"], "one", round).unwrap();
        let gone = Change::Punch { object: 1 + round, from: 0, to: u64::MAX };
        db.apply(&[gone]).unwrap();
        let held = fill(2 + round, &*db);
        assert!(held <= 2, "{held} writes fit while a snapshot holds everything");
        pool.destroy_snapshots(&["db@one"]).unwrap();
        db.apply(&[Change::Punch { object: 2 + round, from: 0, to: u64::MAX }]).unwrap();
        let again = fill(2 + round, &*db);
        assert!(again + 2 >= first, "{again} of {first} writes fit after the snapshot was destroyed");
    }
    // So with a dataset, for another one.
    drop(db);
    pool.destroy_dataset("db").unwrap();
    let other = fill(9, &*pool.dataset());
    assert!(other + 3 >= first, "{other} of {first} writes fit after the dataset was destroyed");
}

#[test]
fn what_is_not_possible_changes_nothing() {
    let (_device, pool) = fresh(136);
    pool.create_dataset("db", 1).unwrap();
    pool.snapshot(&["db"], "one", 1).unwrap();
    pool.clone_snapshot("db@one", "db/clone", 2).unwrap();
    let busy = |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::Busy(_))), "{done:?}");
    let absent =
        |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::NotFound(_))), "{done:?}");
    let exists =
        |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::Exists(_))), "{done:?}");
    let invalid =
        |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
    exists(pool.create_dataset("db", 1));
    absent(pool.create_dataset("none/db", 1));
    for path in ["", "/db", "db/", "a b", "ä", ".", "-a", &"x".repeat(300)] {
        invalid(pool.create_dataset(path, 1));
    }
    exists(pool.snapshot(&["", "db"], "one", 1));
    absent(pool.open_dataset("@one").map(drop));
    invalid(pool.snapshot(&[""], "a@b", 1));
    busy(pool.destroy_snapshots(&["db@one"]));
    busy(pool.destroy_dataset("db"));
    invalid(pool.destroy_dataset(""));
    invalid(pool.rename("db", "db/below"));
    invalid(pool.promote("db"));
    pool.hold("db@one", "keep", 3).unwrap();
    exists(pool.hold("db@one", "keep", 4));
    pool.destroy_dataset("db/clone").unwrap();
    busy(pool.destroy_snapshots(&["db@one"]));
    pool.release("db@one", "keep").unwrap();
    absent(pool.release("db@one", "keep"));
    let snapshot = pool.open_dataset("db@one").unwrap();
    assert!(matches!(snapshot.apply(&[Change::Delete(Key::new(1, 1, 1))]), Err(Error::ReadOnly(_))));
    pool.snapshot(&["db"], "two", 1).unwrap();
    invalid(pool.reset("db", true));
    absent(pool.reset("none", true));
    pool.clone_snapshot("db@two", "clone", 2).unwrap();
    write(&*pool.open_dataset("clone").unwrap(), 7).unwrap();
    pool.snapshot(&["clone"], "own", 3).unwrap();
    busy(pool.reset("clone", false));
    pool.hold("clone@own", "keep", 3).unwrap();
    busy(pool.reset("clone", true));
    pool.release("clone@own", "keep").unwrap();
    assert_eq!(counter(&*pool.open_dataset("clone").unwrap(), 1), 7);
    pool.reset("clone", true).unwrap();
    assert_eq!(counter(&*pool.open_dataset("clone").unwrap(), 1), 0);
    assert_eq!(pool.listed("clone").unwrap().origin.as_deref(), Some("db@two"));
    pool.destroy_dataset("clone").unwrap();
    busy(pool.rollback("db@one", false));
    pool.rollback("db@one", true).unwrap();
    pool.destroy_snapshots(&["db@one"]).unwrap();
    pool.destroy_dataset("db").unwrap();
    assert_eq!(pool.list().unwrap().len(), 1);
    settle(&pool);
}

/// The rest of a rebase that a crash ended is removed when the pool is opened again. The clone is as it was, and can be
/// rebased.
#[test]
fn a_rebase_that_a_crash_ends_has_changed_nothing() {
    let (device, pool) = fresh(200);
    let busy = |done: pagefold_engine::Result<()>| assert!(matches!(done, Err(Error::Busy(_))), "{done:?}");
    pool.create_dataset("db", 1).unwrap();
    write(&*pool.open_dataset("db").unwrap(), 1).unwrap();
    pool.snapshot(&["db"], "one", 1).unwrap();
    pool.clone_snapshot("db@one", "dev", 2).unwrap();
    write(&*pool.open_dataset("dev").unwrap(), 2).unwrap();
    write(&*pool.open_dataset("db").unwrap(), 3).unwrap();
    pool.snapshot(&["db"], "two", 3).unwrap();
    settle(&pool);
    let used = pool.status().used_bytes;

    let under_way = pool.begin_rebase("dev", "db@two", false, 4).unwrap();
    busy(pool.begin_rebase("dev", "db@two", false, 4).map(drop));
    busy(pool.destroy_dataset("dev"));
    busy(pool.reset("dev", true));
    busy(pool.destroy_snapshots(&["db@two"]));
    let noise: Vec<u8> = (0..MIB).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    for at in 0..8 {
        let changes = [Change::Write { object: 9, record_size: PAGE, offset: at * MIB, data: &noise }];
        under_way.target().apply(&changes).unwrap();
    }
    pool.sync().unwrap();
    // As a crash does, which gives nothing up.
    std::mem::forget(under_way);
    drop(pool);
    let device = Arc::new(device.crash_seeded(7));
    let pool = open(&device);
    let paths: Vec<String> = pool.list().unwrap().into_iter().map(|listed| listed.path).collect();
    assert_eq!(paths, ["", "db", "db@one", "db@two", "dev"]);
    assert_eq!(counter(&*pool.open_dataset("dev").unwrap(), 1), 2);
    settle(&pool);
    let left = pool.status().used_bytes;
    assert!(left < used + MIB / 4, "{left} bytes are in use, {used} were");

    pool.begin_rebase("dev", "db@two", false, 4).unwrap().finish().unwrap();
    assert_eq!(counter(&*pool.open_dataset("dev").unwrap(), 1), 3);
    assert_eq!(pool.listed("dev").unwrap().origin.as_deref(), Some("db@two"));
    settle(&pool);
}

/// A device that fails to read for a while costs a destroyed dataset no space; `settle` checks that nothing of it is
/// left.
#[test]
fn what_could_not_be_read_is_freed_later() {
    let (device, pool) = fresh(400);
    pool.create_dataset("db", 1).unwrap();
    let dataset = pool.open_dataset("db").unwrap();
    // More nodes than opening the pool reads.
    for object in 1..100 {
        let value = |offset| Change::Put(Key::new(object, 1, offset), vec![object as u8; 200]);
        dataset.apply(&(0..500).map(value).collect::<Vec<_>>()).unwrap();
    }
    drop(dataset);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    let before = pool.status().used_bytes;
    pool.destroy_dataset("db").unwrap();
    device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times: 40 });
    assert!(!pool.reap().unwrap(), "nothing can be read");
    settle(&pool);
    assert!(pool.status().used_bytes < before / 4, "{} of {before} are in use", pool.status().used_bytes);
}

/// The table's pages are read as well where a tree names records several times: these lie in segments whose pages are
/// away.
#[test]
fn no_read_that_fails_for_a_moment_costs_space_of_what_shared_records() {
    let options = OpenOptions {
        table_page_ids: PageIds::new(2),
        table_bytes: Some(0),
        reads_at_once: 1,
        ..OpenOptions::default()
    };
    let reads = |pool: &Pool| pool.faults().devices.iter().map(|of| of.reads).sum::<u64>();
    let mut failed = 0;
    for skip in 0..12 {
        let (device, mut pool) = fresh(200);
        for object in 0..10 {
            drop(pool);
            // An opening begins a segment: they lie in several pages of the table.
            pool = Pool::open_on(devices(&device), &options).unwrap();
            if object == 0 {
                pool.create_dataset("db", 1).unwrap();
                continue;
            }
            let dataset = pool.open_dataset("db").unwrap();
            let write = Change::Write { object, record_size: PAGE, offset: 0, data: &[7; PAGE as usize] };
            dataset.apply(&[write]).unwrap();
            pool.commit(false).unwrap();
            dataset.apply(&[share_of(object)]).unwrap();
            drop(dataset);
            pool.checkpoint(false).unwrap();
        }
        pool.destroy_dataset("db").unwrap();
        pool.checkpoint(false).unwrap();
        device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip, times: 8 });
        while pool.is_reaping() {
            pool.reap().unwrap();
        }
        device.clear_faults();
        failed += reads(&pool);
        settle(&pool);
    }
    assert!(failed > 2, "{failed} reads failed");
}

/// The first page once more, as the second.
const fn share_of(object: u64) -> Change<'static> {
    Change::Share { from_object: object, from_page: 0, to_object: object, to_page: 1, count: 1 }
}

#[test]
fn one_snapshot_of_a_dataset_has_a_name() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("a", 0).unwrap();
    let twice = pool.snapshot(&["", "a", ""], "s", 0).unwrap_err();
    assert!(twice.to_string().contains("wanted twice"), "{twice}");
    assert!(pool.snapshots_of(1).is_empty(), "none is made, or all");
    pool.snapshot(&["", "a"], "s", 0).unwrap();
    assert_eq!(pool.snapshots_of(1).len(), 1);
}

/// Deletions go on beyond the capacity where a snapshot holds what is deleted, until there is no chunk for changed nodes.
/// Then the snapshot can be destroyed, and that gives room.
#[test]
fn a_pool_that_deletions_have_filled_is_emptied_by_destroying() {
    let (_device, pool) = fresh(136);
    let dataset = pool.dataset();
    let key = |at: u64| Key::new(1 + at / 512, 1, at % 512);
    let noise = noise(7);
    let value = |at: u64| noise[(at * 911 % (MIB - 900)) as usize..][..900].to_vec();
    let capacity = pool.space().capacity_bytes;
    let mut end = 0;
    while pool.space().used_bytes < capacity / 100 * 85 {
        for at in end..end + 2000 {
            dataset.apply(&[Change::Put(key(at), value(at))]).unwrap();
        }
        pool.checkpoint(false).unwrap();
        end += 2000;
    }
    pool.snapshot(&[""], "one", 1).unwrap();
    // In each round one value of each leaf is deleted.
    let refused = (0..8_u64).any(|round| {
        (round..end).step_by(8).any(|at| match dataset.apply(&[Change::Delete(key(at))]) {
            Ok(()) => false,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace(_)), "{error}");
                true
            }
        })
    });
    assert!(refused, "{:?}", pool.space());
    pool.destroy_snapshots(&["@one"]).unwrap();
    settle(&pool);
    assert!(pool.space().used_bytes < capacity);
    for at in 0..end {
        dataset.apply(&[Change::Delete(key(at))]).unwrap();
    }
    settle(&pool);
    assert!(pool.space().used_bytes < capacity / 10);
}
