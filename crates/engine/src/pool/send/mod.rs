//! Makes a stream of bytes from a snapshot, and a snapshot from a stream.
//!
//! A stream has the entries of a snapshot's tree, or those in which it differs from an earlier snapshot, in the order
//! of keys, and the records of its pages as they are stored: compressed, with the models that they need, each of which
//! comes once. The receiver gives the records other addresses, and so other checksums, and the models its own numbers;
//! no page is coded again. Format: docs/FORMAT.md. Reasons: docs/decisions/0022-streams.md.
//!
//! - N1: a stream is received into a hidden dataset. Others see it, under its name and with its snapshot, only after
//!   the end of the stream was verified; one batch of the log makes it visible.
//! - N2: a frame of the stream is one commit of the hidden dataset. The commit also stores how far the stream has come
//!   ([`PROGRESS`]), so after any interruption the receiver has a prefix of the stream, and knows which.
//! - N3: models that records of the stream use are pinned, once they are adopted or found, until the stream ends
//!   ([`crate::dataset::ModelPin`]), since no segment lists them before the first of these records is stored.
//! - N4: versions that a stream reads or writes are pinned: nobody can destroy them meanwhile.
//! - N5: a record of a stream is decoded once before it is committed: checksums show only that a stream arrived as its
//!   sender made it, and not that its pages can be read.

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
pub use wire::{EntriesFrame, StreamEntry, StreamPage};
pub use write::Source;

use super::Pool;
use super::catalogue::Catalogue;
use crate::{Error, Result};

/// Property of a hidden dataset: a [`Token`].
pub(super) const PROGRESS: &str = "receive:progress";
/// Property of a snapshot that was received: its [`Origin`].
pub(super) const ORIGIN: &str = "receive:origin";
/// First character of the last part of a hidden dataset's path, and of a hidden snapshot's name. No name that a user
/// gives begins with it.
pub(super) const HIDDEN: char = '%';

/// Figures of a stream that is being sent or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes of the stream so far.
    pub stream_bytes: u64,
    /// Number of values that were set or deleted so far.
    pub values: u64,
    /// Number of pages that were set so far.
    pub pages: u64,
    /// Bytes of the records of these pages.
    pub record_bytes: u64,
    /// Approximate `record_bytes` of the whole stream.
    pub expected_bytes: u64,
}

/// The received part of a stream that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Path of the dataset that is being received.
    pub path: String,
    /// Path of the hidden dataset that has what came; to be named only beside others, for what they hold together.
    pub hidden: String,
    /// Token with which the sender goes on.
    pub token: Token,
    /// Stored bytes that the received part holds for itself.
    pub stored_bytes: u64,
}

/// Returns true if `path`, the path of a dataset or the name of a snapshot, is hidden from users.
pub(super) fn is_hidden(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|last| last.starts_with(HIDDEN))
}

/// Returns the path of a dataset while it is being received.
pub(super) fn hidden(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((parent, last)) => format!("{parent}/{HIDDEN}{last}"),
        None => format!("{HIDDEN}{path}"),
    }
}

fn being_received(path: &str) -> Error {
    Error::Busy(format!(
        "a stream is being received into '{path}' just now; wait until that 'pagefold receive' has ended, or end it"
    ))
}

/// Keeps versions from being destroyed (N4).
pub(super) struct VersionPins<'a> {
    pool: &'a Pool,
    ids: Vec<u64>,
}

impl<'a> VersionPins<'a> {
    /// Pins versions. The caller has held the catalogue's lock since it looked them up.
    pub(super) fn new(pool: &'a Pool, catalogue: &mut Catalogue, ids: Vec<u64>) -> Self {
        ids.iter().for_each(|id| *catalogue.pins.entry(*id).or_default() += 1);
        Self { pool, ids }
    }
}

impl Drop for VersionPins<'_> {
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
    /// Returns the origin of a snapshot, which names it in all pools.
    fn origin_of(&self, pool: &Pool, id: u64) -> Result<Origin> {
        let version = self.get(id)?;
        let made = Origin { pool: pool.guid(), number: id, created: version.created };
        Ok(version.properties.get(ORIGIN).and_then(|text| text.parse().ok()).unwrap_or(made))
    }

    /// Returns the snapshots that `origin` names: one that was made here, and those that were received from it.
    fn by_origin(&self, pool: &Pool, origin: &Origin) -> Vec<u64> {
        let named = |id: &u64| self.origin_of(pool, *id).is_ok_and(|found| found == *origin);
        let snapshots = self.versions.iter().filter(|(_, version)| version.snapshot_of().is_some());
        snapshots.map(|(id, _)| *id).filter(named).collect()
    }

    /// Returns the snapshots of a token: the one to be sent, and the earlier one that the receiver has, if any.
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

    /// Returns an error while a stream is being received into dataset `path`.
    fn check_not_received(&self, path: &str) -> Result<()> {
        match self.dataset(&hidden(path)) {
            Ok(id) if self.pins.contains_key(&id) => Err(being_received(path)),
            _ => Ok(()),
        }
    }

    /// Returns an error if another stream into dataset `path` has just begun.
    fn check_not_begun(&self, path: &str) -> Result<()> {
        if self.dataset(&hidden(path)).is_ok() { Err(being_received(path)) } else { Ok(()) }
    }

    fn partial(&self, id: u64) -> Option<Partial> {
        let version = self.versions.get(&id)?;
        let token = version.properties.get(PROGRESS)?.parse().ok()?;
        let (hidden, path) = (version.name.clone(), version.name.replace(HIDDEN, ""));
        Some(Partial { path, hidden, token, stored_bytes: version.data.accounting().fresh_bytes })
    }

    /// Returns the number of the hidden dataset that has the stream received in part into dataset `path`, if it can be
    /// given up.
    fn partial_to_give_up(&self, path: &str) -> Result<u64> {
        let id = self.dataset(&hidden(path));
        let id = id.map_err(|_| Error::NotFound(format!("nothing was received in part into '{path}'")))?;
        self.check_not_received(path)?;
        Ok(id)
    }
}

impl Pool {
    /// Returns all streams that were received in part.
    pub fn partials(&self) -> Vec<Partial> {
        let catalogue = self.catalogue.read();
        let hidden = catalogue.datasets().filter(|(_, version)| is_hidden(&version.name));
        hidden.filter_map(|(id, _)| catalogue.partial(id)).collect()
    }

    /// Returns the stream that was received in part into dataset `path`, if there is one.
    pub fn partial(&self, path: &str) -> Option<Partial> {
        let catalogue = self.catalogue.read();
        catalogue.partial(catalogue.dataset(&hidden(path)).ok()?)
    }

    /// Gives up the stream that was received in part into dataset `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none; [`Error::Busy`] while a stream is being received.
    pub fn abort_receive(&self, path: &str) -> Result<()> {
        self.perform_stored(|catalogue, _| {
            let id = catalogue.partial_to_give_up(path)?;
            catalogue.check_stored(id)?;
            Ok(vec![crate::dataset::redo::CatalogueOp::Destroy { id }])
        })
    }

    /// Checks that [`Self::abort_receive`] would be allowed now, and changes nothing.
    ///
    /// # Errors
    /// As [`Self::abort_receive`].
    pub fn check_abort_receive(&self, path: &str) -> Result<()> {
        self.catalogue.read().partial_to_give_up(path).map(drop)
    }
}
