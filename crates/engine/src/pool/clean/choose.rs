//! Which chunks the cleaner takes.

use std::collections::BTreeSet;

use super::super::pack::Begun;
use super::super::{Maintenance, Pool};
use crate::dataset::PASS_TABLE_BYTES;
use crate::limits::CHUNK_BYTES;
use crate::segment::Occupied;
use crate::space::Chunk;
use crate::types::COPIES;

/// A chunk fuller than this is not worth the writing, in parts of a thousand.
const FULL_PERMILLE: u64 = 970;
/// Chunks that are passed over, because they cannot be cleaned or are full, before a search ends.
const SKIPPED_MAX: usize = 4096;
/// Bytes of a chunk that survivors fill for sure: the next record may not fit into what is left.
pub(in super::super) const OUTPUT_BYTES: u64 = CHUNK_BYTES - CHUNK_BYTES / 64;

/// What is wanted of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Chunks that it may begin.
    pub(super) outputs: u64,
    /// Chunks that it has to gain, or it does not begin.
    pub(super) gain: u64,
    /// Chunks from which on it need not gain more.
    pub(super) wanted: u64,
}

/// What a pass cleans.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The chunks that it vacates.
    pub(super) sources: BTreeSet<Chunk>,
    /// The pages of the segment table with segments that have parts there.
    pub(super) pages: BTreeSet<u64>,
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
    /// Bytes that they take where they are stored, at most, if it changed these, too: none comes twice.
    pub(in super::super) fn with(
        &self,
        pages: impl Iterator<Item = u64>,
        page_bytes: &dyn Fn(u64) -> u64,
    ) -> u64 {
        self.bytes + pages.filter(|page| !self.pages.contains(page)).map(page_bytes).sum::<u64>()
    }

    /// It changes this one, too.
    pub(in super::super) fn add(&mut self, page: u64, page_bytes: &dyn Fn(u64) -> u64) {
        if self.pages.insert(page) {
            self.bytes += page_bytes(page);
        }
    }

    /// Bytes that they take where they are stored, at most.
    pub(in super::super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// How much is gained by cleaning a chunk with so many live bytes whose youngest record is of segment `youngest`, while the log is at segment
/// `now`: what becomes free, by what is read and written, and more for what is old, since it will not die soon by itself (Rosenblum and
/// Ousterhout, "The design and implementation of a log-structured file system", 1992, section 3.5; the age by its square root, so that the
/// uniformly overwritten pool is cleaned nearly as by greed alone).
fn score(live_bytes: u64, youngest: u64, now: u64) -> f64 {
    let live = live_bytes.min(CHUNK_BYTES) as f64 / CHUNK_BYTES as f64;
    let age = now.saturating_sub(youngest) as f64 + 1.0;
    (1.0 - live) / (live + 1e-6) * age.powf(AGE_EXPONENT)
}

/// See [`score`].
const AGE_EXPONENT: f64 = 0.25;

impl Pool {
    /// The chunks that are worth most, as far as the wish goes.
    pub(super) fn plan_pass(&self, state: &Maintenance, wish: Wish) -> Option<Plan> {
        let now = self.shared.segments.last_id().unwrap_or_default();
        let begun = [state.cleaner.begun, state.copies.begun];
        // Segments of the log lie in chunks of their own, and nothing younger is ever moved.
        let log = state.window_start.segment;
        let first_copies = self.shared.segments.page_ids().page(COPIES);
        let of_copies =
            |occupied: &Occupied| occupied.pages().next().is_some_and(|page| page >= first_copies);
        let is_fixed = |chunk: Chunk, occupied: &Occupied| {
            begun.iter().flatten().any(|begun| begun.chunk == chunk)
                || (occupied.youngest() >= log && !of_copies(occupied))
                || state.cleaner.unreadable.contains(&chunk)
        };
        let mut plan = Plan::default();
        let mut sums = [Sum::in_begun(state.cleaner.begun), Sum::in_begun(state.copies.begun)];
        let (mut gained, mut skipped) = (0, 0);
        let mut changed = ChangedPages::default();
        // What is promised to any pass, and what survivors may leave of theirs.
        let spare_bytes = PASS_TABLE_BYTES + self.shared.clean_outputs() * CHUNK_BYTES / 8;
        self.shared.segments.rank();
        self.shared.segments.chunks_by_score(
            &|live, youngest| score(live, youngest, now),
            &mut |chunk, occupied, page_bytes| {
                let live_bytes = occupied.packed_bytes();
                if live_bytes * 1000 > CHUNK_BYTES * FULL_PERMILLE || is_fixed(chunk, occupied) {
                    skipped += 1;
                    return skipped < SKIPPED_MAX;
                }
                let mut with = sums;
                with[usize::from(of_copies(occupied))].live_bytes += live_bytes;
                let outputs = with[0].outputs() + with[1].outputs();
                let pages_bytes = changed.with(occupied.pages(), page_bytes);
                if pages_bytes > spare_bytes && plan.sources.is_empty() {
                    skipped += 1;
                    return skipped < SKIPPED_MAX;
                }
                // What is beyond the promise is taken where nothing would be gained without.
                let pages_max = if gained < wish.gain { spare_bytes } else { PASS_TABLE_BYTES };
                if outputs > wish.outputs || pages_bytes > pages_max {
                    return false;
                }
                occupied.pages().for_each(|page| changed.add(page, page_bytes));
                sums = with;
                plan.sources.insert(chunk);
                plan.pages.extend(occupied.pages());
                gained = (plan.sources.len() as u64).saturating_sub(outputs);
                gained < wish.wanted
            },
        );
        (gained >= wish.gain && !plan.sources.is_empty()).then_some(plan)
    }
}

#[cfg(test)]
mod tests;
