//! The log: batches, and the codes of operations.

use std::sync::Arc;

use pagefold_engine::dataset::redo::{Bases, CatalogueOp, PageRun, Redo, for_each};
use pagefold_engine::device::Devices;
use pagefold_engine::segment::{Segment, Segments, record_checksum};
use pagefold_engine::space::Chunks;
use pagefold_engine::wal::batch::{BatchHeader, ENTRY_BYTES, HEADER_BYTES, Verified};
use pagefold_engine::wal::{LogWriter, Position, Rec, RecordKind};
use pagefold_engine::{Addr, Key};

use super::tables::{assert_example, codes, example, number, table};
use super::{GUID, MIB, devices, ptr, read};

#[test]
fn batch() {
    let (device, all) = devices(256 * MIB);
    let chunks = Arc::new(Chunks::new(&[256 * MIB]));
    let (chunk, next) = (chunks.allocate().unwrap(), chunks.allocate().unwrap());
    let segments = Arc::new(Segments::new(MIB));
    segments.insert(Segment::fresh(9, chunk)).unwrap();
    let chain = 0x0123_4567_89ab_cdef;
    let position = Position { segment: 9, chunk, used: 8192, slots: 300, next, batch: 1000, chain };
    let mut writer = LogWriter::new(GUID.low(), position, segments, chunks, &Devices::all(all));
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

pub(super) fn pages() -> PageRun {
    let ptrs = vec![Some(ptr(9, 300, 1000)), None, Some(ptr(9, 299, 1300))];
    PageRun { dataset: 1, object: 5, record_size: 8192, first: 16, shared: false, ptrs, bases: Bases::None }
}
