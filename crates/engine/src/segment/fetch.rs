//! Reading one record in two steps, for callers who do the waiting between them themselves.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::read::{Devices, Located, span};
use super::seal;
use super::table::Segments;
use crate::device::{AlignedBuf, Device};
use crate::{Addr, Error, Result};

/// A record that is to be read: which blocks of which device, and room for them.
///
/// Nothing keeps the record in its place meanwhile. Whatever the blocks hold when they are read, bytes that are not the
/// record's fail its checksum (invariant G3).
pub struct RecordFetch {
    device: Arc<dyn Device>,
    addr: Addr,
    located: Located,
    offset: u64,
    buf: AlignedBuf,
    start: usize,
}

impl Segments {
    /// What has to be read for the record at `addr`; `None` where finding that out would mean reading, or where the record is
    /// unknown by now.
    pub fn prepare(&self, devices: &Devices, addr: Addr) -> Option<RecordFetch> {
        let located = self.try_locate(addr)?;
        let device = devices.get(usize::from(located.device))?;
        let ((offset, buf), start) =
            span(device.as_ref(), located.offset, u64::from(located.len_bytes)).ok()?;
        Some(RecordFetch { device: Arc::clone(device), addr, located, offset, buf, start })
    }
}

impl RecordFetch {
    /// A descriptor to read from, if the device has one. The device stays open as long as `self` lives.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.device.file()
    }

    /// First byte to read on the device, and where to put the whole blocks from there on; all of it has to be filled. The
    /// memory stays where it is until `self` is dropped.
    pub fn request(&mut self) -> (u64, &mut [u8]) {
        (self.offset, &mut self.buf)
    }

    /// Reads through the device, which blocks.
    ///
    /// # Errors
    /// Of [`Device::read`].
    pub fn read(&mut self) -> Result<()> {
        self.device.read(self.offset, &mut self.buf)
    }

    /// Notes that the caller has read the blocks past the device.
    pub(crate) fn count(&self) {
        self.device.stats().read(self.buf.len());
    }

    /// The record's address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The record, once its blocks are read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if these are not its bytes: damaged, or another's that got the place meanwhile.
    pub fn record(&self) -> Result<&[u8]> {
        let bytes = self.buf.get(self.start..self.start + self.located.len_bytes as usize);
        let bytes = bytes.unwrap_or_default();
        if seal(self.addr, bytes) == self.located.checksum {
            return Ok(bytes);
        }
        Err(Error::corrupt(format!("record {}", self.addr), "its checksum does not hold"))
    }
}
