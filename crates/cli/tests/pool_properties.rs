//! `cache`, `io_uring` and `takeover`: options of a pool's server that are kept in the pool.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, wait_until};

/// Value and source of a property.
fn property(sandbox: &Sandbox, name: &str, of: &str) -> (String, String) {
    let told = sandbox.json(&["get", name, of]);
    let text = |field: &str| told["properties"][0][field].as_str().unwrap().to_owned();
    (text("value"), text("source"))
}

fn budget(sandbox: &Sandbox) -> u64 {
    sandbox.pool()["memory"]["budget_bytes"].as_u64().unwrap()
}

fn transport(sandbox: &Sandbox) -> String {
    sandbox.pool()["mounts"][0]["transport"].as_str().unwrap().to_owned()
}

const MIB: u64 = 1 << 20;

#[test]
fn they_are_kept_in_the_pool_and_the_server_obeys() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "cache=96M", "-o", "takeover=on"]);
    assert_eq!(property(&sandbox, "cache", "tank"), ((96 * MIB).to_string(), "local".into()));
    assert_eq!(property(&sandbox, "io_uring", "tank"), ("auto".into(), "default".into()));
    sandbox.ok(&["mount", "tank", "mnt"]);
    let pool = sandbox.pool();
    assert_eq!((budget(&sandbox), &pool["takeover"]["on"]), (96 * MIB, &true.into()));
    // The next server obeys, too.
    fs::write(sandbox.path("mnt/file"), "x").unwrap();
    kill_to_the_end(i32::try_from(pool["pid"].as_i64().unwrap()).unwrap());
    wait_until(|| fs::read(sandbox.path("mnt/file")).is_ok_and(|text| text == b"x"));
    assert_eq!(budget(&sandbox), 96 * MIB);
    sandbox.ok(&["unmount", "tank"]);
    // They go where the pool goes.
    sandbox.ok(&["export", "tank"]);
    sandbox.ok(&["import", "-d", "tank.pf", "tank"]);
    assert_eq!(property(&sandbox, "takeover", "tank").0, "on");
    // A mount option goes before the property, and is not kept.
    sandbox.ok(&["mount", "-o", "cache=64M,takeover=off", "tank", "mnt"]);
    assert_eq!((budget(&sandbox), &sandbox.pool()["takeover"]["on"]), (64 * MIB, &false.into()));
    assert_eq!(property(&sandbox, "cache", "tank"), ((64 * MIB).to_string(), "temporary".into()));
    let set = sandbox.run(&["set", "cache=128M", "tank"]);
    assert!(set.status.success() && set.stderr.contains("goes before it"), "{}", set.stderr);
    assert_eq!(budget(&sandbox), 64 * MIB);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!((budget(&sandbox), &sandbox.pool()["takeover"]["on"]), (128 * MIB, &true.into()));
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["check", "tank"]);
}

#[test]
fn the_cache_changes_while_the_pool_is_mounted() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["set", "cache=64M", "tank"]);
    assert_eq!(budget(&sandbox), 64 * MIB);
    let set = sandbox.run(&["set", "takeover=on", "tank"]);
    assert!(set.status.success() && set.stderr.contains("unmounted and mounted again"), "{}", set.stderr);
    assert_eq!(sandbox.pool()["takeover"]["on"], false);
    // A crash of the server: what was set is in the last checkpoint already.
    kill_to_the_end(i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap());
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!((budget(&sandbox), &sandbox.pool()["takeover"]["on"]), (64 * MIB, &true.into()));
    sandbox.ok(&["inherit", "cache", "tank"]);
    sandbox.ok(&["inherit", "takeover", "tank"]);
    assert_eq!(property(&sandbox, "cache", "tank"), ("auto".into(), "default".into()));
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!(sandbox.pool()["takeover"]["on"], false);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn how_requests_travel_is_the_pools_affair() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.dir("db");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "io_uring=off"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["mount", "tank/db", "db"]);
    assert_eq!(transport(&sandbox), "/dev/fuse");
    assert_eq!(sandbox.pool()["mounts"][1]["transport"], "/dev/fuse");
    let set = sandbox.run(&["set", "io_uring=auto", "tank"]);
    assert!(set.stderr.contains("from now on"), "{}", set.stderr);
    sandbox.ok(&["unmount", "db"]);
    sandbox.ok(&["mount", "-o", "io_uring=off", "tank/db", "db"]);
    assert_eq!(sandbox.pool()["mounts"][1]["transport"], "/dev/fuse");
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn what_excludes_each_other_cannot_be_set_together() {
    let sandbox = Sandbox::new();
    let excluded = ["takeover=on and io_uring=on exclude each other"];
    let words = ["create", "tank", "tank.pf", "--size", "256M", "-o", "takeover=on", "-o", "io_uring=on"];
    assert_failure(&sandbox.run(&words), 2, &excluded);
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "takeover=on"]);
    let output = sandbox.run(&["set", "io_uring=on", "tank"]);
    assert!(
        !output.status.success() && output.stderr.contains("pagefold inherit takeover tank"),
        "{}",
        output.stderr
    );
    assert_eq!(property(&sandbox, "io_uring", "tank").0, "auto");
    sandbox.dir("mnt");
    let output = sandbox.run(&["mount", "-o", "io_uring=on", "tank", "mnt"]);
    assert!(output.stderr.contains("pagefold get takeover,io_uring"), "{}", output.stderr);
}

#[test]
fn they_are_read_by_a_process_that_prints_nothing_else() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "sync=always", "-o", "cache=64M"]);
    let told: serde_json::Value = serde_json::from_str(&sandbox.ok(&["probe", "tank.pf"])).unwrap();
    assert_eq!(told, serde_json::json!({ "cache": (64 * MIB).to_string() }));
    fs::write(sandbox.path("rubbish"), vec![7; 1 << 20]).unwrap();
    assert_failure(&sandbox.run(&["probe", "rubbish"]), 1, &[]);
}
