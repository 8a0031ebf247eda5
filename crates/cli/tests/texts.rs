//! Tests that messages about wrong use name the object, the problem and the remedy; and that nothing has changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;

use common::{Sandbox, assert_failure, can_mount};

/// A pool `tank`, mounted at `mnt`, with the dataset `tank/db`, its snapshot `one` and a clone of that; and a pool `vault` that is not
/// mounted.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for dir in ["mnt", "other"] {
        sandbox.dir(dir);
    }
    for pool in ["tank", "vault"] {
        sandbox.ok(&["create", pool, &format!("{pool}.pf"), "--size", "160M"]);
    }
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["snapshot", "tank/db@one"]);
    sandbox.ok(&["clone", "tank/db@one", "tank/clone"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox
}

/// Words, exit status, what is told, and what is not.
type Case = (&'static str, i32, &'static [&'static str], &'static [&'static str]);

/// Findings of the review, and their families.
const CASES: &[Case] = &[
    // No stream at all is not a damaged pool.
    (
        "receive tank/x",
        1,
        &["cannot receive into tank/x", "standard input is empty", "pagefold send"],
        &["rescue", "check", "damaged"],
    ),
    ("receive vault/x", 1, &["standard input is empty"], &["rescue", "check", "damaged"]),
    ("receive vault", 2, &["vault is a pool, not a dataset", "vault/NAME"], &[]),
    ("receive vault/x@a", 2, &["its dataset is vault/x"], &[]),
    // Clones.
    ("promote tank", 1, &["tank is no clone", "pagefold get -r origin tank"], &["''"]),
    ("promote tank/db", 1, &["tank/db is no clone"], &["'db'"]),
    ("promote vault", 1, &["vault is no clone"], &["''"]),
    ("promote tank/none", 1, &["there is no dataset tank/none"], &[]),
    ("promote tank/db@one", 2, &["a dataset is wanted", "its dataset is tank/db"], &[]),
    ("reset tank/db", 1, &["tank/db is no clone", "rollback tank/db@SNAPSHOT"], &[]),
    ("rebase tank/db tank/db@one", 1, &["tank/db is no clone"], &["rollback"]),
    // A pool that is not mounted, and what is no pool.
    ("fold vault", 1, &["pool vault is not mounted", "pagefold mount vault"], &["No such file"]),
    ("fold vault/db", 1, &["pool vault is not mounted"], &["No such file"]),
    ("fold none", 1, &["there is no pool \"none\"", "tank, vault"], &["No such file"]),
    ("fold tank/db", 1, &["tank/db is not mounted"], &[]),
    ("fold tank/db@one", 2, &["a snapshot's name", "pagefold fold tank"], &[]),
    ("du tank", 1, &["cannot look at tank", "tank is mounted at", "/mnt"], &[]),
    ("du vault", 1, &["cannot look at vault", "a path on a mounted pool"], &[]),
    ("unmount vault", 1, &["pool vault is not mounted", "pagefold list"], &["mount it first"]),
    ("unmount none", 1, &["there is no pool \"none\"", "tank, vault"], &[]),
    ("scrub vault", 1, &["pool vault is not mounted", "pagefold mount vault"], &[]),
    // Commands for whole pools refuse the name of a part.
    (
        "export tank/db",
        2,
        &["tank/db is the name of a dataset, and a pool is wanted", "pagefold export tank"],
        &[],
    ),
    ("export vault@x", 2, &["vault@x is the name of a snapshot", "pagefold export vault"], &[]),
    ("scrub tank/db", 2, &["a pool is wanted", "pagefold scrub tank"], &[]),
    ("trim tank/db", 2, &["a pool is wanted", "pagefold trim tank"], &[]),
    ("check vault/db", 2, &["a pool is wanted", "pagefold check vault"], &[]),
    ("restart tank/db", 2, &["a pool is wanted", "pagefold restart tank"], &[]),
    ("inherit takeover tank/db", 1, &["takeover holds for the whole pool"], &[]),
    ("dataset create tank/x -o cache=1G", 1, &["cache holds for the whole pool"], &[]),
    // The wrong order.
    ("clone tank/x tank/db@one", 2, &["the snapshot comes first", "pagefold clone tank/db@one tank/x"], &[]),
    (
        "diff tank/db tank/db@one",
        2,
        &["the older snapshot comes first", "pagefold diff tank/db@one tank/db"],
        &[],
    ),
    ("hold tank/db@one x", 2, &["the name of the hold comes first", "pagefold hold x tank/db@one"], &[]),
    ("release tank/db@one x", 2, &["pagefold release x tank/db@one"], &[]),
    ("set tank sync=always", 2, &["what is to be set comes first", "pagefold set sync=always tank"], &[]),
    ("set sync=always", 2, &["on what?"], &["2 values required"]),
    ("get tank", 2, &["no property \"tank\"", "pagefold get all tank"], &[]),
    ("mount other vault", 2, &["vault is a pool, and comes first", "pagefold mount vault other"], &[]),
    // Names.
    ("rename tank vault2", 2, &["tank is a pool, which keeps its name"], &["different pools"]),
    (
        "rename tank/clone clone2",
        2,
        &["clone2 is the name of a pool", "pagefold rename tank/clone tank/clone2"],
        &["different pools"],
    ),
    ("clone tank/db@one tank", 2, &["tank is a pool", "tank/NAME"], &["''"]),
    ("dataset create tank/a/b", 1, &["cannot create dataset tank/a/b", "dataset create -p tank/a/b"], &[]),
    ("policy tank/none none", 1, &["there is no dataset tank/none", "list -t all tank"], &[]),
    ("release x tank/db@one", 1, &["cannot release tank/db@one"], &["do that"]),
    ("send -n -i one tank/db@one", 2, &["nothing has changed from tank/db@one to itself"], &[]),
    // Options of the whole pool: which are kept in it, and which are not.
    (
        "mount -o cache=1G tank/db other",
        1,
        &["for the whole pool tank", "pagefold set cache=VALUE tank"],
        &[],
    ),
    ("mount -o takeover=on tank/db other", 1, &["pagefold set takeover=VALUE tank"], &[]),
    ("mount -o rescue tank/db other", 1, &["for the whole pool tank", "-o rescue"], &["pagefold set"]),
    ("mount -o confine=off tank/db other", 1, &["for the whole pool tank"], &["pagefold set"]),
    // Numbers.
    ("set cache=1K tank", 2, &["not a value of cache", "8.00M"], &[]),
    ("set cache=9E tank", 2, &["not a value of cache", "64.0T"], &[]),
    ("set quota=-5 tank/db", 2, &["not a value of quota"], &[]),
    ("mount -o cache=9E vault other", 2, &["not a value of cache"], &[]),
    ("create new new.pf --size 900P", 1, &["cannot fit", "smaller --size"], &[]),
    (
        "create tank new.pf --size 160M",
        1,
        &["a pool named tank is known already", "pagefold export tank"],
        &["destroy"],
    ),
];

#[test]
fn wrong_use_is_told_and_changes_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = sandbox();
    let state = || {
        (sandbox.json(&["list", "-t", "all", "tank"])["datasets"].as_array().unwrap().len(), files(&sandbox))
    };
    let before = state();
    for (line, status, told, not_told) in CASES {
        let words: Vec<&str> = line.split(' ').collect();
        let output = sandbox.run(&words);
        assert_failure(&output, *status, told);
        for text in *not_told {
            assert!(!output.stderr.contains(text), "{line}: \"{text}\" misleads: {}", output.stderr);
        }
        assert!(output.stdout.is_empty(), "{line}: {}", output.stdout);
    }
    assert_eq!(state(), before);
    assert_eq!(sandbox.pool()["state"], "ONLINE");
}

fn files(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path("")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_stream_that_is_cut_is_no_damaged_pool() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "vault", "vault.pf", "--size", "160M"]);
    fs::write(sandbox.path("stream"), b"rubbish that is no stream").unwrap();
    let stream = fs::File::open(sandbox.path("stream")).unwrap();
    let output = sandbox.command(&["receive", "vault/x"]).stdin(stream).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot receive into vault/x") && !text.contains("rescue"), "{text}");
}

/// Nothing new is left behind, and nothing old is gone.
#[test]
fn a_create_that_fails_leaves_everything_as_it_was() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "old", "old.pf", "--size", "160M"]);
    let old = fs::read(sandbox.path("old.pf")).unwrap();
    sandbox.dir("dir");
    fs::write(sandbox.path("plain"), "x").unwrap();
    let before = files(&sandbox);
    for line in [
        "create new new.pf nodir/x.pf --size 160M",
        "create new new.pf plain/x.pf --size 160M",
        "create new new.pf dir --size 160M",
        "create new new.pf old.pf --size 160M",
        "create new new.pf /dev/null --size 160M",
        "create new new.pf new.pf --size 160M",
        "create new new.pf ./new.pf --size 160M",
        "create new new.pf --size 160M -o reservation=100G",
        "create new new.pf --size 160M -o takeover=on -o io_uring=on",
        "create -f new old.pf -o takeover=on -o io_uring=on",
        "create -f new old.pf -o sync=often",
        "create -f new old.pf -o reservation=100G",
        "create new new.pf --size 1M",
        "create old new.pf --size 160M",
    ] {
        let output = sandbox.run(&line.split(' ').collect::<Vec<_>>());
        assert!(!output.status.success(), "{line}");
        assert_eq!(files(&sandbox), before, "{line}: {}", output.stderr);
    }
    assert!(fs::read(sandbox.path("old.pf")).unwrap() == old, "the pool that was there has changed");
    sandbox.ok(&["check", "old"]);
    assert_eq!(sandbox.json(&["list"])["pools"].as_array().unwrap().len(), 1);
}

/// A pool that could not be remembered is not made.
#[test]
fn a_create_without_a_place_to_remember_it_makes_nothing() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("state"), "in the way").unwrap();
    let output = sandbox.run(&["create", "new", "new.pf", "--size", "160M"]);
    assert_failure(&output, 1, &["state"]);
    assert!(!sandbox.path("new.pf").exists());
}

#[test]
fn manual_pages_name_the_values_of_options() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["man", "man"]);
    for entry in fs::read_dir(sandbox.path("man")).unwrap() {
        let page = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!page.contains("\\fB\\-o \\fR") && !page.lines().any(|line| line.ends_with(' ')), "{page}");
    }
    // mandoc(1) checks them, where it is installed.
    let pages = fs::read_dir(sandbox.path("man")).unwrap().map(|entry| entry.unwrap().path());
    match std::process::Command::new("mandoc").args(["-Tlint", "-Wwarning"]).args(pages).output() {
        Ok(output) => assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => eprintln!("the pages are not checked: mandoc: {error}"),
    }
    let page = fs::read_to_string(sandbox.path("man/pagefold-create.8")).unwrap();
    assert!(page.contains("[\\fB\\-o\\fR \\fIPROPERTY=VALUE\\fR]..."), "{page}");
    assert!(page.contains("\\fIPOOL\\fR \\fIDEVICES\\fR...\n"), "{page}");
}

/// A program of another version made the pool: each verb says so, and what to do; no pool is lost by that.
#[test]
fn a_pool_of_another_version_is_told_for_what_it_is() {
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    let whole = fs::read(sandbox.path("tank.pf")).unwrap();
    let mut other = whole.clone();
    let mut labels = 0;
    for block in other.chunks_exact_mut(4096).filter(|block| block.starts_with(b"PAGEFOLD")) {
        block[8] += 1;
        let checksum = crc32c::crc32c(&block[..4092]).to_le_bytes();
        block[4092..].copy_from_slice(&checksum);
        labels += 1;
    }
    assert!(labels > 1, "{labels} labels");
    fs::write(sandbox.path("tank.pf"), &other).unwrap();
    for words in [&["destroy", "--force", "tank"][..], &["check", "tank"], &["mount", "tank", "mnt"]] {
        let output = sandbox.run(words);
        assert_failure(
            &output,
            1,
            &["tank", "has format version", "use the version of pagefold that made it"],
        );
    }
    assert!(fs::read(sandbox.path("tank.pf")).unwrap() == other);
    fs::write(sandbox.path("tank.pf"), whole).unwrap();
    sandbox.ok(&["destroy", "--force", "tank"]);
}
