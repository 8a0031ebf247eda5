//! Reads one record in two steps, for callers who wait between them themselves.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::read::Located;
use super::table::Segments;
use crate::device::{Devices, LateRead, PlannedRead};
use crate::{Addr, Result};

/// A record that is to be read, and the plan of its reading.
///
/// Nothing keeps the record in its place meanwhile. If the blocks hold something else when they are read, that fails
/// the record's checksum (invariant G3).
pub(crate) struct RecordFetch {
    addr: Addr,
    located: Located,
    plan: PlannedRead,
}

impl Segments {
    /// Prepares the reading of the record at `addr`. `None` if its place is not known without reading, or if the record
    /// is unknown by now.
    pub(crate) fn prepare(&self, devices: &Devices, addr: Addr) -> Option<RecordFetch> {
        let located = self.try_locate(addr)?;
        let plan = devices.plan(located.span()).ok()?;
        Some(RecordFetch { addr, located, plan })
    }
}

impl RecordFetch {
    /// Returns a descriptor to read from, if the device has one. The device stays open as long as `self` lives.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.plan.file()
    }

    /// Returns the first byte to read on the device, and the buffer for the whole blocks from there on. The caller has
    /// to fill all of it. The memory stays where it is until `self` is dropped.
    pub(crate) fn request(&mut self) -> (u64, &mut [u8]) {
        self.plan.request()
    }

    /// Reads through the device, which blocks.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn read(&mut self) -> Result<()> {
        self.plan.read()
    }

    /// Counts a read that the caller has made by the descriptor, without the device.
    pub(crate) fn count(&mut self) {
        self.plan.count();
    }

    /// Returns the time from its planning on after which the read is overdue; `None` if nobody else can be asked.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        self.plan.due_in()
    }

    /// Leaves a read alone that the kernel makes and that is overdue, since another device is asked.
    pub(crate) fn leave_overdue(self) -> LateRead {
        self.plan.leave_overdue()
    }

    /// Returns the record's address.
    pub(crate) fn addr(&self) -> Addr {
        self.addr
    }

    /// Returns the record. Its blocks have to be read before.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes are not the record's: they are damaged, or another record has got the
    /// place meanwhile.
    pub(crate) fn record(&self) -> Result<&[u8]> {
        self.plan.verified(|bytes, from| self.located.verify(self.addr, bytes, from).map(|()| bytes))
    }
}
