//! Entries of the segment table by page: those of one page lie side by side in memory.

use std::collections::BTreeMap;

use super::entry::{PageIds, Segment};
use crate::memory::allocated_bytes;

/// All entries, ascending by id.
#[derive(Debug, Default)]
pub(super) struct Entries {
    ids: PageIds,
    /// None is empty.
    pages: BTreeMap<u64, Vec<Segment>>,
    len: usize,
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

    /// The page of a segment.
    pub(super) fn page_of(&self, id: u64) -> u64 {
        self.ids.page(id)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What they take in memory, in bytes: those of a page in one piece, with what they point to.
    pub(super) fn memory_bytes(&self) -> u64 {
        let of_page = |page: &Vec<Segment>| {
            let pointed: u64 = page.iter().map(Segment::pointed_bytes).sum();
            allocated_bytes((page.capacity() * size_of::<Segment>()) as u64) + pointed + 48
        };
        self.pages.values().map(of_page).sum()
    }

    /// Those of a page.
    pub(super) fn page(&self, page: u64) -> &[Segment] {
        self.pages.get(&page).map_or(&[], Vec::as_slice)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Segment> {
        let page = self.page(self.page_of(id));
        page.get(position(page, id).ok()?)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Segment> {
        let page = self.pages.get_mut(&(self.page_of(id)))?;
        let at = position(page, id).ok()?;
        page.get_mut(at)
    }

    /// Puts an entry in its place, and returns the one that was there.
    pub(super) fn insert(&mut self, segment: Segment) -> Option<Segment> {
        let page = self.pages.entry(self.page_of(segment.id)).or_default();
        match position(page, segment.id) {
            Ok(at) => page.get_mut(at).map(|old| std::mem::replace(old, segment)),
            Err(at) => {
                page.insert(at, segment);
                self.len += 1;
                None
            }
        }
    }

    /// Puts all entries of a page, ascending, in the place of those that it has.
    pub(super) fn put_page(&mut self, page: u64, segments: Vec<Segment>) {
        self.len += segments.len();
        let before =
            if segments.is_empty() { self.pages.remove(&page) } else { self.pages.insert(page, segments) };
        self.len -= before.map_or(0, |before| before.len());
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Segment> {
        let number = self.page_of(id);
        let page = self.pages.get_mut(&number)?;
        let segment = page.remove(position(page, id).ok()?);
        self.len -= 1;
        if page.is_empty() {
            self.pages.remove(&number);
        } else if page.len() * 2 < page.capacity() {
            page.shrink_to_fit();
        }
        Some(segment)
    }

    /// All entries from `id` on.
    pub(super) fn from(&self, id: u64) -> impl Iterator<Item = &Segment> {
        let pages = self.pages.range(self.page_of(id)..);
        pages.flat_map(|(_, page)| page).skip_while(move |segment| segment.id < id)
    }

    /// The last entry below `id`.
    pub(super) fn last_below(&self, id: u64) -> Option<&Segment> {
        let mut pages = self.pages.range(..=self.page_of(id)).rev();
        pages.find_map(|(_, page)| page.iter().rev().find(|segment| segment.id < id))
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
                // It fills, and empties again.
                0..8 if step % 4000 < 2500 => (entries.insert(segment.clone()), model.insert(id, segment)),
                _ => (entries.remove(id), model.remove(&id)),
            };
            assert_eq!(was.0, was.1);
            assert_eq!(entries.get(id), model.get(&id));
            assert_eq!(entries.get_mut(id).cloned(), model.get(&id).cloned());
            assert_eq!(
                entries.last_below(id).map(|last| last.id),
                model.range(..id).next_back().map(|(id, _)| *id)
            );
            assert_eq!(entries.len(), model.len());
            if step % 100 == 0 {
                assert!(entries.from(id).eq(model.range(id..).map(|(_, segment)| segment)));
                let page = entries.page_of(id);
                let ids = page * 32..(page + 1) * 32;
                assert!(entries.page(page).iter().eq(model.range(ids).map(|(_, segment)| segment)));
            }
        }
    }
}
