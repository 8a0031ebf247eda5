//! Bounds, each with its reason.

/// Smallest page that is coded: PostgreSQL's smallest block.
pub const PAGE_MIN: usize = 1 << 10;
/// Largest page that is coded: InnoDB's largest. Places within a page fit 16 bits.
pub const PAGE_MAX: usize = 64 << 10;
/// Largest page of PostgreSQL.
pub(crate) const POSTGRES_PAGE_MAX: usize = 32 << 10;
/// Longest stored model: what a relation of some MiB can pay for, and what a reader has to take on trust of its length.
pub const MODEL_MAX: usize = 512 << 10;
/// Most bytes of a model's tables, vocabularies and dictionary before they are compressed.
pub const MODEL_PLAIN_MAX: usize = 4 << 20;
/// Size of trained dictionaries.
pub(crate) const DICTIONARY: usize = 110 << 10;
/// Most tables of a model: a table is a few bytes where it is stored, and up to 9 KiB in memory. Trained models have some
/// hundreds.
pub(crate) const TABLES_MAX: usize = 8 << 10;
/// Most streams of a model.
pub(crate) const STREAMS_MAX: usize = 16 << 10;
