//! Loads the nodes of trees.

use std::sync::Arc;

use crate::dataset::{PrimaryCache, Shared};
use crate::record::decode_metadata;
use crate::tree::NodeStore;
use crate::{Ptr, Result};

/// Loads tree nodes through the record cache.
pub(super) struct Nodes(pub(super) Arc<Shared>);

impl NodeStore for Nodes {
    fn load(&self, ptr: Ptr) -> Result<Vec<u8>> {
        if let Some(record) = self.0.cache.get(ptr.addr) {
            return decode_metadata(&record);
        }
        let record = self.0.read_record(ptr.addr)?;
        if self.0.primary_cache() != PrimaryCache::None {
            self.0.cache.insert(ptr.addr, &record);
        }
        decode_metadata(&record)
    }
}

#[cfg(test)]
mod tests;
