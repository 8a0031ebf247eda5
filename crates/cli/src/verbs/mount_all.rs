//! `mount -a`: everything that has a mount point by its property.

use crate::args::Mount;
use crate::control::{Client, MountFigures, Reply, Request};
use crate::datasets::{self, Figures};
use crate::failure::{Failure, Result};
use crate::names::{Name, is_within};
use crate::registry::{Known, Registry};
use crate::target;

/// Mounts, parents first; what cannot be mounted is told, and the rest is mounted all the same.
pub fn run(args: &Mount) -> Result<()> {
    let mut failed = 0;
    let tops: Vec<Name> = match &args.source {
        Some(word) => vec![target::name(word)?],
        None => {
            let known = Registry::open()?.all()?;
            known.into_iter().filter(obeys).map(|known| Name::new(&known.name, "")).collect()
        }
    };
    for top in tops {
        for name in missing(&top)? {
            let one = Mount {
                source: Some(name.clone()),
                dir: None,
                all: false,
                options: args.options.clone(),
                dry_run: args.dry_run,
                report: false,
                held_by: None,
                mounts_for: None,
            };
            if let Err(failure) = super::mount::run(&one) {
                eprintln!("pagefold: {name}: {failure}");
                failed += 1;
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failure::new(format!("{failed} datasets could not be mounted"))) }
}

/// Whether a pool's mount points are obeyed; says so if not.
fn obeys(known: &Known) -> bool {
    let obeys = known.adopted || known.altroot.is_some();
    if !obeys {
        eprintln!(
            "pagefold: {0}: not mounted: it was not made here; to obey its mount points from now on: pagefold import --adopt {0}",
            known.name
        );
    }
    obeys
}

/// The dataset and those below it, as far as they have a mount point and are not mounted.
fn missing(top: &Name) -> Result<Vec<String>> {
    let mounted: Vec<MountFigures> = match Client::connect(&top.pool)? {
        Some(mut client) => match client.ask(&Request::Status {})? {
            Reply::Status { figures } => figures.mounts,
            _ => return Err(client.misunderstood()),
        },
        None => Vec::new(),
    };
    let is_missing = |figures: &Figures| {
        !figures.is_snapshot
            && is_within(&figures.path, &top.path)
            && figures.mountpoint != "none"
            && !mounted.iter().any(|mount| mount.path == figures.path)
    };
    let all = datasets::of_pool(&top.pool)?;
    Ok(all.into_iter().filter(is_missing).map(|figures| figures.name).collect())
}
