//! Arguments of the verbs that make pools, and that have this machine know or forget them.

use std::path::PathBuf;

use clap::Args;

use super::Output;

/// See [`super::Verb::Create`].
#[derive(Args, Debug)]
pub struct Create {
    /// Name of the new pool: a letter, then letters, digits, - _ .
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

/// See [`super::Verb::Add`].
#[derive(Args, Debug)]
pub struct Add {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// Block devices or files; those that follow the word mirror, up to the next one, are mirrors of each other, those
    /// that follow the word spare are spares, and one that follows the word log, or a mirror, is the log device.
    #[arg(required = true)]
    pub devices: Vec<PathBuf>,
    /// Even if a device holds a file system or a pool, which is lost; or has no mirror while the others have.
    #[arg(short, long)]
    pub force: bool,
    /// Make files of this size where a DEVICE does not exist.
    #[arg(long)]
    pub size: Option<String>,
    /// Change nothing, and print how large the pool would be.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Attach`].
#[derive(Args, Debug)]
pub struct Attach {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// A device of the pool.
    pub device: PathBuf,
    /// A block device or file that is to be its mirror.
    pub new: PathBuf,
    /// Options of the new device.
    #[command(flatten)]
    pub given: GivenDevice,
}

/// See [`super::Verb::Replace`].
#[derive(Args, Debug)]
pub struct Replace {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// A device of the pool, by path or number.
    pub device: PathBuf,
    /// A block device or file that takes its place.
    pub new: PathBuf,
    /// Options of the new device.
    #[command(flatten)]
    pub given: GivenDevice,
}

/// Options of a device that a pool gets.
#[derive(Args, Debug)]
pub struct GivenDevice {
    /// Even if it holds a file system or a pool, which is lost.
    #[arg(short, long)]
    pub force: bool,
    /// Make a file of this size if it does not exist.
    #[arg(long)]
    pub size: Option<String>,
    /// Wait until it has everything.
    #[arg(short, long)]
    pub wait: bool,
    /// Change nothing, and print what would be copied, and how many devices the mirror could lose.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Detach`] and [`super::Verb::Offline`].
#[derive(Args, Debug)]
pub struct DeviceOf {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// A device of the pool, by path or number.
    pub device: PathBuf,
    /// Change nothing, and print how many devices the mirror could lose.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Detach`].
#[derive(Args, Debug)]
pub struct Detach {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// A device of the pool, by path or number.
    pub device: PathBuf,
    /// Remove it even while a scrub is under way, which may find that the others need what it has.
    #[arg(short, long)]
    pub force: bool,
    /// Change nothing, and print how many devices the mirror could lose.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Remove`].
#[derive(Args, Debug)]
pub struct Remove {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// Devices of the pool, by path or number; mirrors of several, by their names in status (mirror-1); spares; or the log
    /// device.
    #[arg(required_unless_present = "stop")]
    pub devices: Vec<PathBuf>,
    /// Change nothing, and print what would be moved, and how large the pool would be.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Stop a removal that is under way: the devices stay, and so does what was moved.
    #[arg(short, long, conflicts_with_all = ["devices", "dry_run", "wait"])]
    pub stop: bool,
    /// Wait until they have left.
    #[arg(short, long)]
    pub wait: bool,
}

/// See [`super::Verb::Balance`].
#[derive(Args, Debug)]
pub struct Balance {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// Change nothing, and print what would be moved.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Stop a balance that is under way: what was moved stays where it is.
    #[arg(short, long, conflicts_with_all = ["dry_run", "wait"])]
    pub stop: bool,
    /// Wait until it has ended.
    #[arg(short, long)]
    pub wait: bool,
}

/// See [`super::Verb::Split`].
#[derive(Args, Debug)]
pub struct SplitPool {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// Name of the new pool.
    pub new_pool: String,
    /// Devices that leave, by path or number: one of each mirror. Of a mirror of which none is named, the last one leaves.
    pub devices: Vec<PathBuf>,
    /// Change nothing, and print which devices would leave.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// See [`super::Verb::Online`].
#[derive(Args, Debug)]
pub struct Online {
    /// A mounted pool, or where it is mounted.
    pub pool: String,
    /// The device, where it is now.
    pub device: PathBuf,
    /// Use all of it from now on: it has grown. A mirror grows when all of its devices have.
    #[arg(short, long)]
    pub expand: bool,
    /// Wait until it has everything.
    #[arg(short, long)]
    pub wait: bool,
    /// Change nothing, and print what would be copied.
    #[arg(short = 'n', long, conflicts_with = "expand")]
    pub dry_run: bool,
}

/// See [`super::Verb::Import`].
#[derive(Args, Debug)]
pub struct Import {
    /// The pool, by name or GUID.
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
