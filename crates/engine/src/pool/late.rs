//! Objects whose model came after some of their pages: codes these pages again, now or after the pool was opened again.
//!
//! - L1: a model's entry says that the model came late, from its adoption until [`Pool::recompress_late`] has looked at
//!   all pages that were stored then. So work that a restart interrupts is done from the beginning: pages that have
//!   been coded again are left alone.
//! - L2: nobody has counted the pages of an object that were written before the pool was opened or before `compression`
//!   was set. Such an object without a model is looked at once ([`Pool::seek`]); if it has pages of a database, it is
//!   counted from then on as if they had just been written. A log is coded again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefold_codec::registry;

use super::Pool;
use super::models::draw;
use super::recompress::{CALL_PAGES, PageRange, RecompressPlan, RecompressReport, targets};
use super::traffic::Traffic;
use crate::dataset::{Commit, Dataset, LiveDataset};
use crate::record::Compression;
use crate::{Error, Key, Result};

/// Time without a write after which an object is coded again; also the time of idleness after which a pool counts as
/// quiet.
pub(super) const QUIET: Duration = Duration::from_secs(3);
/// Number of pages that are coded again at a time while the pool is idle; the next holds while it is busy.
const PAGES: usize = 2048;
const PAGES_BUSY: usize = 512;
/// Coding again takes one part in this many of the time while the pool is idle; the next holds while it is busy. It
/// runs on several cores.
pub(super) const SHARE: u32 = 2;
pub(super) const SHARE_BUSY: u32 = 16;
/// An object is coded again, too, when at least one in this many of its pages is a delta: in full, by its model, they
/// take less.
const DELTAS_PART: u64 = 16;
/// Number of objects that one step of the search looks at; the next is the number of pages that are read of each.
const SOUGHT_AT_ONCE: usize = 64;
const SOUGHT_PAGES: u64 = 4;
/// Objects with fewer pages are not sought.
const SOUGHT_PAGES_MIN: u64 = 8;

/// An object, by dataset and number.
type Of = (u64, u64);

/// An object that is being coded again, as far as that has come.
pub struct LateObject {
    of: Of,
    /// The page from which on pages are planned now.
    from: u64,
    /// The page up to which deltas have become records in full.
    expanded: u64,
    /// The page from which on pages are planned next; `None` if there are none.
    next: Option<u64>,
    /// The plan, and the property that it was made for.
    plan: Option<(Compression, RecompressPlan)>,
}

impl LateObject {
    /// Begins with the first page of an object that [`Pool::late`] returned.
    #[must_use]
    pub const fn new(of: (u64, u64)) -> Self {
        Self { of, from: 0, expanded: 0, next: None, plan: None }
    }
}

impl Pool {
    /// Returns the objects whose model was learned after some of their pages had been stored, or that have many deltas;
    /// each with the number of pages written since.
    pub fn late(&self) -> Vec<(Of, u64)> {
        let watch = self.watch.lock();
        watch.late.iter().map(|of| (*of, watch.written(*of))).collect()
    }

    /// Notes which models came late, when the pool is opened (L1).
    pub(super) fn load_late(&self) {
        let late = self.shared.models.late();
        self.watch.lock().late.extend(late);
    }

    /// Codes again about `pages_max` pages of an object that [`Pool::late`] returned, or prepares that. Returns false if
    /// all pages were looked at.
    ///
    /// # Errors
    /// As [`Pool::recompress`].
    pub fn recompress_late(&self, late: &mut LateObject, pages_max: usize) -> Result<bool> {
        let (id, object) = late.of;
        let dataset = self.dataset_by_id(id);
        let compression = dataset.as_ref().map(|dataset| dataset.compression_of(object));
        let Some((dataset, compression)) =
            dataset.zip(compression).filter(|(_, by)| by.model_level().is_some())
        else {
            self.watch.lock().late.remove(&late.of);
            return Ok(false);
        };
        match self.late_step(&dataset, late, compression, pages_max) {
            Ok(true) => return Ok(true),
            // The dataset was destroyed meanwhile.
            Ok(false) | Err(Error::NotFound(_)) => {}
            Err(error) => {
                self.forget_late(late.of);
                return Err(error);
            }
        }
        self.forget_late(late.of);
        self.is_late_no_more(late.of).map(|()| false)
    }

    fn forget_late(&self, of: Of) {
        let mut watch = self.watch.lock();
        watch.late.remove(&of);
        watch.forget_deltas(of);
    }

    /// Does the next step for an object: some deltas of its next pages become records in full; or these pages are
    /// planned; or a pass is made. Returns false if there are no more pages.
    fn late_step(
        &self,
        dataset: &LiveDataset,
        late: &mut LateObject,
        compression: Compression,
        pages_max: usize,
    ) -> Result<bool> {
        self.shared.check_writable()?;
        let object = late.of.1;
        if let Some((_, plan)) = late.plan.as_mut().filter(|(by, plan)| *by == compression && !plan.is_done())
        {
            self.recompress_step(dataset, plan, pages_max, &mut RecompressReport::default())?;
            return Ok(true);
        }
        if late.plan.take().is_some_and(|(_, plan)| plan.is_done()) {
            let Some(next) = late.next else { return Ok(false) };
            late.from = next;
        }
        // The first pages, the next ones, or, with another property, the rest of the same ones.
        self.commit(false)?;
        let range = PageRange { object, from: 0, to: u64::MAX };
        let mut report = RecompressReport::default();
        let found = targets(dataset, &[range], (0, late.from), CALL_PAGES, &mut report)?;
        late.next = report.next.map(|(_, page)| page);
        for pages in found.chunks(pages_max.max(1)) {
            let (Some(first), Some(last)) = (pages.first(), pages.last()) else { continue };
            let (begin, end) = (first.page.max(late.expanded), last.page.saturating_add(1));
            if begin < end {
                let expanded = self.expand_deltas(dataset, object, begin, end)?;
                late.expanded = end;
                if expanded > 0 {
                    return Ok(true);
                }
            }
        }
        let plan = self.plan(dataset, &[range], &found)?;
        late.plan = Some((compression, plan));
        Ok(true)
    }

    /// Stores that the model of an object is late no more (L1).
    fn is_late_no_more(&self, of: Of) -> Result<()> {
        let Some(id) = self.shared.models.own(of) else { return Ok(()) };
        match self.shared.models.get(id) {
            Some(entry) if entry.late => self.restate_model(id, false),
            _ => Ok(()),
        }
    }

    /// Adds objects with a model of which many pages are deltas to those that are coded again.
    fn note_deltas_of_many(&self) -> Result<()> {
        let some: Vec<(Of, u64)> = self.watch.lock().with_deltas();
        for (of, deltas) in some {
            let Some(dataset) = self.dataset_by_id(of.0) else { continue };
            let has_model = self.shared.models.current(of.0, of.1).is_some();
            let pages = match dataset.usage(of.1) {
                Ok(usage) => usage.pages,
                // It keeps no other object back; `check` reports the damage.
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            };
            if has_model && deltas * DELTAS_PART >= pages {
                self.watch.lock().late.insert(of);
            }
        }
        Ok(())
    }

    /// Looks at some objects from `from` on that have no model and were not counted (L2). Returns the object to go on
    /// with; `None` if there are no more.
    ///
    /// # Errors
    /// Of reading.
    pub fn seek(&self, from: Of) -> Result<Option<Of>> {
        let mut at = from;
        for _ in 0..SOUGHT_AT_ONCE {
            let Some((dataset, object)) = self.next_object(at)? else { return Ok(None) };
            let of = (dataset.id, object);
            at = (dataset.id, object.saturating_add(1));
            let pages = match dataset.usage(object) {
                Ok(usage) => usage.pages,
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            };
            let known = self.shared.models.current(of.0, of.1).is_some() || self.watch.lock().counts(of);
            if known || pages < SOUGHT_PAGES_MIN || dataset.compression_of(object).model_level().is_none() {
                continue;
            }
            match draw(&dataset, object, SOUGHT_PAGES) {
                Ok(drawn) => {
                    if drawn.iter().any(|page| registry().looks_like_log(page)) {
                        self.watch.lock().late.insert(of);
                    } else if !registry().worth_learning(drawn).is_empty() {
                        self.watch.lock().found(of, pages);
                    }
                }
                // `check` and a scrub report the damage.
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
    }

    /// Returns the first object from this one on that has anything in the tree of its dataset.
    fn next_object(&self, (id, object): Of) -> Result<Option<(Arc<LiveDataset>, u64)>> {
        let datasets = Arc::clone(&*self.datasets.read());
        let first = datasets.partition_point(|dataset| dataset.id < id);
        for dataset in datasets.iter().skip(first) {
            // Object 0 holds what belongs to the dataset as a whole.
            let from = if dataset.id == id { object.max(1) } else { 1 };
            let found = match dataset.tree.range(&Key::new(from, 0, 0), &Key::new(u64::MAX, u8::MAX, 0), 1) {
                Ok(found) => found,
                // Objects behind the damage are not sought, and other datasets are. `check` reports the damage.
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            };
            if let Some((key, _)) = found.first() {
                return Ok(Some((Arc::clone(dataset), key.object)));
            }
        }
        Ok(None)
    }
}

/// Objects that are coded again in the background, and the times at which they were written to.
#[derive(Default)]
pub(super) struct Late {
    /// Pages written to each object when that number last changed, and when the change was seen.
    seen: BTreeMap<Of, (u64, Instant)>,
    /// The object that is being coded again.
    at: Option<LateObject>,
    pub(super) traffic: Traffic,
}

impl Late {
    /// Returns true if little was read or written lately.
    pub(super) fn is_idle(&self) -> bool {
        self.traffic.idle_since.is_some()
    }

    /// Returns true if little was read or written for [`QUIET`].
    fn is_quiet(&self, now: Instant) -> bool {
        self.traffic.idle_since.is_some_and(|since| now.duration_since(since) >= QUIET)
    }

    /// Codes some pages of one object again, if any is quiet, or looks for more objects. Returns false if there is
    /// nothing to do.
    pub(super) fn step(&mut self, pool: &Pool, now: Instant) -> Result<bool> {
        if pool.shared.check_writable().is_err() {
            return Ok(false);
        }
        let found = match self.at.take() {
            Some(at) => Some(at),
            None => self.quiet(pool, now)?.map(LateObject::new),
        };
        if let Some(mut late) = found {
            let pages = if self.is_idle() { PAGES } else { PAGES_BUSY };
            self.at = pool.recompress_late(&mut late, pages)?.then_some(late);
            return Ok(true);
        }
        if !self.is_quiet(now) {
            return Ok(false);
        }
        let Some(at) = *pool.sought.lock() else { return Ok(false) };
        let next = pool.seek(at)?;
        let mut sought = pool.sought.lock();
        // The search may have been begun anew meanwhile.
        if *sought == Some(at) {
            *sought = next;
        }
        Ok(next.is_some())
    }

    /// Returns the first object to which nothing was written for a while. Objects with many deltas are added only while
    /// the pool is quiet: busy objects always have deltas.
    fn quiet(&mut self, pool: &Pool, now: Instant) -> Result<Option<Of>> {
        if self.is_quiet(now) {
            pool.note_deltas_of_many()?;
        }
        let late = pool.late();
        let there: BTreeSet<Of> = late.iter().map(|(of, _)| *of).collect();
        self.seen.retain(|of, _| there.contains(of));
        let mut found = None;
        for (of, written) in late {
            let (before, since) = *self.seen.entry(of).or_insert((written, now));
            if before != written {
                self.seen.insert(of, (written, now));
            } else if now.duration_since(since) >= QUIET
                // A log is soon overwritten while the pool is busy.
                && (self.is_idle() || !pool.watch.lock().is_log(of))
            {
                found = found.or(Some(of));
            }
        }
        Ok(found)
    }
}
