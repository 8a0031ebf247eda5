//! The end of every read of a page from a device: its record, which has been verified, is decoded and kept. It is the
//! same for a thread that has waited for the device and for a ring that has read the blocks itself.

use super::models::Reading;
use super::part::decode_part;
use super::shared::{PrimaryCache, Shared};
use crate::record::Models;
use crate::{Addr, Error, Result};

/// How a record that was read is kept in memory.
#[derive(Clone, Copy)]
enum How {
    /// Not at all.
    No,
    /// Like a record that may be wanted again.
    Record,
    /// Like a record that a scan has read.
    Scanned,
}

/// How records that are read are kept in memory. It is made before their places are looked up.
pub(super) struct Keep {
    how: How,
    reading: Reading,
}

impl Keep {
    /// Returns how the pool wants records to be kept.
    pub(super) fn of(shared: &Shared, scan: bool) -> Self {
        Self::since(shared, scan, shared.models.reading())
    }

    /// As [`Keep::of`], for who began to read earlier.
    pub(super) fn since(shared: &Shared, scan: bool, reading: Reading) -> Self {
        let how = match (shared.primary_cache(), scan) {
            (PrimaryCache::All, false) => How::Record,
            (PrimaryCache::All, true) => How::Scanned,
            (PrimaryCache::Metadata | PrimaryCache::None, _) => How::No,
        };
        Self { how, reading }
    }

    /// Keeps a record, unless records were coded again meanwhile: it may be one of these, as it was.
    pub(super) fn keep(&self, shared: &Shared, addr: Addr, record: &[u8]) {
        let insert = || match self.how {
            How::No => {}
            How::Record => shared.cache.insert(addr, record),
            How::Scanned => shared.cache.insert_scanned(addr, record),
        };
        if !matches!(self.how, How::No) {
            shared.models.while_newest(&self.reading, insert);
        }
    }

    /// As [`Keep::keep`], for a record that nobody has asked for yet.
    pub(super) fn keep_ahead(&self, shared: &Shared, addr: Addr, record: &[u8]) {
        if !matches!(self.how, How::No) {
            shared.models.while_newest(&self.reading, || shared.cache.insert_ahead(addr, record));
        }
    }
}

/// The part of a page that a read wants, and its place in the caller's buffer.
pub(super) struct Wanted<'a> {
    pub(super) page_bytes: usize,
    pub(super) within: usize,
    pub(super) out: &'a mut [u8],
}

/// Fills what is wanted from a record, and keeps the record if it could be decoded, or if that has to wait.
///
/// # Errors
/// Those of [`decode_part`]. If `models` may not wait, the record is kept for whoever waits.
pub(super) fn deliver(
    shared: &Shared,
    models: &dyn Models,
    (addr, record): (Addr, &[u8]),
    wanted: Wanted<'_>,
    keep: &Keep,
) -> Result<()> {
    let Wanted { page_bytes, within, out } = wanted;
    let decoded = decode_part(page_bytes, models, (addr, record), within, out, |_| {});
    if matches!(decoded, Ok(()) | Err(Error::Busy(_))) {
        keep.keep(shared, addr, record);
    }
    decoded
}
