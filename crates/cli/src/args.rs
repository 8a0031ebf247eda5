//! The command line: verbs, options, help. Manual pages and completions are generated from it.

mod archive;
mod backup;
mod basebackup;
mod branch;
mod datasets;
mod devices;
mod files;
mod mounts;
mod pools;
mod properties;
mod show;
mod snapshots;
mod streams;
mod systemd;
mod upkeep;
mod verbs;

use clap::{Args, Parser};

pub use archive::{Archive, ArchiveFetch, ArchiveFollow, ArchiveList, ArchivePush};
pub use backup::{
    Access, Backup, BackupCheck, BackupCreate, BackupForget, BackupInit, BackupList, BackupMount,
    BackupMounts, BackupPrune, BackupRestore, BackupRestorePool, BackupRun, BackupServe, BackupShow,
    BackupVerify, RecoveryAction, Replicate,
};
pub use basebackup::{BaseFormat, Basebackup};
pub use branch::{
    BranchVerb, CreateBranch, DeleteBranch, ListBranches, ResetBranch, ServerOptions, StartBranch, StopBranch,
};
pub use datasets::{CreateDataset, Dataset, Destroy, List, ListDatasets, ListType, Rename};
pub use devices::{
    Add, Attach, Balance, Detach, DeviceOf, DeviceVerb, GivenDevice, Online, Remove, Replace, SplitPool,
};
pub use files::{Analyze, Du, Fold, Rewrite, SortBy};
pub use mounts::{Mount, Restart, Sync, Unmount};
pub use pools::{Create, Export, Import, Reguid};
pub use properties::{Get, Inherit, Set};
pub use show::{Events, Iostat, Pools, Status};
pub use snapshots::{Diff, Hold, Holds, MakeClone, Policy, Promote, Rebase, Reset, Rollback, Snapshot};
pub use streams::{Receive, Send};
pub use systemd::{Systemd, SystemdInstall, SystemdRemove, SystemdShow};
pub use upkeep::{Check, Clear, Scrub, Trim};
pub use verbs::Verb;

/// A compressed, copy-on-write file system for databases.
#[derive(Parser, Debug)]
#[command(
    name = "pagefold",
    version,
    propagate_version = false,
    subcommand_required = true,
    arg_required_else_help = true,
    after_long_help = "Examples:
  pagefold create tank /dev/sdb               make a pool on a disc
  pagefold create tank ~/tank.pf --size 10G   or in a file
  pagefold mount tank /var/lib/postgresql     use it
  pagefold du /var/lib/postgresql             what each file takes, and its ratio
  pagefold unmount tank                       put it away

Exit status: 0 done, 1 it could not be done, 2 the command line makes no sense.

Environment:
  NO_COLOR              no colour
  PAGEFOLD_LOG          what servers log: error, warn, info (default), debug,
                        trace
  PAGEFOLD_STATE_DIR    where pools are remembered (default /var/lib/pagefold,
                        for users $XDG_STATE_HOME/pagefold)
  PAGEFOLD_RUNTIME_DIR  where control sockets live (default /run/pagefold,
                        for users $XDG_RUNTIME_DIR/pagefold)
  PAGEFOLD_LOG_DIR      where servers in the background log (default
                        /var/log/pagefold, for users the state directory)
  PAGEFOLD_BACKUP_SSH   how ssh is called for repositories on other hosts
                        (default ssh)"
)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// How results are printed.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct Output {
    /// Print JSON: exact numbers, stable names.
    #[arg(long)]
    pub json: bool,
    /// Print exact numbers instead of rounded ones with units.
    #[arg(short = 'p', long = "parsable")]
    pub exact: bool,
    /// For scripts: no headings, cells separated by one tab.
    #[arg(short = 'H', long = "scripted")]
    pub script: bool,
}
