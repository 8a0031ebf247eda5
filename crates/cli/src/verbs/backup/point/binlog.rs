//! Restores a MariaDB database to a point in time: the backup, and the transactions that followed in the archived binary
//! log.
//!
//! A server recovers the backup as after a crash: its own binary log in it decides which transactions it has
//! (docs/decisions/0052). Then it repeats those that follow, up to the point. It listens to nobody else meanwhile.

use std::path::Path;
use std::time::Duration;

use pagefold_backup::{ArchivedPart, Backup, BinlogEnd, BinlogLine, BinlogName, Reach, Repository};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::{raw, units};
use rustix::process::Signal;
use serde_json::json;

use super::replay::{Account, PACKET_BYTES, Replay, Replayed};
use super::settings::RecoveryTarget;
use super::start::{Started, mount, start};
use super::{give_up, hint, meant, require_new};
use crate::args::{BackupRestore, RecoveryAction, Unmount};
use crate::backup_errors;
use crate::table::printable;
use crate::verbs::archive::follow;
use crate::verbs::backup::restore::{Done, restore_into, there_already};
use crate::verbs::branch::data::{self, DataDir};
use crate::verbs::branch::owner::Owner;
use crate::verbs::branch::record::{Options, Position, Product, Record};
use crate::verbs::branch::{mariadb, ports, process, server};
use crate::verbs::{print_json, warn};

/// Longest time an orderly end may take: the server writes what it holds in memory.
const STOP_PATIENCE: Duration = Duration::from_secs(600);

/// A backup from which the point can be reached.
struct LoggedBackup {
    backup: Backup,
    end: BinlogEnd,
    /// The archived log that goes on where the backup ends; `None` if nothing is archived from there on.
    log: Option<BinlogName>,
}

/// Returns true if the command line means a database of MariaDB.
pub(super) fn is_meant(args: &BackupRestore, backups: &[Backup]) -> Result<bool> {
    let wanted = args.data.as_deref().map(data::normal).transpose()?;
    Ok(meant(args, backups).first().is_some_and(|backup| match &wanted {
        Some(wanted) => backup.binlogs.iter().any(|end| end.data == *wanted),
        None => !backup.binlogs.is_empty() && backup.clusters.as_ref().is_none_or(Vec::is_empty),
    }))
}

/// Restores into a new dataset, has a server repeat the log, and starts it if that was asked for.
pub(super) fn restore(
    args: &BackupRestore,
    repository: &Repository,
    backups: &[Backup],
    name: &Name,
    target: RecoveryTarget,
) -> Result<()> {
    let doing = format!("cannot restore {} to {}", args.backup, target.text());
    let until_us = match target {
        RecoveryTarget::Time(time) => Some(time),
        RecoveryTarget::Latest => None,
        RecoveryTarget::Place(_) => {
            return Err(Failure::usage("a database of MariaDB has no LSN that a log could be followed to")
                .hint("name a time: --to-time '2026-11-25 18:00:00+00'"));
        }
    };
    if args.timeline.is_some() || args.action != RecoveryAction::Promote {
        return Err(Failure::usage(
            "--timeline and --action are for PostgreSQL, and this is a database of MariaDB",
        ));
    }
    require_new(name, &doing)?;
    let (candidate, parts) = candidate(args, repository, backups, target)?;
    let done = restore_into(repository, &candidate.backup, name, false)?;
    let done = done.ok_or_else(|| there_already(&candidate.backup, name))?;
    let (replayed, started) = recover(args, repository, name, (&candidate, &parts), until_us)?;
    tell(args, name, repository, &candidate, (&done, replayed), target, started.as_ref())
}

/// Mounts the dataset, has a server repeat the log on it, and starts the server for others if that was asked for. If it
/// cannot repeat the log, the dataset goes again.
fn recover(
    args: &BackupRestore,
    repository: &Repository,
    name: &Name,
    (candidate, parts): (&LoggedBackup, &[ArchivedPart]),
    until_us: Option<i64>,
) -> Result<(Replayed, Option<Started>)> {
    // The server runs as another user, so a private mount will not do.
    let mounted = mount(args, name).inspect_err(|_| give_up(name))?;
    let unmount = || {
        let target = Some(raw::text(&mounted));
        crate::verbs::unmount::run(&Unmount { target, all: false, lazy: false, force: false })
    };
    let replayed = match parts {
        [] => Ok(Replayed::default()),
        parts => replay(args, repository, name, &mounted, (candidate, parts), until_us),
    };
    let replayed = replayed.inspect_err(|_| match unmount() {
        Ok(()) => give_up(name),
        Err(also) => eprintln!("pagefold: {name} is left: {also}"),
    })?;
    if !args.start {
        unmount()?;
        return Ok((replayed, None));
    }
    let started = start(args, name, mounted.clone(), &candidate.end.data, Product::MariaDb)?;
    Ok((replayed, Some(started)))
}

/// Returns the newest backup from which the point can be reached, and the parts of the log that follow it.
fn candidate(
    args: &BackupRestore,
    repository: &Repository,
    backups: &[Backup],
    target: RecoveryTarget,
) -> Result<(LoggedBackup, Vec<ArchivedPart>)> {
    let doing = format!("cannot restore {} to {}", args.backup, target.text());
    let failed = |error| backup_errors::failed(&doing, &error);
    let logs = repository.binlogs(backups).map_err(failed)?;
    let wanted = args.data.as_deref().map(data::normal).transpose()?;
    let mut why = None;
    for backup in meant(args, backups) {
        let number = backup.number;
        let fits = |end: &&BinlogEnd| wanted.as_ref().is_none_or(|wanted| *wanted == end.data);
        let ends: Vec<&BinlogEnd> = backup.binlogs.iter().filter(fits).collect();
        let end = match ends.as_slice() {
            [end] => *end,
            [] => {
                why.get_or_insert(format!("backup {number} has no database with a binary log, or not there"));
                continue;
            }
            _ => {
                return Err(Failure::usage(format!("{doing}: backup {number} has several databases"))
                    .hint("say which with --data DIR"));
            }
        };
        let is_of = |line: &&BinlogLine| line.backup == number && line.data == end.data;
        // The file may have been archived under two names: the one that goes further counts.
        let along = logs.iter().filter_map(|log| Some((log, log.lines.iter().find(is_of)?)));
        let Some((log, line)) = along.max_by_key(|(log, _)| log.until) else {
            // The end of the archive lies before the end of the newest backup: no older one is taken for it.
            if target == RecoveryTarget::Latest {
                return Ok((
                    LoggedBackup { backup: backup.clone(), end: end.clone(), log: None },
                    Vec::new(),
                ));
            }
            why.get_or_insert(format!("no binary log is archived that goes on where backup {number} ends"));
            continue;
        };
        let reach = match target {
            RecoveryTarget::Time(time) => line.reaches_time(time),
            _ => Reach::Within,
        };
        match reach {
            Reach::Within => {
                let mut parts = log.parts_from(end.place).to_vec();
                let facts = repository.binlog_chain(&parts).map_err(failed)?;
                // A transaction of which the rest was not archived any more never happened.
                let whole = facts.iter().rposition(|facts| !facts.is_inside).map_or(0, |last| last + 1);
                parts.truncate(whole);
                let (backup, end, log) = (backup.clone(), end.clone(), Some(log.name.clone()));
                let candidate = LoggedBackup { backup, end, log };
                return Ok((candidate, parts));
            }
            Reach::TooLate => {
                let until = line.until_s.map_or_else(|| "none".into(), |until| units::utc(until.into()));
                why = Some(format!("it is later than what is archived: the last transaction is of {until}"));
                break;
            }
            // The last backup in this order is the oldest.
            Reach::TooEarly => {
                let since = units::utc(line.since_s);
                why =
                    Some(format!("it is earlier than backup {number}, which has transactions up to {since}"));
            }
        }
    }
    let why = why.unwrap_or_else(|| "there is no backup".into());
    Err(Failure::new(format!("{doing}: {why}")).hint(hint(args)))
}

/// Starts a server on the mounted dataset, has it repeat the log, and ends it.
fn replay(
    args: &BackupRestore,
    repository: &Repository,
    name: &Name,
    mount: &Path,
    (candidate, parts): (&LoggedBackup, &[ArchivedPart]),
    until_us: Option<i64>,
) -> Result<Replayed> {
    let end = &candidate.end;
    let data = DataDir::open(mount, &end.data)?;
    let mut options = Options::default();
    options.update(&args.server)?;
    let owner = Owner::of(&data, options.user.as_deref())?;
    // The programs are looked for before a server is started.
    for names in [["mariadb", "mysql"], ["mariadb-binlog", "mysqlbinlog"]] {
        mariadb::client(names, &options)?;
    }
    let index = follow::index_in(&data.path)?;
    let files = index.as_deref().map_or_else(|| Ok(Vec::new()), follow::listed)?;
    let own = files.iter().find(|(number, _)| *number == end.place.file);
    let own = own.ok_or_else(|| Failure::new(format!("the restored database has no log {}", end.place)))?;
    let own = follow::open(&own.1)?;
    mariadb::settle(&data)?;
    let (account, init) = Account::prepare(&data)?;
    options.settings.extend(
        [
            "skip-networking=1",
            "read-only=0",
            "log-bin-trust-function-creators=1",
            "local-infile=1",
            mariadb::RELATIVE_SOCKET,
            &init,
            // The server is ended in an orderly way before anybody gets the data.
            "innodb-flush-log-at-trx-commit=0",
            "sync-binlog=0",
        ]
        .map(str::to_owned),
    );
    options.settings.push(format!("max-allowed-packet={PACKET_BYTES}"));
    let version = mariadb::version_and_position(&data)?.0;
    let (product, position) = (Product::MariaDb, Position::default());
    // Without network it needs no port, but starting demands one that is free.
    let port = args.server.port.map_or_else(|| ports::choose(&ports::turn()?, product), Ok)?;
    let record =
        Record { product, version, data: end.data.clone(), port, position, options, made_mountpoint: false };
    let replay = Replay { repository, parts, from: end.place, own: &own, until_us };
    let replayed = server::start(name, &record, &data)
        .and_then(|()| replay.run(&data, &owner, &record.options, &account));
    let ended = process::end(&data, Signal::TERM, STOP_PATIENCE);
    let replayed = match (replayed, ended) {
        (Ok(replayed), Ok(true)) => replayed,
        (Ok(_), Ok(false)) => {
            return Err(Failure::new(
                "the server that repeated the log ended by itself, and may have lost some of it",
            )
            .hint(format!("its log is {}", server::log_of(name)?.display())));
        }
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => return Err(failure),
        (Err(failure), Err(also)) => {
            eprintln!("pagefold: {also}");
            return Err(failure);
        }
    };
    Account::settle(&data)?;
    mariadb::settle(&data)?;
    Ok(replayed)
}

fn tell(
    args: &BackupRestore,
    name: &Name,
    repository: &Repository,
    candidate: &LoggedBackup,
    (done, replayed): (&Done, Replayed),
    target: RecoveryTarget,
    started: Option<&Started>,
) -> Result<()> {
    if let (true, Some(place)) = (replayed.earlier, replayed.stopped) {
        warn(&format!(
            "transactions behind {place} in the log began before that time, and were left out: they were committed after one that began later, or the clock was set"
        ));
    }
    if args.json {
        let mut told = done.json(repository);
        told["point"] = json!({
            "target": target.text(),
            "log": candidate.log,
            "data": candidate.end.data,
            "from": candidate.end.place,
            "transactions": replayed.transactions,
            "last_s": replayed.last_s,
            "earlier_left_out": replayed.earlier,
            "mounted": started.map(|started| raw::text(&started.mounted)),
            "port": started.map(|started| started.port),
            "server_log": started.map(|started| raw::text(&started.log)),
        });
        return print_json(&told);
    }
    println!("{}", done.line(name));
    let made = units::utc(candidate.backup.origin.created);
    let last =
        replayed.last_s.map_or_else(String::new, |last| format!(", up to {}", units::utc(last.into())));
    match &candidate.log {
        Some(log) => println!(
            "  its snapshot is of {made}; {} transactions of the log {log} followed{last}",
            replayed.transactions
        ),
        None => println!("  its snapshot is of {made}; no log is archived from there on"),
    }
    match started {
        Some(started) => {
            println!(
                "  its server runs in {} on port {}; its log is {}",
                printable(&raw::text(&started.mounted.join(&candidate.end.data))),
                started.port,
                started.log.display()
            );
            println!("  to stop it: {}", started.stop);
        }
        None => {
            println!("  go on: pagefold mount {name} DIR");
            println!("         then start its server with DIR/{} as its data directory", candidate.end.data);
        }
    }
    Ok(())
}
