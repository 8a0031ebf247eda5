//! Datasets, snapshots and clones: make, destroy, rename, roll back, hold.

use std::collections::BTreeMap;

use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::{self, Operation, OperationResult};
use pagefold_server::units;
use serde_json::json;

use crate::args::{
    CreateDataset, Dataset, Destroy, Hold, Holds, MakeClone, Output, Promote, Rename, Reset, Rollback,
    Snapshot,
};
use crate::datasets;
use crate::table::{Align, Table};

/// `dataset VERB`.
pub fn run(args: &Dataset) -> Result<()> {
    match args {
        Dataset::Create(args) => create(args),
        Dataset::Destroy(args) => destroy(args),
        Dataset::List(args) => super::list::datasets(args),
        Dataset::Rename(args) => rename(args),
    }
}

fn create(args: &CreateDataset) -> Result<()> {
    let name = dataset(&args.dataset)?;
    if name.path.is_empty() {
        return Err(Failure::usage(format!("{name} is a pool, not a dataset")).hint(format!(
            "pagefold dataset create {name}/NAME, or a new pool: pagefold create POOL DEVICE"
        )));
    }
    let properties = settings(&args.properties, &name)?;
    let operation = Operation::Create { path: name.path.clone(), parents: args.parents, properties };
    datasets::perform(&name.pool, operation).map(drop)
}

/// Makes snapshots.
pub fn snapshot(args: &Snapshot) -> Result<()> {
    let names: Vec<Name> = args.snapshots.iter().map(|word| snapshot_name(word)).collect::<Result<_>>()?;
    for (pool, snapshots) in by_pool(&names) {
        let name = &names[0];
        let properties = settings(&args.properties, name)?;
        let operation = Operation::Snapshot { snapshots, recursive: args.recursive, properties };
        datasets::perform(&pool, operation)?;
    }
    Ok(())
}

/// Makes a clone.
pub fn clone_of(args: &MakeClone) -> Result<()> {
    if !args.snapshot.contains('@') && args.dataset.contains('@') {
        return Err(wrong_order("the snapshot", &format!("clone {} {}", args.dataset, args.snapshot)));
    }
    let (from, to) = (snapshot_name(&args.snapshot)?, dataset(&args.dataset)?);
    same_pool(&from, &to)?;
    if to.path.is_empty() {
        return Err(Failure::usage(format!("{to} is a pool, and the name of a new dataset is wanted"))
            .hint(format!("pagefold clone {from} {to}/NAME")));
    }
    let properties = settings(&args.properties, &to)?;
    datasets::perform(&to.pool, Operation::Clone { snapshot: from.path, path: to.path, properties }).map(drop)
}

/// Rolls a dataset back to a snapshot.
pub fn rollback(args: &Rollback) -> Result<()> {
    let name = snapshot_name(&args.snapshot)?;
    datasets::perform(&name.pool, Operation::Rollback { snapshot: name.path, newer: args.recursive })
        .map(drop)
}

/// Returns a clone to its origin.
pub fn reset(args: &Reset) -> Result<()> {
    let name = dataset(&args.dataset)?;
    datasets::perform(&name.pool, Operation::Reset { path: name.path, own: args.recursive }).map(drop)
}

/// Promotes a clone.
pub fn promote(args: &Promote) -> Result<()> {
    let name = dataset(&args.dataset)?;
    datasets::perform(&name.pool, Operation::Promote { path: name.path }).map(drop)
}

/// Renames a dataset or snapshot.
pub fn rename(args: &Rename) -> Result<()> {
    let from = Name::parse(&args.from)?;
    let to = match from.path.split_once('@') {
        // The new name of a snapshot may be given without its dataset.
        Some((of, _)) if !args.to.contains(['/', '@']) => Name::new(&from.pool, &format!("{of}@{}", args.to)),
        Some((of, _)) if args.to.starts_with('@') => Name::new(&from.pool, &format!("{of}{}", args.to)),
        _ => Name::parse(&args.to)?,
    };
    if from.path.is_empty() {
        return Err(Failure::usage(format!("{from} is a pool, which keeps its name while it is known here"))
            .hint(format!("its datasets are renamed: pagefold rename {from}/OLD {from}/NEW")));
    }
    if from.pool != to.pool && to.path.is_empty() {
        return Err(Failure::usage(format!("{to} is the name of a pool, and {from} stays in its own"))
            .hint(format!("pagefold rename {from} {}/{to}", from.pool)));
    }
    same_pool(&from, &to)?;
    datasets::perform(&from.pool, Operation::Rename { from: from.path, to: to.path }).map(drop)
}

/// Destroys datasets and snapshots, or tells what that would free.
pub fn destroy(args: &Destroy) -> Result<()> {
    let names: Vec<Name> = args.what.iter().map(|word| range(word)).collect::<Result<_>>()?;
    if let Some(pool) = names.iter().find(|name| name.path.is_empty()) {
        return Err(Failure::usage(format!("{pool} is a pool: it is destroyed alone"))
            .hint(format!("pagefold destroy {pool}")));
    }
    let mut all = OperationResult::default();
    for (pool, what) in by_pool(&names) {
        let operation = Operation::Destroy { what, recursive: args.recursive, dry_run: args.dry_run };
        let outcome = datasets::perform(&pool, operation)?;
        if !args.dry_run {
            super::unmount::detach_left(&outcome.names)?;
        }
        all.names.extend(outcome.names);
        all.freed_bytes += outcome.freed_bytes;
        all.blocked = all.blocked.or(outcome.blocked);
    }
    print_result(args, &all)?;
    match all.blocked {
        None => Ok(()),
        Some((what, hint)) => {
            let failure = Failure::new(format!("that would be refused: {what}"));
            Err(match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
    }
}

fn print_result(args: &Destroy, outcome: &OperationResult) -> Result<()> {
    let Output { json, exact, script } = args.output;
    if json {
        return super::print_json(&json!({
            "dry_run": args.dry_run, "destroyed": outcome.names, "freed_bytes": outcome.freed_bytes,
            "blocked": outcome.blocked.as_ref().map(|(what, _)| what),
        }));
    }
    if !args.dry_run && !args.verbose {
        return Ok(());
    }
    let (gone, freed) = match (args.dry_run, &outcome.blocked) {
        (true, Some(_)) => ("would destroy", "with what keeps it, would free"),
        (true, None) => ("would destroy", "would free"),
        (false, _) => ("destroyed", "freed"),
    };
    let gone = if script { "destroy" } else { gone };
    let between = if script { "\t" } else { " " };
    for name in &outcome.names {
        println!("{gone}{between}{name}");
    }
    let bytes = outcome.freed_bytes;
    let size = if exact || script { bytes.to_string() } else { units::size(bytes) };
    println!("{}{between}{size}", if script { "free" } else { freed });
    Ok(())
}

/// Holds snapshots, or releases them.
pub fn hold(args: &Hold, release: bool) -> Result<()> {
    if let ([other], true) = (args.snapshots.as_slice(), args.tag.contains('@'))
        && !other.contains('@')
    {
        let verb = if release { "release" } else { "hold" };
        return Err(wrong_order("the name of the hold", &format!("{verb} {other} {}", args.tag)));
    }
    let names: Vec<Name> = args.snapshots.iter().map(|word| snapshot_name(word)).collect::<Result<_>>()?;
    for (pool, snapshots) in by_pool(&names) {
        let (recursive, tag) = (args.recursive, args.tag.clone());
        let operation = if release {
            Operation::Release { snapshots, recursive, tag }
        } else {
            Operation::Hold { snapshots, recursive, tag }
        };
        datasets::perform(&pool, operation)?;
    }
    Ok(())
}

/// Shows the holds of snapshots.
pub fn holds(args: &Holds) -> Result<()> {
    let mut rows = Vec::new();
    for word in &args.snapshots {
        let name = snapshot_name(word)?;
        for figures in datasets::of_pool(&name.pool)? {
            let same = figures.path == name.path;
            let below = args.recursive
                && pagefold_server::names::is_within(&figures.path, name.dataset())
                && figures.path.split('@').nth(1) == name.path.split('@').nth(1);
            if same || below {
                rows.extend(figures.holds.into_iter().map(|(tag, at)| (figures.name.clone(), tag, at)));
            }
        }
        if !args.recursive {
            datasets::find(&name)?;
        }
    }
    if args.output.json {
        let holds: Vec<_> =
            rows.iter().map(|(name, tag, at)| json!({ "name": name, "tag": tag, "created": at })).collect();
        return super::print_json(&json!({ "holds": holds }));
    }
    let mut table = Table::new(&[("NAME", Align::Left), ("TAG", Align::Left), ("SINCE", Align::Left)]);
    for (name, tag, at) in rows {
        table.row(vec![name, tag, if args.output.exact { at.to_string() } else { units::utc(at) }]);
    }
    table.print(args.output.script);
    Ok(())
}

/// Parses the name of a dataset.
pub(super) fn dataset(word: &str) -> Result<Name> {
    let name = Name::parse(word)?;
    match name.is_snapshot() {
        true => Err(Failure::usage(format!("{name} is a snapshot's name, and a dataset is wanted"))
            .hint(format!("its dataset is {}", Name::new(&name.pool, name.dataset())))),
        false => Ok(name),
    }
}

/// Parses the name of a snapshot.
pub(super) fn snapshot_name(word: &str) -> Result<Name> {
    let name = Name::parse(word)?;
    match name.is_snapshot() {
        true => Ok(name),
        false => Err(Failure::usage(format!("{name} is a dataset's name, and a snapshot is wanted"))
            .hint(format!("snapshots are written {name}@NAME"))),
    }
}

/// Parses the name of a dataset or snapshot, or of several snapshots: `DATASET@A%B,C`.
fn range(word: &str) -> Result<Name> {
    match word.split_once('@') {
        Some((of, what)) if what.contains(['%', ',']) && !what.contains(['/', '@']) => {
            let of = Name::parse(of)?;
            Ok(Name::new(&of.pool, &format!("{}@{what}", of.path)))
        }
        _ => Name::parse(word),
    }
}

/// Returns the failure of a command line whose two names stand in the wrong order.
pub(super) fn wrong_order(first: &str, right: &str) -> Failure {
    Failure::usage(format!("{first} comes first"))
        .hint(format!("pagefold {}", crate::table::printable(right)))
}

pub(super) fn same_pool(from: &Name, to: &Name) -> Result<()> {
    if from.pool == to.pool {
        return Ok(());
    }
    Err(Failure::usage(format!("{from} and {to} are in different pools"))
        .hint("between pools, snapshots travel: pagefold send SNAPSHOT | pagefold receive DATASET"))
}

/// Parses and checks the properties that `-o` gives to what is to be made.
fn settings(words: &[String], name: &Name) -> Result<Vec<(String, String)>> {
    let properties = operations::parse_properties(words)?;
    properties
        .iter()
        .try_for_each(|(property, _)| pagefold_server::props::check_settable_on(property, name))?;
    Ok(properties)
}

fn by_pool(names: &[Name]) -> BTreeMap<String, Vec<String>> {
    let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names {
        pools.entry(name.pool.clone()).or_default().push(name.path.clone());
    }
    pools
}
