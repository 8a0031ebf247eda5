//! Mounting and unmounting, unsuitable mount points, servers that die, and the ring.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{Mount, RingOn, memory, options, pattern, temp_dir};
use pagefold_fs::FsOptions;
use pagefold_fuse::null::{FILE_NAME, NullServer};
use pagefold_fuse::protocol::Opcode;
use pagefold_fuse::{InitError, MountError, MountOptions, Session, Transport, is_mount_point};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn mount_null(dir: &Path, options: &MountOptions) -> Result<Session, MountError> {
    Session::mount_handler(Arc::new(NullServer::new(1 << 30)), dir, options)
}

/// Waits until `check` is true.
fn soon(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn mount_points_that_will_not_do() {
    let parent = temp_dir();
    let path = |name: &str| parent.path().join(name);
    let dev = options(Transport::Dev);
    assert!(matches!(mount_null(&path("missing"), &dev), Err(MountError::Missing(_))));
    fs::write(path("file"), "").unwrap();
    assert!(matches!(mount_null(&path("file"), &dev), Err(MountError::NotADirectory(_))));
    assert!(matches!(mount_null(&path("file/below"), &dev), Err(MountError::NotADirectory(_))));
    fs::create_dir_all(path("full/entry")).unwrap();
    assert!(matches!(mount_null(&path("full"), &dev), Err(MountError::NotEmpty(_))));
    let over = MountOptions { nonempty: true, ..dev.clone() };
    let session = mount_null(&path("full"), &over).unwrap();
    assert!(path("full/data").exists());
    assert!(matches!(mount_null(&path("full"), &over), Err(MountError::AlreadyMounted(_))));
    session.unmount(false).unwrap();
    assert!(path("full/entry").exists());
    assert!(matches!(session.unmount(false), Err(MountError::NotMounted(_))));
    let message = mount_null(&path("missing"), &dev).err().unwrap().to_string();
    assert!(message.contains("mkdir -p") && message.contains(path("missing").to_str().unwrap()), "{message}");
}

#[test]
fn no_link_that_others_may_have_made_is_followed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let parent = temp_dir();
    let (theirs, ours) = (parent.path().join("theirs"), parent.path().join("ours"));
    fs::create_dir_all(theirs.join("real")).unwrap();
    fs::create_dir_all(ours.join("mnt")).unwrap();
    std::os::unix::fs::chown(&theirs, Some(54_321), Some(54_321)).unwrap();
    std::os::unix::fs::symlink(&ours, theirs.join("link")).unwrap();
    let dev = options(Transport::Dev);
    for dir in ["link", "link/mnt"] {
        assert!(matches!(mount_null(&theirs.join(dir), &dev), Err(MountError::Planted(_))), "{dir}");
    }
    let session = mount_null(&ours.join("mnt"), &dev).unwrap();
    for lazy in [false, true] {
        let refused = pagefold_fuse::unmount(&theirs.join("link/mnt"), lazy);
        assert!(matches!(refused, Err(MountError::Planted(_))), "{refused:?}");
    }
    assert!(is_mount_point(&ours.join("mnt")));
    session.unmount(false).unwrap();
    mount_null(&theirs.join("real"), &dev).unwrap().unmount(false).unwrap();
    // A second mount over the first is refused.
    let session = mount_null(&ours.join("mnt"), &dev).unwrap();
    assert!(matches!(mount_null(&ours.join("mnt"), &dev), Err(MountError::AlreadyMounted(_))));
    session.unmount(false).unwrap();
}

#[test]
fn a_mount_ends_by_unmount_wait_and_drop() {
    let m = Mount::new();
    let dir = m.dir().to_path_buf();
    fs::write(m.path("file"), "x").unwrap();
    assert!(is_mount_point(&dir));
    let held = File::open(m.path("file")).unwrap();
    assert!(matches!(m.session.unmount(false), Err(MountError::InUse(_))));
    m.session.unmount(true).unwrap();
    assert!(!is_mount_point(&dir));
    let mut byte = [0; 1];
    held.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"x", "open files go on after a lazy unmount");
    drop(held);
    m.session.wait();

    let (_, fs) = memory(FsOptions::default(), u64::MAX);
    drop(Session::mount(Arc::clone(&fs), &dir, &options(Transport::Dev)).unwrap());
    assert!(!is_mount_point(&dir), "a session that is dropped takes its mount along");
    // Files outlive their mount.
    let session = Session::mount(Arc::clone(&fs), &dir, &options(Transport::Dev)).unwrap();
    fs::write(dir.join("kept"), "x").unwrap();
    session.unmount(false).unwrap();
    session.wait();
    let _session = Session::mount(fs, &dir, &options(Transport::Dev)).unwrap();
    assert_eq!(fs::read(dir.join("kept")).unwrap(), b"x");
}

#[test]
fn what_is_mounted_in_the_place_of_a_detached_mount_stays() {
    let (parent, dev) = (temp_dir(), options(Transport::Dev));
    let (dir, file) = (parent.path(), parent.path().join(FILE_NAME));
    let first = mount_null(dir, &dev).unwrap();
    let held = File::open(&file).unwrap();
    first.unmount(true).unwrap();
    let second = mount_null(dir, &dev).unwrap();
    let used = File::open(&file).unwrap();
    for refused in [first.abort(), first.cut_off(), first.unmount(true), first.unmount(false)] {
        assert!(matches!(refused, Err(MountError::NotMounted(_))), "{refused:?}");
    }
    assert!(second.is_attached());
    let mut byte = [0; 1];
    [&held, &used].iter().for_each(|file| file.read_exact_at(&mut byte, 0).unwrap());
    drop((held, used));
    first.wait();
    second.unmount(false).unwrap();
}

#[test]
fn an_aborted_connection_fails_its_files_and_ends() {
    let m = Mount::new();
    let file = File::create(m.path("file")).unwrap();
    m.session.abort().unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    m.session.wait();
    let dir = m.dir().to_path_buf();
    drop(m);
    assert!(!is_mount_point(&dir), "what is left of the mount goes with its session");
}

#[test]
fn a_panic_takes_the_mount_along() {
    let dir = Arc::new(Mutex::new(PathBuf::new()));
    let told = Arc::clone(&dir);
    let result = std::thread::spawn(move || {
        let m = Mount::new();
        *told.lock().unwrap() = m.dir().to_path_buf();
        panic!("as a test that fails does");
    })
    .join();
    assert!(result.is_err());
    assert!(!dir.lock().unwrap().exists());
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let read_only = MountOptions { read_only: true, ..options(Transport::Dev) };
    let m = Mount::with(&read_only, FsOptions { read_only: true, ..FsOptions::default() }, u64::MAX);
    assert_eq!(fs::write(m.path("file"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_dir(m.dir()).unwrap().count(), 0);
}

#[test]
fn counts_and_latencies_are_kept() {
    let m = Mount::new();
    fs::write(m.path("file"), "x").unwrap();
    for _ in 0..10 {
        File::open(m.path("file")).unwrap().sync_all().unwrap();
    }
    let stats = m.session.stats().snapshot();
    let fsync = stats.iter().find(|one| one.opcode == Opcode::Fsync).unwrap();
    assert_eq!((fsync.requests, fsync.errors), (10, 0));
    assert_eq!(fsync.latency_ns_log2.iter().sum::<u64>(), 10);
    assert!(fsync.quantile_ns(0.5) >= fsync.mean_ns() / 1000 && fsync.mean_ns() > 0);
}

/// The test binary, run as a server of its own.
struct Server(Child);

impl Server {
    /// Starts a server that mounts at `dir` as user `uid`.
    fn start(dir: &Path, transport: &str, uid: u32) -> Self {
        let exe = dir.parent().unwrap().join("server");
        if !exe.exists() {
            // Another process makes the copy: if a server that starts just now inherited our descriptor for writing,
            // the copy could not be run.
            assert!(
                Command::new("cp")
                    .arg(std::env::current_exe().unwrap())
                    .arg(&exe)
                    .status()
                    .unwrap()
                    .success()
            );
            fs::set_permissions(&exe, Permissions::from_mode(0o755)).unwrap();
        }
        let child = Command::new(exe)
            .args(["--ignored", "--exact", "server", "--nocapture"])
            .env("PAGEFOLD_TEST_DIR", dir)
            .env("PAGEFOLD_TEST_TRANSPORT", transport)
            .current_dir("/")
            .stdout(Stdio::null())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        let mut server = Self(child);
        soon("the server's mount", || {
            assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
            is_mount_point(dir)
        });
        server
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes away, when dropped, whatever is mounted at a path.
struct Detach(PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = pagefold_fuse::unmount(&self.0, true);
    }
}

/// Not a test: [`Server`] runs this.
#[test]
#[ignore = "the server of other tests"]
fn server() {
    let dir = std::env::var_os("PAGEFOLD_TEST_DIR").expect("run by other tests only");
    let transport = if std::env::var("PAGEFOLD_TEST_TRANSPORT").unwrap() == "ring" {
        Transport::IoUring
    } else {
        Transport::Dev
    };
    let user = !rustix::process::geteuid().is_root();
    let options = MountOptions { transport, allow_other: !user, ..MountOptions::default() };
    let (_, fs) = memory_as_user();
    Session::mount(fs, Path::new(&dir), &options).unwrap().wait();
}

/// Returns a file system whose root belongs to the user who runs this.
fn memory_as_user() -> (Arc<pagefold_fs::testing::MemDataset>, Arc<pagefold_fs::Fs>) {
    use pagefold_fs::{FormatOptions, Fs, SystemClock, testing::MemDataset};
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let dataset = Arc::new(MemDataset::new(u64::MAX));
    Fs::format(&*dataset, &SystemClock, &FormatOptions { seed: 1, uid, gid, perm: 0o755 }).unwrap();
    let fs = Fs::mount(Arc::clone(&dataset) as _, Arc::new(SystemClock), FsOptions::default()).unwrap();
    (dataset, fs)
}

fn a_killed_server_leaves_a_mount_that_can_be_replaced(transport: &str) {
    let parent = temp_dir();
    let dir = parent.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    let _detach = Detach(dir.clone());
    let server = Server::start(&dir, transport, 0);
    fs::write(dir.join("file"), "x").unwrap();
    // The server is killed while requests are under way.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|i| {
            let (path, stop) = (dir.join(format!("load-{i}")), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    if fs::write(&path, pattern(i, 100_000)).and_then(|()| fs::read(&path)).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    server.kill();
    soon("clients to get errors", || clients.iter().all(std::thread::JoinHandle::is_finished));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = fs::read(dir.join("file")).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    let refused = mount_null(&dir, &MountOptions { replace_dead: false, ..options(Transport::Dev) });
    assert!(matches!(refused, Err(MountError::Dead(_))));
    let session = mount_null(&dir, &options(Transport::Dev)).unwrap();
    assert!(dir.join(FILE_NAME).exists());
    session.unmount(false).unwrap();
}

#[test]
fn a_killed_server_over_dev() {
    a_killed_server_leaves_a_mount_that_can_be_replaced("dev");
}

/// Sets a file's mode, and restores the old one when dropped.
struct Mode(PathBuf, Permissions);

impl Mode {
    fn set(path: &str, mode: u32) -> Self {
        let old = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        Self(path.into(), old)
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, self.1.clone());
    }
}

#[test]
fn a_user_mounts_through_fusermount3() {
    const USER: u32 = 65534;
    let _open_to_all = Mode::set("/dev/fuse", 0o666);
    let parent = temp_dir();
    let dir = parent.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    let _detach = Detach(dir.clone());
    let mut server = Server::start(&dir, "dev", USER);
    let user = |script: &str| {
        Command::new("sh")
            .arg("-c")
            .arg(script)
            .current_dir("/")
            .env("DIR", &dir)
            .uid(USER)
            .gid(USER)
            .status()
            .unwrap()
            .success()
    };
    assert!(user("echo hello > $DIR/file && test \"$(cat $DIR/file)\" = hello"));
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
    assert!(line.contains("fuse.pagefold") && line.contains("nosuid,nodev"), "{line}");
    assert!(user("fusermount3 -u $DIR"));
    soon("the server to end", || server.0.try_wait().unwrap().is_some());
}

/// Runs `test` with the kernel's FUSE over io_uring switched on. On a kernel without it, a mount that insists on it
/// must be refused with that reason.
fn with_ring(test: impl FnOnce()) {
    let Some(_on) = RingOn::new() else {
        let parent = temp_dir();
        let refused = mount_null(parent.path(), &options(Transport::IoUring));
        assert!(matches!(refused, Err(MountError::Init { source: InitError::NoRing, .. })));
        assert!(!is_mount_point(parent.path()), "nothing stays mounted");
        return;
    };
    test();
}

#[test]
fn everything_travels_over_the_ring() {
    with_ring(|| {
        let m = Mount::with(&options(Transport::IoUring), FsOptions::default(), u64::MAX);
        assert!(m.session.agreement().over_ring());
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let m = &m;
                scope.spawn(move || {
                    let dir = m.path(&format!("dir-{thread}"));
                    fs::create_dir(&dir).unwrap();
                    for round in 0..30 {
                        let data = pattern(thread * 100 + round, 1 << (round % 21));
                        let path = dir.join(format!("file-{round}"));
                        fs::write(&path, &data).unwrap();
                        let file = File::options().read(true).write(true).open(&path).unwrap();
                        file.sync_all().unwrap();
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                        assert_eq!(fs::read(&path).unwrap(), data);
                        fs::rename(&path, dir.join(format!("renamed-{round}"))).unwrap();
                    }
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 30);
                    fs::remove_dir_all(&dir).unwrap();
                });
            }
        });
        let file = File::options().write(true).read(true).create_new(true).open(m.path("big")).unwrap();
        let data = pattern(1, 1 << 20);
        let before = m.requests(Opcode::Write);
        file.write_all_at(&data, 17).unwrap();
        assert_eq!(fs::read(m.path("big")).unwrap()[17..], data);
        file.write_all_at(&data, 17).unwrap();
        // The first write began within a page that was not cached, so it took two requests.
        assert_eq!(m.requests(Opcode::Write) - before, 3, "an unaligned mebibyte fits an entry");
        assert_eq!(fs::read(m.path("big")).unwrap()[17..], data);
        drop(file);
        m.session.unmount(false).unwrap();
        m.session.wait();
    });
}

#[test]
fn a_killed_server_over_the_ring() {
    with_ring(|| {
        a_killed_server_leaves_a_mount_that_can_be_replaced("ring");
    });
}

#[test]
fn auto_takes_the_ring_where_it_is_and_dev_where_not() {
    with_ring(|| {
        let m = Mount::with(&options(Transport::Auto), FsOptions::default(), u64::MAX);
        assert!(m.session.agreement().over_ring());
        drop(m);
        fs::write(RingOn::PARAMETER, "N").unwrap();
        let m = Mount::with(&options(Transport::Auto), FsOptions::default(), u64::MAX);
        assert!(!m.session.agreement().over_ring());
        fs::write(m.path("file"), "x").unwrap();
        drop(m);
        let m = Mount::with(&options(Transport::IoUring), FsOptions::default(), u64::MAX);
        assert!(m.session.agreement().over_ring(), "switched on by who insists");
    });
}

/// Has the kernel refuse rings to the calling thread and to threads that it starts, as containers do.
fn refuse_rings() {
    let statement = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the system call comes first in what a filter is asked about.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 1),
        statement(answer, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), 0),
        statement(answer, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the filter during the call; it concerns this thread and those that it starts.
    let set = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A kernel that has agreed to use rings answers no request before it has them.
#[test]
fn auto_takes_dev_where_this_process_may_make_no_ring() {
    with_ring(|| {
        let mount = || {
            refuse_rings();
            Mount::with(&options(Transport::Auto), FsOptions::default(), u64::MAX)
        };
        let m = std::thread::spawn(mount).join().unwrap();
        assert!(!m.session.agreement().over_ring());
        fs::write(m.path("file"), "x").unwrap();
        assert_eq!(fs::read(m.path("file")).unwrap(), b"x");
    });
}
