//! The segment table behind its lock: entries, which of their pages changed, and the sums that go with each change.

use std::collections::{BTreeMap, BTreeSet};

use super::deaths::Deaths;
use super::directory::Directory;
use super::entries::Entries;
use super::entry::{Part, Segment};
use super::occupancy::Occupancy;
use crate::account::subtract;
use crate::types::COPIES;
use crate::{Addr, Ptr};

/// What the table knows.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) segments: Entries,
    /// Directories of segments that have none on the device yet.
    pub(super) open: BTreeMap<u64, Directory>,
    /// Pages of whose entries more has changed than that records died.
    pub(super) dirty: BTreeSet<u64>,
    /// Of the segments on these: [`Segment::stored_bytes_max`].
    pub(super) dirty_bytes: u64,
    /// Of the other pages.
    pub(super) deaths: Deaths,
    /// Segments that may have no live records.
    pub(super) vacant: BTreeSet<u64>,
    /// Of all segments: [`Segment::used_bytes`].
    pub(super) used_bytes: u64,
    /// Of all segments: [`Segment::live_records_bytes`].
    pub(super) record_bytes: u64,
    /// Of all segments: [`Segment::stored_bytes_max`].
    pub(super) stored_bytes: u64,
    pub(super) occupancy: Occupancy,
    /// How many segments list each model.
    pub(super) models: BTreeMap<u32, u64>,
    /// How many segments have records that were coded again.
    pub(super) recoded: u64,
}

impl Inner {
    /// A page is to be stored.
    pub(super) fn touch(&mut self, page: u64) {
        if self.dirty.insert(page) {
            self.dirty_bytes += self.page_bytes(page);
        }
    }

    /// What a page takes where it is stored, at most.
    pub(super) fn page_bytes(&self, page: u64) -> u64 {
        self.segments.page(page).iter().map(Segment::stored_bytes_max).sum()
    }

    /// What the entry of a segment takes where it is stored was `before`, and is `after`.
    pub(super) fn restored(&mut self, id: u64, before: u64, after: u64) {
        self.stored_bytes += after;
        subtract(&mut self.stored_bytes, before);
        if self.dirty.contains(&self.segments.page_of(id)) {
            self.dirty_bytes += after;
            subtract(&mut self.dirty_bytes, before);
        }
    }

    /// Puts a segment into the table and its sums; its page is to be stored.
    pub(super) fn put(&mut self, segment: Segment) {
        self.touch(self.segments.page_of(segment.id));
        for (part, held) in segment.parts.iter().zip(&segment.held) {
            self.occupancy.enter(part.extent.chunk, segment.id, *held);
        }
        self.add(&segment);
        self.restored(segment.id, 0, segment.stored_bytes_max());
        self.segments.insert(segment);
    }

    /// Adds a segment to the sums, but for those of what is stored and of what parts hold of chunks.
    pub(super) fn add(&mut self, segment: &Segment) {
        if segment.live.count() == 0 {
            self.vacant.insert(segment.id);
        }
        self.used_bytes += segment.used_bytes();
        self.record_bytes += segment.live_records_bytes();
        for model in &segment.models {
            *self.models.entry(*model).or_default() += 1;
        }
        self.recoded += u64::from(segment.recoded);
    }

    /// Takes a segment out of the table and its sums.
    pub(super) fn take(&mut self, id: u64) -> Option<Segment> {
        let segment = self.segments.remove(id)?;
        self.restored(id, segment.stored_bytes_max(), 0);
        subtract(&mut self.used_bytes, segment.used_bytes());
        subtract(&mut self.record_bytes, segment.live_records_bytes());
        for (part, held) in segment.parts.iter().zip(&segment.held) {
            self.occupancy.leave(part.extent.chunk, id, *held);
        }
        for model in &segment.models {
            let count = self.models.entry(*model).or_default();
            subtract(count, 1);
            if *count == 0 {
                self.models.remove(model);
            }
        }
        subtract(&mut self.recoded, segment.recoded.into());
        Some(segment)
    }

    /// Changes a segment and the sums with it, but for what its parts hold of chunks, its models, and whether it was coded again. Its page is to be
    /// stored.
    pub(super) fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut Segment) -> T) -> Option<T> {
        self.touch(self.segments.page_of(id));
        self.change_sums(id, change)
    }

    pub(super) fn change_sums<T>(&mut self, id: u64, change: impl FnOnce(&mut Segment) -> T) -> Option<T> {
        let segment = self.segments.get_mut(id)?;
        let sums = |segment: &Segment| {
            (segment.used_bytes(), segment.live_records_bytes(), segment.stored_bytes_max())
        };
        let before = sums(segment);
        let changed = change(segment);
        let after = sums(segment);
        self.used_bytes += after.0;
        subtract(&mut self.used_bytes, before.0);
        self.record_bytes += after.1;
        subtract(&mut self.record_bytes, before.1);
        self.restored(id, before.2, after.2);
        Some(changed)
    }

    /// Makes a record of `len_bytes` live.
    pub(super) fn revive(&mut self, addr: Addr, len_bytes: u32) {
        if let Some(Some((chunk, bytes))) =
            self.change(addr.segment(), |segment| segment.revive(addr.slot(), len_bytes))
        {
            self.occupancy.grow(chunk, bytes);
        }
    }

    /// Makes a record of `len_bytes` dead; false where it was.
    pub(super) fn kill(&mut self, addr: Addr, len_bytes: u32) -> bool {
        let id = addr.segment();
        let segment = self.segments.get(id);
        if !segment.is_some_and(|segment| segment.live.get(addr.slot())) {
            return false;
        }
        let killed =
            self.change_sums(id, |segment| (segment.kill(addr.slot(), len_bytes), segment.live.count()));
        if let Some((held, left)) = killed {
            if let Some((chunk, bytes)) = held {
                self.occupancy.shrink(chunk, bytes);
            }
            if left == 0 {
                self.vacant.insert(id);
            }
        }
        let page = self.segments.page_of(id);
        if !self.dirty.contains(&page) {
            self.deaths.push(page, Ptr { addr, len_bytes });
        }
        true
    }

    /// Takes out the segments without live records whose numbers in the log are below `open`.
    pub(super) fn take_vacant(&mut self, open: u64) -> Vec<u64> {
        let segments = &self.segments;
        let is_vacant = |id: &u64| segments.get(*id).is_some_and(|segment| segment.live.count() == 0);
        self.vacant.retain(is_vacant);
        let taken: Vec<u64> = self.vacant.iter().copied().filter(|id| (*id & !COPIES) < open).collect();
        self.vacant.retain(|id| (*id & !COPIES) >= open);
        taken
    }

    /// The segment of second copies of records of segment `id`; it gets its parts from the caller.
    pub(super) fn copies_of(&mut self, id: u64) {
        let id = id | COPIES;
        if self.segments.get(id).is_none() {
            self.put(Segment::without_parts(id));
        }
        self.touch(self.segments.page_of(id));
    }

    /// Adds parts in which none of its live records lies yet.
    pub(super) fn add_parts(&mut self, id: u64, parts: &[Part]) {
        self.change(id, |segment| {
            segment.parts.extend_from_slice(parts);
            segment.held.resize(segment.parts.len(), 0);
        });
        for part in parts {
            self.occupancy.enter(part.extent.chunk, id, 0);
        }
    }

    /// A record's second copy is live.
    pub(super) fn copy(&mut self, ptr: Ptr) {
        let addr = ptr.addr.copy();
        self.change(addr.segment(), |segment| segment.slots = segment.slots.max(addr.slot() + 1));
        self.revive(addr, ptr.len_bytes);
    }
}
