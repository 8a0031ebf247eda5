//! `mount -a`: everything that has a mount point by its property.

use crate::args::Mount;
use crate::control::{Client, MountFigures, Reply, Request};
use crate::datasets::{self, Figures};
use crate::failure::{Failure, Result};
use crate::registry::Registry;

/// Mounts, parents first; what cannot be mounted is told, and the rest is mounted all the same.
pub fn run(args: &Mount) -> Result<()> {
    let mut failed = 0;
    for known in Registry::open()?.all()? {
        for name in missing(&known.name)? {
            let one = Mount {
                source: Some(name.clone()),
                dir: None,
                all: false,
                options: args.options.clone(),
                dry_run: args.dry_run,
                report: false,
            };
            if let Err(failure) = super::mount::run(&one) {
                eprintln!("pagefold: {name}: {failure}");
                failed += 1;
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failure::new(format!("{failed} datasets could not be mounted"))) }
}

/// Datasets of a pool that have a mount point and are not mounted.
fn missing(pool: &str) -> Result<Vec<String>> {
    let mounted: Vec<MountFigures> = match Client::connect(pool)? {
        Some(mut client) => match client.ask(&Request::Status {})? {
            Reply::Status { figures } => figures.mounts,
            _ => return Err(client.misunderstood()),
        },
        None => Vec::new(),
    };
    let is_missing = |figures: &Figures| {
        !figures.is_snapshot
            && figures.mountpoint != "none"
            && !mounted.iter().any(|mount| mount.path == figures.path)
    };
    let all = datasets::of_pool(pool)?;
    Ok(all.into_iter().filter(is_missing).map(|figures| figures.name).collect())
}
