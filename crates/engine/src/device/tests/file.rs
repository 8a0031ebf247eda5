use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::super::file::transfer;
use super::super::lane::Lane;
use super::super::lock::parse_holder;
use super::super::open::patiently;
use crate::Error;
use crate::device::{AlignedBuf, Device, FileDevice, IoClass, OpenMode, create_file_device, unlock};
use crate::limits::DEVICE_BYTES_MIN;

/// Returns the way by which requests of the device are counted.
fn lane(device: &FileDevice) -> Lane<'_> {
    Lane::to(device, IoClass::Log)
}

fn create() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.pf");
    create_file_device(&path, DEVICE_BYTES_MIN).unwrap();
    (dir, path)
}

#[test]
fn what_was_written_is_read_after_reopening() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    assert_eq!(device.size_bytes(), DEVICE_BYTES_MIN);
    let end = DEVICE_BYTES_MIN - 8192;
    lane(&device).write(0, &AlignedBuf::from_bytes(&[1; 4096]), false).unwrap();
    lane(&device).write(end, &AlignedBuf::from_bytes(&[2; 8192]), true).unwrap();
    lane(&device).flush().unwrap();
    let counts = device.stats().counts();
    assert_eq!((counts.writes, counts.written_bytes, counts.flushes, counts.errors), (2, 12288, 1, 0));
    drop(device);

    let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let mut buf = AlignedBuf::scratch(8192);
    lane(&device).read(end, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 2));
    lane(&device).read(0, &mut buf).unwrap();
    assert!(buf[..4096].iter().all(|&b| b == 1) && buf[4096..].iter().all(|&b| b == 0));
    assert_eq!(device.stats().counts().read_bytes, 16384);
    assert!(matches!(lane(&device).write(0, &buf, false), Err(Error::ReadOnly(_))));
    assert_eq!(device.stats().counts().errors, 0, "the device has failed nothing");
    assert!(matches!(device.discard(0, 4096), Err(Error::ReadOnly(_))));
    device.flush().unwrap();
}

#[test]
fn a_part_is_written_at_its_place_and_nothing_beside_it() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    device.write(8192, &AlignedBuf::from_bytes(&[9; 16384]), false).unwrap();
    let mut all = AlignedBuf::zeroed(16384);
    all.chunks_exact_mut(4096).zip(1..).for_each(|(block, with)| block.fill(with));
    device.write_part(8192, &all, 4096..12288).unwrap();
    let mut read = AlignedBuf::scratch(16384);
    device.read(8192, &mut read).unwrap();
    let blocks: Vec<u8> = read.chunks_exact(4096).map(|block| block[0]).collect();
    assert_eq!(blocks, [9, 2, 3, 9]);
    assert!(matches!(device.write_part(DEVICE_BYTES_MIN - 8192, &all, 0..12288), Err(Error::Invalid(_))));
}

#[test]
fn file_systems_without_direct_io_work_too() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("pool.pf");
    create_file_device(&path, DEVICE_BYTES_MIN).unwrap();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    device.write(4096, &AlignedBuf::from_bytes(&[7; 4096]), true).unwrap();
    device.flush().unwrap();
    let mut buf = AlignedBuf::scratch(4096);
    device.read(4096, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 7));
}

#[test]
fn a_writer_shuts_everybody_out_and_is_named() {
    let (_dir, path) = create();
    let writer = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    // Some file systems have another device number for locks than for stat.
    let meta = fs::metadata(&path).unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let id = format!(" {major:02x}:{minor:02x}:{} ", meta.ino());
    let listed = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&id));
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        let Err(Error::Busy(message)) = FileDevice::open(&path, mode) else {
            panic!("{mode:?} was admitted")
        };
        let me = format!(" by process {};", std::process::id());
        assert!(message.contains("pool.pf is in use"), "{message}");
        assert!(message.contains(&me) || !listed, "{message}");
    }
    drop(writer);
    let _one = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let _two = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert!(matches!(FileDevice::open(&path, OpenMode::ReadWrite), Err(Error::Busy(_))));
}

/// A program that another thread starts at this moment has such a copy.
#[test]
fn a_lock_goes_with_its_device_whoever_has_a_copy_of_the_descriptor() {
    let (_dir, path) = create();
    let writer = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    let copy = Device::file(&writer).unwrap().try_clone_to_owned().unwrap();
    drop(writer);
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    drop(copy);
}

/// A server that is killed while its io_uring has requests under way leaves such a lock.
#[test]
fn a_lock_of_a_process_that_ended_is_waited_for() {
    let (_dir, path) = create();
    let left = fs::File::open(&path).unwrap();
    let stdin = left.try_clone().unwrap();
    let locked = Command::new("flock").args(["--exclusive", "0"]).stdin(stdin).status().unwrap();
    assert!(locked.success());
    if !super::super::lock::is_left_behind(&path) {
        eprintln!("skipped: /proc/locks does not list locks of this file system by its device number");
        return;
    }
    let unlocking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(left);
    });
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    unlocking.join().unwrap();
}

#[test]
fn a_lock_that_is_released_while_its_holder_is_looked_for_is_taken() {
    let attempts = Cell::new(0);
    let free_from = |first: u32| {
        attempts.set(0);
        let attempt = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() >= first { Ok(()) } else { Err(Error::Busy("somebody".into())) }
        };
        patiently(Duration::ZERO, attempt, || false)
    };
    assert!(free_from(1).is_ok());
    assert_eq!(attempts.get(), 1);
    assert!(free_from(2).is_ok());
    assert!(matches!(free_from(u32::MAX), Err(Error::Busy(_))));
    assert_eq!(attempts.get(), 2);
}

/// A server and its successor do this, while a holder has a copy from before the first to after the last.
#[test]
fn a_device_that_is_handed_over_stays_locked_until_it_is_unlocked() {
    let (_dir, path) = create();
    let held = FileDevice::open(&path, OpenMode::ReadWrite).unwrap().hand_over().unwrap();
    for fill in [1, 2] {
        let device = FileDevice::adopt(held.try_clone().unwrap(), &path, OpenMode::ReadWrite).unwrap();
        device.write(0, &AlignedBuf::from_bytes(&[fill; 4096]), true).unwrap();
        drop(device);
        assert!(matches!(FileDevice::open(&path, OpenMode::ReadOnly), Err(Error::Busy(_))));
    }
    unlock(&held);
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
}

#[test]
fn the_holder_is_found_among_the_locks() {
    let locks = "1: POSIX  ADVISORY  WRITE 9 fe:00:77 0 EOF\n\
                 2: FLOCK  ADVISORY  WRITE 4242 fe:00:77 0 EOF\n\
                 2: -> FLOCK  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                 3: FLOCK  ADVISORY  READ  12 fe:00:78 0 EOF\nrubbish\n4:\n";
    assert_eq!(parse_holder(locks, "fe:00:77"), Some(4242));
    assert_eq!(parse_holder(locks, "fe:00:78"), Some(12));
    assert_eq!(parse_holder(locks, "fe:00:79"), None);
}

#[test]
fn what_cannot_be_a_device_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::write(&small, vec![1; 100_000]).unwrap();
    let message = |path: &PathBuf| FileDevice::open(path, OpenMode::ReadWrite).unwrap_err().to_string();
    assert!(message(&small).contains("too small"), "{}", message(&small));
    assert!(message(&dir.path().join("none")).contains("No such file"));
    assert!(message(&dir.path().to_path_buf()).contains("is a directory"));
    assert!(message(&PathBuf::from("/dev/null")).contains("neither a block device nor a regular file"));
}

#[test]
fn creating_refuses_what_exists_and_what_does_not_fit() {
    let (dir, path) = create();
    let again = create_file_device(&path, DEVICE_BYTES_MIN);
    assert!(matches!(&again, Err(Error::Invalid(m)) if m.contains("exists already")), "{again:?}");
    assert!(path.exists());
    let other = dir.path().join("other");
    assert!(matches!(create_file_device(&other, DEVICE_BYTES_MIN - 4096), Err(Error::Invalid(_))));
    assert!(matches!(create_file_device(&other, DEVICE_BYTES_MIN + 1), Err(Error::Invalid(_))));
    // The size is more than any disc holds: it is refused, and nothing is left behind.
    let huge = create_file_device(&other, 1 << 53);
    assert!(matches!(huge, Err(Error::NoSpace(_) | Error::Io { .. })), "{huge:?}");
    assert!(!other.exists());
    assert!(create_file_device(&dir.path().join("no/such/dir"), DEVICE_BYTES_MIN).is_err());
}

#[test]
fn transfers_outside_or_unaligned_are_refused() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    let mut buf = AlignedBuf::zeroed(8192);
    for offset in [1, 512, DEVICE_BYTES_MIN - 4096, DEVICE_BYTES_MIN, u64::MAX - 4095] {
        assert!(matches!(device.read(offset, &mut buf), Err(Error::Invalid(_))), "read at {offset}");
        assert!(matches!(device.write(offset, &buf, false), Err(Error::Invalid(_))), "write at {offset}");
        assert!(matches!(device.discard(offset, 8192), Err(Error::Invalid(_))), "discard at {offset}");
    }
}

#[test]
fn many_reads_at_once_fill_each_buffer_from_its_place() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    for block in 0..200u64 {
        device.write(block * 8192, &AlignedBuf::from_bytes(&[block as u8; 8192]), false).unwrap();
    }
    for count in [0, 1, 2, 64, 65, 200] {
        let order = (0..count).map(|n| n * 77 % 200);
        let mut requests: Vec<_> =
            order.map(|block| (block * 8192, AlignedBuf::scratch(4096 << (block % 2)))).collect();
        device.read_many(&mut requests.iter_mut().collect::<Vec<_>>()).unwrap();
        for (offset, buf) in &requests {
            assert!(buf.iter().all(|&b| b == (offset / 8192) as u8));
        }
    }
    let mut outside = [(0, AlignedBuf::scratch(4096)), (DEVICE_BYTES_MIN, AlignedBuf::scratch(4096))];
    assert!(matches!(device.read_many(&mut outside.iter_mut().collect::<Vec<_>>()), Err(Error::Invalid(_))));
}

#[test]
fn one_bad_read_of_many_is_the_error() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let mut requests: Vec<_> = (0..3).map(|n| (n << 20, AlignedBuf::scratch(4096))).collect();
    let error = device.read_many(&mut requests.iter_mut().collect::<Vec<_>>()).unwrap_err();
    assert!(matches!(&error, Error::Io { op: "read", offset: 0x10_0000, .. }), "{error:?}");
    device.read_many(&mut [&mut requests[0]]).unwrap();
}

#[test]
fn a_device_that_shrank_is_an_error_not_a_hang() {
    let (_dir, path) = create();
    let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let error = lane(&device).read(2 << 20, &mut AlignedBuf::scratch(4096)).unwrap_err();
    assert!(matches!(&error, Error::Io { op: "read", .. }), "{error:?}");
    assert_eq!(device.stats().counts().errors, 1);
}

#[test]
fn discard_gives_back_space_of_sparse_files_alone() {
    let (dir, full) = create();
    let device = FileDevice::open(&full, OpenMode::ReadWrite).unwrap();
    let blocks = || fs::metadata(&full).unwrap().blocks();
    let before = blocks();
    lane(&device).discard(4 << 20, 4 << 20).unwrap();
    assert_eq!((blocks(), device.stats().counts().discards), (before, 0));

    let sparse = dir.path().join("sparse");
    fs::File::create(&sparse).unwrap().set_len(DEVICE_BYTES_MIN).unwrap();
    let device = FileDevice::open(&sparse, OpenMode::ReadWrite).unwrap();
    device.write(4 << 20, &AlignedBuf::from_bytes(&[1; 65536]), true).unwrap();
    let written = fs::metadata(&sparse).unwrap().blocks();
    lane(&device).discard(4 << 20, 65536).unwrap();
    assert!(fs::metadata(&sparse).unwrap().blocks() < written);
    assert_eq!(device.stats().counts().discarded_bytes, 65536);
}

#[test]
fn short_and_interrupted_transfers_go_on_from_a_block() {
    let mut calls = Vec::new();
    let mut answers = vec![Ok(5000), Err(io::ErrorKind::Interrupted.into()), Ok(4096), Ok(4096)].into_iter();
    transfer(12288, |at| {
        calls.push(at);
        answers.next().unwrap()
    })
    .unwrap();
    assert_eq!(calls, [0, 4096, 4096, 8192]);

    for stuck in [0, 100, 4095] {
        let error = transfer(8192, |_| Ok(stuck)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
    // A kernel that claims to have moved more than was asked for.
    transfer(8192, |_| Ok(usize::MAX)).unwrap();
}
