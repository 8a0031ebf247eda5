//! Tests of dead lists over many snapshots, and of nodes of versions that go.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::dataset::redo::TEXT_BYTES_MAX;
use crate::dataset::{Bucket, Change, Dataset, DeadBlocks, DeadList, space_of};
use crate::pool::Pool;
use crate::pool::testing::{PAGE, damage, fresh, leaves, open, page, try_open, write};
use crate::{Addr, Error, Key, Ptr};

/// Small numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % end
    }
}

fn ptr(number: u64) -> Ptr {
    Ptr { addr: Addr::new(1 + number / 1000, (number % 1000) as u32), len_bytes: 1 + (number % 4000) as u32 }
}

type DeadModel = BTreeMap<u64, Vec<Ptr>>;

fn records(bucket: &Bucket, blocks: &DeadBlocks) -> Vec<Ptr> {
    let mut found = Vec::new();
    bucket.for_each(blocks, &mut |ptr| found.push(ptr)).unwrap();
    found.sort_unstable_by_key(|ptr| ptr.addr);
    found
}

fn assert_like(model: &DeadModel, list: &DeadList, blocks: &DeadBlocks) {
    for birth in [0, 3, 9] {
        let bytes: u64 = model.range(birth..).flat_map(|(_, ptrs)| ptrs).map(space_of).sum();
        assert_eq!(list.bytes_from(birth, blocks).unwrap(), bytes);
    }
}

/// Lists that are pushed to, flushed, encoded, joined and cut at random give back what a map of vectors has.
#[test]
fn dead_lists_are_like_maps() {
    let (_device, pool) = fresh();
    let blocks = &pool.catalogue.read().parts.blocks;
    for seed in 0..20 {
        let mut draw = Draw(seed);
        let mut lists: Vec<(DeadList, DeadModel)> = vec![Default::default(), Default::default()];
        let mut number = 0;
        for _ in 0..60 {
            let at = draw.below(2) as usize;
            match draw.below(6) {
                0..=2 => {
                    let births = 1 + draw.below(12);
                    for _ in 0..draw.below(3000) {
                        let (list, model) = &mut lists[at];
                        let birth = draw.below(births);
                        number += 1;
                        model.entry(birth).or_default().push(ptr(number));
                        if list.push(birth, ptr(number)) {
                            list.flush(blocks).unwrap();
                        }
                    }
                }
                3 => {
                    let (list, model) = &mut lists[at];
                    let birth = draw.below(12);
                    let mut taken = list.take_from(birth, blocks).unwrap();
                    taken.spill(blocks).unwrap();
                    let mut expected: Vec<Ptr> = model.split_off(&birth).into_values().flatten().collect();
                    expected.sort_unstable_by_key(|ptr| ptr.addr);
                    assert!(records(&taken, blocks) == expected && taken.records == expected.len() as u64);
                    assert_eq!(taken.bytes, expected.iter().map(space_of).sum::<u64>());
                    work_off(taken, blocks, expected);
                }
                4 => {
                    let (list, model) = std::mem::take(&mut lists[1 - at]);
                    let (into, into_model) = &mut lists[at];
                    into.absorb(list, blocks).unwrap();
                    for (birth, ptrs) in model {
                        into_model.entry(birth).or_default().extend(ptrs);
                    }
                }
                _ => {
                    let (list, _) = &mut lists[at];
                    let mut bytes = Vec::new();
                    list.encode(&mut bytes);
                    let mut reader = crate::wire::Reader::new(&bytes, "dead list");
                    assert_eq!(DeadList::decode(&mut reader).unwrap(), *list);
                    assert_eq!(reader.remaining(), 0);
                    list.flush(blocks).unwrap();
                    assert!(!list.is_open());
                }
            }
            let (list, model) = &lists[at];
            assert_like(model, list, blocks);
        }
    }
}

/// Takes a bucket apart block by block, as reaping does; nothing of it is left in the tree.
fn work_off(mut bucket: Bucket, blocks: &DeadBlocks, mut expected: Vec<Ptr>) {
    let mut found = bucket.take_open();
    while let Some((list, at)) = bucket.next_block() {
        let next = bucket.link_due().map(|list| blocks.linked(list).unwrap());
        let records = blocks.load(list, at).unwrap();
        bucket.drop_block(&records, next);
        blocks.remove(list, at).unwrap();
        if next.is_some() {
            blocks.unlink(list).unwrap();
        }
        assert!(blocks.load(list, at).is_err());
        found.extend(records);
    }
    assert_eq!(bucket, Bucket::default());
    found.sort_unstable_by_key(|ptr| ptr.addr);
    expected.sort_unstable_by_key(|ptr| ptr.addr);
    assert!(found == expected);
}

fn checked(pool: &Pool) {
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// Number of pages of the file: the tree has more leaves than pages are overwritten between two snapshots.
const PAGES: u64 = 40_000;

/// Returns a page that compresses well, as its records are to be small.
fn small(at: u64, generation: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[..16].copy_from_slice(&(u128::from(at) << 64 | u128::from(generation)).to_le_bytes());
    page
}

fn overwrite(pool: &Pool, pages: impl Iterator<Item = u64>, generation: u64) {
    overwrite_in(pool, &*pool.dataset, pages, generation);
}

fn overwrite_in(pool: &Pool, dataset: &dyn Dataset, pages: impl Iterator<Item = u64>, generation: u64) {
    for at in pages {
        let (offset, data) = (at * u64::from(PAGE), small(at, generation));
        dataset.apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    pool.sync().unwrap();
}

/// Returns the bytes that a checkpoint writes after pages were overwritten at random.
fn checkpoint_bytes(pool: &Pool, draw: &mut Draw, generation: u64) -> u64 {
    pool.checkpoint(false).unwrap();
    overwrite(pool, (0..400).map(|_| draw.below(PAGES)), generation);
    let written = || {
        let counters = &pool.shared.counters;
        counters.checkpoint_bytes.load(Ordering::Relaxed) + counters.copy_bytes.load(Ordering::Relaxed)
    };
    let before = written();
    pool.checkpoint(false).unwrap();
    written() - before
}

/// Overwrites pages at random and makes a snapshot, for each of `snapshots`.
fn age(pool: &Pool, draw: &mut Draw, pages: u64, snapshots: std::ops::Range<u64>) {
    for n in snapshots {
        overwrite(pool, (0..60).map(|_| draw.below(pages)), n);
        pool.snapshot(&[""], &format!("s{n}"), n).unwrap();
        if n % 25 == 0 {
            pool.checkpoint(false).unwrap();
        }
    }
}

#[test]
fn checkpoints_do_not_grow_with_snapshots() {
    let (_device, pool) = fresh();
    let mut draw = Draw(7);
    overwrite(&pool, 0..PAGES, 0);
    // The pages become as scattered as they will ever be: leaves with addresses at random are longer.
    overwrite(&pool, (0..3 * PAGES).map(|_| draw.below(PAGES)), 0);
    age(&pool, &mut draw, PAGES, 1..51);
    let few = checkpoint_bytes(&pool, &mut draw, 1000);
    let memory = pool.catalogue.read().memory_bytes() / 50;
    age(&pool, &mut draw, PAGES, 51..201);
    let many = checkpoint_bytes(&pool, &mut draw, 2000);
    assert!(many * 10 <= few * 11, "{few} bytes with 50 snapshots, {many} with 200");
    assert!(pool.catalogue.read().memory_bytes() / 200 <= memory);
}

#[test]
fn snapshots_may_be_destroyed_in_any_order() {
    let (device, pool) = fresh();
    let mut draw = Draw(8);
    let pages = 1000;
    overwrite(&pool, 0..pages, 0);
    age(&pool, &mut draw, pages, 1..160);
    checked(&pool);
    drop(pool);
    let pool = try_open(&std::sync::Arc::new(device.crash(&mut |_| 0))).unwrap();
    checked(&pool);
    // The order is random; the newest but one and the oldest are among them.
    let mut left: Vec<u64> = (1..159).collect();
    while !left.is_empty() {
        let n = left.swap_remove(draw.below(left.len() as u64) as usize);
        pool.destroy_snapshots(&[&format!("@s{n}")]).unwrap();
        if left.len().is_multiple_of(80) {
            pool.checkpoint(false).unwrap();
            checked(&pool);
        }
        if left.len().is_multiple_of(7) {
            pool.reap().unwrap();
        }
    }
    while pool.reap().unwrap() {}
    pool.checkpoint(false).unwrap();
    checked(&pool);
    pool.rollback("@s159", false).unwrap();
    pool.checkpoint(false).unwrap();
    while pool.reap().unwrap() {}
    pool.destroy_snapshots(&["@s159"]).unwrap();
    while pool.reap().unwrap() {}
    pool.checkpoint(false).unwrap();
    checked(&pool);
    let mut entries = 0;
    let walked = pool.own.tree.walk(&mut |visit| {
        entries += u64::from(matches!(visit, crate::tree::Visit::Entry(..)));
        Ok(())
    });
    walked.unwrap();
    assert_eq!(entries, 0, "the pool's own tree has no dead lists any more");
    for at in 0..pages {
        let mut found = vec![0; PAGE as usize];
        pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut found).unwrap();
        assert!((0..160).any(|generation| found == small(at, generation)), "page {at}");
    }
}

/// Nodes that were not stored when their dataset was destroyed or rolled back are written by the next checkpoint: their
/// space stays promised until then.
#[test]
fn nodes_of_versions_that_go_stay_promised() {
    let (_device, pool) = fresh();
    overwrite(&pool, 0..2000, 1);
    pool.snapshot(&[""], "before", 0).unwrap();
    pool.create_dataset("gone", 0).unwrap();
    pool.checkpoint(false).unwrap();
    let go = |go: &dyn Fn()| {
        let held = pool.shared.nodes.unstored_nodes().stored;
        assert!(held > 4_000, "{held}");
        go();
        assert!(pool.shared.nodes.unstored_nodes().stored >= held);
        // The checkpoint reports it if nodes take more than they were promised.
        pool.checkpoint(false).unwrap();
        assert!(pool.shared.nodes.unstored_nodes().stored < held / 2);
    };
    let gone = pool.open_dataset("gone").unwrap();
    for at in 0..2000 {
        let (offset, data) = (at * u64::from(PAGE), small(at, 2));
        gone.apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    drop(gone);
    pool.sync().unwrap();
    go(&|| pool.destroy_dataset("gone").unwrap());
    overwrite(&pool, 0..2000, 3);
    go(&|| pool.rollback("@before", false).unwrap());
    checked(&pool);
    pool.verify_reserves().unwrap();
}

/// Every opening does again what the log has. If that had failed for damage, the pool could not be opened any more.
#[test]
fn an_operation_that_met_damage_is_not_in_the_log() {
    let (device, pool) = fresh();
    overwrite(&pool, 0..12_000, 1);
    pool.snapshot(&[""], "before", 1).unwrap();
    overwrite(&pool, 0..10_000, 2);
    // The records in memory fill another block when the snapshot goes, behind all others.
    let open_records = || pool.dataset.accounting().dead.open().map(|(_, ptrs)| ptrs.len()).sum::<usize>();
    for at in 10_000..12_000 {
        if (600..900).contains(&open_records()) {
            break;
        }
        overwrite(&pool, at..at + 1, 2);
    }
    assert!(open_records() >= 600);
    pool.checkpoint(false).unwrap();
    let own = leaves(&pool.own.tree);
    assert!(own.len() > 2, "the buckets are in another leaf");
    damage(&device, &pool, own.last().unwrap().0);
    drop(pool);
    let pool = open(&device);
    pool.destroy_snapshots(&["@before"]).unwrap_err();
    drop(pool);
    let pool = open(&device);
    assert!(pool.version("@before").is_ok());
    overwrite(&pool, 0..10, 3);
}

/// It is refused before anything of it is done.
#[test]
fn a_snapshot_that_meets_a_damaged_dead_list_costs_nobody_else_anything() {
    let (device, pool) = fresh();
    pool.create_dataset("db", 1).unwrap();
    pool.create_dataset("other", 1).unwrap();
    for path in ["", "db"] {
        let dataset = pool.open_dataset(path).unwrap();
        overwrite_in(&pool, &*dataset, 0..10_000, 1);
        pool.snapshot(&[path], "before", 1).unwrap();
        overwrite_in(&pool, &*dataset, 0..9_600, 2);
        overwrite_in(&pool, &*dataset, 9_600..9_700, 2);
    }
    let dead = pool.version("db").unwrap().accounting().dead;
    assert!(dead.is_open() && dead.id > 1);
    pool.checkpoint(false).unwrap();
    let (own, bucket) = (leaves(&pool.own.tree), Key::new(dead.id, Key::BUCKET, 0));
    let at = own.iter().rposition(|(_, first)| *first <= bucket).unwrap();
    assert!(at > 0, "the pool can be opened without it");
    damage(&device, &pool, own[at].0);
    drop(pool);
    let pool = open(&device);
    pool.snapshot(&["db"], "after", 1).unwrap_err();
    pool.snapshot(&["other"], "after", 1).unwrap();
    overwrite(&pool, 0..10, 3);
}

/// Whatever is accepted can be read again: a longer text than that would keep the pool from opening for ever.
#[test]
fn names_that_could_not_be_read_again_are_refused() {
    let (device, pool) = fresh();
    pool.snapshot(&[""], "a", 1).unwrap();
    for bytes in [256, TEXT_BYTES_MAX + 1, 100_000] {
        let long = "x".repeat(bytes);
        assert!(matches!(pool.hold("@a", &long, 1), Err(Error::Invalid(_))), "a hold of {bytes} bytes");
        assert!(matches!(pool.rename("@a", &long), Err(Error::Invalid(_))), "a snapshot of {bytes} bytes");
    }
    // Each part becomes longer from the bottom up: no new path is too long, and what lies below would be.
    let (mut path, mut paths) = (String::from("d"), Vec::new());
    for _ in 0..60 {
        pool.create_dataset(&path, 1).unwrap();
        paths.push(path.clone());
        path += "/d";
    }
    let mut refused = 0;
    for path in paths.iter().rev() {
        let to = format!("{}{}", &path[..path.len() - 1], "y".repeat(256 - path.len()));
        refused += u32::from(pool.rename(path, &to).is_err());
    }
    assert!(refused > 50, "{refused}");
    pool.checkpoint(false).unwrap();
    drop(pool);
    let pool = open(&device);
    assert!(pool.list().unwrap().iter().all(|listed| listed.path.len() <= 255));
    pool.hold("@a", &"x".repeat(255), 1).unwrap();
    pool.rename("@a", &"y".repeat(255)).unwrap();
    drop(pool);
    assert_eq!(open(&device).list().unwrap().iter().filter(|listed| !listed.holds.is_empty()).count(), 1);
}

/// As with operations: the pool has failed in any case, and could not be opened any more.
#[test]
fn pages_that_cannot_be_put_into_their_tree_are_not_in_the_log() {
    let (device, pool) = fresh();
    overwrite(&pool, 0..20_000, 1);
    pool.checkpoint(false).unwrap();
    let all = leaves(&pool.dataset.tree);
    let at = all.iter().rposition(|(_, first)| *first <= Key::page(4, 10_000)).unwrap();
    assert!(at > 0 && at + 1 < all.len());
    damage(&device, &pool, all[at].0);
    drop(pool);
    let pool = open(&device);
    // Deltas of this file do not pay, so that most commits do not look what its pages were.
    (2..5).for_each(|generation| write(&pool, 0..16, generation));
    for at in 10_000..10_009 {
        let (offset, data) = (at * u64::from(PAGE), small(at, 2));
        pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    pool.sync().unwrap_err();
    drop(pool);
    let pool = open(&device);
    let mut found = vec![0; PAGE as usize];
    pool.dataset().read(4, PAGE, 3 * u64::from(PAGE), &mut found).unwrap();
    assert!(found == page(3, 4));
    overwrite(&pool, 0..10, 9);
}

/// A later version may know more of them.
#[test]
fn a_codec_that_nobody_knows_keeps_no_pool_from_opening() {
    let (device, pool) = fresh();
    pool.set_property("compression", Some("a later one")).unwrap();
    drop(pool);
    overwrite(&open(&device), 0..10, 1);
}
