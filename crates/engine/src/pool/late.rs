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
use super::recompress::PageRange;
use super::traffic::Traffic;
use crate::dataset::{Dataset, LiveDataset};
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

    /// Codes again up to `pages_max` pages of an object that [`Pool::late`] returned, from page `from` on. Returns the
    /// page to go on with; `None` if all were looked at.
    ///
    /// # Errors
    /// As [`Pool::recompress`].
    pub fn recompress_late(&self, of: Of, from: u64, pages_max: usize) -> Result<Option<u64>> {
        let (id, object) = of;
        let range = PageRange { object, from: 0, to: u64::MAX };
        let dataset = self.dataset_by_id(id);
        let wanted = dataset.is_some_and(|dataset| dataset.compression_of(object).model_level().is_some());
        if !wanted {
            self.watch.lock().late.remove(&of);
            return Ok(None);
        }
        let report = self.recompress_in(id, &[range], (0, from), pages_max);
        if let Ok(Some(next)) = report.as_ref().map(|report| report.next) {
            return Ok(Some(next.1));
        }
        {
            let mut watch = self.watch.lock();
            watch.late.remove(&of);
            watch.forget_deltas(of);
        }
        match report {
            // The dataset was destroyed meanwhile.
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => self.is_late_no_more(of).map(|()| None),
        }
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
            if has_model && deltas * DELTAS_PART >= dataset.usage(of.1)?.pages {
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
            let pages = dataset.usage(object)?.pages;
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
                Err(Error::Corrupt { .. }) => {}
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
            let found = dataset.tree.range(&Key::new(from, 0, 0), &Key::new(u64::MAX, u8::MAX, 0), 1)?;
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
    /// The object that is being coded again, and its next page.
    at: Option<(Of, u64)>,
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
            None => self.quiet(pool, now)?.map(|of| (of, 0)),
        };
        if let Some((of, from)) = found {
            let pages = if self.is_idle() { PAGES } else { PAGES_BUSY };
            self.at = pool.recompress_late(of, from, pages)?.map(|next| (of, next));
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
