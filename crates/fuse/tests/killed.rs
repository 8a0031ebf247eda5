//! A server that is killed while it tells the kernel to drop pages: its clients get errors, and it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use common::{memory, options, temp_dir};
use io_uring::{IoUring, opcode, types};
use pagefold_fs::FsOptions;
use pagefold_fuse::operation::Operation;
use pagefold_fuse::{
    Agreement, Blocking, Dispatch, Fetching, Handler, Here, Kernel, Mounter as _, Request, Session,
    Transport, Unmount,
};
use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, fadvise, flock};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Time within which everything ends that ends at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// Directory where the process is to mount, and `true` if another process might go on; for [`serve`].
const SERVE: &str = "PAGEFOLD_TEST_SERVE";

/// A handler that holds back writes, or reads, on command.
struct Holding {
    inner: Dispatch,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    writes: Option<Vec<(Request, Blocking)>>,
    reads: Option<Vec<(Request, Blocking)>>,
}

struct Shared(Arc<Holding>);

impl Handler for Shared {
    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        self.0.inner.agreed(agreement, kernel);
    }

    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        let mut held = self.0.held.lock();
        let (list, name) = match request.parse() {
            Ok(Operation::Write(_)) => (held.writes.as_mut(), "write"),
            Ok(Operation::Read { .. }) => (held.reads.as_mut(), "read"),
            _ => (None, ""),
        };
        if let Some(list) = list {
            list.push((request, blocking.clone()));
            println!("{name}");
            return None;
        }
        drop(held);
        self.0.inner.handle(request, blocking)
    }

    fn fetched(&self, fetching: Fetching, filled: bool, blocking: &Blocking) {
        self.0.inner.fetched(fetching, filled, blocking);
    }
}

/// Serves a mount, if this process was started for that: then it does what it is told until it is killed.
#[test]
fn serve() {
    let Ok(told) = std::env::var(SERVE) else { return };
    let (takeover, dir) = told.split_once(' ').unwrap();
    let (_, file_system) = memory(FsOptions::default(), u64::MAX);
    let holding = Arc::new(Holding { inner: Dispatch::new(file_system), held: Mutex::default() });
    let mut options = options(Transport::Dev);
    options.takeover = takeover == "true";
    let session =
        Session::mount_handler(Arc::new(Shared(Arc::clone(&holding))), Path::new(dir), &options).unwrap();
    // A file that nobody else can lock as long as this process has it.
    let locked = File::create(Path::new(dir).with_file_name("lock")).unwrap();
    flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    println!("mounted {}", session.device_minor());
    for word in std::io::stdin().lines() {
        match word.unwrap().as_str() {
            "hold writes" => holding.held.lock().writes = Some(Vec::new()),
            "hold reads" => holding.held.lock().reads = Some(Vec::new()),
            "let writes go" => {
                let writes = holding.held.lock().writes.take().unwrap();
                for (request, blocking) in writes {
                    assert!(holding.inner.handle(request, &blocking).is_none());
                }
            }
            other => panic!("{other}"),
        }
        println!("done");
    }
    drop((session, locked));
}

/// The process that serves, and its mount. Both are gone when it is dropped.
struct Server {
    child: Child,
    commands: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    parent: tempfile::TempDir,
    connection: u32,
}

impl Server {
    fn start(takeover: bool) -> Self {
        let parent = temp_dir();
        let dir = parent.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve", "--nocapture"])
            .env(SERVE, format!("{takeover} {}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut server =
            Self { child, commands, lines: BufReader::new(output).lines(), parent, connection: 0 };
        server.connection = server.hear("mounted").trim().parse().unwrap();
        server
    }

    /// Returns what follows a word that the process says.
    fn hear(&mut self, wanted: &str) -> String {
        // The test harness of the process says things, too, without an end of line.
        let found = |line: std::io::Result<String>| Some(line.unwrap().split_once(wanted)?.1.to_owned());
        self.lines.by_ref().find_map(found).unwrap_or_else(|| panic!("{wanted}"))
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
        self.hear("done");
    }

    fn path(&self) -> std::path::PathBuf {
        self.parent.path().join("mnt/f")
    }

    /// Returns true if a thread waits for the kernel to drop pages, and nothing but an answer ends that.
    fn is_dropping(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().any(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.starts_with("Name:\tpf-drop\n") && status.contains("State:\tD")
        })
    }

    /// Aborts the connection if nobody holds it but killed processes, as the next command would.
    fn abort_if_abandoned(&self) {
        if pagefold_fuse::abandoned().contains(&self.connection) {
            Here.unmount(&self.parent.path().join("mnt"), Unmount::Abort).unwrap();
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let dir = self.parent.path().join("mnt");
        // Requests that still wait for an answer get errors.
        let _ = unmount(&dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        let _ = self.child.wait();
    }
}

fn within_patience(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Kills a server while a client reads a page into the cache, and the server waits for that page to drop it.
fn kill_while_dropping(takeover: bool) {
    let mut server = Server::start(takeover);
    let path = server.path();
    fs::write(&path, vec![b'o'; 2 * PAGE]).unwrap();
    let (direct, cached) = (open(&path, libc::O_DIRECT), open(&path, 0));
    cached.sync_all().unwrap();
    fadvise(&cached, 0, None, Advice::DontNeed).unwrap();
    fadvise(&cached, 0, None, Advice::Random).unwrap();

    // A direct write for which nobody waits, then a read of its first page that is answered before it.
    server.tell("hold writes");
    let mut ring = IoUring::new(4).unwrap();
    let data = common::Aligned::of(&vec![b'n'; 2 * PAGE]);
    let write = opcode::Write::new(types::Fd(direct.as_raw_fd()), data.as_ptr(), data.len() as u32).offset(0);
    // SAFETY: the file and the data live until the write has completed, or the process ends.
    unsafe { ring.submission().push(&write.build()).unwrap() };
    ring.submit().unwrap();
    server.hear("write");
    cached.read_exact_at(&mut [0; PAGE], 0).unwrap();
    // A read of the second page is held: the kernel keeps that page locked.
    server.tell("hold reads");
    let reader = std::thread::spawn(move || cached.read_exact_at(&mut [0; PAGE], PAGE as u64));
    server.hear("read");
    server.tell("let writes go");
    assert!(within_patience(|| server.is_dropping()), "the server does not drop pages");

    assert!(!pagefold_fuse::abandoned().contains(&server.connection), "the server lives");
    let lock = File::open(server.parent.path().join("lock")).unwrap();
    assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err(), "the server lives");

    server.child.kill().unwrap();
    let unlocked = within_patience(|| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
    // The kernel fails the read that the server held. It may be asked again before the thread gets the page: then
    // nobody answers, and the connection is abandoned.
    let ended = within_patience(|| {
        server.abort_if_abandoned();
        server.has_ended()
    });
    let told = within_patience(|| reader.is_finished());
    drop(server);
    assert!(told, "a client waits for a server that is gone");
    assert!(reader.join().unwrap().is_err(), "a dead server answered");
    assert!(unlocked, "a dead server keeps its files");
    assert!(ended, "the server was killed and goes on");
    ring.submit_and_wait(1).unwrap();
}

#[test]
fn a_server_that_is_killed_while_it_drops_pages_ends() {
    kill_while_dropping(false);
}

#[test]
fn a_server_that_others_may_follow_ends_too() {
    kill_while_dropping(true);
}
