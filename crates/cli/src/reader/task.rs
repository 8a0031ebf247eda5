//! The task of the process that reads a backup. It comes from who starts it over standard input, so that no key is in a command line or an environment
//! that others could read, and none stays in one.

use std::path::PathBuf;

use pagefold_backup::{Location, Patience, Repository, Secret, Seen, Store};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Result};
use crate::{places, raw};

/// A repository, and what opens it. It has keys: it is never printed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Source {
    /// As it was named; a directory by its absolute path.
    pub repository: String,
    /// URL of an S3-compatible store.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Pagefold's name on another host.
    pub remote_command: Option<String>,
    /// Of the access to a bucket: `AWS_ACCESS_KEY_ID` and so on.
    pub settings: Vec<(String, String)>,
    /// Passphrase or key.
    pub secret: Option<Vec<u8>>,
}

/// Where a backup is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The directory, absolute.
    #[serde(with = "raw::path")]
    pub dir: PathBuf,
    /// Options of the mount, as they were given.
    pub options: Vec<String>,
}

/// A task.
#[derive(Clone, Serialize, Deserialize)]
pub struct Task {
    /// The repository.
    pub source: Source,
    /// The backup: a number, or a name.
    pub backup: String,
    /// Where it is mounted; else it is read for datasets of pools.
    pub place: Option<Place>,
    /// Seconds that a read waits for the store.
    pub patience_s: u64,
    /// Opened blocks in memory, in bytes.
    pub cache_bytes: Option<u64>,
    /// Pages that nobody reads are to be brought, too.
    pub hydrate: bool,
    /// At most so many bytes a second.
    pub rate: Option<u64>,
}

impl Source {
    /// Where it lies.
    ///
    /// # Errors
    /// For what is no repository.
    pub fn location(&self) -> Result<Location> {
        let location = Location::parse(
            &self.repository,
            self.endpoint.as_deref(),
            self.region.as_deref(),
            self.remote_command.as_deref(),
        );
        location.context(|| format!("cannot use the repository {}", self.repository))
    }

    /// Opens it; requests have `patience`.
    ///
    /// # Errors
    /// Of the store, and of the key.
    pub fn open(&self, patience: Patience) -> Result<Repository, Opening> {
        let location = self.location().map_err(Opening::Failed)?;
        let store = Store::open_with(&location, false, &self.settings, patience).map_err(Opening::Told)?;
        let secret = self.secret.clone().map(Secret::new).transpose().map_err(Opening::Told)?;
        let folder = Some(places::state_dir().map_err(Opening::Failed)?.join("backup"));
        Repository::open(store, Seen { folder }, secret.as_ref()).map_err(Opening::Told)
    }
}

/// Why a repository cannot be opened.
pub enum Opening {
    /// The crate says.
    Told(pagefold_backup::Error),
    /// We say.
    Failed(Failure),
}
