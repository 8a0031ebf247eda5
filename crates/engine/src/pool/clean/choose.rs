//! Chooses the chunks that the cleaner takes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::super::pack::Begun;
use super::super::{Maintenance, Pool};
use crate::dataset::{BEGUN_CHUNKS, Bounds, PASS_TABLE_BYTES};
use crate::limits::CHUNK_BYTES;
use crate::segment::{Occupied, VisitChunk};
use crate::space::Chunk;
use crate::types::COPIES;

/// A chunk fuller than this, in parts of a thousand, is not worth moving.
const FULL_PERMILLE: u64 = 970;
/// Largest number of chunks that a search passes over, because they cannot be cleaned or are full, before it ends.
const SKIPPED_MAX: usize = 4096;
/// Bytes of a chunk that survivors fill for sure: the next record may not fit into what is left.
pub(in super::super) const OUTPUT_BYTES: u64 = CHUNK_BYTES - CHUNK_BYTES / 64;

/// Limits and goals of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Largest number of chunks that the pass may begin.
    pub(super) outputs: u64,
    /// Smallest number of chunks that the pass has to gain; otherwise it does not begin.
    pub(super) gain: u64,
    /// Number of gained chunks from which on the pass need not gain more.
    pub(super) wanted: u64,
}

/// Plan of a pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CleanPlan {
    /// Chunks that the pass empties.
    pub(in super::super) sources: BTreeSet<Chunk>,
    /// Pages of the segment table with segments that have parts in these chunks.
    pub(super) pages: BTreeSet<u64>,
    /// Bytes that the pass moves.
    pub(super) live_bytes: u64,
    /// Number of chunks that the pass gains.
    pub(super) gained: u64,
}

/// Orders in which chunks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanOrder {
    /// Chunks that are worth most come first ([`score`]).
    Worth,
    /// The emptiest chunks come first.
    Greed,
}

/// Live bytes of the chunks that were chosen so far, and room for them in chunks that are begun.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    live_bytes: u64,
    begun_bytes: u64,
}

impl Sum {
    fn in_begun(begun: Option<Begun>) -> Self {
        let begun_bytes = begun.map_or(0, |begun| begun.left_bytes().saturating_sub(CHUNK_BYTES / 64));
        Self { live_bytes: 0, begun_bytes }
    }

    fn outputs(&self) -> u64 {
        self.live_bytes.saturating_sub(self.begun_bytes).div_ceil(OUTPUT_BYTES)
    }
}

/// Pages of the segment table that a pass changes.
#[derive(Debug, Default)]
pub(in super::super) struct ChangedPages {
    pages: BTreeSet<u64>,
    bytes: u64,
}

impl ChangedPages {
    /// Returns the most bytes that the changed pages take where they are stored, if the pass changes `pages`, too. No
    /// page counts twice.
    pub(in super::super) fn with(
        &self,
        pages: impl Iterator<Item = u64>,
        page_bytes: &dyn Fn(u64) -> u64,
    ) -> u64 {
        self.bytes + pages.filter(|page| !self.pages.contains(page)).map(page_bytes).sum::<u64>()
    }

    /// Notes that the pass changes `page`, too.
    pub(in super::super) fn add(&mut self, page: u64, page_bytes: &dyn Fn(u64) -> u64) {
        if self.pages.insert(page) {
            self.bytes += page_bytes(page);
        }
    }

    /// Returns the most bytes that the changed pages take where they are stored.
    pub(in super::super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Returns the worth of cleaning a chunk with `live_bytes` whose youngest record is of segment `youngest`, while the
/// log is at segment `now`: the space that becomes free, divided by what is read and written, and more for old chunks,
/// whose records will not die soon by themselves (Rosenblum and Ousterhout, "The design and implementation of a
/// log-structured file system", 1992, section 3.5; the age by its fourth root, so that the uniformly overwritten pool
/// is cleaned nearly as by greed alone).
fn score(live_bytes: u64, youngest: u64, now: u64) -> f64 {
    let live = live_bytes.min(CHUNK_BYTES) as f64 / CHUNK_BYTES as f64;
    let age = now.saturating_sub(youngest) as f64 + 1.0;
    (1.0 - live) / (live + 1e-6) * age.powf(AGE_EXPONENT)
}

/// Exponent of the age in [`score`].
const AGE_EXPONENT: f64 = 0.25;

impl Pool {
    /// Plans a pass over the chunks that are worth most, as far as the wish goes. If the cleaner does not have all the
    /// chunks that it keeps, its passes must get it there: if passes over the chunks that are worth most would not, the
    /// emptiest are taken.
    pub(super) fn plan_pass(&self, state: &Maintenance, wish: Wish) -> Option<CleanPlan> {
        self.shared.segments.rank();
        let begun = [Sum::in_begun(state.cleaner.begun), Sum::in_begun(state.copies.begun)];
        let has = self.shared.clean_outputs();
        let all = self.sizing().bounds.clean_chunks;
        let by_worth = self.choose(state, wish, CleanOrder::Worth, begun, &BTreeSet::new());
        by_worth
            .filter(|plan| {
                has >= all
                    || self.climbs(
                        state,
                        (has + plan.gained).saturating_sub(self.least_gain() + BEGUN_CHUNKS),
                        &plan.sources,
                    )
            })
            .or_else(|| self.choose(state, wish, CleanOrder::Greed, begun, &BTreeSet::new()))
    }

    /// Returns the number of chunks that the cleaner needs to begin with, as things are. It keeps more, for a pool as
    /// full as it may be, and these are lent to writers while so much can be gained that its own passes bring them
    /// back. (Records that die, and chunks that the log fills, only make that easier.) Never lent are the chunks that
    /// the next pass worth its checkpoint takes. [`BEGUN_CHUNKS`] are added: commits and checkpoints may just have begun
    /// as many, and as many are promised to them again.
    pub(in super::super) fn needed_chunks(&self, state: &Maintenance) -> u64 {
        let Bounds { clean_chunks: all, least_clean_chunks: least, .. } = self.sizing().bounds;
        if least + BEGUN_CHUNKS < all && self.shared.clean_outputs() < all {
            self.shared.segments.rank();
        }
        let none = BTreeSet::new();
        let climbing = (least..all - BEGUN_CHUNKS).find(|chunks| self.climbs(state, *chunks, &none));
        let Some(chunks) = climbing else { return all };
        let wish = Wish { outputs: all, gain: self.least_gain(), wanted: self.wanted_gain() };
        let next = self.choose(state, wish, CleanOrder::Worth, Default::default(), &none);
        let kept = chunks + BEGUN_CHUNKS;
        kept.max(next.map_or(all, |plan| plan.sources.len() as u64 - plan.gained))
    }

    /// Returns true if a cleaner that begins with `chunks` chunks gets to all that it keeps, by passes that each gain
    /// more than their checkpoints may take, and that leave alone the chunks in `taken`.
    fn climbs(&self, state: &Maintenance, mut chunks: u64, taken: &BTreeSet<Chunk>) -> bool {
        let cost = self.least_gain();
        let mut taken = Cow::Borrowed(taken);
        while chunks < self.sizing().bounds.clean_chunks {
            let wish = Wish { outputs: chunks, gain: cost + 1, wanted: self.sizing().bounds.clean_chunks };
            let Some(plan) = self.choose(state, wish, CleanOrder::Greed, Default::default(), &taken) else {
                return false;
            };
            taken.to_mut().extend(plan.sources);
            chunks += plan.gained - cost;
        }
        true
    }

    /// Returns true if the cleaner gets to all the chunks that it keeps from those that it has now, or has lent none.
    pub(in super::super) fn is_climbing(&self, state: &Maintenance) -> bool {
        let all = self.sizing().bounds.clean_chunks;
        self.shared.kept_chunks() >= all || self.climbs(state, self.shared.clean_outputs(), &BTreeSet::new())
    }

    /// Chooses chunks by `order`, without those in `taken`, as far as the wish goes. Returns `None` if they gain less
    /// than wished.
    fn choose(
        &self,
        state: &Maintenance,
        wish: Wish,
        order: CleanOrder,
        in_begun: [Sum; 2],
        taken: &BTreeSet<Chunk>,
    ) -> Option<CleanPlan> {
        let now = self.shared.segments.last_id().unwrap_or_default();
        let movable = Movable::of(self, state);
        let mut plan = CleanPlan::default();
        let mut sums = in_begun;
        let mut skipped = 0;
        let mut changed = ChangedPages::default();
        // Bytes for pages of the table: those that are promised to any pass, and those that survivors may leave of the
        // cleaner's chunks.
        let spare_bytes = PASS_TABLE_BYTES + self.shared.clean_outputs() * CHUNK_BYTES / 8;
        self.shared.segments.chunks_by_score(
            &|live, youngest| match order {
                CleanOrder::Worth => score(live, youngest, now),
                CleanOrder::Greed => -(live as f64),
            },
            &mut |chunk, occupied, page_bytes| {
                let live_bytes = occupied.packed_bytes();
                let is_full = live_bytes * 1000 > CHUNK_BYTES * FULL_PERMILLE;
                if is_full || taken.contains(&chunk) || !movable.has(chunk, occupied) {
                    skipped += 1;
                    return skipped < SKIPPED_MAX;
                }
                let mut with = sums;
                with[usize::from(movable.is_of_copies(occupied))].live_bytes += live_bytes;
                let outputs = with[0].outputs() + with[1].outputs();
                let pages_bytes = changed.with(occupied.pages(), page_bytes);
                if pages_bytes > spare_bytes && plan.sources.is_empty() {
                    skipped += 1;
                    return skipped < SKIPPED_MAX;
                }
                // Bytes beyond the promise are taken only while the pass would gain too little without them.
                let pages_max = if plan.gained < wish.gain { spare_bytes } else { PASS_TABLE_BYTES };
                if outputs > wish.outputs || pages_bytes > pages_max {
                    return false;
                }
                occupied.pages().for_each(|page| changed.add(page, page_bytes));
                sums = with;
                plan.sources.insert(chunk);
                plan.pages.extend(occupied.pages());
                plan.gained = (plan.sources.len() as u64).saturating_sub(outputs);
                plan.live_bytes += live_bytes;
                plan.gained < wish.wanted
            },
        );
        (plan.gained >= wish.gain && !plan.sources.is_empty()).then_some(plan)
    }

    /// Plans a pass over chunks from which everything is to move, ascending, that begins up to `outputs` chunks. It has no
    /// sources if none of them can be moved now.
    pub(in super::super) fn plan_move_off(
        &self,
        state: &Maintenance,
        device: u16,
        outputs: u64,
    ) -> CleanPlan {
        let visit = &mut |visit: &mut VisitChunk<'_>| self.shared.segments.leaving_chunks(device, visit);
        self.plan_moves(state, visit, u64::MAX, outputs)
    }

    /// Plans a pass over up to `most` chunks of a device, at these positions, that begins up to `outputs` chunks. It has no
    /// sources if none of them can be moved now.
    pub(in super::super) fn plan_move_some(
        &self,
        state: &Maintenance,
        (device, indexes): (u16, Range<u32>),
        most: u64,
        outputs: u64,
    ) -> CleanPlan {
        let visit = &mut |visit: &mut VisitChunk<'_>| {
            self.shared.segments.chunks_among(device, indexes.clone(), visit);
        };
        self.plan_moves(state, visit, most, outputs)
    }

    fn plan_moves(
        &self,
        state: &Maintenance,
        visit: &mut dyn FnMut(&mut VisitChunk<'_>),
        most: u64,
        outputs: u64,
    ) -> CleanPlan {
        let movable = Movable::of(self, state);
        let mut plan = CleanPlan::default();
        let mut sums = [Sum::in_begun(state.cleaner.begun), Sum::in_begun(state.copies.begun)];
        let mut changed = ChangedPages::default();
        visit(&mut |chunk, occupied, page_bytes| {
            if !movable.has(chunk, occupied) {
                return true;
            }
            let live_bytes = occupied.packed_bytes();
            let mut with = sums;
            with[usize::from(movable.is_of_copies(occupied))].live_bytes += live_bytes;
            let pages_bytes = changed.with(occupied.pages(), page_bytes);
            if with[0].outputs() + with[1].outputs() > outputs || pages_bytes > PASS_TABLE_BYTES {
                return false;
            }
            occupied.pages().for_each(|page| changed.add(page, page_bytes));
            sums = with;
            plan.sources.insert(chunk);
            plan.pages.extend(occupied.pages());
            plan.live_bytes += live_bytes;
            (plan.sources.len() as u64) < most
        });
        plan
    }
}

/// Tells which chunks a pass may empty.
struct Movable<'a> {
    state: &'a Maintenance,
    begun: [Option<Begun>; 2],
    /// The first page of the table that has second copies.
    first_copies: u64,
}

impl<'a> Movable<'a> {
    fn of(pool: &Pool, state: &'a Maintenance) -> Self {
        let begun = [state.cleaner.begun, state.copies.begun];
        Self { state, begun, first_copies: pool.shared.segments.page_ids().page(COPIES) }
    }

    fn is_of_copies(&self, occupied: &Occupied) -> bool {
        occupied.pages().next().is_some_and(|page| page >= self.first_copies)
    }

    fn has(&self, chunk: Chunk, occupied: &Occupied) -> bool {
        // Segments of the log lie in chunks of their own. Neither they nor younger ones are ever moved.
        let is_log = occupied.youngest() >= self.state.window_start.segment && !self.is_of_copies(occupied);
        !is_log
            && !self.begun.iter().flatten().any(|begun| begun.chunk == chunk)
            && !self.state.cleaner.unreadable.contains(&chunk)
    }
}

#[cfg(test)]
mod tests;
