//! Bounds the memory of a database and its file system's server together, by the cgroup v1 memory controller.
//!
//! Page cache is charged to the process that faults it in, so one cgroup around the database server and the
//! file-system server bounds private memory, shared buffers, caches of the file-system server and page cache as
//! one sum. A system without a server spends all of it on page cache; one with a server divides it. That is the
//! comparison an owner of a machine makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::exec;

/// Beginning of the names of the bench's cgroups, by which `clean` finds them.
pub(crate) const MARK: &str = "pagefold-bench-";

fn hierarchy() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    mounts
        .lines()
        .find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let memory = words.get(2) == Some(&"cgroup") && words.get(3)?.split(',').any(|o| o == "memory");
            memory.then(|| words.get(1).map(PathBuf::from)).flatten()
        })
        .ok_or_else(|| {
            anyhow!("no cgroup v1 memory hierarchy is mounted: scenarios with bounded memory cannot run")
        })
}

/// A cgroup with a limit, removed when dropped.
#[derive(Debug)]
pub(crate) struct Limit {
    dir: PathBuf,
}

impl Limit {
    /// Makes a cgroup whose processes and page cache take at most `bytes`.
    ///
    /// # Errors
    /// When there is no cgroup v1 memory controller.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<Self> {
        let dir = hierarchy()?.join(format!("{MARK}{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("create the cgroup {}", dir.display()))?;
        let limit = Self { dir };
        limit.set(bytes)?;
        Ok(limit)
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// When more than that is in use and cannot be reclaimed.
    pub(crate) fn set(&self, bytes: u64) -> Result<()> {
        fs::write(self.dir.join("memory.limit_in_bytes"), bytes.to_string())
            .with_context(|| format!("limit {} to {bytes} bytes", self.dir.display()))
    }

    /// Returns a command that runs `inner` inside the cgroup.
    pub(crate) fn wrap(&self, inner: &Command) -> Command {
        let mut outer = exec::command("sh", ["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        outer.arg(self.dir.join("cgroup.procs")).arg(inner.get_program()).args(inner.get_args());
        for (key, value) in inner.get_envs() {
            if let Some(value) = value {
                outer.env(key, value);
            }
        }
        outer
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.dir) {
            eprintln!("pagefold-bench: {error:#}");
        }
    }
}

/// Removes a cgroup whose processes have ended.
fn remove(dir: &Path) -> Result<()> {
    let mut last = Ok(());
    for _ in 0..100 {
        last = fs::remove_dir(dir);
        if last.is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    last.with_context(|| format!("remove the cgroup {} (is a process left in it?)", dir.display()))
}

/// Removes the cgroups of benches that were killed. Groups that still hold processes stay, and their names are printed.
pub(crate) fn sweep() {
    let Ok(root) = hierarchy() else { return };
    let Ok(entries) = fs::read_dir(&root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = name.strip_prefix(MARK).and_then(|n| n.split('-').next()) else { continue };
        if !Path::new("/proc").join(owner).exists()
            && let Err(error) = remove(&entry.path())
        {
            eprintln!("pagefold-bench: {error:#}");
        }
    }
}

/// Resident memory of a process: now and at its highest, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    /// Now (VmRSS).
    pub(crate) now_bytes: u64,
    /// At its highest (VmHWM).
    pub(crate) peak_bytes: u64,
}

/// Reads a process's resident memory.
///
/// # Errors
/// When the process is gone.
pub(crate) fn resident(pid: u32) -> Result<Resident> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path} (has the server ended?)"))?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map(|kib| kib * 1024)
            .ok_or_else(|| anyhow!("no {name} in {path}"))
    };
    Ok(Resident { now_bytes: field("VmRSS:")?, peak_bytes: field("VmHWM:")? })
}
