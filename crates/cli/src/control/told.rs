//! What is asked of and told about datasets and snapshots.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is known of a dataset or snapshot. Bytes are stored bytes, metadata counted, unless said otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Whole name.
    pub name: String,
    /// Below the pool.
    pub path: String,
    /// Whether it is a snapshot, and not a dataset.
    pub is_snapshot: bool,
    /// A dataset: what it, its snapshots and all below it hold; the pool's own: all that is in use. A snapshot: what becomes free if
    /// it alone is destroyed.
    pub used_bytes: u64,
    /// What can still be accepted; none for snapshots.
    pub available_bytes: Option<u64>,
    /// What it refers to.
    pub referenced_bytes: u64,
    /// Bytes of its pages before compression.
    pub logical_bytes: u64,
    /// What these pages and the tree are stored in; what several pages share counts for each of them.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Of `used_bytes`, what it holds itself.
    pub used_by_dataset_bytes: u64,
    /// Of `used_bytes`, what only its snapshots hold.
    pub used_by_snapshots_bytes: u64,
    /// Of `used_bytes`, what the datasets below it hold.
    pub used_by_children_bytes: u64,
    /// Written since the snapshot before, and still there.
    pub written_bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// The snapshot that a clone began as.
    pub origin: Option<String>,
    /// Clones of a snapshot.
    pub clones: Vec<String>,
    /// Holds of a snapshot, with seconds since 1970.
    pub holds: BTreeMap<String, u64>,
    /// Where it belongs by its property; `none`.
    pub mountpoint: String,
    /// Its policy of backups; `none`. Empty for snapshots, and from a server that knows of none.
    #[serde(default)]
    pub backup: String,
    /// Where it is mounted.
    #[serde(default, with = "crate::raw::maybe_path")]
    pub mounted: Option<PathBuf>,
}

/// What is to be done. Paths are below the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Deed {
    /// Makes an empty dataset.
    Create {
        /// Its path.
        path: String,
        /// Those above it, too, as far as they are missing.
        parents: bool,
        /// Set on it.
        properties: Vec<(String, String)>,
    },
    /// Makes snapshots; those of one name at one instant.
    Snapshot {
        /// `dataset@name`.
        snapshots: Vec<String>,
        /// Of all datasets below, too.
        recursive: bool,
        /// Set on each.
        properties: Vec<(String, String)>,
    },
    /// Makes a dataset that begins as a snapshot.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The dataset's path.
        path: String,
        /// Set on it.
        properties: Vec<(String, String)>,
    },
    /// Destroys datasets and snapshots.
    Destroy {
        /// `dataset`, `dataset@name`, `dataset@first%last`, or several of the latter behind one `@`, separated by commas.
        what: Vec<String>,
        /// What is below, too; for snapshots, those of these names of all datasets below.
        recursive: bool,
        /// Only tells what would be done.
        dry_run: bool,
    },
    /// Returns a dataset to a snapshot.
    Rollback {
        /// The snapshot.
        snapshot: String,
        /// Destroys newer ones.
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
    /// Names a dataset or snapshot anew.
    Rename {
        /// Which.
        from: String,
        /// Its path then.
        to: String,
    },
    /// Keeps snapshots from being destroyed.
    Hold {
        /// Which.
        snapshots: Vec<String>,
        /// Those of the same name of all datasets below, too.
        recursive: bool,
        /// By which name.
        tag: String,
    },
    /// Ends [`Deed::Hold`].
    Release {
        /// Which.
        snapshots: Vec<String>,
        /// Those of the same name of all datasets below, too.
        recursive: bool,
        /// By which name.
        tag: String,
    },
    /// Gives up what was received in part.
    AbortReceive {
        /// The dataset that was to become of it.
        path: String,
    },
    /// Clears properties, so that what is inherited holds.
    Inherit {
        /// Dataset or snapshot.
        path: String,
        /// Which property.
        name: String,
    },
}

/// What is to be sent. Paths are below the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sendable {
    /// A snapshot.
    Snapshot {
        /// `dataset@name`.
        path: String,
        /// The snapshot before it that the receiver has: only what changed since is sent.
        from: Option<String>,
    },
    /// What a receiver that was interrupted lacks.
    Resume {
        /// What it has.
        token: String,
    },
}

/// What went through a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// The snapshot, by its whole name.
    pub name: String,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Of these, stored pages.
    pub record_bytes: u64,
    /// How many pages.
    pub pages: u64,
    /// Other entries of the file system that were set or deleted.
    pub values: u64,
}

/// What was received in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialFigures {
    /// Whole name of the dataset that is to become of it.
    pub name: String,
    /// The same, below the pool.
    pub path: String,
    /// Stored bytes that it holds.
    pub used_bytes: u64,
    /// With what the sender goes on.
    pub receive_resume_token: String,
}

/// How a file differs between two versions of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `created`, `removed`, `renamed`, `modified`.
    pub change: String,
    /// From the root of the file system on; in the older version if it was removed.
    pub path: String,
    /// Its path before it was renamed.
    pub from: Option<String>,
    /// `file`, `directory`, `symlink`, ...
    pub kind: String,
    /// First byte, and the one behind the last, of each part of a modified file that may be another, if that was asked for.
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

/// What came of moving a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebased {
    /// Files and directories whose changes were brought over.
    pub files: u64,
    /// Bytes of pages that were written again, uncompressed.
    pub copied_bytes: u64,
    /// What both have changed, by paths from the root of the file system on: the first thousand. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
    /// How many there are.
    pub conflict_count: u64,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Datasets and snapshots that were made or destroyed, by their whole names.
    pub names: Vec<String>,
    /// Stored bytes that become free.
    pub freed_bytes: u64,
    /// Of a dry run: what is in the way, and what to do about it. `freed_bytes` is then what goes if clones go as well.
    #[serde(default)]
    pub blocked: Option<(String, Option<String>)>,
}
