//! Datasets: what the file system sees of the engine.

mod accept;
pub mod budget;
mod claims;
mod codecs;
mod dead;
mod debts;
pub mod journal;
pub mod ledger;
mod live;
mod models;
mod one;
mod pages;
mod part;
pub mod pending;
mod read;
pub mod redo;
mod references;
mod room;
mod salvage;
pub(crate) mod shared;
mod throttle;
mod usage;
mod waits;

pub use budget::{Bound, Budget, Claim, Limits};
pub use codecs::Codecs;
pub use dead::{Blocks, Bucket, Chain, DeadList, SPACE_BYTES_MAX, Sublist, encode_ptrs, space_of};
pub use debts::ReadDebts;
pub use journal::Journal;
pub use ledger::{Holder, Ledger, Part};
pub use live::LiveDataset;
pub use models::{ModelEntry, ModelPin, ModelTable};
pub use one::{Attempt, PageFetch};
pub use references::references;
pub use room::{BEGUN_CHUNKS, PASS_TABLE_BYTES, Room};
pub use shared::{Bounds, Commit, Counters, PrimaryCache, Shared, count};
pub use throttle::Throttle;
pub use waits::{Reason, Waited, Waits};

use crate::Result;
use crate::types::Key;

/// One change of a dataset. A slice of them is applied as a whole or not at all.
#[derive(Debug)]
pub enum Change<'a> {
    /// Sets the value of `key` (a kind below [`Key::ENGINE_KINDS`]), whatever it was.
    Put(Key, Vec<u8>),
    /// Removes `key`; no error where it does not exist.
    Delete(Key),
    /// Writes `data` at byte `offset` of `object`, whose pages are `record_size` bytes. May be unaligned and span pages.
    Write {
        /// The object whose pages change.
        object: u64,
        /// Page size of the object in bytes; the same in every call for one object as long as it has pages.
        record_size: u32,
        /// Byte offset within the object.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Removes the pages `from <= page < to` of `object`; they read as zeros afterwards.
    Punch {
        /// The object.
        object: u64,
        /// First page.
        from: u64,
        /// One past the last page; `u64::MAX` for all.
        to: u64,
    },
    /// Makes `count` pages of `to_object` from `to_page` on share the records (and holes) of `from_object` from
    /// `from_page` on. Both objects have the same recordsize. No data is copied.
    Share {
        /// Source.
        from_object: u64,
        /// First page of the source.
        from_page: u64,
        /// Target.
        to_object: u64,
        /// First page of the target.
        to_page: u64,
        /// How many pages.
        count: u64,
    },
}

/// What an object's pages take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Pages that are stored (holes and all-zero pages are not).
    pub pages: u64,
    /// Stored bytes of these pages, compressed, with their directory entries.
    pub stored_bytes: u64,
}

/// Space of the pool as a dataset sees it, in bytes: where quotas leave less, that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// What the pool can hold in stored (compressed) bytes, less the reserve.
    pub capacity_bytes: u64,
    /// Stored bytes in use.
    pub used_bytes: u64,
    /// Stored bytes that can still be accepted.
    pub available_bytes: u64,
    /// Logical (uncompressed) bytes of all pages in use.
    pub logical_bytes: u64,
}

/// What to do with the outcome of a sync. It must not wait for another sync.
pub type Synced = Box<dyn FnOnce(Result<()>) + Send>;

/// A file system's or volume's storage: an ordered map of small values, and objects made of pages.
///
/// Reads see every change applied before them. Each [`Dataset::apply`] is atomic over a crash, and changes
/// become durable in the order of their `apply` calls. Callers serialise their own conflicting changes
/// (the file system does so with its inode locks).
pub trait Dataset: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>>;

    /// Up to `limit` entries with `from <= key < to`, ascending. Only metadata kinds, never pages.
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>>;

    /// The first keys of `from..to` that cannot be looked up, because of damage, from the first (inclusive) to the second
    /// (exclusive): [`Dataset::range`] of what lies before or behind them need not fail.
    fn first_damage(&self, _from: &Key, _to: &Key) -> Option<(Key, Key)> {
        None
    }

    /// Applies all of `changes`, in order, as one. Space is reserved first: [`crate::Error::NoSpace`] means
    /// that nothing was changed. Changes that only free space are always admitted.
    fn apply(&self, changes: &[Change<'_>]) -> Result<()>;

    /// Whether [`Dataset::apply`] of whole pages to existing objects would be done now without waiting for a commit or
    /// a device. A hint for callers that have somewhere to wait: false is always right.
    fn accepts_at_once(&self) -> bool {
        false
    }

    /// Fills `buf` with the bytes of `object` from `offset` on; holes and what was never written read as zeros.
    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// As [`Dataset::read`], as far as that is possible without waiting for a device.
    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt>;

    /// The first page at or after `page` that is stored, or `None`.
    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>>;

    /// The first page at or after `page` that is not stored.
    fn next_hole(&self, object: u64, page: u64) -> Result<u64>;

    /// What the object's pages take; changes not yet committed are counted when they are.
    fn usage(&self, object: u64) -> Result<Usage>;

    /// Returns when every change applied before this call is durable.
    fn sync(&self) -> Result<()>;

    /// As [`Dataset::sync`], for callers that have something else to do: calls `then` when it is done, possibly later and
    /// on another thread.
    fn sync_then(&self, then: Synced);

    /// As [`Dataset::sync_then`], for what is to be durable although callers of sync need not wait for that.
    fn settle_then(&self, then: Synced) {
        self.sync_then(then);
    }

    /// Space of the pool.
    fn space(&self) -> Space;
}
