//! Attacks on servers: commands, permissions, streams, floods.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::{MALLORY, fifo, mounted, program, run, shell};
use crate::common::{assert_failure, bounded, can_mount, wait_until};

/// As `user`, in a thread whose identity is its own: what the other end sees of who has connected.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: system calls with numbers alone, which change this thread only.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
            }
            act()
        });
        thread.join().unwrap()
    })
}

#[test]
fn others_neither_command_nor_see_a_server() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let pid = sandbox.pool()["pid"].as_i64().unwrap();
    let socket = sandbox.path("run/tank.sock");
    let (program, run_dir) = (program(&sandbox), sandbox.path("run"));
    let denied = std::io::ErrorKind::PermissionDenied;
    as_user(MALLORY, || {
        assert_eq!(UnixStream::connect(&socket).unwrap_err().kind(), denied);
        for name in ["environ", "mem", "maps", "fd", "cwd", "root", "exe", "auxv"] {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            let opened = File::open(&path).and_then(|mut file| file.read(&mut [0; 16]));
            assert!(opened.is_err(), "{}", path.display());
        }
        assert_eq!(File::open(sandbox.path("log/tank.log")).unwrap_err().kind(), denied);
        assert_eq!(File::open(sandbox.path("tank.pf")).unwrap_err().kind(), denied);
        for path in ["state/pools.json", "run/tank.lock"] {
            assert_eq!(File::open(sandbox.path(path)).unwrap_err().kind(), denied, "{path}");
        }
    });
    for script in
        [format!("kill -9 {pid}"), format!("kill -STOP {pid}"), format!("{} unmount tank", program.display())]
    {
        let tried = shell(&sandbox, MALLORY, &script);
        assert!(!tried.status.success(), "{script}");
    }
    // Also where root has opened the directory and the socket by mistake, nobody else is answered.
    fs::set_permissions(&run_dir, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    as_user(MALLORY, || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let body = br#"{"request":"status"}"#;
        let _ = stream.write_all(&(body.len() as u32).to_le_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "a stranger is answered");
    });
    // Rubbish, lengths that cannot be, and more connections than are served.
    for rubbish in [&[0xFF; 4][..], &[0, 0, 1, 0], b"\x05\0\0\0hello", b"\x02\0\0\0{}", &[0; 64]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(rubbish).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let idle: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    drop(idle);
    wait_until(|| sandbox.run(&["status", "tank"]).status.success());
    assert_eq!(sandbox.pool()["pid"].as_i64().unwrap(), pid);
    assert!(fs::write(sandbox.path("mnt/file"), "x").is_ok());
}

#[test]
fn a_mount_gives_nobody_more_than_permissions_do() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let at = |name: &str| sandbox.path("mnt").join(name);
    fs::write(at("secret"), "x").unwrap();
    fs::set_permissions(at("secret"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), Permissions::from_mode(0o1777)).unwrap();
    fs::copy("/usr/bin/id", at("open/id")).unwrap();
    fs::set_permissions(at("open/id"), Permissions::from_mode(0o4755)).unwrap();
    mknodat(CWD, at("open/kmsg"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 11))
        .unwrap();
    fs::set_permissions(at("open/kmsg"), Permissions::from_mode(0o666)).unwrap();
    fifo(&at("open/fifo"));
    let secret = at("secret");
    as_user(MALLORY, || {
        assert!(File::open(&secret).is_err() && fs::remove_file(&secret).is_err());
        assert!(chown(at("open"), Some(MALLORY), None).is_err());
        assert!(File::open(at("open/kmsg")).is_err(), "device files have no effect");
        assert!(fs::remove_file(at("open/id")).is_err(), "sticky");
        assert!(fs::hard_link(&secret, at("open/linked")).is_err());
        // Names as deep and long as can be.
        let long = "n".repeat(255);
        let mut deep = at("open");
        for _ in 0..12 {
            deep.push(&long);
            fs::create_dir(&deep).unwrap();
        }
        assert!(fs::create_dir(at("open").join("n".repeat(256))).is_err());
    });
    let id = shell(&sandbox, MALLORY, &format!("{} -u", at("open/id").display()));
    assert_eq!(id.stdout.trim(), MALLORY.to_string(), "set-user-ID has no effect");
    // Files by the thousand, all open at once, and nobody else notices.
    let before = sandbox.pool()["pid"].as_i64().unwrap();
    as_user(MALLORY, || {
        let files: Vec<File> =
            (0..900).map(|n| File::create(at("open").join(format!("{n}"))).unwrap()).collect();
        let mut more = Vec::new();
        for file in &files {
            more.push(file.try_clone().unwrap());
        }
        fs::write(at("open/after"), "x").unwrap();
    });
    assert_eq!(sandbox.pool()["pid"].as_i64().unwrap(), before);
    // Names that would move a terminal's cursor.
    fs::write(at("open").join("a\x1b[2Jb\nc"), vec![1; 10_000]).unwrap();
    sandbox.ok(&["snapshot", "tank@one"]);
    fs::write(at("open").join("d\x1b]0;x\x07"), vec![1; 10_000]).unwrap();
    for words in [&["du", "-a", "mnt/open"][..], &["diff", "tank@one", "tank"]] {
        let told = run(&sandbox, words);
        let bytes = format!("{}{}", told.stdout, told.stderr);
        assert!(!bytes.contains('\x1b') && !bytes.contains('\x07'), "{words:?}: {bytes:?}");
    }
    // Over what is mounted, nothing is mounted.
    sandbox.ok(&["dataset", "create", "tank/db"]);
    assert_failure(&run(&sandbox, &["mount", "tank/db", "mnt"]), 1, &["mount point already"]);
    for dir in ["/", "/etc", "/proc", "/dev"] {
        assert_failure(&run(&sandbox, &["mount", "tank/db", dir]), 1, &[dir]);
    }
}

#[test]
fn streams_from_strangers_are_refused_whole_and_hurt_nobody() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    fs::write(sandbox.path("mnt/file"), vec![7; 300_000]).unwrap();
    sandbox.ok(&["snapshot", "tank@one"]);
    let sent = sandbox.command(&["send", "tank@one"]).output().unwrap();
    assert!(sent.status.success() && sent.stdout.len() > 500);
    let pid = sandbox.pool()["pid"].as_i64().unwrap();
    let mut streams = vec![
        Vec::new(),
        vec![0; 1 << 20],
        vec![0xFF; 1 << 20],
        sent.stdout[..sent.stdout.len() - 1].to_vec(),
    ];
    for n in 0..16 {
        let mut changed = sent.stdout.clone();
        let at = changed.len() * n / 16;
        changed[at] ^= 0x55;
        streams.push(changed);
    }
    for (n, stream) in streams.iter().enumerate() {
        let path = sandbox.path("stream");
        fs::write(&path, stream).unwrap();
        let mut command = sandbox.command(&["receive", "tank/copy"]);
        command.stdin(File::open(&path).unwrap());
        let told = bounded(command);
        assert!(!told.status.success(), "{n}");
        assert!(!told.stderr.contains("panicked"), "{n}: {}", told.stderr);
        assert!(!sandbox.ok(&["list", "-H", "-t", "snapshot", "tank"]).contains("tank/copy@"), "{n}");
        let _ = run(&sandbox, &["receive", "--abort", "tank/copy"]);
        let _ = run(&sandbox, &["destroy", "-r", "tank/copy"]);
    }
    assert_eq!(sandbox.pool()["pid"].as_i64().unwrap(), pid);
    assert_eq!(fs::read(sandbox.path("mnt/file")).unwrap(), vec![7; 300_000]);
}

#[test]
fn a_flood_of_errors_does_not_push_the_rest_out_of_the_log() {
    if !can_mount() {
        return;
    }
    let sandbox = mounted();
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    let pattern: Vec<u8> = (0..262_144).map(|_| next()).collect();
    let file = sandbox.path("mnt/file");
    fs::write(&file, &pattern).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    sandbox.ok(&["unmount", "tank"]);
    let device = sandbox.path("tank.pf");
    let bytes = fs::read(&device).unwrap();
    let image = File::options().write(true).open(&device).unwrap();
    let wanted = &pattern[pattern.len() - 4096..pattern.len() - 4032];
    let mut damaged = 0;
    let written = (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..*at + 4096] != [0; 4096]);
    for at in written.flat_map(|block| block..block + 4096) {
        // Within each copy of the last page.
        if bytes[at..].starts_with(wanted) {
            image.write_all_at(b"damage!!", at as u64 + 128).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the page was not found on the device");
    sandbox.ok(&["mount", "tank", "mnt"]);
    let before = sandbox.ok(&["events", "tank"]);
    assert!(before.contains("mounted"));
    as_user(MALLORY, || {
        let file = File::open(&file).unwrap();
        for _ in 0..3_000 {
            let read = file.read_exact_at(&mut [0; 8], pattern.len() as u64 - 4096 + 256);
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
    });
    wait_until(|| sandbox.ok(&["events", "tank"]).contains("tank:/file"));
    let events = sandbox.ok(&["events", "tank"]);
    assert!(events.lines().count() < before.lines().count() + 60, "{events}");
    assert!(before.lines().all(|line| events.contains(line)), "{events}");
    let log = fs::read_to_string(sandbox.path("log/tank.log")).unwrap();
    assert!(log.len() < 60_000 && log.contains("tank:/file"), "{} bytes", log.len());
}
