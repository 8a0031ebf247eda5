//! Recognises processes that died and cannot end.
//!
//! A thread that tells the kernel to drop pages waits for requests that have these pages locked, and no signal ends
//! that wait. If its server dies meanwhile, the next server has to answer the requests: a supervisor that waited for
//! the end of the first server before it starts the next would wait for ever.

use std::fs;

use pagefold_fuse::DROP_THREADS;

/// Bit of SIGKILL in the mask of pending signals: each thread of a process that ends has it.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// Returns true for a process that died and whose remaining threads all tell the kernel to drop pages. If any other
/// thread remains, which may be writing to a device, returns false.
pub fn ended_but_for_drops(pid: u32) -> bool {
    drops_left(pid).is_some_and(|left| left > 0)
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
    fn who_lives_and_who_is_wholly_dead_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!ended_but_for_drops(child.id()));
        child.kill().unwrap();
        // Its threads are gone at once; the process itself is waited for, as usual.
        assert!(!ended_but_for_drops(child.id()));
        child.wait().unwrap();
    }
}
