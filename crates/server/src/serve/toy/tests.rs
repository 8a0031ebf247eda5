use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use std::time::Duration;

use super::*;
use crate::control::{ConfinementFigures, UnmountMode};
use crate::mountopts::MountOptions;
use crate::serve::events::Ring;
use crate::serve::exports::Attached;
use crate::serve::handover::Handover;
use crate::serve::opening::OpenedPool;
use crate::serve::server::{Beginning, Server};

fn open(devices: &[Arc<dyn Device>]) -> OpenedPool {
    let pool = Pool::open_on(devices.to_vec(), &OpenOptions::default()).unwrap();
    OpenedPool { pool, read_only: false, confinement: ConfinementFigures::default() }
}

fn start(opened: OpenedPool, wanted: &MountRequest) -> Result<Arc<Server>> {
    let (ring, handover, front) = (Arc::new(Ring::default()), Handover::none(), Arc::new(Toy));
    Server::start_on(opened, wanted, Beginning { ring, handover, front, given: Vec::new() })
}

fn request(path: &str, place: &Path) -> MountRequest {
    MountRequest { path: path.into(), dir: place.into(), options: MountOptions::default() }
}

/// Sends lines to a place, and returns the answers.
fn ask(connection: &UnixStream, lines: &[&str]) -> Vec<String> {
    let mut answers = BufReader::new(connection).lines();
    let mut ask_one = |line: &&str| {
        writeln!(&*connection, "{line}").unwrap();
        answers.next().unwrap().unwrap()
    };
    lines.iter().map(&mut ask_one).collect()
}

fn stop(server: &Server, mode: UnmountMode) -> Option<PathBuf> {
    let mounts = server.exports.all();
    let in_use = server.detach(&mounts, mode).unwrap();
    if in_use.is_none() {
        server.exports.wait_for_unmount();
    }
    in_use
}

#[test]
fn a_server_exports_a_dataset_without_fuse() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("socket");
    let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"a pool for a toy") };
    create_on("tank", &devices, &options).unwrap();
    let opened = open(&devices);
    opened.pool.create_dataset("db", 1).unwrap();
    let server = start(opened, &request("db", &place)).unwrap();
    let there = server.mount(&request("db", &folder.path().join("other"))).unwrap();
    assert_eq!(there, Attached::There(place.clone(), 7, false));
    let client = UnixStream::connect(&place).unwrap();
    let answers = ask(&client, &["put 5 8190 across", "get 5 8190 6", "get 6 0 x", "sync"]);
    assert_eq!(answers, ["ok", "ok across", "refused", "ok"]);
    assert_eq!(stop(&server, UnmountMode::Normal), Some(place.clone()));
    let mounted = server.exports.of(7).unwrap();
    mounted.set_read_only(&server.pool, true).unwrap();
    assert_eq!(ask(&client, &["put 5 0 late", "get 5 8191 4"]), ["refused", "ok cros"]);
    assert!(mounted.files().is_err());
    assert_eq!(stop(&server, UnmountMode::Force), None);
    assert_eq!(BufReader::new(&client).lines().count(), 0, "its clients are cut off");
    assert!(!server.exports.is_serving());
    server.close().unwrap();
    assert!(!place.exists());

    // The next server of the pool has what was written, and a snapshot can be exported as well.
    let opened = open(&devices);
    opened.pool.snapshot(&["db"], "one", 2).unwrap();
    let server = start(opened, &request("db@one", &place)).unwrap();
    let client = UnixStream::connect(&place).unwrap();
    assert_eq!(ask(&client, &["get 5 8190 6", "put 5 0 never"]), ["ok across", "refused"]);
    drop(client);
    while stop(&server, UnmountMode::Normal).is_some() {
        thread::sleep(Duration::from_millis(1));
    }
    server.close().unwrap();
    assert!(start(open(&devices), &request("nothing", &place)).is_err());
}

#[test]
fn a_mount_that_cannot_be_taken_away_keeps_no_other_and_not_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let (place, gone) = (folder.path().join("socket"), folder.path().join("gone"));
    let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"a pool for a toy") };
    create_on("tank", &devices, &options).unwrap();
    let opened = open(&devices);
    ["db", "other"].iter().for_each(|path| opened.pool.create_dataset(path, 1).unwrap());
    let server = start(opened, &request("db", &place)).unwrap();
    assert_eq!(server.mount(&request("other", &gone)).unwrap(), Attached::Mounted);
    let client = UnixStream::connect(&place).unwrap();
    assert_eq!(ask(&client, &["put 5 0 last"]), ["ok"]);
    // The place is not there any more, so nothing can be taken away from it.
    std::fs::remove_file(&gone).unwrap();
    assert!(server.detach(&server.exports.all(), UnmountMode::Normal).is_err());
    assert_eq!(stop(&server, UnmountMode::Force), None);
    assert_eq!(BufReader::new(&client).lines().count(), 0, "the other one's clients are cut off");
    server.close().unwrap();
    let opened = open(&devices);
    assert!(opened.pool.replayed().clean);
}

/// Commands that change datasets may hold the lock for long, and give the name to another dataset meanwhile. That one was not
/// announced, so that another mount, or a stream into it, would have found nobody there.
#[test]
fn a_mount_that_has_waited_gets_the_dataset_that_it_has_announced() {
    let folder = tempfile::tempdir().unwrap();
    let (place, second) = (folder.path().join("socket"), folder.path().join("second"));
    let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"a pool for a toy") };
    create_on("tank", &devices, &options).unwrap();
    let opened = open(&devices);
    ["db", "next", "other"].iter().for_each(|path| opened.pool.create_dataset(path, 1).unwrap());
    let server = start(opened, &request("other", &place)).unwrap();
    let id = server.pool.version("db").unwrap().id;
    let held = server.dataset_lock.write();
    let mounted = thread::scope(|scope| {
        let waiting = scope.spawn(|| server.mount(&request("db", &second)));
        while !server.exports.is_coming(id) {
            thread::yield_now();
        }
        server.pool.rename("db", "before").unwrap();
        server.pool.rename("next", "db").unwrap();
        drop(held);
        waiting.join().unwrap()
    });
    assert!(mounted.unwrap_err().what().contains("another dataset"));
    assert!(!second.exists() && !server.exports.is_coming(id));
    assert_eq!(server.mount(&request("db", &second)).unwrap(), Attached::Mounted);
    assert_eq!(stop(&server, UnmountMode::Normal), None);
    server.close().unwrap();
}
