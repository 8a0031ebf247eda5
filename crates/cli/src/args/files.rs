//! Arguments of the verbs for what files take.

use std::path::PathBuf;

use clap::Args;

use super::Output;

/// Orders in which `du` shows files.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// Stored size, largest first.
    Stored,
    /// Logical size, largest first.
    Logical,
    /// Ratio, best first.
    Ratio,
    /// Name.
    Name,
}

/// See [`super::Verb::Du`].
#[derive(Args, Debug)]
pub struct Du {
    /// Files and directories on mounted pools.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// One line for each argument only.
    #[arg(short, long)]
    pub summarize: bool,
    /// A line for every file.
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// A line for every file, and what its pages are, by which codec and model they are stored: from up to 32 of them.
    #[arg(long, conflicts_with = "summarize")]
    pub pages: bool,
    /// Sums by codec instead: all records are read.
    #[arg(long, conflicts_with_all = ["summarize", "all", "pages"])]
    pub codecs: bool,
    /// Order of the lines.
    #[arg(long, value_enum, default_value = "name")]
    pub sort: SortBy,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Analyze`].
#[derive(Args, Debug)]
pub struct Analyze {
    /// Files and directories.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// The property `compression` that the pool would have.
    #[arg(long, default_value = "page")]
    pub compression: String,
    /// Pages that are tried of each file, at most: more narrow the range.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub sample: u32,
    /// A line for every file.
    #[arg(short, long)]
    pub all: bool,
    /// Order of these lines.
    #[arg(long, value_enum, default_value = "name")]
    pub sort: SortBy,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Fold`].
#[derive(Args, Debug)]
pub struct Fold {
    /// Mounted pools, or files and directories on them.
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// Pages looked at per second at most, as bytes before compression.
    #[arg(long, value_parser = pagefold_server::units::parse_size, value_name = "BYTES")]
    pub rate: Option<u64>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Rewrite`].
#[derive(Args, Debug)]
pub struct Rewrite {
    /// Files on mounted pools; with -r also directories.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// A power of two from 4K to 1M.
    #[arg(long, value_parser = pagefold_server::units::parse_size, value_name = "BYTES")]
    pub recordsize: u64,
    /// All files in directories, and in those below them on the same mount.
    #[arg(short, long)]
    pub recursive: bool,
    /// Bytes copied per second at most, before compression.
    #[arg(long, value_parser = pagefold_server::units::parse_size, value_name = "BYTES")]
    pub rate: Option<u64>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}
