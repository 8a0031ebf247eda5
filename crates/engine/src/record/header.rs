//! The header of a record.

use super::Codec;
use super::codec::Refusal;
use crate::limits::RECORDSIZE_MAX;
use crate::{Error, Result};

pub(super) fn append_header(codec: Codec, logical_bytes: usize, out: &mut Vec<u8>) {
    out.push(codec.id());
    let mut rest = logical_bytes;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

pub(super) fn without_trailing_zeros(page: &[u8]) -> &[u8] {
    const STEP: usize = 64;
    let mut end = page.len();
    while end >= STEP && page[end - STEP..end].iter().fold(0, |all, byte| all | byte) == 0 {
        end -= STEP;
    }
    let last = page[..end].iter().rposition(|&byte| byte != 0);
    &page[..last.map_or(0, |at| at + 1)]
}

/// A record's header, which was checked: `logical_bytes` is in 1..=[`RECORDSIZE_MAX`].
pub(super) struct RecordHeader {
    pub(super) codec: u8,
    pub(super) logical_bytes: usize,
}

pub(super) fn parse(record: &[u8]) -> Result<(RecordHeader, &[u8]), Refusal> {
    let (&codec, mut rest) = record.split_first().ok_or("it is empty")?;
    let mut logical_bytes = 0;
    for shift in [0, 7, 14] {
        let (&byte, after) = rest.split_first().ok_or("its header is cut off")?;
        rest = after;
        logical_bytes |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            if byte == 0 {
                return Err("its length is zero or not in the shortest form");
            }
            if logical_bytes > RECORDSIZE_MAX as usize {
                return Err("it says to be longer than the largest page");
            }
            return Ok((RecordHeader { codec, logical_bytes }, rest));
        }
    }
    Err("it says to be longer than the largest page")
}

/// Returns the number of bytes of the page up to its last non-zero one, as the record says: 1..=[`RECORDSIZE_MAX`].
pub fn logical_len(record: &[u8]) -> Result<usize> {
    parse(record).map(|(header, _)| header.logical_bytes).map_err(|why| Error::corrupt("record", why))
}
