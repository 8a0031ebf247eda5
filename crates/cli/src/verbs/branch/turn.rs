//! Turns: of the commands that change a branch, one does at a time.

use std::fs::{self, File};
use std::path::PathBuf;

use pagefold_server::failure::{Context, Result};
use pagefold_server::files;
use pagefold_server::names::Name;

use crate::file_lock;

/// Largest number of a name's characters that name the file. Longer names that begin alike share a turn.
const NAME_CHARS_MAX: usize = 200;

/// The turn to change a branch, held until this is dropped.
pub struct BranchTurn {
    path: PathBuf,
    _lock: File,
}

/// Waits for the turn to change the branch of this name, whether it exists or not.
///
/// Errors: another command has had it for too long.
pub fn of(name: &Name) -> Result<BranchTurn> {
    let dir = files::runtime_dir();
    files::make_private(&dir)?;
    // Names of datasets have no plus sign.
    let word: String = name.to_string().replace('/', "+").chars().take(NAME_CHARS_MAX).collect();
    let path = dir.join(format!("branch-{word}.turn"));
    loop {
        let lock = files::lock_file(&path)?;
        file_lock::wait(&lock, &format!("another command on branch {name}"))?;
        let found = rustix::fs::fstat(&lock).context(|| format!("cannot look at {}", path.display()))?;
        // Whoever had the turn has removed the file, and the next turn is that of a new one.
        if found.st_nlink > 0 {
            return Ok(BranchTurn { path, _lock: lock });
        }
    }
}

impl Drop for BranchTurn {
    /// Removes the file while it is still locked. One that is left is no obstacle.
    fn drop(&mut self) {
        let _left = fs::remove_file(&self.path);
    }
}
