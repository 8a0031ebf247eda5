//! Damaged streams.

use pagefold_codec::testing::Random;
use pagefold_engine::pool::ReceiveOptions;

use super::{DISCARD, SendBench, content, noise, put, receive, send, write};

/// Returns the number of damaged streams to try: 10,000 with `PAGEFOLD_MUTATIONS=10000`.
fn mutations() -> u64 {
    std::env::var("PAGEFOLD_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// One or a few damages of a stream.
fn damaged(stream: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    for _ in 0..1 + random.next() % 3 {
        let len = bytes.len() as u64;
        let at = (random.next() % len) as usize;
        match random.next() % 6 {
            0 => bytes[at] ^= 1 << (random.next() % 8),
            1 => bytes[at] = bytes[at].wrapping_add(1 + (random.next() % 255) as u8),
            2 => bytes.truncate(at.max(1)),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, random.next() as u8),
            _ => {
                let from = (random.next() % len) as usize;
                let count = (random.next() % 5000) as usize;
                let piece: Vec<u8> = bytes[from..bytes.len().min(from + count)].to_vec();
                let end = bytes.len().min(at + piece.len());
                bytes.splice(at..end, piece);
            }
        }
    }
    bytes
}

#[test]
fn damaged_streams_are_rejected_whole() {
    let source = SendBench::new(1);
    source.pool.create_dataset("db", 1).unwrap();
    let dataset = source.pool.open_dataset("db").unwrap();
    let small = |n: u64| {
        for object in 2..6 {
            put(&*dataset, object, &noise(object + n, 50));
            write(&*dataset, object, 4096, n, &noise(object * n, 4096));
        }
    };
    (1..6).for_each(small);
    source.pool.snapshot(&["db"], "one", 1).unwrap();
    (4..9).for_each(small);
    source.pool.snapshot(&["db"], "two", 1).unwrap();
    let (full, incremental) =
        (send(&source.pool, "db@one", None), send(&source.pool, "db@two", Some("db@one")));
    let target = SendBench::new(2);
    receive(&target.pool, "copy", &DISCARD, &full).unwrap();
    let before = content(&target.pool, "copy");
    let mut random = Random::new(1);
    for n in 0..mutations() {
        let (path, stream) = if n % 2 == 0 { ("new", &full) } else { ("copy", &incremental) };
        let bytes = damaged(stream, &mut random);
        if bytes == *stream {
            // The damages took each other back.
            continue;
        }
        let keep = ReceiveOptions { keep: n % 3 == 0, ..DISCARD };
        assert!(receive(&target.pool, path, &keep, &bytes).is_err(), "mutation {n} is taken for a stream");
        if target.pool.partial(path).is_some() {
            assert!(keep.keep);
            target.pool.abort_receive(path).unwrap();
        }
        assert_eq!((target.paths().len(), target.pool.partials()), (3, vec![]));
        if n % 100 == 0 {
            target.assert_sound();
            assert_eq!(content(&target.pool, "copy"), before);
        }
    }
    target.assert_sound();
    assert_eq!(content(&target.pool, "copy@one"), before);
    receive(&target.pool, "copy", &DISCARD, &incremental).unwrap();
    assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
}
