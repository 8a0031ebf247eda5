//! Bad devices, bad mount points, no permission: what is told, and that nothing is changed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::{Output, Sandbox, assert_failure, can_mount};

const SIZE: u64 = 160 << 20;
/// Each reserved place of a device; a label is its first block (docs/FORMAT.md).
const RESERVED: u64 = 1 << 20;
/// Where the second one lies.
const SECOND: u64 = 129 << 20;
const RING: u64 = 64 << 10;

fn with_pool(name: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    add_pool(&sandbox, name);
    sandbox.dir("mnt");
    sandbox
}

fn add_pool(sandbox: &Sandbox, name: &str) {
    let size = SIZE.to_string();
    sandbox.ok(&["create", name, &format!("{name}.pf"), "--size", &size]);
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Everything that is not a hole.
fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// Runs the program, which must fail without changing the file.
#[track_caller]
fn refused(sandbox: &Sandbox, file: &Path, words: &[&str], texts: &[&str]) {
    let before = contents(file);
    assert_failure(&sandbox.run(words), 1, texts);
    assert!(contents(file) == before, "{words:?} changed {}", file.display());
}

#[test]
fn what_is_no_pool() {
    let sandbox = with_pool("tank");
    let path = sandbox.path("thesis");
    open_new(&path, SIZE).write_all_at(b"my thesis", 0).unwrap();
    refused(&sandbox, &path, &["mount", "./thesis", "mnt"], &["thesis", "no Pagefold pool"]);
    refused(&sandbox, &path, &["check", "-d", "thesis"], &["no Pagefold pool"]);
    refused(&sandbox, &path, &["create", "new", "thesis"], &["holds data of an unknown kind", "-f"]);
    assert_failure(&sandbox.run(&["mount", "/dev/null", "mnt"]), 1, &["/dev/null"]);
    assert_failure(&sandbox.run(&["create", "new", "/dev/null"]), 1, &["neither a file nor a block device"]);
    assert_failure(&sandbox.run(&["create", "new", "mnt"]), 1, &["neither a file nor a block device"]);
    assert_failure(&sandbox.run(&["mount", "./missing", "mnt"]), 1, &["missing"]);
}

#[test]
fn what_holds_a_file_system_or_a_pool_is_not_overwritten() {
    let sandbox = with_pool("tank");
    let path = sandbox.path("ext4.img");
    open_new(&path, SIZE).write_all_at(&[0x53, 0xEF], 0x438).unwrap();
    refused(
        &sandbox,
        &path,
        &["create", "new", "ext4.img"],
        &["holds an ext2, ext3 or ext4 file system", "-f"],
    );
    sandbox.ok(&["create", "-f", "new", "ext4.img"]);
    refused(&sandbox, &sandbox.path("tank.pf"), &["create", "other", "tank.pf"], &["holds pool tank", "-f"]);
    refused(
        &sandbox,
        &sandbox.path("tank.pf"),
        &["create", "tank", "x.pf", "--size", "1G"],
        &["named tank is known already"],
    );
    assert!(!sandbox.path("x.pf").exists());
}

fn open_new(path: &Path, size: u64) -> File {
    let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
    file.set_len(size).unwrap();
    file
}

#[test]
fn sizes_that_make_no_sense() {
    let sandbox = Sandbox::new();
    assert_failure(&sandbox.run(&["create", "new", "a", "--size", "1M"]), 2, &["too small"]);
    assert_failure(
        &sandbox.run(&["create", "new", "a", "--size", "8E"]),
        1,
        &["cannot fit into the file system"],
    );
    assert_failure(&sandbox.run(&["create", "new", "a"]), 1, &["does not exist", "--size 10G"]);
    assert_failure(&sandbox.run(&["create", "new", "no/dir/a", "--size", "1G"]), 1, &["no/dir"]);
    assert!(!sandbox.path("a").exists());
    open_new(&sandbox.path("small"), 4 << 20);
    assert_failure(&sandbox.run(&["create", "new", "small"]), 1, &["small"]);
    assert_failure(&sandbox.run(&["create", "new", "small", "b", "--size", "1G"]), 1, &["small"]);
    assert!(!sandbox.path("b").exists(), "a file that was made for a pool that was not stays");
    assert_failure(&sandbox.run(&["create", "new", "b", "./b", "--size", "1G"]), 2, &["given twice"]);
}

#[test]
fn a_pool_of_a_newer_format() {
    let sandbox = with_pool("tank");
    let path = sandbox.path("tank.pf");
    let file = open(&path);
    for at in [0, SECOND] {
        let mut label = vec![0; 4096];
        file.read_exact_at(&mut label, at).unwrap();
        assert_eq!(&label[..8], b"PAGEFOLD");
        label[8..12].copy_from_slice(&99u32.to_le_bytes());
        let sum = crc32c::crc32c(&label[..4092]);
        label[4092..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&label, at).unwrap();
    }
    refused(&sandbox, &path, &["mount", "tank", "mnt"], &["tank", "version", "newer"]);
    refused(&sandbox, &path, &["mount", "./tank.pf", "mnt"], &["version", "newer"]);
    refused(&sandbox, &path, &["create", "new", "tank.pf"], &["holds a pool of another version of pagefold"]);
}

#[test]
fn a_device_that_is_gone_truncated_or_of_another_pool() {
    let sandbox = with_pool("tank");
    add_pool(&sandbox, "dozer");
    let (tank, dozer) = (sandbox.path("tank.pf"), sandbox.path("dozer.pf"));
    fs::rename(&tank, sandbox.path("away")).unwrap();
    assert_failure(
        &sandbox.run(&["mount", "tank", "mnt"]),
        1,
        &["tank.pf", "does not exist", "pagefold import -d"],
    );
    let listed = sandbox.run(&["list", "tank"]);
    assert!(!listed.status.success() && listed.stdout.contains("UNAVAIL"));
    let told = sandbox.run(&["status", "tank"]);
    assert!(told.stdout.contains("does not exist"));
    assert_failure(&told, 1, &["does not exist"]);
    fs::copy(&dozer, &tank).unwrap();
    refused(&sandbox, &tank, &["mount", "tank", "mnt"], &["now hold pool dozer"]);
    refused(&sandbox, &tank, &["destroy", "-f", "tank"], &["does not hold it", "nothing was changed"]);
    fs::rename(sandbox.path("away"), &tank).unwrap();
    // The advice helps as far as anything can.
    let remedy = format!("truncate -s {SIZE} ");
    open(&tank).set_len(SIZE - (8 << 20)).unwrap();
    refused(&sandbox, &tank, &["mount", "tank", "mnt"], &["it was truncated", &remedy]);
    refused(&sandbox, &tank, &["mount", "-o", "rescue", "tank", "mnt"], &[&remedy]);
    open(&tank).set_len(SIZE).unwrap();
    sandbox.ok(&["check", "tank"]);
    open(&tank).set_len(SIZE / 2).unwrap();
    refused(&sandbox, &tank, &["mount", "tank", "mnt"], &["tank.pf is too small"]);
    assert_failure(&sandbox.run(&["export", "tank"]), 1, &["export -f tank"]);
    sandbox.ok(&["export", "-f", "tank"]);
    assert_failure(&sandbox.run(&["list", "tank"]), 1, &["there is no pool \"tank\"", "known pools: dozer"]);
}

#[test]
fn any_label_or_ring_of_superblocks_may_be_lost() {
    let sandbox = with_pool("tank");
    let path = sandbox.path("tank.pf");
    let whole = contents(&path);
    for at in [0, RING, SECOND, SECOND + RING] {
        let file = open(&path);
        let len = if at.is_multiple_of(RESERVED) { 4096 } else { RESERVED - RING };
        file.write_all_at(&vec![0xA5; usize::try_from(len).unwrap()], at).unwrap();
        drop(file);
        assert!(sandbox.ok(&["import", "-d", "."]).contains("tank"), "not found without what was at {at}");
        let label = at.is_multiple_of(RESERVED);
        if label {
            let told = sandbox.run(&["check", "tank"]);
            assert_failure(&told, 1, &["tank is damaged: 1 error\n", "pagefold scrub --wait tank"]);
            assert!(told.stdout.contains(&format!("label at byte {at} of ")), "{}", told.stdout);
        }
        // It is written again: by a scrub, or by every opening.
        if label && can_mount() {
            sandbox.ok(&["mount", "tank", "mnt"]);
            assert!(sandbox.ok(&["scrub", "--wait", "tank"]).contains("1 repaired"));
            sandbox.ok(&["unmount", "tank"]);
        }
        if !label || can_mount() {
            sandbox.ok(&["check", "tank"]);
        }
        open(&path).write_all_at(&whole, 0).unwrap();
        sandbox.ok(&["import", "--accept-older", "-d", "tank.pf", "tank"]);
    }
    let file = open(&path);
    for at in [0, SECOND] {
        file.write_all_at(&vec![0xA5; 1 << 20], at).unwrap();
    }
    refused(&sandbox, &path, &["check", "tank"], &["tank.pf"]);
}

#[test]
fn mount_points_that_cannot_be_used() {
    let sandbox = with_pool("tank");
    let pool = sandbox.path("tank.pf");
    fs::write(sandbox.path("file"), "").unwrap();
    fs::write(sandbox.dir("full").join("x"), "").unwrap();
    refused(&sandbox, &pool, &["mount", "tank", "nowhere/at/all"], &["neither does", "mkdir -p"]);
    refused(&sandbox, &pool, &["mount", "tank", "file"], &["file is not a directory"]);
    refused(&sandbox, &pool, &["mount", "tank", "full"], &["full is not empty", "nonempty"]);
    refused(&sandbox, &pool, &["mount", "tank", "/proc"], &["/proc is a mount point already"]);
    let unknown = sandbox.run(&["mount", "tank/data", "mnt"]);
    assert_failure(&unknown, 1, &["there is no dataset tank/data", "pagefold list -t all tank"]);
}

#[test]
fn a_pool_that_is_in_use() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sandbox = with_pool("tank");
    sandbox.dir("other");
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_failure(
        &sandbox.run(&["mount", "tank", "mnt"]),
        1,
        &["mounted already at", "mnt", "pagefold unmount tank"],
    );
    assert_failure(&sandbox.run(&["mount", "./tank.pf", "mnt"]), 1, &["mounted already"]);
    assert_failure(&sandbox.run(&["check", "tank"]), 1, &["mounted", "pagefold unmount"]);
    assert_failure(&sandbox.run(&["create", "-f", "new", "tank.pf"]), 1, &["tank.pf"]);
    assert!(sandbox.ok(&["import", "-d", "."]).contains("INUSE"));
    // Another system (with its own pool cache) that reaches the same device.
    let elsewhere = Sandbox::new();
    elsewhere.dir("mnt");
    let device = sandbox.path("tank.pf");
    let result = elsewhere.run(&["mount", device.to_str().unwrap(), "mnt"]);
    assert_failure(&result, 1, &["tank"]);
    assert!(sandbox.ok(&["list", "tank"]).contains("ONLINE"));
    add_pool(&sandbox, "dozer");
    assert_failure(&sandbox.run(&["mount", "dozer", "mnt"]), 1, &["mnt is a mount point already"]);
}

#[test]
fn a_full_pool_says_so_and_still_deletes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sandbox = with_pool("tank");
    sandbox.ok(&["mount", "tank", "mnt"]);
    let mut noise = vec![0; 4 << 20];
    let mut state = 1u64;
    let mut files = 0u32;
    let error = loop {
        for word in noise.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        match fs::write(sandbox.path(&format!("mnt/{files}")), &noise) {
            Ok(()) => files += 1,
            Err(error) => break error,
        }
        assert!(files < 40, "160 MiB took more than 160 MiB");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    let free = || sandbox.json(&["df"])["pools"][0]["available_bytes"].as_u64().unwrap();
    let before = free();
    for file in 0..files / 2 {
        fs::remove_file(sandbox.path(&format!("mnt/{file}"))).unwrap();
    }
    sandbox.ok(&["sync", "tank"]);
    for _ in 0..200 {
        if free() > before + u64::from(files / 4) * (4 << 20) {
            fs::write(sandbox.path("mnt/again"), &noise).unwrap();
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("space does not come back: {before} before, {} after", free());
}

#[test]
fn without_fuse_it_says_what_is_missing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sandbox = with_pool("tank");
    // A mount namespace with a /dev that has no fuse.
    let script = format!(
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec {} mount tank mnt",
        env!("CARGO_BIN_EXE_pagefold")
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .envs(sandbox.environment())
        .current_dir(sandbox.path(""))
        .output()
        .unwrap();
    assert_failure(&told(&output), 1, &["/dev/fuse does not exist", "modprobe fuse"]);
    sandbox.ok(&["check", "tank"]);
}

#[test]
fn without_permission_it_says_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sandbox = with_pool("tank");
    let nobody = |words: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_pagefold")])
            .args(words)
            .env("PAGEFOLD_STATE_DIR", "/tmp/pagefold-nobody-has-none")
            .env("PAGEFOLD_RUNTIME_DIR", "/tmp/pagefold-nobody-has-none")
            .output();
        told(&output.unwrap())
    };
    let device = sandbox.path("tank.pf");
    let device = device.to_str().unwrap();
    for words in [&["mount", device, "/mnt"][..], &["create", "new", device], &["check", "-d", device]] {
        assert_failure(&nobody(words), 1, &["ermission"]);
    }
    // A repository below a directory that is closed is not said to be missing.
    fs::set_permissions(sandbox.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let closed = sandbox.path("closed");
    let repository = closed.join("backups/r");
    let repository = repository.to_str().unwrap();
    sandbox.ok(&["backup", "init", repository, "--unencrypted"]);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let output = nobody(&["backup", "list", repository]);
    let closed = format!("you may not enter {};", closed.display());
    assert_failure(&output, 1, &["cannot look at the directory", "ermission", &closed]);
    assert!(!output.stderr.contains("make one"), "{}", output.stderr);
    // A file is not said to be missing either.
    let output = sandbox.run(&["backup", "list", device]);
    assert_failure(&output, 2, &["tank.pf is not a directory"]);
}

fn told(output: &std::process::Output) -> Output {
    Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
