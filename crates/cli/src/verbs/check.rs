//! `check`: reads everything in a pool and verifies it.

use std::path::PathBuf;

use pagefold_engine::pool::{CheckReport, Listed, Pool};
use pagefold_fs::lost::{self, Lost, What};
use pagefold_lazy::without_marks;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{engine_errors, names, pools, raw, registry, units};
use serde::Serialize;
use serde_json::json;

use crate::args::{Check, Output};
use crate::progress::Progress;
use crate::verbs::warn;
use crate::{table, target};

/// Bytes of cache for the check's walk over the trees.
const CACHE_BYTES: u64 = 256 << 20;

/// Checks, tells what was found, and fails if anything was.
pub fn run(args: &Check) -> Result<()> {
    let (name, devices) = named(args)?;
    if target::connect(&name)?.is_some() {
        return Err(Failure::new(format!("pool {name} is mounted: only a pool at rest can be checked"))
            .hint(format!("unmount it first: pagefold unmount {name}")));
    }
    let progress = Progress::bytes("verifying");
    let checked = pagefold_engine::pool::check(&devices, CACHE_BYTES, &mut |at| {
        progress.at(at.done_bytes, at.total_bytes);
    });
    progress.finish();
    let (pool, report) = checked
        .map_err(|error| engine_errors::failed_on_devices(format!("cannot check pool {name}"), &error))?;
    let files = file_systems(&pool, &report)?;
    let (name, guid) = (pool.name().to_owned(), pool.guid().to_string());
    let errors = report.errors.saturating_add(files.problem_count);
    let mut copies = Vec::new();
    for device in &devices {
        copies.extend(pools::not_as_seen(&guid, &table::printable(&name), device)?);
    }
    print(args.output, &pool, &report, &files, &copies)?;
    for copy in &copies {
        warn(&format!("{copy}: what was checked is not the pool as it was seen last"));
    }
    if errors == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("pool {name} is damaged: {}", units::counted(errors, "error")))
        .hint(format!(
            "nothing was changed; mounted, `pagefold scrub --wait {name}` repairs what has another copy that is right; to copy what can be read: pagefold mount -o rescue {name} DIR"
        )))
}

/// Returns the name of the pool that is meant, and its devices.
fn named(args: &Check) -> Result<(String, Vec<PathBuf>)> {
    match &args.pool {
        Some(pool) if args.device.is_empty() => {
            let (known, path, _) = target::source(pool)?;
            target::check_whole_pool(&names::full(&known.name, &path), "check")?;
            // A device of a mirror may be missing. Whatever else is wrong shows below.
            let devices = pools::usable(&known, true, true).unwrap_or(known.devices);
            Ok((known.name, devices))
        }
        _ => {
            let devices =
                args.device.iter().map(|path| registry::absolute(path)).collect::<Result<Vec<_>>>()?;
            let name = args.pool.clone().unwrap_or_else(|| pagefold_server::registry::paths_text(&devices));
            Ok((name, devices))
        }
    }
}

/// Prints what was found, and what cannot be read.
fn print(
    output: Output,
    pool: &Pool,
    report: &CheckReport,
    files: &pagefold_fs::check::Report,
    copies: &[String],
) -> Result<()> {
    let (name, guid) = (pool.name(), pool.guid().to_string());
    let errors = report.errors.saturating_add(files.problem_count);
    if output.json {
        super::print_json(&json!({
            "name": name, "guid": guid, "records": report.records, "record_bytes": report.bytes,
            "nodes": report.nodes, "pages": report.pages, "leaked": report.leaked,
            "inodes": files.inodes, "directories": files.directories, "orphans": files.orphans,
            "errors": errors, "copies": copies, "messages": report.messages.iter().chain(&files.problems).collect::<Vec<_>>(),
            "unreadable": unreadable(pool, report)?,
        }))?;
    } else {
        for message in report.messages.iter().chain(&files.problems) {
            println!("{}", table::printable(message));
        }
        each_unreadable(pool, report, &mut |part| println!("{}", part.text()))?;
        let count = |number: u64| {
            if output.exact { number.to_string() } else { units::count(number as f64) }
        };
        let size = if output.exact { report.bytes.to_string() } else { units::size(report.bytes) };
        println!(
            "pool {name}: {} records ({size}), {} tree nodes, {} inodes: {}",
            count(report.records),
            count(report.nodes),
            count(files.inodes),
            units::counted(errors, "error")
        );
    }
    Ok(())
}

/// Checks the file system of every dataset whose metadata can be read. Snapshots are left out: each was a dataset's
/// file system when it was made, and its records are verified with all others.
fn file_systems(pool: &Pool, report: &CheckReport) -> Result<pagefold_fs::check::Report> {
    let mut sum = pagefold_fs::check::Report::default();
    for listed in listed(pool)?.into_iter().filter(|listed| !listed.is_snapshot) {
        let name = names::full(pool.name(), &listed.path);
        let doing = || format!("cannot check the file system of {name}");
        if report.errors > 0 && !pool.unreadable(&listed.path, report).context(doing)?.keys.is_empty() {
            continue;
        }
        let dataset = pool.open_dataset(&listed.path).context(doing)?;
        // Absent pages of an incomplete dataset look like holes without their marks.
        let found = pagefold_fs::check::check(without_marks(dataset).as_ref()).context(doing)?;
        sum.inodes += found.inodes;
        sum.directories += found.directories;
        sum.orphans += found.orphans;
        sum.problem_count += found.problem_count;
        sum.problems.extend(found.problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    Ok(sum)
}

fn listed(pool: &Pool) -> Result<Vec<Listed>> {
    pool.list().map_err(|error| engine_errors::failed("cannot list the datasets", &error))
}

/// A part of a dataset or snapshot that cannot be read.
#[derive(Serialize)]
struct UnreadablePart {
    dataset: String,
    path: String,
    inode: u64,
    /// `inode`, `data`, `names`, `target` or `attributes`.
    what: &'static str,
    /// For `data`: first byte, and one past the last, of each range.
    ranges: Vec<(u64, u64)>,
}

impl UnreadablePart {
    fn new(dataset: &str, lost: &Lost) -> Self {
        let (what, ranges) = match &lost.what {
            What::Inode => ("inode", Vec::new()),
            What::Bytes(ranges) => ("data", ranges.clone()),
            What::Names => ("names", Vec::new()),
            What::Target => ("target", Vec::new()),
            What::Attributes => ("attributes", Vec::new()),
        };
        let path = format!("/{}", raw::text_of(&lost.path));
        Self { dataset: dataset.into(), path, inode: lost.ino, what, ranges }
    }

    fn text(&self) -> String {
        let what = match self.what {
            "data" => {
                let ranges = self.ranges.iter().map(|(first, end)| format!("{first}-{end}"));
                format!("bytes {}", ranges.collect::<Vec<_>>().join(","))
            }
            "inode" => "all of it".into(),
            "names" => "some of the names in it".into(),
            "target" => "where it leads".into(),
            _ => "its attributes".into(),
        };
        format!("unreadable\t{}\t{}\t{what}", self.dataset, table::printable(&self.path))
    }
}

/// Returns everything that cannot be read, of all datasets and snapshots.
fn unreadable(pool: &Pool, report: &CheckReport) -> Result<Vec<UnreadablePart>> {
    let mut all = Vec::new();
    each_unreadable(pool, report, &mut |part| all.push(part))?;
    Ok(all)
}

fn each_unreadable(pool: &Pool, report: &CheckReport, each: &mut dyn FnMut(UnreadablePart)) -> Result<()> {
    if report.errors == 0 {
        return Ok(());
    }
    for listed in listed(pool)? {
        let name = names::full(pool.name(), &listed.path);
        let doing = || format!("cannot tell what of {name} cannot be read");
        let lost = pool.unreadable(&listed.path, report).context(doing)?;
        let dataset = pool.open_dataset(&listed.path).context(doing)?;
        lost::list(dataset.as_ref(), &lost, &mut |lost| each(UnreadablePart::new(&name, lost)))
            .context(doing)?;
    }
    Ok(())
}
