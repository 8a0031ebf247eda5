//! Pages that were coded in haste: what must be durable now is not coded small now.
//!
//! The tail of a log is committed again and again, and somebody waits each time. Such a page, and any of which only a part
//! was written, is stored as a delta or in full, by LZ4. When it has been quiet for a while it is coded once more, as its
//! dataset says: a page of a log soon after the next one was written, when its content is still in memory. If the process
//! ends before that, it stays as it is until it is written or recompressed. If more pages are written so than are
//! remembered, or than the pool has room for, the others are coded small at once.

use std::collections::HashMap;

use super::Pool;
use super::coded::Coded;
use super::deltas::Before;
use crate::dataset::pending::PageBuf;
use crate::record::{Codec, is_delta};
use crate::{Error, Result};

/// Largest number of pages that are remembered: an entry takes about 50 bytes.
const PAGES_MAX: usize = 16 << 10;
/// For each page that is coded in haste so many bytes are available: a pool that fills up at once must not be full of such
/// pages, since coding them again takes room.
const ROOM_PER_PAGE: u64 = 128 << 10;
/// Bytes that are available before pages are coded again.
const STEP_ROOM: u64 = 2 << 20;
/// Number of pages that one step codes.
const STEP_PAGES: usize = 32;
/// A page is quiet when it was not written for more ages than this ...
const QUIET_AGES: u64 = 5;
/// ... or than this, if the page after it was coded in haste, too: whoever writes in order has left it behind.
const FOLLOWED_AGES: u64 = 1;

/// Pages that were coded in haste (dataset, object, page), each with the age at which it was written last.
#[derive(Debug, Default)]
pub(super) struct InHaste {
    age: u64,
    pages: HashMap<(u64, u64, u64), u64>,
}

impl InHaste {
    fn note(&mut self, page: (u64, u64, u64), in_haste: bool) {
        let may_enter = in_haste && self.pages.len() < PAGES_MAX;
        match self.pages.get_mut(&page) {
            Some(age) => *age = self.age,
            None if may_enter => drop(self.pages.insert(page, self.age)),
            None => {}
        }
    }

    /// Removes and returns some quiet pages of one object.
    fn take_quiet(&mut self) -> Vec<(u64, u64, u64)> {
        let is_quiet = |((of, object, page), age): &(&(u64, u64, u64), &u64)| {
            let ages = self.age - **age;
            let next = (*of, *object, page.wrapping_add(1));
            ages > QUIET_AGES || (ages > FOLLOWED_AGES && self.pages.contains_key(&next))
        };
        let Some(first) = self.pages.iter().filter(is_quiet).map(|(page, _)| *page).min() else {
            return Vec::new();
        };
        let of_object = |(page, _): &(&(u64, u64, u64), &u64)| (page.0, page.1) == (first.0, first.1);
        let mut quiet: Vec<_> =
            self.pages.iter().filter(is_quiet).filter(of_object).map(|(page, _)| *page).collect();
        quiet.sort_unstable();
        quiet.truncate(STEP_PAGES);
        for page in &quiet {
            self.pages.remove(page);
        }
        quiet
    }
}

impl Pool {
    /// Notes pages of a commit that were coded in haste, and those that had been before and were written again.
    pub(super) fn note_haste(
        &self,
        dataset: u64,
        pages: &[((u64, u64), &PageBuf)],
        befores: &[Option<Before>],
        coded: &[Coded],
    ) {
        if !befores.iter().flatten().any(Before::is_urgent) {
            return;
        }
        let mut all = self.in_haste.lock();
        for (((object, page), _), coded) in pages.iter().zip(coded) {
            all.note((dataset, *object, *page), coded.in_haste);
        }
    }

    /// Returns true if another page may be coded in haste.
    pub(super) fn may_hurry(&self) -> bool {
        let room = self.shared.space().available_bytes / ROOM_PER_PAGE;
        (self.in_haste.lock().pages.len() as u64) < room.min(PAGES_MAX as u64)
    }

    /// Makes all pages older that were coded in haste, by an age.
    pub fn age_pages(&self) {
        self.in_haste.lock().age += 1;
    }

    /// Codes some pages again that were coded in haste and are quiet now. Returns the bytes of these pages; `None` if
    /// there are none.
    ///
    /// # Errors
    /// Of reading and writing; the pages stay as they are.
    pub fn code_quiet(&self) -> Result<Option<u64>> {
        if self.shared.check_writable().is_err() || self.shared.space().available_bytes < STEP_ROOM {
            return Ok(None);
        }
        let quiet = self.in_haste.lock().take_quiet();
        let Some((of, object, _)) = quiet.first().copied() else { return Ok(None) };
        let Some(dataset) = self.dataset_by_id(of) else { return Ok(Some(0)) };
        let record_size = match dataset.record_size(object) {
            Ok(0) | Err(Error::NotFound(_)) => return Ok(Some(0)),
            size => size?,
        };
        let mut pages = Vec::with_capacity(quiet.len());
        for (_, _, page) in quiet {
            let mut top = [None];
            dataset.tree.pages(object, page, &mut top)?;
            // One that is not in memory any more is read to see. Where LZ4 found nothing, another codec may.
            let is_small = |addr| {
                let record = self.shared.cache.at_hand(addr);
                record.is_some_and(|record| {
                    !is_delta(&record) && !matches!(codec_of(&record), Some(Codec::Lz4 | Codec::Raw))
                })
            };
            if top[0].is_some_and(|ptr| !is_small(ptr.addr)) {
                pages.push(page);
            }
        }
        self.store_in_full(&dataset, (object, record_size), &pages)?;
        Ok(Some(pages.len() as u64 * u64::from(record_size)))
    }
}

fn codec_of(record: &[u8]) -> Option<Codec> {
    record.first().and_then(|id| Codec::from_id(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_quiet_when_it_was_not_written_for_some_ages() {
        let mut all = InHaste::default();
        for page in [0, 2, 4] {
            all.note((1, 7, page), true);
        }
        all.note((1, 7, 9), false);
        all.age += QUIET_AGES;
        assert_eq!(all.take_quiet(), []);
        all.note((1, 7, 2), false);
        all.age += 1;
        assert_eq!(all.take_quiet(), [(1, 7, 0), (1, 7, 4)]);
        all.age += QUIET_AGES;
        assert_eq!(all.take_quiet(), [(1, 7, 2)]);
        all.age += 99;
        assert_eq!(all.take_quiet(), []);
    }

    #[test]
    fn a_page_of_a_log_is_quiet_soon_after_the_next_one_was_written() {
        let mut all = InHaste::default();
        (0..4).for_each(|page| all.note((1, 7, page), true));
        all.note((1, 8, 4), true);
        all.age += FOLLOWED_AGES;
        assert_eq!(all.take_quiet(), []);
        all.note((1, 7, 1), true);
        all.age += 1;
        assert_eq!(all.take_quiet(), [(1, 7, 0), (1, 7, 2)]);
        // The tail, and another object's.
        all.age += QUIET_AGES - FOLLOWED_AGES - 1;
        assert_eq!(all.take_quiet(), []);
    }

    #[test]
    fn how_many_are_remembered_is_bounded() {
        let mut all = InHaste::default();
        (0..2 * PAGES_MAX as u64).for_each(|page| all.note((1, page % 3, page), true));
        assert_eq!(all.pages.len(), PAGES_MAX);
        all.age += QUIET_AGES + 1;
        let step = all.take_quiet();
        assert_eq!(step.len(), STEP_PAGES);
        assert!(step.iter().all(|page| page.1 == step[0].1));
    }
}
