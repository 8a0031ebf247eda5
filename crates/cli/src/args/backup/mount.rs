//! Arguments of the verbs that mount backups and serve them to lazy datasets.

use std::path::PathBuf;

use clap::Args;

use super::super::Output;
use super::Access;

/// See [`Backup::Serve`].
#[derive(Args, Debug)]
pub struct BackupServe {
    /// Serve directories at or below this one alone.
    #[arg(long, value_name = "DIR")]
    pub restrict: Option<PathBuf>,
    /// Refuse to delete, and to write over what is there.
    #[arg(long)]
    pub append_only: bool,
}

/// See [`Backup::Mount`].
#[derive(Args, Debug)]
pub struct BackupMount {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The backup: a number, POOL/DATASET@SNAPSHOT, or POOL/DATASET for the newest.
    pub backup: String,
    /// A directory, with a slash in front or as ./DIR; or POOL/DATASET, which is made.
    pub target: String,
    /// Where the dataset is mounted, if its property says nothing.
    pub dir: Option<PathBuf>,
    /// Options of the mount, as of `pagefold mount`.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Bring what nobody reads, too.
    #[arg(long)]
    pub hydrate: bool,
    /// Bring so many bytes per second of that at most: 50M.
    #[arg(long, requires = "hydrate")]
    pub rate: Option<String>,
    /// Seconds that a read waits for a repository that does not answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub patience: u64,
    /// Memory for what was read last: 64M.
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Backup::Mounts`].
#[derive(Args, Debug)]
pub struct BackupMounts {
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}
