//! Datasets, snapshots and clones as users have them, with real mounts. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, wait_until};
use pagefold_engine::pool::{OpenOptions, Pool};
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

#[test]
fn snapshots_are_mounted_and_seen_in_the_mount_and_never_change() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["mount", "tank", "a"]);
    fs::create_dir(sandbox.path("a/dir")).unwrap();
    let old = rows(0, 20_000);
    fs::write(sandbox.path("a/dir/table"), &old).unwrap();
    std::os::unix::fs::symlink("dir/table", sandbox.path("a/link")).unwrap();
    sandbox.ok(&["snapshot", "tank@old"]);
    fs::write(sandbox.path("a/dir/table"), rows(5, 20_000)).unwrap();
    fs::remove_file(sandbox.path("a/link")).unwrap();
    sandbox.ok(&["mount", "tank@old", "b"]);
    let hidden = sandbox.path("a/.pagefold/snapshot");
    for root in [sandbox.path("b"), hidden.join("old")] {
        assert_eq!(fs::read(root.join("dir/table")).unwrap(), old);
        assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("dir/table"));
        for refused in [
            fs::write(root.join("dir/table"), "x"),
            fs::write(root.join("new"), "x"),
            fs::remove_file(root.join("dir/table")),
            fs::rename(root.join("dir/table"), root.join("dir/other")),
            fs::create_dir(root.join("d")),
            fs::hard_link(root.join("dir/table"), root.join("dir/hard")),
            fs::set_permissions(root.join("dir"), std::os::unix::fs::PermissionsExt::from_mode(0o700)),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS), "{}", root.display());
        }
    }
    // Not listed, and still there; nothing can take its place.
    assert_eq!(listed(&sandbox.path("a")), ["dir"]);
    assert_eq!(listed(&sandbox.path("a/.pagefold")), ["snapshot"]);
    assert_eq!(listed(&hidden), ["old"]);
    assert_eq!(listed(&hidden.join("old")), ["dir", "link"]);
    assert!(fs::create_dir(sandbox.path("a/.pagefold")).is_err());
    assert!(fs::remove_dir(sandbox.path("a/.pagefold")).is_err());
    assert!(fs::rename(sandbox.path("a/dir"), sandbox.path("a/.pagefold")).is_err());
    // A file and its older version are two: tools that compare numbers have to see that.
    let ino = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    assert_ne!(ino(&sandbox.path("a/dir/table")), ino(&hidden.join("old/dir/table")));
    let differ = Command::new("diff")
        .args(["-rq", sandbox.path("a/dir").to_str().unwrap(), hidden.join("old/dir").to_str().unwrap()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&differ.stdout).contains("differ"), "{differ:?}");
    // Out of it, copies can be made; into it, nothing.
    fs::copy(hidden.join("old/dir/table"), sandbox.path("a/restored")).unwrap();
    assert_eq!(fs::read(sandbox.path("a/restored")).unwrap(), old);
    assert!(fs::rename(sandbox.path("a/restored"), hidden.join("old/x")).is_err());
    sandbox.ok(&["snapshot", "tank@new"]);
    assert_eq!(listed(&hidden), ["old", "new"].map(str::to_owned).into_iter().rev().collect::<Vec<_>>());
    // Destroyed while somebody has a file of it open.
    sandbox.ok(&["unmount", "b"]);
    let mut open = fs::File::open(hidden.join("old/dir/table")).unwrap();
    sandbox.ok(&["destroy", "tank@old"]);
    wait_until(|| fs::metadata(hidden.join("old")).is_err());
    std::thread::sleep(Duration::from_millis(1100));
    assert!(fs::metadata(hidden.join("old/dir/table")).is_err());
    // The kernel may still have its pages; what it has not is gone.
    let _ = std::io::Read::read(&mut open, &mut [0; 1]);
    drop(open);
    assert_eq!(listed(&hidden), ["new"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn clone_rollback_promote_rename_hold() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    fs::write(sandbox.path("a/file"), "one").unwrap();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    fs::write(sandbox.path("a/file"), "two").unwrap();
    sandbox.ok(&["snapshot", "-o", "note:why=test", "tank/db@two"]);
    assert_eq!(sandbox.json(&["get", "note:why", "tank/db@two"])["properties"][0]["value"], "test");
    sandbox.ok(&["clone", "tank/db@one", "tank/test"]);
    sandbox.ok(&["mount", "tank/test", "b"]);
    assert_eq!(fs::read(sandbox.path("b/file")).unwrap(), b"one");
    fs::write(sandbox.path("b/file"), "of the clone").unwrap();
    assert_eq!(fs::read(sandbox.path("a/file")).unwrap(), b"two");
    assert_eq!(figures(&sandbox, "tank/test")["origin"], "tank/db@one");

    assert_failure(&sandbox.run(&["rollback", "tank/db@two"]), 1, &["tank/db is mounted at", "unmount"]);
    assert_failure(&sandbox.run(&["destroy", "tank/test"]), 1, &["tank/test is mounted at"]);
    assert_failure(&sandbox.run(&["rename", "tank/db", "tank/x"]), 1, &["tank/db is mounted at"]);
    sandbox.ok(&["unmount", "a"]);
    assert_failure(&sandbox.run(&["rollback", "tank/db@one"]), 1, &["newer", "tank/db@two", "rollback -r"]);
    sandbox.ok(&["hold", "keep", "tank/db@two"]);
    assert_eq!(sandbox.json(&["holds", "tank/db@two"])["holds"][0]["tag"], "keep");
    assert_failure(&sandbox.run(&["rollback", "-r", "tank/db@one"]), 1, &["held by keep", "release keep"]);
    assert_failure(&sandbox.run(&["destroy", "tank/db@two"]), 1, &["held by keep"]);
    sandbox.ok(&["release", "keep", "tank/db@two"]);
    assert_failure(&sandbox.run(&["destroy", "tank/db@one"]), 1, &["has a clone: tank/test", "promote"]);
    assert_failure(&sandbox.run(&["destroy", "tank/db"]), 1, &["tank/db has tank/db@one", "destroy -r"]);
    sandbox.ok(&["rollback", "-r", "tank/db@one"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/db@one"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    assert_eq!(fs::read(sandbox.path("a/file")).unwrap(), b"one");

    // A clone goes back to the snapshot that it was made from; what is set on it stays.
    assert_failure(&sandbox.run(&["reset", "tank/db"]), 1, &["tank/db is no clone", "pagefold rollback"]);
    assert_failure(&sandbox.run(&["reset", "tank/test"]), 1, &["tank/test is mounted at", "unmount"]);
    sandbox.ok(&["set", "note:why=kept", "tank/test"]);
    sandbox.ok(&["snapshot", "tank/test@mine"]);
    sandbox.ok(&["unmount", "b"]);
    assert_failure(&sandbox.run(&["reset", "tank/test"]), 1, &["own: tank/test@mine", "pagefold reset -r"]);
    sandbox.ok(&["hold", "keep", "tank/test@mine"]);
    assert_failure(&sandbox.run(&["reset", "-r", "tank/test"]), 1, &["held by keep", "release keep"]);
    sandbox.ok(&["release", "keep", "tank/test@mine"]);
    sandbox.ok(&["reset", "-r", "tank/test"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/db@one"]);
    assert_eq!(figures(&sandbox, "tank/test")["written_bytes"], 0);
    assert_eq!(figures(&sandbox, "tank/test")["origin"], "tank/db@one");
    assert_eq!(sandbox.json(&["get", "note:why", "tank/test"])["properties"][0]["value"], "kept");
    sandbox.ok(&["mount", "tank/test", "b"]);
    assert_eq!(fs::read(sandbox.path("b/file")).unwrap(), b"one");

    sandbox.ok(&["promote", "tank/test"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/test@one"]);
    assert_eq!(figures(&sandbox, "tank/db")["origin"], "tank/test@one");
    assert_eq!(fs::read(sandbox.path("b/.pagefold/snapshot/one/file")).unwrap(), b"one");
    sandbox.ok(&["rename", "tank/test@one", "first"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank/test@first"]);
    sandbox.ok(&["unmount", "tank"]);
    // The same without a server.
    sandbox.ok(&["rename", "tank/db", "tank/old"]);
    sandbox.ok(&["destroy", "-r", "tank/old"]);
    sandbox.ok(&["snapshot", "-r", "tank@all"]);
    assert_eq!(names(&sandbox, "snapshot"), ["tank@all", "tank/test@first", "tank/test@all"]);
    sandbox.ok(&["destroy", "-r", "tank@all"]);
    sandbox.ok(&["destroy", "-r", "tank/test"]);
    assert_eq!(names(&sandbox, "all"), ["tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn snapshots_are_made_by_policy() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["dataset", "create", "tank/db/scratch"]);
    assert_failure(
        &sandbox.run(&["policy", "tank/db", "yearly=1"]),
        2,
        &["not a value of policy", "monthly=N"],
    );
    assert_failure(&sandbox.run(&["set", "policy:period=daily", "tank/db"]), 2, &["user property"]);
    sandbox.ok(&["policy", "tank/db/scratch", "none"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    fs::write(sandbox.path("a/file"), "kept").unwrap();
    assert_eq!(names(&sandbox, "snapshot"), Vec::<String>::new());
    // The first is made at once.
    sandbox.ok(&["policy", "tank", "monthly=12, daily=7"]);
    let of = |dataset: &str| {
        let begin = format!("{dataset}@auto-");
        names(&sandbox, "snapshot").into_iter().filter(|name| name.starts_with(&begin)).collect::<Vec<_>>()
    };
    wait_until(|| of("tank").len() == 2 && of("tank/db").len() == 2);
    assert!(of("tank/db")[0].starts_with("tank/db@auto-daily-20"));
    assert!(of("tank/db")[1].starts_with("tank/db@auto-monthly-20"));
    assert_eq!(of("tank/db/scratch"), Vec::<String>::new());
    let shown = sandbox.json(&["policy", "-r", "tank"]);
    assert_eq!(shown["properties"][1]["value"], "daily=7,monthly=12");
    assert_eq!(shown["properties"][1]["source"], "inherited from tank");
    let made = of("tank/db")[0].clone();
    assert_eq!(
        fs::read(sandbox.path("a/.pagefold/snapshot").join(&made["tank/db@".len()..]).join("file")).unwrap(),
        b"kept"
    );
    // One that has another name is no longer ours.
    sandbox.ok(&["rename", &made, "mine"]);
    sandbox.ok(&["policy", "tank/db", "daily=0,monthly=0"]);
    wait_until(|| names(&sandbox, "snapshot").len() == 3);
    assert_eq!(names(&sandbox, "snapshot").last().unwrap(), "tank/db@mine");
    sandbox.ok(&["unmount", "tank"]);
}

/// Once by the server, and once without.
#[test]
fn a_clone_is_rebased() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    fs::write(sandbox.path("a/shared"), rows(1, 200_000)).unwrap();
    fs::write(sandbox.path("a/hot"), rows(2, 20_000)).unwrap();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    sandbox.ok(&["clone", "-o", "note:why=kept", "tank/db@one", "tank/test"]);
    sandbox.ok(&["mount", "tank/test", "b"]);
    fs::write(sandbox.path("b/mine"), rows(3, 20_000)).unwrap();
    fs::write(sandbox.path("a/theirs"), rows(4, 20_000)).unwrap();
    sandbox.ok(&["snapshot", "tank/db@two"]);
    fs::write(sandbox.path("a/hot"), "changed").unwrap();
    sandbox.ok(&["snapshot", "tank/db@three"]);
    let rebase = |words: &[&str]| sandbox.run(&[&["rebase", "tank/test"], words].concat());
    assert_failure(&rebase(&["tank/db@two"]), 1, &["tank/test is mounted at", "unmount"]);
    sandbox.ok(&["snapshot", "tank/test@own"]);
    sandbox.ok(&["unmount", "b"]);
    assert_failure(&rebase(&["tank/db@two"]), 1, &["own: tank/test@own", "pagefold rebase -r"]);
    assert_failure(&rebase(&["-r", "tank/db@one"]), 1, &["no newer than"]);
    assert_failure(&rebase(&["-r", "tank/db@none"]), 1, &["tank/db@none"]);
    assert_failure(&sandbox.run(&["rebase", "tank/db", "tank/db@two"]), 1, &["tank/db is no clone"]);
    assert!(rebase(&["-r", "tank/db@two"]).status.success());
    let of = figures(&sandbox, "tank/test");
    assert_eq!(of["origin"], "tank/db@two");
    // Unchanged data are shared.
    assert!(of["used_bytes"].as_u64().unwrap() < of["referenced_bytes"].as_u64().unwrap() / 4, "{of}");
    assert_eq!(names(&sandbox, "snapshot"), ["tank/db@one", "tank/db@two", "tank/db@three"]);
    assert_eq!(sandbox.json(&["get", "note:why", "tank/test"])["properties"][0]["value"], "kept");
    sandbox.ok(&["mount", "tank/test", "b"]);
    assert_eq!(listed(&sandbox.path("b")), ["hot", "mine", "shared", "theirs"]);
    assert_eq!(fs::read(sandbox.path("b/mine")).unwrap(), rows(3, 20_000));

    fs::write(sandbox.path("b/hot"), "changed here, too").unwrap();
    sandbox.ok(&["unmount", "tank"]);
    let refused = rebase(&["tank/db@three"]);
    assert_failure(&refused, 1, &["tank/test and tank/db@three have both changed", "pagefold reset"]);
    assert_eq!(refused.stdout, "/hot\n");
    assert_eq!(figures(&sandbox, "tank/test")["origin"], "tank/db@two");
    sandbox.ok(&["reset", "tank/test"]);
    assert_eq!(sandbox.json(&["rebase", "tank/test", "tank/db@three"])["rebased"], true);
    sandbox.ok(&["mount", "tank/test", "b"]);
    assert_eq!(listed(&sandbox.path("b")), ["hot", "shared", "theirs"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn a_dry_run_tells_what_is_freed() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    for n in 0..6 {
        fs::write(sandbox.path("a/hot"), rows(n * 1000, 30_000)).unwrap();
        fs::write(sandbox.path(&format!("a/cold{n}")), rows(n, 10_000)).unwrap();
        sandbox.ok(&["snapshot", &format!("tank/db@s{n}")]);
    }
    let destroyed = |value: &Value| -> Vec<String> {
        value["destroyed"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    for (what, gone) in [
        ("tank/db@s1", vec!["s1"]),
        ("tank/db@s2%s3,s5", vec!["s2", "s3", "s5"]),
        ("tank/db@%", vec!["s0", "s4"]),
    ] {
        sandbox.ok(&["sync", "tank"]);
        let told = sandbox.json(&["destroy", "-n", what]);
        let expected: Vec<String> = gone.iter().map(|name| format!("tank/db@{name}")).collect();
        assert_eq!(destroyed(&told), expected);
        let freed = told["freed_bytes"].as_u64().unwrap();
        let text = sandbox.ok(&["destroy", "-n", "-p", what]);
        assert!(text.ends_with(&format!("would free {freed}\n")), "{text}");
        let (held_before, used_before) = (held(&sandbox), pool(&sandbox)["used_bytes"].as_u64().unwrap());
        sandbox.ok(&["destroy", what]);
        wait_until(|| !pool(&sandbox)["freeing"].as_bool().unwrap());
        assert_eq!(held_before - held(&sandbox), freed, "{what}");
        let used = used_before - pool(&sandbox)["used_bytes"].as_u64().unwrap();
        assert!(freed > 100_000 && used.abs_diff(freed) < 65_536 + freed / 50, "{used} instead of {freed}");
    }
    // A dataset with all that it has.
    sandbox.ok(&["snapshot", "tank/db@last"]);
    fs::remove_file(sandbox.path("a/hot")).unwrap();
    sandbox.ok(&["unmount", "tank"]);
    let told = sandbox.json(&["destroy", "-rn", "tank/db"]);
    assert_eq!(destroyed(&told), ["tank/db", "tank/db@last"]);
    let before = held(&sandbox);
    sandbox.ok(&["destroy", "-r", "tank/db"]);
    assert_eq!(before - held(&sandbox), told["freed_bytes"].as_u64().unwrap());
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
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
