//! Reads stretches of devices for replay, block by block where a device fails.

use std::ops::Range;

use crate::Result;
use crate::device::{AlignedBuf, Devices};
use crate::limits::BLOCK_BYTES;

/// Number of bytes that are read at a time.
pub(super) const READ_BYTES: usize = 1 << 20;

/// Reads that may fail until a device is given up: each of them may take it seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAttempts {
    left: u32,
    /// Blocks that may fail in a row until the rest of a stretch of [`READ_BYTES`] is passed over.
    in_a_row: u32,
}

impl ReadAttempts {
    /// No block is given up untried.
    const WITHOUT_END: Self = Self { left: u32::MAX, in_a_row: u32::MAX };
    /// For one who can do without what cannot be read.
    pub(super) const MANY: Self = Self { left: 512, in_a_row: 32 };
    /// For one who tells the user how it failed, if that matters.
    pub(super) const FEW: Self = Self { left: 64, in_a_row: 32 };

    fn make(&mut self, read: impl FnOnce() -> Result<()>) -> bool {
        if self.left == 0 {
            return false;
        }
        let is_done = read().is_ok();
        self.left -= u32::from(!is_done);
        is_done
    }
}

/// Fills `place`, which is whole blocks, from byte `offset` of a group on, as a device of it has them (`copy`, counted
/// from 0). Blocks that cannot be read become zeros. Returns the number of these.
pub(crate) fn read_or_zeros(devices: &Devices, device: (u16, usize), offset: u64, place: &mut [u8]) -> u64 {
    let (mut unread, mut attempts) = (0, ReadAttempts::WITHOUT_END);
    read_attempting(devices, device, (offset, place), &mut attempts, &mut |_| unread += 1);
    unread
}

/// Does the same with so many attempts, and calls `unread` with each block that was not read.
pub(super) fn read_attempting(
    devices: &Devices,
    device: (u16, usize),
    (offset, place): (u64, &mut [u8]),
    attempts: &mut ReadAttempts,
    unread: &mut dyn FnMut(Range<u64>),
) {
    for (at, place) in (offset..).step_by(READ_BYTES).zip(place.chunks_mut(READ_BYTES)) {
        if attempts.make(|| read_at(devices, device, at, place)) {
            continue;
        }
        let mut failed = 0;
        for (at, block) in (at..).step_by(BLOCK_BYTES).zip(place.chunks_exact_mut(BLOCK_BYTES)) {
            if failed < attempts.in_a_row && attempts.make(|| read_at(devices, device, at, block)) {
                failed = 0;
                continue;
            }
            failed = failed.saturating_add(1);
            block.fill(0);
            unread(at..at + BLOCK_BYTES as u64);
        }
    }
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
