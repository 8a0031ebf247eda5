//! Objects whose model came late, or that nobody counted, are known until they are coded again.

use std::sync::Arc;

use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, InjectedFault, IoClass, IoKind, SimDevice, SimOp};
use pagefold_engine::pool::{LateObject, LearnOptions, Pool};

use super::{
    LEARN, PAGE, PAGES, assert_holds, assert_sound, before_the_model, heap, modelled, new_pool, open,
    recompress, stored, whole, write,
};

#[test]
fn objects_whose_model_came_late_are_known_until_they_are_coded_again() {
    let (_, pool, pages) = before_the_model();
    assert_eq!(pool.late(), [((1, 5), 0)]);
    write(&pool, 5, 0, &pages[..10]);
    assert_eq!(pool.late(), [((1, 5), 10)]);
    recompress_late(&pool);
    assert_eq!(pool.late(), []);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

#[test]
fn what_is_coded_again_gets_a_model_first() {
    let (device, pool) = new_pool("page-1");
    let pages = heap(2);
    write(&pool, 5, 0, &pages);
    drop(pool);
    // Who wrote these pages is forgotten: nobody learns from them by himself.
    let pool = open(&device, 1);
    assert_eq!(pool.learn(&LEARN).unwrap(), None);
    let report = recompress(&pool, &[whole(5)]);
    assert_eq!((report.recompressed, modelled(&pool, 5)), (PAGES, PAGES as usize));
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// All calls that the objects take which wait to be coded again.
pub(super) fn recompress_late(pool: &Pool) {
    while let Some((of, _)) = pool.late().first().copied() {
        let mut late = LateObject::new(of);
        while pool.recompress_late(&mut late, 300).unwrap() {}
    }
}

#[test]
fn what_waits_to_be_coded_again_waits_over_restarts_until_all_of_it_was() {
    let (device, pool, pages) = before_the_model();
    assert!(pool.recompress_late(&mut LateObject::new((1, 5)), 300).unwrap(), "it is planned");
    drop(pool);
    let device = Arc::new(device.crash(&mut |_| 0));
    let pool = open(&device, 1);
    assert_eq!(pool.late(), [((1, 5), 0)]);
    recompress_late(&pool);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_sound(&pool);
    pool.checkpoint(false).unwrap();
    drop(pool);
    let pool = open(&Arc::new(device.crash(&mut |_| 0)), 2);
    assert_eq!((pool.late(), modelled(&pool, 5)), (vec![], PAGES as usize));
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// All that the search finds.
fn seek(pool: &Pool) {
    let mut at = Some((0, 0));
    while let Some(from) = at {
        at = pool.seek(from).unwrap();
    }
}

#[test]
fn objects_that_nobody_counted_are_sought() {
    let (device, pool) = new_pool("zstd-1");
    let pages = heap(2);
    let noise: Vec<Vec<u8>> = (0..100).map(|seed| Random::new(seed).bytes(PAGE)).collect();
    write(&pool, 5, 0, &pages);
    write(&pool, 6, 0, &noise);
    write(&pool, 7, 0, &pages[..7]);
    seek(&pool);
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "compression says so");
    drop(pool);
    let pool = open(&device, 1);
    pool.set_compression("auto".parse().unwrap());
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "who wrote them is forgotten");
    seek(&pool);
    let learned = pool.learn(&LearnOptions::IDLE).unwrap().unwrap();
    assert_eq!((learned.object, learned.adopted, learned.first), (5, Some(1), true));
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None, "neither noise nor what is too small");
    recompress_late(&pool);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_holds(&pool, 5, &pages);
    assert_holds(&pool, 6, &noise);
    assert_sound(&pool);
}

/// The bytes that were read in order to code again.
fn read_to_recompress(device: &SimDevice) -> u64 {
    let all = device.stats().requests();
    all.iter()
        .filter(|of| of.class == IoClass::Recompression && of.kind == IoKind::Read)
        .map(|of| of.bytes)
        .sum()
}

/// Found on a database with random updates: each step of 512 pages read all segments, since each had some of the pages,
/// and moved none, since a few pages are not worth moving a segment. The disc was busy for hours, and nothing gained.
#[test]
fn pages_that_were_written_in_no_order_are_coded_again_segment_by_segment() {
    let (device, pool) = new_pool("page-1");
    let (mut random, schema) = (Random::new(9), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..12_000).map(|block| heap_page(&mut random, &schema, block)).collect();
    for at in 0..pages.len() {
        let page = at * 3571 % pages.len();
        let change = Change::Write {
            object: 5,
            record_size: PAGE as u32,
            offset: (page * PAGE) as u64,
            data: &pages[page],
        };
        pool.dataset().apply(&[change]).unwrap();
    }
    pool.sync().unwrap();
    assert!(pool.learn(&LEARN).unwrap().unwrap().adopted.is_some());
    pool.checkpoint(false).unwrap();
    let (before, read_before) = (stored(&pool, 5), read_to_recompress(&device));
    assert!(before > 16 << 20, "{before} bytes lie in several segments");
    let mut late = LateObject::new((1, 5));
    while pool.recompress_late(&mut late, 100).unwrap() {}
    assert_eq!(pool.late(), []);
    let (after, read) = (stored(&pool, 5), read_to_recompress(&device) - read_before);
    assert!(after * 10 < before * 8, "{before} bytes became {after}");
    assert!(read < 2 * before, "{read} bytes were read for {before}");
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// A segment that cannot be read is passed over, as one that is damaged: a database that nobody asked to be coded again goes on.
#[test]
fn a_read_error_ends_neither_the_coding_again_nor_the_pool() {
    let (device, pool, pages) = before_the_model();
    write(&pool, 6, 0, &pages[..20]);
    let whole_device = 1 << 20..256 << 20;
    let failing = |range| InjectedFault { op: SimOp::Read, range, skip: 0, times: u64::MAX };
    let mut late = LateObject::new((1, 5));
    assert!(pool.recompress_late(&mut late, 300).unwrap(), "it is planned");
    device.inject(failing(whole_device.clone()));
    while pool.recompress_late(&mut late, 300).unwrap() {}
    write(&pool, 6, 20, &pages[20..40]);
    device.clear_faults();
    assert_holds(&pool, 5, &pages);
    assert_holds(&pool, 6, &pages[..40]);
    assert_eq!(modelled(&pool, 5), 0);
    // Who asks for it is not stopped by it, either.
    device.inject(failing(whole_device));
    assert_eq!(recompress(&pool, &[whole(5)]).recompressed, 0);
    write(&pool, 6, 40, &pages[40..50]);
    device.clear_faults();
    assert_eq!(recompress(&pool, &[whole(5)]).recompressed, PAGES);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

#[test]
fn an_object_whose_pages_cannot_be_read_does_not_stop_the_search() {
    let (device, pool) = new_pool("zstd-1");
    let noise: Vec<Vec<u8>> = (0..8).map(|seed| Random::new(seed).bytes(PAGE)).collect();
    let pages = heap(2);
    write(&pool, 5, 0, &noise);
    write(&pool, 6, 0, &pages);
    pool.checkpoint(false).unwrap();
    drop(pool);
    let pool = open(&device, 1);
    pool.set_compression("auto".parse().unwrap());
    let mut all = AlignedBuf::zeroed(32 << 20);
    device.read(0, &mut all).unwrap();
    for page in &noise {
        // Noise is stored as it is.
        let at = all.windows(PAGE).position(|window| window == page).unwrap() as u64;
        device.inject(InjectedFault { op: SimOp::Read, range: at..at + 1, skip: 0, times: u64::MAX });
    }
    seek(&pool);
    device.clear_faults();
    let learned = pool.learn(&LearnOptions::IDLE).unwrap().unwrap();
    assert_eq!(learned.object, 6);
}

/// A page that cannot be read tells a model nothing, and is left as it is. The others tell enough.
#[test]
fn a_page_that_cannot_be_read_keeps_no_object_from_its_model() {
    let (device, pool) = new_pool("off");
    let (pages, others) = (heap(2), heap(3));
    write(&pool, 5, 0, &pages);
    drop(pool);
    let pool = open(&device, 1);
    write(&pool, 6, 0, &others);
    drop(pool);
    let pool = open(&device, 2);
    pool.set_compression("page-1".parse().unwrap());
    let mut all = AlignedBuf::zeroed(64 << 20);
    device.read(0, &mut all).unwrap();
    let page = &pages[0][..PAGE / 2];
    let at = all.windows(page.len()).position(|window| window == page).unwrap() as u64;
    device.inject(InjectedFault { op: SimOp::Read, range: at..at + 1, skip: 0, times: u64::MAX });
    recompress(&pool, &[whole(5), whole(6)]);
    assert_eq!(modelled(&pool, 6), PAGES as usize);
    assert_holds(&pool, 6, &others);
    device.clear_faults();
    recompress(&pool, &[whole(5)]);
    assert_eq!(modelled(&pool, 5), PAGES as usize);
    assert_holds(&pool, 5, &pages);
    assert_sound(&pool);
}

/// Entries of a tree that cannot be read ended each step of the search, at the same place, again and again.
#[test]
fn entries_that_cannot_be_read_do_not_stop_the_search() {
    let (device, pool) = new_pool("zstd-1");
    write(&pool, 5, 0, &heap(2));
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device, 1);
    pool.set_compression("auto".parse().unwrap());
    device.inject(InjectedFault { op: SimOp::Read, range: 0..u64::MAX, skip: 0, times: u64::MAX });
    seek(&pool);
    device.clear_faults();
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap(), None);
    seek(&pool);
    assert_eq!(pool.learn(&LearnOptions::IDLE).unwrap().unwrap().object, 5);
}
