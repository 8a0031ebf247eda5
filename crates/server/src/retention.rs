//! Decides which snapshots are due by policy, and which are too many.
//!
//! Time is in UTC. A period is a minute, an hour, a day, a week from Monday on, or a month. In each, a dataset gets one
//! snapshot whose name tells the period and its begin. Snapshots that were missed while no server had the pool are not
//! made later. Nothing here reads a clock.

use std::collections::BTreeMap;
use std::str::FromStr;

use pagefold_engine::pool::Listed;

use crate::names::dataset_of;
use crate::units;

/// Name of the property that holds a dataset's policy.
pub const POLICY: &str = "policy";
/// Name of the property that holds the period of a snapshot made by policy. Users cannot set it.
pub const MARK: &str = "policy:period";
/// Largest number of snapshots of a period that can be kept.
const KEEP_MAX: u32 = 10_000;
/// Prefix of the names of snapshots that are made by policy.
const PREFIX: &str = "auto-";

const DAY: u64 = 86_400;
/// 1970-01-01 was a Thursday.
const DAYS_TO_MONDAY: u64 = 3;

/// Intervals at which snapshots are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Period {
    /// Every minute.
    Minutely,
    /// Every hour.
    Hourly,
    /// Every day.
    Daily,
    /// Every week.
    Weekly,
    /// Every month.
    Monthly,
}

/// All periods, the shortest first.
const PERIODS: [Period; 5] =
    [Period::Minutely, Period::Hourly, Period::Daily, Period::Weekly, Period::Monthly];

impl Period {
    /// Returns the name that policies use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Minutely => "minutely",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
        }
    }

    /// Returns the name of the snapshot for the period that contains `now`, in seconds since 1970.
    fn snapshot(self, now: u64) -> String {
        let days = now / DAY;
        let begin = match self {
            Self::Minutely => now - now % 60,
            Self::Hourly => now - now % 3600,
            Self::Daily | Self::Monthly => days * DAY,
            Self::Weekly => days.saturating_sub((days + DAYS_TO_MONDAY) % 7) * DAY,
        };
        let (date, time) = units::date_and_time(begin);
        let begin = match self {
            Self::Minutely | Self::Hourly => format!("{date}T{time}"),
            Self::Daily | Self::Weekly => date,
            Self::Monthly => date[..date.len() - "-01".len()].to_owned(),
        };
        format!("{PREFIX}{}-{begin}", self.name())
    }
}

/// Number of snapshots that a dataset keeps, by period. For a period that is missing, none are made and none removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotPolicy(BTreeMap<Period, u32>);

impl FromStr for SnapshotPolicy {
    type Err = ();

    /// Parses `none`, or a list such as `hourly=24,daily=7`.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "none" {
            return Ok(Self::default());
        }
        let mut keep = BTreeMap::new();
        for part in text.split(',') {
            let (name, count) = part.split_once('=').ok_or(())?;
            let period = PERIODS.into_iter().find(|period| period.name() == name.trim()).ok_or(())?;
            let count: u32 = count.trim().parse().map_err(|_| ())?;
            if count > KEEP_MAX || keep.insert(period, count).is_some() {
                return Err(());
            }
        }
        Ok(Self(keep))
    }
}

impl std::fmt::Display for SnapshotPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, (period, count)) in self.0.iter().enumerate() {
            write!(f, "{}{}={count}", if at > 0 { "," } else { "" }, period.name())?;
        }
        Ok(())
    }
}

/// Snapshots to make and to remove at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotChanges {
    /// Snapshots that are due: name, period, and the datasets that get one, all at one instant.
    pub due: Vec<(String, Period, Vec<String>)>,
    /// Paths of snapshots that are too many once these are made, oldest first.
    pub too_many: Vec<String>,
}

/// Returns the work at `now`, in seconds since 1970; `policy` returns the policy of a dataset. Snapshots are made only
/// if `may_be_made`. Snapshots that are held or have clones stay.
pub(crate) fn work(
    listed: &[Listed],
    now: u64,
    may_be_made: bool,
    policy: &dyn Fn(&str) -> SnapshotPolicy,
) -> SnapshotChanges {
    let mut work = SnapshotChanges::default();
    let datasets: Vec<(&Listed, SnapshotPolicy)> =
        listed.iter().filter(|found| !found.is_snapshot).map(|found| (found, policy(&found.path))).collect();
    for period in PERIODS {
        let name = period.snapshot(now);
        let mut due = Vec::new();
        for (dataset, policy) in &datasets {
            let Some(keep) = policy.0.get(&period) else { continue };
            let path = format!("{}@{name}", dataset.path);
            let is_due = may_be_made && *keep > 0 && !listed.iter().any(|found| found.path == path);
            if is_due {
                due.push(dataset.path.clone());
            }
            let kept = (*keep as usize).saturating_sub(usize::from(is_due));
            work.too_many.extend(beyond(listed, &dataset.path, period, kept));
        }
        if !due.is_empty() {
            work.due.push((name, period, due));
        }
    }
    work
}

/// Returns the snapshots of a dataset that were made for a period, without the `kept` newest, and without those that
/// are held or have clones.
fn beyond(listed: &[Listed], dataset: &str, period: Period, kept: usize) -> Vec<String> {
    let begin = format!("{dataset}@{PREFIX}{}-", period.name());
    // A snapshot that was renamed is no longer ours.
    let ours = |found: &&Listed| {
        found.is_snapshot
            && dataset_of(&found.path) == dataset
            && found.path.starts_with(&begin)
            && found.properties.get(MARK).is_some_and(|mark| mark == period.name())
    };
    let mut all: Vec<&Listed> = listed.iter().filter(ours).collect();
    all.sort_by_key(|found| found.id);
    all.truncate(all.len().saturating_sub(kept));
    all.retain(|found| found.holds.is_empty() && found.clones.is_empty());
    all.into_iter().map(|found| found.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21 13:07:42 UTC, a Saturday.
    const NOW: u64 = 1_795_266_462;

    fn dataset(path: &str) -> Listed {
        Listed { path: path.into(), id: 1, ..Listed::default() }
    }

    fn snapshot(path: &str, id: u64, mark: Option<&str>) -> Listed {
        let properties = mark.map(|mark| (MARK.to_owned(), mark.to_owned())).into_iter().collect();
        Listed { path: path.into(), id, is_snapshot: true, properties, ..Listed::default() }
    }

    #[test]
    fn policies_are_read_and_written_in_one_form() {
        let read = |text: &str| text.parse::<SnapshotPolicy>().map(|policy| policy.to_string());
        assert_eq!(read("none").unwrap(), "none");
        assert_eq!(read("daily=7, hourly=24").unwrap(), "hourly=24,daily=7");
        assert_eq!(
            read("minutely=1,hourly=2,daily=3,weekly=4,monthly=5").unwrap(),
            "minutely=1,hourly=2,daily=3,weekly=4,monthly=5"
        );
        assert_eq!(read("hourly=0").unwrap(), "hourly=0");
        for text in
            ["", "hourly", "hourly=", "hourly=-1", "hourly=1,hourly=2", "yearly=1", "daily=10001", ","]
        {
            assert_eq!(read(text), Err(()), "{text}");
        }
    }

    #[test]
    fn names_tell_the_begin_of_the_period() {
        let name = |period: Period| period.snapshot(NOW);
        assert_eq!(name(Period::Minutely), "auto-minutely-2026-11-21T13:07");
        assert_eq!(name(Period::Hourly), "auto-hourly-2026-11-21T13:00");
        assert_eq!(name(Period::Daily), "auto-daily-2026-11-21");
        assert_eq!(name(Period::Weekly), "auto-weekly-2026-11-16");
        assert_eq!(name(Period::Monthly), "auto-monthly-2026-11");
        // Sunday belongs to the week before; Monday begins one.
        assert_eq!(Period::Weekly.snapshot(NOW + DAY), "auto-weekly-2026-11-16");
        assert_eq!(Period::Weekly.snapshot(NOW + 2 * DAY), "auto-weekly-2026-11-23");
        assert_eq!(Period::Weekly.snapshot(0), "auto-weekly-1970-01-01");
    }

    #[test]
    fn one_is_due_in_each_period_for_all_that_want_it() {
        let mut listed = vec![dataset(""), dataset("db"), dataset("db/log"), dataset("scratch")];
        let policy = |path: &str| match path {
            "" => SnapshotPolicy::default(),
            "scratch" => "daily=2".parse().unwrap(),
            _ => "hourly=3,daily=2".parse().unwrap(),
        };
        let hourly = Period::Hourly.snapshot(NOW);
        let found = work(&listed, NOW, true, &policy);
        assert_eq!(found.due.len(), 2);
        assert_eq!(found.due[0], (hourly.clone(), Period::Hourly, vec!["db".into(), "db/log".into()]));
        assert_eq!(found.due[1].2, ["db", "db/log", "scratch"]);
        // A snapshot with that name counts, no matter who made it.
        listed.push(snapshot(&format!("db@{hourly}"), 9, None));
        assert_eq!(work(&listed, NOW, true, &policy).due[0].2, ["db/log"]);
        assert_eq!(work(&listed, NOW, true, &policy).too_many, Vec::<String>::new());
    }

    #[test]
    fn only_the_oldest_of_our_own_go() {
        let hour = |n: u64| Period::Hourly.snapshot(NOW - n * 3600);
        let path = |n: u64| format!("db@{}", hour(n));
        let mut listed = vec![dataset("db")];
        // The newest is made for now, number 6 is a user's, 5 is held, 4 has a clone, 3 was given another name.
        for n in 0..8 {
            let mark = (n != 6).then_some("hourly");
            listed.push(snapshot(&path(n), 100 - n, mark));
        }
        listed[6].holds.insert("audit".into(), 1);
        listed[5].clones.push("test".into());
        listed[4].path = "db@before-upgrade".into();
        listed.push(snapshot("db@auto-daily-2026-11-01", 3, Some("daily")));
        let with = |text: &str, now: u64| {
            let found = work(&listed, now, true, &|_| text.parse().unwrap());
            (found.due.len(), found.too_many)
        };
        assert_eq!(with("hourly=2", NOW), (0, vec![path(7), path(2)]));
        // The snapshots that are due count among those that are kept.
        assert_eq!(with("hourly=2", NOW + 3600), (1, vec![path(7), path(2), path(1)]));
        assert_eq!(with("hourly=100", NOW), (0, vec![]));
        assert_eq!(with("hourly=0", NOW), (0, vec![path(7), path(2), path(1), path(0)]));
        assert_eq!(with("none", NOW), (0, vec![]));
        assert_eq!(with("weekly=1", NOW).1, Vec::<String>::new());
        // Where none may be made, none is removed to make room.
        let found = work(&listed, NOW + 3600, false, &|_| "hourly=2".parse().unwrap());
        assert_eq!((found.due.len(), found.too_many), (0, vec![path(7), path(2)]));
    }

    #[test]
    fn what_was_missed_is_not_made_up_for() {
        let listed = vec![dataset("db"), snapshot("db@auto-hourly-2026-11-20T02:00", 5, Some("hourly"))];
        let found = work(&listed, NOW, true, &|_| "hourly=9".parse().unwrap());
        assert_eq!(found.due.len(), 1);
        assert_eq!(found.too_many, Vec::<String>::new());
    }
}
