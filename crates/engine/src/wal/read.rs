//! Reads stretches of devices for replay, block by block where a device fails.

use crate::Result;
use crate::device::{AlignedBuf, Devices};
use crate::limits::BLOCK_BYTES;

/// Number of bytes that are read at a time.
pub(super) const READ_BYTES: usize = 1 << 20;

/// Fills `place`, which is whole blocks, from byte `offset` of a group on, as a device of it has them (`copy`, counted
/// from 0). Blocks that cannot be read become zeros. Returns the number of these.
pub(crate) fn read_or_zeros(devices: &Devices, device: (u16, usize), offset: u64, place: &mut [u8]) -> u64 {
    let mut unread = 0;
    for (at, place) in (offset..).step_by(READ_BYTES).zip(place.chunks_mut(READ_BYTES)) {
        if read_at(devices, device, at, place).is_ok() {
            continue;
        }
        for (at, block) in (at..).step_by(BLOCK_BYTES).zip(place.chunks_exact_mut(BLOCK_BYTES)) {
            if read_at(devices, device, at, block).is_err() {
                block.fill(0);
                unread += 1;
            }
        }
    }
    unread
}

/// Fills `place`, which is whole blocks, from byte `offset` of a group on, as a device of it has them.
pub(super) fn read_at(
    devices: &Devices,
    (group, copy): (u16, usize),
    offset: u64,
    place: &mut [u8],
) -> Result<()> {
    let mut part = AlignedBuf::scratch(place.len());
    devices.read_unverified(group, copy, offset, &mut part)?;
    place.copy_from_slice(part.get(..place.len()).unwrap_or_default());
    Ok(())
}
