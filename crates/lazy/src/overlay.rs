//! A dataset that is not complete, over the backup that has the rest.
//!
//! An absent page that is read is copied into the dataset at once, so that it is read from the backup once. If the
//! dataset cannot take it (it is read-only, or full), the page is only passed on. All values are the dataset's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use pagefold_engine::dataset::journal::aside;
use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::{Error, Key, Result};

use crate::absent::{Absent, Amended, Run, changes as stored};
use crate::limits::PIECE_BYTES;
use crate::unmarked::visible;

/// The source of the pages that a dataset does not have yet.
pub trait Lower: Send + Sync {
    /// Reads bytes as [`Dataset::read`] does.
    ///
    /// # Errors
    /// Errors of damage, and of a store that does not answer.
    fn read_pages(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()>;
}

impl<T: Dataset> Lower for T {
    fn read_pages(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        Dataset::read(self, object, record_size, offset, buf)
    }
}

/// The side that failed.
pub(crate) enum Trouble {
    /// The page could not be read.
    Lower(Error),
    /// The page was read, but the dataset does not take it.
    Upper(Error),
}

impl Trouble {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Lower(error) | Self::Upper(error) => error,
        }
    }
}

/// A dataset over the source of its absent pages; see the module.
pub struct Overlay {
    upper: Arc<dyn Dataset>,
    /// Source of absent pages; `None` once nothing is absent, so that the process that reads the backup may end.
    lower: RwLock<Option<Arc<dyn Lower>>>,
    writable: bool,
    absent: RwLock<Absent>,
    /// Held while pages are taken out of `absent`, until the change that does so was accepted.
    order: Mutex<()>,
    /// True once nothing is absent any more.
    complete: AtomicBool,
}

/// Returns the pages that `len` bytes from `offset` on touch: the first, and the one after the last.
fn touched(record_size: u32, offset: u64, len: usize) -> (u64, u64) {
    let page = u64::from(record_size.max(1));
    match (len as u64).checked_sub(1) {
        None => (offset / page, offset / page),
        Some(last) => (offset / page, (offset.saturating_add(last) / page).saturating_add(1)),
    }
}

/// Returns a copy of a change.
fn again<'a>(change: &Change<'a>) -> Change<'a> {
    match *change {
        Change::Put(key, ref value) => Change::Put(key, value.clone()),
        Change::Delete(key) => Change::Delete(key),
        Change::Write { object, record_size, offset, data } => {
            Change::Write { object, record_size, offset, data }
        }
        Change::Punch { object, from, to } => Change::Punch { object, from, to },
        Change::Share { from_object, from_page, to_object, to_page, count } => {
            Change::Share { from_object, from_page, to_object, to_page, count }
        }
    }
}

impl Overlay {
    /// Puts `upper` over `lower`. Without `writable` nothing is copied.
    ///
    /// # Errors
    /// Errors of reading what is absent.
    pub fn open(upper: Arc<dyn Dataset>, lower: Arc<dyn Lower>, writable: bool) -> Result<Self> {
        let absent = Absent::load(upper.as_ref())?;
        let complete = AtomicBool::new(absent.pages() == 0);
        let (lower, absent) = (RwLock::new(Some(lower)), RwLock::new(absent));
        Ok(Self { upper, lower, writable, absent, order: Mutex::new(()), complete })
    }

    /// Returns true if nothing is absent.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Returns the number of absent pages, and about the number of bytes of their records.
    pub fn absent(&self) -> (u64, u64) {
        let absent = self.absent.read();
        (absent.pages(), absent.bytes())
    }

    /// Returns the first run of absent pages from there on, of at most a piece.
    pub(crate) fn next_piece(&self, object: u64, page: u64) -> Option<Run> {
        self.absent.read().next_of_any(object, page, PIECE_BYTES)
    }

    /// Returns about the number of bytes of a run's records.
    pub(crate) fn record_bytes(&self, run: &Run) -> u64 {
        let (pages, bytes) = self.absent.read().of(run.object);
        bytes / pages.max(1) * (run.to - run.from)
    }

    /// Copies the pages of a run that are still absent into the dataset.
    pub(crate) fn bring_run(&self, run: &Run) -> Result<(), Trouble> {
        let page = u64::from(run.record_size);
        let mut bytes = vec![0; ((run.to - run.from) * page) as usize];
        match self.read_below(run.object, run.record_size, run.from * page, &mut bytes) {
            Ok(true) => self.store(run, &bytes).map_err(Trouble::Upper),
            Ok(false) => Ok(()),
            Err(_) if self.has_come(run) => Ok(()),
            Err(error) => Err(Trouble::Lower(error)),
        }
    }

    /// Returns true if no page of a run is absent any more: others have brought or replaced them while this thread asked
    /// the lower side, and the end of its connection is no error then.
    fn has_come(&self, run: &Run) -> bool {
        self.absent.read().next(run.object, run.from, run.to, 1).is_none()
    }

    /// Reads from the lower side. Returns false if nothing is absent any more: then everything is in the dataset.
    fn read_below(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let lower = self.lower.read().clone();
        lower.map_or(Ok(false), |lower| lower.read_pages(object, record_size, offset, buf).map(|()| true))
    }

    /// Copies the pages of a run that are still absent; `bytes` has all of its pages.
    fn store(&self, run: &Run, bytes: &[u8]) -> Result<()> {
        let &Run { object, record_size, from, to } = run;
        let page = u64::from(record_size);
        let _order = self.order.lock();
        let (mut writes, mut amended) = (Vec::new(), Amended::new());
        let absent = self.absent.read();
        let mut at = from;
        while let Some(still) = absent.next(object, at, to, u64::MAX) {
            let within = ((still.from - from) * page) as usize..((still.to - from) * page) as usize;
            let data = bytes.get(within).unwrap_or_default();
            writes.push(Change::Write { object, record_size, offset: still.from * page, data });
            at = still.to;
        }
        absent.amend(&mut amended, object, from, to);
        let pages = absent.pages_after(&amended);
        drop(absent);
        if writes.is_empty() {
            return Ok(());
        }
        writes.extend(stored(&amended, pages));
        // This change belongs to no request: a reader has asked for no change.
        aside(|| self.upper.apply(&writes))?;
        self.took(amended, pages);
        Ok(())
    }

    /// Notes that the dataset has accepted a change by which groups are as in `amended`.
    fn took(&self, amended: Amended, pages: u64) {
        self.absent.write().take(amended);
        if pages == 0 {
            self.complete.store(true, Ordering::Release);
            *self.lower.write() = None;
            tracing::info!("the dataset is complete: the backup is not needed any more");
        }
    }

    /// Copies all absent pages `from <= page < to` of an object into the dataset.
    fn bring(&self, object: u64, from: u64, to: u64) -> Result<(), Trouble> {
        let mut at = from;
        loop {
            let next = self.absent.read().next(object, at, to, PIECE_BYTES);
            let Some(run) = next else { return Ok(()) };
            self.bring_run(&run)?;
            at = run.to;
        }
    }

    /// Copies the pages whose contents a change needs.
    fn bring_for(&self, change: &Change<'_>) -> Result<()> {
        let bring = |object, from, to| self.bring(object, from, to).map_err(Trouble::into_error);
        match *change {
            Change::Write { object, record_size, offset, data } => {
                let page = u64::from(record_size.max(1));
                let (first, end) = touched(record_size, offset, data.len());
                if first == end {
                    return Ok(());
                }
                if !offset.is_multiple_of(page) {
                    bring(object, first, first + 1)?;
                }
                if !offset.saturating_add(data.len() as u64).is_multiple_of(page) {
                    bring(object, end - 1, end)?;
                }
                Ok(())
            }
            Change::Share { from_object, from_page, count, .. } => {
                bring(from_object, from_page, from_page.saturating_add(count))
            }
            Change::Put(..) | Change::Delete(_) | Change::Punch { .. } => Ok(()),
        }
    }

    /// Returns the groups as they are after these changes, without the pages that the changes replace or remove.
    fn decided(&self, changes: &[Change<'_>]) -> (Amended, u64) {
        let absent = self.absent.read();
        let mut amended = Amended::new();
        for change in changes {
            match *change {
                Change::Write { object, record_size, offset, data } => {
                    let (from, to) = touched(record_size, offset, data.len());
                    absent.amend(&mut amended, object, from, to);
                }
                Change::Punch { object, from, to } => absent.amend(&mut amended, object, from, to),
                Change::Share { to_object, to_page, count, .. } => {
                    absent.amend(&mut amended, to_object, to_page, to_page.saturating_add(count));
                }
                Change::Put(..) | Change::Delete(_) => {}
            }
        }
        let pages = absent.pages_after(&amended);
        (amended, pages)
    }

    /// Fills `buf` from the dataset, and absent pages from the lower side, without copying them.
    fn pass_on(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (from, to) = touched(record_size, offset, buf.len());
        let (page, end) = (u64::from(record_size), offset.saturating_add(buf.len() as u64));
        // Absent runs are looked up before the dataset is read: a page that comes meanwhile is in the dataset, or still
        // the same below.
        let (mut runs, mut at) = (Vec::new(), from);
        let absent = self.absent.read();
        while let Some(run) = absent.next(object, at, to, u64::MAX) {
            at = run.to;
            runs.push(run);
        }
        drop(absent);
        self.upper.read(object, record_size, offset, buf)?;
        for run in runs {
            let (begin, end) = ((run.from * page).max(offset), (run.to * page).min(end));
            let within = (begin - offset) as usize..(end - offset) as usize;
            let Some(part) = buf.get_mut(within) else { continue };
            match self.read_below(object, record_size, begin, part) {
                Ok(true) => {}
                Ok(false) => return self.upper.read(object, record_size, offset, buf),
                Err(_) if self.has_come(&run) => self.upper.read(object, record_size, begin, part)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_absent_within(&self, object: u64, record_size: u32, offset: u64, len: usize) -> bool {
        let (from, to) = touched(record_size, offset, len);
        self.absent.read().next(object, from, to, 1).is_some()
    }
}

impl Dataset for Overlay {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.upper.get(key)
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        visible(self.upper.as_ref(), from, to, limit)
    }

    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.upper.first_damage(from, to)
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        if self.is_complete() {
            return self.upper.apply(changes);
        }
        for change in changes {
            self.bring_for(change)?;
        }
        let order = self.order.lock();
        let (amended, pages) = self.decided(changes);
        if amended.is_empty() {
            drop(order);
            return self.upper.apply(changes);
        }
        let mut all: Vec<Change<'_>> = changes.iter().map(again).collect();
        all.extend(stored(&amended, pages));
        self.upper.apply(&all)?;
        self.took(amended, pages);
        Ok(())
    }

    fn accepts_at_once(&self) -> bool {
        self.is_complete() && self.upper.accepts_at_once()
    }

    fn is_at_hand(&self, object: u64, page: u64) -> bool {
        self.is_complete() && self.upper.is_at_hand(object, page)
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.is_complete() || !self.is_absent_within(object, record_size, offset, buf.len()) {
            return self.upper.read(object, record_size, offset, buf);
        }
        if self.writable {
            let (from, to) = touched(record_size, offset, buf.len());
            match self.bring(object, from, to) {
                Ok(()) => return self.upper.read(object, record_size, offset, buf),
                Err(Trouble::Lower(error)) => return Err(error),
                Err(Trouble::Upper(error)) => tracing::debug!(%error, "what was read is not kept"),
            }
        }
        self.pass_on(object, record_size, offset, buf)
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        if self.is_complete() || !self.is_absent_within(object, record_size, offset, buf.len()) {
            return self.upper.try_read(object, record_size, offset, buf);
        }
        Ok(Attempt::Wait)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        let absent = self.absent.read().next(object, page, u64::MAX, 1).map(|run| run.from);
        let here = self.upper.next_data(object, page)?;
        Ok(match (absent, here) {
            (Some(absent), Some(here)) => Some(absent.min(here)),
            (absent, here) => absent.or(here),
        })
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        let mut at = page;
        loop {
            // Absent pages are looked up first: a page that is not absent any more is in the dataset, and stays there
            // or is a hole.
            let run = self.absent.read().next(object, at, u64::MAX, u64::MAX).filter(|run| run.from == at);
            let next = match run {
                Some(run) => run.to,
                None => self.upper.next_hole(object, at)?,
            };
            if next == at {
                return Ok(at);
            }
            at = next;
        }
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        let here = self.upper.usage(object)?;
        let (pages, bytes) = self.absent.read().of(object);
        Ok(Usage { pages: here.pages + pages, stored_bytes: here.stored_bytes + bytes })
    }

    fn sync(&self) -> Result<()> {
        self.upper.sync()
    }

    fn sync_then(&self, caller: Caller, then: Synced) {
        self.upper.sync_then(caller, then);
    }

    fn settle_then(&self, caller: Caller, then: Synced) {
        self.upper.settle_then(caller, then);
    }

    fn space(&self) -> Space {
        self.upper.space()
    }

    fn reapers(&self) -> Option<&Reapers> {
        self.upper.reapers()
    }
}
