//! Streams of snapshots and of models.

use pagefold_engine::Key;
use pagefold_engine::dataset::Change;
use pagefold_engine::pool::{LearnOptions, Source, Token};
use pagefold_engine::wire::Reader;

use super::fresh_pool;
use super::labels::number_in;
use super::tables::{assert_example, codes, example, table};

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
