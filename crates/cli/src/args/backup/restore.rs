//! Arguments of the verbs that restore backups.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::super::ServerOptions;
use super::Access;

/// See [`Backup::Restore`].
#[derive(Args, Debug)]
pub struct BackupRestore {
    /// A directory, s3://BUCKET/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The backup: a number, POOL/DATASET@SNAPSHOT, or POOL/DATASET for the newest.
    pub backup: String,
    /// The dataset that it is restored into: POOL/DATASET.
    pub dataset: String,
    /// Give up what was changed in the dataset since its newest snapshot.
    #[arg(short = 'F', long, conflicts_with_all = ["to_time", "to_lsn", "to_latest"])]
    pub force: bool,
    /// Restore what was committed up to this time: '2026-11-25 18:00:00+00'.
    #[arg(long, value_name = "TIME", group = "point")]
    pub to_time: Option<String>,
    /// Restore what was in the log before this place: 0/3000000, as pg_current_wal_lsn() says it.
    #[arg(long, value_name = "LSN", group = "point")]
    pub to_lsn: Option<String>,
    /// Restore all that was archived.
    #[arg(long, group = "point")]
    pub to_latest: bool,
    /// Along this timeline of the cluster; the newest that comes from the backup if left out.
    #[arg(long, value_name = "N", requires = "point")]
    pub timeline: Option<u32>,
    /// The server does this at the point.
    #[arg(long, value_enum, default_value_t = RecoveryAction::Promote, requires = "point")]
    pub action: RecoveryAction,
    /// The data directory, from the dataset's root on; found if there is one.
    #[arg(long, value_name = "DIR", requires = "point")]
    pub data: Option<String>,
    /// Mount it, start its server, and wait until that has recovered.
    #[arg(long, requires = "point")]
    pub start: bool,
    /// Where it is mounted: for --start, or while a server of MariaDB repeats the log.
    #[arg(long, value_name = "DIR", requires = "point")]
    pub mountpoint: Option<PathBuf>,
    /// How its server is started.
    #[command(flatten)]
    pub server: ServerOptions,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `recovery_target_action`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// It becomes a database of its own.
    Promote,
    /// It can be read, and waits for a word.
    Pause,
    /// It ends.
    Shutdown,
}

/// See [`Backup::RestorePool`].
#[derive(Args, Debug)]
pub struct BackupRestorePool {
    /// A directory, s3://BUCKET/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The new pool's name.
    pub pool: String,
    /// Block devices or files that it is made of.
    #[arg(required_unless_present = "into", conflicts_with = "into")]
    pub devices: Vec<PathBuf>,
    /// The pool whose backups are meant, if the repository has those of several: its name, or its GUID if several share the name.
    #[arg(long, value_name = "POOL")]
    pub from: Option<String>,
    /// Restore into the pool of that name, which is there: datasets that have come already are brought up to date.
    #[arg(long)]
    pub into: bool,
    /// Make files of this size where a DEVICE does not exist.
    #[arg(long)]
    pub size: Option<String>,
    /// Even if a device holds a file system or a pool, which is lost.
    #[arg(short, long, conflicts_with = "into")]
    pub force: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
