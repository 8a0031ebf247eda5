//! The mounts of a pool's datasets, and their one server.

use std::fs;
use std::process::Command;

use pagefold_engine::pool::{OpenOptions, Pool};

use super::{pool, rows, state, with_pool};
use crate::common::{assert_failure, can_mount, kill_to_the_end, wait_until};

#[test]
fn one_server_has_all_mounts_of_a_pool() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "-p", "tank/db/prod"]);
    sandbox.ok(&["mount", "tank/db/prod", "a"]);
    sandbox.ok(&["mount", "tank", "b"]);
    let told = pool(&sandbox);
    let mounts = told["mounts"].as_array().unwrap();
    assert_eq!(mounts.len(), 2);
    assert!(mounts.iter().all(|mount| mount["pid"] == told["pid"]));
    assert_eq!((&mounts[0]["name"], &told["mount"]["name"]), (&"tank/db/prod".into(), &"tank".into()));
    fs::write(sandbox.path("a/file"), "of prod").unwrap();
    fs::write(sandbox.path("b/file"), "of tank").unwrap();
    assert_failure(
        &sandbox.run(&["mount", "tank/db/prod", "a"]),
        1,
        &["tank/db/prod is mounted already at", "/a", "pagefold unmount tank/db/prod"],
    );
    assert_failure(&sandbox.run(&["mount", "tank/none", "c"]), 1, &["there is no dataset tank/none"]);
    assert_failure(&sandbox.run(&["mount", "tank/db@none", "c"]), 1, &["there is no snapshot tank/db@none"]);
    assert_failure(&sandbox.run(&["mount", "-o", "cache=64M", "tank/db", "c"]), 1, &["whole pool"]);
    assert_failure(&sandbox.run(&["mount", "tank/db", "a"]), 1, &["a is a mount point already"]);
    // Commands that are given a mount's directory act on that mount.
    let du = |dir: &str| sandbox.json(&["du", dir])["total"]["files"].as_u64().unwrap();
    fs::write(sandbox.path("a/other"), rows(0, 1000)).unwrap();
    assert_eq!((du("a"), du("b")), (2, 1));
    assert_eq!(sandbox.json(&["get", "type", "a"])["properties"][0]["name"], "tank/db/prod");
    sandbox.ok(&["fold", "tank"]);
    sandbox.ok(&["sync", "a"]);
    sandbox.ok(&["iostat", "tank"]);
    sandbox.ok(&["unmount", "a"]);
    assert_eq!(state(&sandbox), "ONLINE");
    assert_eq!(fs::read(sandbox.path("b/file")).unwrap(), b"of tank");
    assert_failure(&sandbox.run(&["unmount", "tank/db"]), 1, &["tank/db is not mounted"]);
    sandbox.ok(&["mount", "tank/db/prod", "c"]);
    assert_eq!(fs::read(sandbox.path("c/file")).unwrap(), b"of prod");
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(state(&sandbox), "EXPORTED");
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn the_pool_is_closed_with_its_last_mount_however_that_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    for round in 0..5 {
        sandbox.ok(&["mount", "tank", "a"]);
        sandbox.ok(&["mount", "tank/db", "b"]);
        fs::write(sandbox.path("b/round"), format!("{round}")).unwrap();
        // umount(8) returns before the server has noticed; the next mount waits for that.
        assert!(Command::new("umount").arg(sandbox.path("a")).status().unwrap().success());
        sandbox.ok(&["mount", "tank", "c"]);
        assert!(
            Command::new("umount").args([sandbox.path("b"), sandbox.path("c")]).status().unwrap().success()
        );
    }
    wait_until(|| state(&sandbox) == "EXPORTED");
    sandbox.ok(&["mount", "tank", "a"]);
    sandbox.ok(&["mount", "tank/db", "b"]);
    let held = fs::File::open(sandbox.path("b/round")).unwrap();
    let busy = sandbox.run(&["unmount", "tank"]);
    assert_failure(&busy, 1, &["b is in use", "unmount --lazy tank/db"]);
    sandbox.ok(&["unmount", "--force", "tank"]);
    assert_eq!(state(&sandbox), "EXPORTED");
    drop(held);
    // A server that dies leaves both mounts; each comes back with its own.
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "a"]);
    sandbox.ok(&["mount", "tank/db", "b"]);
    kill_to_the_end(i32::try_from(pool(&sandbox)["pid"].as_i64().unwrap()).unwrap());
    wait_until(|| fs::read_dir(sandbox.path("a")).is_err() && fs::read_dir(sandbox.path("b")).is_err());
    sandbox.ok(&["mount", "tank/db", "b"]);
    assert_eq!(fs::read(sandbox.path("b/round")).unwrap(), b"4");
    sandbox.ok(&["mount", "tank", "a"]);
}

#[test]
fn mounts_that_start_at_once_share_a_server() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    for name in ["one", "two", "three"] {
        sandbox.ok(&["dataset", "create", &format!("tank/{name}")]);
    }
    let started: Vec<_> = [("one", "a"), ("two", "b"), ("three", "c")]
        .iter()
        .map(|(name, dir)| sandbox.command(&["mount", &format!("tank/{name}"), dir]).spawn().unwrap())
        .collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(pool(&sandbox)["mounts"].as_array().unwrap().len(), 3);
}

#[test]
fn a_dataset_that_a_crash_left_without_a_file_system_gets_one() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let pool = Pool::open(&[sandbox.path("tank.pf")], &OpenOptions::default()).unwrap();
    pool.create_dataset("raw", 1).unwrap();
    pool.export().unwrap();
    drop(pool);
    sandbox.ok(&["mount", "tank/raw", "a"]);
    fs::write(sandbox.path("a/file"), "x").unwrap();
}
