//! `check`: reads everything in a pool and verifies it.

use pagefold_engine::pool::Pool;
use serde_json::json;

use crate::args::Check;
use crate::failure::{Context, Failure, Result};
use crate::progress::Progress;
use crate::{names, pools, table, target, units};

/// Cache for the check's walk over the trees.
const CACHE_BYTES: u64 = 256 << 20;

/// Checks, tells what was found, and fails if anything was.
pub fn run(args: &Check) -> Result<()> {
    let (name, devices) = match &args.pool {
        Some(pool) if args.device.is_empty() => {
            let (known, _, _) = target::source(pool)?;
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
        progress.at(at.done_bytes, at.total_bytes);
    });
    progress.finish();
    let (pool, report) =
        checked.map_err(|error| pools::failed(format!("cannot check pool {name}"), &error))?;
    let files = file_systems(&pool)?;
    let (name, guid) = (pool.name().to_owned(), pool.guid().to_string());
    let errors = report.errors.saturating_add(files.problem_count);
    if args.output.json {
        super::print_json(&json!({
            "name": name, "guid": guid, "records": report.records, "record_bytes": report.bytes,
            "nodes": report.nodes, "pages": report.pages, "leaked": report.leaked,
            "inodes": files.inodes, "directories": files.directories, "orphans": files.orphans,
            "errors": errors, "messages": report.messages.iter().chain(&files.problems).collect::<Vec<_>>(),
        }))?;
    } else {
        for message in report.messages.iter().chain(&files.problems) {
            println!("{}", table::printable(message));
        }
        let count = |number: u64| {
            if args.output.exact { number.to_string() } else { units::count(number as f64) }
        };
        let size = if args.output.exact { report.bytes.to_string() } else { units::size(report.bytes) };
        println!(
            "pool {name}: {} records ({size}), {} tree nodes, {} inodes: {errors} errors",
            count(report.records),
            count(report.nodes),
            count(files.inodes)
        );
    }
    if errors == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("pool {name} is damaged: {errors} errors"))
        .hint("copy what can be read to another pool; nothing was changed here"))
}

/// Checks the file system of every dataset. Those of snapshots were a dataset's when they were made; their records are verified
/// with all others.
fn file_systems(pool: &Pool) -> Result<pagefold_fs::check::Report> {
    let listed = pool.list().map_err(|error| pools::failed("cannot list the datasets", &error))?;
    let mut sum = pagefold_fs::check::Report::default();
    for listed in listed.into_iter().filter(|listed| !listed.is_snapshot) {
        let name = names::full(pool.name(), &listed.path);
        let doing = || format!("cannot check the file system of {name}");
        let dataset = pool.open_dataset(&listed.path).context(doing)?;
        let found = pagefold_fs::check::check(dataset.as_ref()).context(doing)?;
        sum.inodes += found.inodes;
        sum.directories += found.directories;
        sum.orphans += found.orphans;
        sum.problem_count += found.problem_count;
        sum.problems.extend(found.problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    Ok(sum)
}
