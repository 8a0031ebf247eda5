//! Selects the backups that go, and deletes what nothing needs any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::str::FromStr;

use serde::Serialize;

use crate::archive::{self, PrunedLogs};
use crate::binlog::ArchivedPart;
use crate::block::BlockRef;
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::pack::PackId;
use crate::repository::Repository;

const DAY: u64 = 24 * 3600;

/// A period, of each of which the newest backup is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Period {
    /// Returns a number for the period in which `time` lies, in UTC; weeks begin on Monday.
    fn of(self, time: u64) -> u64 {
        match self {
            Self::Hour => time / 3600,
            Self::Day => time / DAY,
            // The first of January 1970 was a Thursday.
            Self::Week => (time / DAY + 3) / 7,
            Self::Month => month(time / DAY),
            Self::Year => month(time / DAY) / 12,
        }
    }
}

/// Returns the number of months since the begin of year 0, for a day counted from 1970: Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn month(day: u64) -> u64 {
    let day = day + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // This month counts from March on.
    let month = (5 * of_year + 2) / 153;
    (year_of_era + era * 400) * 12 + month + 2
}

/// Number of backups that are kept of each dataset: `last=3,hourly=24,daily=7,weekly=5,monthly=12,yearly=10`; each part
/// may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    last: usize,
    periods: Vec<(Period, usize)>,
}

impl FromStr for Keep {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |part: &str| {
            Error::Invalid(format!(
                "'{part}' does not say what to keep: last=N, hourly=N, daily=N, weekly=N, monthly=N, yearly=N are known, with commas between"
            ))
        };
        let (mut keep, mut seen) = (Self::default(), BTreeSet::new());
        for part in text.split(',') {
            let (name, count) = part.trim().split_once('=').ok_or_else(|| bad(part))?;
            if !seen.insert(name) {
                return Err(Error::Invalid(format!("'{text}' says twice how many of {name} are kept")));
            }
            let count: usize = count.parse().map_err(|_| bad(part))?;
            let period = match name {
                "last" => {
                    keep.last = count;
                    continue;
                }
                "hourly" => Period::Hour,
                "daily" => Period::Day,
                "weekly" => Period::Week,
                "monthly" => Period::Month,
                "yearly" => Period::Year,
                _ => return Err(bad(part)),
            };
            keep.periods.push((period, count));
        }
        if keep.last == 0 && keep.periods.iter().all(|(_, count)| *count == 0) {
            return Err(Error::Invalid(
                "nothing would be kept: forget backups by their numbers if that is meant".into(),
            ));
        }
        Ok(keep)
    }
}

impl Keep {
    /// Returns this rule, by which the newest backup stays too.
    #[must_use]
    pub fn with_newest(self) -> Self {
        Self { last: self.last.max(1), ..self }
    }
}

/// Returns the numbers of the backups that `keep` does not keep. In each dataset and each period, the backup of the
/// newest snapshot stays, for as many periods with a backup as `keep` says. Pools that share a name are told apart by
/// their GUIDs, and the newest snapshot by its number, since a clock may have been wrong.
pub fn select(backups: &[Backup], keep: &Keep) -> Vec<u64> {
    let mut datasets: BTreeMap<([u8; 16], &str, &str), Vec<&Backup>> = BTreeMap::new();
    for backup in backups {
        let dataset = (backup.origin.pool.0, backup.pool.as_str(), backup.dataset.as_str());
        datasets.entry(dataset).or_default().push(backup);
    }
    let mut kept = BTreeSet::new();
    for all in datasets.values_mut() {
        all.sort_by_key(|backup| std::cmp::Reverse(backup.order()));
        kept.extend(all.iter().take(keep.last).map(|backup| backup.number));
        for (period, count) in &keep.periods {
            let mut seen = BTreeSet::new();
            for backup in all.iter() {
                let of = period.of(backup.origin.created);
                if seen.len() < *count && seen.insert(of) {
                    kept.insert(backup.number);
                }
            }
        }
    }
    backups.iter().map(|backup| backup.number).filter(|number| !kept.contains(number)).collect()
}

/// The outcome of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Numbers of the backups that were forgotten.
    pub forgotten: Vec<u64>,
    /// Number of packs that were deleted.
    pub deleted_packs: u64,
    /// Bytes of these packs.
    pub deleted_bytes: u64,
    /// Number of packs that nothing needs, and that the next prune deletes.
    pub condemned_packs: u64,
    /// Bytes of these packs.
    pub condemned_bytes: u64,
    /// Outcome for archived logs.
    pub logs: PrunedLogs,
}

impl Repository {
    /// Forgets the backups that `keep` does not keep, and deletes packs that nothing needs, if the prune before found
    /// them as well. Two prunes have to pass, so that backups and restores that are under way lose nothing; `now` says
    /// that there are none.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Missing`] if a manifest cannot be read: nothing is deleted then; errors of the
    /// store.
    pub fn prune(&self, keep: Option<&Keep>, now: bool, dry_run: bool) -> Result<Pruned> {
        let mut listed = BTreeMap::new();
        self.store.list("packs", &mut |name, bytes| {
            if let Ok(id) = name.parse::<PackId>() {
                listed.insert(id, bytes);
            }
        })?;
        let (files, binlogs) = (self.logs()?, self.binlog_marks()?);
        let (mut doomed_logs, mut doomed_parts) = (Vec::new(), Vec::new());
        // The key is the root: a repacking gives backups other roots, and may come between two attempts to commit.
        let mut packs_of: HashMap<Vec<BlockRef>, Vec<PackId>> = HashMap::new();
        let mut pruned = Pruned::default();
        let mut doomed: Vec<PackId> = Vec::new();
        let mut plan = |state: &mut crate::commit::State| {
            let forgotten = keep.map(|keep| select(&state.backups, keep)).unwrap_or_default();
            state.backups.retain(|backup| !forgotten.contains(&backup.number));
            let mut needed = BTreeSet::new();
            for backup in &state.backups {
                if let std::collections::hash_map::Entry::Vacant(place) = packs_of.entry(backup.root.clone())
                {
                    let root = self.root(backup)?;
                    let mut packs: Vec<PackId> =
                        root.packs().chain(backup.root.iter().map(|block| block.pack)).collect();
                    packs.sort_unstable();
                    packs.dedup();
                    place.insert(packs);
                }
                needed.extend(packs_of.get(&backup.root).into_iter().flatten().copied());
            }
            let before: BTreeSet<PackId> = state.condemned.iter().copied().collect();
            let unneeded = || listed.iter().filter(|(id, _)| !needed.contains(*id));
            let goes = |id: &PackId| now || before.contains(id);
            doomed = unneeded().map(|(id, _)| *id).filter(goes).collect();
            state.condemned = unneeded().map(|(id, _)| *id).collect();
            state.epoch += if now { 2 } else { 1 };
            let sum = |going: bool| {
                let packs = unneeded().filter(|(id, _)| goes(id) == going);
                packs.fold((0, 0), |(count, bytes), (_, more)| (count + 1, bytes + more))
            };
            (pruned.deleted_packs, pruned.deleted_bytes) = sum(true);
            (pruned.condemned_packs, pruned.condemned_bytes) = sum(false);
            pruned.forgotten = forgotten;
            let found = archive::unneeded(&files, &state.backups, &state.floors, now);
            (doomed_logs, state.floors, pruned.logs) = found;
            let found = crate::binlog::unneeded(&binlogs, &state.backups, &state.binlog_floors, now);
            pruned.logs.deleted_files += found.doomed.len() as u64;
            pruned.logs.deleted_bytes += found.doomed.iter().map(|part| part.stored_bytes).sum::<u64>();
            pruned.logs.left_files += found.left;
            if !binlogs.is_empty() && pruned.logs.unknown_backups.is_empty() {
                pruned.logs.unknown_backups = archive::unknown(&state.backups);
            }
            (doomed_parts, state.binlog_floors) = (found.doomed, found.floors);
            Ok(())
        };
        if dry_run {
            plan(&mut self.head()?.state)?;
            return Ok(pruned);
        }
        self.commit(&mut plan)?;
        let objects = doomed.iter().map(PackId::path).chain(archive::paths(&doomed_logs));
        let objects: Vec<String> = objects.chain(doomed_parts.iter().map(ArchivedPart::path)).collect();
        for some in objects.chunks(1000) {
            self.store.delete(some)?;
        }
        Ok(pruned)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use pagefold_engine::pool::{Guid, Origin};

    use super::*;

    fn backup(number: u64, pool: u8, snapshot: u64, created: u64) -> Backup {
        let origin = Origin { pool: Guid([pool; 16]), number: snapshot, created };
        Backup { number, origin, ..crate::samples::state().backups.remove(0) }
    }

    #[test]
    fn a_clock_that_was_ahead_costs_no_newer_backup() {
        let (last, daily) = ("last=1".parse().unwrap(), "daily=1".parse().unwrap());
        let jumped = [backup(1, 1, 1, 2_000_000_000), backup(2, 1, 2, 1_700_000_000)];
        assert_eq!(select(&jumped, &last), [1]);
        assert_eq!(select(&jumped, &daily), [1]);
        // A backup of an older snapshot that was made later.
        let later = [backup(1, 1, 2, 1_700_000_100), backup(2, 1, 1, 1_700_000_000)];
        assert_eq!(select(&later, &last), [2]);
    }

    #[test]
    fn the_newest_backup_stays_whatever_else_is_said() {
        let both = [backup(1, 1, 1, 100), backup(2, 1, 2, 200), backup(3, 1, 3, 300)];
        let kept_with_newest = |rule: &str| select(&both, &rule.parse::<Keep>().unwrap().with_newest());
        assert_eq!(kept_with_newest("last=2"), [1]);
        assert_eq!(kept_with_newest("last=0,daily=1"), [1, 2]);
    }

    #[test]
    fn pools_of_one_name_are_thinned_out_each_for_itself() {
        let both = [backup(1, 1, 1, 100), backup(2, 2, 1, 200), backup(3, 1, 2, 300), backup(4, 2, 2, 400)];
        assert_eq!(select(&both, &"last=1".parse().unwrap()), [1, 2]);
    }

    #[test]
    fn periods_begin_where_calendars_say() {
        // 31 December 1999, 23:59:59 and a second later; 28 and 29 February and 1 March 2000.
        assert_eq!(Period::Month.of(946_684_799), 1999 * 12 + 11);
        assert_eq!(Period::Month.of(946_684_800), 2000 * 12);
        assert_eq!(Period::Year.of(946_684_799), 1999);
        assert_eq!(Period::Year.of(946_684_800), 2000);
        assert_eq!(Period::Month.of(951_782_400), 2000 * 12 + 1);
        assert_eq!(Period::Month.of(951_868_800), 2000 * 12 + 2);
        // Sunday 4 and Monday 5 January 1970.
        assert_eq!((Period::Week.of(3 * DAY), Period::Week.of(4 * DAY)), (0, 1));
        assert!("hourly=24,daily=7".parse::<Keep>().is_ok());
        for bad in ["", "daily", "daily=x", "daily=0", "often=3", "last=1,last=2", "daily=1, daily=1"] {
            assert!(bad.parse::<Keep>().is_err(), "{bad}");
        }
    }
}
