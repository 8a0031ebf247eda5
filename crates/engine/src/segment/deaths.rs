//! Records that died since the page of the segment table with their segment was stored.
//!
//! Random overwrites kill a record here and there in all of a pool. A checkpoint that stored every page on which something died would write a
//! page of 64 entries for each of them. So it stores the dead records themselves, a few bytes each, and a page only when its dead have become many, or
//! when more has changed of its entries than that.

use std::collections::BTreeMap;

use super::entry::PageIds;
use crate::Ptr;

/// Bytes that a dead record takes where it is stored, about, and at most.
const DEAD_BYTES: u64 = 8;
const DEAD_BYTES_MAX: u64 = 15;
/// A page is stored again when its dead take one part in so many of it: they are stored by each checkpoint.
const PAGE_PART: u64 = 8;
/// Most dead records that are kept: 4 MiB of memory, and about 2 MiB in each checkpoint.
const KEPT_MAX: u64 = 256 << 10;
/// A checkpoint is due when so many are kept, with those that died since the last one: 8 MiB of memory.
const DUE: u64 = 2 * KEPT_MAX;
/// A checkpoint may store as many bytes of pages, for each segment that shares one, whatever died.
const REWRITTEN_BYTES_MIN: u64 = 4 << 10;

/// Bytes of pages that a checkpoint stores at most because of records that died, of which `fresh` did since the last one, where all pages take
/// `table_bytes`. By storing so much, of the pages with most dead, it is rid of as many dead as came.
pub(super) fn rewritten_bytes_max(fresh: u64, table_bytes: u64, ids: PageIds) -> u64 {
    let least = REWRITTEN_BYTES_MIN * u64::from(ids.get());
    fresh.saturating_mul(DEAD_BYTES * PAGE_PART + table_bytes / KEPT_MAX).saturating_add(least)
}

/// Bytes that a checkpoint is promised for each record that died, where all pages take `table_bytes`.
pub(super) const fn promised_bytes(table_bytes: u64) -> u64 {
    DEAD_BYTES * PAGE_PART + table_bytes / KEPT_MAX + DEAD_BYTES_MAX
}

/// Bytes that a checkpoint stores at most because `fresh` records died: of pages, and of the dead themselves, beside those that were kept before.
pub(super) fn stored_bytes_max(fresh: u64, table_bytes: u64, ids: PageIds) -> u64 {
    rewritten_bytes_max(fresh, table_bytes, ids).saturating_add(fresh.saturating_mul(DEAD_BYTES_MAX))
}

/// The dead records of a page.
#[derive(Debug, Default)]
struct OfPage {
    ptrs: Vec<Ptr>,
    /// How many of them had died when the last checkpoint was made before the latest died, and which checkpoint that was.
    settled: usize,
    checkpoint: u64,
}

impl OfPage {
    /// Number of those that died since this checkpoint, which is the last one.
    fn fresh(&self, checkpoint: u64) -> u64 {
        if self.checkpoint == checkpoint { (self.ptrs.len() - self.settled) as u64 } else { 0 }
    }
}

/// The dead records of all pages.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    pages: BTreeMap<u64, OfPage>,
    count: u64,
    /// How many died since the last checkpoint.
    fresh: u64,
    /// Number of checkpoints so far.
    checkpoints: u64,
}

impl Deaths {
    /// A record of a segment of `page` died. Returns how many of that page did since the last checkpoint.
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

    /// Those of a page.
    pub(super) fn of(&self, page: u64) -> &[Ptr] {
        self.pages.get(&page).map_or(&[], |dead| dead.ptrs.as_slice())
    }

    /// So many are kept that a checkpoint is due.
    pub(super) const fn are_many(&self) -> bool {
        self.count >= DUE
    }

    /// The pages that have any.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    /// How many died since the last checkpoint.
    pub(super) const fn fresh(&self) -> u64 {
        self.fresh
    }

    /// What is kept is stored.
    pub(super) const fn settle(&mut self) {
        self.fresh = 0;
        self.checkpoints += 1;
    }

    /// The page is to be stored anew: without them, so that nothing is promised for them.
    pub(super) fn forget(&mut self, page: u64) {
        if let Some(dead) = self.pages.remove(&page) {
            self.count -= dead.ptrs.len() as u64;
            self.fresh -= dead.fresh(self.checkpoints);
        }
    }

    /// Pages to be stored anew, of those that `may` be, those with most dead first, until they take `most_bytes`: those whose dead are many for the bytes that they are stored in
    /// (`stored_bytes`), and others as long as too many dead are kept. `page_bytes` is what a page takes at most.
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

    /// All of them, ascending by address.
    pub(super) fn sorted(&self) -> Vec<Ptr> {
        let mut all: Vec<Ptr> = self.pages.values().flat_map(|dead| &dead.ptrs).copied().collect();
        all.sort_unstable_by_key(|ptr| ptr.addr);
        all
    }

    /// What they take in memory, in bytes: lists that are three quarters full, and their entries in nodes of a map.
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
        // A page that is not stored yet.
        assert_eq!(heavy(None, 9000), [3]);
        assert_eq!((deaths.sorted().len(), deaths.fresh()), (20, 20));
        deaths.settle();
        let ptr = |slot| Ptr { addr: Addr::new(3 * 64 + 1, slot), len_bytes: 100 };
        assert_eq!((deaths.push(3, ptr(20)), deaths.push(3, ptr(21)), deaths.fresh()), (1, 2, 2));
        deaths.forget(3);
        assert_eq!((deaths.sorted().len(), deaths.count, deaths.fresh()), (0, 0, 0));
        assert_eq!(deaths.memory_bytes(), 0);
    }

    /// Random overwrites of a pool of which all that is kept is a small part: what is stored for them is bounded, and what is kept, too.
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
