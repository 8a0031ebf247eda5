//! Folding: survivors of sparse chunks are packed together, so that the chunks become free.
//!
//! Addresses stay; only the segment table learns where the records lie now, and the next checkpoint stores it.
//!
//! - G4: the log says nothing of a fold. After a crash the segments are where the last checkpoint has them: their old
//!   chunks were not reused (S1). They must be there, since what a fold leaves behind as dead may be in use by that
//!   checkpoint's tree, or by changes that were undone because they never reached the log.

use std::collections::{BTreeMap, BTreeSet};

use super::pack::{Packer, Survivor};
use super::{Maintenance, Pool};
use crate::dataset::count;
use crate::limits::CHUNK_BYTES;
use crate::record::model_of;
use crate::segment::{Move, Part, Segment};
use crate::space::Chunk;
use crate::types::COPIES;
use crate::{Addr, Error, Result};

/// Chunks that one pass may fill: bounds what a pass reads and writes before a checkpoint frees its gain.
pub(super) const OUTPUT_CHUNKS: u64 = 4;
/// A chunk fuller than this is not worth the writing, in parts of a thousand.
const FULL_PERMILLE: u64 = 970;

/// What a fold did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldReport {
    /// Chunks whose survivors were moved.
    pub chunks: u64,
    /// Segments that were moved.
    pub segments: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// What is known of a chunk that may be folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Space that live records account for, in bytes.
    pub(super) used_bytes: u64,
    /// The segments that have parts in it.
    pub(super) segments: Vec<u64>,
}

/// The chunks to fold: the sparsest first, as many as fit `output_bytes`, none that is nearly full.
pub(super) fn choose(candidates: &BTreeMap<Chunk, Candidate>, output_bytes: u64) -> Vec<Chunk> {
    let mut order: Vec<_> = candidates.iter().collect();
    order.sort_by_key(|(chunk, candidate)| (candidate.used_bytes, **chunk));
    let mut left = output_bytes;
    let mut chosen = Vec::new();
    for (chunk, candidate) in order {
        if candidate.used_bytes * 1000 > CHUNK_BYTES * FULL_PERMILLE || candidate.used_bytes > left {
            break;
        }
        left -= candidate.used_bytes;
        chosen.push(*chunk);
    }
    chosen
}

/// The move of survivors to `parts`.
pub(super) fn move_to(parts: Vec<Part>, survivors: &[Survivor], recoded: bool) -> Move {
    let models: BTreeSet<u32> = survivors.iter().filter_map(|(_, _, bytes)| model_of(bytes)).collect();
    let lens = survivors.iter().map(|(slot, _, bytes)| (*slot, bytes.len() as u32)).collect();
    Move { parts, models: models.into_iter().collect(), lens, recoded }
}

impl Pool {
    /// Folds the sparsest chunks and makes a checkpoint, so that they become free.
    pub fn fold(&self) -> Result<FoldReport> {
        let mut state = self.maintenance.lock();
        let report = self.fold_pass(&state)?;
        self.checkpoint_locked(&mut state, false)?;
        Ok(report)
    }

    fn candidates(&self, state: &Maintenance) -> BTreeMap<Chunk, Candidate> {
        let mut found: BTreeMap<Chunk, Candidate> = BTreeMap::new();
        let mut fixed: BTreeSet<Chunk> = state.copies.begun.iter().map(|begun| begun.chunk).collect();
        let log = state.window_start.segment..COPIES;
        self.shared.segments.for_each(|segment| {
            let closed = segment.parts.iter().all(|part| part.directory.is_some());
            let total: u64 = segment.parts.iter().map(|part| u64::from(part.extent.len_bytes)).sum();
            for part in &segment.parts {
                if log.contains(&segment.id) || !closed {
                    fixed.insert(part.extent.chunk);
                }
                // How a segment's survivors spread over its parts is not kept; by length is near enough.
                let share = segment.used_bytes() * u64::from(part.extent.len_bytes) / total.max(1);
                let candidate = found.entry(part.extent.chunk).or_default();
                candidate.used_bytes += share;
                candidate.segments.push(segment.id);
            }
        });
        found.retain(|chunk, _| !fixed.contains(chunk));
        found
    }

    pub(super) fn fold_pass(&self, state: &Maintenance) -> Result<FoldReport> {
        self.shared.check_writable()?;
        let spare = self.chunks.free().saturating_sub(2).min(OUTPUT_CHUNKS);
        let candidates = self.candidates(state);
        let chosen = choose(&candidates, spare * CHUNK_BYTES / 1000 * FULL_PERMILLE);
        let ids: BTreeSet<u64> = chosen
            .iter()
            .filter_map(|chunk| candidates.get(chunk))
            .flat_map(|found| found.segments.iter().copied())
            .collect();
        let mut packer = Packer::new(self);
        let packed = self.pack_all(&ids, &mut packer);
        let moved = packed.and_then(|moved| self.publish_moves(moved));
        let segments = moved.inspect_err(|error| self.shared.fail(error));
        for chunk in &packer.chunks {
            self.chunks.release(*chunk);
        }
        let report = FoldReport {
            chunks: chosen.len() as u64,
            segments: segments?,
            written_bytes: packer.written_bytes,
        };
        count(&self.shared.counters.fold_bytes, report.written_bytes);
        Ok(report)
    }

    fn pack_all(&self, ids: &BTreeSet<u64>, packer: &mut Packer<'_>) -> Result<Vec<(u64, Move)>> {
        let mut moved = Vec::new();
        let mut of_copies = false;
        for id in ids {
            let Some(segment) = self.shared.segments.get(*id) else { continue };
            // No chunk has both a record and its second copy: the ids of these come last.
            if *id >= COPIES && !std::mem::replace(&mut of_copies, true) {
                packer.close()?;
            }
            match self.survivors(&segment) {
                Ok(survivors) if survivors.is_empty() => {}
                Ok(survivors) => match packer.pack(*id, 0, &survivors) {
                    Ok(parts) => moved.push((*id, move_to(parts, &survivors, false))),
                    // How much survives was an estimate: what fits is a gain too.
                    Err(Error::NoSpace(_)) => break,
                    Err(error) => return Err(error),
                },
                // An unreadable segment stays where it is: its other records remain readable there.
                Err(error) => tracing::error!(%error, segment = id, "a damaged segment is not folded"),
            }
        }
        packer.finish()?;
        Ok(moved)
    }

    /// Live records of a segment with their checksums, ascending by slot.
    pub(super) fn survivors(&self, segment: &Segment) -> Result<Vec<Survivor>> {
        let (segments, devices) = (&self.shared.segments, &self.shared.devices);
        let mut wanted = Vec::new();
        for part in &segment.parts {
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

    fn publish_moves(&self, moved: Vec<(u64, Move)>) -> Result<u64> {
        if moved.is_empty() {
            return Ok(0);
        }
        let count = moved.len() as u64;
        self.with_log(|| moved.into_iter().try_for_each(|(id, to)| self.relocate(id, to)))?;
        Ok(count)
    }

    /// A segment lies elsewhere from now on. The caller holds the log's lock.
    pub(super) fn relocate(&self, id: u64, to: Move) -> Result<()> {
        for part in &to.parts {
            self.chunks.retain(part.extent.chunk);
        }
        for part in self.shared.segments.relocate(id, to)? {
            self.chunks.release(part.extent.chunk);
        }
        Ok(())
    }

    /// Sees to it that changed tree nodes keep within their share of memory: waits for the checkpoint that is under way, or
    /// makes one.
    fn make_tree_room(&self) -> Result<()> {
        if self.nodes.unstored_bytes() < self.sizing.unstored_tree_max() {
            return Ok(());
        }
        let mut state = self.maintenance.lock();
        if self.nodes.dirty_bytes() >= self.sizing.dirty_tree_bytes {
            self.checkpoint_locked(&mut state, false)?;
        }
        Ok(())
    }

    /// Sees to it that a commit finds memory for tree nodes, and free chunks: checkpoints, and folds if that is not enough.
    pub(super) fn make_room(&self) -> Result<()> {
        use std::sync::atomic::Ordering;
        if !self.shared.read_only.load(Ordering::Relaxed) {
            self.make_tree_room()?;
        }
        let wanted = self.sizing.commit_chunks(self.shared.dirty_bytes.load(Ordering::Relaxed));
        if self.chunks.free() >= wanted || self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.maintenance.lock();
        let mut fruitless = 0;
        while self.chunks.free() < wanted && fruitless < 8 {
            let before = self.chunks.free();
            while self.reap()? {}
            // The log since the last checkpoint can neither be folded nor reused: a checkpoint comes first.
            self.checkpoint_locked(&mut state, false)?;
            if self.chunks.free() >= wanted {
                break;
            }
            self.fold_pass(&state)?;
            self.checkpoint_locked(&mut state, false)?;
            fruitless = if self.chunks.free() > before { 0 } else { fruitless + 1 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
