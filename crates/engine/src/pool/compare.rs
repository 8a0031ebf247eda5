//! Compares two versions, which stay as they are meanwhile.

use std::sync::Arc;

use super::Pool;
use super::send::{HIDDEN, VersionPins};
use crate::dataset::redo::CatalogueOp;
use crate::dataset::{Dataset, LiveDataset};
use crate::tree::Differences;
use crate::{Error, Result};

/// Versions that are compared, neither of which changes or goes meanwhile. Made by [`Pool::compare_versions`].
pub struct Comparison<'a> {
    pool: &'a Pool,
    old: Arc<LiveDataset>,
    new: Arc<LiveDataset>,
    pins: Option<VersionPins<'a>>,
    /// Path of the snapshot of a dataset that was made for the comparison.
    made: Option<String>,
}

impl Comparison<'_> {
    /// Returns the older version.
    pub fn older(&self) -> &dyn Dataset {
        &*self.old
    }

    /// Returns the newer version.
    pub fn newer(&self) -> &dyn Dataset {
        &*self.new
    }

    /// Returns the keys in which the two differ, ascending; what both share is not read. Entries of the engine's own
    /// accounts are among them.
    pub fn differences(&self) -> Differences {
        self.new.tree.differences(Some(&self.old.tree), None)
    }
}

impl Drop for Comparison<'_> {
    fn drop(&mut self) {
        self.pins = None;
        if let Some(made) = self.made.take()
            && let Err(error) = self.pool.destroy_snapshots(&[&made])
        {
            // The next comparison of the dataset destroys it, or the next opening of the pool.
            tracing::warn!(%error, "a snapshot that was made for a comparison is left");
        }
    }
}

/// Returns the name of the snapshot that is made of a dataset to compare it.
fn own_name() -> String {
    format!("{HIDDEN}compare")
}

impl Pool {
    /// Compares snapshot `old` with `new`, a snapshot or a dataset. A dataset is compared as it is now: a snapshot that
    /// nobody sees keeps it until the comparison is dropped. `created` is the time of that, in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if `new` does not come after `old`; [`Error::Busy`] while the dataset is
    /// being compared already; of making a snapshot.
    pub fn compare_versions(&self, old: &str, new: &str, created: u64) -> Result<Comparison<'_>> {
        {
            let catalogue = self.catalogue.read();
            let (old_id, new_id) = (catalogue.snapshot_at(old)?, catalogue.find(new)?);
            if old_id != new_id && !catalogue.lineage(new_id).iter().any(|ancestor| ancestor.id == old_id) {
                return Err(Error::Invalid(format!("'{old}' is no snapshot that '{new}' comes after")));
            }
        }
        let made = if new.contains('@') || self.shared.check_writable().is_err() {
            None
        } else {
            Some(self.snapshot_to_compare(new, created)?)
        };
        let mut catalogue = self.catalogue.write();
        let (old_id, new_id) = (catalogue.snapshot_at(old)?, catalogue.find(made.as_deref().unwrap_or(new))?);
        let data = |id| catalogue.get(id).map(|version| Arc::clone(&version.data));
        let (old, new) = (data(old_id)?, data(new_id)?);
        let pins = VersionPins::new(self, &mut catalogue, vec![old_id, new_id]);
        drop(catalogue);
        Ok(Comparison { pool: self, old, new, pins: Some(pins), made })
    }

    /// Destroys the snapshots of comparisons that a crash ended.
    ///
    /// # Errors
    /// Of destroying snapshots.
    pub(super) fn forget_comparisons(&self) -> Result<()> {
        let left: Vec<String> = {
            let catalogue = self.catalogue.read();
            let made = catalogue.versions.iter().filter(|(_, version)| version.snapshot_of().is_some());
            made.filter(|(_, version)| version.name == own_name())
                .map(|(id, _)| catalogue.path(*id))
                .collect()
        };
        if left.is_empty() {
            return Ok(());
        }
        self.destroy_snapshots(&left.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn snapshot_to_compare(&self, dataset: &str, created: u64) -> Result<String> {
        let name = own_name();
        let path = format!("{dataset}@{name}");
        // A crash may have left one.
        match self.destroy_snapshots(&[&path]) {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.perform(|catalogue, bound| {
            let (dataset, id) = (catalogue.dataset(dataset)?, catalogue.next_id);
            if catalogue.named_snapshot(dataset, &name).is_some() {
                return Err(Error::Busy(format!("'{path}' is there: the dataset is being compared already")));
            }
            Ok(vec![CatalogueOp::Snapshot { dataset, id, bound, created, name: &name }])
        })?;
        Ok(path)
    }
}
