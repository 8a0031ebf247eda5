//! Buffers that are kept from page to page: one set per thread.

use crate::columns::code::Early;
use crate::entropy::rans::Ops;
use crate::postgres::btree::tid::Tid;
use crate::postgres::{btree, heap};
use crate::text::Contexts;

/// Buffers of one page's columns.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) rows: Vec<u16>,
    pub(crate) residuals: Vec<u64>,
    /// What goes through zstd.
    pub(crate) text: Vec<u8>,
    pub(crate) text_taken: usize,
    /// What is stored as it is.
    pub(crate) plain: Vec<u8>,
    pub(crate) plain_taken: usize,
    pub(crate) early: Early,
    /// How long each row is.
    pub(crate) ends: Vec<u16>,
    /// TIDs behind keys.
    pub(crate) tids: Vec<Tid>,
}

impl Buffers {
    pub(crate) fn begin_reading(&mut self) {
        self.text_taken = 0;
        self.plain_taken = 0;
        self.early.bytes.clear();
        self.early.taken = 0;
        self.ends.clear();
    }
}

/// What coding needs beside the model: buffers and zstd's contexts. Make one per thread and keep it; it serves all models.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) buffers: Buffers,
    pub(crate) heap: heap::Parts,
    pub(crate) btree: btree::Parts,
    pub(crate) ops: Ops,
    pub(crate) contexts: Contexts,
    /// A page's code.
    pub(crate) code: Vec<u8>,
    /// The page without its stale bytes; the page again, when a record is verified.
    pub(crate) page: Vec<u8>,
    pub(crate) again: Vec<u8>,
}

impl Scratch {
    /// Empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
