//! Tree nodes and table pages as records.

use std::sync::Arc;

use crate::dataset::{PrimaryCache, Shared};
use crate::record::{Compression, Encoder, decode, logical_len};
use crate::tree::NodeStore;
use crate::{Addr, Error, Ptr, Result};

/// How metadata is compressed: read often, written in the background.
const METADATA_COMPRESSION: Compression = Compression::Zstd(1);

/// Follows a metadata record's bytes: codecs trim trailing zeros, and a node's length must survive.
const END: u8 = 1;

/// The record of some metadata.
pub(super) fn encode_metadata(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(END);
    let mut record = Vec::with_capacity(bytes.len() / 2);
    Encoder::new().encode(&bytes, METADATA_COMPRESSION, &mut record);
    record
}

/// The metadata in a record.
pub(super) fn decode_metadata(record: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; logical_len(record)?];
    decode(record, &mut bytes)?;
    if bytes.pop() != Some(END) {
        return Err(Error::corrupt("metadata record", "it does not end as it should"));
    }
    Ok(bytes)
}

/// Loads tree nodes through the record cache.
pub(super) struct Nodes(pub(super) Arc<Shared>);

impl NodeStore for Nodes {
    fn load(&self, ptr: Ptr) -> Result<Vec<u8>> {
        if let Some(record) = self.0.cache.get(ptr.addr) {
            return decode_metadata(&record);
        }
        let record = read_record(&self.0, ptr.addr)?;
        if self.0.primary_cache() != PrimaryCache::None {
            self.0.cache.insert(ptr.addr, record.as_slice().into());
        }
        decode_metadata(&record)
    }
}

/// How often a record is looked up anew that is damaged where it was found.
const ATTEMPTS: u32 = 4;

/// One record, verified. Between look-up and read it may be folded, and its old place used anew: then the next look-up
/// finds it elsewhere.
pub(super) fn read_record(shared: &Shared, addr: Addr) -> Result<Vec<u8>> {
    let mut attempts = 1..ATTEMPTS;
    loop {
        let mut record = Vec::new();
        let read = shared.segments.read(&shared.devices, &[addr], &mut |_, bytes| {
            record = bytes.to_vec();
            Ok(())
        });
        match read {
            Ok(()) => return Ok(record),
            Err(Error::Corrupt { .. }) if attempts.next().is_some() => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
