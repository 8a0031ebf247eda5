//! The seam between the server and its front ends: a [`FrontEnd`] exports datasets and snapshots, and each [`Export`] is
//! one of them that clients can reach.
//!
//! ```text
//! check      examines the place of an export and touches nothing else
//! start      makes an export; when it returns, clients can use it
//! resume     goes on with an export that the previous server had its supervisor keep (`Export::hand_over`)
//! stop       takes an export away; `wait` returns when the last client's request was answered
//! ```
//!
//! A front end serves files (`ExportSource::open_files`) or the dataset itself (`ExportSource::dataset`). FUSE is one
//! (`fuse`); the tests have another one, without the FUSE crate (`toy`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_engine::Key;
use pagefold_engine::dataset::{Dataset, Journal};
use pagefold_engine::pool::Pool;
use pagefold_fs::{Fs, FsError, FsOptions, Ino, SystemClock};
use parking_lot::RwLock;
use serde_json::{Map, Value};

use super::looked_into::LookedInto;
use crate::failure::{Context, Result};
use crate::mountopts::MountOptions;
use crate::{engine_errors, pools};

/// A mount that was asked for.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// Path of the dataset or snapshot, below the pool.
    pub path: String,
    /// Directory of the mount, an absolute path.
    pub dir: PathBuf,
    /// Options of the mount.
    pub options: MountOptions,
}

impl MountRequest {
    /// Returns true if a snapshot was asked for.
    pub fn is_snapshot(&self) -> bool {
        self.path.contains('@')
    }
}

/// Notes what clients know of a snapshot, for the server that goes on when this one dies.
pub(crate) type NoteSnapshot = Arc<dyn Fn(LookedInto) -> Result<()> + Send + Sync>;

/// A dataset or snapshot that is to be exported, and the parts of the server that a front end may use for that.
pub(crate) struct ExportSource {
    /// Its name, with the pool's.
    pub name: String,
    /// Its number.
    pub id: u64,
    /// The place and the options.
    pub wanted: MountRequest,
    /// True if clients may change nothing.
    pub read_only: bool,
    /// True if another server goes on when this one dies.
    pub is_supervised: bool,
    /// The dataset, under its `sync` policy.
    pub dataset: Arc<dyn Dataset>,
    /// True if some of it is only in a backup.
    pub is_incomplete: bool,
    /// Options of its file system.
    pub fs_options: FsOptions,
    /// The pool.
    pub pool: Arc<Pool>,
    /// Lock that is held for writing while snapshots are destroyed.
    pub dataset_lock: Arc<RwLock<()>>,
    /// The journal of accepted changes, if there is one and the export is entered in it.
    pub journal: Option<Arc<Journal>>,
    /// Number of the export in the journal.
    pub connection: u32,
    /// Snapshots of which clients of the previous server know files.
    pub looked_into: Vec<LookedInto>,
    /// To be called whenever that changes: before clients get to know more, which they may not if it fails.
    pub note_snapshot: NoteSnapshot,
}

impl ExportSource {
    /// Opens the file system of the dataset. If a crash came after the dataset was made and before its file system was,
    /// makes that first.
    pub(crate) fn open_files(&self) -> Result<Arc<Fs>> {
        let open = || Fs::mount(Arc::clone(&self.dataset), Arc::new(SystemClock), self.fs_options.clone());
        let fs = match open() {
            Err(FsError::NotFound) if !self.read_only && is_empty(self.dataset.as_ref())? => {
                pools::format(self.dataset.as_ref(), &self.name)?;
                open()
            }
            opened => opened,
        };
        fs.context(|| format!("cannot open the file system of {}", self.name))
    }
}

/// Returns true if a dataset has no entries at all.
fn is_empty(dataset: &dyn Dataset) -> Result<bool> {
    let found = dataset.range(&Key::new(0, 0, 0), &Key::new(u64::MAX, 0, 0), 1);
    found
        .map(|found| found.is_empty())
        .map_err(|error| engine_errors::failed("cannot read the dataset", &error))
}

/// Ways to stop an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// Only if no client uses it.
    Idle,
    /// Takes it away at once; clients that use it go on until they have done.
    Lazy,
    /// Takes it away and has the clients that use it get errors.
    CutOff,
    /// Ends the connection to clients by force.
    Abort,
}

/// State of an export that the next server needs to go on with it.
#[derive(Clone, Debug)]
pub(crate) struct ExportState {
    /// The connection to the clients.
    pub connection: Arc<OwnedFd>,
    /// The place of the export ([`Export::place`]).
    pub place: PathBuf,
    /// Its number ([`Export::device`]).
    pub device: u32,
    /// State that only its front end knows, by name.
    pub detail: Map<String, Value>,
}

/// A file of a dataset or snapshot.
pub(crate) struct VersionFile {
    /// Number of the dataset or snapshot.
    pub version: u64,
    /// Its file system.
    pub fs: Arc<Fs>,
    /// The file's inode in it.
    pub ino: Ino,
}

/// A kind of front end.
pub(crate) trait FrontEnd: Send + Sync {
    /// Returns an error if `wanted` cannot be exported because of its place. Nothing else is touched. `name` is the
    /// name of the dataset or snapshot, with the pool's.
    fn check(&self, name: &str, wanted: &MountRequest) -> Result<()>;

    /// Exports `source`. Returns when clients can use it; after an error there is no export.
    fn start(&self, source: &ExportSource) -> Result<Box<dyn Export>>;

    /// Goes on with an export of the previous server; after an error the export is as it was.
    fn resume(&self, source: &ExportSource, state: ExportState) -> Result<Box<dyn Export>>;

    /// Notes that this server has gone on with all exports of the previous one. Before that, none may be taken away:
    /// the next server may need it.
    fn takeover_complete(&self) {}

    /// Returns the memory that requests under way take, in bytes.
    fn request_bytes(&self) -> u64 {
        0
    }
}

/// A dataset or snapshot that clients can reach. Dropping it takes it away.
pub(crate) trait Export: Send + Sync {
    /// Returns the place where it was exported; for a mount its directory, without symbolic links.
    fn place(&self) -> &Path;

    /// Returns all places where clients can reach it now: its own place first, if it is there; those at which clients reach
    /// a part of it come last. Empty if it was taken away and only clients that use it keep it.
    fn places(&self) -> Vec<PathBuf>;

    /// Returns the number that no other export of this machine has; for a mount the minor number of its device.
    fn device(&self) -> u32;

    /// Returns the word for `status` that says how requests travel.
    fn transport(&self) -> &'static str;

    /// Returns the file system, if it exports files.
    fn files(&self) -> Option<&Arc<Fs>> {
        None
    }

    /// Returns the file with this inode number, as clients see it, if it lies in a snapshot that the export shows.
    fn file_in_snapshot(&self, _ino: u64) -> Option<VersionFile> {
        None
    }

    /// Refuses changes from now on, or allows them again.
    fn set_read_only(&self, on: bool);

    /// Takes it away from all its places. Returns a place where it stays because it is in use.
    fn stop(&self, mode: StopMode) -> Result<Option<PathBuf>, String>;

    /// Returns when it was taken away, by whomever, and the last request was answered.
    fn wait(&self);

    /// Returns the state that the next server needs.
    fn hand_over(&self) -> ExportState;

    /// Returns how many files of a snapshot clients have open below the directory that shows it.
    fn open_files(&self, _id: u64) -> u64 {
        0
    }

    /// Ends all reading of a snapshot that is to be destroyed. Returns false if requests read it just now.
    fn close_snapshot(&self, _id: u64) -> bool {
        true
    }

    /// Drops memory that was not used since the last call.
    fn trim_memory(&self) {}
}
