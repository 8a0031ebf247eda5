//! Unmounting: exactly what was named, all of it or nothing, bounded and told, durable. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, wait_until, with_pools};

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

fn spawn(sandbox: &Sandbox, words: &[&str]) -> Child {
    sandbox.command(words).stderr(Stdio::piped()).spawn().unwrap()
}

/// /sbin with our helpers beside what is there, in this test's own mounts.
fn with_helpers(sandbox: &Sandbox) {
    let layers = sandbox.dir("sbin");
    let run = |words: &[&str]| {
        let done = Command::new("mount").args(words).status().unwrap();
        assert!(done.success(), "mount {words:?}");
    };
    run(&["-t", "tmpfs", "none", layers.to_str().unwrap()]);
    let (upper, work) = (sandbox.dir("sbin/upper"), sandbox.dir("sbin/work"));
    for name in ["mount.pagefold", "mount.fuse.pagefold", "umount.pagefold", "umount.fuse.pagefold"] {
        symlink(env!("CARGO_BIN_EXE_pagefold"), upper.join(name)).unwrap();
    }
    let sbin = fs::canonicalize("/sbin").unwrap();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", sbin.display(), upper.display(), work.display());
    run(&["-t", "overlay", "-o", &options, "overlay", sbin.to_str().unwrap()]);
}

/// Files as a program leaves them that knows nothing of fsync: written, mapped and stored into, renamed, and closed.
fn leave_files(dir: &Path, round: u32) -> Vec<(PathBuf, Vec<u8>)> {
    let bytes = |salt: u32, len: usize| -> Vec<u8> {
        (0..len)
            .map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(salt).to_le_bytes()[2])
            .collect()
    };
    let written = bytes(round, 3_000_000);
    fs::write(dir.join("written"), &written).unwrap();
    let mapped = bytes(round + 1000, 300_000);
    let script = "import mmap, os, sys\n\
        data = open(sys.argv[2], 'rb').read()\n\
        f = open(sys.argv[1], 'r+b') if os.path.exists(sys.argv[1]) else open(sys.argv[1], 'w+b')\n\
        f.truncate(len(data))\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        f.close()\n\
        m[:] = data\n";
    let data = dir.parent().unwrap().join("mapped.data");
    fs::write(&data, &mapped).unwrap();
    let done =
        Command::new("python3").args(["-c", script]).args([dir.join("mapped"), data]).status().unwrap();
    assert!(done.success());
    let renamed = bytes(round + 2000, 100);
    fs::write(dir.join("new"), &renamed).unwrap();
    fs::rename(dir.join("new"), dir.join("renamed")).unwrap();
    vec![("written".into(), written), ("mapped".into(), mapped), ("renamed".into(), renamed)]
}

/// Data are durable when umount(8) returns, as people call it, and as systemd's mount units call it.
#[test]
fn what_was_written_before_umount_8_is_there_although_the_server_is_killed_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    with_helpers(&sandbox);
    let dir = sandbox.dir("mnt");
    let mut saved: u32 = 0;
    for round in 0..24 {
        mount(&sandbox, "tank", "mnt");
        let pid = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let server = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        let files = leave_files(&dir, round);
        let words: &[&str] = if round % 2 == 0 { &[] } else { &["-c"] };
        let done = Command::new("umount").args(words).arg(&dir).envs(sandbox.environment()).status().unwrap();
        assert!(done.success());
        // It may have ended already: then it has closed the pool.
        let killed = rustix::process::pidfd_send_signal(&server, rustix::process::Signal::KILL);
        saved += u32::from(killed.is_ok());
        wait_for(&server);
        mount(&sandbox, "tank", "mnt");
        for (name, bytes) in files {
            let there = fs::read(dir.join(&name)).unwrap_or_default();
            assert!(there == bytes, "round {round}, {words:?}: {} has {} bytes", name.display(), there.len());
        }
        sandbox.ok(&["unmount", "tank"]);
    }
    assert!(saved > 0, "no server was killed before it had closed the pool: nothing was shown");
    assert!(sandbox.ok(&["check", "tank"]).contains(": 0 errors"));
}

fn wait_for(process: &rustix::fd::OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)), Ok(1));
}

/// The helper waits until the pool is closed: nothing is left to be lost, and the next program finds a clean pool.
#[test]
fn the_helper_of_umount_8_returns_when_the_pool_is_closed() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    with_helpers(&sandbox);
    let dir = sandbox.dir("mnt");
    let umount = |words: &[&str]| {
        Command::new("umount").args(words).arg(&dir).envs(sandbox.environment()).output().unwrap()
    };
    mount(&sandbox, "tank", "mnt");
    let sleeper = Sleeper::holding(&dir.join("held"));
    let told = umount(&["-c"]);
    let own = format!("process {} (", sleeper.pid());
    assert!(!told.status.success() && String::from_utf8_lossy(&told.stderr).contains(&own));
    drop(sleeper);
    assert!(umount(&["-c"]).status.success());
    assert!(!sandbox.path("run/tank.sock").exists());
    assert_eq!(state(&sandbox, "tank"), "EXPORTED");
    mount(&sandbox, "tank", "mnt");
    let sleeper = Sleeper::holding(&dir.join("held"));
    assert!(umount(&["-c", "-l"]).status.success());
    assert_eq!(mounted(&sandbox), [""; 0]);
    drop(sleeper);
    wait_until(|| state(&sandbox, "tank") == "EXPORTED");
}

/// umount2(2) says nothing to the server, which commits as soon as it sees the end; with a supervisor nothing is lost in between either.
#[test]
fn what_was_written_before_umount2_is_there_where_another_server_follows() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    let dir = sandbox.dir("mnt");
    for round in 0..6 {
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
        let pid = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        let files = leave_files(&dir, round);
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::KILL,
        );
        wait_until(|| !sandbox.path("run/tank.sock").exists());
        wait_until(|| state(&sandbox, "tank") != "ONLINE");
        sandbox.ok(&["mount", "-o", "takeover=on", "tank", "mnt"]);
        for (name, bytes) in files {
            assert!(fs::read(dir.join(&name)).unwrap() == bytes, "round {round}: {}", name.display());
        }
        sandbox.ok(&["unmount", "tank"]);
    }
}

#[test]
fn a_server_that_is_told_to_end_cuts_off_mounts_that_it_does_not_see() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank"]);
    mount(&sandbox, "tank", "mnt");
    let elsewhere = Sleeper::elsewhere();
    let mounts = fs::read_to_string(format!("/proc/{}/mounts", elsewhere.pid())).unwrap();
    assert!(mounts.contains(sandbox.path("mnt").to_str().unwrap()), "{mounts}");
    let server = sandbox.pool()["pid"].as_i64().unwrap();
    common::signal(i32::try_from(server).unwrap(), rustix::process::Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(&sandbox, "tank") != "EXPORTED" {
        assert!(Instant::now() < deadline, "the server does not end");
        std::thread::sleep(Duration::from_millis(200));
    }
}
