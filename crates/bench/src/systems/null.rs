//! Measures the limit of any FUSE server: Pagefold's own front end answers every read from one buffer, in a process of
//! its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use pagefold_fuse::null::NullServer;
use pagefold_fuse::{MountOptions, Session};
use rustix::process::Signal;

use super::Driver;
use crate::bench::Bench;
use crate::host::cleanup::{Noted, note_server};
use crate::host::disk::Disk;
use crate::host::exec::{GRACE, Server};

/// Size in bytes of the one file that the server shows.
const FILE_BYTES: u64 = 1 << 30;
/// Word that the server prints once its mount is usable.
const READY: &str = "serving";

/// Serves until it is unmounted. This is the bench's subcommand `null`.
///
/// # Errors
/// When the mount fails.
pub(crate) fn serve(point: &Path) -> Result<()> {
    let options = MountOptions { source: "null".to_owned(), ..MountOptions::default() };
    let session = Session::mount_handler(Arc::new(NullServer::new(FILE_BYTES)), point, &options)
        .with_context(|| format!("mount the null server at {}", point.display()))?;
    println!("{READY} over {}", if session.agreement().over_ring() { "io_uring" } else { "/dev/fuse" });
    session.wait();
    Ok(())
}

/// The server process.
pub(super) struct Null {
    program: PathBuf,
    dir: PathBuf,
    running: Option<(Server, Noted)>,
}

impl Null {
    pub(super) fn new(bench: &Bench) -> Result<Self> {
        let program = std::env::current_exe().context("find the bench's own program")?;
        Ok(Self { program, dir: bench.dir().to_owned(), running: None })
    }
}

impl Driver for Null {
    fn format(&mut self, _disk: &Disk) -> Result<()> {
        Ok(())
    }

    fn mount(&mut self, _disk: &Disk, point: &Path) -> Result<f64> {
        let started = Instant::now();
        let mut command = std::process::Command::new(&self.program);
        let mut server = Server::start(command.arg("null").arg(point), Signal::TERM, GRACE)?;
        let noted = note_server(&self.dir, server.pid())?;
        // A process that looks at a mount before its server answers waits uninterruptibly, so the server tells when it
        // is ready.
        server.wait_ready(|printed| printed.contains(READY))?;
        self.running = Some((server, noted));
        Ok(started.elapsed().as_secs_f64())
    }

    fn unmount(&mut self, point: &Path) -> Result<()> {
        super::umount(point)?;
        self.running = None;
        Ok(())
    }

    fn sync(&mut self, _point: &Path) -> Result<()> {
        Ok(())
    }

    fn server_pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(server, _)| server.pid())
    }
}
