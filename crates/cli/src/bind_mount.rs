//! Mounts a dataset that is mounted already at a second place: it is the same file system there, with the same cache of
//! the kernel's, so that both places always show the same.

use std::fs;
use std::path::Path;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use pagefold_server::mountopts::MountOptions;
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::raw::shown;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::place_flags::PlaceFlags;
use crate::{mount_lookup, mountpoint};

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
    let all = mounts::of_devices(&[there.device])?;
    let roots = wholes(there, &all)?.into_iter().map(mount_lookup::root_of);
    let root = roots.reduce(Result::or).unwrap_or_else(|| Err(elsewhere(there)))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    let copy = open_tree(root, c"", flags).context(mounting)?;
    let found = statx(&copy, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())
        .context(mounting)?;
    if (found.stx_dev_major, found.stx_dev_minor) != (0, there.device) {
        return Err(elsewhere(there));
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

/// Returns the mounts, of all those of the dataset here, that show the whole dataset.
fn wholes<'a>(there: &ExistingMount<'_>, all: &'a [MountEntry]) -> Result<Vec<&'a MountEntry>> {
    let wholes: Vec<&MountEntry> = all.iter().filter(|mount| mount.is_whole()).collect();
    match all.first() {
        Some(part) if wholes.is_empty() => Err(Failure::new(format!(
            "of {} only the directory {} is mounted, at {}",
            there.name,
            shown(&part.root),
            shown(&part.dir)
        ))
        .hint(format!("unmount it first: pagefold unmount {}", there.name))),
        _ => Ok(wholes),
    }
}

fn elsewhere(there: &ExistingMount<'_>) -> Failure {
    let (name, first) = (there.name, shown(there.dir));
    Failure::new(format!("{name} is mounted already at {first}, in another mount namespace"))
        .hint(format!("unmount it first: pagefold unmount {name}"))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_dataset_is_not_taken_for_the_dataset() {
        let mount = |root: &str, dir: &str| MountEntry {
            id: 1,
            parent: 0,
            root: root.into(),
            device: (0, 50),
            dir: dir.into(),
            fs_type: mounts::FS_TYPE.into(),
            source: "tank/db".into(),
            options: String::new(),
        };
        let dir = Path::new("/pg");
        let there =
            ExistingMount { name: "tank/db", dir, device: 50, read_only: false, stays_read_only: None };
        let all = [mount("/pg", "/pg"), mount("/", "/srv/db")];
        assert_eq!(wholes(&there, &all).unwrap(), [&all[1]]);
        let refused = wholes(&there, &all[..1]).unwrap_err();
        assert!(refused.what().contains("of tank/db only the directory /pg is mounted, at /pg"), "{refused}");
        assert!(wholes(&there, &[]).unwrap().is_empty());
    }
}
