//! Finds the database clusters in a snapshot that is backed up. A backup notes them, so that their log is kept as long
//! as it is needed, and found when a database is restored to a point in time.

use std::path::Path;

use pagefold_backup::{BinlogEnd, BinlogPlace, Cluster};
use pagefold_basebackup::control::Control;
use pagefold_basebackup::wal::Wal;
use pagefold_server::failure::{Context, Result};
use pagefold_server::names::Name;

use crate::verbs::archive::follow;
use crate::verbs::basebackup::view::View;
use crate::verbs::branch::data;
use crate::verbs::branch::record::Product;
use crate::verbs::warn;

/// The end of a log that is not known, since the log lies in another dataset.
const UNKNOWN: u64 = u64::MAX;

/// Looks for clusters. If that fails, prints a warning and returns `None`: the backup notes that its clusters are
/// unknown.
pub(super) fn known(snapshot: &Name, before: &[BinlogEnd]) -> Option<(Vec<Cluster>, Vec<BinlogEnd>)> {
    match of(snapshot, before) {
        Ok(clusters) => Some(clusters),
        Err(failure) => {
            warn(&format!(
                "it was not found out which databases are in {snapshot}, so no archived log is deleted as long as there is this backup: {failure}"
            ));
            None
        }
    }
}

/// Returns where the log ends, and when the last transaction in it ended.
fn ends(log: &Path, control: &Control) -> pagefold_basebackup::Result<(u64, Option<i64>)> {
    let wal = Wal::open(log, control)?;
    let end = wal.written_to(control)?;
    Ok((end, wal.last_end_before(control.timeline, end)?))
}

fn of(snapshot: &Name, before: &[BinlogEnd]) -> Result<(Vec<Cluster>, Vec<BinlogEnd>)> {
    let view = View::of(snapshot)?;
    let found = data::find(&view.root)?;
    let mut binlogs = Vec::new();
    for found in found.iter().filter(|found| found.product == Product::MariaDb) {
        binlogs.extend(binlog_end(&view, &found.relative, before));
    }
    let clusters = found.into_iter().filter(|found| found.product == Product::PostgreSql).map(|found| {
        let folder = view.root.join(&found.relative);
        let reading = || format!("cannot read the control file of {}", found.relative);
        let control = Control::of(&folder).context(reading)?;
        let log = folder.join("pg_wal");
        // A link would lead to the log that the server writes now.
        let is_here = std::fs::symlink_metadata(&log).is_ok_and(|found| found.is_dir());
        let (end, last_us) = match is_here {
            true => ends(&log, &control).context(reading)?,
            false => (UNKNOWN, None),
        };
        Ok(Cluster {
            data: found.relative,
            system: control.system,
            timeline: control.timeline,
            redo: control.redo,
            end,
            segment_bytes: control.wal_segment_bytes,
            last_us,
        })
    });
    let clusters: Result<Vec<Cluster>> = clusters.collect();
    Ok((clusters?, binlogs))
}

/// Returns where the binary log of a MariaDB server ends; `None` if it has none in the data directory, or one that
/// cannot be followed. `before` has the ends in the last backup, from which on the log is read.
fn binlog_end(view: &View, relative: &str, before: &[BinlogEnd]) -> Option<BinlogEnd> {
    let index = follow::index_in(&view.root.join(relative)).transpose()?;
    let found = index.and_then(|index| end_of(&index, before.iter().find(|end| end.data == relative)));
    found
        .unwrap_or_else(|failure| {
            warn(&format!(
                "the database {relative} cannot be restored to a point in time from this backup: {failure}"
            ));
            None
        })
        .map(|end| BinlogEnd { data: relative.to_owned(), ..end })
}

fn end_of(index: &Path, before: Option<&BinlogEnd>) -> Result<Option<BinlogEnd>> {
    let files = follow::listed(index)?;
    let Some((file, last)) = files.last() else { return Ok(None) };
    let of_file = before.filter(|end| end.place.file == *file);
    let ended = follow::scanned(last, of_file.map(|end| (end.mark, end.place)))?;
    let earlier = of_file.filter(|end| end.mark == ended.mark).and_then(|end| end.last_s);
    let mut last_s = ended.last_s.max(earlier);
    // A file that the server has just begun has no transaction.
    if let (None, Some((_, earlier))) = (last_s, files.iter().rev().nth(1)) {
        last_s = follow::scanned(earlier, None).ok().and_then(|ended| ended.last_s);
    }
    let place = BinlogPlace { file: *file, offset: ended.whole };
    Ok(Some(BinlogEnd { data: String::new(), place, mark: ended.mark, last_s }))
}
