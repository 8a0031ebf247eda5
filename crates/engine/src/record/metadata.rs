//! Turns metadata into records and back: tree nodes, pages of the segment table, models.

use super::{Compression, Encoder, NoModels, decode, logical_len};
use crate::{Error, Result};

/// Compression of metadata, which are read often and written in the background.
const METADATA_COMPRESSION: Compression = Compression::Zstd(1);

/// Last byte of a metadata record's content: codecs cut trailing zeros off, and a node's length must survive.
const END: u8 = 1;

/// Returns the record of some metadata.
pub fn encode_metadata(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(END);
    let mut record = Vec::with_capacity(bytes.len() / 2);
    Encoder::new().encode(&bytes, METADATA_COMPRESSION, &mut record);
    record
}

/// Returns the metadata in a record. [`Error::Corrupt`] if it holds something else.
pub(crate) fn decode_metadata(record: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; logical_len(record)?];
    decode(record, &NoModels, &mut bytes)?;
    if bytes.pop() != Some(END) {
        return Err(Error::corrupt("metadata record", "it does not end as it should"));
    }
    Ok(bytes)
}
