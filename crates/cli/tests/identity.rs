//! Copies, stale devices, pools of one name, several paths to one device: what `import` tells of them, and what is never opened.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use common::{Output, Sandbox, assert_failure, can_mount};
use serde_json::Value;

const POOL_SIZE: &str = "131M";

/// A sandbox with a pool in `NAME.pf`.
fn with_pool(name: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    add_pool(&sandbox, name);
    sandbox
}

fn add_pool(sandbox: &Sandbox, name: &str) {
    sandbox.ok(&["create", name, &format!("{name}.pf"), "--size", POOL_SIZE]);
}

fn copy(sandbox: &Sandbox, from: &str, to: &str) {
    let copied =
        Command::new("cp").arg("--sparse=always").arg(sandbox.path(from)).arg(sandbox.path(to)).status();
    assert!(copied.unwrap().success());
}

/// Another name, or a directory that nobody looks into.
fn rename(sandbox: &Sandbox, from: &str, to: &str) {
    sandbox.dir("away");
    fs::rename(sandbox.path(from), sandbox.path(to)).unwrap();
}

/// Returns what `import` tells: state and name of the first device, sorted by that name.
fn told(sandbox: &Sandbox, words: &[&str]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = pools(sandbox, words)
        .iter()
        .map(|pool| (file(&pool["devices"][0]), pool["state"].as_str().unwrap().to_owned()))
        .collect();
    found.sort();
    found
}

fn pools(sandbox: &Sandbox, words: &[&str]) -> Vec<Value> {
    let words: Vec<&str> = ["import"].iter().chain(words).copied().collect();
    sandbox.json(&words)["pools"].as_array().unwrap().clone()
}

fn file(path: &Value) -> String {
    Path::new(path.as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(one, two)| ((*one).to_owned(), (*two).to_owned())).collect()
}

fn snapshots(sandbox: &Sandbox, pool: &str) -> Vec<String> {
    let listed = sandbox.ok(&["list", "-H", "-t", "snapshot", pool]);
    listed.lines().map(|line| line.split(['@', '\t']).nth(1).unwrap().to_owned()).collect()
}

/// The program refuses, and no byte of a pool file has changed.
#[track_caller]
fn refused(sandbox: &Sandbox, words: &[&str], texts: &[&str]) -> Output {
    refused_beside(sandbox, &[], words, texts)
}

/// The same while the pools in the files `mounted` are mounted: their servers write at any time.
#[track_caller]
fn refused_beside(sandbox: &Sandbox, mounted: &[&str], words: &[&str], texts: &[&str]) -> Output {
    let before = last_writes(sandbox, mounted);
    let output = sandbox.run(words);
    assert_failure(&output, 1, texts);
    assert_eq!(last_writes(sandbox, mounted), before, "{words:?} has written");
    output
}

/// Returns the times of the last writes to pool files, without those in `mounted`.
fn last_writes(sandbox: &Sandbox, mounted: &[&str]) -> Vec<(String, SystemTime)> {
    let mut times: Vec<_> = fs::read_dir(sandbox.path("."))
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().modified().unwrap())
        })
        .filter(|(name, _)| name.ends_with(".pf") && !mounted.contains(&name.as_str()))
        .collect();
    times.sort();
    times
}

/// REVIEW U1: the old copy was mounted writable, and only it was listed.
#[test]
fn an_older_copy_is_never_taken_for_the_pool() {
    let sandbox = with_pool("prod");
    copy(&sandbox, "prod.pf", "monday.pf");
    sandbox.ok(&["snapshot", "prod@later"]);
    sandbox.ok(&["export", "prod"]);
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("monday.pf", "OLD"), ("prod.pf", "EXPORTED")]));
    let text = sandbox.ok(&["import", "-d", "."]);
    assert!(
        text.contains("an older copy: the pool went on until 20") && text.contains("pagefold reguid"),
        "{text}"
    );
    // A device stands for its pool; a directory is where one looks, not what one looks for.
    assert_failure(&sandbox.run(&["import", "./"]), 1, &["pagefold import -d ./"]);
    refused(&sandbox, &["import", "./monday.pf"], &["older copy", "--accept-older"]);
    sandbox.ok(&["import", "./prod.pf"]);
    assert_eq!(snapshots(&sandbox, "prod"), ["later"]);
    sandbox.ok(&["export", "prod"]);
    sandbox.ok(&["import", "-d", ".", "prod"]);
    assert_eq!(snapshots(&sandbox, "prod"), ["later"]);
    sandbox.ok(&["export", "prod"]);

    // The newer one is away.
    rename(&sandbox, "prod.pf", "away/prod.pf");
    for words in [&["import", "-d", ".", "prod"][..], &["import", "-d", "monday.pf", "prod"]] {
        refused(&sandbox, words, &["older copy", "went on until 20", "prod.pf", "--accept-older"]);
    }
    refused(&sandbox, &["mount", "./monday.pf", "mnt"], &["older copy", "prod.pf", "--accept-older"]);
    let checked = sandbox.run(&["check", "--device", "monday.pf"]);
    assert!(
        checked.status.success() && checked.stderr.contains("monday.pf is an older copy"),
        "{}",
        checked.stderr
    );
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("monday.pf", "OLD")]));
    sandbox.ok(&["import", "--accept-older", "-d", "monday.pf", "prod"]);
    assert!(snapshots(&sandbox, "prod").is_empty());
    sandbox.ok(&["snapshot", "prod@other"]);
    sandbox.ok(&["export", "prod"]);

    // It comes back: each went on by itself, and the one that was used last here is known.
    rename(&sandbox, "away/prod.pf", "prod.pf");
    let apart = pairs(&[("monday.pf", "APART"), ("prod.pf", "APART")]);
    assert_eq!(told(&sandbox, &["-d", "."]), apart);
    refused(
        &sandbox,
        &["import", "-d", ".", "prod"],
        &["2 copies of one pool are named prod", "monday.pf", "prod.pf"],
    );
    refused(&sandbox, &["import", "-d", "prod.pf", "prod"], &["went on by itself", "monday.pf"]);
    sandbox.ok(&["import", "-d", "monday.pf", "prod"]);
    assert_eq!(snapshots(&sandbox, "prod"), ["other"]);
    // A machine that knows nothing is told by the devices alone; each can be asked for.
    let elsewhere = Sandbox::new();
    for name in ["monday.pf", "prod.pf"] {
        copy(&sandbox, name, "copy");
        fs::rename(sandbox.path("copy"), elsewhere.path(name)).unwrap();
    }
    assert_eq!(told(&elsewhere, &["-d", "."]), apart);
    refused(&elsewhere, &["import", "-d", ".", "prod"], &["2 copies of one pool"]);
    elsewhere.ok(&["import", "-d", "prod.pf", "prod"]);
    assert_eq!(snapshots(&elsewhere, "prod"), ["later"]);
}

#[test]
fn a_device_that_holds_an_older_copy_by_now_is_refused() {
    let sandbox = with_pool("tank");
    sandbox.dir("mnt");
    copy(&sandbox, "tank.pf", "backup.pf");
    sandbox.ok(&["snapshot", "tank@later"]);
    rename(&sandbox, "backup.pf", "tank.pf");
    let texts = ["tank.pf is an older copy", "went on until 20", "pagefold import --accept-older -d "];
    refused(&sandbox, &["snapshot", "tank@wrong"], &texts);
    refused(&sandbox, &["mount", "tank", "mnt"], &texts);
    refused(&sandbox, &["mount", "-o", "ro", "tank", "mnt"], &texts);
    refused(&sandbox, &["destroy", "-f", "tank"], &texts);
    refused(&sandbox, &["export", "tank"], &["older copy"]);
    let listed = sandbox.run(&["list", "tank"]);
    assert!(listed.stdout.contains("UNAVAIL") && !listed.status.success(), "{}", listed.stdout);
    sandbox.ok(&["import", "--accept-older", "-d", "tank.pf", "tank"]);
    sandbox.ok(&["snapshot", "tank@right"]);
    assert_eq!(snapshots(&sandbox, "tank"), ["right"]);
}

/// REVIEW U1: such a pool was ONLINE, gave EIO, and no longer opened after one write.
#[test]
fn a_stale_device_of_two_is_told_and_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "pair", "one.pf", "two.pf", "--size", POOL_SIZE]);
    copy(&sandbox, "two.pf", "stale.pf");
    sandbox.ok(&["snapshot", "pair@later"]);
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("one.pf", "EXPORTED"), ("stale.pf", "OLD")]));
    rename(&sandbox, "two.pf", "away/two.pf");
    rename(&sandbox, "stale.pf", "two.pf");
    let texts =
        ["two.pf is an older copy of device 1", "leave ", "two.pf out", "pagefold import -d DIR pair"];
    let said = refused(&sandbox, &["snapshot", "pair@wrong"], &texts).stderr;
    assert!(
        !said.contains("reguid") && !said.contains("--accept-older"),
        "no device alone is the pool: {said}"
    );
    refused(&sandbox, &["check", "pair"], &["two.pf is an older copy of device 1"]);
    sandbox.ok(&["export", "-f", "pair"]);
    refused(&sandbox, &["import", "-d", ".", "pair"], &["only 1 of its 2 devices"]);
    refused(&sandbox, &["import", "-d", "one.pf", "-d", "two.pf", "pair"], &["only 1 of its 2 devices"]);
    rename(&sandbox, "two.pf", "stale.pf");
    rename(&sandbox, "away/two.pf", "two.pf");
    sandbox.ok(&["import", "-d", ".", "pair"]);
    sandbox.ok(&["snapshot", "pair@right"]);
    assert_eq!(snapshots(&sandbox, "pair"), ["later", "right"]);
    assert!(sandbox.ok(&["check", "pair"]).contains(": 0 errors"));
}

/// A log device that no pool uses made `import NAME` say that there were two pools.
#[test]
fn a_log_device_without_its_pool_is_no_copy_of_it() {
    let (sandbox, elsewhere) = (Sandbox::new(), Sandbox::new());
    sandbox.ok(&["create", "tank", "data.pf", "log", "log.pf", "--size", POOL_SIZE]);
    for (from, to) in [("data.pf", "data.pf"), ("log.pf", "old.pf")] {
        copy(&sandbox, from, "copy");
        fs::rename(sandbox.path("copy"), elsewhere.path(to)).unwrap();
    }
    // Both went on, each by itself; then the log device of the copy comes here.
    sandbox.ok(&["snapshot", "tank@here"]);
    sandbox.ok(&["export", "tank"]);
    elsewhere.ok(&["import", "-d", ".", "tank"]);
    elsewhere.ok(&["snapshot", "tank@there"]);
    fs::rename(elsewhere.path("old.pf"), sandbox.path("old.pf")).unwrap();
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("data.pf", "EXPORTED"), ("old.pf", "APART")]));
    sandbox.ok(&["import", "-d", ".", "tank"]);
    assert_eq!(snapshots(&sandbox, "tank"), ["here"]);

    // A pool of the same name follows one that was destroyed without its log device.
    rename(&sandbox, "log.pf", "away/log.pf");
    sandbox.ok(&["export", "-f", "tank"]);
    sandbox.ok(&["import", "-d", "data.pf", "tank"]);
    sandbox.ok(&["destroy", "-f", "tank"]);
    fs::remove_file(sandbox.path("old.pf")).unwrap();
    sandbox.ok(&["create", "tank", "data.pf", "--size", POOL_SIZE]);
    sandbox.ok(&["export", "tank"]);
    rename(&sandbox, "away/log.pf", "log.pf");
    let found = pools(&sandbox, &["-d", "."]);
    let log = found.iter().find(|pool| file(&pool["devices"][0]) == "log.pf").unwrap();
    assert!(log["problem"].as_str().unwrap().contains("only its log device was found"), "{log}");
    sandbox.ok(&["import", "-d", ".", "tank"]);
    assert!(snapshots(&sandbox, "tank").is_empty());
    sandbox.ok(&["export", "tank"]);
    let output = sandbox.run(&["import", "-d", ".", "-a"]);
    assert!(
        output.status.success() && output.stderr.contains("log.pf: only its log device"),
        "{}",
        output.stderr
    );
    assert!(snapshots(&sandbox, "tank").is_empty());
}

#[test]
fn of_copies_that_are_alike_the_one_that_is_asked_for_is_taken() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "pair", "a1.pf", "a2.pf", "--size", POOL_SIZE]);
    sandbox.ok(&["export", "pair"]);
    copy(&sandbox, "a1.pf", "b1.pf");
    copy(&sandbox, "a2.pf", "b2.pf");
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("a1.pf", "COPIES")]));
    let texts = ["copies that are alike", "a1.pf", "b1.pf", "a2.pf", "b2.pf", "pagefold import -d"];
    refused(&sandbox, &["import", "-d", ".", "pair"], &texts);
    refused(&sandbox, &["mount", "./b1.pf", "mnt"], &["copies that are alike", "a2.pf", "b2.pf"]);
    sandbox.ok(&["import", "-d", "b1.pf", "-d", "b2.pf", "pair"]);
    sandbox.ok(&["snapshot", "pair@b"]);
    assert_eq!(told(&sandbox, &["-d", "."]), pairs(&[("a1.pf", "OLD"), ("b1.pf", "EXPORTED")]));
}

#[test]
fn a_copy_becomes_a_pool_of_its_own_beside_its_origin() {
    let sandbox = with_pool("tank");
    sandbox.ok(&["snapshot", "tank@both"]);
    copy(&sandbox, "tank.pf", "copy.pf");
    sandbox.ok(&["snapshot", "tank@origin"]);
    let said = sandbox.ok(&["reguid", "--device", "copy.pf"]);
    assert!(said.starts_with("pool tank on ") && said.contains("copy.pf has GUID "), "{said}");
    let texts = ["another pool named tank", "pagefold import", "NEWNAME"];
    refused(&sandbox, &["import", "-d", "copy.pf", "tank"], &texts);
    refused(&sandbox, &["import", "-d", ".", "tank"], &["2 pools are named tank", "by its GUID"]);
    sandbox.ok(&["import", "-d", "copy.pf", "tank", "monday"]);
    sandbox.ok(&["snapshot", "monday@copy"]);
    assert_eq!(snapshots(&sandbox, "tank"), ["both", "origin"]);
    assert_eq!(snapshots(&sandbox, "monday"), ["both", "copy"]);
    // Of a pool that is known the registry follows.
    sandbox.ok(&["reguid", "monday"]);
    sandbox.ok(&["snapshot", "monday@again"]);
    refused(&sandbox, &["reguid", "nobody"], &["there is no pool \"nobody\""]);
    if can_mount() {
        for (pool, dir) in [("tank", "t"), ("monday", "m")] {
            sandbox.dir(dir);
            sandbox.ok(&["mount", pool, dir]);
        }
        let texts = ["pool monday is mounted", "unmount it first"];
        refused_beside(&sandbox, &["tank.pf", "copy.pf"], &["reguid", "monday"], &texts);
        fs::write(sandbox.path("m/file"), "monday's").unwrap();
        assert!(!sandbox.path("t/file").exists());
    }
}

/// A copy beside its origin that is mounted: as a snapshot of a volume.
#[test]
fn a_copy_of_a_mounted_pool_is_not_mounted_in_its_place() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool("tank");
    sandbox.dir("mnt");
    sandbox.dir("other");
    sandbox.ok(&["mount", "tank", "mnt"]);
    fs::write(sandbox.path("mnt/file"), "before").unwrap();
    sandbox.ok(&["sync", "tank"]);
    copy(&sandbox, "tank.pf", "copy.pf");
    let refused_beside =
        |words: &[&str], texts: &[&str]| drop(refused_beside(&sandbox, &["tank.pf"], words, texts));
    refused_beside(&["mount", "./copy.pf", "other"], &["another copy of pool tank", "tank.pf", "reguid"]);
    refused_beside(&["import", "-d", "copy.pf", "tank"], &["pool tank", "is mounted", "reguid"]);
    sandbox.ok(&["reguid", "--device", "copy.pf"]);
    refused_beside(&["mount", "./copy.pf", "other"], &["another pool named tank", "is mounted"]);
    sandbox.ok(&["import", "-d", "copy.pf", "tank", "copy"]);
    sandbox.ok(&["mount", "copy", "other"]);
    assert_eq!(fs::read_to_string(sandbox.path("other/file")).unwrap(), "before");
    fs::write(sandbox.path("other/file"), "after").unwrap();
    sandbox.ok(&["unmount", "copy"]);
    assert_eq!(fs::read_to_string(sandbox.path("mnt/file")).unwrap(), "before");
    sandbox.ok(&["unmount", "tank"]);
    // The server has told how far the pool came, though it is confined.
    copy(&sandbox, "tank.pf", "old.pf");
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["unmount", "tank"]);
    rename(&sandbox, "old.pf", "tank.pf");
    refused(&sandbox, &["mount", "tank", "mnt"], &["older copy", "--accept-older"]);
}

/// Whoever mounts a copy by its path uses that from then on, and is told.
#[test]
fn a_copy_that_is_mounted_by_path_is_the_pool_from_then_on() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool("tank");
    copy(&sandbox, "tank.pf", "copy.pf");
    // Nothing is written to a copy that is only read.
    let read = sandbox.run(&["mount", "-o", "ro", "./copy.pf", "mnt"]);
    assert!(read.status.success() && read.stderr.is_empty(), "{}", read.stderr);
    let texts = ["is mounted", "from", "copy.pf", "reguid"];
    assert_failure(&sandbox.run(&["import", "-d", "tank.pf", "tank", "other"]), 1, &texts);
    sandbox.ok(&["unmount", "tank"]);

    let mounted = sandbox.run(&["mount", "./copy.pf", "mnt"]);
    assert!(mounted.status.success(), "{}", mounted.stderr);
    for text in
        ["warning: there are two copies of pool tank", "tank.pf, which is still there", "reguid --device"]
    {
        assert!(mounted.stderr.contains(text), "{text} is not in {}", mounted.stderr);
    }
    fs::write(sandbox.path("mnt/file"), "in the copy").unwrap();
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!(fs::read_to_string(sandbox.path("mnt/file")).unwrap(), "in the copy");
    sandbox.ok(&["unmount", "tank"]);
    refused(&sandbox, &["mount", "./tank.pf", "mnt"], &["older copy", "copy.pf"]);
    // The other copy becomes a pool of its own, as the warning says.
    sandbox.ok(&["reguid", "--device", "tank.pf"]);
    sandbox.ok(&["import", "-d", "tank.pf", "tank", "first"]);
    sandbox.ok(&["snapshot", "first@own"]);
    // A pool that was moved is followed without a word.
    rename(&sandbox, "copy.pf", "away/moved.pf");
    let moved = sandbox.run(&["mount", "./away/moved.pf", "mnt"]);
    assert!(moved.status.success() && moved.stderr.is_empty(), "{}", moved.stderr);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
}

#[test]
fn pools_are_renamed_and_names_stay_unique() {
    let sandbox = with_pool("tank");
    add_pool(&sandbox, "dozer");
    refused(&sandbox, &["import", "tank", "dozer"], &["another pool named dozer", "dozer.pf"]);
    assert_failure(&sandbox.run(&["import", "tank", "a/b"]), 2, &["cannot be the name of a pool"]);
    sandbox.ok(&["import", "tank", "silo"]);
    assert_eq!(pools(&sandbox, &["-d", "tank.pf"])[0]["name"], "silo");
    sandbox.ok(&["snapshot", "silo@a"]);
    assert_failure(&sandbox.run(&["list", "tank"]), 1, &["there is no pool \"tank\""]);
    sandbox.ok(&["export", "silo"]);
    sandbox.ok(&["import", "-d", ".", "silo", "tank"]);
    assert_eq!(snapshots(&sandbox, "tank"), ["a"]);
}

/// REVIEW S6: an image's mount points were obeyed.
#[test]
fn mount_points_of_pools_from_elsewhere_are_obeyed_only_when_trusted() {
    if !can_mount() {
        return;
    }
    let maker = with_pool("tank");
    let sandbox = Sandbox::new();
    let wanted = sandbox.path("wanted");
    let property = format!("mountpoint={}", wanted.display());
    maker.ok(&["set", &property, "tank"]);
    maker.ok(&["dataset", "create", "tank/below"]);
    // Made there, exported and imported again there: still its own.
    maker.ok(&["export", "tank"]);
    maker.ok(&["import", "-d", ".", "tank"]);
    maker.ok(&["mount", "tank"]);
    maker.ok(&["export", "tank"]);
    fs::rename(maker.path("tank.pf"), sandbox.path("tank.pf")).unwrap();
    fs::remove_dir(&wanted).unwrap();

    sandbox.ok(&["import", "-d", ".", "tank"]);
    let skipped = sandbox.run(&["mount", "-a"]);
    assert!(skipped.status.success() && skipped.stderr.contains("import --adopt tank"), "{}", skipped.stderr);
    refused(
        &sandbox,
        &["mount", "tank"],
        &["was not made here", "pagefold mount tank DIR", "import --adopt tank"],
    );
    assert!(!wanted.exists());
    // Below another root.
    let root = sandbox.dir("root");
    sandbox.ok(&["import", "-R", "root", "-d", ".", "tank"]);
    sandbox.ok(&["mount", "-a"]);
    let below = root.join(wanted.strip_prefix("/").unwrap());
    fs::write(below.join("file"), "below").unwrap();
    assert!(!wanted.exists());
    sandbox.ok(&["export", "tank"]);
    // Trusted from now on, also when it was exported.
    sandbox.ok(&["import", "--adopt", "-d", ".", "tank"]);
    sandbox.ok(&["export", "tank"]);
    sandbox.ok(&["import", "-d", ".", "tank"]);
    sandbox.ok(&["mount", "-a"]);
    assert_eq!(fs::read_to_string(wanted.join("file")).unwrap(), "below");
    sandbox.ok(&["unmount", "tank"]);
}

/// REVIEW S7: names of labels reached the terminal as they were.
#[test]
fn names_from_devices_never_reach_the_terminal_raw() {
    let sandbox = with_pool("tank");
    sandbox.ok(&["export", "tank"]);
    let evil = "evil\t\u{1b}[2J\u{202e}.pf";
    rename(&sandbox, "tank.pf", evil);
    for words in [&["import", "-H", "-d", "."][..], &["import", "-d", "."], &["import", "-d", ".", "tank"]] {
        let output = sandbox.run(words);
        let raw = |text: &str| text.contains(['\u{1b}', '\u{202e}']) || text.contains("evil\t");
        assert!(!raw(&output.stdout) && !raw(&output.stderr), "{}{}", output.stdout, output.stderr);
    }
    assert_eq!(sandbox.ok(&["import", "-H", "-d", "."]).trim_end().split('\t').count(), 5);
    let listed = sandbox.ok(&["status", "tank"]);
    assert!(!listed.contains(['\u{1b}', '\u{202e}']), "{listed}");
    // A label that says such a name is none.
    let path = sandbox.path(evil);
    let device = fs::File::options().read(true).write(true).open(&path).unwrap();
    for name in ["e\u{1b}[2J", "a\tb", "a\nb", "a b", "../x", "-x", "t\u{e4}nk"] {
        for place in [0, 129 << 20] {
            let mut label = vec![0; 4096];
            device.read_exact_at(&mut label, place).unwrap();
            label[233] = u8::try_from(name.len()).unwrap();
            label[234..297].fill(0);
            label[234..234 + name.len()].copy_from_slice(name.as_bytes());
            let sum = crc32c::crc32c(&label[..4092]);
            label[4092..].copy_from_slice(&sum.to_le_bytes());
            device.write_all_at(&label, place).unwrap();
        }
        let found = sandbox.run(&["import", "-H", "-d", "."]);
        assert_failure(&found, 1, &["no pool was found"]);
        let named = sandbox.run(&["import", "-H", "-d", evil]);
        assert_failure(&named, 1, &["the pool's name is none that a pool can have"]);
        assert!(!named.stderr.contains(['\u{1b}', '\u{202e}', '\t']), "{}", named.stderr);
    }
}

/// A loop device, detached at the end.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn several_paths_to_one_device_are_one() {
    // Whoever looks on all devices for a pool of another test must not find this one.
    let sandbox = with_pool("ways");
    fs::hard_link(sandbox.path("ways.pf"), sandbox.path("hard.pf")).unwrap();
    std::os::unix::fs::symlink("ways.pf", sandbox.path("soft.pf")).unwrap();
    let found = pools(&sandbox, &["-d", ".", "-d", "soft.pf", "-d", "ways.pf"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["state"], found[0]["devices"].as_array().unwrap().len()), (&"EXPORTED".into(), 1));
    assert_eq!(found[0]["also"].as_array().unwrap().len(), 1, "{found:?}");
    assert!(sandbox.ok(&["import", "-d", "."]).contains("other paths to the same"));
    sandbox.ok(&["import", "-d", ".", "-d", "soft.pf", "ways"]);
    let made = Command::new("losetup").args(["-f", "--show"]).arg(sandbox.path("ways.pf")).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        eprintln!("skipped: no loop devices here");
        return;
    };
    let device = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
    let found = pools(&sandbox, &["-d", "ways.pf", "-d", &device.0]);
    assert_eq!((found.len(), &found[0]["state"]), (1, &"EXPORTED".into()), "{found:?}");
    assert_eq!(found[0]["also"][0], device.0.as_str());
}
