//! Tells when and where a scenario runs, and with which programs, for the report.

use std::fs;
use std::path::Path;

use crate::host::exec::{command, run};
use crate::results::Setting;

/// Returns what is so now. `dir` is the bench's folder.
pub(crate) fn setting(dir: &Path) -> Setting {
    Setting {
        began: first_line("date", &["-u", "+%F %H:%M"]).unwrap_or_default(),
        load: text("/proc/loadavg")
            .map(|load| load.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .unwrap_or_default(),
        commit: commit().unwrap_or_default(),
        machine: describe(dir),
    }
}

/// Returns the commit of the tree that the bench was started in, and says if its code was changed since.
fn commit() -> Option<String> {
    let hash = first_line("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = first_line("git", &["status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock"]);
    Some(if changed.is_some() { format!("{hash}, with changes") } else { hash })
}

/// Returns the first line that a program prints; nothing if it prints none or fails.
fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let done = run(&mut command(program, args)).ok()?;
    let all = format!("{}{}", done.stdout, done.stderr);
    all.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Returns pairs of a name and a value. A value that cannot be found out is left out.
fn describe(dir: &Path) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            lines.push((what.to_owned(), value));
        }
    };
    add("Processor", processor());
    add("Memory", memory());
    add("Kernel", text("/proc/sys/kernel/osrelease"));
    add("Disc", disc(dir));
    add(
        "FUSE over io_uring",
        text("/sys/module/fuse/parameters/enable_uring").map(|on| {
            if on == "Y" {
                "enabled".to_owned()
            } else {
                "not enabled: requests go over /dev/fuse".to_owned()
            }
        }),
    );
    add("fio", first_line("fio", &["--version"]));
    add("PostgreSQL", first_line("psql", &["--version"]));
    add("sysbench", first_line("sysbench", &["--version"]));
    add("btrfs-progs", first_line("mkfs.btrfs", &["--version"]));
    lines
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let names: Vec<&str> = info
        .lines()
        .filter_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim()))
        .collect();
    Some(format!("{} x {}", names.len(), names.first()?))
}

fn memory() -> Option<String> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = info
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok())?;
    Some(format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
}

/// Describes the file system on which the backing files lie.
fn disc(dir: &Path) -> Option<String> {
    let existing = dir.ancestors().find(|p| p.exists())?;
    let out = run(command("df", ["--output=source,fstype", "-h"]).arg(existing)).ok()?.stdout;
    let line = out.lines().nth(1)?.split_whitespace().collect::<Vec<_>>().join(", ");
    Some(format!("{line}; every system on a loop device with direct I/O over a fully written file of it"))
}
