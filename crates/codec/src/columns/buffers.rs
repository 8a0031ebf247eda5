//! Buffers that columns are coded with, kept from page to page.

use super::code::Early;
use super::lanes::Lanes;

/// Buffers of one page's columns.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) rows: Vec<u16>,
    pub(crate) residuals: Vec<u64>,
    pub(crate) lanes: Lanes,
    /// What goes through zstd.
    pub(crate) text: Vec<u8>,
    pub(crate) text_taken: usize,
    /// What is stored as it is.
    pub(crate) plain: Vec<u8>,
    pub(crate) plain_taken: usize,
    pub(crate) early: Early,
    /// How long each row is.
    pub(crate) ends: Vec<u16>,
}

impl Buffers {
    /// Forgets what an earlier page has left of what passes fill; text and plain bytes are those to be read.
    pub(crate) fn begin_reading(&mut self) {
        self.text_taken = 0;
        self.plain_taken = 0;
        self.ends.clear();
    }
}
