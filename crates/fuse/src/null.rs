//! Two servers of one file each, on the same transport and with the same mount options as the product. They show what
//! the kernel's FUSE and this front end cost by themselves; benchmarks take that as their bound.
//!
//! [`NullServer`] answers reads from one buffer and throws writes away; [`PassServer`] passes both on to a file, opened
//! for direct I/O. Tests have it fail and delay reads ([`PassFaults`]): its file is then a device that goes bad.

use crate::dispatch::opened;
use crate::limits::CACHE_VALID;
use crate::operation::{Change, Operation, Query, Span, Write};
use crate::protocol::{Attr, AttrOut, EntryOut, ROOT_ID, StatfsOut, WriteOut};
use crate::{Blocking, Errno, Fetching, Handler, Request, Wait};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

/// Inode of the one file.
const FILE_INO: u64 = 2;
/// Name of the one file.
pub const FILE_NAME: &str = "data";

/// Answers from one buffer.
#[derive(Debug)]
pub struct NullServer {
    buffer: Vec<u8>,
    size: u64,
}

/// Passes reads and writes on to a file.
#[derive(Clone, Debug)]
pub struct PassServer {
    file: Arc<File>,
    size: u64,
    faults: Arc<PassFaults>,
}

/// Faults of a [`PassServer`], which may be changed at any time.
#[derive(Debug, Default)]
pub struct PassFaults {
    /// Number of reads in a thousand that fail, with EIO.
    pub failing_permille: AtomicU32,
    /// Microseconds by which each read is delayed.
    pub delay_us: AtomicU32,
    /// Number of reads so far.
    reads: AtomicU64,
}

impl PassFaults {
    /// Delays a read, and returns true if it is to fail. Of all reads that fail as many as are wanted, in no order that
    /// a caller meets.
    fn strike(&self) -> bool {
        let delay = u64::from(self.delay_us.load(Ordering::Relaxed));
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let scattered = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        scattered % 1000 < u64::from(self.failing_permille.load(Ordering::Relaxed))
    }
}

impl NullServer {
    /// Returns a server of a file of `size` bytes, each read of which gives the bytes of one buffer of 1 MiB.
    pub fn new(size: u64) -> Self {
        let buffer = (0..crate::limits::REQUEST_BYTES_MAX).map(|i| (i / 8) as u8).collect();
        Self { buffer, size }
    }
}

impl PassServer {
    /// Serves the existing file at `path`.
    ///
    /// # Errors
    /// Errors of opening the file for direct I/O.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), size, faults: Arc::default() })
    }

    /// Returns what it does wrong.
    pub fn faults(&self) -> Arc<PassFaults> {
        Arc::clone(&self.faults)
    }
}

impl Handler for NullServer {
    fn handle(&self, mut request: Request, _blocking: &Blocking) -> Option<Fetching> {
        match request.parse() {
            Ok(Operation::Read { offset, size, .. }) => {
                let len = readable(self.size, offset, size).min(self.buffer.len());
                request.payload(len).copy_from_slice(&self.buffer[..len]);
                request.payload_filled(len);
            }
            Ok(Operation::Write(Write { data, .. })) => {
                let size = data.len();
                request.answer(&WriteOut { size, padding: 0 });
            }
            Ok(Operation::Sync { .. }) => request.ok(),
            Ok(operation) => one_file(request, &operation, self.size),
            Err(why) => request.refuse(why),
        }
        None
    }
}

impl Handler for PassServer {
    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        let server = self.clone();
        match request.parse() {
            Ok(Operation::Read { offset, size, .. }) => {
                blocking.run(Wait::Read, move || server.read(request, offset, size));
            }
            Ok(Operation::Write(Write { offset, data, .. })) => {
                blocking.run(Wait::Flush, move || server.write(request, offset, data));
            }
            Ok(Operation::Sync { .. }) => blocking.run(Wait::Flush, move || match server.file.sync_data() {
                Ok(()) => request.ok(),
                Err(error) => request.error(errno_of(&error)),
            }),
            Ok(operation) => one_file(request, &operation, self.size),
            Err(why) => request.refuse(why),
        }
        None
    }
}

impl PassServer {
    fn read(&self, mut request: Request, offset: u64, size: u32) {
        let len = readable(self.size, offset, size);
        if self.faults.strike() {
            return request.error(Errno::IO);
        }
        match self.file.read_at(request.payload(len), offset) {
            Ok(len) => request.payload_filled(len),
            Err(error) => request.error(errno_of(&error)),
        }
    }

    fn write(&self, request: Request, offset: u64, data: Span) {
        match self.file.write_at(request.argument(data), offset) {
            Ok(len) => request.answer(&WriteOut { size: len as u32, padding: 0 }),
            Err(error) => request.error(errno_of(&error)),
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Returns the number of bytes that a read gets of a file of `file_size` bytes.
fn readable(file_size: u64, offset: u64, size: u32) -> usize {
    file_size.saturating_sub(offset).min(u64::from(size)) as usize
}

/// Answers everything but reads and writes: there is one root directory and one file in it.
fn one_file(request: Request, operation: &Operation, file_size: u64) {
    let valid = CACHE_VALID.as_secs();
    let attributes = |ino: u64| Attr {
        ino,
        size: if ino == FILE_INO { file_size } else { 0 },
        blocks: if ino == FILE_INO { file_size / 512 } else { 0 },
        mode: if ino == FILE_INO { libc::S_IFREG | 0o666 } else { libc::S_IFDIR | 0o755 },
        nlink: 1,
        blksize: 4096,
        ..Attr::default()
    };
    match *operation {
        Operation::Query(Query::Lookup { name })
            if request.ino() == ROOT_ID && request.argument(name) == FILE_NAME.as_bytes() =>
        {
            let attr = attributes(FILE_INO);
            request.answer(&EntryOut {
                nodeid: FILE_INO,
                entry_valid: valid,
                attr_valid: valid,
                attr,
                ..EntryOut::default()
            });
        }
        Operation::Query(Query::Lookup { .. }) => request.error(Errno::NOENT),
        Operation::Query(Query::Attributes) | Operation::Change(Change::Attributes(_)) => {
            let attr = attributes(request.ino());
            request.answer(&AttrOut { attr_valid: valid, attr, ..AttrOut::default() });
        }
        Operation::Open { flags, .. } => {
            request.answer(&opened(flags));
        }
        Operation::StatFs => {
            request.answer(&StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..StatfsOut::default() });
        }
        Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => {
            request.silent();
        }
        Operation::Release { .. } | Operation::Change(Change::Allocate { .. }) | Operation::Destroy => {
            request.ok();
        }
        _ => request.error(Errno::NOSYS),
    }
}
