//! The directory that is mounted on: made where its parent exists, and said so.
//!
//! Root's has no permissions as long as nothing is mounted on it: programs that do not run as root cannot fill the file system below by
//! mistake, and what root puts there is in the way of the next mount, which says so. Users' own must have their permissions, as
//! fusermount3 asks for them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use pagefold_engine::walk::{self, Place};
use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;

use crate::failure::{Context, Failure, Result};
use crate::{places, raw, table};

/// Of a directory of root's on which nothing is mounted.
const MODE_OF_ROOT: Mode = Mode::empty();
/// Of one of a user's.
const MODE_OF_USER: Mode = Mode::RWXU;

/// A directory that was made, by the directory that it was made in; it goes again unless it is kept.
#[derive(Debug, Default)]
pub struct Made(Option<(Place, OsString)>);

impl Made {
    /// Something was mounted on it: its path, if it was made.
    pub fn keep(mut self) -> Option<PathBuf> {
        self.0.take().map(|(parent, name)| parent.path().join(name))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((parent, name)) = &self.0
            && let Err(error) = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        {
            let dir = parent.path().join(name);
            eprintln!("pagefold: cannot remove the directory {} again: {error}", shown(&dir));
        }
    }
}

/// Makes `dir`, an absolute path, if it does not exist. No link that others may have planted is followed on the way.
pub fn make(dir: &Path) -> Result<Made> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        // Whether it can be used is seen when it is.
        _ => return Ok(Made::default()),
    }
    let making = || format!("cannot make the mount point {}", shown(dir));
    let (parent, name) = match walk::reach_parent(dir) {
        Ok(reached) => reached,
        Err(error) if error.errno() == Errno::NOENT => {
            let parent = dir.parent().unwrap_or(dir);
            return Err(Failure::new(format!(
                "mount point {0} does not exist, and neither does {1}",
                shown(dir),
                shown(parent)
            ))
            .hint(format!(
                "mount first what belongs at {1}, or make it: mkdir -p {0}",
                shown(dir),
                shown(parent)
            )));
        }
        Err(error) => return Err(error).context(making),
    };
    let found = rustix::fs::fstat(&parent).context(|| format!("cannot look at {}", shown(parent.path())))?;
    may_make(dir, parent.path(), &found)?;
    let mode = if places::is_root() { MODE_OF_ROOT } else { MODE_OF_USER };
    rustix::fs::mkdirat(&parent, &name, mode).context(making)?;
    Ok(Made(Some((parent, name))))
}

/// Errors where a directory in `parent` would lie where nobody expects it.
fn may_make(dir: &Path, parent: &Path, found: &Stat) -> Result<()> {
    if found.st_mode & 0o777 == MODE_OF_ROOT.bits() {
        return Err(Failure::new(format!(
            "cannot make the mount point {}: {} is a mount point itself, and nothing is mounted on it",
            shown(dir),
            shown(parent)
        ))
        .hint("mount first what belongs there; pagefold mount -a mounts all in order"));
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    table::printable(&raw::text(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_directory_is_made_where_its_parent_is_and_goes_unless_kept() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("tank");
        drop(make(&dir).unwrap());
        assert!(!dir.exists());
        assert!(make(&dir).unwrap().keep().is_some());
        let mode = fs::metadata(&dir).unwrap().mode() & 0o777;
        assert_eq!(mode, if places::is_root() { 0 } else { 0o700 });
        // One that is there is nobody's to remove.
        drop(make(&dir).unwrap());
        assert!(dir.exists());
        let text = make(&top.path().join("none/tank")).unwrap_err().to_string();
        assert!(text.contains("neither does") && text.contains("mkdir -p"), "{text}");
        if places::is_root() {
            let text = make(&dir.join("db")).unwrap_err().to_string();
            assert!(text.contains("nothing is mounted on it"), "{text}");
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        }
    }
}
