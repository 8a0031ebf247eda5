//! Segments: directories, the segment table, records.

use pagefold_engine::Addr;
use pagefold_engine::dataset::ModelEntry;
use pagefold_engine::record::{
    Codec, Compression, Encoder, NoModels, Squeeze, bases_of, decode, encode_delta,
};
use pagefold_engine::segment::{
    DirEntry, DirEntryState, DirRef, Directory, PageIds, Part, Parts, Segment, Segments, decode_page,
};
use pagefold_engine::space::{Chunk, Extent};

use super::tables::{assert_example, codes, example, number, table, unhex};
use super::{MIB, ptr};

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
pub(super) fn records() {
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
    assert!(encode_delta(&before, &bases, &page, Squeeze::No, &mut delta));
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
