//! A server that dies is followed by another, and nobody notices. Needs root, /dev/fuse and Linux 6.9.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use common::{Sandbox, assert_failure, can_mount, kill, kill_to_the_end, parent, signal, wait_until};

/// Random numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// One after the other, calls whose outcome is known exactly: done twice or not at all, each shows.
struct Client {
    dir: PathBuf,
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    /// A file without a name, and what it holds.
    held: Option<(File, Vec<u8>)>,
}

impl Client {
    fn new(dir: PathBuf, seed: u64) -> Self {
        fs::create_dir(&dir).unwrap();
        Self { dir, random: Random(seed * 77 + 1), files: BTreeMap::new(), held: None }
    }

    fn one(&mut self) {
        let name = format!("f{}", self.random.below(30));
        let path = self.dir.join(&name);
        let there = self.files.contains_key(&name);
        match self.random.below(8) {
            0 | 1 => match File::create_new(&path) {
                Ok(_) => assert!(self.files.insert(name, Vec::new()).is_none(), "made twice"),
                Err(error) => assert!(error.kind() == ErrorKind::AlreadyExists && there, "{error}"),
            },
            2 => match fs::remove_file(&path) {
                Ok(()) => assert!(self.files.remove(&name).is_some(), "removed twice"),
                Err(error) => assert!(error.kind() == ErrorKind::NotFound && !there, "{error}"),
            },
            3 => {
                let to = format!("f{}", self.random.below(30));
                match fs::rename(&path, self.dir.join(&to)) {
                    Ok(()) => {
                        let Some(data) = self.files.remove(&name) else { panic!("{name} was renamed twice") };
                        self.files.insert(to, data);
                    }
                    Err(error) => assert!(error.kind() == ErrorKind::NotFound && !there, "{error}"),
                }
            }
            4 => {
                let dir = self.dir.join("dir");
                fs::create_dir(&dir).unwrap();
                fs::remove_dir(&dir).unwrap();
            }
            5 if there => {
                let link = self.dir.join("link");
                fs::hard_link(&path, &link).unwrap();
                fs::remove_file(&link).unwrap();
            }
            6 if there => self.hold(&name, &path),
            _ if there => self.write(&name, &path),
            _ => {}
        }
    }

    fn write(&mut self, name: &str, path: &Path) {
        let (at, len) = (self.random.below(100_000) as usize, 1 + self.random.below(50_000) as usize);
        let fill = self.random.below(255) as u8 + 1;
        let file = File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(file.write_at(&vec![fill; len], at as u64).unwrap(), len);
        if self.random.below(20) == 0 {
            file.sync_data().unwrap();
        }
        let data = self.files.get_mut(name).unwrap();
        data.resize(data.len().max(at + len), 0);
        data[at..at + len].fill(fill);
        assert!(fs::read(path).unwrap() == *data, "{} differs", path.display());
    }

    /// Opens a file, removes its name, and lets go of the one before.
    fn hold(&mut self, name: &str, path: &Path) {
        if let Some((file, data)) = self.held.take() {
            let mut found = vec![0; data.len() + 1];
            let len = file.read_at(&mut found, 0).unwrap();
            assert!(found[..len] == data, "a file without a name differs");
        }
        let file = File::options().read(true).write(true).open(path).unwrap();
        fs::remove_file(path).unwrap();
        self.held = Some((file, self.files.remove(name).unwrap()));
    }

    fn verify(&self) {
        let mut names: Vec<String> = fs::read_dir(&self.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        for (name, data) in &self.files {
            assert!(fs::read(self.dir.join(name)).unwrap() == *data, "{name} differs");
        }
    }
}

#[test]
fn servers_die_and_clients_do_not_notice() {
    if can_mount() {
        die_under_load("takeover=on");
    }
}

/// Each change waits until it is durable, so that most of them are carried out and not answered when the server dies.
#[test]
fn what_was_carried_out_and_not_answered_is_not_done_twice() {
    if can_mount() {
        die_under_load("takeover=on,sync=always");
    }
}

fn die_under_load(options: &str) {
    let sandbox = Sandbox::mounted(options);
    assert_eq!(sandbox.pool()["takeover"]["on"], true);
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (1..=4)
            .map(|seed| {
                let (dir, done, calls) = (sandbox.path(&format!("mnt/{seed}")), &done, &calls);
                scope.spawn(move || {
                    let mut client = Client::new(dir, seed);
                    while !done.load(Ordering::Relaxed) {
                        client.one();
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    client.verify();
                })
            })
            .collect();
        for round in 0..3 {
            thread::sleep(Duration::from_millis(1200 + 137 * round));
            let before = calls.load(Ordering::Relaxed);
            wait_until(|| calls.load(Ordering::Relaxed) > before + 20);
            let stall = kill(&sandbox);
            eprintln!("nobody answered for {stall} ms");
        }
        let told = sandbox.ok(&["restart", "tank"]);
        assert!(told.contains("another server goes on"), "{told}");
        thread::sleep(Duration::from_millis(200));
        done.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    let told = sandbox.pool();
    let log = || fs::read_to_string(sandbox.path("log/tank.log")).unwrap();
    assert_eq!(told["takeover"]["restarts"], 4, "the log:\n{}", log());
    assert_eq!(told["takeover"]["last_reason"], "restart");
    sandbox.ok(&["unmount", "tank"]);
    let checked = sandbox.ok(&["check", "tank"]);
    assert!(checked.contains("pool tank: "), "{checked}");
}

#[test]
fn what_cannot_outlive_its_server_says_so() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    assert_eq!(sandbox.pool()["takeover"]["on"], false);
    assert_failure(&sandbox.run(&["restart", "tank"]), 1, &["tank", "takeover=on"]);
    sandbox.ok(&["unmount", "tank"]);
    let both = sandbox.run(&["mount", "-o", "takeover=on,io_uring=on", "tank", "mnt"]);
    assert_failure(&both, 2, &["exclude each other"]);
    assert_failure(&sandbox.run(&["mount", "-o", "takeover=yes", "tank", "mnt"]), 2, &["auto, on, off"]);
}

/// A supervisor that is stopped: it goes on when the test ends, however it ends.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        signal(pid, rustix::process::Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, rustix::process::Signal::CONT);
    }
}

#[test]
fn devices_are_nobody_elses_between_two_servers() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    let device = File::open(sandbox.path("tank.pf")).unwrap();
    let lock = |operation| rustix::fs::flock(&device, operation);
    for restarts in 1..=2 {
        fs::write(sandbox.path("mnt/a"), [restarts; 100]).unwrap();
        let server = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let supervisor = parent(server);
        let stopped = Stopped::new(supervisor);
        kill_to_the_end(server);
        assert_eq!(lock(FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
        let by = format!("in use by process {supervisor};");
        assert_failure(&sandbox.run(&["check", "tank"]), 1, &["tank.pf", &by]);
        drop(stopped);
        wait_until(|| {
            let told = sandbox.run(&["status", "tank", "--json"]);
            let told = serde_json::from_str::<serde_json::Value>(&told.stdout).unwrap_or_default();
            told["pools"][0]["takeover"]["restarts"] == restarts
        });
        assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), [restarts; 100]);
    }
    sandbox.ok(&["unmount", "tank"]);
    lock(FlockOperation::NonBlockingLockExclusive).unwrap();
    lock(FlockOperation::Unlock).unwrap();
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["destroy", "-f", "tank"]);
}

/// Reads the beginning of a file from the server, not from the kernel's memory.
fn read_anew(file: &File) -> Vec<u8> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut found = vec![0; 100];
    let len = file.read_at(&mut found, 0).unwrap();
    found.truncate(len);
    found
}

/// The upper bits of an inode number in a snapshot are its place in the mount's table, which has 65,534.
#[test]
fn snapshots_that_are_gone_cost_a_mount_no_place_whatever_servers_follow() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    let file = |name: &str| sandbox.path(&format!("mnt/.pagefold/snapshot/{name}/f"));
    let take = |name: &str| {
        fs::write(sandbox.path("mnt/f"), name).unwrap();
        sandbox.ok(&["snapshot", &format!("tank@{name}")]);
    };
    take("kept");
    let kept = File::open(file("kept")).unwrap();
    let mut places = BTreeSet::from([kept.metadata().unwrap().ino() >> 48]);
    for round in 0..6 {
        let name = format!("s{round}");
        take(&name);
        let of_round = File::open(file(&name)).unwrap();
        if round % 2 == 0 {
            kill(&sandbox);
        }
        assert_eq!(read_anew(&of_round), name.as_bytes());
        assert_eq!(read_anew(&kept), b"kept");
        places.insert(of_round.metadata().unwrap().ino() >> 48);
        drop(of_round);
        wait_until(|| sandbox.run(&["destroy", &format!("tank@{name}")]).status.success());
        if round % 3 == 0 {
            kill(&sandbox);
        }
        // The kernel asks again once it may not believe the name any more, and forgets what is below it.
        wait_until(|| !file(&name).exists());
    }
    assert!(places.len() <= 3, "{places:?}");
    assert_eq!(read_anew(&kept), b"kept");
    drop(kept);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_server_with_a_supervisor_starts_and_ends_as_any_other() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    fs::write(sandbox.path("mnt/a"), b"kept").unwrap();
    kill(&sandbox);
    assert!(sandbox.ok(&["status", "tank"]).contains("on: 1 server went before this one"));
    assert_failure(&sandbox.run(&["mount", "tank", "mnt"]), 1, &["mounted already"]);
    sandbox.dir("other");
    sandbox.ok(&["dataset", "create", "tank/more"]);
    sandbox.ok(&["mount", "tank/more", "other"]);
    fs::write(sandbox.path("other/b"), b"more").unwrap();
    kill(&sandbox);
    assert!(sandbox.ok(&["status", "tank"]).contains("on: 2 servers went before this one"));
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"kept");
    assert_eq!(fs::read(sandbox.path("other/b")).unwrap(), b"more");
    sandbox.ok(&["unmount", "tank/more"]);
    sandbox.ok(&["unmount", "tank"]);
    let state = sandbox.json(&["list", "tank"]);
    assert_eq!(state["pools"][0]["state"], "EXPORTED");
}
