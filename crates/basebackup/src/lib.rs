//! Base backups in PostgreSQL's own format: the files that `pg_basebackup` makes, from a folder that does not change.
//!
//! The folder is a data directory in a snapshot. So there are no torn pages, nothing appears or goes while it is read,
//! and all of it is of one instant. Nothing is known here of pools, datasets and mounts.
//!
//! - K1: a backup of a snapshot alone has no `backup_label`: it is what a crash at that instant would have left, and
//!   recovers as after one. A backup that a server was told of has the label that the server wrote, files of an instant
//!   between start and stop, and the log from start to stop (docs/decisions/0045-basebackup.md tells why).
//! - K2: the log that recovery needs is in the backup, up to the end of a whole record, or there is no backup: [`wal`]
//!   reads it as the server would.
//! - K3: an incomplete backup does not look complete. Archives have temporary names until all are complete; in a
//!   directory `global/pg_control`, without which no server starts, comes last. The manifest comes after everything
//!   else.
//! - K4: memory is bounded, whatever the database holds: [`limits`].
//!
//! Layers, each of which uses only those below: `backup`, `archives` and `plain`, `sink`, `read`, `plan`, `compress`,
//! `manifest`, `tablespace`, `wal`, `segment`, `control`, `names`, `error`, `limits`.
//!
//! ```text
//! control, wal, segment, tablespace, names   read a cluster's files
//! plan                                       decides all of a backup beforehand
//! read                                       reads ahead, and verifies
//! compress                                   gzip, LZ4 and zstd on several threads
//! sink, archives, plain, manifest            write archives or plain files, and the list of them
//! backup                                     the whole
//! ```
//!
//! Snapshots, the places where they can be read, and the server that is told of a backup are the affair of the verb
//! (`cli/verbs/basebackup`).

mod archives;
mod backup;
pub mod compress;
pub mod control;
mod error;
pub mod limits;
pub mod manifest;
mod names;
mod plain;
mod plan;
mod read;
pub mod segment;
mod sink;
pub mod tablespace;
pub mod wal;

pub use backup::{Done, Format, Options, Source, Start, make};
pub use error::{Error, Result};
