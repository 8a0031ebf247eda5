//! Bytes of each chunk that live records hold, kept up with every record that is born, dies or moves. So the cleaner
//! finds the chunks that it wants without looking at all of them.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use smallvec::SmallVec;

use super::entry::{PART_OVERHEAD_BYTES, PARTS_MAX, TABLE_PAGE_SEGMENTS};
use crate::limits::CHUNK_BYTES;
use crate::memory::allocated_bytes;
use crate::space::{ByChunk, Chunk};
use crate::sums::subtract;
use crate::types::COPIES;

/// Width of a level in packed bytes. The chunks of one level are visited by age, the oldest first.
const LEVEL_BYTES: u64 = CHUNK_BYTES / 64;

/// The number of a page of the table above the lowest 16 bits; in these, the number of parts of its segments that lie
/// in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageParts(u64);

impl PageParts {
    const ONE: u64 = 1;

    const fn page(self) -> u64 {
        self.0 >> 16
    }

    const fn parts(self) -> u64 {
        self.0 & 0xFFFF
    }
}

/// The parts of a page's segments fit into 16 bits.
const _: () = assert!(TABLE_PAGE_SEGMENTS * (PARTS_MAX as u64) < 1 << 16);

/// A chunk in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occupied {
    /// Bytes that its live records hold.
    held_bytes: u32,
    /// Parts of segments that lie in it.
    parts: u32,
    /// Pages of the table that these segments are on.
    pages: SmallVec<[PageParts; 1]>,
    /// Number of the youngest segment of the log of which it had records, or copies of records, since nothing was in
    /// it.
    youngest: u64,
    /// True if it has a place among the levels.
    ranked: bool,
}

impl Occupied {
    /// Returns the most bytes that its live records take if they are packed anew.
    pub(crate) fn packed_bytes(&self) -> u64 {
        if self.held_bytes == 0 {
            return 0;
        }
        u64::from(self.held_bytes) + u64::from(self.parts) * PART_OVERHEAD_BYTES
    }

    /// Returns the number of parts of segments that lie in it.
    #[cfg(test)]
    pub(crate) const fn parts(&self) -> u32 {
        self.parts
    }

    /// Returns the pages of the table whose segments have parts in it.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().map(|of| of.page())
    }

    /// Number of the youngest segment of the log of which it had records, or copies of records, since nothing was in
    /// it.
    pub(crate) const fn youngest(&self) -> u64 {
        self.youngest
    }

    /// Returns the memory of its list of pages beside itself, in bytes.
    fn pointed_bytes(&self) -> u64 {
        if self.pages.spilled() {
            allocated_bytes((self.pages.capacity() * size_of::<PageParts>()) as u64)
        } else {
            0
        }
    }

    fn enter(&mut self, page: u64, segment: u64, held_bytes: u64) {
        match self.pages.iter_mut().find(|of| of.page() == page) {
            Some(of) => of.0 += PageParts::ONE,
            None => self.pages.push(PageParts(page << 16 | PageParts::ONE)),
        }
        self.parts += 1;
        self.youngest = self.youngest.max(segment & !COPIES);
        self.grow(held_bytes);
    }

    fn leave(&mut self, page: u64, held_bytes: u64) {
        let Some(at) = self.pages.iter().position(|of| of.page() == page) else { return };
        if let Some(of) = self.pages.get_mut(at) {
            of.0 -= PageParts::ONE;
            if of.parts() == 0 {
                self.pages.swap_remove(at);
            }
        }
        self.parts -= 1;
        self.shrink(held_bytes);
        if self.parts == 0 {
            self.youngest = 0;
            self.pages = SmallVec::new();
        }
    }

    fn grow(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn shrink(&mut self, bytes: u64) {
        let mut held = self.held_bytes.into();
        subtract(&mut held, bytes);
        self.held_bytes = held as u32;
    }

    fn level(&self) -> usize {
        (self.packed_bytes() / LEVEL_BYTES) as usize
    }
}

/// All chunks that segments lie in.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    chunks: ByChunk<Occupied>,
    /// The ranked chunks: a set for each level, by age.
    levels: Vec<BTreeSet<(u64, Chunk)>>,
    /// Chunks that have no place in `levels` yet, so that opening a pool need not wait for the ranking.
    unranked: Vec<Chunk>,
    /// Chunks in use of the devices from which everything is to move. They have no place among the levels.
    leaving: BTreeMap<u16, BTreeSet<Chunk>>,
    /// Sum of [`Occupied::pointed_bytes`] over all chunks.
    pointed_bytes: u64,
}

impl Occupancy {
    /// Changes what is known of a chunk, and its place among the levels with it.
    fn change(&mut self, chunk: Chunk, change: impl FnOnce(&mut Occupied)) {
        let Some(occupied) = self.chunks.get_mut(chunk) else { return };
        let before = (occupied.level(), occupied.youngest());
        let (was_ranked, was_empty) = (occupied.ranked, occupied.parts == 0);
        let pointed_bytes = occupied.pointed_bytes();
        change(occupied);
        self.pointed_bytes = self.pointed_bytes + occupied.pointed_bytes() - pointed_bytes;
        if let Some(leaving) = self.leaving.get_mut(&chunk.device) {
            if occupied.parts > 0 {
                leaving.insert(chunk);
            } else {
                leaving.remove(&chunk);
            }
            return;
        }
        let after = (occupied.level(), occupied.youngest());
        occupied.ranked = occupied.parts > 0 && (was_ranked || was_empty);
        let is_ranked = occupied.ranked;
        if was_ranked == is_ranked && before == after {
            return;
        }
        if let (true, Some(level)) = (was_ranked, self.levels.get_mut(before.0)) {
            level.remove(&(before.1, chunk));
        }
        if is_ranked {
            self.level(after.0).insert((after.1, chunk));
        }
    }

    /// Returns the number of chunks, of those that are ranked, in which all records are dead and all segments are older
    /// than `open`.
    pub(super) fn dead_chunks(&self, open: u64) -> u64 {
        let lowest = self.levels.first().into_iter().flatten();
        let older = lowest.take_while(|(youngest, _)| *youngest < open);
        older
            .filter(|(_, chunk)| self.chunks.get(*chunk).is_some_and(|occupied| occupied.held_bytes == 0))
            .count() as u64
    }

    fn level(&mut self, number: usize) -> &mut BTreeSet<(u64, Chunk)> {
        if self.levels.len() <= number {
            self.levels.resize_with(number + 1, BTreeSet::new);
        }
        // The level exists: it was made just now, if not before.
        &mut self.levels[number]
    }

    /// Does what [`Occupancy::enter`] does, for opening a pool, when there are many: a chunk that was empty is not
    /// ranked. [`Occupancy::rank`] has to be called before chunks are chosen.
    pub(super) fn enter_unranked(&mut self, chunk: Chunk, page: u64, segment: u64, held_bytes: u64) {
        let Some(occupied) = self.chunks.get_mut(chunk) else { return };
        if occupied.parts == 0 && !self.leaving.contains_key(&chunk.device) {
            occupied.enter(page, segment, held_bytes);
            self.unranked.push(chunk);
        } else {
            self.enter(chunk, page, segment, held_bytes);
        }
    }

    /// Ranks up to `most` chunks that are not ranked. Returns false if none is left.
    pub(super) fn rank(&mut self, most: usize) -> bool {
        let from = self.unranked.len().saturating_sub(most);
        for chunk in self.unranked.split_off(from) {
            let Some(occupied) = self.chunks.get_mut(chunk) else { continue };
            if self.leaving.contains_key(&chunk.device)
                || occupied.parts == 0
                || std::mem::replace(&mut occupied.ranked, true)
            {
                continue;
            }
            let (level, youngest) = (occupied.level(), occupied.youngest());
            self.level(level).insert((youngest, chunk));
        }
        !self.unranked.is_empty()
    }

    /// Takes the chunks of a device out of the levels, since everything is to move from there; or puts them back.
    pub(super) fn set_leaving(&mut self, device: u16, leaves: bool) {
        if leaves == self.leaving.contains_key(&device) {
            return;
        }
        let of_device = |(chunk, occupied): &(Chunk, &Occupied)| chunk.device == device && occupied.parts > 0;
        let chunks: BTreeSet<Chunk> = self.chunks.iter().filter(of_device).map(|(chunk, _)| chunk).collect();
        for chunk in &chunks {
            let Some(occupied) = self.chunks.get_mut(*chunk) else { continue };
            let (level, youngest) = (occupied.level(), occupied.youngest());
            let was_ranked = std::mem::replace(&mut occupied.ranked, !leaves);
            match leaves {
                false => drop(self.level(level).insert((youngest, *chunk))),
                true if was_ranked => drop(self.level(level).remove(&(youngest, *chunk))),
                true => {}
            }
        }
        match leaves {
            true => self.leaving.insert(device, chunks),
            false => self.leaving.remove(&device),
        };
    }

    /// Returns the chunks in use from which everything is to move, ascending.
    pub(super) fn leaving(&self, device: u16) -> impl Iterator<Item = (Chunk, &Occupied)> {
        let chunks = self.leaving.get(&device).into_iter().flatten();
        chunks.filter_map(|chunk| Some((*chunk, self.get(*chunk)?)))
    }

    /// Returns the chunks in use among those of a device at these positions, ascending.
    pub(super) fn among(&self, device: u16, indexes: Range<u32>) -> impl Iterator<Item = (Chunk, &Occupied)> {
        let chunks = indexes.map(move |index| Chunk { device, index });
        chunks.filter_map(|chunk| Some((chunk, self.get(chunk)?)))
    }

    /// Returns the bytes that live records hold of all chunks.
    pub(super) fn held_bytes(&self) -> u64 {
        self.chunks.values().map(|occupied| u64::from(occupied.held_bytes)).sum()
    }

    /// Returns the chunks in use, each with the number of parts that lie in it.
    pub(super) fn parts(&self) -> Vec<(Chunk, u32)> {
        let chunks = self.chunks.iter().filter(|(_, occupied)| occupied.parts > 0);
        chunks.map(|(chunk, occupied)| (chunk, occupied.parts)).collect()
    }

    /// Returns the memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let listed = self.levels.iter().map(BTreeSet::len).sum::<usize>();
        let ranked = listed + self.leaving.values().map(BTreeSet::len).sum::<usize>();
        // Sets are about two thirds full.
        self.chunks.memory_bytes() + self.pointed_bytes + (ranked * size_of::<(u64, Chunk)>()) as u64 * 3 / 2
    }

    /// Notes that a part of `segment`, which is on `page`, lies in a chunk, and that its live records hold `held_bytes`
    /// there.
    pub(super) fn enter(&mut self, chunk: Chunk, page: u64, segment: u64, held_bytes: u64) {
        self.change(chunk, |occupied| occupied.enter(page, segment, held_bytes));
    }

    /// Notes that a part of a segment on `page` lies in a chunk no more.
    pub(super) fn leave(&mut self, chunk: Chunk, page: u64, held_bytes: u64) {
        self.change(chunk, |occupied| occupied.leave(page, held_bytes));
    }

    /// Notes that live records hold `bytes` more of a chunk.
    pub(super) fn grow(&mut self, chunk: Chunk, bytes: u64) {
        self.change(chunk, |occupied| occupied.grow(bytes));
    }

    /// Notes that live records hold `bytes` less of a chunk.
    pub(super) fn shrink(&mut self, chunk: Chunk, bytes: u64) {
        self.change(chunk, |occupied| occupied.shrink(bytes));
    }

    pub(super) fn get(&self, chunk: Chunk) -> Option<&Occupied> {
        self.chunks.get(chunk).filter(|occupied| occupied.parts > 0)
    }

    /// Visits the ranked chunks, those with the highest `score` first, until `visit` returns false.
    /// `score` gets [`Occupied::packed_bytes`] and the number of the youngest segment. Within a level the oldest chunk
    /// comes first, so the score has to rise with age. Costs grow with the number of chunks that are visited.
    pub(super) fn by_score(
        &self,
        score: &dyn Fn(u64, u64) -> f64,
        visit: &mut dyn FnMut(Chunk, &Occupied) -> bool,
    ) {
        let mut levels: Vec<_> = self.levels.iter().map(BTreeSet::iter).collect();
        let mut heads = BinaryHeap::new();
        let mut push = |at: usize, heads: &mut BinaryHeap<LevelHead>| {
            let Some((youngest, chunk)) = levels.get_mut(at).and_then(Iterator::next) else { return };
            let Some(occupied) = self.chunks.get(*chunk) else { return };
            heads.push(LevelHead {
                score: score(occupied.packed_bytes(), *youngest),
                level: at,
                chunk: *chunk,
            });
        };
        for at in 0..self.levels.len() {
            push(at, &mut heads);
        }
        while let Some(LevelHead { level, chunk, .. }) = heads.pop() {
            let Some(occupied) = self.chunks.get(chunk) else { continue };
            if !visit(chunk, occupied) {
                return;
            }
            push(level, &mut heads);
        }
    }
}

/// The next chunk of a level.
#[derive(Debug)]
struct LevelHead {
    score: f64,
    level: usize,
    chunk: Chunk,
}

impl PartialEq for LevelHead {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for LevelHead {}
impl PartialOrd for LevelHead {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for LevelHead {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of equals, the emptier level comes first, then the lower chunk: so the same history cleans the same chunks.
        let scores = self.score.total_cmp(&other.score);
        scores.then(other.level.cmp(&self.level)).then(other.chunk.cmp(&self.chunk))
    }
}

#[cfg(test)]
mod tests;
