//! The log's last batches, which an opening writes again, and headers that it erases.

use super::{OpeningPool, UnflushedBatch};
use crate::device::AlignedBuf;
use crate::limits::BLOCK_BYTES;
use crate::space::Chunk;
use crate::wal::batch::Verified;
use crate::{Error, Result};

impl OpeningPool {
    /// Erases the header at the start of a chunk (T8).
    pub(super) fn erase_header(&self, chunk: Chunk) -> Result<()> {
        self.devices.write(chunk.device, chunk.offset(), &AlignedBuf::zeroed(BLOCK_BYTES), false)
    }

    /// Writes the log's last batches again. They can be read, but a flush of them may have failed: then a device may
    /// show them until the power goes, and no later flush makes them durable.
    pub(super) fn write_unflushed(&self) -> Result<()> {
        for (number, batch) in &self.unflushed {
            let offset = batch.chunk.offset() + u64::from(batch.start);
            let Some(bytes) = self.unflushed_bytes(*number, batch, offset)? else {
                let device = self.devices.path_of(batch.chunk.device);
                let what = format!("batch {number} at byte {offset} of {}", device.display());
                return Err(Error::corrupt(what, "it was there when the log was read, and is there no more"));
            };
            self.devices.write(batch.chunk.device, offset, &bytes, false)?;
        }
        Ok(())
    }

    /// Returns the bytes of a batch: of one that was damaged when the log was read, as it is.
    ///
    /// # Errors
    /// The last error of a device, if the batch was not found.
    fn unflushed_bytes(
        &self,
        number: u64,
        batch: &UnflushedBatch,
        offset: u64,
    ) -> Result<Option<AlignedBuf>> {
        let device = batch.chunk.device;
        let mut bytes = AlignedBuf::zeroed(batch.end.saturating_sub(batch.start) as usize);
        let is_it = |bytes: &AlignedBuf, is_whole: bool| {
            Verified::framed(bytes)
                .is_some_and(|found| (found.is_whole() || !is_whole) && found.checksum() == batch.checksum)
        };
        let mut failed = None;
        // Devices of a mirror may differ here, and fail: the one that had it when it was replayed may be gone.
        let mut read = |is_whole: bool, bytes: &mut AlignedBuf| {
            (0..self.devices.copies(device).max(1)).any(|copy| {
                match self.devices.read_unverified(device, copy, offset, bytes) {
                    Ok(()) => is_it(bytes, is_whole),
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                }
            })
        };
        if read(true, &mut bytes) {
            return Ok(Some(bytes));
        }
        let logged = self.logged.as_ref().map(|log| log.with_checksum(&self.devices, number, batch.checksum));
        // If the log device cannot read it, the other ones may have it as it was replayed.
        let unread = match logged.transpose().map(Option::flatten) {
            Ok(Some(there)) if there.len() == bytes.len() && is_it(&there, batch.is_whole) => {
                return Ok(Some(there));
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if !batch.is_whole && read(false, &mut bytes) {
            return Ok(Some(bytes));
        }
        unread.or(failed).map_or(Ok(None), Err)
    }
}
