//! Finds the mount that a path on the command line means: the one whose mount point it is, however that is written, and
//! no other.

use std::io;
use std::path::{Path, PathBuf};

use pagefold_engine::walk::{self, ReachedDir};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::raw::shown;

use crate::table;

/// Returns the mount of ours whose mount point is `path`: absolute, relative, through links, with slashes behind it.
/// The error for another path names the mount point that contains it.
pub fn mount_at(path: &Path) -> Result<MountEntry> {
    let all = mounts::all()?;
    match find(&all, path)? {
        Lookup::Exactly(mount) => Ok(mount),
        Lookup::Within(path, mount) => Err(not_a_mount_point(&path, &mount)),
        Lookup::Foreign(path, above) => Err(foreign(&all, &path, &above)),
        Lookup::Missing(path) => Err(Failure::new(format!("{} does not exist", shown(&path)))
            .hint("see what is mounted: pagefold status")),
    }
}

/// Does the same as [`mount_at`]; `None` if `path` is no mount point of ours, for any reason.
pub fn mount_if_at(path: &Path) -> Result<Option<MountEntry>> {
    match find(&mounts::all()?, path)? {
        Lookup::Exactly(mount) => Ok(Some(mount)),
        _ => Ok(None),
    }
}

/// Returns the root of a mount, held open. Fails if its directory does not lead there: something else was mounted above it,
/// or its owner has put another directory in its place.
pub fn root_of(mount: &MountEntry) -> Result<ReachedDir> {
    let (source, dir) = (table::printable(&mount.source), shown(&mount.dir));
    let root = walk::reach(&mount.dir).context(|| format!("cannot reach {source}"))?;
    if root.mount_id() == mount.id {
        return Ok(root);
    }
    Err(Failure::new(format!("something else was mounted above {source}, at {dir} or above that"))
        .hint(format!("unmount that first (findmnt {dir})")))
}

enum Lookup {
    Exactly(MountEntry),
    /// The path lies on this mount of ours, and is not its mount point.
    Within(PathBuf, MountEntry),
    /// Another file system is mounted there, or contains the path.
    Foreign(PathBuf, Option<MountEntry>),
    Missing(PathBuf),
}

fn find(all: &[MountEntry], path: &Path) -> Result<Lookup> {
    let absolute = std::path::absolute(path).context(|| format!("cannot resolve {}", shown(path)))?;
    // The path is first compared as it is written: the server of a mount may be dead, or hang.
    let plain = !absolute.components().any(|part| part == std::path::Component::ParentDir);
    let by_words = mounts::topmost(all, &absolute).filter(|mount| plain && mount.is_ours());
    if let Some(mount) = by_words {
        return Ok(Lookup::Exactly(mount.clone()));
    }
    let resolved = match resolve(&absolute) {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lookup::Missing(absolute)),
        Err(error) => return Err(error).context(|| format!("cannot resolve {}", shown(path))),
    };
    if let Some(mount) = mounts::topmost(all, &resolved) {
        return Ok(match mount.is_ours() {
            true => Lookup::Exactly(mount.clone()),
            false => Lookup::Foreign(resolved, Some(mount.clone())),
        });
    }
    let mut above = resolved.ancestors().skip(1).filter_map(|dir| mounts::topmost(all, dir));
    Ok(match above.next() {
        Some(mount) if mount.is_ours() => Lookup::Within(resolved, mount.clone()),
        _ => Lookup::Foreign(resolved, None),
    })
}

/// Resolves links. The path of a mount whose server has died is resolved up to its parent.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => match (path.parent(), path.file_name())
        {
            (Some(parent), Some(name)) => Ok(resolve(parent)?.join(name)),
            _ => Err(error),
        },
        resolved => resolved,
    }
}

fn not_a_mount_point(path: &Path, mount: &MountEntry) -> Failure {
    let dir = shown(&mount.dir);
    Failure::new(format!(
        "{} is no mount point: it lies on {}, which is mounted at {dir}",
        shown(path),
        table::printable(&mount.source)
    ))
    .hint(format!("nothing was unmounted; to unmount all of it: pagefold unmount {dir}"))
}

fn foreign(all: &[MountEntry], path: &Path, above: &Option<MountEntry>) -> Failure {
    let below = all.iter().rfind(|mount| mount.dir == path && mount.is_ours());
    let path = shown(path);
    match (above, below) {
        (Some(above), Some(below)) => {
            let (above, below) = (table::printable(&above.source), table::printable(&below.source));
            Failure::new(format!("{above} was mounted above {below} at {path}"))
                .hint(format!("unmount that first: umount {path}"))
        }
        _ => Failure::new(format!("nothing of a pool is mounted at {path}"))
            .hint("see what is: pagefold status"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_leads_to_another_mount_is_not_taken_for_it() {
        let all = mounts::all().unwrap();
        let there = mounts::topmost(&all, Path::new("/proc")).unwrap();
        assert_eq!(root_of(there).unwrap().mount_id(), there.id);
        // Another mount lies above this one.
        let below = MountEntry { id: u64::MAX, source: "tank/db".into(), ..there.clone() };
        let refused = root_of(&below).unwrap_err();
        assert!(refused.what().contains("something else was mounted above tank/db, at /proc"), "{refused}");
    }
}
