//! A snapshot as a stream of bytes, and back.
//!
//! A stream has the entries of a snapshot's tree, or those in which it differs from a snapshot before it, in the order of keys,
//! and the records of its pages as they are stored: compressed, and by the models that they need, each of which comes once.
//! The receiver gives records other addresses, and so other checksums, and its own numbers to models; no page is coded
//! again. What a stream looks like: docs/FORMAT.md. Why so: docs/decisions/0022-streams.md.
//!
//! - N1: what is received lies in a hidden dataset. It is seen by others, under its name and with its snapshot, from the instant
//!   on in which the end of the stream was verified; one batch of the log makes it so.
//! - N2: a frame of the stream is one commit of the hidden dataset, which says too how far the stream has come
//!   ([`PROGRESS`]). So whatever interrupts a receiver, what it kept is a prefix of the stream, and it knows which.
//! - N3: models that records of the stream use stay, once they are adopted or found, as long as the pool is open
//!   ([`crate::dataset::ModelTable::keep`]): no segment lists them before the first of these records is there.
//! - N4: versions that are read or written by a stream are pinned: nobody destroys them meanwhile.

mod batch;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod group;
mod receive;
mod stream;
#[cfg(test)]
mod tests;
mod token;
mod wire;
mod write;

pub use receive::ReceiveOptions;
pub use stream::{StreamEnd, StreamHead, StreamItem, StreamReader, StreamWriter};
pub use token::{Origin, Token};
pub use wire::{Entry as StreamEntry, Page as StreamPage};
pub use write::Source;

use super::Pool;
use super::catalogue::Catalogue;
use crate::{Error, Result};

/// Property of a hidden dataset: a [`Token`].
pub(super) const PROGRESS: &str = "receive:progress";
/// Property of a snapshot that was received: its [`Origin`].
pub(super) const ORIGIN: &str = "receive:origin";
/// Begins the last part of a hidden dataset's path, or the name of a hidden snapshot. No name that a user gives begins so.
pub(super) const HIDDEN: char = '%';

/// What went through a stream by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Values that were set or deleted.
    pub values: u64,
    /// Pages that were set.
    pub pages: u64,
    /// Bytes of their records.
    pub record_bytes: u64,
    /// What `record_bytes` will be, about.
    pub expected_bytes: u64,
}

/// What came of a stream that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The dataset that is to become of it.
    pub path: String,
    /// With what the sender goes on.
    pub token: Token,
    /// Stored bytes that it holds for itself.
    pub stored_bytes: u64,
}

/// Whether a dataset, by its path, or a snapshot, by its name, is the pool's own affair.
pub(super) fn is_hidden(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|last| last.starts_with(HIDDEN))
}

/// Where a dataset lies while it is received.
pub(super) fn hidden(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((parent, last)) => format!("{parent}/{HIDDEN}{last}"),
        None => format!("{HIDDEN}{path}"),
    }
}

/// Keeps versions from being destroyed (N4).
pub(super) struct Pins<'a> {
    pool: &'a Pool,
    ids: Vec<u64>,
}

impl<'a> Pins<'a> {
    /// Of versions that are there, with the catalogue locked since they were looked up.
    pub(super) fn new(pool: &'a Pool, catalogue: &mut Catalogue, ids: Vec<u64>) -> Self {
        ids.iter().for_each(|id| *catalogue.pins.entry(*id).or_default() += 1);
        Self { pool, ids }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut catalogue = self.pool.catalogue.write();
        for id in &self.ids {
            let left = catalogue.pins.get(id).map_or(0, |count| count - 1);
            if left == 0 {
                catalogue.pins.remove(id);
            } else {
                catalogue.pins.insert(*id, left);
            }
        }
    }
}

impl Catalogue {
    /// What names a snapshot in all pools.
    fn origin_of(&self, pool: &Pool, id: u64) -> Result<Origin> {
        let version = self.get(id)?;
        let made = Origin { pool: pool.guid(), number: id, created: version.created };
        Ok(version.properties.get(ORIGIN).and_then(|text| text.parse().ok()).unwrap_or(made))
    }

    /// The snapshots that `origin` names: one that was made here, and those that were received from it.
    fn by_origin(&self, pool: &Pool, origin: &Origin) -> Vec<u64> {
        let named = |id: &u64| self.origin_of(pool, *id).is_ok_and(|found| found == *origin);
        let snapshots = self.versions.iter().filter(|(_, version)| version.snapshot_of().is_some());
        snapshots.map(|(id, _)| *id).filter(named).collect()
    }

    /// The snapshots of a token: the one to be sent, and one before it.
    fn by_token(&self, pool: &Pool, token: &Token) -> Result<(u64, Option<u64>)> {
        let all = self.by_origin(pool, &token.to);
        let Some(from) = &token.from else {
            let first = all.first().map(|to| (*to, None));
            return first
                .ok_or_else(|| Error::NotFound("the snapshot of the stream is not in this pool".into()));
        };
        let froms = self.by_origin(pool, from);
        for to in all {
            let lineage = self.lineage(to);
            if let Some(before) = lineage.iter().find(|before| froms.contains(&before.id)) {
                return Ok((to, Some(before.id)));
            }
        }
        Err(Error::NotFound("the snapshots of the stream are not in this pool, or not any more".into()))
    }

    fn partial(&self, id: u64) -> Option<Partial> {
        let version = self.versions.get(&id)?;
        let token = version.properties.get(PROGRESS)?.parse().ok()?;
        let path = version.name.replace(HIDDEN, "");
        Some(Partial { path, token, stored_bytes: version.data.accounts().fresh_bytes })
    }
}

impl Pool {
    /// All that was received in part.
    pub fn partials(&self) -> Vec<Partial> {
        let catalogue = self.catalogue.read();
        let hidden = catalogue.datasets().filter(|(_, version)| is_hidden(&version.name));
        hidden.filter_map(|(id, _)| catalogue.partial(id)).collect()
    }

    /// What was received in part into dataset `path`.
    pub fn partial(&self, path: &str) -> Option<Partial> {
        let catalogue = self.catalogue.read();
        catalogue.partial(catalogue.dataset(&hidden(path)).ok()?)
    }

    /// Gives up what was received in part into dataset `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if nothing was; [`Error::Busy`] while a stream is being received.
    pub fn abort_receive(&self, path: &str) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let id = catalogue.dataset(&hidden(path));
            let id =
                id.map_err(|_| Error::NotFound(format!("nothing was received in part into '{path}'")))?;
            catalogue.check_unpinned(id)?;
            catalogue.check_stored(id)?;
            Ok(vec![crate::dataset::redo::Deed::Destroy { id }])
        })
    }
}
