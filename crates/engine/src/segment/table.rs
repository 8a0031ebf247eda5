//! Keeps the segment table: an entry per segment, stored in pages, of which each checkpoint writes those that changed.

mod inner;
mod paging;
mod storing;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;

use super::directory::{DirRef, Directory};
use super::entries::{Entries, IsAway};
use super::entry::{Move, PageIds, Part, Segment};
use super::occupancy::Occupied;
use super::piece::{Piece, PieceKey, PieceWeight};
use crate::error::DamagedAt;
use crate::faults::{FaultKind, Faults, Subject};
use crate::memory::is_other_bound;
use crate::space::{Chunk, Extent};
use crate::types::COPIES;
use crate::{Addr, Error, Ptr, Result};

use inner::Inner;
use paging::Paging;
pub(crate) use paging::{TableBound, TablePages};
pub(crate) use storing::TableSnapshot;

/// Number of chunks that are ranked under one hold of the table's lock: a few milliseconds.
const RANKED_AT_ONCE: usize = 8 << 10;

/// Estimate of the memory that an entry takes, in bytes, until entries are counted for the first time.
const ENTRY_BYTES: u64 = 256;
/// Largest number of times that the reading of a second copy is logged.
const STAND_INS_LOGGED: u64 = 1000;

/// A visitor of chunks. It gets a chunk, what is in it, and a function from the number of a page of the table to the
/// most bytes that the page takes where it is stored. It returns false to end the visit.
pub(crate) type VisitChunk<'a> = dyn FnMut(Chunk, &Occupied, &dyn Fn(u64) -> u64) -> bool + 'a;

/// The segment table of an open pool.
pub struct Segments {
    pub(super) inner: RwLock<Inner>,
    /// Number of entries in memory when their memory was last counted, and that memory in bytes.
    weighed: Mutex<(usize, u64)>,
    /// Average memory of an entry, in bytes.
    pub(super) entry_bytes: AtomicU64,
    pub(super) paging: OnceLock<Paging>,
    pub(super) pages_read: AtomicU64,
    /// Number of times that a second copy was read in place of a first one.
    stood_in: AtomicU64,
    /// Errors that were met.
    pub faults: Faults,
    pub(super) directories: Cache<PieceKey, Piece, PieceWeight>,
}

impl Segments {
    /// Creates an empty table whose cache of directories may take `cache_bytes`.
    pub fn new(cache_bytes: u64) -> Self {
        // A leaf holds up to 1024 entries of 10 bytes.
        let items = (cache_bytes / 8_000).max(16) as usize;
        let directories = Cache::with_weighter(items, cache_bytes, PieceWeight);
        Self {
            inner: RwLock::default(),
            weighed: Mutex::default(),
            entry_bytes: AtomicU64::new(ENTRY_BYTES),
            paging: OnceLock::new(),
            pages_read: AtomicU64::default(),
            stood_in: AtomicU64::default(),
            faults: Faults::default(),
            directories,
        }
    }

    /// Sets the number of segment ids that share a page. The table has to be empty.
    pub(crate) fn set_page_ids(&self, ids: PageIds) {
        self.inner.write().segments = Entries::new(ids);
    }

    /// Returns the number of segment ids that share a page.
    pub(crate) fn page_ids(&self) -> PageIds {
        self.inner.read().segments.page_ids()
    }

    /// Returns the number of times that a second copy was read because the first one could not be, or was damaged.
    pub(crate) fn stood_in(&self) -> u64 {
        self.stood_in.load(Ordering::Relaxed)
    }

    /// Returns `first` if it is `Ok`; else what `second` reads of the second copy, or the error of `first` if that
    /// fails, too. The caller has counted that error; `subject` and `at` say what the first copy is of, and where it
    /// lies.
    pub(crate) fn or_second<T>(
        &self,
        first: Result<T>,
        (subject, at): (Subject, Option<DamagedAt>),
        second: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Err(error) = first else { return first };
        let Ok(found) = second() else { return Err(error) };
        self.faults.note(FaultKind::Corrected, subject, at.map(|at| (at.device, at.offset)));
        if self.stood_in.fetch_add(1, Ordering::Relaxed) < STAND_INS_LOGGED {
            tracing::warn!(%error, "the second copy was read instead; a scrub repairs the first");
        }
        Ok(found)
    }

    /// Adds a segment: one just opened, or one read from a stored page.
    ///
    /// # Errors
    /// Fails if its page is away and cannot be read.
    pub fn insert(&self, segment: Segment) -> Result<()> {
        let (id, open) = (segment.id, segment.parts.iter().any(|part| part.directory.is_none()));
        let mut inner = self.bring(self.page_ids().page(id))?;
        inner.put(segment).map_err(|IsAway(_)| no_segment(id))?;
        if open {
            inner.open.entry(id).or_default();
        }
        Ok(())
    }

    /// Replaces what the table has of a segment by what was found of it on the devices. `entries` are the records in
    /// parts that have no directory.
    ///
    /// # Errors
    /// Those of [`Segments::insert`].
    pub(crate) fn insert_rescued(&self, segment: Segment, entries: Directory) -> Result<()> {
        let id = segment.id;
        self.work(|inner| inner.take(id).map(drop))?;
        self.insert(segment)?;
        self.set_open_directory(id, entries);
        Ok(())
    }

    /// Appends records to an open segment. Each is live at once, or becomes live by a later operation.
    pub fn append(&self, id: u64, entries: &[DirEntryState]) -> Result<()> {
        // The page of an open segment is never away.
        let mut inner = self.bring(self.page_ids().page(id))?;
        let inner = &mut *inner;
        let directory = inner.open.get_mut(&id).ok_or_else(|| no_segment(id))?;
        entries.iter().for_each(|state| directory.push(state.entry));
        let appended = inner.change(id, |segment| {
            let (mut held, mut models) = (None, Vec::new());
            for state in entries {
                segment.slots = state.entry.slot + 1;
                if let Some(model) = state.model
                    && let Err(at) = segment.models.binary_search(&model)
                {
                    let mut longer = std::mem::take(&mut segment.models).into_vec();
                    longer.insert(at, model);
                    segment.models = longer.into_boxed_slice();
                    models.push(model);
                }
                if state.live
                    && let Some((chunk, bytes)) = segment.revive(state.entry.slot, state.entry.len_bytes)
                {
                    let sum = held.map_or(0, |(_, sum)| sum);
                    held = Some((chunk, sum + bytes));
                }
            }
            (held, models)
        });
        let (held, models) = appended.ok().flatten().ok_or_else(|| no_segment(id))?;
        for model in models {
            *inner.models.entry(model).or_default() += 1;
        }
        if let Some((chunk, bytes)) = held {
            inner.occupancy.grow(chunk, bytes);
        }
        Ok(())
    }

    /// Returns the directory of an open segment with the entries so far; `None` if the segment is not open.
    pub(crate) fn open_directory(&self, id: u64) -> Option<Directory> {
        self.inner.read().open.get(&id).cloned()
    }

    /// Replaces the directory of an open segment by one that was read back from a checkpoint.
    pub(crate) fn set_open_directory(&self, id: u64, directory: Directory) {
        self.inner.write().open.insert(id, directory);
    }

    /// Returns the ids of the segments whose directory is not on the device.
    pub(crate) fn open_ids(&self) -> Vec<u64> {
        self.inner.read().open.keys().copied().collect()
    }

    /// Closes an open segment: its directory is on the device now, at `dir`.
    pub(crate) fn close(&self, id: u64, dir: DirRef) -> Result<()> {
        let closed = self.work(|inner| {
            let extent = inner.change(id, |segment| {
                let part = segment.parts.first_mut()?;
                part.directory = Some(dir);
                segment.live.shrink();
                Some(part.extent)
            })?;
            Ok(extent.flatten().map(|extent| (extent, inner.open.remove(&id))))
        })?;
        let (extent, directory) = closed.ok_or_else(|| no_segment(id))?;
        if let Some(directory) = directory {
            self.keep_written(id, (extent, dir), &directory);
        }
        Ok(())
    }

    /// Moves a segment to other parts. Returns those that it had.
    pub(crate) fn relocate(&self, id: u64, to: Move) -> Result<Vec<Part>> {
        let mut inner = self.bring(self.page_ids().page(id))?;
        let mut segment = inner.take(id).ok().flatten().ok_or_else(|| no_segment(id))?;
        inner.moved.insert(id);
        segment.recompressed |= to.recompressed;
        if to.recompressed {
            segment.restate(&to.lens);
        }
        let stays = to.parts.iter().any(|part| segment.parts.iter().any(|old| old.lies_as(part)));
        let old = segment.lie_in(to.parts, &to.lens);
        let mut models = to.models;
        if stays {
            models.extend_from_slice(&segment.models);
            models.sort_unstable();
            models.dedup();
        }
        segment.models = models.into_boxed_slice();
        inner.put(segment).map_err(|_| no_segment(id))?;
        Ok(old)
    }

    /// Returns the segments that moved since the last call. Each checkpoint calls this.
    pub(crate) fn take_moved(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.inner.write().moved)
    }

    /// Returns true if any segment has records that were coded again.
    pub(crate) fn has_recompressed(&self) -> bool {
        self.inner.read().recompressed > 0
    }

    /// Returns the positions of the pointers whose lengths may be out of date, since their segments have records that
    /// were coded again. If a segment's page is away, such records of any segment on it count.
    pub(crate) fn recompressed(&self, ptrs: &[Ptr]) -> Vec<usize> {
        let inner = self.inner.read();
        if inner.recompressed == 0 {
            return Vec::new();
        }
        let recompressed = |ptr: &Ptr| match inner.segments.get(ptr.addr.segment()) {
            Ok(segment) => segment.is_some_and(|segment| segment.recompressed),
            Err(IsAway(page)) => inner.segments.away(page).is_some_and(|away| away.recompressed),
        };
        ptrs.iter().enumerate().filter(|(_, ptr)| recompressed(ptr)).map(|(at, _)| at).collect()
    }

    /// Makes a record live, since replay has met an operation that refers to it.
    pub(crate) fn mark_live(&self, ptr: Ptr) -> Result<()> {
        let slots = self.work(|inner| {
            let slots = inner.segments.get(ptr.addr.segment())?.map(|segment| segment.slots);
            if slots.is_some_and(|slots| ptr.addr.slot() < slots) {
                inner.revive(ptr.addr, ptr.len_bytes)?;
            }
            Ok(slots)
        })?;
        let slots = slots.ok_or_else(|| no_segment(ptr.addr.segment()))?;
        if ptr.addr.slot() >= slots {
            return Err(Error::corrupt(format!("address {}", ptr.addr), "its segment has no such slot"));
        }
        Ok(())
    }

    /// Adds parts in which second copies of records of segment `id` lie. They are live if the records are (G5).
    /// `records` has the slot and length of each.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn add_copies(&self, id: u64, parts: &[Part], records: &[(u32, u32)]) -> Result<()> {
        self.work(|inner| {
            let live = inner.segments.get(id)?.map(|segment| segment.live.clone()).unwrap_or_default();
            inner.copies_of(id)?;
            inner.add_parts(id | COPIES, parts)?;
            let live = records.iter().filter(|(slot, _)| live.get(*slot));
            live.map(|(slot, len_bytes)| Ptr { addr: Addr::new(id, *slot), len_bytes: *len_bytes })
                .try_for_each(|ptr| inner.copy(ptr))
        })
    }

    /// Sets the parts in which all second copies of records of segment `id` lie. Opening does so, with what the last
    /// checkpoint has left. Parts that the table knew before are forgotten unless they are among these.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn set_copies(&self, id: u64, parts: &[Part]) -> Result<()> {
        self.work(|inner| {
            inner.copies_of(id)?;
            let Some(mut segment) = inner.take(id | COPIES)? else { return Ok(()) };
            segment.lie_in(parts.to_vec(), &[]);
            inner.put(segment)
        })
    }

    /// Makes the second copy of a live record live, if the record's segment has second copies (replay).
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn copied(&self, ptr: Ptr) -> Result<()> {
        self.work(|inner| match inner.segments.get(ptr.addr.copy().segment())? {
            Some(_) => inner.copy(ptr),
            None => Ok(()),
        })
    }

    /// Returns the parts in which second copies of records of segment `id` lie.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn copies(&self, id: u64) -> Result<Vec<Part>> {
        Ok(self.get(id | COPIES)?.map(|segment| segment.parts.into_vec()).unwrap_or_default())
    }

    /// Makes live records dead, and their second copies with them (G5), since nothing refers to them any more.
    pub(crate) fn mark_dead(&self, ptrs: &[Ptr]) {
        if ptrs.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        ptrs.iter().for_each(|ptr| inner.kill_both(*ptr));
    }

    /// Returns true if a record is live.
    ///
    /// # Errors
    /// Fails if a page that is away cannot be read.
    pub(crate) fn is_live(&self, addr: Addr) -> Result<bool> {
        self.look(|inner| {
            let segment = inner.segments.get(addr.segment())?;
            Ok(segment.is_some_and(|segment| segment.live.get(addr.slot())))
        })
    }

    /// Returns true if a record has a second copy. (Pages of second copies are never away.)
    pub(crate) fn has_copy(&self, addr: Addr) -> bool {
        let (inner, copy) = (self.inner.read(), addr.copy());
        let segment = inner.segments.get(copy.segment()).ok().flatten();
        segment.is_some_and(|segment| segment.live.get(copy.slot()))
    }

    /// Returns the number of segments with records that use `model`, or used it. The model is needed unless this is 0.
    pub fn users_of_model(&self, model: u32) -> u64 {
        self.inner.read().models.get(&model).copied().unwrap_or_default()
    }

    /// Sets the memory that cached directories may take, in bytes.
    pub(crate) fn set_directories_bound(&self, bytes: u64) {
        if is_other_bound(bytes, self.directories.capacity()) {
            self.directories.set_capacity(bytes);
        }
    }

    /// Returns the memory that cached directories take, in bytes.
    pub(crate) fn directories_bytes(&self) -> u64 {
        self.directories.weight()
    }

    /// Returns the memory that the table takes, in bytes. Its entries are counted one by one only if there are over an
    /// eighth more or fewer of them than at the last count.
    pub(crate) fn table_bytes(&self) -> u64 {
        let mut weighed = self.weighed.lock();
        let inner = self.inner.read();
        let entries = inner.segments.here();
        if entries.abs_diff(weighed.0) > weighed.0 / 8 {
            *weighed = (entries, inner.segments.memory_bytes());
            if entries > 0 {
                self.entry_bytes.store(weighed.1 / entries as u64, Ordering::Relaxed);
            }
        }
        weighed.1 + inner.segments.away_bytes() + inner.deaths.memory_bytes() + inner.occupancy.memory_bytes()
    }

    /// Returns the space that live records account for, in bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.inner.read().used_bytes
    }

    /// Returns [`Segments::used_bytes`], and the bytes among them of records and their entries in directories.
    pub(crate) fn used_by_records(&self) -> (u64, u64) {
        let inner = self.inner.read();
        (inner.used_bytes, inner.record_bytes)
    }

    /// Verifies the sums. Returns an error if one is not that of the entries.
    pub(crate) fn verify_sums(&self) -> Result<()> {
        let inner = self.inner.read();
        let [used, records, stored, changed, held] = inner.counted();
        let counted = [
            ("used", inner.used_bytes, used),
            ("of records", inner.record_bytes, records),
            ("stored", inner.stored_bytes, stored),
            ("changed", inner.dirty_bytes, changed),
            ("held of chunks", inner.occupancy.held_bytes(), held),
        ];
        match counted.iter().find(|(_, counted, found)| counted != found) {
            Some((what, counted, found)) => Err(Error::Invalid(format!(
                "the segment table accounts for {counted} bytes {what}, and its entries for {found}"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the number of chunks that a checkpoint frees now: all of their records are dead, and their segments are
    /// older than `open`, to which the log is being written. (After a pool was opened, chunks are left out that are not
    /// ranked yet.)
    pub(crate) fn dead_chunks(&self, open: u64) -> u64 {
        self.inner.read().occupancy.dead_chunks(open)
    }

    /// Returns what is in a chunk; `None` if nothing is.
    pub(crate) fn occupied(&self, chunk: Chunk) -> Option<Occupied> {
        self.inner.read().occupancy.get(chunk).cloned()
    }

    /// Ranks the chunks that were in use when the pool was opened, for [`Segments::chunks_by_score`]. The table's lock
    /// is released between steps, so that nobody waits long.
    pub(crate) fn rank(&self) {
        while self.inner.write().occupancy.rank(RANKED_AT_ONCE) {}
    }

    /// Visits the ranked chunks that segments lie in, those with the highest `score` first, until `visit` returns
    /// false. `score` is a function of [`Occupied::packed_bytes`] and [`Occupied::youngest()`], and has to rise with
    /// age. `visit` also gets a function that returns the most bytes that a page of the table takes where it is stored.
    pub(crate) fn chunks_by_score(&self, score: &dyn Fn(u64, u64) -> f64, visit: &mut VisitChunk<'_>) {
        let inner = self.inner.read();
        let page_bytes = |page| inner.page_bytes(page);
        inner.occupancy.by_score(score, &mut |chunk, occupied| visit(chunk, occupied, &page_bytes));
    }

    /// Takes the chunks of a device from [`Segments::chunks_by_score`], since everything is to move from there
    /// ([`Segments::leaving_chunks`]); or puts them back.
    pub(crate) fn set_leaving(&self, device: u16, leaves: bool) {
        self.inner.write().occupancy.set_leaving(device, leaves);
    }

    /// Visits the chunks of a device that segments lie in and from which everything is to move, ascending, until `visit`
    /// returns false. It gets what [`Segments::chunks_by_score`] gives.
    pub(crate) fn leaving_chunks(&self, device: u16, visit: &mut VisitChunk<'_>) {
        let inner = self.inner.read();
        let page_bytes = |page| inner.page_bytes(page);
        let _ = inner.occupancy.leaving(device).all(|(chunk, occupied)| visit(chunk, occupied, &page_bytes));
    }

    /// Visits the chunks of a device at these positions that segments lie in, ascending, until `visit` returns false. It gets
    /// what [`Segments::chunks_by_score`] gives.
    pub(crate) fn chunks_among(&self, device: u16, indexes: Range<u32>, visit: &mut VisitChunk<'_>) {
        let inner = self.inner.read();
        let page_bytes = |page| inner.page_bytes(page);
        let mut chunks = inner.occupancy.among(device, indexes);
        let _ = chunks.all(|(chunk, occupied)| visit(chunk, occupied, &page_bytes));
    }

    /// Returns a copy of one entry.
    ///
    /// # Errors
    /// Fails if its page is away and cannot be read.
    pub fn get(&self, id: u64) -> Result<Option<Segment>> {
        self.look(|inner| Ok(inner.segments.get(id)?.cloned()))
    }

    /// Returns copies of the entries of a page that have a part in one of these chunks.
    ///
    /// # Errors
    /// Fails if the page is away and cannot be read.
    pub(crate) fn of_page_in(&self, page: u64, chunks: &BTreeSet<Chunk>) -> Result<Vec<Segment>> {
        let lies = |segment: &&Segment| segment.parts.iter().any(|part| chunks.contains(&part.extent.chunk));
        self.look(|inner| Ok(inner.segments.page(page)?.iter().filter(lies).cloned().collect()))
    }

    /// Returns a copy of the first entry with this number or a higher one.
    ///
    /// # Errors
    /// Fails if its page is away and cannot be read.
    pub(crate) fn at_or_after(&self, id: u64) -> Result<Option<Segment>> {
        self.look(|inner| match inner.segments.next_id(id) {
            Some(id) => Ok(inner.segments.get(id)?.cloned()),
            None => Ok(None),
        })
    }

    /// Returns the number of the first segment from this one on.
    pub(crate) fn next_id(&self, id: u64) -> Option<u64> {
        self.inner.read().segments.next_id(id)
    }

    /// Returns true if there is an entry with this number.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.next_id(id) == Some(id)
    }

    /// Returns the highest number of a segment of the log.
    pub(crate) fn last_id(&self) -> Option<u64> {
        self.inner.read().segments.last_below(COPIES)
    }

    /// Returns the chunks that parts of segments lie in, each with the number of its parts.
    pub(crate) fn chunks(&self) -> Vec<(Chunk, u32)> {
        self.inner.read().occupancy.parts()
    }

    /// Returns the place of the part that `addr` lies in, and its directory entry if the segment is open. `None` if
    /// there is no such part.
    pub(super) fn place(&self, addr: Addr) -> Result<Option<RecordPlace>> {
        self.look(|inner| inner.place(addr))
    }

    /// Does what [`Segments::place`] does, without reading; `None` also if that is not possible.
    pub(super) fn try_place(&self, addr: Addr) -> Option<RecordPlace> {
        self.inner.read().place(addr).ok().flatten()
    }
}

/// A directory entry with what the segment table has to know of its record.
#[derive(Clone, Copy, Debug)]
pub struct DirEntryState {
    /// The entry.
    pub entry: super::DirEntry,
    /// True if the record is live at once.
    pub live: bool,
    /// Model that the record uses.
    pub model: Option<u32>,
}

pub(super) enum RecordPlace {
    Open(Extent, Option<super::DirEntry>),
    Closed(Extent, DirRef),
}

fn no_segment(id: u64) -> Error {
    Error::corrupt(format!("segment {id}"), "the segment table does not know it")
}
