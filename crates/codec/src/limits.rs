//! Bounds, each with its reason.

/// Smallest page that is coded, in bytes: PostgreSQL's smallest block.
pub const PAGE_MIN: usize = 1 << 10;
/// Largest page that is coded, in bytes: InnoDB's largest. Places within a page fit 16 bits.
pub const PAGE_MAX: usize = 64 << 10;
/// Largest page of PostgreSQL, in bytes.
pub(crate) const POSTGRES_PAGE_MAX: usize = 32 << 10;
/// Largest stored model, in bytes: a relation of some MiB can pay for it, and a reader trusts no greater length.
pub const MODEL_MAX: usize = 512 << 10;
/// Largest model before it is compressed, in bytes: its tables, vocabularies and dictionary.
pub const MODEL_PLAIN_MAX: usize = 4 << 20;
/// Largest trained dictionary, in bytes.
pub(crate) const DICTIONARY: usize = 110 << 10;
/// Largest number of tables in a model: a table takes a few bytes where it is stored, and up to 9 KiB in memory.
/// Trained models have some hundreds.
pub(crate) const TABLES_MAX: usize = 8 << 10;
/// Largest number of streams in a model.
pub(crate) const STREAMS_MAX: usize = 16 << 10;
