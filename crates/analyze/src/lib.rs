//! What files would take on a Pagefold pool, predicted from samples, beside generic codecs.
//!
//! A file is read where a sample falls, never written, and need not lie on Pagefold. What a page would take is not
//! modelled but tried: by the engine's own recordsize recognition, record encoder and learned models, on pages that
//! the models were not learned from. From the sampled pages of each file follows what all of its pages take, with a
//! range of confidence; see [`estimate`].
//!
//! Layers, each of which uses only those below: `report`, `file`, `wal`, `estimate`, `source`, `walk`.

mod estimate;
mod file;
mod report;
mod source;
#[cfg(test)]
mod tests;
mod wal;
mod walk;

pub use estimate::Estimate;
pub use file::{FileReport, Kind};
pub use report::{Finding, Report, Totals, analyze};
pub use walk::{Found, walk};

use pagefold_engine::record::Compression;

/// What is to be predicted, and from how much.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The property `compression` of the pool that is imagined.
    pub compression: Compression,
    /// Pages that are tried of each file, at most.
    pub sample_pages: u32,
    /// Where samples fall follows from this number.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { compression: Compression::Page(3), sample_pages: 400, seed: 1 }
    }
}
