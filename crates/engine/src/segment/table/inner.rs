//! The segment table behind its lock: entries, the set of their pages that changed, and sums that every change keeps
//! up.
//!
//! A call that needs an entry whose page is away returns [`IsAway`] before it changes anything. [`super::paging`] reads
//! the page, and calls again.

use std::collections::{BTreeMap, BTreeSet};

use super::RecordPlace;
use crate::segment::deaths::{Deaths, promised_bytes, rewritten_bytes_max};
use crate::segment::directory::Directory;
use crate::segment::entries::{Entries, EntriesPage, IsAway};
use crate::segment::entry::{Part, Segment};
use crate::segment::occupancy::Occupancy;
use crate::segment::page::{Away, Settled};
use crate::sums::{differs, subtract};
use crate::types::COPIES;
use crate::{Addr, Ptr};

/// The state of the table.
#[derive(Default)]
pub(in crate::segment) struct Inner {
    pub(in crate::segment) segments: Entries,
    /// Directories of the open segments: they have none on the device yet.
    pub(in crate::segment) open: BTreeMap<u64, Directory>,
    /// Pages to be stored by the next checkpoint: more has changed of their entries than that records died.
    pub(in crate::segment) dirty: BTreeSet<u64>,
    /// Sum of [`Segment::stored_bytes_max`] over the segments on `dirty` pages.
    pub(in crate::segment) dirty_bytes: u64,
    /// Pages that a checkpoint under way stores. They cannot be read from a device before it counts.
    pub(in crate::segment) under_way: BTreeSet<u64>,
    /// Number of records that died since the directories in memory were looked through.
    pub(in crate::segment) died: u64,
    /// Records that died since their page was stored, for pages that are not in `dirty`.
    pub(in crate::segment) deaths: Deaths,
    /// Segments that may have no live records.
    pub(in crate::segment) vacant: BTreeSet<u64>,
    /// Pages that are away and have lost their last live record in a chunk: some of their segments may have no live
    /// records.
    pub(in crate::segment) vacated: BTreeSet<u64>,
    /// Segments that moved since the last checkpoint.
    pub(in crate::segment) moved: BTreeSet<u64>,
    /// Upper bound of the sum of [`Segment::used_bytes`] over all segments. (On pages that are away, directories count
    /// as large as they were.)
    pub(in crate::segment) used_bytes: u64,
    /// Sum of [`Segment::live_records_bytes`] over all segments.
    pub(in crate::segment) record_bytes: u64,
    /// Sum of [`Segment::stored_bytes_max`] over all segments.
    pub(in crate::segment) stored_bytes: u64,
    pub(in crate::segment) occupancy: Occupancy,
    /// Number of segments that list each model.
    pub(in crate::segment) models: BTreeMap<u32, u64>,
    /// Number of segments that have records that were coded again.
    pub(in crate::segment) recompressed: u64,
    /// Number of times that a page was put away.
    pub(in crate::segment) versions: u64,
    /// Page from which the search for a page to be put away goes on.
    pub(in crate::segment) hand: u64,
}

impl Inner {
    /// Marks a page, which must be in memory, to be stored by the next checkpoint. Its list of dead records is dropped,
    /// since the stored page will show them as dead.
    pub(in crate::segment) fn touch(&mut self, page: u64) {
        debug_assert!(self.segments.away(page).is_none(), "page {page} is away");
        if self.dirty.insert(page) {
            self.dirty_bytes += self.page_bytes(page);
            self.deaths.forget(page);
        }
    }

    /// Has a page stored in place of the list of its dead as soon as `fresh`, the records that died of it since the
    /// last checkpoint, have as many bytes promised as the page takes. They need no memory then, and no more is
    /// promised than before.
    fn store_for_dead(&mut self, page: u64, fresh: u64) {
        if fresh.is_multiple_of(WEIGHED_EACH)
            && self.segments.away(page).is_none()
            && fresh * promised_bytes(self.stored_bytes) >= self.page_bytes(page)
        {
            self.touch(page);
        }
    }

    /// Returns the most bytes that a page takes where it is stored.
    pub(in crate::segment) fn page_bytes(&self, page: u64) -> u64 {
        match self.segments.page(page) {
            Ok(segments) => segments.iter().map(Segment::stored_bytes_max).sum(),
            Err(IsAway(_)) => self.segments.away(page).map_or(0, |away| away.stored_bytes),
        }
    }

    /// Corrects the sums: the stored form of a segment's entry took `before` bytes, and takes `after` now.
    fn restored(&mut self, id: u64, before: u64, after: u64) {
        self.stored_bytes += after;
        subtract(&mut self.stored_bytes, before);
        if self.dirty.contains(&self.segments.page_of(id)) {
            self.dirty_bytes += after;
            subtract(&mut self.dirty_bytes, before);
        }
    }

    /// Puts a new segment into the table and its sums. Its page is to be stored.
    pub(in crate::segment) fn put(&mut self, segment: Segment) -> Result<(), IsAway> {
        let id = segment.id;
        let page = self.segments.page_of(id);
        self.segments.page(page)?;
        self.touch(page);
        for (part, held) in segment.parts.iter().zip(&segment.held) {
            self.occupancy.enter(part.extent.chunk, page, id, *held);
        }
        self.add(&segment);
        self.restored(id, 0, segment.stored_bytes_max());
        self.segments.insert(segment).map(drop)
    }

    /// Adds a segment to the sums, except those of stored bytes and of what parts hold of chunks.
    fn add(&mut self, segment: &Segment) {
        if segment.live.count() == 0 {
            self.vacant.insert(segment.id);
        }
        self.used_bytes += segment.used_bytes();
        self.record_bytes += segment.live_records_bytes();
        for model in &segment.models {
            *self.models.entry(*model).or_default() += 1;
        }
        self.recompressed += u64::from(segment.recompressed);
    }

    /// Puts the entries of a stored page into the table, which must have nothing of that page.
    pub(in crate::segment) fn load(&mut self, page: u64, segments: Vec<Segment>) {
        for segment in &segments {
            if segment.parts.iter().any(|part| part.directory.is_none()) {
                self.open.entry(segment.id).or_default();
            }
            for (part, held) in segment.parts.iter().zip(&segment.held) {
                self.occupancy.enter_unranked(part.extent.chunk, page, segment.id, *held);
            }
            self.add(segment);
            self.restored(segment.id, 0, segment.stored_bytes_max());
        }
        self.segments.put_page(page, segments);
    }

    /// Puts the entries of a page that is away back into memory. Where they differ from what was kept of the page, the
    /// entries count.
    pub(in crate::segment) fn bring_back(&mut self, page: u64, Settled { segments, agrees }: Settled) {
        let Some(away) = self.segments.away(page) else { return };
        subtract(&mut self.used_bytes, away.used_bytes);
        subtract(&mut self.record_bytes, away.record_bytes);
        subtract(&mut self.stored_bytes, away.stored_bytes);
        if !agrees {
            // Sums of records that were coded again may be inexact.
            if !segments.iter().any(|segment| segment.recompressed) {
                differs("a page of the segment table and what was kept of it");
            }
            away.held().for_each(|(chunk, held)| self.occupancy.shrink(chunk, held));
        }
        for segment in &segments {
            if segment.live.count() == 0 {
                self.vacant.insert(segment.id);
            }
            self.used_bytes += segment.used_bytes();
            self.record_bytes += segment.live_records_bytes();
            self.stored_bytes += segment.stored_bytes_max();
            for (part, held) in segment.parts.iter().zip(&segment.held).filter(|_| !agrees) {
                self.occupancy.grow(part.extent.chunk, *held);
            }
        }
        self.vacated.remove(&page);
        self.segments.put_page(page, segments);
    }

    /// Puts pages away that were not asked for lately, except `but`, until at most `entries` entries are left in
    /// memory. It makes at most `most` steps, each of which puts away one page at most. Returns false if no page is
    /// left that could go.
    pub(in crate::segment) fn put_away(&mut self, entries: usize, mut most: usize, but: Option<u64>) -> bool {
        // The search goes round twice: in the first round it may find that each page was used lately.
        let mut rounds = 2;
        while self.segments.here() > entries && most > 0 {
            let may = |page: u64| {
                !self.dirty.contains(&page) && !self.under_way.contains(&page) && but != Some(page)
            };
            let (unused, next) = self.segments.unused(self.hand, PASSED_AT_ONCE, &may);
            if next.is_none() {
                rounds -= 1;
                if rounds == 0 {
                    return false;
                }
            }
            self.hand = next.unwrap_or_default();
            most -= 1;
            let Some(page) = unused else { continue };
            let ids = self.segments.page_ids();
            let away = self.segments.page(page).ok().and_then(|all| Away::of(self.versions, ids, all));
            if let Some(away) = away {
                self.versions += 1;
                self.segments.put_away(page, away);
            }
        }
        true
    }

    /// Takes a segment out of the table and its sums; `None` if there is none.
    pub(in crate::segment) fn take(&mut self, id: u64) -> Result<Option<Segment>, IsAway> {
        let Some(segment) = self.segments.remove(id)? else { return Ok(None) };
        self.restored(id, segment.stored_bytes_max(), 0);
        subtract(&mut self.used_bytes, segment.used_bytes());
        subtract(&mut self.record_bytes, segment.live_records_bytes());
        for (part, held) in segment.parts.iter().zip(&segment.held) {
            self.occupancy.leave(part.extent.chunk, self.segments.page_of(id), *held);
        }
        for model in &segment.models {
            let count = self.models.entry(*model).or_default();
            subtract(count, 1);
            if *count == 0 {
                self.models.remove(model);
            }
        }
        subtract(&mut self.recompressed, segment.recompressed.into());
        Ok(Some(segment))
    }

    /// Changes a segment and the sums with it, except those of what its parts hold of chunks, of models, and of
    /// segments coded again. Its page is to be stored.
    pub(in crate::segment) fn change<T>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut Segment) -> T,
    ) -> Result<Option<T>, IsAway> {
        let page = self.segments.page_of(id);
        self.segments.page(page)?;
        self.touch(page);
        self.change_sums(id, change)
    }

    fn change_sums<T>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut Segment) -> T,
    ) -> Result<Option<T>, IsAway> {
        let Some(segment) = self.segments.get_mut(id)? else { return Ok(None) };
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
        Ok(Some(changed))
    }

    /// Makes a record of `len_bytes` live.
    pub(in crate::segment) fn revive(&mut self, addr: Addr, len_bytes: u32) -> Result<(), IsAway> {
        if let Some(Some((chunk, bytes))) =
            self.change(addr.segment(), |segment| segment.revive(addr.slot(), len_bytes))?
        {
            self.occupancy.grow(chunk, bytes);
        }
        Ok(())
    }

    /// Makes a record dead. Returns false if it was. If its page is away, callers have to know that it is live.
    pub(in crate::segment) fn kill(&mut self, ptr: Ptr) -> bool {
        let id = ptr.addr.segment();
        let page = self.segments.page_of(id);
        let died = match self.segments.get(id) {
            Err(IsAway(_)) => self.kill_away(page, ptr),
            Ok(Some(segment)) if segment.live.get(ptr.addr.slot()) => self.kill_here(ptr),
            Ok(_) => false,
        };
        self.died += u64::from(died);
        if died && !self.dirty.contains(&page) {
            let fresh = self.deaths.push(page, ptr);
            self.store_for_dead(page, fresh);
        }
        died
    }

    /// Makes a record dead, and its second copy with it.
    pub(in crate::segment) fn kill_both(&mut self, ptr: Ptr) {
        if self.kill(ptr) {
            // Pages of second copies are never away, so this finds whether there is one.
            self.kill(Ptr { addr: ptr.addr.copy(), ..ptr });
        }
    }

    fn kill_here(&mut self, ptr: Ptr) -> bool {
        let id = ptr.addr.segment();
        let kill =
            |segment: &mut Segment| (segment.kill(ptr.addr.slot(), ptr.len_bytes), segment.live.count());
        if let Ok(Some((held, left))) = self.change_sums(id, kill) {
            if let Some((chunk, bytes)) = held {
                self.occupancy.shrink(chunk, bytes);
            }
            if left == 0 {
                self.vacant.insert(id);
            }
        }
        true
    }

    fn kill_away(&mut self, page: u64, ptr: Ptr) -> bool {
        let ids = self.segments.page_ids();
        let Some(died) = self.segments.away_mut(page).and_then(|away| away.kill(ids, ptr)) else {
            return false;
        };
        self.occupancy.shrink(died.chunk, died.held_bytes);
        subtract(&mut self.used_bytes, died.used_bytes);
        subtract(&mut self.record_bytes, died.record_bytes);
        if died.last {
            self.vacated.insert(page);
        }
        true
    }

    /// Returns those pages for which `may` is true that a snapshot is to store because of the records that died.
    pub(in crate::segment) fn heavy(
        &self,
        page_ptrs: &BTreeMap<u64, Ptr>,
        may: &dyn Fn(u64) -> bool,
    ) -> Vec<u64> {
        let most = rewritten_bytes_max(self.deaths.fresh(), self.stored_bytes, self.segments.page_ids());
        let stored_bytes = |page| page_ptrs.get(&page).map(|ptr: &Ptr| ptr.len_bytes);
        self.deaths.heavy(may, &stored_bytes, &|page| self.page_bytes(page), most)
    }

    /// Returns the place of the part that `addr` lies in, and its directory entry if the segment is open.
    pub(in crate::segment) fn place(&self, addr: Addr) -> Result<Option<RecordPlace>, IsAway> {
        let Some(segment) = self.segments.get(addr.segment())? else { return Ok(None) };
        let Some(part) = segment.part(addr.slot()) else { return Ok(None) };
        Ok(match part.directory {
            Some(dir) => Some(RecordPlace::Closed(part.extent, dir)),
            None => {
                self.open.get(&segment.id).map(|open| RecordPlace::Open(part.extent, open.get(addr.slot())))
            }
        })
    }

    fn is_vacant(&self, id: u64) -> bool {
        matches!(self.segments.get(id), Ok(Some(segment)) if segment.live.count() == 0)
    }

    /// Returns the segments without live records whose numbers in the log are below `open`, and forgets them as vacant.
    /// They stay in the table.
    pub(in crate::segment) fn take_vacant(&mut self, open: u64) -> Vec<u64> {
        let mut vacant = std::mem::take(&mut self.vacant);
        vacant.retain(|id| self.is_vacant(*id));
        let (taken, left): (Vec<u64>, Vec<u64>) = vacant.into_iter().partition(|id| (*id & !COPIES) < open);
        self.vacant = left.into_iter().collect();
        taken
    }

    /// Drops a segment if it has no live records. Returns the parts that it had.
    pub(in crate::segment) fn drop_dead(&mut self, id: u64) -> Vec<Part> {
        if !self.is_vacant(id) {
            return Vec::new();
        }
        let taken = self.take(id).ok().flatten();
        self.open.remove(&id);
        let page = self.segments.page_of(id);
        if self.segments.page(page).is_ok_and(<[_]>::is_empty) {
            // The next checkpoint gives the stored form up.
            self.touch(page);
        }
        taken.map(|segment| segment.parts.into_vec()).unwrap_or_default()
    }

    /// Makes sure that there is a segment for second copies of records of segment `id`. The caller gives it parts.
    pub(in crate::segment) fn copies_of(&mut self, id: u64) -> Result<(), IsAway> {
        let id = id | COPIES;
        if self.segments.get(id)?.is_none() {
            self.put(Segment::without_parts(id))?;
        }
        self.touch(self.segments.page_of(id));
        Ok(())
    }

    /// Adds parts to a segment. None of its live records lies in them yet.
    pub(in crate::segment) fn add_parts(&mut self, id: u64, parts: &[Part]) -> Result<(), IsAway> {
        self.change(id, |segment| {
            segment.parts.extend_from_slice(parts);
            segment.held.resize(segment.parts.len(), 0);
        })?;
        for part in parts {
            self.occupancy.enter(part.extent.chunk, self.segments.page_of(id), id, 0);
        }
        Ok(())
    }

    /// Makes the second copy of the record live.
    pub(in crate::segment) fn copy(&mut self, ptr: Ptr) -> Result<(), IsAway> {
        let addr = ptr.addr.copy();
        self.change(addr.segment(), |segment| segment.slots = segment.slots.max(addr.slot() + 1))?;
        self.revive(addr, ptr.len_bytes)
    }

    /// Returns the sums as the entries say them: bytes used, of records, stored, changed, and held of chunks.
    pub(in crate::segment) fn counted(&self) -> [u64; 5] {
        let mut counted = [0; 5];
        let mut add = |sums: [u64; 5]| counted.iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
        for (_, page) in self.segments.pages_from(0) {
            match page {
                EntriesPage::Here(segments, _) => segments.iter().for_each(|segment| {
                    let held = segment.held.iter().sum();
                    let (used, records) = (segment.used_bytes(), segment.live_records_bytes());
                    add([used, records, segment.stored_bytes_max(), 0, held]);
                }),
                EntriesPage::Away(away) => {
                    add([away.used_bytes, away.record_bytes, away.stored_bytes, 0, away.held_bytes()]);
                }
            }
        }
        counted[3] = self.dirty.iter().map(|page| self.page_bytes(*page)).sum();
        counted
    }
}

/// Number of further deaths on a page after which it is considered again for being stored in place of its list of dead.
const WEIGHED_EACH: u64 = 64;
/// Number of pages that one step looks at to find one to be put away.
const PASSED_AT_ONCE: usize = 64;
