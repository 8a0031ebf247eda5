//! Ranges of pages or bytes of a file.

use std::ops::Range;
use std::sync::Arc;

use crate::limits::FREEING_RANGES_MAX;

/// Ranges of pages (of bytes in [`crate::mirror`]): ascending, not empty, and apart from each other. Takes no
/// allocation if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Option<Arc<[Range<u64>]>>);

impl Ranges {
    /// Returns `None` unless the ranges are ascending, not empty, apart, and at most [`FREEING_RANGES_MAX`].
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Option<Self> {
        let apart = ranges.windows(2).all(|pair| matches!(pair, [a, b] if a.end < b.start));
        let sound =
            apart && ranges.iter().all(|range| !range.is_empty()) && ranges.len() <= FREEING_RANGES_MAX;
        sound.then(|| Self::of(ranges))
    }

    fn of(ranges: Vec<Range<u64>>) -> Self {
        Self(if ranges.is_empty() { None } else { Some(ranges.into()) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the position of the first range that ends behind `page`.
    fn position(&self, page: u64) -> usize {
        self.ranges().partition_point(|range| range.end <= page)
    }

    /// Returns the part of the first range that overlaps `pages` which lies in `pages`.
    pub(crate) fn first_in(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let range = self.ranges().get(self.position(pages.start))?;
        let overlap = range.start.max(pages.start)..range.end.min(pages.end);
        (!overlap.is_empty()).then_some(overlap)
    }

    /// Returns the end of the range that contains `page`; `None` if none does.
    pub(crate) fn end_of(&self, page: u64) -> Option<u64> {
        let range = self.ranges().get(self.position(page))?;
        (range.start <= page).then_some(range.end)
    }

    /// Splits `pages` into stretches, in order; each has true if it lies in a range.
    pub(crate) fn split(&self, pages: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut found = Vec::new();
        let mut at = pages.start;
        while at < pages.end {
            let freed = self.first_in(at..pages.end);
            let next = freed.as_ref().map_or(pages.end, |range| range.start);
            if at < next {
                found.push((at..next, false));
            }
            at = next;
            if let Some(range) = freed {
                at = range.end;
                found.push((range, true));
            }
        }
        found
    }

    pub(crate) fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let (mut start, mut end) = (pages.start, pages.end);
        let mut kept = Vec::with_capacity(self.ranges().len() + 1);
        for range in self.ranges() {
            if range.end < pages.start || range.start > pages.end {
                kept.push(range.clone());
            } else {
                (start, end) = (start.min(range.start), end.max(range.end));
            }
        }
        kept.push(start..end);
        kept.sort_unstable_by_key(|range| range.start);
        *self = Self::of(kept);
    }

    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        if self.first_in(pages.clone()).is_none() {
            return;
        }
        let sides = |range: &Range<u64>| {
            let left = range.start..range.end.min(pages.start);
            let right = range.start.max(pages.end)..range.end;
            [left, right].into_iter().filter(|side| !side.is_empty())
        };
        *self = Self::of(self.ranges().iter().flat_map(sides).collect());
    }

    /// Returns half as many ranges: each covers two neighbours and what lies between them.
    pub(crate) fn in_pairs(&self) -> Self {
        let joined = |pair: &[Range<u64>]| Some(pair.first()?.start..pair.last()?.end);
        Self::of(self.ranges().chunks(2).filter_map(joined).collect())
    }

    /// Returns true if a change may add ranges. A change splits at most two ranges, or adds one.
    pub(crate) fn has_room(&self) -> bool {
        self.ranges().len() + 2 <= FREEING_RANGES_MAX
    }

    pub(crate) fn shortest(&self) -> Option<Range<u64>> {
        self.ranges().iter().min_by_key(|range| range.end - range.start).cloned()
    }
}
