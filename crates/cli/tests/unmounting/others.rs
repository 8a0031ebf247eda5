//! Mounts of users, in other namespaces, and of servers that listen to others.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::durable::spawn;
use super::{Sleeper, mount, mounted, state};
use crate::common::{Sandbox, assert_failure, can_mount, kill_to_the_end, wait_until, with_pools};

#[test]
fn a_copy_in_another_mount_namespace_is_named_and_waited_for_so_long_and_no_longer() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    fs::write(sandbox.path("mnt/a"), "a").unwrap();
    let elsewhere = Sleeper::elsewhere();
    let waiting = [
        "pagefold: waiting: ".to_owned(),
        format!("process {} (sleep): a copy of the mount in its mount namespace, at ", elsewhere.pid()),
    ];
    let unmount = spawn(&sandbox, &["unmount", "tank"]);
    let told = unmount.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(1), "{stderr}");
    assert!(waiting.iter().all(|text| stderr.contains(text)), "{stderr}");
    assert!(
        stderr.contains("is unmounted here, and stays open") && stderr.contains("--force tank"),
        "{stderr}"
    );
    // So does the next mount; when the copy goes while it waits it is made.
    let mut mount = spawn(&sandbox, &["mount", "-o", "takeover=off", "tank", "mnt"]);
    let mut told = std::io::BufReader::new(mount.stderr.take().unwrap());
    let mut line = String::new();
    for text in [&waiting[0], &waiting[1]] {
        line.clear();
        std::io::BufRead::read_line(&mut told, &mut line).unwrap();
        assert!(line.contains(text.as_str()), "{line}");
    }
    drop(elsewhere);
    assert!(mount.wait().unwrap().success());
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"a");
    // And it can be cut off.
    let _elsewhere = Sleeper::elsewhere();
    sandbox.ok(&["unmount", "--force", "tank"]);
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
}

#[test]
fn who_still_uses_what_was_detached_is_named() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    let sleeper = Sleeper::holding(&sandbox.path("mnt/held"));
    sandbox.ok(&["unmount", "--lazy", "tank"]);
    let mut unmount = spawn(&sandbox, &["unmount", "tank"]);
    let mut told = std::io::BufReader::new(unmount.stderr.take().unwrap());
    let mut text = String::new();
    for _ in 0..2 {
        std::io::BufRead::read_line(&mut told, &mut text).unwrap();
    }
    let own = format!("process {} (sleep): open file ", sleeper.pid());
    assert!(text.contains("still in use") && text.contains(&own), "{text}");
    drop(sleeper);
    assert!(unmount.wait().unwrap().success());
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
}

/// The server of a pool.
fn server_of(sandbox: &Sandbox, pool: &str) -> i32 {
    let status = sandbox.json(&["status", pool]);
    i32::try_from(status["pools"][0]["pid"].as_i64().unwrap()).unwrap()
}

#[test]
fn what_a_dead_server_has_left_goes_with_its_dataset_or_pool() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    for name in ["a", "b", "c"] {
        sandbox.ok(&["dataset", "create", &format!("tank/{name}")]);
        mount(&sandbox, &format!("tank/{name}"), name);
    }
    kill_to_the_end(server_of(&sandbox, "tank"));
    // A mount at another place takes the dead one of its dataset along, and no other.
    mount(&sandbox, "tank/a", "elsewhere");
    assert_eq!(mounted(&sandbox), ["b", "c", "elsewhere"]);
    sandbox.ok(&["destroy", "-n", "tank/b"]);
    assert_eq!(mounted(&sandbox), ["b", "c", "elsewhere"]);
    sandbox.ok(&["destroy", "tank/b"]);
    assert_eq!(mounted(&sandbox), ["c", "elsewhere"]);
    // The server goes on when only what is dead is meant.
    let server = server_of(&sandbox, "tank");
    sandbox.ok(&["unmount", "tank/c"]);
    assert_eq!((mounted(&sandbox), server_of(&sandbox, "tank")), (vec!["elsewhere".to_owned()], server));
    mount(&sandbox, "tank/c", "c");
    kill_to_the_end(server);
    mount(&sandbox, "tank/a", "a");
    assert_eq!(mounted(&sandbox), ["a", "c"]);
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!((mounted(&sandbox), state(&sandbox, "tank")), (Vec::new(), "EXPORTED".into()));
}

#[test]
fn a_dataset_that_was_detached_says_so_and_who_uses_it() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    sandbox.ok(&["dataset", "create", "tank/a"]);
    mount(&sandbox, "tank", "mnt");
    mount(&sandbox, "tank/a", "a");
    sandbox.ok(&["snapshot", "tank/a@1"]);
    let sleeper = Sleeper::holding(&sandbox.path("a/held"));
    let rollback = ["rollback", "tank/a@1"];
    assert_failure(&sandbox.run(&rollback), 1, &["tank/a is mounted at ", "pagefold unmount "]);
    sandbox.ok(&["unmount", "--lazy", "tank/a"]);
    let status = sandbox.ok(&["status", "tank"]);
    let told = status.lines().find(|line| line.contains("detached")).unwrap();
    let own = format!("process {} (sleep): open file ", sleeper.pid());
    assert!(told.contains("tank/a from ") && told.contains(&own), "{told}");
    let texts = ["tank/a was detached from ", "pagefold status tank"];
    assert_failure(&sandbox.run(&rollback), 1, &texts);
    drop(sleeper);
    wait_until(|| !sandbox.ok(&["status", "tank"]).contains("detached"));
    sandbox.ok(&rollback);
}

/// /dev/fuse as it is on most machines, in this test's own mounts: users may open it.
fn open_fuse_to_users(sandbox: &Sandbox) {
    let devices = sandbox.dir("dev");
    let fuse = devices.join("fuse");
    let run = |program: &str, words: &[&std::ffi::OsStr]| {
        assert!(Command::new(program).args(words).status().unwrap().success(), "{program} {words:?}");
    };
    run("mount", &["-t", "tmpfs", "none", devices.to_str().unwrap()].map(std::ffi::OsStr::new));
    run("mknod", &["-m", "666", fuse.to_str().unwrap(), "c", "10", "229"].map(std::ffi::OsStr::new));
    run("mount", &["--bind".as_ref(), fuse.as_ref(), "/dev/fuse".as_ref()]);
}

/// Another user's pool, as seen by who has other places for sockets.
#[test]
fn a_mount_whose_server_listens_to_others_is_left_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    let told =
        sandbox.command(&["unmount", "./mnt"]).env("PAGEFOLD_RUNTIME_DIR", sandbox.dir("other")).output();
    let told = told.unwrap();
    let stderr = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("pagefold: waiting: nobody answers for pool tank"), "{stderr}");
    assert!(stderr.contains("cannot be reached from here") && stderr.contains("umount "), "{stderr}");
    assert_eq!(mounted(&sandbox), ["mnt"]);
}

/// Users have fusermount3, which says nothing to the server either; `pagefold unmount` asks it.
#[test]
fn users_unmount_their_own_and_nobody_elses() {
    if !can_mount() || !Path::new("/bin/fusermount3").exists() {
        eprintln!("skipped: needs root and fusermount3");
        return;
    }
    let sandbox = with_pools(&["roots"]);
    mount(&sandbox, "roots", "of-root");
    let home = sandbox.dir("home");
    for dir in [sandbox.path(""), home.clone()] {
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    open_fuse_to_users(&sandbox);
    // The program may lie where only root looks.
    let program = sandbox.path("pagefold");
    fs::copy(env!("CARGO_BIN_EXE_pagefold"), &program).unwrap();
    let user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
            .arg(&program)
            .args(words);
        let output =
            command.current_dir(&home).env("HOME", &home).env("XDG_RUNTIME_DIR", &home).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let ok = |words: &[&str]| {
        let (status, stderr) = user(words);
        assert_eq!(status, Some(0), "{words:?}: {stderr}");
        stderr
    };
    ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    assert!(ok(&["mount", "-o", "takeover=off", "tank", "mnt"]).contains("made the directory"));
    let (status, stderr) = user(&["unmount", "../of-root"]);
    assert!(status == Some(1) && stderr.contains("cannot be reached from here"), "{stderr}");
    let (status, stderr) = user(&["mount", "-o", "remount,ro", "./mnt"]);
    assert!(status == Some(1) && stderr.contains("only root can remount"), "{stderr}");
    fs::create_dir(home.join("second")).unwrap();
    let (status, stderr) = user(&["mount", "tank", "second"]);
    assert!(status == Some(1) && stderr.contains("only root can mount it at a second place"), "{stderr}");
    fs::remove_dir(home.join("second")).unwrap();
    ok(&["unmount", "./mnt"]);
    assert_eq!(mounted(&sandbox), ["of-root"]);
}
