//! Drives zfs-fuse, with a daemon of its own.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::{Driver, Options};
use crate::bench::Bench;
use crate::host::cleanup::{Noted, note_server};
use crate::host::disk::Disk;
use crate::host::exec::{GRACE, Server, command, run};

/// Size of zfs-fuse's cache in MiB: its default, and Pagefold's.
const ARC_MIB: u64 = 512;

/// A pool and the daemon that serves it.
#[derive(Debug)]
pub(super) struct Zfs {
    pool: String,
    imported: bool,
    server: Server,
    _noted: Noted,
}

impl Zfs {
    pub(super) fn start(bench: &Bench, options: &Options) -> Result<Self> {
        if run(&mut command("pgrep", ["-x", "zfs-fuse"])).is_ok() {
            bail!("another zfs-fuse runs on this machine, and there can be only one");
        }
        let arc_mib = options.memory.map_or(ARC_MIB, |bytes| (bytes >> 20).max(16));
        let daemon = command("zfs-fuse", ["--no-daemon", "--no-kstat-mount", "-m", &arc_mib.to_string()]);
        let mut daemon = options.limit.map_or(daemon, |limit| {
            let daemon = command("zfs-fuse", ["--no-daemon", "--no-kstat-mount", "-m", &arc_mib.to_string()]);
            limit.wrap(&daemon)
        });
        let mut server = Server::start(&mut daemon, Signal::TERM, GRACE)?;
        let noted = note_server(bench.dir(), server.pid())?;
        server.wait_ready(|_| run(&mut command("zpool", ["list"])).is_ok())?;
        Ok(Self { pool: format!("pfbench{}", bench.serial()), imported: false, server, _noted: noted })
    }
}

impl Driver for Zfs {
    fn format(&mut self, disk: &Disk) -> Result<()> {
        // A pool in the cache file would be opened by the next server, after a bench that was killed.
        let properties = "-o cachefile=none -O compression=gzip -O recordsize=8K -O atime=off -m none";
        run(command("zpool", ["create"]).args(properties.split(' ')).arg(&self.pool).arg(disk.path()))?;
        self.imported = true;
        Ok(())
    }

    fn mount(&mut self, _disk: &Disk, point: &Path) -> Result<f64> {
        let started = Instant::now();
        if !self.imported {
            run(&mut command("zpool", ["import", "-o", "cachefile=none", "-d", "/dev", &self.pool]))?;
            self.imported = true;
        }
        // An import mounts where the pool was mounted before. To set the same place again would unmount it and find it
        // busy now and then.
        let value = |property| run(&mut command("zfs", ["get", "-H", "-o", "value", property, &self.pool]));
        let there = value("mountpoint")?.stdout.trim() == point.to_string_lossy();
        if !there || value("mounted")?.stdout.trim() != "yes" {
            run(&mut command("zfs", ["set", &format!("mountpoint={}", point.display()), &self.pool]))?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn unmount(&mut self, _point: &Path) -> Result<()> {
        run(&mut command("zpool", ["export", &self.pool])).context("export the pool of zfs-fuse")?;
        self.imported = false;
        Ok(())
    }

    fn sync(&mut self, _point: &Path) -> Result<()> {
        // Neither syncfs(2) nor sync(2) reaches a FUSE server, and an fsync commits one file's log only. A snapshot
        // waits until the transaction group is on the device. zfs-fuse writes through the device's page cache.
        rustix::fs::sync();
        let snapshot = format!("{}@sync", self.pool);
        run(&mut command("zfs", ["snapshot", &snapshot]))?;
        run(&mut command("zfs", ["destroy", &snapshot]))?;
        rustix::fs::sync();
        Ok(())
    }

    fn server_pid(&self) -> Option<u32> {
        Some(self.server.pid())
    }

    fn snapshot(&mut self, _point: &Path, name: &str) -> Result<f64> {
        Ok(run(&mut command("zfs", ["snapshot", &format!("{}@{name}", self.pool)]))?.seconds)
    }

    fn clone_snapshot(&mut self, _point: &Path, snapshot: &str, name: &str) -> Result<f64> {
        let words = [format!("{}@{snapshot}", self.pool), format!("{}/{name}", self.pool)];
        Ok(run(command("zfs", ["clone", "-o", "mountpoint=none"]).args(words))?.seconds)
    }

    fn ratio(&self, _point: &Path) -> Result<Option<f64>> {
        let out = run(&mut command("zfs", ["get", "-H", "-o", "value", "compressratio", &self.pool]))?.stdout;
        Ok(out.trim().trim_end_matches('x').parse().ok())
    }
}
