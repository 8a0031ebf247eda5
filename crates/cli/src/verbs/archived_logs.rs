//! Prints the logs of database clusters that a repository has.

use pagefold_backup::{Binlog, ClusterLog};
use pagefold_basebackup::control;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::units;

use crate::args::Output;
use crate::table::{Align, Table};
use crate::timestamp;

/// Prints how far each backup can be restored: first those of PostgreSQL, then those of MariaDB.
pub(super) fn print_all(logs: &[ClusterLog], binlogs: &[Binlog], output: &Output) {
    if !logs.is_empty() || binlogs.is_empty() {
        print(logs, output);
    }
    if !logs.is_empty() && !binlogs.is_empty() {
        println!();
    }
    if !binlogs.is_empty() {
        print_binlogs(binlogs, output);
    }
}

/// Fails if the history of a timeline cannot be read: backups may lead further than was told.
pub(super) fn check_histories(logs: &[ClusterLog]) -> Result<()> {
    let found = logs.iter().find_map(|log| Some((log.system, log.unreadable.first()?)));
    let Some((system, history)) = found else { return Ok(()) };
    let (name, what) = (history.name, &history.what);
    Err(Failure::new(format!(
        "backups may lead further than is told, since {name} of cluster {system} is damaged: {what}"
    ))
    .hint("if the server has it in pg_wal, delete the damaged object, and archive it again: pagefold archive push"))
}

/// Prints how far each backup can be restored along binary logs, and the logs that belong to no backup.
fn print_binlogs(binlogs: &[Binlog], output: &Output) {
    let exact = output.exact || output.script;
    let time = |seconds: u64| if exact { seconds.to_string() } else { units::utc(seconds) };
    let none = || "-".to_owned();
    let mut table = Table::new(&[
        ("BINARY LOG", Align::Left),
        ("BACKUP", Align::Right),
        ("DATASET", Align::Left),
        ("FROM", Align::Left),
        ("UNTIL", Align::Left),
        ("PLACES", Align::Left),
    ]);
    for log in binlogs {
        let until = log.last_s.map_or_else(none, |last| time(last.into()));
        for line in &log.lines {
            table.row(vec![
                log.name.to_string(),
                line.backup.to_string(),
                line.dataset.clone(),
                time(line.since_s),
                until.clone(),
                format!("{} to {}", line.from, log.until),
            ]);
        }
        if log.lines.is_empty() {
            let places = format!("{} to {}", log.from, log.until);
            table.row(vec![log.name.to_string(), none(), none(), none(), until, places]);
        }
    }
    table.print(output.script);
}

/// Prints how far each backup can be restored, and the archived logs of clusters that have no backup.
fn print(logs: &[ClusterLog], output: &Output) {
    let exact = output.exact || output.script;
    let mut table = Table::new(&[
        ("CLUSTER", Align::Right),
        ("BACKUP", Align::Right),
        ("DATASET", Align::Left),
        ("TIMELINE", Align::Right),
        ("FROM", Align::Left),
        ("BEFORE", Align::Left),
        ("LSN", Align::Left),
        ("MISSING", Align::Left),
    ]);
    let none = || "-".to_owned();
    for log in logs {
        for line in &log.lines {
            let before = match line.until_us {
                Some(micros) if exact => micros.to_string(),
                Some(micros) => timestamp::format(micros),
                None => none(),
            };
            let places = match line.whole_until() {
                Some(until) if line.from != u64::MAX => {
                    format!("{} to {}", control::lsn(line.from), control::lsn(until))
                }
                _ => none(),
            };
            table.row(vec![
                log.system.to_string(),
                line.backup.to_string(),
                line.dataset.clone(),
                line.timeline.to_string(),
                match line.since_us {
                    Some(micros) if exact => micros.to_string(),
                    Some(micros) => timestamp::format(micros),
                    None if exact => line.since.saturating_add(1).saturating_mul(1_000_000).to_string(),
                    None => units::utc(line.since.saturating_add(1)),
                },
                before,
                places,
                line.missing.map_or_else(none, |missing| missing.to_string()),
            ]);
        }
        if log.lines.is_empty() {
            let last = log.stretches.last().map_or_else(none, |stretch| stretch.last.to_string());
            let missing = log.missing().first().map_or_else(none, ToString::to_string);
            let row = [log.system.to_string(), none(), none(), none(), none(), none(), last, missing];
            table.row(row.to_vec());
        }
    }
    table.print(output.script);
}
