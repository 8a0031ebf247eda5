//! Direct writes that no caller waits for, beside readers through the page cache: once such a write has completed,
//! everybody sees it. In essence the public kernel test generic/451, but with the race made to happen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod rig;

use std::fs::{File, OpenOptions};

use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use common::{Aligned, RingOn};

use pagefold_fuse::Transport;
use pagefold_fuse::limits::{CACHE_NOTES, WAIT_THREADS_MAX};
use pagefold_fuse::protocol::Opcode;
use rig::{Aio, Map, Mounted, Writes};
use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};
use rustix::mm::MapFlags;
use rustix::thread::{CpuSet, sched_setaffinity};

const PAGE: usize = 4096;

fn open(path: &std::path::Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
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

/// Of thousands of other files that were used directly nothing is left to a buffered one: a database that creates and
/// drops tables for days makes no write of its other files wait.
#[test]
fn direct_uses_of_other_files_cost_a_buffered_one_nothing() {
    let m = Mounted::new(Transport::Dev);
    for n in 0..3 * CACHE_NOTES {
        let path = m.session.dir().join(format!("direct-{n}"));
        let direct =
            File::options().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        drop(direct);
        std::fs::remove_file(&path).unwrap();
    }
    let path = m.file("buffered", 16);
    let buffered = open(&path, 0);
    for round in 0..16 {
        fadvise(&buffered, 0, None, Advice::DontNeed).unwrap();
        buffered.read_exact_at(&mut [0; PAGE], (round * PAGE) as u64).unwrap();
        buffered.write_all_at(&[b'n'; 100], (round * PAGE) as u64).unwrap();
    }
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

/// A direct write waits for the kernel to drop a page that a buffered write keeps locked, which needs a thread of those
/// that wait for room. All others of these are busy.
#[test]
fn a_write_whose_pages_are_to_be_dropped_takes_no_thread_from_the_write_that_has_them() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let Some(_ring) = RingOn::new() else { return };
    let m = Mounted::new(Transport::IoUring);
    let path = m.file("file", 16);
    let (direct, buffered) = (open(&path, libc::O_DIRECT), open(&path, 0));
    let mut bytes = [0; PAGE];
    m.gate.close();
    let mut writes = Writes::new(1);
    writes.start(&direct, 3);
    m.gate.wait_for(1);
    buffered.read_exact_at(&mut bytes, 3 * PAGE as u64).unwrap();
    fadvise(&buffered, 0, None, Advice::DontNeed).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let answered = std::thread::scope(|scope| {
        let file = &buffered;
        scope.spawn(move || {
            file.write_all_at(b"b", 3 * PAGE as u64).unwrap();
            tell.send(()).unwrap();
        });
        m.gate.wait_for(2);
        let busy = m.gate.keep_busy(WAIT_THREADS_MAX - 1);
        m.gate.let_write();
        while m.gate.inner.drops() == 0 {
            std::thread::yield_now();
        }
        m.gate.let_write();
        let answered = told.recv_timeout(PATIENCE);
        drop(busy);
        writes.wait();
        answered
    });
    assert_eq!(answered, Ok(()), "the write that has the page got no thread");
    buffered.read_exact_at(&mut bytes, 3 * PAGE as u64).unwrap();
    assert_eq!((bytes[0], bytes[1], bytes[PAGE - 1]), (b'b', b'n', b'n'));
}
