//! The way by which requests of one class reach a device.
//!
//! Whoever has a device makes requests by a lane, which counts and times them, and has them wait for their turns in the
//! device's queue ([`super::queue`]). A long write is cut into pieces while others use the device: what comes meanwhile
//! waits for one of these only.

use std::ops::Range;

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

    /// Makes a request for `bytes` at `offset` when it is its turn, and counts it.
    fn make<T>(
        self,
        (class, kind): (IoClass, IoKind),
        (offset, bytes): (u64, u64),
        request: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let stats = self.device.stats();
        let of = stats.of(class, kind);
        if !class.waits() || self.device.keeps_order() {
            return of.make(bytes, request);
        }
        let began = of.arrive();
        let turn = stats.wait(class, (offset, bytes), 1);
        of.start();
        let made = request();
        drop(turn);
        of.ended(began, bytes, &made);
        made
    }

    /// See [`Device::read`].
    pub(super) fn read(self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let place = (offset, buf.len() as u64);
        self.make((self.class, IoKind::Read), place, || self.device.read(offset, buf))
    }

    /// See [`Device::write`]. A write that is not durable may be made in pieces: if one fails, those behind it are not
    /// made.
    pub(super) fn write(self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        let class = self.class.for_writes();
        let write = |part: Range<usize>| {
            let place = (offset + part.start as u64, part.len() as u64);
            self.make((class, IoKind::Write), place, || {
                if part.len() == buf.len() {
                    return self.device.write(offset, buf, durable);
                }
                self.device.write_part(offset, buf, part)
            })
        };
        let mut done = 0;
        loop {
            let rest = (buf.len() - done) as u64;
            let piece = if durable { rest } else { self.piece_bytes(class, rest) };
            let part = done..done + piece as usize;
            done = part.end;
            write(part)?;
            if done >= buf.len() {
                return Ok(());
            }
        }
    }

    /// Returns how much of `rest` bytes may be written at once now.
    fn piece_bytes(self, class: IoClass, rest: u64) -> u64 {
        if rest <= super::queue::PIECE_BYTES || self.device.keeps_order() {
            return rest;
        }
        rest.min(self.device.stats().piece_bytes(class))
    }

    /// Returns how many bytes of a copy of `rest` bytes to this device may be made at once now.
    pub(super) fn copied_at_once(self, rest: u64) -> u64 {
        self.piece_bytes(self.class.for_writes(), rest)
    }

    /// See [`Device::flush`].
    pub(super) fn flush(self) -> Result<()> {
        self.make((self.class.for_writes(), IoKind::Flush), (0, 0), || self.device.flush())
    }

    /// See [`Device::discard`]. What a device ignores is not counted. The class is [`IoClass::Discard`] in any case.
    pub(super) fn discard(self, offset: u64, len_bytes: u64) -> Result<()> {
        if len_bytes == 0 || !self.device.discards() {
            return self.device.discard(offset, len_bytes);
        }
        let stats = self.device.stats();
        let of = stats.of(IoClass::Discard, IoKind::Discard);
        let began = of.arrive();
        let turn = (!self.device.keeps_order()).then(|| stats.wait(IoClass::Discard, (offset, len_bytes), 1));
        of.start();
        let done = self.device.discard(offset, len_bytes);
        drop(turn);
        match &done {
            // It may have turned out just now that it ignores discards.
            Ok(()) if !self.device.discards() => of.give_up(),
            done => of.ended(began, len_bytes, done),
        }
        done
    }
}
