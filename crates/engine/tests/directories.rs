//! Directories of segments: any entries come back, and one of very many is found by reading little.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{PAGE, fresh};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, Devices, SimDevice};
use pagefold_engine::segment::{DirEntry, Directory, LiveMap, Part, Segment, Segments};
use pagefold_engine::space::{Chunk, Extent};
use pagefold_engine::{Addr, Error};
use proptest::prelude::*;

const CHUNK_BYTES: u32 = 4 << 20;
const SEGMENT: u64 = 7;

/// Of a full segment: after so many slots each, lengths as given.
fn directory(entries: impl IntoIterator<Item = (u32, u32)>) -> Directory {
    let (mut slot, mut start) = (0, 0);
    let mut directory = Directory::default();
    for (gap, len_bytes) in entries {
        slot += gap;
        if slot >= 64 << 10 || start + len_bytes > CHUNK_BYTES {
            break;
        }
        directory.push(DirEntry { slot, start, len_bytes, checksum: slot ^ 0x5555_5555 });
        slot += 1;
        start += len_bytes;
    }
    directory
}

/// A pool's segments of which one has that directory, on a device, and nothing of it is in memory. All of its records
/// are live.
fn stored(directory: &Directory) -> (Segments, Devices, Arc<SimDevice>, u32) {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let chunk = Chunk { device: 0, index: 1 };
    let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES };
    let stored = directory.encode(SEGMENT);
    let start = CHUNK_BYTES - (stored.bytes.len() as u32).next_multiple_of(4096);
    let buf = AlignedBuf::from_bytes(&stored.bytes);
    device.write(chunk.offset() + u64::from(start), &buf, true).unwrap();
    let segments = Segments::new(8 << 20);
    let parts = vec![Part { first_slot: 0, extent, directory: Some(stored.at(start, 0)) }];
    let mut live = LiveMap::default();
    directory.entries().iter().for_each(|entry| assert!(live.set(entry.slot)));
    segments
        .insert(Segment { parts: parts.into(), slots: 64 << 10, live, ..Segment::fresh(SEGMENT, chunk) })
        .unwrap();
    let devices = Devices::all(vec![Arc::clone(&device) as Arc<dyn Device>]);
    (segments, devices, device, start)
}

proptest! {
    #[test]
    fn entries_come_back(
        entries in prop::collection::vec((prop_oneof![4 => Just(0_u32), 1 => 0..3000_u32], 1..200_u32), 0..3000),
    ) {
        let directory = directory(entries);
        let stored = directory.encode(SEGMENT);
        prop_assert!(stored.bytes.len() <= Directory::stored_bytes_max(directory.entries().len()));
        prop_assert_eq!(&Directory::decode(&stored.bytes, SEGMENT, CHUNK_BYTES).unwrap(), &directory);
        prop_assert!(Directory::decode(&stored.bytes, SEGMENT + 1, CHUNK_BYTES).is_err());

        let (segments, devices, ..) = self::stored(&directory);
        for slot in (0..64 << 10).step_by(117) {
            let found = segments.locate(&devices, Addr::new(SEGMENT, slot)).ok().map(|found| found.len_bytes);
            prop_assert_eq!(found, directory.get(slot).map(|entry| entry.len_bytes));
        }
    }
}

#[test]
fn one_record_of_very_many_is_found_by_reading_little() {
    let directory = directory(std::iter::repeat_n((0, 60), 60_000));
    let (segments, devices, device, _) = stored(&directory);
    let read = || device.stats().counts().read_bytes;
    let addr = |slot| Addr::new(SEGMENT, slot);
    assert!(segments.try_locate(addr(30_000)).is_none());
    segments.locate(&devices, addr(30_000)).unwrap();
    assert!(read() <= 20 << 10, "the first took {} bytes", read());
    let before = read();
    // Its neighbours are known now, and others cost a leaf.
    assert_eq!(segments.try_locate(addr(30_100)).unwrap().len_bytes, 60);
    assert_eq!(read(), before);
    segments.locate(&devices, addr(5)).unwrap();
    assert!(read() - before <= 16 << 10, "the second took {} bytes", read() - before);
}

#[test]
fn a_small_directory_takes_one_request() {
    let directory = directory(std::iter::repeat_n((0, 800), 4000));
    let (segments, devices, device, _) = stored(&directory);
    for slot in [3999, 0, 1500, 2048] {
        assert_eq!(segments.locate(&devices, Addr::new(SEGMENT, slot)).unwrap().len_bytes, 800);
    }
    assert_eq!(device.stats().counts().reads, 1);
}

#[test]
fn damage_is_told_with_its_place_and_costs_only_its_leaf() {
    let directory = directory(std::iter::repeat_n((0, 60), 60_000));
    let (segments, devices, device, start) = stored(&directory);
    let index_bytes = u64::from(directory.encode(SEGMENT).index_bytes);
    let leaves = u64::from(start) + Chunk { device: 0, index: 1 }.offset() + index_bytes;
    device.flip_bit(leaves + 20_000, 3);
    let located: Vec<_> =
        (0..60_000).step_by(1024).map(|slot| segments.locate(&devices, Addr::new(SEGMENT, slot))).collect();
    let damaged: Vec<_> = located.iter().filter_map(|located| located.as_ref().err()).collect();
    assert!(
        matches!(damaged.as_slice(), [Error::Corrupt { what, .. }] if what.contains("segment 7 at byte"))
    );
    let part = segments.get(SEGMENT).unwrap().unwrap().parts[0];
    assert!(segments.read_directory(&devices, SEGMENT, part.extent, part.directory.unwrap()).is_err());

    let (segments, devices, device, start) = stored(&directory);
    device.flip_bit(u64::from(start) + Chunk { device: 0, index: 1 }.offset() + 30, 0);
    assert!(segments.locate(&devices, Addr::new(SEGMENT, 0)).is_err());
}

#[test]
fn a_pool_keeps_the_entries_of_pages_that_are_there_and_not_of_those_that_were() {
    const PAGES: u64 = 1000;
    const ROUNDS: u64 = 20;
    let (_, pool) = fresh(512);
    let mut data = vec![0; PAGE as usize];
    for round in 0..ROUNDS {
        for step in 0..PAGES {
            let mut state = round * PAGES + step;
            data.fill_with(|| {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (state >> 56) as u8
            });
            // In no order: of some segments a few records stay, and of others none.
            let at = (state >> 33) % PAGES;
            let offset = at * u64::from(PAGE);
            let write = Change::Write { object: 5, record_size: PAGE, offset, data: &data };
            pool.dataset().apply(&[write]).unwrap();
        }
        pool.sync().unwrap();
    }
    pool.checkpoint(false).unwrap();
    let bytes = pool.memory().directories_bytes;
    // An entry takes 10 bytes. Twenty times as many were written.
    assert!(bytes < 4 * 10 * PAGES, "{bytes} bytes for {PAGES} pages");
}
