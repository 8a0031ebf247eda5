//! Defines leaves: sorted entries, kept as separate arrays.
//!
//! Keys are split into groups (runs of one object and kind) and offsets. So each page of an object takes 20 bytes:
//! offset, address and stored length. Pages are by far the most entries of a pool.

use std::ops::Range;

use crate::tree::Value;
use crate::tree::entry::{HEADER_BYTES, entry_bytes};
use crate::tree::values::{ValueRef, Values, insert_tight};
use crate::types::{Key, Ptr};

/// A run of entries of one object and kind, from index `start` to the next group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct KeyGroup {
    object: u64,
    start: u32,
    kind: u8,
}

/// Sorted entries.
///
/// Invariants: `groups` ascend, start at 0 and are not empty; offsets ascend within a group; there are as many values
/// as offsets; `encoded_bytes` is the exact length of what the codec makes of the leaf.
#[derive(Clone)]
pub(in crate::tree) struct Leaf {
    groups: Vec<KeyGroup>,
    offsets: Vec<u64>,
    values: Values,
    encoded_bytes: usize,
    /// Heap memory of values that are bytes.
    value_bytes: usize,
}

impl Leaf {
    pub(in crate::tree) fn with_capacity(entries: usize) -> Self {
        Self {
            groups: Vec::new(),
            offsets: Vec::with_capacity(entries),
            values: Values::Pages { addrs: Vec::with_capacity(entries), lens: Vec::with_capacity(entries) },
            encoded_bytes: HEADER_BYTES,
            value_bytes: 0,
        }
    }

    pub(in crate::tree) fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns the bytes of the stored form.
    pub(in crate::tree) fn encoded_bytes(&self) -> usize {
        self.encoded_bytes
    }

    /// Returns the bytes on the heap.
    pub(in crate::tree) fn heap_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<KeyGroup>()
            + self.offsets.capacity() * size_of::<u64>()
            + self.values.heap_bytes()
            + self.value_bytes
    }

    #[cfg(test)]
    pub(in crate::tree) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns a copy without spare capacity.
    pub(in crate::tree) fn without_spare(&self) -> Self {
        let mut copy = self.clone();
        copy.values.shrink();
        copy
    }

    fn group_range(&self, g: usize) -> Range<usize> {
        let end = self.groups.get(g + 1).map_or(self.offsets.len(), |next| next.start as usize);
        self.groups[g].start as usize..end
    }

    fn find_group(&self, object: u64, kind: u8) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&(object, kind), |group| (group.object, group.kind))
    }

    /// Returns the index range of the entries of `object` and `kind`, and their offsets.
    pub(in crate::tree) fn run(&self, object: u64, kind: u8) -> (Range<usize>, &[u64]) {
        match self.find_group(object, kind) {
            Ok(g) => {
                let range = self.group_range(g);
                (range.clone(), &self.offsets[range])
            }
            Err(g) => {
                let at = self.groups.get(g).map_or(self.offsets.len(), |next| next.start as usize);
                (at..at, &[])
            }
        }
    }

    /// Returns the index of `key`, or as the error the index at which it would be inserted.
    pub(in crate::tree) fn search(&self, key: &Key) -> Result<usize, usize> {
        let (range, offsets) = self.run(key.object, key.kind);
        search_run(offsets, key.offset).map(|i| range.start + i).map_err(|i| range.start + i)
    }

    pub(in crate::tree) fn key(&self, i: usize) -> Key {
        let g = self.groups.partition_point(|group| group.start as usize <= i) - 1;
        Key { object: self.groups[g].object, kind: self.groups[g].kind, offset: self.offsets[i] }
    }

    pub(in crate::tree) fn value(&self, i: usize) -> ValueRef<'_> {
        self.values.get(i)
    }

    /// Returns the pointer of entry `i`; `None` if its value is bytes.
    pub(in crate::tree) fn ptr(&self, i: usize) -> Option<Ptr> {
        match self.values.get(i) {
            ValueRef::Page(ptr) => Some(ptr),
            ValueRef::Bytes(_) => None,
        }
    }

    pub(in crate::tree) fn first_key(&self) -> Option<Key> {
        (!self.offsets.is_empty()).then(|| self.key(0))
    }

    pub(in crate::tree) fn last_key(&self) -> Option<Key> {
        self.offsets.len().checked_sub(1).map(|i| self.key(i))
    }

    /// Returns the entries in a range of indexes.
    pub(in crate::tree) fn entries(&self, range: Range<usize>) -> impl Iterator<Item = (Key, ValueRef<'_>)> {
        let mut g =
            self.groups.partition_point(|group| group.start as usize <= range.start).saturating_sub(1);
        range.map(move |i| {
            while self.groups.get(g + 1).is_some_and(|next| next.start as usize <= i) {
                g += 1;
            }
            let group = self.groups[g];
            (Key { object: group.object, kind: group.kind, offset: self.offsets[i] }, self.values.get(i))
        })
    }

    fn entry(&self, i: usize) -> (Key, ValueRef<'_>) {
        (self.key(i), self.values.get(i))
    }

    /// Returns the encoded bytes of entry `i`.
    fn cost(&self, i: usize) -> usize {
        let (key, value) = self.entry(i);
        entry_bytes(i.checked_sub(1).map(|before| self.entry(before)), key, value)
    }

    /// Returns the encoded bytes of the entries in `range`. Indexes beyond the end count 0.
    fn costs(&self, range: Range<usize>) -> usize {
        range.filter(|&i| i < self.len()).map(|i| self.cost(i)).sum()
    }

    /// Appends an entry above all others.
    #[cfg(test)]
    pub(in crate::tree) fn push(&mut self, key: Key, value: Value) {
        self.push_decoded(key, value);
        self.encoded_bytes += self.cost(self.len() - 1);
    }

    /// Appends an entry above all others, for the decoder, which knows the size of the whole and ends with
    /// [`Leaf::decoded_from`].
    pub(in crate::tree) fn push_decoded(&mut self, key: Key, value: Value) {
        let i = self.len();
        if self.groups.last().is_none_or(|last| (last.object, last.kind) != (key.object, key.kind)) {
            self.groups.push(KeyGroup { object: key.object, start: i as u32, kind: key.kind });
        }
        insert_tight(&mut self.offsets, i, key.offset);
        self.value_bytes += value.heap_bytes();
        self.values.insert(i, value);
    }

    /// Sets the number of bytes from which the pushed entries were decoded, header included.
    pub(in crate::tree) fn decoded_from(&mut self, bytes: usize) {
        self.encoded_bytes = bytes;
    }

    /// Inserts an entry where [`Leaf::search`] said.
    pub(in crate::tree) fn insert(&mut self, i: usize, key: Key, value: Value) {
        let next = self.costs(i..i + 1);
        let after = match self.find_group(key.object, key.kind) {
            Ok(g) => g + 1,
            Err(g) => {
                let group = KeyGroup { object: key.object, start: i as u32, kind: key.kind };
                insert_tight(&mut self.groups, g, group);
                g + 1
            }
        };
        self.groups[after..].iter_mut().for_each(|group| group.start += 1);
        insert_tight(&mut self.offsets, i, key.offset);
        self.value_bytes += value.heap_bytes();
        self.values.insert(i, value);
        self.encoded_bytes += self.costs(i..i + 2);
        self.encoded_bytes -= next;
    }

    /// Replaces the value of entry `i`, and returns the old one.
    pub(in crate::tree) fn replace(&mut self, i: usize, value: Value) -> Value {
        let before = self.costs(i..i + 2);
        self.value_bytes += value.heap_bytes();
        let old = self.values.replace(i, value);
        self.value_bytes -= old.heap_bytes();
        self.encoded_bytes += self.costs(i..i + 2);
        self.encoded_bytes -= before;
        old
    }

    /// Removes the entries in `range`, and calls `each` with them.
    pub(in crate::tree) fn remove(&mut self, range: Range<usize>, each: &mut dyn FnMut(Key, Value)) {
        if range.is_empty() {
            return;
        }
        let before = self.costs(range.start..range.end + 1);
        let keys: Vec<Key> = self.entries(range.clone()).map(|(key, _)| key).collect();
        let mut keys = keys.into_iter();
        let freed = &mut self.value_bytes;
        self.values.drain(range.clone(), |value| {
            *freed -= value.heap_bytes();
            if let Some(key) = keys.next() {
                each(key, value);
            }
        });
        self.offsets.drain(range.clone());
        for group in &mut self.groups {
            let start = group.start as usize;
            let removed_before = start.clamp(range.start, range.end) - range.start;
            group.start = (start - removed_before) as u32;
        }
        // A group that lost all entries now starts where the next one, or the end, is.
        let end = self.offsets.len();
        let mut kept: Vec<KeyGroup> = Vec::with_capacity(self.groups.len());
        for (g, group) in self.groups.iter().enumerate() {
            let next = self.groups.get(g + 1).map_or(end, |next| next.start as usize);
            if (group.start as usize) < next {
                kept.push(*group);
            }
        }
        self.groups = kept;
        self.encoded_bytes += self.costs(range.start..range.start + 1);
        self.encoded_bytes -= before;
    }

    /// Calls `each` with all entries.
    pub(in crate::tree) fn for_each(&self, each: &mut dyn FnMut(Key, Value)) {
        self.entries(0..self.len()).for_each(|(key, value)| each(key, value.to_value()));
    }

    /// Appends all of `right`, whose keys are above.
    pub(in crate::tree) fn append(&mut self, right: Self) {
        let (seam, start) = (self.len(), self.len() as u32);
        self.encoded_bytes += right.encoded_bytes - HEADER_BYTES - right.costs(0..1);
        self.value_bytes += right.value_bytes;
        for group in right.groups {
            let continues =
                self.groups.last().is_some_and(|last| (last.object, last.kind) == (group.object, group.kind));
            if !continues {
                self.groups.push(KeyGroup { start: group.start + start, ..group });
            }
        }
        self.offsets.extend(right.offsets);
        self.values.append(right.values);
        self.encoded_bytes += self.costs(seam..seam + 1);
    }

    /// Moves the entries from `at` on to a new leaf.
    fn split_off(&mut self, at: usize) -> Self {
        let moved = self.costs(at..self.len());
        let seam = self.cost(at);
        let g = self.groups.partition_point(|group| group.start as usize <= at) - 1;
        let mut groups = self.groups.split_off(g + 1);
        groups.insert(0, KeyGroup { start: at as u32, ..self.groups[g] });
        if self.groups[g].start as usize == at {
            self.groups.pop();
        }
        groups.iter_mut().for_each(|group| group.start -= at as u32);
        let mut right = Self {
            groups,
            offsets: self.offsets.split_off(at),
            values: self.values.split_off(at),
            encoded_bytes: 0,
            value_bytes: 0,
        };
        right.encoded_bytes = HEADER_BYTES + moved - seam + right.cost(0);
        if let Values::Mixed(values) = &right.values {
            right.value_bytes = values.iter().map(Value::heap_bytes).sum();
        }
        self.encoded_bytes -= moved;
        self.value_bytes -= right.value_bytes;
        self.values.shrink();
        right.values.shrink();
        self.offsets.shrink_to_fit();
        right
    }

    /// Splits off leaves at the right until each is at most `target` bytes when encoded, or holds one entry. `inserted`
    /// is the index of the newest entry. If that continues a run of pages, the run's leaf is left full, because the
    /// next page of the run will not go there.
    pub(in crate::tree) fn split(&mut self, inserted: Option<usize>, target: usize) -> Vec<Self> {
        if self.encoded_bytes <= target || self.len() < 2 {
            return Vec::new();
        }
        let at = self.run_split(inserted, target).unwrap_or_else(|| self.middle());
        let mut right = self.split_off(at);
        let mut parts = self.split(None, target);
        let more = right.split(None, target);
        parts.push(right);
        parts.extend(more);
        parts
    }

    fn run_split(&self, inserted: Option<usize>, target: usize) -> Option<usize> {
        let at = inserted.filter(|&i| i > 0 && i < self.len())?;
        let (before, key) = (self.key(at - 1), self.key(at));
        let continues = (before.object, before.kind) == (key.object, key.kind)
            && before.offset.checked_add(1) == Some(key.offset);
        let full = HEADER_BYTES + self.costs(0..at + 1) <= target;
        continues.then_some(if full && at + 1 < self.len() { at + 1 } else { at })
    }

    /// Returns the index at which both halves encode to about the same size.
    fn middle(&self) -> usize {
        let half = self.encoded_bytes / 2;
        let mut sum = HEADER_BYTES;
        for i in 0..self.len() {
            sum += self.cost(i);
            if sum > half {
                return i.clamp(1, self.len() - 1);
            }
        }
        self.len() - 1
    }
}

/// Returns the index of `offset` in ascending `offsets`, or as the error the index where it would be. It looks first
/// where the offset is if there are no gaps.
pub(in crate::tree) fn search_run(offsets: &[u64], offset: u64) -> Result<usize, usize> {
    if let Some(&first) = offsets.first() {
        let guess = offset.wrapping_sub(first);
        if guess < offsets.len() as u64 && offsets[guess as usize] == offset {
            return Ok(guess as usize);
        }
    }
    offsets.binary_search(&offset)
}
