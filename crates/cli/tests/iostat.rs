//! `pagefold iostat`, on real mounts. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use common::{Sandbox, assert_failure, can_mount, noise, signal, wait_until, with_pools};
use rustix::process::Signal;
use serde_json::Value;

/// A pool with something in it that was synced, mounted at `mnt`.
fn written() -> Sandbox {
    let sandbox = Sandbox::mounted("takeover=off");
    fs::write(sandbox.path("mnt/file"), noise(1, 4 << 20)).unwrap();
    sandbox.ok(&["sync", "tank"]);
    sandbox
}

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}

#[test]
fn a_report_has_a_row_for_each_pool_and_device() {
    if !can_mount() {
        return;
    }
    let sandbox = written();
    let told = sandbox.ok(&["iostat", "tank"]);
    for heading in ["NAME", "ALLOC", "FREE", "READ/s", "WRITE/s", "READ B/s", "WRITE B/s"] {
        assert!(told.contains(heading), "{told}");
    }
    assert_eq!(told.lines().count(), 2, "{told}");
    let told = sandbox.ok(&["iostat", "-vHp", "tank"]);
    let [pool, device] = &rows(&told)[..] else { panic!("{told}") };
    assert!(pool[0] == "tank" && device[0].ends_with(".pf"), "{told}");
    assert!(pool[1].parse::<u64>().unwrap() > 4 << 20, "{told}");
    assert_eq!(pool[1..], device[1..], "the pool has one device");
    assert!(device[6].parse::<u64>().unwrap() > 0, "{told}");
    let told = sandbox.ok(&["iostat", "-lqHp", "tank"]);
    assert_eq!(rows(&told)[0].len(), 7 + 3 + 11 + 18);
    let of_log = rows(&told)[0][7 + 3 + 1];
    assert!(of_log.parse::<u64>().unwrap() > 1000, "a commit takes more than a microsecond: {told}");
    let told = sandbox.ok(&["iostat", "-wHp", "tank"]);
    let writes: u64 = rows(&told).iter().map(|row| row[3].parse::<u64>().unwrap()).sum();
    assert!(writes > 0, "{told}");
    assert!(sandbox.ok(&["iostat", "--causes", "tank"]).contains("application_write"));
    sandbox.ok(&["unmount", "tank"]);
}

/// Returns how much was asked of the pool's devices.
fn operations(pool: &Value, class: &str, kind: &str) -> u64 {
    let devices = pool["devices"].as_array().unwrap();
    let all = devices.iter().flat_map(|device| device["requests"].as_array().unwrap());
    let of = all.filter(|of| of["class"] == class && of["kind"] == kind);
    of.map(|of| of["operations"].as_u64().unwrap()).sum()
}

#[test]
fn later_reports_are_of_their_interval_and_the_first_may_be_left_out() {
    if !can_mount() {
        return;
    }
    let sandbox = written();
    let told = sandbox.ok(&["iostat", "--json", "tank", "0.3", "2"]);
    let reports: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    let of = |report: &Value| report["pools"][0].clone();
    let (first, second) = (of(&reports[0]), of(&reports[1]));
    assert!(operations(&first, "log", "write") > operations(&second, "log", "write"));
    assert!(second["interval_ms"].as_u64().unwrap() >= 200);
    assert_eq!(
        first["free_bytes"].as_u64().unwrap() + first["allocated_bytes"].as_u64().unwrap(),
        first["size_bytes"].as_u64().unwrap()
    );
    for of in first["devices"][0]["requests"].as_array().unwrap() {
        let latencies = of["latencies"].as_array().unwrap().iter();
        let counted: u64 = latencies.map(|latency| latency["operations"].as_u64().unwrap()).sum();
        assert_eq!(counted, of["operations"].as_u64().unwrap(), "{of}");
    }
    let told = sandbox.ok(&["iostat", "-y", "--json", "tank", "0.3", "1"]);
    let only: Value = serde_json::from_str(&told).unwrap();
    assert!(only["pools"][0]["interval_ms"].as_u64().unwrap() < 60_000);
    assert!(operations(&of(&only), "log", "write") < operations(&first, "log", "write"));
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn an_interrupt_is_no_failure() {
    if !can_mount() {
        return;
    }
    let sandbox = written();
    for number in [Signal::INT, Signal::TERM] {
        let mut command = sandbox.command(&["iostat", "-H", "tank", "0.1"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..2 {
            let mut line = String::new();
            told.read_line(&mut line).unwrap();
            assert!(line.starts_with("tank\t"), "{line:?}");
        }
        signal(i32::try_from(child.id()).unwrap(), number);
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        assert!(rest.is_empty() || rest.ends_with('\n'), "{rest:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "");
    }
    sandbox.ok(&["unmount", "tank"]);
}

#[test]
fn a_pool_that_goes_away_is_told_and_the_others_go_on() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools(&["tank", "vault"]);
    for pool in ["tank", "vault"] {
        sandbox.ok(&["mount", "-o", "takeover=off", pool, sandbox.dir(pool).to_str().unwrap()]);
    }
    let mut command = sandbox.command(&["iostat", "-H", "0.1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    sandbox.ok(&["unmount", "vault"]);
    // It is told at once, while the other pool goes on.
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut failure = String::new();
    errors.read_line(&mut failure).unwrap();
    assert!(failure.starts_with("pagefold: vault: "), "{failure:?}");
    sandbox.ok(&["unmount", "tank"]);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(rest.lines().last().unwrap().starts_with("tank\t"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut failures = String::new();
    errors.read_to_string(&mut failures).unwrap();
    assert!(failures.contains("2 of 2 could not be looked at to the end: vault, tank"), "{failures}");
    // A pool that is not mounted has nothing to tell.
    assert_failure(
        &sandbox.run(&["iostat", "tank"]),
        1,
        &["pool tank is not mounted", "pagefold mount tank"],
    );
    assert_failure(&sandbox.run(&["iostat", "none"]), 1, &["there is no pool \"none\""]);
}

/// A server that is stopped, until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn of(sandbox: &Sandbox) -> Self {
        let pid = i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap();
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

#[test]
fn a_server_that_does_not_answer_keeps_nobody_waiting() {
    if !can_mount() {
        return;
    }
    let sandbox = written();
    let stopped = Stopped::of(&sandbox);
    for number in [Signal::INT, Signal::TERM] {
        let mut child = sandbox.command(&["iostat", "tank", "1"]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // It catches signals before it asks.
        wait_until(|| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::TERM.as_raw() - 1) != 0
        });
        signal(pid, number);
        assert!(child.wait().unwrap().success());
        assert!(is_stopped(stopped.0), "it has waited for the server");
    }
    let listed = sandbox.run(&["list", "-H"]);
    assert_failure(&listed, 1, &["the server of pool tank does not answer"]);
    let [row] = &rows(&listed.stdout)[..] else { panic!("{}", listed.stdout) };
    assert_eq!((row[0], row[8]), ("tank", "SILENT"));
    assert!(row[9].ends_with("/mnt"), "{row:?}");
    assert!(is_stopped(stopped.0), "it has waited for the server");
    drop(stopped);
    assert!(sandbox.ok(&["list", "-H"]).contains("ONLINE"));
    sandbox.ok(&["unmount", "tank"]);
}

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}
