//! Tests of rescue: everything that is left of a damaged pool is read, and everything else is reported as unreadable.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{OpenOptions, Pool};
use pagefold_engine::wal::RecordKind;
use pagefold_engine::{Error, Key};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 4 * MIB;
const PAGE: u32 = 8192;
/// The object that has pages, among values of objects around it.
const OBJECT: u64 = 40;
const PAGES: u64 = 700;

/// Content of a dataset or snapshot.
#[derive(Clone, Default)]
struct VersionModel {
    values: BTreeMap<Key, Vec<u8>>,
    pages: BTreeMap<u64, u64>,
}

/// A pool that was changed, and what its datasets and snapshots have.
struct WrittenPool {
    device: Arc<SimDevice>,
    /// All of the device.
    bytes: AlignedBuf,
    versions: BTreeMap<&'static str, VersionModel>,
}

fn devices(device: &Arc<SimDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(device) as Arc<dyn Device>]
}

fn open(device: &Arc<SimDevice>, options: &OpenOptions) -> pagefold_engine::Result<Arc<Pool>> {
    Pool::open_on(devices(device), options)
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Half of it compresses.
fn page(seed: u64) -> Vec<u8> {
    let mut page = random(seed, PAGE as usize);
    page[PAGE as usize / 2..].fill(7);
    page
}

#[test]
fn a_sound_pool_is_all_there() {
    let written = WrittenPool::new();
    assert_eq!(written.compare(&written.device), 0);
    let pool = open(&written.device, &OpenOptions::for_rescue()).unwrap();
    assert!(pool.rescue().unwrap().is_clean());
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

#[test]
fn a_damaged_page_costs_itself() {
    let written = WrittenPool::new();
    let records = written.records(RecordKind::Page);
    let mut lost = 0;
    for record in records.iter().step_by(records.len() / 12) {
        lost += written.compare(&written.damaged(*record));
    }
    assert!(lost > 0);
}

#[test]
fn a_damaged_node_costs_what_is_below_it() {
    let written = WrittenPool::new();
    let mut costly = 0;
    // Of each checkpoint the last nodes are the roots.
    let records = written.records(RecordKind::Node);
    let (leaves, tops) = records.split_at(records.len() - 4);
    for record in leaves.iter().step_by(leaves.len() / 12).chain(tops) {
        costly += usize::from(written.compare(&written.damaged(*record)) > 0);
    }
    assert!(costly > 8, "{costly} nodes were needed");
}

#[test]
fn without_a_page_of_the_segment_table_all_is_found() {
    for written in [WrittenPool::new(), WrittenPool::cleaned()] {
        let mut met = 0;
        for record in written.records(RecordKind::Table) {
            let device = written.damaged(record);
            assert_eq!(written.compare(&device), 0);
            // Those of earlier checkpoints are nobody's.
            let report = open(&device, &OpenOptions::for_rescue()).unwrap().rescue().unwrap().clone();
            if !report.is_clean() {
                assert_eq!(report.pages, 1);
                assert!(open(&device, &OpenOptions::default()).is_err());
                // Or else it is the one of second copies.
                assert!(report.segments == 0 || report.records > 500, "{report:?}");
                met += u64::from(report.segments > 1);
            }
        }
        assert_eq!(met, 1);
    }
}

/// Only the catalogue says which datasets the names lead to.
#[test]
fn without_its_catalogue_a_pool_is_refused() {
    let written = WrittenPool::new();
    let mut refused = 0;
    for record in written.records(RecordKind::Catalogue) {
        if let Err(error) = open(&written.damaged(record), &OpenOptions::for_rescue()) {
            assert!(error.is_damage() && error.to_string().contains("page of the catalogue"), "{error}");
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
}

#[test]
fn without_a_list_of_pages_of_the_segment_table_all_is_found() {
    let written = WrittenPool::cleaned();
    let places = written.places(b"PFlist", 16);
    let mut met = 0;
    for place in places {
        let device = written.damaged(place);
        assert_eq!(written.compare(&device), 0);
        met += open(&device, &OpenOptions::for_rescue()).unwrap().rescue().unwrap().lists;
    }
    assert_eq!(met, 2, "by each of its two places");
}

/// Dead records seem to live then, which hides nothing.
#[test]
fn without_a_list_of_dead_records_all_is_found() {
    let WrittenPool { device, mut versions, .. } = WrittenPool::of_size(400 * MIB);
    let main = versions.get_mut("").unwrap();
    // A segment for each time that the pool is opened. The last pages replace those of the first, which no snapshot has
    // and which are on a page of the segment table that was stored before.
    for number in 0..72 {
        let pool = open(&device, &OpenOptions::default()).unwrap();
        main.write(&*pool.dataset(), number % 70, 50_000 + number);
        pool.export().unwrap();
    }
    let written = WrittenPool::on(device, versions);
    let mut met = 0;
    for place in written.places(b"PFdead", 12) {
        let damaged = written.damaged(place);
        assert_eq!(written.compare(&damaged), 0);
        let report = open(&damaged, &OpenOptions::for_rescue()).unwrap().rescue().unwrap().clone();
        if report.dead > 0 {
            assert!(open(&damaged, &OpenOptions::default()).is_err());
        }
        met += report.dead;
    }
    assert!(met > 0);
}

#[test]
fn without_its_directory_a_segment_of_the_log_is_found_by_its_batches() {
    let written = WrittenPool::new();
    let pool = open(&written.device, &OpenOptions::default()).unwrap();
    pool.export().unwrap();
    drop(pool);
    let written = WrittenPool::on(written.device, written.versions);
    let mut met = 0;
    for place in written.places(b"PFdr", 48).into_iter().filter(|(at, _)| at % 4096 == 0) {
        let device = written.damaged(place);
        assert_eq!(written.compare(&device), 0);
        met += open(&device, &OpenOptions::for_rescue()).unwrap().rescue().unwrap().directories;
    }
    assert!(met > 1);
}

#[test]
fn without_its_directory_a_cleaned_segment_costs_what_is_in_it() {
    let written = WrittenPool::cleaned();
    let mut costly = 0;
    // Roots have directories, too, and second copies of roots.
    let bytes = |(start, len): (u64, u64)| &written.bytes[start as usize..(start + len) as usize];
    let roots = written.records(RecordKind::Root);
    let in_root = |place| roots.iter().any(|root| bytes(*root).windows(48).any(|part| part == bytes(place)));
    let places = written.places(b"PFdr", 48).into_iter();
    for place in places.filter(|place| place.0 % 4096 != 0 && !in_root(*place)) {
        costly += usize::from(written.compare(&written.damaged(place)) > 0);
    }
    assert!(costly > 0);
}

/// Numbers of segments are used again where a part of the log was given up. What is left of that part has sound
/// checksums.
#[test]
fn what_was_given_up_is_not_found() {
    let WrittenPool { device, versions, .. } = WrittenPool::new();
    let fill = |pool: &Pool, seed: u64| {
        let dataset = pool.open_dataset("other").unwrap();
        let mut model = versions["other"].clone();
        // Each pass leaves something of the one before.
        let passes = (0..14 * PAGES).map(|n| (n, n % PAGES)).filter(|(n, at)| at % 14 >= n / PAGES);
        for (n, at) in passes {
            model.write(&*dataset, at, seed + n);
            if n % 50 == 0 {
                pool.sync().unwrap();
            }
        }
        pool.sync().unwrap();
        model
    };
    let long_log = |device: &Arc<SimDevice>, accept_loss| {
        let options = OpenOptions { accept_loss, log_bytes: Some(64 * MIB), ..OpenOptions::default() };
        open(device, &options).unwrap()
    };
    let pool = long_log(&device, false);
    let aside = pool.open_dataset("other").unwrap();
    for at in 0..5 * PAGES {
        let (offset, data) = (at * u64::from(PAGE), page(at));
        let change = Change::Write { object: OBJECT + 1, record_size: PAGE, offset, data: &data };
        aside.apply(&[change]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    let start = pool.status().next_batch;
    fill(&pool, 50_000);
    drop(pool);
    let mut written = WrittenPool::on(Arc::new(device.crash(&mut |_| 0)), BTreeMap::new());
    // The second batch of that opening: all behind it is given up.
    let (second, _) =
        written.batches().into_iter().find(|(_, header)| header.number.get() == start + 1).unwrap();
    written.device.flip_bit(second + 33, 1);
    let pool = long_log(&written.device, true);
    assert!(pool.replayed().damage.is_some());
    // Chunks become free in which the log goes on: what it had before stays where it is.
    let aside = pool.open_dataset("other").unwrap();
    aside.apply(&[Change::Punch { object: OBJECT + 1, from: 0, to: u64::MAX }]).unwrap();
    (0..2).for_each(|_| pool.checkpoint(false).unwrap());
    let model = fill(&pool, 70_000);
    pool.export().unwrap();
    drop(pool);
    written = WrittenPool::on(written.device, BTreeMap::from([("other", model)]));
    let mut openings: BTreeMap<u64, BTreeSet<[u8; 6]>> = BTreeMap::new();
    for (_, header) in written.batches() {
        openings.entry(header.segment.get()).or_default().insert(header.salt);
    }
    assert!(openings.values().any(|salts| salts.len() > 1), "no number of a segment was used twice");
    for record in written.records(RecordKind::Table) {
        assert_eq!(written.compare(&written.damaged(record)), 0);
    }
}

#[test]
fn a_block_that_its_device_cannot_read_costs_what_is_in_it() {
    let written = WrittenPool::cleaned();
    let mut lost = 0;
    for block in (MIB..40 * MIB).step_by(3 << 19) {
        let device = Arc::new(written.device.crash(&mut |_| 0));
        device.inject(InjectedFault {
            op: SimOp::Read,
            range: block..block + 4096,
            skip: 0,
            times: u64::MAX,
        });
        // Where the last checkpoint's root lies nothing is left.
        if open(&device, &OpenOptions::for_rescue()).is_ok() {
            lost += written.compare(&device);
        }
    }
    assert!(lost > 0);
}

#[test]
fn only_a_read_only_opening_is_a_rescue() {
    let written = WrittenPool::new();
    let options = OpenOptions { rescue: true, ..OpenOptions::default() };
    assert!(matches!(open(&written.device, &options), Err(Error::Invalid(_))));
}
