//! Cache of records as they are stored: compressed, so that it holds several times its size in pages; and, in memory of its
//! budget that nothing else uses, of pages that are read again and again.

mod doorkeeper;
mod pages;
mod region;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::memory::allocated_bytes;
use crate::types::{Addr, AddrHashing};
use doorkeeper::Doorkeeper;
pub use pages::Page;
use pages::PageCache;

/// What an entry takes beside its record: the map's slot and entry, and their spare room.
const OVERHEAD_BYTES: u64 = 96;
/// Reference counts, in the same allocation as the record.
const COUNTS_BYTES: u64 = 16;
/// Expected length of a record, to size the map.
const TYPICAL_BYTES: u64 = 2 << 10;
/// Smallest shard: several of the longest records fit, so that none is refused for its length alone.
const SHARD_BYTES: u64 = 8 << 20;
/// Most shards: enough that threads rarely meet in one.
const SHARDS_MAX: u64 = 32;
/// The budget is shared out in so many steps: a cache is resized when a step was used up, not with each record.
const STEPS: u64 = 64;

/// Bounded, scan-resistant cache of stored records by address.
///
/// A record read once does not displace those read again (CLOCK-PRO). Records never change at their address,
/// so that an entry is never stale; it is only removed to make room early, when its address has died.
///
/// The budget is of real memory, the allocator's rounding and the map's own included. Records come first. What
/// they and others ([`RecordCache::set_elsewhere`]) leave of it holds decoded pages that were read again, so that a
/// set much smaller than the budget is read without decoding; they give way as soon as records need the room.
pub struct RecordCache {
    records: Cache<Addr, Arc<[u8]>, ByBytes, AddrHashing>,
    pages: PageCache,
    scanned: Doorkeeper,
    budget_bytes: AtomicU64,
    elsewhere_bytes: AtomicU64,
    /// Bytes that came in since the shares were settled.
    fresh_bytes: AtomicU64,
    /// Held by the one who settles the shares: how many bytes `records` may hold as of now.
    settled: Mutex<u64>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found their record, or its page.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Records held.
    pub records: u64,
    /// Decoded pages held.
    pub pages: u64,
    /// Bytes held, overhead included.
    pub bytes: u64,
    /// Bytes that decoded pages take of these.
    pub page_bytes: u64,
    /// Bytes that may be held.
    pub capacity_bytes: u64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Addr, Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &Addr, record: &Arc<[u8]>) -> u64 {
        allocated_bytes(record.len() as u64 + COUNTS_BYTES) + OVERHEAD_BYTES
    }
}

/// Shards of a cache of `capacity_bytes`.
fn shards(capacity_bytes: u64) -> usize {
    (capacity_bytes / SHARD_BYTES).clamp(1, SHARDS_MAX) as usize
}

impl RecordCache {
    /// A cache of at most `budget_bytes`, overhead included. With 0 it holds nothing.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Self {
        let items = (budget_bytes / TYPICAL_BYTES).max(16) as usize;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(budget_bytes)
            .shards(shards(budget_bytes))
            .build();
        let (hashing, lifecycle) = (AddrHashing::default(), DefaultLifecycle::default());
        let records = match options {
            Ok(options) => Cache::with_options(options, ByBytes, hashing, lifecycle),
            // Only said where a required option is missing; none is.
            Err(_) => Cache::with(items, budget_bytes, ByBytes, hashing, lifecycle),
        };
        let cache = Self {
            records,
            pages: PageCache::new(budget_bytes),
            scanned: Doorkeeper::new(budget_bytes),
            budget_bytes: budget_bytes.into(),
            elsewhere_bytes: 0.into(),
            fresh_bytes: 0.into(),
            settled: Mutex::new(budget_bytes),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        cache.settle();
        cache
    }

    /// The record at `addr`, if it is held.
    #[must_use]
    pub fn get(&self, addr: Addr) -> Option<Arc<[u8]>> {
        let found = self.records.get(&addr);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }

    /// Whether the record at `addr` is held; this is no use of it.
    #[must_use]
    pub fn has(&self, addr: Addr) -> bool {
        self.records.peek(&addr).is_some()
    }

    /// The record at `addr`, if it is held, for what is no application's read: not counted as one.
    #[must_use]
    pub fn at_hand(&self, addr: Addr) -> Option<Arc<[u8]>> {
        self.records.get(&addr)
    }

    /// The decoded page of `page_bytes` whose record is at `addr`, if it is held. Absence is no miss: the record may be
    /// held.
    #[must_use]
    pub fn page(&self, addr: Addr, page_bytes: usize) -> Option<Page> {
        let page = self.pages.get(addr).filter(|page| page.len() == page_bytes)?;
        self.hits.fetch_add(1, Relaxed);
        Some(page)
    }

    /// Offers the decoded page of a record that was held: it is kept if there is room that records do not need.
    pub fn offer_page(&self, addr: Addr, page: &[u8]) {
        self.pages.offer(addr, page);
    }

    /// Holds `record` for `addr`, as far as there is room.
    pub fn insert(&self, addr: Addr, record: Arc<[u8]>) {
        let weight = ByBytes.weight(&addr, &record);
        self.records.insert(addr, record);
        let step = self.budget_bytes.load(Relaxed) / STEPS;
        if self.fresh_bytes.fetch_add(weight, Relaxed).saturating_add(weight) >= step / 2 {
            self.settle();
        }
    }

    /// Holds a copy of a record that a scan has read, if one has read it before: most scans never come again, and whoever
    /// reads a megabyte at a time keeps it himself.
    pub fn insert_scanned(&self, addr: Addr, record: &[u8]) {
        if self.scanned.knows(AddrHashing::default().hash_one(addr)) {
            self.insert(addr, record.into());
        }
    }

    /// Forgets `addr`.
    pub fn remove(&self, addr: Addr) {
        self.records.remove(&addr);
        self.pages.remove(addr);
    }

    /// Changes how many bytes may be held, and drops what is too much.
    pub fn resize(&self, budget_bytes: u64) {
        self.budget_bytes.store(budget_bytes, Relaxed);
        self.settle();
    }

    /// Bytes that may be held with what others use.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Relaxed)
    }

    /// Says how many bytes of the budget others use as of now. At least an eighth of it stays with the records.
    pub fn set_elsewhere(&self, bytes: u64) {
        self.elsewhere_bytes.store(bytes, Relaxed);
        self.settle();
    }

    /// Shares the budget out anew: what others use is theirs, the rest the records', and what these do not fill the pages'.
    fn settle(&self) {
        let mut settled = self.settled.lock();
        self.fresh_bytes.store(0, Relaxed);
        let budget = self.budget_bytes.load(Relaxed);
        let step = (budget / STEPS).max(1);
        let elsewhere = self.elsewhere_bytes.load(Relaxed).next_multiple_of(step).min(budget - budget / 8);
        let may_hold = budget - elsewhere;
        if *settled != may_hold {
            *settled = may_hold;
            self.records.set_capacity(may_hold);
        }
        // Up to a step comes in before this is done again.
        let spare = may_hold.saturating_sub(self.records.weight()).saturating_sub(step);
        self.pages.resize(spare - spare % step);
    }

    /// What the cache has done and holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let (pages, page_bytes) = self.pages.held();
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            records: self.records.len() as u64,
            pages,
            bytes: self.records.weight() + page_bytes,
            page_bytes,
            capacity_bytes: *self.settled.lock(),
        }
    }
}
