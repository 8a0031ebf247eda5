//! Sets up a pool and an ext4 for the test, mounted where nobody else sees them.
//!
//! All mounts are made in a mount namespace of this process, below a tmpfs that holds the devices' files too. When
//! the last process of the test has ended, however it ended, the kernel takes everything away.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create};
use pagefold_engine::record::recordsize_hint;
use pagefold_fs::{AtimePolicy, FormatOptions, Fs, FsOptions, SystemClock};
use pagefold_fuse::{MountOptions, Session, Transport};

use crate::run::Pair;

/// Bytes of each file system's device. Blocks that are not written take no memory.
const DEVICE_BYTES: u64 = 4 << 30;
/// Line that the server prints when its mount can be used.
const READY: &str = "ready";

/// Both file systems, mounted. The server ends when this is dropped.
pub struct Stage {
    /// The two roots.
    pub pair: Pair,
    server: Child,
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Gives this process a mount namespace of its own. It must be called before any thread is started.
///
/// # Errors
/// Without root's rights.
pub fn hide() -> Result<()> {
    // SAFETY: this process has one thread, and nothing in it refers to the old namespace.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .context("a mount namespace of its own (this test needs root)")?;
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .context("keep mounts private")
}

/// Mounts a tmpfs that nobody else sees, and makes the directory in it that the pool is mounted at. Returns both.
fn hidden() -> Result<(PathBuf, PathBuf)> {
    let dir = std::env::temp_dir().join("pagefold-posix");
    match std::fs::create_dir(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("make {}", dir.display()));
        }
        _ => {}
    }
    run(
        "mount",
        &[
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "-o".as_ref(),
            "size=80%".as_ref(),
            "pagefold-posix".as_ref(),
            dir.as_ref(),
        ],
    )?;
    let subject = dir.join("pagefold");
    std::fs::create_dir(&subject).with_context(|| format!("make {}", subject.display()))?;
    Ok((dir, subject))
}

/// Starts the server of a new pool.
fn start(program: &Path, dir: &Path, subject: &Path, transport: Transport) -> Result<Child> {
    let pool = dir.join("pool.pf");
    std::fs::File::create(&pool)?.set_len(DEVICE_BYTES)?;
    let mut server = Command::new(program)
        .arg("serve")
        .args([pool.as_path(), subject])
        .args(["--transport", name_of(transport)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the server")?;
    let mut line = String::new();
    if let Some(stdout) = server.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim() != READY {
        bail!("the server did not start: {:?}", server.wait()?);
    }
    Ok(server)
}

fn name_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Auto => "auto",
        Transport::Dev => "dev",
        Transport::IoUring => "io_uring",
    }
}

/// Returns the transport with this name.
///
/// # Errors
/// For other names than `auto`, `dev` and `io_uring`.
pub fn transport_of(name: &str) -> Result<Transport, String> {
    let all = [Transport::Auto, Transport::Dev, Transport::IoUring];
    all.into_iter()
        .find(|transport| name_of(*transport) == name)
        .ok_or_else(|| format!("there is no transport {name:?}, but auto, dev and io_uring"))
}

/// A pool alone, mounted. The server ends when this is dropped.
pub struct Alone {
    /// Its root.
    pub dir: PathBuf,
    server: Child,
}

impl Alone {
    /// Makes and mounts a pool, as [`Stage::set`] does, without ext4.
    ///
    /// # Errors
    /// When the machine has no FUSE, or not this transport.
    pub fn set(program: &Path, transport: Transport) -> Result<Self> {
        let (dir, subject) = hidden()?;
        let server = start(program, &dir, &subject, transport)?;
        Ok(Self { dir: subject, server })
    }

    /// Unmounts the pool and verifies it, as [`Stage::strike`] does.
    ///
    /// # Errors
    /// As [`Stage::strike`].
    pub fn strike(mut self) -> Result<()> {
        strike(&mut self.server)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        give_up(&mut self.server);
    }
}

fn strike(server: &mut Child) -> Result<()> {
    drop(server.stdin.take());
    let status = server.wait()?;
    anyhow::ensure!(status.success(), "the server ended with {status}");
    Ok(())
}

fn give_up(server: &mut Child) {
    drop(server.stdin.take());
    if let Err(error) = server.wait() {
        eprintln!("pagefold-posix: the server is lost: {error}");
    }
}

impl Stage {
    /// Makes and mounts both. `program` is this program, which serves the pool in a process of its own.
    ///
    /// # Errors
    /// When the machine has no FUSE, loop devices or mkfs.ext4.
    pub fn set(program: &Path) -> Result<Self> {
        let (dir, subject) = hidden()?;
        let reference = dir.join("ext4");
        std::fs::create_dir(&reference).with_context(|| format!("make {}", reference.display()))?;
        let pair = Pair { subject, reference };
        let image = dir.join("ext4.img");
        std::fs::File::create(&image)?.set_len(DEVICE_BYTES)?;
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-I".as_ref(), "256".as_ref(), image.as_ref()])?;
        run(
            "mount",
            &["-o".as_ref(), "loop,noatime,nodev".as_ref(), image.as_ref(), pair.reference.as_ref()],
        )?;
        let server = start(program, &dir, &pair.subject, Transport::Auto)?;
        Ok(Self { pair, server })
    }

    /// Unmounts the pool and verifies it.
    ///
    /// # Errors
    /// When `check` finds anything, or the server did not end well.
    pub fn strike(mut self) -> Result<()> {
        strike(&mut self.server)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        give_up(&mut self.server);
    }
}

/// Serves a new pool in the file `pool` at `dir` until standard input ends, then verifies it.
///
/// # Errors
/// When the pool cannot be made, mounted or closed, or the check finds damage.
pub fn serve(pool: &Path, dir: &Path, transport: Transport) -> Result<()> {
    let paths = [pool.to_owned()];
    create("posix", &paths, &CreateOptions { force: false, created: 0, guid: Guid(*b"posix-comparison") })?;
    let opened = Pool::open(&paths, &OpenOptions::default())?;
    let format = FormatOptions { seed: 7, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*opened.dataset(), &SystemClock, &format)?;
    let options = FsOptions {
        atime: AtimePolicy::Never,
        hint: Some(Arc::new(recordsize_hint)),
        ..FsOptions::default()
    };
    let fs = Fs::mount(opened.dataset(), Arc::new(SystemClock), options)?;
    let work = opened.run()?;
    let mount = MountOptions {
        source: "posix".into(),
        allow_other: true,
        suid: true,
        transport,
        ..MountOptions::default()
    };
    let session = Session::mount(Arc::clone(&fs), dir, &mount)?;
    println!("{READY}");
    std::io::stdout().flush()?;
    let mut input = std::io::stdin();
    let mut byte = [0];
    loop {
        // Deleted files are freed here, as the real server does.
        let mut poll = [rustix::event::PollFd::new(&input, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if rustix::event::poll(&mut poll, Some(&wait))? > 0 && input.read(&mut byte)? == 0 {
            break;
        }
        while fs.reap(4096)? {}
    }
    session.unmount(true)?;
    session.wait();
    while fs.reap(4096)? {}
    fs.flush_times()?;
    work.stop();
    let found = pagefold_fs::check::check(&*opened.dataset())?;
    anyhow::ensure!(found.is_clean(), "check finds {:?}", found.problems);
    anyhow::ensure!(found.inodes == 1, "{} inodes are left", found.inodes);
    opened.export()?;
    Ok(())
}
