//! Decides how much memory the caches of a pool may take where its owner leaves that to us (`cache=auto`).
//!
//! They take up to half of the memory of the machine, or of the tightest control group, and leave some of it free: if others
//! want more, the caches give way, as the kernel's page cache does (decision 0068).

use std::sync::Arc;

use pagefold_engine::pool::{CACHE_BYTES_DEFAULT, Pool};
use parking_lot::Mutex;

use super::spare_memory::{Memory, SpareMemory};
use crate::cache_size::{CACHE_BYTES_MIN, CacheSize};

/// Part of the memory that the caches take at most, one in this many.
const MOST_SHARE: u64 = 2;
/// Part of the memory that is left free, one in this many ...
const FREE_SHARE: u64 = 32;
/// ... but at least so many bytes, or one part in [`FREE_SHARE_MOST`] if that is less: others can take much in the time
/// between two looks.
const FREE_BYTES_MIN: u64 = 64 << 20;
const FREE_SHARE_MOST: u64 = 8;
/// Part of the page cache that counts as in use, one in this many: if pages of it are read again that were dropped, and
/// if not.
const HOT_SHARE: u64 = 2;
const COLD_SHARE: u64 = 8;
/// The page cache is hot if more than one part in so many of the memory is read again between two looks.
const REFAULTED_SHARE: u64 = 16 << 10;
const PAGE_BYTES: u64 = 4096;
/// Numbers of looks for which a page cache is taken for hot at first and at most. Each time that it turns hot again soon,
/// that is doubled, so that the caches do not grow and shrink all the time.
const HOT_LOOKS: (u32, u32) = (100, 6000);
/// Part of the memory, one in this many, for which the tables of an opened pool are laid out, at most
/// [`CACHE_BYTES_DEFAULT`].
const OPENING_SHARE: u64 = 8;
/// Smallest budget, in bytes.
const LEAST_BYTES: u64 = 32 << 20;
/// Resident memory that is not of the caches: program, threads, buffers.
const BESIDE_BYTES: u64 = 48 << 20;
/// A budget that differs by less than one part in this many stays as it is.
const STEP: u64 = 64;

/// Returns the budget in bytes with which a pool is opened, whose tree nodes, directories and models have bounds that do
/// not change while it is open.
pub(super) fn at_opening(wanted: Option<CacheSize>) -> u64 {
    match wanted {
        Some(CacheSize::Bytes(bytes)) => bytes,
        Some(CacheSize::Auto) | None => {
            let all = SpareMemory::find().and_then(|found| found.read());
            opening_budget(&all.unwrap_or_default())
        }
    }
}

fn opening_budget(all: &[Memory]) -> u64 {
    let share = all.iter().map(|memory| memory.total_bytes / OPENING_SHARE).min();
    share.unwrap_or(CACHE_BYTES_DEFAULT).clamp(CACHE_BYTES_MIN, CACHE_BYTES_DEFAULT)
}

/// The page cache of some memory.
#[derive(Clone, Copy, Debug, Default)]
struct PageCache {
    refaults: u64,
    /// Number of looks for which it is still taken for hot, and for which it will be next time.
    hot: u32,
    next: u32,
    /// Number of looks since it was hot.
    cold: u32,
}

impl PageCache {
    /// Takes note of what was read again since the last look.
    fn look(&mut self, memory: &Memory) {
        let read_again = (memory.refaults - self.refaults.min(memory.refaults)) * PAGE_BYTES;
        self.refaults = memory.refaults;
        if read_again > memory.total_bytes / REFAULTED_SHARE {
            if self.hot == 0 {
                let doubled = self.next.saturating_mul(2).min(HOT_LOOKS.1);
                self.next = if self.cold > HOT_LOOKS.1 { HOT_LOOKS.0 } else { doubled.max(HOT_LOOKS.0) };
                self.cold = 0;
            }
            self.hot = self.next;
        } else if self.hot > 0 {
            self.hot -= 1;
        } else {
            self.cold = self.cold.saturating_add(1);
        }
    }

    const fn in_use(&self, memory: &Memory) -> u64 {
        memory.page_cache_bytes / if self.hot > 0 { HOT_SHARE } else { COLD_SHARE }
    }
}

/// Memory as it was found at the last look.
#[derive(Clone, Copy, Debug)]
struct SeenMemory {
    memory: Memory,
    page_cache: PageCache,
}

impl SeenMemory {
    fn new(memory: Memory) -> Self {
        Self { memory, page_cache: PageCache { refaults: memory.refaults, ..PageCache::default() } }
    }

    /// Returns the bytes that could be had now.
    fn free(&self) -> u64 {
        self.memory.available_bytes.saturating_sub(self.page_cache.in_use(&self.memory))
    }

    /// Returns the bytes that are left free.
    fn reserve(&self) -> u64 {
        let total = self.memory.total_bytes;
        (total / FREE_SHARE).max(FREE_BYTES_MIN.min(total / FREE_SHARE_MOST))
    }
}

/// Returns the budget in bytes, with `resident_bytes` resident in this process.
fn budget(all: &[SeenMemory], resident_bytes: u64) -> Option<u64> {
    let held = resident_bytes.saturating_sub(BESIDE_BYTES);
    let of = |seen: &SeenMemory| {
        (held + seen.free()).saturating_sub(seen.reserve()).min(seen.memory.total_bytes / MOST_SHARE)
    };
    all.iter().map(of).min().map(|bytes| bytes.max(LEAST_BYTES))
}

/// The budget of an open pool's caches.
pub(super) struct CacheBudget {
    pool: Arc<Pool>,
    wanted: Mutex<CacheSize>,
    /// That of the machine, and of the control groups.
    seen: Mutex<Vec<SeenMemory>>,
}

impl CacheBudget {
    /// Creates one that is decided here until something else is wanted.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, wanted: Mutex::new(CacheSize::Auto), seen: Mutex::default() }
    }

    /// Sets the size. One in bytes holds at once, and `auto` from the next look on.
    pub(super) fn set(&self, wanted: CacheSize) {
        let mut now = self.wanted.lock();
        *now = wanted;
        if let CacheSize::Bytes(bytes) = wanted {
            self.pool.set_cache_bytes(bytes);
        }
    }

    /// Returns true if the budget follows the memory that is free.
    pub(super) fn is_auto(&self) -> bool {
        *self.wanted.lock() == CacheSize::Auto
    }

    /// Returns true if so little memory is free that others may want more before the next look, and the caches have some to
    /// give.
    pub(super) fn is_short(&self) -> bool {
        let is_short = |seen: &SeenMemory| seen.free() < seen.memory.total_bytes / FREE_SHARE_MOST;
        let can_give = || self.pool.memory().budget_bytes > LEAST_BYTES + LEAST_BYTES / STEP;
        self.is_auto() && self.seen.lock().iter().any(is_short) && can_give()
    }

    /// Follows the memory that is free, if that is wanted. `resident_bytes` are resident in this process. `turn` is true
    /// for the looks by which the page cache is judged.
    pub(super) fn follow(&self, all: &[Memory], resident_bytes: u64, turn: bool) {
        // Locked until the end, so that a size in bytes that is set meanwhile stays.
        let wanted = self.wanted.lock();
        if *wanted != CacheSize::Auto {
            return;
        }
        let mut seen = self.seen.lock();
        // Groups are another number if the server was moved.
        if seen.len() != all.len() {
            *seen = all.iter().copied().map(SeenMemory::new).collect();
        }
        for (seen, memory) in seen.iter_mut().zip(all) {
            seen.memory = *memory;
            if turn {
                seen.page_cache.look(memory);
            }
        }
        let now = self.pool.memory().budget_bytes;
        if let Some(bytes) = budget(&seen, resident_bytes).filter(|bytes| bytes.abs_diff(now) > now / STEP) {
            self.pool.set_cache_bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(total_mib: u64, available_mib: u64, page_cache_mib: u64) -> Memory {
        let (total_bytes, available_bytes) = (total_mib * MIB, available_mib * MIB);
        Memory { total_bytes, available_bytes, page_cache_bytes: page_cache_mib * MIB, refaults: 0 }
    }

    fn budget_mib(all: &[Memory], hot: u32, resident_mib: u64) -> u64 {
        let page_cache = PageCache { hot, ..PageCache::default() };
        let all: Vec<_> = all.iter().map(|memory| SeenMemory { memory: *memory, page_cache }).collect();
        budget(&all, resident_mib * MIB).unwrap() / MIB
    }

    #[test]
    fn caches_take_half_of_what_there_is_and_give_way() {
        assert_eq!(budget_mib(&[memory(24_576, 23_000, 0)], 0, 100), 12_288);
        // A 32nd stays free: of 3,200 MiB 100, and 500 are free with 600 in the caches.
        assert_eq!(budget_mib(&[memory(3200, 500, 0)], 0, 648), 1000);
        // Others want it.
        assert_eq!(budget_mib(&[memory(3200, 50, 0)], 0, 648), 550);
        assert_eq!(budget_mib(&[memory(3200, 0, 0)], 0, 148), 32);
        // Of little memory more stays free, but no more than an eighth.
        assert_eq!(budget_mib(&[memory(1024, 200, 0)], 0, 148), 236);
        assert_eq!(budget_mib(&[memory(256, 100, 0)], 0, 148), 128);
        assert_eq!(budget_mib(&[memory(256, 20, 0)], 0, 148), 88);
        // The tightest counts.
        assert_eq!(budget_mib(&[memory(24_576, 20_000, 0), memory(3200, 500, 0)], 0, 648), 1000);
        assert_eq!(budget_mib(&[memory(24_576, 1000, 0), memory(3200, 3200, 0)], 0, 648), 832);
    }

    #[test]
    fn page_cache_is_spared_while_it_is_read_again() {
        assert_eq!(budget_mib(&[memory(3200, 500, 400)], 1, 648), 800);
        assert_eq!(budget_mib(&[memory(3200, 500, 400)], 0, 648), 950);
        let mut page_cache = PageCache::default();
        let mut refaults = 0;
        let mut look = |more: u64| {
            refaults += more;
            page_cache.look(&Memory { refaults, ..memory(1024, 0, 0) });
            page_cache.hot > 0
        };
        assert!(!look(16));
        let looks_until_cold = |look: &mut dyn FnMut(u64) -> bool| {
            assert!(look(17));
            (1..).find(|_| !look(0)).unwrap_or(0)
        };
        assert_eq!([(); 3].map(|()| looks_until_cold(&mut look)), [100, 200, 400]);
        // After a long time it begins anew, and it has an end.
        (0..=HOT_LOOKS.1).for_each(|_| assert!(!look(0)));
        let turns: Vec<u32> = (0..8).map(|_| looks_until_cold(&mut look)).collect();
        assert_eq!(turns, [100, 200, 400, 800, 1600, 3200, 6000, 6000]);
    }

    #[test]
    fn a_budget_that_gave_way_stays_where_it_is() {
        // Memory that the caches give up becomes free, so the next look finds the same.
        let (mut resident, mut free) = (1048, 50);
        for _ in 0..3 {
            let next = budget_mib(&[memory(3200, free, 0)], 0, resident) + 48;
            free += resident - next;
            resident = next;
            assert_eq!((resident, free), (950 + 48, 100));
        }
    }

    #[test]
    fn small_machines_open_with_less() {
        let memory = |total_mib| memory(total_mib, 100, 0);
        assert_eq!(opening_budget(&[memory(24_576)]), CACHE_BYTES_DEFAULT);
        assert_eq!(opening_budget(&[memory(24_576), memory(512)]), 64 * MIB);
        assert_eq!(opening_budget(&[memory(16)]), CACHE_BYTES_MIN);
        assert_eq!(opening_budget(&[]), CACHE_BYTES_DEFAULT);
    }
}
