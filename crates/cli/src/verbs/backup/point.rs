//! `backup restore --to-time`, `--to-lsn`, `--to-latest`: a PostgreSQL cluster as it was at a point in time.
//!
//! A backup is of a snapshot and has no `backup_label`, so PostgreSQL recovers it as after a crash, with the log that is in it, and then goes on with the archive as
//! `recovery.signal` says. It is consistent where the log in the backup ends; a point before that is refused here, before the server would refuse it
//! (docs/decisions/0047).

use std::path::{Path, PathBuf};

use pagefold_backup::{Backup, Cluster, ClusterLog, Line, Reach, Repository};
use pagefold_basebackup::control::{self, Control};
use pagefold_basebackup::wal::Wal;
use serde_json::json;

use super::{Done, PASSPHRASE, open, restore_into, told};
use crate::args::{BackupRestore, Mount, RecoveryAction, Unmount};
use crate::deeds::Deed;
use crate::failure::{Context, Failure, Result};
use crate::names::Name;
use crate::table::printable;
use crate::verbs::branch::data::{self, DataDir};
use crate::verbs::branch::owner::Owner;
use crate::verbs::branch::postgres::{self, Goal};
use crate::verbs::branch::record::{Options, Position, Product, Record};
use crate::verbs::branch::{ports, server};
use crate::verbs::print_json;
use crate::{datasets, moment, places, raw, target, units};

/// What a server reads last of its settings.
const SETTINGS: &str = "postgresql.auto.conf";
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
const SIGNAL: &str = "recovery.signal";
/// Settings that end a recovery.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_name",
    "recovery_target_xid",
    "recovery_target_lsn",
    "recovery_target_time",
];

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// In microseconds since 1970: what was committed by then.
    Time(i64),
    /// In the log: what lies before it.
    Place(u64),
    /// All that was archived.
    Latest,
}

impl Target {
    /// The one that the command line names, if any.
    pub(super) fn of(args: &BackupRestore) -> Result<Option<Self>> {
        if let Some(time) = &args.to_time {
            return moment::parse(time).map(|time| Some(Self::Time(time)));
        }
        if let Some(text) = &args.to_lsn {
            let place = control::parse_lsn(text).ok_or_else(|| {
                Failure::usage(format!("\"{text}\" is no place in a log")).hint("it is written as 0/3000000")
            })?;
            return Ok(Some(Self::Place(place)));
        }
        Ok(args.to_latest.then_some(Self::Latest))
    }

    fn reach(self, line: &Line) -> Reach {
        match self {
            Self::Time(time) => line.reaches_time(time),
            Self::Place(place) => line.reaches_place(place),
            Self::Latest if line.until.is_some() => Reach::Within,
            Self::Latest => Reach::TooLate,
        }
    }

    fn told(self) -> String {
        match self {
            Self::Time(time) => moment::exact(time),
            Self::Place(place) => control::lsn(place),
            Self::Latest => "the end of the archive".into(),
        }
    }

    /// The settings that end recovery there. The others are empty, and come before: a server takes the last one that it reads.
    fn settings(self) -> Vec<(&'static str, String)> {
        let mut all: Vec<_> = TARGETS.iter().map(|name| (*name, String::new())).collect();
        match self {
            Self::Time(time) => {
                all.push(("recovery_target_inclusive", "on".into()));
                all.push(("recovery_target_time", moment::exact(time)));
            }
            // A record that begins there came later.
            Self::Place(place) => {
                all.push(("recovery_target_inclusive", "off".into()));
                all.push(("recovery_target_lsn", control::lsn(place)));
            }
            Self::Latest => {}
        }
        all
    }
}

/// A backup from which the point can be reached.
struct Candidate {
    backup: Backup,
    cluster: Cluster,
    line: Line,
}

/// Restores into a new dataset, sets recovery up, and starts the server if that was asked for.
pub(super) fn restore(args: &BackupRestore, name: &Name, target: Target) -> Result<()> {
    let doing = || format!("cannot restore {} to {}", args.backup, target.told());
    if args.start && args.action != RecoveryAction::Promote {
        return Err(Failure::usage("--start waits until the server has recovered, and is for --action promote"));
    }
    if datasets::of_pool(&name.pool)?.iter().any(|figures| figures.path == name.path) {
        return Err(Failure::new(format!("{}: there is a dataset {name} already", doing()))
            .hint("a point in time is restored into a new dataset: name another one"));
    }
    let repository = open(&args.repository, &args.access)?;
    let fetch = fetch_command(args, &repository)?;
    let candidates = candidates(args, &repository, target)?;
    let mut too_early = None;
    for candidate in candidates {
        let done = restore_into(&repository, &candidate.backup, name, false)?;
        let set_up = set_up(name, &candidate, &format!("{fetch} %f \"%p\""), target, args.action);
        match set_up {
            Ok(None) => return finish(args, name, &repository, &candidate, &done, target),
            Ok(Some(why)) => too_early = Some(why),
            Err(failure) => {
                destroy(name)?;
                return Err(failure);
            }
        }
        destroy(name)?;
    }
    let why = too_early.unwrap_or_else(|| "no backup is old enough".into());
    Err(Failure::new(format!("{}: {why}", doing())).hint(hint(args)))
}

fn hint(args: &BackupRestore) -> String {
    format!("see what can be restored: pagefold archive list {}", args.repository)
}

fn destroy(name: &Name) -> Result<()> {
    let what = vec![name.path.clone()];
    datasets::perform(&name.pool, Deed::Destroy { what, recursive: true, dry_run: false }).map(drop)
}

/// The backups from which the point can be reached, the newest first.
fn candidates(args: &BackupRestore, repository: &Repository, target: Target) -> Result<Vec<Candidate>> {
    let doing = format!("cannot restore {} to {}", args.backup, target.told());
    let failed = |error: pagefold_backup::Error| told(&doing, &error);
    // Tells of a name that is none of a backup's.
    repository.find(&args.backup).map_err(failed)?;
    let backups = repository.backups().map_err(failed)?;
    let logs = repository.cluster_logs(&backups).map_err(failed)?;
    let is_meant = |backup: &&Backup| match args.backup.parse::<u64>() {
        Ok(number) => backup.number == number,
        Err(_) => backup.name() == args.backup || backup.name().split('@').next() == Some(&args.backup),
    };
    let mut meant: Vec<&Backup> = backups.iter().filter(is_meant).collect();
    meant.sort_by_key(|backup| std::cmp::Reverse((backup.origin.created, backup.number)));
    let (mut found, mut unfit, mut later, mut earlier) = (Vec::new(), None, None, None);
    for backup in meant {
        let cluster = match cluster_of(args, backup) {
            Ok(cluster) => cluster,
            Err(failure) => {
                unfit.get_or_insert(failure.what().to_owned());
                continue;
            }
        };
        let line = line_of(args, repository, &logs, backup, cluster).map_err(failed)?;
        let Some(line) = line else {
            unfit.get_or_insert(format!("backup {} does not lead to the timeline that is wanted", backup.number));
            continue;
        };
        match target.reach(&line) {
            Reach::Within => found.push(Candidate { backup: backup.clone(), cluster: cluster.clone(), line }),
            Reach::TooLate => {
                later.get_or_insert_with(|| format!("it is later than what is archived: {}", reached(&line)));
            }
            // The last one is the oldest.
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
    match (line.until, line.until_us) {
        (None, _) => format!("nothing since backup {}{missing}", line.backup),
        (Some(until), None) => format!("it ends at {} and has no transactions{missing}", control::lsn(until)),
        (Some(until), Some(micros)) => {
            format!("its last transaction is of {}, it ends at {}{missing}", moment::exact(micros), control::lsn(until))
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

/// The words of `restore_command`, but for the file.
fn fetch_command(args: &BackupRestore, repository: &Repository) -> Result<String> {
    let access = &args.access;
    if repository.is_encrypted() && access.key_file.is_none() && access.key_command.is_none() {
        return Err(Failure::usage(format!(
            "the server needs the key to fetch its log, and {PASSPHRASE} is not passed on to it"
        ))
        .hint("give the key with --key-file FILE, which the server's user can read, or --key-command COMMAND"));
    }
    let program = std::env::current_exe().context(|| "cannot find out where this program is".into())?;
    let mut words = vec![raw::text(&program), "archive".into(), "fetch".into()];
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    if args.repository.contains("://") {
        option("--endpoint", access.endpoint.clone());
        option("--region", access.region.clone());
        option("--remote-command", access.remote_command.clone());
    }
    let key_file = access.key_file.as_deref().map(target::absolute).transpose()?;
    option("--key-file", key_file.map(|path| raw::text(&path)));
    option("--key-command", access.key_command.clone());
    words.push(match args.repository.contains("://") {
        true => args.repository.clone(),
        false => raw::text(&target::absolute(Path::new(&args.repository))?),
    });
    let quoted: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
    Ok(quoted.join(" "))
}

/// A word of a shell in a command of PostgreSQL's, in which a per cent sign is doubled.
fn shell_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:@=+,".contains(&byte);
    let word = word.replace('%', "%%");
    if !word.is_empty() && word.bytes().all(is_plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// A value in PostgreSQL's configuration file.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', "''"))
}

/// The dataset at a mount of our own, while what is in it is changed.
struct Private(PathBuf);

impl Private {
    fn mount(name: &Name) -> Result<Self> {
        let runtime = places::runtime_dir();
        places::make_private(&runtime)?;
        let dir = runtime.join(format!("restore-{}", std::process::id()));
        crate::verbs::mount::run_quietly(&Mount::of(name.to_string(), Some(dir.clone())))?;
        Ok(Self(dir))
    }

    fn unmount(self) -> Result<()> {
        let target = Some(raw::text(&self.0));
        crate::verbs::unmount::run(&Unmount { target, all: false, lazy: false, force: false })?;
        std::fs::remove_dir(&self.0).context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// Has the server recover to the target when it is started. If the backup turns out to have what came later: why.
fn set_up(
    name: &Name,
    candidate: &Candidate,
    fetch: &str,
    target: Target,
    action: RecoveryAction,
) -> Result<Option<String>> {
    let private = Private::mount(name)?;
    let outcome = prepare(&private.0, candidate, fetch, target, action);
    let unmounted = private.unmount();
    let outcome = outcome?;
    unmounted.map(|()| outcome)
}

fn prepare(
    mount: &Path,
    candidate: &Candidate,
    fetch: &str,
    target: Target,
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
        return Err(Failure::new(format!("{}: its log does not lie in it", reading()))
            .hint("a database whose pg_wal lies in another dataset cannot be restored to a point in time from here"));
    }
    let (range, times) = Wal::open(&log, &control).and_then(|wal| wal.times_after_crash(&control)).context(reading)?;
    let number = candidate.backup.number;
    match (target, times) {
        (Target::Place(place), _) if place < range.end => {
            return Ok(Some(format!("backup {number} goes to {}, and later", control::lsn(range.end))));
        }
        (Target::Time(time), Some(times)) if time < times.last => {
            return Ok(Some(format!("backup {number} has transactions of {}", moment::exact(times.last))));
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

/// The lines that are appended to the settings.
fn settings(candidate: &Candidate, fetch: &str, target: Target, action: RecoveryAction) -> String {
    let fetch = fetch.replacen(" archive fetch ", &format!(" archive fetch --system {} ", candidate.cluster.system), 1);
    let timeline = match candidate.line.timeline == candidate.cluster.timeline {
        true => "current".to_owned(),
        false => candidate.line.timeline.to_string(),
    };
    let action = match action {
        RecoveryAction::Promote => "promote",
        RecoveryAction::Pause => "pause",
        RecoveryAction::Shutdown => "shutdown",
    };
    let mut all = vec![("restore_command", fetch)];
    all.extend(target.settings());
    all.push(("recovery_target_timeline", timeline));
    all.push(("recovery_target_action", action.into()));
    // It archives nothing into what it is restored from, cleans nothing, and follows nobody.
    all.push(("archive_mode", "off".into()));
    for name in ["archive_cleanup_command", "recovery_end_command", "primary_conninfo", "primary_slot_name"] {
        all.push((name, String::new()));
    }
    let lines = all.iter().map(|(name, value)| format!("{name} = {}\n", quoted(value)));
    let number = candidate.backup.number;
    let head = format!("\n# By pagefold backup restore, of backup {number}, to {}:\n", target.told());
    std::iter::once(head).chain(lines).collect()
}

fn finish(
    args: &BackupRestore,
    name: &Name,
    repository: &Repository,
    candidate: &Candidate,
    done: &Done,
    target: Target,
) -> Result<()> {
    let started = if args.start { Some(start(args, name, candidate)?) } else { None };
    if args.json {
        let mut told = done.json(repository);
        told["point"] = json!({
            "target": target.told(),
            "timeline": candidate.line.timeline,
            "system": candidate.cluster.system,
            "data": candidate.cluster.data,
            "mounted": started.as_ref().map(|started| raw::text(&started.mounted)),
            "port": started.as_ref().map(|started| started.port),
            "log": started.as_ref().map(|started| raw::text(&started.log)),
        });
        return print_json(&told);
    }
    println!("{}", done.line(name));
    let made = units::utc(candidate.backup.origin.created);
    println!("  its snapshot is of {made}; recovery goes on to {}", target.told());
    match started {
        Some(started) => {
            let data = started.mounted.join(&candidate.cluster.data);
            println!(
                "  it has recovered, and runs in {} on port {}; its log is {}",
                printable(&raw::text(&data)),
                started.port,
                started.log.display()
            );
        }
        None => {
            println!("  go on: pagefold mount {name} DIR");
            println!("         then, as the owner of the data: postgres -D DIR/{}", candidate.cluster.data);
        }
    }
    Ok(())
}

struct Started {
    mounted: PathBuf,
    port: u16,
    log: PathBuf,
}

/// Mounts the dataset and starts the server; returns when it has recovered.
fn start(args: &BackupRestore, name: &Name, candidate: &Candidate) -> Result<Started> {
    crate::verbs::mount::run_quietly(&Mount::of(name.to_string(), args.mountpoint.clone()))?;
    let mounted = datasets::find(name)?.mounted;
    let mounted = mounted.ok_or_else(|| Failure::new(format!("{name} was mounted, and is not mounted any more")))?;
    let data = DataDir::open(&mounted, &candidate.cluster.data)?;
    let mut options = Options::default();
    options.update(&args.server)?;
    // The owner is asked for before anything is begun: the message is about him.
    Owner::of(&data, options.user.as_deref())?;
    let turn = ports::turn()?;
    let port = match args.server.port {
        Some(port) => port,
        None => ports::choose(&turn, Product::PostgreSql)?,
    };
    let record = Record {
        product: Product::PostgreSql,
        version: postgres::version(&data)?.to_string(),
        data: candidate.cluster.data.clone(),
        port,
        position: Position::default(),
        options,
        made_mountpoint: false,
    };
    server::start_to(name, &record, &data, Goal::Point).map_err(|failure| {
        let advice = failure.advice().unwrap_or_default();
        Failure::new(failure.what()).hint(format!("{name} is restored and mounted at {}\n  {advice}", mounted.display()))
    })?;
    Ok(Started { mounted, port, log: server::log_of(name)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_for_the_shell_and_for_postgresql() {
        assert_eq!(shell_word("/mnt/backup"), "/mnt/backup");
        assert_eq!(shell_word("it's 100%"), r"'it'\''s 100%%'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(quoted(r"a\b 'c'"), r"'a\\b ''c'''");
    }

    #[test]
    fn the_target_comes_behind_those_that_are_empty() {
        for (target, name, value) in [
            (Target::Time(1_795_629_600_500_000), "recovery_target_time", "2026-11-25 18:00:00.500000+00"),
            (Target::Place(0x1_0300_0028), "recovery_target_lsn", "1/3000028"),
        ] {
            let settings = target.settings();
            assert_eq!(settings.last(), Some(&(name, value.to_owned())));
            assert_eq!(settings.iter().filter(|(name, value)| !value.is_empty() && *name != "recovery_target_inclusive").count(), 1);
        }
        assert!(Target::Latest.settings().iter().all(|(_, value)| value.is_empty()));
    }
}
