use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::Addr;
use crate::dataset::Change;
use crate::device::SimDevice;
use crate::pool::ScrubStatus;
use crate::pool::testing::{PAGE, fresh, page, try_open, write};
use crate::segment::{DirCopy, Located};
use crate::tree::Visit;

const PAGES: u64 = 1500;

/// Returns a pool with a snapshot, segments that were cleaned and some that were not, written by several checkpoints.
fn filled() -> (Arc<SimDevice>, Arc<Pool>) {
    let (device, pool) = fresh();
    write(&pool, 0..PAGES, 1);
    pool.snapshot(&[""], "before", 1).unwrap();
    pool.checkpoint(false).unwrap();
    write(&pool, (0..PAGES).filter(|at| at % 3 == 0), 2);
    pool.clean().unwrap();
    write(&pool, (0..PAGES).filter(|at| at % 3 == 1), 2);
    pool.checkpoint(false).unwrap();
    (device, pool)
}

/// Asserts that everything is right, whichever copy it is read from.
fn assert_whole(pool: &Pool, what: &str) {
    for at in 0..PAGES {
        let mut found = vec![0; PAGE as usize];
        pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut found).unwrap();
        assert!(found == page(at, if at % 3 == 2 { 1 } else { 2 }), "{what}: page {at}");
    }
    assert_eq!(pool.version("@before").unwrap().tree.pages(4, 0, &mut [None]).ok(), Some(()), "{what}");
}

fn scrubbed(pool: &Pool) -> ScrubStatus {
    pool.scrub_start(7, 0).unwrap();
    while pool.scrub_step(9).unwrap().is_some() {}
    pool.scrub_status()
}

fn assert_sound(device: &Arc<SimDevice>, what: &str) {
    let pool = try_open(device).unwrap();
    assert_whole(&pool, what);
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new(), "{what}");
    assert_eq!(pool.shared.segments.stood_in(), 0, "{what}");
}

/// Returns both places of all metadata, with a name for each.
fn places(pool: &Pool) -> Vec<(String, [u64; 2])> {
    let at = |addr: Addr| pool.place(addr).unwrap().offset;
    let both = |placed: &PlacedRecord| [placed.first.offset, placed.second.offset];
    let label = pool.labels.common();
    let mut found = vec![(format!("label {}", label.name), label.offsets().try_into().unwrap())];
    {
        let state = pool.maintenance.lock();
        found.extend(state.copies.roots.iter().map(|placed| (format!("root {}", placed.addr), both(placed))));
        let pages = state.page_ptrs.iter();
        found.extend(
            pages.map(|(page, Ptr { addr, .. })| (format!("page {page}"), [at(*addr), at(addr.copy())])),
        );
        let versions = state.catalogue_ptrs.values().flatten();
        found.extend(versions.map(|Ptr { addr, .. }| ("versions".into(), [at(*addr), at(addr.copy())])));
    }
    let mut nodes = BTreeSet::new();
    for tree in [&pool.version("@before").unwrap().tree, &pool.dataset.tree, &pool.own.tree] {
        let walked = tree.walk(&mut |visit| {
            if let Visit::Node { ptr, .. } = visit {
                nodes.insert(ptr.addr);
            }
            Ok(())
        });
        walked.unwrap();
    }
    found.extend(nodes.iter().map(|addr| (format!("node {addr}"), [at(*addr), at(addr.copy())])));
    pool.shared
        .segments
        .for_each(|segment| {
            for part in &segment.parts {
                let Some(dir) = part.directory else { continue };
                let copies = [DirCopy::First, DirCopy::Second].map(|copy| copy.offset(part.extent, dir));
                if let [Some(first), Some(second)] = copies {
                    found.push((format!("directory of {}", segment.id), [first, second]));
                }
            }
        })
        .unwrap();
    found
}

#[test]
fn either_copy_of_any_metadata_may_be_damaged_and_is_repaired() {
    let (device, pool) = filled();
    let places = places(&pool);
    let kinds: BTreeMap<&str, usize> = places.iter().fold(BTreeMap::new(), |mut kinds, (what, _)| {
        *kinds.entry(what.split(' ').next().unwrap()).or_default() += 1;
        kinds
    });
    assert!(
        kinds["root"] > 2
            && kinds["versions"] > 0
            && kinds["page"] > 1
            && kinds["node"] > 1
            && kinds["directory"] > 2,
        "{kinds:?}"
    );
    drop(pool);
    let device = Arc::new(device.crash(&mut |_| 0));
    for (what, places) in &places {
        for (at, place) in places.iter().enumerate() {
            let device = Arc::new(device.crash(&mut |_| 0));
            device.flip_bit(place + 3, 5);
            let pool = try_open(&device).unwrap_or_else(|error| panic!("{what}, copy {at}: {error}"));
            assert_whole(&pool, what);
            let report = pool.check_open(&mut |_| {});
            if what.starts_with("label") {
                // A crash may have torn it, so the opening has written it again.
                assert_eq!(report.messages, Vec::<String>::new(), "{what}, copy {at}");
                continue;
            }
            assert!(report.errors > 0, "{what}, copy {at}: check tells nothing");
            // The next checkpoint writes anew what opening read; opening does not make one.
            let status = scrubbed(&pool);
            assert!(status.damaged > 0 && status.repaired == status.damaged, "{what}, copy {at}: {status:?}");
            assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new(), "{what}, copy {at}");
            drop(pool);
            assert_sound(&Arc::new(device.crash(&mut |_| 0)), what);
        }
    }
}

/// No crash has torn a label of a pool that was closed: it is damage, which is told, counted and mended by a scrub.
#[test]
fn a_damaged_label_of_a_pool_that_was_closed_is_told() {
    let (device, pool) = filled();
    let labels: Vec<u64> = places(&pool)
        .into_iter()
        .filter(|(what, _)| what.starts_with("label"))
        .flat_map(|(_, places)| places)
        .collect();
    assert!(labels.len() > 1);
    pool.export().unwrap();
    drop(pool);
    for place in labels {
        let device = Arc::new(device.crash(&mut |_| 0));
        device.flip_bit(place + 3, 5);
        let pool = try_open(&device).unwrap();
        assert!(pool.check_open(&mut |_| {}).errors > 0, "label at {place}: check tells nothing");
        let status = scrubbed(&pool);
        assert!(status.damaged == 1 && status.repaired == 1, "label at {place}: {status:?}");
        assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    }
}

#[test]
fn what_is_damaged_twice_is_an_error() {
    let (device, pool) = filled();
    let places = places(&pool);
    drop(pool);
    let device = Arc::new(device.crash(&mut |_| 0));
    for (what, places) in &places {
        let device = Arc::new(device.crash(&mut |_| 0));
        places.iter().for_each(|place| device.flip_bit(place + 3, 5));
        let Ok(pool) = try_open(&device) else { continue };
        assert!(pool.check_open(&mut |_| {}).errors > 0, "{what}");
        let status = scrubbed(&pool);
        assert!(status.damaged > status.repaired, "{what}: {status:?}");
    }
}

#[test]
fn no_chunk_has_a_record_and_its_second_copy() {
    let (_device, pool) = filled();
    for _ in 0..4 {
        write(&pool, (0..PAGES).filter(|at| at % 3 != 2), 2);
        pool.clean().unwrap();
    }
    let mut chunks: [BTreeSet<_>; 2] = Default::default();
    pool.shared
        .segments
        .for_each(|segment| {
            let of = &mut chunks[usize::from(segment.id >= COPIES)];
            of.extend(segment.parts.iter().map(|part| part.extent.chunk));
        })
        .unwrap();
    assert!(chunks.iter().all(|of| !of.is_empty()));
    assert_eq!(chunks[0].intersection(&chunks[1]).count(), 0);
    for PlacedRecord { first, second, .. } in &pool.maintenance.lock().copies.roots {
        let chunk = |place: &Located| (place.device, (place.offset - (1 << 20)) >> 22);
        assert_ne!(chunk(first), chunk(second));
    }
}

/// Many checkpoints that write little fit into one segment of the log, and its second copies have as many parts.
#[test]
fn many_small_checkpoints_fit() {
    let (device, pool) = fresh();
    let mut parts = 0;
    for round in 0..3 * PARTS_MAX as u64 {
        write(&pool, [round % 7].into_iter(), round);
        pool.checkpoint(false).unwrap();
        pool.shared.segments.for_each(|segment| parts = parts.max(segment.parts.len())).unwrap();
    }
    assert!(parts > PARTS_MAX / 2 && parts <= PARTS_MAX, "{parts}");
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    drop(pool);
    let pool = try_open(&Arc::new(device.crash(&mut |_| 0))).unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    assert_eq!(pool.shared.segments.stood_in(), 0);
}

#[test]
fn second_copies_die_with_the_records() {
    let (_device, pool) = filled();
    let live = |pool: &Pool| {
        let mut bytes = [0; 2];
        pool.shared
            .segments
            .for_each(|segment| {
                bytes[usize::from(segment.id >= COPIES)] += u64::from(segment.live_bytes);
            })
            .unwrap();
        bytes
    };
    let before = live(&pool);
    pool.destroy_snapshots(&["@before"]).unwrap();
    pool.dataset().apply(&[Change::Punch { object: 4, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    while pool.reap().unwrap() {}
    pool.checkpoint(false).unwrap();
    pool.checkpoint(false).unwrap();
    let after = live(&pool);
    assert!(before[1] > 0 && after[1] * 2 < before[1] && after[0] * 10 < before[0], "{before:?} {after:?}");
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}
