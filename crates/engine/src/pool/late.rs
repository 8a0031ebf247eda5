//! Objects whose model came after some of their pages: coding these again, now or after the pool was opened again.
//!
//! - L1: an entry says that its model came late from when it is adopted until all pages that were stored then were looked at by [`Pool::recode_late`].
//!   So what a restart interrupts is gone on with, from the beginning: pages that have been coded again are left alone.
//! - L2: an object without a model that nobody has counted the pages of, since they were written before the pool was opened or before `compression` was set,
//!   is looked at once ([`Pool::seek`]); if it has pages of a database, it is counted from then on as if they had just been written. A log is coded again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Pool;
use super::background::Traffic;
use super::models::draw;
use super::recode::PageRange;
use crate::dataset::{Dataset, LiveDataset};
use crate::record::{looks_like_wal, worth_learning};
use crate::{Error, Key, Result};

/// An object whose model came late is coded again once nothing was written to it, and the pool was idle, for so long.
pub(super) const QUIET: Duration = Duration::from_secs(3);
/// Pages that are coded again at a time, while the pool is idle and while it is busy.
const PAGES: usize = 2048;
const PAGES_BUSY: usize = 512;
/// Coding again takes one part in so many of the time, while the pool is idle and while it is busy; it runs on several cores.
pub(super) const SHARE: u32 = 2;
pub(super) const SHARE_BUSY: u32 = 16;
/// An object is coded again, too, when one part in so many of its pages are deltas: in full, by its model, they take less.
const DELTAS_PART: u64 = 16;
/// Objects that one step of the search looks at, and pages of each that are read.
const SOUGHT_AT_ONCE: usize = 64;
const SOUGHT_PAGES: u64 = 4;
/// Smaller objects are not sought.
const SOUGHT_PAGES_MIN: u64 = 8;

/// An object, by dataset and number.
type Of = (u64, u64);

impl Pool {
    /// Objects whose model was learned after some of their pages had been stored, or that have many deltas; each with the number of pages written since.
    pub fn late(&self) -> Vec<(Of, u64)> {
        let watch = self.watch.lock();
        watch.late.iter().map(|of| (*of, watch.written(*of))).collect()
    }

    /// Notes which models came late, when the pool is opened (L1).
    pub(super) fn load_late(&self) {
        let late = self.shared.models.late();
        self.watch.lock().late.extend(late);
    }

    /// Codes up to `pages_max` pages of such an object again, from page `from` on. `None`: all of them were looked at.
    ///
    /// # Errors
    /// As [`Pool::recode`].
    pub fn recode_late(&self, of: Of, from: u64, pages_max: usize) -> Result<Option<u64>> {
        let (id, object) = of;
        let range = PageRange { object, from: 0, to: u64::MAX };
        let dataset = self.dataset_by_id(id);
        let wanted = dataset.is_some_and(|dataset| dataset.compression_of(object).model_level().is_some());
        if !wanted {
            self.watch.lock().late.remove(&of);
            return Ok(None);
        }
        let report = self.recode_in(id, &[range], (0, from), pages_max);
        if let Ok(Some(next)) = report.as_ref().map(|report| report.next) {
            return Ok(Some(next.1));
        }
        {
            let mut watch = self.watch.lock();
            watch.late.remove(&of);
            watch.forget_deltas(of);
        }
        match report {
            // Destroyed meanwhile.
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => self.is_late_no_more(of).map(|()| None),
        }
    }

    /// L1.
    fn is_late_no_more(&self, of: Of) -> Result<()> {
        let Some(id) = self.shared.models.own(of) else { return Ok(()) };
        match self.shared.models.get(id) {
            Some(entry) if entry.late => self.restate_model(id, false),
            _ => Ok(()),
        }
    }

    /// Objects with a model of which many pages are deltas are coded again, too.
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

    /// Looks at some objects from `from` on that have no model and were not counted (L2). Returns where to go on; `None`: there are no more.
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
                    if drawn.iter().any(|page| looks_like_wal(page)) {
                        self.watch.lock().late.insert(of);
                    } else if !worth_learning(drawn).is_empty() {
                        self.watch.lock().found(of, pages);
                    }
                }
                // For `check` and a scrub to tell.
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
    }

    /// The first object from this one on that has anything in the tree of its dataset.
    fn next_object(&self, (id, object): Of) -> Result<Option<(Arc<LiveDataset>, u64)>> {
        let datasets = Arc::clone(&*self.datasets.read());
        let first = datasets.partition_point(|dataset| dataset.id < id);
        for dataset in datasets.iter().skip(first) {
            // Object 0 has what is the dataset's own.
            let from = if dataset.id == id { object.max(1) } else { 1 };
            let found = dataset.tree.range(&Key::new(from, 0, 0), &Key::new(u64::MAX, u8::MAX, 0), 1)?;
            if let Some((key, _)) = found.first() {
                return Ok(Some((Arc::clone(dataset), key.object)));
            }
        }
        Ok(None)
    }
}

/// What is coded again in the background, and when.
#[derive(Default)]
pub(super) struct Late {
    /// Pages written to each when that number last changed, and when that was seen.
    seen: BTreeMap<Of, (u64, Instant)>,
    /// What is being coded again, and from which page on.
    at: Option<(Of, u64)>,
    pub(super) traffic: Traffic,
}

impl Late {
    /// Whether nothing much was read or written lately.
    pub(super) fn is_idle(&self) -> bool {
        self.traffic.idle_since.is_some()
    }

    /// Whether that has been so for a while.
    fn is_quiet(&self, now: Instant) -> bool {
        self.traffic.idle_since.is_some_and(|since| now.duration_since(since) >= QUIET)
    }

    /// Codes some pages of one object again, if any is quiet, or looks for more objects. False: there is nothing to do.
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
            self.at = pool.recode_late(of, from, pages)?.map(|next| (of, next));
            return Ok(true);
        }
        if !self.is_quiet(now) {
            return Ok(false);
        }
        let Some(at) = *pool.sought.lock() else { return Ok(false) };
        let next = pool.seek(at)?;
        let mut sought = pool.sought.lock();
        // Unless it was begun anew meanwhile.
        if *sought == Some(at) {
            *sought = next;
        }
        Ok(next.is_some())
    }

    /// The first object that nothing was written to for a while. While the pool is busy that is known only of those whose model came late: deltas are what
    /// busy objects have.
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
