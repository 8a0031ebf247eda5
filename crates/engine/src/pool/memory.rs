//! What an open pool has in memory, by kind, and how its budget is shared out.
//!
//! Two things are bounded: what is counted, by the budget, since the record cache has what all others leave; and what is resident, by the budget and
//! [`RESIDENT_BESIDE_BYTES`], since the caches give room up as long as more is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::Journal;
use crate::device::kept_bytes;
use crate::memory::Beside;

/// What the allocator takes beside what is counted and whose sizes change all the time, as a part of it: with ten million
/// pages written at random the server was 100 MiB above the sum of what is counted (0011).
const ALLOCATOR_SHARE: u64 = 6;
/// Buffers of requests that are kept are beside the budget, as those of device reads are: both have bounds that no small cache could pay. (What device reads
/// keep is of the whole process, too: simulated histories must not depend on who else runs.)
const REQUESTS_BESIDE_BYTES: u64 = 16 << 20;
/// Inodes have at most this part of the budget.
const INODES_SHARE: u64 = 16;
/// The caches give room up when more than this is resident beside the budget: the program, its threads, and memory that the allocator cannot give back.
/// It lies 72 MiB below the promise (128 MiB), because memory grows between two looks.
const RESIDENT_BESIDE_BYTES: u64 = 56 << 20;

/// Bytes in memory for an open pool, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What all of them may take together.
    pub budget_bytes: u64,
    /// Records as they are stored.
    pub records_bytes: u64,
    /// Decoded pages.
    pub pages_bytes: u64,
    /// Tree nodes that are stored.
    pub nodes_bytes: u64,
    /// Tree nodes that a checkpoint will write, or is writing.
    pub changed_nodes_bytes: u64,
    /// Directories of segments.
    pub directories_bytes: u64,
    /// Models of pages.
    pub models_bytes: u64,
    /// Accepted pages and operations that are not in the log yet.
    pub accepted_bytes: u64,
    /// The journal, if another server may follow.
    pub journal_bytes: u64,
    /// Entries of the segment table.
    pub segments_bytes: u64,
    /// Datasets, snapshots, and dead lists as far as they are in memory.
    pub catalogue_bytes: u64,
    /// Buffers of device reads that wait for the next.
    pub device_buffers_bytes: u64,
    /// Inodes.
    pub inodes_bytes: u64,
    /// Buffers of requests.
    pub requests_bytes: u64,
    /// Resident in the process as the system tells, files not counted; 0 where nobody looks.
    pub resident_bytes: u64,
    /// What the caches give up because more was resident than may be.
    pub given_up_bytes: u64,
}

impl MemoryUse {
    /// The sum of what is counted.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        self.records_bytes + self.pages_bytes + self.beside_records()
    }

    /// What is resident and not counted: the program, its threads, and what the allocator has not given back.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.counted_bytes() - self.journal_bytes)
    }

    /// Counted memory of many allocations that come and go.
    fn changing(&self) -> u64 {
        self.nodes_bytes
            + self.changed_nodes_bytes
            + self.directories_bytes
            + self.models_bytes
            + self.accepted_bytes
            + self.inodes_bytes
    }

    fn beside_records(&self) -> u64 {
        self.changing()
            + self.journal_bytes
            + self.segments_bytes
            + self.catalogue_bytes
            + self.device_buffers_bytes
            + self.requests_bytes
    }

    /// What the record cache has to leave of the budget.
    fn elsewhere(&self) -> u64 {
        let buffers = self.device_buffers_bytes + self.requests_bytes;
        let more_buffers = self.requests_bytes.saturating_sub(REQUESTS_BESIDE_BYTES);
        let rest = self.beside_records() - buffers + more_buffers;
        rest + self.changing() / ALLOCATOR_SHARE + self.given_up_bytes
    }
}

/// What the caches are to give up, having given up `before`, of a process that has `resident_bytes` in memory and a budget of `budget_bytes`.
///
/// It grows as long as too much is resident, since what caches drop lies between what they keep, and not all of it can be given back; and shrinks slowly, so that it
/// does not swing. Half of the budget at most: memory that is not the caches' does not take them down altogether.
fn to_give_up(before: u64, resident_bytes: u64, budget_bytes: u64) -> u64 {
    let allowed = budget_bytes.saturating_add(RESIDENT_BESIDE_BYTES);
    if resident_bytes > allowed {
        return before.saturating_add(resident_bytes - allowed).min(budget_bytes / 2);
    }
    before.saturating_sub(((allowed - resident_bytes) / 8).min(before / 64 + (32 << 10)))
}

impl Pool {
    /// What is in memory for the pool beside what the engine counts: to be counted by whoever takes it.
    pub fn beside(&self) -> &Arc<Beside> {
        &self.beside
    }

    /// What is in memory for the pool.
    pub fn memory(&self) -> MemoryUse {
        let cache = self.shared.cache.stats();
        let get = |bytes: &std::sync::atomic::AtomicU64| bytes.load(Ordering::Relaxed);
        MemoryUse {
            budget_bytes: self.shared.cache.budget_bytes(),
            records_bytes: cache.bytes - cache.page_bytes,
            pages_bytes: cache.page_bytes,
            nodes_bytes: self.nodes.stats().used_bytes,
            changed_nodes_bytes: self.nodes.unstored_bytes(),
            directories_bytes: self.shared.segments.directories_bytes(),
            models_bytes: self.shared.models.memory_bytes(),
            accepted_bytes: get(&self.shared.dirty_bytes) + get(&self.shared.redo_bytes),
            journal_bytes: self.shared.journal().map_or(0, Journal::memory_bytes),
            segments_bytes: self.shared.segments.table_bytes() + self.table_pages.memory_bytes(),
            catalogue_bytes: self.catalogue.read().memory_bytes(),
            device_buffers_bytes: kept_bytes(),
            inodes_bytes: self.beside.inodes.bytes(),
            requests_bytes: self.beside.requests.bytes(),
            resident_bytes: self.beside.resident.bytes(),
            given_up_bytes: self.given_up.load(Ordering::Relaxed),
        }
    }

    /// So much is resident in the process now, files and the journal not counted: shares the budget out anew. Called a few times a second.
    pub fn observe_resident(&self, bytes: u64) {
        self.beside.resident.set(bytes);
        let given_up =
            to_give_up(self.given_up.load(Ordering::Relaxed), bytes, self.shared.cache.budget_bytes());
        self.given_up.store(given_up, Ordering::Relaxed);
        self.settle_caches();
    }

    /// Leaves to the record cache what the rest does not take of the memory budget.
    pub(super) fn settle_caches(&self) {
        let used = self.memory();
        self.beside.inodes.set_bound(used.budget_bytes / INODES_SHARE);
        self.shared.cache.set_elsewhere(used.elsewhere());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn caches_give_up_what_is_too_much_and_get_it_back() {
        let budget = 384 * MIB;
        assert_eq!(to_give_up(0, budget + RESIDENT_BESIDE_BYTES, budget), 0);
        let mut given = 0;
        // Each byte that caches give up brings back half a byte.
        let resident = |given: u64| 524 * MIB - given / 2;
        for _ in 0..200 {
            given = to_give_up(given, resident(given), budget);
        }
        assert!(resident(given) <= budget + RESIDENT_BESIDE_BYTES + MIB, "{} MiB", resident(given) / MIB);
        assert!(given <= budget / 2);
        // Nothing that caches do helps.
        for _ in 0..100 {
            given = to_give_up(given, 4096 * MIB, budget);
        }
        assert_eq!(given, budget / 2);
        let mut rounds = 0;
        while given > 0 {
            given = to_give_up(given, 100 * MIB, budget);
            rounds += 1;
        }
        assert!((50..1000).contains(&rounds), "{rounds}");
    }

    #[test]
    fn kinds_add_up() {
        let used = MemoryUse {
            records_bytes: 10,
            nodes_bytes: 60,
            journal_bytes: 5,
            resident_bytes: 100,
            ..MemoryUse::default()
        };
        assert_eq!((used.counted_bytes(), used.other_bytes(), used.elsewhere()), (75, 30, 75));
    }
}
