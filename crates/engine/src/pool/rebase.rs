//! Moves a clone onto a newer snapshot of the dataset that it was cloned from.
//!
//! The engine knows no files: the caller finds out from the differences which changes go together, and which contradict
//! each other. The caller brings the changes of the clone into a hidden dataset, a clone of the newer snapshot. They
//! are written once more, since a tree has a record that is older than the snapshot it grows from if and only if the
//! snapshot has it (L2). In the end one batch of the log removes the clone, and gives the hidden dataset its name and
//! properties. A crash before that leaves the clone as it was; the next opening of the pool removes the hidden dataset.

use std::sync::Arc;

use super::Pool;
use super::catalogue::Catalogue;
use super::compare::Comparison;
use super::passed_on;
use super::send::{HIDDEN, VersionPins, hidden};
use crate::dataset::redo::CatalogueOp;
use crate::dataset::{Dataset, LiveDataset};
use crate::{Error, Result};

/// A rebase under way, made by [`Pool::begin_rebase`]. If it is dropped before it is finished, it has changed nothing.
pub struct Rebase<'a> {
    pool: &'a Pool,
    /// Number of the clone.
    dataset: u64,
    destroy_own: bool,
    ours: Option<Comparison<'a>>,
    theirs: Comparison<'a>,
    /// Path of the hidden target; `None` once it has the clone's name.
    hidden: Option<String>,
    target: Arc<LiveDataset>,
    pin: Option<VersionPins<'a>>,
}

/// Returns the path of a rebase's hidden target. It has two marks; a dataset that is being received has one.
fn hidden_target(path: &str) -> String {
    hidden(&hidden(path))
}

/// Returns true if `path` is that of a rebase's hidden target.
pub(super) fn is_target(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .and_then(|last| last.strip_prefix(HIDDEN))
        .is_some_and(|rest| rest.starts_with(HIDDEN))
}

impl Catalogue {
    /// Returns the numbers of the clone `path` and of its origin, if it can be moved onto snapshot `onto`.
    fn check_rebase(&self, path: &str, onto: &str, destroy_own: bool) -> Result<(u64, u64)> {
        if path.is_empty() {
            return Err(Error::Invalid("the pool's own dataset stays what it is".into()));
        }
        let dataset = self.dataset(path)?;
        let (origin, onto_id) = (self.origin_of_clone(dataset)?, self.snapshot_at(onto)?);
        if self.get(origin)?.snapshot_of() != self.get(onto_id)?.snapshot_of() {
            let from = self.get(origin)?.snapshot_of().unwrap_or_default();
            return Err(Error::Invalid(format!(
                "'{onto}' is no snapshot of '{}', which '{path}' is a clone of",
                self.path(from)
            )));
        }
        if onto_id <= origin {
            return Err(Error::Invalid(format!(
                "'{onto}' is no newer than '{}', on which '{path}' is",
                self.path(origin)
            )));
        }
        self.check_unpinned(dataset)?;
        self.check_own_snapshots(dataset, destroy_own)?;
        Ok((dataset, origin))
    }
}

impl Pool {
    /// Begins to move the clone `path` onto `onto`, a newer snapshot of the dataset that it was cloned from. Fails if
    /// the clone has snapshots of its own, unless `destroy_own`. Nobody may use the clone until the rebase has ended.
    /// `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if `path` is no clone, or not one of an older snapshot of the same
    /// dataset; [`Error::Busy`] if it has snapshots of its own, and while it is being compared or rebased already;
    /// errors of making a snapshot and a clone.
    pub fn begin_rebase(&self, path: &str, onto: &str, destroy_own: bool, now: u64) -> Result<Rebase<'_>> {
        self.shared.check_writable()?;
        let (dataset, origin, created, pin) = {
            let mut catalogue = self.catalogue.write();
            let (dataset, origin) = catalogue.check_rebase(path, onto, destroy_own)?;
            let pin = VersionPins::new(self, &mut catalogue, vec![dataset]);
            (dataset, catalogue.path(origin), catalogue.get(dataset)?.created, pin)
        };
        let ours = self.compare_versions(&origin, path, now)?;
        let theirs = self.compare_versions(&origin, onto, now)?;
        let hidden = hidden_target(path);
        // An earlier rebase may have left its target, if it could not remove it.
        match self.destroy_dataset(&hidden) {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.perform(|catalogue, _| {
            let snapshot = catalogue.snapshot_at(onto)?;
            Ok(vec![CatalogueOp::Clone { snapshot, id: catalogue.next_id, created, name: &hidden }])
        })?;
        let target = self.version(&hidden)?;
        let hidden = Some(hidden);
        Ok(Rebase {
            pool: self,
            dataset,
            destroy_own,
            ours: Some(ours),
            theirs,
            hidden,
            target,
            pin: Some(pin),
        })
    }

    /// Removes the targets of rebases that a crash ended.
    ///
    /// # Errors
    /// Errors of destroying datasets.
    pub(super) fn forget_rebases(&self) -> Result<()> {
        let left: Vec<String> = {
            let catalogue = self.catalogue.read();
            let targets = catalogue.datasets().filter(|(_, version)| is_target(&version.name));
            targets.map(|(_, version)| version.name.clone()).collect()
        };
        left.iter().try_for_each(|path| self.destroy_dataset(path))
    }
}

impl<'a> Rebase<'a> {
    /// Returns the comparison of the origin with the clone as it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] once the rebase is finished.
    pub fn ours(&self) -> Result<&Comparison<'a>> {
        self.ours.as_ref().ok_or_else(|| Error::Invalid("the rebase is finished".into()))
    }

    /// Returns the comparison of the origin with the snapshot that the clone is moved onto.
    pub fn theirs(&self) -> &Comparison<'a> {
        &self.theirs
    }

    /// Returns the dataset that takes the clone's place: it begins as the snapshot, and the caller brings the clone's
    /// changes into it.
    pub fn target(&self) -> &dyn Dataset {
        &*self.target
    }

    /// Puts the target into the clone's place. Durable on return.
    ///
    /// # Errors
    /// Errors of making the target durable; as [`Pool::begin_rebase`], for changes since then.
    pub fn finish(mut self) -> Result<()> {
        self.target.sync()?;
        // The snapshot that was made to compare the clone would hinder the swap.
        (self.ours, self.pin) = (None, None);
        let Some(hidden) = self.hidden.take() else { return Ok(()) };
        let done = passed_on::retake(|| self.swap(&hidden));
        if done.is_err() {
            self.hidden = Some(hidden);
        }
        done
    }

    fn swap(&self, hidden: &str) -> Result<()> {
        let (pool, dataset) = (self.pool, self.dataset);
        let (path, properties) = {
            let catalogue = pool.catalogue.read();
            (catalogue.path(dataset), catalogue.get(dataset)?.properties.clone())
        };
        pool.perform_stored(|catalogue, _| {
            let id = catalogue.dataset(hidden)?;
            if catalogue.dataset(&path)? != dataset {
                return Err(Error::Busy(format!("'{path}' was renamed meanwhile")));
            }
            catalogue.check_unpinned(dataset)?;
            passed_on::check(catalogue, dataset, &properties)?;
            let own = catalogue.check_own_snapshots(dataset, self.destroy_own)?;
            let mut ops = catalogue.back_to(own, catalogue.origin_of_clone(dataset)?)?;
            ops.push(CatalogueOp::Destroy { id: dataset });
            let property = |(name, value)| CatalogueOp::Property { id, name, value: Some(value) };
            ops.extend(properties.iter().map(|(name, value)| property((name.as_str(), value.as_str()))));
            ops.push(CatalogueOp::Rename { id, name: &path });
            Ok(ops)
        })
    }
}

impl Drop for Rebase<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take()
            && let Err(error) = self.pool.destroy_dataset(&hidden)
        {
            // The next rebase of the clone removes it, or the next opening of the pool.
            tracing::warn!(%error, "what was made for a rebase is left");
        }
    }
}
