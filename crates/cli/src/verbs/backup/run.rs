//! `backup run`: makes the backups that are due by policy. A failure of one does not stop the others.

use std::collections::BTreeMap;

use pagefold_backup::{Keep, Repository, limits, select};
use pagefold_server::backups::{BACKUP, BackupPolicy, KEY_FILE};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::{self, Name};
use pagefold_server::registry::Registry;
use pagefold_server::units;
use serde_json::json;

use super::attempts::{self, AttemptLog, Failed};
use super::create::{BackupSource, Made, line};
use super::open;
use super::pruned::{self, LastPrune};
use crate::args::{Access, BackupRun};
use crate::failures::Failures;
use crate::verbs::print_json;
use crate::{backup_errors, datasets, target};

/// A dataset and its policy.
pub struct Planned {
    /// The dataset.
    pub name: Name,
    /// The policy, or why it cannot be used.
    pub policy: Result<BackupPolicy>,
}

/// Returns the datasets of a pool that have a policy, or inherit one.
pub fn planned(pool: &str) -> Result<Vec<Planned>> {
    let mut all = Vec::new();
    for figures in datasets::of_pool(pool)? {
        if figures.is_snapshot || figures.backup.is_empty() || names::is_hidden(&figures.path) {
            continue;
        }
        let name = Name::new(pool, &figures.path);
        match BackupPolicy::parse(&figures.backup) {
            Ok(None) => {}
            Ok(Some(policy)) => all.push(Planned { name, policy: Ok(policy) }),
            // A newer version may have set this policy.
            Err(what) => {
                let failure =
                    Failure::new(format!("the policy \"{}\" of {name} is none: {what}", figures.backup));
                let failure =
                    failure.hint(format!("set it again: pagefold set {BACKUP}=REPOSITORY,... {name}"));
                all.push(Planned { name, policy: Err(failure) });
            }
        }
    }
    Ok(all)
}

/// `backup run`.
pub(super) fn run(args: &BackupRun) -> Result<()> {
    let _alone = attempts::lock()?;
    let mut memory = AttemptLog::read()?;
    let mut failures = Failures::new();
    let mut plan = Vec::new();
    for pool in pools(args, &mut failures)? {
        let found = target::server(&pool).and_then(|_| planned(&pool));
        for planned in failures.need(&pool, found).unwrap_or_default() {
            let name = planned.name.to_string();
            plan.extend(failures.need(&name, planned.policy).map(|policy| (planned.name, policy)));
        }
    }
    let mut made = Vec::new();
    for (name, policy) in &plan {
        let text = name.to_string();
        // Snapshots of this dataset belong to `replicate`.
        if policy.is_continuous() {
            continue;
        }
        let last = memory.of(&text, &policy.repository).and_then(|attempts| attempts.newest);
        if !args.now && !policy.is_due(last, units::now()) {
            continue;
        }
        let done = back_up(name, policy, &mut memory);
        if let Some(Made { continued, created }) = failures.take(&text, done) {
            made.extend(continued.into_iter().chain([created]).map(|created| (text.clone(), created)));
        }
    }
    let pruned = prune(&plan, args.now, &mut failures);
    if args.json {
        let backups: Vec<_> =
            made.iter().map(|(name, created)| json!({ "name": name, "created": created })).collect();
        print_json(&json!({ "backups": backups, "pruned": pruned, "failures": failures.json() }))?;
    } else {
        made.iter().for_each(|(_, created)| println!("{}", line(created)));
    }
    failures.finish_all("backed up")
}

/// Returns the pools that are named; if none are, those that are mounted, and were made or adopted here. Another
/// machine's policies are not obeyed, since they say where data goes.
fn pools(args: &BackupRun, failures: &mut Failures) -> Result<Vec<String>> {
    if args.pools.is_empty() {
        let mut served = Vec::new();
        for known in Registry::open()?.all()?.iter().filter(|known| known.adopted) {
            let client = failures.need(&known.name, target::connect(&known.name));
            if client.is_some_and(|client| client.is_some()) {
                served.push(known.name.clone());
            }
        }
        return Ok(served);
    }
    let named = |word: &String| {
        let pool = target::whole_pool(word, "backup run")?;
        match Registry::open()?.find(&pool)?.adopted {
            true => Ok(pool),
            false => Err(Failure::new(format!(
                "pool {pool} was not adopted here: its policies are another machine's"
            ))
            .hint(format!("if you trust it: pagefold export {pool}, pagefold import --adopt {pool}"))),
        }
    };
    Ok(args.pools.iter().filter_map(|word| failures.need(word, named(word))).collect())
}

pub(super) fn access(policy: &BackupPolicy) -> Access {
    let remote_command = || std::env::var("PAGEFOLD_BACKUP_REMOTE_COMMAND").ok();
    Access {
        endpoint: policy.endpoint.clone(),
        region: policy.region.clone(),
        remote_command: policy.remote_command.clone().or_else(remote_command),
        key_file: policy.key_file(|| std::path::Path::new(KEY_FILE).exists()),
        key_command: None,
    }
}

/// Backs a dataset up, and remembers the outcome.
fn back_up(name: &Name, policy: &BackupPolicy, memory: &mut AttemptLog) -> Result<Made> {
    let begun = units::now();
    let made = open(&policy.repository, &access(policy)).and_then(|repository| {
        BackupSource::new(name, &repository, &policy.repository, policy.rate).back_up()
    });
    let attempts = memory.of_mut(&name.to_string(), &policy.repository);
    match &made {
        Ok(Made { created, .. }) => {
            attempts.newest = Some(begun);
            attempts.number = Some(created.backup.number);
            attempts.failed = None;
        }
        Err(failure) => {
            let hint = failure.advice().map(Into::into);
            attempts.failed = Some(Failed { at: begun, what: failure.what().into(), hint });
        }
    }
    // The memory is written at once: if this run is killed, the backups that it made still count.
    memory.write()?;
    made
}

/// Prunes repositories, each once a day. Each dataset loses the backups that its own policy does not keep; backups of
/// other datasets stay, and so do those of other pools of the same name.
fn prune(plan: &[(Name, BackupPolicy)], at_once: bool, failures: &mut Failures) -> Vec<serde_json::Value> {
    let mut repositories: BTreeMap<&str, Vec<(&Name, &BackupPolicy)>> = BTreeMap::new();
    for (name, policy) in plan.iter().filter(|(_, policy)| policy.keep.is_some()) {
        repositories.entry(&policy.repository).or_default().push((name, policy));
    }
    let mut done = Vec::new();
    for (text, those) in repositories {
        let is_due = match at_once {
            true => pruned::note(text).map(|()| true),
            false => pruned::note_if_due(text).map(|last| last != LastPrune::Recent),
        };
        if failures.need(text, is_due) != Some(true) {
            continue;
        }
        let Some((_, first)) = those.first() else { continue };
        let pruned = open(text, &access(first)).and_then(|repository| prune_one(&repository, text, &those));
        let Some(pruned) = failures.take(text, pruned) else { continue };
        done.push(json!({ "repository": text, "pruned": pruned }));
    }
    done
}

fn prune_one(
    repository: &Repository,
    text: &str,
    those: &[(&Name, &BackupPolicy)],
) -> Result<pagefold_backup::Pruned> {
    let failed =
        |error: pagefold_backup::Error| backup_errors::failed(format!("cannot prune {text}"), &error);
    let all = repository.backups().map_err(failed)?;
    let mut gone = Vec::new();
    let registry = Registry::open()?;
    for (name, policy) in those {
        // Another pool of this name may back up to the same repository.
        let guid = registry.find(&name.pool)?.guid;
        let keep: Option<Keep> = policy.keep.as_deref().map(str::parse).transpose().map_err(failed)?;
        let of_it: Vec<_> = all
            .iter()
            .filter(|backup| backup.pool == name.pool && backup.dataset == name.path)
            .filter(|backup| backup.origin.pool.to_string() == guid)
            .cloned()
            .collect();
        gone.extend(keep.map(|keep| select(&of_it, &keep)).unwrap_or_default());
    }
    if !gone.is_empty() {
        gone = repository.forget_any(&gone).map_err(failed)?;
    }
    let pruned = repository.prune(None, false, false).map_err(failed)?;
    repository.repack(limits::REPACK_BYTES, false).map_err(failed)?;
    Ok(pagefold_backup::Pruned { forgotten: gone, ..pruned })
}
