//! Names, attributes and permissions through the kernel, on a file system in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::Mount;
use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, XattrFlags};
use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65534;

/// Runs a shell script as a user without rights; returns true if it succeeded.
fn as_nobody(dir: &Path, script: &str) -> bool {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .uid(NOBODY)
        .gid(NOBODY)
        .stderr(std::process::Stdio::null());
    command.status().unwrap().success()
}

/// Returns the output of a program that must succeed.
fn run(program: &str, arguments: &[&str], dir: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(dir).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed (Debian package acl): {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rename_replaces_exchanges_and_refuses() {
    let m = Mount::new();
    fs::write(m.path("a"), "A").unwrap();
    fs::write(m.path("b"), "B").unwrap();
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, m.path(from), CWD, m.path(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(m.path("a")).unwrap(), fs::read(m.path("b")).unwrap()),
        (b"B".to_vec(), b"A".to_vec())
    );
    assert_eq!(rename("a", "c", RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
    rename("a", "b", RenameFlags::empty()).unwrap();
    assert!(!m.path("a").exists());
    assert_eq!(fs::read(m.path("b")).unwrap(), b"B");
    fs::create_dir_all(m.path("x/y")).unwrap();
    rename("b", "x/y/b", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::read(m.path("x/y/b")).unwrap(), b"B");
    assert_eq!(rename("x", "x/y/x", RenameFlags::empty()), Err(rustix::io::Errno::INVAL));
    fs::create_dir(m.path("empty")).unwrap();
    fs::rename(m.path("x"), m.path("empty")).unwrap();
    assert!(m.path("empty/y/b").exists());
}

#[test]
fn links_hard_and_symbolic() {
    let m = Mount::new();
    fs::write(m.path("file"), "text").unwrap();
    fs::hard_link(m.path("file"), m.path("other")).unwrap();
    assert_eq!(fs::metadata(m.path("file")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(m.path("file")).unwrap().ino(), fs::metadata(m.path("other")).unwrap().ino());
    fs::remove_file(m.path("file")).unwrap();
    assert_eq!(fs::read(m.path("other")).unwrap(), b"text");
    assert_eq!(fs::metadata(m.path("other")).unwrap().nlink(), 1);
    symlink("other", m.path("soft")).unwrap();
    assert_eq!(fs::read_link(m.path("soft")).unwrap(), Path::new("other"));
    assert_eq!(fs::read(m.path("soft")).unwrap(), b"text");
    let long = "x/".repeat(2000);
    symlink(&long, m.path("long")).unwrap();
    assert_eq!(fs::read_link(m.path("long")).unwrap(), Path::new(&long));
    assert!(fs::hard_link(m.dir(), m.path("dir")).is_err());
}

#[test]
fn names_at_their_limits() {
    let m = Mount::new();
    let longest = "ü".repeat(127) + "x";
    fs::write(m.path(&longest), "x").unwrap();
    assert_eq!(fs::read_dir(m.dir()).unwrap().next().unwrap().unwrap().file_name(), *longest);
    assert_eq!(
        fs::write(m.path(&"x".repeat(256)), "x").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    let odd = std::ffi::OsStr::new(" \n\t\\\"'*?[");
    fs::write(m.dir().join(odd), "odd").unwrap();
    assert_eq!(fs::read(m.dir().join(odd)).unwrap(), b"odd");
    assert_eq!(fs::remove_dir(m.path("nothing")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    // A name that was looked for in vain is found once it exists.
    assert!(!m.path("later").exists());
    fs::write(m.path("later"), "").unwrap();
    assert!(m.path("later").exists());
}

#[test]
fn a_directory_of_a_hundred_thousand_entries() {
    let m = Mount::new();
    let dir = m.path("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..100_000 {
        rustix::fs::mknodat(
            CWD,
            dir.join(format!("entry-{i}")),
            rustix::fs::FileType::RegularFile,
            0o600.into(),
            0,
        )
        .unwrap();
    }
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let all = names(&dir);
    assert_eq!(all.len(), 100_000);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 100_000);
    assert_eq!(fs::remove_dir(&dir).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    // A name that stays is listed exactly once while others come and go.
    let mut seen = HashSet::new();
    for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if i < 50_000 && i % 2 == 0 {
            fs::remove_file(dir.join(format!("entry-{}", 50_000 + i))).unwrap();
            fs::write(dir.join(format!("new-{i}")), "").unwrap();
        }
        if name.starts_with("entry-") {
            assert!(seen.insert(name.clone()), "{name} was told twice");
        }
    }
    for i in (0..50_000).chain((50_000..100_000).filter(|i| i % 2 == 1)) {
        assert!(seen.contains(&format!("entry-{i}")), "entry-{i} was not told");
    }
    fs::remove_dir_all(&dir).unwrap();
    assert!(!dir.exists());
}

#[test]
fn attributes_and_times() {
    let m = Mount::new();
    let path = m.path("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1001)).unwrap();
    let time = |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    for (seconds, nanoseconds) in [(1_700_000_000, 123_456_789), (-1_000, 1), (20_000_000_000, 999_999_999)] {
        let times =
            rustix::fs::Timestamps { last_access: time(5, 7), last_modification: time(seconds, nanoseconds) };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (seconds, nanoseconds));
        assert_eq!((meta.atime(), meta.atime_nsec()), (5, 7));
    }
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777, meta.len()), (1000, 1001, 0o755, 10_000));
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
    assert!(statx.stx_mask & StatxFlags::BTIME.bits() != 0, "the time of creation is told");
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    assert!((now - 60..=now + 1).contains(&statx.stx_btime.tv_sec));
    assert!((now - 60..=now + 1).contains(&meta.ctime()));
}

#[test]
fn special_files() {
    use rustix::fs::{FileType, makedev, mknodat};
    let m = Mount::new();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, makedev(259, 70_000)),
    ] {
        mknodat(CWD, m.path(name), kind, 0o666.into(), device).unwrap();
        let meta = fs::symlink_metadata(m.path(name)).unwrap();
        assert_eq!((meta.rdev(), FileType::from_raw_mode(meta.mode())), (device, kind), "{name}");
    }
    assert!(fs::symlink_metadata(m.path("fifo")).unwrap().file_type().is_fifo());
    fs::write(m.path("null"), "goes nowhere").unwrap();
    assert_eq!(fs::read(m.path("null")).unwrap(), b"");
    run("sh", &["-c", "echo through > fifo & read line < fifo; test \"$line\" = through"], m.dir());
}

#[test]
fn extended_attributes() {
    use rustix::fs::{getxattr, listxattr, removexattr, setxattr};
    let m = Mount::new();
    let path = m.path("file");
    fs::write(&path, "").unwrap();
    let mut buffer = vec![0; 70_000];
    let none = getxattr(&path, "user.none", &mut buffer);
    assert_eq!(none, Err(rustix::io::Errno::NODATA));
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(setxattr(&path, "user.b", b"2", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    let long = common::pattern(1, 60_000);
    setxattr(&path, "user.long", &long, XattrFlags::empty()).unwrap();
    let len = getxattr(&path, "user.long", &mut buffer).unwrap();
    assert_eq!(buffer[..len], long);
    assert_eq!(getxattr(&path, "user.long", &mut [0u8; 10]), Err(rustix::io::Errno::RANGE));
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: both strings end with zero; a size of zero asks for the length and writes nothing.
    let len = unsafe { libc::getxattr(c_path.as_ptr(), c"user.long".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(len, 60_000);
    setxattr(&path, "trusted.t", b"root's", XattrFlags::empty()).unwrap();
    let len = listxattr(&path, &mut buffer).unwrap();
    let names: HashSet<&[u8]> = buffer[..len].split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, HashSet::from([&b"user.a"[..], b"user.long", b"trusted.t"]));
    removexattr(&path, "user.a").unwrap();
    assert_eq!(getxattr(&path, "user.a", &mut buffer), Err(rustix::io::Errno::NODATA));
    assert_eq!(removexattr(&path, "user.a"), Err(rustix::io::Errno::NODATA));
}

#[test]
fn access_control_lists() {
    let m = Mount::new();
    fs::write(m.path("file"), "secret").unwrap();
    fs::set_permissions(m.path("file"), Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(m.dir(), "cat file"));
    run("setfacl", &["-m", "u:65534:r", "file"], m.dir());
    assert!(as_nobody(m.dir(), "cat file"));
    assert!(!as_nobody(m.dir(), "echo x >> file"));
    assert!(run("getfacl", &["-cn", "file"], m.dir()).contains("user:65534:r--"));
    assert_eq!(
        fs::metadata(m.path("file")).unwrap().mode() & 0o777,
        0o640,
        "the mask shows as the group's bits"
    );
    // A default ACL takes the place of the umask and is inherited.
    fs::create_dir(m.path("dir")).unwrap();
    run("setfacl", &["-d", "-m", "u:65534:rwx,g::rwx,o::---", "dir"], m.dir());
    run("sh", &["-c", "umask 077; echo x > dir/new; mkdir dir/sub; echo y > dir/sub/deep"], m.dir());
    assert!(run("getfacl", &["-cn", "dir/new"], m.dir()).contains("user:65534:rwx"));
    assert!(as_nobody(m.dir(), "cat dir/new && echo z >> dir/sub/deep"));
    run("setfacl", &["-b", "file"], m.dir());
    assert!(!as_nobody(m.dir(), "cat file"));
}

#[test]
fn the_kernel_checks_permissions() {
    let m = Mount::new();
    fs::create_dir(m.path("open")).unwrap();
    fs::set_permissions(m.path("open"), Permissions::from_mode(0o1777)).unwrap();
    assert!(!as_nobody(m.dir(), "touch here"));
    assert!(as_nobody(m.dir(), "umask 027; echo x > open/mine; mkdir open/dir"));
    let meta = fs::metadata(m.path("open/mine")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (NOBODY, NOBODY, 0o640));
    assert_eq!(fs::metadata(m.path("open/dir")).unwrap().mode() & 0o7777, 0o750);
    fs::write(m.path("open/roots"), "").unwrap();
    assert!(!as_nobody(m.dir(), "rm -f open/roots"), "sticky");
    assert!(!as_nobody(m.dir(), "chown 0 open/mine"));
    // Files made in a set-group-ID directory belong to its group.
    fs::create_dir(m.path("group")).unwrap();
    std::os::unix::fs::chown(m.path("group"), None, Some(1234)).unwrap();
    fs::set_permissions(m.path("group"), Permissions::from_mode(0o2777)).unwrap();
    assert!(as_nobody(m.dir(), "touch group/file; mkdir group/dir"));
    assert_eq!(fs::metadata(m.path("group/file")).unwrap().gid(), 1234);
    assert_eq!(fs::metadata(m.path("group/dir")).unwrap().mode() & 0o2000, 0o2000);
}

#[test]
fn set_user_id_ends_with_a_change_by_others() {
    let m = Mount::new();
    let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o7777;
    let changes = [
        "echo x >> FILE",
        "truncate -s 3 FILE",
        "echo x > FILE",
        "dd if=/dev/zero of=FILE bs=4096 count=1 conv=notrunc",
    ];
    for change in changes {
        fs::write(m.path("file"), "12345").unwrap();
        fs::set_permissions(m.path("file"), Permissions::from_mode(0o6777)).unwrap();
        assert!(as_nobody(m.dir(), &change.replace("FILE", "file")));
        assert_eq!(mode("file"), 0o777, "{change}");
    }
    fs::write(m.path("file"), "12345").unwrap();
    fs::set_permissions(m.path("file"), Permissions::from_mode(0o6777)).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(m.path("file"))
        .and_then(|mut f| std::io::Write::write_all(&mut f, b"x"))
        .unwrap();
    assert_eq!(mode("file"), 0o6777, "root keeps them");
    std::os::unix::fs::chown(m.path("file"), Some(5), None).unwrap();
    assert_eq!(mode("file"), 0o777, "chown ends them");
}

#[test]
fn locks_of_two_processes() {
    let m = Mount::new();
    let file = File::create(m.path("lock")).unwrap();
    file.lock().unwrap();
    let locked = |how: &str| {
        !Command::new("flock")
            .args(["-n", how, "lock", "true"])
            .current_dir(m.dir())
            .status()
            .unwrap()
            .success()
    };
    assert!(locked("-s"));
    assert!(locked("-x"));
    file.unlock().unwrap();
    assert!(!locked("-x"));
    // Record locks: each descriptor here is an owner of its own.
    let other = File::options().write(true).open(m.path("lock")).unwrap();
    let lock = |file: &File, start: i64| {
        // SAFETY: an all-zero flock is a valid value.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = libc::F_WRLCK as i16;
        range.l_start = start;
        range.l_len = 10;
        // SAFETY: the descriptor is open and `range` lives during the call.
        unsafe {
            libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(file), libc::F_OFD_SETLK, &raw const range) == 0
        }
    };
    assert!(lock(&file, 0));
    assert!(!lock(&other, 5));
    assert!(lock(&other, 10));
    drop(file);
    assert!(lock(&other, 5));
}

#[test]
fn space_is_told() {
    let m = Mount::with(
        &common::options(pagefold_fuse::Transport::Dev),
        pagefold_fs::FsOptions::default(),
        1 << 30,
    );
    let before = rustix::fs::statvfs(m.dir()).unwrap();
    assert!(before.f_blocks > 0 && before.f_bavail <= before.f_blocks);
    assert_eq!(before.f_namemax, 255);
    fs::write(m.path("file"), common::pattern(1, 8 << 20)).unwrap();
    let after = rustix::fs::statvfs(m.dir()).unwrap();
    let used = (before.f_bavail - after.f_bavail) * after.f_frsize;
    assert!((8 << 20..=9 << 20).contains(&used), "{used} bytes for 8 MiB");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(m.dir().to_str().unwrap())).unwrap();
    assert!(line.starts_with("memory ") && line.contains(" fuse.pagefold "), "{line}");
}

#[test]
fn ioctls_are_refused_as_files_do() {
    let m = Mount::new();
    let file = File::create(m.path("file")).unwrap();
    let mut value = 0i32;
    // SAFETY: FIONREAD-like calls write at most an int, which `value` is.
    let result = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), 0x5452_0001, &raw mut value) };
    assert_eq!(result, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
}
