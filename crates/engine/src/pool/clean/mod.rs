//! Cleaning: packs the live records of sparse chunks into few chunks, so that the others become free.
//!
//! Addresses stay; only the segment table learns where the records lie now, and the next checkpoint stores it.
//!
//! - G4: the log says nothing of a pass. After a crash the segments are where the last checkpoint has them: their old
//!   chunks were not reused (S1). They must be there, since records that a pass leaves behind as dead may be in use by
//!   that checkpoint's tree, or by changes that were undone because they never reached the log.
//! - G6: a pass begins only if it leaves more free chunks than there were: it empties more than it fills. It does what
//!   it was planned to: it empties every chunk that it takes, and writes no more than is counted of them.

mod choose;

use std::collections::BTreeSet;

use super::pack::{Begun, Packer, Survivor};
use super::{Maintenance, Pool};
use crate::dataset::count;
use crate::device::{Devices, IoClass};
use crate::limits::BLOCK_BYTES;
use crate::record::model_of;
use crate::segment::{Move, PART_OVERHEAD_BYTES, PARTS_MAX, Part, Segment};
use crate::space::Chunk;
use crate::types::COPIES;
use crate::{Addr, Error, Result};
use choose::Wish;
pub(super) use choose::{ChangedPages, CleanPlan, OUTPUT_BYTES};

/// Report of a pass of the cleaner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Number of chunks that have no live records any more.
    pub chunks: u64,
    /// Number of chunks that were begun for these records.
    pub outputs: u64,
    /// Number of segments that were moved, or parts of them.
    pub segments: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl CleanReport {
    /// Returns the number of chunks that become free by the pass, beyond those that it took.
    pub(crate) fn gained(&self) -> u64 {
        self.chunks.saturating_sub(self.outputs)
    }
}

/// State that the cleaner keeps from pass to pass.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    /// The chunk of survivors that the next pass goes on to fill.
    pub(super) begun: Option<Begun>,
    /// Chunks with records that could not be read, which stay where they are.
    unreadable: BTreeSet<Chunk>,
}

impl Cleaner {
    /// Has chunks tried again that had records which could not be read. A device may read now what it failed to read, the
    /// records may have been repaired, and chunks that were given out anew have others.
    pub(super) fn try_again(&mut self, which: impl Fn(Chunk) -> bool) {
        self.unreadable.retain(|chunk| !which(*chunk));
    }
}

/// Returns the move of survivors to `parts`.
pub(super) fn move_to(parts: Vec<Part>, survivors: &[Survivor], recompressed: bool) -> Move {
    let models: BTreeSet<u32> = survivors.iter().filter_map(|(_, _, bytes)| model_of(bytes)).collect();
    let lens = survivors.iter().map(|(slot, _, bytes)| (*slot, bytes.len() as u32)).collect();
    Move { parts, models: models.into_iter().collect(), lens, recompressed }
}

/// Returns true if a segment has so many parts that it is moved as a whole: parts may break at the end of a chunk.
fn moves_whole(segment: &Segment) -> bool {
    segment.parts.len() + 4 > PARTS_MAX
}

/// Returns the most bytes that a pass writes beside what it packs: each chunk that it goes on with or begins is padded
/// at both ends of what is written to it, and may break a part in two.
const fn padding_max(outputs: u64) -> u64 {
    (outputs + 2) * (2 * BLOCK_BYTES as u64 + PART_OVERHEAD_BYTES)
}

impl Pool {
    /// Cleans the chunks from which most is gained, even if that is less than a chunk, and makes a checkpoint, so that
    /// they become free: for callers that drive a pool without threads.
    pub fn clean(&self) -> Result<CleanReport> {
        let mut state = self.maintenance.lock();
        let report = self.clean_wished(&mut state, 0, self.pass_chunks())?;
        self.checkpoint_locked(&mut state, false)?;
        self.restore_room(&mut state)?;
        Ok(report.unwrap_or_default())
    }

    /// Does one pass that gains up to `wanted` chunks. Returns `None` if no pass would gain anything (G6). A checkpoint
    /// has to follow, by which the emptied chunks become free.
    pub(super) fn clean_pass(&self, state: &mut Maintenance, wanted: u64) -> Result<Option<CleanReport>> {
        self.clean_wished(state, self.least_gain(), wanted)
    }

    fn clean_wished(&self, state: &mut Maintenance, gain: u64, wanted: u64) -> Result<Option<CleanReport>> {
        self.shared.check_writable()?;
        // A pass takes the cleaner's own chunks. It takes some that writers could have only if it would gain nothing
        // otherwise.
        let has = self.shared.clean_outputs();
        let mut outputs = has.min(self.shared.kept_chunks()).min(self.pass_chunks());
        loop {
            let wish = |outputs| Wish { outputs, gain, wanted };
            let more = || self.plan_pass(state, wish(has.min(self.pass_chunks())));
            let Some(plan) = self.plan_pass(state, wish(outputs)).or_else(more) else {
                self.shared.throttle.idle();
                return Ok(None);
            };
            let counted_bytes = self.counted_bytes(&plan);
            self.shared.throttle.begin(plan.live_bytes);
            match self.clean_planned(state, &plan) {
                // More had to be written than was expected of these chunks: fewer are cleaned.
                Err(Error::NoSpace(_)) if outputs > 1 => outputs /= 2,
                Err(Error::NoSpace(_)) => return Ok(None),
                Err(error) => {
                    self.shared.fail(&error);
                    return Err(error);
                }
                Ok(report) => {
                    tracing::debug!(
                        ?report,
                        free = self.chunks.free(),
                        spare = self.shared.spare_chunks(),
                        "a pass of the cleaner"
                    );
                    count(&self.shared.counters.moved_bytes, report.written_bytes);
                    count(&self.shared.counters.clean_passes, 1);
                    count(&self.shared.counters.chunks_gained, report.gained());
                    let as_planned = report.chunks == plan.sources.len() as u64
                        && report.chunks >= report.outputs + gain
                        && report.written_bytes <= counted_bytes + padding_max(report.outputs);
                    if !as_planned && state.cleaner.unreadable.is_empty() {
                        count(&self.shared.counters.fruitless_passes, 1);
                        tracing::error!(
                            ?report,
                            counted_bytes,
                            "a pass of the cleaner did not do what it was planned to"
                        );
                    }
                    return Ok(Some(report));
                }
            }
        }
    }

    /// Returns the most bytes that a pass writes, padding aside, going by what is counted of the chunks that it
    /// empties.
    fn counted_bytes(&self, plan: &CleanPlan) -> u64 {
        let segments = &self.shared.segments;
        let of_sources = plan.sources.iter().filter_map(|chunk| segments.occupied(*chunk));
        let of_pages = plan.pages.iter().filter_map(|page| segments.of_page_in(*page, &plan.sources).ok());
        let of_wholes = of_pages.flatten().filter(moves_whole);
        of_sources.map(|occupied| occupied.packed_bytes()).sum::<u64>()
            + of_wholes.map(|segment| segment.used_bytes()).sum::<u64>()
    }

    /// Does a pass that fills chunks which the next checkpoint gives back, and more.
    fn clean_planned(&self, state: &mut Maintenance, plan: &CleanPlan) -> Result<CleanReport> {
        let records = Packer::new(self, state.cleaner.begun).for_pass();
        let copies = Packer::of_copies(self, state.copies.begun).for_pass();
        self.pack_planned(state, plan, records, copies)
    }

    /// Moves what lies in the chunks of a plan. Records and second copies are packed apart: no chunk has both a record and
    /// its second copy (K4).
    pub(super) fn pack_planned<'a>(
        &'a self,
        state: &mut Maintenance,
        plan: &CleanPlan,
        mut records: Packer<'a>,
        mut copies: Packer<'a>,
    ) -> Result<CleanReport> {
        let moved = self.repack_all(state, plan, &mut records, &mut copies);
        let outputs = (records.begun_now() + copies.begun_now()) as u64;
        let written = moved.and_then(|moved| {
            let begun = (records.suspend()?, copies.suspend()?);
            records.flush_later();
            copies.flush_later();
            let segments = moved.len() as u64;
            self.with_log(|| moved.into_iter().try_for_each(|(id, to)| self.relocate(id, to)))?;
            Ok((begun, segments))
        });
        let written_bytes = records.written_bytes + copies.written_bytes;
        match written {
            Ok(((records_begun, copies_begun), segments)) => {
                state.cleaner.begun = records_begun;
                state.copies.begun = copies_begun;
                records.release();
                copies.release();
                let is_vacant = |chunk: &&Chunk| {
                    self.shared.segments.occupied(**chunk).is_none_or(|left| left.packed_bytes() == 0)
                };
                let chunks = plan.sources.iter().filter(is_vacant).count() as u64;
                Ok(CleanReport { chunks, outputs, segments, written_bytes })
            }
            Err(error) => {
                // The begun chunks are as they were: nothing refers to what was written behind their ends.
                records.give_up(state.cleaner.begun);
                copies.give_up(state.copies.begun);
                Err(error)
            }
        }
    }

    fn repack_all<'a>(
        &'a self,
        state: &mut Maintenance,
        plan: &CleanPlan,
        records: &mut Packer<'a>,
        copies: &mut Packer<'a>,
    ) -> Result<Vec<(u64, Move)>> {
        let mut moved = Vec::new();
        let unreadable = &mut state.cleaner.unreadable;
        // Pages ascend by number, and so by age: records that are equally old come to lie together.
        for page in &plan.pages {
            let segments = match self.shared.segments.of_page_in(*page, &plan.sources) {
                Ok(segments) => segments,
                Err(error) if error.is_damage() => {
                    tracing::error!(%error, page, "segments on a damaged page of the segment table are not cleaned");
                    let with_it = |chunk: &&Chunk| {
                        let occupied = self.shared.segments.occupied(**chunk);
                        occupied.is_some_and(|occupied| occupied.pages().any(|other| other == *page))
                    };
                    unreadable.extend(plan.sources.iter().filter(with_it));
                    continue;
                }
                Err(error) => return Err(error),
            };
            for segment in segments {
                let packer = if segment.id >= COPIES { &mut *copies } else { &mut *records };
                match self.repack(&segment, &plan.sources, packer) {
                    Ok(to) => moved.extend(to.map(|to| (segment.id, to))),
                    Err(error @ Error::NoSpace(_)) => return Err(error),
                    Err(error) if error.is_damage() => {
                        self.count_met(&error);
                        // The segment's other records remain readable where they are.
                        tracing::error!(%error, segment = segment.id, "a damaged segment is not cleaned");
                        let chunks = segment.parts.iter().map(|part| part.extent.chunk);
                        unreadable.extend(chunks.filter(|chunk| plan.sources.contains(chunk)));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(moved)
    }

    /// Packs the survivors of those parts of a segment anew that lie in `sources`. Returns `None` if no part is left.
    fn repack(
        &self,
        segment: &Segment,
        sources: &BTreeSet<Chunk>,
        packer: &mut Packer<'_>,
    ) -> Result<Option<Move>> {
        let whole = moves_whole(segment);
        let leaves = |part: &Part| whole || sources.contains(&part.extent.chunk);
        let mut parts: Vec<Part> = Vec::new();
        let mut all = Vec::new();
        for run in segment.parts.chunk_by(|a, b| leaves(a) == leaves(b)) {
            let Some(first) = run.first() else { continue };
            if !leaves(first) {
                parts.extend_from_slice(run);
                continue;
            }
            let devices = self.shared.devices.of_class(IoClass::Cleaning);
            let mut survivors = self.survivors(&devices, segment, run)?;
            parts.append(&mut packer.pack(segment.id, first.first_slot, &survivors)?);
            all.append(&mut survivors);
        }
        // The slots of parts without survivors fall to their neighbours, which have no records of them.
        let Some(first) = parts.first_mut() else { return Ok(None) };
        first.first_slot = 0;
        Ok(Some(move_to(parts, &all, false)))
    }

    /// Reads the live records of parts of a segment, with their checksums, ascending by slot; by requests of the class
    /// of `devices`.
    pub(super) fn survivors(
        &self,
        devices: &Devices,
        segment: &Segment,
        parts: &[Part],
    ) -> Result<Vec<Survivor>> {
        let segments = &self.shared.segments;
        let mut wanted = Vec::new();
        for part in parts {
            let Some(dir) = part.directory else { continue };
            let directory = segments.read_directory(devices, segment.id, part.extent, dir)?;
            wanted.extend(directory.entries().iter().filter(|entry| segment.live.get(entry.slot)).copied());
        }
        let addrs: Vec<Addr> = wanted.iter().map(|entry| Addr::new(segment.id, entry.slot)).collect();
        let mut survivors: Vec<Survivor> =
            wanted.iter().map(|entry| (entry.slot, entry.checksum, Vec::new())).collect();
        segments.read(devices, &addrs, &mut |at, bytes| {
            if let Some(survivor) = survivors.get_mut(at) {
                survivor.2 = bytes.to_vec();
            }
            Ok(())
        })?;
        Ok(survivors)
    }

    /// Notes that a segment lies elsewhere from now on. The caller holds the log's lock.
    pub(super) fn relocate(&self, id: u64, to: Move) -> Result<()> {
        for part in &to.parts {
            self.chunks.retain(part.extent.chunk);
        }
        for part in self.shared.segments.relocate(id, to)? {
            self.chunks.release(part.extent.chunk);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
