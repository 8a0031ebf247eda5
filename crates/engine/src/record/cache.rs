//! Caches records as they are stored: compressed, so that it holds several times its size in pages. Memory of its
//! budget that nothing else uses holds pages that are read again and again.

mod ahead;
mod doorkeeper;
mod frequencies;
mod pages;
mod records;
mod region;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::types::{Addr, AddrHashing};
use ahead::AheadRecords;
use doorkeeper::Doorkeeper;
pub(crate) use pages::CachedPage;
use pages::PageCache;
pub use records::Record;
use records::RecordMap;

/// Number of steps in which the budget is shared out: a cache is resized when a step was used up, not with each record.
const STEPS: u64 = 64;

/// A bounded, scan-resistant cache of stored records by address.
///
/// A record read once does not displace those read again. Records never change at their address, so an entry is never
/// stale.
///
/// The budget is of real memory, with that of the map. Records come first. What they and others
/// ([`RecordCache::set_elsewhere`]) leave of it holds decoded pages that were read again, so that a set of pages much
/// smaller than the budget is read without decoding. Pages give way as soon as records need the room.
pub(crate) struct RecordCache {
    records: RecordMap,
    pages: PageCache,
    ahead: AheadRecords,
    /// Addresses that scans have offered before.
    scanned: Doorkeeper,
    budget_bytes: AtomicU64,
    elsewhere_bytes: AtomicU64,
    /// Bytes of records that came in since the shares were last settled.
    fresh_bytes: AtomicU64,
    /// Number of bytes that `records` may hold as of now. Its lock is held by whoever settles the shares.
    settled: Mutex<u64>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Figures of what a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCacheStats {
    /// Number of lookups that found their record, or its page.
    pub hits: u64,
    /// Number of lookups that did not.
    pub misses: u64,
    /// Number of records held.
    pub records: u64,
    /// Number of decoded pages held.
    pub pages: u64,
    /// Bytes held, overhead included.
    pub bytes: u64,
    /// Bytes of these that decoded pages take.
    pub page_bytes: u64,
    /// Bytes that may be held.
    pub capacity_bytes: u64,
}

impl RecordCache {
    /// Creates a cache of at most `budget_bytes`, overhead included. With 0 it holds nothing.
    #[must_use]
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let cache = Self {
            records: RecordMap::new(budget_bytes),
            pages: PageCache::new(budget_bytes),
            ahead: AheadRecords::default(),
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

    /// Returns the record at `addr`, if it is held.
    #[must_use]
    pub(crate) fn get(&self, addr: Addr) -> Option<Record> {
        let found = self.records.get(addr).or_else(|| self.ahead.get(addr));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }

    /// Returns true if the record at `addr` is held. This does not count as a request for it.
    #[must_use]
    pub(crate) fn has(&self, addr: Addr) -> bool {
        self.records.has(addr)
    }

    /// Returns the record at `addr`, if it is held, without counting a hit or a miss: for reads that no application has
    /// asked for.
    #[must_use]
    pub(crate) fn at_hand(&self, addr: Addr) -> Option<Record> {
        self.records.at_hand(addr)
    }

    /// Returns the decoded page of `page_bytes` whose record is at `addr`, if it is held. Absence does not count as a
    /// miss, since the record may be held.
    #[must_use]
    pub(crate) fn page(&self, addr: Addr, page_bytes: usize) -> Option<CachedPage> {
        let page = self.pages.get(addr).filter(|page| page.len() == page_bytes)?;
        self.hits.fetch_add(1, Relaxed);
        Some(page)
    }

    /// Offers the decoded page of a record that was held. It is kept if there is room that records do not need.
    pub(crate) fn offer_page(&self, addr: Addr, page: &[u8]) {
        self.pages.offer(addr, page);
    }

    /// Holds a copy of `record` for `addr`, if there is room.
    pub(crate) fn insert(&self, addr: Addr, record: &[u8]) {
        self.records.insert(addr, record);
        let bytes = record.len() as u64;
        let step = self.budget_bytes.load(Relaxed) / STEPS;
        if self.fresh_bytes.fetch_add(bytes, Relaxed).saturating_add(bytes) >= step / 2 {
            self.settle();
        }
    }

    /// Holds a copy of a record that a scan has read, if a scan has read it before. Most scans never come again, and
    /// whoever reads a megabyte at a time keeps it himself.
    pub(crate) fn insert_scanned(&self, addr: Addr, record: &[u8]) {
        if self.scanned.knows(AddrHashing::default().hash_one(addr)) {
            self.insert(addr, record);
        }
    }

    /// Holds a copy of a record that nobody has asked for yet, but that is likely to be asked for soon. It displaces no
    /// record that was asked for.
    pub(crate) fn insert_ahead(&self, addr: Addr, record: &[u8]) {
        self.ahead.insert(addr, record, self.budget_bytes.load(Relaxed));
    }

    /// Drops all records that were not asked for: some of them may have been coded again.
    pub(crate) fn drop_ahead(&self) {
        self.ahead.clear();
    }

    /// Says that whoever asked for the record at `before` will ask for that at `now` from now on.
    pub(crate) fn succeed(&self, before: Addr, now: Addr) {
        self.records.succeed(before, now);
    }

    /// Drops the record and the page at `addr`, which nobody will ask for again.
    pub(crate) fn remove(&self, addr: Addr) {
        self.records.remove(addr);
        self.pages.remove(addr);
    }

    /// Changes the number of bytes that may be held, and drops what is too much.
    pub(crate) fn resize(&self, budget_bytes: u64) {
        self.budget_bytes.store(budget_bytes, Relaxed);
        self.settle();
    }

    /// Returns the bytes that may be held, with those that others use.
    #[must_use]
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Relaxed)
    }

    /// Sets the number of bytes of the budget that others use as of now. At least an eighth of it stays with the
    /// records.
    pub(crate) fn set_elsewhere(&self, bytes: u64) {
        self.elsewhere_bytes.store(bytes, Relaxed);
        self.settle();
    }

    /// Shares the budget out anew: others have what they use, records the rest, and pages what records do not fill.
    fn settle(&self) {
        let mut settled = self.settled.lock();
        self.fresh_bytes.store(0, Relaxed);
        let budget = self.budget_bytes.load(Relaxed);
        let step = (budget / STEPS).max(1);
        let elsewhere = self.elsewhere_bytes.load(Relaxed) + self.ahead.bytes();
        let elsewhere = elsewhere.next_multiple_of(step).min(budget - budget / 8);
        let may_hold = budget - elsewhere;
        if *settled != may_hold {
            *settled = may_hold;
            self.records.set_capacity(may_hold);
        }
        self.records.weigh();
        // Up to a step of records comes in before this is done again.
        let spare = may_hold.saturating_sub(self.records.bytes()).saturating_sub(step);
        self.pages.resize(spare - spare % step);
    }

    /// Returns what the cache has done and holds.
    #[must_use]
    pub(crate) fn stats(&self) -> RecordCacheStats {
        let (pages, page_bytes) = self.pages.held();
        RecordCacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            records: self.records.len(),
            pages,
            bytes: self.records.bytes() + page_bytes + self.ahead.bytes(),
            page_bytes,
            capacity_bytes: *self.settled.lock(),
        }
    }
}
