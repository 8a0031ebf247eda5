//! Buffers that are kept from page to page: one set per thread.

use crate::columns::Buffers;
use crate::entropy::rans::Ops;
use crate::innodb;
use crate::log;
use crate::postgres::{btree, heap};
use crate::sqlite;
use crate::stale::Stale;
use crate::text::Contexts;

/// Buffers and zstd's contexts, which coding needs beside the model. Make one per thread and keep it; it serves all
/// models.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) buffers: Buffers,
    pub(crate) heap: heap::HeapPage,
    pub(crate) btree: btree::BtreePage,
    pub(crate) innodb: innodb::InnodbPage,
    pub(crate) sqlite: sqlite::SqlitePage,
    pub(crate) log: log::LogPage,
    pub(crate) none: Stale,
    pub(crate) ops: Ops,
    pub(crate) contexts: Contexts,
    /// Code of a page: the entropy coder's output.
    pub(crate) code: Vec<u8>,
    /// The page without its stale bytes; in `again` the decoded page, when a record is verified.
    pub(crate) page: Vec<u8>,
    pub(crate) again: Vec<u8>,
}

impl Scratch {
    /// Returns empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
