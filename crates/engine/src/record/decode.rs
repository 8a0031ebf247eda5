//! Decodes records.

use super::full::decode_full;
use super::header::parse;
use super::{Codec, Models, delta};
use crate::{Error, Result};

/// Fills `out`, which is as long as the page, from its record.
///
/// [`Error::Corrupt`] if the record is not well formed or longer than `out`, or its model or a base of it is not among
/// `models`; [`Error::Unsupported`] if its codec is not known here; and errors of `models`. The content of `out` is
/// arbitrary then. Never panics, and never allocates by what the record says. Callers check the record's checksum first.
pub fn decode(record: &[u8], models: &dyn Models, out: &mut [u8]) -> Result<()> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    match Codec::from_id(header.codec).filter(|codec| codec.has_bases()) {
        Some(codec) => delta::decode(codec, payload, models, (out, header.logical_bytes)),
        None => decode_full(record, models, out),
    }
}
