//! Has the buffers that columns are coded with, which are kept from page to page.

use super::code::Early;
use super::lanes::Lanes;

/// Buffers of one page's columns.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) rows: Vec<u16>,
    pub(crate) residuals: Vec<u64>,
    pub(crate) lanes: Lanes,
    /// Text, which goes through zstd.
    pub(crate) text: Vec<u8>,
    pub(crate) text_taken: usize,
    /// Bytes that are stored as they are.
    pub(crate) plain: Vec<u8>,
    pub(crate) plain_taken: usize,
    pub(crate) early: Early,
    /// Length of each row, in bytes.
    pub(crate) ends: Vec<u16>,
}

impl Buffers {
    /// Begins to read a page, whose text and plain bytes are in the buffers: nothing of them is taken yet.
    pub(crate) fn begin_reading(&mut self) {
        self.text_taken = 0;
        self.plain_taken = 0;
        self.ends.clear();
    }
}
