//! Arguments of the verbs that show the state of pools.

use clap::Args;

use super::Output;

/// Verbs that show some or all pools.
#[derive(Args, Debug)]
pub struct Pools {
    /// Pools or directories; all if left out.
    pub targets: Vec<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Status`].
#[derive(Args, Debug)]
pub struct Status {
    /// Pools or directories; all if left out.
    pub targets: Vec<String>,
    /// Only pools with something wrong; exit status 1 if there are any.
    #[arg(short = 'x', long)]
    pub problems: bool,
    /// Files with models of their pages instead: what each was learned from, codes, and has yet to code again
    #[arg(long, conflicts_with = "problems")]
    pub models: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Iostat`].
#[derive(Args, Debug, Default)]
pub struct Iostat {
    /// [POOL...] [INTERVAL [COUNT]]: pools or directories, seconds between reports, how many reports.
    #[arg(value_name = "POOL|INTERVAL|COUNT")]
    pub words: Vec<String>,
    /// Mirrors and devices, too
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Mean times of requests as well, by kind and class
    #[arg(short = 'l', long)]
    pub latency: bool,
    /// Requests in flight as well, by class
    #[arg(short = 'q', long)]
    pub queues: bool,
    /// Show the number of requests that took so long, by kind and class, instead
    #[arg(short = 'w', long, conflicts_with_all = ["latency", "queues"])]
    pub histograms: bool,
    /// Leave the first report out, which counts from when the pool was opened
    #[arg(short = 'y', long)]
    pub skip_first: bool,
    /// Show bytes written, by cause, instead
    #[arg(long, conflicts_with_all = ["verbose", "latency", "queues", "histograms"])]
    pub causes: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Events`].
#[derive(Args, Debug)]
pub struct Events {
    /// A pool, or where it is mounted.
    pub target: String,
    /// Go on as more happens.
    #[arg(short, long)]
    pub follow: bool,
    /// Only this level and worse.
    #[arg(long, default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub level: String,
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
}
