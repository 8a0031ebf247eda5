//! Turns pages into records and back, and caches records.
//!
//! # Layout of a stored record
//!
//! | bytes   | field          | meaning                                                                   |
//! |---------|----------------|---------------------------------------------------------------------------|
//! | 1       | codec          | codec id, see below                                                       |
//! | 1..=3   | logical length | LEB128 in its shortest form, 1..=1 MiB: bytes of the page up to its last non-zero one |
//! | rest    | payload        | what the codec made of these bytes; its length is the record's, less the header |
//!
//! A page of zeros is not stored at all. The record's own length and checksum are kept beside it, in its
//! segment's directory; [`record_checksum`](crate::segment::record_checksum) computes the checksum.
//!
//! # Codec ids
//!
//! | id        | codec    | payload                                                                         |
//! |-----------|----------|---------------------------------------------------------------------------------|
//! | 0         |          | never valid, so that zeros are no record                                        |
//! | 1         | raw      | the logical bytes themselves                                                    |
//! | 2         | lz4      | one LZ4 block                                                                   |
//! | 3         | zstd     | one Zstandard frame without magic number, content size, checksum, dictionary id |
//! | 4         | deflate  | one raw DEFLATE stream (what the user calls zlib, less its six bytes of framing) |
//! | 5..=15    | of the page format | page formats that need nothing but the record: the registry of `crates/codec` has them |
//! | 16..=127  | of the page format | model id, and what the model made of the page: likewise                 |
//! | 128       | deltaruns | addresses of bases, and runs of bytes that differ from the page before         |
//! | 129       | deltazstd | addresses of bases, and a Zstandard frame that has the page before as prefix   |
//! | 130       | deltalz4 | addresses of bases, and the runs of 128 as one LZ4 block                        |
//! | 131       | deltadoubles | addresses of bases, and words that differ as `doubles` (id 5) codes them     |
//! | 132..=191 | reserved | further deltas                                                                  |
//! | 192..=255 | reserved |                                                                                 |
//!
//! Records of the two large groups need more than themselves to be decoded. Both put a reference between header and
//! payload: a page-format codec puts the number of its relation's model (LEB128, from 1 on), a delta the addresses of
//! its base records. [`decode`] gets a source of both ([`Models`]). The logical length of a page-format record is that
//! of the page: such a codec codes all of it. A version that does not know an id says so
//! ([`crate::Error::Unsupported`]) instead of calling the record damaged.
//!
//! # Modules
//!
//! ```text
//! encode       page -> record and back: zeros at the end cut, a codec, raw if that does not pay
//! codec        the codecs that need nothing but the record
//! models       records by a model; the trait by which models and bases are found
//! delta        pages as changes of what they were
//! metadata     records of tree nodes, pages of the segment table, models
//! cache        compressed records, and decoded pages in memory that nothing else needs
//! compression  the property `compression`
//! recognise    finds a file's page size from its first write
//! ```

mod cache;
mod codec;
mod compression;
mod decode;
mod delta;
mod encode;
mod full;
mod header;
mod metadata;
mod models;
mod recognise;
#[cfg(test)]
mod tests;

pub use cache::Record;
pub(crate) use cache::{RecordCache, RecordCacheStats};
pub use codec::Codec;
pub use compression::Compression;
pub use decode::decode;
pub(crate) use delta::delta_pays;
pub use delta::{Squeeze, bases_of, encode_delta, is_delta};
pub use encode::{Encoded, Encoder};
pub use header::logical_len;
pub(crate) use metadata::decode_metadata;
pub use metadata::encode_metadata;
pub use models::{ModelId, Models, NoModels, model_of};
pub(crate) use models::{Needs, codec_of, needs, with_model};
pub use recognise::recordsize_hint;
