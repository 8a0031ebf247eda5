//! `backup create`: a snapshot is made if none was named, sent, and taken in by the repository.

use pagefold_backup::{Backup, CreateOptions, Created, Error, Repository};
use serde_json::json;

use super::{as_file, open, pipe, told};
use crate::args::BackupCreate;
use crate::control::{Figures, Sendable};
use crate::deeds::Deed;
use crate::failure::{Failure, Result};
use crate::names::Name;
use crate::verbs::print_json;
use crate::verbs::send::send_to;
use crate::{datasets, units};

/// Begins the names of snapshots that are made to be backed up.
const SNAPSHOT: &str = "backup-";

/// `backup create`.
pub(super) fn run(args: &BackupCreate) -> Result<()> {
    let rate = args.rate.as_deref().map(units::parse_size).transpose()?;
    let source = Name::parse(&args.source)?;
    let repository = open(&args.to, &args.access)?;
    let created = Source { name: &source, repository: &repository, to: &args.to, rate }.back_up()?;
    if args.json {
        return print_json(&json!({ "created": created, "requests": repository.store().requests() }));
    }
    println!("{}", line(&created));
    Ok(())
}

/// A backup that was made, in a line.
pub(super) fn line(created: &Created) -> String {
    let backup = &created.backup;
    let resumed = match created.resumed_packs {
        0 => String::new(),
        count => format!(", {count} were there"),
    };
    format!(
        "backup {}: {}, {} in {} pages, {} added in {} packs{resumed}",
        backup.number,
        backup.name(),
        units::size(backup.totals.record_bytes),
        backup.totals.pages,
        units::size(backup.added_bytes),
        created.packs,
    )
}

/// A dataset or snapshot, and where it is backed up to.
pub(super) struct Source<'a> {
    /// A dataset, or a snapshot.
    pub(super) name: &'a Name,
    pub(super) repository: &'a Repository,
    /// The repository as the user calls it.
    pub(super) to: &'a str,
    /// Bytes per second at most.
    pub(super) rate: Option<u64>,
}

impl Source<'_> {
    fn doing(&self) -> String {
        format!("cannot back {} up to {}", self.name, self.to)
    }

    /// Makes the backup. Of a dataset, the snapshots that earlier ones were made of are destroyed when it is there.
    pub(super) fn back_up(&self) -> Result<Created> {
        let backups = self.repository.backups().map_err(|error| told(self.doing(), &error))?;
        let dataset = self.name.dataset();
        let there: Vec<Figures> = datasets::of_pool(&self.name.pool)?
            .into_iter()
            .filter(|figures| figures.path.split_once('@').is_some_and(|(of, _)| of == dataset))
            .collect();
        let ours = self.ours(&there);
        let name = match self.name.path.split_once('@') {
            Some((_, name)) => name.to_owned(),
            None => self.snapshot(&there, &ours)?,
        };
        // The newest backup whose snapshot is still there.
        let usable = |backup: &&Backup| {
            backup.pool == self.name.pool
                && backup.dataset == dataset
                && backup.snapshot != name
                && there.iter().any(|figures| snapshot_of(figures) == backup.snapshot)
        };
        let from = backups.iter().rev().find(usable).map(|backup| format!("{dataset}@{}", backup.snapshot));
        let created = self.send(&format!("{dataset}@{name}"), from.as_deref())?;
        // The next backup needs this snapshot alone.
        let gone = ours.iter().filter(|other| !self.name.is_snapshot() && snapshot_of(other) != name);
        for snapshot in gone {
            let what = vec![snapshot.path.clone()];
            datasets::perform(&self.name.pool, Deed::Destroy { what, recursive: false, dry_run: false })?;
        }
        Ok(created)
    }

    /// Snapshots for backups to this repository have its name in theirs.
    fn prefix(&self) -> String {
        format!("{SNAPSHOT}{}-", self.repository.id().get(..8).unwrap_or_default())
    }

    fn ours<'a>(&self, there: &'a [Figures]) -> Vec<&'a Figures> {
        let prefix = self.prefix();
        there.iter().filter(|figures| snapshot_of(figures).starts_with(&prefix)).collect()
    }

    /// The snapshot of which a backup was interrupted, or a new one.
    fn snapshot(&self, there: &[Figures], ours: &[&Figures]) -> Result<String> {
        let begun = self.repository.begun().map_err(|error| told(self.doing(), &error))?;
        // One that was backed up, and forgotten since, is not gone on with: it is not what the dataset is now.
        let is_begun = |figures: &&&Figures| begun.iter().any(|origin| origin.created == figures.created);
        if let Some(begun) = ours.iter().find(is_begun) {
            let name = snapshot_of(begun);
            eprintln!("going on with the backup of {}@{name}, which was interrupted", self.name);
            return Ok(name.to_owned());
        }
        let stem = format!("{}{}", self.prefix(), units::utc(units::now()).replace([' ', ':'], "-"));
        let taken: Vec<&str> = there.iter().map(snapshot_of).collect();
        let name = free_name(&stem, &taken);
        let snapshots = vec![format!("{}@{name}", self.name.dataset())];
        let deed = Deed::Snapshot { snapshots, recursive: false, properties: Vec::new() };
        datasets::perform(&self.name.pool, deed)?;
        Ok(name)
    }

    /// Sends a snapshot into the repository: what changed since `from`, or all of it.
    fn send(&self, path: &str, from: Option<&str>) -> Result<Created> {
        crate::ignore_sigpipe();
        let (mut sent, mut created) = self.attempt(path, from)?;
        // The snapshot of that name is another one, or does not come before: all of it is compared.
        let unusable = matches!(&created, Err(Error::NotFound(_)))
            || (matches!(&created, Err(Error::Stream(_))) && sent.is_err());
        if from.is_some() && unusable {
            (sent, created) = self.attempt(path, None)?;
        }
        match created {
            Ok(created) => Ok(created),
            // The pool's own message is the cause, where the stream has ended too early.
            Err(Error::Stream(_)) if sent.is_err() => {
                Err(sent.err().unwrap_or_else(|| Failure::new(self.doing())))
            }
            Err(error) => Err(told(self.doing(), &error)),
        }
    }

    fn attempt(&self, path: &str, from: Option<&str>) -> Result<(Result<()>, Result<Created, Error>)> {
        let options = CreateOptions {
            pool: self.name.pool.clone(),
            dataset: self.name.dataset().to_owned(),
            made: units::now(),
            rate: self.rate,
            keep: None,
            properties: Vec::new(),
        };
        let what = Sendable::Snapshot { path: path.to_owned(), from: from.map(Into::into) };
        let (mut reader, writer) = pipe()?;
        let pool = &self.name.pool;
        let (sent, created) = std::thread::scope(|scope| {
            let sending = scope.spawn(move || send_to(pool, what, as_file(writer)));
            let created = self.repository.create(&mut reader, &options, &mut |_, _| {});
            // Who sends is told that nobody reads any more.
            drop(reader);
            (sending.join(), created)
        });
        let sent = sent.map_err(|_| Failure::new(format!("{}: the stream ended by a bug", self.doing())))?;
        Ok((sent, created))
    }
}

fn snapshot_of(figures: &Figures) -> &str {
    figures.path.split_once('@').map_or("", |(_, name)| name)
}

/// A snapshot's name that is not taken: two backups may be made in one second.
fn free_name(stem: &str, taken: &[&str]) -> String {
    let others = (2..).map(|number| format!("{stem}-{number}"));
    let mut all = std::iter::once(stem.to_owned()).chain(others);
    all.find(|name| !taken.contains(&name.as_str())).unwrap_or_else(|| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_in_a_second_have_two_names() {
        assert_eq!(free_name("a", &["b"]), "a");
        assert_eq!(free_name("a", &["a", "a-2"]), "a-3");
    }
}
