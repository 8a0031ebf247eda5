//! Unmounting: exactly what was named, all of it or nothing, bounded and told, durable. Needs root and /dev/fuse, as `make test` has them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;
mod durable;
mod others;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, with_pools};

fn mount(sandbox: &Sandbox, name: &str, dir: &str) {
    sandbox.dir(dir);
    sandbox.ok(&["mount", "-o", "takeover=off", name, dir]);
}

/// Directories on which something of ours is mounted, below the sandbox.
fn mounted(sandbox: &Sandbox) -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let top = format!("{}/", sandbox.path("").to_str().unwrap().trim_end_matches('/'));
    let ours = text.lines().filter(|line| line.contains(" - fuse.pagefold "));
    let dirs = ours.filter_map(|line| line.split(' ').nth(4)?.strip_prefix(&top).map(str::to_owned));
    let mut dirs: Vec<String> = dirs.collect();
    dirs.sort();
    dirs
}

fn state(sandbox: &Sandbox, pool: &str) -> String {
    sandbox.json(&["list", pool])["pools"][0]["state"].as_str().unwrap().to_owned()
}

/// A process that sleeps in a directory, or with what `before` has done; killed at the end.
struct Sleeper(Child);

impl Sleeper {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut sleeper = Self(child);
        let mut line = [0; 1];
        std::io::Read::read_exact(sleeper.0.stdout.as_mut().unwrap(), &mut line).unwrap();
        sleeper
    }

    /// In a mount namespace of its own, with a copy of everything that is mounted, that nothing changes from outside.
    fn elsewhere() -> Self {
        Self::start(Command::new("unshare").args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo; exec sleep 600",
        ]))
    }

    /// With an open file.
    fn holding(file: &Path) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 7>>\"$0\"; echo; exec sleep 600"]).arg(file);
        Self::start(&mut shell)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn only_what_is_named_is_unmounted() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    fs::create_dir_all(sandbox.path("mnt/pg/base")).unwrap();
    sandbox.ok(&["snapshot", "tank@monday"]);
    symlink("mnt/pg", sandbox.path("into")).unwrap();
    let pg = sandbox.path("mnt/pg").to_str().unwrap().to_owned();
    let within =
        ["./mnt/pg", "mnt/pg", "mnt/pg/", &pg, "into", "mnt/pg/base/..", "mnt/.pagefold/snapshot/monday"];
    for word in within {
        let told = sandbox.run(&["unmount", word]);
        assert_failure(
            &told,
            1,
            &["is no mount point", "lies on tank", "mounted at", "/mnt", "nothing was unmounted"],
        );
        assert_eq!(mounted(&sandbox), ["mnt"], "{word}");
    }
    assert_failure(&sandbox.run(&["export", &pg]), 1, &["is no mount point"]);
    assert_failure(&sandbox.run(&["unmount", "tank@monday"]), 1, &["tank@monday is not mounted"]);
    assert_failure(&sandbox.run(&["unmount", "/proc"]), 1, &["nothing of a pool is mounted at /proc"]);
    assert_failure(&sandbox.run(&["unmount", "./none"]), 1, &["none does not exist"]);
    assert_eq!(state(&sandbox, "tank"), "ONLINE");
    // However the mount point is written.
    symlink("mnt", sandbox.path("link")).unwrap();
    let whole = sandbox.path("mnt").to_str().unwrap().to_owned();
    for word in ["mnt", "mnt/", "./mnt", "link", "mnt/pg/..", &whole] {
        sandbox.ok(&["unmount", word]);
        assert_eq!(mounted(&sandbox), [""; 0], "{word}");
        mount(&sandbox, "tank", "mnt");
    }
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
}

#[test]
fn a_word_that_is_a_pool_and_the_mount_point_of_another_is_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank", "vault"]);
    mount(&sandbox, "tank", "vault");
    mount(&sandbox, "vault", "tank");
    assert_failure(
        &sandbox.run(&["unmount", "tank"]),
        2,
        &["the mount point of another one, vault", "./tank"],
    );
    assert_eq!(mounted(&sandbox), ["tank", "vault"]);
    sandbox.ok(&["unmount", "./tank"]);
    assert_eq!(mounted(&sandbox), ["vault"]);
    // The directory is none any more: it is the name.
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(mounted(&sandbox), [""; 0]);
}

#[test]
fn of_several_places_one_goes_alone_and_a_name_means_all() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    fs::create_dir(sandbox.path("mnt/pg")).unwrap();
    let bind = |from: &str, to: &str| {
        let (from, to) = (sandbox.path(from), sandbox.dir(to));
        assert!(Command::new("mount").arg("--bind").args([&from, &to]).status().unwrap().success());
    };
    bind("mnt/pg", "bound");
    let told = sandbox.run(&["unmount", "bound"]);
    assert!(told.status.success() && told.stderr.contains("tank stays mounted at"), "{}", told.stderr);
    assert_eq!(mounted(&sandbox), ["mnt"]);
    bind("mnt/pg", "bound");
    // The first place goes; the pool stays, and is told where it is.
    sandbox.ok(&["unmount", "mnt"]);
    assert_eq!(mounted(&sandbox), ["bound"]);
    assert!(sandbox.pool()["mount"]["dir"].as_str().unwrap().ends_with("/bound"));
    sandbox.ok(&["unmount", "bound"]);
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
    mount(&sandbox, "tank", "mnt");
    bind("mnt/pg", "bound");
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(mounted(&sandbox), [""; 0]);
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
}

#[test]
fn what_covers_a_mount_does_not_go_in_its_place() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank", "vault"]);
    let over = |dir: &Path| {
        assert!(Command::new("mount").args(["-t", "tmpfs", "above"]).arg(dir).status().unwrap().success());
        fs::write(dir.join("of above"), "").unwrap();
    };
    mount(&sandbox, "tank", "mnt/tank");
    mount(&sandbox, "vault", "vault");
    for covered in ["mnt/tank", "mnt"] {
        let dir = sandbox.path(covered);
        over(&dir);
        for words in [&["unmount", "tank"][..], &["unmount", "--lazy", "tank"], &["export", "tank"]] {
            assert_failure(
                &sandbox.run(words),
                1,
                &["something else was mounted above tank", "nothing was unmounted"],
            );
            assert!(dir.join("of above").exists(), "{words:?}");
        }
        assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    }
    over(&sandbox.path("vault"));
    assert_failure(
        &sandbox.run(&["unmount", "./vault"]),
        1,
        &["above was mounted above vault", "unmount that first"],
    );
    assert!(Command::new("umount").arg(sandbox.path("vault")).status().unwrap().success());
    sandbox.ok(&["unmount", "-a"]);
    assert_eq!(mounted(&sandbox), [""; 0]);
}

#[test]
fn all_mounts_of_a_pool_go_or_none() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    for name in ["tank/a", "tank/b", "tank/a/c"] {
        sandbox.ok(&["dataset", "create", name]);
    }
    mount(&sandbox, "tank", "mnt");
    // One beside it; two on it, one of which is mounted below the other.
    mount(&sandbox, "tank/b", "beside");
    mount(&sandbox, "tank/a", "mnt/a");
    mount(&sandbox, "tank/a/c", "mnt/a/c");
    let all = ["beside", "mnt", "mnt/a", "mnt/a/c"];
    let server = sandbox.pool()["pid"].clone();
    for dir in all {
        let held = sandbox.path(dir).join("held");
        let sleeper = Sleeper::holding(&held);
        let own = format!("process {} (", sleeper.pid());
        let busy = format!("/{dir} is in use");
        for words in [&["unmount", "tank"][..], &["export", "tank"], &["unmount", "-a"]] {
            let told = sandbox.run(words);
            assert_failure(&told, 1, &[&busy, &own, "nothing was unmounted: all stays as it was"]);
            assert_eq!(mounted(&sandbox), all, "{words:?} with {dir} in use");
        }
        assert_eq!(sandbox.pool()["pid"], server);
        for dir in all {
            fs::write(sandbox.path(dir).join("after"), dir).unwrap();
        }
    }
    assert_eq!(sandbox.pool()["mounts"].as_array().unwrap().len(), 4);
    sandbox.ok(&["export", "tank"]);
    assert_eq!(mounted(&sandbox), [""; 0]);
    sandbox.ok(&["import", "-d", ".", "tank"]);
    mount(&sandbox, "tank/b", "beside");
    assert_eq!(fs::read(sandbox.path("beside/after")).unwrap(), b"beside");
}

#[test]
fn what_is_mounted_below_is_told_by_its_kind() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    let below = sandbox.dir("mnt/below");
    let run = |words: &[&str]| assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
    run(&["mount", "-t", "tmpfs", "none", below.to_str().unwrap()]);
    let text = format!("a tmpfs (none) is mounted below it, at {}", below.display());
    assert_failure(&sandbox.run(&["unmount", "tank"]), 1, &[&text]);
    run(&["umount", below.to_str().unwrap()]);
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_busy_pool_keeps_no_other_from_going() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["busy", "tank", "vault"]);
    for pool in ["busy", "tank", "vault"] {
        mount(&sandbox, pool, pool);
    }
    let sleeper = Sleeper::holding(&sandbox.path("busy/held"));
    // And one whose server has died.
    fs::write(sandbox.path("vault/file"), "synced").unwrap();
    sandbox.ok(&["sync", "vault"]);
    let status = sandbox.json(&["status", "vault"]);
    kill_to_the_end(i32::try_from(status["pools"][0]["pid"].as_i64().unwrap()).unwrap());
    let told = sandbox.run(&["unmount", "-a"]);
    let own = format!("process {} (", sleeper.pid());
    assert_failure(&told, 1, &["pagefold: busy: ", &own, "1 of 3 could not be unmounted: busy", "had died"]);
    assert_eq!(mounted(&sandbox), ["busy"]);
    assert_eq!((state(&sandbox, "tank"), state(&sandbox, "vault")), ("EXPORTED".into(), "CRASHED".into()));
}
