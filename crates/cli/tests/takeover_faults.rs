//! Servers are followed by others when things around them go wrong. Needs root, /dev/fuse and Linux 6.9.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};

use common::{Sandbox, bounded, can_mount, kill, wait_until};

/// A process that ends with the test.
struct Until(Child);

impl Drop for Until {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The value of a property of `tank` and its source.
fn get(sandbox: &Sandbox, property: &str) -> (String, String) {
    let told = sandbox.ok(&["get", "-H", property, "tank"]);
    let words: Vec<&str> = told.trim().split('\t').collect();
    (words[2].to_owned(), words[3].to_owned())
}

fn bounded_in(sandbox: &Sandbox, mut command: Command) -> common::Output {
    command.current_dir(sandbox.path("")).stdin(Stdio::null());
    bounded(command)
}

#[test]
fn a_full_disc_of_the_log_ends_nobody() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "512M"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut supervisor = sandbox.command(&["serve", "-o", "takeover=on", "tank", "mnt"]);
    let mut supervisor = Until(supervisor.stdout(Stdio::null()).stderr(full).spawn().unwrap());
    wait_until(|| {
        assert_eq!(supervisor.0.try_wait().unwrap(), None, "the supervisor has ended");
        // Not by `status`, which opens the devices of a pool that is not mounted.
        sandbox.path("mnt/.pagefold").exists()
    });
    fs::write(sandbox.path("mnt/a"), b"kept").unwrap();
    kill(&sandbox);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"kept");
    assert_eq!(sandbox.pool()["takeover"]["restarts"], 1);
    sandbox.ok(&["unmount", "tank"]);
    assert!(supervisor.0.wait().unwrap().success());
}

#[test]
fn a_program_that_is_gone_is_not_needed_to_restart() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "512M"]);
    let copy = sandbox.path("copy");
    // Not fs::copy: programs that other tests start would inherit the file that is open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_pagefold")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut mount = Command::new(&copy);
    mount.args(["mount", "-o", "takeover=on", "tank", "mnt"]).envs(sandbox.environment());
    let mounted = bounded_in(&sandbox, mount);
    assert!(mounted.status.success(), "{}", mounted.stderr);
    fs::write(sandbox.path("mnt/a"), b"kept").unwrap();
    fs::remove_file(&copy).unwrap();
    sandbox.ok(&["restart", "tank"]);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"kept");
    assert_eq!(sandbox.pool()["takeover"]["restarts"], 1);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_remount_outlives_the_server() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on,sync=disabled,primarycache=none");
    let temporary = |value: &str| (value.to_owned(), "temporary".to_owned());
    assert_eq!(get(&sandbox, "sync"), temporary("disabled"));
    sandbox.ok(&["mount", "-o", "remount,sync=standard,primarycache=metadata,suid", "tank"]);
    assert_eq!(get(&sandbox, "primarycache"), temporary("metadata"));
    for _ in 0..2 {
        kill(&sandbox);
        assert_eq!(get(&sandbox, "sync"), temporary("standard"));
        assert_eq!(get(&sandbox, "primarycache"), temporary("metadata"));
    }
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_property_that_waits_for_the_next_mount_does_not_strike_at_a_takeover() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    let mut file = File::create(sandbox.path("mnt/a")).unwrap();
    let set = sandbox.run(&["set", "readonly=on", "tank"]);
    assert!(set.stderr.contains("when it is mounted the next time"), "{}", set.stderr);
    kill(&sandbox);
    file.write_all(b"late").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"late");
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert!(File::create(sandbox.path("mnt/b")).is_err());
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_remount_after_a_takeover_may_repeat_the_options() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on,cache=64M,threads=3");
    kill(&sandbox);
    sandbox.ok(&["mount", "-o", "remount,ro,cache=64M,threads=3,takeover=on", "tank"]);
    kill(&sandbox);
    assert!(File::create(sandbox.path("mnt/a")).is_err());
    sandbox.ok(&["mount", "-o", "remount,rw,cache=64M,threads=3,takeover=on", "tank"]);
    kill(&sandbox);
    fs::write(sandbox.path("mnt/a"), b"writable").unwrap();
    let other = sandbox.run(&["mount", "-o", "remount,threads=4", "tank"]);
    common::assert_failure(&other, 1, &["threads=4"]);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_state_directory_that_is_read_only_stops_no_takeover() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=on");
    fs::write(sandbox.path("mnt/a"), b"kept").unwrap();
    let state = sandbox.path("state");
    let mount = |words: &[&str]| {
        let mut command = Command::new("mount");
        let done = bounded_in(&sandbox, {
            command.args(words).arg(&state);
            command
        });
        assert!(done.status.success(), "{}", done.stderr);
    };
    mount(&["--bind", "state"]);
    mount(&["-o", "remount,bind,ro"]);
    kill(&sandbox);
    assert_eq!(fs::read(sandbox.path("mnt/a")).unwrap(), b"kept");
    mount(&["-o", "remount,bind,rw"]);
    sandbox.ok(&["unmount", "tank"]);
    assert!(Command::new("umount").arg(&state).status().unwrap().success());
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["unmount", "tank"]);
}
