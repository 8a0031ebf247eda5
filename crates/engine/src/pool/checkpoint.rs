//! Checkpoints: store the trees and the segment table as of one instant, so that replay can start there.
//!
//! Order of a checkpoint, each step only after the one before:
//! 1. quiesce: everything accepted goes into the log; trees become immutable, and the table is copied, at that instant;
//! 2. dirty tree nodes, then changed pages of the segment table and of the catalogue, then lists of where these are and
//!    of what else died in segments, then the root are appended to the log, and written once more elsewhere
//!    ([`super::copies`]);
//! 3. all devices are flushed;
//! 4. superblocks are written and flushed: **from here on the checkpoint counts**;
//! 5. chunks that were pending free at the quiesce point may be overwritten.
//!
//! A crash before 4 leaves the checkpoint before; its log is still whole, since nothing pending was reused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::copies::Copies;
use super::group::Waiting;
use super::label::{LogGroup, Superblock};
use super::lacks::Lacks;
use super::logs::stands_for_logs;
use super::root::{PlacedRecord, Root, TablePage, encode_dead, encode_lists};
use super::versions::Versions;
use super::{Maintenance, Pool};
use crate::dataset::Dataset;
use crate::dataset::count;
use crate::device::IoClass;
use crate::limits::BLOCK_BYTES;
use crate::record::encode_metadata;
use crate::segment::{Located, TableSnapshot};
use crate::space::Chunk;
use crate::wal::{Position, RecordKind};
use crate::{Addr, Ptr, Result};

/// State as of the quiesce point.
struct QuiescedState {
    versions: Versions,
    position: Position,
    open_directory: Vec<u8>,
    table: TableSnapshot,
    recycle: Vec<Chunk>,
    /// See [`super::catalogue::Catalogue::grown_bytes`].
    growth_bytes: u64,
}

impl Pool {
    /// Makes a checkpoint; with `exported`, the last before the pool is closed: changes that come after its quiesce point
    /// are refused.
    pub fn checkpoint(&self, exported: bool) -> Result<()> {
        let mut state = self.maintenance.lock();
        if !exported {
            self.checkpoint_locked(&mut state, false)?;
            return self.restore_room(&mut state);
        }
        self.checkpoint_locked(&mut state, true)
    }

    /// As [`Pool::checkpoint`], and lets `meanwhile` work between the quiesce point and the writing, and once more
    /// before the checkpoint ends, for callers that drive a pool without threads. `meanwhile` may do nothing that waits
    /// for a checkpoint.
    pub fn checkpoint_around(&self, meanwhile: &mut dyn FnMut()) -> Result<()> {
        let mut state = self.maintenance.lock();
        self.shared.check_writable()?;
        let made = self.try_checkpoint(&mut state, false, meanwhile);
        made.inspect_err(|error| self.shared.fail(error))?;
        self.restore_room(&mut state)
    }

    pub(super) fn checkpoint_locked(&self, state: &mut Maintenance, exported: bool) -> Result<()> {
        self.shared.check_writable()?;
        let made = self.try_checkpoint(state, exported, &mut || {});
        made.inspect_err(|error| self.shared.fail(error))
    }

    fn try_checkpoint(
        &self,
        state: &mut Maintenance,
        exported: bool,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let number = state.superblock + 1;
        self.shared.segments.read_heavy(&state.page_ptrs);
        let quiesced = self.quiesce(state, exported)?;
        let QuiescedState { mut versions, position, open_directory, table, recycle, growth_bytes } = quiesced;
        meanwhile();
        let mut copies = Copies::new(self, number, state.copies.begun.take());
        let own = versions.persist(self, &mut copies)?;
        let dead = encode_dead(&table.dead);
        let page_ptrs = store_table(&mut copies, state, table.pages)?;
        let mut catalogue_ptrs = state.catalogue_ptrs.clone();
        versions.persist_pages(&mut copies, &mut catalogue_ptrs)?;
        let copied = copies.publish()?;
        let lacks = self.labels.lacks().iter().map(Lacks::encode).collect();
        let root = Root {
            checkpoint: number,
            position,
            open_directory,
            page_ids: self.shared.segments.page_ids(),
            lists: copies.append_placed(self.encode_table(&page_ptrs)?)?,
            dead: copies.append_placed(dead)?,
            own,
            catalogue: copies.append_placed(versions.encode_head(self, &catalogue_ptrs)?)?,
            copies: copied,
            lacks: copies.append_placed(lacks)?,
        };
        let placed = copies.append_root(root.encode())?;
        let copies = copies.finish()?;
        self.publish(number, placed, exported)?;
        state.superblock = number;
        state.copies = copies;
        state.page_ptrs = page_ptrs;
        state.catalogue_ptrs = catalogue_ptrs;
        state.catalogue_pages = versions.take_pages();
        state.window_start = position;
        // This comes before chunks are given out in which pages of the table as of the last checkpoint lie (G7).
        self.table_pages.counts();
        self.shared.segments.stored();
        meanwhile();
        self.retire(versions)?;
        let freed: BTreeSet<Chunk> = recycle.iter().copied().collect();
        state.cleaner.try_again(|chunk| freed.contains(&chunk));
        self.chunks.recycle(recycle);
        self.note_sizes(state, growth_bytes);
        self.shared.throttle.gained();
        self.shared.segments.trim_directories();
        count(&self.shared.counters.checkpoints, 1);
        tracing::debug!(
            number,
            free = self.chunks.free(),
            spare = self.shared.spare_chunks(),
            "a checkpoint"
        );
        Ok(())
    }

    /// Does step 1.
    fn quiesce(&self, state: &Maintenance, exported: bool) -> Result<QuiescedState> {
        self.commit_ahead()?;
        let mut log = self.log.lock();
        if self.copies_are_many(log.writer.position().segment)? {
            let rolled_bytes = log.writer.roll()?;
            count(&self.shared.counters.framing_bytes, rolled_bytes);
        }
        let gate = self.shared.gate.write();
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let taken = self.take_accepted(&log);
        self.finish(&mut log, &taken, accepted, Waiting::Nobody)?;
        for dataset in self.datasets.read().iter() {
            dataset.settle_usage()?;
        }
        self.own.drop_models(&|entry| {
            let Some(dataset) = self.dataset_by_id(entry.dataset) else { return Ok(false) };
            if stands_for_logs(entry.object) {
                return Ok(true);
            }
            // It came by a stream, was learned from another dataset, and codes no object here.
            if entry.object == 0 {
                return Ok(false);
            }
            match dataset.usage(entry.object) {
                Ok(usage) => Ok(usage.pages > 0),
                // It may have pages: a checkpoint that fails ends all changes. `check` reports the damage.
                Err(error) if error.is_damage() => Ok(true),
                Err(error) => Err(error),
            }
        })?;
        // The last checkpoint may have added to dead lists.
        self.catalogue.read().flush_dead()?;
        self.place_faults()?;
        self.place_history()?;
        let (versions, growth_bytes) = {
            let catalogue = self.catalogue.read();
            let growth_bytes = catalogue.grown_bytes.swap(0, Ordering::Relaxed);
            (Versions::take(&catalogue, &self.own, &state.catalogue_pages), growth_bytes)
        };
        let replaced: Vec<Ptr> = versions
            .changed()
            .iter()
            .filter_map(|page| state.catalogue_ptrs.get(page))
            .flatten()
            .copied()
            .collect();
        self.shared.segments.mark_dead(&replaced);
        let position = log.writer.position();
        let segments = &self.shared.segments;
        let directory = segments.open_directory(position.segment).unwrap_or_default();
        let table = segments.snapshot(&state.page_ptrs, position.segment);
        for part in segments.drop_dead(&table.dropped) {
            self.chunks.release(part.extent.chunk);
        }
        let recycle = self.chunks.take_pending_free();
        log.window_bytes = 0;
        if exported {
            // An opening looks at no log device behind this checkpoint, so nothing may be acknowledged there.
            self.shared.read_only.store(true, Ordering::Relaxed);
        }
        drop(gate);
        Ok(QuiescedState {
            versions,
            position,
            open_directory: directory.encode(position.segment).bytes,
            table,
            recycle,
            growth_bytes,
        })
    }

    /// Returns the places of both copies of a record.
    pub(super) fn placed(&self, addr: Addr) -> Result<PlacedRecord> {
        Ok(PlacedRecord { addr, first: self.place(addr)?, second: self.place(addr.copy())? })
    }

    /// Encodes the lists of the table's pages. Notes the places for those who read the pages once the checkpoint
    /// counts.
    fn encode_table(&self, page_ptrs: &BTreeMap<u64, Ptr>) -> Result<Vec<Vec<u8>>> {
        let moved = self.shared.segments.take_moved();
        let stays = |addr: Addr| !moved.contains(&addr.segment()) && !moved.contains(&addr.copy().segment());
        let mut table = Vec::with_capacity(page_ptrs.len());
        for (page, Ptr { addr, .. }) in page_ptrs {
            let known = self.table_pages.place(*page).filter(|known| known.addr == *addr && stays(*addr));
            let placed = known.map_or_else(|| self.placed(*addr), Ok)?;
            table.push(TablePage { page: *page, placed });
        }
        let lists = if table.is_empty() { Vec::new() } else { encode_lists(&table) };
        self.table_pages.note(table);
        Ok(lists)
    }

    /// Returns the place of a record, for a checkpoint.
    pub(super) fn place(&self, addr: Addr) -> Result<Located> {
        self.shared.segments.locate(&self.shared.devices.of_class(IoClass::AsyncRead), addr)
    }

    /// Does steps 3 and 4.
    fn publish(&self, number: u64, root: PlacedRecord, exported: bool) -> Result<()> {
        let accepted = self.committed.load(Ordering::Acquire);
        self.shared.devices.begin_superblock();
        let published = self.publish_flushed(number, root, exported, accepted);
        self.shared.devices.end_superblock(published.is_ok());
        published
    }

    fn publish_flushed(&self, number: u64, root: PlacedRecord, exported: bool, accepted: u64) -> Result<()> {
        self.flushes.settle_as(IoClass::AsyncWrite)?;
        let superblock = Superblock {
            generation: number,
            log: self.labels.common().log,
            root: root.first,
            second: root.second,
            addr: root.addr,
            exported,
            flushed: self.flushes.settled_batch(),
            confirmed: true,
            epoch: self.labels.epoch(),
            opening: self.opening,
            log_device: self
                .labels
                .log_group()
                .map(|number| LogGroup { number, is_needed: !exported && self.has_log_device(number) }),
        };
        // Each device has one in each ring.
        let superblocks =
            2 * self.labels.publish(&superblock, &|superblock| self.without_lost(superblock))?;
        count(&self.shared.counters.checkpoint_bytes, (superblocks * BLOCK_BYTES) as u64);
        self.log.lock().writer.attested(superblock.flushed);
        self.durable.fetch_max(accepted, Ordering::AcqRel);
        self.take_up_groups(superblock.epoch);
        Ok(())
    }
}

/// Does step 2 for the table: stores its changed pages and returns where all pages are.
fn store_table(
    copies: &mut Copies<'_>,
    state: &Maintenance,
    changed: Vec<(u64, Vec<u8>)>,
) -> Result<BTreeMap<u64, Ptr>> {
    let mut page_ptrs = state.page_ptrs.clone();
    let mut pages = Vec::new();
    let mut records = Vec::new();
    for (page, bytes) in changed {
        page_ptrs.remove(&page);
        if !bytes.is_empty() {
            pages.push(page);
            records.push(encode_metadata(bytes));
        }
    }
    let ptrs = copies.append(RecordKind::Table, records)?;
    page_ptrs.extend(pages.into_iter().zip(ptrs));
    Ok(page_ptrs)
}

#[cfg(test)]
mod tests;
