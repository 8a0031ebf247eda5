//! The way by which requests of one class reach a device.
//!
//! Whoever has a device makes requests by a lane, which counts and times them. A scheduler that has a queue for each
//! device would have them wait here.

use super::class::{IoClass, IoKind};
use super::{AlignedBuf, Device};
use crate::Result;

/// A device, for requests of one class.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    device: &'a dyn Device,
    class: IoClass,
}

impl<'a> Lane<'a> {
    pub(super) const fn to(device: &'a dyn Device, class: IoClass) -> Self {
        Self { device, class }
    }

    /// Returns the class.
    pub(super) const fn class(self) -> IoClass {
        self.class
    }

    /// Returns the device, to ask what it is.
    pub(super) const fn device(self) -> &'a dyn Device {
        self.device
    }

    /// See [`Device::read`].
    pub(super) fn read(self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let stats = self.device.stats().of(self.class, IoKind::Read);
        stats.make(buf.len() as u64, || self.device.read(offset, buf))
    }

    /// See [`Device::write`].
    pub(super) fn write(self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        let stats = self.device.stats().of(self.class.for_writes(), IoKind::Write);
        stats.make(buf.len() as u64, || self.device.write(offset, buf, durable))
    }

    /// See [`Device::flush`].
    pub(super) fn flush(self) -> Result<()> {
        let stats = self.device.stats().of(self.class.for_writes(), IoKind::Flush);
        stats.make(0, || self.device.flush())
    }

    /// See [`Device::discard`]. What a device ignores is not counted. The class is [`IoClass::Discard`] in any case.
    pub(super) fn discard(self, offset: u64, len_bytes: u64) -> Result<()> {
        let stats = self.device.stats().of(IoClass::Discard, IoKind::Discard);
        let began = stats.begin();
        let done = self.device.discard(offset, len_bytes);
        match &done {
            Ok(()) if len_bytes > 0 && self.device.discards() => drop(stats.end(began, len_bytes)),
            Ok(()) => stats.give_up(),
            Err(error) => stats.fail(error),
        }
        done
    }
}
