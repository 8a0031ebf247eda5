//! Accounts for the memory of an open pool, by kind, and shares out its budget.
//!
//! Two sums are bounded. Counted memory is bounded by the budget, since the record cache has what all others leave.
//! Resident memory is bounded by the budget and [`RESIDENT_BESIDE_BYTES`], since the caches give room up as long as
//! more is resident.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::Journal;
use crate::device::{free_idle, kept_bytes};
use crate::memory::Beside;

/// Overhead of the allocator, as one part in this many of the counted memory whose sizes change all the time: with ten
/// million pages written at random the server was 100 MiB above the sum of what is counted (0011).
const ALLOCATOR_SHARE: u64 = 6;
/// Bytes of kept request buffers that do not count against the budget, as buffers of device reads do not: both have
/// bounds that a small cache could not pay. (Buffers of device reads belong to the whole process, too: simulated
/// histories must not depend on who else runs.)
const REQUESTS_BESIDE_BYTES: u64 = 16 << 20;
/// Inodes take at most one part in this many of the budget.
const INODES_SHARE: u64 = 16;
/// Records have at least one part in this many of the budget.
const RECORDS_SHARE: u64 = 8;
/// Largest parts of the budget, in sixteenths, of tree nodes that are stored, and of directories of segments. A page in
/// memory saves the request that reads it, and a leaf or a directory one for each of a thousand pages. A leaf that is
/// dropped is found among the records, and a directory is not.
const NODES_PART: u64 = 4;
const DIRECTORIES_PART: u64 = 6;
/// Part of the budget, in sixteenths, that directories may take whatever others do.
const DIRECTORIES_PART_MIN: u64 = 2;
/// The same for models, and for entries of the segment table.
const MODELS_PART: u64 = 2;
const TABLE_PART: u64 = 4;
/// Each of these may have so many bytes, however small the budget is.
const PART_BYTES_MIN: u64 = 1 << 20;
/// Bytes that may be resident beside the budget before the caches give room up: the program, its threads, and memory
/// that the allocator cannot give back. This is 72 MiB less than the promised 128 MiB, because memory grows between two
/// measurements.
const RESIDENT_BESIDE_BYTES: u64 = 56 << 20;

/// Bounds in bytes of what is kept in memory beside records, of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheBounds {
    /// Of tree nodes that are stored.
    pub nodes: u64,
    /// Of directories of segments.
    pub directories: u64,
    /// Of models.
    pub models: u64,
    /// Of entries of the segment table.
    pub table: u64,
}

impl CacheBounds {
    /// Returns the bounds while others leave room for all.
    pub(super) fn of(budget_bytes: u64) -> Self {
        let part = |sixteenths: u64| budget_bytes / 16 * sixteenths;
        Self {
            nodes: part(NODES_PART),
            directories: part(DIRECTORIES_PART),
            models: part(MODELS_PART),
            table: part(TABLE_PART),
        }
    }

    /// Returns the bounds while others than directories use `others_bytes` of the budget.
    fn beside(budget_bytes: u64, others_bytes: u64) -> Self {
        let all = Self::of(budget_bytes);
        let left = (budget_bytes - budget_bytes / RECORDS_SHARE).saturating_sub(others_bytes);
        // The allocator takes some more for them.
        let left = left / (ALLOCATOR_SHARE + 1) * ALLOCATOR_SHARE;
        let directories = left.max(budget_bytes / 16 * DIRECTORIES_PART_MIN).min(all.directories);
        let least = |bytes: u64| bytes.max(PART_BYTES_MIN);
        Self { nodes: least(all.nodes), directories: least(directories), ..all }
    }
}

/// Bytes in memory for an open pool, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that all kinds may take together.
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
    /// Buffers of device reads, kept for the next read.
    pub device_buffers_bytes: u64,
    /// Inodes.
    pub inodes_bytes: u64,
    /// Buffers of requests.
    pub requests_bytes: u64,
    /// Resident bytes of the process, as the system reports them, without files and the journal; 0 if nobody measures.
    pub resident_bytes: u64,
    /// Bytes that the caches give up because more was resident than may be.
    pub given_up_bytes: u64,
}

impl MemoryUse {
    /// Returns the sum of all counted kinds.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        self.records_bytes + self.pages_bytes + self.beside_records()
    }

    /// Returns the bytes that are resident and not counted: the program, its threads, and what the allocator has not
    /// given back.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.counted_bytes() - self.journal_bytes)
    }

    /// Returns the counted bytes that consist of many allocations that come and go.
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

    /// Returns the bytes of the budget that the record cache has to leave to others.
    fn elsewhere(&self) -> u64 {
        let buffers = self.device_buffers_bytes + self.requests_bytes;
        let more_buffers = self.requests_bytes.saturating_sub(REQUESTS_BESIDE_BYTES);
        let rest = self.beside_records() - buffers + more_buffers;
        rest + self.changing() / ALLOCATOR_SHARE + self.given_up_bytes
    }

    /// Returns the bounds of what is kept beside records.
    fn bounds(&self) -> CacheBounds {
        let own = self.directories_bytes + self.directories_bytes / ALLOCATOR_SHARE;
        CacheBounds::beside(self.budget_bytes, self.elsewhere().saturating_sub(own))
    }
}

/// Returns the bytes that the caches are to give up from now on; so far they gave up `before`. The process has
/// `resident_bytes` in memory and a budget of `budget_bytes`.
///
/// The result grows as long as too much is resident: the memory of what caches drop lies between what they keep, and
/// not all of it can be given back to the system. It shrinks slowly, so that it does not swing. It is at most half of
/// the budget, so that memory of others does not take the caches down altogether.
fn to_give_up(before: u64, resident_bytes: u64, budget_bytes: u64) -> u64 {
    let allowed = budget_bytes.saturating_add(RESIDENT_BESIDE_BYTES);
    if resident_bytes > allowed {
        return before.saturating_add(resident_bytes - allowed).min(budget_bytes / 2);
    }
    before.saturating_sub(((allowed - resident_bytes) / 8).min(before / 64 + (32 << 10)))
}

impl Pool {
    /// Gauges of memory that the engine does not count itself: whoever takes such memory counts it here.
    pub fn beside(&self) -> &Arc<Beside> {
        &self.beside
    }

    /// Returns the memory of the pool, by kind.
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

    /// Shares the budget out anew, with `bytes` resident in the process now, files and the journal not counted. To be
    /// called a few times a second.
    pub fn observe_resident(&self, bytes: u64) {
        self.beside.resident.set(bytes);
        free_idle();
        let given_up =
            to_give_up(self.given_up.load(Ordering::Relaxed), bytes, self.shared.cache.budget_bytes());
        self.given_up.store(given_up, Ordering::Relaxed);
        self.settle_caches();
    }

    /// Sets the memory budget of the caches, in bytes. What bounds changes before they are in a checkpoint follows from
    /// the budget at opening.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.shared.cache.resize(bytes);
        let bounds = CacheBounds::of(bytes);
        self.shared.models.set_memory_bound(bounds.models);
        self.shared.segments.set_table_bound(bounds.table);
        self.settle_caches();
    }

    /// Bounds nodes and directories, and leaves to the record cache what others do not take of the memory budget.
    pub(super) fn settle_caches(&self) {
        let used = self.memory();
        let bounds = used.bounds();
        self.beside.inodes.set_bound(used.budget_bytes / INODES_SHARE);
        self.nodes.set_bound(bounds.nodes);
        self.shared.segments.set_directories_bound(bounds.directories);
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
        // Here the resident memory stays the same, whatever the caches give up.
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
    fn directories_have_what_others_leave() {
        let budget = 512 * MIB;
        let of = |others: u64| {
            let bounds = CacheBounds::beside(budget, others);
            (bounds.nodes / MIB, bounds.directories / MIB)
        };
        assert_eq!(of(0), (128, 192));
        assert_eq!(of(224 * MIB), (128, 192));
        assert_eq!(of(300 * MIB), (128, 126));
        // They never have less than an eighth.
        assert_eq!((of(400 * MIB), of(9000 * MIB)), ((128, 64), (128, 64)));
        let least = CacheBounds::beside(0, 0);
        assert_eq!((least.nodes, least.directories), (PART_BYTES_MIN, PART_BYTES_MIN));
    }

    #[test]
    fn what_directories_use_themselves_leaves_their_bound_as_it_is() {
        let used = MemoryUse { budget_bytes: 512 * MIB, nodes_bytes: 128 * MIB, ..MemoryUse::default() };
        let full = MemoryUse { directories_bytes: used.bounds().directories, ..used };
        assert_eq!(full.bounds(), used.bounds());
        // All fits beside an eighth for the records.
        assert!(full.elsewhere() <= used.budget_bytes - used.budget_bytes / RECORDS_SHARE);
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
