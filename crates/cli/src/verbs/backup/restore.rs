//! `backup restore`: sends a backup as a stream into a pool.

use std::io::Write;

use pagefold_backup::{Backup, Error, Repository, Restored};
use pagefold_engine::pool::{Origin, StreamReader, Token};
use pagefold_server::control::{Sendable, Transferred};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::passage::passage;
use pagefold_server::{engine_errors, names, units};
use serde_json::json;

use super::create::snapshot_of;
use super::{figures, open};
use crate::args::BackupRestore;
use crate::verbs::print_json;
use crate::verbs::send::{Unsent, receive_from, send_to};
use crate::{backup_errors, datasets};

/// Returns the dataset that a backup is to be restored into.
pub(super) fn dataset_of(args: &BackupRestore) -> Result<Name> {
    let name = crate::verbs::dataset::dataset(&args.dataset)?;
    if name.path.is_empty() {
        return Err(Failure::usage(format!("{name} is a pool, not a dataset"))
            .hint(format!("backups are restored into datasets: {name}/NAME")));
    }
    Ok(name)
}

/// Restores a backup as it is.
pub(super) fn run(args: &BackupRestore, name: &Name) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let backup = repository.find(&args.backup);
    let backup = backup.map_err(|error| {
        backup_errors::failed(format!("cannot restore {} into {name}", args.backup), &error)
    })?;
    let Some(done) = restore_into(&repository, &backup, name, args.force)? else {
        return go_back(args, &backup, name);
    };
    if args.json {
        return print_json(&done.json(&repository));
    }
    println!("{}", done.line(name));
    Ok(())
}

/// Returns the failure of a restore of the backup that the dataset has as its newest snapshot.
pub(super) fn there_already(backup: &Backup, name: &Name) -> Failure {
    let snapshot = format!("{name}@{}", backup.snapshot);
    Failure::new(format!("{name} has backup {} already, as {snapshot}", backup.number))
        .hint(format!("give up what was changed since: pagefold rollback {snapshot}"))
}

/// The newest snapshot of the dataset is the one that is wanted: nothing has to be brought.
fn go_back(args: &BackupRestore, backup: &Backup, name: &Name) -> Result<()> {
    let snapshot = Name::new(&name.pool, &format!("{}@{}", name.path, backup.snapshot));
    if !args.force {
        return Err(there_already(backup, name));
    }
    datasets::perform(&name.pool, Operation::Rollback { snapshot: snapshot.path, newer: false })?;
    if args.json {
        return print_json(&json!({ "backup": figures(backup), "since": backup.number }));
    }
    println!("{name}: is as backup {} again: what was changed since was given up", backup.number);
    Ok(())
}

/// A backup that was restored into a dataset.
pub(super) struct Done {
    pub(super) backup: Backup,
    since: Option<u64>,
    restored: Restored,
    received: Transferred,
}

impl Done {
    pub(super) fn json(&self, repository: &Repository) -> serde_json::Value {
        json!({
            "backup": figures(&self.backup),
            "since": self.since,
            "restored": self.restored,
            "received": self.received,
            "requests": repository.store().requests(),
        })
    }

    pub(super) fn line(&self, name: &Name) -> String {
        let since = self.since.map_or_else(String::new, |since| format!(", on top of backup {since}"));
        format!(
            "{name}: restored backup {}, {} in {}{since}",
            self.backup.number,
            units::size(self.restored.record_bytes),
            units::counted(self.restored.pages, "page"),
        )
    }
}

/// Restores a backup into a dataset, on top of what the dataset has. Returns `None` if the dataset's newest snapshot is
/// that of the backup: nothing was done then.
pub(super) fn restore_into(
    repository: &Repository,
    backup: &Backup,
    name: &Name,
    force: bool,
) -> Result<Option<Done>> {
    let doing = || format!("cannot restore {} into {name}", backup.name());
    let failed = |error: Error| backup_errors::failed(doing(), &error);
    let backups = repository.backups().map_err(failed)?;
    let by_origin = |origin: &Origin| backups.iter().find(|backup| backup.origin == *origin).cloned();
    // A restore that was interrupted is continued.
    let partial = datasets::partials_of(&name.pool)?.into_iter().find(|partial| partial.path == name.path);
    let token: Option<Token> = partial.and_then(|partial| partial.receive_resume_token.parse().ok());
    let begun = token.filter(|token| token.to == backup.origin);
    let (since, after) = match begun {
        Some(token) => {
            let since = token.from.as_ref().map(|from| {
                by_origin(from).ok_or_else(|| {
                    Failure::new(format!("{}: the backup on top of which it was begun is gone", doing()))
                        .hint(format!("give up what came: pagefold receive --abort {name}"))
                })
            });
            (since.transpose()?, token.after())
        }
        None => (newest_backup(name, &backups)?, None),
    };
    if since.as_ref().is_some_and(|since| since.number == backup.number) {
        return Ok(None);
    }
    crate::ignore_sigpipe();
    let (outlet, inlet) = passage();
    let (received, restored) = std::thread::scope(|scope| {
        let since = since.as_ref();
        let restoring = scope.spawn(move || {
            let mut out = std::io::BufWriter::with_capacity(1 << 20, inlet);
            let restored = repository.restore(backup, since, after, &mut out, &mut |_, _| {});
            out.flush().ok();
            restored
        });
        let received = receive_from(name, force, outlet);
        (received, restoring.join())
    });
    let restored = restored.map_err(|_| Failure::new(format!("{}: it ended by a bug", doing())))?;
    match (received, restored) {
        (Ok(received), Ok(restored)) => {
            let since = since.map(|since| since.number);
            Ok(Some(Done { backup: backup.clone(), since, restored, received }))
        }
        // If the store or an object failed, the pool knows only that the stream has ended.
        (Err(failure), Err(Error::Stream(_)) | Ok(_)) => Err(kept(name, failure)),
        (_, Err(error)) => Err(failed(error)),
    }
}

/// The pool did not take all of a restore. If it has kept what came, the user is told how the restore goes on.
fn kept(name: &Name, failure: Failure) -> Failure {
    let partials = datasets::partials_of(&name.pool).unwrap_or_default();
    match partials.iter().any(|partial| partial.path == name.path) {
        true => failure.hint(format!(
            "what came is kept: give the same command again to go on, or give it up: pagefold receive --abort {name}"
        )),
        false => failure,
    }
}

/// Returns the backup of the newest snapshot of the dataset, if it has one.
fn newest_backup(name: &Name, backups: &[Backup]) -> Result<Option<Backup>> {
    let all = datasets::of_pool(&name.pool)?;
    let of_dataset = |path: &str| names::dataset_of(path) == name.path && path.contains('@');
    let Some(newest) = all.iter().rfind(|figures| of_dataset(&figures.path)) else { return Ok(None) };
    // Datasets that are backed up together have snapshots of one name and time.
    let is_alike =
        |backup: &&Backup| backup.snapshot == snapshot_of(newest) && backup.origin.created == newest.created;
    if !backups.iter().any(|backup| is_alike(&backup)) {
        return Ok(None);
    }
    let origin = origin_of(&Name::new(&name.pool, &newest.path))?;
    Ok(backups.iter().find(|backup| backup.origin == origin).cloned())
}

/// Returns the identity of a snapshot, which its stream begins with.
fn origin_of(snapshot: &Name) -> Result<Origin> {
    let what = Sendable::Snapshot { path: snapshot.path.clone(), from: None };
    let (mut reader, writer) = passage();
    let (sent, origin) = std::thread::scope(|scope| {
        let sending = scope.spawn(move || send_to(&snapshot.pool, what, writer));
        let origin = StreamReader::new(&mut reader).map(|stream| stream.head().to);
        // Nobody reads the rest.
        drop(reader);
        (sending.join(), origin)
    });
    match (origin, sent) {
        (Ok(origin), _) => Ok(origin),
        (_, Ok(Err(Unsent::Failed(failure)))) => Err(failure),
        (Err(error), _) => Err(engine_errors::failed(format!("cannot read {snapshot}"), &error)),
    }
}
