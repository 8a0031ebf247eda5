//! Mounts a dataset that is mounted already at a second place: it is the same file system there, with the same cache of
//! the kernel's, so that both places always show the same.

use std::fs;
use std::path::Path;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use pagefold_server::mountopts::MountOptions;
use pagefold_server::raw::shown;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::mountpoint;
use crate::place_flags::PlaceFlags;

/// The existing mount of a dataset.
pub struct ExistingMount<'a> {
    pub name: &'a str,
    pub dir: &'a Path,
    pub device: u32,
    pub read_only: bool,
    /// The reason why it stays read-only, with advice, if it cannot become writable.
    pub stays_read_only: Option<Failure>,
}

/// Mounts `there` at `dir`, too.
pub fn mount(there: &ExistingMount<'_>, dir: &Path, options: &MountOptions) -> Result<()> {
    let (name, first) = (there.name, shown(there.dir));
    check(there, dir, options)?;
    let mounting = || format!("cannot mount {name} at {}, as it is at {first}", shown(dir));
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    let copy = open_tree(CWD, there.dir, flags).context(mounting)?;
    let found = statx(&copy, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())
        .context(mounting)?;
    if (found.stx_dev_major, found.stx_dev_minor) != (0, there.device) {
        return Err(Failure::new(format!(
            "{name} is mounted already at {first}, in another mount namespace"
        ))
        .hint(format!("unmount it first: pagefold unmount {name}")));
    }
    let flags = PlaceFlags {
        read_only: Some(options.read_only),
        suid: Some(options.suid),
        dev: Some(options.dev),
        exec: Some(options.exec),
    };
    flags.set(&copy).context(mounting)?;
    mountpoint::attach(&copy, dir).context(mounting)
}

/// Returns an error if a second mount cannot be what was asked for.
fn check(there: &ExistingMount<'_>, dir: &Path, options: &MountOptions) -> Result<()> {
    let (name, first) = (there.name, shown(there.dir));
    let already = || Failure::new(format!("{name} is mounted already at {first}"));
    if !files::is_root() {
        return Err(already().hint(format!(
            "only root can mount it at a second place; unmount it first: pagefold unmount {name}"
        )));
    }
    if fs::canonicalize(dir).is_ok_and(|dir| dir == there.dir) {
        return Err(already().hint(format!("unmount it first: pagefold unmount {name}")));
    }
    if there.read_only && !options.read_only {
        let how = match &there.stays_read_only {
            None => format!("make it writable: pagefold mount -o remount,rw {first}"),
            Some(why) => format!("{}; {}", why.what(), why.advice().unwrap_or_default()),
        };
        return Err(
            already().hint(format!("it is read-only there: mount it with -o ro here, too; or else\n  {how}"))
        );
    }
    let of_first = MountOptions {
        read_only: options.read_only,
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
        nonempty: options.nonempty,
        ..MountOptions::default()
    };
    if *options != of_first {
        return Err(already().hint(
            "a second place has the first one's options: give it none but ro, suid, dev, noexec, nonempty; pagefold mount -o remount changes what can be",
        ));
    }
    let options = pagefold_fuse::MountOptions { nonempty: options.nonempty, ..Default::default() };
    pagefold_fuse::check_mount_point(dir, &options).map(drop).map_err(|error| Failure::new(error.to_string()))
}
