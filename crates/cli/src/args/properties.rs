//! Arguments of the verbs for properties.

use clap::Args;

use super::Output;

/// See [`super::Verb::Inherit`].
#[derive(Args, Debug)]
pub struct Inherit {
    /// Name of the property.
    pub property: String,
    /// Datasets or snapshots.
    #[arg(required = true, value_name = "DATASET")]
    pub targets: Vec<String>,
}

/// See [`super::Verb::Get`].
#[derive(Args, Debug)]
pub struct Get {
    /// Names separated by commas, or `all`.
    #[arg(value_name = "PROPERTY")]
    pub properties: String,
    /// Pools, datasets, snapshots or directories; all pools if left out.
    pub targets: Vec<String>,
    /// Also datasets and snapshots below.
    #[arg(short, long)]
    pub recursive: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Set`].
#[derive(Args, Debug)]
pub struct Set {
    /// One or more PROPERTY=VALUE, then pools, datasets, snapshots or directories.
    #[arg(required = true, num_args = 1.., value_name = "PROPERTY=VALUE|TARGET")]
    pub words: Vec<String>,
}
