//! A mount whose handler holds requests back until a test lets them go, and direct writes that nobody waits for.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use pagefold_fs::FsOptions;
use pagefold_fuse::operation::Operation;
use pagefold_fuse::{
    Agreement, Blocking, Dispatch, Fetching, Handler, Kernel, Request, Session, Transport, Wait,
};
use parking_lot::{Condvar, Mutex};
use rustix::mm::{MapFlags, ProtFlags};
use tempfile::TempDir;

use super::PAGE;
use crate::common::{Aligned, memory, options, temp_dir};

/// A handler that holds back writes while it is closed, and all reads of one inode.
pub(super) struct Gate {
    pub(super) inner: Dispatch,
    state: Mutex<Held>,
    came: Condvar,
}

#[derive(Default)]
struct Held {
    closed: bool,
    writes: Vec<(Request, Blocking)>,
    no_reads_of: Option<u64>,
    reads: Vec<(Request, Blocking)>,
}

impl Gate {
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Returns when this number of writes is held.
    pub(super) fn wait_for(&self, writes: usize) {
        let mut state = self.state.lock();
        while state.writes.len() < writes {
            self.came.wait(&mut state);
        }
    }

    /// Holds back reads of an inode.
    pub(super) fn hold_reads_of(&self, ino: u64) {
        self.state.lock().no_reads_of = Some(ino);
    }

    /// Returns when a read is held.
    pub(super) fn wait_for_read(&self) {
        let mut state = self.state.lock();
        while state.reads.is_empty() {
            self.came.wait(&mut state);
        }
    }

    pub(super) fn let_read(&self) {
        self.carry_on(|state| {
            state.no_reads_of = None;
            std::mem::take(&mut state.reads)
        });
    }

    pub(super) fn open(&self) {
        self.carry_on(|state| {
            state.closed = false;
            std::mem::take(&mut state.writes)
        });
    }

    /// Lets the file system answer the write that has been held longest.
    pub(super) fn let_write(&self) {
        self.carry_on(|state| state.writes.drain(..1).collect());
    }

    /// Keeps threads busy on which requests of rings wait, until what is returned is dropped. A write must be held.
    pub(super) fn keep_busy(&self, threads: usize) -> Busy {
        let blocking = self.state.lock().writes[0].1.clone();
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (begin, begun) = std::sync::mpsc::channel();
        for _ in 0..threads {
            let (over, begin) = (Arc::clone(&over), begin.clone());
            blocking.run(Wait::Flush, move || {
                begin.send(()).unwrap();
                over.1.wait_while(&mut over.0.lock(), |over| !*over);
            });
        }
        assert_eq!(begun.iter().take(threads).count(), threads);
        Busy(over)
    }

    /// Lets the file system answer the requests that were held.
    fn carry_on(&self, take: impl FnOnce(&mut Held) -> Vec<(Request, Blocking)>) {
        let held = take(&mut self.state.lock());
        for (request, blocking) in held {
            assert!(self.inner.handle(request, &blocking).is_none());
        }
    }
}

/// Threads that are kept busy.
pub(super) struct Busy(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

/// The gate as a session takes it: a handler of its own type.
struct Gated(Arc<Gate>);

impl Handler for Gated {
    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        self.0.inner.agreed(agreement, kernel);
    }

    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        if matches!(request.parse(), Ok(Operation::Write(_))) {
            let mut state = self.0.state.lock();
            if state.closed {
                state.writes.push((request, blocking.clone()));
                self.0.came.notify_all();
                return None;
            }
        }
        if matches!(request.parse(), Ok(Operation::Read { .. })) {
            let mut state = self.0.state.lock();
            if state.no_reads_of == Some(request.ino()) {
                state.reads.push((request, blocking.clone()));
                self.0.came.notify_all();
                return None;
            }
        }
        self.0.inner.handle(request, blocking)
    }

    fn fetched(&self, fetching: Fetching, filled: bool, blocking: &Blocking) {
        self.0.inner.fetched(fetching, filled, blocking);
    }
}

pub(super) struct Mounted {
    pub(super) session: Session,
    pub(super) gate: Arc<Gate>,
    _parent: TempDir,
}

impl Mounted {
    pub(super) fn new(transport: Transport) -> Self {
        let parent = temp_dir();
        let dir = parent.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let (_, fs) = memory(FsOptions::default(), u64::MAX);
        let gate = Arc::new(Gate { inner: Dispatch::new(fs), state: Mutex::default(), came: Condvar::new() });
        let handler = Arc::new(Gated(Arc::clone(&gate)));
        let session = Session::mount_handler(handler, &dir, &options(transport)).unwrap();
        Self { session, gate, _parent: parent }
    }

    /// Makes a file of old bytes.
    pub(super) fn file(&self, name: &str, pages: usize) -> PathBuf {
        let path = self.session.dir().join(name);
        std::fs::write(&path, vec![b'o'; pages * PAGE]).unwrap();
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A test that failed must leave no request unanswered.
        self.gate.let_read();
        self.gate.open();
    }
}

/// Writes that no caller waits for.
pub(super) struct Writes {
    ring: IoUring,
    data: Aligned,
    under_way: usize,
}

impl Writes {
    pub(super) fn new(pages: usize) -> Self {
        Self { ring: IoUring::new(256).unwrap(), data: Aligned::of(&vec![b'n'; pages * PAGE]), under_way: 0 }
    }

    /// Writes new bytes at a page.
    pub(super) fn start(&mut self, file: &File, page: usize) {
        let (start, len) = (self.data.as_ptr(), self.data.len() as u32);
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), start, len);
        let write = write.offset((page * PAGE) as u64).build();
        // SAFETY: file and data outlive the write: `wait` comes before the end of each test, or the process ends.
        unsafe { self.ring.submission().push(&write).unwrap() };
        self.ring.submit().unwrap();
        self.under_way += 1;
    }

    /// Returns when all writes have completed.
    pub(super) fn wait(&mut self) {
        let len = self.data.len() as i32;
        while self.under_way > 0 {
            self.ring.submit_and_wait(1).unwrap();
            for done in self.ring.completion() {
                assert_eq!(done.result(), len);
                self.under_way -= 1;
            }
        }
    }
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// Writes of one page by the older interface (libaio's), which sends them on the caller's processor.
pub(super) struct Aio {
    context: libc::c_ulong,
    data: Aligned,
    controls: Vec<Control>,
}

impl Aio {
    pub(super) fn new(most: usize) -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number, the context.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, most, &raw mut context) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        Self { context, data: Aligned::of(&[b'n'; PAGE]), controls: Vec::with_capacity(most) }
    }

    pub(super) fn start(&mut self, file: &File, page: usize) {
        const PWRITE: u16 = 1;
        self.controls.push(Control {
            opcode: PWRITE,
            file: file.as_raw_fd().cast_unsigned(),
            buffer: self.data.as_ptr() as u64,
            bytes: PAGE as u64,
            offset: (page * PAGE) as i64,
            ..Control::default()
        });
        let control = self.controls.last().map(std::ptr::from_ref).unwrap();
        // SAFETY: one control block, which the kernel copies; file and data outlive the write, as in `Writes`.
        let sent = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, &raw const control) };
        assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
    }

    pub(super) fn wait(&mut self) {
        let count = self.controls.len();
        // Each event has four words; the third is the result.
        let mut events = vec![[0_u64; 4]; count];
        let (context, room) = (self.context, events.as_mut_ptr());
        // SAFETY: there is room for as many events as are asked for.
        let got = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                context,
                count,
                count,
                room,
                std::ptr::null::<libc::timespec>(),
            )
        };
        assert_eq!(got, count as i64);
        assert!(events.iter().all(|event| event[2] == PAGE as u64));
        // SAFETY: nothing is under way any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}

/// A mapping of a file that is only read, byte by byte.
pub(super) struct Map(*const u8);

// SAFETY: a mapping can be read from any thread.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(file: &File, how: MapFlags) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice; it stays until the process ends.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 16 * PAGE, ProtFlags::READ, how, file, 0) };
        Self(start.unwrap().cast())
    }

    /// The first page, which nobody may have touched.
    pub(super) fn slice(&self) -> &[u8] {
        // SAFETY: within the mapping, which stays, and within the file, which nobody changes.
        unsafe { std::slice::from_raw_parts(self.0, PAGE) }
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        assert!(at < 16 * PAGE);
        // SAFETY: within the mapping and within the file, whose bytes others may change.
        unsafe { self.0.add(at).read_volatile() }
    }
}
