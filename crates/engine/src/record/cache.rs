//! Cache of records as they are stored: compressed, so that it holds several times its size in pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::types::Addr;

/// What an entry takes beside its record: reference counts, the map's slot and entry, and the allocator's own.
const OVERHEAD_BYTES: u64 = 112;
/// Expected length of a record, to size the map.
const TYPICAL_BYTES: u64 = 2 << 10;
/// Smallest shard: several of the longest records fit, so that none is refused for its length alone.
const SHARD_BYTES: u64 = 8 << 20;
/// Most shards: enough that threads rarely meet in one.
const SHARDS_MAX: u64 = 32;

/// Bounded, scan-resistant cache of stored records by address.
///
/// A record read once does not displace those read again (CLOCK-PRO). Records never change at their address,
/// so that an entry is never stale; it is only removed to make room early, when its address has died.
pub struct RecordCache {
    cache: Cache<Addr, Arc<[u8]>, ByBytes>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found their record.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Records held.
    pub records: u64,
    /// Bytes held, overhead included.
    pub bytes: u64,
    /// Bytes that may be held.
    pub capacity_bytes: u64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Addr, Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &Addr, record: &Arc<[u8]>) -> u64 {
        record.len() as u64 + OVERHEAD_BYTES
    }
}

impl RecordCache {
    /// A cache of at most `capacity_bytes`, overhead included. With 0 it holds nothing.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let items = (capacity_bytes / TYPICAL_BYTES).max(16) as usize;
        let shards = (capacity_bytes / SHARD_BYTES).clamp(1, SHARDS_MAX) as usize;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(capacity_bytes)
            .shards(shards)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByBytes,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            // Only said where a required option is missing; none is.
            Err(_) => Cache::with_weighter(items, capacity_bytes, ByBytes),
        };
        Self { cache, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The record at `addr`, if it is held.
    #[must_use]
    pub fn get(&self, addr: Addr) -> Option<Arc<[u8]>> {
        let found = self.cache.get(&addr);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }

    /// Holds `record` for `addr`, as far as there is room.
    pub fn insert(&self, addr: Addr, record: Arc<[u8]>) {
        self.cache.insert(addr, record);
    }

    /// Forgets `addr`.
    pub fn remove(&self, addr: Addr) {
        self.cache.remove(&addr);
    }

    /// Changes how many bytes may be held, and drops what is too much.
    pub fn resize(&self, capacity_bytes: u64) {
        self.cache.set_capacity(capacity_bytes);
    }

    /// What the cache has done and holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            records: self.cache.len() as u64,
            bytes: self.cache.weight(),
            capacity_bytes: self.cache.capacity(),
        }
    }
}
