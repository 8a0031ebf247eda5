//! Takes pages of databases apart: they take half the space that zlib needs, and every page can still be read on its
//! own.
//!
//! A page of a database has a format, rows and columns, and a relation has thousands of pages like it. [`learn`] finds
//! from sampled pages what all have in common, a [`Model`]: layouts, frequent values, vocabularies, distributions.
//! [`Model::encode`] then stores only what tells a page from others; [`Model::decode`] needs nothing but the record and
//! the model. `docs/CODEC.md` describes the format.
//!
//! All functions are pure: no I/O, threads, clocks or random numbers. The same pages give the same model; the same page
//! and model give the same record.
//!
//! Invariants:
//! 1. A record is kept only if decoding it gives back its page, byte by byte: [`Model::encode`] tries it.
//! 2. A page that does not parse exactly is refused, and left to a generic codec.
//! 3. A decoder never panics, never reads or writes beyond its buffers and never allocates by unverified sizes,
//!    whatever model and record hold.
//!
//! A page format implements the trait `PageFormat` and has a line in the [`Registry`]; nothing else names it.
//!
//! ```text
//! registry   lists the formats, and finds the one of a page or a file
//! model      learns models, and codes pages by them: the interface; `scratch`: its buffers
//! format     the trait of page formats, and what is known of files
//! postgres   takes heap and B-tree pages apart; `innodb`, `sqlite`, `log` and [`doubles`] do so with theirs
//! columns    finds where values lie in rows, and codes each column
//! patterns   frequent combinations as one symbol; `stale`: bytes of a page that belong to nothing
//! dictionary takes pages that no other format describes, as text
//! text       what goes through zstd; `frame`: the headers of its frames
//! entropy    static models of symbols, and the rANS coder
//! ```

mod columns;
mod dictionary;
pub mod doubles;
mod entropy;
mod format;
pub mod frame;
mod innodb;
mod key_value;
pub mod limits;
mod log;
mod model;
mod patterns;
mod postgres;
mod registry;
mod sampling;
mod scratch;
mod sqlite;
mod stale;
pub mod testing;
#[cfg(test)]
mod tests;
mod text;
mod wire;

/// Files that have something of their own to report.
pub mod files {
    use crate::format::files::FileFormat;

    /// Tables, indexes and maps of PostgreSQL.
    pub const POSTGRES: &FileFormat = &crate::postgres::FILES;
    /// PostgreSQL's write-ahead log.
    pub const POSTGRES_LOG: &FileFormat = &crate::log::wal::FILES;
    /// InnoDB's tablespaces.
    pub const INNODB: &FileFormat = &crate::innodb::FILES;
}

pub use format::files::{FileFormat, LogFacts};
pub use format::{Checksum, FIRST_MODEL_CODEC, Facts, Format, PageCoding};
pub use model::{Kinds, Model, Options, learn};
pub use postgres::checksum::checksum as postgres_checksum;
pub use registry::{Registry, recognise, registry};
pub use scratch::Scratch;

/// An error: a record or model holds bytes that no encoder makes. The text says what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page's record or model is damaged: {0}")]
pub struct Corrupt(pub(crate) &'static str);
