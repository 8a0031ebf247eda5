//! Entries of the segment table, and their stored form.
//!
//! Stored page (a record; [`TABLE_PAGE_SEGMENTS`] consecutive ids share one page), per segment:
//!
//! | field | size |
//! |---|---|
//! | segment id - previous id | varint |
//! | number of parts | varint |
//! | per part: first slot | varint |
//! | per part: device, chunk index, start, length of the extent | 4 varints |
//! | per part: start and length of the directory within the extent, and length of its index | 3 varints |
//! | per part: start of the directory's second copy within the chunk, 0 for none | varint |
//! | per part: checksum of the directory's index | 4 |
//! | number of slots | varint |
//! | live bytes | varint |
//! | tail bytes | varint |
//! | per part but the first: bytes held by its live records | varint |
//! | bitmap of live slots, low bit first, length and bytes | varint + n |
//! | number of models that its records use | varint |
//! | per model: number - previous number | varint |
//! | 1 if records were coded again at their addresses, else 0 | 1 |

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::directory::{DirRef, Directory, LEAF_SLOTS};
use crate::Result;
use crate::limits::{CHUNK_BYTES, MODELS_MAX, RECORD_BYTES_MAX, SEGMENT_SLOTS_MAX, SHRINK};
use crate::memory::allocated_bytes;
use crate::space::{Chunk, Extent};
use crate::sums::{subtract, subtract_stored};
use crate::types::SLOT_BITS;
use crate::wire::{Reader, put_bytes, put_varint};

/// Number of consecutive segment ids that share one stored page of the table, unless the pool was made with fewer; also
/// the largest such number.
pub const TABLE_PAGE_SEGMENTS: u64 = if SHRINK == 1 { 64 } else { 32 };

/// Number of consecutive segment ids that share one stored page of the table. It never changes in the life of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageIds(u8);

impl Default for PageIds {
    fn default() -> Self {
        Self(TABLE_PAGE_SEGMENTS as u8)
    }
}

impl PageIds {
    /// Returns `ids` as this type; `None` if it is 0 or above [`TABLE_PAGE_SEGMENTS`].
    pub fn new(ids: u8) -> Option<Self> {
        (1..=TABLE_PAGE_SEGMENTS).contains(&ids.into()).then_some(Self(ids))
    }
    /// Returns the number of ids.
    pub(crate) const fn get(self) -> u8 {
        self.0
    }
    /// Returns the number of the page that a segment is on.
    pub(crate) fn page(self, id: u64) -> u64 {
        id / u64::from(self.0)
    }
}

/// Bytes that a live record costs beside its own: those of its entries in both copies of a directory.
pub const RECORD_OVERHEAD_BYTES: u64 = 16;

/// Bytes that a part costs beside its records: those of the header and first leaf of its directory, twice.
pub(crate) const PART_OVERHEAD_BYTES: u64 =
    2 * Directory::stored_bytes_max(0) as u64 + 2 * LEAF_OVERHEAD_BYTES;

/// Bytes that a leaf of a directory costs in its index, rounded up.
const LEAF_OVERHEAD_BYTES: u64 = 14;

/// Records up to this length leave next to nothing unused at the end of a chunk: less than one part in 64.
const SHORT_BYTES_MAX: u64 = CHUNK_BYTES / 64;

/// Returns the bytes at the ends of chunks that go unused because records of `len_bytes` do not fit there: the share of
/// one record where a chunk holds no others. Records of 1 MiB leave a quarter of each chunk.
pub(crate) const fn tail_bytes(len_bytes: u64) -> u64 {
    if len_bytes <= SHORT_BYTES_MAX {
        return 0;
    }
    let stored = len_bytes + RECORD_OVERHEAD_BYTES + PART_OVERHEAD_BYTES;
    (CHUNK_BYTES / (CHUNK_BYTES / stored)) - len_bytes
}

/// Returns the bytes of a chunk that a live record of `len_bytes` holds.
pub const fn held_bytes(len_bytes: u64) -> u64 {
    len_bytes + RECORD_OVERHEAD_BYTES + tail_bytes(len_bytes)
}

/// Returns how the bytes of a record that dies are taken off sums of its segment. If the segment was `recompressed`, the
/// length of a record whose directory cannot be read is not known, and taken for longer than it is: then sums may be too
/// small, which is no fault of the engine.
pub(super) fn subtraction(recompressed: bool) -> fn(&mut u64, u64) {
    if recompressed { subtract_stored } else { subtract }
}

/// Longest stored form of a part: varints of 24, 16 and seven times 32 bits, and a checksum.
const PART_BYTES_MAX: usize = 4 + 3 + 7 * 5 + 4;

/// A page of the table is one record: bitmaps, lists of models, parts, and 64 bytes for the rest of each segment.
const _: () = assert!(
    TABLE_PAGE_SEGMENTS as usize
        * (SEGMENT_SLOTS_MAX as usize / 8 + 5 * MODELS_MAX + PARTS_MAX * PART_BYTES_MAX + 64)
        < RECORD_BYTES_MAX
);

/// The live slots of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMap {
    words: Vec<u64>,
    live: u32,
}

impl LiveMap {
    /// Returns true if `slot` is live.
    pub fn get(&self, slot: u32) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }
    /// Makes `slot` live. Returns false if it already was.
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
    /// Makes `slot` dead. Returns false if it already was.
    pub(crate) fn clear(&mut self, slot: u32) -> bool {
        let Some(word) = self.words.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        self.live -= u32::from(was);
        was
    }
    /// Returns the slots that are live, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.words.len() as u32 * 64).filter(|slot| self.get(*slot))
    }
    /// Frees memory that was kept for growth, since the map grows no more.
    pub(super) fn shrink(&mut self) {
        self.words.shrink_to_fit();
    }
    /// Returns the number of slots that are live.
    pub fn count(&self) -> u32 {
        self.live
    }

    /// Returns the number of live slots among these.
    pub(super) fn count_in(&self, slots: Range<u32>) -> u32 {
        let from_on = |slot: u32| {
            let at = slot as usize / 64;
            let partly = self.words.get(at).map_or(0, |word| (word >> (slot % 64)).count_ones());
            partly + self.words.iter().skip(at + 1).map(|word| word.count_ones()).sum::<u32>()
        };
        from_on(slots.start).saturating_sub(from_on(slots.end.max(slots.start)))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        put_bytes(out, &bytes[..used]);
    }
    fn decode(reader: &mut Reader<'_>, slots: u32) -> Result<Self> {
        let bytes = reader.bytes((slots as usize).div_ceil(8))?;
        if bytes.last() == Some(&0) {
            return Err(reader.bad("a map of live slots ends with zeros"));
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        let mut words = Vec::with_capacity(bytes.len().div_ceil(8));
        words.extend(whole.iter().map(|word| u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            words.push(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
        let live = words.iter().map(|word| word.count_ones()).sum();
        let map = Self { words, live };
        let last = map.words.get(slots as usize / 64).copied().unwrap_or_default();
        let beyond = last >> (slots % 64) != 0;
        if beyond { Err(reader.bad("a slot beyond the last is live")) } else { Ok(map) }
    }
}

/// A stretch of a segment's slots that lies in one chunk. A fresh segment has one part. Cleaning may split a segment's
/// survivors at the end of a chunk. Second copies have a part for each checkpoint that made some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First slot of the part; it ends where the next begins.
    pub first_slot: u32,
    /// Where its bytes lie.
    pub extent: Extent,
    /// Where its directory lies; `None` as long as the segment is open.
    pub directory: Option<DirRef>,
}

/// Largest number of parts of a segment. A segment's survivors fit into two chunks. The log goes on in the next segment
/// when the current one has nearly so many parts of second copies.
pub const PARTS_MAX: usize = 32;

impl Part {
    /// Returns true if both lie at one place. A part that gets other slots keeps its place.
    pub(crate) fn lies_as(&self, other: &Self) -> bool {
        self.extent == other.extent && self.directory == other.directory
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let dir = self.directory.unwrap_or_default();
        put_varint(out, self.first_slot.into());
        put_varint(out, self.extent.chunk.device.into());
        for value in [self.extent.chunk.index, self.extent.start, self.extent.len_bytes] {
            put_varint(out, value.into());
        }
        for value in [dir.start, dir.len_bytes, dir.index_bytes, dir.second] {
            put_varint(out, value.into());
        }
        out.extend_from_slice(&dir.checksum.to_le_bytes());
    }

    /// Reads the stored form of all parts of a segment.
    pub(crate) fn decode_all(reader: &mut Reader<'_>) -> Result<Parts> {
        let count = reader.varint()?;
        if count == 0 || count > PARTS_MAX as u64 {
            return Err(reader.bad("a segment has an impossible number of parts"));
        }
        let mut parts = Parts::with_capacity(count as usize);
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
        let dir = DirRef {
            start: reader.varint_u32()?,
            len_bytes: reader.varint_u32()?,
            index_bytes: reader.varint_u32()?,
            second: reader.varint_u32()?,
            checksum: reader.u32()?,
        };
        let dir_end = u64::from(dir.start) + u64::from(dir.len_bytes);
        let second_end = u64::from(dir.second) + u64::from(dir.len_bytes);
        let inside = dir_end <= extent.len_bytes.into()
            && dir.index_bytes <= dir.len_bytes
            && second_end <= CHUNK_BYTES;
        if !extent.is_sane() || extent.len_bytes == 0 || !inside || first_slot >= 1 << SLOT_BITS {
            return Err(reader.bad("a segment lies outside of its chunk"));
        }
        Ok(Self { first_slot, extent, directory: (dir.len_bytes > 0).then_some(dir) })
    }
}

/// Parts of a segment. Nearly all segments have one.
pub type Parts = SmallVec<[Part; 1]>;

/// An entry of the segment table. Entries are kept small, since a pool has about one for each chunk in use, or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its id, never used twice.
    pub id: u64,
    /// Where its bytes lie, ascending by slot; never empty.
    pub parts: Parts,
    /// Number of slots ever given out.
    pub slots: u32,
    /// Stored bytes of live records.
    pub live_bytes: u32,
    /// Bytes at the ends of chunks that live records leave unused (see `tail_bytes` below).
    pub tail_bytes: u32,
    /// Bytes of chunks that the live records of each part hold ([`held_bytes`]).
    pub held: SmallVec<[u64; 2]>,
    /// The live slots of a segment.
    pub live: LiveMap,
    /// Models that its records use, ascending. There may be others that only dead records used.
    pub models: Box<[u32]>,
    /// True if records were coded again at their addresses: lengths in pointers may be out of date.
    pub recompressed: bool,
}

/// New parts of a segment that is moved.
#[derive(Debug)]
pub(crate) struct Move {
    /// All of its parts from now on: new ones, and old ones that stay as they are.
    pub parts: Vec<Part>,
    /// Models that the records in new parts use, ascending.
    pub models: Vec<u32>,
    /// Slot and stored length of each live record in new parts, and perhaps of dead ones; ascending by slot.
    pub lens: Vec<(u32, u32)>,
    /// True if records have other lengths than before. Then all parts are new.
    pub recompressed: bool,
}

impl Segment {
    /// Returns the memory that it points to, in bytes.
    pub(crate) fn pointed_bytes(&self) -> u64 {
        let parts = if self.parts.spilled() { self.parts.capacity() } else { 0 };
        let held = if self.held.spilled() { self.held.capacity() } else { 0 };
        let pointed = [
            parts * size_of::<Part>(),
            held * size_of::<u64>(),
            self.live.words.capacity() * size_of::<u64>(),
            self.models.len() * size_of::<u32>(),
        ];
        pointed.iter().filter(|bytes| **bytes > 0).map(|bytes| allocated_bytes(*bytes as u64)).sum()
    }

    /// Creates a segment that was just opened in `chunk`.
    pub fn fresh(id: u64, chunk: Chunk) -> Self {
        let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES as u32 };
        let parts = smallvec![Part { first_slot: 0, extent, directory: None }];
        Self { parts, held: smallvec![0], ..Self::without_parts(id) }
    }
    /// Creates a segment without parts and records.
    pub(super) fn without_parts(id: u64) -> Self {
        Self { id, ..Self::default() }
    }
    /// Returns the space of chunks that it takes if its live records are packed without gaps, in bytes.
    pub fn used_bytes(&self) -> u64 {
        if self.live.count() == 0 {
            return 0;
        }
        let leaves = u64::from(self.live.count().min(self.slots.div_ceil(LEAF_SLOTS)));
        let parts = self.parts.len() as u64;
        self.records_bytes() + parts * PART_OVERHEAD_BYTES + leaves * 2 * LEAF_OVERHEAD_BYTES
    }
    /// Returns the bytes of its live records with their entries in directories.
    pub(crate) fn live_records_bytes(&self) -> u64 {
        u64::from(self.live_bytes) + u64::from(self.live.count()) * RECORD_OVERHEAD_BYTES
    }

    /// Returns the bytes of a record of `len_bytes` with its entries in directories.
    pub(super) const fn record_bytes(len_bytes: u32) -> u64 {
        len_bytes as u64 + RECORD_OVERHEAD_BYTES
    }
    /// Returns the bytes that its live records hold of chunks.
    fn records_bytes(&self) -> u64 {
        self.live_records_bytes() + u64::from(self.tail_bytes)
    }
    /// Returns the most bytes that its stored form takes.
    pub(crate) fn stored_bytes_max(&self) -> u64 {
        let parts = self.parts.len() * (PART_BYTES_MAX + 5);
        (64 + parts + self.live.words.len() * 8 + self.models.len() * 5) as u64
    }
    /// Returns the position of the part that `slot` lies in.
    fn part_at(&self, slot: u32) -> Option<usize> {
        self.parts.iter().rposition(|part| part.first_slot <= slot)
    }
    /// Returns the part that `slot` lies in.
    pub fn part(&self, slot: u32) -> Option<&Part> {
        self.part_at(slot).and_then(|at| self.parts.get(at))
    }
    /// Makes a dead record live. Returns its chunk and the bytes that it holds there now; `None` if it was live.
    pub(super) fn revive(&mut self, slot: u32, len_bytes: u32) -> Option<(Chunk, u64)> {
        if !self.live.set(slot) {
            return None;
        }
        // The sums exceed a chunk only if somebody forged the image.
        self.live_bytes = self.live_bytes.saturating_add(len_bytes);
        self.tail_bytes = self.tail_bytes.saturating_add(tail_bytes(len_bytes.into()) as u32);
        let bytes = held_bytes(len_bytes.into());
        let at = self.part_at(slot)?;
        if let Some(held) = self.held.get_mut(at) {
            *held += bytes;
        }
        Some((self.parts.get(at)?.extent.chunk, bytes))
    }
    /// Makes a live record dead. Returns its chunk and the bytes that it held there; `None` if it was dead.
    pub(super) fn kill(&mut self, slot: u32, len_bytes: u32) -> Option<(Chunk, u64)> {
        if !self.live.clear(slot) {
            return None;
        }
        let take = subtraction(self.recompressed);
        let (mut live, mut tail) = (self.live_bytes.into(), self.tail_bytes.into());
        take(&mut live, len_bytes.into());
        take(&mut tail, tail_bytes(len_bytes.into()));
        (self.live_bytes, self.tail_bytes) = (live as u32, tail as u32);
        let at = self.part_at(slot)?;
        let held = self.held.get_mut(at)?;
        let before = *held;
        take(held, held_bytes(len_bytes.into()));
        Some((self.parts.get(at)?.extent.chunk, before - *held))
    }
    /// Counts live records anew by these lengths, each with its slot.
    pub(super) fn restate(&mut self, lens: &[(u32, u32)]) {
        let live = lens.iter().filter(|(slot, _)| self.live.get(*slot)).map(|(_, len)| u64::from(*len));
        self.live_bytes = live.clone().sum::<u64>() as u32;
        self.tail_bytes = live.map(tail_bytes).sum::<u64>() as u32;
    }
    /// Gives it other parts, and returns the old ones. Parts that it had before keep what they hold; what new parts
    /// hold follows from the live records in `lens`.
    pub(super) fn lie_in(&mut self, parts: Vec<Part>, lens: &[(u32, u32)]) -> Vec<Part> {
        // Some of `lens` may have died while they were moved.
        let live = |(slot, _): &&(u32, u32)| self.live.get(*slot);
        let mut held = SmallVec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let kept = self.parts.iter().position(|old| old.lies_as(part)).and_then(|old| self.held.get(old));
            let end = parts.get(at + 1).map_or(u32::MAX, |next| next.first_slot);
            let own = |(slot, _): &&(u32, u32)| (part.first_slot..end).contains(slot);
            let packed =
                || lens.iter().filter(live).filter(own).map(|(_, len)| held_bytes((*len).into())).sum();
            held.push(kept.copied().unwrap_or_else(packed));
        }
        self.held = held;
        std::mem::replace(&mut self.parts, parts.into_iter().collect()).into_vec()
    }
    /// Appends the stored form; `previous` is the id of the entry before it on the page, or 0.
    pub(super) fn encode(&self, previous: u64, out: &mut Vec<u8>) {
        put_varint(out, self.id - previous);
        put_varint(out, self.parts.len() as u64);
        for part in &self.parts {
            part.encode(out);
        }
        put_varint(out, self.slots.into());
        // Sums that are too small ([`subtraction`]) must not make a page that nobody can read.
        let least = if self.recompressed { self.live.count() } else { 0 };
        let live_bytes = self.live_bytes.max(least);
        put_varint(out, live_bytes.into());
        put_varint(out, self.tail_bytes.into());
        let all = self.records_bytes() + u64::from(live_bytes - self.live_bytes);
        let mut left = if self.recompressed { all } else { u64::MAX };
        for held in self.held.iter().skip(1) {
            let held = (*held).min(left);
            left -= held;
            put_varint(out, held);
        }
        self.live.encode(out);
        put_varint(out, self.models.len() as u64);
        let mut previous = 0;
        for model in &self.models {
            put_varint(out, (model - previous).into());
            previous = *model;
        }
        out.push(self.recompressed.into());
    }
    /// Reads what [`Segment::encode`] wrote.
    pub(super) fn decode(previous: u64, reader: &mut Reader<'_>) -> Result<Self> {
        let id = previous.checked_add(reader.varint()?).filter(|id| *id > 0 && *id < 1 << (64 - SLOT_BITS));
        let id = id.ok_or_else(|| reader.bad("a segment id is out of range"))?;
        let parts = Part::decode_all(reader)?;
        let slots = reader.varint_u32()?;
        let live_bytes = reader.varint_u32()?;
        let tail_bytes = reader.varint_u32()?;
        if slots > SEGMENT_SLOTS_MAX {
            return Err(reader.bad("a segment has more than a chunk holds"));
        }
        let mut held: SmallVec<[u64; 2]> = smallvec![0; parts.len()];
        for part in held.iter_mut().skip(1) {
            *part = reader.varint()?;
        }
        let live = LiveMap::decode(reader, slots)?;
        // No record is empty.
        let impossible = u64::from(live_bytes.max(tail_bytes)) > CHUNK_BYTES || live.count() > live_bytes;
        if impossible {
            return Err(reader.bad("a segment has more than a chunk holds"));
        }
        let models = decode_models(reader)?.into_boxed_slice();
        let recompressed = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.bad("a segment has an unknown mark")),
        };
        let mut segment = Self { id, parts, slots, live_bytes, tail_bytes, held, live, models, recompressed };
        // The first part holds what the others do not.
        let others = segment.held.iter().try_fold(0_u64, |sum, held| sum.checked_add(*held));
        let first = others.and_then(|others| segment.records_bytes().checked_sub(others));
        let first = first.ok_or_else(|| reader.bad("the parts of a segment hold more than the segment"))?;
        if let Some(held) = segment.held.first_mut() {
            *held = first;
        }
        Ok(segment)
    }
}

/// Reads numbers of models, which ascend from 1 on.
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
