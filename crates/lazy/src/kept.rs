//! Caches that are bounded by the memory that they take.

use std::hash::Hash;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::limits::TYPICAL_BYTES;

/// Number of shards. It is small because a value heavier than a shard's part is not kept at all, and the longest block
/// has 4 MiB.
const SHARDS: usize = 4;

/// Makes a cache of `bytes` bytes. At most the part `often` of it is for what was wanted again; what was wanted once, or
/// was read ahead, has the rest.
pub(crate) fn kept<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    bytes: u64,
    often: f64,
    weighter: W,
) -> Cache<K, V, W> {
    let items = (bytes / TYPICAL_BYTES) as usize;
    let options = OptionsBuilder::new()
        .estimated_items_capacity(items)
        .weight_capacity(bytes)
        .hot_allocation(often)
        .shards(SHARDS)
        .build();
    let (hashing, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
    match options {
        Ok(options) => Cache::with_options(options, weighter, hashing, lifecycle),
        // This error means that a required option is missing; none is.
        Err(_) => Cache::with(items, bytes, weighter, hashing, lifecycle),
    }
}
