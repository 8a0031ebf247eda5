//! The log device, as an opening uses it.
//!
//! An opening that writes brings what only the log device has to its place. One for a rescue has it read from where it is.

use super::{OpenOptions, OpeningPool};
use crate::device::{IoClass, Redirection};
use crate::wal::{BatchView, LogEnd, LoggedBatches, salt_of};
use crate::{Error, Result};

impl OpeningPool {
    /// Reads the log device, if there may be anything on it that is nowhere else.
    ///
    /// # Errors
    /// [`Error::NotAPool`] if none of its devices is here, and that may be a loss which is not accepted.
    pub(super) fn read_log_device(&mut self, options: &OpenOptions) -> Result<()> {
        let Some(group) = self.labels.log_group().filter(|_| !self.superblock.exported) else {
            return Ok(());
        };
        if self.devices.copies(group) > 0 {
            let log = (self.labels.common().log.low(), salt_of(self.superblock.opening.id.nonce));
            let size_bytes = self.labels.group_bytes(group);
            let devices = self.devices.of_class(IoClass::AsyncRead);
            self.logged = Some(LoggedBatches::read(&devices, (group, size_bytes), log, options.accept_loss));
        } else if self.needs_log_device() && !options.accept_loss {
            let name = &self.labels.common().name;
            return Err(Error::NotAPool(format!(
                "the log device of pool '{name}' failed while the pool was being opened, and may have commits that no other device has; try again, or give them up: pagefold import --accept-loss {name}"
            )));
        }
        Ok(())
    }

    /// Returns true if a batch may be on the log device alone.
    fn needs_log_device(&self) -> bool {
        !self.superblock.exported && self.superblock.log_device.is_some_and(|log| log.is_needed)
    }

    /// Judges by the `end` of the log if something may be lost with a log device that is not here, or cannot be read as a
    /// whole. A rescue goes on without it, and tells so.
    ///
    /// # Errors
    /// The error of `end`; [`Error::Corrupt`] if the loss is not accepted.
    pub(super) fn judge_log_device(&mut self, end: Result<LogEnd>, options: &OpenOptions) -> Result<LogEnd> {
        if !self.needs_log_device() {
            return end;
        }
        let unread = self.logged.as_ref().and_then(LoggedBatches::first_unread);
        let is_lacking = match (&self.logged, &end) {
            (None, _) => true,
            (Some(logged), Ok(end)) => {
                logged.may_hide((end.position.batch, end.position.chain), end.damaged > 0)
            }
            (Some(_), Err(error)) => matches!(error, Error::Corrupt { .. }) && unread.is_some(),
        };
        if let (true, false, Some(logged), Some(offset)) =
            (is_lacking, options.accept_loss, &self.logged, unread)
        {
            let device = self.devices.path_of(logged.group());
            return Err(Error::corrupt(
                format!("log device at byte {offset} of {}", device.display()),
                "it cannot be read, and may have commits that no other device has. If the device had a bad moment, \
                 try again; to read what there is without them: pagefold mount -o rescue POOL DIR; to give them up: \
                 pagefold import --accept-loss POOL",
            ));
        }
        let end = end?;
        if is_lacking {
            tracing::error!(?unread, "what the log device has and cannot be read is given up");
        }
        match &mut self.rescue {
            Some(rescue) => rescue.lacks_log_device = is_lacking,
            None => self.gives_up_log_device = is_lacking,
        }
        Ok(end)
    }

    /// Erases on the log device what begins as the batch with which the log would go on. If it fails that, the pool goes on
    /// without it: all that it has is written where it belongs.
    pub(super) fn erase_logged(&self, end: &LogEnd) {
        if let Some(logged) = &self.logged
            && let Err(error) = logged.erase_headers(&self.devices, end.position.batch, end.position.chain)
        {
            self.devices.give_up(logged.group(), &error);
        }
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
