//! Makes, renames, promotes, rolls back and destroys datasets, snapshots and clones, and sets their properties
//! and holds.
//!
//! A catalogue operation is logged and done in one instant: everything accepted before it is in the log and the gate is
//! closed, so that the trees are what the log says. No operation takes longer with more data.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Pool;
use super::catalogue::Catalogue;
use super::group::Waiting;
use super::quotas;
use super::rebase::is_target;
use super::send::{HIDDEN, is_hidden};
use crate::dataset::redo::{CatalogueOp, TEXT_BYTES_MAX};
use crate::dataset::{Dataset, LiveDataset, count};
use crate::limits::REDO_BYTES_MAX;
use crate::{Addr, Error, Result};

/// Longest path of a dataset, with a snapshot's name, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 255;
/// Largest number of tries of a catalogue operation that waits for a checkpoint to store the snapshot before.
const ATTEMPTS: usize = 16;

/// Splits `dataset@snapshot` into its parts; the dataset's path is empty for the pool's own.
fn split(path: &str) -> Result<(&str, &str)> {
    path.split_once('@').ok_or_else(|| Error::Invalid(format!("'{path}' names no snapshot: dataset@name")))
}

pub(super) fn check_part(part: &str, what: &str) -> Result<()> {
    let sane = part.starts_with(|first: char| first.is_ascii_alphanumeric())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    if sane {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "'{part}' is no name for a {what}: it begins with a letter or digit and has letters, digits and any of _ - . :"
    )))
}

fn check_property(name: &str, value: Option<&str>, of_snapshot: bool) -> Result<()> {
    if name.len().max(value.map_or(0, str::len)) > TEXT_BYTES_MAX {
        return Err(Error::Invalid(format!("a property is longer than {TEXT_BYTES_MAX} bytes")));
    }
    quotas::check_value(name, value, of_snapshot)
}

fn check_path(path: &str) -> Result<()> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::Invalid(format!("'{path}' is longer than {PATH_BYTES_MAX} bytes")));
    }
    path.split('/').try_for_each(|part| check_part(part, "dataset"))
}

impl Catalogue {
    /// Returns the number of the dataset with this path.
    pub(super) fn dataset(&self, path: &str) -> Result<u64> {
        let found = self.datasets().find(|(_, version)| version.name == path);
        found.map(|(id, _)| id).ok_or_else(|| Error::NotFound(format!("there is no dataset '{path}'")))
    }

    /// Returns the number of the snapshot `path`.
    pub(super) fn snapshot_at(&self, path: &str) -> Result<u64> {
        let (dataset, name) = split(path)?;
        let of = self.dataset(dataset)?;
        self.named_snapshot(of, name).ok_or_else(|| Error::NotFound(format!("there is no snapshot '{path}'")))
    }

    pub(super) fn named_snapshot(&self, of: u64, name: &str) -> Option<u64> {
        self.snapshots(of)
            .into_iter()
            .find(|id| self.versions.get(id).is_some_and(|found| found.name == name))
    }

    /// Returns the number of the dataset or snapshot `path`.
    pub(super) fn find(&self, path: &str) -> Result<u64> {
        if path.contains('@') { self.snapshot_at(path) } else { self.dataset(path) }
    }

    /// Returns the path of a version below the pool: `dataset` or `dataset@snapshot`.
    pub(super) fn path(&self, id: u64) -> String {
        let Some(version) = self.versions.get(&id) else { return String::new() };
        match version.snapshot_of().and_then(|of| self.versions.get(&of)) {
            Some(of) => format!("{}@{}", of.name, version.name),
            None => version.name.clone(),
        }
    }

    /// Checks that no dataset has this path, and that there is a dataset above it.
    pub(super) fn check_new(&self, path: &str) -> Result<()> {
        check_path(path)?;
        if self.dataset(path).is_ok() {
            return Err(Error::Exists(format!("there is a dataset '{path}' already")));
        }
        match path.rsplit_once('/') {
            Some((parent, _)) => self.dataset(parent).map(drop),
            None => Ok(()),
        }
    }

    /// Checks that no path below `path` becomes too long if that becomes `to`.
    fn check_below(&self, path: &str, to: &str) -> Result<()> {
        for (_, version) in self.datasets() {
            let rest = version.name.strip_prefix(path).filter(|rest| rest.starts_with('/'));
            if let Some(rest) = rest.filter(|rest| to.len() + rest.replace(HIDDEN, "").len() > PATH_BYTES_MAX)
            {
                return Err(Error::Invalid(format!(
                    "'{to}{rest}' would be longer than {PATH_BYTES_MAX} bytes"
                )));
            }
        }
        Ok(())
    }

    /// Returns an error if a snapshot is held or pinned, or if other datasets than its own grow from it.
    fn check_destroyable(&self, id: u64) -> Result<()> {
        let version = self.get(id)?;
        self.check_unpinned(id)?;
        if let Some(tag) = version.holds.keys().next() {
            return Err(Error::Busy(format!("snapshot '{}' is held by '{tag}'", self.path(id))));
        }
        let of = version.snapshot_of();
        let owner = |id: u64| self.versions.get(&id).map(|next| next.snapshot_of().unwrap_or(id));
        match self.successors(id).into_iter().find(|next| owner(*next) != of) {
            Some(clone) if is_target(&self.path(clone)) => Err(Error::Busy(format!(
                "a rebase has left '{}' on top of '{}', which goes when the pool is opened again",
                self.path(clone),
                self.path(id)
            ))),
            Some(clone) if is_hidden(&self.path(clone)) => Err(Error::Busy(format!(
                "part of a stream was received on top of '{}': go on with that, or give it up by 'receive --abort'",
                self.path(id)
            ))),
            Some(clone) => Err(Error::Busy(format!(
                "snapshot '{}' has a clone: '{}'; destroy or promote that first",
                self.path(id),
                self.path(clone)
            ))),
            None => Ok(()),
        }
    }

    /// Returns an error while a version is being sent, received, compared or rebased.
    pub(super) fn check_unpinned(&self, id: u64) -> Result<()> {
        if self.pins.contains_key(&id) {
            return Err(Error::Busy(format!(
                "'{}' is being sent, received, compared or rebased just now",
                self.path(id)
            )));
        }
        Ok(())
    }

    /// Returns the snapshot that a dataset was cloned from; an error if it is no clone.
    pub(super) fn origin_of_clone(&self, dataset: u64) -> Result<u64> {
        self.origin(dataset).ok_or_else(|| Error::Invalid(format!("'{}' is no clone", self.path(dataset))))
    }

    /// Returns the snapshots of a clone that is to get another content. An error if there are any and `destroy` is
    /// false, or if one cannot be destroyed.
    pub(super) fn check_own_snapshots(&self, clone: u64, destroy: bool) -> Result<Vec<u64>> {
        let own = self.snapshots(clone);
        if let (Some(first), false) = (own.first(), destroy) {
            let (path, first) = (self.path(clone), self.path(*first));
            return Err(Error::Busy(format!("'{path}' has snapshots of its own: '{first}'")));
        }
        own.iter().try_for_each(|id| self.check_destroyable(*id))?;
        Ok(own)
    }

    /// Returns the operations that destroy `newer`, so that a dataset grows from `to`, a snapshot before all of them.
    /// That `newer` can be destroyed was checked before. An error if no checkpoint has written `to`.
    pub(super) fn back_to(&self, newer: Vec<u64>, to: u64) -> Result<Vec<CatalogueOp<'static>>> {
        match self.as_ancestor(to) {
            Some(ancestor) if ancestor.node_bound.is_some() => {}
            _ => return Err(Error::Busy(NOT_STORED.into())),
        }
        Ok(newer.into_iter().map(|id| CatalogueOp::Destroy { id }).collect())
    }

    /// Returns an error if no checkpoint has written the snapshot that a dataset grows from.
    pub(super) fn check_stored(&self, dataset: u64) -> Result<()> {
        match self.as_ancestor(self.get(dataset)?.prev) {
            Some(ancestor) if ancestor.node_bound.is_none() => Err(Error::Busy(NOT_STORED.into())),
            _ => Ok(()),
        }
    }
}

/// Growth of the catalogue that is about to happen: counted in [`Room::grown_bytes`] until this is dropped. By then
/// [`Catalogue::perform`] has counted the growth that has happened.
///
/// [`Room::grown_bytes`]: crate::dataset::Room::grown_bytes
struct GrowthClaim<'a> {
    grown_bytes: &'a AtomicU64,
    bytes: u64,
}

impl<'a> GrowthClaim<'a> {
    fn new(grown_bytes: &'a AtomicU64, bytes: u64) -> Self {
        grown_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { grown_bytes, bytes }
    }
}

impl Drop for GrowthClaim<'_> {
    fn drop(&mut self) {
        self.grown_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

const NOT_STORED: &str = "the snapshot before is not stored yet";

/// The caller tells the time at which something is made, in seconds since 1970: the engine has no clock.
impl Pool {
    /// Returns a dataset, to be used: `path` is below the pool, empty for the pool's own. A snapshot (`dataset@name`)
    /// takes no changes.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn open_dataset(&self, path: &str) -> Result<Arc<dyn Dataset>> {
        Ok(self.version(path)? as Arc<dyn Dataset>)
    }

    /// As [`Pool::open_dataset`], with the engine's own type.
    pub fn version(&self, path: &str) -> Result<Arc<LiveDataset>> {
        let catalogue = self.catalogue.read();
        Ok(Arc::clone(&catalogue.get(catalogue.find(path)?)?.data))
    }

    /// Returns the dataset or snapshot with this number.
    pub(super) fn version_by_id(&self, id: u64) -> Result<Arc<LiveDataset>> {
        let catalogue = self.catalogue.read();
        let found = catalogue.versions.get(&id).map(|version| Arc::clone(&version.data));
        found.ok_or_else(|| Error::NotFound(format!("there is no dataset or snapshot with number {id}")))
    }

    /// Returns numbers and names of the snapshots of the dataset with number `id`, oldest first.
    pub fn snapshots_of(&self, id: u64) -> Vec<(u64, String)> {
        let catalogue = self.catalogue.read();
        let named = |id: u64| catalogue.versions.get(&id).map(|version| (id, version.name.clone()));
        let seen = |(_, name): &(u64, String)| !is_hidden(name);
        catalogue.snapshots(id).into_iter().filter_map(named).filter(seen).collect()
    }

    /// Returns the snapshot with number `id`, to be read; `None` if there is none, or none any more.
    pub fn open_snapshot(&self, id: u64) -> Option<Arc<dyn Dataset>> {
        let catalogue = self.catalogue.read();
        let found = catalogue.versions.get(&id).filter(|version| version.snapshot_of().is_some());
        found.map(|version| Arc::clone(&version.data) as Arc<dyn Dataset>)
    }

    /// Returns the path below the pool, `dataset` or `dataset@snapshot`, of the dataset or snapshot with this number;
    /// `None` if it is gone.
    pub fn path_of(&self, id: u64) -> Option<String> {
        let catalogue = self.catalogue.read();
        catalogue.versions.contains_key(&id).then(|| catalogue.path(id))
    }

    /// Makes an empty dataset. This is durable on return, as are all operations below.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is not allowed, [`Error::Exists`], [`Error::NotFound`] for the dataset above.
    pub fn create_dataset(&self, path: &str, created: u64) -> Result<()> {
        self.perform(|catalogue, _| {
            catalogue.check_new(path)?;
            Ok(vec![CatalogueOp::Create { id: catalogue.next_id, created, name: path }])
        })
    }

    /// Makes the same snapshot of several datasets, at one instant.
    ///
    /// # Errors
    /// As [`Pool::create_dataset`].
    pub fn snapshot(&self, datasets: &[&str], name: &str, created: u64) -> Result<()> {
        self.snapshot_with(datasets, name, created, &[])
    }

    /// As [`Pool::snapshot`], with properties that are set on each of the snapshots in the same instant.
    ///
    /// # Errors
    /// As [`Pool::snapshot`]; [`Error::Invalid`] for properties, as [`Pool::set_property_of`].
    pub fn snapshot_with(
        &self,
        datasets: &[&str],
        name: &str,
        created: u64,
        properties: &[(&str, &str)],
    ) -> Result<()> {
        check_part(name, "snapshot")?;
        properties.iter().try_for_each(|(name, value)| check_property(name, Some(value), true))?;
        self.perform(|catalogue, bound| {
            let (mut ops, mut seen) = (Vec::new(), BTreeSet::new());
            for (path, id) in datasets.iter().zip(catalogue.next_id..) {
                let dataset = catalogue.dataset(path)?;
                if !seen.insert(dataset) {
                    return Err(Error::Invalid(format!("'{path}@{name}' is wanted twice")));
                }
                if path.len() + name.len() > PATH_BYTES_MAX {
                    return Err(Error::Invalid(format!("'{path}@{name}' is too long")));
                }
                if catalogue.named_snapshot(dataset, name).is_some() {
                    return Err(Error::Exists(format!("there is a snapshot '{path}@{name}' already")));
                }
                ops.push(CatalogueOp::Snapshot { dataset, id, bound, created, name });
                let property = |(name, value)| CatalogueOp::Property { id, name, value: Some(value) };
                ops.extend(properties.iter().copied().map(property));
            }
            Ok(ops)
        })
    }

    /// Makes a dataset that begins as a snapshot.
    ///
    /// # Errors
    /// As [`Pool::create_dataset`].
    pub fn clone_snapshot(&self, snapshot: &str, path: &str, created: u64) -> Result<()> {
        self.perform(|catalogue, _| {
            let snapshot = catalogue.snapshot_at(snapshot)?;
            catalogue.check_new(path)?;
            Ok(vec![CatalogueOp::Clone { snapshot, id: catalogue.next_id, created, name: path }])
        })
    }

    /// Destroys a dataset without snapshots and without datasets below. Its space is freed in the background
    /// ([`Pool::reap`]). Nobody may be using the dataset.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Busy`] if it has either or is being sent or received, [`Error::Invalid`] for the
    /// pool's own.
    pub fn destroy_dataset(&self, path: &str) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let id = catalogue.dataset(path)?;
            if path.is_empty() {
                return Err(Error::Invalid("the pool's own dataset goes with the pool".into()));
            }
            let below = |other: &str| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            if let Some((_, other)) = catalogue.datasets().find(|(_, other)| below(&other.name)) {
                return Err(Error::Busy(format!("dataset '{path}' has '{}' below it", other.name)));
            }
            if let Some(snapshot) = catalogue.snapshots(id).first() {
                return Err(Error::Busy(format!(
                    "dataset '{path}' has snapshots: '{}'",
                    catalogue.path(*snapshot)
                )));
            }
            catalogue.check_unpinned(id)?;
            catalogue.check_stored(id)?;
            Ok(vec![CatalogueOp::Destroy { id }])
        })
    }

    /// Destroys snapshots, all or none. Their space is freed in the background ([`Pool::reap`]).
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Busy`] if one is held or has a clone.
    pub fn destroy_snapshots(&self, snapshots: &[&str]) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let mut ops = Vec::new();
            for path in snapshots {
                let id = catalogue.snapshot_at(path)?;
                catalogue.check_destroyable(id)?;
                if ops.contains(&CatalogueOp::Destroy { id }) {
                    return Err(Error::Invalid(format!("'{path}' is named twice")));
                }
                ops.push(CatalogueOp::Destroy { id });
            }
            Ok(ops)
        })
    }

    /// Returns a dataset to its snapshot `snapshot`. Newer snapshots are destroyed with `destroy_newer`, and an error
    /// without. Nobody may be using the dataset.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshots`]; [`Error::Busy`] for newer snapshots.
    pub fn rollback(&self, snapshot: &str, destroy_newer: bool) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let to = catalogue.snapshot_at(snapshot)?;
            let dataset = catalogue.get(to)?.snapshot_of().unwrap_or_default();
            catalogue.check_unpinned(dataset)?;
            let newer: Vec<u64> = catalogue.snapshots(dataset).into_iter().filter(|id| *id > to).collect();
            if let (Some(first), false) = (newer.first(), destroy_newer) {
                return Err(Error::Busy(format!("there is a newer snapshot: '{}'", catalogue.path(*first))));
            }
            newer.iter().try_for_each(|id| catalogue.check_destroyable(*id))?;
            let mut ops = catalogue.back_to(newer, to)?;
            ops.push(CatalogueOp::Rollback { dataset });
            Ok(ops)
        })
    }

    /// Returns a clone to the snapshot that it was made from. Snapshots of its own are destroyed with `destroy_own`,
    /// and an error without. Nobody may be using the dataset.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshots`]; [`Error::Invalid`] if it is no clone; [`Error::Busy`] for snapshots of its own.
    pub fn reset(&self, path: &str, destroy_own: bool) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let dataset = catalogue.dataset(path)?;
            let origin = catalogue.origin_of_clone(dataset)?;
            catalogue.check_unpinned(dataset)?;
            let own = catalogue.check_own_snapshots(dataset, destroy_own)?;
            let mut ops = catalogue.back_to(own, origin)?;
            ops.push(CatalogueOp::Rollback { dataset });
            Ok(ops)
        })
    }

    /// Makes a clone the owner of the snapshots it shares with the dataset it comes from, which becomes its clone.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if it is no clone; [`Error::Exists`] if both have a snapshot of one
    /// name.
    pub fn promote(&self, path: &str) -> Result<()> {
        let promoted = Cell::new((0, 0));
        self.perform_stored(|catalogue, _| {
            let dataset = catalogue.dataset(path)?;
            let origin = catalogue.origin_of_clone(dataset)?;
            let from = catalogue.get(origin)?.snapshot_of().unwrap_or_default();
            promoted.set((from, dataset));
            for id in catalogue.snapshots(from).into_iter().filter(|id| *id <= origin) {
                if catalogue.named_snapshot(dataset, &catalogue.get(id)?.name).is_some() {
                    let (name, of) = (&catalogue.get(id)?.name, catalogue.path(from));
                    return Err(Error::Exists(format!("both '{path}' and '{of}' have a snapshot '{name}'")));
                }
            }
            Ok(vec![CatalogueOp::Promote { dataset }])
        })?;
        let (from, dataset) = promoted.get();
        self.pass_models_on(from, dataset);
        Ok(())
    }

    /// Names a dataset (with those below it), or a snapshot, anew; `to` is a path or, for a snapshot, a name.
    ///
    /// # Errors
    /// As [`Pool::create_dataset`].
    pub fn rename(&self, path: &str, to: &str) -> Result<()> {
        self.perform(|catalogue, _| {
            let id = catalogue.find(path)?;
            match catalogue.get(id)?.snapshot_of() {
                Some(of) => {
                    check_part(to, "snapshot")?;
                    let dataset = &catalogue.get(of)?.name;
                    if dataset.len() + to.len() > PATH_BYTES_MAX {
                        return Err(Error::Invalid(format!("'{dataset}@{to}' is too long")));
                    }
                    if catalogue.named_snapshot(of, to).is_some() {
                        return Err(Error::Exists(format!("there is a snapshot '{to}' already")));
                    }
                }
                None if path.is_empty() => {
                    return Err(Error::Invalid("the pool's own dataset has the pool's name".into()));
                }
                None if to.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) => {
                    return Err(Error::Invalid(format!("'{to}' lies below '{path}'")));
                }
                None => catalogue.check_new(to).and_then(|()| catalogue.check_below(path, to))?,
            }
            Ok(vec![CatalogueOp::Rename { id, name: to }])
        })
    }

    /// Keeps a snapshot from being destroyed until `tag` is released.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] if the tag holds it already.
    pub fn hold(&self, snapshot: &str, tag: &str, created: u64) -> Result<()> {
        check_part(tag, "hold")?;
        if tag.len() > PATH_BYTES_MAX {
            return Err(Error::Invalid(format!("the name of a hold is longer than {PATH_BYTES_MAX} bytes")));
        }
        self.perform(|catalogue, _| {
            let id = catalogue.snapshot_at(snapshot)?;
            if catalogue.get(id)?.holds.contains_key(tag) {
                return Err(Error::Exists(format!("'{snapshot}' is held by '{tag}' already")));
            }
            Ok(vec![CatalogueOp::Hold { snapshot: id, created: created.max(1), tag }])
        })
    }

    /// Ends [`Pool::hold`].
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn release(&self, snapshot: &str, tag: &str) -> Result<()> {
        self.perform(|catalogue, _| {
            let id = catalogue.snapshot_at(snapshot)?;
            if !catalogue.get(id)?.holds.contains_key(tag) {
                return Err(Error::NotFound(format!("'{snapshot}' is not held by '{tag}'")));
            }
            Ok(vec![CatalogueOp::Hold { snapshot: id, created: 0, tag }])
        })
    }

    /// Returns a property that is set on a dataset or snapshot itself.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the dataset or snapshot.
    pub fn property_of(&self, path: &str, name: &str) -> Result<Option<String>> {
        let catalogue = self.catalogue.read();
        Ok(catalogue.get(catalogue.find(path)?)?.properties.get(name).cloned())
    }

    /// Returns true if any dataset has the property set on itself. Reads only the catalogue in memory.
    pub fn is_set_anywhere(&self, name: &str) -> bool {
        self.catalogue.read().datasets().any(|(_, version)| version.properties.contains_key(name))
    }

    /// Sets a property; `None` clears it.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the dataset or snapshot; [`Error::Invalid`] for a name or value that is too long, and
    /// for a value that the property cannot have.
    pub fn set_property_of(&self, path: &str, name: &str, value: Option<&str>) -> Result<()> {
        check_property(name, value, path.contains('@'))?;
        loop {
            let before = self.shared.reapers.frees();
            let set = self.perform(|catalogue, _| {
                Ok(vec![CatalogueOp::Property { id: catalogue.find(path)?, name, value }])
            });
            match set {
                // Deleted files do not count against a bound once they are freed.
                Err(refused @ Error::NoSpace(_)) => {
                    if !self.reclaim(before)? {
                        return Err(refused);
                    }
                }
                done => return done,
            }
        }
    }

    /// As [`Pool::perform`], for operations that need the snapshots to be stored, and no checkpoint to be writing them.
    pub(super) fn perform_stored<'a>(
        &self,
        plan: impl Fn(&Catalogue, u64) -> Result<Vec<CatalogueOp<'a>>>,
    ) -> Result<()> {
        self.shared.check_writable()?;
        let _claim = self.claim_growth(&plan)?;
        let mut state = self.maintenance.lock();
        for _ in 1..ATTEMPTS {
            match self.perform_now(&plan) {
                Err(Error::Busy(why)) if why == NOT_STORED => {
                    self.checkpoint_locked(&mut state, false)?;
                    self.restore_room(&mut state)?;
                }
                done => return done,
            }
        }
        self.perform_now(&plan)
    }

    /// Does the operations that `plan` makes of the catalogue and the raw address of the next record, all or none.
    pub(super) fn perform<'a>(
        &self,
        plan: impl Fn(&Catalogue, u64) -> Result<Vec<CatalogueOp<'a>>>,
    ) -> Result<()> {
        self.shared.check_writable()?;
        let _claim = self.claim_growth(&plan)?;
        self.perform_now(&plan)
    }

    /// Claims room for operations that `plan` makes of the catalogue: for their entry in the log, and for what they add
    /// to the catalogue, which every checkpoint from now on may have to store.
    ///
    /// # Errors
    /// Errors of the plan; [`Error::NoSpace`].
    fn claim_growth<'a>(
        &self,
        plan: &dyn Fn(&Catalogue, u64) -> Result<Vec<CatalogueOp<'a>>>,
    ) -> Result<GrowthClaim<'_>> {
        let (growth, redo, destroys) = {
            let catalogue = self.catalogue.read();
            let ops = match plan(&catalogue, 0) {
                // A checkpoint comes first, and nothing is known before it.
                Err(Error::Busy(why)) if why == NOT_STORED => Vec::new(),
                planned => planned?,
            };
            let mut encoded = Vec::new();
            ops.iter().for_each(|op| op.encode(&mut encoded));
            let destroys = |op: &CatalogueOp<'_>| {
                matches!(op, CatalogueOp::Destroy { .. } | CatalogueOp::Rollback { .. })
            };
            let destroys = !ops.is_empty() && ops.iter().all(destroys);
            (ops.iter().map(|op| catalogue.growth_of(op)).sum(), encoded.len() as u64, destroys)
        };
        let claim = GrowthClaim::new(&self.shared.room.grown_bytes, growth);
        match destroys {
            true => self.prepare_destroying(redo)?,
            false => self.prepare_commit_of(redo)?,
        }
        Ok(claim)
    }

    fn perform_now<'a>(&self, plan: &dyn Fn(&Catalogue, u64) -> Result<Vec<CatalogueOp<'a>>>) -> Result<()> {
        // The plan is made once before the gate is closed, so that operations that are not possible do not close it.
        {
            let catalogue = self.catalogue.read();
            let ops = plan(&catalogue, 0)?;
            catalogue.check_bounds(&ops, &self.shared)?;
            for op in &ops {
                match *op {
                    CatalogueOp::Destroy { id } if catalogue.as_ancestor(id).is_some() => {
                        catalogue.read_dead(id)?;
                    }
                    CatalogueOp::Snapshot { dataset, .. } => catalogue.read_open(dataset)?,
                    _ => {}
                }
            }
        }
        self.commit_ahead()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        let gate = self.shared.gate.write();
        self.shared.check_writable()?;
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let taken = self.take_accepted(&log);
        self.finish(&mut log, &taken, accepted, Waiting::Nobody)?;
        let position = log.writer.position();
        let mut catalogue = self.catalogue.write();
        let ops = plan(&catalogue, Addr::new(position.segment, position.slots).raw())?;
        catalogue.check_bounds(&ops, &self.shared)?;
        let mut encoded = Vec::new();
        ops.iter().for_each(|op| op.encode(&mut encoded));
        if encoded.len() as u64 > REDO_BYTES_MAX {
            return Err(Error::Invalid("that is too much at once".into()));
        }
        // They come into the log once they are done: every opening does again what the log has, and could not if damage to
        // a tree prevents it. Nobody sees them before, since the catalogue is locked.
        let done = ops.iter().try_for_each(|op| catalogue.perform(op));
        done.inspect_err(|error| self.shared.fail(error))?;
        let appended = log.writer.append(0, &[], encoded.len(), |_| encoded, false);
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        count(&self.shared.counters.framing_bytes, appended.framing_bytes);
        log.window_bytes += appended.written_bytes;
        catalogue.rebudget(&self.shared);
        if catalogue.inherit_compression() {
            // Objects that were not counted so far may want a model now.
            *self.sought.lock() = Some((0, 0));
        }
        let datasets = catalogue.datasets().map(|(_, version)| Arc::clone(&version.data)).collect();
        *self.datasets.write() = Arc::new(datasets);
        self.shared.models.set_parents(catalogue.parents());
        let accepted = self.shared.accepted.fetch_add(1, Ordering::AcqRel) + 1;
        self.committed.fetch_max(accepted, Ordering::AcqRel);
        drop((catalogue, gate, log));
        self.flush_to(accepted)
    }

    /// Brings all changes that are accepted by now into the log, so that the gate is closed only for those that come
    /// meanwhile.
    pub(super) fn commit_ahead(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.check_failed()?;
        let gate = self.shared.gate.write();
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let taken = self.take_accepted(&log);
        drop(gate);
        self.finish(&mut log, &taken, accepted, Waiting::Nobody)
    }
}
