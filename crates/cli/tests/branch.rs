//! Branches without a server: what is found, kept, told, refused and undone. With servers: lab/tests/test_branch.py.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{Sandbox, assert_failure, can_mount, outcome, signal, wait_until};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;
use serde_json::Value;

/// Nobody's number, and not root's.
const OWNER: u32 = 54_321;

/// A pool with a mounted dataset `tank/prod` that has a PostgreSQL database of `version` in `data`.
fn with_database(version: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.dir("prod");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["dataset", "create", "tank/prod"]);
    sandbox.ok(&["mount", "tank/prod", "prod"]);
    database(&sandbox.path("prod/data"), version);
    sandbox
}

/// Makes the files by which a data directory is recognised; its owner is not root.
fn database(dir: &Path, version: &str) {
    for folder in ["global", "pg_wal", "pg_replslot/slot", "pg_tblspc", "base/1"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join("PG_VERSION"), format!("{version}\n")).unwrap();
    fs::write(dir.join("postgresql.conf"), "").unwrap();
    fs::write(dir.join("postmaster.pid"), "1\n").unwrap();
    fs::write(dir.join("pg_replslot/slot/state"), "x").unwrap();
    let mut control = vec![0; 8192];
    control[..8].copy_from_slice(&77_u64.to_le_bytes());
    control[8..12].copy_from_slice(&1300_u32.to_le_bytes());
    control[32..40].copy_from_slice(&0x1_0000_0040_u64.to_le_bytes());
    control[40..48].copy_from_slice(&0x1_0000_0020_u64.to_le_bytes());
    let crc = crc32c::crc32c(&control[..288]);
    control[288..292].copy_from_slice(&crc.to_le_bytes());
    fs::write(dir.join("global/pg_control"), control).unwrap();
    chown(dir, Some(OWNER), Some(OWNER)).unwrap();
}

fn names(sandbox: &Sandbox, kind: &str) -> Vec<String> {
    let all = sandbox.json(&["list", "-t", kind, "tank"]);
    let name = |figures: &Value| figures["name"].as_str().unwrap().to_owned();
    all["datasets"].as_array().unwrap().iter().map(name).collect()
}

fn branches(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.json(&["branch", "list"])["branches"].as_array().unwrap().clone()
}

#[track_caller]
fn refused(sandbox: &Sandbox, words: &[&str], status: i32, texts: &[&str]) {
    let (datasets, snapshots) = (names(sandbox, "dataset"), names(sandbox, "snapshot"));
    let directories = |sandbox: &Sandbox| fs::read_dir(sandbox.path(".")).unwrap().count();
    let before = directories(sandbox);
    assert_failure(&sandbox.run(words), status, texts);
    assert_eq!((names(sandbox, "dataset"), names(sandbox, "snapshot")), (datasets, snapshots), "{words:?}");
    assert_eq!(directories(sandbox), before, "{words:?} left a directory");
}

#[test]
fn a_branch_is_made_listed_reset_and_deleted_by_what_its_pool_says() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("15");
    let told = sandbox.json(&["branch", "create", "tank/prod", "feature-x", "--set", "work_mem=1MB"]);
    let dir = sandbox.path("prod-feature-x");
    assert_eq!(told["name"], "tank/feature-x");
    assert_eq!(told["origin"], "tank/prod@branch-feature-x");
    assert_eq!((&told["lsn"], &told["checkpoint_lsn"]), (&"1/20".into(), &"1/40".into()));
    assert_eq!((&told["system_identifier"], &told["version"]), (&"77".into(), &"15".into()));
    assert_eq!((&told["state"], &told["data"]), (&"stopped".into(), &"data".into()));
    assert_eq!(told["mounted"], dir.canonicalize().unwrap().to_str().unwrap());
    // The branch has no traces of production's server; production keeps them.
    assert!(!dir.join("data/postmaster.pid").exists() && sandbox.path("prod/data/postmaster.pid").exists());
    assert!(!dir.join("data/pg_replslot/slot").exists());
    assert!(sandbox.path("prod/data/pg_replslot/slot/state").exists());
    assert!(sandbox.ok(&["get", "-Hp", "policy", "tank/feature-x"]).contains("\tnone\tlocal"));
    // Two branches have two ports; what lies below a branch is none.
    let second = sandbox.json(&["branch", "create", "tank/prod", "tank/prod/second"]);
    assert_ne!(second["port"], told["port"]);
    sandbox.ok(&["dataset", "create", "tank/feature-x/below"]);
    assert_eq!(branches(&sandbox).len(), 2);
    assert_eq!(sandbox.json(&["branch", "list", "tank/feature-x"])["branches"].as_array().unwrap().len(), 1);
    assert_eq!(sandbox.json(&["branch", "list", "tank/prod"])["branches"].as_array().unwrap().len(), 2);
    let line = sandbox.ok(&["branch", "list", "-Hp", "tank/feature-x"]);
    assert_eq!(line.split('\t').count(), 9);
    assert!(line.contains("\t1/20\tstopped\tpostgresql://localhost:"), "{line}");
    // It is in the pool, and nowhere else.
    sandbox.ok(&["export", "tank"]);
    sandbox.ok(&["import", "-d", ".", "tank"]);
    let offline = branches(&sandbox);
    assert_eq!((&offline[0]["port"], &offline[0]["state"]), (&told["port"], &"unmounted".into()));
    refused(
        &sandbox,
        &["branch", "delete", "tank/feature-x"],
        1,
        &["tank/feature-x/below", "branch delete -r"],
    );
    sandbox.ok(&["destroy", "tank/feature-x/below"]);
    sandbox.ok(&["mount", "tank/prod", "prod"]);
    sandbox.ok(&["mount", "tank/feature-x"]);
    fs::write(dir.join("data/mine"), "x").unwrap();
    fs::write(sandbox.path("prod/data/theirs"), "x").unwrap();
    sandbox.ok(&["branch", "reset", "tank/feature-x"]);
    assert!(!dir.join("data/mine").exists() && !dir.join("data/theirs").exists());
    sandbox.ok(&["branch", "reset", "--latest", "tank/feature-x"]);
    assert!(dir.join("data/theirs").exists() && !dir.join("data/postmaster.pid").exists());
    let reset = &branches(&sandbox)[0];
    assert_eq!((&reset["port"], &reset["mountpoint"]), (&told["port"], &told["mountpoint"]));
    // This machine keeps the settings of its server, the pool does not.
    assert_eq!(reset["options"]["settings"], serde_json::json!(["work_mem=1MB"]));
    assert!(!sandbox.ok(&["get", "all", "tank/feature-x"]).contains("work_mem"));
    assert!(fs::read_to_string(sandbox.path("state/branches.json")).unwrap().contains("work_mem=1MB"));
    sandbox.ok(&["branch", "delete", "tank/feature-x"]);
    sandbox.ok(&["branch", "delete", "tank/prod/second"]);
    assert!(!fs::read_to_string(sandbox.path("state/branches.json")).unwrap().contains("work_mem"));
    assert!(!dir.exists());
    assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod"]);
    assert!(names(&sandbox, "snapshot").is_empty() && branches(&sandbox).is_empty());
}

#[test]
fn what_cannot_be_a_branch_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("15");
    let create = ["branch", "create", "tank/prod", "x"];
    let with = |more: &[&'static str]| [&create[..], more].concat();
    refused(&sandbox, &["branch", "create", "tank/none", "x"], 1, &["there is no dataset tank/none"]);
    refused(
        &sandbox,
        &["branch", "create", "tank/prod@none", "x"],
        1,
        &["there is no snapshot tank/prod@none"],
    );
    refused(
        &sandbox,
        &["branch", "create", "tank/prod", "prod"],
        1,
        &["there is a dataset tank/prod already"],
    );
    refused(&sandbox, &["branch", "create", "tank/prod", "other/x"], 2, &["there is no pool other"]);
    refused(&sandbox, &with(&["--data", "nowhere"]), 1, &["nowhere", "--data DIR"]);
    refused(&sandbox, &with(&["--data", "data/base"]), 1, &["no database in tank/prod, in data/base"]);
    refused(&sandbox, &with(&["--set", "novalue"]), 2, &["NAME=VALUE"]);
    refused(&sandbox, &with(&["--port", "80"]), 2, &["--port"]);
    refused(&sandbox, &with(&["--bindir", "/no/such/folder"]), 1, &["/no/such/folder"]);
    refused(&sandbox, &with(&["--mountpoint", "."]), 1, &["is not empty", "--mountpoint DIR"]);
    // Out of the branch leads what the server would write through.
    let data = sandbox.path("prod/data");
    fs::remove_dir(data.join("pg_wal")).unwrap();
    refused(&sandbox, &create, 1, &["pg_wal is not there"]);
    let elsewhere = sandbox.dir("elsewhere");
    symlink(&elsewhere, data.join("pg_wal")).unwrap();
    refused(&sandbox, &create, 1, &["pg_wal is a link to", "which is not in the branch"]);
    fs::remove_file(data.join("pg_wal")).unwrap();
    fs::create_dir(data.join("wal")).unwrap();
    symlink("wal", data.join("pg_wal")).unwrap();
    symlink(&data, data.join("pg_tblspc/16384")).unwrap();
    refused(&sandbox, &create, 1, &["pg_tblspc/16384 is a link to", "not in the branch"]);
    fs::remove_file(data.join("pg_tblspc/16384")).unwrap();
    // A server that starts empties these.
    for name in ["pg_stat_tmp", "pg_notify", "pg_snapshots", "pg_dynshmem", "pg_serial", "pg_twophase"] {
        symlink(&elsewhere, data.join(name)).unwrap();
        refused(&sandbox, &create, 1, &[&format!("{name} is a link to"), "which is not in the branch"]);
        fs::remove_file(data.join(name)).unwrap();
    }
    // Two databases in one dataset.
    database(&sandbox.path("prod/old"), "14");
    refused(&sandbox, &create, 1, &["has 2 databases: data, old", "--data data"]);
    sandbox.ok(&with(&["--data", "old"]));
    assert_eq!(branches(&sandbox)[0]["version"], "14");
    refused(&sandbox, &["branch", "delete", "tank/prod"], 1, &["tank/prod is not a branch", "branch list"]);
    refused(&sandbox, &["branch", "start", "tank/prod"], 1, &["tank/prod is not a branch"]);
    refused(&sandbox, &["branch", "reset", "tank/none"], 1, &["there is no dataset tank/none"]);
}

#[test]
fn a_server_that_cannot_be_started_is_told_and_the_branch_stays() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    let run = |words: &[&str]| sandbox.run(words);
    let failed = run(&["branch", "create", "tank/prod", "x", "--start"]);
    assert_failure(&failed, 1, &["no postgres of PostgreSQL 97", "branch start tank/x", "--bindir DIR"]);
    assert_eq!(branches(&sandbox)[0]["state"], "stopped");
    let folder = sandbox.dir("bin");
    let folder = folder.to_str().unwrap();
    let failed = run(&["branch", "start", "tank/x", "--bindir", folder]);
    assert_failure(&failed, 1, &["no postgres of PostgreSQL 97 in", folder]);
    assert_failure(&run(&["branch", "create", "tank/prod", "x"]), 1, &["there is a dataset tank/x already"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let failed = run(&["branch", "start", "tank/x", "--port", &port]);
    assert_failure(&failed, 1, &[&format!("port {port}"), "is in use", "--port N"]);
    // Nobody's server runs as root.
    chown(sandbox.path("prod-x/data"), Some(0), Some(0)).unwrap();
    drop(listener);
    assert_failure(&run(&["branch", "start", "tank/x"]), 1, &["belongs to root", "chown"]);
    chown(sandbox.path("prod-x/data"), Some(OWNER), Some(OWNER)).unwrap();
    fs::remove_file(sandbox.path("prod-x/data/postgresql.conf")).unwrap();
    let stop = run(&["branch", "stop", "tank/x"]);
    assert!(stop.status.success() && stop.stderr.contains("does not run"), "{}", stop.stderr);
    // Users cannot set the properties of a branch; values that make no sense are refused where they are read
    // (`record.rs`).
    assert_failure(&run(&["set", "branch:port=80", "tank/x"]), 2, &["branch:port", "pagefold's own"]);
    assert_failure(&run(&["inherit", "branch:port", "tank/x"]), 2, &["branch:port", "pagefold's own"]);
    sandbox.ok(&["branch", "create", "tank/prod", "y"]);
    let listed = run(&["branch", "list", "-H"]);
    assert!(listed.status.success() && listed.stdout.contains("tank/y\t"), "{}", listed.stdout);
}

#[test]
fn a_reset_leaves_what_others_need_and_is_told_of_obstacles_before_anything_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    sandbox.ok(&["branch", "create", "tank/prod@branch-x", "y"]);
    fs::write(sandbox.path("prod/data/theirs"), "x").unwrap();
    // Its snapshot has another clone.
    sandbox.ok(&["branch", "reset", "--latest", "tank/x"]);
    assert!(sandbox.path("prod-x/data/theirs").exists() && !sandbox.path("prod-y/data/theirs").exists());
    assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x", "tank/y"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/prod@branch-x", "tank/prod@branch-x-2"]);
    // Its snapshot is held.
    sandbox.ok(&["hold", "mine", "tank/prod@branch-x-2"]);
    fs::write(sandbox.path("prod/data/later"), "x").unwrap();
    sandbox.ok(&["branch", "reset", "--latest", "tank/x"]);
    assert!(sandbox.path("prod-x/data/later").exists());
    assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x", "tank/y"]);
    sandbox.ok(&["release", "mine", "tank/prod@branch-x-2"]);
    // The name that it needs is taken, or a snapshot of its own is held: nothing has been done.
    let mounted = || branches(&sandbox)[0]["mounted"].is_string();
    sandbox.ok(&["dataset", "create", "tank/x.reset"]);
    let reset = ["branch", "reset", "-r", "--latest", "tank/x"];
    refused(&sandbox, &reset, 1, &["tank/x.reset", "pagefold destroy -r tank/x.reset"]);
    assert!(mounted());
    sandbox.ok(&["destroy", "tank/x.reset"]);
    sandbox.ok(&["snapshot", "tank/x@own"]);
    sandbox.ok(&["hold", "mine", "tank/x@own"]);
    refused(&sandbox, &reset, 1, &["tank/x@own is held by mine", "release"]);
    assert!(mounted());
    sandbox.ok(&["release", "mine", "tank/x@own"]);
    sandbox.ok(&reset);
    assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x", "tank/y"]);
}

#[test]
fn a_branch_that_others_come_from_says_what_can_be_done() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    sandbox.ok(&["branch", "create", "tank/x", "y"]);
    let clone = "tank/x@branch-y has a clone: tank/y";
    refused(&sandbox, &["branch", "delete", "tank/x"], 1, &[clone, "pagefold promote tank/y"]);
    refused(&sandbox, &["branch", "create", "tank/prod", "feat/z"], 2, &["no '/'", "tank/feat/z"]);
    sandbox.ok(&["promote", "tank/y"]);
    sandbox.ok(&["branch", "delete", "tank/x"]);
    assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/y"]);
}

#[test]
fn a_control_file_that_is_not_sound_says_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    let path = sandbox.path("prod/data/global/pg_control");
    let mut control = fs::read(&path).unwrap();
    control[41] ^= 1;
    fs::write(&path, control).unwrap();
    let told = sandbox.json(&["branch", "create", "tank/prod", "x"]);
    assert_eq!((&told["lsn"], &told["checkpoint_lsn"]), (&Value::Null, &Value::Null));
    assert!(sandbox.ok(&["branch", "list", "-H"]).contains("\t-\tstopped\t"));
}

#[test]
fn commands_on_one_branch_take_turns() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    for _ in 0..5 {
        let started: Vec<_> = (0..3)
            .map(|_| sandbox.command(&["branch", "reset", "--latest", "tank/x"]))
            .map(|mut command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
            .collect();
        for child in started {
            let output = outcome(child);
            assert!(output.status.success(), "{}", output.stderr);
        }
        assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x"]);
        assert_eq!(names(&sandbox, "snapshot").len(), 1);
    }
    // Nothing is left of the turns.
    let mut left = fs::read_dir(sandbox.path("run")).unwrap().flatten();
    assert!(!left.any(|file| file.path().extension().is_some_and(|end| end == "turn")));
}

#[test]
fn branches_are_listed_while_one_is_reset() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    thread::scope(|scope| {
        let resets = scope.spawn(|| {
            for _ in 0..15 {
                sandbox.ok(&["branch", "reset", "--latest", "tank/x"]);
            }
        });
        while !resets.is_finished() {
            sandbox.ok(&["branch", "list"]);
        }
    });
}

#[test]
fn a_branch_waits_for_no_turn_of_another_one() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    for name in ["x", "y"] {
        sandbox.ok(&["branch", "create", "tank/prod", name]);
    }
    let path = sandbox.path("run/branch-tank+x.turn");
    let turn = fs::File::create(&path).unwrap();
    flock(&turn, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut waiting = sandbox.command(&["branch", "delete", "tank/x"]);
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sandbox.ok(&["branch", "delete", "tank/y"]);
    let mut told = [0; 9];
    waiting.stderr.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"pagefold:", "it says that it waits");
    assert!(branches(&sandbox).len() == 1 && waiting.try_wait().unwrap().is_none());
    // Whoever had the turn takes its file away: the next turn is that of another file.
    fs::remove_file(&path).unwrap();
    drop(turn);
    let output = outcome(waiting);
    assert!(output.status.success() && output.stderr.contains("another command on branch tank/x"));
    assert!(branches(&sandbox).is_empty() && !path.exists());
}

/// Starts a command that waits when the branch `x` has been mounted and not recorded, as long as the returned file lives.
fn create_that_waits(sandbox: &Sandbox) -> (Child, fs::File) {
    let ports = fs::File::create(sandbox.path("run/branch-ports")).unwrap();
    flock(&ports, FlockOperation::LockExclusive).unwrap();
    let child = started(sandbox, &["branch", "create", "tank/prod", "x", "--set", "work_mem=1MB"]);
    wait_until(|| sandbox.path("prod-x/data/PG_VERSION").exists());
    (child, ports)
}

fn started(sandbox: &Sandbox, words: &[&str]) -> Child {
    sandbox.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, number: Signal) {
    signal(i32::try_from(child.id()).unwrap(), number);
}

#[track_caller]
fn only_production_is_there(sandbox: &Sandbox) {
    assert_eq!(names(sandbox, "dataset"), ["tank", "tank/prod"]);
    assert_eq!(names(sandbox, "snapshot"), [""; 0]);
    assert!(!sandbox.path("prod-x").exists());
}

#[test]
fn a_branch_that_was_interrupted_is_undone() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (child, ports) = create_that_waits(&sandbox);
        send(&child, number);
        drop(ports);
        assert_failure(&outcome(child), 1, &["it was interrupted", "undone"]);
        only_production_is_there(&sandbox);
    }
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    for delay in 0..12 {
        let child = started(&sandbox, &["branch", "reset", "--latest", "tank/x"]);
        thread::sleep(Duration::from_millis(delay * 5));
        send(&child, Signal::INT);
        let _done_or_undone = outcome(child);
        assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x"]);
        assert_eq!(names(&sandbox, "snapshot").len(), 1);
        assert!(branches(&sandbox)[0]["mounted"].is_string());
    }
}

#[test]
fn pieces_of_a_create_that_was_killed_are_removed_by_the_next_command() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    let killed = || {
        let (child, ports) = create_that_waits(&sandbox);
        send(&child, Signal::KILL);
        drop((outcome(child), ports));
        assert!(branches(&sandbox).is_empty() && names(&sandbox, "dataset").contains(&"tank/x".into()));
    };
    killed();
    let again = sandbox.run(&["branch", "create", "tank/prod", "x"]);
    assert!(again.status.success() && again.stderr.contains("destroyed tank/x,"), "{}", again.stderr);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/prod@branch-x"]);
    assert!(!sandbox.ok(&["get", "all", "tank/x", "tank/prod@branch-x"]).contains("unfinished"));
    sandbox.ok(&["branch", "delete", "tank/x"]);
    killed();
    sandbox.ok(&["branch", "delete", "tank/x"]);
    only_production_is_there(&sandbox);
    for delay in 0..12 {
        let mut child = started(&sandbox, &["branch", "create", "tank/prod", "x"]);
        thread::sleep(Duration::from_millis(delay * 5));
        child.kill().unwrap();
        drop(outcome(child));
        // The pool's server may be mounting it just then.
        wait_until(|| {
            let deleted = sandbox.run(&["branch", "delete", "tank/x"]);
            deleted.status.success() || deleted.stderr.contains("there is no dataset tank/x")
        });
        let _made_by_whom_was_killed = fs::remove_dir(sandbox.path("prod-x"));
        only_production_is_there(&sandbox);
    }
}

#[test]
fn a_reset_that_was_killed_is_finished_or_undone_by_the_next_command() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    let reset = ["branch", "reset", "--latest", "tank/x"];
    for delay in 0..16 {
        let mut child = started(&sandbox, &reset);
        thread::sleep(Duration::from_millis(delay * 5));
        child.kill().unwrap();
        drop(outcome(child));
        // The pool's server may be mounting it just then.
        wait_until(|| sandbox.run(&reset).status.success());
        assert_eq!(names(&sandbox, "dataset"), ["tank", "tank/prod", "tank/x"]);
        assert_eq!(names(&sandbox, "snapshot").len(), 1);
        assert!(!sandbox.ok(&["get", "all", "tank/x"]).contains("unfinished"));
    }
    // It waits when the branch has its new content, and has not been mounted.
    let mounting = fs::File::create(sandbox.path("run/tank.mounting")).unwrap();
    flock(&mounting, FlockOperation::LockExclusive).unwrap();
    let origin = branches(&sandbox)[0]["origin"].clone();
    let mut child = started(&sandbox, &reset);
    wait_until(|| {
        let all = branches(&sandbox);
        all.len() == 1 && all[0]["name"] == "tank/x" && all[0]["origin"] != origin
    });
    child.kill().unwrap();
    drop((outcome(child), mounting));
    assert_failure(&sandbox.run(&["branch", "start", "tank/x"]), 1, &["no postgres of PostgreSQL 97"]);
    let data = sandbox.path("prod-x/data");
    assert!(data.join("PG_VERSION").exists());
    assert!(!data.join("pg_replslot/slot").exists(), "it still has what production's server had");
    assert!(!sandbox.ok(&["get", "all", "tank/x"]).contains("unfinished"));
    sandbox.ok(&["branch", "delete", "tank/x"]);
    only_production_is_there(&sandbox);
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_branch_that_others_use_keeps_its_server() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database("97");
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    fs::set_permissions(sandbox.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // It has the name of a server, works in the data directory and belongs to its owner.
    let program = sandbox.dir("bin").join("postgres");
    assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
    let serve = || {
        let mut command = Command::new(&program);
        command.arg("600").uid(OWNER).gid(OWNER).current_dir(sandbox.path("prod-x/data"));
        // Tests that run behind a shell's back ignore these signals, and so does what they start. Servers do not.
        let obey = || {
            for signal in [libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: it sets no handler.
                if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(obey) };
        Running(command.spawn().unwrap())
    };
    let mut server = serve();
    let state = || branches(&sandbox)[0]["state"].clone();
    assert_eq!(state(), "running");
    let mut user = Command::new("/bin/sleep");
    let user = Running(user.arg("600").current_dir(sandbox.path("prod-x")).spawn().unwrap());
    for verb in ["reset", "delete"] {
        let words = ["branch", verb, "tank/x"];
        let held = format!("process {} (sleep): current directory", user.0.id());
        refused(&sandbox, &words, 1, &["prod-x is in use", &held, "the branch's server goes on"]);
        assert!(server.0.try_wait().unwrap().is_none() && state() == "running");
    }
    drop((user, server));
    // Another mount is seen only when the branch is unmounted.
    let below = sandbox.dir("prod-x/below");
    for verb in ["reset", "delete"] {
        let _server = serve();
        rustix::mount::mount("none", &below, "tmpfs", MountFlags::empty(), None).unwrap();
        let words = ["branch", verb, "tank/x"];
        refused(&sandbox, &words, 1, &["is mounted below it", "stopped", "pagefold branch start tank/x"]);
        assert!(state() == "stopped" && branches(&sandbox)[0]["mounted"].is_string());
        rustix::mount::unmount(&below, UnmountFlags::empty()).unwrap();
    }
    let _server = serve();
    sandbox.ok(&["branch", "delete", "tank/x"]);
    only_production_is_there(&sandbox);
}
