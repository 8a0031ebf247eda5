//! Files that are devices: one that is deleted while its pool is mounted, and one whose file system is full.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::io::Write;
use std::process::Command;

use common::{Sandbox, can_mount, wait_until};

/// A file was deleted, nobody said anything, and the next unmount lost the pool.
#[test]
fn a_device_that_was_deleted_is_told_and_can_be_saved() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    fs::write(sandbox.path("mnt/kept"), "kept").unwrap();
    assert!(sandbox.pool()["problem"].is_null());
    fs::remove_file(sandbox.path("tank.pf")).unwrap();
    let told = sandbox.pool();
    let problem = told["problem"].as_str().unwrap();
    assert!(problem.contains("tank.pf was deleted"), "{problem}");
    assert_eq!(told["devices"][0]["deleted"], true);
    let text = sandbox.ok(&["status", "tank"]);
    assert!(text.contains("pagefold replace tank") && text.contains("leave the pool mounted"), "{text}");
    assert!(!sandbox.run(&["status", "-x", "tank"]).status.success());
    wait_until(|| sandbox.ok(&["events", "tank"]).contains("tank.pf was deleted"));

    fs::File::create(sandbox.path("new.pf")).unwrap().set_len(512 << 20).unwrap();
    let old = sandbox.path("tank.pf");
    sandbox.ok(&["replace", "tank", old.to_str().unwrap(), "new.pf"]);
    wait_until(|| {
        let devices = sandbox.pool()["devices"].as_array().unwrap().clone();
        devices.len() == 1 && devices[0]["state"] == "ONLINE" && devices[0]["deleted"] == false
    });
    assert!(sandbox.pool()["problem"].is_null());
    sandbox.ok(&["unmount", "mnt"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(fs::read_to_string(sandbox.path("mnt/kept")).unwrap(), "kept");
    sandbox.ok(&["unmount", "mnt"]);
}

/// The advice was to mend the device.
#[test]
fn a_full_file_system_below_a_device_is_told() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    for dir in ["mnt", "host"] {
        sandbox.dir(dir);
    }
    let host = sandbox.path("host");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64M", "host"]).arg(&host).status();
    assert!(mounted.unwrap().success());
    fs::File::create(host.join("thin.pf")).unwrap().set_len(512 << 20).unwrap();
    sandbox.ok(&["create", "tank", "host/thin.pf"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let mut state: u64 = 7;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(1 << 20)
    .collect();
    let mut file = fs::File::create(sandbox.path("mnt/noise")).unwrap();
    let failed = (0..256).any(|_| file.write_all(&noise).and_then(|()| file.sync_data()).is_err());
    assert!(failed, "256 MiB went to a file system of 64 MiB");
    drop(file);
    let told = sandbox.pool();
    let problem = told["problem"].as_str().unwrap();
    assert!(
        told["state"] == "FAULTED" && problem.contains("thin.pf") && problem.contains("is full"),
        "{told}"
    );
    let text = sandbox.ok(&["status", "tank"]);
    assert!(text.contains("make room on the file system") && !text.contains("mend the device"), "{text}");
    let events = sandbox.ok(&["events", "tank"]);
    let lines: Vec<&str> = events.lines().filter(|line| line.contains("No space left")).collect();
    assert!(lines.iter().any(|line| line.contains("make room there")), "{events}");
    // Nobody tells the cause within the cause.
    let own = |line: &&&str| !line.contains("a request failed");
    assert!(lines.iter().filter(own).all(|line| line.matches("failed").count() == 1), "{events}");
    assert!(lines.iter().all(|line| line.matches("the pool").count() <= 2), "{events}");

    // With room it goes on.
    sandbox.run(&["unmount", "--force", "tank"]);
    let grown = Command::new("mount").args(["-o", "remount,size=900M"]).arg(&host).status();
    assert!(grown.unwrap().success());
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    assert_eq!(sandbox.pool()["state"], "ONLINE");
    sandbox.ok(&["unmount", "mnt"]);
}
