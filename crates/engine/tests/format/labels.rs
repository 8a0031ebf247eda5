//! Labels, superblocks and roots, and what roots lead to.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagefold_engine::dataset::Change;

use pagefold_engine::device::{Device, OneDevice, SimDevice};
use pagefold_engine::pool::label::{self, Superblock};
use pagefold_engine::pool::{
    CreateOptions, Guid, Label, LogGroup, Membership, OpenOptions, Opening, Pool, SpareLabel,
    create_groups_on,
};
use pagefold_engine::record::{NoModels, decode};
use pagefold_engine::segment::{Directory, Located, PageIds, Segments, decode_page, record_checksum};
use pagefold_engine::tree::Value;
use pagefold_engine::wire::Reader;
use pagefold_engine::{Addr, Key};

use super::tables::{self, assert_example, example, table, unhex};
use super::{GUID, MIB, devices, fresh_pool, fresh_pool_of, read, write};

#[test]
fn label_and_superblock() {
    let (device, all) = devices(256 * MIB);
    let label = Label {
        version: 7,
        device: 0,
        incompat: 0,
        readonly_compat: 0,
        pool: GUID,
        guid: Guid(*b"fedcba9876543210"),
        size_bytes: 256 * MIB,
        created: 1_763_664_000,
        log: Guid(*b"a log's own GUID"),
        formerly: Guid(*b"an earlier GUID."),
        membership: Membership::alone(0, 1, 0, 0x0102_0304_0506_0708).of_epoch(3),
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
        log_device: Some(LogGroup { number: 2, is_needed: true }),
    };
    block.write(OneDevice::of(all[0].as_ref()), &label).unwrap();
    let slot = label::RING_START + 34 % label::RING_SLOTS * 4096;
    for at in [slot, 129 * MIB + slot] {
        assert_example("superblock", &gathered(&read(&device, at, 4096)));
    }

    let (device, _) = devices(256 * MIB);
    write(&device, 129 * MIB, &example("label"));
    assert_eq!(Label::read(OneDevice::of(device.as_ref())).unwrap(), label);
    write(&device, slot, &scattered(&example("superblock")));
    assert_eq!(Superblock::read_all(OneDevice::of(device.as_ref()), &label), [block]);
}

#[test]
fn label_of_a_spare() {
    let (device, all) = devices(256 * MIB);
    let pool = fresh_pool().1;
    pool.add_spares(all).unwrap();
    let one = OneDevice::of(device.as_ref());
    let SpareLabel { id, .. } = SpareLabel::read(one).unwrap().unwrap();
    for at in [0, 129 * MIB] {
        let mut shown = example("spare");
        shown[28..36].copy_from_slice(&id.to_le_bytes());
        let end = crc32c::crc32c(&shown[..4092]).to_le_bytes();
        shown[4092..].copy_from_slice(&end);
        assert!(read(&device, at, 4096) == shown);
    }
    let spare = SpareLabel { pool: GUID, id: 0x0102_0304_0506_0708, name: "tank".into() };
    write(&device, 0, &example("spare"));
    assert_eq!(SpareLabel::read(one).unwrap(), Some(spare));
}

/// The fields of a superblock and their checksum, as the document shows them one after the other.
fn gathered(block: &[u8]) -> Vec<u8> {
    let sectors = || block.chunks(512);
    assert!(sectors().all(|sector| sector[508..] == block[508..512]));
    sectors().flat_map(|sector| &sector[..508]).chain(&block[508..512]).copied().collect()
}

/// The inverse of [`gathered`]: the block.
fn scattered(shown: &[u8]) -> Vec<u8> {
    let (fields, checksum) = shown.split_at(4064);
    fields.chunks(508).flat_map(|fields| fields.iter().chain(checksum)).copied().collect()
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
pub(super) fn root() {
    let (device, _pool) = fresh_pool();
    let (newest, bytes) = newest_root(&device);
    assert_eq!(newest.generation, 2, "the making of the pool, and the superblock of its opening");
    assert_example("root", &bytes);
    // The open directory that the example holds is an empty one.
    assert_eq!(Directory::default().encode(1).bytes, bytes[bytes.len() - 24..][..16]);
}

/// The field that a row describes; of bytes, how many.
pub(super) fn number_in(reader: &mut Reader<'_>, row: &tables::Row) -> u64 {
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
    assert_eq!(field("lacks", &after[4]), 0, "there are no mirrors");
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

/// The record of a member that was not there when the pool was opened, read by the document's tables alone.
#[test]
fn lacks_of_a_member() {
    let sims = [1, 2].map(|seed| Arc::new(SimDevice::new(256 * MIB, seed)));
    let handle = |sim: &Arc<SimDevice>| Arc::clone(sim) as Arc<dyn Device>;
    let options = CreateOptions { force: false, created: 1_763_664_000, guid: GUID };
    create_groups_on("tank", &[sims.each_ref().map(handle).to_vec()], &options).unwrap();
    let pool = Pool::open_on(vec![handle(&sims[0])], &OpenOptions::default()).unwrap();
    let mut state = 1_u64;
    let data: Vec<u8> = (0..8192)
        .map(|_| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    for object in 1..=300 {
        pool.dataset().apply(&[Change::Write { object, record_size: 8192, offset: 0, data: &data }]).unwrap();
    }
    pool.checkpoint(false).unwrap();
    let regions = count_lacks(&sims[0]);
    assert!((3..30).contains(&regions), "{regions} regions, of 300 pages and what a checkpoint writes");
}

/// Returns the number of regions that the newest root of a device names as lacking, of the second device.
fn count_lacks(device: &SimDevice) -> u64 {
    let (_, bytes) = newest_root(device);
    let mut reader = Reader::new(&bytes, "root");
    let mut placed = Vec::new();
    for row in table("root") {
        let value = number_in(&mut reader, &row);
        if matches!(row["field"], "lists" | "dead" | "catalogue" | "lacks") {
            let mut entry =
                || table("root-list").iter().map(|row| number_in(&mut reader, row)).collect::<Vec<u64>>();
            placed = (0..value).map(|_| entry()).collect();
        }
        for _ in 0..if row["field"] == "copies" { value } else { 0 } {
            let parts: Vec<u64> =
                table("root-copies").iter().map(|row| number_in(&mut reader, row)).collect();
            for _ in 0..parts[1] {
                for row in table("table-page").iter().filter(|row| row["field"].starts_with("part: ")) {
                    number_in(&mut reader, row);
                }
            }
        }
    }
    assert_eq!((reader.remaining(), placed.len()), (0, 1));
    let bytes = read(device, placed[0][2], placed[0][3] as usize);
    let mut reader = Reader::new(&bytes, "what a member lacks");
    let rows = table("lacks");
    let (head, range) = rows.split_at(rows.iter().position(|row| row["field"] == "range: gap").unwrap());
    assert_eq!(reader.take(8).unwrap(), unhex(head[0]["example"]));
    let values: BTreeMap<&str, u64> =
        head[1..].iter().map(|row| (row["field"], number_in(&mut reader, row))).collect();
    assert_eq!((values["number"], values["told: epoch"]), (1, 0), "its label calls it whole");
    assert!(values["root"] > 0, "it has what the making of the pool has written");
    let mut regions = 0;
    for _ in 0..values["ranges"] {
        number_in(&mut reader, &range[0]);
        regions += number_in(&mut reader, &range[1]);
    }
    assert_eq!(reader.remaining(), 0);
    regions
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
