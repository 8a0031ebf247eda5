//! One device, for those who read and write labels and superblocks.

use std::path::Path;

use super::again::again;
use super::class::IoClass;
use super::lane::Lane;
use super::stats::RequestCounts;
use super::{AlignedBuf, Device, DeviceCounts, HedgeCounts};
use crate::Result;

/// Use for which space on a device is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationClass {
    /// Everything.
    Normal,
}

/// One device. It serves those who read and write labels and superblocks: these tell which device it is, and so are
/// read before it is a member of [`super::Devices`].
#[derive(Clone, Copy)]
pub struct OneDevice<'a>(Lane<'a>);

impl<'a> OneDevice<'a> {
    /// Returns the handle of a device that is open. Its reads are waited for ([`IoClass::SyncRead`]).
    pub fn of(device: &'a dyn Device) -> Self {
        Self(Lane::to(device, IoClass::SyncRead))
    }

    /// Returns the handle for requests of another class.
    pub(crate) fn of_class(self, class: IoClass) -> Self {
        Self(Lane::to(self.0.device(), class))
    }

    /// Returns the path of the device as the user named it, for messages.
    pub(crate) fn path(self) -> &'a Path {
        self.0.device().path()
    }

    /// Returns the size in bytes, a multiple of the block size.
    pub(crate) fn size_bytes(self) -> u64 {
        self.0.device().size_bytes()
    }

    /// See [`Device::is_deleted`].
    pub(crate) fn is_deleted(self) -> bool {
        self.0.device().is_deleted()
    }

    /// See [`Device::measure`].
    pub(crate) fn measure(self) -> Result<()> {
        self.0.device().measure()
    }

    /// Returns the use for which space on the device is allocated.
    pub(crate) fn class(self) -> AllocationClass {
        AllocationClass::Normal
    }

    /// Returns true if discards may have an effect on the device.
    pub(crate) fn discards(self) -> bool {
        self.0.device().discards()
    }

    /// Returns the values of the device's counters.
    pub(crate) fn counts(self) -> DeviceCounts {
        self.0.device().stats().counts()
    }

    /// Returns the number of its reads that were sent to another device, too.
    pub(crate) fn hedges(self) -> HedgeCounts {
        self.0.device().stats().hedges()
    }

    /// Returns the values of the device's counters by class and kind.
    pub(crate) fn requests(self) -> Vec<RequestCounts> {
        self.0.device().stats().requests()
    }

    /// Fills `buf` with whole blocks, which the caller verifies.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read(self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.0.read(offset, buf).or_else(|error| again(|| self.0.read(offset, buf)).unwrap_or(Err(error)))
    }

    /// Writes whole blocks, which are durable after a flush.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn write(self, offset: u64, buf: &AlignedBuf) -> Result<()> {
        self.0.write(offset, buf, false)
    }

    /// Makes all writes to the device that completed before this call durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn flush(self) -> Result<()> {
        self.0.flush()
    }
}
