//! Mounts of a file system in memory, which are taken away however a test ends.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use pagefold_fs::testing::MemDataset;
use pagefold_fs::{FormatOptions, Fs, FsOptions, SystemClock};
use pagefold_fuse::protocol::Opcode;
use pagefold_fuse::{MountOptions, Session, Transport};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A mounted file system in memory.
pub struct Mount {
    /// Dropped first: detaches the mount.
    pub session: Session,
    pub dataset: Arc<MemDataset>,
    pub fs: Arc<Fs>,
    _parent: TempDir,
}

impl Mount {
    pub fn new() -> Self {
        Self::with(&options(Transport::Dev), FsOptions::default(), u64::MAX)
    }

    pub fn with(options: &MountOptions, fs_options: FsOptions, limit_bytes: u64) -> Self {
        let parent = temp_dir();
        let dir = parent.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let (dataset, fs) = memory(fs_options, limit_bytes);
        let session = Session::mount(Arc::clone(&fs), &dir, options).unwrap();
        Self { session, dataset, fs, _parent: parent }
    }

    pub fn dir(&self) -> &Path {
        self.session.dir()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Returns the number of requests with this code that were answered.
    pub fn requests(&self, opcode: Opcode) -> u64 {
        self.session.stats().requests(opcode)
    }
}

/// Makes a folder that other users can reach.
pub fn temp_dir() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    assert!(rustix::process::geteuid().is_root(), "these tests mount file systems: run them as root");
    assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse: modprobe fuse");
    let dir = tempfile::Builder::new().prefix("pagefold-fuse-").tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

pub fn options(transport: Transport) -> MountOptions {
    MountOptions {
        source: "memory".into(),
        transport,
        allow_other: true,
        suid: true,
        dev: true,
        ..MountOptions::default()
    }
}

pub fn memory(fs_options: FsOptions, limit_bytes: u64) -> (Arc<MemDataset>, Arc<Fs>) {
    let dataset = Arc::new(MemDataset::new(limit_bytes));
    let format = FormatOptions { seed: 42, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*dataset, &SystemClock, &format).unwrap();
    let fs = Fs::mount(Arc::clone(&dataset) as _, Arc::new(SystemClock), fs_options).unwrap();
    (dataset, fs)
}

/// Returns bytes that are neither all the same nor repeat at a page's distance.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Bytes of memory that begin on a page.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }
    pub fn of(data: &[u8]) -> Self {
        let mut aligned = Self::new(data.len());
        aligned.copy_from_slice(data);
        aligned
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// FUSE over io_uring, switched on; restored when dropped. One at a time.
pub struct RingOn {
    before: String,
    _one: std::sync::MutexGuard<'static, ()>,
}

impl RingOn {
    pub const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

    /// Returns `None` on a kernel that does not have it.
    pub fn new() -> Option<Self> {
        static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = std::fs::read_to_string(Self::PARAMETER).ok()?;
        std::fs::write(Self::PARAMETER, "Y").unwrap();
        Some(Self { before, _one: one })
    }
}

impl Drop for RingOn {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PARAMETER, self.before.trim());
    }
}
