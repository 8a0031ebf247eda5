//! Drives ext4, XFS and btrfs as their packages make them. Only trimming is left out, which would punch the backing
//! file, and ext4's background initialisation, which would disturb the first minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::{Driver, umount};
use crate::host::disk::Disk;
use crate::host::exec::{command, run};

/// A file system of the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    name: &'static str,
    mkfs: &'static [&'static str],
    options: String,
}

impl Kernel {
    pub(super) fn ext4() -> Self {
        let mkfs = &["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
        Self { name: "ext4", mkfs, options: "noatime".to_owned() }
    }

    pub(super) fn xfs() -> Self {
        Self { name: "xfs", mkfs: &["mkfs.xfs", "-q", "-f", "-K"], options: "noatime".to_owned() }
    }

    pub(super) fn btrfs(codec: &str) -> Self {
        let options = format!("noatime,compress={codec}");
        Self { name: "btrfs", mkfs: &["mkfs.btrfs", "-q", "-f", "-K"], options }
    }
}

/// Adds two paths below the mount to a command.
fn with_paths(mut command: Command, point: &Path, from: &str, to: &str) -> Command {
    command.arg(point.join(from)).arg(point.join(to));
    command
}

impl Driver for Kernel {
    fn format(&mut self, disk: &Disk) -> Result<()> {
        let (program, args) = self.mkfs.split_first().unwrap_or((&"false", &[]));
        run(command(program, args).arg(disk.path()))?;
        Ok(())
    }

    fn mount(&mut self, disk: &Disk, point: &Path) -> Result<f64> {
        let started = Instant::now();
        run(command("mount", ["-t", self.name, "-o", &self.options]).arg(disk.path()).arg(point))?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn unmount(&mut self, point: &Path) -> Result<()> {
        umount(point)
    }

    fn sync(&mut self, point: &Path) -> Result<()> {
        run(command("sync", ["--file-system"]).arg(point))?;
        Ok(())
    }

    fn prepare_snapshots(&mut self, point: &Path) -> Result<PathBuf> {
        let folder = point.join("data");
        run(command("btrfs", ["subvolume", "create"]).arg(&folder))?;
        Ok(folder)
    }

    fn snapshot(&mut self, point: &Path, name: &str) -> Result<f64> {
        let snapshot = command("btrfs", ["subvolume", "snapshot", "-r"]);
        Ok(run(&mut with_paths(snapshot, point, "data", name))?.seconds)
    }

    fn clone_snapshot(&mut self, point: &Path, snapshot: &str, name: &str) -> Result<f64> {
        let clone = command("btrfs", ["subvolume", "snapshot"]);
        Ok(run(&mut with_paths(clone, point, snapshot, name))?.seconds)
    }

    fn ratio(&self, point: &Path) -> Result<Option<f64>> {
        if self.name != "btrfs" {
            return Ok(None);
        }
        let out = run(command("compsize", ["--bytes"]).arg(point))?.stdout;
        let total = out.lines().find(|l| l.starts_with("TOTAL"));
        let words: Vec<&str> = total.unwrap_or_default().split_whitespace().collect();
        let number = |n: usize| words.get(n).and_then(|w| w.parse::<f64>().ok());
        Ok(number(2).zip(number(3)).map(|(disk, plain)| plain / disk))
    }
}
