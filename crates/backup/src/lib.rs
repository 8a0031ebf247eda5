//! Backups: snapshots of datasets as immutable objects in a directory, here or on another host, or in an object store.
//!
//! A backup is made of a stream of [`pagefold_engine::pool::Pool::send`], and restored by writing one. So records go as
//! they are stored: nothing is decoded or coded again, and the pool's server learns nothing of stores and keys. The
//! objects, byte by byte: docs/BACKUP-FORMAT.md. The reasons: docs/decisions/0043-backups.md.
//!
//! - B1: an object is written once and never changed; only a damaged description of the repository is written again, as
//!   it was. A pack has a random name that no other ever has.
//! - B2: a backup exists if and only if the newest intact commit of the log lists it. Commits are numbered without
//!   gaps, each is made by a create that fails if the number is taken, and names the hash of the one before.
//! - B3: what the newest commit lists needs no pack that was deleted. `prune` deletes only what two prunes found
//!   unreferenced, and a writer whose epoch is more than one prune old cannot commit.
//! - B4: nothing that was read is used before its seal was verified, which binds it to its repository, its object, its
//!   place and its kind.
//! - B5: a file of a database's log is there as a whole under the name of its cluster and its own, or not at all; a
//!   file that was reported as archived is durable.
//!
//! ```text
//! repository, commit, root, chunk   a repository; its log of commits; a backup's manifest
//! create, merge, upload             make a backup; its manifest out of the one before; packs on their way
//! restore, contents                 write a backup as a stream; read parts of one
//! verify, prune, repack             read back; delete what nothing needs; empty packs that are mostly dead
//! archive                           logs of database clusters, file by file; which points can be restored
//! binlog                            binary logs of MariaDB, part by part
//! pack, block                       immutable objects of blocks, and places in them
//! keys                              seals, and encryption
//! store, directory, remote, bucket  the one door to objects: in a directory, on another host, in a bucket
//! location                          names of these places
//! seen                              what this machine remembers of repositories
//! ```

mod archive;
mod binlog;
mod block;
mod bucket;
mod chunk;
mod commit;
mod contents;
#[cfg(any(test, feature = "fuzzing"))]
pub mod crafted;
mod create;
mod directory;
mod error;
mod fetch;
#[cfg(test)]
mod format_tests;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod keys;
pub mod limits;
mod location;
mod merge;
mod pack;
mod prune;
mod remote;
mod repack;
mod repository;
mod restore;
mod root;
#[cfg(any(test, feature = "fuzzing"))]
mod samples;
mod seen;
mod store;
mod upload;
mod verify;

pub use archive::timeline::{ClusterLog, Line, Reach, Stretch, UnreadableHistory};
pub use archive::{Archived, LogFile, PrunedLogs, Pushed};
pub use binlog::{
    ArchivedPart, Binlog, BinlogLine, BinlogName, BinlogPart, BinlogPlace, Event, PartFacts, Role, Scan,
    clear_in_use,
};
pub use block::{BlockRef, ModelRef, RecordRef};
pub use bucket::{Bucket, Service};
pub use chunk::{Entry, PageEntry};
pub use commit::{Backup, BinlogEnd, Cluster, Described};
pub use contents::Contents;
pub use create::{CreateOptions, Created};
pub use error::{Error, Result};
pub use keys::Secret;
pub use location::{Location, Patience};
pub use pack::PackId;
pub use prune::{Keep, Pruned, select};
pub use remote::{Host, ServeOptions, serve};
pub use repack::Repacked;
pub use repository::{InitOptions, Repository};
pub use restore::Restored;
pub use root::{Row, Totals};
pub use seen::Seen;
pub use store::{Requests, Store};
pub use verify::{Checked, Damage};
