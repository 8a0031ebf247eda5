//! Checks places that a root or a list names before there is a segment table, and before anything is read there.
//!
//! Checksums do not protect from an image that was forged. Each record that is named lies within one chunk of the pool,
//! and no two lie at the same place: so all that is read by place is no more than the devices hold, and is read once.

use super::root::PlacedRecord;
use crate::limits::CHUNK_BYTES;
use crate::segment::Located;
use crate::space::{Chunk, Chunks};
use crate::{Error, Result};

/// Returns an error unless both copies of all records of `what` lie within chunks, and no two overlap.
pub(super) fn check_places<'a>(
    chunks: &Chunks,
    placed: impl Iterator<Item = &'a PlacedRecord>,
    what: &str,
) -> Result<()> {
    let mut taken = Vec::new();
    for PlacedRecord { first, second, .. } in placed {
        for place in [first, second] {
            taken.push(within_chunk(chunks, place).ok_or_else(|| {
                Error::corrupt(
                    what,
                    format!(
                        "it names byte {} of device {}, which no record can have",
                        place.offset, place.device
                    ),
                )
            })?);
        }
    }
    taken.sort_unstable();
    let overlap = taken.windows(2).find(|pair| matches!(pair, [a, b] if a.0 == b.0 && a.2 > b.1));
    match overlap {
        Some(pair) => {
            let (device, offset, _) = pair.last().copied().unwrap_or_default();
            Err(Error::corrupt(
                what,
                format!("it names two records at the same place, byte {offset} of device {device}"),
            ))
        }
        None => Ok(()),
    }
}

/// Returns device, first byte and end of a record, if it lies within a chunk of the pool.
fn within_chunk(chunks: &Chunks, place: &Located) -> Option<(u16, u64, u64)> {
    let chunk = Chunk::at(place.device, place.offset);
    let end = place.offset.checked_add(place.len_bytes.into())?;
    let inside = chunks.exists(chunk)
        && place.len_bytes > 0
        && place.offset >= chunk.offset()
        && end <= chunk.offset() + CHUNK_BYTES;
    inside.then_some((place.device, place.offset, end))
}

#[cfg(test)]
mod tests;
