//! Second copies of metadata ([decision 0026](../../../../docs/decisions/0026-metadata-twice.md)): all that a
//! checkpoint writes into the log is packed into a chunk of copies, too, so that damage at one place loses nothing.
//!
//! - K1: tree nodes and pages of the segment table have second copies at addresses of their own ([`Addr::copy`]); these
//!   lie in segments that only hold copies, and are live while the records are (G5).
//! - K2: a checkpoint's table was taken before and cannot know where the copies of this very checkpoint lie: its root
//!   says so.
//! - K3: records that no segment accounts for (root, lists, the catalogue's head) have second copies in the same
//!   chunks, found by their place. Those chunks are not given out before the next checkpoint counts, like everything
//!   that this one refers to (S1).
//! - K4: no chunk has a record and its second copy.

use std::collections::BTreeMap;

use super::Pool;
use super::pack::{Begun, Packer, Survivor};
use super::root::PlacedRecord;
use crate::dataset::count;
use crate::segment::{PARTS_MAX, Part, record_checksum};
use crate::types::COPIES;
use crate::wal::RecordKind;
use crate::{Error, Ptr, Result};

/// Largest number of parts that second copies of one segment's records may get by one checkpoint: they fit a chunk, and
/// one is begun.
const PARTS_EACH: usize = 3;

/// State of second copies that checkpoints keep.
#[derive(Debug, Default)]
pub(super) struct CopiesState {
    /// The chunk that the next checkpoint goes on to fill.
    pub(super) begun: Option<Begun>,
    /// The records of the last checkpoint that no segment accounts for.
    pub(super) roots: Vec<PlacedRecord>,
}

/// Second copies of records of one segment of the log.
#[derive(Default)]
struct Packed {
    parts: Vec<Part>,
    /// Slots and lengths of the records.
    records: Vec<(u32, u32)>,
}

/// The records of a checkpoint under way, each of which is written twice.
pub(super) struct Copies<'a> {
    pool: &'a Pool,
    number: u64,
    packer: Packer<'a>,
    /// Records of one segment of the log that are not packed yet.
    segment: u64,
    waiting: Vec<Survivor>,
    /// Copies that are packed, by the segment of their records, and not yet known to the segment table.
    packed: BTreeMap<u64, Packed>,
    roots: Vec<PlacedRecord>,
}

impl<'a> Copies<'a> {
    pub(super) fn new(pool: &'a Pool, number: u64, begun: Option<Begun>) -> Self {
        let packer = Packer::of_copies(pool, begun);
        let (packed, roots) = (BTreeMap::new(), Vec::new());
        Self { pool, number, packer, segment: 0, waiting: Vec::new(), packed, roots }
    }

    /// Appends records to the log that segments account for, and packs their second copies.
    pub(super) fn append(&mut self, kind: RecordKind, records: Vec<Vec<u8>>) -> Result<Vec<Ptr>> {
        let (ptrs, records) = self.pool.append_internal(self.number, kind, records)?;
        for (ptr, bytes) in ptrs.iter().zip(records) {
            if ptr.addr.segment() != self.segment {
                self.pack()?;
                self.segment = ptr.addr.segment();
            }
            self.waiting.push((ptr.addr.slot(), record_checksum(ptr.addr.copy(), &bytes), bytes));
        }
        Ok(ptrs)
    }

    fn pack(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let Some((first, _, _)) = waiting.first() else { return Ok(()) };
        let packed = self.packed.entry(self.segment).or_default();
        let none_yet = packed.parts.is_empty() && self.pool.shared.segments.copies(self.segment)?.is_empty();
        let from = if none_yet { 0 } else { *first };
        packed.parts.append(&mut self.packer.pack(self.segment | COPIES, from, &waiting)?);
        packed.records.extend(waiting.iter().map(|(slot, _, bytes)| (*slot, bytes.len() as u32)));
        Ok(())
    }

    /// Writes all second copies that were appended, and makes them known to the segment table. Returns the segments
    /// whose records they are, each with all parts in which it has copies (K2).
    pub(super) fn publish(&mut self) -> Result<Vec<(u64, Vec<Part>)>> {
        self.pack()?;
        self.packer.write()?;
        let segments = &self.pool.shared.segments;
        let packed = std::mem::take(&mut self.packed);
        self.pool.with_log(|| {
            for (id, Packed { parts, records }) in &packed {
                for part in parts {
                    self.pool.chunks.retain(part.extent.chunk);
                }
                segments.add_copies(*id, parts, records)?;
            }
            Ok(())
        })?;
        packed.into_keys().map(|id| Ok((id, segments.copies(id)?))).collect()
    }

    /// Appends records that no segment accounts for. Like the root they are protected by their place in the log alone,
    /// and made anew by each checkpoint.
    pub(super) fn append_placed(&mut self, records: Vec<Vec<u8>>) -> Result<Vec<PlacedRecord>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let (ptrs, records) = self.pool.append_internal(self.number, RecordKind::Root, records)?;
        let mut placed = Vec::with_capacity(ptrs.len());
        for (ptr, bytes) in ptrs.iter().zip(records) {
            let second = self.packer.place(ptr.addr, &bytes)?;
            placed.push(PlacedRecord { addr: ptr.addr, first: self.pool.place(ptr.addr)?, second });
        }
        self.roots.extend_from_slice(&placed);
        Ok(placed)
    }

    /// Appends the root, which is the last record.
    pub(super) fn append_root(&mut self, root: Vec<u8>) -> Result<PlacedRecord> {
        let placed = self.append_placed(vec![root])?;
        placed.first().copied().ok_or_else(|| Error::corrupt("root of a checkpoint", "it was not stored"))
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) -> Result<CopiesState> {
        let begun = self.packer.suspend()?;
        self.packer.flush_later();
        self.packer.release();
        count(&self.pool.shared.counters.copy_bytes, self.packer.written_bytes);
        Ok(CopiesState { begun, roots: self.roots })
    }
}

impl Pool {
    /// Returns true if the log has to go on in another segment, since second copies of records of `segment` have nearly
    /// as many parts as a segment may have.
    pub(super) fn copies_are_many(&self, segment: u64) -> Result<bool> {
        Ok(self.shared.segments.copies(segment)?.len() + PARTS_EACH > PARTS_MAX)
    }
}

#[cfg(test)]
mod tests;
