//! `backup restore-pool`: restores the newest backup of every dataset of a pool.

use std::collections::{BTreeMap, BTreeSet};

use pagefold_backup::{Backup, Described};
use pagefold_server::backups::BACKUP;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::{self, Name};
use pagefold_server::operations::Operation;
use pagefold_server::props::{self, Scope};
use pagefold_server::units;
use serde_json::json;

use super::open;
use super::restore::restore_into;
use crate::args::{BackupRestorePool, Create};
use crate::failures::Failures;
use crate::verbs::{create, print_json, properties};
use crate::{backup_errors, datasets};

/// Dataset that receives the files of a pool's own dataset, if no other has that name.
const OWN: &str = "restored";

/// `backup restore-pool`.
pub(super) fn run(args: &BackupRestorePool) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let failed = |error| {
        backup_errors::failed(format!("cannot restore {} from {}", args.pool, args.repository), &error)
    };
    let backups = repository.backups().map_err(failed)?;
    let described = repository.described().map_err(failed)?;
    let newest = newest_of(of_pool(args, &backups)?);
    let own = own_name(&newest);
    if !args.into {
        create::make(&Create {
            pool: args.pool.clone(),
            devices: args.devices.clone(),
            properties: Vec::new(),
            size: args.size.clone(),
            force: args.force,
            no_trim: false,
            dry_run: false,
        })?;
    }
    let mut failures = Failures::new();
    let mut done = Vec::new();
    for backup in newest.values() {
        let path = if backup.dataset.is_empty() { &own } else { backup.dataset.as_str() };
        let name = Name::new(&args.pool, path);
        let above = parents(args, &name, &newest);
        let restored = above.and_then(|()| restore_into(&repository, backup, &name, false));
        let one = restored.and_then(|restored| {
            let left_out = set(&described, backup, &args.pool)?;
            // An earlier run may have restored this one.
            let is_new = restored.is_some();
            Ok(InPlace { name: name.to_string(), backup, is_new, left_out })
        });
        done.extend(failures.take(&name.to_string(), one));
    }
    print_result(args, &done, &failures)?;
    failures.finish_all("restored")
}

/// A dataset that has its backup.
struct InPlace<'a> {
    name: String,
    backup: &'a Backup,
    /// False if the dataset had it before: then it may have been changed since.
    is_new: bool,
    /// Properties that were not set.
    left_out: Vec<String>,
}

/// Returns the backups of the pool that is meant: of one name, and of one GUID, since pools of several machines may share
/// a name.
fn of_pool<'a>(args: &BackupRestorePool, backups: &'a [Backup]) -> Result<Vec<&'a Backup>> {
    let pools: BTreeSet<&str> = backups.iter().map(|backup| backup.pool.as_str()).collect();
    let names = pools.iter().copied().collect::<Vec<_>>().join(", ");
    let doing = format!("cannot restore a pool from {}", args.repository);
    let of_name = |name: &str| backups.iter().filter(|backup| backup.pool == name).collect::<Vec<_>>();
    let found = match (&args.from, pools.iter().copied().collect::<Vec<_>>().as_slice()) {
        (_, []) => return Err(Failure::new(format!("{doing}: it has no backups"))),
        (Some(from), _) if pools.contains(from.as_str()) => of_name(from),
        (Some(from), _) => {
            let of_guid = |backup: &&Backup| backup.origin.pool.to_string() == *from;
            let found: Vec<_> = backups.iter().filter(of_guid).collect();
            if found.is_empty() {
                return Err(Failure::new(format!("{doing}: it has no backup of a pool {from}"))
                    .hint(format!("it has backups of: {names}")));
            }
            found
        }
        (None, [one]) => of_name(one),
        (None, _) if pools.contains(args.pool.as_str()) => of_name(&args.pool),
        (None, _) => {
            return Err(
                Failure::usage(format!("{doing}: it has backups of {names}")).hint("say which: --from POOL")
            );
        }
    };
    let mut of_guid: BTreeMap<[u8; 16], Vec<&Backup>> = BTreeMap::new();
    found.iter().for_each(|backup| of_guid.entry(backup.origin.pool.0).or_default().push(backup));
    if of_guid.len() > 1 {
        let told: Vec<String> = of_guid.values().filter_map(|backups| told_of(backups)).collect();
        return Err(Failure::usage(format!("{doing}: these are several pools: {}", told.join("; ")))
            .hint("say which: --from GUID"));
    }
    Ok(found)
}

/// Describes the pool of these backups.
fn told_of(backups: &[&Backup]) -> Option<String> {
    let newest = backups.iter().max_by_key(|backup| backup.order())?;
    let numbers: Vec<String> = backups.iter().map(|backup| backup.number.to_string()).collect();
    let (pool, guid, at) = (&newest.pool, newest.origin.pool, units::utc(newest.origin.created));
    Some(format!("{pool} with GUID {guid}, last as of {at} (backups {})", numbers.join(", ")))
}

/// Returns the newest backup of each dataset, parents before children.
fn newest_of(backups: Vec<&Backup>) -> BTreeMap<&str, &Backup> {
    let mut newest: BTreeMap<&str, &Backup> = BTreeMap::new();
    for backup in backups {
        let found = newest.entry(&backup.dataset).or_insert(backup);
        if found.order() < backup.order() {
            *found = backup;
        }
    }
    newest
}

/// Returns the name of the dataset that receives the files of the pool's own dataset: none that is restored is it, or is
/// below it.
fn own_name(newest: &BTreeMap<&str, &Backup>) -> String {
    let is_taken = |name: &String| newest.keys().any(|path| names::is_within(path, name));
    let others = (2_u64..).map(|number| format!("{OWN}-{number}"));
    let mut all = std::iter::once(OWN.to_owned()).chain(others);
    all.find(|name| !is_taken(name)).unwrap_or_else(|| OWN.to_owned())
}

/// Makes the datasets above this one that had no backup. One that has a backup and is not there has failed just now: it
/// keeps its place, since a backup is not restored into a dataset that is there.
fn parents(args: &BackupRestorePool, name: &Name, newest: &BTreeMap<&str, &Backup>) -> Result<()> {
    let Some((above, _)) = name.path.rsplit_once('/') else { return Ok(()) };
    let there = datasets::of_pool(&name.pool)?;
    let is_there = |path: &str| there.iter().any(|figures| figures.path == path);
    if is_there(above) {
        return Ok(());
    }
    let ancestors = std::iter::successors(Some(above), |path| path.rsplit_once('/').map(|(above, _)| above));
    if let Some(failed) = ancestors.filter(|path| newest.contains_key(path)).find(|path| !is_there(path)) {
        let failed = names::full(&name.pool, failed);
        return Err(Failure::new(format!("it is below {failed}, which could not be restored"))
        .hint(format!(
            "restore both once that backup can be read: pagefold backup restore-pool {} {} --into; or do without it: pagefold dataset create {failed}, then the same",
            args.repository, args.pool
        )));
    }
    let operation = Operation::Create { path: above.to_owned(), parents: true, properties: Vec::new() };
    datasets::perform(&name.pool, operation).map(drop)
}

/// Sets the properties that a dataset had; returns those that were left out, as `NAME=VALUE`.
fn set(described: &[Described], backup: &Backup, pool: &str) -> Result<Vec<String>> {
    let found = described.iter().find(|one| one.pool == backup.pool && one.dataset == backup.dataset);
    let Some(found) = found else { return Ok(Vec::new()) };
    let is_known = |(name, value): &&(String, String)| {
        // A newer version may have had properties or values that this one does not know.
        name != BACKUP && props::parse_for_dataset(&format!("{name}={value}")).is_ok()
    };
    // Properties of the pool's own dataset are inherited as before, but those that hold for it alone do not fit: its
    // files are in another dataset now.
    let fits = |(name, _): &&(String, String)| {
        !backup.dataset.is_empty() || props::find(name).is_ok_and(|property| property.scope != Scope::Own)
    };
    let (set, left): (Vec<_>, Vec<_>) = found.properties.iter().partition(|one| is_known(one) && fits(one));
    let set: Vec<(String, String)> = set.into_iter().cloned().collect();
    if !set.is_empty() {
        properties::set_on(&Name::new(pool, &backup.dataset), &set)?;
    }
    Ok(left.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
}

fn print_result(args: &BackupRestorePool, done: &[InPlace<'_>], failures: &Failures) -> Result<()> {
    let now = units::now();
    if args.json {
        let one = |done: &InPlace<'_>| {
            json!({
                "name": done.name,
                "backup": super::figures(done.backup),
                "age_s": now.saturating_sub(done.backup.origin.created),
                "restored": done.is_new,
                "not_set": done.left_out,
            })
        };
        return print_json(&json!({
            "pool": args.pool,
            "datasets": done.iter().map(one).collect::<Vec<_>>(),
            "failures": failures.json(),
        }));
    }
    for InPlace { name, backup, is_new, left_out } in done {
        let age = units::age(now.saturating_sub(backup.origin.created));
        let before = if *is_new { "" } else { "; restored before, and left as it is now" };
        let at = units::utc(backup.origin.created);
        println!("{name}: as of {at} ({age} ago), backup {}{before}", backup.number);
        for property in left_out {
            println!("{name}: not set: {property}");
        }
    }
    println!(
        "{}: {} restored, as of their own newest backups. Not there: snapshots besides these, holds, and what was written later",
        args.pool,
        units::counted(done.iter().filter(|done| done.is_new).count() as u64, "dataset")
    );
    Ok(())
}
