//! Recorded devices: their writes and flushes are written to a file, from which every state that a crash may have left
//! can be made again later ([docs/TESTING.md](../../../../docs/TESTING.md), "Recorded crashes").
//!
//! A recording is a file: [`MAGIC`], the number of devices and their sizes in bytes (u64 each), then events, all
//! integers little-endian. An event is 40 bytes: kind (u8: [`Event`]), durable (u8), device (u16), zeros (u32), number
//! of the call (u64), monotonic time in nanoseconds (u64), offset (u64), length (u64). The begin of a write is followed
//! by its bytes.
//!
//! - The begin of a call stands before its first effect, and its end after its last one. So a write is durable if its
//!   end stands before the begin of a flush that has an end. Whatever a caller was told was told after that end.
//! - Calls that fail have no end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::{AlignedBuf, Device, DeviceStats};
use crate::{Error, Result, walk};

/// First bytes of a recording.
pub(super) const MAGIC: &[u8; 8] = b"PFREC\0\0\x01";
/// Bytes of an event without the bytes that a write writes.
pub(super) const EVENT_BYTES: usize = 40;

/// Kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Event {
    /// A write begins; its bytes follow.
    Write = 1,
    /// A write has ended.
    Written = 2,
    /// A flush begins.
    Flush = 3,
    /// A flush has ended.
    Flushed = 4,
    /// A discard begins: from here on the content of the range is arbitrary.
    Discard = 5,
}

/// The file to which all devices of a pool write their events.
pub(crate) struct Recording {
    path: PathBuf,
    file: Mutex<(File, u64)>,
}

impl Recording {
    /// Creates a recording of devices of these sizes in bytes. There must be no file at `path` yet; it is made for its
    /// owner alone.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be made or written.
    pub(crate) fn create(path: &Path, sizes: &[u64]) -> Result<Arc<Self>> {
        let failed =
            |source| Error::Io { op: "record", device: path.into(), offset: 0, len_bytes: 0, source };
        let (dir, name) = walk::reach_parent(path).map_err(|error| failed(error.into()))?;
        let place = dir.entry_path(&name);
        let file =
            OpenOptions::new().append(true).create_new(true).mode(0o600).open(place).map_err(failed)?;
        let mut head = MAGIC.to_vec();
        for number in [sizes.len() as u64].iter().chain(sizes) {
            head.extend(number.to_le_bytes());
        }
        (&file).write_all(&head).map_err(failed)?;
        Ok(Arc::new(Self { path: path.into(), file: Mutex::new((file, 0)) }))
    }

    /// Writes an event, and returns the number of its call. `call` is 0 for the begin of a call, which is given a new
    /// number.
    fn event(
        &self,
        event: Event,
        device: u16,
        call: u64,
        range: (u64, u64),
        durable: bool,
        bytes: &[u8],
    ) -> Result<u64> {
        let mut guard = self.file.lock();
        let (file, calls) = &mut *guard;
        if call == 0 {
            *calls += 1;
        }
        let call = if call == 0 { *calls } else { call };
        let now = clock_gettime(ClockId::Monotonic);
        let time = (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64);
        let mut head = Vec::with_capacity(EVENT_BYTES);
        head.extend([event as u8, u8::from(durable)]);
        head.extend(device.to_le_bytes());
        head.extend([0; 4]);
        for number in [call, time, range.0, range.1] {
            head.extend(number.to_le_bytes());
        }
        let (offset, len_bytes) = range;
        file.write_all(&head).and_then(|()| file.write_all(bytes)).map_err(|source| Error::Io {
            op: "record",
            device: self.path.clone(),
            offset,
            len_bytes,
            source,
        })?;
        Ok(call)
    }
}

/// A device that records its calls. A call that cannot be recorded fails, and is not done.
pub(crate) struct RecordedDevice {
    inner: Arc<dyn Device>,
    number: u16,
    recording: Arc<Recording>,
}

impl RecordedDevice {
    /// Returns `inner` as the device `number` of a recording.
    pub(crate) fn new(inner: Arc<dyn Device>, number: u16, recording: Arc<Recording>) -> Self {
        Self { inner, number, recording }
    }

    fn event(&self, event: Event, call: u64, range: (u64, u64), durable: bool, bytes: &[u8]) -> Result<u64> {
        self.recording.event(event, self.number, call, range, durable, bytes)
    }
}

impl Device for RecordedDevice {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn measure(&self) -> Result<()> {
        // A recording has the sizes that the devices had when it began.
        Ok(())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.inner.file()
    }

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.inner.read(offset, buf)
    }

    fn read_many(&self, requests: &mut [&mut (u64, AlignedBuf)]) -> Result<()> {
        self.inner.read_many(requests)
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        let range = (offset, buf.len() as u64);
        let call = self.event(Event::Write, 0, range, durable, buf)?;
        self.inner.write(offset, buf, durable)?;
        self.event(Event::Written, call, range, durable, &[]).map(drop)
    }

    fn writes_durably(&self) -> bool {
        self.inner.writes_durably()
    }

    fn flush(&self) -> Result<()> {
        let call = self.event(Event::Flush, 0, (0, 0), false, &[])?;
        self.inner.flush()?;
        self.event(Event::Flushed, call, (0, 0), false, &[]).map(drop)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.event(Event::Discard, 0, (offset, len_bytes), false, &[])?;
        self.inner.discard(offset, len_bytes)
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        self.inner.data_from(offset)
    }

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}
