//! Keeps lists of the records that died since the page of the segment table with their segment was stored.
//!
//! Random overwrites kill a record here and there in all of a pool. A checkpoint that stored every page on which
//! something died would write a page of 64 entries for each of them. So it stores the dead records themselves, a few
//! bytes each. It stores a page only when many of its records died, or when more than that has changed of its entries.

use std::collections::BTreeMap;

use super::entry::PageIds;
use crate::Ptr;

/// Bytes that a dead record takes where it is stored: the usual number, and the largest.
const DEAD_BYTES: u64 = 8;
const DEAD_BYTES_MAX: u64 = 15;
/// A page is stored again when its dead, which each checkpoint stores, take more than its length divided by this.
const PAGE_PART: u64 = 8;
/// Largest number of dead records that checkpoints keep: 4 MiB of memory, and about 2 MiB in each checkpoint.
const KEPT_MAX: u64 = 256 << 10;
/// Number of dead records, with those that died since the last checkpoint, at which one is due: 8 MiB of memory.
const DUE: u64 = 2 * KEPT_MAX;
/// Bytes of pages that a checkpoint may store whatever died, for each segment that shares a page.
const REWRITTEN_BYTES_MIN: u64 = 4 << 10;

/// Returns the most bytes of pages that a checkpoint stores because of records that died. `fresh` of these died since
/// the last checkpoint, and all pages take `table_bytes`. By storing so much, of the pages with most dead, a checkpoint
/// gets rid of as many dead as came.
pub(super) fn rewritten_bytes_max(fresh: u64, table_bytes: u64, ids: PageIds) -> u64 {
    let least = REWRITTEN_BYTES_MIN * u64::from(ids.get());
    fresh.saturating_mul(DEAD_BYTES * PAGE_PART + table_bytes / KEPT_MAX).saturating_add(least)
}

/// Returns the bytes that a checkpoint is promised for each record that died, if all pages take `table_bytes`.
pub(super) const fn promised_bytes(table_bytes: u64) -> u64 {
    DEAD_BYTES * PAGE_PART + table_bytes / KEPT_MAX + DEAD_BYTES_MAX
}

/// Returns the most bytes that a checkpoint stores because `fresh` records died: of pages, and of the dead themselves,
/// beside those that were kept before.
pub(super) fn stored_bytes_max(fresh: u64, table_bytes: u64, ids: PageIds) -> u64 {
    rewritten_bytes_max(fresh, table_bytes, ids).saturating_add(fresh.saturating_mul(DEAD_BYTES_MAX))
}

/// The dead records of a page.
#[derive(Debug, Default)]
struct OfPage {
    ptrs: Vec<Ptr>,
    /// Number of them that had died by the last checkpoint before the latest of them died, and the number of that
    /// checkpoint.
    settled: usize,
    checkpoint: u64,
}

impl OfPage {
    /// Returns the number of those that died since `checkpoint`, which has to be the last one.
    fn fresh(&self, checkpoint: u64) -> u64 {
        if self.checkpoint == checkpoint { (self.ptrs.len() - self.settled) as u64 } else { 0 }
    }
}

/// The dead records of all pages.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    pages: BTreeMap<u64, OfPage>,
    count: u64,
    /// Number of records that died since the last checkpoint.
    fresh: u64,
    /// Number of checkpoints so far.
    checkpoints: u64,
}

impl Deaths {
    /// Notes that a record of a segment of `page` died. Returns the number of that page's records that died since the
    /// last checkpoint.
    pub(super) fn push(&mut self, page: u64, ptr: Ptr) -> u64 {
        let dead = self.pages.entry(page).or_default();
        if dead.checkpoint != self.checkpoints {
            (dead.checkpoint, dead.settled) = (self.checkpoints, dead.ptrs.len());
        }
        dead.ptrs.push(ptr);
        self.count += 1;
        self.fresh += 1;
        dead.fresh(self.checkpoints)
    }

    /// Returns the dead records of a page.
    pub(super) fn of(&self, page: u64) -> &[Ptr] {
        self.pages.get(&page).map_or(&[], |dead| dead.ptrs.as_slice())
    }

    /// Returns true if so many are kept that a checkpoint is due.
    pub(super) const fn are_many(&self) -> bool {
        self.count >= DUE
    }

    /// Returns the pages that have dead records.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    /// Returns the number of records that died since the last checkpoint.
    pub(super) const fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Notes that a checkpoint stores all that is kept.
    pub(super) const fn settle(&mut self) {
        self.fresh = 0;
        self.checkpoints += 1;
    }

    /// Forgets the dead of a page, since the page itself is to be stored: nothing is promised for them any more.
    pub(super) fn forget(&mut self, page: u64) {
        if let Some(dead) = self.pages.remove(&page) {
            self.count -= dead.ptrs.len() as u64;
            self.fresh -= dead.fresh(self.checkpoints);
        }
    }

    /// Returns the pages to be stored anew, of those for which `may` is true, those with most dead first, until they
    /// take `most_bytes`. A page is chosen if its dead are many for the bytes that it is stored in (`stored_bytes`),
    /// and any page as long as too many dead are kept. `page_bytes` is the most that a page takes.
    pub(super) fn heavy(
        &self,
        may: &dyn Fn(u64) -> bool,
        stored_bytes: &dyn Fn(u64) -> Option<u32>,
        page_bytes: &dyn Fn(u64) -> u64,
        most_bytes: u64,
    ) -> Vec<u64> {
        let candidates = self.pages.iter().filter(|(page, _)| may(**page));
        let mut by_dead: Vec<(u64, u64)> =
            candidates.map(|(page, dead)| (dead.ptrs.len() as u64, *page)).collect();
        by_dead.sort_unstable_by(|a, b| b.cmp(a));
        let (mut kept, mut bytes, mut pages) = (self.count, 0, Vec::new());
        for (dead, page) in by_dead {
            let many = dead * DEAD_BYTES * PAGE_PART;
            if kept <= KEPT_MAX && stored_bytes(page).is_some_and(|stored| many <= stored.into()) {
                continue;
            }
            bytes += page_bytes(page);
            if bytes > most_bytes {
                break;
            }
            kept -= dead;
            pages.push(page);
        }
        pages
    }

    /// Returns all dead records, ascending by address.
    pub(super) fn sorted(&self) -> Vec<Ptr> {
        let mut all: Vec<Ptr> = self.pages.values().flat_map(|dead| &dead.ptrs).copied().collect();
        all.sort_unstable_by_key(|ptr| ptr.addr);
        all
    }

    /// Returns the memory that they take, in bytes: lists that are three quarters full, and their entries in nodes of a
    /// map.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.count * size_of::<Ptr>() as u64 * 4 / 3 + self.pages.len() as u64 * 80
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addr;

    fn dead(page: u64, count: u32) -> Deaths {
        let mut deaths = Deaths::default();
        for slot in 0..count {
            deaths.push(page, Ptr { addr: Addr::new(page * 64 + 1, slot), len_bytes: 100 });
        }
        deaths
    }

    #[test]
    fn pages_are_stored_again_for_many_dead() {
        let mut deaths = dead(3, 20);
        let none = [] as [u64; 0];
        let heavy = |stored, most| deaths.heavy(&|_| true, &|_| stored, &|_| 5000, most);
        assert_eq!(heavy(Some(20 * 64), 9000), none);
        assert_eq!(heavy(Some(20 * 64 - 1), 9000), [3]);
        assert_eq!(heavy(Some(20 * 64 - 1), 4999), none);
        // A page that is not stored yet is stored for any dead.
        assert_eq!(heavy(None, 9000), [3]);
        assert_eq!((deaths.sorted().len(), deaths.fresh()), (20, 20));
        deaths.settle();
        let ptr = |slot| Ptr { addr: Addr::new(3 * 64 + 1, slot), len_bytes: 100 };
        assert_eq!((deaths.push(3, ptr(20)), deaths.push(3, ptr(21)), deaths.fresh()), (1, 2, 2));
        deaths.forget(3);
        assert_eq!((deaths.sorted().len(), deaths.count, deaths.fresh()), (0, 0, 0));
        assert_eq!(deaths.memory_bytes(), 0);
    }

    /// Overwrites at random, in a pool where the kept dead are a small part of all records: what is stored for them and
    /// what is kept are bounded.
    #[test]
    fn no_more_are_kept_than_may_be() {
        let (pages, page_bytes) = (40_000_u64, 20_000_u64);
        let mut deaths = Deaths::default();
        let mut state = 1_u64;
        let mut slot = 0;
        for round in 0..200 {
            for _ in 0..2500 {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let page = (state >> 33) % pages;
                slot += 1;
                deaths.push(page, Ptr { addr: Addr::new(page * 64 + 1, slot), len_bytes: 100 });
            }
            let most = rewritten_bytes_max(deaths.fresh(), pages * page_bytes, PageIds::default());
            let heavy = deaths.heavy(&|_| true, &|_| Some(20_000), &|_| page_bytes, most);
            let written = heavy.len() as u64 * page_bytes;
            assert!(written <= most && most < 10 << 20, "{written} of {most}");
            heavy.iter().for_each(|page| deaths.forget(*page));
            deaths.settle();
            assert!(deaths.count <= KEPT_MAX + 2500, "{} in round {round}", deaths.count);
        }
        assert!(deaths.count > KEPT_MAX - 2500);
        assert_eq!(deaths.sorted().len() as u64, deaths.count);
        assert!(deaths.sorted().is_sorted_by_key(|ptr| ptr.addr));
    }
}
