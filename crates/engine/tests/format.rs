//! docs/FORMAT.md against the code: every table, in both directions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pagefold_engine::dataset::redo::{Bases, CatalogueOp, PageRun, Redo, for_each};
use pagefold_engine::dataset::{Change, ModelEntry, encode_ptrs};
use pagefold_engine::device::{AlignedBuf, Device, Devices, OneDevice, SimDevice};
use pagefold_engine::faults::{FaultCounts, FaultReport, Struck, Subject};
use pagefold_engine::pool::label::{self, Superblock};
use pagefold_engine::pool::{
    CreateOptions, EARLIER_OPENINGS, Guid, Label, LearnOptions, Membership, OpenOptions, Opening, Pool,
    Source, Token, create_on,
};
use pagefold_engine::record::{Codec, Compression, Encoder, NoModels, bases_of, decode, encode_delta};
use pagefold_engine::segment::{
    DirEntry, DirEntryState, DirRef, Directory, Located, PageIds, Part, Parts, Segment, Segments,
    decode_page, record_checksum,
};
use pagefold_engine::space::{Chunk, Chunks, Extent, reserved_places};
use pagefold_engine::tree::{Edit, NodeCache, NodeStore, Tree, Value};
use pagefold_engine::wal::batch::{BatchHeader, ENTRY_BYTES, HEADER_BYTES, Verified};
use pagefold_engine::wal::{LogWriter, Position, Rec, RecordKind};
use pagefold_engine::wire::Reader;
use pagefold_engine::{Addr, Key, Ptr, limits, segment, types};
use tables::{assert_example, codes, example, number, table, unhex};

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
fn label_and_superblock() {
    let (device, all) = devices(256 * MIB);
    let label = Label {
        version: 4,
        device: 0,
        devices: 1,
        incompat: 0,
        readonly_compat: 0,
        pool: GUID,
        guid: Guid(*b"fedcba9876543210"),
        size_bytes: 256 * MIB,
        created: 1_763_664_000,
        log: Guid(*b"a log's own GUID"),
        formerly: Guid(*b"an earlier GUID."),
        membership: Membership { epoch: 3, ..Membership::single(0, 1) },
        name: "tank".into(),
    };
    label.write(OneDevice::of(device.as_ref())).unwrap();
    for at in [0, 129 * MIB] {
        assert_example("label", &read(&device, at, 4096));
    }
    let root = Located { device: 0, offset: 1_310_872, len_bytes: 77, checksum: 0x1234_5678 };
    let addr = Addr::new(9, 5);
    let second = Located { offset: 8_392_704, checksum: 0x0bad_cafe, ..root };
    let opening = Opening::first(0x1122_3344_5566_7788, 1_763_664_000);
    let opening = opening.next(33, 4, 0x99aa_bbcc_ddee_ff00, 1_763_664_060).unwrap();
    let (log, exported, confirmed) = (label.log, true, true);
    let block = Superblock {
        generation: 34,
        log,
        root,
        second,
        addr,
        exported,
        flushed: 1001,
        confirmed,
        epoch: 3,
        opening,
    };
    block.write(OneDevice::of(all[0].as_ref()), &label).unwrap();
    let slot = label::RING_START + 34 % label::RING_SLOTS * 4096;
    for at in [slot, 129 * MIB + slot] {
        assert_example("superblock", &read(&device, at, 4096));
    }

    let (device, _) = devices(256 * MIB);
    write(&device, 129 * MIB, &example("label"));
    assert_eq!(Label::read(OneDevice::of(device.as_ref())).unwrap(), label);
    write(&device, slot, &example("superblock"));
    assert_eq!(Superblock::read_all(OneDevice::of(device.as_ref()), &label), [block]);
}

/// Root bytes of the newest checkpoint, found as the document says.
fn newest_root(device: &SimDevice) -> (Superblock, Vec<u8>) {
    let label = Label::read(OneDevice::of(device)).unwrap();
    let newest = Superblock::read_all(OneDevice::of(device), &label)[0];
    let bytes = read(device, newest.root.offset, newest.root.len_bytes as usize);
    assert_eq!(record_checksum(newest.addr, &bytes), newest.root.checksum);
    let second = read(device, newest.second.offset, newest.root.len_bytes as usize);
    assert_eq!(second, bytes);
    assert_eq!(record_checksum(newest.addr.copy(), &second), newest.second.checksum);
    (newest, bytes)
}

#[test]
fn root() {
    let (device, _pool) = fresh_pool();
    let (newest, bytes) = newest_root(&device);
    assert_eq!(newest.generation, 2, "the making of the pool, and the superblock of its opening");
    assert_example("root", &bytes);
    // The open directory that the example holds is an empty one.
    assert_eq!(Directory::default().encode(1).bytes, bytes[bytes.len() - 23..][..16]);
}

/// The field that a row describes; of bytes, how many.
fn number_in(reader: &mut Reader<'_>, row: &tables::Row) -> u64 {
    match row["size"] {
        "varint" => reader.varint().unwrap(),
        "varint + n" => reader.bytes(1 << 20).unwrap().len() as u64,
        "1" => reader.u8().unwrap().into(),
        "4" => reader.u32().unwrap().into(),
        "8" => reader.u64().unwrap(),
        other => panic!("{other}"),
    }
}

/// A root with pages of the segment table, read by the document's tables alone.
#[test]
fn root_of_a_pool_with_data() {
    let (device, pool) = fresh_pool();
    let data = vec![7; 8192];
    for object in 1..=40 {
        pool.dataset().apply(&[Change::Write { object, record_size: 8192, offset: 0, data: &data }]).unwrap();
    }
    pool.snapshot(&[""], "monday", 1_700_000_000).unwrap();
    pool.dataset()
        .apply(&[Change::Write { object: 7, record_size: 8192, offset: 0, data: &[8; 8192] }])
        .unwrap();
    pool.checkpoint(false).unwrap();
    let (_, bytes) = newest_root(&device);
    let mut reader = Reader::new(&bytes, "root");
    let mut field = |name: &str, row: &tables::Row| {
        assert!(row["field"].starts_with(name), "{} is not {name}", row["field"]);
        number_in(&mut reader, row)
    };
    let rows = table("root");
    let (before, after) = rows.split_at(rows.iter().position(|row| row["field"] == "dead").unwrap());
    let values: Vec<u64> = before.iter().map(|row| field("", row)).collect();
    assert_eq!(values[1], 3, "number of the checkpoint");
    assert_eq!(*values.last().unwrap(), 1, "lists of the segment table");
    let list: Vec<u64> = table("root-list").iter().map(|row| field("", row)).collect();
    let (dead, after) = after.split_first().unwrap();
    assert_eq!(field("dead", dead), 0, "the only page was stored");
    assert!(field("own: root length", &after[0]) == 0 && field("own: root address", &after[1]) == 0);
    assert_eq!(field("catalogue", &after[2]), 1);
    let catalogue: Vec<u64> = table("root-list").iter().map(|row| field("", row)).collect();
    let mut copied = field("copies", &after[3]);
    let mut id = 0;
    while copied > 0 {
        let [segment, parts] = &table("root-copies")[..] else { panic!("two fields") };
        id += field("segment", segment);
        for _ in 0..field("parts", parts) {
            for row in table("table-page").iter().filter(|row| row["field"].starts_with("part: ")) {
                field("part", row);
            }
        }
        copied -= 1;
    }
    assert!((1..=2).contains(&id), "the log is in segment 2");
    assert_eq!(reader.remaining(), 0);

    let placed = |entry: &[u64]| {
        let [address, 0, offset, len, checksum, 0, second, second_checksum] = entry[..] else {
            panic!("{entry:?}")
        };
        for (address, offset, checksum) in
            [(address, offset, checksum), (address | 1 << 63, second, second_checksum)]
        {
            let bytes = read(&device, offset, len as usize);
            assert_eq!(u64::from(record_checksum(Addr::from_raw(address).unwrap(), &bytes)), checksum);
        }
        read(&device, offset, len as usize)
    };
    read_catalogue(&placed(&catalogue), &mut |place| placed(place));
    let bytes = placed(&list);
    let mut reader = Reader::new(&bytes, "list");
    assert_eq!(reader.take(8).unwrap(), unhex(table("list")[0]["example"]));
    let page: Vec<u64> = table("list")[1..].iter().map(|row| number_in(&mut reader, row)).collect();
    assert_eq!(reader.remaining(), 0);
    let [1, 0, place @ ..] = &page[..] else { panic!("{page:?}") };
    let record = placed(place);

    let segments = Segments::new(MIB);
    let read = decode_page(PageIds::default(), 0, &metadata(&record)).unwrap();
    assert_eq!(segments.load_page(0, read, 0, &mut |_| {}), None);
    assert!(segments.get(2).unwrap().is_some(), "the log went on in segment 2");
}

/// Records that died on a page of the segment table that was stored before.
#[test]
fn dead_records_are_listed() {
    // The cleaner would take the dead records away: in a pool of a GiB it has nothing to do.
    let (device, pool) = fresh_pool_of(1024 * MIB);
    let write = |pool: &Pool, object| {
        let data = [object as u8; 8192];
        pool.dataset().apply(&[Change::Write { object, record_size: 8192, offset: 0, data: &data }]).unwrap();
    };
    write(&pool, 1);
    drop(pool);
    let reopen = || Pool::open_on(vec![Arc::clone(&device) as Arc<dyn Device>], &OpenOptions::default());
    // A segment for each time that a pool is opened: page 0 of the table has 63 of them.
    for object in 2..=70 {
        let pool = reopen().unwrap();
        write(&pool, object);
        pool.export().unwrap();
    }
    let pool = reopen().unwrap();
    write(&pool, 2);
    pool.checkpoint(false).unwrap();
    let (_, bytes) = newest_root(&device);
    let mut reader = Reader::new(&bytes, "root");
    let rows = table("root");
    let end = rows.iter().position(|row| row["field"] == "dead").unwrap();
    let values: Vec<u64> = rows[..end].iter().map(|row| number_in(&mut reader, row)).collect();
    let mut entry = || table("root-list").iter().map(|row| number_in(&mut reader, row)).collect::<Vec<u64>>();
    (0..*values.last().unwrap()).for_each(|_| drop(entry()));
    assert_eq!(reader.varint().unwrap(), 1, "lists of dead records");
    let entry: Vec<u64> = table("root-list").iter().map(|row| number_in(&mut reader, row)).collect();
    let bytes = read(&device, entry[2], entry[3] as usize);
    let mut reader = Reader::new(&bytes, "list of dead records");
    let [magic, records, address, length] = &table("dead-records")[..] else { panic!("four fields") };
    assert_eq!(reader.take(8).unwrap(), unhex(magic["example"]));
    let (mut addr, mut dead) = (0, BTreeMap::new());
    for _ in 0..number_in(&mut reader, records) {
        addr += number_in(&mut reader, address);
        dead.insert(addr, number_in(&mut reader, length));
    }
    assert_eq!(reader.remaining(), 0);
    // The page that object 2 had, in the second segment of all.
    let Some((raw, 10..)) = dead.first_key_value() else { panic!("{dead:?}") };
    assert_eq!(Addr::from_raw(*raw).unwrap().segment(), 2);
}

/// A catalogue with a dataset, a snapshot and its dead list, read by the document's tables alone.
fn read_catalogue(head: &[u8], record: &mut dyn FnMut(&[u64]) -> Vec<u8>) {
    let mut reader = Reader::new(head, "head of the catalogue");
    let fields = table("catalogue");
    assert_eq!(reader.take(8).unwrap(), unhex(fields[0]["example"]));
    let values: Vec<u64> = fields[1..].iter().map(|row| number_in(&mut reader, row)).collect();
    assert_eq!(values, [3, 1, 1], "next number and list, pages");
    assert_eq!((reader.varint().unwrap(), reader.varint().unwrap()), (0, 1), "page 0 has one record");
    let place: Vec<u64> = table("root-list").iter().map(|row| number_in(&mut reader, row)).collect();
    assert_eq!(reader.varint().unwrap(), 0, "nothing is unreferenced");
    assert_eq!(reader.remaining(), 0);

    let page = metadata(&record(&place));
    let mut reader = Reader::new(&page, "page of the catalogue");
    for number in [1, 2] {
        let mut version: BTreeMap<&str, u64> = BTreeMap::new();
        for row in table("version") {
            if number == 2 || !row["field"].starts_with("snapshot:") {
                version.insert(row["field"], number_in(&mut reader, &row));
            }
        }
        assert_eq!((version["number"], version["kind"]), (number, number));
        assert_eq!(version["previous"], if number == 1 { 2 } else { 0 });
        assert!(version["root length"] > 0 && version["root address"] > 0 && version["page bytes"] > 0);
        assert_eq!((version["properties"], version["holds"]), (0, 0));
        assert_eq!((version["dead list"], version["buckets"]), (0, 0));
        assert_eq!(version["births"], u64::from(number == 1));
        for _ in 0..version["births"] {
            assert_eq!(reader.varint().unwrap(), 0, "older than all snapshots");
            let open = reader.varint().unwrap();
            assert!(open > 1);
            for _ in 0..open {
                assert!(reader.varint().unwrap() > 0 && reader.signed().unwrap() != 0);
            }
        }
    }
    assert_eq!(reader.remaining(), 0);
}

/// The metadata in a record: they end with a byte 1.
fn metadata(record: &[u8]) -> Vec<u8> {
    let mut metadata = vec![0; pagefold_engine::record::logical_len(record).unwrap()];
    decode(record, &NoModels, &mut metadata).unwrap();
    assert_eq!(metadata.pop(), Some(1));
    metadata
}

/// Entries of the pool's own tree that are of dead lists, read by the document's tables alone.
#[test]
fn buckets_of_dead_lists() {
    let (_device, pool) = fresh_pool();
    let write = |object: u64, fill: u8| {
        let data = vec![fill; 8192];
        pool.dataset().apply(&[Change::Write { object, record_size: 8192, offset: 0, data: &data }]).unwrap();
    };
    (1..=700).for_each(|object| write(object, 7));
    pool.snapshot(&[""], "monday", 1_700_000_000).unwrap();
    (1..=700).for_each(|object| write(object, 8));
    pool.snapshot(&[""], "tuesday", 1_700_000_000).unwrap();
    pool.sync().unwrap();
    let entry =
        |object: u64, kind: u8, offset: u64| match pool.own().tree.get(&Key::new(object, kind, offset)) {
            Ok(Some(Value::Bytes(bytes))) => bytes.to_vec(),
            other => panic!("{other:?}"),
        };
    let bucket = entry(1, 0xF6, 0);
    let mut reader = Reader::new(&bucket, "bucket");
    let values: Vec<u64> = table("bucket").iter().map(|row| number_in(&mut reader, row)).collect();
    let [700, bytes, last, first, blocks, open] = values[..] else { panic!("{values:?}") };
    assert!(bytes > 700 * 16 && last == first && first == 2 && blocks == 1 && open == 700 - 512);
    let block = entry(first, 0xF5, 0);
    let mut reader = Reader::new(&block, "block");
    assert_eq!(reader.varint().unwrap(), 512);
    for _ in 0..512 {
        assert!(reader.varint().unwrap() > 0 && reader.signed().unwrap() != 0);
    }
    assert_eq!(reader.remaining(), 0);
}

#[test]
fn batch() {
    let (device, all) = devices(256 * MIB);
    let chunks = Arc::new(Chunks::new(&[256 * MIB]));
    let (chunk, next) = (chunks.allocate().unwrap(), chunks.allocate().unwrap());
    let segments = Arc::new(Segments::new(MIB));
    segments.insert(Segment::fresh(9, chunk)).unwrap();
    let chain = 0x0123_4567_89ab_cdef;
    let position = Position { segment: 9, chunk, used: 8192, slots: 300, next, batch: 1000, chain };
    let mut writer = LogWriter::new(GUID.low(), position, segments, chunks, Devices::all(all));
    let record = Rec { kind: RecordKind::Page, model: None, bytes: example("record") };
    let put = Redo::Put(1, Key::new(1, 2, 3), b"val");
    let mut ops = Vec::new();
    put.encode(&mut ops);
    writer.append(0, &[record], ops.len(), |_| ops, true).unwrap();
    let whole = read(&device, MIB + 8192, 4096);
    let (bytes, padding) = whole.split_at(120);
    assert!(padding.iter().all(|byte| *byte == 0));
    assert_example("batch", bytes);

    let batch = example("batch");
    let verified = Verified::new(&batch).unwrap();
    assert_eq!(verified.header().chain.get(), chain);
    let (entry, kind) = verified.entries(8192).next().unwrap();
    assert_eq!((entry.slot, entry.start, entry.len_bytes, kind), (300, 8192 + 113, 7, 0));
    assert_eq!(record_checksum(Addr::new(9, 300), &batch[113..]), entry.checksum);
    for_each(verified.ops(), &mut |redo| {
        assert_eq!(redo, put);
        Ok(())
    })
    .unwrap();
}

#[test]
fn batch_header_is_where_the_table_says() {
    macro_rules! offset {
        ($($field:ident),*) => { [$((stringify!($field), std::mem::offset_of!(BatchHeader, $field))),*] };
    }
    let fields = offset![
        magic,
        first_slot,
        checksum,
        frame,
        chain,
        number,
        pool,
        segment,
        checkpoint,
        flushed,
        records,
        ops_bytes,
        len_bytes,
        next_index,
        next_device,
        salt
    ];
    let rows = table("batch");
    for ((field, offset), row) in fields.iter().zip(&rows) {
        assert_eq!(*offset as u64, number(row["offset"]), "{field} is {}", row["field"]);
    }
    assert_eq!(number(rows[fields.len()]["offset"]) as usize, HEADER_BYTES);
    assert_eq!(number(rows[fields.len() + 2]["offset"]) as usize, HEADER_BYTES + ENTRY_BYTES);
}

#[test]
fn codes_of_the_log() {
    let kinds = codes("record-kinds", "code", "kind");
    for code in 0..=255_u8 {
        let documented = kinds.iter().find(|(known, _)| *known == u64::from(code)).map(|(_, name)| *name);
        let known = RecordKind::from_raw(code).map(|kind| format!("{kind:?}").to_lowercase());
        assert_eq!(documented.map(str::to_owned), known, "kind {code}");
    }
    let operations = codes("operations", "code", "operation");
    let (created, bound) = (1_700_000_000, Addr::new(9, 300).raw());
    let run = |shared| Redo::Pages(PageRun { shared, ..pages() });
    let deltas = PageRun { bases: Bases::Kept(vec![2, 0, 0]), ..pages() };
    let named = Bases::Shared(vec![vec![ptr(9, 290, 1300)], vec![], vec![]]);
    let share_deltas = PageRun {
        bases: named,
        shared: true,
        ptrs: vec![Some(ptr(9, 300, 1000)), None, Some(ptr(9, 300, 1300))],
        ..pages()
    };
    let all = [
        ("put", Redo::Put(1, Key::new(5, 16, 0), b"abc")),
        ("delete", Redo::Delete(1, Key::new(5, 17, 4096))),
        ("punch", Redo::Punch { dataset: 1, object: 5, from: 2, to: 300 }),
        ("pages", run(false)),
        ("share", run(true)),
        ("deltas", Redo::Pages(deltas)),
        ("share-deltas", Redo::Pages(share_deltas)),
        ("create", Redo::Catalogue(CatalogueOp::Create { id: 7, created, name: "db" })),
        (
            "snapshot",
            Redo::Catalogue(CatalogueOp::Snapshot { dataset: 7, id: 8, bound, created, name: "monday" }),
        ),
        ("clone", Redo::Catalogue(CatalogueOp::Clone { snapshot: 8, id: 9, created, name: "db2" })),
        ("destroy", Redo::Catalogue(CatalogueOp::Destroy { id: 9 })),
        ("rollback", Redo::Catalogue(CatalogueOp::Rollback { dataset: 7 })),
        ("promote", Redo::Catalogue(CatalogueOp::Promote { dataset: 9 })),
        ("rename", Redo::Catalogue(CatalogueOp::Rename { id: 8, name: "tuesday" })),
        (
            "property",
            Redo::Catalogue(CatalogueOp::Property { id: 7, name: "compression", value: Some("zstd-3") }),
        ),
        ("hold", Redo::Catalogue(CatalogueOp::Hold { snapshot: 8, created, tag: "backup" })),
    ];
    for (name, redo) in &all {
        let mut bytes = Vec::new();
        redo.encode(&mut bytes);
        let code = operations.iter().find(|(_, known)| known == name).unwrap().0;
        assert_eq!(u64::from(bytes[0]), code, "{name}");
        if *name == "share" {
            bytes[0] = 4;
        }
        let table = format!("op-{}", if *name == "share" { "pages" } else { name });
        assert_example(&table, &bytes);
        if *name != "share" {
            for_each(&example(&table), &mut |decoded| {
                assert_eq!(decoded, *redo);
                Ok(())
            })
            .unwrap();
        }
    }
    assert_eq!(operations.len(), all.len());
    let unknown = operations.iter().map(|(code, _)| *code).max().unwrap() as u8 + 1;
    assert!(for_each(&[unknown; 32], &mut |_| Ok(())).is_err());
}

fn pages() -> PageRun {
    let ptrs = vec![Some(ptr(9, 300, 1000)), None, Some(ptr(9, 299, 1300))];
    PageRun { dataset: 1, object: 5, record_size: 8192, first: 16, shared: false, ptrs, bases: Bases::None }
}

fn part() -> Part {
    let extent = Extent { chunk: Chunk { device: 1, index: 12 }, start: 4096, len_bytes: 70_000 };
    let (second, checksum) = (4_186_112, 0xdead_beef);
    let directory = Some(DirRef { start: 68_000, len_bytes: 2000, index_bytes: 30, second, checksum });
    Part { first_slot: 0, extent, directory }
}

#[test]
fn directory() {
    let entries = [
        DirEntry { slot: 0, start: 200, len_bytes: 1300, checksum: 0x1111_1111 },
        DirEntry { slot: 2, start: 1500, len_bytes: 90, checksum: 0x2222_2222 },
    ];
    let directory = Directory::try_from(entries.to_vec()).unwrap();
    assert_example("directory", &directory.encode(7).bytes);
    assert_eq!(Directory::decode(&example("directory"), 7, 70_000).unwrap(), directory);
}

#[test]
fn segment_table() {
    let segments = Segments::new(MIB);
    segments
        .insert(Segment {
            parts: Parts::from_slice(&[part()]),
            ..Segment::fresh(70, Chunk { device: 1, index: 12 })
        })
        .unwrap();
    segments.insert(Segment::fresh(130, Chunk { device: 0, index: 3 })).unwrap();
    let entry = |slot| DirEntry { slot, start: slot * 100, len_bytes: 100, checksum: 0 };
    let entries: Vec<_> = (0..12)
        .map(|slot| DirEntryState { entry: entry(slot), live: slot != 1, model: (slot == 3).then_some(9) })
        .collect();
    segments.append(130, &entries).unwrap();
    // Page 1 has ids 64 to 127, page 2 those from 128 on. The former segment is given slots by way of its stored form.
    let bytes = example("table-page");
    let loaded = Segments::new(MIB);
    assert_eq!(
        loaded.load_page(1, decode_page(PageIds::default(), 1, &bytes).unwrap(), 0, &mut |_| {}),
        None
    );
    loaded.mark_dirty(1);
    let found = loaded.get(70).unwrap().unwrap();
    assert_eq!((found.parts.as_slice(), found.slots, found.live_bytes), (&[part()][..], 300, 5000));
    let live: Vec<u32> = (0..300).filter(|slot| found.live.get(*slot)).collect();
    assert_eq!(live, [0, 2, 9]);
    assert_eq!((&*found.models, found.recompressed), (&[7, 12][..], true));
    assert_eq!((loaded.users_of_model(7), loaded.users_of_model(8)), (1, 0));
    let stored = loaded.snapshot(&Default::default(), 200).pages;
    assert_example("table-page", &stored[0].1);
    let stored = segments.snapshot(&Default::default(), 130).pages;
    assert_eq!(stored.iter().map(|(page, _)| *page).collect::<Vec<_>>(), [1, 2]);
    // An open segment: no directory; 12 slots, 1100 live bytes, all but slot 1 live, one model, nothing coded again.
    let open = &stored[1].1;
    assert_eq!(open[open.len() - 10..], [12, 0xcc, 0x08, 0, 2, 0xfd, 0x0f, 1, 9, 0]);
}

#[test]
fn records() {
    let mut page = vec![0; 4096];
    page[..5].copy_from_slice(b"bytes");
    let mut record = Vec::new();
    Encoder::new().encode(&page, Compression::Auto, &mut record);
    assert_example("record", &record);
    let mut back = vec![1; 4096];
    decode(&example("record"), &NoModels, &mut back).unwrap();
    assert_eq!(back, page);

    let mut before = vec![0; 4096];
    before[4095] = 1;
    let mut page = before.clone();
    page[1..3].copy_from_slice(b"ab");
    page[300] = b'c';
    let mut delta = Vec::new();
    let bases = [Addr::new(9, 300), Addr::new(9, 305)];
    assert!(encode_delta(&before, &bases, &page, false, &mut delta));
    assert_example("delta-record", &delta);
    assert_eq!(bases_of(&example("delta-record")).unwrap(), bases);

    let documented = codes("codecs", "id", "codec");
    for id in 0..=255_u8 {
        let name = documented.iter().find(|(known, _)| *known == u64::from(id)).map(|(_, name)| *name);
        let known = Codec::from_id(id).map(|codec| format!("{codec:?}").to_lowercase());
        assert_eq!(name.map(str::to_owned), known, "codec {id}");
    }
    let text = b"page".repeat(64);
    // Codecs with a model: the record alone says nothing.
    for row in table("codecs")[1..].iter().filter(|row| number(row["id"]) < 16) {
        let mut now = Vec::new();
        if row["codec"] == "doubles" {
            // Nobody asks for it; what it makes of text is a record as well.
            now.extend([5, 0x80, 2]);
            assert!(pagefold_codec::doubles::encode(&text, &mut now));
        } else {
            let compression: Compression = row["codec"].replace("deflate", "zlib").parse().unwrap();
            Encoder::new().encode(&text, compression, &mut now);
        }
        let cell = row["example: the record of 64 times `page"];
        assert!(cell != "?", "{}: {now:02x?}", row["codec"]);
        // Another version of a library may code differently; what was stored once must be read for ever.
        let stored = unhex(cell);
        assert_eq!((u64::from(stored[0]), u64::from(now[0])), (number(row["id"]), number(row["id"])));
        let mut back = vec![0; text.len()];
        decode(&stored, &NoModels, &mut back).unwrap();
        assert_eq!(back, text, "{}", row["codec"]);
    }
}

/// Nodes as a checkpoint wrote them, by address.
#[derive(Default)]
struct Store(Mutex<Vec<(Ptr, Vec<u8>)>>);

impl NodeStore for Store {
    fn load(&self, ptr: Ptr) -> pagefold_engine::Result<Vec<u8>> {
        let found = self.0.lock().unwrap().iter().find(|(at, _)| *at == ptr).map(|(_, bytes)| bytes.clone());
        Ok(found.unwrap())
    }
}

fn tree(root: Option<Ptr>, nodes: Vec<(Ptr, Vec<u8>)>) -> Tree {
    let store: Arc<dyn NodeStore> = Arc::new(Store(Mutex::new(nodes)));
    Tree::new(root, store, Arc::new(NodeCache::new(MIB).unwrap()))
}

/// The nodes that a checkpoint of a tree with these entries writes, at slots from 10 on of segment 4.
fn nodes(entries: &[(Key, Value)]) -> Vec<(Ptr, Vec<u8>)> {
    let tree = tree(None, Vec::new());
    let mut edits = entries.iter().map(|(key, value)| Edit::Put(*key, value.clone()));
    let _ = tree.apply(&mut edits, &mut |_, _| {}, &mut Vec::new()).unwrap();
    let mut written = Vec::new();
    let mut immutable = tree.make_immutable();
    immutable
        .persist(&mut |nodes| {
            let first = written.len() as u32;
            let ptrs: Vec<Ptr> = (first..).zip(&nodes).map(|(at, _)| ptr(4, 10 + at, 900 - at)).collect();
            written.extend(ptrs.iter().copied().zip(nodes));
            Ok(ptrs)
        })
        .unwrap();
    written
}

#[test]
fn tree_nodes() {
    let entries = [
        (Key::new(5, 16, 0), Value::Bytes((*b"abc").into())),
        (Key::new(5, Key::PAGE, 7), Value::Page(ptr(9, 300, 1300))),
        (Key::new(5, Key::PAGE, 8), Value::Page(ptr(9, 301, 1200))),
    ];
    assert_example("leaf", &nodes(&entries)[0].1);
    let root = ptr(4, 10, 900);
    let stored = tree(Some(root), vec![(root, example("leaf"))]);
    let found = stored.range(&Key::new(0, 0, 0), &Key::new(9, 0, 0), 10).unwrap();
    assert_eq!(found, entries);

    let long = |byte: u8| Value::Bytes(vec![byte; 60_000].into());
    let entries = [(Key::new(5, 16, 0), long(1)), (Key::new(6, 17, 300), long(2))];
    let mut written = nodes(&entries);
    assert_eq!(written.len(), 3);
    let (root, branch) = written.pop().unwrap();
    assert_example("branch", &branch);
    written.push((root, example("branch")));
    let stored = tree(Some(root), written);
    assert_eq!(stored.range(&Key::new(0, 0, 0), &Key::new(9, 0, 0), 10).unwrap(), entries);
}

#[test]
fn values_of_the_engine() {
    let kinds = codes("engine-kinds", "kind", "name");
    let known = [
        (Key::PAGE, "page"),
        (Key::USAGE, "usage"),
        (Key::BASE, "base"),
        (Key::SHARED, "shared"),
        (Key::MODEL, "model"),
        (Key::DEAD, "dead"),
        (Key::FAULTS, "errors"),
    ];
    assert_eq!(kinds, known.map(|(kind, name)| (u64::from(kind), name)));
    assert_eq!(Key::ENGINE_KINDS, 0xe0);

    let (_device, pool) = fresh_pool();
    pool.set_compression(Compression::Off);
    let dataset = pool.dataset();
    let data = vec![7; 16384];
    dataset.apply(&[Change::Write { object: 5, record_size: 8192, offset: 0, data: &data }]).unwrap();
    pool.sync().unwrap();
    let share = Change::Share { from_object: 5, from_page: 0, to_object: 6, to_page: 0, count: 1 };
    dataset.apply(&[share]).unwrap();
    pool.checkpoint(false).unwrap();
    assert_example("usage", &dataset.get(&Key::new(5, Key::USAGE, 0)).unwrap().unwrap());
    let (from, to) = (Key::new(0, Key::SHARED, 0), Key::new(0, Key::SHARED + 1, 0));
    let shared = pool.live().tree.range(&from, &to, 10).unwrap();
    assert_eq!(shared.len(), 1);
    let Value::Bytes(count) = &shared[0].1 else { panic!("a count is no page") };
    assert_example("shared", count);
    let mut block = Vec::new();
    encode_ptrs(&[ptr(9, 300, 1000), ptr(9, 299, 1300)], &mut block);
    assert_example("dead", &block);

    assert_eq!(
        codes("struck-kinds", "code", "what").iter().map(|(code, _)| *code).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    let counts = |checksums| FaultCounts { checksums, ..FaultCounts::default() };
    let subject = Subject::Object { dataset: 1, object: 5 };
    let struck = Struck { subject, counts: counts(2), place: Some((0, 4_198_400)), offset: 16384 };
    let report = FaultReport { cleared: 0, devices: vec![counts(2)], struck: vec![struck], unlisted: 0 };
    assert_example("errors", &report.encode());
    assert_eq!(FaultReport::decode(&example("errors")).unwrap(), report);
}

#[test]
fn records_with_a_model() {
    use pagefold_engine::record::model_of;
    // The example has no payload: what decides is found before it is looked at.
    let record = example("model-record");
    assert_eq!(model_of(&record), Some(300));
    assert_eq!(record[0], 16);
    assert_eq!(pagefold_engine::record::logical_len(&record).unwrap(), 8192);
    let error = decode(&record, &NoModels, &mut [0; 8192]).unwrap_err().to_string();
    assert!(error.contains("model 300"), "{error}");

    let entry = ModelEntry {
        ptr: ptr(9, 300, 1000),
        codec: Codec::from_id(16).unwrap(),
        dataset: 1,
        object: 5,
        generation: 2,
        sampled_pages: 300,
        object_pages: 10_000,
        record_bytes: 1000,
        late: true,
    };
    assert_example("model-entry", &entry.encode());
    assert_eq!(ModelEntry::decode(&example("model-entry")).unwrap(), entry);
}

/// Payloads of a stream's frames with their kinds, split as the document says.
fn frames(stream: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::new(stream, "stream");
    reader.take(8).unwrap();
    let mut found = Vec::new();
    while reader.remaining() > 0 {
        let len = reader.u32().unwrap() as usize;
        let kind = reader.u8().unwrap();
        found.push((kind.into(), reader.take(len).unwrap().to_vec()));
        reader.u64().unwrap();
    }
    found
}

#[test]
fn streams() {
    let kinds = codes("stream-kinds", "code", "frame");
    assert_eq!(kinds, [(1, "head"), (2, "model"), (3, "entries"), (4, "end")]);
    let entries = codes("stream-entries", "code", "entry");
    assert_eq!(entries, [(1, "put"), (2, "delete"), (3, "pages"), (4, "punch")]);
    let (_device, pool) = fresh_pool();
    let dataset = pool.dataset();
    let mut page = b"bytes".to_vec();
    page.resize(8192, 0);
    dataset.apply(&[Change::Put(Key::new(5, 16, 0), b"abc".to_vec())]).unwrap();
    let write = Change::Write { object: 5, record_size: 8192, offset: 7 * 8192, data: &page };
    dataset.apply(&[write]).unwrap();
    pool.sync().unwrap();
    let share = Change::Share { from_object: 5, from_page: 7, to_object: 5, to_page: 8, count: 1 };
    dataset.apply(&[share]).unwrap();
    pool.snapshot(&[""], "one", 1_700_000_000).unwrap();
    dataset.apply(&[Change::Delete(Key::new(5, 16, 0))]).unwrap();
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: 9 }]).unwrap();
    pool.snapshot(&[""], "two", 1_700_000_001).unwrap();
    let send = |source: &Source<'_>| {
        let mut out = Vec::new();
        pool.send(source, &mut out, &mut |_| {}).unwrap();
        out
    };
    let whole = send(&Source::Snapshot { path: "@one", from: None });
    let head = frames(&whole)[0].1.len();
    assert_example("stream", &whole[..8 + 5 + head + 8]);
    let [(1, _), (3, of_one), (4, end)] = &frames(&whole)[..] else { panic!("other frames") };
    let put = example("stream-put").len();
    assert_example("stream-put", &of_one[..put]);
    assert_example("stream-pages", &of_one[put..]);
    assert_example("stream-end", end);
    let changed = send(&Source::Snapshot { path: "@two", from: Some("@one") });
    let [(1, head), (3, of_two), (4, _)] = &frames(&changed)[..] else { panic!("other frames") };
    let delete = example("stream-delete").len();
    assert_example("stream-delete", &of_two[..delete]);
    assert_example("stream-punch", &of_two[delete..]);

    // A token, made by the document: its head is that of a stream that goes on.
    let mut fields = head[..head.len() - 5].to_vec();
    fields[32] |= 2;
    fields.extend([5, 0xf0, 6]);
    fields.extend(crc32c::crc32c(&fields).to_le_bytes());
    let hex: String = fields.iter().map(|byte| format!("{byte:02x}")).collect();
    let token: Token = format!("1-{hex}").parse().unwrap();
    assert_eq!(token.to_string(), format!("1-{hex}"));
    assert_example("stream-head", &frames(&send(&Source::Resume(&token)))[0].1);
    read_model_frame();
}

/// A model in a stream, read by the document's table alone.
fn read_model_frame() {
    use pagefold_codec::testing::{Random, Schema, heap_page};
    let (_device, pool) = fresh_pool();
    pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..300).map(|block| heap_page(&mut random, &schema, block)).collect();
    for _ in 0..2 {
        for (page, data) in (0..).zip(&pages) {
            let write = Change::Write { object: 5, record_size: 8192, offset: page * 8192, data };
            pool.dataset().apply(&[write]).unwrap();
        }
        pool.sync().unwrap();
        pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap();
    }
    pool.snapshot(&[""], "one", 1).unwrap();
    let mut out = Vec::new();
    pool.send(&Source::Snapshot { path: "@one", from: None }, &mut out, &mut |_| {}).unwrap();
    let found = frames(&out);
    assert_eq!(found[1].0, 2, "the model comes before the entries");
    let mut reader = Reader::new(&found[1].1, "model");
    let fields: Vec<u64> = table("stream-model").iter().map(|row| number_in(&mut reader, row)).collect();
    assert_eq!(reader.remaining(), 0);
    assert_eq!((fields[0], fields[1], fields[2], fields[4]), (1, 5, 0, 300));
    let model = &found[1].1[found[1].1.len() - fields[6] as usize..];
    pagefold_codec::Model::from_bytes(model).unwrap();
}

#[test]
fn every_table_is_compared() {
    let here = include_str!("format.rs");
    let fs = include_str!("../../fs/tests/format.rs");
    for name in tables::names() {
        let quoted = format!("\"{name}\"");
        let compared = here.contains(&quoted) || fs.contains(&quoted) || name.starts_with("op-");
        assert!(compared, "table {name} of docs/FORMAT.md is not compared with the code");
    }
}
