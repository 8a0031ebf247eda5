//! Keeps sets of numbers, of chunks or of regions of a device, as ranges. So the memory of a set depends on how broken
//! up it is, not on the size of a device.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// End by start. Ranges are not empty, and neither overlap nor touch each other.
    ends: BTreeMap<u64, u64>,
    len: u64,
}

impl Ranges {
    /// Creates the set of all indexes below `count`.
    pub(crate) fn below(count: u32) -> Self {
        let mut all = Self::default();
        all.insert_range(0..u64::from(count));
        all
    }

    /// Returns the number of indexes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ranges, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// Returns the range that an index is in.
    fn around(&self, index: u64) -> Option<Range<u64>> {
        let (start, end) = self.ends.range(..=index).next_back()?;
        (index < *end).then_some(*start..*end)
    }

    /// Returns true if an index is in the set.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.around(index).is_some()
    }

    /// Adds an index. Returns false if it was in the set.
    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let before = self.len;
        self.insert_range(u64::from(index)..u64::from(index) + 1);
        self.len > before
    }

    /// Adds a range.
    pub(crate) fn insert_range(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove_range(range.clone());
        self.len += range.end - range.start;
        let Range { mut start, mut end } = range;
        if let Some((first, _)) = self.ends.range(..start).next_back().filter(|(_, last)| **last == start) {
            start = *first;
        }
        if let Some(last) = self.ends.remove(&end) {
            end = last;
        }
        self.ends.insert(start, end);
    }

    /// Removes an index. Returns false if it was not in the set.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let before = self.len;
        self.remove_range(u64::from(index)..u64::from(index) + 1);
        self.len < before
    }

    /// Removes all indexes of a range.
    pub(crate) fn remove_range(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.ends.range(..range.end).next_back().map(|(s, e)| (*s, *e)) {
            if end <= range.start {
                return;
            }
            self.ends.remove(&start);
            self.len -= end.min(range.end) - start.max(range.start);
            if start < range.start {
                self.ends.insert(start, range.start);
            }
            if end > range.end {
                self.ends.insert(range.end, end);
            }
        }
    }

    /// Takes out the lowest index.
    pub(crate) fn pop_first(&mut self) -> Option<u32> {
        let (start, end) = self.ends.pop_first()?;
        if start + 1 < end {
            self.ends.insert(start + 1, end);
        }
        self.len -= 1;
        u32::try_from(start).ok()
    }

    /// Returns the highest range of at most `most` indexes that are in this set and not in `other`.
    pub(crate) fn last_without(&self, other: &Self, most: u64) -> Option<Range<u64>> {
        for (range_start, range_end) in self.ends.iter().rev() {
            let mut end = *range_end;
            while end > *range_start {
                if let Some(covered) = other.around(end - 1) {
                    end = covered.start;
                    continue;
                }
                let below = other.ends.range(..end).next_back().map_or(0, |(_, before)| *before);
                return Some(below.max(*range_start).max(end.saturating_sub(most))..end);
            }
        }
        None
    }

    /// Returns a set of at most `most` ranges that has all of this one: ranges with the smallest gaps between them have
    /// become one.
    pub(crate) fn merged(&self, most: usize) -> Self {
        let surplus = self.ends.len().saturating_sub(most.max(1));
        if surplus == 0 {
            return self.clone();
        }
        let starts = self.ends.keys().skip(1);
        let mut gaps: Vec<Range<u64>> =
            self.ends.values().zip(starts).map(|(end, start)| *end..*start).collect();
        gaps.sort_unstable_by_key(|gap| gap.end - gap.start);
        let mut merged = self.clone();
        gaps.into_iter().take(surplus).for_each(|gap| merged.insert_range(gap));
        merged
    }

    /// Returns the number of indexes that are in this set and not in `other`.
    pub(crate) fn count_without(&self, other: &Self) -> u64 {
        let shared = |range: Range<u64>| -> u64 {
            let first = other.around(range.start).map_or(range.start, |around| around.start);
            let within = other.ends.range(first..range.end);
            within.map(|(start, end)| (*end).min(range.end).saturating_sub((*start).max(range.start))).sum()
        };
        self.iter().map(|range| range.end - range.start - shared(range)).sum()
    }
}

#[cfg(test)]
mod tests;
