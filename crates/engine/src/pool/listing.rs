//! Tells what datasets and snapshots hold, and what destroying them frees. All of it follows from sums that are kept
//! (L1, L3): it is exact for what is stored, and only the catalogue and the buckets of dead lists are read for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::Pool;
use super::catalogue::{Catalogue, Version};
use super::send::is_hidden;
use crate::dataset::{Dataset, RoomRequest};
use crate::sums::remainder;
use crate::{Error, Result};

/// A dataset or snapshot and the stored bytes that it holds, of all its records, metadata counted.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Path below the pool: `dataset`, or `dataset@snapshot`; empty for the pool's own dataset.
    pub path: String,
    /// Its number, never used twice.
    pub id: u64,
    /// True for a snapshot.
    pub is_snapshot: bool,
    /// Seconds since 1970.
    pub created: u64,
    /// The snapshot that a clone began as.
    pub origin: Option<String>,
    /// Clones of a snapshot.
    pub clones: Vec<String>,
    /// Holds of a snapshot, with seconds since 1970.
    pub holds: BTreeMap<String, u64>,
    /// Properties that are set on it.
    pub properties: BTreeMap<String, String>,
    /// Stored bytes of all records that it refers to.
    pub referenced_bytes: u64,
    /// Uncompressed bytes of its pages.
    pub logical_bytes: u64,
    /// Stored bytes of these pages, and of the nodes of its tree. A record that several pages share counts for each of
    /// them, as it does in `logical_bytes`, so that the ratio of both is compression alone.
    pub physical_bytes: u64,
    /// Of a dataset: bytes that it and its snapshots hold and no other dataset does. Of a snapshot: bytes that
    /// destroying it alone frees.
    pub used_bytes: u64,
    /// Of a dataset: bytes that its snapshots hold and it does not. Of a snapshot: 0.
    pub snapshots_bytes: u64,
    /// Bytes of records that were written since the snapshot before, and are still there.
    pub written_bytes: u64,
    /// Of a dataset: bytes that can still be accepted, with regard to its quotas and to reservations. Of a snapshot: 0.
    pub available_bytes: u64,
}

impl Catalogue {
    fn fresh(&self, id: u64) -> u64 {
        self.versions.get(&id).map_or(0, |version| version.data.accounting.lock().fresh_bytes)
    }

    /// Returns the bytes that become free when these versions go. [`Error::Busy`] if more than one other version grows
    /// from a group of them.
    pub(super) fn freed(&self, ids: &BTreeSet<u64>) -> Result<u64> {
        let prev = |id: u64| self.versions.get(&id).map_or(0, |version| version.prev);
        let mut total = 0;
        for first in ids.iter().filter(|id| !ids.contains(&prev(**id))) {
            // Each record of the group that was born after `before` is new in exactly one of them.
            let before = prev(*first);
            let mut stays = Vec::new();
            let mut group = vec![*first];
            while let Some(id) = group.pop() {
                total += self.fresh(id);
                if self.as_ancestor(id).is_some() {
                    let (removed, kept): (Vec<u64>, Vec<u64>) =
                        self.successors(id).into_iter().partition(|next| ids.contains(next));
                    group.extend(removed);
                    stays.extend(kept);
                }
            }
            match stays[..] {
                [] => {}
                [next] => total = total.saturating_sub(self.kept(next, before)?),
                _ => {
                    let path = self.path(*first);
                    return Err(Error::Busy(format!("'{path}' has clones, which keep what it has")));
                }
            }
        }
        Ok(total)
    }

    /// Returns the bytes of records that were born after snapshot `before` and that version `id` has from the versions
    /// it grows from, down to `before`.
    pub(super) fn kept(&self, id: u64, before: u64) -> Result<u64> {
        let dead = |id: u64| self.dead_bytes_from(id, before);
        let prev = |id: u64| self.versions.get(&id).map_or(0, |version| version.prev);
        let (mut at, mut kept, mut died) = (prev(id), 0, dead(id)?);
        while at != before && self.versions.contains_key(&at) {
            kept += self.fresh(at);
            died += dead(at)?;
            at = prev(at);
        }
        Ok(kept.saturating_sub(died))
    }

    /// Returns the bytes that all versions hold, each record counted once.
    pub(super) fn held_bytes(&self) -> u64 {
        self.versions.keys().map(|id| self.fresh(*id)).sum()
    }

    fn listed(&self, id: u64) -> Result<Listed> {
        let version = self.get(id)?;
        let (referenced_bytes, node_bytes, written_bytes) = {
            let accounting = version.data.accounting.lock();
            (accounting.page_bytes + accounting.node_bytes, accounting.node_bytes, accounting.fresh_bytes)
        };
        let (logical_bytes, stored_bytes) = version.data.totals()?;
        let mut listed = Listed {
            path: self.path(id),
            id,
            is_snapshot: version.snapshot_of().is_some(),
            created: version.created,
            holds: version.holds.clone(),
            properties: version.properties.clone(),
            referenced_bytes,
            logical_bytes,
            physical_bytes: stored_bytes + node_bytes,
            written_bytes,
            available_bytes: 0,
            ..Listed::default()
        };
        match version.snapshot_of() {
            Some(of) => {
                let foreign = |next: &u64| {
                    self.versions
                        .get(next)
                        .is_some_and(|next_of| next_of.snapshot_of().unwrap_or(*next) != of)
                };
                let clones = self.successors(id).into_iter().filter(foreign);
                // The successor may be a snapshot of the clone: the clone is named by its dataset.
                let dataset =
                    |next: u64| self.versions.get(&next).and_then(Version::snapshot_of).unwrap_or(next);
                listed.clones = clones.map(|next| self.path(dataset(next))).collect();
                // A snapshot that several versions grow from cannot be destroyed alone, so that nothing is freed.
                listed.used_bytes = match self.freed(&BTreeSet::from([id])) {
                    Err(Error::Busy(_)) => 0,
                    freed => freed?,
                };
            }
            None => {
                listed.available_bytes = version.data.space().available_bytes;
                let origin = self.origin(id);
                listed.origin = origin.map(|origin| self.path(origin));
                let since = origin.unwrap_or(0);
                for at in self.snapshots(id).into_iter().chain([id]) {
                    listed.used_bytes += self.fresh(at);
                    listed.snapshots_bytes += self.dead_bytes_from(at, since)?;
                }
            }
        }
        Ok(listed)
    }
}

impl Pool {
    /// Returns the bytes in use that are neither records nor their entries in directories: the overhead of parts of
    /// segments, and the ends of chunks that long records leave unused.
    pub fn overhead_bytes(&self) -> u64 {
        let (used_bytes, record_bytes) = self.shared.segments.used_by_records();
        remainder(used_bytes, record_bytes)
    }

    /// Verifies that the chunks are free that accepted changes, and all that follows from them, may need (A1), and that
    /// no account went wrong.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of these is not so; of verifying the sums of segments.
    pub fn verify_reserves(&self) -> Result<()> {
        let faults = crate::sums::faults();
        if faults > 0 {
            return Err(Error::Invalid(format!("accounts would have fallen below zero {faults} times")));
        }
        let fruitless = self.shared.counters.fruitless_passes.load(Ordering::Relaxed);
        if fruitless > 0 {
            return Err(Error::Invalid(format!(
                "{fruitless} passes of the cleaner did not do what they were planned to"
            )));
        }
        self.shared.segments.verify_sums()?;
        if self.shared.check_writable().is_err() {
            return Ok(());
        }
        let state = self.maintenance.lock();
        if self.shared.is_cleanable() && self.is_climbing(&state) {
            return Ok(());
        }
        let (free, pending) = (self.chunks.free(), self.chunks.pending_free());
        let (outputs, kept) = (self.shared.clean_outputs(), self.shared.kept_chunks());
        let space = self.shared.space();
        let (used, capacity) = (space.used_bytes, space.capacity_bytes);
        Err(Error::Invalid(format!(
            "of {free} free chunks ({pending} are pending) {outputs} are the cleaner's, and it keeps {kept}; {used} bytes of {capacity} are in use"
        )))
    }

    /// Returns the bytes that free chunks are promised to now: for changes that are accepted and not committed, for the
    /// checkpoint after them, and for the checkpoint by which the cleaner's next pass counts (A1).
    pub fn promised_bytes(&self) -> u64 {
        self.shared.promised_bytes(RoomRequest::NONE)
    }

    /// Returns all datasets and snapshots, by path, without those that are being received, which [`Pool::partials`]
    /// returns.
    ///
    /// # Errors
    /// Of reading trees.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let catalogue = self.catalogue.read();
        let listed = catalogue.versions.iter().filter(|(_, version)| !is_hidden(&version.name));
        let mut found: Vec<Listed> = listed.map(|(id, _)| catalogue.listed(*id)).collect::<Result<_>>()?;
        found.sort_by(|a, b| {
            (a.path.split('@').next(), a.is_snapshot, a.id).cmp(&(
                b.path.split('@').next(),
                b.is_snapshot,
                b.id,
            ))
        });
        Ok(found)
    }

    /// Returns the figures of one dataset or snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`]; of reading trees.
    pub fn listed(&self, path: &str) -> Result<Listed> {
        let catalogue = self.catalogue.read();
        catalogue.listed(catalogue.find(path)?)
    }

    /// Returns the stored bytes that become free when these snapshots and datasets are destroyed together: exact for
    /// what is stored by now.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Busy`] if one of the snapshots has a clone that stays.
    pub fn freed_by_destroying(&self, paths: &[&str]) -> Result<u64> {
        let catalogue = self.catalogue.read();
        let ids: BTreeSet<u64> = paths.iter().map(|path| catalogue.find(path)).collect::<Result<_>>()?;
        catalogue.freed(&ids)
    }
}
