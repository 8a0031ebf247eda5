//! Policies of backups: parses and formats the property `backup`, and decides when a backup is due. Nothing here reads
//! a clock.
//!
//! Time is in UTC. A backup is due once in each period of the policy's length, counted from 1970; one backup makes up
//! for any number of missed ones.

use std::fmt;
use std::path::PathBuf;

use pagefold_backup::{Keep, Location};

use crate::units;

/// Name of the property that holds a dataset's policy.
pub const BACKUP: &str = "backup";
/// Value of the property that stands for no policy.
pub const NONE: &str = "none";
/// Key file that is read if it exists and a policy names no other.
pub const KEY_FILE: &str = "/etc/pagefold/backup.key";
/// Default interval between backups, in seconds.
const EVERY: u64 = DAY;
/// Shortest interval, in seconds.
const EVERY_MIN: u64 = 1;
/// Interval of the timer of `backup run`, in seconds. Backups with a shorter interval are made by `replicate`, a
/// process of its own.
const TIMER: u64 = 5 * 60;
/// Longest interval, in seconds. A longer one, such as a year, is a mistake.
const EVERY_MAX: u64 = 31 * DAY;
/// Shortest time between two prunes of a repository that nobody asked for, in seconds.
pub const PRUNE_EVERY: u64 = DAY;
/// Environment variable that may hold the passphrase.
pub const PASSPHRASE: &str = "PAGEFOLD_BACKUP_PASSPHRASE";
const DAY: u64 = 86_400;
/// Units of `every`, the longest first.
const UNITS: [(char, u64); 5] = [('w', 7 * DAY), ('d', DAY), ('h', 3600), ('m', 60), ('s', 1)];
/// Words that say what a prune keeps, in the order in which a policy is written.
const KEEP: [&str; 6] = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];

/// The parts of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPolicy {
    /// Absolute path or URL of the repository.
    pub repository: String,
    /// Interval between backups, in seconds.
    pub every: u64,
    /// The backups of the dataset that a prune keeps. `None`: nothing is pruned.
    pub keep: Option<String>,
    /// Path of the key file; `none`: the repository is not encrypted. `None`: the policy names no key file.
    pub key_file: Option<String>,
    /// Largest number of bytes per second; `None`: no bound.
    pub rate: Option<u64>,
    /// URL of an S3-compatible store.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Command that runs Pagefold on another host.
    pub remote_command: Option<String>,
}

impl BackupPolicy {
    /// Parses a value of the property; `none` is no policy.
    ///
    /// # Errors
    /// A text for people that says what is wrong.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        if text == NONE {
            return Ok(None);
        }
        let mut parts = text.split(',').map(str::trim);
        let repository = parts.next().unwrap_or_default().to_owned();
        if !repository.starts_with('/') && !repository.contains("://") {
            return Err(format!("\"{repository}\" is no absolute path or URL of a repository"));
        }
        let mut policy = Self {
            repository,
            every: EVERY,
            keep: None,
            key_file: None,
            rate: None,
            endpoint: None,
            region: None,
            remote_command: None,
        };
        let mut keep = Vec::new();
        let mut seen = Vec::new();
        for part in parts {
            let (word, value) = part.split_once('=').ok_or_else(|| format!("\"{part}\" is no WORD=VALUE"))?;
            if seen.contains(&word) {
                return Err(format!("{word} is said twice"));
            }
            seen.push(word);
            if value.is_empty() {
                return Err(format!("{word} has no value"));
            }
            let own = || Some(value.to_owned());
            match word {
                "every" => policy.every = every(value)?,
                "key-file" if value == NONE || value.starts_with('/') => policy.key_file = own(),
                "key-file" => return Err("key-file is an absolute path, or none".into()),
                "rate" => {
                    let rate = units::parse_rate(value).map_err(|failure| failure.what().to_owned())?;
                    policy.rate = Some(rate);
                }
                "endpoint" => policy.endpoint = own(),
                "region" => policy.region = own(),
                "remote-command" => policy.remote_command = own(),
                _ if KEEP.contains(&word) => keep.push((word, value)),
                _ => return Err(format!("\"{word}\" is not known")),
            }
        }
        keep.sort_by_key(|(word, _)| KEEP.iter().position(|known| known == word));
        if !keep.is_empty() {
            let keep: Vec<String> = keep.iter().map(|(word, count)| format!("{word}={count}")).collect();
            let keep = keep.join(",");
            keep.parse::<Keep>().map_err(|error| error.to_string())?;
            policy.keep = Some(keep);
        }
        policy.location().map_err(|error| error.to_string())?;
        Ok(Some(policy))
    }

    /// Returns where the repository is.
    pub fn location(&self) -> pagefold_backup::Result<Location> {
        let of = |word: &Option<String>| word.clone();
        let (endpoint, region, command) = (of(&self.endpoint), of(&self.region), of(&self.remote_command));
        Location::parse(&self.repository, endpoint.as_deref(), region.as_deref(), command.as_deref())
    }

    /// Returns the key file to read, if any; `there` returns whether the default file exists.
    pub fn key_file(&self, there: impl FnOnce() -> bool) -> Option<PathBuf> {
        match self.key_file.as_deref() {
            Some(NONE) => None,
            Some(path) => Some(path.into()),
            None => there().then(|| KEY_FILE.into()),
        }
    }

    /// Returns true if backups come too often for the timer, so that `replicate` makes them.
    pub fn is_continuous(&self) -> bool {
        self.every < TIMER
    }

    /// Returns true if a backup is due at `now`, and the newest one was begun at `last`; both in seconds since 1970.
    pub fn is_due(&self, last: Option<u64>, now: u64) -> bool {
        is_due(self.every, last, now)
    }
}

/// Returns true if `now` is in another period of `every` seconds than `last`. So a clock that was set back delays no
/// backup.
fn is_due(every: u64, last: Option<u64>, now: u64) -> bool {
    last.is_none_or(|last| now / every != last / every)
}

/// Parses a length of time such as `30m`, `1h`, `1d` or `1w`; returns it in seconds.
pub fn every(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no length of time: 30m, 1h, 1d, 1w are");
    let unit = text.chars().last().and_then(|last| UNITS.iter().find(|(unit, _)| *unit == last));
    let (unit, seconds) = unit.ok_or_else(wrong)?;
    let count: u64 = text.strip_suffix(*unit).and_then(|count| count.parse().ok()).ok_or_else(wrong)?;
    let every = count.saturating_mul(*seconds);
    match (EVERY_MIN..=EVERY_MAX).contains(&every) {
        true => Ok(every),
        false => Err("every is at least 1s and at most 31d".into()),
    }
}

/// Formats seconds in the form of `every`.
pub fn every_text(seconds: u64) -> String {
    let fits = UNITS.iter().find(|(_, unit)| seconds.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{seconds}s"), |(unit, length)| format!("{}{unit}", seconds / length))
}

impl fmt::Display for BackupPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},every={}", self.repository, every_text(self.every))?;
        if let Some(keep) = &self.keep {
            write!(f, ",{keep}")?;
        }
        if let Some(rate) = self.rate {
            write!(f, ",rate={rate}")?;
        }
        for (word, value) in [
            ("key-file", &self.key_file),
            ("endpoint", &self.endpoint),
            ("region", &self.region),
            ("remote-command", &self.remote_command),
        ] {
            if let Some(value) = value {
                write!(f, ",{word}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        BackupPolicy::parse(text)
            .map(|policy| policy.map_or_else(|| "none".into(), |policy| policy.to_string()))
    }

    #[test]
    fn policies_are_read_and_written_in_one_form() {
        for (text, form) in [
            ("none", "none"),
            ("/srv/b", "/srv/b,every=1d"),
            ("/srv/b, daily=7,hourly=24 ,every=60m", "/srv/b,every=1h,hourly=24,daily=7"),
            ("/srv/b,every=90s,last=1", "/srv/b,every=90s,last=1"),
            ("s3://bucket/x,every=7d,rate=50M", "s3://bucket/x,every=1w,rate=52428800"),
            ("gs://b/x,every=1h", "gs://b/x,every=1h"),
            ("az://c,endpoint=https://h,daily=7", "az://c,every=1d,daily=7,endpoint=https://h"),
            ("s3://b,endpoint=http://h:1,region=r", "s3://b,every=1d,endpoint=http://h:1,region=r"),
            (
                "ssh://joe@host:22/srv/b,every=90m,key-file=none,remote-command=sudo /opt/pagefold",
                "ssh://joe@host:22/srv/b,every=90m,key-file=none,remote-command=sudo /opt/pagefold",
            ),
        ] {
            assert_eq!(read(text).unwrap(), form);
            assert_eq!(read(form).unwrap(), form);
        }
    }

    #[test]
    fn what_is_no_policy_is_told() {
        for (text, told) in [
            ("", "no absolute path"),
            ("srv/b", "no absolute path"),
            ("every=1h", "no absolute path"),
            ("ftp://host/x", "not known"),
            ("ssh://host", "ssh://[USER@]HOST"),
            ("/b,every", "no WORD=VALUE"),
            ("/b,", "no WORD=VALUE"),
            ("/b,every=", "no value"),
            ("/b,every=1", "no length of time"),
            ("/b,every=h", "no length of time"),
            ("/b,every=-1h", "no length of time"),
            ("/b,every=0s", "at least 1s"),
            ("/b,every=99999999999999999w", "at least 1s"),
            ("/b,every=1é", "no length of time"),
            ("/b,every=1h,every=2h", "twice"),
            ("/b,rate=0", "nothing would ever be done"),
            ("gs://b/x,region=r", "has no region"),
            ("/b,daily=x", "does not say what to keep"),
            ("/b,daily=0", "nothing would be kept"),
            ("/b,minutely=7", "not known"),
            ("/b,key-file=key", "absolute path"),
            ("/b,rate=fast", "fast"),
            ("/b,endpoint=http://h", "neither endpoint nor region"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn one_is_due_in_each_period() {
        let policy = BackupPolicy::parse("/b,every=1h").unwrap().unwrap();
        let now = 1_795_266_462;
        let begin = now - now % 3600;
        assert!(policy.is_due(None, now));
        assert!(!policy.is_due(Some(begin), now) && !policy.is_due(Some(now), begin + 3599));
        assert!(policy.is_due(Some(begin - 1), now) && policy.is_due(Some(begin - 99 * 3600), now));
        // The clock was set back.
        assert!(policy.is_due(Some(now + 7200), now));
    }

    #[test]
    fn keys_come_from_the_policy_or_the_usual_place() {
        let of = |text: &str, there: bool| BackupPolicy::parse(text).unwrap().unwrap().key_file(|| there);
        assert_eq!(of("/b,key-file=/k", true), Some("/k".into()));
        assert_eq!(of("/b,key-file=none", true), None);
        assert_eq!((of("/b", true), of("/b", false)), (Some(KEY_FILE.into()), None));
    }
}
