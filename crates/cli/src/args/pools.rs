//! Arguments of the verbs that make pools, and that have this machine know or forget them.

use std::path::PathBuf;

use clap::Args;

use super::Output;

/// See [`super::Verb::Create`].
#[derive(Args, Debug)]
pub struct Create {
    /// Name of the new pool: a letter, then letters, digits and any of - _ . (at most 63 in all)
    pub pool: String,
    /// Block devices or files; those that follow the word mirror, up to the next one, are mirrors of each other, those
    /// that follow the word spare are spares, and one that follows the word log, or a mirror, is the log device.
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
    /// Set a property (may be repeated).
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub properties: Vec<String>,
    /// Make files of this size where a DEVICE does not exist.
    #[arg(long)]
    pub size: Option<String>,
    /// Even if a device holds a file system or a pool, which is lost.
    #[arg(short, long)]
    pub force: bool,
    /// Do not tell the devices first that they hold nothing.
    #[arg(short = 'K', long)]
    pub no_trim: bool,
    /// Change nothing, and print the pool that would be made: its devices, its room, what would be lost, and risks.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Import`].
#[derive(Args, Debug)]
pub struct Import {
    /// The pool, by name or GUID, or by the path of one of its devices.
    pub pool: Option<String>,
    /// The name that it has from now on.
    pub new_name: Option<String>,
    /// Search this directory's files, or this device (may be repeated) instead of all block devices.
    #[arg(short, long = "dir")]
    pub dir: Vec<PathBuf>,
    /// Import all that are found.
    #[arg(short, long, conflicts_with = "pool")]
    pub all: bool,
    /// Mount it below this directory: its mount points are taken for paths in it.
    #[arg(short = 'R', long, value_name = "DIR")]
    pub altroot: Option<PathBuf>,
    /// Obey the mount points that it says, though it was made elsewhere.
    #[arg(long)]
    pub adopt: bool,
    /// Import an older copy of a pool, though a newer one is known: what was written since is not in it.
    #[arg(long, requires = "pool")]
    pub accept_older: bool,
    /// Where the pool's log is damaged, go back to before the damage: what was acknowledged since is lost for good. The same
    /// if the pool crashed and its log device is lost.
    #[arg(long, requires = "pool")]
    pub accept_loss: bool,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Reguid`].
#[derive(Args, Debug)]
pub struct Reguid {
    /// A pool that is known.
    #[arg(required_unless_present = "device")]
    pub pool: Option<String>,
    /// A device of the pool (once for each of them).
    #[arg(long, value_name = "DEVICE", conflicts_with = "pool")]
    pub device: Vec<PathBuf>,
}

/// See [`super::Verb::Export`].
#[derive(Args, Debug)]
pub struct Export {
    /// The pool.
    pub pool: String,
    /// Detach the mount even if it is in use; forget the pool even if its devices cannot be opened.
    #[arg(short, long)]
    pub force: bool,
}
