//! A pool as its users see it: accept, sync, crash, replay, checkpoint, clean, export.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, OneDevice, SimDevice};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::{Error, Key};

const MIB: u64 = 1 << 20;
const PAGE: u32 = 8192;

fn options() -> CreateOptions {
    CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") }
}

fn device(size_bytes: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(size_bytes, 1))
}

fn devices(device: &Arc<SimDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(device) as Arc<dyn Device>]
}

fn fresh(size_bytes: u64) -> (Arc<SimDevice>, Arc<Pool>) {
    let device = device(size_bytes);
    create_on("tank", &devices(&device), &options()).unwrap();
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    (device, pool)
}

/// A page that compresses to about a third, different for each seed.
fn page(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(PAGE as usize);
    while out.len() < PAGE as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
        out.extend_from_slice(b"row of a table  ");
    }
    out.truncate(PAGE as usize);
    out
}

fn write(pool: &Pool, object: u64, at: u64, data: &[u8]) {
    pool.dataset()
        .apply(&[Change::Write { object, record_size: PAGE, offset: at * u64::from(PAGE), data }])
        .unwrap();
}

fn read(pool: &Pool, object: u64, at: u64) -> Vec<u8> {
    let mut out = vec![0xaa; PAGE as usize];
    pool.dataset().read(object, PAGE, at * u64::from(PAGE), &mut out).unwrap();
    out
}

fn assert_clean(pool: &Pool) {
    let report = pool.check_open(&mut |_| {});
    assert_eq!(report.messages, Vec::<String>::new());
}

#[test]
fn what_was_synced_survives_a_crash() {
    let (device, pool) = fresh(256 * MIB);
    let key = Key::new(7, 1, 9);
    pool.dataset().apply(&[Change::Put(key, b"value".to_vec())]).unwrap();
    for at in 0..300 {
        write(&pool, 5, at, &page(at));
    }
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    assert_eq!(pool.dataset().get(&key).unwrap().as_deref(), Some(&b"value"[..]));
    for at in 0..300 {
        assert_eq!(read(&pool, 5, at), page(at), "page {at}");
    }
    assert_eq!(pool.dataset().usage(5).unwrap().pages, 300);
    assert_clean(&pool);
}

#[test]
fn an_exported_pool_has_nothing_to_replay() {
    let (device, pool) = fresh(256 * MIB);
    write(&pool, 5, 0, &page(1));
    pool.export().unwrap();
    assert!(pool.dataset().apply(&[Change::Delete(Key::new(1, 1, 1))]).is_err());
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    assert!(pool.replayed().clean);
    assert_eq!(read(&pool, 5, 0), page(1));
    assert_clean(&pool);
}

#[test]
fn partial_and_unaligned_writes_merge_with_what_is_there() {
    let (device, pool) = fresh(256 * MIB);
    write(&pool, 5, 0, &page(1));
    write(&pool, 5, 1, &page(2));
    pool.sync().unwrap();
    let patch = vec![7; 100];
    pool.dataset()
        .apply(&[Change::Write { object: 5, record_size: PAGE, offset: 8150, data: &patch }])
        .unwrap();
    let mut expected = page(1);
    expected.extend_from_slice(&page(2));
    expected[8150..8250].fill(7);
    let mut found = vec![0; 16384];
    pool.dataset().read(5, PAGE, 0, &mut found).unwrap();
    assert!(found == expected);
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    pool.dataset().read(5, PAGE, 0, &mut found).unwrap();
    assert!(found == expected);
}

#[test]
fn zeros_and_punched_pages_take_nothing() {
    let (_device, pool) = fresh(256 * MIB);
    let dataset = pool.dataset();
    for at in 0..10 {
        write(&pool, 5, at, &page(at));
    }
    write(&pool, 5, 3, &vec![0; PAGE as usize]);
    dataset.apply(&[Change::Punch { object: 5, from: 5, to: 7 }]).unwrap();
    pool.sync().unwrap();
    assert_eq!(dataset.usage(5).unwrap().pages, 7);
    assert_eq!(read(&pool, 5, 3), vec![0; PAGE as usize]);
    assert_eq!(read(&pool, 5, 5), vec![0; PAGE as usize]);
    assert_eq!(dataset.next_hole(5, 0).unwrap(), 3);
    assert_eq!(dataset.next_data(5, 5).unwrap(), Some(7));
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    assert_eq!(dataset.usage(5).unwrap(), Default::default());
    assert_eq!(dataset.space().logical_bytes, 0);
    assert_clean(&pool);
}

#[test]
fn shared_pages_live_until_the_last_reference_goes() {
    let (device, pool) = fresh(256 * MIB);
    let dataset = pool.dataset();
    for at in 0..20 {
        write(&pool, 5, at, &page(at));
    }
    pool.sync().unwrap();
    write(&pool, 5, 4, &page(104));
    let share = Change::Share { from_object: 5, from_page: 0, to_object: 6, to_page: 2, count: 20 };
    dataset.apply(&[share]).unwrap();
    let expect = |at: u64| if at == 4 { page(104) } else { page(at) };
    for at in 0..20 {
        assert!(read(&pool, 6, at + 2) == expect(at), "page {at}");
    }
    pool.sync().unwrap();
    assert_clean(&pool);
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    drop((pool, dataset));
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    for at in 0..20 {
        assert!(read(&pool, 6, at + 2) == expect(at), "page {at}");
    }
    assert_clean(&pool);
    pool.dataset().apply(&[Change::Punch { object: 6, from: 0, to: u64::MAX }]).unwrap();
    pool.checkpoint(false).unwrap();
    assert_clean(&pool);
}

#[test]
fn a_small_pool_overwritten_for_long_never_fills_up() {
    let (device, pool) = fresh(200 * MIB);
    let mut model = BTreeMap::new();
    let mut state = 1_u64;
    let live = 12_000;
    for step in 0..60_000_u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (state >> 33) % live;
        write(&pool, 5, at, &page(step));
        model.insert(at, step);
        if step % 5000 == 0 {
            pool.sync().unwrap();
            pool.maintain().unwrap();
        }
    }
    pool.sync().unwrap();
    assert!(pool.totals().moved_bytes > 0, "cleaning was needed");
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    for (at, step) in &model {
        assert!(read(&pool, 5, *at) == page(*step), "page {at}");
    }
    assert_clean(&pool);
    pool.export().unwrap();
    let pool =
        Pool::open_on(devices(&device), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    for (at, step) in &model {
        assert!(read(&pool, 5, *at) == page(*step), "page {at}");
    }
    assert_clean(&pool);
}

#[test]
fn a_full_pool_refuses_writes_and_allows_deletion() {
    let (_device, pool) = fresh(130 * MIB);
    let dataset = pool.dataset();
    let mut noise = vec![0_u8; PAGE as usize];
    let mut state = 1_u64;
    let mut written = 0;
    let refused = loop {
        for byte in noise.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            byte.copy_from_slice(&state.to_le_bytes());
        }
        let offset = written * u64::from(PAGE);
        match dataset.apply(&[Change::Write { object: 5, record_size: PAGE, offset, data: &noise }]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "the pool never fills up");
    };
    assert!(matches!(refused, pagefold_engine::Error::NoSpace(_)), "{refused}");
    assert!(written * u64::from(PAGE) > 50 * MIB, "{written} pages");
    pool.sync().unwrap();
    dataset.apply(&[Change::Punch { object: 5, from: written / 2, to: u64::MAX }]).unwrap();
    pool.sync().unwrap();
    write(&pool, 5, 0, &page(1));
    pool.sync().unwrap();
    assert_clean(&pool);
}

#[test]
fn any_one_superblock_and_either_label_may_be_lost() {
    let (device, pool) = fresh(256 * MIB);
    write(&pool, 5, 0, &page(1));
    pool.checkpoint(false).unwrap();
    pool.export().unwrap();
    drop(pool);
    let blank = pagefold_engine::device::AlignedBuf::zeroed(MIB as usize);
    for offset in [0, device.size_bytes() - MIB] {
        let mut saved = pagefold_engine::device::AlignedBuf::zeroed(MIB as usize);
        device.read(offset, &mut saved).unwrap();
        device.write(offset, &blank, true).unwrap();
        let pool =
            Pool::open_on(devices(&device), &OpenOptions { read_only: true, ..OpenOptions::default() })
                .unwrap();
        assert!(read(&pool, 5, 0) == page(1));
        device.write(offset, &saved, true).unwrap();
    }
}

#[test]
fn properties_are_kept() {
    let (device, pool) = fresh(256 * MIB);
    assert_eq!(pool.property("compression").unwrap(), None);
    pool.set_property("compression", Some("zstd-3")).unwrap();
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    assert_eq!(pool.property("compression").unwrap().as_deref(), Some("zstd-3"));
}

#[test]
fn any_number_of_changes_may_be_accepted_between_commits() {
    let (device, pool) = fresh(256 * MIB);
    // More operations than a segment holds, in changes of many values and of one page that is overwritten.
    for at in 0..60_000 {
        pool.dataset().apply(&[Change::Put(Key::new(at + 1, 1, 0), vec![7; 100])]).unwrap();
    }
    for at in 0..60_000_u64 {
        let data = at.to_le_bytes();
        pool.dataset()
            .apply(&[Change::Write { object: 5, record_size: PAGE, offset: at % 1000 * 8, data: &data }])
            .unwrap();
    }
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    for at in 0..60_000 {
        assert!(pool.dataset().get(&Key::new(at + 1, 1, 0)).unwrap().is_some());
    }
    assert_eq!(read(&pool, 5, 0)[7992..8000], 59_999_u64.to_le_bytes());
    assert_clean(&pool);
}

#[test]
fn features_unknown_to_this_version_are_respected() {
    let (device, pool) = fresh(256 * MIB);
    write(&pool, 5, 0, &page(1));
    pool.export().unwrap();
    drop(pool);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let mut label = pagefold_engine::pool::Label::read(OneDevice::of(device.as_ref())).unwrap();
    label.readonly_compat = 4;
    label.write(OneDevice::of(device.as_ref())).unwrap();
    let refused = Pool::open_on(devices(&device), &OpenOptions::default()).err().unwrap();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(read(&Pool::open_on(devices(&device), &read_only).unwrap(), 5, 0) == page(1));
    label.incompat = 4;
    label.write(OneDevice::of(device.as_ref())).unwrap();
    let refused = Pool::open_on(devices(&device), &read_only).err().unwrap();
    assert!(matches!(refused, pagefold_engine::Error::Unsupported(_)), "{refused}");
}

#[test]
fn a_range_of_metadata_reaches_beyond_pages() {
    let (_device, pool) = fresh(256 * MIB);
    let mut keys = Vec::new();
    for object in 1..20 {
        for offset in [0, 1, u64::MAX] {
            keys.push(Key::new(object, 1, offset));
        }
        for at in 0..object * 5 {
            write(&pool, object, at, &page(at));
        }
    }
    for key in &keys {
        pool.dataset().apply(&[Change::Put(*key, key.object.to_le_bytes().to_vec())]).unwrap();
    }
    pool.set_property("compression", Some("lz4")).unwrap();
    pool.sync().unwrap();
    let end = Key::new(u64::MAX, Key::ENGINE_KINDS, 0);
    for limit in [1, 2, 7, 57, 1000] {
        let mut found = Vec::new();
        let mut from = Key::new(0, 0, 0);
        loop {
            let batch = pool.dataset().range(&from, &end, limit).unwrap();
            found.extend(batch.iter().map(|(key, _)| *key));
            let Some((last, _)) = batch.last().filter(|_| batch.len() == limit) else { break };
            from = match last.offset.checked_add(1) {
                Some(offset) => Key { offset, ..*last },
                None => Key::new(last.object, last.kind + 1, 0),
            };
        }
        assert_eq!(found, keys, "limit {limit}");
    }
}

#[test]
fn the_shortest_records_do_not_overflow_a_segment() {
    let (device, pool) = fresh(256 * MIB);
    // 3 bytes each: without a bound, 140,000 would share a segment.
    let mut page = vec![0; 4096];
    for at in 0..70_000_u64 {
        page[0] = at as u8 | 1;
        let change = Change::Write { object: 5, record_size: 4096, offset: at * 4096, data: &page };
        pool.dataset().apply(&[change]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    let before = pool.status().next_batch;
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    assert!(pool.status().next_batch >= before);
    assert_eq!(pool.dataset().usage(5).unwrap().pages, 70_000);
    assert_clean(&pool);
}

#[test]
fn a_share_without_bounds_is_refused() {
    let (_device, pool) = fresh(256 * MIB);
    for count in [u64::MAX, 1 << 40] {
        let share = Change::Share { from_object: 5, from_page: 1, to_object: 6, to_page: 0, count };
        assert!(matches!(pool.dataset().apply(&[share]), Err(pagefold_engine::Error::Invalid(_))), "{count}");
    }
}

#[test]
fn a_change_that_no_segment_of_the_log_can_take_is_refused_and_costs_nothing_else() {
    let (device, pool) = fresh(2048 * MIB);
    let data = [7; 4096];
    let write = |object| Change::Write { object, record_size: 4096, offset: 0, data: &data };
    pool.dataset().apply(&[write(5)]).unwrap();
    let share =
        |to_object| Change::Share { from_object: 5, from_page: 0, to_object, to_page: 0, count: 1 << 16 };
    let shares: Vec<Change<'_>> = (6..11).map(share).collect();
    let refused = pool.dataset().apply(&shares).map_err(|error| error.to_string());
    // Changes before it are made durable, and so are those after it.
    pool.sync().unwrap();
    assert!(refused.as_ref().is_err_and(|why| why.contains("divide it")), "{refused:?}");
    assert_eq!(pool.dataset().usage(6).unwrap().pages, 0);
    let share = Change::Share { from_object: 5, from_page: 0, to_object: 6, to_page: 0, count: 4096 };
    pool.dataset().apply(&[share, write(7)]).unwrap();
    pool.sync().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    for object in 5..8 {
        assert_eq!(pool.dataset().usage(object).unwrap().pages, 1, "{object}");
    }
    assert_clean(&pool);
}

#[test]
fn what_a_pool_holds_does_not_depend_on_the_cache() {
    let device = device(2 << 30);
    create_on("tank", &devices(&device), &options()).unwrap();
    let capacity = |cache_bytes| {
        let options = OpenOptions { cache_bytes, read_only: true, ..OpenOptions::default() };
        Pool::open_on(devices(&device), &options).unwrap().dataset().space().capacity_bytes
    };
    assert_eq!(capacity(64 << 20), capacity(4 << 30));
}

#[test]
fn changed_tree_nodes_keep_within_their_share_of_memory() {
    // In a pool of this size checkpoints are due at 2 MiB; nothing but commits makes them here.
    let (_device, pool) = fresh(144 * MIB);
    let mut most = 0;
    let mut page = vec![0; PAGE as usize];
    for n in 0..250_000_u64 {
        let scattered = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        page[..8].copy_from_slice(&scattered.to_le_bytes());
        write(&pool, 5, scattered >> 37, &page);
        if n % 500 == 0 {
            pool.sync().unwrap();
            most = most.max(pool.status().unstored_tree_bytes);
        }
    }
    assert!((2 * MIB..5 * MIB).contains(&most), "changed nodes took {most} bytes at most");
    assert_clean(&pool);
}

#[test]
fn properties_of_the_last_checkpoint_are_read_without_opening_the_pool() {
    let (device, pool) = fresh(256 * MIB);
    let stored = || Pool::stored_properties(devices(&device)).unwrap();
    assert!(stored().is_empty(), "a pool that was just made has none");
    pool.set_property("cache", Some("1073741824")).unwrap();
    pool.create_dataset("db", 1).unwrap();
    pool.set_property_of("db", "sync", Some("always")).unwrap();
    pool.checkpoint(false).unwrap();
    // The pool is open meanwhile, and its log goes on.
    pool.set_property("cache", Some("5")).unwrap();
    pool.sync().unwrap();
    assert_eq!(stored(), BTreeMap::from([("cache".to_owned(), "1073741824".to_owned())]));
    pool.set_property("cache", None).unwrap();
    pool.export().unwrap();
    assert!(stored().is_empty());
}

#[test]
fn properties_of_no_pool_are_an_error() {
    let device = device(256 * MIB);
    assert!(Pool::stored_properties(devices(&device)).is_err());
    assert!(Pool::stored_properties(Vec::new()).is_err());
}

/// A wrong size read as damage, and was counted as such.
#[test]
fn mistakes_of_callers_are_no_damage() {
    let (device, pool) = fresh(256 * MIB);
    write(&pool, 5, 0, &page(1));
    pool.export().unwrap();
    drop(pool);
    let pool = Pool::open_on(devices(&device), &OpenOptions::default()).unwrap();
    let dataset = pool.dataset();
    let error = dataset.read(5, 4096, 0, &mut [0; 4096]).unwrap_err();
    assert!(
        matches!(error, Error::Invalid(_)) && error.to_string().contains("pages of 8192 bytes"),
        "{error}"
    );
    assert!(pool.faults().struck.is_empty(), "it was counted as damage");
    let data = vec![1; ATOMIC_WRITE_MAX + 1];
    let error =
        dataset.apply(&[Change::Write { object: 5, record_size: PAGE, offset: 0, data: &data }]).unwrap_err();
    assert!(error.to_string().contains("longer than 1048576 bytes"), "{error}");
    assert_eq!(read(&pool, 5, 0), page(1));
}
