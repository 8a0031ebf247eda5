//! Arguments of the verbs for snapshots and clones.

use clap::Args;

use super::Output;

/// See [`super::Verb::Snapshot`].
#[derive(Args, Debug)]
pub struct Snapshot {
    /// DATASET@NAME (several: those of one name are of one instant).
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
    /// Of all datasets below, too.
    #[arg(short, long)]
    pub recursive: bool,
    /// Set a user property on each (may be repeated).
    #[arg(short = 'o', value_name = "NAME:X=VALUE")]
    pub properties: Vec<String>,
}

/// See [`super::Verb::Clone`].
#[derive(Args, Debug)]
pub struct MakeClone {
    /// DATASET@NAME.
    pub snapshot: String,
    /// POOL/DATASET that is to be made.
    pub dataset: String,
    /// Set a property (may be repeated).
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub properties: Vec<String>,
}

/// See [`super::Verb::Rollback`].
#[derive(Args, Debug)]
pub struct Rollback {
    /// DATASET@NAME.
    pub snapshot: String,
    /// Destroy newer snapshots, which are in the way.
    #[arg(short, long)]
    pub recursive: bool,
}

/// See [`super::Verb::Reset`].
#[derive(Args, Debug)]
pub struct Reset {
    /// The clone.
    pub dataset: String,
    /// Destroy its own snapshots, which are in the way.
    #[arg(short, long)]
    pub recursive: bool,
}

/// See [`super::Verb::Rebase`].
#[derive(Args, Debug)]
pub struct Rebase {
    /// The clone.
    pub dataset: String,
    /// DATASET@NAME: newer than the one that it was made from.
    pub snapshot: String,
    /// Destroy the clone's own snapshots, which are in the way.
    #[arg(short, long)]
    pub recursive: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`super::Verb::Promote`].
#[derive(Args, Debug)]
pub struct Promote {
    /// The clone.
    pub dataset: String,
}

/// See [`super::Verb::Policy`].
#[derive(Args, Debug)]
pub struct Policy {
    /// The dataset.
    pub dataset: String,
    /// none, or one or more of minutely=N, hourly=N, daily=N, weekly=N, monthly=N, separated by commas; shows it if left out.
    pub policy: Option<String>,
    /// Of the datasets below, too.
    #[arg(short, long)]
    pub recursive: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Hold`].
#[derive(Args, Debug)]
pub struct Hold {
    /// Name of the hold.
    pub tag: String,
    /// DATASET@NAME.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
    /// Those of the same name of all datasets below, too.
    #[arg(short, long)]
    pub recursive: bool,
}

/// See [`super::Verb::Holds`].
#[derive(Args, Debug)]
pub struct Holds {
    /// DATASET@NAME.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<String>,
    /// Those of the same name of all datasets below, too.
    #[arg(short, long)]
    pub recursive: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Diff`].
#[derive(Args, Debug)]
pub struct Diff {
    /// DATASET@NAME.
    pub old: String,
    /// A later snapshot, or the dataset.
    pub new: String,
    /// Show which bytes of modified files may be others.
    #[arg(short, long)]
    pub ranges: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
