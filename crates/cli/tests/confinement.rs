//! Least privilege: what a running server has given up, as the kernel tells it. Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::path::Path;

use common::{Sandbox, assert_failure, can_mount, parent, signal, wait_until};

fn pid(sandbox: &Sandbox) -> i64 {
    sandbox.pool()["pid"].as_i64().unwrap()
}

/// A line of a task's `status`.
fn told(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns the `status` file of each thread of a process; there have to be some threads.
fn threads(pid: i64) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let all: Vec<String> =
        tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect();
    assert!(all.len() > 3, "{} threads", all.len());
    all
}

fn write_and_read(sandbox: &Sandbox) {
    for n in 0..40 {
        let data = vec![n; 200_000];
        let path = sandbox.path(&format!("mnt/{n}"));
        fs::write(&path, &data).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == data);
    }
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    for n in 0..40 {
        assert!(fs::read(sandbox.path(&format!("mnt/{n}"))).unwrap() == vec![n; 200_000]);
    }
}

/// Bits of capabilities(7).
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const SETPCAP: u64 = 1 << 8;
const SYS_ADMIN: u64 = 1 << 21;

fn mask(status: &str, name: &str) -> u64 {
    u64::from_str_radix(&told(status, name), 16).unwrap()
}

/// Asserts what the kernel tells of one thread.
#[track_caller]
fn assert_bounded(status: &str, kept: u64, filters: &str) {
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(mask(status, set) & !kept, 0, "{set} of {status}");
    }
    assert_eq!((mask(status, "CapInh"), mask(status, "CapAmb")), (0, 0), "{status}");
    assert_eq!(told(status, "NoNewPrivs"), "1", "{status}");
    assert_eq!(told(status, "Seccomp"), "2", "{status}");
    let found = told(status, "Seccomp_filters");
    assert!(found == filters || found.is_empty(), "{status}");
}

/// Asserts that all threads of a server are confined, and its mounter as far as it can be.
#[track_caller]
fn assert_confined(pid: i64, filters_before: u32) {
    for status in threads(pid) {
        assert_bounded(&status, 0, &(filters_before + 3).to_string());
    }
    let mounters = children(pid);
    assert_eq!(mounters.len(), 1, "{mounters:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", mounters[0])).unwrap();
    assert_bounded(&status, SYS_ADMIN | DAC_READ_SEARCH, &(filters_before + 1).to_string());
}

fn children(of: i64) -> Vec<i64> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        told(&status, "PPid") == of.to_string()
    };
    pids.filter(is_child).collect()
}

#[test]
fn every_thread_of_a_server_is_confined_and_it_does_its_work() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("confine=on");
    assert_confined(pid(&sandbox), 0);
    write_and_read(&sandbox);
    // Threads that came with the load.
    assert_confined(pid(&sandbox), 0);
    let told = sandbox.pool()["confinement"].clone();
    for what in ["on", "system_calls", "paths"] {
        assert_eq!(told[what], true, "{what}");
    }
    assert_eq!(told["capabilities"], serde_json::json!([]));
    assert_eq!(told["missing"], serde_json::json!([]));
    assert!(sandbox.ok(&["status", "tank"]).contains("system calls are filtered"));
    // Further mounts are made by the same server, and taken away.
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.dir("db");
    sandbox.ok(&["mount", "tank/db", "db"]);
    sandbox.ok(&["unmount", "tank/db"]);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["check", "tank"]);
    let log = fs::read_to_string(sandbox.path("log/tank.log")).unwrap();
    assert!(!log.contains("ENOSYS") && !log.contains("not implemented"), "{log}");
}

#[test]
fn a_supervisor_keeps_what_its_servers_begin_with() {
    if !can_mount() || !pagefold_fuse::kernel_resends() {
        return;
    }
    let sandbox = Sandbox::mounted("confine=on,takeover=on");
    let first = pid(&sandbox);
    let supervisor = parent(i32::try_from(first).unwrap());
    for _ in 0..2 {
        let server = pid(&sandbox);
        assert_confined(server, 1);
        assert_eq!(parent(i32::try_from(server).unwrap()), supervisor);
        let status = fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
        assert_bounded(&status, SYS_ADMIN | DAC_READ_SEARCH | DAC_OVERRIDE | SETPCAP, "1");
        signal(i32::try_from(server).unwrap(), rustix::process::Signal::KILL);
        wait_until(|| {
            let told = sandbox.run(&["status", "tank", "--json"]);
            let now = serde_json::from_str::<serde_json::Value>(&told.stdout).unwrap_or_default();
            now["pools"][0]["pid"].as_i64().is_some_and(|now| now != server)
                && now["pools"][0]["takeover"]["last_stall_ms"].is_u64()
        });
        write_and_read(&sandbox);
    }
    // A planned restart begins a new program.
    sandbox.ok(&["restart", "tank"]);
    assert_confined(pid(&sandbox), 1);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["check", "tank"]);
}

#[test]
fn confinement_is_of_the_whole_pool_and_can_be_left_out() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("confine=off");
    assert_eq!(sandbox.pool()["confinement"]["on"], false);
    assert!(sandbox.ok(&["status", "tank"]).contains("keeps all privileges"));
    let status = fs::read_to_string(format!("/proc/{}/status", pid(&sandbox))).unwrap();
    assert_eq!(told(&status, "Seccomp"), told(&fs::read_to_string("/proc/self/status").unwrap(), "Seccomp"));
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.dir("db");
    let other = sandbox.run(&["mount", "-o", "confine=on", "tank/db", "db"]);
    assert_failure(&other, 1, &["confine", "whole pool"]);
    sandbox.ok(&["mount", "-o", "confine=auto", "tank/db", "db"]);
    assert!(Path::new(&sandbox.path("db/x")).parent().unwrap().is_dir());
}

#[test]
fn a_mounter_ends_with_its_server_and_not_before() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    let server = pid(&sandbox);
    let mounter = i32::try_from(children(server)[0]).unwrap();
    for told in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        signal(mounter, told);
    }
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.dir("db");
    sandbox.ok(&["mount", "tank/db", "db"]);
    signal(i32::try_from(server).unwrap(), rustix::process::Signal::KILL);
    wait_until(|| !Path::new(&format!("/proc/{mounter}/exe")).exists());
    // Without one, a server says what is wrong, and umount(8) ends it.
    sandbox.ok(&["mount", "tank", "mnt"]);
    let server = pid(&sandbox);
    signal(i32::try_from(children(server)[0]).unwrap(), rustix::process::Signal::KILL);
    wait_until(|| sandbox.run(&["mount", "tank/db", "db"]).stderr.contains("unmount with umount(8)"));
    assert!(std::process::Command::new("umount").arg(sandbox.path("mnt")).status().unwrap().success());
    wait_until(|| sandbox.json(&["status", "tank"])["pools"][0]["state"] == "EXPORTED");
}

#[test]
fn what_the_server_was_not_started_for_is_not_mounted_later() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    sandbox.ok(&["dataset", "create", "tank/db"]);
    fs::write(sandbox.dir("db").join("file"), "").unwrap();
    let refused = sandbox.run(&["mount", "-o", "nonempty", "tank/db", "db"]);
    assert_failure(&refused, 1, &["without the mount option nonempty", "first mount"]);
    let refused = sandbox.run(&["mount", "-o", "suid", "tank/db", "mnt2"]);
    assert!(!refused.status.success());
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "-o", "nonempty", "tank", "mnt"]);
    sandbox.ok(&["mount", "-o", "nonempty", "tank/db", "db"]);
}

/// A user without any privilege, whose mounts fusermount3 makes.
const USER: u32 = 65_534;

#[test]
fn the_server_of_a_user_is_confined_as_well() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    let everybodys = fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    if !can_mount() || !everybodys || !Path::new("/usr/bin/fusermount3").exists() {
        eprintln!("skipped: needs fusermount3 and a /dev/fuse for everybody");
        return;
    }
    let sandbox = Sandbox::new();
    for dir in ["", "mnt", "second", "run", "state", "log"] {
        std::os::unix::fs::chown(sandbox.dir(dir), Some(USER), Some(USER)).unwrap();
    }
    let program = sandbox.path("pagefold");
    fs::copy(env!("CARGO_BIN_EXE_pagefold"), &program).unwrap();
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(words).envs(sandbox.environment()).current_dir(sandbox.path(""));
        let output = command.uid(USER).gid(USER).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let pool = || {
        let told: serde_json::Value = serde_json::from_str(&run(&["status", "tank", "--json"])).unwrap();
        told["pools"][0].clone()
    };
    run(&["create", "tank", "tank.pf", "--size", "512M"]);
    let options = ["takeover=off", "takeover=on"];
    for options in options.iter().take(if pagefold_fuse::kernel_resends() { 2 } else { 1 }) {
        run(&["mount", "-o", options, "tank", "mnt"]);
        let told = pool();
        assert_eq!(told["confinement"]["missing"], serde_json::json!([]), "{options}");
        for status in threads(told["pid"].as_i64().unwrap()) {
            assert_eq!((told_of(&status), mask(&status, "CapPrm")), (("1".into(), "2".into()), 0));
        }
        if *options == "takeover=on" {
            run(&["restart", "tank"]);
            assert!(pool()["pid"] != told["pid"]);
        }
        // By way of the mounter, which may start fusermount3.
        if *options == "takeover=off" {
            run(&["dataset", "create", "tank/db"]);
        }
        run(&["mount", "tank/db", "second"]);
        run(&["unmount", "tank"]);
    }
}

fn told_of(status: &str) -> (String, String) {
    (told(status, "NoNewPrivs"), told(status, "Seccomp"))
}
