//! This machine's memory of repositories. It detects a store that has gone back to an older state.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pagefold_engine::pool::Origin;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pack::PackId;
use crate::upload::remove_journal;

/// Number of files that this process has replaced.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// A folder in which a machine remembers repositories; without one it remembers nothing.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The folder.
    pub folder: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Newest {
    /// Number of the newest commit that was seen.
    pub(crate) number: u64,
    /// Hash of that commit, in two halves.
    pub(crate) hash: (u64, u64),
}

pub(crate) fn halves(hash: u128) -> (u64, u64) {
    ((hash >> 64) as u64, hash as u64)
}

impl Seen {
    fn file(&self, repository: &[u8; 16], suffix: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{}.{suffix}", PackId(*repository))))
    }

    /// Returns the path of the file with the newest commit that was seen.
    pub(crate) fn newest_file(&self, repository: &[u8; 16]) -> Option<PathBuf> {
        self.file(repository, "seen")
    }

    pub(crate) fn newest(&self, repository: &[u8; 16]) -> Result<Option<Newest>> {
        let Some(file) = self.newest_file(repository) else { return Ok(None) };
        match fs::read(&file) {
            // A file that is not whole counts as none.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Local { doing: format!("cannot read {}", file.display()), source }),
        }
    }

    pub(crate) fn remember(&self, repository: &[u8; 16], newest: Newest) -> Result<()> {
        let Some(file) = self.newest_file(repository) else { return Ok(()) };
        let text = serde_json::to_vec(&newest).unwrap_or_default();
        replace(&file, &text)
    }

    /// Returns the snapshots whose backup to this repository was begun here and did not end. Files with other names are
    /// ignored.
    pub(crate) fn begun(&self, repository: &[u8; 16]) -> Result<Vec<Origin>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let local = |source| Error::Local { doing: format!("cannot read {}", folder.display()), source };
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(local)?,
        };
        let mut begun = Vec::new();
        for entry in entries {
            let name = entry.map_err(local)?.file_name();
            let name = name.to_string_lossy();
            let origin = name.strip_prefix(&format!("{}.", PackId(*repository)));
            let origin = origin.and_then(|rest| rest.strip_suffix(".journal"));
            begun.extend(origin.and_then(|origin| origin.parse::<Origin>().ok()));
        }
        Ok(begun)
    }

    /// Returns the path of the journal of backups of a snapshot.
    pub(crate) fn journal(&self, repository: &[u8; 16], origin: &str) -> Option<PathBuf> {
        self.file(repository, &format!("{origin}.journal"))
    }

    /// Removes the journal of backups of a snapshot, if it is there.
    pub(crate) fn forget_journal(&self, repository: &[u8; 16], origin: &Origin) -> Result<()> {
        self.journal(repository, &origin.to_string()).map_or(Ok(()), |file| remove_journal(&file))
    }
}

/// Replaces a file by one that is whole.
fn replace(file: &Path, bytes: &[u8]) -> Result<()> {
    let local = |source| Error::Local { doing: format!("cannot write {}", file.display()), source };
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(local)?;
    }
    // Threads of one process may replace the same file.
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let new = file.with_extension(format!("new-{}-{call}", std::process::id()));
    let replaced = fs::write(&new, bytes).and_then(|()| fs::rename(&new, file));
    replaced.map_err(|source| {
        fs::remove_file(&new).ok();
        local(source)
    })
}
