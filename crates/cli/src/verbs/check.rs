//! `check`: reads everything in a pool and verifies it.

use serde_json::json;

use crate::args::Check;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::registry::Registry;
use crate::{pools, table, target, units};

/// Cache for the check's walk over the trees.
const CACHE_BYTES: u64 = 256 << 20;

/// Checks, tells what was found, and fails if anything was.
pub fn run(args: &Check) -> Result<()> {
    let (name, devices) = match &args.pool {
        Some(pool) if args.device.is_empty() => {
            let known = Registry::open()?.find(pool)?;
            (known.name, known.devices)
        }
        _ => {
            let devices =
                args.device.iter().map(|path| target::absolute(path)).collect::<Result<Vec<_>>>()?;
            let name = args.pool.clone().unwrap_or_else(|| crate::registry::paths_text(&devices));
            (name, devices)
        }
    };
    if target::connect(&name)?.is_some() {
        return Err(Failure::new(format!("pool {name} is mounted: only a pool at rest can be checked"))
            .hint(format!("unmount it first: pagefold unmount {name}")));
    }
    let progress = Progress::bytes("verifying");
    let checked = pagefold_engine::pool::check(&devices, CACHE_BYTES, &mut |at| {
        progress.at(at.done_bytes, at.total_bytes)
    });
    progress.finish();
    let (pool, report) =
        checked.map_err(|error| pools::failed(format!("cannot check pool {name}"), &error))?;
    let (name, guid) = (pool.name().to_owned(), pool.guid().to_string());
    if args.output.json {
        super::print_json(&json!({
            "name": name, "guid": guid, "records": report.records, "record_bytes": report.bytes, "nodes": report.nodes,
            "pages": report.pages, "leaked": report.leaked, "errors": report.errors, "messages": report.messages,
        }))?;
    } else {
        for message in &report.messages {
            println!("{}", table::printable(message));
        }
        let (records, bytes) = if args.output.exact {
            (report.records.to_string(), report.bytes.to_string())
        } else {
            (units::count(report.records as f64), units::size(report.bytes))
        };
        println!(
            "pool {name}: {records} records, {bytes}, {} tree nodes: {} errors",
            report.nodes, report.errors
        );
    }
    if report.errors == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("pool {name} is damaged: {} errors", report.errors))
        .hint("copy what can be read to another pool; nothing was changed here"))
}
