//! Opens the pool of a history, with the options that follow from the history.

use std::sync::Arc;

use pagefold_engine::dataset::Journal;
use pagefold_engine::device::Device;
use pagefold_engine::pool::{OpenOptions, Pool};
use pagefold_engine::record::Compression;
use pagefold_engine::segment::PageIds;

use super::Outcome;
use crate::history::History;

pub(super) fn options(history: &History, salt: u64) -> OpenOptions {
    let chunks = history.devices.iter().sum::<u64>() >> 22;
    OpenOptions {
        cache_bytes: history.cache_bytes,
        log_bytes: Some(16 << 20),
        salt,
        reads_at_once: 1,
        // With few ids per page, the table has as many pages as the table of a large pool.
        table_page_ids: PageIds::new(2 + chunks as u8 % 5),
        // In two of three pools the table is larger than the memory that it may take: by far, or a little.
        table_bytes: [None, Some(0), Some(3000)][chunks as usize / 5 % 3],
        ..OpenOptions::default()
    }
}

pub(super) fn open(
    history: &History,
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> pagefold_engine::Result<Arc<Pool>> {
    let pool = Pool::open_on(devices, options)?;
    pool.set_compression(compression(history, false));
    Ok(pool)
}

/// Size of a journal in bytes: larger than any change of a history.
const JOURNAL_BYTES: usize = 16 << 20;

pub(super) fn journal(history: &History) -> Outcome<Option<Arc<Journal>>> {
    if !history.journalled {
        return Ok(None);
    }
    Journal::with_bytes(JOURNAL_BYTES).map(|made| Some(Arc::new(made))).map_err(|error| error.to_string())
}

/// Returns the compression of pages that are written, or that are coded `again`.
pub(super) fn compression(history: &History, again: bool) -> Compression {
    match (history.modelled, again) {
        (true, _) => Compression::Page(1),
        (false, true) => Compression::Zstd(9),
        (false, false) if history.seed.is_multiple_of(3) => Compression::Lz4,
        (false, false) => Compression::Auto,
    }
}
