//! Tests of the control socket with hostile and honest clients.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::client::Client;
use super::datasets::DatasetFigures;
use super::frame::{self, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use super::model::{Reply, Request};
use super::pieces::{PieceReader, PieceWriter};
use super::places::{CONNECTIONS_MAX, LONG_MAX, Place, Places, Turn};
use super::server::{Handler, Listener, lock_name_in};

/// A handler that counts the requests that reach it.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Handler for Counting {
    fn handle(&self, _: Request) -> Reply {
        self.0.fetch_add(1, Ordering::SeqCst);
        Reply::Done {}
    }

    /// Returns the bytes that it is given.
    fn stream(&self, _: Request, connection: &UnixStream) -> Reply {
        let mut bytes = Vec::new();
        if let Err(error) = PieceReader::new(connection).read_to_end(&mut bytes) {
            return Reply::Error { what: error.to_string(), hint: None };
        }
        let mut out = PieceWriter::new(connection);
        if out.write_all(&bytes).and_then(|()| out.end()).is_ok() {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        Reply::Done {}
    }
}

struct Served {
    _dir: tempfile::TempDir,
    _listener: Listener,
    path: PathBuf,
    handler: Arc<Counting>,
}

fn served() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let listener = Listener::bind_in(&run, "tank").unwrap();
    let handler = Arc::new(Counting::default());
    listener.serve(Arc::clone(&handler) as Arc<dyn Handler>).unwrap();
    Served { path: run.join("tank.sock"), _dir: dir, _listener: listener, handler }
}

impl Served {
    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }
    fn ask(&self) -> Reply {
        let mut stream = self.connect();
        frame::write(&mut stream, &Request::Sync {}, REQUEST_BYTES_MAX).unwrap();
        frame::read(&mut stream, REPLY_BYTES_MAX).unwrap().unwrap()
    }
    /// Sends raw bytes, and returns everything that comes back until the server closes.
    fn send_raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

#[test]
fn honest_requests_are_answered_one_after_another() {
    let served = served();
    let mut stream = served.connect();
    for _ in 0..3 {
        frame::write(&mut stream, &Request::Status {}, REQUEST_BYTES_MAX).unwrap();
        assert!(matches!(frame::read(&mut stream, REPLY_BYTES_MAX).unwrap(), Some(Reply::Done {})));
    }
    assert_eq!(served.handler.0.load(Ordering::SeqCst), 3);
}

#[test]
fn only_the_owner_can_reach_the_socket() {
    let served = served();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&served.path), 0o600);
    assert_eq!(mode(served.path.parent().unwrap()), 0o700);
}

#[test]
fn hostile_bytes_reach_no_handler_and_end_no_server() {
    let served = served();
    let mut noise = Vec::new();
    let mut state = 88_172_645_463_325_252u64;
    for _ in 0..65_536 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push(state.to_le_bytes()[0]);
    }
    let deep = "[".repeat(100_000);
    let attacks: Vec<Vec<u8>> = vec![
        vec![],
        vec![1],
        vec![0xFF; 4],
        [u32::MAX.to_le_bytes().as_slice(), b"{}"].concat(),
        (REQUEST_BYTES_MAX + 1).to_le_bytes().to_vec(),
        [REQUEST_BYTES_MAX.to_le_bytes().as_slice(), b"short"].concat(),
        framed(b""),
        framed(b"null"),
        framed(b"{\"request\":\"format_everything\"}"),
        framed(b"{\"request\":\"sync\",\"extra\":1}"),
        framed(b"{\"request\":\"usage\",\"inodes\":[-1]}"),
        framed(b"{\"request\":\"events\",\"after\":1e400,\"wait_ms\":0}"),
        framed(b"\xFF\xFE\x00"),
        framed(deep.as_bytes()),
        noise,
    ];
    for (index, attack) in attacks.iter().enumerate() {
        let answer = served.send_raw(attack);
        assert!(answer.len() < 1000, "attack {index} got {} bytes", answer.len());
        if let Ok(Some(reply)) = frame::read::<Reply>(&mut answer.as_slice(), REPLY_BYTES_MAX) {
            assert!(matches!(reply, Reply::Error { .. }), "attack {index} got {reply:?}");
        }
    }
    assert_eq!(served.handler.0.load(Ordering::SeqCst), 0);
    assert!(matches!(served.ask(), Reply::Done {}));
}

#[test]
fn the_figures_of_very_many_snapshots_can_be_told() {
    let one = DatasetFigures {
        name: "tank/databases/main/postgresql@auto-minutely-2026-11-21T13:09".into(),
        path: "databases/main/postgresql@auto-minutely-2026-11-21T13:09".into(),
        is_snapshot: true,
        used_bytes: 1 << 20,
        available_bytes: None,
        referenced_bytes: 1 << 40,
        logical_bytes: 1 << 41,
        physical_bytes: 1 << 40,
        used_by_dataset_bytes: 0,
        used_by_snapshots_bytes: 0,
        used_by_children_bytes: 0,
        written_bytes: 1 << 30,
        created: 1_795_266_540,
        origin: None,
        clones: Vec::new(),
        holds: BTreeMap::new(),
        mountpoint: "none".into(),
        backup: String::new(),
        mounted: None,
    };
    // A week of `minutely` for ten datasets.
    let reply = Reply::Datasets { all: vec![one; 7 * 24 * 60 * 10], partials: Vec::new() };
    let mut told = Vec::new();
    frame::write(&mut told, &reply, REPLY_BYTES_MAX).unwrap();
    let Reply::Datasets { all, .. } = frame::read(&mut &*told, REPLY_BYTES_MAX).unwrap().unwrap() else {
        unreachable!("it is of that kind")
    };
    assert_eq!(all.len(), 7 * 24 * 60 * 10);
}

#[test]
fn streams_are_told_from_their_ends() {
    let served = served();
    let asked = || {
        let mut stream = served.connect();
        let request = Request::Receive { path: "x".into(), force: false };
        frame::write(&mut stream, &request, REQUEST_BYTES_MAX).unwrap();
        stream
    };
    for len in [0, 1, 4095, (1 << 20) + 1, 5_000_000] {
        let stream = asked();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let mut out = PieceWriter::new(&stream);
        out.write_all(&bytes).and_then(|()| out.end()).unwrap();
        let mut back = Vec::new();
        PieceReader::new(&stream).read_to_end(&mut back).unwrap();
        assert!(back == bytes);
        assert!(matches!(frame::read(&mut &stream, REPLY_BYTES_MAX).unwrap(), Some(Reply::Done {})));
    }
    let honest = served.handler.0.load(Ordering::SeqCst);
    // The stream is cut off in the middle of a piece, of a length, and between pieces; one piece is too long.
    let attacks: [&[u8]; 5] =
        [&[9, 0, 0, 0, 1, 2], &[9, 0], &[2, 0, 0, 0, 1, 2], &[], &[255, 255, 255, 255, 0, 0, 0, 0]];
    for attack in attacks {
        let mut stream = asked();
        stream.write_all(attack).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let reply = frame::read(&mut stream, REPLY_BYTES_MAX).unwrap();
        assert!(matches!(reply, Some(Reply::Error { .. })), "{attack:?} got {reply:?}");
    }
    assert_eq!(served.handler.0.load(Ordering::SeqCst), honest);
    assert!(matches!(served.ask(), Reply::Done {}));
}

#[test]
fn many_silent_clients_do_not_keep_others_out_for_good() {
    let served = served();
    let silent: Vec<UnixStream> = (0..100).map(|_| served.connect()).collect();
    drop(silent);
    // Their slots come back as soon as the server has seen them go.
    for _ in 0..100 {
        let mut stream = served.connect();
        let sent = frame::write(&mut stream, &Request::Sync {}, REQUEST_BYTES_MAX);
        if sent.is_ok()
            && matches!(frame::read::<Reply>(&mut stream, REPLY_BYTES_MAX), Ok(Some(Reply::Done {})))
        {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the server takes no more clients");
}

#[test]
fn clients_that_say_nothing_give_their_places_to_others() {
    let served = served();
    let silent: Vec<UnixStream> = (0..200).map(|_| served.connect()).collect();
    for _ in 0..100 {
        assert!(matches!(served.ask(), Reply::Done {}));
    }
    drop(silent);
}

#[test]
fn a_server_that_is_about_to_listen_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tank.sock");
    let connect = |pause: &mut dyn FnMut() -> bool| {
        Client::connect_when_it_listens("tank", &path, pause).unwrap().is_some()
    };
    let mut lock = Some(lock_name_in(dir.path(), "tank").unwrap());
    assert!(!connect(&mut || false), "nobody listens");
    let mut listening = None;
    assert!(connect(&mut || {
        listening = lock.take().map(|lock| Listener::listen_in(dir.path(), "tank", lock).unwrap());
        listening.is_some()
    }));
    drop(listening);
    // The name is free: there is no server, and none is about to be.
    assert!(!connect(&mut || unreachable!("nobody has the name")));
    let lock = dir.path().join("tank.lock");
    std::fs::remove_file(&lock).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &lock, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(!connect(&mut || unreachable!("it is no lock")), "opening it does not wait");
}

#[test]
fn a_client_that_lost_its_place_while_it_said_nothing_gets_another_one() {
    let served = served();
    let mut client = Client::connect_at("tank", served.path.clone()).unwrap().unwrap();
    let mut ask = || client.ask(&Request::Sync {}).map(|reply| matches!(reply, Reply::Done {}));
    assert!(ask().unwrap());
    // Each of these has asked later, so the last one gets the place of the first.
    let asked: Vec<UnixStream> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = served.connect();
            frame::write(&mut stream, &Request::Sync {}, REQUEST_BYTES_MAX).unwrap();
            assert!(matches!(frame::read(&mut stream, REPLY_BYTES_MAX).unwrap(), Some(Reply::Done {})));
            stream
        })
        .collect();
    assert!(ask().unwrap());
    drop(asked);
}

#[test]
fn places_are_taken_from_silent_connections_alone_and_some_are_kept_for_short_requests() {
    let places = Places::default();
    let (connection, mut other) = UnixStream::pair().unwrap();
    let mut taken: Vec<Place> =
        (1..CONNECTIONS_MAX).map(|_| places.take(&UnixStream::pair().unwrap().0).unwrap()).collect();
    taken.push(places.take(&connection).unwrap());
    let turns: Vec<Turn> = taken.iter().map(|place| place.asked(true)).collect();
    let long = turns.iter().filter(|turn| **turn == Turn::Now).count();
    assert_eq!((long, turns[LONG_MAX]), (LONG_MAX, Turn::TooManyLong));
    assert!(taken[LONG_MAX..].iter().all(|place| place.asked(false) == Turn::Now));
    assert!(places.take(&connection).is_none(), "all are being answered");
    taken[CONNECTIONS_MAX - 1].answered();
    let newest = places.take(&UnixStream::pair().unwrap().0).unwrap();
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "the silent connection is ended");
    assert_eq!(taken[CONNECTIONS_MAX - 1].asked(false), Turn::Ended);
    assert_eq!(newest.asked(false), Turn::Now);
    drop(taken);
    assert!(places.take(&connection).is_some());
}

#[test]
fn a_name_has_one_server_and_a_dead_ones_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let first = Listener::bind_in(&run, "tank").unwrap();
    let second = Listener::bind_in(&run, "tank").err().unwrap();
    assert!(second.to_string().contains("mounted already"), "{second}");
    Listener::bind_in(&run, "dozer").unwrap();
    drop(first);
    std::fs::write(run.join("tank.sock"), "left over").unwrap();
    Listener::bind_in(&run, "tank").unwrap();
}
