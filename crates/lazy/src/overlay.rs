//! A dataset that is not complete, over who has the rest.
//!
//! An absent page that is read is copied into the dataset at once, so that it is read from the backup once; where the dataset cannot take it
//! (it is read-only, or full) it is only passed on. All values are the dataset's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use pagefold_engine::dataset::journal::aside;
use pagefold_engine::dataset::{Attempt, Change, Dataset, Space, Synced, Usage};
use pagefold_engine::{Error, Key, Result};

use crate::absent::{Absent, Amended, Run, changes as stored};
use crate::limits::PIECE_BYTES;
use crate::unmarked::visible;

/// Who has the pages that a dataset does not have yet.
pub trait Lower: Send + Sync {
    /// As [`Dataset::read`].
    ///
    /// # Errors
    /// Of damage, and of a store that does not answer.
    fn read_pages(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()>;
}

impl<T: Dataset> Lower for T {
    fn read_pages(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        Dataset::read(self, object, record_size, offset, buf)
    }
}

/// The side that failed.
pub(crate) enum Trouble {
    /// The page cannot be had.
    Lower(Error),
    /// It was had, and the dataset does not take it.
    Upper(Error),
}

impl Trouble {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Lower(error) | Self::Upper(error) => error,
        }
    }
}

/// See the module.
pub struct Overlay {
    upper: Arc<dyn Dataset>,
    /// None once nothing is absent: who reads the backup may end.
    lower: RwLock<Option<Arc<dyn Lower>>>,
    writable: bool,
    absent: RwLock<Absent>,
    /// Held by who takes pages out of `absent`, until the change that does so was accepted.
    order: Mutex<()>,
    /// Nothing is absent any more.
    complete: AtomicBool,
}

/// The pages that `len` bytes from `offset` on touch: the first, and the one after the last.
fn touched(record_size: u32, offset: u64, len: usize) -> (u64, u64) {
    let page = u64::from(record_size.max(1));
    match (len as u64).checked_sub(1) {
        None => (offset / page, offset / page),
        Some(last) => (offset / page, (offset.saturating_add(last) / page).saturating_add(1)),
    }
}

/// The same change.
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
    /// `upper` over `lower`. Without `writable` nothing is copied.
    ///
    /// # Errors
    /// Of reading what is absent.
    pub fn open(upper: Arc<dyn Dataset>, lower: Arc<dyn Lower>, writable: bool) -> Result<Self> {
        let absent = Absent::load(upper.as_ref())?;
        let complete = AtomicBool::new(absent.pages() == 0);
        let (lower, absent) = (RwLock::new(Some(lower)), RwLock::new(absent));
        Ok(Self { upper, lower, writable, absent, order: Mutex::new(()), complete })
    }

    /// True if nothing is absent.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Pages that are absent, and bytes of their records, about.
    pub fn absent(&self) -> (u64, u64) {
        let absent = self.absent.read();
        (absent.pages(), absent.bytes())
    }

    /// The first run of absent pages from there on, of at most a piece.
    pub(crate) fn next_piece(&self, object: u64, page: u64) -> Option<Run> {
        self.absent.read().next_of_any(object, page, PIECE_BYTES)
    }

    /// Bytes of the records of a run, about.
    pub(crate) fn record_bytes(&self, run: &Run) -> u64 {
        let (pages, bytes) = self.absent.read().of(run.object);
        bytes / pages.max(1) * (run.to - run.from)
    }

    /// Brings the pages of a run that are still absent.
    pub(crate) fn bring_run(&self, run: &Run) -> Result<(), Trouble> {
        let page = u64::from(run.record_size);
        let mut bytes = vec![0; ((run.to - run.from) * page) as usize];
        let read = self.read_below(run.object, run.record_size, run.from * page, &mut bytes);
        if read.map_err(Trouble::Lower)? {
            self.store(run, &bytes).map_err(Trouble::Upper)?;
        }
        Ok(())
    }

    /// Reads from below. False: nothing is absent any more, and all is in the dataset.
    fn read_below(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let lower = self.lower.read().clone();
        lower.map_or(Ok(false), |lower| lower.read_pages(object, record_size, offset, buf).map(|()| true))
    }

    /// Copies what is still absent of a run, whose pages `bytes` has.
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
        // It is nobody's request: who reads has asked for no change.
        aside(|| self.upper.apply(&writes))?;
        self.took(amended, pages);
        Ok(())
    }

    /// The dataset has taken a change by which groups are as in `amended`.
    fn took(&self, amended: Amended, pages: u64) {
        self.absent.write().take(amended);
        if pages == 0 {
            self.complete.store(true, Ordering::Release);
            *self.lower.write() = None;
            tracing::info!("the dataset is complete: the backup is not needed any more");
        }
    }

    /// Brings all that is absent of the pages `from <= page < to` of an object.
    fn bring(&self, object: u64, from: u64, to: u64) -> Result<(), Trouble> {
        let mut at = from;
        loop {
            let next = self.absent.read().next(object, at, to, PIECE_BYTES);
            let Some(run) = next else { return Ok(()) };
            self.bring_run(&run)?;
            at = run.to;
        }
    }

    /// Brings the pages whose contents a change needs.
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

    /// The groups without the pages that changes decide about.
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

    /// Fills `buf` from the dataset, and what is absent from below, copying nothing.
    fn pass_on(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (from, to) = touched(record_size, offset, buf.len());
        let (page, end) = (u64::from(record_size), offset.saturating_add(buf.len() as u64));
        // Looked up before the dataset is read: what comes between is in the dataset or still the same below.
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
            if let Some(part) = buf.get_mut(within)
                && !self.read_below(object, record_size, begin, part)?
            {
                return self.upper.read(object, record_size, offset, buf);
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
            // Asked first: what is not absent any more is in the dataset, and stays there or is a hole.
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

    fn sync_then(&self, then: Synced) {
        self.upper.sync_then(then);
    }

    fn settle_then(&self, then: Synced) {
        self.upper.settle_then(then);
    }

    fn space(&self) -> Space {
        self.upper.space()
    }
}
