//! Brings quotas and reservations, which are properties of datasets, into force.
//!
//! They are stored as any other property. Whenever the catalogue changes, the budgets of datasets are made anew from
//! properties and space accounting. A catalogue operation is refused if some bound would be exceeded by more after it
//! than before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use super::catalogue::Catalogue;
use super::image::VersionKind;
use super::send::{HIDDEN, is_hidden};
use crate::dataset::accounting::Follower;
use crate::dataset::redo::CatalogueOp;
use crate::dataset::{Bound, Budget, Limits, Shared};
use crate::{Error, Result};

/// Name of the property of a reservation; [`Bound::name`] has the names of quotas.
const RESERVATION: &str = "reservation";
/// Value that stands for no bound, like a property that is not set.
const NONE: &str = "none";

/// Returns true if a property bounds its dataset.
fn is_bound(name: &str) -> bool {
    name == RESERVATION
        || [Bound::Quota, Bound::RefQuota, Bound::LogicalQuota].iter().any(|bound| bound.name() == name)
}

/// Parses a bound; returns its bytes, 0 for none.
fn parse(name: &str, value: &str) -> Result<u64> {
    if value == NONE {
        return Ok(0);
    }
    value.parse().map_err(|_| Error::Invalid(format!("'{value}' is no number of bytes for {name}")))
}

/// Returns an error if the property is a bound and cannot have this value.
pub(super) fn check_value(name: &str, value: Option<&str>, is_snapshot: bool) -> Result<()> {
    if !is_bound(name) {
        return Ok(());
    }
    if is_snapshot {
        return Err(Error::Invalid(format!("a snapshot has no {name}")));
    }
    value.map_or(Ok(0), |value| parse(name, value)).map(drop)
}

/// Returns the bounds among the properties of a dataset.
fn limits(properties: &BTreeMap<String, String>) -> Limits {
    // A value was checked when it was set; one that is not understood bounds nothing.
    let bytes =
        |name| properties.get(name).and_then(|value| parse(name, value).ok()).filter(|bytes| *bytes > 0);
    Limits {
        quota: bytes(Bound::Quota.name()),
        refquota: bytes(Bound::RefQuota.name()),
        logicalquota: bytes(Bound::LogicalQuota.name()),
        reservation: bytes(RESERVATION).unwrap_or(0),
    }
}

/// Use of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Number of the dataset.
    pub id: u64,
    /// Its path below the pool; empty for the pool's own dataset.
    pub path: String,
    /// Kind of the quota.
    pub bound: Bound,
    /// Bytes of the quota.
    pub limit_bytes: u64,
    /// Bytes that count against the quota.
    pub used_bytes: u64,
}

/// Figures of a dataset that matter for bounds.
#[derive(Clone, Debug, Default)]
struct DatasetSpace {
    path: String,
    limits: Limits,
    /// Stored bytes that only the dataset and its snapshots have.
    own_bytes: u64,
    referenced_bytes: u64,
    logical_bytes: u64,
}

/// Figures of datasets, by number.
type SpaceByDataset = BTreeMap<u64, DatasetSpace>;

/// Returns the place of a dataset in the hierarchy. A hidden dataset, which is being received or rebased, lies below
/// the one that it will become.
pub(super) fn place(path: &str) -> String {
    if !is_hidden(path) {
        return path.to_owned();
    }
    let marks: String = path.chars().filter(|c| *c == HIDDEN).collect();
    format!("{}/{marks}", path.replace(HIDDEN, ""))
}

/// Returns the datasets, parents before children, each with the nearest dataset above it.
fn in_order(datasets: &SpaceByDataset) -> Vec<(u64, Option<u64>)> {
    let places: BTreeMap<String, u64> =
        datasets.iter().map(|(id, dataset)| (place(&dataset.path), *id)).collect();
    let above = |place: &str| {
        let mut at = place;
        while let Some((parent, _)) = at.rsplit_once('/') {
            if let Some(id) = places.get(parent) {
                return Some(*id);
            }
            at = parent;
        }
        places.get("").copied().filter(|_| !place.is_empty())
    };
    places.iter().map(|(place, id)| (*id, above(place))).collect()
}

/// Bytes by which each bound is exceeded, and bytes that all datasets take, with reservations and without.
struct Balance {
    excess: BTreeMap<(u64, Bound), u64>,
    charged_bytes: u64,
    stored_bytes: u64,
}

fn balance(datasets: &SpaceByDataset) -> Balance {
    let mut held: BTreeMap<u64, u64> =
        datasets.iter().map(|(id, dataset)| (*id, dataset.own_bytes)).collect();
    let stored_bytes = held.values().sum();
    let (mut excess, mut charged_bytes) = (BTreeMap::new(), 0);
    for (id, above) in in_order(datasets).into_iter().rev() {
        let (Some(dataset), Some(own)) = (datasets.get(&id), held.get(&id).copied()) else { continue };
        let charge = own.max(dataset.limits.reservation);
        match above.and_then(|above| held.get_mut(&above)) {
            Some(held) => *held = held.saturating_add(charge),
            None => charged_bytes = u64::saturating_add(charged_bytes, charge),
        }
        for (bound, limit) in dataset.limits.quotas() {
            let taken = match bound {
                Bound::Quota => charge,
                Bound::RefQuota => dataset.referenced_bytes,
                Bound::LogicalQuota => dataset.logical_bytes,
            };
            excess.insert((id, bound), taken.saturating_sub(limit));
        }
    }
    Balance { excess, charged_bytes, stored_bytes }
}

impl Catalogue {
    fn space_by_dataset(&self) -> SpaceByDataset {
        let mut datasets = SpaceByDataset::new();
        for (id, version) in self.datasets() {
            let accounting = version.data.accounting.lock();
            let (own_bytes, referenced_bytes) =
                (accounting.fresh_bytes, accounting.page_bytes + accounting.node_bytes);
            drop(accounting);
            let (path, limits) = (version.name.clone(), limits(&version.properties));
            let logical_bytes = version.data.logical_bytes();
            datasets.insert(id, DatasetSpace { path, limits, own_bytes, referenced_bytes, logical_bytes });
        }
        for version in self.versions.values() {
            if let Some(dataset) = version.snapshot_of().and_then(|of| datasets.get_mut(&of)) {
                dataset.own_bytes += version.data.accounting.lock().fresh_bytes;
            }
        }
        datasets
    }

    fn is_bounded(&self) -> bool {
        self.datasets().any(|(_, version)| limits(&version.properties) != Limits::default())
    }

    /// Returns the datasets after `ops`, as far as these can exceed a bound.
    fn after(&self, datasets: &SpaceByDataset, ops: &[CatalogueOp<'_>]) -> SpaceByDataset {
        let mut after = datasets.clone();
        let mut properties: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
        for op in ops {
            match *op {
                CatalogueOp::Create { id, name, .. } | CatalogueOp::Clone { id, name, .. } => {
                    after.insert(id, DatasetSpace { path: name.into(), ..DatasetSpace::default() });
                }
                CatalogueOp::Destroy { id } => drop(after.remove(&id)),
                CatalogueOp::Property { id, name, value } if is_bound(name) => {
                    let of = properties.entry(id).or_insert_with(|| {
                        self.versions.get(&id).map(|version| version.properties.clone()).unwrap_or_default()
                    });
                    match value {
                        Some(value) => drop(of.insert(name.into(), value.into())),
                        None => drop(of.remove(name)),
                    }
                    if let Some(dataset) = after.get_mut(&id) {
                        dataset.limits = limits(of);
                    }
                }
                CatalogueOp::Promote { dataset } => self.promoted(&mut after, dataset),
                CatalogueOp::Rename { id, name } => {
                    let before = after.get(&id).map(|dataset| dataset.path.clone());
                    let Some(before) = before else { continue };
                    for dataset in after.values_mut() {
                        let rest = dataset.path.strip_prefix(before.as_str());
                        if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                            dataset.path = format!("{name}{rest}");
                        }
                    }
                }
                CatalogueOp::Snapshot { .. }
                | CatalogueOp::Rollback { .. }
                | CatalogueOp::Property { .. }
                | CatalogueOp::Hold { .. } => {}
            }
        }
        after
    }

    /// Moves the bytes of the snapshots that a promotion hands over, from one dataset to the other.
    fn promoted(&self, datasets: &mut SpaceByDataset, dataset: u64) {
        let Some(origin) = self.origin(dataset) else { return };
        let Some(from) = self.versions.get(&origin).and_then(super::catalogue::Version::snapshot_of) else {
            return;
        };
        let (mut at, mut bytes) = (origin, 0);
        while let Some(version) = self.versions.get(&at).filter(|version| version.snapshot_of() == Some(from))
        {
            bytes += version.data.accounting.lock().fresh_bytes;
            at = version.prev;
        }
        if let Some(dataset) = datasets.get_mut(&from) {
            dataset.own_bytes = dataset.own_bytes.saturating_sub(bytes);
        }
        if let Some(dataset) = datasets.get_mut(&dataset) {
            dataset.own_bytes += bytes;
        }
    }

    /// Returns an error if `ops` would exceed a bound by more than it is exceeded already, or would reserve more than
    /// the pool has left.
    pub(super) fn check_bounds(&self, ops: &[CatalogueOp<'_>], shared: &Shared) -> Result<()> {
        let mut reserves = false;
        let mut moves = false;
        for op in ops {
            match op {
                CatalogueOp::Property { name, .. } if is_bound(name) => reserves = true,
                CatalogueOp::Rename { .. } | CatalogueOp::Promote { .. } => moves = true,
                _ => {}
            }
        }
        if !(reserves || moves && self.is_bounded()) {
            return Ok(());
        }
        let before = self.space_by_dataset();
        let after = self.after(&before, ops);
        let (was, is) = (balance(&before), balance(&after));
        for ((id, bound), excess) in &is.excess {
            let Some(dataset) = after.get(id) else { continue };
            if *excess > was.excess.get(&(*id, *bound)).copied().unwrap_or(0) {
                let name = if dataset.path.is_empty() { "the pool's own dataset" } else { &dataset.path };
                let limit =
                    dataset.limits.quotas().find(|(other, _)| other == bound).map_or(0, |(_, limit)| limit);
                let needed = limit.saturating_add(*excess);
                return Err(Error::NoSpace(format!(
                    "the {} of {name} would be {limit} bytes, and {needed} bytes count against it",
                    bound.name()
                )));
            }
        }
        let kept = |balance: &Balance| balance.charged_bytes.saturating_sub(balance.stored_bytes);
        // Bytes that these operations unreference will be free.
        let going = was.stored_bytes.saturating_sub(is.stored_bytes);
        let used = shared.segments.used_bytes().saturating_sub(going);
        let left = shared.bounds.get().capacity_bytes.saturating_sub(used);
        if kept(&is) > kept(&was) && kept(&is) > left {
            return Err(Error::NoSpace(format!(
                "reservations would keep {} bytes free, and the pool has {left} bytes",
                kept(&is)
            )));
        }
        Ok(())
    }

    /// Makes the budgets of all datasets anew. The caller holds the log's lock and the gate's write side, or is opening
    /// the pool.
    pub(super) fn rebudget(&self, shared: &Shared) {
        let had = |data: &crate::dataset::LiveDataset| data.budget().is_some();
        if !self.is_bounded() && !self.datasets().any(|(_, version)| had(&version.data)) {
            return;
        }
        shared.reserved_bytes.store(0, Ordering::Release);
        let datasets = self.space_by_dataset();
        let mut budgets: BTreeMap<u64, Arc<Budget>> = BTreeMap::new();
        for (id, above) in in_order(&datasets) {
            let Some(dataset) = datasets.get(&id) else { continue };
            let above = above.and_then(|above| budgets.get(&above)).cloned();
            if above.is_some() || dataset.limits != Limits::default() {
                let (path, limits) = (dataset.path.clone(), dataset.limits);
                budgets.insert(id, Budget::new(path, limits, above, &shared.reserved_bytes));
            }
        }
        for (id, version) in &self.versions {
            let is_own = version.kind == VersionKind::Dataset;
            let budget = budgets.get(&version.snapshot_of().unwrap_or(*id));
            let follower = budget.map(|budget| Follower { budget: Arc::clone(budget), is_own });
            version.data.accounting.lock().follow(follower);
            if is_own {
                version.data.set_budget(budget.cloned());
            }
        }
    }
}

impl Pool {
    /// Returns the use of each quota, counting what is committed or accepted. Accepted changes are counted as if
    /// nothing became shorter.
    pub fn quotas(&self) -> Vec<QuotaUse> {
        let catalogue = self.catalogue.read();
        let mut found = Vec::new();
        for (id, version) in catalogue.datasets() {
            let Some(budget) = version.data.budget() else { continue };
            found.extend(budget.limits.quotas().map(|(bound, limit_bytes)| QuotaUse {
                id,
                path: budget.path.clone(),
                bound,
                limit_bytes,
                used_bytes: budget.held(bound),
            }));
        }
        found
    }
}
