//! A dataset of the engine, beside one in memory that must have the same content.

use std::sync::Arc;

use pagefold_engine::Result;
use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::types::Key;
use pagefold_fs::testing::MemDataset;
use parking_lot::Mutex;

use super::Twin;

impl Twin {
    pub(super) fn new(live: Arc<dyn Dataset>, memory: MemDataset) -> Self {
        let history = Mutex::new(vec![memory.crashed()]);
        Self { live, memory, history }
    }

    /// Returns the state of memory that is the engine's state now; panics if there is none.
    pub(super) fn resolve(live: &dyn Dataset, history: &[MemDataset]) -> MemDataset {
        let found = history.iter().rev().find(|memory| difference(live, memory).is_none());
        let newest = history.last().unwrap();
        found
            .unwrap_or_else(|| panic!("no prefix: newest differs by {:?}", difference(live, newest)))
            .crashed()
    }
}

/// Describes how two datasets differ, if they do.
pub(super) fn difference(live: &dyn Dataset, memory: &MemDataset) -> Option<String> {
    let (first, last) = (Key::new(0, 0, 0), Key::new(u64::MAX, Key::ENGINE_KINDS, 0));
    let mut values = live.range(&first, &last, usize::MAX).unwrap();
    values.retain(|(key, _)| key.kind < Key::ENGINE_KINDS);
    let expected = memory.values();
    if values != expected {
        let differs = values.iter().zip(&expected).find(|(a, b)| a != b).map(|(a, b)| (a.0, b.0));
        return Some(format!("{} values instead of {}, first {differs:?}", values.len(), expected.len()));
    }
    for (object, record_size, pages) in memory.objects() {
        let (mut a, mut b) = (vec![1; record_size as usize], vec![2; record_size as usize]);
        for page in pages {
            let offset = page * u64::from(record_size);
            live.read(object, record_size, offset, &mut a).unwrap();
            memory.read(object, record_size, offset, &mut b).unwrap();
            if a != b {
                return Some(format!("page {page} of object {object}"));
            }
        }
    }
    None
}

impl Dataset for Twin {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = self.live.get(key)?;
        assert_eq!(found, self.memory.get(key)?, "{key:?}");
        Ok(found)
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        let found = self.live.range(from, to, limit)?;
        assert_eq!(found, self.memory.range(from, to, limit)?, "{from:?}..{to:?}");
        Ok(found)
    }

    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.live.first_damage(from, to)
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.live.apply(changes)?;
        self.memory.apply(changes)?;
        self.history.lock().push(self.memory.crashed());
        Ok(())
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.live.read(object, record_size, offset, buf)?;
        let mut expected = vec![1; buf.len()];
        self.memory.read(object, record_size, offset, &mut expected)?;
        assert!(buf == expected, "{} bytes of object {object} at {offset}", buf.len());
        Ok(())
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.live.try_read(object, record_size, offset, buf)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        let found = self.live.next_data(object, page)?;
        // A page of zeros may count as data until it is committed; pages that memory holds must be found.
        if let Some(expected) = self.memory.next_data(object, page)? {
            assert!(found.is_some_and(|found| found <= expected), "{found:?} instead of {expected}");
        }
        Ok(found)
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        let found = self.live.next_hole(object, page)?;
        assert!(found >= self.memory.next_hole(object, page)?);
        Ok(found)
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        self.live.usage(object)
    }

    fn sync(&self) -> Result<()> {
        self.live.sync()?;
        let mut history = self.history.lock();
        let last = history.len() - 1;
        history.drain(..last);
        Ok(())
    }

    fn sync_then(&self, _: Caller, then: Synced) {
        then(self.sync());
    }

    fn space(&self) -> Space {
        self.live.space()
    }

    fn reapers(&self) -> Option<&Reapers> {
        self.live.reapers()
    }
}
