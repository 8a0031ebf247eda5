//! Attacks of a database's user, or of the maker of an image, on root's `branch`: programs, records, links, FIFOs; and what our processes inherit. The
//! table in docs/SECURITY.md names these tests. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;
mod users;

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Output, Sandbox, assert_failure, bounded, can_mount};
use pagefold_engine::pool::{OpenOptions, Pool};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

/// The database's user, whom this machine does not know.
const OWNER: u32 = 54_321;
/// A version that no machine has programs of.
const VERSION: &str = "97";

fn run(sandbox: &Sandbox, words: &[&str]) -> Output {
    bounded(sandbox.command(words))
}

/// A pool with a database in `tank/prod`, mounted at `home/prod`; all of `home` is the database's user's.
fn with_database() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).unwrap();
    chown(sandbox.dir("home"), Some(OWNER), Some(OWNER)).unwrap();
    sandbox.dir("home/prod");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["dataset", "create", "tank/prod"]);
    sandbox.ok(&["mount", "tank/prod", "home/prod"]);
    let data = sandbox.path("home/prod/data");
    for folder in ["global", "pg_wal", "pg_replslot/slot", "pg_tblspc", "base/1"] {
        fs::create_dir_all(data.join(folder)).unwrap();
    }
    fs::write(data.join("PG_VERSION"), format!("{VERSION}\n")).unwrap();
    fs::write(data.join("postgresql.conf"), "").unwrap();
    let mut control = vec![0; 8192];
    control[..8].copy_from_slice(&77_u64.to_le_bytes());
    control[8..12].copy_from_slice(&1300_u32.to_le_bytes());
    let crc = crc32c::crc32c(&control[..288]);
    control[288..292].copy_from_slice(&crc.to_le_bytes());
    fs::write(data.join("global/pg_control"), control).unwrap();
    let whole =
        Command::new("chown").args(["-R", "54321:6"]).arg(sandbox.path("home/prod")).status().unwrap();
    assert!(whole.success());
    sandbox
}

/// Has the image say of `tank/x` what `set` refuses, as who makes an image can; then mounts it again.
fn plant(sandbox: &Sandbox, properties: &[(&str, &str)]) {
    sandbox.ok(&["unmount", "tank"]);
    let pool = Pool::open(&[sandbox.path("tank.pf")], &OpenOptions::default()).unwrap();
    for (name, value) in properties {
        pool.set_property_of("x", name, Some(value)).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    sandbox.ok(&["mount", "tank/prod", "home/prod"]);
    sandbox.ok(&["mount", "tank/x", "home/prod-x"]);
}

fn datasets(sandbox: &Sandbox) -> Vec<String> {
    let told = sandbox.json(&["list", "-t", "all", "tank"]);
    told["datasets"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn mounts_below(dir: &Path) -> usize {
    let list = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let here = dir.canonicalize().unwrap();
    list.lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|mount| Path::new(mount).starts_with(&here))
        .count()
}

/// A program that writes down how it was run, and says that it is PostgreSQL.
fn telltale(path: &Path, facts: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let script = format!(
        "#!/bin/sh\n{{ echo \"args=$*\"; echo \"uid=$(id -u) gid=$(id -g) groups=$(id -G)\"; echo \"umask=$(umask) pwd=$(pwd)\"; \
         env | sed s/^/env./; grep -E '^(Cap|Sig|NoNew)' /proc/self/status; ls -l /proc/$$/fd | sed s/^/fd./; cut -d' ' -f7,19 /proc/$$/stat; }} \
         >> {} 2>&1\ncase \"$*\" in *--version*) echo 'postgres (PostgreSQL) {VERSION}.0';; *-C*) echo;; *) exit 3;; esac\n",
        facts.display()
    );
    fs::write(path, script).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// A directory that everybody may write facts into.
fn facts(sandbox: &Sandbox) -> PathBuf {
    let dir = sandbox.dir("facts");
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    dir.join("told")
}

#[test]
fn a_branch_is_mounted_where_it_was_meant_or_nowhere() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database();
    let (home, system) = (sandbox.path("home"), sandbox.dir("system"));
    let before = datasets(&sandbox);
    // Beside the dataset that it is of, where its user may plant what he likes.
    symlink(&system, home.join("prod-x")).unwrap();
    lchown(home.join("prod-x"), Some(OWNER), Some(OWNER)).unwrap();
    symlink(system.join("new"), home.join("prod-y")).unwrap();
    symlink(&system, home.join("way")).unwrap();
    let said = |dir: &str| sandbox.path(dir).to_str().unwrap().to_owned();
    let (way, deeper) = (said("home/way"), said("home/way/new/dir"));
    for words in [
        &["tank/prod", "x"][..],
        &["tank/prod", "y"],
        &["tank/prod", "z", "--mountpoint", &way],
        &["tank/prod", "z", "--mountpoint", &deeper],
    ] {
        let words = [&["branch", "create"], words].concat();
        assert_failure(&run(&sandbox, &words), 1, &["is a link in a directory that others may change"]);
        assert_eq!(datasets(&sandbox), before, "{words:?}");
    }
    assert_eq!((mounts_below(&system), fs::read_dir(&system).unwrap().count()), (0, 0));
    // Root removes the directory that it made, and follows no link.
    sandbox.ok(&["branch", "create", "tank/prod", "w"]);
    assert!(home.join("prod-w").is_dir());
    sandbox.ok(&["branch", "delete", "tank/w"]);
    assert!(!home.join("prod-w").exists() && system.exists());
}

#[test]
fn a_branch_in_a_pool_from_elsewhere_is_mounted_where_somebody_here_said() {
    if !can_mount() {
        return;
    }
    // In this order: another mount namespace would keep a copy of what is mounted.
    let (sandbox, maker) = (Sandbox::new(), with_database());
    let wanted = sandbox.dir("wanted");
    maker.ok(&["set", &format!("mountpoint={}", wanted.display()), "tank"]);
    maker.ok(&["export", "tank"]);
    fs::rename(maker.path("tank.pf"), sandbox.path("tank.pf")).unwrap();
    sandbox.ok(&["import", "-d", ".", "tank"]);
    sandbox.dir("home/prod");
    sandbox.ok(&["mount", "tank/prod", "home/prod"]);
    let said = sandbox.path("home/x").to_str().unwrap().to_owned();
    sandbox.ok(&["branch", "create", "tank/prod", "x", "--mountpoint", &said]);
    assert_eq!(mounts_below(&sandbox.path("home")), 2);
    let before = datasets(&sandbox);
    let refused = run(&sandbox, &["branch", "create", "tank/prod", "y"]);
    assert_failure(&refused, 1, &["was not made here", "--adopt"]);
    assert_eq!((datasets(&sandbox), mounts_below(&wanted)), (before, 0));
    sandbox.ok(&["branch", "delete", "tank/x"]);
}

#[test]
fn nothing_that_comes_from_a_pool_is_run() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database();
    let told = facts(&sandbox);
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    let inside = sandbox.path("home/prod-x/bin");
    // Root's own file in the pool, executable, nobody may write: an image can have that.
    for name in ["postgres", "pg_config", "pg_controldata", "id"] {
        telltale(&inside.join(name), &told);
    }
    let options =
        format!("{{\"bindir\":\"{0}\",\"config\":\"{0}/c\",\"settings\":[\"a=b\"]}}", inside.display());
    plant(&sandbox, &[("branch:options", options.as_str())]);
    let started = run(&sandbox, &["branch", "start", "tank/x"]);
    assert_failure(&started, 1, &[]);
    assert!(started.stderr.contains("that is not believed"), "{}", started.stderr);
    assert!(started.stderr.contains("no postgres of PostgreSQL 97"), "{}", started.stderr);
    // Not if root says so by mistake, nor where the search path leads there.
    let folder = inside.to_str().unwrap();
    let named = run(&sandbox, &["branch", "start", "tank/x", "--bindir", folder]);
    assert_failure(&named, 1, &["is not run", folder]);
    sandbox.ok(&["branch", "create", "tank/prod", "y"]);
    let mut command = sandbox.command(&["branch", "start", "tank/y"]);
    command.env("PATH", format!("{folder}:/usr/bin:/bin"));
    assert_failure(&bounded(command), 1, &["no postgres of PostgreSQL 97"]);
    // Nor what lies in a directory of others, or what others may write, or set-user-ID.
    for (dir, owner, mode) in
        [("home/bin", 0, 0o755), ("bin1", OWNER, 0o755), ("bin2", 0, 0o757), ("bin3", 0, 0o4755)]
    {
        let program = sandbox.path(dir).join("postgres");
        telltale(&program, &told);
        chown(&program, Some(owner), None).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let folder = sandbox.path(dir);
        let refused = run(&sandbox, &["branch", "start", "tank/y", "--bindir", folder.to_str().unwrap()]);
        assert_failure(&refused, 1, &["no postgres of PostgreSQL 97"]);
    }
    assert!(!told.exists(), "{}", fs::read_to_string(&told).unwrap());
    assert!(!sandbox.ok(&["get", "all", "tank/y"]).contains("branch:options"));
}

#[test]
fn a_server_gets_its_users_rights_and_nothing_of_roots() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database();
    let told = facts(&sandbox);
    telltale(&sandbox.path("bin/postgres"), &told);
    let bin = sandbox.path("bin");
    let run_it = format!(
        "exec 9>{0}/lock; trap '' INT QUIT CHLD USR1; umask 000; cd {0}; exec nice -n 5 {1} branch create tank/prod x --start --bindir {2}",
        sandbox.path("").display(),
        env!("CARGO_BIN_EXE_pagefold"),
        bin.display()
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &run_it]).envs(sandbox.environment()).stdin(Stdio::null());
    command
        .env("LD_PRELOAD_X", "1")
        .env("PGOPTIONS", "1")
        .env("TMPDIR", "/x")
        .env("BASH_ENV", "/x")
        .env("LANG", "C");
    assert_failure(&bounded(command), 1, &["did not start", "branch start tank/x"]);
    let text = fs::read_to_string(&told).unwrap();
    let runs: Vec<&str> = text.split("args=").filter(|run| !run.is_empty()).collect();
    assert!(runs.len() >= 3 && runs[0].starts_with("--version"), "{text}");
    for run in runs {
        assert!(run.contains("uid=54321 gid=65534 groups=65534\n"), "{run}");
        assert!(run.contains("umask=0077 pwd=/\n"), "{run}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(run.contains(&format!("{set}:\t0000000000000000")), "{run}");
        }
        let files: Vec<&str> = run.lines().filter(|line| line.starts_with("fd.")).collect();
        let ours = |line: &str| line.ends_with("/lock") || line.ends_with(".pf") || line.ends_with("/fuse");
        assert!(files.len() > 3 && !files.iter().any(|line| ours(line)), "{run}");
        assert!(run.contains("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000"), "{run}");
        for line in run.lines().filter_map(|line| line.strip_prefix("env.")) {
            let name = line.split('=').next().unwrap();
            assert!(
                ["PATH", "LANG", "LC_ALL", "TZ", "PWD", "SHLVL", "_", "OLDPWD"].contains(&name),
                "{line}"
            );
        }
        // No terminal, and not nice.
        assert!(run.lines().any(|line| line == "0 0"), "{run}");
    }
    // A user of the machine's who has nothing to do with databases, by the image's choice.
    sandbox.ok(&["branch", "delete", "tank/x"]);
    fs::remove_file(&told).unwrap();
    sandbox.ok(&["branch", "create", "tank/prod", "z"]);
    chown(sandbox.path("home/prod-z/data"), Some(1), Some(6)).unwrap();
    let bin = bin.to_str().unwrap();
    let refused = run(&sandbox, &["branch", "start", "tank/z", "--bindir", bin]);
    assert_failure(&refused, 1, &["--user daemon"]);
    assert!(!told.exists());
    assert_failure(&run(&sandbox, &["branch", "start", "tank/z", "--user", "daemon"]), 1, &["did not start"]);
    let text = fs::read_to_string(&told).unwrap();
    assert!(text.contains("uid=1 ") && !text.contains(" 6 ") && !text.contains(" 6\n"), "{text}");
}

#[test]
fn what_a_data_directory_holds_neither_leads_out_nor_hangs() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database();
    let outside = sandbox.dir("outside");
    fs::write(outside.join("state"), "precious").unwrap();
    let secret = sandbox.path("secret");
    fs::write(&secret, "15\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    let data = sandbox.path("home/prod/data");
    let at = |name: &str| data.join(name);
    let replace = |name: &str, make: &dyn Fn(&Path)| {
        let (path, aside) = (at(name), sandbox.path("home/prod/aside"));
        let was = fs::rename(&path, &aside).is_ok();
        make(&path);
        let created = run(&sandbox, &["branch", "create", "tank/prod", "y"]);
        let text = format!("{}{}", created.stdout, created.stderr);
        assert!(!text.contains("precious"), "{name}: {text}");
        if created.status.success() {
            let _ = run(&sandbox, &["branch", "start", "tank/y"]);
            sandbox.ok(&["branch", "delete", "tank/y"]);
        }
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        if was {
            fs::rename(&aside, &path).unwrap();
        }
        assert_eq!(fs::read(outside.join("state")).unwrap(), b"precious", "{name}");
    };
    let fifo = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let tty = |path: &Path| {
        mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 5)).unwrap();
    };
    for name in
        ["PG_VERSION", "global/pg_control", "postgresql.conf", "postmaster.pid", "standby.signal", "ibdata1"]
    {
        replace(name, &fifo);
        replace(name, &tty);
        replace(name, &|path| symlink(&secret, path).unwrap());
        replace(name, &|path| symlink("/proc/self/fd/0", path).unwrap());
        replace(name, &|path| drop(UnixListener::bind(path)));
    }
    for name in ["pg_replslot", "pg_wal", "base", "pg_tblspc", "base/1", "global"] {
        replace(name, &|path| symlink(&outside, path).unwrap());
        replace(name, &|path| symlink("../../../../outside", path).unwrap());
        replace(name, &fifo);
    }
    replace("pg_replslot/slot", &|path| symlink(&outside, path).unwrap());
    // Directories that go down for ever, and names that are none.
    let mut deep = sandbox.path("home/prod/deep");
    for _ in 0..14 {
        deep.push("d".repeat(250));
        fs::create_dir_all(&deep).unwrap();
    }
    fs::create_dir(sandbox.path("home/prod").join(std::ffi::OsStr::from_bytes(b"\xff\x1b[2J"))).unwrap();
    let created = run(&sandbox, &["branch", "create", "tank/prod", "y"]);
    assert!(created.status.success() && !created.stderr.contains('\x1b'), "{}", created.stderr);
    // The socket that is asked whether the server answers is the data directory's, not one that a link leads to.
    let roots = UnixListener::bind(sandbox.path("roots.sock")).unwrap();
    roots.set_nonblocking(true).unwrap();
    let listed = run(&sandbox, &["branch", "list"]);
    assert!(listed.status.success() && roots.accept().is_err(), "{}", listed.stderr);
}

#[test]
fn records_of_a_hostile_image_are_refused_or_shown_harmlessly() {
    if !can_mount() {
        return;
    }
    let sandbox = with_database();
    sandbox.ok(&["branch", "create", "tank/prod", "x"]);
    let set = |properties: &[(&str, &str)]| plant(&sandbox, properties);
    set(&[("branch:version", "15\x1b]0;owned\x07"), ("branch:lsn", "\x1b[2J0/0")]);
    for words in [&["branch", "list"][..], &["branch", "list", "-H"], &["branch", "list", "--json"]] {
        let told = run(&sandbox, words);
        assert!(told.status.success() && !told.stdout.contains('\x1b'), "{words:?}: {:?}", told.stdout);
    }
    for data in ["../prod/data", "/etc", "..", "data/../../../etc", "../../../../etc"] {
        set(&[("branch:data", data)]);
        assert!(!run(&sandbox, &["branch", "start", "tank/x"]).status.success(), "{data}");
        assert!(run(&sandbox, &["branch", "list"]).status.success());
    }
    for (name, value) in [("port", "22"), ("port", "-1"), ("database", "sh"), ("port", "99999999999")] {
        let sound = [("branch:data", "data"), ("branch:database", "postgresql"), ("branch:port", "15432")];
        let wrong = format!("branch:{name}");
        set(&[&sound[..], &[(wrong.as_str(), value)]].concat());
        assert_failure(&run(&sandbox, &["branch", "start", "tank/x"]), 1, &[name]);
    }
}
