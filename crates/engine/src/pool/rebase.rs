//! A clone that is moved onto a newer snapshot of the dataset that it comes from.
//!
//! The engine knows no files: which changes go together, and which contradict each other, the caller finds out from the differences.
//! He brings those of the clone into a hidden dataset, a clone of the newer snapshot; they are written once more, since a tree has
//! a record that is older than the snapshot it grows from if and only if the snapshot has it (L2). In the end one batch
//! of the log removes the clone, and gives the hidden dataset its name and what is set on it. A crash before leaves the clone as it
//! was; the next opening of the pool removes the hidden dataset.

use std::sync::Arc;

use super::Pool;
use super::catalogue::Catalogue;
use super::compare::Comparison;
use super::send::{HIDDEN, Pins, hidden};
use crate::dataset::redo::Deed;
use crate::dataset::{Dataset, LiveDataset};
use crate::{Error, Result};

/// A rebase under way. Made by [`Pool::begin_rebase`]; dropped before it is finished, it has changed nothing.
pub struct Rebase<'a> {
    pool: &'a Pool,
    /// Number of the clone.
    dataset: u64,
    destroy_own: bool,
    ours: Option<Comparison<'a>>,
    theirs: Comparison<'a>,
    /// Where the target lies; `None` once it has the clone's name.
    hidden: Option<String>,
    target: Arc<LiveDataset>,
    pin: Option<Pins<'a>>,
}

/// Where the target of a rebase lies. What is received lies behind one such mark.
fn hidden_target(path: &str) -> String {
    hidden(&hidden(path))
}

/// Whether that is the path of such a target.
pub(super) fn is_target(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .and_then(|last| last.strip_prefix(HIDDEN))
        .is_some_and(|rest| rest.starts_with(HIDDEN))
}

impl Catalogue {
    /// Number of the clone `path`, and of its origin, if it can be moved onto snapshot `onto`.
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
    /// Begins to move the clone `path` onto `onto`, a newer snapshot of the dataset that it was cloned from. Snapshots of its own
    /// are in the way unless `destroy_own`. Nobody may be using the clone until the rebase has ended. `now` in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if it is no clone, or not one of an older snapshot of the same dataset;
    /// [`Error::Busy`] for snapshots of its own, and while it is being compared or rebased already; of making a snapshot and a clone.
    pub fn begin_rebase(&self, path: &str, onto: &str, destroy_own: bool, now: u64) -> Result<Rebase<'_>> {
        self.shared.check_writable()?;
        let (dataset, origin, created, pin) = {
            let mut catalogue = self.catalogue.write();
            let (dataset, origin) = catalogue.check_rebase(path, onto, destroy_own)?;
            let pin = Pins::new(self, &mut catalogue, vec![dataset]);
            (dataset, catalogue.path(origin), catalogue.get(dataset)?.created, pin)
        };
        let ours = self.compare_versions(&origin, path, now)?;
        let theirs = self.compare_versions(&origin, onto, now)?;
        let hidden = hidden_target(path);
        // What one before could not remove.
        match self.destroy_dataset(&hidden) {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.perform(|catalogue, _| {
            let snapshot = catalogue.snapshot_at(onto)?;
            Ok(vec![Deed::Clone { snapshot, id: catalogue.next_id, created, name: &hidden }])
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

    /// Removes what rebases left that a crash ended.
    ///
    /// # Errors
    /// Of destroying datasets.
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
    /// The origin, and the clone as it is.
    ///
    /// # Errors
    /// None as long as the rebase is not finished.
    pub fn ours(&self) -> Result<&Comparison<'a>> {
        self.ours.as_ref().ok_or_else(|| Error::Invalid("the rebase is finished".into()))
    }

    /// The origin, and the snapshot that the clone is moved onto.
    pub fn theirs(&self) -> &Comparison<'a> {
        &self.theirs
    }

    /// What becomes of the clone: the snapshot as it is, into which what the clone changed is to be brought.
    pub fn target(&self) -> &dyn Dataset {
        &*self.target
    }

    /// Puts the target into the clone's place. Durable on return.
    ///
    /// # Errors
    /// Of making the target durable; as [`Pool::begin_rebase`], for what has changed since then.
    pub fn finish(mut self) -> Result<()> {
        self.target.sync()?;
        // The snapshot that was made to compare the clone would be in the way.
        (self.ours, self.pin) = (None, None);
        let Some(hidden) = self.hidden.take() else { return Ok(()) };
        let done = self.swap(&hidden);
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
            let own = catalogue.check_own_snapshots(dataset, self.destroy_own)?;
            let mut deeds = catalogue.back_to(own, catalogue.origin_of_clone(dataset)?)?;
            deeds.push(Deed::Destroy { id: dataset });
            let property = |(name, value)| Deed::Property { id, name, value: Some(value) };
            deeds.extend(properties.iter().map(|(name, value)| property((name.as_str(), value.as_str()))));
            deeds.push(Deed::Rename { id, name: &path });
            Ok(deeds)
        })
    }
}

impl Drop for Rebase<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take()
            && let Err(error) = self.pool.destroy_dataset(&hidden)
        {
            // The next rebase of the clone does it, or the next opening of the pool.
            tracing::warn!(%error, "what was made for a rebase is left");
        }
    }
}
