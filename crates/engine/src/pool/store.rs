//! Loads the nodes of trees.

use std::sync::Arc;

use crate::dataset::{PrimaryCache, Shared};
use crate::device::{Devices, IoClass};
use crate::record::decode_metadata;
use crate::tree::NodeStore;
use crate::{Ptr, Result};

/// Loads tree nodes through the record cache.
pub(super) struct Nodes {
    shared: Arc<Shared>,
    devices: Devices,
}

impl Nodes {
    /// Makes the source of nodes for all who work on a tree: whoever needs a node waits for it.
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self::of_class(shared, IoClass::SyncRead)
    }

    /// Makes the source for one who walks a tree by requests of another class.
    pub(super) fn of_class(shared: &Arc<Shared>, class: IoClass) -> Self {
        Self { shared: Arc::clone(shared), devices: shared.devices.of_class(class) }
    }
}

impl NodeStore for Nodes {
    fn load(&self, ptr: Ptr) -> Result<Vec<u8>> {
        if let Some(record) = self.shared.cache.get(ptr.addr) {
            return decode_metadata(&record);
        }
        let record = self.shared.read_record_by(&self.devices, ptr.addr)?;
        if self.shared.primary_cache() != PrimaryCache::None {
            self.shared.cache.insert(ptr.addr, &record);
        }
        decode_metadata(&record)
    }
}

#[cfg(test)]
mod tests;
