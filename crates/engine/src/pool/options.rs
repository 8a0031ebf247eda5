//! How a pool is opened.

use std::path::PathBuf;
use std::sync::Arc;

use super::membership::TableSeen;
use super::opening::Standing;
use crate::dataset::Journal;
use crate::segment::PageIds;

/// Options for opening a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Change nothing on the devices; replay happens in memory.
    pub read_only: bool,
    /// Memory for all caches of the engine, in bytes.
    pub cache_bytes: u64,
    /// Bytes of log at which a checkpoint is made; `None`: a size that follows from the pool's.
    pub log_bytes: Option<u64>,
    /// Open the pool as it was before the damage if the log is damaged before its end, and lose what had been
    /// acknowledged since. Without this option such damage is an error.
    pub accept_loss: bool,
    /// Open the pool although parts of its metadata are damaged, to read the rest; nothing below a damaged part can be
    /// read. Needs `read_only` and `accept_loss`; [`OpenOptions::for_rescue`] sets all three.
    pub rescue: bool,
    /// A number that no other opening of the pool was given (T5), which is also the nonce of the opening. The default
    /// draws one at random.
    pub salt: u64,
    /// Time of the opening, in seconds since 1970; it is shown to people.
    pub now: u64,
    /// Standing that the pool is known to have reached. A pool that has not come as far is a copy, and is not opened.
    pub since: Option<Standing>,
    /// Tables of its groups that the pool is known to have had. A pool whose labels have not come as far is what a mirror
    /// left out before, and is not opened.
    pub since_tables: Vec<TableSeen>,
    /// Witness that is told how far the pool has come, once an opening for writing has written its superblock, and
    /// when that opening ends.
    pub witness: Option<Witness>,
    /// Number of reads that may be under way at once while the pool is opened. With 1 they come one by one, always in
    /// the same order.
    pub reads_at_once: usize,
    /// Number of segments that share a page of the segment table, for a pool that has no page yet; with it, the
    /// simulator's small pools have tables of many pages. `None`: the number that the pool has.
    pub table_page_ids: Option<PageIds>,
    /// Approximate memory that entries of the segment table may take, in bytes; others are read when they are needed.
    /// `None`: a part of [`OpenOptions::cache_bytes`].
    pub table_bytes: Option<u64>,
    /// Journal in which changes are entered when they are accepted, so that they survive the process. Changes that a
    /// dead process left in it are redone. Not for `read_only` and `accept_loss`.
    pub journal: Option<Arc<Journal>>,
    /// Path of a file, which must not exist yet, to which every write and flush of the devices is recorded.
    pub record: Option<PathBuf>,
}

/// Default of [`OpenOptions::cache_bytes`].
pub const CACHE_BYTES_DEFAULT: u64 = 384 << 20;

/// Default of [`OpenOptions::reads_at_once`]. It hides a latency of 5 ms per read, as of a disc or a remote volume.
pub(crate) const READS_AT_ONCE_DEFAULT: usize = 64;

impl Default for OpenOptions {
    fn default() -> Self {
        let salt = random_salt();
        Self {
            read_only: false,
            cache_bytes: CACHE_BYTES_DEFAULT,
            log_bytes: None,
            accept_loss: false,
            rescue: false,
            salt,
            now: 0,
            since: None,
            since_tables: Vec::new(),
            witness: None,
            reads_at_once: READS_AT_ONCE_DEFAULT,
            table_page_ids: None,
            table_bytes: None,
            journal: None,
            record: None,
        }
    }
}

impl OpenOptions {
    /// Returns options for reading what is left of a damaged pool.
    pub fn for_rescue() -> Self {
        Self { read_only: true, accept_loss: true, rescue: true, ..Self::default() }
    }
}

/// Callbacks that are told how far a pool has come.
#[derive(Clone)]
pub struct Witness {
    standing: Arc<dyn Fn(&Standing) + Send + Sync>,
    table: Arc<dyn Fn(&TableSeen) + Send + Sync>,
}

impl Witness {
    /// Makes a witness that calls `tell`, within the opening or closing of the pool.
    pub fn new(tell: impl Fn(&Standing) + Send + Sync + 'static) -> Self {
        Self { standing: Arc::new(tell), table: Arc::new(|_| ()) }
    }

    /// Returns the witness with a callback for the tables of groups. It is called when an opening counts, and whenever
    /// the labels of a group have another table, before anything is acknowledged that the devices lack that were left out.
    #[must_use]
    pub fn with_tables(self, tell: impl Fn(&TableSeen) + Send + Sync + 'static) -> Self {
        Self { table: Arc::new(tell), ..self }
    }

    pub(super) fn tell(&self, standing: &Standing) {
        (self.standing)(standing);
    }

    pub(super) fn tell_table(&self, table: &TableSeen) {
        (self.table)(table);
    }
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Witness")
    }
}

/// Returns a random number. The standard library keys each hash map anew from the operating system's randomness.
fn random_salt() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}
