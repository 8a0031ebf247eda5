//! Makes a backup of a stream.

mod making;

use std::collections::{BTreeSet, HashMap};
use std::io::Read;

use pagefold_engine::pool::{Origin, StreamReader};
use serde::Serialize;

use crate::block::ModelRef;
use crate::commit::{Backup, BinlogEnd, Cluster, Described};
use crate::error::{Error, Result};
use crate::merge::{Chunks, Merge};
use crate::pack::{PackBuilder, PackId};
use crate::prune::{Keep, select};
use crate::repository::Repository;
use crate::root::{Root, Row};
use crate::upload::{Journal, Uploaded, Uploader};

/// Options for making a backup.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Name of the pool.
    pub pool: String,
    /// Path of the dataset in it; empty for the pool's own.
    pub dataset: String,
    /// Time of the backup, in seconds since 1970.
    pub made: u64,
    /// Largest number of bytes per second that are uploaded.
    pub rate: Option<u64>,
    /// The database clusters in the snapshot, if they were looked for.
    pub clusters: Option<Vec<Cluster>>,
    /// The binary logs in it, if databases were looked for.
    pub binlogs: Vec<BinlogEnd>,
    /// Rule by which the same commit forgets earlier backups of the dataset; the new one stays in any case.
    pub keep: Option<Keep>,
    /// Number of an earlier backup that the same commit forgets, if there is no such rule.
    pub replaces: Option<u64>,
    /// Properties that are set on the dataset.
    pub properties: Vec<(String, String)>,
}

impl CreateOptions {
    /// Returns the latest backup of the dataset, by its name.
    fn latest<'b>(&self, backups: &'b [Backup]) -> Option<&'b Backup> {
        let named = |backup: &&Backup| backup.pool == self.pool && backup.dataset == self.dataset;
        backups.iter().rev().find(named)
    }

    /// Returns a second backup that shares records with one of the snapshot `to`, if there is a backup of a later snapshot:
    /// that one, or if it is `parent`, the one of the snapshot before.
    fn neighbour<'b>(
        &self,
        backups: &'b [Backup],
        to: &Origin,
        parent: Option<&Backup>,
    ) -> Option<&'b Backup> {
        let later = self.of_pool(backups, to).filter(|backup| backup.origin.number > to.number);
        let later = later.min_by_key(|backup| backup.order())?;
        match parent {
            Some(parent) if parent.number == later.number => self.before(backups, to),
            _ => Some(later),
        }
    }

    /// Returns the backup of the snapshot before `to`, which need not be the latest.
    fn before<'b>(&self, backups: &'b [Backup], to: &Origin) -> Option<&'b Backup> {
        let earlier = self.of_pool(backups, to).filter(|backup| backup.origin.number < to.number);
        earlier.max_by_key(|backup| backup.order())
    }

    /// Returns the backups of the dataset whose snapshots were made in the pool of `to`.
    fn of_pool<'b>(&self, backups: &'b [Backup], to: &Origin) -> impl Iterator<Item = &'b Backup> {
        backups.iter().filter(move |backup| {
            backup.origin.pool == to.pool && backup.pool == self.pool && backup.dataset == self.dataset
        })
    }

    /// Removes the backups of the dataset that are not kept; returns their number.
    fn thin_out(&self, new: &Backup, backups: &mut Vec<Backup>) -> u64 {
        // Another pool of this name may back up to the same repository.
        let of_it = |backup: &&Backup| {
            backup.origin.pool == new.origin.pool
                && backup.pool == self.pool
                && backup.dataset == self.dataset
        };
        let gone = match &self.keep {
            Some(keep) => select(&backups.iter().filter(of_it).cloned().collect::<Vec<_>>(), keep),
            None => self.replaces.into_iter().collect(),
        };
        let before = backups.len();
        backups.retain(|backup| backup.number == new.number || !gone.contains(&backup.number));
        (before - backups.len()) as u64
    }
}

/// The outcome of making a backup.
#[derive(Clone, Debug, Serialize)]
pub struct Created {
    /// The backup.
    pub backup: Backup,
    /// Number of the backup from which unchanged parts were taken over.
    pub since: Option<u64>,
    /// Number of packs that were uploaded.
    pub packs: u64,
    /// Number of packs that an earlier run, which did not finish, had uploaded.
    pub resumed_packs: u64,
    /// Number of earlier backups of the dataset that were forgotten.
    pub forgotten: u64,
    /// Number of the latest backup of that name before this one, if it is of another pool.
    pub namesake: Option<u64>,
    /// A failure on this machine after the backup was complete.
    pub warning: Option<String>,
}

struct Making<'r> {
    repository: &'r Repository,
    epoch: u64,
    /// Manifest of another backup whose records are shared.
    other: Option<(Root, Chunks<'r>)>,
    merge: Merge<'r>,
    data: PackBuilder,
    /// Pack of chunks and roots.
    meta: PackBuilder,
    rows: Vec<Row>,
    /// Index of the first row whose block may lie in `meta`; kept rows lie elsewhere.
    unnamed_rows: usize,
    /// Models by the hashes of their bodies.
    models: HashMap<u128, ModelRef>,
    /// Hashes of models by their numbers in the stream.
    numbered: HashMap<u32, u128>,
    uploader: Uploader,
    packs: u64,
    added_bytes: u64,
    reused: Vec<Uploaded>,
}

/// Fails if there is a backup of the snapshot `origin`.
fn refuse_second(backups: &[Backup], origin: &Origin) -> Result<()> {
    match backups.iter().find(|backup| backup.origin == *origin) {
        Some(backup) => {
            let (number, name) = (backup.number, backup.name());
            Err(Error::Exists(format!("backup {number} has the snapshot already, as {name}")))
        }
        None => Ok(()),
    }
}

/// Returns the backup of the snapshot since which a stream has changes.
fn backup_of<'b>(backups: &'b [Backup], from: &Origin) -> Result<&'b Backup> {
    let found = backups.iter().find(|backup| backup.origin == *from);
    found.ok_or_else(|| {
        Error::NotFound("there is no backup of the snapshot that the stream comes after".into())
    })
}

impl Repository {
    /// Makes a backup of a stream. The stream has a whole snapshot, or the changes since a snapshot that has a backup.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a backup of the snapshot; [`Error::NotFound`] if there is none of the snapshot
    /// since which the stream has changes; [`Error::Fenced`] if prunes have passed by meanwhile; [`Error::Stream`] for
    /// errors of the stream; errors of the store.
    pub fn create(
        &self,
        input: &mut dyn Read,
        options: &CreateOptions,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Created> {
        let head = self.head()?.state;
        let mut stream = StreamReader::new(input)?;
        let (to, from, name, expected) = {
            let head = stream.head();
            if head.after.is_some() {
                return Err(Error::Invalid(
                    "a backup cannot be made of a stream that goes on with another one".into(),
                ));
            }
            (head.to, head.from, head.name.clone(), head.expected_bytes)
        };
        refuse_second(&head.backups, &to)?;
        let named = options.latest(&head.backups);
        let namesake = named.filter(|backup| backup.origin.pool != to.pool).map(|backup| backup.number);
        let parent = match &from {
            Some(from) => Some(backup_of(&head.backups, from)?),
            None => options.before(&head.backups, &to).or(named),
        };
        let old = parent.map(|parent| self.root(parent)).transpose()?.unwrap_or_default();
        let old_bytes = parent.map(|_| old.encode());
        // If it cannot be read, records are stored again.
        let other = options.neighbour(&head.backups, &to, parent).and_then(|other| self.root(other).ok());
        let journal =
            self.seen.journal(&self.id, &to.to_string()).map(|path| Journal::open(&path)).transpose()?;
        let uploader = Uploader::start(&self.store, journal, options.rate)?;
        let mut making = Making::new(self, head.epoch, old, from.is_none(), other, uploader);
        making.read(&mut stream, &mut |so_far| watch(so_far, expected))?;
        let (root, root_blocks) = making.finish(old_bytes.as_deref())?;
        let root_blocks = match (root_blocks, parent) {
            (Some(blocks), _) => blocks,
            (None, Some(parent)) => parent.root.clone(),
            (None, None) => return Err(Error::Invalid("a backup without a manifest: a bug".into())),
        };
        let (packs, added_bytes, reused, epoch) =
            (making.packs, making.added_bytes, making.reused, making.epoch);
        let journal = making.uploader.finish()?;
        self.verify_reused(&reused, journal.as_ref())?;
        let needed: BTreeSet<PackId> =
            root.packs().chain(root_blocks.iter().map(|block| block.pack)).collect();
        let mut backup = Backup {
            number: 0,
            pool: options.pool.clone(),
            dataset: options.dataset.clone(),
            snapshot: name,
            origin: to,
            made: options.made,
            totals: root.needs.totals,
            added_bytes,
            packs: needed.len() as u64,
            clusters: options.clusters.clone(),
            binlogs: options.binlogs.clone(),
            root: root_blocks,
        };
        let forgotten = self.add(&mut backup, &needed, epoch, options)?;
        // The backup is there, whatever happens on this machine now: `begun` removes a journal that stays.
        let left = journal.as_ref().and_then(|journal| journal.remove().err());
        let warning = left.map(|error| format!("the backup is complete, but {error}"));
        let since = parent.map(|parent| parent.number);
        Ok(Created { backup, since, packs, resumed_packs: reused.len() as u64, forgotten, namesake, warning })
    }

    /// Verifies that packs which an earlier run had uploaded are still there.
    fn verify_reused(&self, reused: &[Uploaded], journal: Option<&Journal>) -> Result<()> {
        for pack in reused {
            if self.store.head(&pack.id.path())? != Some(pack.bytes) {
                // The journal is removed, so that the next run uploads the pack again.
                journal.map_or(Ok(()), Journal::remove)?;
                return Err(Error::Missing { object: pack.id.path() });
            }
        }
        Ok(())
    }

    /// Commits a backup that was begun in `epoch` and needs the packs `needed`, and gives it its number. Returns the
    /// number of earlier backups that were forgotten.
    fn add(
        &self,
        backup: &mut Backup,
        needed: &BTreeSet<PackId>,
        epoch: u64,
        options: &CreateOptions,
    ) -> Result<u64> {
        let mut forgotten = 0;
        self.commit(&mut |state| {
            refuse_second(&state.backups, &backup.origin)?;
            if state.epoch > epoch + 1 {
                return Err(Error::Fenced(format!(
                    "{} prunes have passed by since the backup was begun, and may have deleted what it had uploaded: make it again",
                    state.epoch - epoch
                )));
            }
            backup.number = state.next_number;
            state.next_number += 1;
            state.backups.push(backup.clone());
            // A prune may have condemned them meanwhile. They are needed now: should that end, two prunes have to pass.
            state.condemned.retain(|id| !needed.contains(id));
            forgotten = options.thin_out(backup, &mut state.backups);
            state.describe(Described {
                pool: options.pool.clone(),
                dataset: options.dataset.clone(),
                properties: options.properties.clone(),
            });
            Ok(())
        })?;
        Ok(forgotten)
    }
}
