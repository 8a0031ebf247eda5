//! Where a snapshot's files can be read: below its dataset's mount, where it is mounted itself, or at a mount that is made for that.

use std::path::{Path, PathBuf};

use crate::args::{Mount, Unmount};
use crate::datasets;
use crate::failure::{Context, Result};
use crate::names::Name;
use crate::places;

/// A snapshot that can be read.
pub struct View {
    /// Its root.
    pub root: PathBuf,
    /// Whether the mount was made for this.
    own: bool,
}

impl View {
    /// Finds it, or mounts it where nobody but us gets at it.
    pub fn of(snapshot: &Name) -> Result<Self> {
        let there = datasets::find(snapshot)?;
        let below = datasets::find(&Name::new(&snapshot.pool, snapshot.dataset()))?.mounted;
        let (_, name) = snapshot.path.split_once('@').unwrap_or_default();
        let below = below.map(|dir| dir.join(".pagefold/snapshot").join(name));
        if let Some(root) = there.mounted.into_iter().chain(below).find(|root| is_root(root)) {
            return Ok(Self { root, own: false });
        }
        let runtime = places::runtime_dir();
        places::make_private(&runtime)?;
        let dir = runtime.join(format!("basebackup-{}-{}", std::process::id(), name.len()));
        let args = Mount {
            source: Some(snapshot.to_string()),
            dir: Some(dir.clone()),
            all: false,
            options: Vec::new(),
            dry_run: false,
            report: false,
            pool_options: None,
            held_by: None,
            mounts_for: None,
        };
        crate::verbs::mount::run_quietly(&args)?;
        Ok(Self { root: dir, own: true })
    }
}

/// Whether it can be listed: a mount may belong to another namespace, and its server may be dead.
fn is_root(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok()
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        let dir = &self.root;
        let target = Some(dir.to_string_lossy().into_owned());
        let unmounted =
            crate::verbs::unmount::run(&Unmount { target, all: false, lazy: false, force: false });
        let gone = unmounted
            .and_then(|()| std::fs::remove_dir(dir).context(|| format!("cannot remove {}", dir.display())));
        if let Err(failure) = gone {
            eprintln!("pagefold: the mount at {} is left: {failure}", dir.display());
        }
    }
}
