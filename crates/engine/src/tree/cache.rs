//! Keeps clean nodes in memory, for all trees of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::node::Node;
use super::unstored::{NodeBytes, UnstoredTotals};
use crate::limits::NODE_BYTES;
use crate::memory::is_other_bound;
use crate::types::{Addr, AddrHashing};
use crate::{Error, Result};

/// A cache of decoded clean nodes by address, bounded in bytes and scan-resistant.
///
/// An address is never used twice and a stored node never changes. So an entry is never wrong, only useless once its
/// node has been freed.
pub struct NodeCache {
    nodes: Cache<Addr, Arc<Node>, Footprint, AddrHashing>,
    hits: AtomicU64,
    misses: AtomicU64,
    unstored: UnstoredTotals,
}

/// Figures of what a [`NodeCache`] holds and how well it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCacheStats {
    /// Number of nodes held.
    pub nodes: u64,
    /// Memory that these take, in bytes.
    pub used_bytes: u64,
    /// Bound of that memory, in bytes.
    pub capacity_bytes: u64,
    /// Number of nodes that were found since the cache was made. Lookups that meet only changed nodes do not count.
    pub hits: u64,
    /// Number of nodes that had to be loaded.
    pub misses: u64,
}

#[derive(Clone)]
struct Footprint;

impl Weighter<Addr, Arc<Node>> for Footprint {
    fn weight(&self, _: &Addr, node: &Arc<Node>) -> u64 {
        // The cache's own entry takes 64 bytes: key, value, links and its place in a table.
        node.footprint_bytes() as u64 + 64
    }
}

impl NodeCache {
    /// Creates a cache of at most `capacity_bytes` of nodes, as they are in memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a capacity for which no cache can be made.
    pub fn new(capacity_bytes: u64) -> Result<Self> {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((capacity_bytes / NODE_BYTES as u64).max(64) as usize)
            .weight_capacity(capacity_bytes)
            // This does not depend on the number of processors, so that a simulation runs alike everywhere.
            .shards(16)
            .build()
            .map_err(|e| Error::Invalid(format!("node cache of {capacity_bytes} bytes: {e}")))?;
        let nodes =
            Cache::with_options(options, Footprint, AddrHashing::default(), DefaultLifecycle::default());
        Ok(Self {
            nodes,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            unstored: UnstoredTotals::default(),
        })
    }

    /// Sets the bytes of nodes that it may hold, as they are in memory.
    pub(crate) fn set_bound(&self, bytes: u64) {
        if is_other_bound(bytes, self.nodes.capacity()) {
            self.nodes.set_capacity(bytes);
        }
    }

    /// Returns what it holds.
    pub(crate) fn stats(&self) -> NodeCacheStats {
        NodeCacheStats {
            nodes: self.nodes.len() as u64,
            used_bytes: self.nodes.weight(),
            capacity_bytes: self.nodes.capacity(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }

    /// Returns the memory of the nodes that the next checkpoint writes, of all trees that use this cache, in bytes.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.unstored.dirty.get().memory
    }

    /// Returns the memory of all nodes that are not stored yet, those that a checkpoint is writing included, in bytes.
    /// [`NodeCache::stats`] counts none of them.
    pub(crate) fn unstored_bytes(&self) -> u64 {
        self.unstored_nodes().memory
    }

    /// Returns the size of these nodes in memory, and their size once they are stored.
    pub(crate) fn unstored_nodes(&self) -> NodeBytes {
        let mut bytes = self.unstored.dirty.get();
        bytes += self.unstored.immutable.get();
        bytes
    }

    /// Notes that a checkpoint begins, after all trees were made immutable. Nodes left behind by trees that are gone
    /// now count as immutable, too. Returns the size of all immutable nodes.
    pub(crate) fn make_left_immutable(&self) -> NodeBytes {
        self.unstored.make_left_immutable();
        self.unstored.immutable.get()
    }

    /// Notes that this checkpoint counts, after all trees were settled. The nodes left behind are stored, or nobody has
    /// them any more.
    pub(crate) fn settle_left(&self) {
        self.unstored.settle_left();
    }

    pub(super) fn unstored(&self) -> &UnstoredTotals {
        &self.unstored
    }

    pub(super) fn get(&self, addr: Addr) -> Option<Arc<Node>> {
        self.nodes.get(&addr)
    }

    /// Returns a node without making it stay in the cache longer.
    pub(super) fn peek(&self, addr: Addr) -> Option<Arc<Node>> {
        self.nodes.peek(&addr)
    }

    /// Counts the nodes that one descent found. It is called once per descent, since all cores write here.
    pub(super) fn count_hits(&self, nodes: u64) {
        self.hits.fetch_add(nodes, Ordering::Relaxed);
    }

    /// Returns the node at `addr`. If it is absent it comes from `load`, which one caller runs while the others wait.
    pub(super) fn get_or_load(&self, addr: Addr, load: impl FnOnce() -> Result<Node>) -> Result<Arc<Node>> {
        self.nodes.get_or_insert_with(&addr, || {
            self.misses.fetch_add(1, Ordering::Relaxed);
            load().map(Arc::new)
        })
    }

    pub(super) fn insert(&self, addr: Addr, node: Arc<Node>) {
        self.nodes.insert(addr, node);
    }

    /// Forgets a node that was freed.
    pub(super) fn remove(&self, addr: Addr) {
        self.nodes.remove(&addr);
    }
}
