//! `backup restore --to-time`, `--to-lsn`, `--to-latest`: restores a database as it was at a point in time. Here:
//! PostgreSQL; `point/binlog.rs` has MariaDB.
//!
//! A backup is made of a snapshot and has no `backup_label`. So PostgreSQL recovers it as after a crash, with the log
//! that is in it, and then goes on with the archive as `recovery.signal` says. It is consistent where the log in the
//! backup ends; a point before that is refused here, before the server would refuse it (docs/decisions/0047).

mod binlog;
mod private;
mod replay;
mod settings;
mod start;

use std::path::Path;

use pagefold_backup::{Backup, Cluster, ClusterLog, Line, Reach, Repository, Service};
use pagefold_basebackup::control::{self, Control};
use pagefold_basebackup::wal::Wal;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::{raw, units};
use serde_json::json;

pub(super) use self::settings::RecoveryTarget;
use self::settings::{access_words, fetch_command, settings};
use self::start::{mount, start};
use super::mount::require_mountpoint;
use super::open;
use super::restore::{Done, restore_into, there_already};
use crate::args::{BackupRestore, RecoveryAction};
use crate::table::printable;
use crate::verbs::basebackup::view;
use crate::verbs::branch::data::{self, DataDir};
use crate::verbs::branch::postgres;
use crate::verbs::branch::record::Product;
use crate::verbs::print_json;
use crate::{backup_errors, datasets, timestamp};

/// The file of settings that a server reads last.
const SETTINGS: &str = "postgresql.auto.conf";
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
const SIGNAL: &str = "recovery.signal";

/// A backup from which the point can be reached.
struct Candidate {
    backup: Backup,
    cluster: Cluster,
    line: Line,
}

/// Restores into a new dataset, sets recovery up, and starts the server if that was asked for.
pub(super) fn restore(args: &BackupRestore, name: &Name, target: RecoveryTarget) -> Result<()> {
    let doing = || format!("cannot restore {} to {}", args.backup, target.text());
    let repository = open(&args.repository, &args.access)?;
    let backups = listed(args, &repository, target)?;
    let is_mariadb = binlog::is_meant(args, &backups)?;
    require_place(args, name, is_mariadb)?;
    if is_mariadb {
        return binlog::restore(args, &repository, &backups, name, target);
    }
    if args.start && args.action != RecoveryAction::Promote {
        return Err(Failure::usage(
            "--start waits until the server has recovered, and is for --action promote",
        ));
    }
    if args.start
        && let Some(variable) = Service::of(&args.repository).and_then(Service::credentials)
    {
        return Err(Failure::usage(format!(
            "the server would not find the bucket's credentials: it gets nothing of this environment, {variable} included"
        ))
        .hint("restore without --start, and start the server with them in its environment"));
    }
    require_new(name, &doing())?;
    let fetch = fetch_command(args, &repository)?;
    let candidates = candidates(args, &repository, &backups, target)?;
    let mut too_early = None;
    for candidate in candidates {
        let done = restore_into(&repository, &candidate.backup, name, false)?;
        let done = done.ok_or_else(|| there_already(&candidate.backup, name))?;
        let set_up = set_up(name, &candidate, &format!("{fetch} %f \"%p\""), target, args.action);
        match set_up {
            Ok(None) => return finish(args, name, &repository, &candidate, &done, target),
            Ok(Some(why)) => too_early = Some(why),
            Err(failure) => {
                give_up(name);
                return Err(failure);
            }
        }
        destroy(name)?;
    }
    let why = too_early.unwrap_or_else(|| "no backup is old enough".into());
    Err(Failure::new(format!("{}: {why}", doing())).hint(hint(args)))
}

fn hint(args: &BackupRestore) -> String {
    let words = access_words(&args.access);
    format!("see what can be restored: pagefold archive list {}{words}", printable(&args.repository))
}

/// Fails if it is not known where the dataset is to be mounted, before anything is restored.
fn require_place(args: &BackupRestore, name: &Name, is_mariadb: bool) -> Result<()> {
    match (args.start || is_mariadb, &args.mountpoint) {
        (true, None) => require_mountpoint(name, "say it: --mountpoint DIR"),
        (false, Some(_)) => {
            Err(Failure::usage("without --start nothing is mounted, and --mountpoint says nothing")
                .hint("leave it out, and mount the dataset afterwards: pagefold mount"))
        }
        _ => Ok(()),
    }
}

/// Fails if there is a dataset of this name.
fn require_new(name: &Name, doing: &str) -> Result<()> {
    // A mount that a killed restore has left would keep its dataset from being destroyed.
    if let Err(failure) = view::unmount_left_behind() {
        eprintln!("pagefold: {failure}");
    }
    if datasets::of_pool(&name.pool)?.iter().any(|figures| figures.path == name.path) {
        return Err(Failure::new(format!("{doing}: there is a dataset {name} already"))
            .hint("a point in time is restored into a new dataset: name another one"));
    }
    Ok(())
}

/// Returns all backups. Fails if none has the name that the command line says, or backups of several pools have it.
fn listed(args: &BackupRestore, repository: &Repository, target: RecoveryTarget) -> Result<Vec<Backup>> {
    let backups = repository.find(&args.backup).and_then(|_| repository.backups());
    let doing = || format!("cannot restore {} to {}", args.backup, target.text());
    backups.map_err(|error| backup_errors::failed(doing(), &error))
}

/// Returns the backups that the command line means, the newest snapshot first.
fn meant<'a>(args: &BackupRestore, backups: &'a [Backup]) -> Vec<&'a Backup> {
    let is_meant = |backup: &&Backup| match args.backup.parse::<u64>() {
        Ok(number) => backup.number == number,
        Err(_) => backup.name() == args.backup || backup.name().split('@').next() == Some(&args.backup),
    };
    let mut meant: Vec<&Backup> = backups.iter().filter(is_meant).collect();
    meant.sort_by_key(|backup| std::cmp::Reverse(backup.order()));
    meant
}

/// Destroys what a restore that failed has made.
fn give_up(name: &Name) {
    if let Err(also) = destroy(name) {
        eprintln!("pagefold: {name} is left: {also}\n  before the next try: pagefold destroy -r {name}");
    }
}

fn destroy(name: &Name) -> Result<()> {
    let what = vec![name.path.clone()];
    datasets::perform(&name.pool, Operation::Destroy { what, recursive: true, dry_run: false }).map(drop)
}

/// Returns the backups from which the point can be reached, newest first.
fn candidates(
    args: &BackupRestore,
    repository: &Repository,
    backups: &[Backup],
    target: RecoveryTarget,
) -> Result<Vec<Candidate>> {
    let doing = format!("cannot restore {} to {}", args.backup, target.text());
    let failed = |error: pagefold_backup::Error| backup_errors::failed(&doing, &error);
    let logs = repository.cluster_logs(backups).map_err(failed)?;
    let (mut found, mut unfit, mut later, mut earlier) = (Vec::new(), None, None, None);
    for backup in meant(args, backups) {
        let cluster = match cluster_of(args, backup) {
            Ok(cluster) => cluster,
            Err(failure) => {
                unfit.get_or_insert(failure.what().to_owned());
                continue;
            }
        };
        let line = line_of(args, repository, &logs, backup, cluster).map_err(failed)?;
        let Some(line) = line else {
            unfit.get_or_insert(format!(
                "backup {} does not lead to the timeline that is wanted",
                backup.number
            ));
            continue;
        };
        match target.reach(&line) {
            Reach::Within => found.push(Candidate { backup: backup.clone(), cluster: cluster.clone(), line }),
            Reach::TooLate => {
                later.get_or_insert_with(|| format!("it is later than what is archived: {}", reached(&line)));
            }
            // The last backup in this order is the oldest.
            Reach::TooEarly => earlier = Some(format!("it is earlier than backup {}", backup.number)),
        }
    }
    match later.or(earlier).or(unfit).filter(|_| found.is_empty()) {
        Some(why) => Err(Failure::new(format!("{doing}: {why}")).hint(hint(args))),
        None => Ok(found),
    }
}

fn reached(line: &Line) -> String {
    let missing = line.missing.map_or_else(String::new, |name| format!(", and {name} is missing"));
    match (line.whole_until(), line.until_us) {
        (None, _) => format!("nothing since backup {}{missing}", line.backup),
        (Some(until), None) => format!("it ends at {} and has no transactions{missing}", control::lsn(until)),
        (Some(until), Some(micros)) => {
            format!(
                "its last transaction is of {}, it ends at {}{missing}",
                timestamp::format(micros),
                control::lsn(until)
            )
        }
    }
}

fn cluster_of<'a>(args: &BackupRestore, backup: &'a Backup) -> Result<&'a Cluster> {
    let number = backup.number;
    let Some(clusters) = &backup.clusters else {
        return Err(Failure::new(format!("it is not known which databases are in backup {number}")));
    };
    let wanted = args.data.as_deref().map(data::normal).transpose()?;
    let fits = |cluster: &&Cluster| wanted.as_ref().is_none_or(|wanted| *wanted == cluster.data);
    let all: Vec<&Cluster> = clusters.iter().filter(fits).collect();
    match all.as_slice() {
        [one] => Ok(one),
        [] => Err(Failure::new(format!("there is no PostgreSQL database in backup {number}, or not there"))),
        _ => Err(Failure::new(format!("backup {number} has several databases: say which with --data DIR"))),
    }
}

fn line_of(
    args: &BackupRestore,
    repository: &Repository,
    logs: &[ClusterLog],
    backup: &Backup,
    cluster: &Cluster,
) -> pagefold_backup::Result<Option<Line>> {
    match logs.iter().find(|log| log.system == cluster.system) {
        Some(log) => repository.line(log, backup, cluster, args.timeline),
        None => Ok(None),
    }
}

/// Configures the server to recover to the target when it is started. If the backup turns out to have changes later
/// than the target, returns why.
fn set_up(
    name: &Name,
    candidate: &Candidate,
    fetch: &str,
    target: RecoveryTarget,
    action: RecoveryAction,
) -> Result<Option<String>> {
    private::at(name, |mount| prepare(mount, candidate, fetch, target, action))
}

fn prepare(
    mount: &Path,
    candidate: &Candidate,
    fetch: &str,
    target: RecoveryTarget,
    action: RecoveryAction,
) -> Result<Option<String>> {
    let cluster = &candidate.cluster;
    let data = DataDir::open(mount, &cluster.data)?;
    let reading = || format!("cannot read the database in backup {}", candidate.backup.number);
    let control = Control::of(&data.path).context(reading)?;
    if control.system != cluster.system {
        return Err(Failure::new(format!("{}: it is of cluster {}", reading(), control.system)));
    }
    let log = data.path.join("pg_wal");
    if !std::fs::symlink_metadata(&log).is_ok_and(|found| found.is_dir()) {
        return Err(Failure::new(format!("{}: its log does not lie in it", reading())).hint(
            "a database whose pg_wal lies in another dataset cannot be restored to a point in time from here",
        ));
    }
    let (range, times) =
        Wal::open(&log, &control).and_then(|wal| wal.times_after_crash(&control)).context(reading)?;
    let number = candidate.backup.number;
    match (target, times) {
        (RecoveryTarget::Place(place), _) if place < range.end => {
            return Ok(Some(format!("backup {number} goes to {}, and later", control::lsn(range.end))));
        }
        (RecoveryTarget::Time(time), Some(times)) if time < times.last => {
            return Ok(Some(format!(
                "backup {number} has transactions of {}",
                timestamp::format(times.last)
            )));
        }
        _ => {}
    }
    postgres::settle(&data)?;
    let mut text = data.read(SETTINGS, SETTINGS_BYTES_MAX)?.unwrap_or_default();
    text.extend_from_slice(settings(candidate, fetch, target, action).as_bytes());
    data.write_file(SETTINGS, &text)?;
    data.write_file(SIGNAL, b"")?;
    Ok(None)
}

fn finish(
    args: &BackupRestore,
    name: &Name,
    repository: &Repository,
    candidate: &Candidate,
    done: &Done,
    target: RecoveryTarget,
) -> Result<()> {
    let gap = target.gap(&candidate.line);
    if let Some(gap) = &gap {
        eprintln!("pagefold: {gap}");
    }
    let data = &candidate.cluster.data;
    let started = match args.start {
        true => Some(start(args, name, mount(args, name)?, data, Product::PostgreSql)?),
        false => None,
    };
    if args.json {
        let mut told = done.json(repository);
        told["point"] = json!({
            "target": target.text(),
            "timeline": candidate.line.timeline,
            "system": candidate.cluster.system,
            "data": candidate.cluster.data,
            "missing": gap.and(candidate.line.missing).map(|missing| missing.to_string()),
            "mounted": started.as_ref().map(|started| raw::text(&started.mounted)),
            "port": started.as_ref().map(|started| started.port),
            "log": started.as_ref().map(|started| raw::text(&started.log)),
        });
        return print_json(&told);
    }
    println!("{}", done.line(name));
    let made = units::utc(candidate.backup.origin.created);
    let end = match (gap, candidate.line.missing) {
        (Some(_), Some(missing)) => format!("the first gap of the archive, {missing}"),
        _ => target.text(),
    };
    println!("  its snapshot is of {made}; recovery goes on to {end}");
    match started {
        Some(started) => {
            let data = started.mounted.join(&candidate.cluster.data);
            println!(
                "  it has recovered, and runs in {} on port {}; its log is {}",
                printable(&raw::text(&data)),
                started.port,
                started.log.display()
            );
            println!("  to stop it, as the owner of the data: {}", started.stop);
        }
        None => {
            println!("  go on: pagefold mount {name} DIR");
            println!("         then, as the owner of the data: postgres -D DIR/{}", candidate.cluster.data);
        }
    }
    Ok(())
}
