//! `clear`: forgets the errors that were counted of a pool, or of one of its devices.

use std::path::Path;

use pagefold_server::control::{PoolFigures, Reply, Request, StruckFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::pool_errors::{self, Cleared};
use pagefold_server::registry::Registry;
use pagefold_server::{pool_status, pools, units};
use serde_json::json;

use crate::args::Clear;
use crate::table::printable;
use crate::target;

/// Clears the errors, and tells which they were.
pub fn run(args: &Clear) -> Result<()> {
    let pool = target::pool_name(&args.pool)?;
    let now = units::now();
    let (paths, (devices, struck)) = match target::connect(&pool)? {
        Some(mut client) => {
            let Reply::Status { figures } = client.ask(&Request::Status {})? else {
                return Err(client.misunderstood());
            };
            let device = number_of(&figures, args.device.as_deref())?;
            match client.ask_and_wait(&Request::Clear { device, now })? {
                Reply::Cleared { devices, struck } => (paths_of(&figures), (devices, struck)),
                _ => return Err(client.misunderstood()),
            }
        }
        None => {
            let known = Registry::open()?.find(&pool)?;
            pools::with_offline(&known, |open| {
                let figures = pool_status::figures(open);
                let device = number_of(&figures, args.device.as_deref())?;
                Ok((paths_of(&figures), pool_errors::clear(open, device, now)?))
            })?
        }
    };
    if args.json {
        let devices: Vec<_> = paths
            .iter()
            .zip(&devices)
            .map(|(path, counts)| json!({ "path": path, "errors": counts }))
            .collect();
        return super::print_json(&json!({ "pool": pool, "devices": devices, "cleared": struck }));
    }
    print_result(&pool, &paths, &(devices, struck));
    Ok(())
}

/// Returns the paths of devices, by their numbers, as errors are counted.
fn paths_of(figures: &PoolFigures) -> Vec<String> {
    let numbers =
        figures.devices.iter().map(|device| usize::from(device.number) + 1).max().unwrap_or_default();
    let mut paths = vec![String::new(); numbers];
    for device in &figures.devices {
        if let Some(path) = paths.get_mut(usize::from(device.number)) {
            *path = printable(&pagefold_server::raw::text(&device.path));
        }
    }
    paths
}

/// Returns the number of the device that was named; `None` if none was.
fn number_of(figures: &PoolFigures, device: Option<&Path>) -> Result<Option<u16>> {
    let Some(named) = device else { return Ok(None) };
    let resolved = std::fs::canonicalize(named).ok();
    let is_it =
        |path: &Path| path == named || resolved.is_some() && std::fs::canonicalize(path).ok() == resolved;
    let found = figures.devices.iter().find(|device| is_it(&device.path));
    found.map(|device| Some(device.number)).ok_or_else(|| {
        let devices: Vec<String> = figures
            .devices
            .iter()
            .map(|device| printable(&pagefold_server::raw::text(&device.path)))
            .collect();
        let devices = devices.join(", ");
        Failure::new(format!(
            "{} is no device of pool {}",
            printable(&pagefold_server::raw::text(named)),
            figures.name
        ))
        .hint(format!("its devices: {devices}"))
    })
}

fn print_result(pool: &str, paths: &[String], (devices, struck): &Cleared) {
    let mut lines = Vec::new();
    for (path, counts) in paths.iter().zip(devices) {
        if !counts.is_zero() {
            lines.push(format!("{path}: {}", counts.text()));
        }
    }
    lines.extend(struck.struck.iter().map(StruckFigures::text));
    if struck.unlisted > 0 {
        lines.push(format!("{} errors of what was not listed", struck.unlisted));
    }
    if lines.is_empty() {
        println!("pool {pool}: no errors were counted");
        return;
    }
    println!("pool {pool}: forgotten are");
    lines.iter().for_each(|line| println!("    {line}"));
    println!("what is still damaged is counted again when it is read: pagefold scrub {pool}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices stand by groups, and so not always by their numbers.
    #[test]
    fn errors_are_those_of_the_device_that_is_named() {
        let device = |number: u16, group, path: &str| {
            let unseen = pool_status::unseen_device(Path::new(path));
            pagefold_server::control::DeviceFigures { number, group, ..unseen }
        };
        let devices = vec![device(0, 0, "/a"), device(2, 0, "/c"), device(1, 1, "/b")];
        let figures = PoolFigures { devices, ..PoolFigures::default() };
        assert_eq!(number_of(&figures, Some(Path::new("/b"))).unwrap(), Some(1));
        assert_eq!(number_of(&figures, Some(Path::new("/c"))).unwrap(), Some(2));
        assert!(number_of(&figures, Some(Path::new("/d"))).is_err());
        assert_eq!(paths_of(&figures), ["/a", "/b", "/c"]);
    }
}
