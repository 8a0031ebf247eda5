//! The log device, as an opening uses it.
//!
//! An opening that writes brings what only the log device has to its place. One for a rescue has it read from where it is.

use super::{OpenOptions, OpeningPool};
use crate::device::{IoClass, Redirection};
use crate::wal::{BatchView, LoggedBatches, salt_of};
use crate::{Error, Result};

impl OpeningPool {
    /// Reads the log device, if there may be anything on it that is nowhere else. A rescue goes on without it, and tells so.
    pub(super) fn read_log_device(&mut self, options: &OpenOptions) -> Result<()> {
        let Some(group) = self.labels.log_group().filter(|_| !self.superblock.exported) else {
            return Ok(());
        };
        let is_needed = self.superblock.log_device.is_some_and(|log| log.is_needed);
        let is_lacking = match self.logged_batches(group, options.rescue) {
            Ok(Some(logged)) => {
                let unread = logged.unread();
                self.logged = Some(logged);
                unread > 0
            }
            Ok(None) if is_needed && !options.accept_loss => {
                return Err(Error::Failed(
                    "the log device failed while the pool was being opened, and may have commits that no other device has".into(),
                ));
            }
            Ok(None) => true,
            Err(error) if options.accept_loss => {
                tracing::error!(%error, "what the log device has is given up");
                true
            }
            Err(error) => return Err(error),
        };
        self.gives_up_log_device = is_lacking && is_needed && self.rescue.is_none();
        if let Some(rescue) = &mut self.rescue {
            rescue.lacks_log_device = is_lacking && is_needed;
        }
        Ok(())
    }

    /// Returns the batches of the log device; `None` if none of its devices is here.
    fn logged_batches(&self, group: u16, is_rescue: bool) -> Result<Option<LoggedBatches>> {
        if self.devices.copies(group) == 0 {
            return Ok(None);
        }
        let log = (self.labels.common().log.low(), salt_of(self.superblock.opening.id.nonce));
        let size_bytes = self.labels.group_bytes(group);
        let devices = self.devices.of_class(IoClass::AsyncRead);
        LoggedBatches::read(&devices, (group, size_bytes), log, is_rescue).map(Some)
    }
}

/// Returns the way to a batch that is on the log device alone, at this place, for one who only reads.
///
/// # Errors
/// [`Error::NotReplayed`] unless it is for a rescue: an opening for writing is better then.
pub(super) fn to_log_device(
    group: Option<u16>,
    (copy, offset): (usize, u64),
    batch: &BatchView<'_>,
    is_rescue: bool,
) -> Result<Redirection> {
    let Some(group) = group.filter(|_| is_rescue) else {
        return Err(Error::NotReplayed(
            "the pool was not closed, and its log device has what belongs on the others: only an opening that may write brings it there".into(),
        ));
    };
    let place = (batch.chunk.device, batch.chunk.offset() + u64::from(batch.start));
    let len_bytes = u64::from(batch.end.saturating_sub(batch.start));
    Ok(Redirection { place, len_bytes, from: (group, copy, offset) })
}
