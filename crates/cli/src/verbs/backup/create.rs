//! `backup create`: makes a snapshot if none was named, and sends it into the repository.

use std::fs::{self, File};
use std::io::{self, Read};

use pagefold_backup::{Backup, BinlogEnd, Cluster, CreateOptions, Created, Error, Keep, Repository};
use pagefold_engine::pool::StreamReader;
use pagefold_server::control::{self, DatasetFigures, PropertyValue, Sendable};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use pagefold_server::names::{Name, dataset_of};
use pagefold_server::operations::Operation;
use pagefold_server::passage::passage;
use pagefold_server::props::{self, Property};
use pagefold_server::units;
use serde_json::json;

use super::attempts::folder;
use super::{clusters, open};
use crate::args::BackupCreate;
use crate::verbs::send::{Unsent, send_to};
use crate::verbs::warn;
use crate::verbs::{print_json, properties};
use crate::{backup_errors, datasets, target};

/// Prefix of the names of snapshots that are made to be backed up.
const SNAPSHOT: &str = "backup-";

/// `backup create`.
pub(super) fn run(args: &BackupCreate) -> Result<()> {
    let rate = args.rate.as_deref().map(units::parse_rate).transpose()?;
    let source = Name::parse(&args.source)?;
    let repository = open(&args.to, &args.access)?;
    let Made { continued, created } = BackupSource::new(&source, &repository, &args.to, rate).back_up()?;
    if args.json {
        let requests = repository.store().requests();
        return print_json(&json!({ "continued": continued, "created": created, "requests": requests }));
    }
    continued.iter().chain([&created]).for_each(|created| println!("{}", line(created)));
    Ok(())
}

/// Returns a line about a backup that was made.
pub(super) fn line(created: &Created) -> String {
    let backup = &created.backup;
    let resumed = match created.resumed_packs {
        0 => String::new(),
        count => format!(", {count} were there"),
    };
    format!(
        "backup {}: {}, {} in {}, {} added in {}{resumed}",
        backup.number,
        backup.name(),
        units::size(backup.totals.record_bytes),
        units::counted(backup.totals.pages, "page"),
        units::size(backup.added_bytes),
        units::counted(created.packs, "pack"),
    )
}

/// A dataset or snapshot, and the repository to which it is backed up.
pub(super) struct BackupSource<'a> {
    /// Name of the dataset or snapshot.
    pub(super) name: &'a Name,
    pub(super) repository: &'a Repository,
    /// The repository as the user calls it.
    pub(super) to: &'a str,
    /// Largest number of bytes per second.
    pub(super) rate: Option<u64>,
    /// The backups of the dataset that stay; all of them if `None`.
    pub(super) keep: Option<&'a Keep>,
    /// Number of the backup that a new one replaces.
    pub(super) replaces: Option<u64>,
}

/// The backups that one call has made.
pub(super) struct Made {
    /// One that was interrupted before.
    pub(super) continued: Option<Created>,
    /// That of the dataset as it was when the call began, or of the snapshot that was named.
    pub(super) created: Created,
}

impl<'a> BackupSource<'a> {
    /// Returns a source all of whose backups stay.
    pub(super) fn new(name: &'a Name, repository: &'a Repository, to: &'a str, rate: Option<u64>) -> Self {
        Self { name, repository, to, rate, keep: None, replaces: None }
    }
}

impl BackupSource<'_> {
    pub(super) fn doing(&self) -> String {
        format!("cannot back {} up to {}", self.name, self.to)
    }

    /// Waits until no other process of this user backs the dataset up to the repository: the snapshot of a backup that is
    /// under way would be taken for that of an interrupted one. The turn ends when the returned file is dropped. Without
    /// a place for the lock there is a warning: backups must not stop because of it.
    pub(super) fn turn(&self) -> Option<File> {
        let told = |failure: Failure| {
            warn(&format!("another backup of {} may be under way: {failure}", self.name));
        };
        self.wait().map_err(told).ok()
    }

    fn wait(&self) -> Result<File> {
        let folder = folder()?;
        let whole = self.name.to_string();
        let dataset = dataset_of(&whole);
        fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
        // Two datasets of one checksum only wait for each other.
        let lock = folder.join(format!("{}{:08x}.lock", self.prefix(), crc32c::crc32c(dataset.as_bytes())));
        if let Some(turn) = files::try_locked(&lock)? {
            return Ok(turn);
        }
        eprintln!("waiting for another backup of {dataset} to {}", self.to);
        files::locked(&lock)
    }

    /// Makes the backup. If it is one of a dataset, one that was interrupted is continued first: what has arrived of it
    /// is not sent again.
    pub(super) fn back_up(&self) -> Result<Made> {
        let _turn = self.turn();
        let there = self.there()?;
        if let Some((_, name)) = self.name.path.split_once('@') {
            if !there.iter().any(|figures| snapshot_of(figures) == name) {
                return Err(Failure::new(format!("{}: there is no such snapshot", self.doing())).hint(
                    format!("see those that there are: pagefold list -t snapshot {}", self.name.pool),
                ));
            }
            return Ok(Made { continued: None, created: self.back_up_as(&there, name)? });
        }
        let begun = self.begun(&self.ours(&there))?;
        let continue_with = |name: String| {
            eprintln!("going on with the backup of {}@{name}, which was interrupted", self.name);
            self.back_up_as(&there, &name)
        };
        let continued = begun.map(continue_with).transpose()?;
        let there = if continued.is_some() { self.there()? } else { there };
        let created = self.back_up_as(&there, &self.make(&there)?)?;
        Ok(Made { continued, created })
    }

    /// Makes the backup of a snapshot. If it was made for a backup, those of earlier backups are destroyed once it is
    /// there. `there` has the snapshots as they were before it was made.
    fn back_up_as(&self, there: &[DatasetFigures], name: &str) -> Result<Created> {
        let ours = self.ours(there);
        let from = self.newest(there, name)?;
        let created = self.send(name, from.as_deref()).inspect_err(|_| self.give_up(there, name))?;
        if let Some(number) = created.namesake {
            warn(&format!(
                "{}: backup {number} in {} is of another pool of that name: the backups of each are kept and pruned apart",
                self.name, self.to
            ));
        }
        // The next backup needs only this snapshot.
        let gone = ours.iter().filter(|other| !self.name.is_snapshot() && snapshot_of(other) != name);
        gone.for_each(|snapshot| self.let_go(snapshot_of(snapshot)));
        Ok(created)
    }

    /// Returns the snapshots of the dataset.
    pub(super) fn there(&self) -> Result<Vec<DatasetFigures>> {
        let of_it = |figures: &DatasetFigures| {
            figures.path.split_once('@').is_some_and(|(of, _)| of == self.name.dataset())
        };
        Ok(datasets::of_pool(&self.name.pool)?.into_iter().filter(of_it).collect())
    }

    /// Returns the snapshot of the newest backup that the dataset still has, other than `but`.
    pub(super) fn newest(&self, there: &[DatasetFigures], but: &str) -> Result<Option<String>> {
        let backups =
            self.repository.backups().map_err(|error| backup_errors::failed(self.doing(), &error))?;
        // A pool sends no changes since a later snapshot. One that is made now is not among them yet.
        let made = there.iter().find(|figures| snapshot_of(figures) == but).map(|figures| figures.created);
        let is_before = |backup: &Backup| made.is_none_or(|made| backup.origin.created <= made);
        let is_there = |backup: &&Backup| {
            let is_it = |figures: &DatasetFigures| {
                snapshot_of(figures) == backup.snapshot && figures.created == backup.origin.created
            };
            backup.snapshot != but && is_before(backup) && there.iter().any(is_it)
        };
        let of_it = |backup: &&Backup| backup.pool == self.name.pool && backup.dataset == self.name.dataset();
        // The dataset may have had another name, or have been restored under another one. That the snapshot is the same
        // is verified later, by its origin.
        let found = backups.iter().rev().filter(of_it).find(is_there);
        let found = found.or_else(|| backups.iter().rev().find(is_there));
        // An older snapshot may have been backed up after a newer one.
        let of_pool = |latest: &Backup| {
            let same = |backup: &&Backup| backup.origin.pool == latest.origin.pool && is_there(backup);
            backups.iter().filter(same).max_by_key(|backup| backup.order())
        };
        Ok(found.and_then(of_pool).map(|backup| backup.snapshot.clone()))
    }

    /// Destroys a snapshot of which no backup was made: the next attempt would make another one. A snapshot whose
    /// backup was begun stays, since the next attempt goes on with it.
    fn give_up(&self, there: &[DatasetFigures], name: &str) {
        let is_new = !there.iter().any(|figures| snapshot_of(figures) == name);
        let begun = || self.begun(&self.ours(&self.there()?));
        if is_new && begun().is_ok_and(|begun| begun.as_deref() != Some(name)) {
            self.let_go(name);
        }
    }

    /// Destroys a snapshot of the dataset that backups need no more. One that is held or was cloned stays, with a
    /// warning: the backup is made all the same.
    fn let_go(&self, snapshot: &str) {
        if let Err(failure) = self.destroy(snapshot) {
            warn_of_what_stays(self.name, snapshot, &failure);
        }
    }

    /// Destroys a snapshot of the dataset.
    pub(super) fn destroy(&self, snapshot: &str) -> Result<()> {
        destroy(&Name::new(&self.name.pool, self.name.dataset()), snapshot)
    }

    /// Returns where the binary logs ended in the newest backup of the dataset, from which on they are read.
    fn binlogs_before(&self) -> Vec<BinlogEnd> {
        let is_ours =
            |backup: &Backup| backup.pool == self.name.pool && backup.dataset == self.name.dataset();
        // Without it they are read from their beginning.
        let backups = self.repository.backups().unwrap_or_default();
        backups.into_iter().rfind(is_ours).map(|backup| backup.binlogs).unwrap_or_default()
    }

    /// Returns the prefix of the names of snapshots for backups to this repository: it has the repository's id in it.
    fn prefix(&self) -> String {
        format!("{SNAPSHOT}{}-", self.repository.id().get(..8).unwrap_or_default())
    }

    pub(super) fn ours<'a>(&self, there: &'a [DatasetFigures]) -> Vec<&'a DatasetFigures> {
        let prefix = self.prefix();
        there.iter().filter(|figures| snapshot_of(figures).starts_with(&prefix)).collect()
    }

    /// Returns the snapshot whose backup was begun on this machine and did not end.
    pub(super) fn begun(&self, ours: &[&DatasetFigures]) -> Result<Option<String>> {
        let failed = |error: Error| backup_errors::failed(self.doing(), &error);
        let begun = self.repository.begun().map_err(failed)?;
        if begun.is_empty() {
            return Ok(None);
        }
        // Several snapshots may be of one second; the begun one is none of those that were backed up.
        let backups = self.repository.backups().map_err(failed)?;
        let is_there = |figures: &&&DatasetFigures| self.has_backup(&backups, figures);
        // A snapshot whose backup was forgotten since is not continued: it is older than what the dataset is now.
        let is_begun =
            |figures: &&&DatasetFigures| begun.iter().any(|origin| origin.created == figures.created);
        let found = ours.iter().filter(|figures| !is_there(figures)).find(is_begun);
        Ok(found.map(|figures| snapshot_of(figures).to_owned()))
    }

    /// Returns true if the repository has a backup of the snapshot `name`, one of `ours`.
    pub(super) fn is_made(&self, ours: &[&DatasetFigures], name: &str) -> Result<bool> {
        let backups = self.repository.backups();
        let backups = backups.map_err(|error| backup_errors::failed(self.doing(), &error))?;
        let named = ours.iter().find(|figures| snapshot_of(figures) == name);
        Ok(named.is_some_and(|figures| self.has_backup(&backups, figures)))
    }

    fn has_backup(&self, backups: &[Backup], snapshot: &DatasetFigures) -> bool {
        backups.iter().any(|backup| {
            backup.pool == self.name.pool
                && backup.dataset == self.name.dataset()
                && backup.snapshot == snapshot_of(snapshot)
                && backup.origin.created == snapshot.created
        })
    }

    /// Makes a snapshot of the dataset as it is now.
    pub(super) fn make(&self, there: &[DatasetFigures]) -> Result<String> {
        let stem = format!("{}{}", self.prefix(), units::utc(units::now()).replace([' ', ':'], "-"));
        let free =
            |there: &[DatasetFigures]| free_name(&stem, &there.iter().map(snapshot_of).collect::<Vec<_>>());
        let mut name = free(there);
        loop {
            let snapshots = vec![format!("{}@{name}", self.name.dataset())];
            let operation = Operation::Snapshot { snapshots, recursive: false, properties: Vec::new() };
            let Err(failure) = datasets::perform(&self.name.pool, operation) else { return Ok(name) };
            // Another backup may have taken the name meanwhile.
            let next = free(&self.there()?);
            if next == name {
                return Err(failure);
            }
            name = next;
        }
    }

    /// Sends a snapshot into the repository: the changes since `from`, or all of it.
    fn send(&self, name: &str, from: Option<&str>) -> Result<Created> {
        let created = self.send_changes(name, from, false)?;
        created.ok_or_else(|| Failure::new(format!("{}: nothing was made of it: a bug", self.doing())))
    }

    /// Sends a snapshot as `send` does. With `idle`, if nothing has changed since `from`, makes no backup and sends the
    /// repository no request.
    pub(super) fn send_changes(&self, name: &str, from: Option<&str>, idle: bool) -> Result<Option<Created>> {
        crate::ignore_sigpipe();
        let mut attempt = self.attempt(name, from, idle)?;
        if from.is_some() && is_unusable(&attempt) {
            attempt = self.attempt(name, None, false)?;
        }
        let created = outcome(attempt, || self.doing())?;
        if let Some(warning) = created.as_ref().and_then(|created| created.warning.as_ref()) {
            warn(&format!("{}: {warning}", self.name));
        }
        Ok(created)
    }

    fn attempt(&self, name: &str, from: Option<&str>, idle: bool) -> Result<Attempt<Option<Created>>> {
        let options = CreateOptions {
            pool: self.name.pool.clone(),
            dataset: self.name.dataset().to_owned(),
            made: units::now(),
            rate: self.rate,
            keep: self.keep.cloned(),
            replaces: self.replaces,
            properties: self.properties()?,
            clusters: None,
            binlogs: Vec::new(),
        };
        // A pool that is not mounted is opened to be sent, and cannot be mounted then.
        let known = match target::connect(&self.name.pool)? {
            Some(_) => None,
            None => Some(self.clusters_in(name)),
        };
        let path = |name: &str| format!("{}@{name}", self.name.dataset());
        let what = Sendable::Snapshot { path: path(name), from: from.map(path) };
        let (mut reader, writer) = passage();
        let pool = &self.name.pool;
        let (sent, created) = std::thread::scope(|scope| {
            let sending = scope.spawn(move || send_to(pool, what, writer));
            let known = || known.unwrap_or_else(|| self.clusters_in(name));
            let created = self.take(&mut reader, options, known, idle);
            // Closing the reader tells the sender that nobody reads any more.
            drop(reader);
            (sending.join(), created)
        });
        let sent = sent.map_err(|_| Failure::new(format!("{}: the stream ended by a bug", self.doing())))?;
        Ok((sent, created))
    }
}

/// The outcome of sending, and that of making a backup of the stream.
type Attempt<T> = (Result<(), Unsent>, Result<T, Error>);

/// Returns true if the snapshot `from` cannot be used: the repository has another one of that name, or the pool says
/// that it does not come before the snapshot that is sent. Then the whole dataset is compared. A fault that the
/// repository finds in the stream itself is no such case, but is reported.
fn is_unusable<T>((sent, created): &Attempt<T>) -> bool {
    match created {
        Err(Error::NotFound(_)) => true,
        Err(Error::Stream(_)) => matches!(sent, Err(Unsent::Failed(_))),
        _ => false,
    }
}

/// Returns the outcome of an attempt; of two failures, the one that is the cause of the other.
fn outcome<T>((sent, created): Attempt<T>, doing: impl FnOnce() -> String) -> Result<T> {
    match (created, sent) {
        (Ok(created), _) => Ok(created),
        // The stream ended too early: the pool's failure tells why.
        (Err(Error::Stream(_)), Err(Unsent::Failed(failure))) => Err(failure),
        (Err(error), _) => Err(backup_errors::failed(doing(), &error)),
    }
}

/// A reader that keeps what is read, so that it can be read again.
struct Kept<'a, R> {
    inner: &'a mut R,
    bytes: Vec<u8>,
}

impl<R: Read> Read for Kept<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        self.bytes.extend_from_slice(out.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl BackupSource<'_> {
    /// Returns the clusters and binary logs in a snapshot.
    fn clusters_in(&self, snapshot: &str) -> (Option<Vec<Cluster>>, Vec<BinlogEnd>) {
        let path = format!("{}@{snapshot}", self.name.dataset());
        let known = clusters::known(&Name::new(&self.name.pool, &path), &self.binlogs_before());
        known.map_or_else(Default::default, |(clusters, binlogs)| (Some(clusters), binlogs))
    }

    fn take<R: Read>(
        &self,
        reader: &mut R,
        options: CreateOptions,
        known: impl FnOnce() -> (Option<Vec<Cluster>>, Vec<BinlogEnd>),
        idle: bool,
    ) -> Result<Option<Created>, Error> {
        let create = |input: &mut dyn Read| {
            let (clusters, binlogs) = known();
            let options = CreateOptions { clusters, binlogs, ..options };
            self.repository.create(input, &options, &mut |_, _| {}).map(Some)
        };
        if !idle {
            return create(reader);
        }
        let mut kept = Kept { inner: reader, bytes: Vec::new() };
        // The first frame with an item in it has a few MiB at most.
        if StreamReader::new(&mut kept)?.item()?.is_none() {
            return Ok(None);
        }
        let Kept { inner, bytes } = kept;
        create(&mut bytes.as_slice().chain(inner))
    }

    /// Returns the settable properties that are set on the dataset itself.
    fn properties(&self) -> Result<Vec<(String, String)>> {
        let dataset = Name::new(&self.name.pool, self.name.dataset());
        let is_set = |value: &PropertyValue| {
            let settable =
                props::is_user(&value.name) || props::find(&value.name).is_ok_and(Property::settable);
            value.source == control::ValueSource::Local && settable
        };
        let all = properties::values(&dataset)?.into_iter().filter(is_set);
        Ok(all.map(|value| (value.name, value.value)).collect())
    }
}

/// Destroys a snapshot of a dataset.
pub(super) fn destroy(dataset: &Name, snapshot: &str) -> Result<()> {
    let what = vec![format!("{}@{snapshot}", dataset.path)];
    datasets::perform(&dataset.pool, Operation::Destroy { what, recursive: false, dry_run: false }).map(drop)
}

/// Warns that a snapshot of a dataset could not be destroyed.
pub(super) fn warn_of_what_stays(name: &Name, snapshot: &str, failure: &Failure) {
    let snapshot = Name::new(&name.pool, &format!("{}@{snapshot}", name.dataset()));
    warn(&format!("the snapshot {snapshot} stays: {failure}"));
}

pub(super) fn snapshot_of(figures: &DatasetFigures) -> &str {
    figures.path.split_once('@').map_or("", |(_, name)| name)
}

/// Returns a name for a snapshot that is not taken: two backups may be made in one second.
fn free_name(stem: &str, taken: &[&str]) -> String {
    let others = (2..).map(|number| format!("{stem}-{number}"));
    let mut all = std::iter::once(stem.to_owned()).chain(others);
    all.find(|name| !taken.contains(&name.as_str())).unwrap_or_else(|| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the failure that a user reads after an attempt, and whether the whole dataset is compared before that.
    fn read(sent: Result<(), Unsent>, created: Error) -> (String, bool) {
        let attempt: Attempt<()> = (sent, Err(created));
        let unusable = is_unusable(&attempt);
        (outcome(attempt, || "cannot back tank up to repo".into()).unwrap_err().what().to_owned(), unusable)
    }

    #[test]
    fn of_two_failures_the_cause_is_told() {
        let refused = || Error::Stream(pagefold_engine::Error::corrupt("stream", "it has two heads"));
        let told = "cannot back tank up to repo: damaged stream: it has two heads";
        // The repository gave up, and so the sender could not write.
        assert_eq!(read(Err(Unsent::Unread), refused()), (told.into(), false));
        // A short stream was in the pipe already.
        assert_eq!(read(Ok(()), refused()), (told.into(), false));
        // The pool gave up, and so the repository found the stream too short.
        let failed = || Err(Unsent::Failed(Failure::new("the pool has failed")));
        assert_eq!(read(failed(), refused()), ("the pool has failed".into(), true));
        // The repository's own failures are told in any case.
        for sent in [Ok(()), Err(Unsent::Unread), failed()] {
            let (what, unusable) = read(sent, Error::Fenced("prunes have passed by".into()));
            assert_eq!(
                (what.as_str(), unusable),
                ("cannot back tank up to repo: prunes have passed by", false)
            );
        }
        assert!(read(Err(Unsent::Unread), Error::NotFound("there is no such backup".into())).1);
    }

    #[test]
    fn two_in_a_second_have_two_names() {
        assert_eq!(free_name("a", &["b"]), "a");
        assert_eq!(free_name("a", &["a", "a-2"]), "a-3");
    }
}
