//! Makes the directory to mount on if its parent exists, and says so.
//!
//! Root's directory has no permissions as long as nothing is mounted on it: programs that do not run as root cannot
//! fill the file system below by mistake, and files that root puts there make the next mount fail with an error.
//! Directories of other users keep their permissions, because fusermount3 requires them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pagefold_engine::walk::{self, ReachedDir};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::raw::shown;
use pagefold_server::{files, serve};
use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

/// Permissions of a directory of root's.
const MODE_OF_ROOT: Mode = Mode::empty();
/// Permissions of a directory of another user.
const MODE_OF_USER: Mode = Mode::RWXU;

/// A directory that was made (its parent and its name); it is removed on drop unless it is kept.
#[derive(Debug, Default)]
pub struct NewDirectory(Option<(ReachedDir, OsString)>);

impl NewDirectory {
    /// Keeps the directory, because something was mounted on it. Returns its path, if it was made.
    pub fn keep(mut self) -> Option<PathBuf> {
        self.0.take().map(|(parent, name)| parent.path().join(name))
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if let Some((parent, name)) = &self.0
            && let Err(error) = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        {
            let dir = parent.path().join(name);
            eprintln!("pagefold: cannot remove the directory {} again: {error}", shown(&dir));
        }
    }
}

/// Makes `dir`, an absolute path, if it does not exist. Links that others may have planted are not followed on the way.
pub fn make(dir: &Path) -> Result<NewDirectory> {
    let Some((parent, name)) = lacking(dir)? else { return Ok(NewDirectory::default()) };
    let mode = if files::is_root() { MODE_OF_ROOT } else { MODE_OF_USER };
    rustix::fs::mkdirat(&parent, &name, mode)
        .context(|| format!("cannot make the mount point {}", shown(dir)))?;
    Ok(NewDirectory(Some((parent, name))))
}

/// Attaches the mount whose root is `root`, and which is attached nowhere, at `dir`. The directory is reached step by step,
/// and no path is used for the mount, so it gets nowhere else.
///
/// # Errors
/// Those of the kernel; a link on the way that others may have planted.
pub fn attach(root: impl AsFd, dir: &Path) -> io::Result<()> {
    let place = walk::reach(dir)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(root, c"", &place, c"", flags)?)
}

/// Returns the reason why [`make`] or a mount at `dir` would fail, as far as it can be known before. A mount whose server
/// has died is no reason: it is taken away.
pub fn check(dir: &Path, options: &pagefold_fuse::MountOptions) -> Result<()> {
    if lacking(dir)?.is_some() {
        return Ok(());
    }
    let options = pagefold_fuse::MountOptions { replace_dead: false, ..options.clone() };
    match pagefold_fuse::check_mount_point(dir, &options) {
        Ok(_) | Err(pagefold_fuse::MountError::Dead(_)) => Ok(()),
        Err(error) => Err(serve::mount_failed(&error)),
    }
}

/// Returns the parent and the name of a directory that does not exist and may be made; `None` if there is anything.
fn lacking(dir: &Path) -> Result<Option<(ReachedDir, OsString)>> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // The mount itself shows whether it can be used.
        _ => return Ok(None),
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
    Ok(Some((parent, name)))
}

/// Returns an error if `parent` is an empty mount point, in which nobody expects a directory.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn nothing_is_attached_through_a_link_that_others_may_have_made() {
        if !files::is_root() {
            return;
        }
        let top = tempfile::tempdir().unwrap();
        let (theirs, ours) = (top.path().join("theirs"), top.path().join("ours"));
        fs::create_dir_all(ours.join("mnt")).unwrap();
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::symlink(&ours, theirs.join("link")).unwrap();
        std::os::unix::fs::chown(&theirs, Some(54_321), Some(54_321)).unwrap();
        // The way is refused before anything is asked of the mount, which this is none.
        let root = fs::File::open(top.path()).unwrap();
        let refused = attach(&root, &theirs.join("link/mnt")).unwrap_err();
        assert!(refused.to_string().contains("is a link"), "{refused}");
    }

    #[test]
    fn a_directory_is_made_where_its_parent_is_and_goes_unless_kept() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("tank");
        drop(make(&dir).unwrap());
        assert!(!dir.exists());
        assert!(make(&dir).unwrap().keep().is_some());
        let mode = fs::metadata(&dir).unwrap().mode() & 0o777;
        assert_eq!(mode, if files::is_root() { 0 } else { 0o700 });
        // A directory that existed before is not removed.
        drop(make(&dir).unwrap());
        assert!(dir.exists());
        let text = make(&top.path().join("none/tank")).unwrap_err().to_string();
        assert!(text.contains("neither does") && text.contains("mkdir -p"), "{text}");
        if files::is_root() {
            let text = make(&dir.join("db")).unwrap_err().to_string();
            assert!(text.contains("nothing is mounted on it"), "{text}");
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        }
    }
}
