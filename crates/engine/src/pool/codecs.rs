//! Brings the property `compression` into force: a dataset has its own, or that of the nearest dataset above.
//!
//! [`Pool::set_compression`](super::Pool::set_compression) sets the pool's own, which holds if no dataset on the way
//! has one.

use std::collections::BTreeMap;

use super::catalogue::{Catalogue, Version};
use super::quotas::place;
use crate::record::Compression;

/// Name of the property.
const COMPRESSION: &str = "compression";

/// Returns the value that a dataset has itself; `None` for a value of a later version.
fn own(version: &Version) -> Option<Compression> {
    let value = version.properties.get(COMPRESSION)?;
    value.parse().inspect_err(|error| tracing::error!(%error, dataset = version.name, "unknown codec")).ok()
}

impl Catalogue {
    /// Tells all datasets and snapshots how they are compressed. The caller holds the log's lock and the gate's write
    /// side, or is opening the pool. Returns true if any of them is compressed otherwise from now on.
    pub(super) fn inherit_compression(&self) -> bool {
        let set: BTreeMap<String, Compression> = self
            .datasets()
            .filter(|(_, version)| !version.name.is_empty())
            .filter_map(|(_, version)| Some((place(&version.name), own(version)?)))
            .collect();
        let nearest = |name: &str| {
            let place = place(name);
            let mut at = Some(place.as_str());
            while let Some(here) = at {
                if let Some(found) = set.get(here) {
                    return Some(*found);
                }
                at = here.rsplit_once('/').map(|(above, _)| above);
            }
            None
        };
        let mut differs = false;
        for version in self.versions.values() {
            let of = version.snapshot_of().and_then(|of| self.versions.get(&of)).unwrap_or(version);
            differs |= version.data.set_compression(nearest(&of.name));
        }
        differs
    }
}
