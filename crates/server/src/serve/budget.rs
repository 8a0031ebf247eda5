//! Decides how much memory the caches of a pool may take where its owner leaves that to us (`cache=auto`).
//!
//! They take up to half of the memory of the machine, or of the tightest control group, and leave an eighth of it free:
//! if others want more, the caches give way, as the kernel's page cache does (decision 0068).

use std::sync::Arc;

use pagefold_engine::pool::{CACHE_BYTES_DEFAULT, Pool};
use parking_lot::Mutex;

use super::spare_memory::{Memory, SpareMemory};
use crate::cache_size::{CACHE_BYTES_MIN, CacheSize};

/// Part of the memory that the caches take at most, one in this many.
const MOST_SHARE: u64 = 2;
/// Part of the memory that is left free, one in this many.
const FREE_SHARE: u64 = 8;
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

/// Returns the budget in bytes, with `resident_bytes` resident in this process.
fn budget(all: &[Memory], resident_bytes: u64) -> Option<u64> {
    let held = resident_bytes.saturating_sub(BESIDE_BYTES);
    let of = |memory: &Memory| {
        let free = memory.total_bytes / FREE_SHARE;
        (held + memory.free_bytes).saturating_sub(free).min(memory.total_bytes / MOST_SHARE)
    };
    all.iter().map(of).min().map(|bytes| bytes.max(LEAST_BYTES))
}

/// The budget of an open pool's caches.
pub(super) struct CacheBudget {
    pool: Arc<Pool>,
    wanted: Mutex<CacheSize>,
}

impl CacheBudget {
    /// Creates one that is decided here until something else is wanted.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, wanted: Mutex::new(CacheSize::Auto) }
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

    /// Follows the memory that is free, if that is wanted. `resident_bytes` are resident in this process.
    pub(super) fn follow(&self, all: &[Memory], resident_bytes: u64) {
        // Locked until the end, so that a size in bytes that is set meanwhile stays.
        let wanted = self.wanted.lock();
        if *wanted != CacheSize::Auto {
            return;
        }
        let now = self.pool.memory().budget_bytes;
        if let Some(bytes) = budget(all, resident_bytes).filter(|bytes| bytes.abs_diff(now) > now / STEP) {
            self.pool.set_cache_bytes(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(total_mib: u64, free_mib: u64) -> Memory {
        Memory { total_bytes: total_mib * MIB, free_bytes: free_mib * MIB }
    }

    #[test]
    fn caches_take_half_of_what_there_is_and_give_way() {
        let budget = |all: &[Memory], resident_mib: u64| budget(all, resident_mib * MIB).unwrap() / MIB;
        assert_eq!(budget(&[memory(24_576, 23_000)], 100), 12_288);
        // An eighth stays free: of 1,600 MiB 200, and 500 are free with 600 in the caches.
        assert_eq!(budget(&[memory(1600, 500)], 648), 800);
        assert_eq!(budget(&[memory(1600, 300)], 648), 700);
        // Others want it.
        assert_eq!(budget(&[memory(1600, 50)], 648), 450);
        assert_eq!(budget(&[memory(1600, 0)], 148), 32);
        // The tightest counts.
        assert_eq!(budget(&[memory(24_576, 20_000), memory(1600, 300)], 648), 700);
        assert_eq!(budget(&[memory(24_576, 3072), memory(1600, 1600)], 648), 600);
    }

    #[test]
    fn a_budget_that_gave_way_stays_where_it_is() {
        // Memory that the caches give up becomes free, so the next look finds the same.
        let (mut resident, mut free) = (1048, 50);
        for _ in 0..3 {
            let next = budget(&[memory(2400, free)], resident * MIB).unwrap() / MIB + 48;
            free += resident - next;
            resident = next;
            assert_eq!((resident, free), (750 + 48, 300));
        }
    }

    #[test]
    fn small_machines_open_with_less() {
        assert_eq!(opening_budget(&[memory(24_576, 100)]), CACHE_BYTES_DEFAULT);
        assert_eq!(opening_budget(&[memory(24_576, 100), memory(512, 100)]), 64 * MIB);
        assert_eq!(opening_budget(&[memory(16, 1)]), CACHE_BYTES_MIN);
        assert_eq!(opening_budget(&[]), CACHE_BYTES_DEFAULT);
    }
}
