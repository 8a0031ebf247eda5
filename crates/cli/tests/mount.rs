//! Pools from creation to destruction, with real mounts. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, signal, wait_until};

const POOL_SIZE: &str = "256M";

/// A sandbox with a pool `tank` in the file `tank.pf`, and a directory `mnt`.
fn with_pool() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", POOL_SIZE, "-o", "compression=zstd"]);
    sandbox
}

fn mounted() -> Sandbox {
    let sandbox = with_pool();
    // Servers that are killed here are to be dead.
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    sandbox
}

fn server_pid(sandbox: &Sandbox) -> i32 {
    let pid = sandbox.json(&["status", "tank"])["pools"][0]["mount"]["pid"].as_i64().unwrap();
    i32::try_from(pid).unwrap()
}

fn state(sandbox: &Sandbox) -> String {
    sandbox.json(&["list", "tank"])["pools"][0]["state"].as_str().unwrap().to_owned()
}

/// Kills the server and waits until the kernel has seen it go.
fn crash(sandbox: &Sandbox) {
    kill_to_the_end(server_pid(sandbox));
    wait_until(|| fs::read_dir(sandbox.path("mnt")).is_err());
}

/// Rows of text: they compress.
fn rows(count: usize) -> Vec<u8> {
    (0..count).flat_map(|n| format!("row {n} of a table that compresses well\n").into_bytes()).collect()
}

#[test]
fn a_pool_lives_from_creation_to_destruction() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    assert_eq!(state(&sandbox), "EXPORTED");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(state(&sandbox), "ONLINE");
    let data = rows(50_000);
    fs::write(sandbox.path("mnt/table"), &data).unwrap();

    let du = sandbox.json(&["du", "-a", "mnt"]);
    let total = &du["total"];
    assert_eq!(total["size_bytes"].as_u64().unwrap(), data.len() as u64);
    assert_eq!(total["logical_bytes"].as_u64().unwrap(), data.len() as u64);
    let stored = total["stored_bytes"].as_u64().unwrap();
    assert!(stored > 0 && stored * 3 < data.len() as u64, "{stored} of {}", data.len());
    assert_eq!(du["lines"][0]["path"], "mnt/table");

    let df = sandbox.json(&["df", "mnt"]);
    assert!(df["pools"][0]["used_bytes"].as_u64().unwrap() >= stored);
    assert!(df["pools"][0]["write_amplification"].as_f64().unwrap() > 0.0);
    assert_eq!(df["pools"][0]["mount"]["dir"].as_str().unwrap(), sandbox.path("mnt").to_str().unwrap());
    let iostat = sandbox.json(&["iostat", "tank"]);
    let counters = iostat["pools"][0]["counters"].as_array().unwrap();
    let written = counters.iter().find(|counter| counter["name"] == "application_write").unwrap();
    assert!(written["bytes"].as_u64().unwrap() >= data.len() as u64);
    let rewritten = |sandbox: &Sandbox| {
        let rewrites = sandbox.json(&["iostat", "tank"])["pools"][0]["rewrites"].clone();
        let of =
            rewrites.as_array().unwrap().iter().find(|of| of["name"] == "rewritten_other").unwrap().clone();
        let counted =
            of["lengths"].as_array().unwrap().iter().map(|length| length["operations"].as_u64().unwrap());
        assert_eq!(counted.sum::<u64>(), of["operations"].as_u64().unwrap());
        of["operations"].as_u64().unwrap()
    };
    let before = rewritten(&sandbox);
    fs::write(sandbox.path("mnt/table"), &data).unwrap();
    sandbox.ok(&["sync", "tank"]);
    fs::OpenOptions::new()
        .write(true)
        .open(sandbox.path("mnt/table"))
        .unwrap()
        .write_all_at(b"changed", 100)
        .unwrap();
    sandbox.ok(&["sync", "tank"]);
    assert!(rewritten(&sandbox) > before);
    fs::write(sandbox.path("mnt/table"), &data).unwrap();
    assert!(sandbox.ok(&["events", "tank"]).contains("mounted dataset=tank"));

    sandbox.ok(&["unmount", "mnt"]);
    assert_eq!(state(&sandbox), "EXPORTED");
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/table")).unwrap(), data);
    assert_failure(&sandbox.run(&["destroy", "tank"]), 1, &["pool tank is mounted", "destroy -f"]);
    sandbox.ok(&["destroy", "-f", "tank"]);
    assert_failure(&sandbox.run(&["list", "tank"]), 1, &["there is no pool \"tank\""]);
    assert_failure(&sandbox.run(&["import", "-d", "."]), 1, &["no pool was found"]);
}

#[test]
fn files_are_compressed_as_their_folder_or_dataset_says() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let attribute = |args: &[&str], path: &str| {
        let program = if args[0] == "-n" { "setfattr" } else { "getfattr" };
        let args: Vec<&str> = args.iter().copied().skip_while(|arg| *arg == "get").collect();
        Command::new(program).args(args).arg(sandbox.path(path)).output().unwrap()
    };
    let set = |value: &str, path: &str| attribute(&["-n", "user.pagefold.compression", "-v", value], path);
    let codecs = |path: &str| {
        sandbox.ok(&["sync", "mnt"]);
        let found = sandbox.json(&["du", "--codecs", path]);
        let line = |line: &serde_json::Value| line["codec"].as_str().unwrap().to_owned();
        found["codecs"].as_array().unwrap().iter().map(line).collect::<Vec<_>>()
    };
    let data = rows(20_000);
    fs::create_dir(sandbox.path("mnt/logs")).unwrap();
    assert!(set("lz4", "mnt/logs").status.success());
    let wrong = set("lz5", "mnt/logs");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("Invalid argument"), "{wrong:?}");
    fs::write(sandbox.path("mnt/logs/new"), &data).unwrap();
    fs::write(sandbox.path("mnt/plain"), &data).unwrap();
    assert_eq!((codecs("mnt/logs"), codecs("mnt/plain")), (vec!["lz4".to_owned()], vec!["zstd".to_owned()]));
    let shown = attribute(&["get", "-n", "user.pagefold.compression"], "mnt/logs/new");
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("user.pagefold.compression=\"lz4\""),
        "{shown:?}"
    );
    assert!(set("zstd-9", "mnt/logs/new").status.success());
    assert!(sandbox.ok(&["fold", "mnt/logs"]).contains("became shorter"));
    assert_eq!(codecs("mnt/logs"), ["zstd"]);
    // The dataset's, where a file has none; and what all of it takes.
    sandbox.ok(&["set", "compression=off", "tank"]);
    fs::write(sandbox.path("mnt/raw"), &data).unwrap();
    assert_eq!(codecs("mnt/raw"), ["raw"]);
    let (found, all) = (sandbox.json(&["du", "--codecs", "mnt"]), sandbox.json(&["du", "mnt"]));
    assert_eq!(found["total"]["stored_bytes"], all["total"]["stored_bytes"]);
    // Whole pages, also behind the ends of files.
    assert!(found["total"]["logical_bytes"].as_u64() > all["total"]["logical_bytes"].as_u64());
    assert!(sandbox.ok(&["du", "--codecs", "mnt"]).contains("CODEC"));
    sandbox.ok(&["unmount", "mnt"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

#[test]
fn what_is_stored_is_folded_with_the_property_as_it_is_now() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    sandbox.ok(&["set", "compression=lz4", "tank"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let data = rows(200_000);
    fs::create_dir(sandbox.path("mnt/base")).unwrap();
    fs::write(sandbox.path("mnt/base/table"), &data).unwrap();
    let stored = |sandbox: &Sandbox| sandbox.json(&["du", "mnt"])["total"]["stored_bytes"].as_u64().unwrap();
    let before = stored(&sandbox);
    assert!(sandbox.ok(&["fold", "mnt/base"]).contains("0 of "), "nothing has changed");
    sandbox.ok(&["set", "compression=zstd-9", "tank"]);
    let folded = sandbox.json(&["fold", "tank"]);
    let figure = |name: &str| folded["folded"][name].as_u64().unwrap();
    assert_eq!(figure("recoded"), figure("pages"));
    assert_eq!(stored(&sandbox), before - (figure("before_bytes") - figure("after_bytes")));
    assert!(stored(&sandbox) * 10 < before * 9, "{} of {before}", stored(&sandbox));
    let pages = &sandbox.json(&["du", "--pages", "mnt"])["lines"][0]["pages"];
    assert_eq!((&pages["codecs"][0]["codec"], &pages["kinds"][0]["kind"]), (&"zstd".into(), &"other".into()));
    assert_eq!(pages["codecs"][0]["pages"], pages["sampled_pages"]);
    assert!(sandbox.ok(&["du", "--pages", "mnt"]).contains("zstd"));
    assert_eq!(fs::read(sandbox.path("mnt/base/table")).unwrap(), data);
    sandbox.ok(&["unmount", "mnt"]);
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/base/table")).unwrap(), data);
}

#[test]
fn a_killed_server_loses_nothing_that_was_synced_and_one_mount_recovers() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    for round in 0..3 {
        let data = rows(1000 * (round + 1));
        let file = fs::File::create(sandbox.path("mnt/log")).unwrap();
        file.write_all_at(&data, 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        crash(&sandbox);
        assert_eq!(state(&sandbox), "CRASHED");
        sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
        assert_eq!(fs::read(sandbox.path("mnt/log")).unwrap(), data, "round {round}");
    }
    crash(&sandbox);
    let told = sandbox.run(&["unmount", "tank"]);
    assert!(told.status.success() && told.stderr.contains("had died"), "{}", told.stderr);
    sandbox.ok(&["check", "tank"]);
    sandbox.ok(&["export", "tank"]);
    assert!(sandbox.ok(&["check", "./tank.pf"]).contains("pool tank: "), "a pool that nobody knows any more");
    assert!(sandbox.ok(&["import", "-d", "."]).contains("EXPORTED"));
}

/// Between the end of its socket and the end of its mounts a dying server is neither there nor dead; before that, it is asked and does not answer.
#[test]
fn a_server_that_is_about_to_have_died_is_waited_for() {
    if !can_mount() {
        return;
    }
    for has_socket in [false, true] {
        let sandbox = mounted();
        let pid = server_pid(&sandbox);
        if has_socket {
            signal(pid, rustix::process::Signal::STOP);
        } else {
            fs::remove_file(sandbox.path("run/tank.sock")).unwrap();
        }
        let unmount = sandbox.command(&["unmount", "tank"]).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        signal(pid, rustix::process::Signal::KILL);
        let told = unmount.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&told.stderr);
        assert!(told.status.success() && stderr.contains("had died"), "socket: {has_socket}, {stderr}");
        assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
    }
}

#[test]
fn a_busy_mount_names_its_users_and_can_be_forced() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let mut held = fs::File::create(sandbox.path("mnt/held")).unwrap();
    let own = format!("process {} (", std::process::id());
    assert_failure(&sandbox.run(&["unmount", "tank"]), 1, &["mnt is in use", &own, "open file", "--lazy"]);
    assert_eq!(state(&sandbox), "ONLINE");
    held.write_all(b"still writable").unwrap();
    sandbox.ok(&["unmount", "--force", "tank"]);
    assert!(held.write_all(b"cut off").is_err());
    assert_eq!(state(&sandbox), "EXPORTED");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/held")).unwrap(), b"still writable");
}

#[test]
fn a_lazy_unmount_ends_with_its_last_user() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let mut held = fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(sandbox.path("mnt/held"))
        .unwrap();
    sandbox.ok(&["unmount", "--lazy", "mnt"]);
    assert!(!sandbox.path("mnt/held").exists());
    held.write_all(b"afterwards").unwrap();
    held.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "afterwards");
    drop(held);
    wait_until(|| state(&sandbox) == "EXPORTED");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/held")).unwrap(), b"afterwards");
}

#[test]
fn sigterm_closes_the_pool_cleanly_and_umount_does_too() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    fs::write(sandbox.path("mnt/a"), "a").unwrap();
    signal(server_pid(&sandbox), rustix::process::Signal::TERM);
    wait_until(|| state(&sandbox) == "EXPORTED");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"a");
    assert!(Command::new("umount").arg(sandbox.path("mnt")).status().unwrap().success());
    wait_until(|| state(&sandbox) == "EXPORTED");
}

#[test]
fn properties_are_kept_inherited_by_default_and_overridden_by_a_mount() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let get = |name: &str| {
        let row = sandbox.json(&["get", name, "tank"])["properties"][0].clone();
        (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(get("compression"), pair("zstd", "local"));
    assert_eq!(get("sync"), pair("standard", "default"));
    sandbox.ok(&["set", "recordsize=8192", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt", "-o", "sync=always,recordsize=32K"]);
    assert_eq!(get("recordsize"), pair("32K", "temporary"));
    assert_eq!(get("sync"), pair("always", "temporary"));
    fs::write(sandbox.path("mnt/a"), rows(10_000)).unwrap();
    assert_eq!(sandbox.json(&["du", "mnt/a"])["recordsizes"][0]["record_size"], 32 << 10);
    sandbox.ok(&["set", "compression=off", "tank"]);
    assert_eq!(get("compression"), pair("off", "local"));
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(get("compression"), pair("off", "local"));
    assert_eq!(get("recordsize"), pair("8K", "local"));
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    fs::write(sandbox.path("mnt/b"), rows(10_000)).unwrap();
    sandbox.ok(&["sync", "mnt"]);
    let b = &sandbox.json(&["du", "mnt/b"])["recordsizes"][0];
    assert_eq!(b["record_size"], 8 << 10);
    assert!(b["stored_bytes"].as_u64() >= b["logical_bytes"].as_u64(), "compression=off stored {b}");
    assert_eq!(get("atomicwrite"), pair("1048576", "-"));
    sandbox.ok(&["unmount", "tank"]);
    let mountpoint = format!("mountpoint={}", sandbox.path("mnt").display());
    assert_failure(&sandbox.run(&["mount", "tank"]), 2, &["where is tank to be mounted?"]);
    sandbox.ok(&["set", &mountpoint, "readonly=on", "tank"]);
    sandbox.ok(&["mount", "tank"]);
    assert!(fs::write(sandbox.path("mnt/c"), "c").is_err());
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn the_helper_of_mount_8_works() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let helper = |name: &str| {
        let path = sandbox.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pagefold"), &path).unwrap();
        path
    };
    let run = |program: &Path, words: &[&str]| {
        let output = Command::new(program)
            .args(words)
            .envs(sandbox.environment())
            .current_dir(sandbox.path(""))
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let mount = helper("mount.pagefold");
    run(&mount, &["tank", "mnt", "-f", "-o", "rw"]);
    assert_eq!(state(&sandbox), "EXPORTED");
    run(&mount, &["tank", "mnt", "-s", "-n", "-o", "rw,nofail,_netdev,x-systemd.device-timeout=5,noexec"]);
    assert_eq!(state(&sandbox), "ONLINE");
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(sandbox.path("mnt").to_str().unwrap())).unwrap();
    assert!(line.starts_with("tank ") && line.contains("fuse.pagefold") && line.contains("noexec"), "{line}");
    // umount(8) does not wait until the pool is closed; the next mount does.
    for _ in 0..10 {
        assert!(Command::new("umount").arg(sandbox.path("mnt")).status().unwrap().success());
        sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    }
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(state(&sandbox), "EXPORTED");
}

#[test]
fn unmount_waits_for_what_the_kernel_holds_for_nobody() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let image = fs::File::create(sandbox.path("mnt/image")).unwrap();
    image.set_len(1 << 20).unwrap();
    drop(image);
    // A loop device holds a file without a process, as a ring does whose owner has ended.
    let attached =
        Command::new("losetup").args(["--find", "--show"]).arg(sandbox.path("mnt/image")).output().unwrap();
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    assert!(device.starts_with("/dev/loop"), "{}", String::from_utf8_lossy(&attached.stderr));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            assert!(Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
        });
        sandbox.ok(&["unmount", "tank"]);
    });
    assert_eq!(state(&sandbox), "EXPORTED");
}

#[test]
fn a_server_in_the_foreground_tells_systemd_when_it_is_ready() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pool();
    let socket = std::os::unix::net::UnixDatagram::bind(sandbox.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut server = sandbox
        .command(&["serve", "tank", "mnt"])
        .env("NOTIFY_SOCKET", sandbox.path("notify"))
        .spawn()
        .unwrap();
    let mut message = [0; 64];
    let mut hear = || {
        let len = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    fs::write(sandbox.path("mnt/a"), "a").unwrap();
    signal(i32::try_from(server.id()).unwrap(), rustix::process::Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    assert!(server.wait().unwrap().success());
    assert_eq!(state(&sandbox), "EXPORTED");
}

#[test]
fn a_pool_on_two_devices_is_found_by_either() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "pair", "one.pf", "two.pf", "--size", POOL_SIZE]);
    sandbox.ok(&["export", "pair"]);
    sandbox.ok(&["mount", "./two.pf", "mnt"]);
    fs::write(sandbox.path("mnt/a"), rows(1000)).unwrap();
    sandbox.ok(&["unmount", "mnt"]);
    fs::rename(sandbox.path("one.pf"), sandbox.path("away.pf.hidden")).unwrap();
    let elsewhere = sandbox.dir("elsewhere");
    fs::rename(sandbox.path("away.pf.hidden"), elsewhere.join("one.pf")).unwrap();
    assert_failure(&sandbox.run(&["import", "-d", ".", "pair"]), 1, &["only 1 of its 2 devices"]);
    sandbox.ok(&["import", "-d", ".", "-d", "elsewhere", "pair"]);
    sandbox.ok(&["mount", "pair", "mnt"]);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), rows(1000));
}
