//! The replication that a command line or a policy asks for.

use std::time::Duration;

use pagefold_backup::Keep;
use pagefold_server::backups::{self, BackupPolicy};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::units;

use super::run::access;
use crate::args::{Access, Replicate};
use crate::datasets;

/// Seconds that the repository may be behind, if nothing else is said.
const EVERY: u64 = 10;

/// The replication that is wanted.
pub(super) struct ReplicationPlan {
    pub(super) repository: String,
    pub(super) access: Access,
    pub(super) every: Duration,
    /// Backups of the dataset that stay beside the newest one; if `None`, all but the one that a new one replaces.
    pub(super) keep: Option<Keep>,
    pub(super) rate: Option<u64>,
}

/// Returns the rule by which backups stay: the newest one, and those that `text` names.
fn keep(text: Option<&str>) -> Result<Option<Keep>> {
    let rule = text.map(str::parse::<Keep>).transpose();
    Ok(rule.map_err(|error| Failure::usage(error.to_string()))?.map(Keep::with_newest))
}

/// Returns the absolute path of a directory, which need not be there now: a disc may come back.
fn absolute(repository: &str) -> Result<String> {
    let path =
        std::path::absolute(repository).context(|| format!("cannot use the repository {repository}"))?;
    Ok(path.to_string_lossy().into_owned())
}

impl ReplicationPlan {
    /// Returns what the command line asks for, or else the dataset's policy.
    pub(super) fn of(args: &Replicate, name: &Name) -> Result<Self> {
        let Some(repository) = &args.repository else { return Self::of_policy(name) };
        let every = args.every.as_deref().map(backups::every).transpose().map_err(Failure::usage)?;
        let access = &args.access;
        Ok(Self {
            repository: match repository.contains("://") {
                true => repository.clone(),
                false => absolute(repository)?,
            },
            access: Access {
                endpoint: access.endpoint.clone(),
                region: access.region.clone(),
                remote_command: access.remote_command.clone(),
                key_file: access.key_file.clone(),
                key_command: access.key_command.clone(),
            },
            every: Duration::from_secs(every.unwrap_or(EVERY)),
            keep: keep(args.keep.as_deref())?,
            rate: args.rate.as_deref().map(units::parse_rate).transpose()?,
        })
    }

    fn of_policy(name: &Name) -> Result<Self> {
        let value = datasets::find(name)?.backup;
        let none = || {
            Failure::usage(format!("{name} has no policy that says where it is replicated to")).hint(format!(
                "pagefold set backup=REPO,every=10s {name}, or: pagefold replicate {name} REPO"
            ))
        };
        let policy = BackupPolicy::parse(&value)
            .map_err(|what| Failure::new(format!("the policy \"{value}\" of {name} is none: {what}")))?;
        let policy = policy.ok_or_else(none)?;
        if !policy.is_continuous() {
            return Err(Failure::usage(format!(
                "{name} is backed up every {} by its policy, which pagefold-backup.timer does",
                backups::every_text(policy.every)
            ))
            .hint(format!("to replicate it: pagefold set backup={},every=10s {name}", policy.repository)));
        }
        Ok(Self {
            access: access(&policy),
            every: Duration::from_secs(policy.every),
            keep: keep(policy.keep.as_deref())?,
            rate: policy.rate,
            repository: policy.repository,
        })
    }
}
