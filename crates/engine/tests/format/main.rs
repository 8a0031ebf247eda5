//! docs/FORMAT.md against the code: every table, in both directions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod labels;
mod log;
mod segments;
mod streams;
#[path = "../tables/mod.rs"]
mod tables;
mod trees;

use std::sync::Arc;

use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::label;
use pagefold_engine::pool::{CreateOptions, EARLIER_OPENINGS, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::segment;
use pagefold_engine::space::{Chunk, reserved_places};
use pagefold_engine::{Addr, Ptr, limits, types};
use tables::{number, table};

const GUID: Guid = Guid(*b"0123456789abcdef");
const MIB: u64 = 1 << 20;

fn devices(size_bytes: u64) -> (Arc<SimDevice>, Vec<Arc<dyn Device>>) {
    let device = Arc::new(SimDevice::new(size_bytes, 1));
    let all = vec![Arc::clone(&device) as Arc<dyn Device>];
    (device, all)
}

fn fresh_pool() -> (Arc<SimDevice>, Arc<Pool>) {
    fresh_pool_of(256 * MIB)
}

fn fresh_pool_of(size_bytes: u64) -> (Arc<SimDevice>, Arc<Pool>) {
    let (device, all) = devices(size_bytes);
    create_on("tank", &all, &CreateOptions { force: false, created: 1_763_664_000, guid: GUID }).unwrap();
    let pool = Pool::open_on(all, &OpenOptions::default()).unwrap();
    (device, pool)
}

fn read(device: &SimDevice, offset: u64, len_bytes: usize) -> Vec<u8> {
    let first = offset / 4096 * 4096;
    let mut buf = AlignedBuf::zeroed((offset - first) as usize + len_bytes);
    device.read(first, &mut buf).unwrap();
    buf[(offset - first) as usize..][..len_bytes].to_vec()
}

fn write(device: &SimDevice, offset: u64, bytes: &[u8]) {
    device.write(offset, &AlignedBuf::from_bytes(bytes), true).unwrap();
}

fn ptr(segment: u64, slot: u32, len_bytes: u32) -> Ptr {
    Ptr { addr: Addr::new(segment, slot), len_bytes }
}

#[test]
fn constants() {
    for row in table("constants") {
        let code = match row["name"] {
            "BLOCK_BYTES" => limits::BLOCK_BYTES as u64,
            "CHUNK_BYTES" => limits::CHUNK_BYTES,
            "RESERVED_BYTES" => limits::RESERVED_BYTES,
            "DEVICE_BYTES_MIN" => limits::DEVICE_BYTES_MIN,
            "DEVICE_BYTES_MAX" => limits::DEVICE_BYTES_MAX,
            "RING_SLOTS" => label::RING_SLOTS,
            "RING_START" => label::RING_START,
            "NAME_BYTES_MAX" => label::NAME_BYTES_MAX as u64,
            "EARLIER_OPENINGS" => EARLIER_OPENINGS as u64,
            "FORMAT_VERSION" => label::FORMAT_VERSION.into(),
            "KNOWN_FEATURES" => label::KNOWN_FEATURES,
            "SLOT_BITS" => types::SLOT_BITS.into(),
            "RECORDSIZE_MIN" => limits::RECORDSIZE_MIN.into(),
            "RECORDSIZE_MAX" => limits::RECORDSIZE_MAX.into(),
            "RECORD_BYTES_MAX" => limits::RECORD_BYTES_MAX as u64,
            "VALUE_BYTES_MAX" => limits::VALUE_BYTES_MAX as u64,
            "NODE_FANOUT_MAX" => limits::NODE_FANOUT_MAX as u64,
            "TREE_LEVELS_MAX" => limits::TREE_LEVELS_MAX.into(),
            "TABLE_PAGE_SEGMENTS" => segment::TABLE_PAGE_SEGMENTS,
            "SEGMENT_SLOTS_MAX" => limits::SEGMENT_SLOTS_MAX.into(),
            "MODELS_MAX" => limits::MODELS_MAX as u64,
            "BASES_MAX" => limits::BASES_MAX as u64,
            "COPIES" => types::COPIES,
            "PARTS_MAX" => segment::PARTS_MAX as u64,
            other => panic!("{other} is not known here"),
        };
        assert_eq!(number(row["value"]), code, "{}", row["name"]);
    }
    let places = reserved_places(limits::DEVICE_BYTES_MAX);
    for row in table("reserved") {
        let index = number(row["before chunk"]) as u32;
        let chunk = Chunk { device: 0, index };
        let place = number(row["first byte"]);
        assert_eq!(places[number(row["reserved place"]) as usize], place);
        assert_eq!(chunk.offset(), place + limits::RESERVED_BYTES);
        let further = if index < 32 { 0 } else { u64::from(index.ilog2()) - 4 };
        assert_eq!(chunk.offset(), MIB + u64::from(index) * 4 * MIB + further * MIB);
    }
    assert_eq!(places.len(), 28);
    assert_eq!(Chunk { device: 0, index: 3 }.offset(), MIB + 3 * 4 * MIB);
}

#[test]
fn every_table_is_compared() {
    let sources = [
        include_str!("main.rs"),
        include_str!("labels.rs"),
        include_str!("log.rs"),
        include_str!("segments.rs"),
        include_str!("streams.rs"),
        include_str!("trees.rs"),
        include_str!("../../../fs/tests/format.rs"),
    ];
    for name in tables::names() {
        let quoted = format!("\"{name}\"");
        let compared = sources.iter().any(|source| source.contains(&quoted)) || name.starts_with("op-");
        assert!(compared, "table {name} of docs/FORMAT.md is not compared with the code");
    }
}
