//! Set-id bits and capabilities: when a change takes them away, every call sees that at once, however often the kernel
//! has seen them before. In essence the public kernel tests generic/355, 683, 684 and 685.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{Aligned, Mount, pattern};
use pagefold_fuse::protocol::Opcode;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, StatxFlags, Uid, XattrFlags, setxattr, statx};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A user who owns nothing here.
const STRANGER: u32 = 1003;
/// `security.capability`: version 2, CAP_NET_RAW, effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Runs `call` as a user without rights, on a thread of its own.
fn as_stranger<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(None, Some(Gid::from_raw(STRANGER)), None).unwrap();
            rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(STRANGER)), None).unwrap();
            call()
        });
        thread.join().unwrap()
    })
}

/// Returns the permissions, for which alone it asks: the kernel may answer from its cache.
fn mode_of(path: &Path) -> u16 {
    statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap().stx_mode & 0o7777
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Ways to change the contents of a file.
const CHANGES: [&str; 9] =
    ["write", "direct", "append", "truncate", "o_trunc", "allocate", "punch", "zero", "copy"];

fn change(how: &str, path: &Path, source: &Path) {
    let keep = FallocateFlags::KEEP_SIZE;
    let allocate = |mode| rustix::fs::fallocate(open(path, 0), mode, 4096, 8192).unwrap();
    match how {
        "write" => open(path, 0).write_all_at(b"other", 100).unwrap(),
        "direct" => open(path, libc::O_DIRECT).write_all_at(&Aligned::of(&pattern(2, 4096)), 4096).unwrap(),
        "append" => {
            use std::io::Write;
            OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
        }
        "truncate" => open(path, 0).set_len(1000).unwrap(),
        "o_trunc" => drop(open(path, libc::O_TRUNC)),
        "allocate" => allocate(FallocateFlags::empty()),
        "punch" => allocate(FallocateFlags::PUNCH_HOLE | keep),
        "zero" => allocate(FallocateFlags::ZERO_RANGE),
        _ => {
            let (mut from, mut to) = (0, 8192);
            let (source, target) = (File::open(source).unwrap(), open(path, 0));
            let copied = rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), 4096);
            assert_eq!(copied.unwrap(), 4096);
        }
    }
}

#[test]
fn a_change_by_a_stranger_is_seen_in_the_mode_at_once() {
    let m = Mount::new();
    let (path, link, source) = (m.path("file"), m.path("link"), m.path("source"));
    fs::write(&path, pattern(1, 40_000)).unwrap();
    fs::write(&source, pattern(2, 40_000)).unwrap();
    fs::hard_link(&path, &link).unwrap();
    // If the group may not execute, set-group-ID is no privilege and stays (see docs/TESTING.md).
    for (set, left) in [(0o6777, 0o777), (0o4777, 0o777), (0o2777, 0o777), (0o6676, 0o676), (0o6666, 0o2666)]
    {
        for how in CHANGES {
            fs::set_permissions(&path, Permissions::from_mode(set)).unwrap();
            assert_eq!(u32::from(mode_of(&link)), set, "before {how}");
            fs::metadata(&path).unwrap();
            as_stranger(|| change(how, &link, &source));
            assert_eq!(mode_of(&path), left, "{set:o} after {how} by a stranger");
            assert_eq!(fs::metadata(&link).unwrap().mode() & 0o7777, u32::from(left), "{set:o} after {how}");
        }
    }
    for how in CHANGES {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        change(how, &path, &source);
        assert_eq!(mode_of(&link), 0o6777, "after {how} by root");
    }
    // A change of the owner takes the bits away, whoever asks for it.
    chown(&path, Some(STRANGER), None).unwrap();
    assert_eq!(mode_of(&link), 0o777);
}

/// A set-user-ID bit is set while the kernel has cached the mode without it: the kernel does not keep the old mode
/// afterwards.
#[test]
fn a_bit_that_comes_later_is_not_believed_either() {
    let m = Mount::new();
    let path = m.path("file");
    fs::write(&path, pattern(1, 9000)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let file = as_stranger(|| open(&path, 0));
    for _ in 0..10 {
        assert_eq!(mode_of(&path), 0o777);
        fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
        assert_eq!(mode_of(&path), 0o4777);
        as_stranger(|| file.write_all_at(b"other", 0).unwrap());
    }
}

#[test]
fn a_program_that_a_stranger_has_written_to_runs_as_who_starts_it() {
    let m = Mount::new();
    let path = m.path("program");
    fs::copy("/usr/bin/id", &path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
    let runs_as = || {
        let output = as_stranger(|| Command::new(&path).arg("-u").output().unwrap());
        String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
    };
    assert_eq!(runs_as(), 0);
    as_stranger(|| open(&path, 0).write_all_at(b"\x7fELF", 0).unwrap());
    assert_eq!(runs_as(), STRANGER);
    fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
    assert_eq!(runs_as(), 0);
    as_stranger(|| rustix::fs::fallocate(open(&path, 0), FallocateFlags::KEEP_SIZE, 0, 100).unwrap());
    assert_eq!(runs_as(), STRANGER);
}

/// Attributes of other files are cached as before: the kernel asks no more often.
#[test]
fn only_files_with_set_id_bits_or_capabilities_are_asked_for_again() {
    const TIMES: u64 = 500;
    let m = Mount::new();
    let asked = |name: &str| {
        let before = m.requests(Opcode::Getattr);
        for _ in 0..TIMES {
            mode_of(&m.path(name));
        }
        m.requests(Opcode::Getattr) - before
    };
    for (name, mode) in [("plain", 0o777), ("suid", 0o4755), ("sgid", 0o2755), ("capable", 0o755)] {
        fs::write(m.path(name), b"data").unwrap();
        fs::set_permissions(m.path(name), Permissions::from_mode(mode)).unwrap();
    }
    setxattr(m.path("capable"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    fs::create_dir(m.path("directory")).unwrap();
    fs::set_permissions(m.path("directory"), Permissions::from_mode(0o2755)).unwrap();
    // Attributes of a file that changed within the last minute are cached for a second, which may pass a few times.
    assert!(asked("plain") <= TIMES / 10);
    assert!(asked("directory") <= TIMES / 10);
    // The first answer may still be the one from before the capabilities were set.
    for name in ["suid", "sgid", "capable"] {
        fs::metadata(m.path(name)).unwrap();
        fs::set_permissions(m.path(name), fs::metadata(m.path(name)).unwrap().permissions()).unwrap();
        assert_eq!(asked(name), TIMES, "{name}");
    }
    // Without set-id bits, attributes are cached again.
    fs::set_permissions(m.path("suid"), Permissions::from_mode(0o755)).unwrap();
    assert!(asked("suid") <= TIMES / 10);
}
