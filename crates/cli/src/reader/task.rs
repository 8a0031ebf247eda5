//! The task of the process that reads a backup. It comes over standard input from the process that starts it, so that
//! no key is in a command line or an environment that others could read.

use std::path::PathBuf;

use pagefold_backup::{Location, Patience, Repository, Secret, Seen, Store};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{files, raw};
use serde::{Deserialize, Serialize};

/// A repository, and the keys that open it; it must never be printed.
#[derive(Clone, Serialize, Deserialize)]
pub struct RepositorySource {
    /// Name of the repository as the user gave it; for a directory, its absolute path.
    pub repository: String,
    /// URL of the store that has the bucket, if it is not the provider's own.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Command that runs Pagefold on another host.
    pub remote_command: Option<String>,
    /// Settings for access to a bucket: `AWS_ACCESS_KEY_ID` and so on.
    pub settings: Vec<(String, String)>,
    /// Passphrase or key; `None` if the repository is not encrypted.
    pub secret: Option<Vec<u8>>,
}

/// A place to mount a backup at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountSpec {
    /// The directory, an absolute path.
    #[serde(with = "raw::path")]
    pub dir: PathBuf,
    /// Options of the mount, as the user gave them.
    pub options: Vec<String>,
}

/// A task.
#[derive(Clone, Serialize, Deserialize)]
pub struct Task {
    /// The repository.
    pub source: RepositorySource,
    /// The backup, by number or name.
    pub backup: String,
    /// Place where it is mounted; `None` if it is read for datasets of pools.
    pub place: Option<MountSpec>,
    /// Seconds that a read waits for the store.
    pub patience_s: u64,
    /// Largest size of decrypted blocks in memory, in bytes; `None`: the default.
    pub cache_bytes: Option<u64>,
    /// True if pages that nobody reads are to be fetched, too.
    pub hydrate: bool,
    /// Largest number of bytes fetched per second; `None`: no bound.
    pub rate: Option<u64>,
}

impl RepositorySource {
    /// Returns where the repository is.
    ///
    /// # Errors
    /// If the name is not that of a repository.
    pub fn location(&self) -> Result<Location> {
        let location = Location::parse(
            &self.repository,
            self.endpoint.as_deref(),
            self.region.as_deref(),
            self.remote_command.as_deref(),
        );
        location.context(|| format!("cannot use the repository {}", self.repository))
    }

    /// Opens the repository; requests have `patience`.
    ///
    /// # Errors
    /// Those of the store, and of the key.
    pub fn open(&self, patience: Patience) -> Result<Repository, Opening> {
        let location = self.location().map_err(Opening::Failed)?;
        let store = Store::open_with(&location, false, &self.settings, patience).map_err(Opening::Told)?;
        let secret = self.secret.clone().map(Secret::new).transpose().map_err(Opening::Told)?;
        let folder = Some(files::state_dir().map_err(Opening::Failed)?.join("backup"));
        Repository::open(store, Seen { folder }, secret.as_ref()).map_err(Opening::Told)
    }
}

/// Reasons why a repository cannot be opened.
pub enum Opening {
    /// An error of the backup crate.
    Told(pagefold_backup::Error),
    /// A failure of this program.
    Failed(Failure),
}
