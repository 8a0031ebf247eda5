//! Tests of the parts for systemd: drop-ins of the generator and of `systemd install`, and servers that end as it wants
//! them to.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Sandbox, assert_failure, can_mount, parent, signal, wait_until};
use rustix::process::Signal;

fn text(sandbox: &Sandbox, path: &str) -> String {
    fs::read_to_string(sandbox.path(path)).unwrap()
}

#[test]
fn the_generator_tells_what_a_pool_needs() {
    let sandbox = Sandbox::new();
    for dir in ["normal", "early", "late"] {
        sandbox.dir(dir);
    }
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    // As systemd calls it: by its name, with three directories.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pagefold"), sandbox.path("pagefold-generator")).unwrap();
    let mut generator = std::process::Command::new(sandbox.path("pagefold-generator"));
    let dirs = ["normal", "early", "late"].map(|dir| sandbox.path(dir));
    let status = generator.args(dirs).envs(sandbox.environment()).status().unwrap();
    assert!(status.success());
    let device = sandbox.path("tank.pf").canonicalize().unwrap();
    let drop_in = text(&sandbox, "normal/pagefold@tank.service.d/50-pagefold.conf");
    assert!(drop_in.starts_with("# Written by pagefold"), "{drop_in}");
    assert!(drop_in.ends_with(&format!("[Unit]\nRequiresMountsFor={}\n", device.display())), "{drop_in}");
    // A file that cannot be read does not stop a boot.
    fs::write(sandbox.path("state/pools.json"), "{nonsense").unwrap();
    let output = sandbox.run(&["generator", "early"]);
    assert_failure(&output, 1, &["pools.json is damaged"]);
    assert_eq!(fs::read_dir(sandbox.path("early")).unwrap().count(), 0);
}

#[test]
fn drop_ins_are_written_shown_and_removed() {
    let sandbox = Sandbox::new();
    sandbox.dir("units");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    let install = ["systemd", "install", "--dir", "units"];
    let output = sandbox.run(&install);
    assert!(
        output.status.success() && output.stderr.contains("nothing is to be written"),
        "{}",
        output.stderr
    );
    let mnt = sandbox.dir("mnt").canonicalize().unwrap();
    sandbox.ok(&["set", &format!("mountpoint={}", mnt.display()), "tank"]);
    let path = "units/pagefold@tank.service.d/50-pagefold.conf";
    let output = sandbox.run(&install);
    assert!(
        output.stdout.contains(path) && output.stderr.contains("systemctl daemon-reload"),
        "{}",
        output.stderr
    );
    let drop_in = text(&sandbox, path);
    let shown = sandbox.json(&["systemd", "show", "tank"]);
    assert_eq!(shown["files"][0]["text"].as_str().unwrap(), drop_in);
    assert_eq!(shown["files"][0]["path"], "/etc/systemd/system/pagefold@tank.service.d/50-pagefold.conf");
    assert!(sandbox.ok(&["systemd", "show"]).contains(&drop_in));
    // A second time there is nothing to do; what is no longer wanted goes.
    assert_eq!(sandbox.ok(&install), "");
    sandbox.ok(&["inherit", "mountpoint", "tank"]);
    assert!(sandbox.ok(&install).starts_with("removed "));
    assert!(!sandbox.path("units/pagefold@tank.service.d").exists());
    assert_failure(&sandbox.run(&["systemd", "remove", "--dir", "units"]), 1, &["no drop-in of ours"]);
    assert_failure(&sandbox.run(&["systemd", "install", "none", "--dir", "units"]), 1, &["no pool \"none\""]);
    // One pool that is not there keeps no other from being seen to.
    sandbox.ok(&["create", "gone", "gone.pf", "--size", "160M"]);
    fs::remove_file(sandbox.path("gone.pf")).unwrap();
    sandbox.ok(&["set", &format!("mountpoint={}", mnt.display()), "tank"]);
    let output = sandbox.run(&install);
    assert!(output.status.success() && output.stderr.contains("pool gone is left out"), "{}", output.stderr);
    assert!(sandbox.path(path).exists());
}

/// Switching a machine off tells all processes to end: the supervisor, which passes it on, and the server itself.
#[test]
fn a_server_that_is_told_by_two_at_once_closes_its_pool() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    for round in 0..3 {
        let rows = format!("row {round}\n").repeat(400_000);
        fs::write(sandbox.path("mnt/file"), &rows).unwrap();
        let server = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let supervisor = parent(server);
        signal(server, Signal::TERM);
        signal(supervisor, Signal::TERM);
        wait_until(|| !sandbox.path("run/tank.sock").exists() || sandbox.pool()["pid"].is_null());
        wait_until(|| {
            rustix::process::test_kill_process(rustix::process::Pid::from_raw(supervisor).unwrap()).is_err()
        });
        assert_eq!(sandbox.pool()["state"], "EXPORTED");
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
        assert_eq!(fs::read_to_string(sandbox.path("mnt/file")).unwrap(), rows);
    }
    sandbox.ok(&["unmount", "tank"]);
}

/// Questions are answered also while a server ends, by it or from the devices.
#[test]
fn a_pool_is_told_of_while_its_server_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    let questions: [&[&str]; 5] = [
        &["status", "tank"],
        &["list", "-r", "tank"],
        &["get", "all", "tank"],
        &["status", "--models", "tank"],
        &["branch", "list", "tank"],
    ];
    for _ in 0..4 {
        let server = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for words in questions {
                let (sandbox, told) = (&sandbox, &told);
                scope.spawn(move || {
                    let mut after = 0;
                    while after < 3 {
                        after += usize::from(told.load(Relaxed) && !sandbox.path("run/tank.sock").exists());
                        sandbox.ok(words);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            signal(server, Signal::TERM);
            told.store(true, Relaxed);
        });
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
    }
    sandbox.ok(&["unmount", "tank"]);
}

/// Started as the unit starts it: without options, which come from the pool, and without a directory.
#[test]
fn a_server_in_the_foreground_takes_all_from_the_pool() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let mnt = sandbox.dir("mnt").canonicalize().unwrap();
    let mountpoint = format!("mountpoint={}", mnt.display());
    let words = [
        "create",
        "tank",
        "tank.pf",
        "--size",
        "160M",
        "-o",
        "cache=64M",
        "-o",
        "takeover=on",
        "-o",
        &mountpoint,
    ];
    sandbox.ok(&words);
    let mut server = sandbox.command(&["serve", "tank"]).spawn().unwrap();
    // Nobody asks before: without a server the devices would be opened to answer.
    let mounted = || fs::read_to_string("/proc/thread-self/mounts").unwrap().contains(mnt.to_str().unwrap());
    wait_until(mounted);
    let pool = sandbox.pool();
    assert_eq!(pool["memory"]["budget_bytes"], 64 << 20);
    assert_eq!(pool["takeover"]["on"], true);
    assert_eq!(pool["mounts"][0]["dir"].as_str().unwrap(), mnt.to_str().unwrap());
    // The process that systemd started is the supervisor, and it ends as it is told.
    assert_eq!(
        parent(i32::try_from(pool["pid"].as_i64().unwrap()).unwrap()),
        i32::try_from(server.id()).unwrap()
    );
    signal(i32::try_from(server.id()).unwrap(), Signal::TERM);
    assert!(server.wait().unwrap().success());
    assert_eq!(sandbox.pool()["state"], "EXPORTED");
}
