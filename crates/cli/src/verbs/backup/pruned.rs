//! The times at which this machine pruned repositories, for all of its processes.
//!
//! A prune deletes what the prune before found needless, so a backup has the time from one prune to the second after it.
//! Two processes that pruned one repository shortly after each other would leave it none.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pagefold_server::backups::PRUNE_EVERY;
use pagefold_server::failure::{Context, Result};
use pagefold_server::{files, units};
use serde::{Deserialize, Serialize};

use super::attempts::{folder, read_state, write_state};

/// Times of the last prunes, in seconds since 1970, by repository.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Pruned {
    repositories: BTreeMap<String, u64>,
}

/// Age of the last prune of a repository from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastPrune {
    /// Nobody has pruned the repository from this machine yet.
    First,
    /// The last prune is a day ago.
    Due,
    /// The last prune is not a day ago: there must be none now.
    Recent,
}

/// Notes that the caller prunes a repository now, unless the last prune is not a day ago. A prune that fails counts: a
/// host that lets nothing be deleted would be asked every few minutes.
pub(super) fn note_if_due(repository: &str) -> Result<LastPrune> {
    note_in(&folder()?, repository, units::now(), false)
}

/// Notes that the caller prunes a repository now, whenever the last prune was.
pub(super) fn note(repository: &str) -> Result<()> {
    note_in(&folder()?, repository, units::now(), true).map(drop)
}

fn note_in(folder: &Path, repository: &str, now: u64, at_once: bool) -> Result<LastPrune> {
    fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    // Others hold the lock as long as they read and write the file.
    let _lock = files::locked(&folder.join("pruned.lock"))?;
    let file = folder.join("pruned.json");
    let mut pruned: Pruned = read_state(&file, "repositories may be pruned early")?.unwrap_or_default();
    let key = key_of(repository);
    let last = match pruned.repositories.get(&key) {
        None => LastPrune::First,
        // The clock may have been set back, by a second or by a year.
        Some(time) if time.abs_diff(now) < PRUNE_EVERY => LastPrune::Recent,
        Some(_) => LastPrune::Due,
    };
    if at_once || last != LastPrune::Recent {
        pruned.repositories.insert(key, now);
        write_state(&file, &pruned)?;
    }
    Ok(last)
}

/// Returns the one name that a repository has here: a directory may be reached by several paths.
fn key_of(repository: &str) -> String {
    if repository.contains("://") {
        return repository.trim_end_matches('/').to_owned();
    }
    let path = fs::canonicalize(repository).or_else(|_| std::path::absolute(repository));
    path.map_or_else(|_| repository.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_lies_between_two_prunes_whoever_prunes() {
        let dir = tempfile::tempdir().unwrap();
        let note =
            |repository: &str, now| note_in(&dir.path().join("backup"), repository, now, false).unwrap();
        let midnight = 20_000 * PRUNE_EVERY;
        assert_eq!(note("s3://b/x", midnight - 1), LastPrune::First);
        assert_eq!(note("s3://b/y", midnight), LastPrune::First);
        // Midnight is no reason to prune again.
        assert_eq!(note("s3://b/x", midnight + 5), LastPrune::Recent);
        assert_eq!(note("s3://b/x/", midnight + PRUNE_EVERY - 2), LastPrune::Recent);
        assert_eq!(note("s3://b/x/", midnight + PRUNE_EVERY - 1), LastPrune::Due);
        assert_eq!(note("s3://b/x", midnight + PRUNE_EVERY + 5), LastPrune::Recent);
        // The clock was set back by an hour, and by a year.
        assert_eq!(note("s3://b/x", midnight + PRUNE_EVERY - 3600), LastPrune::Recent);
        assert_eq!(note("s3://b/x", midnight - 364 * PRUNE_EVERY), LastPrune::Due);
        // A prune that somebody asked for counts.
        let asked = midnight + PRUNE_EVERY;
        note_in(&dir.path().join("backup"), "s3://b/y", asked, true).unwrap();
        note_in(&dir.path().join("backup"), "s3://b/y", asked + 9, true).unwrap();
        assert_eq!(note("s3://b/y", asked + PRUNE_EVERY), LastPrune::Recent);
        assert_eq!(note("s3://b/y", asked + PRUNE_EVERY + 9), LastPrune::Due);
    }

    #[test]
    fn a_directory_is_one_repository_by_all_of_its_paths() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::create_dir(path("repository")).unwrap();
        std::os::unix::fs::symlink(path("repository"), path("link")).unwrap();
        for other in ["repository/", "link", "./repository/../link/"] {
            assert_eq!(key_of(&path(other)), key_of(&path("repository")), "{other}");
        }
        assert_ne!(key_of(&path("away")), key_of(&path("repository")));
    }
}
