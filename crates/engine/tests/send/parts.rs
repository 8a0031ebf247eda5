//! Streams that are interrupted, and gone on with.

use std::io::Read;

use pagefold_engine::Error;
use pagefold_engine::pool::{Source, Token};

use super::{
    DISCARD, KEEP, MIB, PAGE, SendBench, content, fill, noise, receive, resume, send, source, write,
};

/// Gives all of it in small pieces, and then fails as a connection does.
struct Torn<'a>(&'a [u8]);

impl Read for Torn<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let len = buf.len().min(4096);
        self.0.read(&mut buf[..len])
    }
}

/// Cuts streams off at `cuts` places each and goes on from there, every other time after a power cut.
pub(super) fn interrupted(
    path: &str,
    stream: &[u8],
    source: &SendBench,
    mut target: SendBench,
    cuts: &[usize],
) -> SendBench {
    let mut stream = stream.to_vec();
    for (n, cut) in cuts.iter().enumerate() {
        let part = &stream[..(stream.len() * cut / 100).min(stream.len() - 1)];
        let error = target.pool.receive(path, &KEEP, &mut Torn(part), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        if n % 2 == 1 {
            target = target.crash(n as u64);
        }
        target.assert_sound();
        if let Some(partial) = target.pool.partial(path) {
            assert_eq!(partial.path, path);
            stream = resume(&source.pool, &partial.token.to_string());
        }
    }
    receive(&target.pool, path, &KEEP, &stream).unwrap();
    assert_eq!(target.pool.partials(), []);
    target
}

#[test]
fn goes_on_where_it_was_interrupted() {
    let (source, full, incremental) = source();
    for cuts in [vec![0], vec![50, 50, 50, 90], vec![99, 99], vec![10, 95, 1, 70, 99]] {
        let target = interrupted("copy", &full, &source, SendBench::new(2), &cuts);
        assert_eq!(content(&target.pool, "copy@one"), content(&source.pool, "db@one"));
        let target = interrupted("copy", &incremental, &source, target, &cuts);
        assert_eq!(content(&target.pool, "copy"), content(&source.pool, "db@two"));
        target.assert_sound();
    }
}

#[test]
fn a_part_is_for_one_stream_and_can_be_given_up() {
    let (source, full, _) = source();
    let target = SendBench::new(2);
    receive(&target.pool, "copy", &KEEP, &full[..full.len() - 9]).unwrap_err();
    let partial = target.pool.partial("copy").unwrap();
    assert!(partial.stored_bytes > MIB, "{partial:?}");
    assert_eq!(target.paths(), [""]);
    assert!(matches!(receive(&target.pool, "copy", &KEEP, &full), Err(Error::Busy(_))));
    assert!(matches!(target.pool.create_dataset("copy/x", 1), Err(Error::NotFound(_))));
    let rest = resume(&source.pool, &partial.token.to_string());
    assert!(matches!(receive(&target.pool, "other", &KEEP, &rest), Err(Error::Invalid(_))));
    target.pool.abort_receive("copy").unwrap();
    assert!(matches!(target.pool.abort_receive("copy"), Err(Error::NotFound(_))));
    assert!(matches!(receive(&target.pool, "copy", &KEEP, &rest), Err(Error::Invalid(_))));
    target.assert_sound();
    assert!(target.pool.status().used_bytes < MIB, "{:?}", target.pool.status());
    for wrong in ["", "1-", "1-00", "2-aa", &partial.token.to_string()[..60]] {
        assert!(wrong.parse::<Token>().is_err());
    }
    // Its snapshot is gone.
    source.pool.destroy_snapshots(&["db@one"]).unwrap();
    let gone = source.pool.send(&Source::Resume(&partial.token), &mut Vec::new(), &mut |_| {});
    assert!(matches!(gone, Err(Error::NotFound(_))));
}

#[test]
fn a_pool_without_room_keeps_what_it_had() {
    let source = SendBench::of_size(1, 400);
    for page in 0..20_000 {
        write(&*source.pool.dataset(), 5, PAGE, page, &noise(page, PAGE as usize));
    }
    source.pool.snapshot(&[""], "large", 1).unwrap();
    let stream = send(&source.pool, "@large", None);
    let target = SendBench::of_size(2, 140);
    fill(&*target.pool.dataset());
    let before = content(&target.pool, "");
    assert!(matches!(receive(&target.pool, "copy", &DISCARD, &stream), Err(Error::NoSpace(_))));
    assert_eq!((target.paths(), target.pool.partials()), (vec![String::new()], vec![]));
    target.assert_sound();
    assert_eq!(content(&target.pool, ""), before);
    assert!(target.pool.status().used_bytes < 10 * MIB, "{:?}", target.pool.status());
}
