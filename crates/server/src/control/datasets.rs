//! Requests about datasets and snapshots, and the figures that answer them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Figures of a dataset or snapshot. Bytes are stored bytes, metadata counted, unless said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetFigures {
    /// Whole name.
    pub name: String,
    /// Path below the pool.
    pub path: String,
    /// True for a snapshot, false for a dataset.
    pub is_snapshot: bool,
    /// For a dataset: bytes that it, its snapshots and all datasets below it hold; for the pool's own: all bytes in
    /// use. For a snapshot: bytes that become free if it alone is destroyed.
    pub used_bytes: u64,
    /// Bytes that can still be accepted; `None` for snapshots.
    pub available_bytes: Option<u64>,
    /// Bytes that it refers to.
    pub referenced_bytes: u64,
    /// Bytes of its pages before compression.
    pub logical_bytes: u64,
    /// Bytes in which these pages and the tree are stored; a record that several pages share counts for each of them.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Part of `used_bytes` that the dataset itself holds.
    pub used_by_dataset_bytes: u64,
    /// Part of `used_bytes` that only its snapshots hold.
    pub used_by_snapshots_bytes: u64,
    /// Part of `used_bytes` that the datasets below it hold.
    pub used_by_children_bytes: u64,
    /// Bytes that were written since the snapshot before, and are still there.
    pub written_bytes: u64,
    /// Time of creation in seconds since 1970.
    pub created: u64,
    /// The snapshot that a clone began as.
    pub origin: Option<String>,
    /// Clones of a snapshot.
    pub clones: Vec<String>,
    /// Holds of a snapshot: tag, and time in seconds since 1970.
    pub holds: BTreeMap<String, u64>,
    /// Directory that its property `mountpoint` names; or `none`.
    pub mountpoint: String,
    /// Its policy of backups, or `none`. Empty for snapshots, and from a server that does not know this property.
    #[serde(default)]
    pub backup: String,
    /// Directory where it is mounted.
    #[serde(default, with = "crate::raw::maybe_path")]
    pub mounted: Option<PathBuf>,
}

/// A change of datasets and snapshots. Paths are below the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Makes an empty dataset.
    Create {
        /// Its path.
        path: String,
        /// Makes missing datasets above it, too.
        parents: bool,
        /// Properties that are set on it.
        properties: Vec<(String, String)>,
    },
    /// Makes snapshots. All snapshots of one name are made at the same instant.
    Snapshot {
        /// `dataset@name`.
        snapshots: Vec<String>,
        /// Makes snapshots of all datasets below, too.
        recursive: bool,
        /// Properties that are set on each.
        properties: Vec<(String, String)>,
    },
    /// Makes a dataset that begins as a snapshot.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The dataset's path.
        path: String,
        /// Properties that are set on it.
        properties: Vec<(String, String)>,
    },
    /// Destroys datasets and snapshots.
    Destroy {
        /// `dataset`, `dataset@name`, `dataset@first%last`, or several of the last two forms behind one `@`, separated
        /// by commas.
        what: Vec<String>,
        /// Destroys everything below, too; for snapshots, those of the same names of all datasets below.
        recursive: bool,
        /// Only tells what would be destroyed.
        dry_run: bool,
    },
    /// Returns a dataset to a snapshot.
    Rollback {
        /// The snapshot.
        snapshot: String,
        /// Destroys newer snapshots.
        newer: bool,
    },
    /// Returns a clone to the snapshot that it began as.
    Reset {
        /// The clone.
        path: String,
        /// Destroys its own snapshots.
        own: bool,
    },
    /// Makes a clone the owner of the snapshots that it shares.
    Promote {
        /// The clone.
        path: String,
    },
    /// Renames a dataset or snapshot.
    Rename {
        /// Its path before.
        from: String,
        /// Its path afterwards.
        to: String,
    },
    /// Keeps snapshots from being destroyed.
    Hold {
        /// The snapshots, as `dataset@name`.
        snapshots: Vec<String>,
        /// Includes the snapshots of the same name of all datasets below.
        recursive: bool,
        /// Name of the hold.
        tag: String,
    },
    /// Ends holds that [`Operation::Hold`] made.
    Release {
        /// The snapshots, as `dataset@name`.
        snapshots: Vec<String>,
        /// Includes the snapshots of the same name of all datasets below.
        recursive: bool,
        /// Name of the hold.
        tag: String,
    },
    /// Discards a dataset of which a part was received.
    AbortReceive {
        /// Path of the dataset.
        path: String,
    },
    /// Clears properties, so that the inherited values hold.
    Inherit {
        /// Path of the dataset or snapshot.
        path: String,
        /// Name of the property.
        name: String,
    },
}

/// The contents of a stream. Paths are below the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sendable {
    /// A snapshot.
    Snapshot {
        /// `dataset@name`.
        path: String,
        /// An earlier snapshot that the receiver has: the stream has only what changed since.
        from: Option<String>,
    },
    /// The rest of a stream that was interrupted.
    Resume {
        /// Resume token: how much the receiver has.
        token: String,
    },
}

/// Figures of a stream that was sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// The snapshot, by its whole name.
    pub name: String,
    /// Length of the stream in bytes.
    pub stream_bytes: u64,
    /// Bytes of stored pages in it.
    pub record_bytes: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of other entries of the file system that were set or deleted.
    pub values: u64,
}

/// A dataset of which a part was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialFigures {
    /// Whole name that the dataset will have.
    pub name: String,
    /// Its path below the pool.
    pub path: String,
    /// Stored bytes that it holds.
    pub used_bytes: u64,
    /// Token with which the sender goes on.
    pub receive_resume_token: String,
}

/// A difference of one file between two versions of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `created`, `removed`, `renamed`, `modified`.
    pub change: String,
    /// Path from the root of the file system; in the older version if the file was removed.
    pub path: String,
    /// Its path before it was renamed.
    pub from: Option<String>,
    /// `file`, `directory`, `symlink`, ...
    pub kind: String,
    /// Parts of a modified file that may differ, each as its first byte and the byte behind its last; empty unless
    /// asked for.
    pub ranges: Vec<(u64, u64)>,
}

/// A clone that is to be moved onto a newer snapshot. Paths are below the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moving {
    /// The clone.
    pub path: String,
    /// The snapshot: `dataset@name`.
    pub onto: String,
    /// Destroys the clone's own snapshots.
    pub own: bool,
}

/// Result of moving a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebased {
    /// Number of files and directories whose changes were brought over.
    pub files: u64,
    /// Bytes of pages that were written again, before compression.
    pub copied_bytes: u64,
    /// Paths, from the root of the file system, that both sides have changed: the first thousand. If there are any,
    /// nothing was changed.
    pub conflicts: Vec<String>,
    /// Number of all such paths.
    pub conflict_count: u64,
}

/// Result of an operation, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationResult {
    /// Datasets and snapshots that were made or destroyed, by their whole names.
    pub names: Vec<String>,
    /// Stored bytes that become free.
    pub freed_bytes: u64,
    /// For a dry run: the obstacle, and advice about it. `freed_bytes` is then what becomes free if clones are
    /// destroyed, too.
    #[serde(default)]
    pub blocked: Option<(String, Option<String>)>,
}
