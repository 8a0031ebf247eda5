//! Arguments of the verbs for datasets: make, destroy, list and rename.

use clap::{Args, Subcommand};

use super::Output;

/// See [`super::Verb::Destroy`].
#[derive(Args, Debug)]
pub struct Destroy {
    /// DATASET, DATASET@SNAPSHOT, DATASET@FIRST%LAST, or a pool.
    #[arg(required = true, value_name = "WHAT")]
    pub what: Vec<String>,
    /// With a dataset, all below it; with a snapshot, those of its name of all datasets below.
    #[arg(short, long)]
    pub recursive: bool,
    /// Destroy nothing, and print exactly what would be destroyed and freed.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print what was destroyed, and what that frees.
    #[arg(short, long)]
    pub verbose: bool,
    /// A pool: do not ask; unmount first if need be.
    #[arg(short, long)]
    pub force: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Dataset`].
#[derive(Subcommand, Debug)]
pub enum Dataset {
    /// Make an empty dataset.
    #[command(after_long_help = "Examples:
  pagefold dataset create tank/db
  pagefold dataset create -p tank/db/prod -o recordsize=8K")]
    Create(CreateDataset),
    /// Destroy datasets; as `pagefold destroy`.
    #[command(after_long_help = "Examples:
  pagefold dataset destroy tank/db
  pagefold dataset destroy -rn tank/db       what would that free?")]
    Destroy(Destroy),
    /// List datasets with what they hold; as `pagefold list -t dataset`.
    #[command(after_long_help = "Examples:
  pagefold dataset list
  pagefold dataset list --snapshots tank/db")]
    List(ListDatasets),
    /// Rename a dataset, with those below it; as `pagefold rename`.
    #[command(after_long_help = "Examples:
  pagefold dataset rename tank/db tank/old")]
    Rename(Rename),
}

/// See [`Dataset::Create`].
#[derive(Args, Debug)]
pub struct CreateDataset {
    /// POOL/DATASET.
    pub dataset: String,
    /// Make the datasets above it, too, as far as they are missing.
    #[arg(short, long)]
    pub parents: bool,
    /// Set a property (may be repeated).
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub properties: Vec<String>,
}

/// See [`Dataset::List`].
#[derive(Args, Debug)]
pub struct ListDatasets {
    /// Pools, datasets or directories; all if left out.
    pub targets: Vec<String>,
    /// Their snapshots, too.
    #[arg(short, long)]
    pub snapshots: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// Kinds of things that `list` shows.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType {
    /// Pools.
    Pool,
    /// Datasets.
    #[value(alias = "filesystem")]
    Dataset,
    /// Snapshots.
    Snapshot,
    /// Datasets and snapshots.
    All,
    /// Datasets that were received in part, with the tokens to go on.
    Partial,
}

/// See [`super::Verb::List`].
#[derive(Args, Debug)]
pub struct List {
    /// Pools, datasets, snapshots or directories; all pools if left out.
    pub targets: Vec<String>,
    /// Kind of things to show: pools unless a dataset or snapshot is named.
    #[arg(short = 't', long = "type", value_enum)]
    pub kind: Option<ListType>,
    /// Also those below a dataset that is named.
    #[arg(short, long)]
    pub recursive: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Rename`].
#[derive(Args, Debug)]
pub struct Rename {
    /// DATASET or DATASET@NAME.
    pub from: String,
    /// The new name; of a snapshot, the part behind @ is enough.
    pub to: String,
}
