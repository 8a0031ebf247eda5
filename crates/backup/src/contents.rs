//! A backup that is read part by part, as parts of it are wanted.

use pagefold_engine::Key;

use crate::block::{BlockRef, Kind, ModelRef};
use crate::chunk::Entry;
use crate::commit::Backup;
use crate::error::Result;
use crate::merge::open_chunk;
use crate::repository::{CONFIG, Repository};
use crate::root::{Root, Row};
use crate::store::Requests;

/// A backup and the root of its manifest. All that it gives out was verified (B4); several threads may read at once.
pub struct Contents {
    repository: Repository,
    backup: Backup,
    root: Root,
}

impl Contents {
    /// Reads the root of a backup's manifest.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] and [`crate::Error::Missing`]; of the store.
    pub fn open(repository: Repository, backup: Backup) -> Result<Self> {
        let root = repository.root(&backup)?;
        Ok(Self { repository, backup, root })
    }

    /// The backup.
    pub fn backup(&self) -> &Backup {
        &self.backup
    }

    /// The repository's name, in hexadecimal.
    pub fn repository_id(&self) -> String {
        self.repository.id()
    }

    /// The chunks of the manifest, in the order of keys.
    pub fn rows(&self) -> &[Row] {
        &self.root.rows
    }

    /// The number of the chunk in which `key` lies if it is there; `None` before the first one.
    pub fn row_of(&self, key: &Key) -> Option<usize> {
        self.root.rows.partition_point(|row| row.first <= *key).checked_sub(1)
    }

    /// The entries of chunks, in the order in which they are asked for. Near ones are read by one request.
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn chunks(&self, rows: &[Row]) -> Result<Vec<Vec<Entry>>> {
        let wanted: Vec<_> = rows.iter().map(|row| (Kind::Chunk, row.block)).collect();
        let read = self.repository.read(&wanted)?;
        rows.iter().zip(&read).map(|(row, squeezed)| open_chunk(row, squeezed)).collect()
    }

    /// Blocks of records, opened, in the order in which they are asked for. Near ones are read by one request.
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn blocks(&self, wanted: &[BlockRef]) -> Result<Vec<Vec<u8>>> {
        let wanted: Vec<_> = wanted.iter().map(|block| (Kind::Records, *block)).collect();
        self.repository.read(&wanted)
    }

    /// A model, as streams have it (docs/FORMAT.md, "Streams").
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn model(&self, model: &ModelRef) -> Result<Vec<u8>> {
        self.repository.model(model)
    }

    /// True if the store shows the repository: where it does not, an object that is missing is no damage.
    ///
    /// # Errors
    /// Of the store.
    pub fn is_there(&self) -> Result<bool> {
        Ok(self.repository.store().head(CONFIG)?.is_some())
    }

    /// The requests to the store by now.
    pub fn requests(&self) -> Requests {
        self.repository.store().requests()
    }
}
