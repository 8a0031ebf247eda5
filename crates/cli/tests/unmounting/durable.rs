//! Durability: files are as they were written, however the mount ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Sleeper, mount, mounted, state};
use crate::common::{Sandbox, can_mount, wait_until, with_pools};

pub(super) fn spawn(sandbox: &Sandbox, words: &[&str]) -> Child {
    sandbox.command(words).stderr(Stdio::piped()).spawn().unwrap()
}

/// /sbin with our helpers beside what is there, in this test's own mounts.
fn with_helpers(sandbox: &Sandbox) {
    let layers = sandbox.dir("sbin");
    let run = |words: &[&str]| {
        let done = Command::new("mount").args(words).status().unwrap();
        assert!(done.success(), "mount {words:?}");
    };
    run(&["-t", "tmpfs", "none", layers.to_str().unwrap()]);
    let (upper, work) = (sandbox.dir("sbin/upper"), sandbox.dir("sbin/work"));
    for name in ["mount.pagefold", "mount.fuse.pagefold", "umount.pagefold", "umount.fuse.pagefold"] {
        symlink(env!("CARGO_BIN_EXE_pagefold"), upper.join(name)).unwrap();
    }
    let sbin = fs::canonicalize("/sbin").unwrap();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", sbin.display(), upper.display(), work.display());
    run(&["-t", "overlay", "-o", &options, "overlay", sbin.to_str().unwrap()]);
}

/// Files as a program leaves them that knows nothing of fsync: written, mapped and stored into, renamed, and closed.
///
/// Another process writes them. What this one opens, the children of other tests have open too until they execute
/// their programs, and a mount with an open file is busy.
fn leave_files(dir: &Path, round: u32) -> Vec<(PathBuf, Vec<u8>)> {
    let bytes = |salt: u32, len: usize| -> Vec<u8> {
        (0..len)
            .map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(salt).to_le_bytes()[2])
            .collect()
    };
    let [written, mapped, renamed] =
        [bytes(round, 3_000_000), bytes(round + 1000, 300_000), bytes(round + 2000, 100)];
    let script = "import mmap, os, sys\n\
        written, mapped, renamed = (open(name, 'rb').read() for name in sys.argv[1:])\n\
        with open('written', 'wb') as f: f.write(written)\n\
        f = open('mapped', 'r+b') if os.path.exists('mapped') else open('mapped', 'w+b')\n\
        f.truncate(len(mapped))\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        f.close()\n\
        m[:] = mapped\n\
        with open('new', 'wb') as f: f.write(renamed)\n\
        os.rename('new', 'renamed')\n";
    let data = [("written", &written), ("mapped", &mapped), ("renamed", &renamed)].map(|(name, bytes)| {
        let path = dir.with_file_name(format!("{name}.data"));
        fs::write(&path, bytes).unwrap();
        path
    });
    let done = Command::new("python3").args(["-c", script]).args(data).current_dir(dir).status().unwrap();
    assert!(done.success());
    vec![("written".into(), written), ("mapped".into(), mapped), ("renamed".into(), renamed)]
}

/// Data are durable when umount(8) returns, as people call it, and as systemd's mount units call it.
#[test]
fn what_was_written_before_umount_8_is_there_although_the_server_is_killed_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    with_helpers(&sandbox);
    let dir = sandbox.dir("mnt");
    let mut saved: u32 = 0;
    for round in 0..24 {
        mount(&sandbox, "tank", "mnt");
        let pid = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let server = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        let files = leave_files(&dir, round);
        let words: &[&str] = if round % 2 == 0 { &[] } else { &["-c"] };
        let done = Command::new("umount").args(words).arg(&dir).envs(sandbox.environment()).status().unwrap();
        assert!(done.success());
        // It may have ended already: then it has closed the pool.
        let killed = rustix::process::pidfd_send_signal(&server, rustix::process::Signal::KILL);
        saved += u32::from(killed.is_ok());
        wait_for(&server);
        mount(&sandbox, "tank", "mnt");
        for (name, bytes) in files {
            let there = fs::read(dir.join(&name)).unwrap_or_default();
            assert!(there == bytes, "round {round}, {words:?}: {} has {} bytes", name.display(), there.len());
        }
        sandbox.ok(&["unmount", "tank"]);
    }
    assert!(saved > 0, "no server was killed before it had closed the pool: nothing was shown");
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

fn wait_for(process: &rustix::fd::OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)), Ok(1));
}

/// The helper waits until the pool is closed: nothing is left to be lost, and the next program finds a clean pool.
#[test]
fn the_helper_of_umount_8_returns_when_the_pool_is_closed() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    with_helpers(&sandbox);
    let dir = sandbox.dir("mnt");
    let umount = |words: &[&str]| {
        Command::new("umount").args(words).arg(&dir).envs(sandbox.environment()).output().unwrap()
    };
    mount(&sandbox, "tank", "mnt");
    let sleeper = Sleeper::holding(&dir.join("held"));
    let told = umount(&["-c"]);
    let own = format!("process {} (", sleeper.pid());
    assert!(!told.status.success() && String::from_utf8_lossy(&told.stderr).contains(&own));
    drop(sleeper);
    assert!(umount(&["-c"]).status.success());
    assert!(!sandbox.path("run/tank.sock").exists());
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
    mount(&sandbox, "tank", "mnt");
    let sleeper = Sleeper::holding(&dir.join("held"));
    assert!(umount(&["-c", "-l"]).status.success());
    assert_eq!(mounted(&sandbox), [""; 0]);
    drop(sleeper);
    wait_until(|| state(&sandbox, "tank") == "EXPORTED");
}

/// umount2(2) says nothing to the server, which commits as soon as it sees the end; with a supervisor nothing is lost in between either.
#[test]
fn what_was_written_before_umount2_is_there_where_another_server_follows() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let dir = sandbox.dir("mnt");
    for round in 0..6 {
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
        let pid = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let files = leave_files(&dir, round);
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::KILL,
        );
        wait_until(|| !sandbox.path("run/tank.sock").exists());
        wait_until(|| state(&sandbox, "tank") != "ONLINE");
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
        for (name, bytes) in files {
            assert!(fs::read(dir.join(&name)).unwrap() == bytes, "round {round}: {}", name.display());
        }
        sandbox.ok(&["unmount", "tank"]);
    }
}

#[test]
fn a_server_that_is_told_to_end_cuts_off_mounts_that_it_does_not_see() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    let elsewhere = Sleeper::elsewhere();
    let mounts = fs::read_to_string(format!("/proc/{}/mounts", elsewhere.pid())).unwrap();
    assert!(mounts.contains(sandbox.path("mnt").to_str().unwrap()), "{mounts}");
    let server = sandbox.pool()["pid"].as_i64().unwrap();
    crate::common::signal(i32::try_from(server).unwrap(), rustix::process::Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(&sandbox, "tank") != "EXPORTED" {
        assert!(Instant::now() < deadline, "the server does not end");
        std::thread::sleep(Duration::from_millis(200));
    }
}
