//! Places where a snapshot's files can be read: below its dataset's mount, at its own mount, or at a mount that is made
//! for that.

use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::{files, mounts};

use super::temporary;
use crate::args::{Mount, Unmount};
use crate::datasets;

/// Largest number of snapshots that one backup reads: one for its files, and one for its log.
const MOUNTS_MAX: usize = 2;

/// A snapshot that can be read.
pub struct View {
    /// Directory of the snapshot's root.
    pub root: PathBuf,
    /// True if the mount was made for this view.
    own: bool,
}

impl View {
    /// Finds the snapshot, or mounts it where nobody else can reach it.
    pub fn of(snapshot: &Name) -> Result<Self> {
        // A mount that a killed process has left keeps its snapshot from being destroyed, and must not be taken for the view:
        // whoever comes next may unmount it. What cannot be unmounted is told by who wants to destroy that snapshot.
        unmount_left_behind().ok();
        let there = datasets::find(snapshot)?;
        let below = datasets::find(&Name::new(&snapshot.pool, snapshot.dataset()))?.mounted;
        let (_, name) = snapshot.path.split_once('@').unwrap_or_default();
        let below = below.map(|dir| dir.join(".pagefold/snapshot").join(name));
        if let Some(root) = there.mounted.into_iter().chain(below).find(|root| is_root(root)) {
            return Ok(Self { root, own: false });
        }
        let runtime = files::runtime_dir();
        files::make_private(&runtime)?;
        let taken = |dir: &PathBuf| std::fs::symlink_metadata(dir).is_ok();
        let named = |number| Some(runtime.join(temporary::own_name(temporary::BACKUP, number)?));
        let dir = (1..=MOUNTS_MAX).filter_map(named).find(|dir| !taken(dir));
        let dir = dir.ok_or_else(|| Failure::new(format!("cannot name a mount for {snapshot}")))?;
        crate::verbs::mount::run_quietly(&Mount::of(snapshot.to_string(), Some(dir.clone())))?;
        Ok(Self { root: dir, own: true })
    }
}

/// Returns true if the directory can be listed: a mount may belong to another namespace, and its server may be dead.
fn is_root(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok()
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        if let Err(failure) = unmount(&self.root) {
            eprintln!("pagefold: the mount at {} is left: {failure}", self.root.display());
        }
    }
}

fn unmount(dir: &Path) -> Result<()> {
    let is_mounted = mounts::ours()?.iter().any(|mount| mount.dir == dir);
    if is_mounted {
        let target = Some(dir.to_string_lossy().into_owned());
        crate::verbs::unmount::run(&Unmount { target, all: false, lazy: false, force: false })?;
    }
    std::fs::remove_dir(dir).context(|| format!("cannot remove {}", dir.display()))
}

/// Unmounts what backups and restores of killed processes have left.
pub fn unmount_left_behind() -> Result<()> {
    let runtime = files::runtime_dir();
    // The directory is missing until something is mounted.
    for entry in std::fs::read_dir(&runtime).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(temporary::is_left_behind) {
            let dir = runtime.join(entry.file_name());
            unmount(&dir)
                .context(|| format!("cannot unmount {}, which a killed process has left", dir.display()))?;
        }
    }
    Ok(())
}
