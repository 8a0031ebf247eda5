//! The snapshots of a mounted dataset, as its mount shows them below `.pagefold/snapshot`.

use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::pool::Pool;
use pagefold_fs::{AtimePolicy, Fs, FsError, FsOptions, SystemClock};
use pagefold_fuse::{KnownSnapshot, Snapshots};
use parking_lot::RwLock;

use super::super::export::NoteSnapshot;
use super::super::looked_into::LookedInto;
use crate::incomplete;

/// The snapshots of one dataset.
pub(super) struct SnapshotsOf {
    pub(super) pool: Arc<Pool>,
    pub(super) id: u64,
    /// Lock that is held for writing while snapshots are destroyed.
    pub(super) dataset_lock: Arc<RwLock<()>>,
    /// Notes what the kernel knows of snapshots.
    pub(super) note_snapshot: NoteSnapshot,
}

impl Snapshots for SnapshotsOf {
    fn list(&self) -> Vec<(u64, String)> {
        self.pool.snapshots_of(self.id)
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        let named = |(id, other): (u64, String)| (other.as_bytes() == name).then_some(id);
        self.list().into_iter().find_map(named)
    }

    fn open(&self, number: u64, enter: &mut dyn FnMut(Arc<Fs>)) -> Result<(), FsError> {
        // A snapshot that is being destroyed must not be opened again. The lock is recursive: a thread that mounts
        // holds it, too, and may come here by way of the kernel.
        let _unchanged = self.dataset_lock.read_recursive();
        let dataset = self.pool.open_snapshot(number).ok_or(FsError::NotFound)?;
        let path = self.pool.path_of(number).unwrap_or_default();
        let over = incomplete::look_into(&self.pool, &path, dataset).map_err(|failure| {
            tracing::warn!(failure = failure.what(), snapshot = path, "cannot show a snapshot");
            FsError::Engine(Error::Busy(failure.what().to_owned()))
        })?;
        let inodes = Some(Arc::clone(&self.pool.beside().inodes));
        let options =
            FsOptions { atime: AtimePolicy::Never, read_only: true, inodes, ..FsOptions::default() };
        enter(Fs::mount(over, Arc::new(SystemClock), options)?);
        Ok(())
    }

    fn note(&self, known: KnownSnapshot) -> Result<(), FsError> {
        let KnownSnapshot { place, number, references } = known;
        (self.note_snapshot)(LookedInto { place, snapshot: number, references }).map_err(|failure| {
            tracing::error!(
                failure = failure.what(),
                number,
                "cannot note what the kernel knows of a snapshot"
            );
            FsError::Engine(Error::Failed(failure.what().to_owned()))
        })
    }
}
