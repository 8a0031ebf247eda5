//! Decides which overwritten pages are stored as deltas: changes of what they were. Reasons:
//! docs/decisions/0020-deltas.md.
//!
//! - B1: for each delta in a tree the tree has its bases, in their order: a delta enters the tree together with its
//!   bases, which are records that the page had (`LiveDataset::put_pages`). So bases live as long as they are needed,
//!   whatever else refers to them.
//! - B2: the bases of a delta are records that the tree has for its page at the end of the log. From the quiesce point
//!   to the end of a commit nothing else changes the records of its pages (D4), and replay meets the same.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagefold_codec::Model;

use super::Pool;
use super::coded::{Coded, Current, PageRecord};
use crate::dataset::pending::PageBuf;
use crate::dataset::{LiveDataset, Shared};
use crate::device::IoClass;
use crate::limits::BASES_MAX;
use crate::record::{
    Compression, ModelId, Models, Record, bases_of, decode, delta_pays, encode_delta, model_of,
};
use crate::{Addr, Error, Key, Ptr, Result};

/// A delta of at most one part in this many of the full record below it is not compared with a new full record.
const PLAINLY: usize = 4;
/// Bytes of pages that one commit stores in full again.
const EXPANDED_BYTES: u64 = 2 << 20;
/// Number of pages in a row that gave no delta from which on an object is tried less often.
const FAILURES_MAX: u8 = 8;
/// Of an object that is tried less often, one page in this many is tried.
const TRY_EVERY: u8 = 16;
/// Largest number of objects whose luck is remembered: an entry takes about 50 bytes.
const OBJECTS_MAX: usize = 16 << 10;
/// From this many neighbouring pages on that one commit overwrites, of an object with a model, all are stored in full:
/// to vacuum a table, or to mark its rows after a load, changes a few bytes of each of its pages, which are then left
/// alone.
const SWEEP_PAGES: usize = 32;
/// If less than one part in this many of the pool is available, pages are stored in full, which frees their former
/// records.
const SPARE_PART: u64 = 16;

/// Success of deltas for an object's pages.
#[derive(Clone, Copy, Debug, Default)]
struct Luck {
    failures: u8,
    passed: u8,
}

/// Success of deltas, by dataset and object: objects that are overwritten with unrelated content must not cost more
/// than they have to.
#[derive(Debug, Default)]
pub(super) struct Attempts(HashMap<(u64, u64), Luck>);

impl Attempts {
    fn wants(&mut self, object: (u64, u64)) -> bool {
        let Some(luck) = self.0.get_mut(&object).filter(|luck| luck.failures >= FAILURES_MAX) else {
            return true;
        };
        luck.passed = (luck.passed + 1) % TRY_EVERY;
        luck.passed == 0
    }

    fn note(&mut self, object: (u64, u64), gained: bool) {
        if gained {
            self.0.remove(&object);
            return;
        }
        if self.0.len() >= OBJECTS_MAX {
            self.0.clear();
        }
        let luck = self.0.entry(object).or_default();
        luck.failures = luck.failures.saturating_add(1);
    }
}

/// The records of a page before it is overwritten: its bases and its own record, all in memory.
pub(super) struct Before {
    records: Vec<(Addr, Record)>,
}

/// Finds models in the pool, and bases among the records of one page.
struct AtHand<'a>(&'a Shared, &'a Before);

impl Models for AtHand<'_> {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        self.0.model(id)
    }

    fn base(&self, addr: Addr) -> Result<Record> {
        let found = self.1.records.iter().find(|(of, _)| *of == addr);
        found
            .map(|(_, record)| record.clone())
            .ok_or_else(|| Error::corrupt(format!("record {addr}"), "it is no base of the page"))
    }
}

impl Before {
    /// Returns `None` if one of the records is not in memory.
    fn at_hand(shared: &Shared, bases: &[Ptr], top: Ptr) -> Option<Self> {
        let records = bases.iter().chain([&top]).map(|ptr| Some((ptr.addr, shared.cache.at_hand(ptr.addr)?)));
        Some(Self { records: records.collect::<Option<_>>()? })
    }

    /// Returns the delta of `page` and the number of records that it is based on; `None` if `page` has none that is
    /// worth it.
    fn delta(&self, shared: &Shared, page: &[u8], squeeze: bool) -> Result<Option<(Vec<u8>, usize)>> {
        let addrs: Vec<Addr> = self.records.iter().map(|(addr, _)| *addr).collect();
        // If the page has as many bases as it may, the next delta is based on the full record alone.
        let kept = if addrs.len() <= BASES_MAX { addrs.len() } else { 1 };
        let (Some((_, record)), Some(bases)) = (self.records.get(kept - 1), addrs.get(..kept)) else {
            return Ok(None);
        };
        if bases_of(record)?.get(..) != bases.get(..kept - 1) {
            return Err(Error::corrupt("delta", "it has other bases than its tree says"));
        }
        let mut was = vec![0; page.len()];
        decode(record, &AtHand(shared, self), &mut was)?;
        let mut delta = Vec::new();
        Ok(encode_delta(&was, bases, page, squeeze, &mut delta).then_some((delta, kept)))
    }

    /// Encodes `page` as a delta if that pays beside a full record, and else as `full` does. `squeeze` is true if
    /// deltas may be compressed; `model` is the one that codes full records of the object now.
    pub(super) fn encode(
        &self,
        shared: &Shared,
        page: &[u8],
        (squeeze, model): (bool, Option<ModelId>),
        full: impl FnOnce() -> PageRecord,
    ) -> Coded {
        let delta = self.delta(shared, page, squeeze).unwrap_or_else(|error| {
            // Damage is reported to those who read the page; this commit replaces it.
            tracing::warn!(%error, "a page is stored in full, since what it was cannot be decoded");
            None
        });
        let (Some((delta, kept)), Some((_, lowest))) = (delta, self.records.first()) else {
            return Coded::full(full());
        };
        let base_bytes: usize = self.records.iter().take(kept).map(|(_, record)| record.len()).sum();
        let take = |delta| Coded { stored: Some((delta, None)), kept: kept as u8 };
        // A new full record would take about as much as the present one, unless that is from before the model.
        let like_now = model.is_none() || model_of(lowest) == model;
        if like_now
            && delta.len() * PLAINLY <= lowest.len()
            && delta_pays(delta.len(), base_bytes, lowest.len())
        {
            return take(delta);
        }
        match full() {
            // With a new model a full record is so much shorter that the page should be stored in full once.
            Some((full, _))
                if delta_pays(delta.len(), base_bytes, full.len())
                    && (like_now || (base_bytes + delta.len()) * 4 <= full.len() * 5) =>
            {
                take(delta)
            }
            stored => Coded::full(stored),
        }
    }
}

impl Pool {
    /// Returns the records that the pages of a commit had before, if they are in memory and a delta may help. `pages`
    /// ascend by object and page.
    pub(super) fn befores(
        &self,
        dataset: &LiveDataset,
        pages: &[((u64, u64), &PageBuf)],
        plain: &HashSet<(u64, u64)>,
        models: &Current,
    ) -> Result<Vec<Option<Before>>> {
        let mut befores: Vec<Option<Before>> = Vec::with_capacity(pages.len());
        let space = self.shared.space();
        if space.available_bytes < space.capacity_bytes / SPARE_PART {
            befores.resize_with(pages.len(), || None);
            return Ok(befores);
        }
        for run in pages.chunk_by(|((of, page), _), ((object, next), _)| {
            of == object && page.checked_add(1) == Some(*next)
        }) {
            let Some(((object, first), _)) = run.first() else { continue };
            if run.len() >= SWEEP_PAGES && models.contains_key(object) {
                befores.extend(run.iter().map(|_| None));
                continue;
            }
            let wanted: Vec<bool> = {
                let mut attempts = self.attempts.lock();
                let of = (dataset.id, *object);
                let mut may = |page: &PageBuf| {
                    attempts.wants(of) && !self.shared.read_amplification.pay(of, page.len())
                };
                run.iter().map(|(key, page)| !plain.contains(key) && may(page)).collect()
            };
            let end = first.saturating_add(run.len() as u64);
            // Page numbers beyond those of any file have no keys for bases.
            if !wanted.contains(&true) || Key::base(*object, end, 0).kind != Key::BASE {
                befores.extend(run.iter().map(|_| None));
                continue;
            }
            let mut tops = vec![None; run.len()];
            dataset.tree.pages(*object, *first, &mut tops)?;
            let bases = if tops.iter().any(Option::is_some) {
                dataset.bases_between(*object, *first, end)?
            } else {
                Default::default()
            };
            befores.extend((*first..).zip(&tops).zip(&wanted).map(|((page, top), wanted)| {
                let top = top.filter(|_| *wanted)?;
                let bases = bases.get(&page).map(Vec::as_slice).unwrap_or_default();
                Before::at_hand(&self.shared, bases, top)
            }));
        }
        Ok(befores)
    }

    /// Notes for each object whether its pages gave deltas.
    pub(super) fn note_deltas(
        &self,
        dataset: u64,
        pages: &[((u64, u64), &PageBuf)],
        befores: &[Option<Before>],
        coded: &[Coded],
    ) {
        let mut attempts = self.attempts.lock();
        for ((((object, _), _), before), coded) in pages.iter().zip(befores).zip(coded) {
            if before.is_some() {
                attempts.note((dataset, *object), coded.kept > 0);
            }
        }
    }

    /// Stores pages of `object` in full that are deltas, from page `from` on to before `to`: through the log, as if
    /// they had been written again. Returns their number. A delta whose records a snapshot or another page has, too,
    /// stays a delta: the full record would be one more, and nothing would become free.
    ///
    /// # Errors
    /// Of reading and writing.
    pub(super) fn expand_deltas(
        &self,
        dataset: &LiveDataset,
        object: u64,
        from: u64,
        to: u64,
    ) -> Result<u64> {
        let record_size = dataset.record_size(object)?;
        if record_size == 0 || Key::base(object, from, 0).kind != Key::BASE {
            return Ok(0);
        }
        let chained: Vec<(u64, Vec<Ptr>)> = dataset.bases_between(object, from, to)?.into_iter().collect();
        let at_once = (EXPANDED_BYTES / u64::from(record_size)).max(1) as usize;
        let mut expanded = 0;
        for pages in chained.chunks(at_once) {
            let mut ready = Vec::with_capacity(pages.len());
            for (page, bases) in pages {
                if dataset.any_is_shared(bases)? {
                    continue;
                }
                let mut top = [None];
                dataset.tree.pages(object, *page, &mut top)?;
                let mut content = vec![0; record_size as usize];
                let offset = page * u64::from(record_size);
                dataset.read_as(IoClass::Recompression, (object, record_size), offset, &mut content)?;
                // `LiveDataset::plain` finds out whether the content is of that record: it compares the page's record
                // with `top`.
                let [Some(top)] = top else { continue };
                ready.push((*page, top, PageBuf::from(content)));
            }
            self.prepare_commit()?;
            let mut log = self.log.lock();
            self.check_failed()?;
            let gate = self.shared.gate.write();
            if dataset.takes_no_changes.load(Ordering::Relaxed) {
                // The dataset was destroyed meanwhile.
                return Ok(expanded);
            }
            for (page, top, content) in ready {
                expanded += u64::from(dataset.plain((object, page), top, content)?);
            }
            let accepted = self.shared.accepted.load(Ordering::Acquire);
            let taken = self.take_accepted(&log);
            drop(gate);
            self.finish(&mut log, &taken, accepted, false)?;
        }
        Ok(expanded)
    }

    /// Returns true if deltas may be compressed.
    pub(super) fn squeezes(compression: Compression) -> bool {
        compression != Compression::Off
    }
}
