//! Names of any bytes in every output: of files, directories of mounts, devices. Nothing panics, no line is broken, nothing is lost:
//! what JSON and `-H` tell is the name to the byte.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Sandbox, can_mount, kill_to_the_end, wait_until};
use serde_json::Value;

/// Names that a directory may have.
fn names() -> Vec<Vec<u8>> {
    vec![
        b"new\nline".to_vec(),
        b"t\tab".to_vec(),
        b"e\x1b[2Jscape".to_vec(),
        b"\xff".to_vec(),
        b"half\xc3".to_vec(),
        b"back\\slash".to_vec(),
        "t\u{e4}st \u{10ff41}".as_bytes().to_vec(),
        vec![b'x'; 255],
        vec![0xfe; 255],
    ]
}

fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// The name in field `name` of an object, to the byte.
fn exact(object: &Value, name: &str) -> Vec<u8> {
    match object.get(format!("{name}_bytes")).and_then(Value::as_str) {
        Some(hex) => {
            let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            assert!(std::str::from_utf8(&bytes).is_err(), "JSON could have it: {object}");
            assert_eq!(object[name].as_str().unwrap(), String::from_utf8_lossy(&bytes));
            bytes
        }
        None => object[name].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// Unescapes a cell of `-H` as `printf %b` does.
fn unescaped(cell: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = cell.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, after) = match (first, tail) {
            (b'\\', [b'n', ..]) => (b'\n', &tail[1..]),
            (b'\\', [b't', ..]) => (b'\t', &tail[1..]),
            (b'\\', [b'\\', ..]) => (b'\\', &tail[1..]),
            (b'\\', [b'x', ..]) => {
                let digits = std::str::from_utf8(&tail[1..3]).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), &tail[3..])
            }
            (b'\\', _) => panic!("no escape that is known: {cell}"),
            (byte, _) => (*byte, tail),
        };
        bytes.push(byte);
        rest = after;
    }
    bytes
}

/// Runs the program, which has to succeed and may print nothing that moves a cursor.
#[track_caller]
fn ok(sandbox: &Sandbox, words: &[&OsStr]) -> String {
    let output = sandbox.command(words).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {err}");
    assert!(!err.contains("panicked"), "{err}");
    assert!(!out.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{words:?}: {out:?}");
    out
}

#[track_caller]
fn json(sandbox: &Sandbox, words: &[&OsStr]) -> Value {
    let mut words = words.to_vec();
    words.push(OsStr::new("--json"));
    serde_json::from_str(&ok(sandbox, &words)).unwrap()
}

fn words(text: &str) -> Vec<&OsStr> {
    text.split(' ').map(OsStr::new).collect()
}

/// The sorted names of files below `dir` that are told, each with its whole path in `told`.
fn last_parts(told: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = told
        .into_iter()
        .map(|path| PathBuf::from(os(&path)).file_name().unwrap().as_bytes().to_vec())
        .collect();
    parts.sort();
    parts
}

fn sorted(mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.sort();
    names
}

#[test]
fn files() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("io_uring=off");
    let mnt = sandbox.path("mnt");
    for name in names() {
        fs::write(mnt.join(os(&name)), b"a row\n".repeat(4000)).unwrap();
    }
    let du = json(&sandbox, &words("du -a mnt"));
    let lines = du["lines"].as_array().unwrap();
    assert_eq!(last_parts(lines.iter().map(|line| exact(line, "path"))), sorted(names()));
    json(&sandbox, &words("du --pages mnt"));
    let script = ok(&sandbox, &words("du -aH mnt"));
    let cells = script.lines().map(|line| unescaped(line.split('\t').next_back().unwrap()));
    assert_eq!(last_parts(cells), sorted(names()));
    assert_eq!(
        ok(&sandbox, &words("du -a mnt")).lines().count(),
        names().len() + 3,
        "heading, one size, total"
    );
    let report = json(&sandbox, &words("analyze -a mnt"));
    let files = report["files"].as_array().unwrap();
    assert_eq!(last_parts(files.iter().map(|file| exact(file, "path"))), sorted(names()));
    ok(&sandbox, &words("analyze -a mnt"));
    for name in names() {
        let path = mnt.join(os(&name));
        let one = json(&sandbox, &[OsStr::new("du"), "-s".as_ref(), path.as_ref()]);
        assert_eq!(exact(&one["lines"][0], "path"), path.as_os_str().as_bytes());
        ok(&sandbox, &[OsStr::new("fold"), path.as_ref()]);
    }
    differences(&sandbox);
    streams(&sandbox);
    ok(&sandbox, &words("unmount tank"));
    ok(&sandbox, &words("check tank"));
}

/// Every file renamed, and one more changed on both sides of a clone.
fn differences(sandbox: &Sandbox) {
    ok(sandbox, &words("dataset create tank/db"));
    sandbox.dir("db");
    ok(sandbox, &words("mount tank/db db"));
    let file = |dir: &str, name: &[u8]| sandbox.path(dir).join(os(name));
    names().iter().for_each(|name| fs::write(file("db", name), "one").unwrap());
    ok(sandbox, &words("snapshot tank/db@one"));
    ok(sandbox, &words("clone tank/db@one tank/clone"));
    names().iter().for_each(|name| fs::write(file("db", name), "other").unwrap());
    ok(sandbox, &words("snapshot tank/db@two"));
    fs::create_dir(sandbox.path("db/to")).unwrap();
    names().iter().for_each(|name| fs::rename(file("db", name), file("db/to", name)).unwrap());
    let diff = json(sandbox, &words("diff tank/db@two tank/db"));
    let of = |change: &str, field: &str| {
        let all = diff["differences"].as_array().unwrap().iter().filter(|one| one["change"] == change);
        last_parts(all.map(|one| exact(one, field)))
    };
    assert_eq!((of("renamed", "path"), of("renamed", "from")), (sorted(names()), sorted(names())));
    assert_eq!(ok(sandbox, &words("diff tank/db@two tank/db")).lines().count(), names().len() + 1);
    sandbox.dir("clone");
    ok(sandbox, &words("mount tank/clone clone"));
    names().iter().for_each(|name| fs::write(file("clone", name), "third").unwrap());
    ok(sandbox, &words("unmount tank/clone"));
    let output = sandbox.command(&words("rebase tank/clone tank/db@two --json")).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let conflicts = told["conflicts"].as_array().unwrap();
    assert_eq!(conflicts.len(), names().len(), "{told}");
    let bytes = told["conflicts_bytes"].as_array().unwrap();
    assert_eq!(bytes.iter().filter(|bytes| bytes.is_string()).count(), 3, "{told}");
    let output = sandbox.run(&words("rebase tank/clone tank/db@two"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.stdout.lines().chain(output.stderr.lines()).any(|line| line.contains("half\\xc3")),
        "{}",
        output.stdout
    );
    ok(sandbox, &words("unmount tank/db"));
}

fn streams(sandbox: &Sandbox) {
    let stream = fs::File::create(sandbox.path("stream")).unwrap();
    let sent = sandbox.command(&words("send tank/db@one")).stdout(Stdio::from(stream)).status().unwrap();
    assert!(sent.success());
    let stream = fs::File::open(sandbox.path("stream")).unwrap();
    let received =
        sandbox.command(&words("receive tank/copy --json")).stdin(Stdio::from(stream)).output().unwrap();
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    sandbox.dir("copy");
    ok(sandbox, &words("mount tank/copy copy"));
    let found =
        fs::read_dir(sandbox.path("copy")).unwrap().map(|entry| entry.unwrap().file_name().into_vec());
    let found: Vec<Vec<u8>> = found.filter(|name| name != b".pagefold").collect();
    assert_eq!(sorted(found), sorted(names()));
    ok(sandbox, &words("unmount tank/copy"));
}

/// A pool in a file of such a name, mounted at a directory of such a name.
#[test]
fn devices_and_directories() {
    if !can_mount() {
        return;
    }
    for name in [&b"p\xffq"[..], b"new\nline\t", b"e\x1bscape", "t\u{e4}st".as_bytes()] {
        let sandbox = Sandbox::new();
        let dir = sandbox.path("").canonicalize().unwrap().join(os(name));
        fs::create_dir(&dir).unwrap();
        let (device, mnt, below) = (dir.join(os(name)), dir.join("mnt"), dir.join("below"));
        fs::create_dir(&mnt).unwrap();
        fs::create_dir(&below).unwrap();
        let path = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let create =
            [OsStr::new("create"), "tank".as_ref(), device.as_ref(), "--size".as_ref(), "256M".as_ref()];
        ok(&sandbox, &create);
        ok(&sandbox, &words("dataset create tank/db"));
        for options in ["takeover=on", "takeover=off"] {
            ok(
                &sandbox,
                &[OsStr::new("mount"), "-o".as_ref(), options.as_ref(), "tank".as_ref(), mnt.as_ref()],
            );
            ok(&sandbox, &[OsStr::new("mount"), "tank/db".as_ref(), below.as_ref()]);
            fs::write(mnt.join("file"), "x").unwrap();
            let status = json(&sandbox, &[OsStr::new("status"), mnt.as_ref()]);
            let pool = &status["pools"][0];
            assert_eq!(exact(&pool["devices"][0], "path"), path(&device));
            assert_eq!(exact(&pool["mounts"][0], "dir"), path(&mnt));
            let listed = json(&sandbox, &words("list -t all tank"));
            assert_eq!(exact(&listed["datasets"][0], "mounted"), path(&mnt));
            for verb in ["list", "status", "df", "list -t all", "list -H", "get all", "iostat", "events tank"]
            {
                ok(&sandbox, &words(verb));
            }
            let mut command = sandbox.command(&words("events tank --json"));
            for line in String::from_utf8(command.output().unwrap().stdout).unwrap().lines() {
                serde_json::from_str::<Value>(line).unwrap();
            }
            if options == "takeover=on" {
                let server = pool["pid"].as_i64().unwrap();
                kill_to_the_end(i32::try_from(server).unwrap());
                wait_until(|| fs::read(mnt.join("file")).is_ok_and(|text| text == b"x"));
                assert_eq!(
                    exact(&json(&sandbox, &words("status"))["pools"][0]["mounts"][1], "dir"),
                    path(&below)
                );
            }
            let again = sandbox.run(&[OsStr::new("mount"), "tank".as_ref(), below.as_ref()]);
            assert_eq!(again.status.code(), Some(1));
            assert!(!again.stderr.contains(['\u{fffd}', '\u{10ffff}']), "{:?}", again.stderr);
            ok(&sandbox, &[OsStr::new("unmount"), below.as_ref()]);
            ok(&sandbox, &[OsStr::new("unmount"), mnt.as_ref()]);
        }
        ok(&sandbox, &words("export tank"));
        let found = json(&sandbox, &[OsStr::new("import"), "-d".as_ref(), dir.as_ref()]);
        let found = &found["pools"][0];
        match found.get("devices_bytes") {
            Some(bytes) => assert!(bytes[0].is_string() && std::str::from_utf8(name).is_err(), "{found}"),
            None => assert_eq!(found["devices"][0].as_str().unwrap().as_bytes(), path(&device)),
        }
        for verb in ["import", "import -H"] {
            let mut words = words(verb);
            words.extend([OsStr::new("-d"), dir.as_ref()]);
            ok(&sandbox, &words);
        }
        ok(&sandbox, &[OsStr::new("import"), "-d".as_ref(), dir.as_ref(), "tank".as_ref()]);
        ok(&sandbox, &[OsStr::new("check"), device.as_ref()]);
        // By its property, too.
        let mut mountpoint = OsString::from("mountpoint=");
        mountpoint.push(&mnt);
        ok(&sandbox, &[OsStr::new("set"), &mountpoint, "tank".as_ref()]);
        let told = json(&sandbox, &words("get mountpoint tank"));
        assert_eq!(exact(&told["properties"][0], "value"), path(&mnt));
        ok(&sandbox, &words("mount tank"));
        assert_eq!(fs::read(mnt.join("file")).unwrap(), b"x");
        ok(&sandbox, &words("unmount tank"));
    }
}

/// Makes the files by which a data directory is recognised; its owner is not root.
fn database(dir: &Path) {
    for folder in ["global", "pg_wal", "pg_tblspc", "base/1"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join("PG_VERSION"), "15\n").unwrap();
    fs::write(dir.join("postgresql.conf"), "").unwrap();
    let mut control = vec![0; 8192];
    control[8..12].copy_from_slice(&1300_u32.to_le_bytes());
    let crc = crc32c::crc32c(&control[..288]);
    control[288..292].copy_from_slice(&crc.to_le_bytes());
    fs::write(dir.join("global/pg_control"), control).unwrap();
    std::os::unix::fs::chown(dir, Some(54_321), Some(54_321)).unwrap();
}

#[test]
fn branches() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("prod");
    ok(&sandbox, &words("create tank tank.pf --size 256M"));
    ok(&sandbox, &words("dataset create tank/prod"));
    ok(&sandbox, &words("mount tank/prod prod"));
    database(&sandbox.path("prod/data"));
    let dir = sandbox.path("").canonicalize().unwrap().join(os(b"bran\xff\nch"));
    fs::create_dir(&dir).unwrap();
    let words_of = ["branch", "create", "tank/prod", "x", "--mountpoint"].map(OsStr::new);
    let made = json(&sandbox, &[&words_of[..], &[dir.as_ref()]].concat());
    assert_eq!(exact(&made, "mounted"), dir.as_os_str().as_bytes());
    ok(&sandbox, &words("branch list"));
    ok(&sandbox, &words("branch list -H"));
    let listed = json(&sandbox, &words("branch list"));
    assert_eq!(exact(&listed["branches"][0], "mounted"), dir.as_os_str().as_bytes());
    assert_eq!(exact(&listed["branches"][0], "mountpoint"), dir.as_os_str().as_bytes());
    ok(&sandbox, &words("unmount tank/x"));
    ok(&sandbox, &words("mount tank/x"));
    assert!(dir.join("data/PG_VERSION").exists());
    ok(&sandbox, &words("branch delete tank/x"));
    ok(&sandbox, &words("unmount tank"));
}

#[test]
fn names_of_datasets_and_pools_are_texts() {
    let sandbox = Sandbox::new();
    ok(&sandbox, &words("create tank tank.pf --size 256M"));
    for name in [&b"tank/x\xff"[..], b"tank/x@\xff", b"\xff"] {
        let output = sandbox.run(&[OsStr::new("snapshot"), &os(name)]);
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr);
        assert!(output.stderr.contains("\\xff") && !output.stderr.contains('\u{fffd}'), "{}", output.stderr);
        let output = sandbox.run(&[OsStr::new("dataset"), "create".as_ref(), &os(name)]);
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr);
    }
    // A user's property may have any value, and comes back to the byte.
    ok(&sandbox, &[OsStr::new("set"), &os(b"a:b=\xff\n"), "tank".as_ref()]);
    assert_eq!(exact(&json(&sandbox, &words("get a:b tank"))["properties"][0], "value"), b"\xff\n");
}
