//! Records that died since the page of the segment table with their segment was stored.
//!
//! Random overwrites kill a record here and there in all of a pool. A checkpoint that stored every page on which something died would write a
//! page of 64 entries for each of them. So it stores the dead records themselves, a few bytes each, and a page only when its dead have become many, or
//! when more has changed of its entries than that.

use std::collections::BTreeMap;

use crate::Ptr;

/// Bytes that a dead record takes where it is stored, about.
const STORED_BYTES: u64 = 8;
/// A page is stored again when its dead take one part in so many of it: they are stored by each checkpoint.
const PAGE_PART: u64 = 8;
/// Most dead records that are kept: 4 MiB of memory, and about 2 MiB in each checkpoint.
const KEPT_MAX: u64 = 256 << 10;

/// The dead records of all pages.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    pages: BTreeMap<u64, Vec<Ptr>>,
    count: u64,
}

impl Deaths {
    /// A record of a segment of `page` died.
    pub(super) fn push(&mut self, page: u64, ptr: Ptr) {
        self.pages.entry(page).or_default().push(ptr);
        self.count += 1;
    }

    /// The page is stored anew: without them.
    pub(super) fn forget(&mut self, page: u64) {
        if let Some(ptrs) = self.pages.remove(&page) {
            self.count -= ptrs.len() as u64;
        }
    }

    /// Pages to be stored anew, going by the bytes that they are stored in: those whose dead are many for that, and while all that are kept are too
    /// many, those with most of them.
    pub(super) fn heavy(&self, stored_bytes: &dyn Fn(u64) -> Option<u32>) -> Vec<u64> {
        let is_heavy = |page: u64, dead: u64| {
            stored_bytes(page).is_none_or(|bytes| dead * STORED_BYTES * PAGE_PART > bytes.into())
        };
        let count = |ptrs: &Vec<Ptr>| ptrs.len() as u64;
        let (heavy, mut light): (Vec<_>, Vec<_>) = self
            .pages
            .iter()
            .map(|(page, ptrs)| (count(ptrs), *page))
            .partition(|(dead, page)| is_heavy(*page, *dead));
        let mut kept: u64 = light.iter().map(|(dead, _)| dead).sum();
        let mut pages: Vec<u64> = heavy.into_iter().map(|(_, page)| page).collect();
        light.sort_unstable();
        while kept > KEPT_MAX
            && let Some((dead, page)) = light.pop()
        {
            kept -= dead;
            pages.push(page);
        }
        pages
    }

    /// All of them, ascending by address.
    pub(super) fn sorted(&self) -> Vec<Ptr> {
        let mut all: Vec<Ptr> = self.pages.values().flatten().copied().collect();
        all.sort_unstable_by_key(|ptr| ptr.addr);
        all
    }

    /// What they take in memory, in bytes: lists that are three quarters full, and their entries in nodes of a map.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.count * size_of::<Ptr>() as u64 * 4 / 3 + self.pages.len() as u64 * 64
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
        assert_eq!(deaths.heavy(&|_| Some(20 * 64)), [] as [u64; 0]);
        assert_eq!(deaths.heavy(&|_| Some(20 * 64 - 1)), [3]);
        // A page that is not stored yet.
        assert_eq!(deaths.heavy(&|_| None), [3]);
        assert_eq!(deaths.sorted().len(), 20);
        deaths.forget(3);
        assert_eq!((deaths.sorted().len(), deaths.count, deaths.memory_bytes()), (0, 0, 0));
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let mut deaths = Deaths::default();
        let pages = 1000;
        // Page n has 500 and n dead.
        for page in 0..pages {
            for slot in 0..500 + page as u32 {
                deaths.push(page, Ptr { addr: Addr::new(page * 64 + 1, slot), len_bytes: 100 });
            }
        }
        let heavy = deaths.heavy(&|_| Some(u32::MAX));
        assert!(heavy.contains(&(pages - 1)) && !heavy.contains(&0));
        heavy.iter().for_each(|page| deaths.forget(*page));
        let left = deaths.sorted().len() as u64;
        assert_eq!(deaths.count, left);
        assert!((KEPT_MAX - 2000..=KEPT_MAX).contains(&left), "{left}");
        assert!(deaths.sorted().is_sorted_by_key(|ptr| ptr.addr));
    }
}
