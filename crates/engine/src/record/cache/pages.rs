//! Decoded pages, in memory that nothing else needs.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::{COUNTS_BYTES, OVERHEAD_BYTES, allocated_bytes, shards};
use crate::types::{Addr, AddrHashing};

/// Longer pages are not held: their readers are not those who come again for a single page.
const PAGE_BYTES_MAX: usize = 64 << 10;
/// Expected length of a page, to size the map.
const TYPICAL_BYTES: u64 = 8 << 10;
/// Once there is no room left, one page of so many that are offered takes another's place: where a set is larger than the room,
/// copying each page in would cost more than decoding.
const OFFERS_PER_CHANGE: u64 = 16;
/// How often, in offers, it is found out whether there is room.
const OFFERS_PER_LOOK: u64 = 64;

/// A decoded page. The bytes are an allocation of their own, so that a page of a power of two takes no more than that.
#[derive(Debug)]
pub struct Page(Box<[u8]>);

impl Deref for Page {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Addr, Arc<Page>> for ByBytes {
    fn weight(&self, _: &Addr, page: &Arc<Page>) -> u64 {
        allocated_bytes(page.len() as u64) + 2 * COUNTS_BYTES + OVERHEAD_BYTES
    }
}

/// Pages by the address of their record.
pub(super) struct PageCache {
    pages: Cache<Addr, Arc<Page>, ByBytes, AddrHashing>,
    capacity_bytes: AtomicU64,
    offers: AtomicU64,
    full: AtomicBool,
}

impl PageCache {
    /// A cache that will hold at most `bytes_max`; nothing before [`PageCache::resize`].
    pub(super) fn new(bytes_max: u64) -> Self {
        let items = (bytes_max / TYPICAL_BYTES).max(16) as usize;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes_max)
            .ghost_allocation(0.0)
            .shards(shards(bytes_max))
            .build();
        let (hashing, lifecycle) = (AddrHashing::default(), DefaultLifecycle::default());
        let pages = match options {
            Ok(options) => Cache::with_options(options, ByBytes, hashing, lifecycle),
            // Only said where a required option is missing; none is.
            Err(_) => Cache::with(items, bytes_max, ByBytes, hashing, lifecycle),
        };
        Self { pages, capacity_bytes: 0.into(), offers: 0.into(), full: false.into() }
    }

    pub(super) fn get(&self, addr: Addr) -> Option<Arc<Page>> {
        if self.capacity_bytes.load(Relaxed) == 0 { None } else { self.pages.get(&addr) }
    }

    /// Holds a copy of `page` if there is room, or sometimes.
    pub(super) fn offer(&self, addr: Addr, page: &[u8]) {
        let capacity = self.capacity_bytes.load(Relaxed);
        if capacity == 0 || page.len() > PAGE_BYTES_MAX {
            return;
        }
        let offer = self.offers.fetch_add(1, Relaxed);
        if offer.is_multiple_of(OFFERS_PER_LOOK) {
            let room = capacity.saturating_sub(self.pages.weight());
            self.full.store(room < capacity / 32, Relaxed);
        }
        if offer.is_multiple_of(OFFERS_PER_CHANGE) || !self.full.load(Relaxed) {
            self.pages.insert(addr, Arc::new(Page(page.into())));
        }
    }

    pub(super) fn remove(&self, addr: Addr) {
        self.pages.remove(&addr);
    }

    /// Changes how many bytes may be held, and drops what is too much.
    pub(super) fn resize(&self, capacity_bytes: u64) {
        if self.capacity_bytes.swap(capacity_bytes, Relaxed) != capacity_bytes {
            self.pages.set_capacity(capacity_bytes);
        }
    }

    /// Pages held, and the bytes that they take.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.pages.len() as u64, self.pages.weight())
    }
}
