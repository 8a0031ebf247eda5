//! Arguments of the verbs that verify pools and tell devices what is free.

use std::path::PathBuf;

use clap::Args;

use super::Output;

/// See [`super::Verb::Clear`].
#[derive(Args, Debug)]
pub struct Clear {
    /// A pool, or where it is mounted.
    pub pool: String,
    /// One of its devices; all if left out.
    pub device: Option<std::path::PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`super::Verb::Scrub`].
#[derive(Args, Debug)]
pub struct Scrub {
    /// A mounted pool.
    pub pool: String,
    /// Stop; the next scrub goes on from there.
    #[arg(long, conflicts_with_all = ["status", "wait", "rate"])]
    pub stop: bool,
    /// Show how far it is, and start nothing.
    #[arg(long)]
    pub status: bool,
    /// Wait for its end; fail if it has found damage.
    #[arg(short, long)]
    pub wait: bool,
    /// Stored bytes read per second at most.
    #[arg(long, value_parser = pagefold_server::units::parse_size, value_name = "BYTES", conflicts_with = "status")]
    pub rate: Option<u64>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Trim`].
#[derive(Args, Debug)]
pub struct Trim {
    /// A mounted pool.
    pub pool: String,
    /// Stop.
    #[arg(long, conflicts_with_all = ["status", "wait", "rate", "dry_run"])]
    pub stop: bool,
    /// Show how far it is, and start nothing.
    #[arg(long, conflicts_with = "dry_run")]
    pub status: bool,
    /// Start nothing, and print how much there is to tell.
    #[arg(short = 'n', long, conflicts_with_all = ["wait", "rate"])]
    pub dry_run: bool,
    /// Wait for its end; fail if a device did.
    #[arg(short, long)]
    pub wait: bool,
    /// Bytes told of per second at most.
    #[arg(long, value_parser = pagefold_server::units::parse_size, value_name = "BYTES", conflicts_with = "status")]
    pub rate: Option<u64>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Check`].
#[derive(Args, Debug)]
pub struct Check {
    /// A pool, or one of its devices.
    #[arg(required_unless_present = "device")]
    pub pool: Option<String>,
    /// The pool's devices, all of them, if they lie apart and it was not imported (may be repeated).
    #[arg(short, long)]
    pub device: Vec<PathBuf>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}
