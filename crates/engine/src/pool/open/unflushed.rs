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
        for (number, UnflushedBatch { chunk, start, end, checksum }) in &self.unflushed {
            let mut bytes = AlignedBuf::zeroed(end.saturating_sub(*start) as usize);
            let offset = chunk.offset() + u64::from(*start);
            // Devices of a mirror may differ here, and fail: the one that had it when it was replayed may be gone. It was
            // whole: a batch with damaged records counts only if it was flushed, and then it is none of these.
            let is_it = |bytes: &AlignedBuf| {
                Verified::framed(bytes).is_some_and(|batch| batch.is_whole() && batch.checksum() == *checksum)
            };
            let (mut found, mut failed) = (false, None);
            for copy in 0..self.devices.copies(chunk.device).max(1) {
                match self.devices.read_unverified(chunk.device, copy, offset, &mut bytes) {
                    Ok(()) => found = is_it(&bytes),
                    Err(error) => failed = Some(error),
                }
                if found {
                    break;
                }
            }
            if let (false, Some(logged)) = (found, &self.logged)
                && let Some(there) = logged.with_checksum(&self.devices, *number, *checksum)?
                && there.len() == bytes.len()
            {
                (found, bytes) = (is_it(&there), there);
            }
            if !found {
                let device = self.devices.path_of(chunk.device);
                let what = format!("batch {number} at byte {offset} of {}", device.display());
                let detail = "it was there when the log was read, and is there no more";
                return Err(failed.unwrap_or_else(|| Error::corrupt(what, detail)));
            }
            self.devices.write(chunk.device, offset, &bytes, false)?;
        }
        Ok(())
    }
}
