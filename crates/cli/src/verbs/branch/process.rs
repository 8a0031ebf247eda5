//! Finds the processes that serve a data directory.
//!
//! All processes of both servers have their data directory as working directory. So the processes of its owner are
//! searched for those that run a server's program in it; no file that anybody may have written or left behind is
//! believed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use pagefold_server::failure::{Context, Failure, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::data::DataDir;
pub use pagefold_server::raw::shown;

/// Names of servers' programs.
const PROGRAMS: [&str; 4] = ["postgres", "postmaster", "mariadbd", "mysqld"];
/// Pause between two looks at whether a server has ended.
const STEP: Duration = Duration::from_millis(10);

/// A process that serves a database.
#[derive(Clone, Copy, Debug)]
struct Serving {
    pid: i32,
    parent: i32,
}

/// All processes of servers, by the directory they work in (device and inode number) and their user.
#[derive(Debug, Default)]
pub struct Processes {
    by_directory: BTreeMap<((u64, u64), u32), Vec<Serving>>,
}

impl Processes {
    /// Returns the processes that exist now.
    pub fn now() -> Self {
        let mut by_directory: BTreeMap<_, Vec<Serving>> = BTreeMap::new();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if let Some((directory, uid, parent)) = serving(pid) {
                by_directory.entry((directory, uid)).or_default().push(Serving { pid, parent });
            }
        }
        Self { by_directory }
    }

    /// Returns the main process of the server of a data directory. If only other processes are left, returns one of
    /// them.
    pub fn server_of(&self, data: &DataDir) -> Option<i32> {
        let all = self.by_directory.get(&(data.identity, data.uid))?;
        let is_child = |of: &Serving| all.iter().any(|other| other.pid == of.parent);
        all.iter().find(|process| !is_child(process)).map(|process| process.pid)
    }

    /// Returns true if a process belongs to the server of a data directory: it serves, or was started by one that does.
    pub fn belongs_to(&self, data: &DataDir, pid: i32) -> bool {
        let Some(all) = self.by_directory.get(&(data.identity, data.uid)) else { return false };
        let above = std::iter::successors(Some(pid), |pid| parent_of(*pid).filter(|parent| *parent > 0));
        above.into_iter().any(|pid| all.iter().any(|serving| serving.pid == pid))
    }
}

/// Returns the working directory, user and parent of a process that runs a server's program.
fn serving(pid: i32) -> Option<((u64, u64), u32, i32)> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.to_str()?;
    // The kernel adds this suffix after an upgrade.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    if !PROGRAMS.contains(&name) {
        return None;
    }
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let directory = directory(&format!("/proc/{pid}/cwd"))?;
    Some((directory, uid, parent_of(pid)?))
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the device and inode number as the kernel knows them. The server of the file system is not asked, since it
/// may not answer.
fn directory(path: &str) -> Option<(u64, u64)> {
    let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
    let found = rustix::fs::statx(rustix::fs::CWD, path, flags, wanted).ok()?;
    Some((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// Returns the main process of the server of a data directory.
pub fn server_of(data: &DataDir) -> Option<i32> {
    Processes::now().server_of(data)
}

/// Sends a signal to the server of a data directory, and waits until all of it has ended. Returns true if one was
/// running.
///
/// Errors: it has not ended within `patience`.
pub fn end(data: &DataDir, signal: Signal, patience: Duration) -> Result<bool> {
    let started = Instant::now();
    let Some(pid) = server_of(data) else { return Ok(false) };
    let what = || format!("cannot end the server of {} (process {pid})", data.path.display());
    let raw = Pid::from_raw(pid).ok_or_else(|| Failure::new(what()))?;
    // The descriptor keeps naming the same process, which is checked once more before it gets the signal.
    let Ok(process) = pidfd_open(raw, PidfdFlags::empty()) else { return Ok(false) };
    if serving(pid).is_none_or(|(directory, uid, _)| (directory, uid) != (data.identity, data.uid)) {
        return Ok(false);
    }
    match pidfd_send_signal(&process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(Failure::new(format!("{}: {error}", what()))),
    }
    let left = Timespec::try_from(patience).context(what)?;
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
        // A signal may come while it waits.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Failure::new(format!("{}: {error}", what()))),
    }
    // Its children may take a moment longer.
    while let Some(left) = server_of(data) {
        if started.elapsed() > patience {
            return Err(Failure::new(format!(
                "the server of {} (process {left}) has not ended within {} s",
                data.path.display(),
                patience.as_secs()
            ))
            .hint("end its sessions, and try again"));
        }
        std::thread::sleep(STEP);
    }
    Ok(true)
}
