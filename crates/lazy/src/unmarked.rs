//! A dataset without the marks that pages of it are absent.

use std::sync::Arc;

use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::{Key, Result};

use crate::absent::{END, ORIGIN_KEY};

/// Returns values of `dataset` as [`Dataset::range`] does, without the marks of absent pages.
pub(crate) fn visible(
    dataset: &dyn Dataset,
    from: &Key,
    to: &Key,
    limit: usize,
) -> Result<Vec<(Key, Vec<u8>)>> {
    let first = to.min(&ORIGIN_KEY);
    let mut found = if from < first { dataset.range(from, first, limit)? } else { Vec::new() };
    let behind = from.max(&END);
    if found.len() < limit && behind < to {
        found.extend(dataset.range(behind, to, limit - found.len())?);
    }
    Ok(found)
}

/// Returns a dataset without the marks of absent pages: for callers that look at the file system alone, and take absent
/// pages for holes.
pub fn without_marks(dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
    Arc::new(Unmarked(dataset))
}

struct Unmarked(Arc<dyn Dataset>);

impl Dataset for Unmarked {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.0.get(key)
    }
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        visible(self.0.as_ref(), from, to, limit)
    }
    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.0.first_damage(from, to)
    }
    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.0.apply(changes)
    }
    fn accepts_at_once(&self) -> bool {
        self.0.accepts_at_once()
    }

    fn is_at_hand(&self, object: u64, page: u64) -> bool {
        self.0.is_at_hand(object, page)
    }
    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(object, record_size, offset, buf)
    }
    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.0.try_read(object, record_size, offset, buf)
    }
    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.0.next_data(object, page)
    }
    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        self.0.next_hole(object, page)
    }
    fn usage(&self, object: u64) -> Result<Usage> {
        self.0.usage(object)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn sync_then(&self, caller: Caller, then: Synced) {
        self.0.sync_then(caller, then);
    }
    fn settle_then(&self, caller: Caller, then: Synced) {
        self.0.settle_then(caller, then);
    }
    fn space(&self) -> Space {
        self.0.space()
    }
    fn reapers(&self) -> Option<&Reapers> {
        self.0.reapers()
    }
}
