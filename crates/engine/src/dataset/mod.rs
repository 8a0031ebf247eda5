//! Datasets: the interface of the engine that the file system uses.
//!
//! [`Dataset`] is the seam to the file system. [`LiveDataset`] implements it, for a dataset or snapshot of an open
//! pool.
//!
//! - D1: whoever holds the gate waits for no commit but one in flight, and that never takes the gate.
//!
//! ```text
//! live, shared       a dataset; what all datasets of a pool share: the gate, admission, counters
//! accept, pending    accepts changes; holds them until their commit
//! redo               their form in the log
//! journal            accepted changes that are not in the log, in memory that outlives the process; requests done
//! claims, budget     what a change takes at most; whether it fits into quotas and reservations
//! room, throttle     free chunks that are promised (A1); delays writers to the pace of the cleaner
//! waits              how long writers waited, and for what
//! thin               space before compression, as mounts tell it
//! reapers            asks file systems to free what was deleted, for a write that finds no space
//! read, one          plans and does reads; reads within one page without waiting
//! deliver, part      what both do with a record that was read; the part of a page that is wanted
//! pages, references  the page map; pages that share a record
//! usage              what each object stores
//! accounting, dead   what a version holds and the fate of records that it unreferences; dead lists
//! models, codecs     the models of a pool; which codec a new page gets
//! read_amplification what deltas cost readers
//! rescue             changes a dataset whose tree is damaged, for a rescue
//! ```

mod accept;
pub(crate) mod accounting;
mod base_streams;
pub(crate) mod budget;
mod claims;
mod codecs;
mod compression;
mod dead;
mod deliver;
pub mod journal;
mod live;
mod model_entries;
mod model_reads;
mod models;
mod one;
mod page_fetch;
mod pages;
mod part;
pub(crate) mod pending;
mod promised;
mod read;
mod read_amplification;
mod read_ends;
mod ready;
mod reapers;
mod recent;
pub mod redo;
mod references;
mod rescue;
mod room;
pub(crate) mod shared;
mod thin;
mod throttle;
mod unreference;
mod usage;
mod waits;

pub(crate) use accounting::{Ancestor, RecordRole, SpaceAccounting};
pub use budget::Bound;
pub(crate) use budget::{Budget, Claim, Limits};
pub use claims::accepted_bytes;
pub(crate) use codecs::Codecs;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use dead::Chain;
pub use dead::encode_ptrs;
pub(crate) use dead::{Bucket, DeadBlocks, DeadList, SPACE_BYTES_MAX, Sublist, space_of};
pub use journal::Journal;
pub use live::LiveDataset;
pub use models::ModelEntry;
pub(crate) use models::{ModelPin, ModelTable};
pub use page_fetch::{Attempt, LateFetch, PageFetch};
pub use reapers::{Reaper, Reapers};
pub(crate) use references::references;
pub(crate) use room::{BEGUN_CHUNKS, PASS_TABLE_BYTES, RoomRequest};
pub(crate) use shared::{Bounds, Shared, count};
pub use shared::{Commit, PrimaryCache};
pub use thin::{Expansion, LogicalCapacity, Thin};
pub use waits::Reason;
pub(crate) use waits::Waited;

#[cfg(doc)]
use crate::Error;
use crate::Result;
use crate::types::Key;

/// One change of a dataset. A slice of changes is applied as a whole or not at all.
#[derive(Debug)]
pub enum Change<'a> {
    /// Sets the value of `key` (a kind below [`Key::ENGINE_KINDS`]), whether or not it had one.
    Put(Key, Vec<u8>),
    /// Removes `key`. It is no error if `key` does not exist.
    Delete(Key),
    /// Writes `data` at byte `offset` of `object`, whose pages are `record_size` bytes. The range may be unaligned and
    /// span several pages.
    Write {
        /// The object whose pages change.
        object: u64,
        /// Page size of the object in bytes; the same in every call for one object as long as it has pages.
        record_size: u32,
        /// Byte offset within the object.
        offset: u64,
        /// The bytes: [`crate::limits::ATOMIC_WRITE_MAX`] at most.
        data: &'a [u8],
    },
    /// Removes the pages `from <= page < to` of `object`; they read as zeros afterwards. An empty range removes none, and
    /// tells that the whole change is made to free something.
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
        /// Number of pages.
        count: u64,
    },
}

/// Space that the pages of an object take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of stored pages, without holes and all-zero pages.
    pub pages: u64,
    /// Stored bytes of these pages, compressed, with their directory entries.
    pub stored_bytes: u64,
}

/// Space of the pool as a dataset sees it, in bytes. Where quotas leave less than the pool does, it is what the quotas
/// leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Stored (compressed) bytes that the pool can hold, without the reserve.
    pub capacity_bytes: u64,
    /// Stored bytes in use.
    pub used_bytes: u64,
    /// Stored bytes that can still be accepted.
    pub available_bytes: u64,
    /// Logical (uncompressed) bytes of all pages in use.
    pub logical_bytes: u64,
    /// The same space before compression, where the pool has a thin capacity.
    pub thin: Option<Thin>,
}

/// The bounds of a caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// It may wait for devices.
    MayWait,
    /// Others wait for it.
    MustNotWait,
}

/// Callback that receives the outcome of a sync. It must not wait for another sync.
pub type Synced = Box<dyn FnOnce(Result<()>) + Send>;

/// A file system's or volume's storage: an ordered map of small values, and objects made of pages.
///
/// Reads see every change applied before them. Each [`Dataset::apply`] is atomic over a crash, and changes
/// become durable in the order of their `apply` calls. Callers serialise their own conflicting changes
/// (the file system does so with its inode locks).
pub trait Dataset: Send + Sync {
    /// Returns the value of `key`, or `None` if it has none.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>>;

    /// Returns up to `limit` entries with `from <= key < to`, in ascending order. Only metadata kinds are returned,
    /// never pages.
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>>;

    /// Returns the first range of keys within `from..to` that cannot be looked up because of damage: its first key
    /// (inclusive) and its end (exclusive). [`Dataset::range`] of the keys before or behind that range need not fail.
    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)>;

    /// Applies all of `changes`, in order, as one. Changes that only free space are always admitted.
    ///
    /// Space is reserved first: [`crate::Error::NoSpace`] means that nothing was changed.
    fn apply(&self, changes: &[Change<'_>]) -> Result<()>;

    /// Returns true if [`Dataset::apply`] of whole pages to existing objects would not wait for a commit or a device
    /// now. It is a hint for callers that can wait elsewhere; false is always a correct answer.
    fn accepts_at_once(&self) -> bool {
        false
    }

    /// Returns true if a part of a page can be written without reading or decoding the rest of it: the page was written or
    /// changed a moment ago, or is not stored. It is a hint as [`Dataset::accepts_at_once`] is.
    fn is_at_hand(&self, _object: u64, _page: u64) -> bool {
        false
    }

    /// Fills `buf` with the bytes of `object` from `offset` on. Holes and bytes that were never written read as zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] if what is read does not decode, since the object's pages have another size than `record_size`;
    /// [`Error::Corrupt`] for damage; [`Error::Io`] of devices.
    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// As [`Dataset::read`], but never waits for a device: the [`Attempt`] says whether the read was done.
    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt>;

    /// Returns the first page at or after `page` that is stored, or `None` if there is none.
    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>>;

    /// Returns the first page at or after `page` that is not stored.
    fn next_hole(&self, object: u64, page: u64) -> Result<u64>;

    /// Returns the space that the pages of `object` take. Pages that were written are counted once they
    /// are committed.
    fn usage(&self, object: u64) -> Result<Usage>;

    /// Returns when every change applied before this call is durable.
    fn sync(&self) -> Result<()>;

    /// As [`Dataset::sync`], for callers that have other work to do: `then` is called with the outcome, possibly later
    /// and on another thread. A caller that may wait commits for others, too, if nobody else does: no other thread has
    /// to be woken.
    fn sync_then(&self, caller: Caller, then: Synced);

    /// As [`Dataset::sync_then`], but durability is reached even where the policy of a dataset lets `sync` return
    /// without it.
    fn settle_then(&self, caller: Caller, then: Synced) {
        self.sync_then(caller, then);
    }

    /// Returns the space of the pool as this dataset sees it.
    fn space(&self) -> Space;

    /// Returns those who can free space of the pool when a change was refused with [`crate::Error::NoSpace`]; `None` if
    /// the dataset takes no changes.
    fn reapers(&self) -> Option<&Reapers>;
}
