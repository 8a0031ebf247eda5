//! Requests of a device that may never be answered, and until when they are waited for.
//!
//! A write to a mirror ends when all of its devices have it. One that does not answer would keep everybody waiting who
//! writes, for minutes or for ever, though the others have long done so. A request cannot be taken back: it is left alone.
//!
//! - S1: a device is given up only while another one of its group, of which the group would live on, answers. If
//!   none does, the machine or what they all hang from has stopped, and everybody waits. Nothing of the group waits for
//!   a device that is not written, has left, or is no member yet: it is given up whoever answers.
//! - S2: of a device that was given up every request fails, those that wait too. So its group leaves it out as one that
//!   fails (H1), and every other user goes on.
//! - S3: memory and file of a request that was left alone stay until the kernel has ended it. The device stays locked as
//!   long, so nobody opens it anew: what it does late cannot replace what is written later.
//!
//! Time is what a thread has waited, slice by slice. The clock would go on while a virtual machine stands still.

mod ring;

use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::{Mutex, RwLock};
use rustix::io::ReadWriteFlags;

use self::ring::{Called, take_ring};
use super::lock::LockedFile;
use super::stats::{Began, now_ns};
use super::{AlignedBuf, Device};
use crate::limits::BLOCK_BYTES;

/// Time that a thread waits before it looks at what has become of the device, in nanoseconds.
pub(super) const SLICE_NS: u64 = 250_000_000;

/// One who knows the other devices of a group.
pub(super) trait Judge: Send + Sync {
    /// Returns how long a request of a device is waited for at least, in nanoseconds; `None` if it is waited for until
    /// it is answered.
    fn bound_ns(&self, device: &Answers) -> Option<u64>;

    /// Returns true if the group can go on without this device, and another one answers (S1), or if this one is none of
    /// the group any more. A request was made at `began` that it has not answered; it is waited for `bound_ns`.
    fn goes_on_without(&self, device: &Answers, began: Began, bound_ns: u64) -> bool;

    /// Has the other devices show whether they answer: nobody else may be asking them for anything. They are asked to `read`,
    /// or to flush.
    fn ask_others(&self, device: &Answers, read: bool);
}

/// The judge of devices that are of no group: they come to a pool, or are its spares. Nothing of the pool waits for one of them
/// for longer than for a member, whoever answers.
pub(super) struct Strangers {
    /// Time for which they are waited for, in nanoseconds; 0: until they answer.
    pub(super) bound_ns: AtomicU64,
}

impl Judge for Strangers {
    fn bound_ns(&self, _device: &Answers) -> Option<u64> {
        Some(self.bound_ns.load(SeqCst)).filter(|bound_ns| *bound_ns > 0)
    }

    fn goes_on_without(&self, _device: &Answers, _began: Began, _bound_ns: u64) -> bool {
        true
    }

    fn ask_others(&self, _device: &Answers, _read: bool) {}
}

/// A request of a device.
pub(super) enum Request<'a> {
    /// Fills `buf` from byte `at` of it on.
    Read { buf: &'a mut AlignedBuf, at: usize, offset: u64 },
    /// Writes `part` of `buf`.
    Write { buf: &'a AlignedBuf, part: Range<usize>, offset: u64, durable: bool },
    /// Makes durable what was written.
    Flush,
}

/// The answers of a device, and whether it is waited for.
#[derive(Default)]
pub struct Answers {
    judge: RwLock<Option<Weak<dyn Judge>>>,
    /// Time of the last answer.
    last_ns: AtomicU64,
    /// Number of requests that have waited for a slice and were not answered.
    overdue: AtomicU32,
    is_given_up: AtomicBool,
    /// True while a thread asks the device for the sake of another one.
    is_tried: AtomicBool,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (overdue, is_given_up) = (self.overdue.load(SeqCst), self.is_given_up());
        f.debug_struct("Answers")
            .field("overdue", &overdue)
            .field("is_given_up", &is_given_up)
            .finish_non_exhaustive()
    }
}

/// A device, whichever name it goes by: the numbers of a block device, or those of a file and its file system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceFile {
    Block(u64),
    File(u64, u64),
}

impl DeviceFile {
    fn of(meta: &Metadata) -> Self {
        if meta.file_type().is_block_device() {
            Self::Block(meta.rdev())
        } else {
            Self::File(meta.dev(), meta.ino())
        }
    }
}

/// Something to be done once a device has answered all requests.
type Then = Box<dyn FnOnce() + Send>;

/// Answers that are owed to this process.
struct Owing {
    /// The devices, one for each request that was left alone.
    devices: Vec<DeviceFile>,
    waiting: Vec<(DeviceFile, Then)>,
}

static OWED: Mutex<Owing> = Mutex::new(Owing { devices: Vec::new(), waiting: Vec::new() });

/// Returns true if this process has left alone a request of a device that was not answered yet.
pub(crate) fn owes(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| OWED.lock().devices.contains(&DeviceFile::of(&meta)))
}

/// Calls `then` once the device has answered all requests that this process has left alone: at once if there are none, or on
/// another thread.
pub(crate) fn when_answered(path: &Path, then: Then) {
    let device = std::fs::metadata(path).ok().map(|meta| DeviceFile::of(&meta));
    let mut owed = OWED.lock();
    if let Some(device) = device.filter(|device| owed.devices.contains(device)) {
        owed.waiting.push((device, then));
        return;
    }
    drop(owed);
    then();
}

/// An answer that a device owes. It has come when this is dropped.
struct Owed {
    device: Option<DeviceFile>,
    path: PathBuf,
}

impl Owed {
    fn by(file: &LockedFile, path: &Path) -> Self {
        let device = file.metadata().ok().map(|meta| DeviceFile::of(&meta));
        OWED.lock().devices.extend(device);
        Self { device, path: path.to_path_buf() }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(device) = self.device else { return };
        let mut owed = OWED.lock();
        if let Some(at) = owed.devices.iter().position(|other| *other == device) {
            owed.devices.swap_remove(at);
        }
        if owed.devices.contains(&device) {
            return;
        }
        let told: Vec<_> = owed.waiting.extract_if(.., |(of, _)| *of == device).collect();
        drop(owed);
        tracing::info!(device = %self.path.display(), "it has answered the requests that nobody waited for");
        told.into_iter().for_each(|(_, then)| then());
    }
}

impl Answers {
    /// Says who knows the other devices of its group.
    pub(super) fn join(&self, judge: Weak<dyn Judge>) {
        *self.judge.write() = Some(judge);
    }

    fn judge(&self) -> Option<Arc<dyn Judge>> {
        self.judge.read().as_ref().and_then(Weak::upgrade)
    }

    /// Returns true if requests are not waited for until they are answered.
    pub(crate) fn is_bounded(&self) -> bool {
        self.judge().is_some_and(|judge| judge.bound_ns(self).is_some())
    }

    /// Returns true if the device is not waited for any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(SeqCst)
    }

    /// Returns true if the device has answered since `began`, and owes nothing, or has answered in the last quarter of
    /// `bound_ns`.
    pub(super) fn has_answered(&self, began: Began, bound_ns: u64) -> bool {
        let last_ns = self.last_ns.load(SeqCst);
        let is_prompt = self.overdue.load(SeqCst) == 0;
        let is_recent = now_ns().saturating_sub(last_ns) < bound_ns / 4;
        !self.is_given_up() && last_ns > began.ns() && (is_prompt || is_recent)
    }

    /// Notes that the device has answered a request.
    pub(super) fn answered(&self) {
        self.last_ns.store(now_ns(), SeqCst);
    }

    /// Makes a request, and waits for it as long as the group says.
    ///
    /// # Errors
    /// Those of the system calls; [`io::ErrorKind::TimedOut`] if the device was given up.
    pub(super) fn ask(
        &self,
        file: &Arc<LockedFile>,
        path: &Path,
        mut request: Request<'_>,
    ) -> io::Result<usize> {
        let judge = self.judge();
        let bound_ns = judge.as_ref().and_then(|judge| judge.bound_ns(self));
        let (Some(judge), Some(bound_ns)) = (judge, bound_ns) else { return request.make(file) };
        if self.is_given_up() {
            return Err(given_up());
        }
        let Some(mut ring) = take_ring() else { return request.make(file) };
        let began = Began::now();
        let is_read = matches!(request, Request::Read { .. });
        let mut waiting = Awaited { answers: self, slices: 0 };
        // Slices in a row in which others have answered: when all have hung, each has this time from the moment on at
        // which the first one answers.
        let mut alone = 0u64;
        // SAFETY: what the request points to is borrowed until this function returns, and if the request has not ended by
        // then, the ring gets memory and file first, or they are leaked.
        let called = unsafe {
            ring.call(&request.entry(file), SLICE_NS, || {
                waiting.one_more();
                if judge.goes_on_without(self, began, bound_ns) {
                    alone += 1;
                } else {
                    alone = 0;
                    judge.ask_others(self, is_read);
                }
                if !self.is_given_up() && alone > 0 && alone.saturating_mul(SLICE_NS) >= bound_ns {
                    self.give_up(path, waiting.slices);
                }
                !self.is_given_up()
            })
        };
        drop(waiting);
        match called {
            Ok(Called::Ended(result)) => {
                self.answered();
                ring.put_back();
                usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
            }
            Ok(Called::Left) => {
                ring.leave((request.leave(), Arc::clone(file), Owed::by(file, path)));
                Err(given_up())
            }
            Err(error) => {
                std::mem::forget((ring, request.leave(), Arc::clone(file)));
                Err(error)
            }
        }
    }

    fn give_up(&self, path: &Path, slices: u64) {
        if !self.is_given_up.swap(true, SeqCst) {
            let seconds = slices.saturating_mul(SLICE_NS) / 1_000_000_000;
            tracing::error!(device = %path.display(), seconds, "it does not answer, while others of the pool do; it is not waited for any longer");
        }
    }
}

/// Asks a device to read or to flush, on a thread of its own, unless it is being asked.
pub(super) fn try_out(device: &Arc<dyn Device>, read: bool) {
    if device.answers().is_none_or(|answers| answers.is_tried.swap(true, SeqCst)) {
        return;
    }
    let tried = Arc::clone(device);
    let ask = move || {
        // An error is an answer, too. A flush that failed fails all that follow.
        let _ = if read { tried.read(0, &mut AlignedBuf::zeroed(BLOCK_BYTES)) } else { tried.flush() };
        tried.answers().inspect(|answers| answers.is_tried.store(false, SeqCst));
    };
    if thread::Builder::new().name("pf-try".into()).spawn(ask).is_err() {
        // The next slice tries it again.
        device.answers().inspect(|answers| answers.is_tried.store(false, SeqCst));
    }
}

/// Returns the error of a request whose device was given up.
pub(super) fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it has not answered for too long (property devicewait)")
}

/// A request that waits, as far as others of the device are concerned.
struct Awaited<'a> {
    answers: &'a Answers,
    slices: u64,
}

impl Awaited<'_> {
    fn one_more(&mut self) {
        if self.slices == 0 {
            self.answers.overdue.fetch_add(1, SeqCst);
        }
        self.slices += 1;
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.slices > 0 {
            self.answers.overdue.fetch_sub(1, SeqCst);
        }
    }
}

impl Request<'_> {
    /// Makes the request by a call that waits until it is answered.
    fn make(&mut self, file: &LockedFile) -> io::Result<usize> {
        match self {
            Self::Read { buf, at, offset } => {
                let into = buf.get_mut(*at..).unwrap_or_default();
                Ok(rustix::io::pread(&**file, into, *offset)?)
            }
            Self::Write { buf, part, offset, durable: false } => {
                Ok(rustix::io::pwrite(&**file, buf.get(part.clone()).unwrap_or_default(), *offset)?)
            }
            Self::Write { buf, part, offset, durable: true } => {
                let bytes = [io::IoSlice::new(buf.get(part.clone()).unwrap_or_default())];
                Ok(rustix::io::pwritev2(&**file, &bytes, *offset, ReadWriteFlags::DSYNC)?)
            }
            Self::Flush => {
                rustix::fs::fdatasync(&**file)?;
                Ok(0)
            }
        }
    }

    /// Takes what the kernel may still use, so that it stays after the caller has gone on.
    fn leave(self) -> LeftMemory {
        match self {
            Self::Read { buf, .. } => {
                let len_bytes = buf.len();
                LeftMemory::Read(std::mem::replace(buf, AlignedBuf::zeroed(len_bytes)))
            }
            Self::Write { buf, .. } => LeftMemory::Write(buf.share()),
            Self::Flush => LeftMemory::None,
        }
    }
}

/// Memory of a request that was left alone.
#[allow(dead_code, reason = "it is kept for the kernel")]
enum LeftMemory {
    Read(AlignedBuf),
    Write(super::buffer::SharedBytes),
    None,
}

#[cfg(test)]
mod tests;
