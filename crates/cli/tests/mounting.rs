//! Mounting: directories that are made, options of what is mounted, several places, one pool beside others. Needs root and /dev/fuse, as
//! `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Sandbox, assert_failure, can_mount, noise, with_pools};

/// Options of the mount, and of the file system, as the kernel tells them.
fn options(dir: &Path) -> (Vec<String>, Vec<String>) {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == dir.to_str()).unwrap();
    let words = |list: &str| list.split(',').map(str::to_owned).collect();
    (words(line.split(' ').nth(5).unwrap()), words(line.rsplit(' ').next().unwrap()))
}

fn has(dir: &Path, option: &str) -> bool {
    let (mount, all) = options(dir);
    mount.iter().chain(&all).any(|own| own == option)
}

fn is_mounted(dir: &Path) -> bool {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    text.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

fn unprivileged(program: &str, words: &[&str]) -> Output {
    Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--", program])
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn directories_are_made_where_their_parent_is_and_keep_programs_out_while_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    fs::set_permissions(sandbox.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = sandbox.path("srv");
    assert_failure(&sandbox.run(&["mount", "tank", "none/srv"]), 1, &["neither does", "mkdir -p"]);
    assert!(!sandbox.path("none").exists());
    // A mount that fails leaves nothing.
    assert_failure(&sandbox.run(&["mount", "tank/none", "srv"]), 1, &["there is no dataset tank/none"]);
    assert!(!dir.exists());
    let told = sandbox.run(&["mount", "-o", "takeover=off", "tank", "srv"]);
    assert!(
        told.status.success() && told.stderr.contains("pagefold: made the directory "),
        "{}",
        told.stderr
    );
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let inside = dir.join("file");
    assert!(unprivileged("touch", &[inside.to_str().unwrap()]).status.success());
    sandbox.ok(&["unmount", "tank"]);
    // Nobody writes below an unmounted mount point by mistake, and what root writes there is told.
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0);
    assert!(!unprivileged("touch", &[inside.to_str().unwrap()]).status.success());
    assert_failure(&sandbox.run(&["mount", "tank", "srv/db"]), 1, &["nothing is mounted on it", "mount -a"]);
    fs::write(&inside, "by root").unwrap();
    assert_failure(&sandbox.run(&["mount", "tank", "srv"]), 1, &["srv is not empty"]);
    fs::remove_file(&inside).unwrap();
    let told = sandbox.run(&["mount", "tank", "srv"]);
    assert!(told.status.success() && told.stderr.is_empty(), "{}", told.stderr);
    sandbox.ok(&["unmount", "tank"]);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn what_belongs_below_a_mount_that_failed_is_not_mounted_beneath_it() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank", "vault"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    let (top, vault) = (sandbox.path("srv"), sandbox.path("vault"));
    sandbox.ok(&["set", &format!("mountpoint={}", top.display()), "tank"]);
    sandbox.ok(&["set", &format!("mountpoint={}", vault.display()), "vault"]);
    fs::create_dir(&top).unwrap();
    fs::write(top.join("in the way"), "").unwrap();
    let told = sandbox.run(&["mount", "-a"]);
    assert_failure(
        &told,
        1,
        &["pagefold: tank: ", "is not empty", "pagefold: tank/db: it belongs below", "tank, tank/db"],
    );
    assert!(!top.join("db").exists());
    assert!(is_mounted(&vault), "{}", told.stderr);
    fs::remove_file(top.join("in the way")).unwrap();
    sandbox.ok(&["mount", "-a"]);
    assert!(is_mounted(&top.join("db")));
    sandbox.ok(&["unmount", "-a"]);
}

/// One that is away and one that is damaged: all others are mounted, listed and asked, and what is wrong is told with its name.
#[test]
fn one_pool_never_blocks_the_others() {
    if !can_mount() {
        return;
    }
    let names = ["away", "broken", "tank", "vault"];
    let sandbox = with_pools(&names);
    for name in names {
        let dir = sandbox.path(&format!("at-{name}"));
        sandbox.ok(&["set", &format!("mountpoint={}", dir.display()), name]);
        sandbox.ok(&["snapshot", &format!("{name}@first")]);
    }
    fs::rename(sandbox.path("away.pf"), sandbox.path("elsewhere")).unwrap();
    let broken = fs::OpenOptions::new().write(true).open(sandbox.path("broken.pf")).unwrap();
    let size = broken.metadata().unwrap().len();
    broken.set_len(0).unwrap();
    broken.set_len(size).unwrap();
    let wrong = ["pagefold: away: ", "pagefold: broken: ", "2 of 4", "away, broken"];
    assert_failure(&sandbox.run(&["mount", "-a"]), 1, &wrong);
    assert!(is_mounted(&sandbox.path("at-tank")) && is_mounted(&sandbox.path("at-vault")));
    let verbs: [&[&str]; 8] = [
        &["list"],
        &["list", "-t", "all"],
        &["list", "-t", "partial"],
        &["get", "used"],
        &["get", "-r", "mountpoint"],
        &["branch", "list"],
        &["status"],
        &["dataset", "list"],
    ];
    for words in verbs {
        let told = sandbox.run(words);
        assert_failure(&told, 1, &["pagefold: away: ", "pagefold: broken: ", "away, broken"]);
        if !words.contains(&"branch") && !words.contains(&"partial") {
            assert!(
                told.stdout.contains("tank") && told.stdout.contains("vault"),
                "{words:?}: {}",
                told.stdout
            );
        }
        let mut words = words.to_vec();
        words.push("--json");
        let told = sandbox.run(&words);
        assert_eq!(told.status.code(), Some(1), "{words:?}");
        let json: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        let failed: Vec<&str> =
            json["failures"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(failed, ["away", "broken"], "{words:?}");
    }
    // These verbs go over all mounted pools; the server of one of them has died.
    let pid = sandbox.json(&["status", "vault"])["pools"][0]["pid"].as_i64().unwrap();
    common::kill_to_the_end(i32::try_from(pid).unwrap());
    for words in [&["df"][..], &["iostat"], &["sync"]] {
        let told = sandbox.run(words);
        assert_failure(&told, 1, &["pagefold: vault: the server of pool vault", "has died"]);
        assert!(words == ["sync"] || told.stdout.contains("tank"), "{words:?}: {}", told.stdout);
    }
    // Alone, it is the verb's own failure.
    assert_failure(&sandbox.run(&["get", "used", "away"]), 1, &["pagefold: cannot open pool away"]);
    sandbox.run(&["unmount", "-a"]);
}

#[test]
fn a_mount_gets_other_options_while_it_is_in_use() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let dir = sandbox.dir("mnt");
    let file = dir.join("file");
    sandbox.ok(&["mount", "-o", "takeover=off,cache=64M", "tank", "mnt"]);
    fs::write(&file, "one").unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let told = sandbox.run(&["mount", "-o", "remount,ro", "tank", "mnt"]);
    assert_failure(&told, 1, &["cannot become read-only: files are open for writing", "open file"]);
    assert!(!has(&dir, "ro") && fs::write(&file, "two").is_ok());
    drop(writer);
    let reader = fs::File::open(&file).unwrap();
    sandbox.ok(&["mount", "-o", "remount,ro", "tank"]);
    assert!(has(&dir, "ro") && fs::write(&file, "three").is_err());
    assert_eq!(sandbox.pool()["mount"]["read_only"], true);
    sandbox.ok(&["mount", "-o", "remount,rw", "./mnt"]);
    assert!(!has(&dir, "ro"));
    fs::write(&file, "four").unwrap();
    assert_eq!(sandbox.pool()["mount"]["read_only"], false);
    drop(reader);
    // Flags of the kernel's and properties for this mount.
    sandbox.ok(&["mount", "-o", "remount,suid,noexec,recordsize=8K,sync=always", "tank"]);
    assert!(!has(&dir, "nosuid") && has(&dir, "nodev") && has(&dir, "noexec"));
    let property = |name: &str| sandbox.json(&["get", name, "tank"])["properties"][0].clone();
    assert_eq!(
        (property("recordsize")["value"].as_str(), property("sync")["source"].as_str()),
        (Some("8K"), Some("temporary"))
    );
    fs::write(dir.join("new"), vec![7; 100_000]).unwrap();
    assert_eq!(sandbox.json(&["du", "mnt/new"])["recordsizes"][0]["record_size"], 8 << 10);
    // An option that the mount has already is no change; an option that it cannot get is refused, and changes nothing.
    sandbox.ok(&["mount", "-o", "remount,ro,cache=64M,takeover=off", "tank"]);
    for option in ["takeover=on", "io_uring=off", "threads=3", "noallow_other", "confine=off"] {
        let told = sandbox.run(&["mount", "-o", &format!("remount,rw,{option}"), "tank"]);
        assert_failure(&told, 1, &[option, "cannot get the option", "pagefold unmount tank"]);
        assert!(has(&dir, "ro"));
    }
    assert_failure(
        &sandbox.run(&["mount", "-o", "remount,rw", "tank", "./"]),
        1,
        &["nothing of a pool is mounted"],
    );
    sandbox.ok(&["mount", "-o", "remount,rw,cache=96M", "tank"]);
    assert_eq!(
        (property("cache")["value"].as_str(), property("cache")["source"].as_str()),
        (Some("100663296"), Some("temporary"))
    );
    sandbox.ok(&["snapshot", "tank@a"]);
    // A path with a slash in it may be a name; it is none here.
    sandbox.dir("of/snap");
    sandbox.ok(&["mount", "tank@a", "of/snap"]);
    sandbox.ok(&["mount", "-o", "remount,noexec", "of/snap"]);
    assert!(has(&sandbox.path("of/snap"), "noexec"));
    assert_failure(&sandbox.run(&["mount", "-o", "remount,ro", "of/none"]), 1, &["of/none is not mounted"]);
    assert_failure(&sandbox.run(&["mount", "-o", "remount,rw", "tank@a"]), 1, &["it is a snapshot"]);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "-o", "ro", "tank", "mnt"]);
    assert_failure(
        &sandbox.run(&["mount", "-o", "remount,rw", "tank"]),
        1,
        &["open read-only", "pagefold unmount tank"],
    );
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn the_property_readonly_takes_effect_at_once_or_says_that_it_waits() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.dir("mnt");
    let dir = sandbox.dir("db");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    sandbox.ok(&["mount", "tank/db", "db"]);
    let quiet = |words: &[&str]| {
        let told = sandbox.run(words);
        assert!(told.status.success() && told.stderr.is_empty(), "{words:?}: {}", told.stderr);
    };
    quiet(&["set", "readonly=on", "tank"]);
    assert!(fs::write(dir.join("a"), "").is_err() && fs::write(sandbox.path("mnt/a"), "").is_err());
    quiet(&["set", "readonly=off", "tank/db"]);
    fs::write(dir.join("a"), "").unwrap();
    assert!(fs::write(sandbox.path("mnt/a"), "").is_err());
    assert_failure(&sandbox.run(&["mount", "-o", "remount,rw", "tank"]), 1, &["its property readonly is on"]);
    quiet(&["inherit", "readonly", "tank"]);
    fs::write(sandbox.path("mnt/a"), "").unwrap();
    // With a writer it waits, and says so.
    let writer = fs::OpenOptions::new().append(true).open(dir.join("a")).unwrap();
    let told = sandbox.run(&["set", "readonly=on", "tank/db"]);
    assert!(told.status.success(), "{}", told.stderr);
    assert!(
        told.stderr.contains("tank/db becomes read-only when it is mounted the next time"),
        "{}",
        told.stderr
    );
    fs::write(dir.join("b"), "").unwrap();
    drop(writer);
    sandbox.ok(&["unmount", "tank/db"]);
    sandbox.ok(&["mount", "tank/db", "db"]);
    assert!(fs::write(dir.join("c"), "").is_err());
    // A mount that asked for it stays read-only.
    sandbox.ok(&["unmount", "tank/db"]);
    sandbox.ok(&["mount", "-o", "ro", "tank/db", "db"]);
    quiet(&["set", "readonly=off", "tank/db"]);
    assert!(fs::write(dir.join("c"), "").is_err());
    sandbox.ok(&["mount", "-o", "remount,rw", "tank/db"]);
    fs::write(dir.join("c"), "").unwrap();
    sandbox.ok(&["unmount", "tank"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn a_dataset_is_one_file_system_at_all_its_places() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let (one, two) = (sandbox.dir("one"), sandbox.dir("two"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "one"]);
    sandbox.ok(&["mount", "-o", "ro,noexec", "tank", "two"]);
    assert!(has(&two, "ro") && has(&two, "noexec") && has(&two, "nosuid") && !has(&one, "ro"));
    fs::write(one.join("file"), "written here").unwrap();
    assert_eq!(fs::read(two.join("file")).unwrap(), b"written here");
    assert!(fs::write(two.join("file"), "").is_err());
    let same = |dir: &Path| (fs::metadata(dir.join("file")).unwrap().ino(), fs::metadata(dir).unwrap().dev());
    assert_eq!(same(&one), same(&two));
    let mount = &sandbox.pool()["mount"];
    assert_eq!((mount["dir"].as_str(), mount["also_at"][0].as_str()), (one.to_str(), two.to_str()));
    assert!(sandbox.ok(&["status", "tank"]).contains(&format!("and at {}", two.display())));
    sandbox.dir("three");
    assert_failure(
        &sandbox.run(&["mount", "-o", "recordsize=8K", "tank", "three"]),
        1,
        &["mounted already at", "the first one's options"],
    );
    assert_failure(&sandbox.run(&["mount", "tank", "one"]), 1, &["tank is mounted already at"]);
    // Each goes alone; the pool with the last.
    let told = sandbox.run(&["unmount", "one"]);
    assert!(told.status.success() && told.stderr.contains("tank stays mounted at"), "{}", told.stderr);
    assert_eq!(fs::read(two.join("file")).unwrap(), b"written here");
    sandbox.ok(&["mount", "tank", "one"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(!is_mounted(&one) && !is_mounted(&two));
    // One that is read-only is not writable elsewhere.
    sandbox.ok(&["mount", "-o", "ro", "tank", "one"]);
    let texts = [
        "it is read-only there",
        "-o ro",
        "open read-only",
        "pagefold unmount tank; pagefold mount tank DIR",
    ];
    let refused = sandbox.run(&["mount", "tank", "two"]);
    assert_failure(&refused, 1, &texts);
    assert!(!refused.stderr.contains("remount"), "that is refused: {}", refused.stderr);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "one"]);
    sandbox.ok(&["mount", "-o", "remount,ro", "./one"]);
    assert_failure(&sandbox.run(&["mount", "tank", "two"]), 1, &["it is read-only there", "remount,rw"]);
    sandbox.ok(&["unmount", "tank"]);
}

fn writable(dir: &Path) -> bool {
    fs::write(dir.join("file"), "x").is_ok()
}

#[test]
fn one_place_of_several_becomes_read_only_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let (one, two) = (sandbox.dir("one"), sandbox.dir("two"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "one"]);
    sandbox.ok(&["mount", "tank", "two"]);
    let told = sandbox.run(&["mount", "-o", "remount,ro,noexec,sync=always", "./two"]);
    assert!(told.status.success() && told.stderr.contains("tank stays writable at"), "{}", told.stderr);
    assert!(writable(&one) && !writable(&two) && has(&two, "noexec") && !has(&one, "ro"));
    assert_eq!(sandbox.json(&["get", "sync", "tank"])["properties"][0]["value"], "always");
    assert_eq!(sandbox.pool()["mount"]["read_only"], false);
    sandbox.ok(&["mount", "-o", "remount,rw", "./two"]);
    assert!(writable(&one) && writable(&two));
    sandbox.ok(&["mount", "-o", "remount,ro", "tank", "one"]);
    assert!(!writable(&one) && writable(&two));
    sandbox.ok(&["unmount", "one"]);
    assert!(writable(&two));
    // The name stands for all places.
    sandbox.ok(&["mount", "tank", "one"]);
    sandbox.ok(&["mount", "-o", "remount,ro", "tank"]);
    assert!(!writable(&one) && !writable(&two));
    sandbox.ok(&["mount", "-o", "remount,rw", "tank"]);
    assert!(writable(&one) && writable(&two));
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn the_ro_of_a_place_is_nobody_elses_and_goes_by_words_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let (one, two) = (sandbox.dir("one"), sandbox.dir("two"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "one"]);
    sandbox.ok(&["mount", "-o", "ro", "tank", "two"]);
    // Words other than ro and rw, with a file open for writing and without.
    let writer = fs::OpenOptions::new().append(true).create(true).open(one.join("log")).unwrap();
    sandbox.ok(&["mount", "-o", "remount,noexec,sync=always", "./two"]);
    drop(writer);
    for words in ["remount,suid", "remount,sync=standard"] {
        sandbox.ok(&["mount", "-o", words, "./two"]);
        assert!(writable(&one) && !writable(&two) && has(&two, "noexec") && !has(&one, "noexec"), "{words}");
    }
    assert!(!has(&two, "nosuid") && has(&two, "nodev") && has(&one, "nosuid"));
    assert_eq!(sandbox.pool()["mount"]["read_only"], false);
    // The property, with both places and with this one alone.
    let switch = |places: &[&Path]| {
        sandbox.ok(&["set", "readonly=on", "tank"]);
        assert!(!places.iter().any(|place| writable(place)));
        let told = sandbox.run(&["set", "readonly=off", "tank"]);
        let stays = format!("tank stays read-only at {}", two.display());
        assert!(told.status.success() && told.stderr.contains(&stays), "{}", told.stderr);
        assert!(!writable(&two));
    };
    switch(&[&one, &two]);
    assert!(writable(&one) && has(&two, "noexec"));
    sandbox.ok(&["mount", "-o", "remount,ro", "tank"]);
    assert!(!writable(&one));
    sandbox.ok(&["mount", "-o", "remount,rw", "./one"]);
    assert!(writable(&one) && !writable(&two));
    sandbox.ok(&["unmount", "one"]);
    switch(&[&two]);
    sandbox.ok(&["mount", "-o", "remount,rw", "./two"]);
    assert!(writable(&two) && has(&two, "noexec"));
    sandbox.ok(&["unmount", "tank"]);
    // A mount that is read-only by the property alone has no `ro` of its own.
    sandbox.ok(&["set", "readonly=on", "tank"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "one"]);
    assert!(!writable(&one) && has(&one, "ro"));
    let told = sandbox.run(&["set", "readonly=off", "tank"]);
    assert!(told.status.success() && told.stderr.is_empty() && writable(&one), "{}", told.stderr);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_place_that_was_mounted_with_ro_stays_so_while_another_becomes_writable() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.dir("mnt");
    let (one, two) = (sandbox.dir("one"), sandbox.dir("two"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    sandbox.ok(&["mount", "-o", "ro", "tank/db", "one"]);
    sandbox.ok(&["mount", "-o", "ro", "tank/db", "two"]);
    sandbox.ok(&["mount", "-o", "remount,rw", "./two"]);
    assert!(writable(&two) && !writable(&one));
    sandbox.ok(&["mount", "-o", "remount,rw", "./one"]);
    assert!(writable(&one) && writable(&two));
    sandbox.ok(&["unmount", "tank"]);
}

/// mount(8) itself, with our helpers in /sbin and a line in fstab, both in this test's own mounts.
#[test]
fn fstab_says_suid_and_dev_and_mount_8_remounts() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let dir = sandbox.dir("mnt");
    let layers = sandbox.dir("sbin");
    let run = |program: &str, words: &[&str]| {
        let done = Command::new(program).args(words).envs(sandbox.environment()).output().unwrap();
        assert!(done.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("mount", &["-t", "tmpfs", "none", layers.to_str().unwrap()]);
    let (upper, work) = (sandbox.dir("sbin/upper"), sandbox.dir("sbin/work"));
    for name in ["mount.pagefold", "mount.fuse.pagefold"] {
        symlink(env!("CARGO_BIN_EXE_pagefold"), upper.join(name)).unwrap();
    }
    let sbin: PathBuf = fs::canonicalize("/sbin").unwrap();
    let overlay =
        format!("lowerdir={},upperdir={},workdir={}", sbin.display(), upper.display(), work.display());
    run("mount", &["-t", "overlay", "-o", &overlay, "overlay", sbin.to_str().unwrap()]);
    let fstab = sandbox.path("fstab");
    fs::write(&fstab, "").unwrap();
    let has_fstab = Path::new("/etc/fstab").exists();
    if has_fstab {
        run("mount", &["--bind", fstab.to_str().unwrap(), "/etc/fstab"]);
    }
    let at = dir.to_str().unwrap().to_owned();
    let line = |options: &str| fs::write(&fstab, format!("tank {at} pagefold {options} 0 0\n")).unwrap();
    if has_fstab {
        line("takeover=off,suid,dev,nofail");
        run("mount", &[&at]);
        assert!(!has(&dir, "nosuid") && !has(&dir, "nodev"));
        // With fstab's options, and what is said beside them.
        run("mount", &["-o", "remount,ro,nosuid", &at]);
        assert!(has(&dir, "ro") && has(&dir, "nosuid") && !has(&dir, "nodev"));
        run("mount", &["-o", "remount", &at]);
        assert!(!has(&dir, "ro"));
        sandbox.ok(&["unmount", "tank"]);
        // Nothing said: the safe default, as for `pagefold mount`.
        line("defaults,takeover=off");
        run("mount", &[&at]);
        assert!(has(&dir, "nosuid") && has(&dir, "nodev"));
        sandbox.ok(&["unmount", "tank"]);
        fs::write(&fstab, "").unwrap();
    }
    run("mount", &["-t", "pagefold", "-o", "takeover=off,setuid=on", "tank", &at]);
    assert!(!has(&dir, "nosuid") && has(&dir, "nodev"));
    // Without a line mount(8) says what the mount has.
    run("mount", &["-o", "remount,ro", &at]);
    assert!(has(&dir, "ro") && !has(&dir, "nosuid") && has(&dir, "nodev"));
    assert_eq!(sandbox.pool()["mount"]["read_only"], true);
    run("mount", &["-o", "remount,rw,nosuid", &at]);
    assert!(!has(&dir, "ro") && has(&dir, "nosuid"));
    fs::write(dir.join("a"), "").unwrap();
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_dry_run_says_what_would_be_freed_and_what_is_in_the_way() {
    let sandbox = with_pools(&["tank"]);
    sandbox.ok(&["snapshot", "tank@before"]);
    sandbox.ok(&["clone", "tank@before", "tank/test"]);
    let told = sandbox.run(&["destroy", "-n", "tank@before"]);
    assert_failure(
        &told,
        1,
        &["that would be refused: tank@before has a clone: tank/test", "pagefold promote tank/test"],
    );
    assert!(
        told.stdout.contains("would destroy tank@before")
            && told.stdout.contains("with what keeps it, would free")
    );
    let json = sandbox.run(&["destroy", "-n", "tank@before", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["blocked"], "tank@before has a clone: tank/test");
    assert_failure(&sandbox.run(&["destroy", "tank@before"]), 1, &["tank@before has a clone"]);
    sandbox.ok(&["destroy", "tank/test"]);
    assert!(sandbox.ok(&["destroy", "-n", "tank@before"]).contains("\nwould free "));
}

#[test]
fn what_is_set_on_a_pool_has_to_be_said() {
    let sandbox = with_pools(&["tank"]);
    for name in ["tank", "tank/db"] {
        let usage = format!("pagefold set PROPERTY=VALUE {name}");
        assert_failure(&sandbox.run(&["set", name]), 2, &[&usage]);
    }
    assert_failure(&sandbox.run(&["set", "tank", "sync=always"]), 2, &["pagefold set sync=always tank"]);
    assert_failure(&sandbox.run(&["set", "sync"]), 2, &["not of the form property=value"]);
}

#[test]
fn events_tell_what_was_done_in_words() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    let devices = ["a.pf", "b.pf"].map(|name| sandbox.path(name));
    for device in &devices {
        fs::File::create(device).unwrap().set_len(256 << 20).unwrap();
    }
    let [first, second] = devices.each_ref().map(|device| device.to_str().unwrap());
    sandbox.ok(&["create", "tank", "mirror", first, second]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    fs::write(sandbox.path("mnt/file"), noise(1, 4 << 20)).unwrap();
    sandbox.ok(&["sync", "tank"]);
    // An interrupted rewrite names the file.
    let rewrite = ["rewrite", "--recordsize", "64K", "--rate", "64K", "mnt/file"];
    let is_told = (0..20).any(|_| {
        let quiet = std::process::Stdio::null;
        let mut running = sandbox.command(&rewrite).stdout(quiet()).stderr(quiet()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.kill().unwrap();
        running.wait().unwrap();
        sandbox.ok(&["events", "tank"]).contains("a file was not rewritten")
    });
    assert!(is_told, "{}", sandbox.ok(&["events", "tank"]));
    let events = sandbox.ok(&["events", "tank"]);
    assert!(
        events.contains(&format!("file={}/mnt/file", sandbox.path("").display()).replace("//", "/")),
        "{events}"
    );
    assert!(!events.contains("FileRewrite"), "{events}");
    // A device that is taken away is no error.
    sandbox.ok(&["detach", "tank", second]);
    let events = sandbox.ok(&["events", "tank"]);
    assert!(events.contains("a device is left out") && !events.contains("ERROR"), "{events}");
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_missing_device_is_told_by_the_path_that_it_had() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    let devices = ["a.pf", "b.pf"].map(|name| sandbox.path(name));
    for device in &devices {
        fs::File::create(device).unwrap().set_len(256 << 20).unwrap();
    }
    let [first, second] = devices.each_ref().map(|device| device.to_str().unwrap());
    sandbox.ok(&["create", "tank", "mirror", first, second]);
    fs::remove_file(second).unwrap();
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let told = sandbox.ok(&["status", "tank"]);
    let row = told.lines().find(|line| line.contains("MISSING")).unwrap();
    assert!(row.contains(&format!(", last {second} ")) && !row.contains("0B"), "{told}");
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_dry_run_of_a_mount_fails_where_the_mount_would() {
    let sandbox = Sandbox::new();
    let (full, empty) = (sandbox.dir("full"), sandbox.dir("empty"));
    sandbox.dir("full/of");
    let dry = |dir: &str| sandbox.run(&["mount", "--dry-run", "tank", dir]);
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "144M"]);
    assert_failure(&dry("full"), 1, &["is not empty"]);
    assert_failure(&dry("/"), 1, &["/ is a mount point already"]);
    assert_failure(&dry("tank.pf"), 1, &["is not a directory"]);
    assert_failure(&dry("none/of"), 1, &["neither does"]);
    assert!(dry("empty").status.success() && dry("none").status.success());
    assert!(!sandbox.path("none").exists(), "a dry run has made a directory");
    sandbox.ok(&["mount", "--dry-run", "-o", "nonempty", "tank", "full"]);
    // The same by the property, and for all; what is below a mount is seen only when that is there.
    sandbox.ok(&["set", &format!("mountpoint={}", full.display()), "tank"]);
    assert_failure(&sandbox.run(&["mount", "--dry-run", "tank"]), 1, &["is not empty"]);
    assert_failure(&sandbox.run(&["mount", "-a", "--dry-run"]), 1, &["is not empty"]);
    sandbox.ok(&["set", &format!("mountpoint={}", empty.display()), "tank"]);
    sandbox.ok(&["dataset", "create", "-p", "tank/a/b"]);
    sandbox.ok(&["mount", "-a", "--dry-run"]);
    for never in ["/", "//", "/a/../b"] {
        assert_failure(&sandbox.run(&["set", &format!("mountpoint={never}"), "tank"]), 2, &["mountpoint"]);
    }
}

#[test]
fn help_is_a_verb_too() {
    let sandbox = Sandbox::new();
    assert!(sandbox.ok(&["help"]).contains("Usage: pagefold"));
    let of_verb = sandbox.ok(&["help", "unmount"]);
    assert!(of_verb.contains("pagefold unmount -a"), "{of_verb}");
    assert!(sandbox.ok(&["help", "branch", "create"]).contains("branch create"));
    sandbox.ok(&["man", "man"]);
    assert!(sandbox.path("man/pagefold-unmount.8").exists() && !sandbox.path("man/pagefold-help.8").exists());
}
