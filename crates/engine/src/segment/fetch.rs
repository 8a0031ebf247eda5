//! Reads one record in two steps, for callers who wait between them themselves.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::read::{Devices, Located, span};
use super::record_checksum;
use super::table::Segments;
use crate::device::{AlignedBuf, Device};
use crate::{Addr, Error, Result};

/// A record that is to be read: the blocks of its device, and memory for them.
///
/// Nothing keeps the record in its place meanwhile. If the blocks hold something else when they are read, that fails
/// the record's checksum (invariant G3).
pub struct RecordFetch {
    device: Arc<dyn Device>,
    addr: Addr,
    located: Located,
    offset: u64,
    buf: AlignedBuf,
    start: usize,
}

impl Segments {
    /// Prepares the reading of the record at `addr`. `None` if its place is not known without reading, or if the record
    /// is unknown by now.
    pub fn prepare(&self, devices: &Devices, addr: Addr) -> Option<RecordFetch> {
        let located = self.try_locate(addr)?;
        let device = devices.get(usize::from(located.device))?;
        let ((offset, buf), start) =
            span(device.as_ref(), located.offset, u64::from(located.len_bytes)).ok()?;
        Some(RecordFetch { device: Arc::clone(device), addr, located, offset, buf, start })
    }
}

impl RecordFetch {
    /// Returns a descriptor to read from, if the device has one. The device stays open as long as `self` lives.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.device.file()
    }

    /// Returns the first byte to read on the device, and the buffer for the whole blocks from there on. The caller has
    /// to fill all of it. The memory stays where it is until `self` is dropped.
    pub fn request(&mut self) -> (u64, &mut [u8]) {
        (self.offset, &mut self.buf)
    }

    /// Reads through the device, which blocks.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn read(&mut self) -> Result<()> {
        self.device.read(self.offset, &mut self.buf)
    }

    /// Counts a read that the caller has made by the descriptor, without the device.
    pub(crate) fn count(&self) {
        self.device.stats().read(self.buf.len());
    }

    /// Returns the record's address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Returns the record. Its blocks have to be read before.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes are not the record's: they are damaged, or another record has got the place
    /// meanwhile.
    pub fn record(&self) -> Result<&[u8]> {
        let bytes = self.buf.get(self.start..self.start + self.located.len_bytes as usize);
        let bytes = bytes.unwrap_or_default();
        if record_checksum(self.addr, bytes) == self.located.checksum {
            return Ok(bytes);
        }
        Err(Error::corrupt(format!("record {}", self.addr), "its checksum does not hold"))
    }
}
