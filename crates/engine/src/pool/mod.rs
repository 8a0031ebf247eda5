//! The whole: a pool that is open, and the work that keeps it going.
//!
//! - P1: the log's lock is taken before the gate; maintenance before both. Nothing takes them the other way.
//! - P2: whatever changes the segment table or a tree does so under the gate's read side, or with the log's lock;
//!   a checkpoint's cut holds both, so it sees everything at one instant.
//! - P3: after a failed write nothing is acknowledged any more (contract W6): the failure is latched.

mod background;
mod check;
mod checkpoint;
mod commit;
mod create;
mod fold;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group;
pub mod label;
mod models;
mod open;
mod recode;
mod root;
mod scan;
mod sizing;
mod status;
mod store;
mod survey;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

pub use background::Background;
pub use check::{CheckReport, Progress, check};
pub use create::{CreateOptions, create, create_on, destroy};
pub use fold::FoldReport;
pub use group::Flight;
pub use label::{Guid, Label};
pub use models::{LearnOptions, Learned};
pub use open::{CACHE_BYTES_DEFAULT, OpenOptions, ReplayReport};
pub use recode::{CALL_PAGES, PageRange, RecodeReport};
pub use scan::{Found, FoundState, scan};
pub use status::{DeviceStatus, Status, Totals};
pub use survey::{PageKind, Survey};

use crate::dataset::{Dataset, LiveDataset, PrimaryCache, Shared};
use crate::record::Compression;
use crate::space::Chunks;
use crate::tree::NodeCache;
pub use crate::txg::LogDamage;
use crate::txg::{Flushes, LogWriter, Position};
use crate::{Key, Ptr, Result};
use group::Turn;
use models::Watch;
use sizing::Sizing;

/// The writing end of the log and what it did since the last checkpoint.
struct Log {
    writer: LogWriter,
    window_bytes: u64,
}

/// What checkpoints and folding keep.
struct Maintenance {
    /// Number of the last checkpoint; also the superblock's generation.
    checkpoint: u64,
    /// Stored pages of the segment table.
    page_ptrs: BTreeMap<u64, Ptr>,
    /// Where replay would start: segments from there on are the log and are not folded.
    window_start: Position,
}

#[derive(Default)]
struct Signal {
    commit: bool,
    stop: bool,
}

/// A pool that is open.
pub struct Pool {
    labels: Vec<Label>,
    shared: Arc<Shared>,
    chunks: Arc<Chunks>,
    nodes: Arc<NodeCache>,
    dataset: Arc<LiveDataset>,
    sizing: Sizing,
    log: Mutex<Log>,
    maintenance: Mutex<Maintenance>,
    flushes: Arc<Flushes>,
    turn: Mutex<Turn>,
    /// What becomes of pages that models may code.
    watch: Mutex<Watch>,
    /// Signalled when somebody has written to the log.
    passed: Condvar,
    /// Signalled when somebody waits for a committing thread.
    work: Condvar,
    /// Memory of changed tree nodes that commits have made of each KiB of pages lately, in bytes.
    tree_growth: AtomicU64,
    /// Accepted changes that are in the log, and that are durable.
    committed: AtomicU64,
    durable: AtomicU64,
    signal: Mutex<Signal>,
    wake: Condvar,
    replayed: ReplayReport,
}

impl Pool {
    /// The pool's file system dataset.
    pub fn dataset(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.dataset) as Arc<dyn Dataset>
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        self.labels.first().map_or("", |label| &label.name)
    }

    /// The pool's GUID.
    pub fn guid(&self) -> Guid {
        self.labels.first().map_or(Guid([0; 16]), |label| label.pool)
    }

    /// Paths of the pool's devices.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.shared.devices.iter().map(|device| device.path().to_path_buf()).collect()
    }

    /// What replay did when the pool was opened.
    pub fn replayed(&self) -> ReplayReport {
        self.replayed
    }

    /// Sets how new pages are compressed from now on.
    pub fn set_compression(&self, compression: Compression) {
        *self.shared.compression.write() = compression;
    }

    /// Sets what the record cache holds from now on.
    pub fn set_primary_cache(&self, cache: PrimaryCache) {
        self.shared.primary_cache.store(cache as u8, Ordering::Relaxed);
    }

    /// Sets the memory budget of the caches, in bytes, as far as records are concerned: the bounds of tree nodes and directories
    /// stay what they were at opening.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.shared.cache.resize(bytes);
    }

    /// Leaves to the record cache what the rest does not take of the memory budget: tree nodes, clean and changed, segment
    /// directories, and accepted pages.
    fn settle_caches(&self) {
        let elsewhere = self.nodes.stats().used_bytes
            + self.shared.segments.directories_bytes()
            + self.shared.models.memory_bytes()
            + self.dataset.tree.unstored_bytes()
            + self.shared.dirty_bytes.load(Ordering::Relaxed);
        self.shared.cache.set_elsewhere(elsewhere);
    }

    /// A stored property of the pool's dataset.
    pub fn property(&self, name: &str) -> Result<Option<String>> {
        Ok(self.dataset.get(&property_key(name))?.and_then(|stored| decode_property(name, &stored)))
    }

    /// Stores a property; `None` returns it to its default. Durable with the next sync.
    pub fn set_property(&self, name: &str, value: Option<&str>) -> Result<()> {
        use crate::dataset::Change;
        let key = property_key(name);
        let change =
            value.map_or(Change::Delete(key), |value| Change::Put(key, encode_property(name, value)));
        self.dataset.apply(&[change])
    }

    /// Writes a last checkpoint and marks the pool as exported. Changes after it are refused.
    pub fn export(&self) -> Result<()> {
        self.stop_background();
        if self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.checkpoint(true)?;
        self.shared.read_only.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Properties lie in the dataset's tree under the hash of their name; the value repeats the name.
fn property_key(name: &str) -> Key {
    Key::new(0, Key::PROPERTY, xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
}

fn encode_property(name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    crate::wire::put_bytes(&mut out, name.as_bytes());
    out.extend_from_slice(value.as_bytes());
    out
}

fn decode_property(name: &str, stored: &[u8]) -> Option<String> {
    let mut reader = crate::wire::Reader::new(stored, "property");
    let found = reader.bytes(256).ok()?;
    let value = reader.take(reader.remaining()).ok()?;
    (found == name.as_bytes()).then(|| String::from_utf8_lossy(value).into_owned())
}
