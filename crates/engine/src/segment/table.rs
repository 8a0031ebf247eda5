//! The segment table: one entry per segment, in memory, stored in pages at each checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::deaths::stored_bytes_max;
use super::directory::{Directory, Index, LEAF_SLOTS};
use super::entries::{Entries, IsAway};
use super::entry::{DirRef, Move, PageIds, Part, Segment};
use super::inner::Inner;
use super::occupancy::Occupied;
use super::page::bury;
use super::paging::Paging;
use crate::error::DamagedAt;
use crate::faults::{Fault, Faults, Subject};
use crate::space::{Chunk, Extent};
use crate::types::COPIES;
use crate::wire::Reader;
use crate::{Addr, Error, Ptr, Result};

/// Chunks that are ranked while others wait for the table: a few milliseconds.
const RANKED_AT_ONCE: usize = 8 << 10;

/// What an entry takes in memory until that was counted, in bytes.
const ENTRY_BYTES: u64 = 256;
/// A checkpoint is due when one part in so many of what the table may take in memory has changed.
const CHANGED_PART: u64 = 2;
/// So many times it is logged that a second copy was read.
const STAND_INS_LOGGED: u64 = 1000;

/// Pages of the table as they were at one instant, to be stored by a checkpoint.
#[derive(Debug, Default)]
pub struct TableSnapshot {
    /// Page number and stored form of each page that changed (empty: the page has no segments any more).
    pub pages: Vec<(u64, Vec<u8>)>,
    /// Records that died since the pages of their segments were stored, and these are not stored now: ascending by address.
    pub dead: Vec<Ptr>,
    /// Segments without live records, to be dropped when the checkpoint is durable.
    pub dropped: Vec<u64>,
}

/// Which part of which directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PieceKey {
    segment: u64,
    extent: Extent,
    /// A segment that was folded twice may lie where it lay before.
    checksum: u32,
    /// `None`: the index.
    leaf: Option<u32>,
}

impl PieceKey {
    /// The leaf with the entry of `slot`, of the directory that lies at `dir` of `extent`.
    pub(super) fn leaf(segment: u64, extent: Extent, dir: DirRef, slot: u32) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: Some(slot / LEAF_SLOTS) }
    }

    /// The index of that directory.
    pub(super) fn index(segment: u64, extent: Extent, dir: DirRef) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: None }
    }
}

/// Part of a directory.
#[derive(Clone)]
pub(super) enum Piece {
    Index(Arc<Index>),
    Leaf(Arc<Directory>),
}

#[derive(Clone)]
pub(super) struct PieceWeight;
impl Weighter<PieceKey, Piece> for PieceWeight {
    fn weight(&self, _key: &PieceKey, piece: &Piece) -> u64 {
        let memory_bytes = match piece {
            Piece::Index(index) => index.memory_bytes(),
            Piece::Leaf(leaf) => leaf.memory_bytes(),
        };
        memory_bytes as u64 + 64
    }
}

/// What is told of a chunk: what is in it, and a function of how many bytes a page of the table takes where it is stored. False: no more are wanted.
pub type VisitChunk<'a> = dyn FnMut(Chunk, &Occupied, &dyn Fn(u64) -> u64) -> bool + 'a;

/// The segment table of an open pool.
pub struct Segments {
    pub(super) inner: RwLock<Inner>,
    /// How many entries there were when their memory was last counted, and what it was.
    weighed: Mutex<(usize, u64)>,
    /// What an entry takes in memory, about, in bytes.
    pub(super) entry_bytes: AtomicU64,
    pub(super) paging: OnceLock<Paging>,
    pub(super) pages_read: AtomicU64,
    /// How often a second copy was read in place of a first one.
    stood_in: AtomicU64,
    /// Errors that were met.
    pub faults: Faults,
    pub(super) directories: Cache<PieceKey, Piece, PieceWeight>,
}

impl Segments {
    /// An empty table whose cache of directories may take `cache_bytes`.
    pub fn new(cache_bytes: u64) -> Self {
        // A leaf holds up to 1024 entries of 16 bytes.
        let items = (cache_bytes / 12_000).max(16) as usize;
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

    /// So many segments share a page of a table that is empty yet.
    pub fn set_page_ids(&self, ids: PageIds) {
        self.inner.write().segments = Entries::new(ids);
    }

    /// How many segments share a page.
    pub fn page_ids(&self) -> PageIds {
        self.inner.read().segments.page_ids()
    }

    /// How often a second copy was read because the first one could not be, or was damaged.
    pub fn stood_in(&self) -> u64 {
        self.stood_in.load(Ordering::Relaxed)
    }

    /// What was read of a first copy of a subject that lies there; where that failed (and was counted), of the second one, if that can be read.
    pub fn or_second<T>(
        &self,
        first: Result<T>,
        (subject, at): (Subject, Option<DamagedAt>),
        second: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Err(error) = first else { return first };
        let Ok(found) = second() else { return Err(error) };
        self.faults.note(Fault::Corrected, subject, at.map(|at| (at.device, at.offset)));
        if self.stood_in.fetch_add(1, Ordering::Relaxed) < STAND_INS_LOGGED {
            tracing::warn!(%error, "the second copy was read instead; a scrub repairs the first");
        }
        Ok(found)
    }

    /// Adds a segment: one just opened, or one read from a stored page.
    ///
    /// # Errors
    /// Of reading its page, if that is away.
    pub fn insert(&self, segment: Segment) -> Result<()> {
        let (id, open) = (segment.id, segment.parts.iter().any(|part| part.directory.is_none()));
        let mut inner = self.bring(self.page_ids().page(id))?;
        inner.put(segment).map_err(|IsAway(_)| no_segment(id))?;
        if open {
            inner.open.entry(id).or_default();
        }
        Ok(())
    }

    /// Puts a segment as it was found on the devices in the place of what the table has of it; `entries` are those of its parts
    /// that have no directory.
    ///
    /// # Errors
    /// As of [`Segments::insert`].
    pub fn salvage(&self, segment: Segment, entries: Directory) -> Result<()> {
        let id = segment.id;
        self.work(|inner| inner.take(id).map(drop))?;
        self.insert(segment)?;
        self.set_open_directory(id, entries);
        Ok(())
    }

    /// Appends records to an open segment, live or (where a later operation will say so) not yet.
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

    /// The directory of an open segment, as far as it goes.
    pub fn open_directory(&self, id: u64) -> Option<Directory> {
        self.inner.read().open.get(&id).cloned()
    }

    /// Replaces the directory of an open segment (read back from a checkpoint).
    pub fn set_open_directory(&self, id: u64, directory: Directory) {
        self.inner.write().open.insert(id, directory);
    }

    /// Ids of the segments whose directory is not on the device.
    pub fn open_ids(&self) -> Vec<u64> {
        self.inner.read().open.keys().copied().collect()
    }

    /// The segment's directory is on the device now.
    pub fn close(&self, id: u64, dir: DirRef) -> Result<()> {
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
            self.keep_leaves(id, extent, dir, &directory);
        }
        Ok(())
    }

    /// Keeps a directory in memory.
    pub(super) fn keep_leaves(&self, id: u64, extent: Extent, dir: DirRef, directory: &Directory) {
        for (number, entries) in directory.leaves() {
            let key = PieceKey::leaf(id, extent, dir, number * LEAF_SLOTS);
            self.directories.insert(key, Piece::Leaf(Arc::new(entries.into())));
        }
    }

    /// The segment lies elsewhere now. Returns where it was.
    pub fn relocate(&self, id: u64, to: Move) -> Result<Vec<Part>> {
        let mut inner = self.bring(self.page_ids().page(id))?;
        let mut segment = inner.take(id).ok().flatten().ok_or_else(|| no_segment(id))?;
        inner.moved.insert(id);
        segment.recoded |= to.recoded;
        if to.recoded {
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

    /// The segments that lie elsewhere since this was called for the last time: by each checkpoint.
    pub fn take_moved(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.inner.write().moved)
    }

    /// Whether any segment has records that were coded again.
    pub fn has_recoded(&self) -> bool {
        self.inner.read().recoded > 0
    }

    /// Positions of the pointers whose lengths may be out of date: their segments have records that were coded again (or others of their pages, where
    /// these are away).
    pub fn recoded(&self, ptrs: &[Ptr]) -> Vec<usize> {
        let inner = self.inner.read();
        if inner.recoded == 0 {
            return Vec::new();
        }
        let recoded = |ptr: &Ptr| match inner.segments.get(ptr.addr.segment()) {
            Ok(segment) => segment.is_some_and(|segment| segment.recoded),
            Err(IsAway(page)) => inner.segments.away(page).is_some_and(|away| away.recoded),
        };
        ptrs.iter().enumerate().filter(|(_, ptr)| recoded(ptr)).map(|(at, _)| at).collect()
    }

    /// Makes a record live (replay: an operation refers to it).
    pub fn mark_live(&self, ptr: Ptr) -> Result<()> {
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

    /// The second copies of records of segment `id` lie in these parts, too. They are live if the records are (G5).
    ///
    /// # Errors
    /// Of reading a page that is away.
    pub fn add_copies(&self, id: u64, parts: &[Part], records: &[(u32, u32)]) -> Result<()> {
        self.work(|inner| {
            let live = inner.segments.get(id)?.map(|segment| segment.live.clone()).unwrap_or_default();
            inner.copies_of(id)?;
            inner.add_parts(id | COPIES, parts)?;
            let live = records.iter().filter(|(slot, _)| live.get(*slot));
            live.map(|(slot, len_bytes)| Ptr { addr: Addr::new(id, *slot), len_bytes: *len_bytes })
                .try_for_each(|ptr| inner.copy(ptr))
        })
    }

    /// All second copies of records of segment `id` lie in these parts (opening: as the last checkpoint has left them).
    /// What the table knew of them is where it was, or what it knew is forgotten.
    ///
    /// # Errors
    /// Of reading a page that is away.
    pub fn set_copies(&self, id: u64, parts: &[Part]) -> Result<()> {
        self.work(|inner| {
            inner.copies_of(id)?;
            let Some(mut segment) = inner.take(id | COPIES)? else { return Ok(()) };
            segment.lie_in(parts.to_vec(), &[]);
            inner.put(segment)
        })
    }

    /// A record that is live has a second copy, if there are any of its segment (replay).
    ///
    /// # Errors
    /// Of reading a page that is away.
    pub fn copied(&self, ptr: Ptr) -> Result<()> {
        self.work(|inner| match inner.segments.get(ptr.addr.copy().segment())? {
            Some(_) => inner.copy(ptr),
            None => Ok(()),
        })
    }

    /// The parts in which second copies of records of segment `id` lie.
    ///
    /// # Errors
    /// Of reading a page that is away.
    pub fn copies(&self, id: u64) -> Result<Vec<Part>> {
        Ok(self.get(id | COPIES)?.map(|segment| segment.parts.into_vec()).unwrap_or_default())
    }

    /// Makes records dead that are live, and their second copies with them (G5): nothing refers to them any more.
    pub fn mark_dead(&self, ptrs: &[Ptr]) {
        if ptrs.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        ptrs.iter().for_each(|ptr| inner.kill_both(*ptr));
    }

    /// Whether a record is live.
    ///
    /// # Errors
    /// Of reading a page that is away.
    pub fn is_live(&self, addr: Addr) -> Result<bool> {
        self.look(|inner| {
            let segment = inner.segments.get(addr.segment())?;
            Ok(segment.is_some_and(|segment| segment.live.get(addr.slot())))
        })
    }

    /// Whether a record has a second copy. (Pages of second copies are never away.)
    pub fn has_copy(&self, addr: Addr) -> bool {
        let (inner, copy) = (self.inner.read(), addr.copy());
        let segment = inner.segments.get(copy.segment()).ok().flatten();
        segment.is_some_and(|segment| segment.live.get(copy.slot()))
    }

    /// How many segments have records that use `model`, or had: it is needed unless this is 0.
    pub fn users_of_model(&self, model: u32) -> u64 {
        self.inner.read().models.get(&model).copied().unwrap_or_default()
    }

    /// Memory that cached directories take, in bytes.
    pub fn directories_bytes(&self) -> u64 {
        self.directories.weight()
    }

    /// Memory that the table takes, in bytes. Its entries are counted one by one only when there are an eighth more or fewer than the last time.
    pub fn table_bytes(&self) -> u64 {
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

    /// Space that live records account for, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.inner.read().used_bytes
    }

    /// These, and those of them that are records with their entries in directories.
    pub fn used_by_records(&self) -> (u64, u64) {
        let inner = self.inner.read();
        (inner.used_bytes, inner.record_bytes)
    }

    /// An error if a sum is not that of the entries.
    pub fn verify_sums(&self) -> Result<()> {
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

    /// Bytes that a checkpoint stores of the table at most, if so many records die before, and the next one at most, if a pass moves segments
    /// meanwhile of which all pages take `moved_bytes` at most.
    pub fn to_store(&self, dead: u64, moved_bytes: u64) -> [u64; 2] {
        let inner = self.inner.read();
        let all = inner.stored_bytes;
        let ids = inner.segments.page_ids();
        let fresh = inner.deaths.fresh().saturating_add(dead);
        let first = stored_bytes_max(fresh, all, ids).saturating_add(inner.dirty_bytes);
        let second = stored_bytes_max(dead, all, ids).saturating_add(moved_bytes);
        [first, second].map(|bytes| bytes.min(all))
    }

    /// Whether the next checkpoint is due, since more changed of the table than may stay in memory until it comes.
    pub fn wants_checkpoint(&self) -> bool {
        let inner = self.inner.read();
        let may_change = self.paging.get().map_or(u64::MAX, |paging| paging.most_bytes() / CHANGED_PART);
        inner.deaths.are_many() || inner.dirty_bytes > may_change
    }

    /// Bytes that a page of the table takes where it is stored, at most.
    pub fn page_bytes(&self, page: u64) -> u64 {
        self.inner.read().page_bytes(page)
    }

    /// What is in a chunk, if anything is.
    pub fn occupied(&self, chunk: Chunk) -> Option<Occupied> {
        self.inner.read().occupancy.get(chunk).cloned()
    }

    /// Ranks chunks that were there when the pool was opened, for [`Segments::chunks_by_score`]: some at a time, so that nobody waits long.
    pub fn rank(&self) {
        while self.inner.write().occupancy.rank(RANKED_AT_ONCE) {}
    }

    /// Visits chunks that segments lie in, and that are ranked, those first whose `score` is highest, until `visit` says false: a function of the bytes that live
    /// records hold of a chunk, and of the youngest segment that has records there, which has to rise with age. `visit` is given what tells how many bytes a page
    /// of the table takes where it is stored, at most.
    pub fn chunks_by_score(&self, score: &dyn Fn(u64, u64) -> f64, visit: &mut VisitChunk<'_>) {
        let inner = self.inner.read();
        let page_bytes = |page| inner.page_bytes(page);
        inner.occupancy.by_score(score, &mut |chunk, occupied| visit(chunk, occupied, &page_bytes));
    }

    /// A copy of one entry.
    ///
    /// # Errors
    /// Of reading its page, if that is away.
    pub fn get(&self, id: u64) -> Result<Option<Segment>> {
        self.look(|inner| Ok(inner.segments.get(id)?.cloned()))
    }

    /// Copies of the entries of a page that have a part in one of these chunks.
    ///
    /// # Errors
    /// Of reading it, if it is away.
    pub fn of_page_in(&self, page: u64, chunks: &BTreeSet<Chunk>) -> Result<Vec<Segment>> {
        let lies = |segment: &&Segment| segment.parts.iter().any(|part| chunks.contains(&part.extent.chunk));
        self.look(|inner| Ok(inner.segments.page(page)?.iter().filter(lies).cloned().collect()))
    }

    /// A copy of the entry with this number, or of the next one.
    ///
    /// # Errors
    /// Of reading its page, if that is away.
    pub fn at_or_after(&self, id: u64) -> Result<Option<Segment>> {
        self.look(|inner| match inner.segments.next_id(id) {
            Some(id) => Ok(inner.segments.get(id)?.cloned()),
            None => Ok(None),
        })
    }

    /// The number of the first segment from this one on.
    pub fn next_id(&self, id: u64) -> Option<u64> {
        self.inner.read().segments.next_id(id)
    }

    /// Whether there is an entry with this number.
    pub fn has(&self, id: u64) -> bool {
        self.next_id(id) == Some(id)
    }

    /// The highest number of a segment of the log.
    pub fn last_id(&self) -> Option<u64> {
        self.inner.read().segments.last_below(COPIES)
    }

    /// The chunks that parts of segments lie in, and how many do.
    pub fn chunks(&self) -> Vec<(Chunk, u32)> {
        self.inner.read().occupancy.parts()
    }

    /// Location of a slot's part, and its directory entry if the segment is an open one. `None`: there is no such slot.
    pub(super) fn place(&self, addr: Addr) -> Result<Option<Place>> {
        self.look(|inner| inner.place(addr))
    }

    /// As [`Segments::place`], if that is known without reading.
    pub(super) fn try_place(&self, addr: Addr) -> Option<Place> {
        self.inner.read().place(addr).ok().flatten()
    }

    /// Reads pages that the next snapshot is to store, because many of their records died. One that cannot be read stays as it is stored.
    pub fn read_heavy(&self, page_ptrs: &BTreeMap<u64, Ptr>) {
        let wanted: Vec<u64> = {
            let vacated = std::mem::take(&mut self.inner.write().vacated);
            let inner = self.inner.read();
            if inner.segments.away_bytes() == 0 {
                return;
            }
            let heavy = inner.heavy(page_ptrs, &|_| true);
            let away = heavy.into_iter().filter(|page| inner.segments.away(*page).is_some());
            away.chain(vacated).collect()
        };
        for page in wanted {
            if let Err(error) = self.bring(page) {
                tracing::warn!(%error, page, "a page of the segment table cannot be brought up to date");
            }
        }
    }

    /// Freezes the pages that changed since the last snapshot, for a checkpoint whose log begins in segment
    /// `open`. `page_ptrs` says where the stored pages are; those that will be replaced are made dead first,
    /// which may change further pages (invariant: what is stored shows no replaced page record as live).
    pub fn snapshot(&self, page_ptrs: &BTreeMap<u64, Ptr>, open: u64) -> TableSnapshot {
        {
            let mut inner = self.inner.write();
            for page in inner.heavy(page_ptrs, &|page| inner.segments.away(page).is_none()) {
                inner.touch(page);
            }
        }
        let mut replaced: HashSet<u64> = HashSet::new();
        loop {
            let fresh: Vec<u64> =
                self.inner.read().dirty.iter().copied().filter(|page| !replaced.contains(page)).collect();
            if fresh.is_empty() {
                break;
            }
            let old: Vec<Ptr> = fresh.iter().filter_map(|page| page_ptrs.get(page)).copied().collect();
            replaced.extend(fresh);
            self.mark_dead(&old);
        }
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let mut snapshot = TableSnapshot { dropped: inner.take_vacant(open), ..TableSnapshot::default() };
        let bound = std::mem::take(&mut inner.dirty_bytes);
        for page in std::mem::take(&mut inner.dirty) {
            let mut bytes = Vec::new();
            let mut previous = 0;
            for segment in inner.segments.page(page).unwrap_or_default() {
                if snapshot.dropped.binary_search(&segment.id).is_err() {
                    segment.encode(previous, &mut bytes);
                    previous = segment.id;
                }
            }
            snapshot.pages.push((page, bytes));
            inner.under_way.insert(page);
        }
        debug_assert!(snapshot.pages.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() <= bound);
        inner.deaths.settle();
        snapshot.dead = inner.deaths.sorted();
        snapshot
    }

    /// The checkpoint counts that has stored the pages of all snapshots: from now on they are read from there.
    pub fn stored(&self) {
        self.inner.write().under_way.clear();
        self.put_away();
    }

    /// Records that died since the pages of their segments were stored, as a checkpoint has stored them beside: before these pages are loaded.
    pub fn load_dead(&self, dead: &[Ptr]) {
        let mut inner = self.inner.write();
        for ptr in dead {
            let page = inner.segments.page_of(ptr.addr.segment());
            inner.deaths.push(page, *ptr);
        }
        inner.deaths.settle();
    }

    /// Puts the segments of a stored page into the table, as [`decode_page`] has read them: without the records that died, and without the segments of which all
    /// did and whose numbers in the log are below `open`, which the checkpoint has dropped. Calls `visit` with each that is left. Returns a record that died, and is
    /// not live by the page.
    pub fn load_page(
        &self,
        page: u64,
        mut segments: Vec<Segment>,
        open: u64,
        visit: &mut dyn FnMut(&Segment),
    ) -> Option<Addr> {
        let mut inner = self.inner.write();
        let there = |addr: Addr| segments.binary_search_by_key(&addr.segment(), |segment| segment.id).is_ok();
        let lost = inner.deaths.of(page).iter().map(|ptr| ptr.addr).find(|addr| !there(*addr));
        let unknown = bury(&mut segments, inner.deaths.of(page)).or(lost);
        segments.retain(|segment| segment.live.count() > 0 || (segment.id & !COPIES) >= open);
        segments.iter().for_each(visit);
        if segments.is_empty() {
            // Its stored form is of use no more.
            inner.touch(page);
        }
        inner.load(page, segments);
        let most = inner.segments.here() as u64 * self.entry_bytes.load(Ordering::Relaxed);
        drop(inner);
        if self.paging.get().is_some_and(|paging| most > paging.most_bytes()) {
            self.put_away();
        }
        unknown
    }

    /// A record that died of a page that is not among these, which ascend.
    pub fn dead_elsewhere(&self, pages: &[u64]) -> Option<Addr> {
        let inner = self.inner.read();
        let page = inner.deaths.pages().find(|page| pages.binary_search(page).is_err())?;
        inner.deaths.of(page).first().map(|ptr| ptr.addr)
    }

    /// Marks a page to be stored again by the next checkpoint.
    pub fn mark_dirty(&self, page: u64) {
        self.inner.write().touch(page);
    }

    /// Drops segments that have no live records. Returns the parts they leave.
    pub fn drop_dead(&self, ids: &[u64]) -> Vec<Part> {
        let mut inner = self.inner.write();
        ids.iter().flat_map(|id| inner.drop_dead(*id)).collect()
    }
}

/// The segments of a stored page.
///
/// # Errors
/// [`Error::Corrupt`] where it is none, or has segments of another page.
pub fn decode_page(ids: PageIds, page: u64, bytes: &[u8]) -> Result<Vec<Segment>> {
    let mut reader = Reader::new(bytes, "page of the segment table");
    let mut segments: Vec<Segment> = Vec::new();
    if bytes.is_empty() {
        return Err(reader.bad("it has no segments"));
    }
    while reader.remaining() > 0 {
        let previous = segments.last().map_or(0, |segment| segment.id);
        let segment = Segment::decode(previous, &mut reader)?;
        if ids.page(segment.id) != page || segment.id <= previous {
            return Err(reader.bad("a segment is on the wrong page"));
        }
        segments.push(segment);
    }
    segments.shrink_to_fit();
    Ok(segments)
}

/// A directory entry and whether its record is live from the start.
#[derive(Clone, Copy, Debug)]
pub struct DirEntryState {
    /// The entry.
    pub entry: super::DirEntry,
    /// Whether the record counts as live at once.
    pub live: bool,
    /// The model that the record uses.
    pub model: Option<u32>,
}

pub(super) enum Place {
    Open(Extent, Option<super::DirEntry>),
    Closed(Extent, DirRef),
}

fn no_segment(id: u64) -> Error {
    Error::corrupt(format!("segment {id}"), "the segment table does not know it")
}
