//! The state of backups by policy, as `status` tells it.

use pagefold_server::backups::{BackupPolicy, every_text};
use pagefold_server::failure::Result;
use pagefold_server::units;
use serde::Serialize;

use super::attempts::{AttemptLog, Failed};
use super::run::planned;
use crate::target;

/// A dataset with a policy, and its newest backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackupStatus {
    /// `POOL/DATASET`.
    pub name: String,
    /// The repository; empty if the policy cannot be read.
    pub repository: String,
    /// Time from backup to backup, in seconds.
    pub every_s: u64,
    /// Begin of the newest backup, in seconds since 1970.
    pub newest: Option<u64>,
    /// Age of that backup in seconds.
    pub age_s: Option<u64>,
    /// Number of that backup in the repository.
    pub number: Option<u64>,
    /// True if that backup is older than two periods, or if there is none.
    pub overdue: bool,
    /// The last attempt, if it failed.
    pub failed: Option<Failed>,
}

impl BackupStatus {
    /// Returns true if somebody has to do something.
    pub fn is_wrong(&self) -> bool {
        self.overdue || self.failed.is_some()
    }

    /// Returns the state in words.
    pub fn text(&self) -> String {
        let Self { name, repository, .. } = self;
        let age = self.age_s.map(units::age);
        match (&self.failed, age) {
            (Some(failed), age) => {
                let ago = units::age(units::now().saturating_sub(failed.at));
                let newest = age.map_or("there is none".into(), |age| format!("the newest is {age} old"));
                format!("{name}: FAILED {ago} ago: {}; {newest}", failed.what)
            }
            (None, None) => format!(
                "{name}: none yet, to {repository}: pagefold backup run makes it, or systemctl enable --now pagefold-backup.timer"
            ),
            (None, Some(age)) => {
                let every = every_text(self.every_s);
                let overdue = if self.overdue { "OVERDUE, " } else { "" };
                format!("{name}: {overdue}{age} old, every {every}, to {repository}")
            }
        }
    }
}

/// Returns the states of a pool's datasets; empty if nobody serves the pool.
pub fn backup_statuses(pool: &str) -> Result<Vec<BackupStatus>> {
    if target::connect(pool)?.is_none() {
        return Ok(Vec::new());
    }
    let is_timed =
        |planned: &super::run::Planned| !planned.policy.as_ref().is_ok_and(BackupPolicy::is_continuous);
    let planned: Vec<_> = planned(pool)?.into_iter().filter(is_timed).collect();
    if planned.is_empty() {
        return Ok(Vec::new());
    }
    let (memory, now) = (AttemptLog::read()?, units::now());
    let of = |planned: super::run::Planned| {
        let name = planned.name.to_string();
        let policy = match planned.policy {
            Ok(policy) => policy,
            Err(failure) => {
                let hint = failure.advice().map(Into::into);
                let failed = Some(Failed { at: now, what: failure.what().into(), hint });
                return BackupStatus {
                    name,
                    repository: String::new(),
                    every_s: 0,
                    newest: None,
                    age_s: None,
                    number: None,
                    overdue: false,
                    failed,
                };
            }
        };
        let attempts = memory.of(&name, &policy.repository).cloned().unwrap_or_default();
        let age_s = attempts.newest.map(|newest| now.saturating_sub(newest));
        BackupStatus {
            name,
            repository: policy.repository,
            every_s: policy.every,
            newest: attempts.newest,
            age_s,
            number: attempts.number,
            overdue: age_s.is_none_or(|age| age > policy.every.saturating_mul(2)),
            failed: attempts.failed,
        }
    };
    Ok(planned.into_iter().map(of).collect())
}
