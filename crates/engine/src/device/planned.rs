//! Reads of a pool's devices: planned first, then carried out, then verified.
//!
//! [`Devices::plan`](super::Devices::plan) says which whole blocks of which device a read needs, and has memory for
//! them. It chooses among the devices of a mirror. The caller carries the plan out, at once ([`PlannedRead::read`]) or with an io_uring of its own
//! ([`PlannedRead::file`]). What was read comes out only through [`PlannedRead::verified`].

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::answers::{Answers, given_up};
use super::member::{LateTurn, ReadUnderWay};
use super::missing::NoDevice;
use super::{AlignedBuf, Device};
use crate::limits::BLOCK_BYTES;
use crate::{Error, Result};

/// Bytes of one group of devices of a pool. They need not be whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of the group.
    pub group: u16,
    /// First byte on its devices.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// The device that bytes were read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadFrom<'a> {
    /// Number of the device.
    pub number: u16,
    /// Its path, for messages.
    pub path: &'a Path,
}

/// The reading of a [`Span`]: the whole blocks around it, and memory for them.
///
/// The device stays open as long as the plan lives. Nothing keeps the bytes in their place meanwhile.
pub(crate) struct PlannedRead {
    turn: ReadUnderWay,
    device: Arc<dyn Device>,
    /// First block on the device, and memory for all blocks.
    request: (u64, AlignedBuf),
    /// Position of the span in that memory.
    start: usize,
    span: Span,
}

/// A read that nobody waits for any more, with the memory that the kernel writes to until it has ended.
pub(crate) struct LateRead {
    turn: LateTurn,
    path: PathBuf,
    offset: u64,
    buf: AlignedBuf,
}

impl LateRead {
    /// Notes that another device has answered before.
    pub(crate) fn is_lost(&self) {
        self.turn.is_lost();
    }

    /// Tells that the device has not answered for long. Returns true if it need not be asked again.
    pub(super) fn tell(&self) -> bool {
        self.turn.tell()
    }

    /// Counts the read as ended, with what the kernel says of it.
    pub(crate) fn end(self, result: i32) {
        let len_bytes = self.buf.len() as u64;
        let outcome = match read_whole(result, len_bytes) {
            Ok(()) => Some(Ok(len_bytes)),
            Err(_) if is_not_made(result) => None,
            Err(source) => {
                Some(Err(Error::Io { op: "read", device: self.path, offset: self.offset, len_bytes, source }))
            }
        };
        self.turn.end(outcome);
    }

    /// Gives the read up, which the kernel may not have ended: the memory is never used again.
    pub(crate) fn leak(self) {
        std::mem::forget(self.buf);
        self.turn.end(None);
    }
}

/// Returns true if the kernel says by `result` that it has not made a read, for no fault of the device.
fn is_not_made(result: i32) -> bool {
    matches!(result.saturating_neg(), libc::ECANCELED | libc::EINTR | libc::EAGAIN)
}

/// Returns an error unless the kernel says by `result` that all of a read's bytes were read.
fn read_whole(result: i32, len_bytes: u64) -> io::Result<()> {
    match u64::try_from(result) {
        Ok(read) if read == len_bytes => Ok(()),
        Ok(read) => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the device moved {read} bytes and no more; has it shrunk?"),
        )),
        Err(_) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
    }
}

impl PlannedRead {
    /// Plans the reading of `span` from a member of its group.
    pub(super) fn new(turn: ReadUnderWay, span: Span) -> Result<Self> {
        let Span { offset, len_bytes, group } = span;
        let device = turn.member().device().ok_or(NoDevice::Missing(group))?;
        let block = BLOCK_BYTES as u64;
        let first = offset - offset % block;
        let last = offset.saturating_add(len_bytes).checked_next_multiple_of(block);
        let last = last.filter(|last| *last <= device.size_bytes()).ok_or_else(|| {
            Error::corrupt(
                format!("reference to byte {offset} of {}", device.path().display()),
                "it lies beyond the end of the device",
            )
        })?;
        Ok(Self {
            device: Arc::clone(device),
            turn,
            request: (first, AlignedBuf::scratch((last - first) as usize)),
            start: (offset - first) as usize,
            span,
        })
    }

    /// Returns the number of the device that is read.
    pub(crate) fn number(&self) -> u16 {
        self.turn.member().number
    }

    /// Returns a descriptor to read from, if the device has one.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.device.file()
    }

    /// Returns the first byte to read on the device, and the memory for the whole blocks from there on. A caller that
    /// reads by the descriptor has to fill all of it. The memory stays where it is until `self` is dropped.
    pub(crate) fn request(&mut self) -> (u64, &mut [u8]) {
        let (offset, buf) = &mut self.request;
        (*offset, buf)
    }

    /// Carries the plan out, which blocks.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub(crate) fn read(&mut self) -> Result<()> {
        let (offset, buf) = &mut self.request;
        let place = (*offset, buf.len() as u64);
        self.turn.make(place, || self.device.read(*offset, buf))
    }

    /// Carries out many plans, those that follow each other on one device at once.
    ///
    /// # Errors
    /// Those of [`Device::read_many`].
    pub(crate) fn read_all(plans: &mut [Self]) -> Result<()> {
        for of_one in plans.chunk_by_mut(|a, b| Arc::ptr_eq(&a.device, &b.device)) {
            match of_one {
                [one] => one.read()?,
                [first, ..] if first.turn.waits() => Self::read_in_turns(of_one)?,
                _ => Self::read_at_once(of_one)?,
            }
        }
        Ok(())
    }

    /// Carries out plans of one device, as many at once as may be.
    fn read_in_turns(mut plans: &mut [Self]) -> Result<()> {
        while let Some(first) = plans.first() {
            let device = Arc::clone(&first.device);
            let place = (first.request.0, first.request.1.len() as u64);
            let turn = first.turn.wait(device.as_ref(), place, plans.len());
            let (now, later) = plans.split_at_mut(turn.requests().min(plans.len()));
            Self::read_at_once(now)?;
            plans = later;
        }
        Ok(())
    }

    /// Carries out plans of one device at once.
    fn read_at_once(plans: &mut [Self]) -> Result<()> {
        let Some(first) = plans.first() else { return Ok(()) };
        let device = Arc::clone(&first.device);
        plans.iter_mut().for_each(|plan| plan.turn.start());
        let mut requests: Vec<_> = plans.iter_mut().map(|plan| &mut plan.request).collect();
        let read = device.read_many(&mut requests);
        // Of several that were made at once, one has failed, and nothing says which.
        if let (Err(error), Some(first)) = (&read, plans.first_mut()) {
            first.turn.fail(error);
        }
        read?;
        plans.iter_mut().for_each(Self::count);
        Ok(())
    }

    /// Counts the read as done. To be called by whoever has made it by the descriptor, without the device.
    pub(crate) fn count(&mut self) {
        self.turn.end(self.request.1.len() as u64);
    }

    /// Returns what is read.
    pub(super) const fn span(&self) -> Span {
        self.span
    }

    /// Notes that another device has answered before.
    pub(super) fn is_lost(&self) {
        self.turn.is_lost();
    }

    /// Returns the read, as it is under way.
    pub(super) fn turn(&mut self) -> &mut ReadUnderWay {
        &mut self.turn
    }

    /// Returns true if the read may be sent to another device, too, when it is overdue.
    pub(super) fn may_be_hedged(&self) -> bool {
        self.turn.has_others() && self.device.file().is_some()
    }

    /// Ends a read that was made by the descriptor, with what the kernel says of it. If the kernel did not make it, it is
    /// made now.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub(super) fn ended(&mut self, result: i32) -> Result<()> {
        if !is_not_made(result) {
            self.device.answers().inspect(|answers| answers.answered());
        }
        match read_whole(result, self.request.1.len() as u64) {
            Ok(()) => {
                self.count();
                Ok(())
            }
            Err(_) if is_not_made(result) => self.read(),
            Err(source) => {
                let error = self.error(source);
                self.turn.fail(&error);
                Err(error)
            }
        }
    }

    fn error(&self, source: io::Error) -> Error {
        let (offset, len_bytes) = (self.request.0, self.request.1.len() as u64);
        Error::Io { op: "read", device: self.device.path().to_path_buf(), offset, len_bytes, source }
    }

    /// Returns the error with which a read ends that the kernel makes, if its device is not waited for any more: it was
    /// given up (S2 of [`super::answers`]), or left out.
    pub(super) fn not_waited_for(&self) -> Option<Error> {
        if self.device.answers().is_some_and(Answers::is_given_up) {
            return Some(self.error(given_up()));
        }
        let is_left_out = self.turn.member().readable().is_none();
        let source = || io::Error::new(io::ErrorKind::TimedOut, "it was left out before it has answered");
        is_left_out.then(|| self.error(source()))
    }

    /// Returns the time from its planning on after which the read is overdue; `None` if nobody else can be asked.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        self.may_be_hedged().then(|| Duration::from_nanos(self.turn.due_ns().1))
    }

    /// Leaves a read alone that the kernel makes and that is overdue, since another device is asked.
    pub(crate) fn leave_overdue(mut self) -> LateRead {
        self.turn.overdue();
        self.leave()
    }

    /// Leaves a read alone that the kernel makes, and that nobody waits for any more.
    pub(super) fn leave(self) -> LateRead {
        let path = self.device.path().to_path_buf();
        let Self { turn, request: (offset, buf), .. } = self;
        LateRead { turn: turn.leave(), path, offset, buf }
    }

    /// Gives up a read that the kernel may not have ended: the memory is never used again.
    pub(super) fn leak(self) {
        std::mem::forget(self.request.1);
    }

    /// Returns what `verify` makes of the bytes that were read. It gets the device that they come from, too.
    ///
    /// # Errors
    /// Those of `verify`.
    pub(crate) fn verified<'a, T>(
        &'a self,
        verify: impl FnOnce(&'a [u8], ReadFrom<'_>) -> Result<T>,
    ) -> Result<T> {
        let bytes =
            self.request.1.get(self.start..self.start + self.span.len_bytes as usize).unwrap_or_default();
        verify(bytes, ReadFrom { number: self.number(), path: self.device.path() })
    }
}
