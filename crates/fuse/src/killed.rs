//! Recognises processes that were killed and cannot end, and connections that nobody else holds.
//!
//! A thread that tells the kernel to drop pages waits for requests that have these pages locked, and no signal ends
//! that wait. If its server dies meanwhile, the next server has to answer the requests: who waited for the end of the
//! first server before he starts the next would wait for ever. If no server follows, the connection has to be aborted:
//! the thread's file of it ([`crate::own_files`]) is the only one left, so the kernel does not end it.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use crate::DROP_THREADS;

/// Bit of SIGKILL in the mask of pending signals: each thread of a process that ends has it.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// Returns true for a process that died and whose remaining threads all tell the kernel to drop pages. If any other
/// thread remains, which may be writing to a device, returns false.
pub fn ended_but_for_drops(pid: u32) -> bool {
    drops_left(pid).is_some_and(|left| left > 0)
}

/// Returns the connections, by the minor numbers of their devices, that only killed processes hold. Their clients wait
/// until somebody aborts them. Linux tells who holds a connection since 6.15 or so; before that, none are found. None
/// are found either unless this process may look at the files of servers (as root, with CAP_SYS_PTRACE). A living
/// process that has the name of a killed one, and cannot be looked at, may hold what that one held.
pub fn abandoned() -> BTreeSet<u32> {
    let (dead, alive): (Vec<u32>, Vec<u32>) =
        processes().into_iter().partition(|pid| ended_but_for_drops(*pid));
    let names: BTreeSet<String> = dead.iter().filter_map(|pid| name_of(*pid)).collect();
    let mut left: BTreeSet<u32> =
        dead.into_iter().flat_map(|pid| of_threads(pid).unwrap_or_default()).collect();
    for pid in alive {
        if left.is_empty() {
            break;
        }
        match of_threads(pid) {
            Ok(held) => left.retain(|connection| !held.contains(connection)),
            Err(_) if name_of(pid).is_some_and(|name| names.contains(&name)) => return BTreeSet::new(),
            Err(_) => {}
        }
    }
    left
}

/// Returns the name of a process's first thread, which is that of its program.
fn name_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

fn processes() -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the connections that threads of a process hold; each may have a table of files of its own. None if the
/// process has ended.
fn of_threads(pid: u32) -> io::Result<Vec<u32>> {
    let mut held = Vec::new();
    for task in unless_gone(fs::read_dir(format!("/proc/{pid}/task")))?.into_iter().flatten() {
        held.extend(of_files(&task?.path())?);
    }
    Ok(held)
}

/// Returns the connections among the files of a thread, given its directory in /proc.
fn of_files(thread: &Path) -> io::Result<Vec<u32>> {
    let mut held = Vec::new();
    for file in unless_gone(fs::read_dir(thread.join("fdinfo")))?.into_iter().flatten() {
        let told = unless_gone(fs::read_to_string(file?.path()))?;
        held.extend(told.as_deref().and_then(connection_of));
    }
    Ok(held)
}

/// Returns `None` for what belongs to a thread that has ended, or a file that was closed, meanwhile.
fn unless_gone<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses what /proc/PID/fdinfo tells of a file of /dev/fuse.
pub(crate) fn connection_of(text: &str) -> Option<u32> {
    field(text, "fuse_connection")?.parse().ok()
}

/// Counts the threads that are left of a process that died; `None` if it lives, or if one of the threads does anything
/// else.
fn drops_left(pid: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    if state(&status) != Some('Z') {
        return None;
    }
    let mut left = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let task = task.ok()?;
        if task.file_name().to_str() == Some(&pid.to_string()) {
            continue;
        }
        // A thread that has ended by now is skipped.
        let Ok(text) = fs::read_to_string(task.path().join("status")) else { continue };
        if !is_over(&text) {
            return None;
        }
        left += 1;
    }
    Some(left)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn state(status: &str) -> Option<char> {
    field(status, "State")?.chars().next()
}

/// Returns true for a thread that has ended, or that was killed while it told the kernel to drop pages. The fields are
/// those of proc_pid_status(5).
fn is_over(status: &str) -> bool {
    let pending = field(status, "SigPnd").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    match state(status) {
        Some('Z' | 'X') => true,
        Some('D') => field(status, "Name") == Some(DROP_THREADS) && pending & KILLED != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str, state: &str, pending: &str) -> String {
        format!(
            "Name:\t{name}\nUmask:\t0022\nState:\t{state}\nTgid:\t7\nSigQ:\t1/9\nSigPnd:\t{pending}\nShdPnd:\t0000000000000100\n"
        )
    }

    #[test]
    fn only_threads_that_will_do_nothing_more_are_over() {
        assert!(is_over(&thread("pf-drop", "D (disk sleep)", "0000000000000100")));
        assert!(is_over(&thread("commit", "Z (zombie)", "0000000000000000")));
        assert!(!is_over(&thread("pf-drop", "D (disk sleep)", "0000000000000000")), "nobody has killed it");
        assert!(!is_over(&thread("pf-drop", "R (running)", "0000000000000100")), "it may still return");
        assert!(!is_over(&thread("commit", "D (disk sleep)", "0000000000000100")), "it may write");
        assert!(!is_over(""));
    }

    #[test]
    fn a_connection_is_known_by_its_number() {
        let text = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t39\n";
        assert_eq!(connection_of(text), Some(39));
        assert_eq!(connection_of("pos:\t0\nflags:\t02100002\n"), None);
    }

    #[test]
    fn who_lives_and_who_is_wholly_dead_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!ended_but_for_drops(child.id()));
        child.kill().unwrap();
        // Its threads are gone at once; the process itself is waited for, as usual.
        assert!(!ended_but_for_drops(child.id()));
        child.wait().unwrap();
    }
}
