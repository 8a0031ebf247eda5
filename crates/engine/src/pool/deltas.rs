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
use super::group::Waiting;
use crate::dataset::pending::PageBuf;
use crate::dataset::{LiveDataset, Shared};
use crate::device::IoClass;
use crate::limits::BASES_MAX;
use crate::record::{
    Compression, ModelId, Models, Record, Squeeze, bases_of, decode, delta_pays, encode_delta, model_of,
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
    /// The page that they give, if it is in memory.
    recent: Option<PageBuf>,
    /// True if somebody waits for a small commit.
    hurried: bool,
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
    fn at_hand(
        shared: &Shared,
        (bases, top): (&[Ptr], Ptr),
        recent: Option<PageBuf>,
        hurried: bool,
    ) -> Option<Self> {
        let records = bases.iter().chain([&top]).map(|ptr| Some((ptr.addr, shared.cache.at_hand(ptr.addr)?)));
        Some(Self { records: records.collect::<Option<_>>()?, recent, hurried })
    }

    /// Returns true if somebody waits for the page, of which a part was written, or which was committed just before.
    pub(super) const fn is_urgent(&self) -> bool {
        self.hurried && self.recent.is_some()
    }

    /// Returns the delta of `page` and the number of records that it is based on; `None` if `page` has none that is
    /// worth it.
    fn delta(&self, shared: &Shared, page: &[u8], squeeze: Squeeze) -> Result<Option<(Vec<u8>, usize)>> {
        let addrs: Vec<Addr> = self.records.iter().map(|(addr, _)| *addr).collect();
        // If the page has as many bases as it may, the next delta is based on the full record alone.
        let kept = if addrs.len() <= BASES_MAX { addrs.len() } else { 1 };
        let (Some((_, record)), Some(bases)) = (self.records.get(kept - 1), addrs.get(..kept)) else {
            return Ok(None);
        };
        if bases_of(record)?.get(..) != bases.get(..kept - 1) {
            return Err(Error::corrupt("delta", "it has other bases than its tree says"));
        }
        let decoded = || {
            let mut page = vec![0; page.len()];
            decode(record, &AtHand(shared, self), &mut page).map(|()| PageBuf::from(page))
        };
        let was = match &self.recent {
            // It is of the page's newest record.
            Some(recent) if kept == addrs.len() && recent.len() == page.len() => {
                debug_assert!(decoded()? == *recent, "a recent page is not what its record gives");
                PageBuf::clone(recent)
            }
            _ => decoded()?,
        };
        let mut delta = Vec::new();
        Ok(encode_delta(&was, bases, page, squeeze, &mut delta).then_some((delta, kept)))
    }

    /// As [`Before::delta`]; an error counts as no delta.
    fn delta_or_none(&self, shared: &Shared, page: &[u8], squeeze: Squeeze) -> Option<(Vec<u8>, usize)> {
        self.delta(shared, page, squeeze).unwrap_or_else(|error| {
            // Damage is reported to those who read the page; this commit replaces it.
            tracing::warn!(%error, "a page is stored in full, since what it was cannot be decoded");
            None
        })
    }

    /// Encodes `page` as a delta if that pays beside the full record that it had, and else as `full` does, in the least
    /// time. The second of `full` is true if its record should be coded again later.
    pub(super) fn encode_fast(
        &self,
        shared: &Shared,
        page: &[u8],
        compression: Compression,
        (full, in_haste): (impl FnOnce() -> PageRecord, bool),
    ) -> Coded {
        let squeeze = if compression == Compression::Off { Squeeze::No } else { Squeeze::Fast };
        if let (Some((delta, kept)), Some((_, lowest))) =
            (self.delta_or_none(shared, page, squeeze), self.records.first())
            && delta_pays(&delta, self.base_bytes(kept), lowest.len())
        {
            return Coded { stored: Some((delta, None)), kept: kept as u8, in_haste: false };
        }
        Coded { stored: full(), kept: 0, in_haste }
    }

    /// Returns the bytes of the first `kept` records.
    fn base_bytes(&self, kept: usize) -> usize {
        self.records.iter().take(kept).map(|(_, record)| record.len()).sum()
    }

    /// Encodes `page` as a delta if that pays beside a full record, and else as `full` does. `model` is the one that
    /// codes full records of the object now.
    pub(super) fn encode(
        &self,
        shared: &Shared,
        page: &[u8],
        (compression, model): (Compression, Option<ModelId>),
        full: impl FnOnce() -> PageRecord,
    ) -> Coded {
        let squeeze = if compression == Compression::Off { Squeeze::No } else { Squeeze::Small };
        let delta = self.delta_or_none(shared, page, squeeze);
        let (Some((delta, kept)), Some((_, lowest))) = (delta, self.records.first()) else {
            return Coded::full(full());
        };
        let base_bytes = self.base_bytes(kept);
        let take = |delta| Coded { stored: Some((delta, None)), kept: kept as u8, in_haste: false };
        // A new full record would take about as much as the present one, unless that is from before the model.
        let like_now = model.is_none() || model_of(lowest) == model;
        if like_now && delta.len() * PLAINLY <= lowest.len() && delta_pays(&delta, base_bytes, lowest.len()) {
            return take(delta);
        }
        match full() {
            // With a new model a full record is so much shorter that the page should be stored in full once.
            Some((full, _))
                if delta_pays(&delta, base_bytes, full.len())
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
        hurried: bool,
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
            // True if a delta is tried; and if one is for a page that is urgent.
            let wanted: Vec<(bool, bool)> = {
                let mut attempts = self.attempts.lock();
                let of = (dataset.id, *object);
                let mut may = |page: &PageBuf| {
                    let wanted = attempts.wants(of);
                    let owes = (wanted || hurried) && self.shared.read_amplification.pay(of, page.len());
                    (wanted && !owes, hurried && !owes)
                };
                let none = (false, false);
                run.iter().map(|(key, page)| if plain.contains(key) { none } else { may(page) }).collect()
            };
            let end = first.saturating_add(run.len() as u64);
            // Page numbers beyond those of any file have no keys for bases.
            if !wanted.iter().any(|(may, urgent)| *may || *urgent)
                || Key::base(*object, end, 0).kind != Key::BASE
            {
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
            befores.extend((*first..).zip(&tops).zip(&wanted).map(|((page, top), (may, urgent))| {
                let top = top.filter(|_| *may || *urgent)?;
                let recent = self.shared.recent.get(top.addr);
                if !*may && recent.is_none() {
                    return None;
                }
                let bases = bases.get(&page).map(Vec::as_slice).unwrap_or_default();
                Before::at_hand(&self.shared, (bases, top), recent, hurried)
            }));
        }
        Ok(befores)
    }

    /// Notes for each object whether its pages gave deltas. Those that are urgent are always tried.
    pub(super) fn note_deltas(
        &self,
        dataset: u64,
        pages: &[((u64, u64), &PageBuf)],
        befores: &[Option<Before>],
        coded: &[Coded],
    ) {
        let mut attempts = self.attempts.lock();
        for ((((object, _), _), before), coded) in pages.iter().zip(befores).zip(coded) {
            if before.as_ref().is_some_and(|before| !before.is_urgent()) {
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
            let mut own = Vec::with_capacity(pages.len());
            for (page, bases) in pages {
                if !dataset.any_is_shared(bases)? {
                    own.push(*page);
                }
            }
            expanded += self.store_in_full(dataset, (object, record_size), &own)?;
        }
        Ok(expanded)
    }

    /// Stores pages of `object` again, in full, through the log; damaged ones stay as they are. Returns the number of
    /// those that had the same record until then, which nothing else has.
    pub(super) fn store_in_full(
        &self,
        dataset: &LiveDataset,
        (object, record_size): (u64, u32),
        pages: &[u64],
    ) -> Result<u64> {
        let mut ready = Vec::with_capacity(pages.len());
        for page in pages {
            let mut top = [None];
            dataset.tree.pages(object, *page, &mut top)?;
            let mut content = vec![0; record_size as usize];
            let offset = page * u64::from(record_size);
            match dataset.read_as(IoClass::Recompression, (object, record_size), offset, &mut content) {
                Ok(()) => {}
                // The other pages do not wait for it; `check` and a scrub report the damage.
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            }
            // `LiveDataset::plain` finds out whether the content is of that record: it compares the page's record
            // with `top`.
            let [Some(top)] = top else { continue };
            ready.push((*page, top, PageBuf::from(content)));
        }
        self.put_in_full(dataset, object, ready)
    }

    /// Stores pages in full that were read with their bases, some of those that wait for that. Returns the bytes of these
    /// pages; `None` if none waited.
    ///
    /// # Errors
    /// Of reading and writing; the pages stay as they are.
    pub fn store_chained(&self) -> Result<Option<u64>> {
        let mut chained = self.shared.read_amplification.take();
        if chained.is_empty() || self.shared.check_writable().is_err() {
            return Ok(None);
        }
        let space = self.shared.space();
        if space.available_bytes < space.capacity_bytes / SPARE_PART {
            return Ok(None);
        }
        chained.sort_by_key(|page| (page.dataset, page.object, page.page));
        for pages in chained.chunk_by(|a, b| (a.dataset, a.object) == (b.dataset, b.object)) {
            let Some(first) = pages.first() else { continue };
            let Some(dataset) = self.dataset_by_id(first.dataset) else { continue };
            let mut ready = Vec::with_capacity(pages.len());
            for page in pages {
                let mut top = [None];
                dataset.tree.pages(page.object, page.page, &mut top)?;
                if let [Some(top)] = top.map(|top| top.filter(|top| top.addr == page.addr)) {
                    ready.push((page.page, top, PageBuf::clone(&page.content)));
                }
            }
            self.put_in_full(&dataset, first.object, ready)?;
        }
        Ok(Some(chained.iter().map(|page| page.content.len() as u64).sum()))
    }

    /// Stores pages of `object` again, in full, through the log: number, record and content of each. Returns the number
    /// of those that had the same record until then, which nothing else has.
    fn put_in_full(
        &self,
        dataset: &LiveDataset,
        object: u64,
        ready: Vec<(u64, Ptr, PageBuf)>,
    ) -> Result<u64> {
        if ready.is_empty() {
            return Ok(0);
        }
        self.prepare_commit()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        let gate = self.shared.gate.write();
        let is_exported = self.shared.read_only.load(Ordering::Relaxed);
        if is_exported || dataset.takes_no_changes.load(Ordering::Relaxed) {
            // The pool was exported, or the dataset destroyed, meanwhile.
            return Ok(0);
        }
        let mut stored = 0;
        for (page, top, content) in ready {
            stored += u64::from(dataset.plain((object, page), top, content)?);
        }
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let taken = self.take_accepted(&log);
        drop(gate);
        self.finish(&mut log, &taken, accepted, Waiting::Nobody)?;
        Ok(stored)
    }
}
