//! Direct writes that no caller waits for, beside readers through the page cache: once such a write has completed,
//! everybody sees it. In essence the public kernel test generic/451, but with the race made to happen.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{Aligned, RingOn, memory, options, temp_dir};
use io_uring::{IoUring, opcode, types};
use pagefold_fs::FsOptions;
use pagefold_fuse::operation::Operation;
use pagefold_fuse::protocol::Opcode;
use pagefold_fuse::{Agreement, Blocking, Dispatch, Fetching, Handler, Kernel, Request, Session, Transport};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

const PAGE: usize = 4096;

/// A handler that holds back writes while it is closed, and all reads of one inode.
struct Gate {
    inner: Dispatch,
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
    fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Returns when this number of writes is held.
    fn wait_for(&self, writes: usize) {
        let mut state = self.state.lock();
        while state.writes.len() < writes {
            self.came.wait(&mut state);
        }
    }

    /// Holds back reads of an inode.
    fn hold_reads_of(&self, ino: u64) {
        self.state.lock().no_reads_of = Some(ino);
    }

    /// Returns when a read is held.
    fn wait_for_read(&self) {
        let mut state = self.state.lock();
        while state.reads.is_empty() {
            self.came.wait(&mut state);
        }
    }

    fn let_read(&self) {
        self.carry_on(|state| {
            state.no_reads_of = None;
            std::mem::take(&mut state.reads)
        });
    }

    fn open(&self) {
        self.carry_on(|state| {
            state.closed = false;
            std::mem::take(&mut state.writes)
        });
    }

    /// Lets the file system answer the requests that were held.
    fn carry_on(&self, take: impl FnOnce(&mut Held) -> Vec<(Request, Blocking)>) {
        let held = take(&mut self.state.lock());
        for (request, blocking) in held {
            assert!(self.inner.handle(request, &blocking).is_none());
        }
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

struct Mounted {
    session: Session,
    gate: Arc<Gate>,
    _parent: TempDir,
}

impl Mounted {
    fn new(transport: Transport) -> Self {
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
    fn file(&self, name: &str, pages: usize) -> PathBuf {
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

fn open(path: &std::path::Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Writes that no caller waits for.
struct Writes {
    ring: IoUring,
    data: Aligned,
    under_way: usize,
}

impl Writes {
    fn new(pages: usize) -> Self {
        Self { ring: IoUring::new(256).unwrap(), data: Aligned::of(&vec![b'n'; pages * PAGE]), under_way: 0 }
    }

    /// Writes new bytes at a page.
    fn start(&mut self, file: &File, page: usize) {
        let (start, len) = (self.data.as_ptr(), self.data.len() as u32);
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), start, len);
        let write = write.offset((page * PAGE) as u64).build();
        // SAFETY: file and data outlive the write: `wait` comes before the end of each test, or the process ends.
        unsafe { self.ring.submission().push(&write).unwrap() };
        self.ring.submit().unwrap();
        self.under_way += 1;
    }

    /// Returns when all writes have completed.
    fn wait(&mut self) {
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
struct Aio {
    context: libc::c_ulong,
    data: Aligned,
    controls: Vec<Control>,
}

impl Aio {
    fn new(most: usize) -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number, the context.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, most, &raw mut context) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        Self { context, data: Aligned::of(&[b'n'; PAGE]), controls: Vec::with_capacity(most) }
    }

    fn start(&mut self, file: &File, page: usize) {
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

    fn wait(&mut self) {
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
struct Map(*const u8);

// SAFETY: a mapping can be read from any thread.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &File, how: MapFlags) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice; it stays until the process ends.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 16 * PAGE, ProtFlags::READ, how, file, 0) };
        Self(start.unwrap().cast())
    }

    /// The first page, which nobody may have touched.
    fn slice(&self) -> &[u8] {
        // SAFETY: within the mapping, which stays, and within the file, which nobody changes.
        unsafe { std::slice::from_raw_parts(self.0, PAGE) }
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < 16 * PAGE);
        // SAFETY: within the mapping and within the file, whose bytes others may change.
        unsafe { self.0.add(at).read_volatile() }
    }
}

/// Runs one race: a write is held back before it is applied, and somebody reads.
fn race(m: &Mounted, name: &str, open_direct: impl Fn(&std::path::Path) -> File, reader_first: bool) {
    let path = m.file(name, 16);
    let (reader, direct) = if reader_first {
        let reader = open(&path, 0);
        (reader, open_direct(&path))
    } else {
        let direct = open_direct(&path);
        (open(&path, 0), direct)
    };
    let maps = [MapFlags::SHARED, MapFlags::PRIVATE].map(|how| Map::new(&reader, how));
    let direct_map = Map::new(&direct, MapFlags::SHARED);
    let before = reader.metadata().unwrap();
    let mut bytes = vec![0; 16 * PAGE];
    m.gate.close();
    let mut writes = Writes::new(2);
    writes.start(&direct, 3);
    m.gate.wait_for(1);
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&b| b == b'o'), "{name}: nothing was written yet");
    for map in maps.iter().chain([&direct_map]) {
        assert_eq!(map.byte(4 * PAGE), b'o');
    }
    assert_eq!(reader.metadata().unwrap().mtime_nsec(), before.mtime_nsec());
    m.gate.open();
    writes.wait();
    for (which, map) in maps.iter().chain([&direct_map]).enumerate() {
        assert_eq!((map.byte(3 * PAGE), map.byte(5 * PAGE - 1)), (b'n', b'n'), "{name}: mapping {which}");
        assert_eq!((map.byte(3 * PAGE - 1), map.byte(5 * PAGE)), (b'o', b'o'), "{name}: mapping {which}");
    }
    reader.read_exact_at(&mut bytes, 0).unwrap();
    let new = |page: usize| if (3..5).contains(&page) { b'n' } else { b'o' };
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        assert!(bytes.iter().all(|&b| b == new(page)), "{name}: page {page} by read");
    }
    let after = reader.metadata().unwrap();
    assert_ne!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()), "{name}: mtime");
}

fn races(transport: Transport) {
    let m = Mounted::new(transport);
    let direct = |path: &std::path::Path| open(path, libc::O_DIRECT);
    let later = |path: &std::path::Path| {
        let file = open(path, 0);
        fcntl_setfl(&file, OFlags::DIRECT).unwrap();
        file
    };
    race(&m, "reader-first", direct, true);
    race(&m, "writer-first", direct, false);
    race(&m, "by-fcntl", later, true);
    race(&m, "by-fcntl-first", later, false);
    assert!(m.gate.inner.drops() >= 4);
}

#[test]
fn what_is_read_beside_a_direct_write_does_not_stay_over_dev() {
    races(Transport::Dev);
}

#[test]
fn what_is_read_beside_a_direct_write_does_not_stay_over_the_ring() {
    let Some(_ring) = RingOn::new() else { return };
    races(Transport::IoUring);
}

/// Only attributes are looked at; no bytes are read.
#[test]
fn times_that_were_told_beside_a_direct_write_do_not_stay() {
    let m = Mounted::new(Transport::Dev);
    let path = m.session.dir().join("file");
    File::create(&path).unwrap();
    let direct = open(&path, libc::O_DIRECT);
    direct.write_all_at(&Aligned::new(16 * PAGE), 0).unwrap();
    let mut writes = Writes::new(1);
    for round in 0..10 {
        let before = std::fs::metadata(&path).unwrap();
        m.gate.close();
        writes.start(&direct, round);
        m.gate.wait_for(1);
        assert_eq!(std::fs::metadata(&path).unwrap().mtime_nsec(), before.mtime_nsec());
        m.gate.open();
        writes.wait();
        assert_ne!(std::fs::metadata(&path).unwrap().mtime_nsec(), before.mtime_nsec());
    }
    assert_eq!(m.gate.inner.drops(), 0, "no page was read");
}

/// Files that are used in one way alone cost nothing more: the kernel is told nothing, and asks nothing anew.
#[test]
fn files_that_are_used_one_way_cost_no_messages() {
    let m = Mounted::new(Transport::Dev);
    let mut writes = Writes::new(1);
    // As InnoDB does: everything is direct.
    let path = m.session.dir().join("direct");
    File::create(&path).unwrap();
    let direct = open(&path, libc::O_DIRECT);
    direct.write_all_at(&Aligned::of(&vec![b'o'; 16 * PAGE]), 0).unwrap();
    let requests = |code| m.session.stats().requests(code);
    let before = (requests(Opcode::Write), requests(Opcode::Getattr));
    for round in 0..1000 {
        writes.start(&direct, round % 16);
        if round % 10 == 9 {
            writes.wait();
        }
        direct.read_exact_at(&mut Aligned::new(PAGE), (round % 16 * PAGE) as u64).unwrap();
    }
    assert_eq!((requests(Opcode::Write) - before.0, requests(Opcode::Getattr) - before.1), (1000, 0));
    assert_eq!(m.gate.inner.drops(), 0);
    // As PostgreSQL does: everything is buffered, and each page is read at most once.
    let path = m.file("buffered", 16);
    let buffered = open(&path, 0);
    let before = (requests(Opcode::Write), requests(Opcode::Read));
    for round in 0..1000 {
        buffered.write_all_at(&[b'n'; PAGE], (round % 16 * PAGE) as u64).unwrap();
        buffered.read_exact_at(&mut [0; PAGE], ((round + 7) % 16 * PAGE) as u64).unwrap();
    }
    assert_eq!(requests(Opcode::Write) - before.0, 1000);
    assert!(requests(Opcode::Read) - before.1 <= 16);
    assert_eq!(m.gate.inner.drops(), 0);
}

/// A mapping of a direct handle drops a page that a buffered write is sending: the page that is read in its place must
/// not stay.
#[test]
fn what_is_read_beside_a_buffered_write_does_not_stay() {
    let m = Mounted::new(Transport::Dev);
    let path = m.file("file", 16);
    let (buffered, direct) = (open(&path, 0), open(&path, libc::O_DIRECT));
    m.gate.close();
    let mut bytes = [0; PAGE];
    std::thread::scope(|scope| {
        let write = scope.spawn(|| buffered.write_all_at(&[b'n'; PAGE], 0).unwrap());
        m.gate.wait_for(1);
        let _map = Map::new(&direct, MapFlags::SHARED);
        buffered.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [b'o'; PAGE]);
        m.gate.open();
        write.join().unwrap();
    });
    buffered.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [b'n'; PAGE]);
}

/// The kernel fills the pages of a write, and rests before it sends the write: here for the caller's own memory, on a
/// busy machine for a processor. So a read that comes in between has the lower number.
#[test]
fn what_is_read_between_the_filling_and_the_sending_of_a_buffered_write_does_not_stay() {
    let m = Mounted::new(Transport::Dev);
    let (path, source) = (m.file("file", 16), m.file("source", 16));
    let (buffered, direct, source) = (open(&path, 0), open(&path, libc::O_DIRECT), open(&source, 0));
    source.sync_all().unwrap();
    fadvise(&source, 0, None, Advice::DontNeed).unwrap();
    let from = Map::new(&source, MapFlags::SHARED);
    m.gate.hold_reads_of(source.metadata().unwrap().ino());
    let new = [b'n'; PAGE];
    let mut bytes = [0; PAGE];
    std::thread::scope(|scope| {
        let write = scope.spawn(|| {
            let second = from.slice();
            let both = [std::io::IoSlice::new(&new), std::io::IoSlice::new(second)];
            rustix::io::pwritev(&buffered, &both, 0).unwrap()
        });
        m.gate.wait_for_read();
        let _map = Map::new(&direct, MapFlags::SHARED);
        buffered.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [b'o'; PAGE], "nothing was sent yet");
        m.gate.let_read();
        assert_eq!(write.join().unwrap(), 2 * PAGE);
    });
    buffered.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, new);
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// Returns when a thread waits in the kernel for pages.
fn sleeps(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        let (_, state) = stat.rsplit_once(") ").unwrap();
        if state.starts_with('D') {
            return;
        }
        std::thread::yield_now();
    }
}

/// A read keeps its pages locked while it waits for a place in the ring; all places belong to writes that wait for
/// these pages. One of the two has to give way.
#[test]
fn writes_that_fill_the_ring_do_not_wait_for_reads_behind_them() {
    const WRITES: usize = 64;
    let Some(_ring) = RingOn::new() else { return };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let m = Mounted::new(Transport::IoUring);
    let path = m.file("file", WRITES);
    let (direct, reader) = (open(&path, libc::O_DIRECT), open(&path, 0));
    let read_all = || {
        let mut bytes = vec![0; WRITES * PAGE];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    std::thread::scope(|scope| {
        pin(0);
        let mut writes = Aio::new(WRITES);
        m.gate.close();
        for page in 0..WRITES {
            writes.start(&direct, page);
        }
        // The first processor's ring takes this many; the other writes wait in the kernel.
        m.gate.wait_for(16);
        let beside = || {
            pin(1);
            read_all()
        };
        let old = scope.spawn(beside).join().unwrap();
        assert!(old.iter().all(|&b| b == b'o'));
        fadvise(&reader, 0, None, Advice::DontNeed).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let behind = scope.spawn(move || {
            pin(0);
            tell.send(rustix::thread::gettid()).unwrap();
            read_all()
        });
        sleeps(told.recv().unwrap());
        m.gate.open();
        writes.wait();
        behind.join().unwrap();
    });
    assert!(read_all().iter().all(|&b| b == b'n'), "what was read in between is gone");
}
