//! Small overwrites: what is stored for them, and that nothing of it is lost.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, SimDevice, SimOp};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, PageRange, Pool, create_on};
use pagefold_engine::record::{Codec, bases_of, is_delta};

const PAGE: usize = 8192;
const OBJECT: u64 = 5;

fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Pool::open_on(devices, &OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap()
}

fn new_pool() -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(256 << 20, 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"small overwrites") };
    create_on("tank", &devices, &options).unwrap();
    let pool = open(&device);
    (device, pool)
}

fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    let mut bytes: Vec<u8> = (0..len_bytes).map(|_| next()).collect();
    // No trailing zero, so that its length is known.
    bytes[len_bytes - 1] |= 1;
    bytes
}

fn write(pool: &Pool, object: u64, offset: usize, data: &[u8]) {
    let change = Change::Write { object, record_size: PAGE as u32, offset: offset as u64, data };
    pool.dataset().apply(&[change]).unwrap();
    pool.sync().unwrap();
}

fn read(pool: &Pool, object: u64, page: usize) -> Vec<u8> {
    let mut found = vec![0; PAGE];
    pool.dataset().read(object, PAGE as u32, (page * PAGE) as u64, &mut found).unwrap();
    found
}

fn top(pool: &Pool, object: u64, page: u64) -> Vec<u8> {
    let mut ptr = [None];
    pool.live().tree.pages(object, page, &mut ptr).unwrap();
    pool.read_record(ptr[0].unwrap().addr).unwrap()
}

fn assert_sound(pool: &Pool) {
    pool.sync().unwrap();
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}

/// A page whose first record is full, changed so often.
fn change(pool: &Pool, object: u64, content: &mut [u8], times: u8) {
    for time in 1..=times {
        let at = usize::from(time) * 97 % (PAGE - 32);
        content[at..at + 32].fill(time);
        write(pool, object, at, &content[at..at + 32]);
    }
}

#[test]
fn a_small_overwrite_is_stored_as_a_delta_of_some_bytes() {
    let (device, pool) = new_pool();
    let mut content = noise(1, PAGE);
    write(&pool, OBJECT, 0, &content);
    assert!(!is_delta(&top(&pool, OBJECT, 0)));
    let before = pool.totals();
    change(&pool, OBJECT, &mut content, 3);
    let after = pool.totals();
    assert_eq!(after.pages_delta - before.pages_delta, 3);
    assert!(after.data_bytes - before.data_bytes < 3 * 80, "{}", after.data_bytes - before.data_bytes);
    assert_eq!(after.delta_bytes, after.data_bytes - before.data_bytes);
    assert_eq!(bases_of(&top(&pool, OBJECT, 0)).unwrap().len(), 3);
    assert_eq!(read(&pool, OBJECT, 0), content);
    // Usage counts the bases as well.
    assert_eq!(pool.dataset().usage(OBJECT).unwrap().pages, 1);
    assert!(pool.dataset().usage(OBJECT).unwrap().stored_bytes > PAGE as u64);
    assert_sound(&pool);
    // From the log, from a checkpoint, and with nothing in memory.
    for checkpoint in [false, true] {
        if checkpoint {
            pool.checkpoint(false).unwrap();
        }
        let again = open(&device);
        assert_eq!(read(&again, OBJECT, 0), content);
        assert_sound(&again);
    }
}

/// Overwrites a little of page 0 and says whether that was stored as a delta.
fn is_delta_after(pool: &Pool, content: &mut [u8], time: u8) -> bool {
    content[300..332].fill(time);
    write(pool, OBJECT, 300, &content[300..332]);
    is_delta(&top(pool, OBJECT, 0))
}

/// Writes four pages that are deltas, and returns them.
fn write_deltas(pool: &Pool) -> Vec<Vec<u8>> {
    let mut contents: Vec<Vec<u8>> = (0..4).map(|n| noise(20 + n, PAGE)).collect();
    for (page, content) in contents.iter_mut().enumerate() {
        write(pool, OBJECT, page * PAGE, content);
        content[7..39].fill(9);
        write(pool, OBJECT, page * PAGE + 7, &content[7..39]);
        assert!(is_delta(&top(pool, OBJECT, page as u64)));
    }
    contents
}

#[test]
fn an_object_whose_bases_are_read_from_the_device_is_stored_in_full() {
    let (device, pool) = new_pool();
    let mut contents = write_deltas(&pool);
    drop(pool);
    // Nothing is in memory: each page takes two reads, and what comes next is stored in full for a while.
    let pool = open(&device);
    for (page, content) in contents.iter().enumerate() {
        assert!(read(&pool, OBJECT, page) == *content);
    }
    let full = (1..=200).take_while(|time| !is_delta_after(&pool, &mut contents[0], *time)).count();
    // Each of four reads is paid for by 20 pages.
    assert_eq!(full, 80);
    // Bases that are in memory cost readers nothing.
    assert!(read(&pool, OBJECT, 0) == contents[0]);
    assert!(is_delta_after(&pool, &mut contents[0], 201));
    assert_sound(&pool);
}

#[test]
fn chains_are_bounded_and_space_comes_back() {
    let (_device, pool) = new_pool();
    let mut content = noise(2, PAGE);
    write(&pool, OBJECT, 0, &content);
    let full = pool.dataset().usage(OBJECT).unwrap().stored_bytes;
    for _ in 0..40 {
        change(&pool, OBJECT, &mut content, 60);
        let usage = pool.dataset().usage(OBJECT).unwrap();
        assert!(usage.stored_bytes <= 2 * full + 128, "{} of {full}", usage.stored_bytes);
        assert!(bases_of(&top(&pool, OBJECT, 0)).unwrap().len() <= 4);
    }
    assert_eq!(read(&pool, OBJECT, 0), content);
    // Unrelated content is stored in full, and frees all that was before.
    content = noise(3, PAGE);
    write(&pool, OBJECT, 0, &content);
    assert_eq!(pool.dataset().usage(OBJECT).unwrap().stored_bytes, full);
    assert_sound(&pool);
    pool.dataset().apply(&[Change::Punch { object: OBJECT, from: 0, to: u64::MAX }]).unwrap();
    assert_eq!(pool.dataset().usage(OBJECT).unwrap().stored_bytes, 0);
    assert_sound(&pool);
}

#[test]
fn a_hole_takes_the_bases_with_it() {
    let (device, pool) = new_pool();
    let mut contents: Vec<Vec<u8>> = (0..4).map(|n| noise(10 + n, PAGE)).collect();
    for (page, content) in contents.iter_mut().enumerate() {
        write(&pool, OBJECT, page * PAGE, content);
        content[8..16].fill(9);
        write(&pool, OBJECT, page * PAGE + 8, &content[8..16]);
    }
    pool.dataset().apply(&[Change::Punch { object: OBJECT, from: 1, to: 3 }]).unwrap();
    // Zeros are a hole too.
    write(&pool, OBJECT, 3 * PAGE, &[0; PAGE]);
    let again = open(&device);
    for pool in [&pool, &again] {
        assert_eq!(pool.dataset().usage(OBJECT).unwrap().pages, 1);
        assert_eq!(read(pool, OBJECT, 0), contents[0]);
        for page in 1..4 {
            assert_eq!(read(pool, OBJECT, page), vec![0; PAGE]);
        }
        assert_sound(pool);
    }
}

#[test]
fn a_snapshot_keeps_what_its_deltas_need() {
    let (device, pool) = new_pool();
    let mut content = noise(4, PAGE);
    write(&pool, OBJECT, 0, &content);
    let mut kept = Vec::new();
    for round in 0..6 {
        change(&pool, OBJECT, &mut content, 2 + round);
        let name = format!("s{round}");
        pool.snapshot(&[""], &name, 1).unwrap();
        kept.push((name, content.clone()));
    }
    write(&pool, OBJECT, 0, &noise(5, PAGE));
    assert_sound(&pool);
    for round in [1, 0, 3, 5] {
        let (name, _) = &kept[round];
        pool.destroy_snapshots(&[&format!("@{name}")]).unwrap();
        while pool.reap().unwrap() {}
        assert_sound(&pool);
    }
    pool.checkpoint(false).unwrap();
    while pool.clean().unwrap().segments > 0 && pool.totals().moved_bytes < 1 << 20 {}
    for pool in [&pool, &open(&device)] {
        for round in [2, 4] {
            let (name, content) = &kept[round];
            let snapshot = pool.open_dataset(&format!("@{name}")).unwrap();
            let mut found = vec![0; PAGE];
            snapshot.read(OBJECT, PAGE as u32, 0, &mut found).unwrap();
            assert!(found == *content, "snapshot {name}");
        }
        assert_sound(pool);
    }
}

#[test]
fn shared_pages_share_bases() {
    let (device, pool) = new_pool();
    let mut content = noise(6, 2 * PAGE);
    write(&pool, OBJECT, 0, &content);
    content[20..30].fill(1);
    write(&pool, OBJECT, 20, &content[20..30]);
    let share = |to_object, to_page| Change::Share {
        from_object: OBJECT,
        from_page: 0,
        to_object,
        to_page,
        count: 2,
    };
    pool.dataset().apply(&[share(7, 0)]).unwrap();
    pool.dataset().apply(&[share(8, 3)]).unwrap();
    // One goes on from there, one is overwritten, one is deleted.
    let mut other = content[..PAGE].to_vec();
    change(&pool, 7, &mut other, 7);
    assert!(is_delta(&top(&pool, 7, 0)));
    write(&pool, OBJECT, 0, &noise(7, PAGE));
    pool.dataset().apply(&[Change::Punch { object: OBJECT, from: 0, to: u64::MAX }]).unwrap();
    assert_sound(&pool);
    for pool in [&pool, &open(&device)] {
        assert_eq!(read(pool, 7, 0), other);
        assert_eq!(read(pool, 8, 3), content[..PAGE]);
        assert_eq!(read(pool, 8, 4), content[PAGE..]);
        assert_sound(pool);
    }
    for object in [7, 8] {
        pool.dataset().apply(&[Change::Punch { object, from: 0, to: u64::MAX }]).unwrap();
        assert_eq!(pool.dataset().usage(object).unwrap().stored_bytes, 0);
        assert_sound(&pool);
    }
}

/// Two pages of one write share a record; one makes it a base, the other does not refer to it any more.
#[test]
fn a_shared_record_becomes_a_base_of_one_page_and_another_leaves_it() {
    let (_device, pool) = new_pool();
    let content = noise(8, PAGE);
    write(&pool, OBJECT, 0, &content);
    let share =
        |to_page| Change::Share { from_object: OBJECT, from_page: 0, to_object: OBJECT, to_page, count: 1 };
    pool.dataset().apply(&[share(1), share(2)]).unwrap();
    pool.sync().unwrap();
    let mut both = content.clone();
    both[7] ^= 1;
    both.extend_from_slice(&noise(9, PAGE));
    write(&pool, OBJECT, PAGE, &both);
    assert_eq!([read(&pool, OBJECT, 0), read(&pool, OBJECT, 1)], [content.clone(), both[..PAGE].to_vec()]);
    assert_sound(&pool);
    pool.dataset().apply(&[Change::Punch { object: OBJECT, from: 0, to: 1 }]).unwrap();
    assert_eq!(read(&pool, OBJECT, 1), both[..PAGE]);
    assert_sound(&pool);
    pool.dataset().apply(&[Change::Punch { object: OBJECT, from: 0, to: 3 }]).unwrap();
    assert_eq!(pool.dataset().usage(OBJECT).unwrap().stored_bytes, 0);
    assert_sound(&pool);
}

/// The same block again and again with a longer prefix, as logs of databases are written.
#[test]
fn appending_to_a_block_costs_about_what_is_appended() {
    let (_device, pool) = new_pool();
    let content = noise(11, PAGE);
    let mut page = vec![0; PAGE];
    page[..200].copy_from_slice(&content[..200]);
    write(&pool, OBJECT, 0, &page);
    let before = pool.totals();
    for end in (300..=8000).step_by(100) {
        page[end - 100..end].copy_from_slice(&content[end - 100..end]);
        write(&pool, OBJECT, 0, &page);
    }
    let after = pool.totals();
    let each = (after.data_bytes - before.data_bytes) / 78;
    assert!(each < 800, "{each} bytes for 100; a full record takes 4,100 on average");
    assert_eq!(read(&pool, OBJECT, 0), page);
    assert_sound(&pool);
}

#[test]
fn recompression_stores_deltas_in_full() {
    let (device, pool) = new_pool();
    let mut contents: Vec<Vec<u8>> = (0..700).map(|n| noise(20 + n, PAGE)).collect();
    for (page, content) in contents.iter_mut().enumerate() {
        write(&pool, OBJECT, page * PAGE, content);
        content[300..330].fill(7);
        write(&pool, OBJECT, page * PAGE + 300, &content[300..330]);
    }
    assert!(is_delta(&top(&pool, OBJECT, 699)));
    let plain = contents.len() as u64 * (PAGE as u64 + 3 + 16);
    assert!(pool.dataset().usage(OBJECT).unwrap().stored_bytes > plain);
    // A change that was accepted meanwhile is not lost.
    contents[5][0] ^= 1;
    let change = Change::Write {
        object: OBJECT,
        record_size: PAGE as u32,
        offset: 5 * PAGE as u64,
        data: &contents[5][..1],
    };
    pool.dataset().apply(&[change]).unwrap();
    let mut at = Some((0, 0));
    while let Some(from) = at {
        let range = PageRange { object: OBJECT, from: 0, to: u64::MAX };
        at = pool.recompress(&[range], from, 300).unwrap().next;
    }
    assert_eq!(pool.dataset().usage(OBJECT).unwrap().stored_bytes, plain);
    for pool in [&pool, &open(&device)] {
        for (page, content) in contents.iter().enumerate() {
            assert!(read(pool, OBJECT, page) == *content, "page {page}");
            assert!(!is_delta(&top(pool, OBJECT, page as u64)));
        }
        assert_sound(pool);
    }
}

/// In full they would take more: what the snapshot or the copy has stays.
#[test]
fn recompression_leaves_deltas_that_others_have() {
    let (_device, pool) = new_pool();
    for page in 0..60 {
        let mut content = noise(20 + page as u64, PAGE);
        write(&pool, OBJECT, page * PAGE, &content);
        content[300..330].fill(7);
        write(&pool, OBJECT, page * PAGE + 300, &content[300..330]);
    }
    let share =
        Change::Share { from_object: OBJECT, from_page: 40, to_object: OBJECT + 1, to_page: 40, count: 10 };
    pool.dataset().apply(&[share]).unwrap();
    pool.sync().unwrap();
    let recompress = || {
        let range = PageRange { object: OBJECT, from: 0, to: u64::MAX };
        pool.recompress(&[range], (0, 0), usize::MAX).unwrap();
        pool.sync().unwrap();
    };
    let deltas = || (0..60).filter(|page| is_delta(&top(&pool, OBJECT, *page))).count();
    pool.snapshot(&[""], "s", 1).unwrap();
    // Written since, on bases that the snapshot has.
    for page in 0..20 {
        write(&pool, OBJECT, page * PAGE + 500, &[9; 20]);
    }
    pool.sync().unwrap();
    let used = pool.status().used_bytes;
    recompress();
    assert_eq!(deltas(), 60);
    assert!(pool.status().used_bytes <= used, "{} bytes of {used}", pool.status().used_bytes);

    pool.destroy_snapshots(&["@s"]).unwrap();
    while pool.is_reaping() {
        pool.maintain().unwrap();
    }
    recompress();
    assert_eq!(deltas(), 10, "those that are shared with the copy");
    assert_sound(&pool);
}

/// A pool with little room stores pages in full, which frees what they were.
#[test]
fn a_pool_that_is_nearly_full_makes_no_deltas() {
    let (_device, pool) = new_pool();
    let mut content = noise(12, PAGE);
    write(&pool, OBJECT, 0, &content);
    let chunk = noise(13, 1 << 20);
    for at in 0.. {
        let space = pool.dataset().space();
        if space.available_bytes < space.capacity_bytes / 20 {
            break;
        }
        write(&pool, 9, at << 20, &chunk);
    }
    let before = pool.totals().pages_delta;
    change(&pool, OBJECT, &mut content, 3);
    assert_eq!(pool.totals().pages_delta, before);
    assert_eq!(read(&pool, OBJECT, 0), content);
}

/// Text that ends differently for each seed.
fn line(seed: u64, len_bytes: usize) -> Vec<u8> {
    let words =
        ["begin ", "insert into orders ", "values ", "commit ", "analyze ", "2026-11-29 ", "update ", "xid "];
    noise(seed, len_bytes)
        .iter()
        .flat_map(|byte| words[usize::from(byte % 8)].bytes())
        .take(len_bytes)
        .collect()
}

/// Writes over `content` by quarters of pages, each of which somebody waits for.
fn write_over(pool: &Pool, content: &mut [u8], seed: u64) {
    for at in (0..content.len()).step_by(PAGE / 4) {
        let part = line(seed + at as u64, PAGE / 4);
        content[at..at + PAGE / 4].copy_from_slice(&part);
        write(pool, OBJECT, at, &part);
        assert_eq!(read(pool, OBJECT, at / PAGE), content[at / PAGE * PAGE..][..PAGE]);
    }
}

fn assert_has(pool: &Pool, content: &[u8]) {
    for (page, expected) in content.chunks_exact(PAGE).enumerate() {
        assert_eq!(read(pool, OBJECT, page), expected);
    }
}

/// Codes all pages again that were coded in haste.
fn quiet(pool: &Pool) {
    (0..6).for_each(|_| pool.age_pages());
    while pool.code_quiet().unwrap().is_some() {}
}

fn digits(seed: u64, len_bytes: usize) -> Vec<u8> {
    noise(seed, len_bytes).iter().map(|byte| b'0' + byte % 64).collect()
}

/// Found by filling a pool within seconds: half of its pages stayed as LZ4 had left them, since there was no room to code
/// them again.
#[test]
fn a_pool_that_fills_up_at_once_is_not_full_of_pages_in_haste() {
    let (_device, pool) = new_pool();
    let mut at = 0;
    loop {
        let data = digits(at, PAGE / 2);
        let (object, record_size, offset) = (OBJECT, PAGE as u32, at * PAGE as u64 / 2);
        let change = Change::Write { object, record_size, offset, data: &data };
        if pool.dataset().apply(&[change]).is_err() {
            break;
        }
        pool.sync().unwrap();
        at += 1;
    }
    let codec = |page| Codec::from_id(top(&pool, OBJECT, page)[0]).unwrap();
    let pages = at / 2;
    let raw = (0..pages).filter(|page| codec(*page) == Codec::Raw).count() as u64;
    assert!(pages > 10_000 && raw * 6 < pages, "{raw} of {pages}");
    assert_sound(&pool);
}

/// LZ4 makes nothing of digits of base 64 without repetitions, zstd three quarters.
#[test]
fn a_page_in_which_lz4_found_nothing_is_coded_again_too() {
    let (_device, pool) = new_pool();
    write(&pool, OBJECT, 0, &digits(1, PAGE));
    write(&pool, OBJECT, 0, &digits(2, PAGE - 1000));
    assert_eq!(Codec::from_id(top(&pool, OBJECT, 0)[0]), Some(Codec::Raw));
    let content = read(&pool, OBJECT, 0);
    quiet(&pool);
    assert_eq!(Codec::from_id(top(&pool, OBJECT, 0)[0]), Some(Codec::Zstd));
    assert_eq!(read(&pool, OBJECT, 0), content);
}

/// The tail of a log is coded fast while it grows, and small when it is quiet.
#[test]
fn what_is_written_in_haste_is_coded_again_when_it_is_quiet() {
    let (device, pool) = new_pool();
    let codec = |page| Codec::from_id(top(&pool, OBJECT, page)[0]).unwrap();
    let in_haste = || (0..8).filter(|page| matches!(codec(*page), Codec::Lz4 | Codec::DeltaLz4)).count();
    let mut content = line(1, 8 * PAGE);
    write(&pool, OBJECT, 0, &content);
    assert_eq!(codec(0), Codec::Zstd);
    write_over(&pool, &mut content, 100);
    assert_eq!(in_haste(), 8);
    assert_eq!(pool.code_quiet().unwrap(), None);
    pool.age_pages();
    assert_eq!(pool.code_quiet().unwrap(), None);
    (0..4).for_each(|_| pool.age_pages());
    let part = line(7, 100);
    content[..100].copy_from_slice(&part);
    write(&pool, OBJECT, 0, &part);
    pool.age_pages();
    while pool.code_quiet().unwrap().is_some() {}
    assert_eq!((in_haste(), codec(7)), (1, Codec::Zstd));
    quiet(&pool);
    assert_eq!((in_haste(), codec(0)), (0, Codec::Zstd));
    assert_has(&pool, &content);
    // A record that a snapshot has, too, stays: another one would be one more.
    write_over(&pool, &mut content, 200);
    pool.snapshot(&[""], "one", 1).unwrap();
    quiet(&pool);
    assert_eq!(in_haste(), 8);
    assert_has(&pool, &content);
    assert_sound(&pool);
    drop(pool);
    assert_has(&open(&device), &content);
}

/// A page that is read from the device with its base costs two reads each time. The first of these has it stored in full.
#[test]
fn a_page_whose_bases_had_to_be_read_is_stored_in_full() {
    let (device, pool) = new_pool();
    let mut contents = write_deltas(&pool);
    // Memory costs nothing.
    assert_eq!(read(&pool, OBJECT, 0), contents[0]);
    assert_eq!(pool.store_chained().unwrap(), None);
    drop(pool);
    let pool = open(&device);
    pool.snapshot(&[""], "one", 1).unwrap();
    assert_eq!(read(&pool, OBJECT, 3), contents[3]);
    assert_eq!(read(&pool, OBJECT, 0), contents[0]);
    // Two at once are a scan, and a part is no page.
    let mut both = vec![0; 2 * PAGE];
    pool.dataset().read(OBJECT, PAGE as u32, PAGE as u64, &mut both).unwrap();
    assert_eq!(both, contents[1..3].concat());
    assert_eq!(pool.store_chained().unwrap(), Some(2 * PAGE as u64));
    assert_eq!(pool.store_chained().unwrap(), None);
    // The snapshot has these records, too: another one would be one more.
    assert!((0..4).all(|page| is_delta(&top(&pool, OBJECT, page))));
    pool.destroy_snapshots(&["@one"]).unwrap();
    while pool.reap().unwrap() {}
    drop(pool);
    let pool = open(&device);
    for page in [0, 1] {
        assert_eq!(read(&pool, OBJECT, page), contents[page]);
    }
    // One that was written meanwhile is left as it was written.
    contents[1] = noise(77, PAGE);
    write(&pool, OBJECT, PAGE, &contents[1]);
    pool.store_chained().unwrap().unwrap();
    assert!(!is_delta(&top(&pool, OBJECT, 0)) && is_delta(&top(&pool, OBJECT, 2)));
    for (page, content) in contents.iter().enumerate() {
        assert_eq!(read(&pool, OBJECT, page), *content);
    }
    assert_sound(&pool);
}

#[test]
fn a_delta_that_cannot_be_read_keeps_no_other_from_being_stored_in_full() {
    let (device, pool) = new_pool();
    let mut contents: Vec<Vec<u8>> = (0..40).map(|n| noise(20 + n, PAGE)).collect();
    let base = contents[7].clone();
    for (page, content) in contents.iter_mut().enumerate() {
        write(&pool, OBJECT, page * PAGE, content);
        content[300..330].fill(7);
        write(&pool, OBJECT, page * PAGE + 300, &content[300..330]);
    }
    drop(pool);
    let pool = open(&device);
    let deltas = || (0..40).filter(|page| is_delta(&top(&pool, OBJECT, *page))).collect::<Vec<_>>();
    let recompress = || {
        let range = PageRange { object: OBJECT, from: 0, to: u64::MAX };
        pool.recompress(&[range], (0, 0), usize::MAX).unwrap();
    };
    assert_eq!(deltas().len(), 40);
    let mut all = AlignedBuf::zeroed(32 << 20);
    device.read(0, &mut all).unwrap();
    // Noise is stored as it is.
    let at = all.windows(PAGE).position(|window| window == base).unwrap() as u64;
    device.inject(InjectedFault { op: SimOp::Read, range: at..at + 1, skip: 0, times: u64::MAX });
    recompress();
    assert_eq!(deltas(), [7]);
    device.clear_faults();
    recompress();
    assert_eq!(deltas(), []);
    for (page, content) in contents.iter().enumerate() {
        assert!(read(&pool, OBJECT, page) == *content, "page {page}");
    }
    assert_sound(&pool);
}
