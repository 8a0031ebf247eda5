//! `mount -a`: mounts everything that has a mount point by its property.

use std::path::PathBuf;

use pagefold_server::control::{Client, MountFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::{Name, is_within};
use pagefold_server::pools;
use pagefold_server::registry::{Known, Registry};

use crate::args::Mount;
use crate::datasets::{self, DatasetFigures};
use crate::failures::Failures;
use crate::{plan, table, target};

/// Mounts, parents first. A failure is reported, and the rest is mounted all the same, except what belongs below it.
pub fn run(args: &Mount) -> Result<()> {
    let mut failures = Failures::new();
    let tops: Vec<Name> = match &args.source {
        Some(word) => vec![target::name(word)?],
        None => {
            let known = Registry::open()?.all()?;
            known.into_iter().filter(obeys).map(|known| Name::new(&known.name, "")).collect()
        }
    };
    for top in tops {
        // A pool that is away, or damaged, keeps no other from being mounted.
        let Some(missing) = failures.need(&top.pool, missing(&top, args.dry_run)) else { continue };
        let mut failed: Vec<PathBuf> = Vec::new();
        // Directories at which a dry run has found that something can be mounted.
        let mut sound: Vec<PathBuf> = Vec::new();
        for (name, dir) in missing {
            if let Some(above) = failed.iter().find(|above| dir.starts_with(above)) {
                let above = table::printable(&pagefold_server::raw::text(above));
                let failure =
                    Failure::new(format!("it belongs below {above}, where nothing could be mounted"));
                failures.take::<()>(&name, Err(failure));
                continue;
            }
            let one = Mount {
                options: args.options.clone(),
                dry_run: args.dry_run,
                ..Mount::of(name.clone(), None)
            };
            // The directories below it are to be seen only when it is mounted.
            let is_unseen = sound.iter().any(|above| dir.starts_with(above));
            let done = if is_unseen { plan::make(&one).map(drop) } else { super::mount::run(&one) };
            match failures.take(&name, done) {
                None => failed.push(dir),
                Some(()) if args.dry_run => sound.push(dir),
                Some(()) => {}
            }
        }
    }
    failures.finish_all("mounted")
}

/// Returns whether a pool's mount points are obeyed; prints a message if not.
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

/// Returns the dataset and those below it that have a mount point and are not mounted. Without `dry_run`, a pool that crashed
/// is replayed if its properties cannot be read before.
fn missing(top: &Name, dry_run: bool) -> Result<Vec<(String, PathBuf)>> {
    let ask = |client: &mut Client| match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(figures.mounts),
        _ => Err(client.misunderstood()),
    };
    let mounted: Vec<MountFigures> = target::ask_or(&top.pool, ask, || Ok(Vec::new()))?;
    let is_missing = |figures: &DatasetFigures| {
        !figures.is_snapshot
            && is_within(&figures.path, &top.path)
            && figures.mountpoint != "none"
            && !mounted.iter().any(|mount| mount.path == figures.path)
    };
    let all = match datasets::of_pool(&top.pool) {
        Err(failure) if failure.needs_replay() && !dry_run => {
            pools::close_cleanly(&Registry::open()?.find(&top.pool)?)?;
            datasets::of_pool(&top.pool)?
        }
        all => all?,
    };
    Ok(all.into_iter().filter(is_missing).map(|figures| (figures.name, figures.mountpoint.into())).collect())
}
