//! Predicts from samples what files would take on a Pagefold pool, beside generic codecs.
//!
//! A file is read where a sample falls, never written, and need not lie on Pagefold. The size of a page is not modelled
//! but tried: by the engine's own recordsize recognition, record encoder and learned models, on pages that the models
//! were not learned from. The sampled pages of each file give an estimate for all of its pages, with a range of
//! confidence; see `estimate`.
//!
//! Layers, each of which uses only those below: `report`, `file`, `kind`, `wal`, `estimate`, `source`, `walk`.

mod estimate;
mod file;
mod kind;
mod report;
mod source;
#[cfg(test)]
mod tests;
mod wal;
mod walk;

pub use estimate::Estimate;
pub use file::FileReport;
pub use kind::Kind;
pub use report::{Finding, Report, Totals, analyze};
pub use walk::{Found, Walked, walk};

use pagefold_engine::record::Compression;

/// Options of a prediction.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Property `compression` of the pool that is imagined.
    pub compression: Compression,
    /// Largest number of pages that are tried of each file.
    pub sample_pages: u32,
    /// Seed that determines which pages are drawn.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { compression: Compression::Page(3), sample_pages: 400, seed: 1 }
    }
}
