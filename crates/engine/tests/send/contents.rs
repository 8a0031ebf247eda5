//! Models and deltas in streams, and the bounds of frames.

use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_engine::Key;
use pagefold_engine::dataset::Change;
use pagefold_engine::pool::{LearnOptions, Pool};

use super::parts::interrupted;
use super::{KEEP, MIB, PAGE, SendBench, content, noise, receive, send, write};

#[test]
fn models_come_along_once() {
    let source = SendBench::new(1);
    source.pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..600).map(|block| heap_page(&mut random, &schema, block)).collect();
    let dataset = source.pool.dataset();
    let write_all = |object| {
        for (at, page) in (0..).zip(&pages) {
            write(&*dataset, object, PAGE, at, page);
        }
        source.pool.sync().unwrap();
    };
    write_all(5);
    source.pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap().adopted.unwrap();
    write_all(5);
    source.pool.snapshot(&[""], "one", 1).unwrap();
    let full = send(&source.pool, "@one", None);
    assert!(full.len() * 4 < pages.len() * PAGE as usize, "{} bytes", full.len());
    for (at, page) in (0..).zip(&pages[..100]) {
        write(&*dataset, 5, PAGE, 10 + at, page);
    }
    source.pool.snapshot(&[""], "two", 1).unwrap();
    let incremental = send(&source.pool, "@two", Some("@one"));

    let target = SendBench::new(2);
    target.pool.set_compression("page-1".parse().unwrap());
    // So that numbers of models differ.
    for (at, page) in (0..).zip(&pages[..300]) {
        write(&*target.pool.dataset(), 9, PAGE, at, page);
    }
    target.pool.sync().unwrap();
    target.pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap().adopted.unwrap();
    receive(&target.pool, "copy", &KEEP, &full).unwrap();
    target.pool.checkpoint(false).unwrap();
    receive(&target.pool, "copy", &KEEP, &incremental).unwrap();
    assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "@one"));
    assert_eq!(content(&target.pool, "copy@two"), content(&source.pool, "@two"));
    let models = |pool: &Pool| pool.check_open(&mut |_| {}).models;
    assert_eq!((models(&source.pool), models(&target.pool)), (1, 2));
    target.assert_sound();
    let target = target.crash(1);
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "@two"));
    target.assert_sound();
}

/// Models that came by streams stayed until the pool was opened again: a server that received every hour had 1,024 of
/// them some day, and received no more.
#[test]
fn models_of_a_stream_go_when_nothing_needs_them() {
    let (source, target) = (SendBench::new(1), SendBench::new(2));
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> = (0..200).map(|block| heap_page(&mut random, &schema, block)).collect();
    let write_all = |pool: &Pool, object: u64, pages: &[Vec<u8>]| {
        for (at, page) in (0..).zip(pages) {
            write(&*pool.dataset(), object, PAGE, at, page);
        }
        pool.sync().unwrap();
    };
    let learn = |pool: &Pool| {
        pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap().adopted.unwrap()
    };
    source.pool.set_compression("page-1".parse().unwrap());
    write_all(&source.pool, 5, &pages[..100]);
    learn(&source.pool);
    write_all(&source.pool, 5, &pages[100..]);
    source.pool.snapshot(&[""], "one", 1).unwrap();
    let stream = send(&source.pool, "@one", None);
    target.pool.set_compression("page-1".parse().unwrap());
    receive(&target.pool, "copy", &KEEP, &stream).unwrap();
    // The model with the highest number stays in any case.
    write_all(&target.pool, 9, &pages[..100]);
    learn(&target.pool);
    let models = || target.pool.check_open(&mut |_| {}).models;
    assert_eq!(models(), 2);
    target.pool.destroy_snapshots(&["copy@one"]).unwrap();
    target.pool.destroy_dataset("copy").unwrap();
    let mut rounds = 0;
    while models() == 2 {
        rounds += 1;
        assert!(rounds < 20, "the model is kept for nothing");
        target.assert_sound();
        // Until the log goes on in another segment: what is part of it is not cleaned.
        write_all(&target.pool, 12, &(0..64).map(|at| noise(at, PAGE as usize)).collect::<Vec<_>>());
        target.pool.clean().unwrap();
        target.pool.checkpoint(false).unwrap();
    }
    target.assert_sound();
}

#[test]
fn deltas_are_sent_in_full() {
    let source = SendBench::new(1);
    let dataset = source.pool.dataset();
    for page in 0..20 {
        write(&*dataset, 5, PAGE, page, &noise(page, PAGE as usize));
    }
    source.pool.sync().unwrap();
    source.pool.snapshot(&[""], "one", 1).unwrap();
    for round in 0..3_u64 {
        for page in 0..20 {
            let offset = page * u64::from(PAGE) + 100 * round;
            let change = Change::Write { object: 5, record_size: PAGE, offset, data: b"other" };
            dataset.apply(&[change]).unwrap();
        }
        source.pool.sync().unwrap();
    }
    let bases = source.pool.live().bases_between(5, 0, 20).unwrap();
    assert_eq!(bases.len(), 20, "the pages are deltas");
    source.pool.snapshot(&[""], "two", 1).unwrap();
    let target = SendBench::new(2);
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@one", None)).unwrap();
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@two", Some("@one"))).unwrap();
    assert_eq!(content(&target.pool, "a@one"), content(&source.pool, "@one"));
    assert_eq!(content(&target.pool, "a@two"), content(&source.pool, "@two"));
    receive(&target.pool, "b", &KEEP, &send(&source.pool, "@two", None)).unwrap();
    assert_eq!(content(&target.pool, "b"), content(&source.pool, "@two"));
    target.assert_sound();
}

/// Lengths of the frames of a stream: payloads, in bytes.
fn frames(stream: &[u8]) -> Vec<usize> {
    let (mut at, mut all) = (8, Vec::new());
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
        all.push(len);
        at += 4 + 1 + len + 8;
    }
    all
}

/// A delta of some bytes becomes a record as long as the page, and thousands of them fit into what is read at a time.
#[test]
fn frames_are_bounded_by_the_records_that_deltas_become() {
    for (record_size, pages) in [(PAGE, 1500), (4 << 10, 3000), (128 << 10, 100)] {
        let source = SendBench::new(1);
        let dataset = source.pool.dataset();
        for page in 0..pages {
            write(&*dataset, 5, record_size, page, &noise(page, record_size as usize));
        }
        source.pool.sync().unwrap();
        source.pool.snapshot(&[""], "one", 1).unwrap();
        for page in 0..pages {
            let offset = page * u64::from(record_size) + 100;
            dataset.apply(&[Change::Write { object: 5, record_size, offset, data: b"other" }]).unwrap();
            // Values come behind the pages, some in a frame with the last of them.
            dataset.apply(&[Change::Put(Key::new(6, 1, page), vec![7; 100])]).unwrap();
        }
        source.pool.sync().unwrap();
        let deltas = source.pool.totals().pages_delta;
        assert!(deltas * 10 >= pages * 9, "{deltas} of {pages} pages are deltas");
        source.pool.snapshot(&[""], "two", 1).unwrap();
        let (one, two) = (send(&source.pool, "@one", None), send(&source.pool, "@two", Some("@one")));
        let longest = frames(&two).into_iter().max().unwrap();
        assert!(longest < MIB as usize + 2 * record_size as usize, "a frame of {longest} bytes");
        let target = SendBench::new(2);
        receive(&target.pool, "a", &KEEP, &one).unwrap();
        let target = interrupted("a", &two, &source, target, &[30, 60, 90]);
        assert_eq!(content(&target.pool, "a@two"), content(&source.pool, "@two"));
        receive(&target.pool, "b", &KEEP, &send(&source.pool, "@two", None)).unwrap();
        assert_eq!(content(&target.pool, "b"), content(&source.pool, "@two"));
        target.assert_sound();
    }
}

#[test]
fn memory_and_frames_are_bounded_by_what_is_sent() {
    let source = SendBench::new(1);
    let dataset = source.pool.dataset();
    for page in 0..6000 {
        write(&*dataset, 5, 4096, page, &[page as u8 | 1; 4096]);
    }
    source.pool.snapshot(&[""], "one", 1).unwrap();
    write(&*dataset, 5, 4096, 3000, &noise(1, 4096));
    source.pool.snapshot(&[""], "two", 1).unwrap();
    dataset.apply(&[Change::Punch { object: 5, from: 0, to: u64::MAX }]).unwrap();
    source.pool.snapshot(&[""], "three", 1).unwrap();
    let two = send(&source.pool, "@two", Some("@one"));
    assert!(two.len() < 4096 + 300, "{} bytes for a page", two.len());
    let three = send(&source.pool, "@three", Some("@two"));
    assert!(three.len() < 300, "{} bytes for no page", three.len());
    let target = SendBench::new(2);
    receive(&target.pool, "a", &KEEP, &send(&source.pool, "@one", None)).unwrap();
    for stream in [two, three] {
        receive(&target.pool, "a", &KEEP, &stream).unwrap();
    }
    assert!(content(&target.pool, "a").is_empty());
    target.assert_sound();
}
