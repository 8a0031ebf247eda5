//! `split`: one device of each mirror leaves a pool, and together they are a pool of their own.

use std::path::{Path, PathBuf};

use pagefold_server::control::{DeviceFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::raw::shown;
use pagefold_server::registry::Registry;
use pagefold_server::units;

use super::Asked;
use super::removal::of_group;
use crate::args::SplitPool;

/// Splits a pool of mirrors.
pub fn split(args: &SplitPool) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "split")?;
    check_unused(&args.new_pool)?;
    let numbers = |word: &PathBuf| Ok(asked.device(word)?.number);
    let devices: Vec<u16> = args.devices.iter().map(numbers).collect::<Result<_>>()?;
    let request = Request::Split { name: args.new_pool.clone(), devices, dry_run: args.dry_run };
    let Reply::Split { devices, .. } = asked.client.ask_and_wait(&request)? else {
        return Err(asked.client.misunderstood());
    };
    if args.dry_run {
        asked.print_split(&args.new_pool, &devices);
        return Ok(());
    }
    asked.remember(|known| known.retain(|path| !devices.contains(path)))?;
    let places: String = devices.iter().map(|path| format!(" -d {}", shown(path))).collect();
    println!("{0} is a pool of {1}; to use it: pagefold import{places} {0}", args.new_pool, list(&devices));
    Ok(())
}

/// Returns an error if this machine knows a pool of that name.
fn check_unused(name: &str) -> Result<()> {
    match Registry::open()?.all()?.iter().find(|known| known.name == name) {
        Some(known) => Err(Failure::new(format!("there is a pool {name} already, with GUID {}", known.guid))
            .hint("name the new pool otherwise")),
        None => Ok(()),
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", ")
}

impl Asked {
    /// Prints what a split would do.
    fn print_split(&self, name: &str, leave: &[PathBuf]) {
        let figures = &self.figures;
        println!(
            "{name} would be a pool of {}, which is not mounted and holds what {} holds: {}",
            list(leave),
            figures.name,
            units::size(figures.used_bytes)
        );
        let leaves = |path: &Path| leave.iter().any(|other| other == path);
        let is_alone =
            |device: &&DeviceFigures| !leaves(&device.path) && of_group(figures, device.group).count() == 2;
        let alone: Vec<PathBuf> =
            figures.devices.iter().filter(is_alone).map(|device| device.path.clone()).collect();
        if !alone.is_empty() {
            println!("{} would have no mirror: what lies on one device would be lost with it", list(&alone));
        }
        println!(
            "{} would be as large as before; nothing is to be copied: it would take a moment; nothing was changed",
            figures.name
        );
    }
}
