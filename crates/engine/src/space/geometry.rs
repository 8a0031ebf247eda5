//! Computes which bytes of a device are chunks, and which are reserved for labels and superblocks.
//!
//! A device begins with a reserved MiB. Another one lies before each chunk whose number is a power of two from
//! [`FIRST_RESERVED`] on, and behind the last chunk, if the next one's number is such. So the reserved places do not
//! depend on the device's size: a device that has grown and lost its first MiB is still recognised, by looking into few
//! places.

use std::ops::Range;

use crate::limits::{CHUNK_BYTES, DEVICE_BYTES_MIN, RESERVED_BYTES};

/// Number of the first chunk that has a reserved MiB before it. The smallest device has just the chunks below, and that
/// MiB.
const FIRST_RESERVED: u32 = 32;

const _: () = assert!(FIRST_RESERVED.is_power_of_two());
const _: () = assert!(reserved_before(FIRST_RESERVED) == 1);
const _: () =
    assert!(end_of(FIRST_RESERVED) == DEVICE_BYTES_MIN && chunk_count(DEVICE_BYTES_MIN) == FIRST_RESERVED);

/// Returns the number of reserved MiB between the first one and chunk `index`.
const fn reserved_before(index: u32) -> u64 {
    match index.checked_ilog2() {
        Some(power) if index >= FIRST_RESERVED => (power - FIRST_RESERVED.ilog2() + 1) as u64,
        _ => 0,
    }
}

/// Returns the first byte of chunk `index`.
pub(super) const fn chunk_offset(index: u32) -> u64 {
    end_of(index)
}

/// Returns the byte at which `count` chunks end, with the reserved MiB that follows them, if one does.
const fn end_of(count: u32) -> u64 {
    RESERVED_BYTES * (1 + reserved_before(count)) + count as u64 * CHUNK_BYTES
}

/// Returns the number of chunks of a device of `size_bytes`.
pub(super) const fn chunk_count(size_bytes: u64) -> u32 {
    let most = size_bytes.saturating_sub(RESERVED_BYTES) / CHUNK_BYTES;
    let mut count = if most > u32::MAX as u64 { u32::MAX } else { most as u32 };
    // There are at most as many reserved MiB as a number of 32 bits has digits, so this ends soon.
    while count > 0 && end_of(count) > size_bytes {
        count -= 1;
    }
    count
}

/// Returns the number of the chunk that a byte lies in, or of the chunk before it if the byte is reserved. The number
/// is not bounded by the size of a device.
pub(super) const fn chunk_at(offset: u64) -> u32 {
    let most = offset.saturating_sub(RESERVED_BYTES) / CHUNK_BYTES;
    let mut index = if most > u32::MAX as u64 { u32::MAX } else { most as u32 };
    while index > 0 && chunk_offset(index) > offset {
        index -= 1;
    }
    index
}

/// Returns the first bytes of all reserved places of a device of `size_bytes`, ascending.
pub fn reserved_places(size_bytes: u64) -> Vec<u64> {
    let powers = FIRST_RESERVED.ilog2()..=u32::MAX.ilog2();
    let further = powers.map(|power| chunk_offset(1 << power) - RESERVED_BYTES);
    std::iter::once(0)
        .chain(further)
        .take_while(|place| place.saturating_add(RESERVED_BYTES) <= size_bytes)
        .collect()
}

/// Returns the first bytes and lengths of the few stretches of a device that are just these chunks, ascending.
pub(crate) fn stretches(chunks: Range<u64>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let (mut start, end) = (chunks.start, chunks.end.min(u64::from(u32::MAX)));
    while start < end {
        let next_reserved = (start + 1).next_power_of_two().max(u64::from(FIRST_RESERVED));
        let stop = end.min(next_reserved);
        found.push((chunk_offset(start as u32), (stop - start) * CHUNK_BYTES));
        start = stop;
    }
    found
}

#[cfg(test)]
mod tests;
