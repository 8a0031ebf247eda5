//! Entries of the segment table, by page: the entries of a page lie side by side in memory, or are away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::entry::{PageIds, Segment};
use super::page::Away;
use crate::memory::allocated_bytes;

/// The page with this number is away: it has to be read before its entries can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsAway(pub(super) u64);

/// A page of the table.
#[derive(Debug)]
pub(super) enum EntriesPage {
    /// Its entries, ascending by id, at least one; and whether one was asked for lately.
    Here(Vec<Segment>, AtomicBool),
    /// Its entries have to be read; this is kept of them.
    Away(Away),
}

/// All entries, ascending by id.
#[derive(Debug, Default)]
pub(super) struct Entries {
    ids: PageIds,
    pages: BTreeMap<u64, EntriesPage>,
    /// Number of entries in memory.
    here: usize,
    /// Memory that pages that are away take, in bytes.
    away_bytes: u64,
}

fn position(page: &[Segment], id: u64) -> Result<usize, usize> {
    page.binary_search_by_key(&id, |segment| segment.id)
}

impl Entries {
    pub(super) fn new(ids: PageIds) -> Self {
        Self { ids, ..Self::default() }
    }

    pub(super) const fn page_ids(&self) -> PageIds {
        self.ids
    }

    /// Returns the number of the page that a segment is on.
    pub(super) fn page_of(&self, id: u64) -> u64 {
        self.ids.page(id)
    }

    /// Returns the number of entries in memory.
    pub(super) const fn here(&self) -> usize {
        self.here
    }

    /// Returns the memory that those entries take, in bytes: each page's in one piece, and what they point to.
    pub(super) fn memory_bytes(&self) -> u64 {
        let of_page = |page: &EntriesPage| match page {
            EntriesPage::Here(page, _) => {
                let pointed: u64 = page.iter().map(Segment::pointed_bytes).sum();
                allocated_bytes((page.capacity() * size_of::<Segment>()) as u64) + pointed + 48
            }
            EntriesPage::Away(_) => 0,
        };
        self.pages.values().map(of_page).sum()
    }

    /// Returns the memory that is taken by what is kept of pages that are away, in bytes.
    pub(super) const fn away_bytes(&self) -> u64 {
        self.away_bytes
    }

    /// Returns the pages from this number on, ascending.
    pub(super) fn pages_from(&self, number: u64) -> impl Iterator<Item = (u64, &EntriesPage)> {
        self.pages.range(number..).map(|(number, page)| (*number, page))
    }

    /// Returns the number of pages, both in memory and away.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the entries of a page; no entries if there is no such page.
    pub(super) fn page(&self, number: u64) -> Result<&[Segment], IsAway> {
        match self.pages.get(&number) {
            None => Ok(&[]),
            Some(EntriesPage::Here(page, used)) => {
                // Written only if it changes: all readers come here, and a write would take the cache line from them.
                if !used.load(Ordering::Relaxed) {
                    used.store(true, Ordering::Relaxed);
                }
                Ok(page)
            }
            Some(EntriesPage::Away(_)) => Err(IsAway(number)),
        }
    }

    /// Returns what is kept of a page; `None` if the page is not away.
    pub(super) fn away(&self, number: u64) -> Option<&Away> {
        match self.pages.get(&number)? {
            EntriesPage::Away(away) => Some(away),
            EntriesPage::Here(..) => None,
        }
    }

    /// Returns the same, to be changed. The change must not alter the memory that it takes.
    pub(super) fn away_mut(&mut self, number: u64) -> Option<&mut Away> {
        match self.pages.get_mut(&number)? {
            EntriesPage::Away(away) => Some(away),
            EntriesPage::Here(..) => None,
        }
    }

    pub(super) fn get(&self, id: u64) -> Result<Option<&Segment>, IsAway> {
        let page = self.page(self.page_of(id))?;
        Ok(position(page, id).ok().and_then(|at| page.get(at)))
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Result<Option<&mut Segment>, IsAway> {
        let number = self.page_of(id);
        match self.pages.get_mut(&number) {
            None => Ok(None),
            Some(EntriesPage::Away(_)) => Err(IsAway(number)),
            Some(EntriesPage::Here(page, used)) => {
                *used.get_mut() = true;
                Ok(position(page, id).ok().and_then(|at| page.get_mut(at)))
            }
        }
    }

    /// Inserts an entry, and returns the one that it replaces.
    pub(super) fn insert(&mut self, segment: Segment) -> Result<Option<Segment>, IsAway> {
        let number = self.page_of(segment.id);
        let page =
            self.pages.entry(number).or_insert_with(|| EntriesPage::Here(Vec::new(), AtomicBool::new(true)));
        let EntriesPage::Here(page, _) = page else { return Err(IsAway(number)) };
        Ok(match position(page, segment.id) {
            Ok(at) => page.get_mut(at).map(|old| std::mem::replace(old, segment)),
            Err(at) => {
                page.insert(at, segment);
                self.here += 1;
                None
            }
        })
    }

    /// Replaces all that there is of a page by these entries, which ascend.
    pub(super) fn put_page(&mut self, number: u64, segments: Vec<Segment>) {
        self.here += segments.len();
        let page = (!segments.is_empty()).then(|| EntriesPage::Here(segments, AtomicBool::new(true)));
        self.replace(number, page);
    }

    /// Replaces the entries of a page by `away`.
    pub(super) fn put_away(&mut self, number: u64, away: Away) {
        self.away_bytes += away.memory_bytes();
        self.replace(number, Some(EntriesPage::Away(away)));
    }

    fn replace(&mut self, number: u64, page: Option<EntriesPage>) {
        let before = match page {
            Some(page) => self.pages.insert(number, page),
            None => self.pages.remove(&number),
        };
        match before {
            Some(EntriesPage::Here(before, _)) => self.here -= before.len(),
            Some(EntriesPage::Away(before)) => self.away_bytes -= before.memory_bytes(),
            None => {}
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Result<Option<Segment>, IsAway> {
        let number = self.page_of(id);
        let page = match self.pages.get_mut(&number) {
            None => return Ok(None),
            Some(EntriesPage::Away(_)) => return Err(IsAway(number)),
            Some(EntriesPage::Here(page, _)) => page,
        };
        let Ok(at) = position(page, id) else { return Ok(None) };
        let segment = page.remove(at);
        self.here -= 1;
        if page.is_empty() {
            self.pages.remove(&number);
        } else if page.len() * 2 < page.capacity() {
            page.shrink_to_fit();
        }
        Ok(Some(segment))
    }

    /// Returns the first id from this one on.
    pub(super) fn next_id(&self, id: u64) -> Option<u64> {
        self.pages.range(self.page_of(id)..).find_map(|(number, page)| match page {
            EntriesPage::Here(page, _) => page.iter().map(|segment| segment.id).find(|next| *next >= id),
            EntriesPage::Away(away) => away.segments(self.ids, *number).find(|next| *next >= id),
        })
    }

    /// Returns the last id below this one.
    pub(super) fn last_below(&self, id: u64) -> Option<u64> {
        self.pages.range(..=self.page_of(id)).rev().find_map(|(number, page)| match page {
            EntriesPage::Here(page, _) => page.iter().rev().map(|segment| segment.id).find(|last| *last < id),
            EntriesPage::Away(away) => away.segments(self.ids, *number).rev().find(|last| *last < id),
        })
    }

    /// Looks at `most` pages from page `from` on for the first page in memory for which `may` is true and of which no
    /// entry was asked for since this function last passed it. Returns that page, and the page to go on from (`None` at
    /// the end).
    pub(super) fn unused(
        &self,
        from: u64,
        most: usize,
        may: &dyn Fn(u64) -> bool,
    ) -> (Option<u64>, Option<u64>) {
        let mut pages = self.pages.range(from..);
        for (number, page) in pages.by_ref().take(most) {
            if let EntriesPage::Here(_, used) = page
                && may(*number)
                && !used.swap(false, Ordering::Relaxed)
            {
                return (Some(*number), Some(number + 1));
            }
        }
        (None, pages.next().map(|(number, _)| *number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_map_does() {
        let mut entries = Entries::new(PageIds::new(32).unwrap());
        let mut model = BTreeMap::new();
        let mut state = 1_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let id = 1 + (state >> 33) % 400;
            let segment = Segment { slots: step as u32, ..Segment::without_parts(id) };
            let was = match state >> 60 {
                // The map fills, and empties again.
                0..8 if step % 4000 < 2500 => {
                    (entries.insert(segment.clone()).unwrap(), model.insert(id, segment))
                }
                _ => (entries.remove(id).unwrap(), model.remove(&id)),
            };
            assert_eq!(was.0, was.1);
            assert_eq!(entries.get(id).unwrap(), model.get(&id));
            assert_eq!(entries.get_mut(id).unwrap().cloned(), model.get(&id).cloned());
            assert_eq!(entries.last_below(id), model.range(..id).next_back().map(|(id, _)| *id));
            assert_eq!(entries.next_id(id), model.range(id..).next().map(|(id, _)| *id));
            assert_eq!(entries.here(), model.len());
            if step % 100 == 0 {
                let page = entries.page_of(id);
                let ids = page * 32..(page + 1) * 32;
                assert!(entries.page(page).unwrap().iter().eq(model.range(ids).map(|(_, segment)| segment)));
            }
        }
    }
}
