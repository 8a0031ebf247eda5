//! The memory that a server takes for its mounts: buffers of requests, and inodes that the kernel knows.
//!
//! These tests are a program of their own, because the memory of buffers is counted for the whole process.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Aligned, Mount, RingOn, options, pattern};
use pagefold_engine::memory::Gauge;
use pagefold_fs::FsOptions;
use pagefold_fuse::limits::{
    DEVICE_READERS_MAX, KEPT_BYTES, KEPT_SMALL_BYTES, PAYLOAD_BYTES, RING_DEPTH_MAX, RING_IDLE,
};
use pagefold_fuse::null::NullServer;
use pagefold_fuse::operation::Operation;
use pagefold_fuse::protocol::StatfsOut;
use pagefold_fuse::{Blocking, Fetching, Handler, MountOptions, Request, Session, Transport, request_bytes};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Number of requests under way at a time: together they take far more memory than is kept.
const THREADS: usize = 48;

/// Keeps other tests from running at the same time, because all memory is counted together.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes and reads a mebibyte at a time on many threads, three times over, and compares.
fn large_requests(m: &Mount) {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let path = m.path("large");
    let file = File::options().read(true).write(true).create(true).custom_flags(direct).open(path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                for round in 0..3u64 {
                    let data = Aligned::of(&pattern(thread as u64 * 10 + round + 1, MIB));
                    let at = (thread * MIB) as u64;
                    file.write_all_at(&data, at).unwrap();
                    let mut found = Aligned::new(MIB);
                    file.read_exact_at(&mut found, at).unwrap();
                    assert!(found[..] == data[..], "mebibyte {thread}, round {round}");
                }
            });
        }
    });
}

/// Waits until something has happened by itself.
fn soon(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn buffers_of_all_mounts_keep_little_over_dev_fuse() {
    let _alone = alone();
    let mounts = [Mount::new(), Mount::new(), Mount::new()];
    mounts.iter().for_each(large_requests);
    // Threads that read may have begun to while there was room, with memory that an earlier request touched.
    let readers = (mounts.len() * DEVICE_READERS_MAX * PAYLOAD_BYTES) as u64;
    soon("the end of the last requests", || request_bytes() <= KEPT_BYTES + readers);
    drop(mounts);
    soon("the end of all buffers", || request_bytes() == 0);
}

#[test]
fn buffers_of_all_mounts_keep_little_over_the_ring() {
    let _alone = alone();
    let Some(_on) = RingOn::new() else { return };
    let ring = || Mount::with(&options(Transport::IoUring), FsOptions::default(), u64::MAX);
    let mounts = [ring(), ring(), ring()];
    mounts.iter().for_each(large_requests);
    let entries = mounts.len() * std::thread::available_parallelism().unwrap().get() * RING_DEPTH_MAX;
    let small = (entries * KEPT_SMALL_BYTES) as u64;
    soon("what is too much", || request_bytes() <= KEPT_BYTES + small);
    // Then no requests come for longer than rings wait.
    let pages = (entries * 4096) as u64;
    soon("what rings give back that do nothing", || {
        request_bytes() <= pages + (DEVICE_READERS_MAX * MIB) as u64
    });
    assert!(RING_IDLE < Duration::from_secs(60), "or the wait above tells nothing");
    // The mounts answer as before.
    mounts.iter().for_each(large_requests);
}

/// Files that the kernel knows but that nobody has open take no memory of the server. If they are unlinked meanwhile,
/// they stay as long as the kernel refers to them.
#[test]
fn the_kernel_is_asked_whether_it_has_what_was_unlinked() {
    let gauge = Arc::new(Gauge::new(200 << 10));
    let fs_options = FsOptions { inodes: Some(Arc::clone(&gauge)), ..FsOptions::default() };
    let m = Mount::with(&options(Transport::Dev), fs_options, u64::MAX);
    let data = pattern(3, 30_000);
    fs::write(m.path("known"), &data).unwrap();
    fs::write(m.path("open"), &data).unwrap();
    fs::write(m.path("nobody"), &data).unwrap();
    // The kernel refers to this one by its descriptor, but the server has not opened it: O_PATH opens nothing.
    let known = File::options().read(true).custom_flags(libc::O_PATH).open(m.path("known")).unwrap();
    let open = File::open(m.path("open")).unwrap();
    ["known", "open", "nobody"].iter().for_each(|name| fs::remove_file(m.path(name)).unwrap());
    let pages = m.dataset.pages();
    for i in 0..3000 {
        fs::write(m.path(&format!("other-{i}")), "").unwrap();
    }
    for i in 0..3000 {
        assert_eq!(fs::metadata(m.path(&format!("other-{i}"))).unwrap().len(), 0);
    }
    assert!(gauge.bytes() < 2 * gauge.bound_bytes(), "{} bytes", gauge.bytes());
    soon("the page of the file that nobody has", || {
        while m.fs.reap(1000).unwrap() {}
        m.dataset.pages() < pages
    });
    let left = m.dataset.pages();
    assert_eq!((pages, left), (6, 4), "two files of two pages");
    let again = fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&known))).unwrap();
    assert!(again == data);
    let mut found = vec![0; data.len()];
    open.read_exact_at(&mut found, 0).unwrap();
    assert!(found == data);
    drop((known, open));
    soon("the pages of the others", || {
        while m.fs.reap(1000).unwrap() {}
        m.dataset.pages() == 0
    });
}

/// Answers no STATFS before it is told to.
struct Holding {
    null: NullServer,
    held: Mutex<Vec<Request>>,
}

impl Handler for Holding {
    fn handle(&self, mut request: Request, blocking: &Blocking) -> Option<Fetching> {
        let Ok(Operation::StatFs) = request.parse() else { return self.null.handle(request, blocking) };
        request.park();
        self.held.lock().unwrap().push(request);
        None
    }
}

/// Any number of programs may wait for the end of a commit at the same time. A server that may be followed by another
/// reads requests into memory that is resident as a whole.
#[test]
fn requests_that_wait_for_a_commit_keep_little() {
    const WAITING: usize = 200;
    let _alone = alone();
    let handler = Arc::new(Holding { null: NullServer::new(4096), held: Mutex::default() });
    let dir = common::temp_dir();
    let mount = MountOptions { takeover: true, ..options(Transport::Dev) };
    let session = Session::mount_handler(Arc::clone(&handler) as _, dir.path(), &mount).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| rustix::fs::statfs(dir.path()).unwrap());
        }
        soon("all requests", || handler.held.lock().unwrap().len() == WAITING);
        let bytes = request_bytes();
        let space = StatfsOut { bsize: 4096, frsize: 4096, ..StatfsOut::default() };
        handler.held.lock().unwrap().drain(..).for_each(|request| request.answer(&space));
        assert!(bytes < (WAITING * PAYLOAD_BYTES / 4) as u64, "{bytes} bytes");
    });
    session.unmount(false).unwrap();
    session.wait();
    drop(session);
    soon("the end of all buffers", || request_bytes() == 0);
}

/// Returns the system calls, by number, in which the threads on /dev/fuse are; `None` for one that runs.
fn calls_of_readers() -> Vec<Option<i64>> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let reads = |name: &String| name.starts_with("pf-fuse-");
    let readers = threads.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| reads(&name)));
    let call = |task: std::path::PathBuf| {
        fs::read_to_string(task.join("syscall")).ok()?.split(' ').next()?.parse().ok()
    };
    readers.map(call).collect()
}

/// Lets the process map this many more bytes; returns the bound that it had before.
fn leave_room(bytes: u64) -> rustix::process::Rlimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::As);
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + bytes), ..before }).unwrap();
    before
}

/// A kernel that commits no more memory than it has (`vm.overcommit_memory=2`) refuses mappings now and then.
#[test]
fn a_lack_of_memory_ends_no_mount() {
    let _alone = alone();
    let handler = Arc::new(Holding { null: NullServer::new(4096), held: Mutex::default() });
    let dir = common::temp_dir();
    let session =
        Session::mount_handler(Arc::clone(&handler) as _, dir.path(), &options(Transport::Dev)).unwrap();
    let held = || handler.held.lock().unwrap().len();
    let ask = || rustix::fs::statfs(dir.path()).map(drop);
    std::thread::scope(|scope| {
        let (go, told) = std::sync::mpsc::channel();
        let first = scope.spawn(ask);
        let second = scope.spawn(move || {
            told.recv().unwrap();
            ask()
        });
        let in_calls = |calls: &[i64]| {
            calls_of_readers().iter().all(|call| call.is_some_and(|call| calls.contains(&call)))
        };
        soon("the first request", || held() == 1 && in_calls(&[libc::SYS_read]));
        let before = leave_room(MIB as u64 / 2);
        go.send(()).unwrap();
        soon("the second request", || held() == 2);
        soon("its thread", || in_calls(&[libc::SYS_read, libc::SYS_clock_nanosleep]));
        rustix::process::setrlimit(rustix::process::Resource::As, before).unwrap();
        let space = StatfsOut { bsize: 4096, frsize: 4096, ..StatfsOut::default() };
        handler.held.lock().unwrap().drain(..).for_each(|request| request.answer(&space));
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(()), Ok(())));
    });
    session.unmount(false).unwrap();
    session.wait();
}
