//! What is to be mounted, where and how: decided before anything is touched.

use std::path::PathBuf;

use crate::args;
use crate::control::{Client, Reply, Request};
use crate::failure::{Failure, Result};
use crate::mountopts::{self, MountOptions};
use crate::registry::Known;
use crate::{mounts, pools, target};

/// A mount to be made.
#[derive(Debug)]
pub struct Plan {
    /// The pool's name.
    pub pool: String,
    /// Its unique number and devices.
    pub known: Known,
    /// It was named by one of its devices, not by its name.
    pub by_device: bool,
    /// Where to mount, absolute.
    pub dir: PathBuf,
    /// How.
    pub options: MountOptions,
}

/// Finds the pool's devices and the directory.
pub fn make(args: &args::Mount) -> Result<Plan> {
    let options = mountopts::parse(&args.options)?;
    let (known, by_device) = target::source(&args.source)?;
    let pool = known.name.clone();
    refuse_if_mounted(&pool)?;
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir(&known)?,
    };
    let dir = std::path::absolute(&dir)
        .map_err(|error| Failure::new(format!("cannot resolve {}: {error}", dir.display())))?;
    Ok(Plan { pool, known, by_device, dir, options })
}

fn default_dir(known: &Known) -> Result<PathBuf> {
    let pool = &known.name;
    let mountpoint = pools::property_offline(known, "mountpoint")?;
    match mountpoint.as_deref() {
        None | Some("none") => Err(Failure::usage(format!("where is pool {pool} to be mounted?"))
            .hint(format!("pagefold mount {pool} DIR, or once: pagefold set mountpoint=DIR {pool}"))),
        Some(dir) => Ok(dir.into()),
    }
}

/// Errors where the pool is mounted. A server whose mount is gone and that is about to end is waited for: umount(8) returns
/// before the server has noticed.
fn refuse_if_mounted(pool: &str) -> Result<()> {
    let Some(mut client) = Client::connect(pool)? else { return Ok(()) };
    let mount = match client.ask(&Request::Status {}) {
        Ok(Reply::Status { figures }) => figures.mount,
        Ok(_) => return Err(client.misunderstood()),
        // It ended while we asked.
        Err(_) => None,
    };
    let Some(mount) = mount else { return client.wait_for_end() };
    let dir = mount.dir.display();
    if mounts::sees(mount.pid, &mount.dir) {
        return Err(Failure::new(format!("pool {pool} is mounted already at {dir}"))
            .hint(format!("unmount it first: pagefold unmount {pool}")));
    }
    client.wait_for_end().map_err(|_| {
        Failure::new(format!("pool {pool} was unmounted from {dir}, but files there are still open"))
            .hint("end the programs that have them open, then mount again")
    })
}
