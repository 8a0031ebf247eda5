//! The segment table: one entry per segment, in memory, stored in pages at each checkpoint.
//!
//! Stored page (a record; `TABLE_PAGE_SEGMENTS` consecutive ids share one page), per segment:
//!
//! | field | size |
//! |---|---|
//! | segment id - previous id | varint |
//! | number of parts | varint |
//! | per part: first slot | varint |
//! | per part: device, chunk index, start, length of the extent | 4 varints |
//! | per part: start and length of the directory within the extent | 2 varints |
//! | per part: checksum of the directory | 4 |
//! | number of slots | varint |
//! | live bytes | varint |
//! | bitmap of live slots, low bit first, length and bytes | varint + n |
//! | number of models that its records use | varint |
//! | per model: number - previous number | varint |

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::directory::Directory;
use crate::limits::{CHUNK_BYTES, MODELS_MAX, RECORD_BYTES_MAX, SEGMENT_SLOTS_MAX};
use crate::space::{Chunk, Extent};
use crate::types::SLOT_BITS;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Addr, Error, Ptr, Result};

/// Consecutive segment ids that share one stored page of the table.
pub const TABLE_PAGE_SEGMENTS: u64 = 64;

/// Bytes that a live record costs beside its own: its entries in batch and segment directory.
pub const RECORD_OVERHEAD_BYTES: u64 = 16;

/// A page of the table is one record: bitmaps, lists of models, and 512 bytes for the rest of each segment.
const _: () = assert!(
    TABLE_PAGE_SEGMENTS as usize * (SEGMENT_SLOTS_MAX as usize / 8 + 5 * MODELS_MAX + 512) < RECORD_BYTES_MAX
);

/// Which slots are live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMap {
    words: Vec<u64>,
    live: u32,
}

impl LiveMap {
    /// Whether `slot` is live.
    pub fn get(&self, slot: u32) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }
    /// Makes `slot` live; false where it was.
    pub fn set(&mut self, slot: u32) -> bool {
        let at = slot as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (slot % 64);
        let fresh = self.words[at] & bit == 0;
        self.words[at] |= bit;
        self.live += u32::from(fresh);
        fresh
    }
    /// Makes `slot` dead; false where it was.
    pub fn clear(&mut self, slot: u32) -> bool {
        let Some(word) = self.words.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        self.live -= u32::from(was);
        was
    }
    /// How many slots are live.
    pub fn count(&self) -> u32 {
        self.live
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        put_bytes(out, &bytes[..used]);
    }
    fn decode(reader: &mut Reader<'_>, slots: u32) -> Result<Self> {
        let bytes = reader.bytes((slots as usize).div_ceil(8))?;
        let words: Vec<u64> = bytes
            .chunks(8)
            .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
            .collect();
        let live = words.iter().map(|word| word.count_ones()).sum();
        let map = Self { words, live };
        let beyond = (slots..slots.next_multiple_of(64)).any(|slot| map.get(slot));
        if beyond { Err(reader.bad("a slot beyond the last is live")) } else { Ok(map) }
    }
}

/// Where a segment's directory lies within its extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirRef {
    /// First byte, from the start of the extent.
    pub start: u32,
    /// Length in bytes.
    pub len_bytes: u32,
    /// crc32c of these bytes.
    pub checksum: u32,
}

/// A stretch of a segment's slots that lies in one chunk. A fresh segment has one part; folding may break a
/// segment's survivors at the end of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First slot of the part; it ends where the next begins.
    pub first_slot: u32,
    /// Where its bytes lie.
    pub extent: Extent,
    /// Where its directory lies; `None` while the segment is the open one.
    pub directory: Option<DirRef>,
}

/// Most parts that a segment may have: its survivors fit one chunk, so two chunks, and one more for slack.
pub const PARTS_MAX: usize = 4;

impl Part {
    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let dir = self.directory.unwrap_or(DirRef { start: 0, len_bytes: 0, checksum: 0 });
        put_varint(out, self.first_slot.into());
        put_varint(out, self.extent.chunk.device.into());
        for value in
            [self.extent.chunk.index, self.extent.start, self.extent.len_bytes, dir.start, dir.len_bytes]
        {
            put_varint(out, value.into());
        }
        out.extend_from_slice(&dir.checksum.to_le_bytes());
    }

    /// Reads the stored form of a segment's parts.
    pub fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Self>> {
        let count = reader.varint()?;
        if count == 0 || count > PARTS_MAX as u64 {
            return Err(reader.bad("a segment has an impossible number of parts"));
        }
        let mut parts: Vec<Self> = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let part = Self::decode(reader)?;
            if parts.last().map_or(part.first_slot != 0, |last| last.first_slot >= part.first_slot) {
                return Err(reader.bad("the parts of a segment are out of order"));
            }
            parts.push(part);
        }
        Ok(parts)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let first_slot = reader.varint_u32()?;
        let device =
            u16::try_from(reader.varint()?).map_err(|_| reader.bad("a device number is out of range"))?;
        let chunk = Chunk { device, index: reader.varint_u32()? };
        let extent = Extent { chunk, start: reader.varint_u32()?, len_bytes: reader.varint_u32()? };
        let dir =
            DirRef { start: reader.varint_u32()?, len_bytes: reader.varint_u32()?, checksum: reader.u32()? };
        let dir_end = u64::from(dir.start) + u64::from(dir.len_bytes);
        if !extent.is_sane() || dir_end > extent.len_bytes.into() || first_slot >= 1 << SLOT_BITS {
            return Err(reader.bad("a segment lies outside of its chunk"));
        }
        Ok(Self { first_slot, extent, directory: (dir.len_bytes > 0).then_some(dir) })
    }
}

/// One entry of the segment table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its id, never used twice.
    pub id: u64,
    /// Where its bytes lie, ascending by slot; never empty.
    pub parts: Vec<Part>,
    /// Number of slots ever given out.
    pub slots: u32,
    /// Stored bytes of live records.
    pub live_bytes: u64,
    /// Which slots are live.
    pub live: LiveMap,
    /// Models that its records use, ascending; and perhaps some that only records used that are dead by now.
    pub models: Vec<u32>,
}

impl Segment {
    /// A segment that was just opened in `chunk`.
    pub fn fresh(id: u64, chunk: Chunk) -> Self {
        let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES as u32 };
        let parts = vec![Part { first_slot: 0, extent, directory: None }];
        Self { id, parts, slots: 0, live_bytes: 0, live: LiveMap::default(), models: Vec::new() }
    }
    /// Space that its live records account for, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.live_bytes + u64::from(self.live.count()) * RECORD_OVERHEAD_BYTES
    }
    /// The part that `slot` lies in.
    pub fn part(&self, slot: u32) -> Option<&Part> {
        self.parts.iter().rev().find(|part| part.first_slot <= slot)
    }
    fn encode(&self, previous: u64, out: &mut Vec<u8>) {
        put_varint(out, self.id - previous);
        put_varint(out, self.parts.len() as u64);
        for part in &self.parts {
            part.encode(out);
        }
        put_varint(out, self.slots.into());
        put_varint(out, self.live_bytes);
        self.live.encode(out);
        put_varint(out, self.models.len() as u64);
        let mut previous = 0;
        for model in &self.models {
            put_varint(out, (model - previous).into());
            previous = *model;
        }
    }
    fn decode(previous: u64, reader: &mut Reader<'_>) -> Result<Self> {
        let id = previous.checked_add(reader.varint()?).filter(|id| *id > 0 && *id < 1 << (64 - SLOT_BITS));
        let id = id.ok_or_else(|| reader.bad("a segment id is out of range"))?;
        let parts = Part::decode_all(reader)?;
        let slots = reader.varint_u32()?;
        let live_bytes = reader.varint()?;
        if slots > 1 << SLOT_BITS || live_bytes > CHUNK_BYTES {
            return Err(reader.bad("a segment has more than a chunk holds"));
        }
        let live = LiveMap::decode(reader, slots)?;
        let models = decode_models(reader)?;
        Ok(Self { id, parts, slots, live_bytes, live, models })
    }
}

/// Numbers of models: they ascend from 1 on.
fn decode_models(reader: &mut Reader<'_>) -> Result<Vec<u32>> {
    let count = reader.varint()?;
    if count > MODELS_MAX as u64 {
        return Err(reader.bad("a segment uses more models than there can be"));
    }
    let mut models = Vec::with_capacity(count as usize);
    let mut last = 0_u32;
    for _ in 0..count {
        let step = reader.varint_u32()?;
        let next = last.checked_add(step).filter(|_| step > 0);
        last = next.ok_or_else(|| reader.bad("the models of a segment do not ascend"))?;
        models.push(last);
    }
    Ok(models)
}

/// Pages of the table as they were at one instant, to be stored by a checkpoint.
#[derive(Debug, Default)]
pub struct TableSnapshot {
    /// Page number and stored form of each page that changed (empty: the page has no segments any more).
    pub pages: Vec<(u64, Vec<u8>)>,
    /// Segments without live records, to be dropped when the checkpoint is durable.
    pub dropped: Vec<u64>,
}

#[derive(Clone)]
pub(super) struct DirWeight;
impl Weighter<(u64, Extent), Arc<Directory>> for DirWeight {
    fn weight(&self, _key: &(u64, Extent), directory: &Arc<Directory>) -> u64 {
        directory.memory_bytes() as u64 + 64
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
}

impl Inner {
    fn count_models(&mut self, models: &[u32]) {
        for model in models {
            *self.models.entry(*model).or_default() += 1;
        }
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
    pub(super) directories: Cache<(u64, Extent), Arc<Directory>, DirWeight>,
}

impl Segments {
    /// An empty table whose cache of directories may take `cache_bytes`.
    pub fn new(cache_bytes: u64) -> Self {
        // An average directory holds about 1500 entries of 16 bytes.
        let items = (cache_bytes / 24_000).max(16) as usize;
        let directories = Cache::with_weighter(items, cache_bytes, DirWeight);
        Self { inner: RwLock::default(), directories }
    }

    /// Adds a segment: one just opened, or one read from a stored page.
    pub fn insert(&self, segment: Segment) {
        let mut inner = self.inner.write();
        inner.used_bytes += segment.used_bytes();
        inner.count_models(&segment.models);
        if segment.parts.iter().any(|part| part.directory.is_none()) {
            inner.open.entry(segment.id).or_default();
        }
        inner.dirty.insert(segment.id / TABLE_PAGE_SEGMENTS);
        inner.segments.insert(segment.id, segment);
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
        let key = (id, part.extent);
        let directory = inner.open.remove(&id);
        inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
        drop(inner);
        if let Some(directory) = directory {
            self.directories.insert(key, Arc::new(directory));
        }
        Ok(())
    }

    /// The segment lies elsewhere now, and its records use these models, ascending. Returns where it was.
    pub fn relocate(&self, id: u64, parts: Vec<Part>, models: Vec<u32>) -> Result<Vec<Part>> {
        let mut inner = self.inner.write();
        if !inner.segments.contains_key(&id) {
            return Err(no_segment(id));
        }
        inner.count_models(&models);
        let segment = inner.segments.get_mut(&id).ok_or_else(|| no_segment(id))?;
        let old = std::mem::replace(&mut segment.parts, parts);
        let before = std::mem::replace(&mut segment.models, models);
        inner.discount_models(&before);
        inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
        Ok(old)
    }

    /// Makes a record live (replay: an operation refers to it).
    pub fn mark_live(&self, ptr: Ptr) -> Result<()> {
        let mut inner = self.inner.write();
        let segment =
            inner.segments.get_mut(&ptr.addr.segment()).ok_or_else(|| no_segment(ptr.addr.segment()))?;
        if ptr.addr.slot() >= segment.slots {
            return Err(Error::corrupt(format!("address {}", ptr.addr), "its segment has no such slot"));
        }
        if segment.live.set(ptr.addr.slot()) {
            segment.live_bytes += u64::from(ptr.len_bytes);
            inner.used_bytes += u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES;
        }
        inner.dirty.insert(ptr.addr.segment() / TABLE_PAGE_SEGMENTS);
        Ok(())
    }

    /// Makes records dead: nothing refers to them any more.
    pub fn mark_dead(&self, ptrs: &[Ptr]) {
        if ptrs.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        for ptr in ptrs {
            let id = ptr.addr.segment();
            let Some(segment) = inner.segments.get_mut(&id) else { continue };
            if segment.live.clear(ptr.addr.slot()) {
                let len = u64::from(ptr.len_bytes);
                segment.live_bytes = segment.live_bytes.saturating_sub(len);
                inner.used_bytes = inner.used_bytes.saturating_sub(len + RECORD_OVERHEAD_BYTES);
                inner.dirty.insert(id / TABLE_PAGE_SEGMENTS);
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
                if segment.live.count() == 0 && *id < open {
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
