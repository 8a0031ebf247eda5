//! Attacks of users on root's pools, and on each other's: links, races, sockets, names, floods. The table in docs/SECURITY.md names these tests.
//! Needs root and /dev/fuse; attackers are users that nobody is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;
mod servers;

use std::fs::{self, File, Permissions};

use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Output, Sandbox, assert_failure, bounded, can_mount};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

/// The attacker, and another user.
const MALLORY: u32 = 54_321;
const ALICE: u32 = 54_322;

/// A sandbox that others may look into, with the pool `tank` mounted.
fn mounted() -> Sandbox {
    let sandbox = open_to_all();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["mount", "-o", "compression=off", "tank", "mnt"]);
    sandbox
}

fn open_to_all() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    sandbox
}

/// A directory of somebody's.
fn of(sandbox: &Sandbox, name: &str, owner: u32) -> PathBuf {
    let dir = sandbox.dir(name);
    chown(&dir, Some(owner), Some(owner)).unwrap();
    dir
}

fn run(sandbox: &Sandbox, words: &[&str]) -> Output {
    bounded(sandbox.command(words))
}

/// A shell's commands as a user, with our environment.
fn shell(sandbox: &Sandbox, user: u32, script: &str) -> Output {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).envs(sandbox.environment()).current_dir("/").stdin(Stdio::null());
    bounded({
        command.uid(user).gid(user);
        command
    })
}

/// The program where users can run it.
fn program(sandbox: &Sandbox) -> PathBuf {
    let program = sandbox.path("pagefold");
    // By another process: what this one has open for writing, a child of another test may have, too, and it could not be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pagefold")).arg(&program).status().unwrap();
    assert!(copied.success());
    program
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let list = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let here = dir.canonicalize().unwrap();
    let dirs = list.lines().filter_map(|line| line.split(' ').nth(1).map(str::to_owned));
    dirs.filter(|mount| Path::new(mount).starts_with(&here)).collect()
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

#[test]
fn links_on_the_way_to_a_mount_point_lead_nowhere() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let (home, system) = (of(&sandbox, "home", MALLORY), sandbox.dir("system"));
    let link = |target: &Path, name: &str| {
        symlink(target, home.join(name)).unwrap();
        lchown(home.join(name), Some(MALLORY), Some(MALLORY)).unwrap();
    };
    link(&system, "link");
    link(&system.join("new"), "dangling");
    sandbox.ok(&["dataset", "create", "tank/db"]);
    let is_a_link = "is a link in a directory that others may change";
    for dir in ["home/link", "home/link/sub", "home/../home/link"] {
        assert_failure(&run(&sandbox, &["mount", "tank/db", dir]), 1, &[is_a_link]);
    }
    // Where the property leads, directories are made: none through a link.
    for dir in ["home/link/sub", "home/dangling", "home/dangling/sub", "home/link"] {
        let dir = sandbox.path(dir);
        let property = format!("mountpoint={}", dir.display());
        sandbox.ok(&["set", property.as_str(), "tank/db"]);
        assert_failure(&run(&sandbox, &["mount", "tank/db"]), 1, &["home/", "link"]);
        assert!(!run(&sandbox, &["mount", "-a", "tank"]).status.success());
    }
    assert_eq!((fs::read_dir(&system).unwrap().count(), mounts_below(&system).len()), (0, 0));
    // A pool that is not mounted yet is not opened for it either.
    sandbox.ok(&["unmount", "tank"]);
    assert_failure(&run(&sandbox, &["mount", "tank", "home/link"]), 1, &[is_a_link]);
    // Links of root's in directories of root's are followed, and directories of others are mounted on.
    symlink(&home, sandbox.path("way")).unwrap();
    of(&sandbox, "home/real", MALLORY);
    sandbox.ok(&["mount", "tank/db", "way/real"]);
    assert_eq!(mounts_below(&home).len(), 1);
    assert_eq!(mounts_below(&system), Vec::<String>::new());
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn renaming_while_root_mounts_gets_nothing_mounted_elsewhere() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    let (home, system) =
        (of(&sandbox, "home", MALLORY), sandbox.dir("system/sub").parent().unwrap().to_owned());
    fs::create_dir_all(home.join("a/sub")).unwrap();
    symlink(&system, home.join("b")).unwrap();
    let exchange =
        |home: &Path| renameat_with(CWD, home.join("a"), CWD, home.join("b"), RenameFlags::EXCHANGE);
    let mut mounted = 0;
    for _ in 0..15 {
        let stop = Arc::new(AtomicBool::new(false));
        let renamer = std::thread::spawn({
            let (stop, home) = (Arc::clone(&stop), home.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    exchange(&home).unwrap();
                }
            }
        });
        let done = run(&sandbox, &["mount", "tank/db", "home/a/sub"]);
        stop.store(true, Ordering::Relaxed);
        renamer.join().unwrap();
        if home.join("a").is_symlink() {
            exchange(&home).unwrap();
        }
        assert_eq!(mounts_below(&system), Vec::<String>::new());
        assert_eq!(mounts_below(&home).len(), usize::from(done.status.success()), "{}", done.stderr);
        if done.status.success() {
            mounted += 1;
            sandbox.ok(&["unmount", "tank/db"]);
        }
    }
    eprintln!("mounted in spite of it: {mounted} of 15");
}

#[test]
fn pool_files_are_made_and_opened_through_no_link_and_nothing_hangs() {
    if !can_mount() {
        return;
    }
    let sandbox = open_to_all();
    let home = of(&sandbox, "home", MALLORY);
    let victim = sandbox.path("victim");
    File::create(&victim).unwrap().set_len(256 << 20).unwrap();
    symlink(&victim, home.join("pool.pf")).unwrap();
    symlink(sandbox.path("new"), home.join("new.pf")).unwrap();
    symlink(sandbox.path(""), home.join("dir")).unwrap();
    for device in ["home/pool.pf", "home/new.pf", "home/dir/new.pf", "home/dir/victim"] {
        let refused = run(&sandbox, &["create", "evil", device, "--size", "160M"]);
        assert_failure(&refused, 1, &[device]);
    }
    let mut head = [1; 4096];
    File::open(&victim).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert!(head == [0; 4096] && !sandbox.path("new").exists() && !sandbox.path("new.pf").exists());
    // Files that are opened to find out whether they belong to a pool.
    fifo(&home.join("fifo"));
    let _listener = UnixListener::bind(home.join("socket")).unwrap();
    mknodat(CWD, home.join("tty"), FileType::CharacterDevice, Mode::RUSR, makedev(5, 0)).unwrap();
    for name in ["home/fifo", "home/socket", "home/tty", "home/dir"] {
        assert!(!run(&sandbox, &["create", "evil", name, "--size", "160M"]).status.success());
        assert!(!run(&sandbox, &["mount", sandbox.path(name).to_str().unwrap(), "home"]).status.success());
    }
    let _ = run(&sandbox, &["import", "-d", "home"]);
    // A pool in a directory of others, whose file is replaced by a link to another one.
    sandbox.ok(&["create", "tank", "home/tank.pf", "--size", "160M"]);
    fs::rename(home.join("tank.pf"), sandbox.path("moved.pf")).unwrap();
    symlink(sandbox.path("moved.pf"), home.join("tank.pf")).unwrap();
    sandbox.dir("mnt");
    let told = run(&sandbox, &["mount", "tank", "mnt"]);
    assert_failure(&told, 1, &["tank.pf"]);
}

#[test]
fn files_of_ours_are_not_made_where_others_may_write() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    sandbox.ok(&["unmount", "tank"]);
    let victim = sandbox.path("victim");
    fs::write(&victim, "precious").unwrap();
    // A log, a lock and a socket that are links, in directories of ours that were open for a while.
    for (name, link) in [("log/tank.log", "log"), ("run/tank.lock", "run"), ("run/tank.mounting", "run")] {
        let _ = fs::remove_file(sandbox.path(name));
        symlink(&victim, sandbox.path(name)).unwrap();
        let refused = run(&sandbox, &["mount", "tank", "mnt"]);
        assert!(!refused.status.success(), "{link}");
        fs::remove_file(sandbox.path(name)).unwrap();
        fifo(&sandbox.path(name));
        assert!(!run(&sandbox, &["mount", "tank", "mnt"]).status.success(), "{link}");
        fs::remove_file(sandbox.path(name)).unwrap();
    }
    for dir in ["log", "run", "state"] {
        fs::set_permissions(sandbox.path(dir), Permissions::from_mode(0o777)).unwrap();
        let verb: &[&str] = if dir == "state" {
            &["create", "two", "two.pf", "--size", "160M"]
        } else {
            &["mount", "tank", "mnt"]
        };
        assert_failure(&run(&sandbox, verb), 1, &["others may write"]);
        if dir != "log" {
            assert_failure(&run(&sandbox, &["list", "tank"]), 1, &["others may write"]);
        }
        fs::set_permissions(sandbox.path(dir), Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    sandbox.ok(&["mount", "tank", "mnt"]);
}

#[test]
fn the_directory_in_tmp_is_ours_or_nobodys() {
    if !can_mount() {
        return;
    }
    let sandbox = open_to_all();
    let program = program(&sandbox);
    // Another /tmp, for this test alone.
    let tmp = sandbox.dir("tmp");
    fs::set_permissions(&tmp, Permissions::from_mode(0o1777)).unwrap();
    let own = of(&sandbox, "own", ALICE);
    fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
    let place = tmp.join(format!("pagefold-{ALICE}"));
    let state = of(&sandbox, "alice", ALICE);
    let status = || {
        let mut command = Command::new(&program);
        command
            .args(["status"])
            .env_clear()
            .env("PAGEFOLD_STATE_DIR", &state)
            .env("PAGEFOLD_RUNTIME_DIR", &place);
        command.uid(ALICE).gid(ALICE).current_dir("/").stdin(Stdio::null());
        bounded(command)
    };
    assert!(status().status.success(), "{}", status().stderr);
    // A link to a directory of Alice's own: also where the kernel would follow it.
    symlink(&own, &place).unwrap();
    lchown(&place, Some(MALLORY), Some(MALLORY)).unwrap();
    assert_failure(&status(), 1, &["a link that others may have made"]);
    fs::remove_file(&place).unwrap();
    // A directory with a socket that answers.
    fs::create_dir(&place).unwrap();
    let _listener = UnixListener::bind(place.join("tank.sock")).unwrap();
    chown(&place, Some(MALLORY), Some(MALLORY)).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
    assert_failure(&status(), 1, &["belongs to user 54321"]);
    // Root does not ask there either, nor a socket of somebody else's in a directory of its own.
    let asked = |dir: &Path| {
        let mut command = sandbox.command(&["status", "tank"]);
        command.env("PAGEFOLD_RUNTIME_DIR", dir);
        bounded(command)
    };
    assert_failure(&asked(&place), 1, &["belongs to user 54321"]);
    let open = sandbox.dir("open");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    assert_failure(&asked(&open), 1, &["others may write"]);
}
