use std::sync::Arc;

use crate::dataset::{Change, Dataset};
use crate::device::{Device, InjectedFault, SimDevice, SimOp};
use crate::faults::{FaultCounts, STRUCK_MAX, Struck, Subject};
use crate::pool::testing::{PAGE, fresh, open, write};
use crate::pool::{OpenOptions, Pool};
use crate::{Error, Key};

/// Damages the record of a page of object 4.
fn damage(device: &SimDevice, pool: &Pool, at: u64) {
    let mut ptrs = [None];
    pool.version("").unwrap().tree.pages(4, at, &mut ptrs).unwrap();
    let located = pool.shared.segments.locate(&pool.shared.devices, ptrs[0].unwrap().addr).unwrap();
    device.flip_bit(located.offset + 100, 3);
}

fn read(pool: &Pool, at: u64) -> crate::Result<()> {
    // Without a cache of records the read goes to the device.
    pool.set_cache_bytes(0);
    pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut vec![0; PAGE as usize])
}

fn writes_of(device: &SimDevice) -> u64 {
    device.stats().counts().writes
}

/// Returns a pool whose page 3 is damaged, freshly opened: nothing of it is in memory.
fn damaged() -> (Arc<SimDevice>, Arc<Pool>) {
    let (device, pool) = fresh();
    write(&pool, 0..8, 1);
    damage(&device, &pool, 3);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    (device, pool)
}

const PAGE_STRUCK: Subject = Subject::Object { dataset: 1, object: 4 };

#[test]
fn a_read_that_fails_is_counted_by_device_and_object_with_its_place() {
    let (_device, pool) = damaged();
    assert!(pool.faults().is_empty());
    read(&pool, 2).unwrap();
    let error = read(&pool, 3).unwrap_err();
    let place = error.place().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }));
    let report = pool.faults();
    assert_eq!(report.devices, [FaultCounts { checksums: 1, ..FaultCounts::default() }]);
    assert_eq!(report.struck.len(), 1);
    assert_eq!(report.struck[0].subject, PAGE_STRUCK);
    assert_eq!(report.struck[0].counts.checksums, 1);
    assert_eq!(report.struck[0].place, Some((0, place.offset)));
    assert_eq!(report.struck[0].offset, 3 * u64::from(PAGE));
    // A longer read names the page that is damaged.
    pool.dataset().read(4, PAGE, 0, &mut vec![0; 8 * PAGE as usize]).unwrap_err();
    assert_eq!(pool.faults().struck[0].offset, 3 * u64::from(PAGE));
}

#[test]
fn counts_survive_an_export_and_a_crash_and_count_on() {
    let (device, pool) = damaged();
    read(&pool, 3).unwrap_err();
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!(pool.faults().devices[0].checksums, 1);
    read(&pool, 3).unwrap_err();
    pool.store_new_faults().unwrap();
    drop(pool);
    // Only what was flushed is left.
    let pool = open(&Arc::new(device.crash(&mut |_| 0)));
    let report = pool.faults();
    assert_eq!((report.devices[0].checksums, report.struck[0].counts.checksums), (2, 2));
    assert_eq!(pool.check_open(&mut |_| {}).errors, 1);
}

#[test]
fn rereading_one_page_takes_neither_memory_nor_writes() {
    let (device, pool) = damaged();
    read(&pool, 3).unwrap_err();
    pool.store_new_faults().unwrap();
    let writes = writes_of(&device);
    for _ in 0..1000 {
        read(&pool, 3).unwrap_err();
        pool.store_new_faults().unwrap();
    }
    assert_eq!(pool.faults().devices[0].checksums, 1001);
    assert_eq!(pool.faults().struck.len(), 1);
    // The counts are stored whenever one has doubled: ten times, each time with a batch and with what says where the
    // log goes on.
    assert!(writes_of(&device) - writes <= 20, "{}", writes_of(&device) - writes);
}

#[test]
fn what_is_cleared_stays_cleared_and_what_persists_is_counted_again() {
    let (device, pool) = damaged();
    read(&pool, 3).unwrap_err();
    assert!(matches!(pool.clear_faults(Some(1), 5), Err(Error::Invalid(_))));
    let cleared = pool.clear_faults(None, 77).unwrap();
    assert_eq!(cleared.devices[0].checksums, 1);
    assert_eq!(cleared.struck[0].subject, PAGE_STRUCK);
    drop(pool);
    let pool = open(&Arc::new(device.crash(&mut |_| 0)));
    assert!(pool.faults().is_empty());
    assert_eq!(pool.faults().cleared, 77);
    read(&pool, 3).unwrap_err();
    assert_eq!(pool.faults().devices[0].checksums, 1);
    let of_device = pool.clear_faults(Some(0), 78).unwrap();
    assert_eq!(of_device.struck.len(), 1);
    assert!(pool.faults().is_empty());
    assert_eq!(pool.faults().cleared, 77, "of all, it was cleared before");
}

#[test]
fn a_device_that_fails_reads_is_counted_and_a_second_copy_that_stands_in() {
    let (device, pool) = fresh();
    write(&pool, 0..2000, 1);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    // The node that leads to the page has a second copy; the page has none.
    let fail = |times| device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times });
    fail(3);
    read(&pool, 3).unwrap();
    let counts = pool.faults().devices[0];
    assert_eq!((counts.reads, counts.corrected), (3, 0), "the fourth attempt has read it");
    drop(pool);
    let pool = open(&device);
    let before = pool.faults().devices[0].reads;
    fail(4);
    read(&pool, 3).unwrap();
    let counts = pool.faults().devices[0];
    assert_eq!((counts.reads - before, counts.corrected, counts.checksums), (4, 1, 0));
    let report = pool.faults();
    assert!(matches!(report.struck[..], [Struck { place: Some(_), .. }]), "{report:?}");
    assert_eq!((report.struck[0].counts.reads, report.struck[0].counts.corrected), (1, 1));
    fail(9);
    read(&pool, 5).unwrap_err();
    let report = pool.faults();
    assert!(report.devices[0].reads - before >= 8, "it was read several times");
    assert_eq!(report.devices[0].corrected, 1);
    let file = report.struck.iter().find(|struck| struck.subject == PAGE_STRUCK).unwrap();
    assert_eq!((file.counts.reads, file.offset), (1, 5 * u64::from(PAGE)));
    assert!(file.place.is_some());
}

#[test]
fn what_a_scrub_finds_is_told_by_file_when_it_ends() {
    let (device, pool) = fresh();
    write(&pool, 0..40, 1);
    pool.snapshot(&[""], "before", 1).unwrap();
    damage(&device, &pool, 7);
    write(&pool, 0..20, 2);
    damage(&device, &pool, 30);
    pool.scrub_start(1, 0).unwrap();
    while pool.scrub_step(2).unwrap().is_some() {}
    let report = pool.faults();
    assert_eq!(report.devices[0].checksums, 2);
    let snapshot = pool.version("@before").unwrap().id;
    let told: Vec<_> = report.struck.iter().map(|struck| (struck.subject, struck.offset)).collect();
    let size = u64::from(PAGE);
    let of_snapshot = Subject::Object { dataset: snapshot, object: 4 };
    assert_eq!(told, [(PAGE_STRUCK, 30 * size), (of_snapshot, 7 * size)]);
}

#[test]
fn a_pool_that_is_read_only_counts_and_writes_nothing() {
    let (device, pool) = damaged();
    pool.export().unwrap();
    drop(pool);
    let devices = vec![Arc::clone(&device) as _];
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let pool = Pool::open_on(devices, &options).unwrap();
    let writes = writes_of(&device);
    read(&pool, 3).unwrap_err();
    pool.store_new_faults().unwrap();
    assert_eq!(pool.faults().devices[0].checksums, 1);
    assert_eq!(pool.clear_faults(None, 5).unwrap().devices[0].checksums, 1);
    pool.export().unwrap();
    assert_eq!(writes_of(&device), writes);
}

#[test]
fn what_is_listed_is_bounded_and_the_rest_is_counted() {
    let (_device, pool) = fresh();
    let faults = &pool.shared.segments.faults;
    for object in 0..STRUCK_MAX as u64 + 10 {
        faults.count(crate::faults::FaultKind::Checksum, Subject::Object { dataset: 1, object }, None, 0);
    }
    let report = pool.faults();
    assert_eq!((report.struck.len(), report.unlisted), (STRUCK_MAX, 10));
    pool.checkpoint(false).unwrap();
    let stored = pool.own.get(&super::KEY).unwrap().unwrap();
    assert!(stored.len() < 4096, "{}", stored.len());
    pool.sync().unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn counts_that_cannot_be_read_begin_anew() {
    let (device, pool) = fresh();
    pool.own.replay_value(super::KEY, Some(b"\x09not counts")).unwrap();
    pool.export().unwrap();
    drop(pool);
    assert!(open(&device).faults().is_empty());
}

/// A change for which a node of the tree cannot be read fails before any of it was made. Other changes go on, and the
/// same one once the node can be read.
#[test]
fn a_node_that_cannot_be_read_fails_the_change_that_needs_it_and_not_the_pool() {
    let (device, pool) = fresh();
    write(&pool, 0..4000, 1);
    pool.export().unwrap();
    drop(pool);
    let share = Change::Share { from_object: 4, from_page: 100, to_object: 5, to_page: 0, count: 2000 };
    let changes =
        [Change::Put(Key::new(9, 0x10, 0), vec![1]), share, Change::Punch { object: 4, from: 100, to: 3900 }];
    for change in changes {
        let pool = open(&device);
        let all = InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times: u64::MAX };
        device.inject(all);
        let refused = pool.dataset().apply(std::slice::from_ref(&change)).unwrap_err();
        assert!(refused.is_damage(), "{change:?}: {refused}");
        device.clear_faults();
        pool.dataset().apply(&[change]).unwrap();
        pool.export().unwrap();
    }
    let pool = open(&device);
    assert_eq!(pool.dataset().next_data(4, 100).unwrap(), Some(3900));
    assert_eq!(pool.dataset().next_hole(5, 0).unwrap(), 2000);
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}
