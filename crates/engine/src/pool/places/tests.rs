//! Tests forged images: all their checksums hold, and their contents cannot be.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::Addr;
use crate::device::{AlignedBuf, Device, Devices, OneDevice, SimDevice};
use crate::limits::RECORD_BYTES_MAX;
use crate::pool::label::{Label, Superblock};
use crate::pool::load::read_copy;
use crate::pool::root::{Root, TablePage, encode_lists};
use crate::pool::testing::try_open;
use crate::pool::{CreateOptions, Guid, create_on};
use crate::record::encode_metadata;
use crate::segment::{Part, Segment, Segments, record_checksum};
use crate::space::Extent;

const MIB: u64 = 1 << 20;

/// A new pool whose last checkpoint is being forged.
struct Forged {
    device: Arc<SimDevice>,
    superblock: Superblock,
    label: Label,
    root: Root,
    /// Offsets of free chunks.
    free: Vec<u64>,
    slot: u32,
}

impl Forged {
    fn new(device_bytes: u64) -> Self {
        let device = Arc::new(SimDevice::new(device_bytes, 1));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"read from a disc") };
        create_on("tank", &devices, &options).unwrap();
        let label = Label::read(OneDevice::of(device.as_ref())).unwrap();
        let superblock = Superblock::read_all(OneDevice::of(device.as_ref()), &label)[0];
        let bytes = read_copy(&Devices::all(devices), superblock.addr, &superblock.root, "root").unwrap();
        let root = Root::decode(&bytes).unwrap();
        let chunks = 5..Chunk::count(device_bytes).min(4000);
        let free = chunks.rev().map(|index| Chunk { device: 0, index }.offset()).collect();
        Self { device, superblock, label, root, free, slot: 100 }
    }

    /// Returns a record of these bytes at two places. They are written there, unless they are all zeros, as in a hole.
    fn placed(&mut self, first: u64, second: u64, bytes: &[u8]) -> PlacedRecord {
        self.slot += 1;
        let addr = Addr::new(1, self.slot);
        if bytes.iter().any(|byte| *byte != 0) {
            for offset in [first, second] {
                self.device.write(offset, &AlignedBuf::from_bytes(bytes), true).unwrap();
            }
        }
        let at = |offset, addr| Located {
            device: 0,
            offset,
            len_bytes: bytes.len() as u32,
            checksum: record_checksum(addr, bytes),
        };
        PlacedRecord { addr, first: at(first, addr), second: at(second, addr.copy()) }
    }

    /// Makes a record whose two copies lie in chunks of their own.
    fn record(&mut self, bytes: &[u8]) -> PlacedRecord {
        let (first, second) = (self.free.pop().unwrap(), self.free.pop().unwrap());
        self.placed(first, second, bytes)
    }

    /// Writes a superblock that names the root as it is now.
    fn publish(&mut self) {
        let root = self.record(&self.root.encode());
        let superblock = Superblock {
            generation: self.superblock.generation + 1,
            root: root.first,
            second: root.second,
            addr: root.addr,
            ..self.superblock
        };
        superblock.write(OneDevice::of(self.device.as_ref()), &self.label).unwrap();
    }

    /// Opens the pool with the root as it is now. Returns the error, and the number of bytes read.
    fn open(mut self) -> (String, u64) {
        self.publish();
        let before = self.device.stats().counts().read_bytes;
        let opened = try_open(&self.device).map(|_| "it was opened".to_string());
        (opened.unwrap_or_else(|error| error.to_string()), self.device.stats().counts().read_bytes - before)
    }
}

/// Returns the beginning of a catalogue of very many versions.
fn catalogue() -> Vec<u8> {
    let mut bytes = b"PFcata\x01\0".to_vec();
    crate::wire::put_varint(&mut bytes, 1 << 50);
    bytes.push(1);
    crate::wire::put_varint(&mut bytes, 1 << 40);
    bytes
}

#[test]
fn a_piece_of_the_catalogue_that_repeats_is_not_read_again_and_again() {
    let mut forged = Forged::new(256 * MIB);
    let piece = forged.record(&vec![1; RECORD_BYTES_MAX]);
    forged.root.catalogue = vec![piece; 200];
    let (error, read_bytes) = forged.open();
    assert!(error.contains("two records at the same place"), "{error}");
    assert!(read_bytes < 4 * MIB, "{read_bytes} bytes were read");
}

#[test]
fn pieces_that_overlap_or_are_each_others_second_copy_are_refused() {
    for by in [0_u64, 1, 4096] {
        let mut forged = Forged::new(256 * MIB);
        let piece = forged.record(&vec![1; 8192]);
        let mut other = forged.record(&vec![1; 8192]);
        other.second.offset = piece.first.offset + by;
        forged.root.catalogue = vec![piece, other];
        let (error, _) = forged.open();
        assert!(error.contains("two records at the same place"), "{by}: {error}");
    }
}

#[test]
fn places_outside_of_chunks_are_refused() {
    let reserved = 129 * MIB;
    for offset in
        [0, 65536, MIB - 1, reserved, reserved - 1, 5 * MIB - 1, 256 * MIB - 1, u64::MAX - 10, 1 << 60]
    {
        let mut forged = Forged::new(256 * MIB);
        let mut piece = forged.record(&[1; 100]);
        piece.first.offset = offset;
        forged.root.lists = vec![piece];
        let (error, read_bytes) = forged.open();
        assert!(error.contains("which no record can have"), "{offset}: {error}");
        assert!(read_bytes < MIB, "{read_bytes} bytes were read");
    }
}

/// A count that is larger than any image can have.
const MANY: u64 = 1 << 40;

/// A forger knows the checksum of zeros, and holes cost nothing.
#[test]
fn holes_of_a_sparse_image_are_no_catalogue() {
    let begin = catalogue();
    // The counts are those of versions, of one version's properties, holds, buckets, sublists and pointers.
    let version = |fields: &[u64]| {
        let mut bytes = begin.clone();
        bytes.extend([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        fields.iter().for_each(|field| crate::wire::put_varint(&mut bytes, *field));
        bytes
    };
    let openings = [
        begin.clone(),
        version(&[MANY]),
        version(&[0, MANY]),
        version(&[0, 0, MANY]),
        version(&[0, 0, 1, 0, 5, 5, MANY]),
        version(&[0, 0, 1, 0, 5, 5, 0, MANY]),
    ];
    for (number, opening) in openings.iter().enumerate() {
        let mut forged = Forged::new(16 << 30);
        let first = forged.record(opening);
        forged.root.catalogue = vec![first];
        for _ in 0..900 {
            let piece = forged.record(&vec![0; RECORD_BYTES_MAX]);
            forged.root.catalogue.push(piece);
        }
        let (error, read_bytes) = forged.open();
        assert!(error.contains("catalogue of the pool"), "{number}: {error}");
        assert!(read_bytes < 8 * MIB, "{number}: {read_bytes} bytes were read: {error}");
    }
}

/// Opens a pool whose segment table has these segments. Returns the error, and the number of bytes read.
fn with_table(segments: &[Segment]) -> (String, u64) {
    let table = Segments::new(1 << 20);
    segments.iter().for_each(|segment| table.insert(segment.clone()).unwrap());
    forged_table(256 * MIB, &table).open()
}

fn forged_table(device_bytes: u64, table: &Segments) -> Forged {
    let pages = table.snapshot(&BTreeMap::new(), 1).pages;
    let mut forged = Forged::new(device_bytes);
    let mut listed = Vec::new();
    for (page, bytes) in pages {
        let placed = forged.record(&encode_metadata(bytes));
        listed.push(TablePage { page, placed });
    }
    for list in encode_lists(&listed) {
        let placed = forged.record(&list);
        forged.root.lists.push(placed);
    }
    forged
}

fn segment(id: u64, chunk: u32, len_bytes: u32) -> Segment {
    let extent = Extent { chunk: Chunk { device: 0, index: chunk }, start: 0, len_bytes };
    let mut segment = Segment { id, slots: 2, live_bytes: 200, ..Segment::default() };
    let directory =
        Some(crate::segment::DirRef { start: 0, len_bytes: 60, index_bytes: 20, second: 0, checksum: 1 });
    segment.parts.push(Part { first_slot: 0, extent, directory });
    segment.live.set(1);
    segment
}

#[test]
fn a_chunk_has_no_more_segments_than_it_holds() {
    let half = CHUNK_BYTES as u32 / 2;
    let (opened, _) = with_table(&[segment(70, 9, half), segment(71, 9, half)]);
    assert_eq!(opened, "it was opened");
    let (error, _) = with_table(&[segment(70, 9, half), segment(71, 9, half), segment(200, 9, 100)]);
    assert!(error.contains("a chunk has more than it holds"), "{error}");
    let (error, _) = with_table(&[segment(70, 9, 0)]);
    assert!(error.contains("a segment lies outside of its chunk"), "{error}");
}

#[test]
fn a_segment_has_no_more_slots_and_records_than_can_be() {
    let mut many = segment(70, 9, 4096);
    many.slots = 1 << 20;
    many.live.set((1 << 20) - 1);
    let (error, _) = with_table(&[many]);
    assert!(error.contains("more than a chunk holds"), "{error}");
    let mut empty = segment(70, 9, 4096);
    empty.live_bytes = 0;
    let (error, _) = with_table(&[empty]);
    assert!(error.contains("more than a chunk holds"), "{error}");
}

/// A rescue searches all of the devices for segments; of a sparse file, only the parts that hold data.
#[test]
fn a_rescue_passes_over_holes() {
    let table = Segments::new(1 << 20);
    table.insert(segment(70, 9, 4096)).unwrap();
    let mut forged = forged_table(16 << 50, &table);
    // Both copies of the only page of the table are lost.
    let lost = Located { device: 0, offset: forged.free[0], len_bytes: 100, checksum: 1 };
    let second = Located { offset: forged.free[1], ..lost };
    let page = TablePage { page: 1, placed: PlacedRecord { addr: Addr::new(1, 900), first: lost, second } };
    let list = forged.record(&encode_lists(&[page])[0]);
    forged.root.lists = vec![list];
    forged.publish();
    let before = forged.device.stats().counts().read_bytes;
    let devices = vec![Arc::clone(&forged.device) as Arc<dyn Device>];
    let pool = crate::pool::Pool::open_on(devices, &crate::pool::OpenOptions::for_rescue()).unwrap();
    assert_eq!(pool.rescue().map(|report| report.pages), Some(1));
    let read_bytes = forged.device.stats().counts().read_bytes - before;
    assert!(read_bytes < 200 * MIB, "{read_bytes} bytes were read");
}
