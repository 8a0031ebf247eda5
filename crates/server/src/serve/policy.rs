//! The `sync` property, which says when a caller waits until its changes are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::{Key, Result};

/// Values of the `sync` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SyncMode {
    /// fsync waits.
    Standard,
    /// Every change waits.
    Always,
    /// Nothing waits; changes become durable within a second, in order.
    Disabled,
}

impl SyncMode {
    /// Parses the property's value.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "standard" => Self::Standard,
            "always" => Self::Always,
            "disabled" => Self::Disabled,
            _ => return None,
        })
    }
}

/// A dataset under a `sync` policy; all calls are passed on.
pub(crate) struct Policed {
    inner: Arc<dyn Dataset>,
    mode: AtomicU8,
}

impl Policed {
    /// Puts `inner` under the policy `mode`.
    pub(crate) fn new(inner: Arc<dyn Dataset>, mode: SyncMode) -> Self {
        Self { inner, mode: AtomicU8::new(mode as u8) }
    }

    /// Changes the policy from the next call on.
    pub(crate) fn set(&self, mode: SyncMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    fn is(&self, mode: SyncMode) -> bool {
        self.mode.load(Ordering::Relaxed) == mode as u8
    }
}

impl Dataset for Policed {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.inner.get(key)
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        self.inner.range(from, to, limit)
    }

    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.inner.first_damage(from, to)
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.inner.apply(changes)?;
        if self.is(SyncMode::Always) { self.inner.sync() } else { Ok(()) }
    }

    fn accepts_at_once(&self) -> bool {
        !self.is(SyncMode::Always) && self.inner.accepts_at_once()
    }

    fn is_at_hand(&self, object: u64, page: u64) -> bool {
        self.inner.is_at_hand(object, page)
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(object, record_size, offset, buf)
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.inner.try_read(object, record_size, offset, buf)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.inner.next_data(object, page)
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        self.inner.next_hole(object, page)
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        self.inner.usage(object)
    }

    fn sync(&self) -> Result<()> {
        if self.is(SyncMode::Disabled) { Ok(()) } else { self.inner.sync() }
    }

    fn sync_then(&self, caller: Caller, then: Synced) {
        if self.is(SyncMode::Disabled) { then(Ok(())) } else { self.inner.sync_then(caller, then) }
    }

    fn settle_then(&self, caller: Caller, then: Synced) {
        self.inner.settle_then(caller, then);
    }

    fn space(&self) -> Space {
        self.inner.space()
    }

    fn reapers(&self) -> Option<&Reapers> {
        self.inner.reapers()
    }
}
