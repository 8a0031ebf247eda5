//! Arguments of the verbs for mounts.

use std::path::PathBuf;

use clap::Args;

/// See [`super::Verb::Mount`].
#[derive(Args, Debug)]
pub struct Mount {
    /// A dataset (POOL or POOL/DATASET), a snapshot, or one of a pool's devices.
    #[arg(required_unless_present = "all")]
    pub source: Option<String>,
    /// Where to mount; the mountpoint property if left out.
    pub dir: Option<PathBuf>,
    /// Everything that has a mountpoint property and is not mounted: of all pools, or of the dataset and what is below it.
    #[arg(short, long, conflicts_with = "dir")]
    pub all: bool,
    /// Options, separated by commas (may be repeated).
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Check everything that can be checked without mounting, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Tell on standard output, in JSON, when the mount is usable or why it is not, then go into the background.
    #[arg(long, hide = true)]
    pub report: bool,
    /// Options that the pool has as properties; those of -o win.
    #[arg(long, hide = true, value_name = "OPTIONS", value_delimiter = ',')]
    pub pool_options: Option<Vec<String>>,
    /// The line to the supervisor. Supervisors of earlier versions, which start servers of this one, pass it by this
    /// name.
    #[arg(long = "held-by", hide = true, value_name = "FD")]
    pub supervisor: Option<i32>,
    /// The line to the server that this process mounts for.
    #[arg(long, hide = true, value_name = "FD")]
    pub mounts_for: Option<i32>,
}

impl Mount {
    /// Returns the arguments that mount a dataset or snapshot, at `dir` or where its property says, without options.
    pub const fn of(source: String, dir: Option<PathBuf>) -> Self {
        Self {
            source: Some(source),
            dir,
            all: false,
            options: Vec::new(),
            dry_run: false,
            report: false,
            pool_options: None,
            supervisor: None,
            mounts_for: None,
        }
    }
}

/// See [`super::Verb::Unmount`].
#[derive(Args, Debug)]
pub struct Unmount {
    /// A dataset with all below it, a snapshot, or a directory for what is mounted there. A pool's name: all of it.
    #[arg(required_unless_present = "all")]
    pub target: Option<String>,
    /// Everything that is mounted, pool by pool.
    #[arg(short, long, conflicts_with = "target")]
    pub all: bool,
    /// Detach now; it ends when the last user is gone.
    #[arg(short, long)]
    pub lazy: bool,
    /// Detach now and close at once: processes that still use it get errors.
    #[arg(short, long)]
    pub force: bool,
}

/// See [`super::Verb::Restart`].
#[derive(Args, Debug)]
pub struct Restart {
    /// Pools or directories.
    #[arg(required = true)]
    pub targets: Vec<String>,
}

/// See [`super::Verb::Sync`].
#[derive(Args, Debug)]
pub struct Sync {
    /// Pools or directories; all mounted pools if left out.
    pub targets: Vec<String>,
}
