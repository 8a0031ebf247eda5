//! Shared parts of the program's tests: a place of its own for each test, and the program run in it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The outcome of a run of the program.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<std::process::Output> for Output {
    fn from(output: std::process::Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A temporary directory with a pool cache, sockets and logs of its own, and for root with mounts of its own: pools of other tests have the same names,
/// and who ends the mounts of a server that has died knows them by the pool's. What is mounted in it is taken away at the end.
pub(crate) struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        if rustix::process::geteuid().is_root() {
            // SAFETY: the thread of this test, and those that it will start, are the only ones that see another mount namespace.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        }
        Self { dir: tempfile::Builder::new().prefix("pagefold-cli-").tempdir().unwrap() }
    }

    /// One whose pool `tank` is mounted at `mnt`.
    pub(crate) fn mounted(options: &str) -> Self {
        let sandbox = Self::new();
        sandbox.dir("mnt");
        sandbox.ok(&["create", "tank", "tank.pf", "--size", "512M"]);
        sandbox.ok(&["mount", "-o", options, "tank", "mnt"]);
        sandbox
    }

    /// Returns the figures of `tank` that `status` tells.
    pub(crate) fn pool(&self) -> serde_json::Value {
        self.json(&["status", "tank"])["pools"][0].clone()
    }

    /// A path in the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new directory in the sandbox.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Environment of the program.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("PAGEFOLD_STATE_DIR", self.path("state")),
            ("PAGEFOLD_RUNTIME_DIR", self.path("run")),
            ("PAGEFOLD_LOG_DIR", self.path("log")),
        ]
    }

    /// The program with these words, not yet started.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagefold"));
        command
            .args(words)
            .envs(self.environment())
            .current_dir(self.dir.path())
            .stdin(std::process::Stdio::null());
        command
    }

    /// Runs the program.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Output {
        self.command(words).output().unwrap().into()
    }

    /// Runs the program, which has to succeed, and returns what it printed.
    pub(crate) fn ok<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(&self, words: &[S]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?} failed: {}", output.stderr);
        output.stdout
    }

    /// Runs the program with `--json`, which has to succeed.
    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let mut words = words.to_vec();
        words.push("--json");
        serde_json::from_str(&self.ok(&words)).unwrap()
    }
}

impl Drop for Sandbox {
    /// Ends servers that a failed test has left, by asking them, and detaches their mounts.
    fn drop(&mut self) {
        let Ok(sockets) = std::fs::read_dir(self.path("run")) else { return };
        for socket in sockets.flatten().map(|entry| entry.path()) {
            if socket.extension().is_some_and(|extension| extension == "sock") {
                let pool = socket.file_stem().unwrap_or_default().to_owned();
                let _ = self.command(&[std::ffi::OsStr::new("unmount"), "--force".as_ref(), &pool]).output();
            }
        }
        let mounts = std::fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
        let here = self.dir.path().to_string_lossy().into_owned();
        for dir in mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|dir| Path::new(dir).starts_with(&here))
        {
            let _ = Command::new("umount").args(["-l", dir]).output();
        }
    }
}

/// Asserts that the program failed with this status and told all of these texts, as an error of ours.
#[track_caller]
pub(crate) fn assert_failure(output: &Output, status: i32, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(status), "stderr: {}", output.stderr);
    assert!(output.stderr.starts_with("pagefold: "), "{}", output.stderr);
    assert!(!output.stderr.contains("panicked") && !output.stderr.contains("backtrace"), "{}", output.stderr);
    for text in texts {
        assert!(output.stderr.contains(text), "\"{text}\" is not in: {}", output.stderr);
    }
}

/// Returns true if mounts can be made here; prints a message if not.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    can
}

/// Waits for what has to happen within 10 s.
#[track_caller]
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not happen within 10 s");
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The process that started another one, or took it over: the fourth field of /proc/PID/stat, whose second may hold anything.
pub(crate) fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Kills a process and waits for the last of its threads: the first may be a zombie while others still have all that it had open.
pub(crate) fn kill_to_the_end(pid: i32) {
    let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    signal(pid, Signal::KILL);
    let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)), Ok(1));
}

/// Kills the server of `tank` and waits until another goes on. Returns for how long nobody answered, in milliseconds.
pub(crate) fn kill(sandbox: &Sandbox) -> u64 {
    let before = sandbox.pool();
    let pid = i32::try_from(before["pid"].as_i64().unwrap()).unwrap();
    signal(pid, Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let output = sandbox.run(&["status", "tank", "--json"]);
        let now = serde_json::from_str::<serde_json::Value>(&output.stdout);
        if let Ok(now) = now
            && now["pools"][0]["takeover"]["restarts"].as_u64() > before["takeover"]["restarts"].as_u64()
            && let Some(stall) = now["pools"][0]["takeover"]["last_stall_ms"].as_u64()
        {
            return stall;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no other server goes on");
}

/// Bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Pools of these names, each in a file of 256 MiB.
pub(crate) fn with_pools(names: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    for name in names {
        let device = format!("{name}.pf");
        sandbox.ok(&["create", name, &device, "--size", "256M"]);
    }
    sandbox
}

/// Runs a command, which has to end within a minute.
pub(crate) fn bounded(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    outcome(child)
}

/// Waits for a program to end, and returns all that it has said.
pub(crate) fn outcome(child: Child) -> Output {
    child.wait_with_output().unwrap().into()
}
