//! Holds decoded pages, in memory that nothing else needs.
//!
//! Pages lie one behind the other in regions. The oldest region is dropped as a whole, when records need the room or
//! when new pages do. No page leaves a hole, so all memory that is given back returns to the system. A page that is
//! still wanted comes again with its next reads.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

use super::region::{Filler, Region};
use crate::types::{Addr, AddrHashing};

/// Longest page that is held. Readers of longer ones do not come again for a single page.
const PAGE_BYTES_MAX: usize = 64 << 10;
/// Smallest and largest region. The largest is a huge page.
const REGION_BYTES: (u64, u64) = (64 << 10, 2 << 20);
/// Largest number of regions of a budget, for small budgets.
const REGIONS: u64 = 32;
/// The map takes at most this part (one divided by this) of a region for its pages: 64 bytes for each 4 KiB.
const OVERHEAD: u64 = 64;
/// Once there is no room left, one page of this number that are offered takes the place of others. If the set of pages
/// is larger than the room, copying each page in would cost more than decoding.
const OFFERS_PER_CHANGE: u64 = 16;
/// Number of parts of the map, each with its own lock: enough that threads rarely meet in one.
const SHARDS: usize = 64;

/// Where a page lies.
#[derive(Clone, Debug)]
struct PageLocation {
    region: Arc<Region>,
    start: u32,
    len_bytes: u32,
}

/// A decoded page. Its region stays in memory as long as this does.
#[derive(Debug)]
pub(crate) struct CachedPage(PageLocation);

impl Deref for CachedPage {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: slots are made of what `Filler::push` returned for the region, in `PageCache::offer`.
        unsafe { self.0.region.bytes(self.0.start as usize, self.0.len_bytes as usize) }
    }
}

/// A region in use, and the addresses of the pages that were put into it.
struct PageRegion {
    filler: Filler,
    addrs: Vec<Addr>,
}

/// Pages by the address of their record.
pub(super) struct PageCache {
    shards: Vec<RwLock<HashMap<Addr, PageLocation, AddrHashing>>>,
    region_bytes: u64,
    capacity_bytes: AtomicU64,
    offers: AtomicU64,
    /// True if there is no room for another region.
    full: AtomicBool,
    /// Regions, oldest first. Only the last is being filled.
    regions: Mutex<VecDeque<PageRegion>>,
}

impl PageCache {
    /// Creates a cache of a budget of `bytes_max`. It holds nothing before [`PageCache::resize`].
    pub(super) fn new(bytes_max: u64) -> Self {
        let region_bytes = (bytes_max / REGIONS).next_power_of_two().clamp(REGION_BYTES.0, REGION_BYTES.1);
        Self {
            shards: std::iter::repeat_with(RwLock::default).take(SHARDS).collect(),
            region_bytes,
            capacity_bytes: 0.into(),
            offers: 0.into(),
            full: false.into(),
            regions: Mutex::default(),
        }
    }

    fn shard(&self, addr: Addr) -> &RwLock<HashMap<Addr, PageLocation, AddrHashing>> {
        // By the slot, since neighbours are often read together. The hash is of no use here: its low bits choose the
        // place within the shard.
        &self.shards[addr.slot() as usize % SHARDS]
    }

    pub(super) fn get(&self, addr: Addr) -> Option<CachedPage> {
        if self.capacity_bytes.load(Relaxed) == 0 {
            return None;
        }
        self.shard(addr).read().get(&addr).cloned().map(CachedPage)
    }

    /// Returns the bytes that a region takes, its part of the map included.
    fn cost(&self) -> u64 {
        self.region_bytes + self.region_bytes / OVERHEAD
    }

    /// Holds a copy of `page` if there is room; if not, one offer in [`OFFERS_PER_CHANGE`] takes the place of older
    /// pages.
    pub(super) fn offer(&self, addr: Addr, page: &[u8]) {
        let capacity = self.capacity_bytes.load(Relaxed);
        if capacity < self.cost() || page.len() > PAGE_BYTES_MAX.min(self.region_bytes as usize) {
            return;
        }
        let offer = self.offers.fetch_add(1, Relaxed);
        if self.full.load(Relaxed) && !offer.is_multiple_of(OFFERS_PER_CHANGE) {
            return;
        }
        let mut regions = self.regions.lock();
        let Some(slot) = self.place(&mut regions, addr, page) else { return };
        // This happens under the lock of the regions, so that whoever drops the region finds the entry.
        self.shard(addr).write().insert(addr, slot);
    }

    /// Copies a page to the last region, or to a new one.
    fn place(&self, regions: &mut VecDeque<PageRegion>, addr: Addr, page: &[u8]) -> Option<PageLocation> {
        for _ in 0..2 {
            if let Some(last) = regions.back_mut()
                && let Some(start) = last.filler.push(page)
            {
                last.addrs.push(addr);
                let region = Arc::clone(last.filler.region());
                return Some(PageLocation { region, start: start as u32, len_bytes: page.len() as u32 });
            }
            self.shrink(regions, 1);
            if self.capacity_bytes.load(Relaxed) < (regions.len() as u64 + 1) * self.cost() {
                return None;
            }
            let filler = Filler::new(self.region_bytes as usize).ok()?;
            regions.push_back(PageRegion { filler, addrs: Vec::new() });
            let another = (regions.len() as u64 + 1) * self.cost();
            self.full.store(self.capacity_bytes.load(Relaxed) < another, Relaxed);
        }
        None
    }

    /// Drops the oldest regions until there is room for `more` of them.
    fn shrink(&self, regions: &mut VecDeque<PageRegion>, more: u64) {
        let capacity = self.capacity_bytes.load(Relaxed);
        while (regions.len() as u64 + more) * self.cost() > capacity {
            let Some(oldest) = regions.pop_front() else { return };
            for addr in oldest.addrs {
                let mut shard = self.shard(addr).write();
                if shard.get(&addr).is_some_and(|slot| Arc::ptr_eq(&slot.region, oldest.filler.region())) {
                    shard.remove(&addr);
                }
            }
        }
    }

    /// Drops the page at `addr`.
    pub(super) fn remove(&self, addr: Addr) {
        self.shard(addr).write().remove(&addr);
    }

    /// Changes the number of bytes that may be held, and drops what is too much.
    pub(super) fn resize(&self, capacity_bytes: u64) {
        if self.capacity_bytes.swap(capacity_bytes, Relaxed) == capacity_bytes {
            return;
        }
        let mut regions = self.regions.lock();
        self.shrink(&mut regions, 0);
        if regions.is_empty() {
            self.shards.iter().for_each(|shard| shard.write().shrink_to_fit());
        }
        let another = (regions.len() as u64 + 1) * self.cost();
        self.full.store(capacity_bytes < another, Relaxed);
    }

    /// Returns the number of pages held, and the bytes that they take.
    pub(super) fn held(&self) -> (u64, u64) {
        let pages = self.shards.iter().map(|shard| shard.read().len() as u64).sum();
        (pages, self.regions.lock().len() as u64 * self.cost())
    }
}
