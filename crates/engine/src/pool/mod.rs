//! A pool that is open, and the work that keeps it going.
//!
//! - P1: the log's lock is taken before the gate; maintenance before both. Nothing takes them the other way.
//! - P2: whatever changes the segment table or a tree does so under the gate's read side, or with the log's lock;
//!   a checkpoint's quiesce point holds both, so it sees everything at one instant.
//! - P3: after a failed write nothing is acknowledged any more (contract W6): the failure is latched.
//!
//! The lives of a checkpoint, a cleaning pass, a model, a delta and a stream, and all invariants: docs/INTERNALS.md.
//!
//! ```text
//! Opening     create, open, load, scan       makes pools; opens them; reads the segment table; finds pools on devices
//!             members                        opens devices; which member of the pool each of them is
//!             label, spare_label             what a device says of itself, as a member or as a spare
//!             membership, opening            its place in the pool; openings, by which copies are told apart
//!             identity, paths, places        which devices belong together; which paths are one device; checks places
//!             redo, ahead                    replay's second pass; many reads at once
//!             rescue                         opens damaged pools: finds their segments; what cannot be read
//!             relabel                        another name or GUID
//! Writing     commit, group                  brings accepted changes into the log; who commits when, and for whom
//!             checkpoint, root, copies       stores trees and table; the root; second copies
//!             versions, store, table_pages   trees of datasets and snapshots; loads nodes; places of the table's pages
//!             deltas, rewrites               which pages are stored as deltas; lengths of records that replace others
//! Room        clean, pack, room              the cleaner; packs records into chunks; makes free chunks for writers
//!             recompress, late, trim         codes again what is stored, also what came before its model; discards
//!             sizing, memory                 sizes that follow from the pool's; shares the memory budget out
//! Datasets    catalogue, image, stored       all datasets and snapshots; their stored form, and how it is read
//!             catalogue_ops, rebase, compare changes of them; moves a clone onto a newer snapshot; compares versions
//!             reap, listing, quotas          frees what was destroyed; what each holds; quotas and reservations
//!             thin                           how the pool compresses, for space before compression
//!             send                           streams of snapshots
//! Models      models, logs, modelled         learns and adopts models; models of logs; figures of both
//!             codecs                         the property `compression` of each dataset
//! Care        spares                         devices that stand in for others that fail, and when
//!             removal, balance, moving       empties groups; makes them equally full; moves what lies in chunks
//!             split                          makes a half of each mirror a pool of its own
//!             log_device                     a device that gets each commit first
//!             background                     the threads that do all of this in production
//!             check, scrub, repair, faults   verify everything; repair from second copies; keep counts of errors
//!             space_history, own_values      what the pool held over time; values that are logged by themselves
//!             status, survey                 figures of the pool; how an object's pages are stored
//! ```

mod ahead;
mod background;
mod balance;
mod catalogue;
mod catalogue_ops;
mod check;
mod checkpoint;
mod clean;
mod codecs;
mod coded;
mod commit;
mod compare;
mod copies;
mod copy_check;
#[cfg(feature = "crafting")]
pub mod crafting;
mod create;
mod deltas;
mod faults;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group;
mod identity;
mod image;
mod in_haste;
pub mod label;
mod lacks;
mod late;
mod listing;
mod load;
mod log_device;
mod logs;
mod members;
mod membership;
mod memory;
mod mirror_plans;
mod mirrors;
mod model_heirs;
mod modelled;
mod models;
mod moving;
mod open;
mod opening;
mod options;
mod own_values;
mod pack;
mod passed_on;
mod paths;
mod places;
mod quotas;
mod reap;
mod rebase;
mod recompress;
mod redo;
mod relabel;
mod removal;
mod repair;
mod rescue;
mod rewrites;
mod room;
mod root;
mod roster;
mod scan;
mod scrub;
mod send;
mod sizing;
mod space_history;
mod spare_label;
mod spares;
mod split;
mod status;
mod store;
mod stored;
mod survey;
mod table_pages;
#[cfg(test)]
mod testing;
mod thin;
mod traffic;
mod trim;
mod versions;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

pub use background::{Background, FILL_SHARE_BUSY};
pub use balance::{BalanceStatus, Shift};
pub use check::{CheckReport, Progress, check, check_on};
pub use clean::CleanReport;
pub use compare::Comparison;
pub use create::{
    CreateOptions, create, create_groups, create_groups_on, create_on, create_with_log_on, destroy,
};
pub use group::Flight;
pub use label::{Guid, Label, LogGroup};
pub use late::LateObject;
pub use listing::Listed;
pub use log_device::LogDeviceStatus;
pub use logs::{LOG_EXPECTED_PAGES, LOG_LEVEL, LOG_SAMPLED_PAGES};
pub use members::{can_open, lacks_log_device};
pub use membership::Membership;
pub use membership::TableSeen;
pub use memory::MemoryUse;
pub use mirror_plans::MirrorChange;
pub use mirrors::FillStatus;
pub use modelled::{ModelInUse, Modelled};
pub use models::{LearnOptions, Learned, ModelCandidate, learn_better};
pub use moving::Obstacle;
pub(crate) use open::ReplayReport;
pub use opening::{EARLIER_OPENINGS, Earlier, Opening, OpeningId, Relation, Standing};
pub use options::{CACHE_BYTES_DEFAULT, OpenOptions, Witness};
pub use quotas::QuotaUse;
pub use rebase::Rebase;
pub use recompress::{CALL_PAGES, PageRange, RecompressReport};
pub use relabel::{reguid, reguid_on, rename, rename_on};
pub use removal::RemovalStatus;
pub use rescue::{RescueReport, Unreadable};
pub use rewrites::{Rewrites, Rewritten};
pub use scan::{FoundPool, FoundState, candidates, is_log_device, read_as_scan, scan, stands};
pub use scrub::{ScrubState, ScrubStatus};
pub use send::{
    EntriesFrame, Origin, Partial, ReceiveOptions, Source, StreamEnd, StreamEntry, StreamHead, StreamItem,
    StreamPage, StreamReader, StreamWriter, Token, Transfer,
};
pub use spare_label::SpareLabel;
pub use spares::{DEVICE_RULES, SPARES_MAX, SpareState, SpareStatus};
pub use status::{DeviceState, DeviceStatus, Status, Totals};
pub use survey::{CodecReport, CodecUse, Survey};
pub use trim::{TrimState, TrimStatus};

use crate::dataset::{Dataset, LiveDataset, PrimaryCache, Shared};
use crate::memory::Beside;
use crate::record::Compression;
use crate::space::Chunks;
use crate::tree::NodeCache;
pub use crate::wal::LogDamage;
use crate::wal::{Flushes, LogWriter, Position};
use crate::{Ptr, Result};
use catalogue::Catalogue;
use clean::Cleaner;
use copies::CopiesState;
use deltas::Attempts;
use group::Turn;
use in_haste::InHaste;
use models::Watch;
use rewrites::RewriteCounters;
use roster::Labels;
use sizing::Sizing;
pub use sizing::capacity_bytes;
use table_pages::StoredPages;

/// The writing end of the log, and the bytes that were written to it since the last checkpoint.
struct Log {
    writer: LogWriter,
    window_bytes: u64,
}

/// State that checkpoints, cleaning and recompression keep.
struct Maintenance {
    /// Number of the last superblock, which is that of the last checkpoint or, before there is one, the opening
    /// superblock.
    superblock: u64,
    /// Stored pages of the segment table.
    page_ptrs: BTreeMap<u64, Ptr>,
    /// Stored pages of the catalogue, and their bytes.
    catalogue_ptrs: BTreeMap<u64, Vec<Ptr>>,
    catalogue_pages: BTreeMap<u64, Vec<u8>>,
    /// Position at which replay would start: segments from there on are the log, and are neither cleaned nor
    /// recompressed.
    window_start: Position,
    copies: CopiesState,
    cleaner: Cleaner,
}

#[derive(Default)]
struct Signal {
    commit: bool,
    stop: bool,
}

/// A pool that is open.
pub struct Pool {
    labels: Arc<Labels>,
    fill: Mutex<FillStatus>,
    copy_check: Mutex<Option<copy_check::CopyCheck>>,
    removal: Mutex<RemovalStatus>,
    balance: Mutex<balance::Balancing>,
    spares: spares::Spares,
    /// Is told of devices that have left the pool.
    on_leave: OnceLock<mirrors::LeaveHook>,
    /// The opening that every superblock names from now on; of a pool that is only read, the last one.
    opening: Opening,
    witness: Option<Witness>,
    table_pages: Arc<StoredPages>,
    shared: Arc<Shared>,
    chunks: Arc<Chunks>,
    nodes: Arc<NodeCache>,
    /// The pool's own tree: models, and blocks of dead lists. No snapshot holds it.
    own: Arc<LiveDataset>,
    /// The dataset that has the pool's name.
    dataset: Arc<LiveDataset>,
    /// All datasets that take changes, by number.
    datasets: RwLock<Arc<Vec<Arc<LiveDataset>>>>,
    /// All datasets and snapshots. Locked after the gate, and before the locks of datasets.
    catalogue: RwLock<Catalogue>,
    /// Number of times in a row that the next step of freeing could not be read. Whoever frees what was destroyed holds
    /// the lock: one at a time.
    reaping: Mutex<u32>,
    sizing: RwLock<Sizing>,
    log: Mutex<Log>,
    maintenance: Mutex<Maintenance>,
    flushes: Arc<Flushes>,
    turn: Mutex<Turn>,
    /// Counts of pages that models may code.
    watch: Mutex<Watch>,
    /// The object from which the search for objects that nobody counted goes on; `None` if all were looked at.
    sought: Mutex<Option<(u64, u64)>>,
    /// Success of deltas.
    attempts: Mutex<Attempts>,
    /// Pages that were coded fast, to be coded again.
    in_haste: Mutex<InHaste>,
    rewrites: RewriteCounters,
    /// Signalled when somebody has written to the log.
    passed: Condvar,
    /// Signalled when somebody waits for a committing thread.
    work: Condvar,
    /// Memory of changed tree nodes that commits have made of each KiB of pages lately, in bytes.
    tree_growth: AtomicU64,
    /// Number of accepted changes that are in the log; `durable` is the number of those that are durable.
    committed: AtomicU64,
    durable: AtomicU64,
    scrub: Mutex<scrub::Scrub>,
    trim: Mutex<TrimStatus>,
    space_history: Mutex<space_history::KeptHistory>,
    autotrim: AtomicBool,
    autoexpand: AtomicBool,
    signal: Mutex<Signal>,
    wake: Condvar,
    /// Set and signalled when room runs short.
    cleaning: Mutex<bool>,
    clean_wake: Condvar,
    replayed: ReplayReport,
    rescue: Option<RescueReport>,
    journalled: AtomicU64,
    /// Memory of others that counts against the budget.
    beside: Arc<Beside>,
    /// Bytes that caches give up because too much was resident.
    given_up: AtomicU64,
}

impl Pool {
    /// Returns the sizes that follow from the pool's.
    fn sizing(&self) -> Sizing {
        *self.sizing.read()
    }

    /// Returns the dataset that has the pool's name; [`Pool::open_dataset`] returns the others.
    pub fn dataset(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.dataset) as Arc<dyn Dataset>
    }

    /// Returns the pool's name.
    pub fn name(&self) -> &str {
        &self.labels.common().name
    }

    /// Returns the pool's GUID.
    pub fn guid(&self) -> Guid {
        let label = self.labels.common();
        label.pool
    }

    /// Returns the pool's opening and the number of its last superblock: how far the pool has come.
    pub fn standing(&self) -> Standing {
        Standing { opening: self.opening, generation: self.maintenance.lock().superblock, open: false }
    }

    /// Returns the paths of the pool's devices that are here, by their numbers.
    pub fn paths(&self) -> BTreeMap<u16, PathBuf> {
        let here = self.shared.devices.here();
        here.iter().map(|device| (device.number, device.one().path().to_path_buf())).collect()
    }

    /// Returns the path of a device of a group, for messages about a place on it.
    pub fn group_path(&self, group: u16) -> PathBuf {
        self.shared.devices.path_of(group)
    }

    /// Returns the report of the replay at opening.
    pub fn replayed(&self) -> ReplayReport {
        ReplayReport { journalled: self.journalled.load(Ordering::Relaxed), ..self.replayed }
    }

    /// Sets how new pages are compressed from now on, where no dataset or object has a setting of its own.
    pub fn set_compression(&self, compression: Compression) {
        let before = std::mem::replace(&mut *self.shared.compression.write(), compression);
        if before != compression {
            // Objects that were not counted so far may want a model now.
            *self.sought.lock() = Some((0, 0));
        }
    }

    /// Sets what the record cache holds from now on.
    pub fn set_primary_cache(&self, cache: PrimaryCache) {
        self.shared.primary_cache.store(cache as u8, Ordering::Relaxed);
    }

    /// Returns a property of the pool's dataset.
    ///
    /// # Errors
    /// None today: the pool's own dataset always exists.
    pub fn property(&self, name: &str) -> Result<Option<String>> {
        self.property_of("", name)
    }

    /// Sets a property; `None` returns it to its default.
    ///
    /// # Errors
    /// As of a commit.
    pub fn set_property(&self, name: &str, value: Option<&str>) -> Result<()> {
        self.set_property_of("", name, value)
    }

    /// Writes a last checkpoint and marks the pool as exported. Changes after it are refused.
    ///
    /// # Errors
    /// As of a checkpoint; [`crate::Error::Failed`] again if an earlier call failed.
    pub fn export(&self) -> Result<()> {
        self.stop_background();
        if self.shared.read_only.load(Ordering::Relaxed) {
            return self.check_failed();
        }
        self.restore_room(&mut self.maintenance.lock())?;
        self.checkpoint(true)?;
        if let Some(witness) = &self.witness {
            witness.tell(&self.standing());
        }
        Ok(())
    }
}
