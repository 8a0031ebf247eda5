//! Reads a backup part by part, as parts of it are wanted.

use std::sync::Arc;

use pagefold_engine::Key;

use crate::block::{BlockRef, Kind, ModelRef};
use crate::chunk::Entry;
use crate::commit::Backup;
use crate::error::Result;
use crate::merge::open_chunk;
use crate::repository::{CONFIG, CONFIG_COPY, Repository};
use crate::root::{Root, Row};
use crate::store::Requests;

/// A backup and the root of its manifest. Everything that it returns was verified (B4); several threads may read at
/// once.
pub struct Contents {
    repository: Arc<Repository>,
    backup: Backup,
    root: Root,
}

impl Contents {
    /// Reads the root of a backup's manifest.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] and [`crate::Error::Missing`]; errors of the store.
    pub fn open(repository: Repository, backup: Backup) -> Result<Self> {
        Self::of(Arc::new(repository), backup)
    }

    fn of(repository: Arc<Repository>, backup: Backup) -> Result<Self> {
        let root = repository.root(&backup)?;
        Ok(Self { repository, backup, root })
    }

    /// Looks the backup up again: a repacking gives it another manifest, and prunes delete what only the old one needs.
    /// Returns `None` if it still has this one, or was forgotten.
    ///
    /// # Errors
    /// As [`Contents::open`], and errors of reading the log.
    pub fn repacked(&self) -> Result<Option<Self>> {
        let found = self.repository.backups()?.into_iter().find(|other| other.number == self.backup.number);
        let other = found.filter(|found| found.root != self.backup.root);
        other.map(|backup| Self::of(Arc::clone(&self.repository), backup)).transpose()
    }

    /// Returns the backup.
    pub fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Returns the repository's name, in hexadecimal.
    pub fn repository_id(&self) -> String {
        self.repository.id()
    }

    /// Returns the rows of the manifest's chunks, in the order of keys.
    pub fn rows(&self) -> &[Row] {
        &self.root.rows
    }

    /// Returns the number of the chunk in which `key` lies if it is in the backup; `None` if it lies before the first
    /// chunk.
    pub fn row_of(&self, key: &Key) -> Option<usize> {
        self.root.rows.partition_point(|row| row.first <= *key).checked_sub(1)
    }

    /// Reads the entries of chunks, in the order of `rows`. Chunks that are near each other are read by one request.
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn chunks(&self, rows: &[Row]) -> Result<Vec<Vec<Entry>>> {
        let wanted: Vec<_> = rows.iter().map(|row| (Kind::Chunk, row.block)).collect();
        let read = self.repository.read(&wanted)?;
        rows.iter().zip(&read).map(|(row, squeezed)| open_chunk(row, squeezed)).collect()
    }

    /// Reads and opens blocks of records, in the order of `wanted`. Blocks that are near each other are read by one
    /// request.
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn blocks(&self, wanted: &[BlockRef]) -> Result<Vec<Vec<u8>>> {
        let wanted: Vec<_> = wanted.iter().map(|block| (Kind::Records, *block)).collect();
        self.repository.read(&wanted)
    }

    /// Reads a model in the form that streams have (docs/FORMAT.md, "Streams").
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn model(&self, model: &ModelRef) -> Result<Vec<u8>> {
        self.repository.model(model)
    }

    /// Returns true if the store shows the repository. If it does not, a missing object is no damage.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn is_there(&self) -> Result<bool> {
        let store = self.repository.store();
        Ok(store.head(CONFIG)?.is_some() || store.head(CONFIG_COPY)?.is_some())
    }

    /// Returns the requests that were made to the store so far.
    pub fn requests(&self) -> Requests {
        self.repository.store().requests()
    }
}
