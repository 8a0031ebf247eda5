//! Data of files through the kernel, on a file system in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{Aligned, Mount, options, pattern};
use pagefold_fs::FsOptions;
use pagefold_fuse::Transport;
use pagefold_fuse::protocol::Opcode;
use rustix::fs::{FallocateFlags, SeekFrom as Seek};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

fn open(path: &std::path::Path, flags: i32) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

#[test]
fn write_read_append_truncate() {
    let m = Mount::new();
    let path = m.path("file");
    let data = pattern(1, 3_000_001);
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"and more").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 3_000_009);
    assert!(fs::read(&path).unwrap().ends_with(b"and more"));
    file.set_len(10).unwrap();
    file.set_len(20).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [&data[..10], &[0; 10]].concat());
    let exclusive = OpenOptions::new().write(true).create_new(true).open(&path);
    assert_eq!(exclusive.unwrap_err().raw_os_error(), Some(libc::EEXIST));
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn concurrent_appends_do_not_overlap() {
    let m = Mount::new();
    let path = m.path("log");
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..100 {
                    file.write_all(&[b'a' + writer; 100]).unwrap();
                }
            });
        }
    });
    let data = fs::read(&path).unwrap();
    assert_eq!(data.len(), 4 * 100 * 100);
    assert!(data.chunks(100).all(|line| line.iter().all(|&b| b == line[0])));
}

#[test]
fn a_write_of_one_mebibyte_is_one_request() {
    let m = Mount::new();
    let file = open(&m.path("file"), 0);
    let data = pattern(2, 1 << 20);
    for offset in [0, 1, 4095, 8192 + 17] {
        let before = m.requests(Opcode::Write);
        assert_eq!(file.write_at(&data, offset).unwrap(), 1 << 20);
        assert_eq!(m.requests(Opcode::Write) - before, 1, "buffered write at {offset}");
    }
    // There is one exception (docs/decisions/0003): if a buffered write begins within a page that the kernel has not
    // cached, the rest of that page is a request of its own.
    let fresh = open(&m.path("fresh"), 0);
    let before = m.requests(Opcode::Write);
    assert_eq!(fresh.write_at(&data, 17).unwrap(), 1 << 20);
    assert_eq!(m.requests(Opcode::Write) - before, 2, "a fresh file from byte 17 on");
    let before = m.requests(Opcode::Write);
    assert_eq!(fresh.write_at(&data[..100_000], 8 << 20).unwrap(), 100_000);
    assert_eq!(m.requests(Opcode::Write) - before, 1, "fresh pages from a page's start on");
    let direct = open(&m.path("file"), libc::O_DIRECT);
    let aligned = Aligned::of(&data);
    let before = m.requests(Opcode::Write);
    assert_eq!(direct.write_at(&aligned, 0).unwrap(), 1 << 20);
    assert_eq!(m.requests(Opcode::Write) - before, 1, "direct write");
    assert_eq!(m.session.agreement().atomic_write_bytes, 1 << 20);
}

#[test]
fn direct_io_aligned_and_not_agrees_with_the_page_cache() {
    let m = Mount::new();
    let path = m.path("file");
    let mut expected = pattern(3, 200_000);
    fs::write(&path, &expected).unwrap();
    let buffered = open(&path, 0);
    let direct = open(&path, libc::O_DIRECT);
    let mut back = vec![0; 200_000];
    for (offset, len, seed) in [(0, 8192, 4), (8192, 16384, 5), (511, 1000, 6), (100_001, 70_003, 7)] {
        // The cache holds the old pages; a direct write must be seen through it.
        buffered.read_exact_at(&mut back, 0).unwrap();
        let data = pattern(seed, len);
        assert_eq!(direct.write_at(&data, offset).unwrap(), len);
        expected[offset as usize..][..len].copy_from_slice(&data);
        buffered.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back, expected, "buffered read after direct write at {offset}");
        // Buffered writes must be seen by direct reads, too.
        let data = pattern(seed + 100, len);
        buffered.write_all_at(&data, offset).unwrap();
        expected[offset as usize..][..len].copy_from_slice(&data);
        let mut aligned = Aligned::new(200_000);
        direct.read_exact_at(&mut aligned, 0).unwrap();
        assert_eq!(&*aligned, &expected, "direct read after buffered write at {offset}");
    }
    let mut odd = vec![0; 12_345];
    direct.read_exact_at(&mut odd, 54_321).unwrap();
    assert_eq!(odd, expected[54_321..][..12_345]);
    assert_eq!(direct.read_at(&mut odd, 199_990).unwrap(), 10);
    assert_eq!(direct.read_at(&mut odd, 300_000).unwrap(), 0);
}

#[test]
fn shared_and_private_mappings() {
    for flags in [0, libc::O_DIRECT] {
        let m = Mount::new();
        let path = m.path("file");
        fs::write(&path, pattern(8, 64 << 10)).unwrap();
        let file = open(&path, flags);
        let map = |how| {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    64 << 10,
                    ProtFlags::READ | ProtFlags::WRITE,
                    how,
                    &file,
                    0,
                )
            };
            start.unwrap().cast::<u8>()
        };
        let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
        // SAFETY: both mappings have 64 KiB and stay until the end of the test.
        let (shared, private) = unsafe {
            (
                std::slice::from_raw_parts_mut(shared, 64 << 10),
                std::slice::from_raw_parts_mut(private, 64 << 10),
            )
        };
        assert_eq!(shared, pattern(8, 64 << 10));
        private[100] = 1;
        shared[5000..5005].copy_from_slice(b"store");
        // SAFETY: the range is the mapping's.
        unsafe { rustix::mm::msync(shared.as_mut_ptr().cast(), 64 << 10, MsyncFlags::SYNC) }.unwrap();
        let mut expected = pattern(8, 64 << 10);
        expected[5000..5005].copy_from_slice(b"store");
        assert_eq!(fs::read(&path).unwrap(), expected);
        let mut stored = vec![0; 64 << 10];
        let ino = pagefold_fs::Ino(file.metadata().unwrap().ino());
        assert_eq!(m.fs.read(ino, 0, &mut stored).unwrap(), 64 << 10);
        assert_eq!(stored, expected, "msync reached the file system");
        open(&path, 0).write_all_at(b"write", 6000).unwrap();
        assert_eq!(&shared[6000..6005], b"write", "a mapping sees later writes");
        // SAFETY: nothing uses the mappings any longer.
        unsafe {
            rustix::mm::munmap(shared.as_mut_ptr().cast(), 64 << 10).unwrap();
            rustix::mm::munmap(private.as_mut_ptr().cast(), 64 << 10).unwrap();
        }
    }
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    let m = Mount::new();
    let aligned = Aligned::of(&pattern(9, 8192));
    for (name, flags, syncs) in [
        ("plain", 0, false),
        ("dsync", libc::O_DSYNC, true),
        ("sync", libc::O_SYNC, true),
        ("direct", libc::O_DIRECT, false),
        ("direct-dsync", libc::O_DIRECT | libc::O_DSYNC, true),
    ] {
        let file = open(&m.path(name), flags);
        file.write_all_at(&aligned, 0).unwrap();
        let (before, fsyncs) = (m.dataset.syncs(), m.requests(Opcode::Fsync));
        for round in 0..10 {
            file.write_all_at(&aligned, round * 8192).unwrap();
        }
        let (after, fsyncs) = (m.dataset.syncs() - before, m.requests(Opcode::Fsync) - fsyncs);
        assert_eq!(after, if syncs { 10 } else { 0 }, "{name}, of which {fsyncs} by FSYNC");
    }
    // One write is synchronous; the file is not.
    let file = open(&m.path("plain"), 0);
    let before = m.dataset.syncs();
    let written =
        rustix::io::pwritev2(&file, &[std::io::IoSlice::new(b"x")], 0, rustix::io::ReadWriteFlags::DSYNC);
    assert_eq!(written, Ok(1));
    assert_eq!(m.dataset.syncs() - before, 1);
    // O_DIRECT is switched on, or off, after opening.
    for (name, open_with, then) in [("late", 0, libc::O_DIRECT), ("former", libc::O_DIRECT, 0)] {
        let file = open(&m.path(name), open_with | libc::O_DSYNC);
        let flags = rustix::fs::OFlags::from_bits_retain(then.cast_unsigned());
        rustix::fs::fcntl_setfl(&file, flags).unwrap();
        let before = m.dataset.syncs();
        file.write_all_at(&aligned, 0).unwrap();
        assert!(m.dataset.syncs() > before, "{name}");
    }
}

#[test]
fn fsync_reaches_the_dataset_for_files_and_directories() {
    let m = Mount::new();
    let file = open(&m.path("file"), 0);
    (&file).write_all(b"x").unwrap();
    let mut syncs = m.dataset.syncs();
    let mut one_more = |what| {
        assert_eq!(m.dataset.syncs(), syncs + 1, "{what}");
        syncs += 1;
    };
    file.sync_all().unwrap();
    one_more("fsync");
    file.sync_data().unwrap();
    one_more("fdatasync");
    let dir = File::open(m.dir()).unwrap();
    dir.sync_all().unwrap();
    one_more("fsync of a directory");
    dir.sync_data().unwrap();
    one_more("fdatasync of a directory");
}

#[test]
fn holes_punching_zeroing_and_preallocation() {
    let m = Mount::new();
    let file = open(&m.path("file"), 0);
    file.write_all_at(&pattern(10, 1 << 20), 0).unwrap();
    let allocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 256 << 10, 256 << 10).unwrap();
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(0)).unwrap(), 256 << 10);
    assert_eq!(rustix::fs::seek(&file, Seek::Data(256 << 10)).unwrap(), 512 << 10);
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(512 << 10)).unwrap(), 1 << 20);
    assert_eq!(rustix::fs::seek(&file, Seek::Data(1 << 20)), Err(rustix::io::Errno::NXIO));
    let mut back = vec![1; 4096];
    file.read_exact_at(&mut back, 300 << 10).unwrap();
    assert!(back.iter().all(|&b| b == 0));
    allocate(FallocateFlags::ZERO_RANGE, 10, 100).unwrap();
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back[..10], pattern(10, 10));
    assert!(back[10..110].iter().all(|&b| b == 0));
    assert_eq!(back[110..], pattern(10, 4096)[110..]);
    allocate(FallocateFlags::empty(), 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    allocate(FallocateFlags::KEEP_SIZE, 2 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
}

#[test]
fn copy_file_range_copies() {
    let m = Mount::new();
    let (from, to) = (open(&m.path("from"), 0), open(&m.path("to"), 0));
    let data = pattern(11, 500_000);
    from.write_all_at(&data, 0).unwrap();
    to.write_all_at(&pattern(12, 100), 0).unwrap();
    let reads = m.requests(Opcode::Read);
    let (mut at, mut into) = (1000, 50);
    while at < 500_000 {
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 500_000).unwrap();
        assert!(copied > 0);
    }
    assert_eq!(m.requests(Opcode::Read), reads, "the kernel did not copy by reading");
    assert_eq!(fs::read(m.path("to")).unwrap(), [&pattern(12, 100)[..50], &data[1000..]].concat());
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let m = Mount::new();
    let path = m.path("file");
    let mut file = open(&path, 0);
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b", and growing").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here, and growing");
    let ino = pagefold_fs::Ino(file.metadata().unwrap().ino());
    drop(file);
    // RELEASE and FORGET come after close has returned.
    let gone = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        while m.fs.reap(1000).unwrap() {}
        m.fs.getattr(ino).is_err()
    });
    assert!(gone, "the file goes with its last descriptor");
}

#[test]
fn a_temporary_file_gets_its_name_later() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let m = Mount::new();
    let file = rustix::fs::open(m.dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640)).unwrap();
    let file = File::from(file);
    file.write_all_at(b"unseen", 0).unwrap();
    assert_eq!(fs::read_dir(m.dir()).unwrap().count(), 0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    rustix::fs::linkat(CWD, format!("/proc/self/fd/{fd}"), CWD, m.path("seen"), AtFlags::SYMLINK_FOLLOW)
        .unwrap();
    assert_eq!(fs::read(m.path("seen")).unwrap(), b"unseen");
    assert_eq!(fs::metadata(m.path("seen")).unwrap().nlink(), 1);
}

#[test]
fn cached_pages_survive_closing_and_opening() {
    let m = Mount::new();
    let path = m.path("file");
    fs::write(&path, pattern(13, 1 << 20)).unwrap();
    fs::read(&path).unwrap();
    let reads = m.requests(Opcode::Read);
    for _ in 0..5 {
        assert_eq!(fs::read(&path).unwrap(), pattern(13, 1 << 20));
    }
    assert_eq!(m.requests(Opcode::Read), reads);
}

#[test]
fn large_sequential_reads_come_as_large_requests() {
    let m = Mount::new();
    let path = m.path("file");
    fs::write(&path, pattern(14, 16 << 20)).unwrap();
    let file = open(&path, 0);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(fs::read(&path).unwrap(), pattern(14, 16 << 20));
    let reads = m.requests(Opcode::Read);
    assert!(reads <= 40, "{reads} requests for 16 MiB");
}

#[test]
fn a_full_pool_refuses_writes_and_lets_delete() {
    let m = Mount::with(&options(Transport::Dev), FsOptions::default(), 8 << 20);
    for round in 0..30 {
        let mut file = File::create(m.path("big")).unwrap();
        let error = (0..).find_map(|i| file.write_all(&pattern(i, 256 << 10)).err()).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        drop(file);
        fs::remove_file(m.path("big")).unwrap();
        // Nobody frees in the background: the write does it that finds no space.
        fs::write(m.path("small"), pattern(1, 7 << 20))
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        fs::remove_file(m.path("small")).unwrap();
    }
}

#[test]
fn many_threads_on_many_files() {
    let m = Mount::new();
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let m = &m;
            scope.spawn(move || {
                for round in 0..20 {
                    let path = m.path(&format!("{thread}-{round}"));
                    let data = pattern(thread * 1000 + round, 50_000);
                    fs::write(&path, &data).unwrap();
                    File::open(&path).unwrap().sync_all().unwrap();
                    assert_eq!(fs::read(&path).unwrap(), data);
                    if round % 2 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(m.dir()).unwrap().count(), 160);
}
