//! One sample of each structure, for tests and fuzz targets.

use pagefold_engine::Key;
use pagefold_engine::pool::{Guid, Origin};

use crate::archive::object;
use crate::binlog::BinlogPlace;
use crate::block::{BlockRef, Kind, ModelRef, RecordRef};
use crate::chunk::{Entry, PageEntry};
use crate::commit::{Backup, BinlogEnd, BinlogFloor, Cluster, Described, Floor, State};
use crate::keys::Sealer;
use crate::pack::{PackBuilder, PackId};
use crate::root::{Needs, Root, Row, Totals};

/// Repository to which all samples belong.
pub(crate) const REPOSITORY: [u8; 16] = *b"0123456789abcdef";
/// Name of the pack.
pub(crate) const PACK: PackId = PackId(*b"fedcba9876543210");

fn block(index: u32) -> BlockRef {
    BlockRef { pack: PACK, index, offset: 48 + index * 20, len: 20 }
}

fn model() -> ModelRef {
    ModelRef { hash: u128::from_le_bytes(*b"hash of a model."), block: block(1) }
}

/// Returns entries of each kind: a value, a run of two pages, and a page that shares a record.
pub(crate) fn entries() -> Vec<Entry> {
    let page = |page, at, model, shared| {
        let record = RecordRef { block: block(0), at, len: 2, hash: u64::from_le_bytes(*b"xxh3 64."), model };
        Entry::Page(PageEntry { object: 2, page, record_size: 8192, record, shared })
    };
    vec![
        Entry::Value(Key::new(2, 16, 0), b"value".as_slice().into()),
        page(0, 0, None, None),
        page(1, 2, Some(model()), None),
        page(9, 0, None, Some((2, 0))),
    ]
}

/// Returns a root with one chunk.
pub(crate) fn root() -> Root {
    let mut needs = Needs::default();
    entries().iter().for_each(|entry| needs.add(entry));
    let rows = vec![Row { first: Key::new(2, 16, 0), entries: 4, block: block(2) }];
    Root { needs, rows }
}

/// Number of the cluster.
pub(crate) const SYSTEM: u64 = 0x6A42_0000_0000_0007;

fn cluster() -> Cluster {
    let (redo, end) = (0x300_0028, 0x301_0000);
    Cluster {
        data: "pg".into(),
        system: SYSTEM,
        timeline: 1,
        redo,
        end,
        segment_bytes: 16 << 20,
        last_us: Some(1_600_000_000_000_000),
    }
}

/// Returns the end of a binary log in a backup.
pub(crate) fn binlog_end() -> BinlogEnd {
    BinlogEnd {
        data: "mysql".into(),
        place: BinlogPlace { file: 7, offset: 0x1000 },
        mark: 0x1234_5678,
        last_s: Some(1_600_000_000),
    }
}

/// Returns the head of an archived file of a log, of two blocks.
pub(crate) fn wal_head() -> object::Head {
    object::Head {
        system: SYSTEM,
        name: "000000010000000000000003".into(),
        len: 3 << 20,
        segment_bytes: 16 << 20,
        hash: u128::from_le_bytes(*b"hash of a file.."),
        times: Some((1_600_000_000_000_000, 1_600_000_001_000_000)),
        is_last: false,
        is_inside: false,
        past: Some(crate::archive::model::Past { age: 3, wait: 4, share: 2000 }),
        blocks: vec![20, 300],
    }
}

/// Returns an archived file of a log.
pub(crate) fn wal_object() -> Vec<u8> {
    let file = object::File {
        system: SYSTEM,
        name: "00000002.history",
        segment_bytes: 0,
        times: None,
        is_last: false,
        is_inside: false,
        content: b"1\t0/3000000\n",
    };
    object::encode_as(&REPOSITORY, &Sealer::plain(), &PACK.0, &file, None).unwrap_or_default()
}

/// Returns a state with one backup and one condemned pack.
pub(crate) fn state() -> State {
    let backup = Backup {
        number: 1,
        pool: "tank".into(),
        dataset: "db".into(),
        snapshot: "one".into(),
        origin: Origin { pool: Guid(*b"guid of the pool"), number: 7, created: 100 },
        made: 101,
        totals: Totals { values: 1, pages: 3, record_bytes: 6 },
        added_bytes: 102,
        packs: 1,
        clusters: Some(vec![cluster()]),
        binlogs: vec![binlog_end()],
        root: vec![block(3)],
    };
    let described = Described {
        pool: "tank".into(),
        dataset: "db".into(),
        properties: vec![("atime".into(), "off".into())],
    };
    State {
        epoch: 1,
        next_number: 2,
        backups: vec![backup],
        condemned: vec![PackId(*b"a condemned pack")],
        floors: vec![Floor { system: SYSTEM, place: 0x200_0000 }],
        described: vec![described],
        binlog_floors: vec![BinlogFloor { log: "shop".into(), place: BinlogPlace { file: 6, offset: 0 } }],
    }
}

/// Returns a pack with a block of records.
pub(crate) fn pack() -> Vec<u8> {
    let sealer = Sealer::plain();
    let mut pack = PackBuilder::new(&sealer);
    pack.push(Kind::Records, b"rows");
    pack.finish(&REPOSITORY, PACK, &sealer).map(|pack| pack.to_vec()).unwrap_or_default()
}
