//! The command line of `branch`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// See [`super::Verb::Branch`].
#[derive(Subcommand, Debug)]
pub enum BranchVerb {
    /// Make a branch: a snapshot, a clone of it, mounted; and its server.
    #[command(
        after_long_help = "The branch of tank/prod named feature-x is the dataset tank/feature-x, a clone of the snapshot
tank/prod@branch-feature-x, which is made for it and goes with it. It is mounted at --mountpoint, or else where it
belongs by the property that it inherits, or else beside the dataset that it is of: /srv/prod-feature-x.

What the server is started with, and why production does not notice: docs/SEMANTICS.md, Branches.

Examples:
  pagefold branch create tank/prod feature-x --start
  pagefold branch create tank/prod@monday before --start --port 6000
  pagefold branch create tank/prod test --set shared_buffers=1GB --start
  pagefold branch create tank/prod test --mountpoint /srv/test --data 15/main"
    )]
    Create(CreateBranch),
    /// List branches: what of, how old, how large, where they answer.
    #[command(
        after_long_help = "USED is what the branch holds alone, REFER all that it refers to, shared or not. LSN is where the log has to be read
from: PostgreSQL's redo location, InnoDB's checkpoint; - where that is not known for certain.

Examples:
  pagefold branch list
  pagefold branch list tank/prod             branches of this dataset
  pagefold branch list --json tank"
    )]
    List(ListBranches),
    /// Start a branch's database server, mounting the branch first if need be.
    #[command(after_long_help = "Examples:
  pagefold branch start tank/feature-x
  pagefold branch start tank/feature-x --port 6000")]
    Start(StartBranch),
    /// Stop a branch's database server. The branch stays mounted.
    #[command(after_long_help = "Examples:
  pagefold branch stop tank/feature-x")]
    Stop(StopBranch),
    /// Make a branch what its snapshot is, or what the dataset that it is of is now: all that was done in it is lost.
    #[command(
        after_long_help = "A server that runs is stopped and started again. The branch keeps its name, port, mount point and settings.

Examples:
  pagefold branch reset tank/feature-x             to the snapshot that it began as
  pagefold branch reset --latest tank/feature-x    to a new snapshot of the dataset that it is of
  pagefold branch reset --to tank/prod@monday tank/feature-x"
    )]
    Reset(ResetBranch),
    /// Stop a branch's server, and destroy the branch with the snapshot that was made for it.
    #[command(after_long_help = "Examples:
  pagefold branch delete tank/feature-x
  pagefold branch delete -r tank/feature-x   with snapshots of the branch")]
    Delete(DeleteBranch),
}

/// How a branch's server is started.
#[derive(Args, Debug, Clone, Default)]
pub struct ServerOptions {
    /// Its TCP port, on localhost; chosen if left out, and kept.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1024..))]
    pub port: Option<u16>,
    /// Folder of the server's programs; found by the version of the data if left out.
    #[arg(long, value_name = "DIR")]
    pub bindir: Option<PathBuf>,
    /// The server's configuration file, where that is not in the data directory.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The user that it runs as, where the data belongs to one who is there for other things than databases.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// A setting of the server (may be repeated); the last word on it.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
}

/// See [`BranchVerb::Create`].
#[derive(Args, Debug)]
pub struct CreateBranch {
    /// Of what: POOL/DATASET as it is now, or a snapshot of it.
    pub source: String,
    /// Name of the branch; POOL/DATASET for a whole one.
    pub name: String,
    /// Start its server, and wait until that answers.
    #[arg(short, long)]
    pub start: bool,
    /// Where it is mounted.
    #[arg(long, value_name = "DIR")]
    pub mountpoint: Option<PathBuf>,
    /// The data directory, from the dataset's root on, where there are several.
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// How its server is started.
    #[command(flatten)]
    pub server: ServerOptions,
    /// Print the branch as JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`BranchVerb::List`].
#[derive(Args, Debug)]
pub struct ListBranches {
    /// Pools, datasets that branches are of, or branches; all if left out.
    pub targets: Vec<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`BranchVerb::Start`].
#[derive(Args, Debug)]
pub struct StartBranch {
    /// POOL/DATASET.
    pub branch: String,
    /// How it is started, from now on.
    #[command(flatten)]
    pub server: ServerOptions,
    /// Print the branch as JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`BranchVerb::Stop`].
#[derive(Args, Debug)]
pub struct StopBranch {
    /// POOL/DATASET.
    pub branch: String,
}

/// See [`BranchVerb::Reset`].
#[derive(Args, Debug)]
pub struct ResetBranch {
    /// POOL/DATASET.
    pub branch: String,
    /// To a new snapshot of the dataset that it is of.
    #[arg(long, conflicts_with = "to")]
    pub latest: bool,
    /// To this snapshot.
    #[arg(long, value_name = "SNAPSHOT")]
    pub to: Option<String>,
    /// Destroy snapshots of the branch, which are in the way.
    #[arg(short, long)]
    pub recursive: bool,
    /// Print the branch as JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`BranchVerb::Delete`].
#[derive(Args, Debug)]
pub struct DeleteBranch {
    /// POOL/DATASET.
    pub branch: String,
    /// With its snapshots, and the datasets below it.
    #[arg(short, long)]
    pub recursive: bool,
}
