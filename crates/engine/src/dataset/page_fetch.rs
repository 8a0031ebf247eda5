//! A read of one page whose record has to come from a device, for whoever reads in his own way.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::deliver::{Keep, Wanted, deliver};
use super::model_reads::Loaded;
use super::models::Reading;
use super::shared::{Shared, count};
use crate::device::LateRead;
use crate::segment::RecordFetch;
use crate::{Error, Result};

/// Outcome of a read that must not wait.
pub enum Attempt {
    /// The buffer is filled.
    Done,
    /// The buffer can be filled after one device read, which the caller may do in its own way.
    Fetch(PageFetch),
    /// Nothing was read: [`super::Dataset::read`] does it, and waits.
    Wait,
}

/// A read within one page whose record has to come from a device.
pub struct PageFetch {
    pub(super) record: RecordFetch,
    pub(super) shared: Arc<Shared>,
    pub(super) reading: Reading,
    pub(super) page_bytes: u32,
    pub(super) within: u32,
}

impl PageFetch {
    /// Returns a descriptor to read from, if the device has one. It stays open as long as `self` lives.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.record.file()
    }

    /// Returns the offset on the device, and the memory that must be filled with what is read there. The memory stays
    /// where it is until `self` is finished or dropped.
    pub fn request(&mut self) -> (u64, &mut [u8]) {
        self.record.request()
    }

    /// Reads through the device, which waits, and then does the same as [`PageFetch::finish`].
    ///
    /// # Errors
    /// Errors of the device, and those of [`PageFetch::finish`].
    pub fn read(mut self, out: &mut [u8]) -> Result<bool> {
        self.record.read()?;
        self.deliver(out)
    }

    /// Fills `out`, which is as long as the buffer of the attempt, from what was read. Returns false if the record is
    /// not there (any more); [`super::Dataset::read`] then finds the reason.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the object was read with another recordsize.
    pub fn finish(mut self, out: &mut [u8]) -> Result<bool> {
        self.record.count();
        self.deliver(out)
    }

    /// Returns the time from the attempt on after which the caller need not wait for the device any longer, and should leave the
    /// read alone ([`PageFetch::leave_overdue`]); `None` if no other device has the record.
    pub fn due_in(&self) -> Option<Duration> {
        self.record.due_in()
    }

    /// Leaves a read alone that the kernel makes by the descriptor, and that is overdue. [`super::Dataset::read`] asks
    /// another device then.
    pub fn leave_overdue(self) -> LateFetch {
        LateFetch { read: self.record.leave_overdue(), is_answered: Arc::default() }
    }

    fn deliver(&self, out: &mut [u8]) -> Result<bool> {
        let Ok(record) = self.record.record() else { return Ok(false) };
        let addr = self.record.addr();
        let models = Loaded(&self.shared);
        let keep = Keep::since(&self.shared, false, self.reading.clone());
        let (page_bytes, within) = (self.page_bytes as usize, self.within as usize);
        let wanted = Wanted { page_bytes, within, out: &mut *out };
        match deliver(&self.shared, &models, (addr, record), wanted, &keep) {
            Ok(()) => {}
            // [`super::Dataset::read`] may wait for the model or the bases, and it counts damage.
            Err(Error::Busy(_) | Error::Corrupt { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        count(&self.shared.counters.read_bytes, out.len() as u64);
        Ok(true)
    }
}

/// The read of a device that nobody waits for any more, with the memory that the kernel writes to until it has ended.
/// It does not keep the device open.
pub struct LateFetch {
    read: LateRead,
    is_answered: Arc<AtomicBool>,
}

impl LateFetch {
    /// Returns where the caller says that another device has answered meanwhile.
    #[must_use]
    pub fn is_answered(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_answered)
    }

    /// Ends the read, with the result of the kernel: a length, or a negative error.
    pub fn end(self, result: i32) {
        if self.is_answered.load(Ordering::Relaxed) {
            self.read.is_lost();
        }
        self.read.end(result);
    }

    /// Gives the read up, whose end the caller will not see: the memory is never used again.
    pub fn leak(self) {
        if self.is_answered.load(Ordering::Relaxed) {
            self.read.is_lost();
        }
        self.read.leak();
    }
}
