//! Makes, mounts and drives the systems under test. Each lies on a loop device of the same kind and is used through a
//! folder.

mod kernel;
mod null;
mod pagefold;
mod zfs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub(crate) use null::serve as serve_null;
pub(crate) use pagefold_fuse::null::FILE_NAME as NULL_FILE;

use crate::bench::Bench;
use crate::host::disk::Disk;
use crate::host::exec::{command, run, shielded};
use crate::host::memory::Limit;

/// A file system, with its compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs with `compress=` this.
    Btrfs(&'static str),
    /// zfs-fuse with gzip and recordsize=8K.
    Zfs,
    /// Pagefold with `compression=` this.
    Pagefold(&'static str),
    /// The FUSE server that answers everything from one buffer.
    Null,
}

impl System {
    /// Returns its name in tables and plots.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Ext4 => "ext4".to_owned(),
            Self::Xfs => "XFS".to_owned(),
            Self::Btrfs(codec) => format!("btrfs-{codec}"),
            Self::Zfs => "zfs-fuse-gzip".to_owned(),
            Self::Pagefold(codec) => format!("pagefold-{codec}"),
            Self::Null => "null".to_owned(),
        }
    }

    /// Returns true for Pagefold, and false for its rivals.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Pagefold(_))
    }
}

/// Options of a new volume.
#[derive(Debug, Default)]
pub(crate) struct Options<'a> {
    /// Budget of the server's caches, in bytes; `None` for its default, which is what the machine can spare.
    pub(crate) memory: Option<u64>,
    /// cgroup of the file-system server, if it has one.
    pub(crate) limit: Option<&'a Limit>,
}

/// Writes of a server since it was started, by cause.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity {
    /// Operations and bytes, by the name of the cause.
    pub(crate) counters: BTreeMap<String, (u64, u64)>,
    /// Number of records that replaced others, by kind of page and by length in bytes.
    pub(crate) lengths: BTreeMap<String, BTreeMap<u64, u64>>,
}

/// Operations that differ between the systems.
trait Driver {
    /// Makes the file system.
    fn format(&mut self, disk: &Disk) -> Result<()>;
    /// Mounts it at `point`. Returns the seconds until it was usable.
    fn mount(&mut self, disk: &Disk, point: &Path) -> Result<f64>;
    /// Unmounts it in an orderly way. Everything is on the device afterwards.
    fn unmount(&mut self, point: &Path) -> Result<()>;
    /// Makes everything written so far durable.
    fn sync(&mut self, point: &Path) -> Result<()>;
    /// Returns the id of the server process, if there is one.
    fn server_pid(&self) -> Option<u32> {
        None
    }
    /// Unmounts it so that another machine could take it over.
    fn export(&mut self, point: &Path) -> Result<()> {
        self.unmount(point)
    }
    /// Returns the number of reads that the server's own cache answered, and of those that went to the device.
    fn hits_and_misses(&self) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }
    /// Returns the writes by cause, if the system tells them.
    fn activity(&self) -> Result<Option<Activity>> {
        Ok(None)
    }
    /// Returns the number of bytes of log that a mount after a crash would read, if there is such a log.
    fn log_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Kills the server as a crash would, and clears the dead mount away.
    fn crash(&mut self, _point: &Path) -> Result<()> {
        bail!("only systems with a server process can be killed")
    }
    /// Prepares the file system for snapshots. Returns the folder that they will be taken of.
    fn prepare_snapshots(&mut self, point: &Path) -> Result<PathBuf> {
        Ok(point.to_owned())
    }
    /// Makes a read-only snapshot; returns the seconds that its command took.
    fn snapshot(&mut self, _point: &Path, _name: &str) -> Result<f64> {
        bail!("it has no snapshots")
    }
    /// Makes a writable copy of a snapshot; returns the seconds that its command took.
    fn clone_snapshot(&mut self, _point: &Path, _snapshot: &str, _name: &str) -> Result<f64> {
        bail!("it has no clones")
    }
    /// Returns the bytes in use, as df counts them.
    fn used_bytes(&self, point: &Path) -> Result<u64> {
        let found = rustix::fs::statvfs(point).with_context(|| format!("statvfs {}", point.display()))?;
        Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
    }
    /// Returns logical bytes / stored bytes, if the system tells that.
    fn ratio(&self, _point: &Path) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// A mounted system on a device of its own, taken down when dropped.
pub(crate) struct Volume {
    system: System,
    driver: Box<dyn Driver>,
    point: PathBuf,
    mounted: bool,
    disk: Disk,
}

impl Volume {
    /// Makes and mounts a system on a device of `bytes` bytes.
    ///
    /// # Errors
    /// When one of its programs fails or is not installed.
    pub(crate) fn create(bench: &Bench, system: System, bytes: u64, options: &Options) -> Result<Self> {
        let disk = bench.shelf().take(bytes)?;
        let point = bench.dir().join("mnt").join(format!("{}-{}", system.label(), bench.serial()));
        fs::create_dir_all(&point)?;
        let driver: Box<dyn Driver> = match system {
            System::Ext4 => Box::new(kernel::Kernel::ext4()),
            System::Xfs => Box::new(kernel::Kernel::xfs()),
            System::Btrfs(codec) => Box::new(kernel::Kernel::btrfs(codec)),
            System::Zfs => Box::new(zfs::Zfs::start(bench, options)?),
            System::Pagefold(codec) => Box::new(pagefold::Pagefold::new(bench, codec, options)?),
            System::Null => Box::new(null::Null::new(bench)?),
        };
        let mut volume = Self { system, driver, point, mounted: false, disk };
        volume.driver.format(&volume.disk).with_context(|| format!("make {}", system.label()))?;
        volume.mount()?;
        Ok(volume)
    }

    /// Returns the system.
    pub(crate) fn system(&self) -> System {
        self.system
    }

    /// Returns its name in tables and plots.
    pub(crate) fn label(&self) -> String {
        self.system.label()
    }

    /// Returns its mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Returns the device below it.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Mounts it. Returns the seconds until it was usable.
    ///
    /// # Errors
    /// When the mount fails.
    pub(crate) fn mount(&mut self) -> Result<f64> {
        let seconds =
            self.driver.mount(&self.disk, &self.point).with_context(|| format!("mount {}", self.label()))?;
        self.mounted = true;
        Ok(seconds)
    }

    /// Unmounts it in an orderly way.
    ///
    /// # Errors
    /// When it is busy.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        self.driver.unmount(&self.point).with_context(|| format!("unmount {}", self.label()))?;
        self.mounted = false;
        Ok(())
    }

    /// Unmounts it, and releases the device if the system has an operation for that.
    ///
    /// # Errors
    /// When it is busy.
    pub(crate) fn export(&mut self) -> Result<()> {
        self.driver.export(&self.point).with_context(|| format!("export {}", self.label()))?;
        self.mounted = false;
        Ok(())
    }

    /// Returns the number of reads since the mount that the server's own cache answered, and of those that went to the
    /// device.
    ///
    /// # Errors
    /// When its tool fails.
    pub(crate) fn hits_and_misses(&self) -> Result<Option<(u64, u64)>> {
        self.driver.hits_and_misses()
    }

    /// Returns the writes since the mount by cause, if the system tells them.
    ///
    /// # Errors
    /// When its tool fails.
    pub(crate) fn activity(&self) -> Result<Option<Activity>> {
        self.driver.activity()
    }

    /// Returns the number of bytes of log that a mount after a crash would read, if there is such a log.
    ///
    /// # Errors
    /// When its tool fails.
    pub(crate) fn log_bytes(&self) -> Result<Option<u64>> {
        self.driver.log_bytes()
    }

    /// Empties all caches of it: unmounts it, drops the kernel's caches, and mounts it again.
    ///
    /// # Errors
    /// When it cannot be unmounted or mounted.
    pub(crate) fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        drop_caches()?;
        self.mount().map(drop)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// When a write-back fails.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.driver.sync(&self.point).with_context(|| format!("sync {}", self.label()))
    }

    /// Prepares it for snapshots. Returns the folder that they will be taken of.
    ///
    /// # Errors
    /// When its tool fails.
    pub(crate) fn prepare_snapshots(&mut self) -> Result<PathBuf> {
        self.driver.prepare_snapshots(&self.point)
    }

    /// Makes a read-only snapshot; returns the seconds that its command took.
    ///
    /// # Errors
    /// For systems without snapshots; when its tool fails.
    pub(crate) fn snapshot(&mut self, name: &str) -> Result<f64> {
        self.driver.snapshot(&self.point, name).with_context(|| format!("snapshot of {}", self.label()))
    }

    /// Makes a writable copy of a snapshot; returns the seconds that its command took.
    ///
    /// # Errors
    /// As [`Volume::snapshot`].
    pub(crate) fn clone_snapshot(&mut self, snapshot: &str, name: &str) -> Result<f64> {
        self.driver
            .clone_snapshot(&self.point, snapshot, name)
            .with_context(|| format!("clone on {}", self.label()))
    }

    /// Returns the id of the server process, if there is one.
    pub(crate) fn server_pid(&self) -> Option<u32> {
        self.driver.server_pid()
    }

    /// Kills the server with SIGKILL; mount again to recover.
    ///
    /// # Errors
    /// For systems without a server.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.driver.crash(&self.point)?;
        self.mounted = false;
        Ok(())
    }

    /// Returns the bytes in use, as df counts them.
    ///
    /// # Errors
    /// When it is not mounted, or its tool fails.
    pub(crate) fn used_bytes(&self) -> Result<u64> {
        self.driver.used_bytes(&self.point)
    }

    /// Returns logical bytes / stored bytes, if the system tells that.
    ///
    /// # Errors
    /// When its tool fails.
    pub(crate) fn ratio(&self) -> Result<Option<f64>> {
        self.driver.ratio(&self.point)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = shielded(|| self.unmount())
        {
            eprintln!("pagefold-bench: {error:#}");
        }
        let _empty_or_kept = fs::remove_dir(&self.point);
    }
}

/// Drops clean page cache and kernel objects of the whole machine.
///
/// # Errors
/// Without root.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches (needs root)")
}

/// Runs `umount`, and tries again for two seconds while somebody still looks at the mount.
fn umount(point: &Path) -> Result<()> {
    let mut tries = 0;
    loop {
        match run(&mut command("umount", [point])) {
            Ok(_) => return Ok(()),
            Err(_) if tries < 20 => std::thread::sleep(std::time::Duration::from_millis(100)),
            Err(error) => return Err(error),
        }
        tries += 1;
    }
}
