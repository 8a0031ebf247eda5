//! The verbs that change which devices a pool has, and uses; and their arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Verbs that change which devices a pool has, and uses.
#[derive(Subcommand, Debug)]
pub enum DeviceVerb {
    /// Make a pool larger by more devices, or by mirrors of several, while it is used; or give it spares, or a log device.
    #[command(
        after_long_help = "New data goes to the emptiest devices. What is there stays where it is, until `pagefold balance` moves it. `pagefold remove`
takes a device out again. A spare holds nothing until a device of a mirror fails: then it steps in by itself, if it is as large as
what the mirror uses. It goes back when that device is whole again or was replaced; `pagefold detach` of that device makes
it one of the mirror for good. Properties: autospare, sparewait, spareerrors, spareslow.

A log device gets each commit first: fsync waits for it, and not for the devices that hold the data. It helps if these take
long to flush and it does not; everything that is written goes through it, so it has to be as fast as that. A pool has one,
which can be a mirror. No data lies on it, and at most 1 GiB of it is used. If it fails, the pool goes on without it. If it is
lost together with a crash, the last commits before the crash may be lost: a mirror of two protects from that.

Examples:
  pagefold add tank /dev/sdc
  pagefold add tank mirror /dev/sdd /dev/sde
  pagefold add tank spare /dev/sdf
  pagefold add tank log /dev/sdg
  pagefold add tank log mirror /dev/sdg /dev/sdh
  pagefold add -n tank /dev/sdc              change nothing, and say how large it would be"
    )]
    Add(Add),
    /// Give a device of a pool a mirror: another device that has the same.
    #[command(
        after_long_help = "The new device gets everything in the background, while the pool is used; `pagefold status` shows how far it is. It has
to be as large as the other one.

Examples:
  pagefold attach -n tank /dev/sdb /dev/sdc    change nothing, and say what would be copied
  pagefold attach tank /dev/sdb /dev/sdc
  pagefold attach tank /dev/sdb /dev/sdc --wait"
    )]
    Attach(Attach),
    /// Remove a device from its mirror; it holds no pool then.
    #[command(
        after_long_help = "When a device was attached, a scrub of the mirror begins, since copying verifies nothing: until it has ended, any device of
the mirror may be the only one that has something right. So a device that is in use is not removed while a scrub is under way,
unless with -f. To put one device in the place of another, `pagefold replace` does all of this by itself.

Examples:
  pagefold detach tank /dev/sdc
  pagefold detach -n tank /dev/sdc           change nothing, and say what may be lost then
  pagefold detach tank 1                     a device that is missing, by its number in status
  pagefold detach tank /dev/sdf              a spare that stands in: it goes back"
    )]
    Detach(Detach),
    /// Make one device of each mirror a pool of its own, while the pool is used.
    #[command(
        after_long_help = "The new pool holds what the pool held at one instant within the call, with all snapshots. It is not mounted, and not known
here: import it, here or on another machine. The pool goes on with the devices that stay. If the machine fails meanwhile,
the split has happened as a whole or not at all; then the next mount gives the devices what they have missed.

Examples:
  pagefold split -n tank half                change nothing, and say which devices would leave
  pagefold split tank half
  pagefold split tank half /dev/sdb /dev/sdd    these, one of each mirror
  pagefold import half"
    )]
    Split(SplitPool),
    /// Remove devices from a pool: what lies on them moves to the others, while the pool is used. Or remove a spare, or the log
    /// device.
    #[command(
        after_long_help = "The device is part of the pool until everything has moved; `pagefold status` shows how far it is. If the pool is unmounted or
crashes meanwhile, the next mount goes on. Then the device holds no pool. The others need room for what lies on it.
To remove one device of a mirror, see `pagefold detach`; so does a spare go back that stands in for a device. A log device, on
which no data lies, leaves at once: commits wait for the other devices then.

Examples:
  pagefold remove -n tank /dev/sdc           change nothing, and say what would be moved
  pagefold remove tank /dev/sdc --wait
  pagefold remove tank mirror-1              a mirror, with all of its devices
  pagefold remove --stop tank                keep it
  pagefold remove tank /dev/sdf              a spare; one that is missing by its number in status
  pagefold remove tank /dev/sdg              the log device; a mirror by its name in status"
    )]
    Remove(Remove),
    /// Move what lies on fuller devices of a pool to emptier ones, until all are equally full, while the pool is used.
    #[command(
        after_long_help = "This is for a pool that has got more devices: new data goes to the emptiest ones anyway. A mirror counts as one device. It
takes a third of one thread's time while the pool is busy. `pagefold status` shows how far it is. If the pool is unmounted
or crashes meanwhile, the next mount goes on. It ends by itself.

Examples:
  pagefold balance -n tank                   change nothing, and say what would be moved
  pagefold balance tank
  pagefold balance tank --wait
  pagefold balance --stop tank               what was moved stays where it is"
    )]
    Balance(Balance),
    /// Put a new device in the place of another one, which leaves when the new one has everything, verified.
    #[command(
        after_long_help = "The old one may be in use, or missing: then it is named by its number, which `pagefold status` shows. The new device gets
everything in the background. It has to be as large as the old one.

Examples:
  pagefold replace -n tank /dev/sdb /dev/sdd    change nothing, and say what would be copied
  pagefold replace tank /dev/sdb /dev/sdd
  pagefold replace tank 1 /dev/sdd           device number 1, which is missing"
    )]
    Replace(Replace),
    /// Stop using a device of a mirror, until it is taken online again.
    #[command(after_long_help = "Examples:
  pagefold offline -n tank /dev/sdc          change nothing, and say what may be lost then
  pagefold offline tank /dev/sdc")]
    Offline(DeviceOf),
    /// Use a device again that was offline, missing or faulted; it gets what it has missed. Or use all of one that has
    /// grown.
    #[command(
        after_long_help = "What it missed is known, also if the pool was unmounted or crashed meanwhile. A device that is not as it was gets everything
again: an older copy of it, or one that was mounted by itself.

Examples:
  pagefold online -n tank /dev/sdc           change nothing, and say what would be copied
  pagefold online tank /dev/sdc
  pagefold online tank /dev/sdf              it has another name now
  pagefold online -e tank /dev/sdb           the volume was enlarged (by the way with autoexpand=on)"
    )]
    Online(Online),
}

/// See [`DeviceVerb::Add`].
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

/// See [`DeviceVerb::Attach`].
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

/// See [`DeviceVerb::Replace`].
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

/// See [`DeviceVerb::Detach`] and [`DeviceVerb::Offline`].
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

/// See [`DeviceVerb::Detach`].
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

/// See [`DeviceVerb::Remove`].
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

/// See [`DeviceVerb::Balance`].
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

/// See [`DeviceVerb::Split`].
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

/// See [`DeviceVerb::Online`].
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
