//! Throttles devices as a default cloud volume: to 125 MB/s and 3000 requests a second each way, by the blkio
//! controller.
//!
//! cgroup v1 checks a request against the rules of the cgroup it is accounted to: direct I/O to the submitter's
//! cgroup, buffered write-back always to the root cgroup, because v1 does not track who dirtied a page. So the
//! bench moves itself, and with it every process it starts, to the root of the blkio hierarchy and sets the rules
//! there. Then both kinds of requests are covered. [`measure_raw`] and [`measure_write_back`] show that before a
//! throttled figure is taken.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::exec::{command, run};
use crate::tools::fio;

/// Limit of bytes per second, each way.
pub(crate) const BYTES_PER_SECOND: u64 = 125_000_000;
/// Limit of requests per second, each way.
pub(crate) const REQUESTS_PER_SECOND: u64 = 3000;
/// Factor by which a verified rate may exceed the limit, since the controller works in slices of a tenth of a second.
const TOLERANCE: f64 = 1.08;
/// Length of each measurement of the verification.
const PROBE_SECONDS: f64 = 2.0;

const RULES: [(&str, u64); 4] = [
    ("blkio.throttle.read_bps_device", BYTES_PER_SECOND),
    ("blkio.throttle.write_bps_device", BYTES_PER_SECOND),
    ("blkio.throttle.read_iops_device", REQUESTS_PER_SECOND),
    ("blkio.throttle.write_iops_device", REQUESTS_PER_SECOND),
];

/// Returns the mounted blkio hierarchy, if there is one.
fn hierarchy() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_source, point, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        (kind == "cgroup" && options.split(',').any(|o| o == "blkio")).then(|| PathBuf::from(point))
    })
}

/// The controller, ready to throttle devices.
#[derive(Debug)]
pub(crate) struct Throttler {
    root: PathBuf,
    /// True if the bench has mounted the hierarchy, and so must unmount it.
    ours: bool,
}

impl Throttler {
    /// Finds the blkio hierarchy, or mounts it below `dir`, and moves the bench to its root.
    ///
    /// # Errors
    /// When the kernel offers no cgroup v1 blkio controller, for instance because cgroup v2 holds it.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let (root, ours) = match hierarchy() {
            Some(root) => (root, false),
            None => {
                let point = dir.join("blkio");
                fs::create_dir_all(&point)?;
                run(command("mount", ["-t", "cgroup", "-o", "blkio", "cgroup"]).arg(&point)).context(
                    "the throttled profile needs the cgroup v1 blkio controller; if cgroup v2 holds `io`, boot with \
                     cgroup_no_v1= unset and systemd.unified_cgroup_hierarchy=0, or use --profile free",
                )?;
                (point, true)
            }
        };
        let throttler = Self { root, ours };
        let procs = throttler.root.join("cgroup.procs");
        fs::write(&procs, std::process::id().to_string())
            .with_context(|| format!("move the bench to the root of {}", throttler.root.display()))?;
        Ok(throttler)
    }

    /// Limits a device until the guard is dropped.
    ///
    /// # Errors
    /// When the rules cannot be written.
    pub(crate) fn apply(&self, disk: &Disk) -> Result<Throttled> {
        let guard = Throttled { root: self.root.clone(), number: disk.number().to_owned() };
        for (file, limit) in RULES {
            let path = self.root.join(file);
            fs::write(&path, format!("{} {limit}", disk.number()))
                .with_context(|| format!("throttle {} in {}", disk.path().display(), path.display()))?;
        }
        Ok(guard)
    }
}

impl Drop for Throttler {
    fn drop(&mut self) {
        if self.ours {
            let _best_effort = std::process::Command::new("umount").arg(&self.root).status();
        }
    }
}

/// A throttled device. Its rules are lifted when this is dropped.
#[derive(Debug)]
pub(crate) struct Throttled {
    root: PathBuf,
    number: String,
}

impl Drop for Throttled {
    fn drop(&mut self) {
        lift(&self.root, &self.number);
    }
}

/// Lifts the rules of a device that is about to vanish, whoever set them.
pub(crate) fn forget(number: &str) {
    if let Some(root) = hierarchy() {
        lift(&root, number);
    }
}

fn lift(root: &Path, number: &str) {
    for (file, _) in RULES {
        let path = root.join(file);
        let has_rule = fs::read_to_string(&path)
            .is_ok_and(|rules| rules.lines().any(|line| line.split(' ').next() == Some(number)));
        if has_rule && let Err(error) = fs::write(&path, format!("{number} 0")) {
            eprintln!(
                "pagefold-bench: {}: the rule of {number} could not be lifted: {error}",
                path.display()
            );
        }
    }
}

/// Rates that the throttle let through.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Verification {
    /// 8 KiB random O_DIRECT reads per second at depth 16.
    pub(crate) read_requests: f64,
    /// 8 KiB random O_DIRECT writes per second at depth 16.
    pub(crate) write_requests: f64,
    /// MB (10^6) per second of sequential O_DIRECT reads.
    pub(crate) read_mb: f64,
    /// MB per second of sequential O_DIRECT writes.
    pub(crate) write_mb: f64,
    /// MB per second of buffered writes with fsync, that is, of write-back.
    pub(crate) writeback_mb: f64,
    /// 8 KiB random O_DIRECT reads per second without the throttle, which shows that the throttle is what limits them.
    pub(crate) free_read_requests: f64,
}

/// Measures a raw device, free and throttled. Write-back is measured apart, by [`measure_write_back`]: a raw device
/// is written back in single blocks, and the limit of requests lets few of them through.
///
/// # Errors
/// When fio fails.
pub(crate) fn measure_raw(throttler: &Throttler, disk: &Disk) -> Result<Verification> {
    let probe = |rw: &str, block: &str, depth: u32| -> Result<fio::JobFigures> {
        let mut job = fio::Job::new("verify", disk.path(), rw, block, PROBE_SECONDS);
        job.extra =
            vec!["--direct=1".to_owned(), "--ioengine=libaio".to_owned(), format!("--iodepth={depth}")];
        fio::run(&job)
    };
    let free_read_requests = probe("randread", "8k", 16)?.read.per_second;
    let _throttled = throttler.apply(disk)?;
    Ok(Verification {
        free_read_requests,
        read_requests: probe("randread", "8k", 16)?.read.per_second,
        write_requests: probe("randwrite", "8k", 16)?.write.per_second,
        read_mb: probe("read", "1m", 4)?.read.bytes_per_second / 1e6,
        write_mb: probe("write", "1m", 4)?.write.bytes_per_second / 1e6,
        writeback_mb: 0.0,
    })
}

/// Returns MB per second of buffered writes with fsync into a new file of a throttled file system.
///
/// # Errors
/// When fio fails.
pub(crate) fn measure_write_back(folder: &Path) -> Result<f64> {
    let mut job = fio::Job::new("verify", &folder.join("write-back"), "write", "1m", PROBE_SECONDS * 2.0);
    job.extra =
        ["--ioengine=psync", "--fsync=64", "--size=512m", "--allow_file_create=1"].map(str::to_owned).into();
    Ok(fio::run(&job)?.write.bytes_per_second / 1e6)
}

impl Verification {
    /// Verifies that the throttle held.
    ///
    /// # Errors
    /// When a rate is above the limit, or so far below that something else is limiting.
    pub(crate) fn check(&self) -> Result<()> {
        let megabytes = BYTES_PER_SECOND as f64 / 1e6;
        let requests = REQUESTS_PER_SECOND as f64;
        for (what, rate, limit) in [
            ("random reads", self.read_requests, requests),
            ("random writes", self.write_requests, requests),
            ("sequential reads", self.read_mb, megabytes),
            ("sequential writes", self.write_mb, megabytes),
            ("buffered write-back", self.writeback_mb, megabytes),
        ] {
            if rate > limit * TOLERANCE || rate < limit * 0.5 {
                bail!(
                    "the throttle does not hold: {what} ran at {rate:.0} a second, the limit is {limit:.0}"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_off_the_limit_are_refused() {
        let held = Verification {
            read_requests: 3004.0,
            write_requests: 2998.0,
            read_mb: 124.0,
            write_mb: 125.0,
            writeback_mb: 110.0,
            free_read_requests: 60_000.0,
        };
        held.check().unwrap();
        assert!(Verification { write_requests: 3300.0, ..held }.check().is_err());
        assert!(Verification { writeback_mb: 900.0, ..held }.check().is_err());
        assert!(Verification { read_mb: 12.0, ..held }.check().is_err());
    }
}
