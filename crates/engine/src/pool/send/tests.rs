//! Streams that no sender makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefold_codec::Kinds;
use pagefold_codec::testing::{Random, Schema, heap_page};

use super::wire::{
    EndFrame, FrameKind, FrameReader, FrameWriter, HeadFrame, SentModel, StreamEntry, StreamPage,
};
use super::{Origin, ReceiveOptions, Source, StreamHead, StreamWriter, Token};
use crate::dataset::{Change, Dataset, ModelEntry};
use crate::device::{Device, SimDevice};
use crate::pool::models::{ModelCandidate, learn_better};
use crate::pool::testing::{damage, fresh, leaves, open, write};
use crate::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use crate::record::{Compression, Encoder, Needs};
use crate::{Error, Key, Result};

const PAGE: u32 = 8192;
const OPTIONS: ReceiveOptions = ReceiveOptions { created: 1, keep: false, force: false };

fn pool(guid: u8) -> Arc<Pool> {
    let devices = vec![Arc::new(SimDevice::new(140 << 20, 1)) as Arc<dyn Device>];
    create_on("tank", &devices, &CreateOptions { force: false, created: 0, guid: Guid([guid; 16]) }).unwrap();
    Pool::open_on(devices, &OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap()
}

/// Makes a pool with `copy@one`, in which object 5 has eight pages, and returns the origin of that snapshot, too.
fn target() -> (Arc<Pool>, Origin) {
    let source = pool(1);
    for page in 0..8 {
        let data: Vec<u8> = (0..PAGE).map(|at| (at % 251 * (page + 3) % 256) as u8).collect();
        let offset = u64::from(page) * u64::from(PAGE);
        source
            .dataset()
            .apply(&[Change::Write { object: 5, record_size: PAGE, offset, data: &data }])
            .unwrap();
    }
    source.snapshot(&[""], "one", 1).unwrap();
    let mut stream = Vec::new();
    source.send(&Source::Snapshot { path: "@one", from: None }, &mut stream, &mut |_| {}).unwrap();
    let target = pool(2);
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut |_| {}).unwrap();
    let of = target.catalogue.read();
    let origin = of.origin_of(&target, of.snapshot_at("copy@one").unwrap()).unwrap();
    drop(of);
    (target, origin)
}

fn record(size: usize) -> Vec<u8> {
    let (mut out, page) = (Vec::new(), b"a row of some table ".repeat(size / 20 + 1));
    Encoder::new().encode(&page[..size], Compression::default(), &mut out);
    out
}

fn pages<'a>(object: u64, record_size: u32, first: u64, pages: Vec<StreamPage<'a>>) -> StreamEntry<'a> {
    StreamEntry::Pages { object, record_size, first, pages }
}

/// Makes a stream of one frame that comes after `from`.
fn stream(from: Origin, entries: &[StreamEntry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut frames = FrameWriter::new(&mut out);
    let to = Origin { number: from.number + 1, ..from };
    let head = HeadFrame { to, from: Some(from), after: None, name: "two".into(), expected_bytes: 1 };
    frames.frame(FrameKind::Head, &head.encode()).unwrap();
    let (mut payload, mut end) = (Vec::new(), EndFrame::default());
    for entry in entries {
        entry.encode(&mut payload);
        end.count(entry);
    }
    frames.frame(FrameKind::Entries, &payload).unwrap();
    frames.frame(FrameKind::End, &end.encode()).unwrap();
    out
}

fn receive(entries: &[StreamEntry<'_>]) -> Result<()> {
    let (target, from) = target();
    let done = target.receive("copy", &OPTIONS, &mut stream(from, entries).as_slice(), &mut |_| {});
    while target.is_reaping() {
        if !target.reap().unwrap() {
            target.checkpoint(false).unwrap();
        }
    }
    assert_eq!(target.check_open(&mut |_| {}).messages, Vec::<String>::new());
    done.map(drop)
}

#[test]
fn a_page_that_the_same_frame_removes_is_shared_by_nobody() {
    let punch = StreamEntry::Punch { object: 5, first: 2, count: 3 };
    for page in 2..5 {
        let refused = receive(&[punch.clone(), pages(7, PAGE, 0, vec![StreamPage::Same(5, page)])]);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
    receive(&[punch.clone(), pages(7, PAGE, 0, vec![StreamPage::Same(5, 1)])]).unwrap();
    receive(&[punch, pages(7, PAGE, 0, vec![StreamPage::Same(5, 5)])]).unwrap();
}

#[test]
fn a_page_of_another_recordsize_that_was_is_shared_by_nobody() {
    let large = record(16384);
    let resized = pages(5, 16384, 0, vec![StreamPage::Record(&large, Needs::default())]);
    for page in 1..8 {
        let refused = receive(&[resized.clone(), pages(7, 16384, 0, vec![StreamPage::Same(5, page)])]);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
    receive(&[resized.clone(), pages(7, 16384, 0, vec![StreamPage::Same(5, 0)])]).unwrap();
    // The number of entries that follow does not matter.
    for others in 1..12 {
        let mut entries = vec![resized.clone()];
        entries.extend(
            (6..6 + others)
                .map(|object| pages(object, 16384, 9, vec![StreamPage::Record(&large, Needs::default())])),
        );
        entries.extend(
            (6..6 + others).map(|object| pages(object + 50, 16384, 0, vec![StreamPage::Same(object, 9)])),
        );
        receive(&entries).unwrap();
    }
}

#[test]
fn a_record_that_cannot_be_decoded_is_refused_though_all_checksums_hold() {
    let intact = record(PAGE as usize);
    let page = |record| pages(7, PAGE, 0, vec![StreamPage::Record(record, Needs::default())]);
    receive(&[page(&intact)]).unwrap();
    // The head of the record stays as it is, so only decoding finds the damage.
    let mut forged = intact.clone();
    let half = forged.len() / 2;
    forged[half..].fill(0xFF);
    for forged in [&forged, &intact[..half].to_vec()] {
        let refused = receive(&[page(forged)]);
        assert!(
            matches!(&refused, Err(Error::Corrupt { detail, .. }) if detail.contains("decoded")),
            "{refused:?}"
        );
    }
}

#[test]
fn what_follows_a_stream_is_refused_and_nothing_becomes_visible() {
    let (target, from) = target();
    let stream = stream(from, &[StreamEntry::Put(crate::Key::new(9, 1, 0), b"x")]);
    for behind in [&b"x"[..], &stream] {
        let bytes = [&stream, behind].concat();
        let refused = target.receive("copy", &OPTIONS, &mut bytes.as_slice(), &mut |_| {});
        assert!(
            matches!(&refused, Err(Error::Corrupt { detail, .. }) if detail.contains("follows its end")),
            "{refused:?}"
        );
        assert!(target.version("copy@two").is_err() && target.partial("copy").is_none());
    }
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut |_| {}).unwrap();
    assert!(target.version("copy@two").is_ok());
}

#[test]
fn a_second_stream_is_told_that_one_is_being_received() {
    let (target, from) = target();
    let stream = stream(from, &[StreamEntry::Put(crate::Key::new(9, 1, 0), b"x")]);
    let mut refused = 0;
    let mut meanwhile = |_: &super::Transfer| {
        let second = target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut |_| {}).map(drop);
        for error in [second, target.abort_receive("copy")] {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("being received into 'copy' just now"), "{text}");
            refused += 1;
        }
    };
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut meanwhile).unwrap();
    assert!(refused > 0);
}

/// Makes a whole stream of as many objects, each with a value of half a KiB.
fn values(to: Origin, objects: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let head = StreamHead { to, from: None, after: None, name: "one".into(), expected_bytes: 1 };
    let mut writer = StreamWriter::new(&mut out, &head).unwrap();
    for object in 2..objects + 2 {
        writer.put(Key::new(object, 1, 0), &[object as u8; 512]).unwrap();
    }
    writer.end().unwrap();
    out
}

/// The log had the changes already: the whole pool failed, and could not be opened any more.
#[test]
fn a_stream_onto_a_damaged_dataset_costs_nobody_else_anything() {
    let (device, target) = fresh();
    let from = Origin { pool: Guid([1; 16]), number: 7, created: 3 };
    target.receive("copy", &OPTIONS, &mut values(from, 1000).as_slice(), &mut |_| {}).unwrap();
    target.checkpoint(false).unwrap();
    let all = leaves(&target.version("copy").unwrap().tree);
    assert!(all.len() > 4);
    let (leaf, key) = all[all.len() / 2];
    damage(&device, &target, leaf);
    drop(target);
    let target = open(&device);
    let put = StreamEntry::Put(key, b"new");
    let record = record(PAGE as usize);
    let paged = pages(key.object, PAGE, 0, vec![StreamPage::Record(&record, Needs::default())]);
    let punch = StreamEntry::Punch { object: key.object, first: 3, count: 2 };
    for entry in [put, StreamEntry::Delete(key), paged, punch] {
        let refused = target.receive("copy", &OPTIONS, &mut stream(from, &[entry]).as_slice(), &mut |_| {});
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
    target.create_dataset("other", 1).unwrap();
    drop(target);
    let target = open(&device);
    assert!(target.version("other").is_ok() && target.partials().is_empty());
    let other = StreamEntry::Put(Key::new(5000, 1, 0), b"new");
    target.receive("copy", &OPTIONS, &mut stream(from, &[other]).as_slice(), &mut |_| {}).unwrap();
}

/// Nodes that change are written by a checkpoint. A stream that is faster than checkpoints must not fill the memory.
#[test]
fn changed_nodes_of_a_stream_keep_within_their_memory() {
    let target = pool(2);
    let stream = values(Origin { pool: Guid([1; 16]), number: 7, created: 3 }, 40_000);
    let mut most = 0;
    let mut watch = |_: &super::Transfer| most = most.max(target.nodes.unstored_bytes());
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut watch).unwrap();
    let frame = 4 << 20;
    let bound = target.sizing().unstored_tree_max() + frame;
    assert!(most <= bound, "{most} bytes of nodes, more than {bound}");
}

/// Both find that nothing was received there before, and then make the hidden dataset. A twin of it stayed, and every
/// later stream was told to go on with it.
#[test]
fn of_two_streams_that_begin_at_once_one_makes_the_hidden_dataset() {
    let target = pool(2);
    let to = Origin { pool: Guid([1; 16]), number: 7, created: 3 };
    let head = HeadFrame { to, from: None, after: None, name: "one".into(), expected_bytes: 1 };
    let token = Token { to, from: None, after: None };
    target.make_hidden("new", "%new", &token, &head, &OPTIONS).unwrap();
    let second = target.make_hidden("new", "%new", &token, &head, &OPTIONS);
    assert!(matches!(second, Err(Error::Busy(_))), "{second:?}");
    assert_eq!(target.partials().len(), 1);
    target.receive("new", &OPTIONS, &mut values(to, 5).as_slice(), &mut |_| {}).unwrap();
    assert!(target.partials().is_empty());
}

/// The end of a stream may wait for a checkpoint, and properties can be set meanwhile.
#[test]
fn a_property_that_is_set_while_a_stream_ends_stays() {
    let (target, from) = target();
    target.checkpoint(false).unwrap();
    let stream = stream(from, &[StreamEntry::Put(Key::new(9, 1, 0), b"x")]);
    let (calls, before) = (AtomicU64::new(0), AtomicU64::new(0));
    let grown = || target.shared.room.grown_bytes.load(Ordering::Acquire);
    let mut watch = |_: &super::Transfer| {
        before.store(grown(), Ordering::Release);
        calls.fetch_add(1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        let held = target.maintenance.lock();
        let ended =
            scope.spawn(|| target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut watch).map(drop));
        // Room for the last operations is claimed after the properties were read, and before the lock is waited for.
        while calls.load(Ordering::Acquire) < 3 || grown() == before.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        target.set_property_of("copy", "note", Some("mine")).unwrap();
        drop(held);
        ended.join().unwrap().unwrap();
    });
    assert!(target.version("copy@two").is_ok());
    assert_eq!(target.property_of("copy", "note").unwrap().as_deref(), Some("mine"));
}

/// Pages that were overwritten between two snapshots are not sent, and were expected.
#[test]
fn what_has_died_meanwhile_is_not_expected() {
    let (_device, pool) = fresh();
    write(&pool, 0..200, 0);
    for generation in 1..5 {
        pool.snapshot(&[""], &format!("s{generation}"), 1).unwrap();
        write(&pool, 0..200, generation);
    }
    pool.checkpoint(false).unwrap();
    let source = Source::Snapshot { path: "@s4", from: Some("@s1") };
    let expected = pool.send_size(&source).unwrap();
    let sent = pool.send(&source, &mut Vec::new(), &mut |_| {}).unwrap();
    assert_eq!(sent.expected_bytes, expected);
    let (few, many) = (sent.record_bytes, sent.record_bytes / 10 * 11);
    assert!((few..many).contains(&expected), "{expected} were expected, {few} were sent");
}

/// Its usage would be the total of the dataset.
#[test]
fn no_page_is_of_the_dataset_as_a_whole() {
    let intact = record(PAGE as usize);
    let page = pages(0, PAGE, 0, vec![StreamPage::Record(&intact, Needs::default())]);
    for entry in [page, StreamEntry::Punch { object: 0, first: 0, count: 1 }] {
        let refused = receive(&[entry]);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
}

/// Without that all models were learned anew after each stream, and after each promotion.
#[test]
fn models_pass_to_the_dataset_that_takes_the_place_of_theirs() {
    let (target, from) = target();
    target.set_property("compression", Some("page-1")).unwrap();
    target.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let heap: Vec<Vec<u8>> = (0..60).map(|block| heap_page(&mut random, &schema, block)).collect();
    let learned = learn_better(&heap, None, 300, (Kinds::Any, 1)).unwrap();
    let ModelCandidate { model, bytes, sampled_pages, record_bytes } = learned;
    let id_of = |path: &str| target.version(path).unwrap().id;
    let before = id_of("copy");
    let adopted = target.adopt(model, bytes, |ptr, codec| ModelEntry {
        ptr,
        codec,
        dataset: before,
        object: 5,
        generation: 0,
        sampled_pages,
        object_pages: 60,
        record_bytes,
        late: true,
    });
    let model = adopted.unwrap().unwrap().id();
    let models = &target.shared.models;
    let stream = stream(from, &[StreamEntry::Put(Key::new(9, 1, 0), b"x")]);
    target.receive("copy", &OPTIONS, &mut stream.as_slice(), &mut |_| {}).unwrap();
    let received = id_of("copy");
    assert_ne!(received, before);
    target.checkpoint(false).unwrap();
    assert_eq!(models.own((received, 5)), Some(model));
    assert_eq!(target.late().iter().filter(|(of, _)| *of == (received, 5)).count(), 1);
    target.clone_snapshot("copy@two", "clone", 1).unwrap();
    target.promote("clone").unwrap();
    target.checkpoint(false).unwrap();
    assert_eq!(models.own((id_of("clone"), 5)), Some(model));
    assert_eq!(models.current(received, 5), Some(model), "it is the clone now");

    // Its stream says of which object the model is.
    let copy = target.version("copy").unwrap();
    copy.apply(&[Change::Write { object: 5, record_size: PAGE, offset: 0, data: &heap[0] }]).unwrap();
    target.snapshot(&["copy"], "three", 1).unwrap();
    let mut sent = Vec::new();
    target.send(&Source::Snapshot { path: "copy@three", from: None }, &mut sent, &mut |_| {}).unwrap();
    let (mut sent, mut objects) = (sent.as_slice(), Vec::new());
    let mut frames = FrameReader::new(&mut sent);
    loop {
        match frames.next().unwrap() {
            (FrameKind::Model, payload) => objects.push(SentModel::decode(payload).unwrap().object),
            (FrameKind::End, _) => break,
            _ => {}
        }
    }
    assert_eq!(objects, [5]);
}
