//! `list -t` and `dataset list`: list datasets and snapshots with what they hold.

use pagefold_server::failure::Result;
use pagefold_server::names::{Name, is_within};
use pagefold_server::{raw, units};
use serde_json::json;

use crate::args::{List, ListDatasets, ListType, Output};
use crate::datasets::{self, DatasetFigures};
use crate::failures::Failures;
use crate::table::{Align, Table};
use crate::target;

/// The datasets and snapshots that are to be listed, and the way.
struct ListRequest<'a> {
    targets: &'a [String],
    kind: ListType,
    recursive: bool,
    output: crate::args::Output,
}

/// `list`: lists pools, unless something else is asked for.
pub fn run(args: &List) -> Result<()> {
    let named = |word: &String| Name::parse(word).is_ok_and(|name| !name.path.is_empty());
    let kind = match args.kind {
        Some(kind) => kind,
        None if args.targets.iter().any(named) => ListType::All,
        None => ListType::Pool,
    };
    if kind == ListType::Pool {
        return super::show::list(&args.targets, args.output);
    }
    if kind == ListType::Partial {
        return partials(&args.targets, args.output);
    }
    // Without `-t`, a dataset's name means that dataset and those below it.
    let recursive = args.recursive || args.kind.is_some();
    show(&ListRequest { targets: &args.targets, kind, recursive, output: args.output })
}

/// `dataset list`.
pub fn datasets(args: &ListDatasets) -> Result<()> {
    let kind = if args.snapshots { ListType::All } else { ListType::Dataset };
    show(&ListRequest { targets: &args.targets, kind, recursive: true, output: args.output })
}

fn show(wanted: &ListRequest<'_>) -> Result<()> {
    let mut all: Vec<DatasetFigures> = Vec::new();
    let mut failures = Failures::new();
    for name in target::names(wanted.targets)? {
        let found = failures.take(&name.to_string(), of_target(&name, wanted));
        all.extend(found.into_iter().flatten());
    }
    if wanted.output.json {
        super::print_json(&json!({ "datasets": all, "failures": failures.json() }))?;
    } else {
        print(&all, wanted);
    }
    failures.finish(wanted.targets.len(), "listed")
}

fn of_target(name: &Name, wanted: &ListRequest<'_>) -> Result<Vec<DatasetFigures>> {
    let of_kind = |figures: &DatasetFigures| match wanted.kind {
        ListType::Snapshot => figures.is_snapshot,
        ListType::Dataset => !figures.is_snapshot,
        ListType::All | ListType::Pool | ListType::Partial => true,
    };
    let chosen = |figures: &DatasetFigures| {
        figures.path == name.path
            || wanted.recursive && !name.is_snapshot() && is_within(&figures.path, &name.path)
    };
    let found = datasets::of_pool(&name.pool)?;
    if !found.iter().any(|figures| figures.path == name.path) {
        datasets::find(name)?;
    }
    Ok(found.into_iter().filter(|figures| of_kind(figures) && chosen(figures)).collect())
}

/// Lists datasets that were received in part.
fn partials(targets: &[String], output: Output) -> Result<()> {
    let mut all = Vec::new();
    let mut failures = Failures::new();
    for name in target::names(targets)? {
        let found = failures.take(&name.to_string(), datasets::partials_of(&name.pool)).unwrap_or_default();
        all.extend(found.into_iter().filter(|partial| is_within(&partial.path, &name.path)));
    }
    if output.json {
        super::print_json(&json!({ "partials": all, "failures": failures.json() }))?;
        return failures.finish(targets.len(), "listed");
    }
    let mut table =
        Table::new(&[("NAME", Align::Left), ("USED", Align::Right), ("RECEIVE_RESUME_TOKEN", Align::Left)]);
    for partial in all {
        let used = partial.used_bytes;
        let used = if output.exact { used.to_string() } else { units::size(used) };
        table.row(vec![partial.name, used, partial.receive_resume_token]);
    }
    table.print(output.script);
    failures.finish(targets.len(), "listed")
}

fn print(all: &[DatasetFigures], wanted: &ListRequest<'_>) {
    let exact = wanted.output.exact;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("USED", Align::Right),
        ("AVAIL", Align::Right),
        ("REFER", Align::Right),
        ("USEDSNAP", Align::Right),
        ("WRITTEN", Align::Right),
        ("RATIO", Align::Right),
        ("CREATION", Align::Left),
        ("MOUNTPOINT", Align::Left),
    ]);
    for figures in all {
        let ratio = units::ratio(figures.logical_bytes, figures.physical_bytes);
        let snapshots = (!figures.is_snapshot).then_some(figures.used_by_snapshots_bytes);
        let ratio = match ratio {
            Some(ratio) if exact => format!("{ratio:.2}"),
            ratio => units::ratio_text(ratio),
        };
        table.row(vec![
            figures.name.clone(),
            size(figures.used_bytes),
            figures.available_bytes.map_or_else(|| "-".into(), size),
            size(figures.referenced_bytes),
            snapshots.map_or_else(|| "-".into(), size),
            size(figures.written_bytes),
            ratio,
            if exact { figures.created.to_string() } else { units::utc(figures.created) },
            match &figures.mounted {
                Some(dir) => raw::text(dir),
                None => figures.mountpoint.clone(),
            },
        ]);
    }
    table.print(wanted.output.script);
}
