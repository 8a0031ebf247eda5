//! Client and serving side over sockets of this process: what gets through, what does not, and what breaks.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::client::{Dial, Remote};
use super::frame::{
    Answer, Frame, FrameError, MAGIC, PROTOCOL, REQUEST_BYTES_MAX, Request, VERSION, greeting, is_name,
};
use super::link::Wire;
use super::{Host, ServeOptions, serve};
use crate::error::{Error, Result};
use crate::limits::{NAMES_PER_ANSWER, PART_BYTES, WAL_OBJECT_BYTES_MAX};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn host(directory: &FilePath) -> Host {
    Host::parse(&format!("host{}", directory.display()), None).unwrap()
}

/// The input of the serving side, up to a number of bytes; then the connection is gone, in both directions or in one.
struct Cut {
    inner: UnixStream,
    left: usize,
    how: std::net::Shutdown,
}

impl Read for Cut {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let wanted = out.len().min(self.left);
        if wanted == 0 && !out.is_empty() {
            let _ = self.inner.shutdown(self.how);
            return Ok(0);
        }
        let count = self.inner.read(&mut out[..wanted])?;
        self.left -= count;
        Ok(count)
    }
}

/// Dials a serving side of this process, which hears `left` bytes of the first connections, one after the other, and all of later ones.
fn dial(options: ServeOptions, left: Vec<usize>, dialled: Arc<AtomicUsize>) -> Dial {
    // Now and then what was answered still comes through.
    let how = |left: usize| [std::net::Shutdown::Both, std::net::Shutdown::Read][left % 2];
    dial_cut(options, left.into_iter().map(|left| (left, how(left))).collect(), dialled)
}

/// As [`dial`], with the way in which each connection goes.
fn dial_cut(
    options: ServeOptions,
    cuts: Vec<(usize, std::net::Shutdown)>,
    dialled: Arc<AtomicUsize>,
) -> Dial {
    Box::new(move || {
        let number = dialled.fetch_add(1, Ordering::SeqCst);
        let (ours, theirs) = UnixStream::pair()?;
        let options = options.clone();
        let (left, how) = cuts.get(number).copied().unwrap_or((usize::MAX, std::net::Shutdown::Both));
        std::thread::spawn(move || {
            let output = theirs.try_clone().unwrap();
            let ended = serve(&options, Cut { inner: theirs.try_clone().unwrap(), left, how }, output);
            let _ = theirs.shutdown(std::net::Shutdown::Both);
            drop(ended);
        });
        Ok(Wire { input: Box::new(ours.try_clone()?), output: Box::new(ours), child: None })
    })
}

fn connect(directory: &FilePath, options: ServeOptions, make: bool) -> Result<Remote> {
    runtime().block_on(Remote::open_by(&host(directory), make, dial(options, Vec::new(), Arc::default())))
}

async fn create(remote: &Remote, name: &str, bytes: &[u8]) -> object_store::Result<()> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    remote.put_opts(&Path::from(name), bytes.to_vec().into(), options).await.map(drop)
}

async fn read(remote: &Remote, name: &str) -> object_store::Result<Bytes> {
    remote.get(&Path::from(name)).await?.bytes().await
}

#[test]
fn it_is_a_store_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("a/b");
    assert!(matches!(connect(&top, ServeOptions::default(), false), Err(Error::NotFound(_))));
    let remote = connect(&top, ServeOptions::default(), true).unwrap();
    runtime().block_on(async {
        let long: Vec<u8> = (0..3 * PART_BYTES + 5).map(|at| (at / 3) as u8).collect();
        remote.put(&Path::from("packs/1"), long.clone().into()).await.unwrap();
        remote.put(&Path::from("packs/2"), Bytes::new().into()).await.unwrap();
        assert!(read(&remote, "packs/1").await.unwrap() == long);
        assert!(read(&remote, "packs/2").await.unwrap().is_empty());
        assert_eq!(std::fs::read(top.join("packs/1")).unwrap().len(), long.len());
        let part = remote.get_range(&Path::from("packs/1"), 7..PART_BYTES as u64 + 9).await.unwrap();
        assert!(part == long[7..PART_BYTES + 9]);
        assert_eq!(remote.head(&Path::from("packs/1")).await.unwrap().size, long.len() as u64);
        let behind = long.len() as u64;
        remote.get_range(&Path::from("packs/1"), behind..behind + 1).await.unwrap_err();
        let missing = |error| matches!(error, object_store::Error::NotFound { .. });
        assert!(missing(read(&remote, "packs/3").await.unwrap_err()));
        assert!(missing(remote.head(&Path::from("packs/3")).await.unwrap_err()));
        create(&remote, "log/1", b"one").await.unwrap();
        let taken = create(&remote, "log/1", b"two").await.unwrap_err();
        assert!(matches!(taken, object_store::Error::AlreadyExists { .. }), "{taken}");
        assert_eq!(read(&remote, "log/1").await.unwrap(), "one");
        // Eight at once: one wins.
        let racers: Vec<_> = (0..8_u8).map(|racer| [racer]).collect();
        let races = racers.iter().map(|bytes| create(&remote, "log/2", bytes));
        let won = futures_util::future::join_all(races).await;
        assert_eq!(won.iter().filter(|won| won.is_ok()).count(), 1);
        let listed: Vec<_> = remote.list(Some(&Path::from("packs"))).try_collect().await.unwrap();
        let names: Vec<_> = listed.iter().map(|meta| (meta.location.as_ref(), meta.size)).collect();
        assert_eq!(names, [("packs/1", long.len() as u64), ("packs/2", 0)]);
        assert!(remote.list(Some(&Path::from("probe"))).try_collect::<Vec<_>>().await.unwrap().is_empty());
        remote.delete(&Path::from("packs/1")).await.unwrap();
        assert!(!top.join("packs/1").exists());
    });
}

/// A segment of a log may have a GiB, and more than a pack though it is compressed.
#[test]
fn a_request_may_be_as_long_as_the_longest_object() {
    let read = |len: u64| Frame::read(&mut (len as u32).to_le_bytes().as_slice(), REQUEST_BYTES_MAX, |_| ());
    assert!(matches!(read(WAL_OBJECT_BYTES_MAX as u64 + 300), Err(FrameError::CutShort)));
    assert!(matches!(read(REQUEST_BYTES_MAX + 1), Err(FrameError::Bad(_))));
}

#[test]
fn lists_go_on_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("packs")).unwrap();
    let count = NAMES_PER_ANSWER * 2 + 3;
    for number in 0..count {
        std::fs::write(dir.path().join(format!("packs/{number:05}")), b"x").unwrap();
    }
    // Those are no objects of ours.
    std::fs::write(dir.path().join("packs/00001#1"), b"x").unwrap();
    std::fs::write(dir.path().join("packs/.hidden"), b"x").unwrap();
    let remote = connect(dir.path(), ServeOptions::default(), false).unwrap();
    let listed: Vec<_> = runtime().block_on(remote.list(Some(&Path::from("packs"))).try_collect()).unwrap();
    let mut names: Vec<String> = listed.iter().map(|meta| meta.location.to_string()).collect();
    names.dedup();
    assert_eq!((listed.len(), names.len()), (count, count));
}

/// A log of commits grows without end, and each command asks what comes after the last one that it knows.
#[test]
fn a_list_from_a_name_on_asks_for_no_names_before_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("packs")).unwrap();
    let count = NAMES_PER_ANSWER * 2 + 3;
    let name = |number: usize| format!("{number:06}");
    for number in 0..count {
        std::fs::write(dir.path().join("packs").join(name(number)), b"x").unwrap();
    }
    let asked = Request::List { folder: "packs".into(), after: Some(name(count - 3)) };
    let heard = sent(&[hello_of(dir.path(), VERSION), asked]).len();
    // Another request would need another connection.
    let dialled = Arc::new(AtomicUsize::new(0));
    let once =
        dial_cut(ServeOptions::default(), vec![(heard, std::net::Shutdown::Read)], Arc::clone(&dialled));
    let found: Vec<_> = runtime().block_on(async {
        let remote = Remote::open_by(&host(dir.path()), false, once).await.unwrap();
        let offset = Path::from(format!("packs/{}", name(count - 3)));
        remote.list_with_offset(Some(&Path::from("packs")), &offset).try_collect().await.unwrap()
    });
    let names: Vec<_> = found.iter().map(|meta| meta.location.to_string()).collect();
    assert_eq!(names, [count - 2, count - 1].map(|number| format!("packs/{}", name(number))));
    assert_eq!(dialled.load(Ordering::SeqCst), 1);
}

/// The answer to frames that a client of its own making sends, until the serving side ends.
fn raw(options: &ServeOptions, frames: &[u8]) -> (Vec<Answer>, Result<()>) {
    let mut said = Vec::new();
    let ended = serve(options, frames, &mut said);
    let mut rest = said.strip_prefix(greeting(VERSION).as_slice()).unwrap();
    let mut answers = Vec::new();
    while let Some(frame) = Frame::read_answer(&mut rest).unwrap() {
        answers.push(Answer::decode(&frame).unwrap());
    }
    (answers, ended)
}

fn sent(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (request, number) in requests.iter().zip(0..) {
        let (head, payload) = request.encode(number);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&payload);
    }
    bytes
}

fn hello(directory: &FilePath) -> Request {
    hello_of(directory, "0")
}

fn hello_of(directory: &FilePath, version: &str) -> Request {
    let directory = directory.as_os_str().as_encoded_bytes().to_vec();
    Request::Hello { protocol: PROTOCOL, make: false, version: version.into(), directory }
}

#[test]
fn nothing_outside_of_the_directory_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
    std::fs::create_dir(&top).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink(&outside, top.join("packs")).unwrap();
    std::os::unix::fs::symlink(outside.join("secret"), top.join("repository")).unwrap();
    let options = ServeOptions::default();
    let too_long = "x".repeat(201);
    for name in [
        "../outside/secret",
        "/etc/passwd",
        "a/../../outside/secret",
        "..",
        ".",
        "",
        "a//b",
        "a\0",
        "a/./b",
        "packs/.x",
        "a#1",
        "a/b/c/d/e",
        &too_long,
    ] {
        assert!(!is_name(name), "{name}");
        let request = Request::Get { name: name.into(), begin: 0, len: 9 };
        let (answers, ended) = raw(&options, &sent(&[hello(&top), request]));
        assert!(matches!(answers[..], [Answer::Welcome, Answer::Failed(_)]), "{name}: {answers:?}");
        assert!(ended.is_err());
    }
    let bytes = Bytes::from_static(b"x");
    for request in [
        Request::Get { name: "repository".into(), begin: 0, len: 9 },
        Request::Put { name: "packs/secret".into(), bytes: bytes.clone() },
        Request::Create { name: "packs/new".into(), bytes },
        Request::Delete { name: "packs/secret".into() },
        Request::List { folder: "packs".into(), after: None },
    ] {
        let (answers, ended) = raw(&options, &sent(&[hello(&top), request.clone()]));
        assert!(
            matches!(&answers[1], Answer::Refused(why) if why.contains("link")),
            "{request:?}: {answers:?}"
        );
        ended.unwrap();
    }
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn who_is_restricted_gets_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let top = dir.join("top");
    std::fs::create_dir_all(top.join("mine")).unwrap();
    std::fs::create_dir(dir.join("topless")).unwrap();
    std::os::unix::fs::symlink(&dir, top.join("out")).unwrap();
    std::os::unix::fs::symlink(dir.join("none"), top.join("dangling")).unwrap();
    let options = ServeOptions { restrict: Some(top.clone()), append_only: false };
    let ask = |directory: &FilePath, make: bool| {
        let Request::Hello { protocol, version, directory, .. } = hello(directory) else { panic!() };
        raw(&options, &sent(&[Request::Hello { protocol, make, version, directory }])).0.remove(0)
    };
    assert_eq!(ask(&top, false), Answer::Welcome);
    assert_eq!(ask(&top.join("mine"), false), Answer::Welcome);
    assert_eq!(ask(&top.join("new"), false), Answer::Missing);
    assert_eq!(ask(&top.join("new/er"), true), Answer::Welcome);
    assert!(top.join("new/er").is_dir());
    let others = [
        dir.clone(),
        dir.join("topless"),
        dir.join("elsewhere/new"),
        top.join("../topless"),
        top.join("out"),
        top.join("out/topless"),
        top.join("out/made"),
        top.join("dangling/made"),
        "/".into(),
        "relative".into(),
        "".into(),
    ];
    for other in &others {
        assert!(
            matches!(ask(other, true), Answer::Refused(_)),
            "{}: {:?}",
            other.display(),
            ask(other, true)
        );
    }
    assert!(!dir.join("elsewhere").exists() && !dir.join("made").exists() && !dir.join("none").exists());
}

#[test]
fn what_was_written_stays_where_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let remote = connect(dir.path(), ServeOptions { append_only: true, restrict: None }, false).unwrap();
    runtime().block_on(async {
        let denied = |error| matches!(error, object_store::Error::PermissionDenied { .. });
        let put = |bytes: &'static str| {
            let remote = remote.clone();
            async move { remote.put(&Path::from("packs/1"), bytes.into()).await.map(drop) }
        };
        put("one").await.unwrap();
        // The same again, as after a lost answer.
        put("one").await.unwrap();
        assert!(denied(put("two").await.unwrap_err()) && denied(put("three").await.unwrap_err()));
        assert!(denied(remote.delete(&Path::from("packs/1")).await.unwrap_err()));
        assert_eq!(read(&remote, "packs/1").await.unwrap(), "one");
        create(&remote, "probe/1", b"try").await.unwrap();
        remote.delete(&Path::from("probe/1")).await.unwrap();
    });
}

#[test]
fn hostile_clients_are_told_and_hold_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let start = sent(&[hello(dir.path())]);
    let options = ServeOptions::default();
    let with = |more: &[u8]| raw(&options, &[&start, more].concat());
    // A length that is none, or more than any object's; then one that is believed, and does not come.
    for (more, told) in [
        (&[0xff; 40][..], "a message of 4294967295 bytes"),
        (&[8, 0, 0, 0, 1], "a message of 8 bytes"),
        (&[9, 0, 0, 0, 77, 1, 0, 0, 0, 0, 0, 0, 0], "kind 77"),
        (&[9, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0], "too early"),
        (&start, "before"),
    ] {
        let (answers, _) = with(more);
        assert!(
            matches!(answers.last(), Some(Answer::Failed(text) | Answer::Refused(text)) if text.contains(told)),
            "{told}: {answers:?}"
        );
    }
    let part = Request::Get { name: "a".into(), begin: 0, len: PART_BYTES as u32 + 1 };
    assert!(matches!(&with(&sent(&[part])).0[1], Answer::Failed(text) if text.contains("a part of more")));
    // A length that is believed, and of which nothing comes: that is told as a line that broke, to nobody.
    let (answers, ended) = with(&[0, 0, 0, 8, 3, 1, 0, 0, 0, 0, 0, 0, 0, 1, b'a', b'x']);
    assert_eq!(answers, [Answer::Welcome]);
    assert!(ended.unwrap_err().to_string().contains("in the middle"));
    // Another version, and no directory at all.
    let other = Request::Hello { protocol: 9, make: false, version: "9.9".into(), directory: b"/".to_vec() };
    assert!(matches!(&raw(&options, &sent(&[other])).0[0], Answer::Refused(why) if why.contains("9.9")));
    let none = Request::Delete { name: "a".into() };
    assert!(matches!(&raw(&options, &sent(&[none])).0[0], Answer::Refused(_)));
    raw(&options, &[]).1.unwrap();
}

/// A host that says these bytes, and hears nothing.
fn saying(bytes: Vec<u8>) -> Result<Remote> {
    let dial: Dial = Box::new(move || {
        Ok(Wire {
            input: Box::new(std::io::Cursor::new(bytes.clone())),
            output: Box::new(std::io::sink()),
            child: None,
        })
    });
    runtime().block_on(Remote::open_by(&host("/srv".as_ref()), false, dial))
}

#[test]
fn what_is_no_host_of_backups_is_told() {
    let with = |more: &[u8]| [&greeting(VERSION), more].concat();
    let mut later = MAGIC.to_vec();
    later.extend_from_slice(&[2, 0, 0, 0, 3, b'9', b'.', b'9']);
    let unasked = |answer: &Answer| answer.encode(7).0;
    for (bytes, message, advice) in [
        (b"Welcome to host\nLast login".to_vec(), "Welcome to host", "must print nothing"),
        (b"hi".to_vec(), "\"hi\"", "must print nothing"),
        (b"PFbkse\n".to_vec(), "does not answer as pagefold", "must print nothing"),
        (later, "pagefold 9.9 has version 2", "the same version"),
        (Vec::new(), "could not be made", ""),
        (MAGIC.to_vec(), "lost", ""),
        (with(&[0xff; 30]), "a message of 4294967295 bytes", ""),
        (with(&[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), "kind 1", ""),
        (with(&unasked(&Answer::Done)), "was not asked", ""),
        (with(&[]), "closed at the other end", ""),
    ] {
        let error = saying(bytes).unwrap_err();
        let Error::Connection { message: told, hint } = &error else { panic!("{error:?}") };
        assert!(told.contains(message), "{message}: {told}");
        assert!(hint.as_deref().unwrap_or_default().contains(advice), "{hint:?}");
    }
}

/// A connection that breaks after any number of bytes is made again, and nothing is lost or done wrongly.
#[test]
fn broken_connections_are_made_again_wherever_they_break() {
    let requests = sent(&super::fuzzing::some_requests()).len();
    for first in (60..60 + requests + 600).step_by(97) {
        let dir = tempfile::tempdir().unwrap();
        let hello = sent(&[hello(dir.path())]).len();
        let dialled = Arc::new(AtomicUsize::new(0));
        // Twice in a row; the first one at least serves.
        let breaks = dial(ServeOptions::default(), vec![hello.max(first), 3, 100], Arc::clone(&dialled));
        runtime().block_on(async {
            let remote = Remote::open_by(&host(dir.path()), false, breaks).await.unwrap();
            let bodies: Vec<Vec<u8>> = (0..6_u8).map(|number| vec![number; 150]).collect();
            let puts = bodies.iter().zip(0..).map(|(body, number)| {
                let (remote, at) = (remote.clone(), Path::from(format!("packs/{number}")));
                async move { remote.put(&at, body.clone().into()).await }
            });
            for put in futures_util::future::join_all(puts).await {
                put.unwrap();
            }
            // A client that lost the answer hears that the name is taken, and finds its own object.
            if create(&remote, "log/1", b"mine").await.is_err() {
                assert_eq!(read(&remote, "log/1").await.unwrap(), "mine");
            }
            for (body, number) in bodies.iter().zip(0..) {
                assert!(read(&remote, &format!("packs/{number}")).await.unwrap() == *body);
            }
            let listed: Vec<_> = remote.list(Some(&Path::from("packs"))).try_collect().await.unwrap();
            assert_eq!(listed.len(), 6);
        });
        assert!(dialled.load(Ordering::SeqCst) >= 2, "{first}");
    }
}

#[test]
fn a_line_that_is_down_at_the_first_attempt_is_told_at_once() {
    let dialled = Arc::new(AtomicUsize::new(0));
    let breaks = dial(ServeOptions::default(), vec![0, 0], Arc::clone(&dialled));
    let error = runtime().block_on(Remote::open_by(&host("/srv".as_ref()), false, breaks)).unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
    assert_eq!(dialled.load(Ordering::SeqCst), 1);
    let none: Dial = Box::new(|| Err(std::io::Error::other("no such file")));
    let error = runtime().block_on(Remote::open_by(&host("/srv".as_ref()), false, none)).unwrap_err();
    assert!(error.to_string().contains("ssh cannot be run"), "{error}");
}

/// Memory for objects that are written at once is bounded: who sends more waits.
#[test]
fn many_long_objects_at_once_come_through() {
    let dir = tempfile::tempdir().unwrap();
    let remote = connect(dir.path(), ServeOptions::default(), false).unwrap();
    runtime().block_on(async {
        let puts = (0..6_u8).map(|number| {
            let (remote, at) = (remote.clone(), Path::from(format!("packs/{number}")));
            async move { remote.put(&at, vec![number; 15 << 20].into()).await.unwrap() }
        });
        futures_util::future::join_all(puts).await;
        let first = read(&remote, "packs/5").await.unwrap();
        assert!(first.len() == 15 << 20 && first.iter().all(|byte| *byte == 5));
    });
}

#[test]
fn output_of_a_serving_side_that_nobody_reads_ends_it() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(serve(&ServeOptions::default(), &[][..], Gone), Err(Error::Connection { .. })));
}
