//! Takes down what a killed bench left behind, which is found by convention alone.
//!
//! Everything that a bench sets up lies below one folder: mount points, backing files, PostgreSQL's data and a file
//! per server process. So a sweep needs no memory of what was started: it unmounts what is mounted below the folder,
//! ends the processes whose id and start time are noted there, detaches loop devices whose file lies there, and
//! removes the folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{memory, throttle};

const NOTES: &str = "servers";

/// A process noted for `clean`; the note goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Noted(PathBuf);

impl Drop for Noted {
    fn drop(&mut self) {
        let _gone_already = fs::remove_file(&self.0);
    }
}

/// Notes a server process below `dir`.
///
/// # Errors
/// When the process is gone or the note cannot be written.
pub(crate) fn note_server(dir: &Path, pid: u32) -> Result<Noted> {
    let notes = dir.join(NOTES);
    fs::create_dir_all(&notes)?;
    let path = notes.join(pid.to_string());
    fs::write(&path, start_time(pid).with_context(|| format!("process {pid} has ended"))?)?;
    Ok(Noted(path))
}

/// Returns the start of a process in clock ticks since boot. Together with its id it is the process's identity.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; fields are counted from the last parenthesis.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(19).map(str::to_owned)
}

/// Ends the noted processes. An id that another process has by now is left alone.
fn end_servers(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir.join(NOTES)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse::<u32>() else { continue };
        let same = || {
            let noted = fs::read_to_string(entry.path()).ok();
            noted.is_some() && noted == start_time(pid)
        };
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { break };
            if !same() {
                break;
            }
            let _may_have_ended = kill_process(target, signal);
            let asked = Instant::now();
            while same() && asked.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _best_effort = fs::remove_file(entry.path());
    }
}

/// Returns the mount points below a folder, the newest first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut points: Vec<PathBuf> = points.filter(|p| p.starts_with(dir)).collect();
    points.reverse();
    points
}

/// Returns the loop devices whose backing file lies below a folder.
fn loops_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let below = |entry: &fs::DirEntry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        file.trim().starts_with(&*dir.to_string_lossy()).then(|| Path::new("/dev").join(entry.file_name()))
    };
    entries.flatten().filter_map(|entry| below(&entry)).collect()
}

fn try_run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).stderr(std::process::Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Takes down everything below `dir`. With `keep_data`, backing files and prepared databases stay for the next run.
///
/// # Errors
/// Tells what could not be taken down.
pub(crate) fn sweep(dir: &Path, keep_data: bool) -> Result<()> {
    end_servers(dir);
    let mut left = Vec::new();
    for point in mounts_below(dir) {
        let path = point.to_string_lossy();
        if !try_run("umount", &[&path]) && !try_run("umount", &["--lazy", &path]) {
            left.push(format!("{path} is still mounted"));
        }
    }
    for device in loops_below(dir) {
        if let Ok(number) = fs::read_to_string(
            Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join("dev"),
        ) {
            throttle::forget(number.trim());
        }
        if !try_run("losetup", &["--detach", &device.to_string_lossy()]) {
            left.push(format!("{} is still attached", device.display()));
        }
    }
    memory::sweep();
    // Pools of an earlier run are gone with their devices, so Pagefold's state of them must go, too.
    let pools = dir.join("pagefold");
    if left.is_empty() && pools.exists() {
        fs::remove_dir_all(&pools).with_context(|| format!("remove {}", pools.display()))?;
    }
    if !left.is_empty() {
        bail!("could not clean up below {}: {}", dir.display(), left.join("; "));
    }
    if !keep_data && dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_process_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut ours = Command::new("sleep").arg("60").spawn().unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let _noted = note_server(dir.path(), ours.id()).unwrap();
        // The id of this note belongs to another process by now.
        fs::write(dir.path().join(NOTES).join(other.id().to_string()), "1").unwrap();
        let reaper = std::thread::spawn(move || ours.wait().unwrap());
        end_servers(dir.path());
        assert!(!reaper.join().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "an unrelated process was ended");
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(fs::read_dir(dir.path().join(NOTES)).unwrap().count(), 0);
    }
}
