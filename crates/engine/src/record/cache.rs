//! Cache of records as they are stored: compressed, so that it holds several times its size in pages; and, in memory of its
//! budget that nothing else uses, of pages that are read again and again.

mod doorkeeper;
mod pages;
mod records;
mod region;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::types::{Addr, AddrHashing};
use doorkeeper::Doorkeeper;
pub use pages::Page;
use pages::PageCache;
pub use records::Record;
use records::Records;

/// The budget is shared out in so many steps: a cache is resized when a step was used up, not with each record.
const STEPS: u64 = 64;

/// Bounded, scan-resistant cache of stored records by address.
///
/// A record read once does not displace those read again. Records never change at their address,
/// so that an entry is never stale; it is only removed to make room early, when its address has died.
///
/// The budget is of real memory, the map's own included. Records come first. What
/// they and others ([`RecordCache::set_elsewhere`]) leave of it holds decoded pages that were read again, so that a
/// set much smaller than the budget is read without decoding; they give way as soon as records need the room.
pub struct RecordCache {
    records: Records,
    pages: PageCache,
    /// What was offered before, by scans, and by others.
    scanned: Doorkeeper,
    offered: Doorkeeper,
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

impl RecordCache {
    /// A cache of at most `budget_bytes`, overhead included. With 0 it holds nothing.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Self {
        let cache = Self {
            records: Records::new(budget_bytes),
            pages: PageCache::new(budget_bytes),
            scanned: Doorkeeper::new(budget_bytes),
            offered: Doorkeeper::new(budget_bytes),
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
    pub fn get(&self, addr: Addr) -> Option<Record> {
        let found = self.records.get(addr);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }

    /// Whether the record at `addr` is held; this is no use of it.
    #[must_use]
    pub fn has(&self, addr: Addr) -> bool {
        self.records.has(addr)
    }

    /// The record at `addr`, if it is held, for what is no application's read: not counted as one.
    #[must_use]
    pub fn at_hand(&self, addr: Addr) -> Option<Record> {
        self.records.get(addr)
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

    /// Holds a copy of `record` for `addr`, as far as there is room.
    pub fn insert(&self, addr: Addr, record: &[u8]) {
        self.hold(addr, record, self.offered.knows(AddrHashing::default().hash_one(addr)));
    }

    fn hold(&self, addr: Addr, record: &[u8], again: bool) {
        self.records.insert(addr, record, again);
        let bytes = record.len() as u64;
        let step = self.budget_bytes.load(Relaxed) / STEPS;
        if self.fresh_bytes.fetch_add(bytes, Relaxed).saturating_add(bytes) >= step / 2 {
            self.settle();
        }
    }

    /// Holds a copy of a record that a scan has read, if one has read it before: most scans never come again, and whoever
    /// reads a megabyte at a time keeps it himself.
    pub fn insert_scanned(&self, addr: Addr, record: &[u8]) {
        if self.scanned.knows(AddrHashing::default().hash_one(addr)) {
            self.hold(addr, record, false);
        }
    }

    /// Forgets `addr`.
    pub fn remove(&self, addr: Addr) {
        self.records.remove(addr);
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
        self.records.weigh();
        // Up to a step comes in before this is done again.
        let spare = may_hold.saturating_sub(self.records.bytes()).saturating_sub(step);
        self.pages.resize(spare - spare % step);
    }

    /// What the cache has done and holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let (pages, page_bytes) = self.pages.held();
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            records: self.records.len(),
            pages,
            bytes: self.records.bytes() + page_bytes,
            page_bytes,
            capacity_bytes: *self.settled.lock(),
        }
    }
}
