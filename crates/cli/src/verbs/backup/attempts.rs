//! This machine's memory of backups by policy: the newest backup of each dataset, and the outcome of the last attempt.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::verbs::warn;

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Seconds since 1970.
    pub at: u64,
    /// The failure, in words.
    pub what: String,
    /// A step that helps.
    pub hint: Option<String>,
}

/// Backups of a dataset to a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// The repository. Backups in another one do not count.
    pub repository: String,
    /// Begin of the newest backup, in seconds since 1970.
    pub newest: Option<u64>,
    /// Its number in the repository.
    pub number: Option<u64>,
    /// The last attempt, if it failed.
    pub failed: Option<Failed>,
}

/// All that is remembered.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptLog {
    /// Attempts by `POOL/DATASET`.
    pub datasets: BTreeMap<String, Attempts>,
}

/// Returns the folder of this machine's files about backups.
pub(super) fn folder() -> Result<PathBuf> {
    Ok(files::state_dir()?.join("backup"))
}

/// Reads a file of this machine's state; `None` if there is none. A file that is not whole counts as none, since backups
/// must not stop because of it: a warning tells that, and what `follows`.
pub(super) fn read_state<T: DeserializeOwned>(file: &Path, follows: &str) -> Result<Option<T>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context(|| format!("cannot read {}", file.display())),
    };
    match serde_json::from_slice(&bytes) {
        Ok(state) => Ok(Some(state)),
        Err(error) => {
            let file = file.display();
            warn(&format!("{file} is not whole, and counts as none ({error}): {follows}"));
            Ok(None)
        }
    }
}

/// Replaces a file of this machine's state.
pub(super) fn write_state<T: Serialize>(file: &Path, state: &T) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(state).context(|| format!("cannot write {}", file.display()))?;
    files::replace(file, &bytes)
}

impl AttemptLog {
    fn file() -> Result<PathBuf> {
        Ok(folder()?.join("policies.json"))
    }

    /// Reads the file. One that is not whole counts as none, with a warning: then all backups by policy are due.
    pub fn read() -> Result<Self> {
        Ok(read_state(&Self::file()?, "all backups by policy are due")?.unwrap_or_default())
    }

    /// Writes the file.
    pub fn write(&self) -> Result<()> {
        write_state(&Self::file()?, self)
    }

    /// Returns the attempts to back a dataset up to this repository.
    pub fn of(&self, name: &str, repository: &str) -> Option<&Attempts> {
        self.datasets.get(name).filter(|attempts| attempts.repository == repository)
    }

    /// Returns the attempts to back a dataset up to this repository, to be changed.
    pub fn of_mut(&mut self, name: &str, repository: &str) -> &mut Attempts {
        let attempts = self.datasets.entry(name.to_owned()).or_default();
        if attempts.repository != repository {
            *attempts = Attempts { repository: repository.to_owned(), ..Attempts::default() };
        }
        attempts
    }
}

/// Takes the folder's lock: two runs at once would both find the same backups due.
pub fn lock() -> Result<fs::File> {
    let folder = folder()?;
    fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
    files::try_locked(&folder.join("run.lock"))?.ok_or_else(|| {
        Failure::new("another `pagefold backup run` is under way")
            .hint("it does what is due; see it: ps -C pagefold -o pid,args")
    })
}
