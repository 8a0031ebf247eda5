//! Readers that go on where they have ended.
//!
//! Whoever reads a page and then those behind it will read on: the kernel asks for four times as much with each of its
//! next requests. Records of pages that were written in order lie beside each other, so what its next request will want can
//! come with the one before. On a device that is limited by its requests, a range of rows then takes two of them, not
//! three. A reader of pages anywhere ends no read where the next one begins, but by chance.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::xxh3_64;

/// Number of ends that are remembered: a power of two.
const ENDS: usize = 256;

/// Ends of the latest reads of a dataset. A later read may take the place of an earlier one.
#[derive(Debug)]
pub(super) struct ReadEnds([AtomicU64; ENDS]);

impl Default for ReadEnds {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; ENDS])
    }
}

impl ReadEnds {
    /// Notes that a read of `object` ends before `page`. Returns true if a read has ended where this one begins, at
    /// `first`.
    pub(super) fn goes_on(&self, object: u64, first: u64, end: u64) -> bool {
        let goes_on =
            first > 0 && self.place(object, first).is_some_and(|(place, mark)| place.load(Relaxed) == mark);
        self.note(object, end);
        goes_on
    }

    /// Notes that a read of `object` ends before `page`.
    pub(super) fn note(&self, object: u64, page: u64) {
        if let Some((place, mark)) = self.place(object, page) {
            place.store(mark, Relaxed);
        }
    }

    fn place(&self, object: u64, page: u64) -> Option<(&AtomicU64, u64)> {
        let mut bytes = [0; 16];
        let (left, right) = bytes.split_at_mut(8);
        left.copy_from_slice(&object.to_le_bytes());
        right.copy_from_slice(&page.to_le_bytes());
        let mark = xxh3_64(&bytes);
        self.0.get(mark as usize % ENDS).map(|place| (place, mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_goes_on_where_another_has_ended() {
        let ends = ReadEnds::default();
        assert!(!ends.goes_on(7, 0, 1), "nothing was read before");
        assert!(ends.goes_on(7, 1, 5));
        assert!(ends.goes_on(7, 5, 21));
        assert!(!ends.goes_on(7, 22, 30) && !ends.goes_on(8, 21, 25), "another page, another object");
        ends.note(9, 100);
        assert!(ends.goes_on(9, 100, 104));
    }

    #[test]
    fn reads_anywhere_do_not_go_on() {
        let ends = ReadEnds::default();
        let pages = (0..10_000_u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24);
        assert_eq!(pages.filter(|page| ends.goes_on(7, *page, page + 4)).count(), 0);
    }
}
