//! Datasets, snapshots and clones as users have them, with real mounts. Needs root and /dev/fuse, as `make test` has them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;
mod servers;
mod snapshots;

use std::fs;
use std::path::Path;

use common::{Sandbox, assert_failure, can_mount};
use serde_json::Value;

/// A pool `tank` and directories `a`, `b`, `c`.
fn with_pool() -> Sandbox {
    let sandbox = Sandbox::new();
    ["a", "b", "c"].iter().for_each(|dir| drop(sandbox.dir(dir)));
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "compression=zstd"]);
    sandbox
}

fn rows(from: usize, count: usize) -> Vec<u8> {
    (from..from + count)
        .flat_map(|n| format!("row {n} of a table, {}\n", n * 7919 % 10_007).into_bytes())
        .collect()
}

/// Names in a directory.
fn listed(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn pool(sandbox: &Sandbox) -> Value {
    sandbox.json(&["status", "tank"])["pools"][0].clone()
}

fn state(sandbox: &Sandbox) -> String {
    pool(sandbox)["state"].as_str().unwrap().to_owned()
}

fn figures(sandbox: &Sandbox, name: &str) -> Value {
    let all = sandbox.json(&["list", "-t", "all", "tank"]);
    let all = all["datasets"].as_array().unwrap();
    all.iter().find(|figures| figures["name"] == name).unwrap_or_else(|| panic!("no {name}: {all:?}")).clone()
}

fn names(sandbox: &Sandbox, kind: &str) -> Vec<String> {
    let all = sandbox.json(&["list", "-t", kind, "tank"]);
    let all = all["datasets"].as_array().unwrap();
    all.iter().map(|figures| figures["name"].as_str().unwrap().to_owned()).collect()
}

/// Stored bytes of all datasets and snapshots.
fn held(sandbox: &Sandbox) -> u64 {
    let all = sandbox.json(&["list", "-t", "dataset", "tank"]);
    let bytes = |figures: &Value| {
        figures["used_by_dataset_bytes"].as_u64().unwrap()
            + figures["used_by_snapshots_bytes"].as_u64().unwrap()
    };
    all["datasets"].as_array().unwrap().iter().map(bytes).sum()
}

#[test]
fn properties_are_inherited_along_the_path() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "-p", "tank/db/prod", "-o", "recordsize=8K"]);
    let get = |property: &str, name: &str| {
        let row = sandbox.json(&["get", property, name])["properties"][0].clone();
        (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    let top = sandbox.path("srv").to_str().unwrap().to_owned();
    sandbox.ok(&["set", &format!("mountpoint={top}"), "backup:keep=7", "tank"]);
    sandbox.ok(&["set", "recordsize=64K", "tank/db"]);
    assert_eq!(get("recordsize", "tank/db/prod"), pair("8K", "local"));
    sandbox.ok(&["inherit", "recordsize", "tank/db/prod"]);
    assert_eq!(get("recordsize", "tank/db/prod"), pair("64K", "inherited from tank/db"));
    assert_eq!(get("backup:keep", "tank/db/prod"), pair("7", "inherited from tank"));
    assert_eq!(get("mountpoint", "tank/db/prod"), pair(&format!("{top}/db/prod"), "inherited from tank"));
    assert_eq!(get("compression", "tank/db/prod"), pair("zstd", "inherited from tank"));
    sandbox.ok(&["set", "compression=lz4", "tank/db"]);
    assert_eq!(get("compression", "tank/db/prod"), pair("lz4", "inherited from tank/db"));
    sandbox.ok(&["inherit", "compression", "tank/db"]);
    assert_eq!(get("compression", "tank/db"), pair("zstd", "inherited from tank"));
    assert_failure(
        &sandbox.run(&["set", "autotrim=on", "tank/db"]),
        1,
        &["autotrim holds for the whole pool", "set autotrim=VALUE tank"],
    );
    assert_failure(&sandbox.run(&["set", "Bad:name=1", "tank"]), 2, &["user property"]);
    sandbox.ok(&["set", "readonly=on", "tank/db/prod"]);
    sandbox.ok(&["mount", "-a"]);
    fs::write(sandbox.path("srv/db/file"), rows(0, 10_000)).unwrap();
    assert!(fs::write(sandbox.path("srv/db/prod/file"), "x").is_err());
    assert_eq!(sandbox.json(&["du", "srv/db/file"])["recordsizes"][0]["record_size"], 64 << 10);
    assert_eq!(figures(&sandbox, "tank/db")["mounted"], format!("{top}/db"));
    sandbox.ok(&["unmount", "tank/db"]);
    sandbox.ok(&["mount", "-a", "tank/db"]);
    assert_eq!(pool(&sandbox)["mounts"].as_array().unwrap().len(), 3);
    sandbox.ok(&["mount", "-a"]);
    sandbox.ok(&["set", "recordsize=16K", "tank"]);
    sandbox.ok(&["inherit", "recordsize", "tank/db"]);
    fs::write(sandbox.path("srv/db/file2"), rows(0, 10_000)).unwrap();
    assert_eq!(sandbox.json(&["du", "srv/db/file2"])["recordsizes"][0]["record_size"], 16 << 10);
    assert_failure(&sandbox.run(&["set", "atime=on", "tank@x"]), 1, &["cannot be set on a snapshot"]);
    sandbox.ok(&["unmount", "-a"]);
    assert_eq!(state(&sandbox), "EXPORTED");
}

#[test]
fn mistakes_tell_what_to_do() {
    let sandbox = with_pool();
    for (words, status, texts) in [
        (&["snapshot", "tank"][..], 2, &["tank is a dataset's name", "tank@NAME"][..]),
        (&["snapshot", "tank/none@a"], 1, &["there is no dataset tank/none"]),
        (&["snapshot", "tank@a b"], 1, &["'a b' is no name for a snapshot"]),
        (
            &["dataset", "create", "tank/a/b"],
            1,
            &["cannot create dataset tank/a/b", "there is no dataset 'a'"],
        ),
        (&["dataset", "create", "tank"], 2, &["tank is a pool"]),
        (&["clone", "tank@none", "tank/x"], 1, &["there is no snapshot tank@none"]),
        (&["clone", "tank@none", "other/x"], 2, &["different pools"]),
        (&["destroy", "tank/none"], 1, &["there is no dataset tank/none"]),
        (&["destroy", "tank@none"], 1, &["there is no snapshot tank@none"]),
        (&["promote", "tank"], 1, &["is no clone"]),
        (&["rename", "tank@a", "tank/b@c"], 2, &["a snapshot stays with its dataset"]),
        (&["destroy", "-n", "tank"], 2, &["tank is a pool"]),
        (&["list", "tank/none"], 1, &["there is no dataset tank/none"]),
        (&["get", "all", "tank@none"], 1, &["there is no snapshot tank@none"]),
        (&["dataset", "create", "nopool/x"], 1, &["there is no pool \"nopool\""]),
    ] {
        assert_failure(&sandbox.run(words), status, texts);
    }
}
