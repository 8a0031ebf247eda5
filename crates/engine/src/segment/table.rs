//! The segment table: one entry per segment, in memory, stored in pages at each checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::directory::{Directory, Index, LEAF_SLOTS};
use super::entry::{DirRef, Move, Part, RECORD_OVERHEAD_BYTES, Segment, TABLE_PAGE_SEGMENTS};
use crate::space::Extent;
use crate::types::COPIES;
use crate::wire::Reader;
use crate::{Addr, Error, Ptr, Result};

/// So many times it is logged that a second copy was read.
const STAND_INS_LOGGED: u64 = 1000;

/// Pages of the table as they were at one instant, to be stored by a checkpoint.
#[derive(Debug, Default)]
pub struct TableSnapshot {
    /// Page number and stored form of each page that changed (empty: the page has no segments any more).
    pub pages: Vec<(u64, Vec<u8>)>,
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

#[derive(Default)]
struct Inner {
    segments: BTreeMap<u64, Segment>,
    /// Directories of segments that have none on the device yet.
    open: BTreeMap<u64, Directory>,
    dirty: BTreeSet<u64>,
    used_bytes: u64,
    /// How many segments list each model.
    models: BTreeMap<u32, u64>,
    /// How many segments have records that were coded again.
    recoded: u64,
}

impl Inner {
    fn count_models(&mut self, models: &[u32]) {
        for model in models {
            *self.models.entry(*model).or_default() += 1;
        }
    }

    /// Makes a record of `len_bytes` live.
    fn revive(&mut self, addr: Addr, len_bytes: u32) {
        let Some(segment) = self.segments.get_mut(&addr.segment()) else { return };
        if segment.live.set(addr.slot()) {
            segment.live_bytes += u64::from(len_bytes);
            self.used_bytes += u64::from(len_bytes) + RECORD_OVERHEAD_BYTES;
        }
        self.dirty.insert(addr.segment() / TABLE_PAGE_SEGMENTS);
    }

    /// Makes a record of `len_bytes` dead; false where it was.
    fn kill(&mut self, addr: Addr, len_bytes: u32) -> bool {
        let Some(segment) = self.segments.get_mut(&addr.segment()) else { return false };
        let was = segment.live.clear(addr.slot());
        if was {
            let len = u64::from(len_bytes);
            segment.live_bytes = segment.live_bytes.saturating_sub(len);
            self.used_bytes = self.used_bytes.saturating_sub(len + RECORD_OVERHEAD_BYTES);
            self.dirty.insert(addr.segment() / TABLE_PAGE_SEGMENTS);
        }
        was
    }

    /// The segment of second copies of records of segment `id`; it gets its parts from the caller.
    fn copies_of(&mut self, id: u64) -> &mut Segment {
        let id = id | COPIES;
        self.dirty.insert(id / TABLE_PAGE_SEGMENTS);
        self.segments.entry(id).or_insert_with(|| Segment::without_parts(id))
    }

    /// A record's second copy is live.
    fn copy(&mut self, ptr: Ptr) {
        let addr = ptr.addr.copy();
        if let Some(segment) = self.segments.get_mut(&addr.segment()) {
            segment.slots = segment.slots.max(addr.slot() + 1);
        }
        self.revive(addr, ptr.len_bytes);
    }

    fn discount_models(&mut self, models: &[u32]) {
        for model in models {
            let count = self.models.entry(*model).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.models.remove(model);
            }
        }
    }
}

/// The segment table of an open pool.
pub struct Segments {
    inner: RwLock<Inner>,
    /// How often a second copy was read in place of a first one.
    stood_in: AtomicU64,
    pub(super) directories: Cache<PieceKey, Piece, PieceWeight>,
}

impl Segments {
    /// An empty table whose cache of directories may take `cache_bytes`.
    pub fn new(cache_bytes: u64) -> Self {
        // A leaf holds up to 1024 entries of 16 bytes.
        let items = (cache_bytes / 12_000).max(16) as usize;
        let directories = Cache::with_weighter(items, cache_bytes, PieceWeight);
        Self { inner: RwLock::default(), stood_in: AtomicU64::default(), directories }
    }

    /// How often a second copy was read because the first one could not be, or was damaged.
    pub fn stood_in(&self) -> u64 {
        self.stood_in.load(Ordering::Relaxed)
    }

    /// What was read of a first copy; where that failed, of the second one, if that can be read.
    pub fn or_second<T>(&self, first: Result<T>, second: impl FnOnce() -> Result<T>) -> Result<T> {
        let Err(error) = first else { return first };
        let Ok(found) = second() else { return Err(error) };
        if self.stood_in.fetch_add(1, Ordering::Relaxed) < STAND_INS_LOGGED {
            tracing::warn!(%error, "the second copy was read instead; a scrub repairs the first");
        }
        Ok(found)
    }

    /// Adds a segment: one just opened, or one read from a stored page.
    pub fn insert(&self, segment: Segment) {
        let mut inner = self.inner.write();
        inner.used_bytes += segment.used_bytes();
        inner.count_models(&segment.models);
        inner.recoded += u64::from(segment.recoded);
        if segment.parts.iter().any(|part| part.directory.is_none()) {
            inner.open.entry(segment.id).or_default();
        }
        inner.dirty.insert(segment.id / TABLE_PAGE_SEGMENTS);
        inner.segments.insert(segment.id, segment);
    }

    /// Puts a segment as it was found on the devices in the place of what the table has of it; `entries` are those of its parts
    /// that have no directory.
    pub fn salvage(&self, segment: Segment, entries: Directory) {
        let id = segment.id;
        {
            let mut inner = self.inner.write();
            if let Some(old) = inner.segments.remove(&id) {
                inner.used_bytes = inner.used_bytes.saturating_sub(old.used_bytes());
                inner.discount_models(&old.models);
                inner.recoded -= u64::from(old.recoded);
            }
        }
        self.insert(segment);
        self.set_open_directory(id, entries);
    }

    /// Appends records to an open segment, live or (where a later operation will say so) not yet.
    pub fn append(&self, id: u64, entries: &[DirEntryState]) -> Result<()> {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let segment = inner.segments.get_mut(&id).ok_or_else(|| no_segment(id))?;
        let directory = inner.open.get_mut(&id).ok_or_else(|| no_segment(id))?;
        for state in entries {
            directory.push(state.entry);
            segment.slots = state.entry.slot + 1;
            if let Some(model) = state.model
                && let Err(at) = segment.models.binary_search(&model)
            {
                segment.models.insert(at, model);
                *inner.models.entry(model).or_default() += 1;
            }
            if state.live && segment.live.set(state.entry.slot) {
                segment.live_bytes += u64::from(state.entry.len_bytes);
                inner.used_bytes += u64::from(state.entry.len_bytes) + RECORD_OVERHEAD_BYTES;
            }
        }
        inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
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
        let mut inner = self.inner.write();
        let segment = inner.segments.get_mut(&id).ok_or_else(|| no_segment(id))?;
        let part = segment.parts.first_mut().ok_or_else(|| no_segment(id))?;
        part.directory = Some(dir);
        let extent = part.extent;
        let directory = inner.open.remove(&id);
        inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
        drop(inner);
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
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        if !inner.segments.contains_key(&id) {
            return Err(no_segment(id));
        }
        inner.count_models(&to.models);
        let segment = inner.segments.get_mut(&id).ok_or_else(|| no_segment(id))?;
        let (live, before_bytes) = (&segment.live, segment.live_bytes);
        let lens = to.lens.iter().filter(|(slot, _)| live.get(*slot));
        let live_bytes = lens.map(|(_, len)| u64::from(*len)).sum();
        segment.live_bytes = live_bytes;
        inner.used_bytes = inner.used_bytes.saturating_sub(before_bytes) + live_bytes;
        inner.recoded += u64::from(to.recoded && !segment.recoded);
        segment.recoded |= to.recoded;
        let old = std::mem::replace(&mut segment.parts, to.parts);
        let before = std::mem::replace(&mut segment.models, to.models);
        inner.discount_models(&before);
        inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
        Ok(old)
    }

    /// Positions of the pointers whose lengths may be out of date: their segments have records that were coded again.
    pub fn recoded(&self, ptrs: &[Ptr]) -> Vec<usize> {
        let inner = self.inner.read();
        if inner.recoded == 0 {
            return Vec::new();
        }
        let recoded =
            |ptr: &Ptr| inner.segments.get(&ptr.addr.segment()).is_some_and(|segment| segment.recoded);
        ptrs.iter().enumerate().filter(|(_, ptr)| recoded(ptr)).map(|(at, _)| at).collect()
    }

    /// Makes a record live (replay: an operation refers to it).
    pub fn mark_live(&self, ptr: Ptr) -> Result<()> {
        let mut inner = self.inner.write();
        let segment =
            inner.segments.get(&ptr.addr.segment()).ok_or_else(|| no_segment(ptr.addr.segment()))?;
        if ptr.addr.slot() >= segment.slots {
            return Err(Error::corrupt(format!("address {}", ptr.addr), "its segment has no such slot"));
        }
        inner.revive(ptr.addr, ptr.len_bytes);
        Ok(())
    }

    /// The second copies of records of segment `id` lie in these parts, too. They are live if the records are (G5).
    pub fn add_copies(&self, id: u64, parts: &[Part], records: impl Iterator<Item = (u32, u32)>) {
        let mut inner = self.inner.write();
        let live = inner.segments.get(&id).map(|segment| segment.live.clone()).unwrap_or_default();
        let segment = inner.copies_of(id);
        segment.parts.extend_from_slice(parts);
        let mut more_bytes = 0;
        for (slot, len_bytes) in records.filter(|(slot, _)| live.get(*slot)) {
            segment.slots = segment.slots.max(slot + 1);
            if segment.live.set(slot) {
                segment.live_bytes += u64::from(len_bytes);
                more_bytes += u64::from(len_bytes) + RECORD_OVERHEAD_BYTES;
            }
        }
        inner.used_bytes += more_bytes;
    }

    /// All second copies of records of segment `id` lie in these parts (opening: as the last checkpoint has left them).
    pub fn set_copies(&self, id: u64, parts: Vec<Part>) {
        self.inner.write().copies_of(id).parts = parts;
    }

    /// A record that is live has a second copy, if there are any of its segment (replay).
    pub fn copied(&self, ptr: Ptr) {
        let mut inner = self.inner.write();
        if inner.segments.contains_key(&ptr.addr.copy().segment()) {
            inner.copy(ptr);
        }
    }

    /// The parts in which second copies of records of segment `id` lie.
    pub fn copies(&self, id: u64) -> Vec<Part> {
        self.get(id | COPIES).map(|segment| segment.parts).unwrap_or_default()
    }

    /// Makes records dead, and their second copies with them (G5): nothing refers to them any more.
    pub fn mark_dead(&self, ptrs: &[Ptr]) {
        if ptrs.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        for ptr in ptrs {
            if inner.kill(ptr.addr, ptr.len_bytes) {
                inner.kill(ptr.addr.copy(), ptr.len_bytes);
            }
        }
    }

    /// Whether a record is live.
    pub fn is_live(&self, addr: Addr) -> bool {
        self.inner.read().segments.get(&addr.segment()).is_some_and(|segment| segment.live.get(addr.slot()))
    }

    /// How many segments have records that use `model`, or had: it is needed unless this is 0.
    pub fn users_of_model(&self, model: u32) -> u64 {
        self.inner.read().models.get(&model).copied().unwrap_or_default()
    }

    /// Memory that cached directories take, in bytes.
    pub fn directories_bytes(&self) -> u64 {
        self.directories.weight()
    }

    /// Space that live records account for, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.inner.read().used_bytes
    }

    /// A copy of one entry.
    pub fn get(&self, id: u64) -> Option<Segment> {
        self.inner.read().segments.get(&id).cloned()
    }

    /// A copy of the entry with this number, or of the next one.
    pub fn at_or_after(&self, id: u64) -> Option<Segment> {
        self.inner.read().segments.range(id..).next().map(|(_, segment)| segment.clone())
    }

    /// The highest number of a segment of the log.
    pub fn last_id(&self) -> Option<u64> {
        self.inner.read().segments.range(..COPIES).next_back().map(|(id, _)| *id)
    }

    /// Calls `visit` with every entry, in the order of ids.
    pub fn for_each(&self, mut visit: impl FnMut(&Segment)) {
        for segment in self.inner.read().segments.values() {
            visit(segment);
        }
    }

    /// Location of a slot's part, and its directory entry if the segment is an open one.
    pub(super) fn place(&self, addr: Addr) -> Option<Place> {
        let inner = self.inner.read();
        let segment = inner.segments.get(&addr.segment())?;
        let part = segment.part(addr.slot())?;
        Some(match part.directory {
            Some(dir) => Place::Closed(part.extent, dir),
            None => Place::Open(part.extent, inner.open.get(&segment.id)?.get(addr.slot())),
        })
    }

    /// Freezes the pages that changed since the last snapshot, for a checkpoint whose log begins in segment
    /// `open`. `page_ptrs` says where the stored pages are; those that will be replaced are made dead first,
    /// which may change further pages (invariant: a stored page shows no replaced page record as live).
    pub fn snapshot(&self, page_ptrs: &BTreeMap<u64, Ptr>, open: u64) -> TableSnapshot {
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
        let mut snapshot = TableSnapshot::default();
        for page in std::mem::take(&mut inner.dirty) {
            let ids = page * TABLE_PAGE_SEGMENTS..(page + 1) * TABLE_PAGE_SEGMENTS;
            let mut bytes = Vec::new();
            let mut previous = 0;
            for (id, segment) in inner.segments.range(ids) {
                if segment.live.count() == 0 && (*id & !COPIES) < open {
                    snapshot.dropped.push(*id);
                    continue;
                }
                segment.encode(previous, &mut bytes);
                previous = *id;
            }
            snapshot.pages.push((page, bytes));
        }
        snapshot
    }

    /// Reads the segments of a stored page into the table.
    pub fn load_page(&self, page: u64, bytes: &[u8]) -> Result<()> {
        let mut reader = Reader::new(bytes, "page of the segment table");
        let mut previous = 0;
        while reader.remaining() > 0 {
            let segment = Segment::decode(previous, &mut reader)?;
            if segment.id / TABLE_PAGE_SEGMENTS != page || segment.id <= previous && previous != 0 {
                return Err(reader.bad("a segment is on the wrong page"));
            }
            previous = segment.id;
            self.insert(segment);
        }
        Ok(())
    }

    /// Nothing has changed since the stored pages (after they were loaded).
    pub fn mark_clean(&self) {
        self.inner.write().dirty.clear();
    }

    /// Marks a page to be stored again by the next checkpoint.
    pub fn mark_dirty(&self, page: u64) {
        self.inner.write().dirty.insert(page);
    }

    /// Drops segments that have no live records. Returns the parts they leave.
    pub fn drop_dead(&self, ids: &[u64]) -> Vec<Part> {
        let mut inner = self.inner.write();
        let mut parts = Vec::with_capacity(ids.len());
        for id in ids {
            if inner.segments.get(id).is_some_and(|segment| segment.live.count() == 0) {
                let Some(segment) = inner.segments.remove(id) else { continue };
                inner.discount_models(&segment.models);
                inner.recoded -= u64::from(segment.recoded);
                inner.used_bytes = inner.used_bytes.saturating_sub(segment.live_bytes);
                parts.extend(segment.parts);
                inner.open.remove(id);
            }
        }
        parts
    }
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
