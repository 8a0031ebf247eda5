//! Commits: bring accepted changes into the log and the trees.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rayon::prelude::*;

use super::coded::{Coded, Current, PageRecord};
use super::deltas::Before;
use super::group::Waiting;
use super::{Log, Pool};
use crate::dataset::pending::{PageBuf, Pending};
use crate::dataset::redo::{Bases, PageRun};
use crate::dataset::{Codecs, LiveDataset, PrimaryCache, count};
use crate::record::{Compression, Encoded, Encoder, is_delta, model_of};
use crate::wal::{Rec, RecordKind};
use crate::{Addr, Ptr, Result};

/// Bytes of pages from which on a commit measures how trees grow.
const GROWTH_PAGES_MIN: u64 = 1 << 20;
/// Fewer pages than this are encoded by the committing thread alone.
const PARALLEL_PAGES: usize = 16;

/// A commit of at most this many pages, for which somebody waits, codes pages fast that change again or in part, and
/// remembers its pages ([`super::in_haste`]).
const HURRIED_PAGES: usize = 8;

/// Accepted changes that a commit takes: each dataset with its own, in the order of their numbers.
pub(super) type TakenChanges = Vec<(Arc<LiveDataset>, Arc<Pending>)>;

/// Pages of one dataset with their records.
struct EncodedPages<'a> {
    dataset: u64,
    pages: Vec<((u64, u64), &'a PageBuf)>,
    stored: Vec<bool>,
    /// Number of each page's former records that are bases of the new one.
    kept: Vec<u8>,
}

impl Pool {
    /// Takes what was accepted. The caller holds the log's lock and the gate's write side, and must call
    /// [`Pool::finish`] before it releases the log (J3).
    pub(super) fn take_accepted(&self, log: &Log) -> TakenChanges {
        let mut touched = std::mem::take(&mut *self.shared.touched.lock());
        touched.sort_unstable();
        let datasets = touched.into_iter().filter_map(|id| self.dataset_by_id(id));
        let taken: TakenChanges = datasets
            .filter_map(|dataset| dataset.take_accepted().map(|pending| (dataset, pending)))
            .collect();
        self.shared.redo_bytes.store(0, Ordering::Relaxed);
        *self.shared.in_flight.lock() = !taken.is_empty();
        if let Some(journal) = self.shared.journal().filter(|_| !taken.is_empty()) {
            journal.mark(log.writer.position().batch);
        }
        taken
    }

    /// Brings what was taken into the log and its pages into the trees.
    pub(super) fn finish(
        &self,
        log: &mut Log,
        taken: &TakenChanges,
        accepted: u64,
        waiting: Waiting,
    ) -> Result<()> {
        let before = self.nodes.dirty_bytes();
        let written = if taken.is_empty() { Ok(false) } else { self.write(log, taken, waiting) };
        match &written {
            Ok(durable) => {
                self.note_growth(taken, before);
                for (dataset, pending) in taken {
                    dataset.land(pending);
                }
                self.committed.fetch_max(accepted, Ordering::AcqRel);
                if let Some(journal) = self.shared.journal() {
                    journal.release(log.writer.position().batch);
                }
                if *durable {
                    self.durable.fetch_max(accepted, Ordering::AcqRel);
                    count(&self.shared.counters.durable_commits, 1);
                }
            }
            Err(error) => self.shared.fail(error),
        }
        *self.shared.in_flight.lock() = false;
        self.shared.landed.notify_all();
        written.map(drop)
    }

    /// Measures the memory that trees took for the pages of a commit, and lets as many pages wait for the next one as
    /// trees can take.
    fn note_growth(&self, taken: &TakenChanges, tree_bytes_before: u64) {
        let pages = taken.iter().flat_map(|(_, pending)| pending.pages.values());
        let page_bytes: u64 = pages.map(|page| page.len() as u64).sum();
        // Values grow the trees when they are accepted, so that a commit of few pages shows nothing of what pages take.
        if page_bytes < GROWTH_PAGES_MIN {
            return;
        }
        let tree_bytes = self.nodes.dirty_bytes().saturating_sub(tree_bytes_before);
        let now = tree_bytes * 1024 / page_bytes;
        let before = self.tree_growth.load(Ordering::Relaxed);
        let growth = now.max(before - before / 8);
        self.tree_growth.store(growth, Ordering::Relaxed);
        self.shared.dirty_limit.store(self.sizing().dirty_limit(growth), Ordering::Relaxed);
    }

    /// Encodes the pages of a dataset, and adds their records to `records`.
    fn encode<'a>(
        &self,
        dataset: &LiveDataset,
        pending: &'a Pending,
        records: &mut Vec<Rec>,
        hurried: bool,
    ) -> Result<EncodedPages<'a>> {
        let mut pages: Vec<((u64, u64), &PageBuf)> =
            pending.pages.iter().map(|(key, buf)| (*key, buf)).collect();
        pages.sort_unstable_by_key(|(key, _)| *key);
        let codecs = dataset.codecs(pages.iter().map(|((object, _), _)| *object));
        let models = self.current_models(dataset.id, &pages, &codecs);
        let hurried = hurried && self.may_hurry();
        let befores = self.befores(dataset, &pages, &pending.plain, &models, hurried)?;
        let coded = self.encode_pages(&pages, &befores, &codecs, &models);
        self.note_deltas(dataset.id, &pages, &befores, &coded);
        self.note_haste(dataset.id, &pages, &befores, &coded);
        self.watch_pages(dataset.id, &pages, &coded, &codecs, &models);
        let kept = coded.iter().map(|coded| coded.kept).collect();
        let stored: Vec<bool> = coded.iter().map(|coded| coded.stored.is_some()).collect();
        records.extend(coded.into_iter().filter_map(|coded| coded.stored).map(|(bytes, model)| Rec {
            kind: RecordKind::Page,
            model,
            bytes,
        }));
        Ok(EncodedPages { dataset: dataset.id, pages, stored, kept })
    }

    /// Encodes each page, in order.
    fn encode_pages(
        &self,
        pages: &[((u64, u64), &PageBuf)],
        befores: &[Option<Before>],
        codecs: &Codecs,
        models: &Current,
    ) -> Vec<Coded> {
        let no_models = Current::new();
        let one = |(((object, _), page), before): (&((u64, u64), &PageBuf), &Option<Before>)| {
            let compression = codecs.of(*object);
            let small = || encode_page(Encoder::new(), *object, page, compression, models);
            match before {
                Some(before) if before.is_urgent() => {
                    let is_fast = matches!(compression, Compression::Off | Compression::Lz4);
                    let fast = if is_fast { compression } else { Compression::Lz4 };
                    let full = || encode_page(Encoder::new(), *object, page, fast, &no_models);
                    before.encode_fast(&self.shared, page, compression, (full, !is_fast))
                }
                Some(before) => {
                    let model = models.get(object).map(|(id, _)| *id);
                    before.encode(&self.shared, page, (compression, model), small)
                }
                None => Coded::full(small()),
            }
        };
        if pages.len() < PARALLEL_PAGES {
            return pages.iter().zip(befores).map(one).collect();
        }
        pages.par_iter().zip(befores).with_min_len(8).map(one).collect()
    }

    /// Writes what was taken to the log, and puts its pages into the trees. Returns whether all of the log is on stable
    /// storage already.
    fn write(&self, log: &mut Log, taken: &TakenChanges, waiting: Waiting) -> Result<bool> {
        let mut records = Vec::new();
        let hurried = waiting != Waiting::Nobody
            && taken.iter().map(|(_, pending)| pending.pages.len()).sum::<usize>() <= HURRIED_PAGES;
        let parts =
            taken.iter().map(|(dataset, pending)| self.encode(dataset, pending, &mut records, hurried));
        let parts = parts.collect::<Result<Vec<EncodedPages<'_>>>>()?;
        // Every opening does again what the log has, and could not if a tree is damaged. So that is met before.
        for ((dataset, _), part) in taken.iter().zip(&parts) {
            dataset.load_pages(part.pages.iter().map(|(page, _)| *page))?;
        }
        let mut runs = Vec::new();
        let appended = log.writer.append(
            0,
            &records,
            taken.iter().map(|(_, pending)| pending.redo_bytes_max()).sum(),
            |ptrs| {
                let mut ops = Vec::new();
                let mut ptrs = ptrs.iter().copied();
                for ((dataset, pending), part) in taken.iter().zip(&parts) {
                    pending.encode_redo(dataset.id, &mut ops);
                    let of = page_runs(part, &mut ptrs);
                    of.iter().for_each(|run| run.encode(&mut ops));
                    runs.push(of);
                }
                ops
            },
            waiting == Waiting::One,
        )?;
        let counters = &self.shared.counters;
        let pages: usize = parts.iter().map(|part| part.pages.len()).sum();
        count(&counters.commits, 1);
        count(&counters.framing_bytes, appended.framing_bytes);
        count(&counters.data_bytes, appended.written_bytes - appended.framing_bytes);
        count(&counters.pages_stored, records.len() as u64);
        count(&counters.pages_zero, (pages - records.len()) as u64);
        let deltas = || records.iter().filter(|record| is_delta(&record.bytes));
        count(&counters.pages_delta, deltas().count() as u64);
        count(&counters.delta_bytes, deltas().map(|record| record.bytes.len() as u64).sum());
        let modelled = || records.iter().filter(|record| record.model.is_some());
        count(&counters.pages_modelled, modelled().count() as u64);
        count(&counters.modelled_bytes, modelled().map(|record| record.bytes.len() as u64).sum());
        log.window_bytes += appended.written_bytes;
        self.note_log(log);
        if self.shared.primary_cache() == PrimaryCache::All {
            for (ptr, record) in appended.ptrs.iter().zip(&records) {
                self.shared.cache.insert(ptr.addr, &record.bytes);
            }
        }
        for (((dataset, _), runs), part) in taken.iter().zip(&runs).zip(&parts) {
            let mut pages = part.pages.as_slice();
            for run in runs {
                let (of, rest) = pages.split_at_checked(run.ptrs.len()).unwrap_or_default();
                let had = dataset.put_pages(run)?;
                self.note_rewrites(run, of, &had);
                if hurried {
                    let recent = run.ptrs.iter().zip(of);
                    for (ptr, (_, page)) in recent.filter_map(|(ptr, of)| Some((ptr.as_ref()?, of))) {
                        self.shared.recent.hold(ptr.addr, page);
                    }
                }
                pages = rest;
            }
            dataset.bound_usage()?;
        }
        Ok(appended.durable)
    }

    /// Notes the `pages` of a run that `had` a record before.
    fn note_rewrites(&self, run: &PageRun, pages: &[((u64, u64), &PageBuf)], had: &[(u64, Addr)]) {
        for (page, before) in had {
            let at = page.saturating_sub(run.first) as usize;
            if let (Some(Some(ptr)), Some((_, content))) = (run.ptrs.get(at), pages.get(at)) {
                self.rewrites.count(content, ptr.len_bytes);
                self.shared.cache.succeed(*before, ptr.addr);
                self.shared.recent.forget(*before);
            }
        }
    }

    /// Appends records of a checkpoint to the log. Returns the records, too.
    pub(super) fn append_internal(
        &self,
        checkpoint: u64,
        kind: RecordKind,
        records: Vec<Vec<u8>>,
    ) -> Result<(Vec<Ptr>, Vec<Vec<u8>>)> {
        let records: Vec<Rec> = records.into_iter().map(|bytes| Rec { kind, model: None, bytes }).collect();
        let mut log = self.log.lock();
        self.check_failed()?;
        let appended = log.writer.append(checkpoint, &records, 0, |_| Vec::new(), false);
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        log.window_bytes += appended.written_bytes;
        self.note_log(&log);
        let counters = &self.shared.counters;
        let of_kind =
            if kind == RecordKind::Node { &counters.tree_bytes } else { &counters.checkpoint_bytes };
        count(of_kind, appended.written_bytes - appended.framing_bytes);
        count(&counters.framing_bytes, appended.framing_bytes);
        Ok((appended.ptrs, records.into_iter().map(|record| record.bytes).collect()))
    }

    /// Notes how many bytes of its chunk the log has used.
    fn note_log(&self, log: &Log) {
        self.shared.room.log_used_bytes.store(log.writer.position().used.into(), Ordering::Relaxed);
    }

    /// Changes the segment table at an instant that no quiesce point divides (P2).
    pub(super) fn with_log(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let _log = self.log.lock();
        self.check_failed()?;
        change().inspect_err(|error| self.shared.fail(error))
    }
}

/// Encodes a page of an object by its model, if it has one.
pub(super) fn encode_page(
    encoder: Encoder,
    object: u64,
    page: &[u8],
    compression: Compression,
    models: &Current,
) -> PageRecord {
    let mut record = Vec::new();
    let encoded = match models.get(&object) {
        Some((id, model)) => encoder.encode_by(page, (*id, model), compression, &mut record),
        None => encoder.encode(page, compression, &mut record),
    };
    match encoded {
        Encoded::Zero => None,
        Encoded::Stored { .. } => {
            let model = model_of(&record);
            Some((record, model))
        }
    }
}

/// Returns runs of consecutive pages with their records; `ptrs` yields the pointers of the pages that have one.
fn page_runs(part: &EncodedPages<'_>, ptrs: &mut impl Iterator<Item = Ptr>) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for ((((object, page), buf), stored), kept) in part.pages.iter().zip(&part.stored).zip(&part.kept) {
        let ptr = if *stored { ptrs.next() } else { None };
        let record_size = buf.len() as u32;
        match runs.last_mut() {
            Some(run) if run.object == *object && run.first + run.ptrs.len() as u64 == *page => {
                run.ptrs.push(ptr);
            }
            _ => runs.push(PageRun {
                dataset: part.dataset,
                object: *object,
                record_size,
                first: *page,
                shared: false,
                ptrs: vec![ptr],
                bases: Bases::None,
            }),
        }
        if let Some(run) = runs.last_mut() {
            note_kept(run, *kept);
        }
    }
    runs
}

/// Notes the number of bases that the last page of a run keeps.
fn note_kept(run: &mut PageRun, kept: u8) {
    match &mut run.bases {
        Bases::Kept(all) => all.push(kept),
        _ if kept > 0 => {
            let mut all = vec![0; run.ptrs.len() - 1];
            all.push(kept);
            run.bases = Bases::Kept(all);
        }
        _ => {}
    }
}
