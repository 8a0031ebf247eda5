use super::*;
use crate::Ptr;
use crate::device::{AlignedBuf, Device, Devices, SimDevice};
use crate::limits::CHUNK_BYTES;
use crate::segment::{Part, Segment};
use crate::space::Chunk;

const SEGMENT: u64 = 7;
const SLOTS: u32 = 16 * LEAF_SLOTS;
const LEN_BYTES: u32 = 60;

struct Stored {
    segments: Segments,
    devices: Devices,
    device: Arc<SimDevice>,
}

impl Stored {
    /// A segment of many records, of which those are live, on a device. Nothing of its directory is in memory.
    fn new(is_live: impl Fn(u32) -> bool) -> Self {
        let device = Arc::new(SimDevice::new(64 << 20, 1));
        let chunk = Chunk { device: 0, index: 1 };
        let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES as u32 };
        let mut directory = Directory::default();
        for slot in 0..SLOTS {
            let start = slot * LEN_BYTES;
            directory.push(DirEntry { slot, start, len_bytes: LEN_BYTES, checksum: slot ^ 0x5555_5555 });
        }
        let stored = directory.encode(SEGMENT);
        let start = (SLOTS * LEN_BYTES).next_multiple_of(4096);
        let buf = AlignedBuf::from_bytes(&stored.bytes);
        device.write(chunk.offset() + u64::from(start), &buf, true).unwrap();
        let parts = vec![Part { first_slot: 0, extent, directory: Some(stored.at(start, 0)) }];
        let mut segment = Segment { parts: parts.into(), slots: SLOTS, ..Segment::fresh(SEGMENT, chunk) };
        (0..SLOTS).filter(|slot| is_live(*slot)).for_each(|slot| {
            segment.revive(slot, LEN_BYTES).unwrap();
        });
        let segments = Segments::new(8 << 20);
        segments.insert(segment).unwrap();
        let devices = Devices::all(vec![Arc::clone(&device) as Arc<dyn Device>]);
        Self { segments, devices, device }
    }

    fn reads(&self) -> u64 {
        self.device.stats().counts().reads
    }

    /// Returns the slots whose entries are in memory.
    fn known(&self) -> Vec<u32> {
        (0..SLOTS).filter(|slot| self.segments.try_locate(addr(*slot)).is_some()).collect()
    }

    fn locate_one_of_each_leaf(&self) {
        for slot in (0..SLOTS).step_by(LEAF_SLOTS as usize) {
            self.segments.locate(&self.devices, addr(slot)).unwrap();
        }
    }

    fn kill(&self, which: impl Fn(u32) -> bool) {
        let dead = (0..SLOTS).filter(|slot| which(*slot));
        let dead: Vec<Ptr> = dead.map(|slot| Ptr { addr: addr(slot), len_bytes: LEN_BYTES }).collect();
        self.segments.mark_dead(&dead);
    }
}

fn addr(slot: u32) -> Addr {
    Addr::new(SEGMENT, slot)
}

#[test]
fn entries_of_records_that_die_are_dropped_from_memory() {
    let stored = Stored::new(|_| true);
    stored.locate_one_of_each_leaf();
    let whole = stored.segments.directories_bytes();
    assert_eq!(stored.known().len() as u32, SLOTS);
    // A few are not worth it.
    stored.kill(|slot| slot % 50 == 1);
    stored.segments.trim_directories();
    assert_eq!(stored.segments.directories_bytes(), whole);
    stored.kill(|slot| slot % 10 > 0 && slot % 50 != 1 && slot >= LEAF_SLOTS);
    stored.segments.trim_directories();
    let trimmed = stored.segments.directories_bytes();
    assert!(trimmed < whole / 5, "{trimmed} bytes of {whole}");
    let reads = stored.reads();
    let live: Vec<u32> = (0..SLOTS).filter(|slot| slot.is_multiple_of(10) || *slot < LEAF_SLOTS).collect();
    assert_eq!(stored.known(), live);
    for slot in live {
        assert_eq!(stored.segments.locate(&stored.devices, addr(slot)).unwrap().len_bytes, LEN_BYTES);
    }
    assert_eq!(stored.reads(), reads);
    // Nothing is kept of a leaf without live records.
    stored.kill(|slot| slot.is_multiple_of(10) && slot >= 2 * LEAF_SLOTS);
    stored.segments.trim_directories();
    assert!(stored.known().iter().all(|slot| *slot < 2 * LEAF_SLOTS));
}

#[test]
fn a_leaf_that_is_read_has_live_records_alone_and_what_was_asked_for() {
    let stored = Stored::new(|slot| slot.is_multiple_of(10));
    stored.segments.locate(&stored.devices, addr(5)).unwrap();
    let reads = stored.reads();
    let in_leaf = |slot: &u32| *slot < LEAF_SLOTS && (*slot == 5 || slot.is_multiple_of(10));
    assert_eq!(stored.known(), (0..SLOTS).filter(in_leaf).collect::<Vec<_>>());
    stored.segments.locate(&stored.devices, addr(5)).unwrap();
    assert_eq!(stored.reads(), reads, "it is found again");
    // Of one that is missing, the leaf is read again.
    let missing = stored.segments.locate(&stored.devices, addr(6)).unwrap();
    assert_eq!(missing.offset, Chunk { device: 0, index: 1 }.offset() + 6 * u64::from(LEN_BYTES));
    assert!(stored.reads() > reads);
}

#[test]
fn what_replay_makes_live_is_found() {
    let stored = Stored::new(|slot| slot.is_multiple_of(10));
    stored.locate_one_of_each_leaf();
    let ptr = Ptr { addr: addr(33), len_bytes: LEN_BYTES };
    stored.segments.mark_live(ptr).unwrap();
    assert_eq!(stored.segments.locate(&stored.devices, ptr.addr).unwrap().checksum, 33 ^ 0x5555_5555);
    assert!(stored.segments.try_locate(ptr.addr).is_some());
}
