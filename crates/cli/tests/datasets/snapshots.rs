//! Snapshots and clones: mounted, made by policy, rebased, destroyed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{figures, held, listed, names, pool, rows, with_pool};
use crate::common::{assert_failure, can_mount, wait_until};

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
    // It is not destroyed while somebody has a file of it open, or maps one.
    sandbox.ok(&["unmount", "b"]);
    let open = fs::File::open(hidden.join("old/dir/table")).unwrap();
    let texts = ["tank@old is in use: 1 open file below", "/a/.pagefold/snapshot/old"];
    assert_failure(&sandbox.run(&["destroy", "tank@old"]), 1, &texts);
    assert_eq!(fs::read(hidden.join("old/dir/table")).unwrap(), old);
    drop(open);
    sandbox.ok(&["destroy", "tank@old"]);
    wait_until(|| fs::metadata(hidden.join("old")).is_err());
    std::thread::sleep(Duration::from_millis(1100));
    assert!(fs::metadata(hidden.join("old/dir/table")).is_err());
    assert_eq!(listed(&hidden), ["new"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn du_sees_files_of_snapshots_below_the_mount_and_fold_refuses_them() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["mount", "tank", "a"]);
    fs::write(sandbox.path("a/first"), rows(0, 20_000)).unwrap();
    fs::write(sandbox.path("a/other"), rows(7, 9_000)).unwrap();
    sandbox.ok(&["snapshot", "tank@one"]);
    fs::write(sandbox.path("a/first"), rows(3, 40_000)).unwrap();
    sandbox.ok(&["snapshot", "tank@two"]);
    fs::remove_file(sandbox.path("a/first")).unwrap();
    let total = |words: &[&str]| sandbox.json(&[&["du"], words].concat())["total"].clone();
    let sum = |name: &str, all: &[&Value]| all.iter().map(|of| of[name].as_u64().unwrap()).sum::<u64>();
    for words in [&["-s"][..], &["--pages"], &["--codecs"]] {
        let below = |dir: &str| total(&[words, &[dir]].concat());
        let [one, two] = ["one", "two"].map(|name| {
            sandbox.ok(&["mount", &format!("tank@{name}"), "b"]);
            let mounted = below("b");
            sandbox.ok(&["unmount", "b"]);
            assert_eq!(below(&format!("a/.pagefold/snapshot/{name}")), mounted, "{words:?}");
            mounted
        });
        let both = below("a/.pagefold/snapshot");
        for name in ["logical_bytes", "stored_bytes"] {
            assert!(
                sum(name, &[&one]) > 0 && sum(name, &[&two]) > sum(name, &[&one]),
                "{words:?} {one} {two}"
            );
            assert_eq!(sum(name, &[&both]), sum(name, &[&one, &two]), "{words:?} {name}");
        }
    }
    let pages = sandbox.json(&["du", "--pages", "a/.pagefold/snapshot/one/first"]);
    assert!(pages["lines"][0]["pages"]["sampled_pages"].as_u64() > Some(0), "{pages}");
    sandbox.ok(&["mount", "tank@one", "b"]);
    for file in ["a/.pagefold/snapshot/one/first", "b/first"] {
        assert_failure(&sandbox.run(&["fold", file]), 1, &["tank@one", "pagefold fold tank"]);
    }
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
    assert_failure(
        &sandbox.run(&["rollback", "tank/db@one"]),
        1,
        &["1 snapshot newer than", "tank/db@two", "rollback -r"],
    );
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
    // One with an open file stays until that is closed.
    let monthly = of("tank/db")[0].clone();
    let shown_at = sandbox.path("a/.pagefold/snapshot").join(&monthly["tank/db@".len()..]);
    let open = fs::File::open(shown_at.join("file")).unwrap();
    sandbox.ok(&["policy", "tank/db", "daily=0,monthly=0"]);
    sandbox.ok(&["policy", "tank", "daily=7,monthly=0"]);
    wait_until(|| of("tank").len() == 1);
    assert_eq!(of("tank/db"), [monthly]);
    drop(open);
    wait_until(|| {
        sandbox.ok(&["policy", "tank/db", "daily=0,monthly=0"]);
        of("tank/db").is_empty()
    });
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
