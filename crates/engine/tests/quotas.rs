//! Quotas and reservations of datasets. What they are after crashes at any point, `crates/sim` tells.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use pagefold_engine::dataset::{Bound, Change, Commit, Dataset};
use pagefold_engine::pool::{Pool, ReceiveOptions, Source};
use pagefold_engine::{Error, Key, Result};

use common::{MIB, PAGE, fresh, open};

/// A page that no codec makes shorter.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    };
    (0..PAGE / 8).flat_map(|_| next().to_le_bytes()).collect()
}

fn write_page(dataset: &dyn Dataset, object: u64, page: u64, data: &[u8]) -> Result<()> {
    let offset = page * u64::from(PAGE);
    dataset.apply(&[Change::Write { object, record_size: PAGE, offset, data }])
}

/// Writes noise into new pages of an object from `from` on until there is no room. Returns the first page that found
/// none.
fn fill(dataset: &dyn Dataset, object: u64, from: u64) -> u64 {
    for page in from.. {
        match write_page(dataset, object, page, &noise(object << 32 | page)) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return page,
            Err(error) => unreachable!("{error}"),
        }
    }
    unreachable!("there is always an end")
}

fn set(pool: &Pool, path: &str, name: &str, bytes: u64) -> Result<()> {
    pool.set_property_of(path, name, Some(&bytes.to_string()))
}

/// Returns the bytes that the dataset, its snapshots and all datasets below hold.
fn used(pool: &Pool, path: &str) -> u64 {
    let within = |other: &str| other == path || other.starts_with(&format!("{path}/"));
    let all = pool.list().unwrap();
    all.iter().filter(|one| !one.is_snapshot && within(&one.path)).map(|one| one.used_bytes).sum()
}

fn settle(pool: &Pool) {
    pool.sync().unwrap();
    pool.checkpoint(false).unwrap();
    while pool.is_reaping() {
        if !pool.reap().unwrap() {
            pool.checkpoint(false).unwrap();
        }
    }
    pool.checkpoint(false).unwrap();
    let report = pool.check_open(&mut |_| {});
    assert!(report.messages.is_empty(), "{:?}", report.messages);
    // The sums that are counted by increments are those of the space accounting.
    for quota in pool.quotas() {
        let listed = pool.listed(&quota.path).unwrap();
        let expected = match quota.bound {
            Bound::Quota => used(pool, &quota.path),
            Bound::RefQuota => listed.referenced_bytes,
            Bound::LogicalQuota => listed.logical_bytes,
        };
        assert_eq!(quota.used_bytes, expected, "{quota:?}");
    }
}

#[test]
fn a_quota_is_a_bound_and_only_for_its_dataset() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    pool.create_dataset("other", 1).unwrap();
    set(&pool, "db", "quota", 10 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let pages = fill(&*db, 1, 0);
    pool.sync().unwrap();
    let held = used(&pool, "db");
    assert!(held <= 10 * MIB, "{held}");
    assert!(held > 10 * MIB - 2 * u64::from(PAGE), "{held} of 10 MiB: it was refused too early");
    assert!(pages > 1200, "{pages}");
    let space = db.space();
    assert_eq!(space.capacity_bytes, 10 * MIB);
    assert!(space.available_bytes < 2 * u64::from(PAGE), "{space:?}");
    // The others have the pool.
    let other = pool.open_dataset("other").unwrap();
    for page in 0..3000 {
        write_page(&*other, 1, page, &noise(page)).unwrap();
    }
    assert!(other.space().available_bytes > 100 * MIB);
    // The pages that were accepted can be read.
    let mut page = vec![0; PAGE as usize];
    for at in [0, pages - 1] {
        db.read(1, PAGE, at * u64::from(PAGE), &mut page).unwrap();
        assert!(page == noise(1 << 32 | at));
    }
    // Raised, and taken back.
    set(&pool, "db", "quota", 11 * MIB).unwrap();
    let more = fill(&*db, 1, pages);
    assert!(more > pages + 100, "{more} after {pages}");
    pool.set_property_of("db", "quota", None).unwrap();
    write_page(&*db, 1, more, &noise(0)).unwrap();
    settle(&pool);
}

/// A dataset ends up above its quota by no more than the nodes of its tree that are not stored.
#[test]
fn what_goes_beyond_a_quota_is_nodes_that_were_not_stored() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 8 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let mut refused = 0;
    let mut most = 0;
    for n in 0..4000_u64 {
        // Values grow the tree, and nothing else.
        let value = noise(n)[..3000].to_vec();
        refused += u64::from(db.apply(&[Change::Put(Key::new(n, 1, 0), value)]).is_err());
        if n % 500 == 0 {
            let unstored = pool.status().unstored_tree_bytes;
            let before = used(&pool, "db");
            assert!(before <= 8 * MIB + most, "{before} and {most}");
            pool.checkpoint(false).unwrap();
            most = most.max(unstored);
            assert!(
                used(&pool, "db") <= before + unstored,
                "{} after {before} + {unstored}",
                used(&pool, "db")
            );
        }
    }
    pool.checkpoint(false).unwrap();
    assert!(refused > 0);
    assert!(used(&pool, "db") <= 8 * MIB + most.max(pool.status().unstored_tree_bytes));
    settle(&pool);
}

#[test]
fn deleting_and_truncating_work_at_a_quota_and_give_room() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 10 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    db.apply(&[Change::Put(Key::new(1, 1, 0), vec![1; 100])]).unwrap();
    let pages = fill(&*db, 1, 0);
    // Down to the last byte.
    for n in 0.. {
        if db.apply(&[Change::Put(Key::new(2, 1, n), vec![1; 10])]).is_err() {
            break;
        }
    }
    // Overwriting needs room, as on a full pool.
    assert!(matches!(write_page(&*db, 1, 0, &noise(7)), Err(Error::NoSpace(_))));
    // As punching does: pages go, one is written anew, attributes change.
    let end = (pages - 10) * u64::from(PAGE);
    db.apply(&[
        Change::Punch { object: 1, from: pages - 10, to: u64::MAX },
        Change::Write { object: 1, record_size: PAGE, offset: end, data: &noise(9)[..100] },
        Change::Put(Key::new(1, 1, 0), vec![2; 100]),
    ])
    .unwrap();
    db.apply(&[Change::Delete(Key::new(2, 1, 0)), Change::Put(Key::new(1, 1, 0), vec![3; 100])]).unwrap();
    write_page(&*db, 1, 0, &noise(7)).unwrap();
    db.apply(&[Change::Delete(Key::new(1, 1, 0)), Change::Punch { object: 1, from: 0, to: u64::MAX }])
        .unwrap();
    assert!(fill(&*db, 3, 0) > pages - 100);
    settle(&pool);
}

fn share(dataset: &dyn Dataset, from_object: u64, to_object: u64, count: u64) -> Result<()> {
    dataset.apply(&[Change::Share { from_object, from_page: 0, to_object, to_page: 0, count }])
}

/// A share takes hardly anything, since pages that are not committed yet are stored first: the bound holds all the same.
#[test]
fn pages_that_were_shared_before_they_were_committed_stay_within_a_quota() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 4 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let pages = 3 * MIB / u64::from(PAGE);
    for page in 0..pages {
        write_page(&*db, 1, page, &noise(page)).unwrap();
    }
    for to in 2..6 {
        share(&*db, 1, to, pages).unwrap();
    }
    pool.sync().unwrap();
    assert!(used(&pool, "db") <= 4 * MIB, "{} of 4 MiB", used(&pool, "db"));
    let mut page = vec![0; PAGE as usize];
    for to in 1..6 {
        db.read(to, PAGE, (pages - 1) * u64::from(PAGE), &mut page).unwrap();
        assert!(page == noise(pages - 1));
    }
    settle(&pool);
}

/// Where no commit can come between, each page counts as often as it is stored.
#[test]
fn pages_that_one_change_writes_and_shares_count_as_often_as_they_are_stored() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 5 * MIB / 2).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let count = MIB / u64::from(PAGE);
    let data: Vec<u8> = (0..count).flat_map(noise).collect();
    let write = || Change::Write { object: 1, record_size: PAGE, offset: 0, data: &data };
    let share =
        |from_object, to_object| Change::Share { from_object, from_page: 0, to_object, to_page: 0, count };
    let refused = db.apply(&[write(), share(1, 2), share(2, 3)]);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    db.apply(&[write(), share(1, 2)]).unwrap();
    pool.sync().unwrap();
    assert!(used(&pool, "db") <= 5 * MIB / 2, "{}", used(&pool, "db"));
    // Stored pages take only their places.
    assert!(db.space().available_bytes < MIB / 2, "{:?}", db.space());
    for to in 4..10 {
        db.apply(&[share(1, to)]).unwrap();
    }
    settle(&pool);
}

#[test]
fn pages_that_were_shared_before_they_were_committed_stay_within_the_pool() {
    let (_device, pool) = fresh(256);
    let dataset = pool.dataset();
    let page_bytes = u64::from(PAGE);
    for page in 0.. {
        if dataset.space().available_bytes < 4 * MIB {
            break;
        }
        write_page(&*dataset, 1, page, &noise(page)).unwrap();
        if page % 256 == 0 {
            pool.checkpoint(false).unwrap();
        }
    }
    pool.checkpoint(false).unwrap();
    let pages = 3 * MIB / page_bytes;
    for page in 0..pages {
        write_page(&*dataset, 2, page, &noise(1 << 32 | page)).unwrap();
    }
    for to in 3..9 {
        share(&*dataset, 2, to, pages).unwrap();
    }
    pool.sync().unwrap();
    let space = dataset.space();
    assert!(space.used_bytes <= space.capacity_bytes, "{space:?}");
    settle(&pool);
}

#[test]
fn snapshots_count_against_a_quota_and_not_against_a_refquota() {
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 20 * MIB).unwrap();
    set(&pool, "db", "refquota", 10 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let pages = fill(&*db, 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "db") <= 10 * MIB);
    pool.snapshot(&["db"], "one", 1).unwrap();
    settle(&pool);
    assert!(fill(&*db, 1, pages) == pages, "the snapshot gives no room in what the dataset refers to");
    // Removed from the dataset, held by the snapshot: room for the refquota, not for the quota.
    db.apply(&[Change::Punch { object: 1, from: 0, to: u64::MAX }]).unwrap();
    let again = fill(&*db, 2, 0);
    assert!(again > pages - 50 && again <= pages, "{again} after {pages}");
    settle(&pool);
    db.apply(&[Change::Punch { object: 2, from: 0, to: u64::MAX }]).unwrap();
    pool.snapshot(&["db"], "two", 1).unwrap();
    settle(&pool);
    let third = fill(&*db, 3, 0);
    assert!(third > pages - 50, "what no snapshot holds is free: {third}");
    pool.snapshot(&["db"], "three", 1).unwrap();
    db.apply(&[Change::Punch { object: 3, from: 0, to: u64::MAX }]).unwrap();
    assert!(fill(&*db, 4, 0) < 50, "both are held by snapshots");
    pool.destroy_snapshots(&["db@one"]).unwrap();
    assert!(fill(&*db, 4, 0) > pages - 100, "destroying a snapshot gives room at once");
    assert!(used(&pool, "db") <= 20 * MIB);
    settle(&pool);
    let quotas = pool.quotas();
    assert_eq!(quotas.len(), 2);
}

#[test]
fn a_quota_bounds_all_below() {
    let (_device, pool) = fresh(256);
    for path in ["top", "top/a", "top/a/deep", "top/b"] {
        pool.create_dataset(path, 1).unwrap();
    }
    set(&pool, "top", "quota", 20 * MIB).unwrap();
    set(&pool, "top/a", "quota", 15 * MIB).unwrap();
    let open = |path: &str| pool.open_dataset(path).unwrap();
    fill(&*open("top/a/deep"), 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "top/a") > 15 * MIB - 20_000 && used(&pool, "top/a") <= 15 * MIB);
    assert!(matches!(write_page(&*open("top/a"), 1, 0, &noise(1)), Err(Error::NoSpace(_))));
    fill(&*open("top/b"), 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "top") > 20 * MIB - 20_000 && used(&pool, "top") <= 20 * MIB);
    assert!(matches!(write_page(&*open("top"), 1, 0, &noise(1)), Err(Error::NoSpace(_))));
    assert_eq!(open("top/b").space().capacity_bytes, 20 * MIB);
    assert_eq!(open("top/a/deep").space().capacity_bytes, 15 * MIB);
    // A clone takes what becomes different, here.
    pool.snapshot(&["top/b"], "one", 1).unwrap();
    settle(&pool);
    pool.clone_snapshot("top/b@one", "top/clone", 1).unwrap();
    assert!(fill(&*open("top/clone"), 9, 0) < 20);
    settle(&pool);
    // A destroyed dataset stops counting at once.
    pool.destroy_dataset("top/a/deep").unwrap();
    assert!(fill(&*open("top/clone"), 9, 0) > 1500);
    settle(&pool);
}

#[test]
fn moves_that_would_exceed_a_quota_are_refused() {
    let (_device, pool) = fresh(256);
    for path in ["small", "db", "db/log"] {
        pool.create_dataset(path, 1).unwrap();
    }
    set(&pool, "small", "quota", 5 * MIB).unwrap();
    let log = pool.open_dataset("db/log").unwrap();
    for page in 0..1000 {
        write_page(&*log, 1, page, &noise(page)).unwrap();
    }
    for (from, to) in [("db", "small/db"), ("db/log", "small/log")] {
        let refused = pool.rename(from, to);
        assert!(
            matches!(&refused, Err(Error::NoSpace(why)) if why.contains("quota of small")),
            "{refused:?}"
        );
    }
    set(&pool, "small", "quota", 10 * MIB).unwrap();
    pool.rename("db", "small/db").unwrap();
    let left = fill(&*log, 2, 0);
    assert!(left < 300, "it counts where it is now: {left}");
    pool.rename("small/db/log", "log").unwrap();
    write_page(&*log, 3, 0, &noise(1)).unwrap();
    // A bound below what is there.
    for (path, name, bytes) in [("log", "quota", MIB), ("log", "refquota", MIB), ("log", "logicalquota", MIB)]
    {
        assert!(matches!(set(&pool, path, name, bytes), Err(Error::NoSpace(_))), "{name}");
        assert_eq!(pool.property_of(path, name).unwrap(), None);
    }
    for value in ["1K", "-1", "", "much"] {
        assert!(
            matches!(pool.set_property_of("log", "quota", Some(value)), Err(Error::Invalid(_))),
            "{value}"
        );
    }
    pool.set_property_of("log", "quota", Some("none")).unwrap();
    pool.snapshot(&["log"], "one", 1).unwrap();
    assert!(matches!(set(&pool, "log@one", "quota", MIB), Err(Error::Invalid(_))));
    // Promotion hands snapshots over, with what they hold.
    settle(&pool);
    pool.create_dataset("tight", 1).unwrap();
    set(&pool, "tight", "quota", 2 * MIB).unwrap();
    pool.clone_snapshot("log@one", "tight/clone", 1).unwrap();
    settle(&pool);
    assert!(matches!(pool.promote("tight/clone"), Err(Error::NoSpace(_))));
    set(&pool, "tight", "quota", 20 * MIB).unwrap();
    pool.promote("tight/clone").unwrap();
    settle(&pool);
    assert!(pool.quotas().iter().any(|quota| quota.path == "tight" && quota.used_bytes > 5 * MIB));
}

#[test]
fn accounts_survive_crashes_rollback_and_what_else_changes_versions() {
    let (device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 10 * MIB).unwrap();
    set(&pool, "db", "refquota", 9 * MIB).unwrap();
    let db = pool.open_dataset("db").unwrap();
    for page in 0..500 {
        write_page(&*db, 1, page, &noise(page)).unwrap();
    }
    pool.snapshot(&["db"], "one", 1).unwrap();
    let pages = fill(&*db, 1, 500);
    pool.sync().unwrap();
    let before = pool.quotas();
    drop(db);
    drop(pool);
    // No checkpoint, no export: all of it is replayed.
    let device = Arc::new(device.crash(&mut |choices| 3 % choices));
    let pool = open(&device);
    let (was, is) = (before[0].used_bytes, pool.quotas()[0].used_bytes);
    assert_eq!(was, is);
    let db = pool.open_dataset("db").unwrap();
    assert!(fill(&*db, 1, pages) <= pages + 1);
    settle(&pool);
    pool.rollback("db@one", false).unwrap();
    settle(&pool);
    let now = pool.quotas()[0].used_bytes;
    assert!(now < 5 * MIB, "{now}");
    assert!(fill(&*db, 2, 0) > 500);
    settle(&pool);
    pool.set_property_of("db", "quota", None).unwrap();
    pool.set_property_of("db", "refquota", None).unwrap();
    assert!(pool.quotas().is_empty());
    write_page(&*db, 3, 0, &noise(1)).unwrap();
    settle(&pool);
}

#[test]
fn a_reservation_keeps_others_out() {
    let (device, pool) = fresh(160);
    for path in ["mine", "mine/below", "other"] {
        pool.create_dataset(path, 1).unwrap();
    }
    let capacity = pool.status().capacity_bytes;
    let available = pool.status().available_bytes;
    assert!(matches!(set(&pool, "mine", "reservation", available + MIB), Err(Error::NoSpace(_))));
    set(&pool, "mine", "reservation", 30 * MIB).unwrap();
    let (mine, other) = (pool.open_dataset("mine/below").unwrap(), pool.open_dataset("other").unwrap());
    assert!(pool.status().available_bytes <= available - 30 * MIB);
    assert!(mine.space().available_bytes > other.space().available_bytes + 29 * MIB);
    fill(&*other, 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "other") < capacity - 30 * MIB);
    let pages = fill(&*mine, 1, 0);
    assert!(pages * u64::from(PAGE) > 29 * MIB, "{pages} pages are what was guaranteed");
    settle(&pool);
    assert!(matches!(set(&pool, "other", "reservation", capacity), Err(Error::NoSpace(_))));
    drop((mine, other));
    drop(pool);
    let device = Arc::new(device.crash(&mut |choices| 5 % choices));
    let pool = open(&device);
    let (mine, other) = (pool.open_dataset("mine/below").unwrap(), pool.open_dataset("other").unwrap());
    // Bytes of the reservation that are given back are kept for its datasets again.
    mine.apply(&[Change::Punch { object: 1, from: 0, to: u64::MAX }]).unwrap();
    settle(&pool);
    assert!(fill(&*other, 2, 0) < 300);
    assert!(fill(&*mine, 2, 0) > pages - 100);
    settle(&pool);
    // A reservation counts against a quota above it, and needs one that is no smaller.
    assert!(matches!(set(&pool, "mine", "quota", MIB), Err(Error::NoSpace(_))));
    pool.set_property_of("mine", "reservation", None).unwrap();
    pool.create_dataset("top", 1).unwrap();
    settle(&pool);
}

/// With what the dataset above holds, such a reservation is more bytes than a number has.
#[test]
fn a_reservation_of_more_than_can_be_counted_is_refused() {
    let (_device, pool) = fresh(160);
    pool.create_dataset("mine", 1).unwrap();
    write_page(&*pool.dataset(), 1, 0, &noise(1)).unwrap();
    settle(&pool);
    for bytes in [u64::MAX, u64::MAX - 1] {
        assert!(matches!(set(&pool, "mine", "reservation", bytes), Err(Error::NoSpace(_))), "{bytes}");
    }
    write_page(&*pool.dataset(), 1, 1, &noise(2)).unwrap();
    settle(&pool);
}

#[test]
fn a_reservation_counts_against_quotas_above() {
    let (_device, pool) = fresh(256);
    for path in ["top", "top/a", "top/b"] {
        pool.create_dataset(path, 1).unwrap();
    }
    set(&pool, "top", "quota", 20 * MIB).unwrap();
    assert!(matches!(set(&pool, "top/a", "reservation", 21 * MIB), Err(Error::NoSpace(_))));
    set(&pool, "top/a", "reservation", 15 * MIB).unwrap();
    // Reservations within one another count once.
    set(&pool, "top", "reservation", 18 * MIB).unwrap();
    let (a, b) = (pool.open_dataset("top/a").unwrap(), pool.open_dataset("top/b").unwrap());
    fill(&*b, 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "top/b") <= 5 * MIB && used(&pool, "top/b") > 5 * MIB - 20_000);
    fill(&*a, 1, 0);
    pool.sync().unwrap();
    assert!(used(&pool, "top") <= 20 * MIB && used(&pool, "top") > 20 * MIB - 40_000);
    assert_eq!(pool.quotas()[0].used_bytes, used(&pool, "top"));
    settle(&pool);
}

#[test]
fn a_logical_quota_counts_bytes_before_compression_and_lets_pages_be_overwritten() {
    let (_device, pool) = fresh(160);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "logicalquota", 100 * u64::from(PAGE)).unwrap();
    let db = pool.open_dataset("db").unwrap();
    let text = b"all the same ".repeat(700)[..PAGE as usize].to_vec();
    for page in 0..100 {
        write_page(&*db, 1, page, &text).unwrap();
    }
    assert!(matches!(write_page(&*db, 1, 100, &text), Err(Error::NoSpace(_))));
    assert!(used(&pool, "db") < 40 * u64::from(PAGE), "it is small as stored");
    for round in 0..3 {
        for page in 0..100 {
            write_page(&*db, 1, page, &noise(round * 100 + page)).unwrap();
        }
    }
    assert!(matches!(write_page(&*db, 1, 100, &text), Err(Error::NoSpace(_))));
    pool.snapshot(&["db"], "one", 1).unwrap();
    db.apply(&[Change::Punch { object: 1, from: 50, to: u64::MAX }]).unwrap();
    for page in 50..100 {
        write_page(&*db, 1, page, &text).unwrap();
    }
    let share = Change::Share { from_object: 1, from_page: 0, to_object: 2, to_page: 0, count: 10 };
    assert!(matches!(db.apply(&[share]), Err(Error::NoSpace(_))));
    assert_eq!(db.space().capacity_bytes, 100 * u64::from(PAGE));
    settle(&pool);
}

/// Many at once: what is accepted never exceeds the quota, and nobody is refused who would have found room.
#[test]
fn threads_share_a_quota() {
    let (_device, pool) = fresh(256);
    for path in ["top", "top/a", "top/b"] {
        pool.create_dataset(path, 1).unwrap();
    }
    set(&pool, "top", "quota", 16 * MIB).unwrap();
    std::thread::scope(|scope| {
        for path in ["top/a", "top/b", "top"] {
            let pool = &pool;
            scope.spawn(move || fill(&*pool.open_dataset(path).unwrap(), 1, 0));
        }
        let pool = &pool;
        scope.spawn(move || {
            for round in 0..20 {
                pool.snapshot(&["top/a"], &format!("s{round}"), 1).unwrap();
                pool.commit(false).unwrap();
            }
        });
    });
    pool.sync().unwrap();
    let held = used(&pool, "top");
    assert!(held <= 16 * MIB && held > 16 * MIB - 100_000, "{held}");
    settle(&pool);
}

/// Any operation on the catalogue makes the budgets anew, also while a frame of a stream is on its way to the log.
#[test]
fn a_quota_holds_what_is_received_while_properties_are_set() {
    let (_source, from) = fresh(256);
    for page in 0..4000 {
        write_page(&*from.dataset(), 1, page, &noise(page)).unwrap();
    }
    from.snapshot(&[""], "one", 1).unwrap();
    let mut stream = Vec::new();
    from.send(&Source::Snapshot { path: "@one", from: None }, &mut stream, &mut |_| {}).unwrap();
    let (_device, pool) = fresh(256);
    pool.create_dataset("db", 1).unwrap();
    set(&pool, "db", "quota", 100 * MIB).unwrap();
    let (ended, begun) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            for at in 0..3000_u64 {
                pool.set_property_of("", "user:at", Some(&at.to_string())).unwrap();
                if ended.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        begun.wait();
        let options = ReceiveOptions { created: 1, keep: false, force: false };
        let received = pool.receive("db/copy", &options, &mut stream.as_slice(), &mut |_| {});
        ended.store(true, Ordering::Release);
        received.unwrap();
    });
    settle(&pool);
    set(&pool, "db", "quota", 101 * MIB).unwrap();
    settle(&pool);
}
