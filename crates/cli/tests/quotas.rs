//! Quotas and reservations as users have them, with real mounts. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, wait_until};

const MIB: u64 = 1 << 20;

/// A pool `tank` with datasets `db`, mounted at `a`, and `other`, mounted at `b`.
fn with_pool() -> Sandbox {
    let sandbox = Sandbox::new();
    ["a", "b", "c"].iter().for_each(|dir| drop(sandbox.dir(dir)));
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "384M"]);
    sandbox.ok(&["dataset", "create", "-o", "quota=16M", "tank/db"]);
    sandbox.ok(&["dataset", "create", "tank/other"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    sandbox.ok(&["mount", "tank/other", "b"]);
    sandbox
}

fn noise(bytes: u64) -> Vec<u8> {
    let mut data = Vec::new();
    File::open("/dev/urandom").unwrap().take(bytes).read_to_end(&mut data).unwrap();
    data
}

/// Appends noise to a file until there is no room, and returns how much there was.
fn fill(path: &Path) -> u64 {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    for step in [MIB, 64 << 10, 4 << 10] {
        loop {
            match file.write_all(&noise(step)) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    file.metadata().unwrap().len()
}

fn get(sandbox: &Sandbox, property: &str, name: &str) -> String {
    sandbox.ok(&["get", "-Hp", property, name]).trim_end().split('\t').nth(2).unwrap_or_default().to_owned()
}

/// Size, free and available bytes of a mount.
fn df(dir: &Path) -> (u64, u64, u64) {
    let told = rustix::fs::statvfs(dir).unwrap();
    (told.f_blocks * told.f_frsize, told.f_bfree * told.f_frsize, told.f_bavail * told.f_frsize)
}

#[test]
fn a_quota_is_met_told_and_lifted() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let (db, other) = (sandbox.path("a"), sandbox.path("b"));
    assert_eq!(get(&sandbox, "quota", "tank/db"), "16777216");
    assert_eq!(
        sandbox.ok(&["get", "-H", "quota,refquota", "tank/db"]),
        "tank/db\tquota\t16.0M\tlocal\ntank/db\trefquota\tnone\tdefault\n"
    );
    assert_eq!(get(&sandbox, "quota", "tank/other"), "none");
    assert_eq!(df(&db).0, 16 * MIB);
    let length = fill(&db.join("file"));
    assert!(length > 15 * MIB && length <= 16 * MIB, "{length}");
    sandbox.ok(&["sync", "tank"]);
    let (size, free, available) = df(&db);
    assert!(size == 16 * MIB && free < MIB / 4 && available < MIB / 4, "{free} and {available} of {size}");
    let used: u64 = get(&sandbox, "used", "tank/db").parse().unwrap();
    let left: u64 = get(&sandbox, "available", "tank/db").parse().unwrap();
    assert!(used <= 16 * MIB && left <= 16 * MIB - used, "{used} and {left}");
    // Others are not concerned.
    fs::write(other.join("file"), noise(20 * MIB)).unwrap();
    assert!(df(&other).2 > 100 * MIB);
    // It is told.
    wait_until(|| sandbox.ok(&["events", "tank"]).contains("95 % of a quota are taken"));
    let told = sandbox.ok(&["status", "tank"]);
    assert!(told.contains("% of quota of tank/db (16.0M) are taken"), "{told}");
    assert!(told.contains("pagefold set quota=SIZE tank/db"), "{told}");
    let figures = sandbox.json(&["status", "tank"])["pools"][0]["quotas"][0].clone();
    assert_eq!(
        (&figures["name"], &figures["property"], &figures["limit_bytes"]),
        (&"tank/db".into(), &"quota".into(), &(16 * MIB).into())
    );
    let listed = sandbox.json(&["list", "-t", "dataset", "tank/db"]);
    assert!(listed["datasets"][0]["available_bytes"].as_u64().unwrap() < MIB / 4);
    // It survives its server.
    sandbox.ok(&["unmount", "tank/other"]);
    let pid = sandbox.json(&["status", "tank"])["pools"][0]["pid"].as_i64().unwrap();
    kill_to_the_end(i32::try_from(pid).unwrap());
    let _ = std::process::Command::new("umount").args(["-l", db.to_str().unwrap()]).output();
    sandbox.ok(&["mount", "tank/db", "a"]);
    let file = File::options().append(true).open(db.join("file")).unwrap();
    assert_eq!(file.write_at(&noise(MIB), length).unwrap_err().kind(), ErrorKind::StorageFull);
    // Truncating and deleting go on.
    file.set_len(length - MIB).unwrap();
    file.set_len(length / 2 + 100).unwrap();
    drop(file);
    assert!(fill(&db.join("file")) > 15 * MIB);
    fs::remove_file(db.join("file")).unwrap();
    wait_until(|| df(&db).2 > 15 * MIB);
    let file = db.join("again");
    let before = fill(&file);
    sandbox.ok(&["set", "quota=24M", "tank/db"]);
    assert_eq!(df(&db).0, 24 * MIB);
    assert!(fill(&file) > before + 7 * MIB);
    assert_failure(
        &sandbox.run(&["set", "quota=4M", "tank/db"]),
        1,
        &["cannot set quota of tank/db", "count against it"],
    );
    sandbox.ok(&["set", "quota=none", "tank/db"]);
    assert!(df(&db).0 > 100 * MIB);
    fs::write(db.join("more"), noise(10 * MIB)).unwrap();
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn snapshots_moves_and_clones_count() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let db = sandbox.path("a");
    sandbox.ok(&["set", "refquota=9M", "tank/db"]);
    assert_eq!(df(&db).0, 9 * MIB);
    fs::write(db.join("file"), noise(8 * MIB)).unwrap();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    fs::remove_file(db.join("file")).unwrap();
    // The snapshot holds it, and leaves half of the quota; the refquota is free.
    wait_until(|| df(&db).2 > 7 * MIB);
    let length = fill(&db.join("file"));
    assert!(length > 7 * MIB && length < 8 * MIB, "{length}");
    assert_failure(&sandbox.run(&["set", "quota=4M", "tank/db@one"]), 1, &["cannot be set on a snapshot"]);
    assert!(!sandbox.ok(&["get", "all", "tank/db@one"]).contains("quota"));
    sandbox.ok(&["unmount", "tank/db"]);
    // Nothing is inherited, but all below is bounded.
    sandbox.ok(&["clone", "tank/db@one", "tank/db/clone"]);
    assert_eq!(get(&sandbox, "quota", "tank/db/clone"), "none");
    sandbox.ok(&["mount", "tank/db/clone", "c"]);
    assert!(df(&sandbox.path("c")).2 < MIB);
    assert_eq!(fs::read(sandbox.path("c/file")).unwrap().len(), 8 << 20);
    assert_eq!(fs::write(sandbox.path("c/more"), noise(2 * MIB)).unwrap_err().kind(), ErrorKind::StorageFull);
    sandbox.ok(&["unmount", "tank/db/clone"]);
    sandbox.ok(&["dataset", "create", "-o", "quota=5M", "tank/small"]);
    assert_failure(&sandbox.run(&["rename", "tank/db", "tank/small/db"]), 1, &["quota of small would be"]);
    // Received data count at the place that they get.
    sandbox.ok(&["snapshot", "tank/other@one"]);
    fs::write(sandbox.path("b/file"), noise(8 * MIB)).unwrap();
    sandbox.ok(&["snapshot", "tank/other@two"]);
    let script =
        format!("{0} send tank/other@two | {0} receive tank/small/copy", env!("CARGO_BIN_EXE_pagefold"));
    let mut shell = std::process::Command::new("sh");
    let told = shell.args(["-c", &script]).envs(sandbox.environment()).output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("the quota of small"), "{told}");
    sandbox.ok(&["receive", "--abort", "tank/small/copy"]);
    sandbox.ok(&["set", "quota=12M", "tank/small"]);
    let received =
        std::process::Command::new("sh").args(["-c", &script]).envs(sandbox.environment()).status();
    assert!(received.unwrap().success());
    sandbox.ok(&["destroy", "tank/db/clone"]);
    sandbox.ok(&["destroy", "tank/db@one"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    assert!(fill(&db.join("file")) > 8 * MIB, "what the snapshot held is free at once");
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn a_reservation_is_kept_for_its_dataset() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let (db, other) = (sandbox.path("a"), sandbox.path("b"));
    assert_failure(&sandbox.run(&["set", "reservation=1G", "tank/other"]), 1, &["reservations would keep"]);
    let refused = sandbox.run(&["dataset", "create", "-o", "reservation=1G", "tank/new"]);
    assert_failure(&refused, 1, &["reservations would keep"]);
    assert!(!sandbox.ok(&["list", "-t", "dataset", "tank"]).contains("tank/new"));
    assert_failure(&sandbox.run(&["set", "reservation=20M", "tank/db"]), 1, &["the quota of db would be"]);
    sandbox.ok(&["set", "quota=none", "reservation=50M", "tank/db"]);
    assert!(sandbox.ok(&["status", "tank"]).contains("are kept for datasets with a reservation"));
    assert!(df(&db).2 > df(&other).2 + 49 * MIB);
    fill(&other.join("file"));
    assert!(df(&other).2 < MIB);
    let length = fill(&db.join("file"));
    assert!(length > 48 * MIB, "{length}");
    sandbox.ok(&["set", "reservation=none", "tank/db"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn a_logical_quota_counts_what_was_written() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let db = sandbox.path("a");
    sandbox.ok(&["set", "quota=none", "logicalquota=8M", "tank/db"]);
    let text = vec![b'x'; 7 << 20];
    fs::write(db.join("file"), &text).unwrap();
    assert_eq!(fs::write(db.join("more"), &text).unwrap_err().kind(), ErrorKind::StorageFull);
    fs::remove_file(db.join("more")).unwrap();
    sandbox.ok(&["sync", "tank"]);
    assert!(get(&sandbox, "used", "tank/db").parse::<u64>().unwrap() < MIB);
    fill(&db.join("more"));
    // In place, whatever is there can be written anew.
    let file = File::options().write(true).open(db.join("file")).unwrap();
    file.write_at(&noise(MIB), 0).unwrap();
    file.write_at(&noise(7 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn a_full_pool_is_a_problem() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let healthy = sandbox.ok(&["status", "-x"]);
    assert!(healthy.contains("healthy"), "{healthy}");
    fill(&sandbox.path("b").join("file"));
    sandbox.ok(&["sync", "tank"]);
    let told = sandbox.run(&["status", "-x"]);
    assert_failure(&told, 1, &["something is wrong with tank"]);
    assert!(told.stdout.contains("% full"), "{}", told.stdout);
    sandbox.ok(&["unmount", "tank"]);
    assert_failure(&sandbox.run(&["status", "-x", "tank"]), 1, &["something is wrong with tank"]);
}

/// Names of all datasets.
fn datasets(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.ok(&["list", "-H", "-t", "dataset", "tank"]);
    listed.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

#[test]
fn a_dataset_is_made_with_its_properties_or_not_at_all() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    fill(&sandbox.path("a").join("file"));
    sandbox.ok(&["sync", "tank"]);
    sandbox.ok(&["snapshot", "tank/db@s"]);
    let before = datasets(&sandbox);
    // A quota that is used up refuses the files of a dataset below.
    let used = get(&sandbox, "used", "tank/db");
    sandbox.ok(&["set", &format!("quota={used}"), "tank/db"]);
    for _ in 0..2 {
        let refused = sandbox.run(&["dataset", "create", "-o", "compression=lz4", "tank/db/new"]);
        assert_failure(&refused, 1, &["tank/db/new", "no space"]);
        assert_eq!(datasets(&sandbox), before);
        let refused = sandbox.run(&["dataset", "create", "-p", "tank/db/above/new"]);
        assert_failure(&refused, 1, &["tank/db/above", "no space"]);
        assert_eq!(datasets(&sandbox), before);
    }
    // So does a reservation that does not fit, after the files were made.
    for _ in 0..2 {
        let refused = sandbox.run(&["dataset", "create", "-p", "-o", "reservation=1T", "tank/above/new"]);
        assert_failure(&refused, 1, &["tank/above/new"]);
        let refused = sandbox.run(&["clone", "-o", "reservation=1T", "tank/db@s", "tank/clone"]);
        assert_failure(&refused, 1, &["tank/clone"]);
        assert_eq!(datasets(&sandbox), before);
    }
    sandbox.ok(&["set", "quota=none", "tank/db"]);
    sandbox.ok(&["dataset", "create", "-o", "compression=lz4", "tank/db/new"]);
    assert_eq!(get(&sandbox, "compression", "tank/db/new"), "lz4");
}
