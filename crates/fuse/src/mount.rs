//! Mounting and unmounting: mount(2) for root, `fusermount3` for everybody else.

mod error;
mod helper;
mod mountinfo;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

pub use error::MountError;
pub(crate) use mountinfo::is_mount_of;
pub use mountinfo::is_mount_point;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `/proc/mounts` shows as the source: the pool or dataset.
    pub source: String,
    /// Other users than the one who mounts may use the files, as far as permissions go. Root's mounts want this; users
    /// need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// No changes.
    pub read_only: bool,
    /// Honour set-user-ID and set-group-ID bits (root only).
    pub suid: bool,
    /// Honour device files (root only).
    pub dev: bool,
    /// Programs may be run from here.
    pub exec: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// If a mount whose server died is still there, detach it first.
    pub replace_dead: bool,
    /// How requests travel.
    pub transport: crate::Transport,
    /// Threads on `/dev/fuse` at most; `None` for the default.
    pub threads_max: Option<usize>,
    /// Another process may go on with the mount when this one dies ([`crate::Session::resume`]). Requests travel over `/dev/fuse`
    /// then: what is under way over a ring is lost with its process.
    pub takeover: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "pagefold".into(),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            nonempty: false,
            replace_dead: true,
            transport: crate::Transport::Auto,
            threads_max: None,
            takeover: false,
        }
    }
}

/// A mounted connection on which nobody has answered yet.
#[derive(Debug)]
pub struct Mounted {
    /// The connection: `/dev/fuse`.
    pub device: OwnedFd,
    /// The mount point without symbolic links.
    pub dir: PathBuf,
    /// Minor number of the mount's device; zero if the mount is gone already.
    pub device_minor: u32,
    /// The kernel's bound on the pages of a request.
    pub pages_max: usize,
}

/// How a mount is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// If nobody uses it.
    Idle,
    /// It disappears at once, and ends when its last open file is closed.
    Lazy,
    /// As `Lazy`, and the connection ends as well, where we may do that (root only).
    CutOff,
    /// The connection ends: what was under way fails (root only).
    Abort,
}

/// Who mounts and unmounts for a session: this process ([`Here`]), or one that may do more.
pub trait Mounter: Send + Sync {
    /// As [`check_mount_point`].
    ///
    /// # Errors
    /// Why it cannot be mounted on.
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError>;

    /// Mounts at `dir` after checking it.
    ///
    /// # Errors
    /// [`MountError`] says what to do; nothing is mounted then.
    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError>;

    /// Sees to what can be set once the kernel was greeted.
    fn greeted(&self, device_minor: u32);

    /// Unmounts `dir`.
    ///
    /// # Errors
    /// [`MountError::InUse`] and [`MountError::NotMounted`] above all.
    fn unmount(&self, dir: &Path, how: Unmount) -> Result<(), MountError>;
}

/// Mounts and unmounts in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Here {
    /// For a session.
    pub fn shared() -> Arc<dyn Mounter> {
        Arc::new(Self)
    }
}

impl Mounter for Here {
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
        check_mount_point(dir, options)
    }

    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
        let dir = check_mount_point(dir, options)?;
        if options.transport == crate::Transport::IoUring
            && !options.takeover
            && let Err(error) = crate::transport::enable_ring()
        {
            tracing::debug!(%error, "FUSE over io_uring cannot be switched on");
        }
        let pages_max = request_pages_max();
        let device = if rustix::process::geteuid().is_root() {
            mount_directly(&dir, options)?
        } else {
            helper::mount(&dir, options)?
        };
        let device_minor = device_minor(&dir);
        Ok(Mounted { device, dir, device_minor, pages_max })
    }

    fn greeted(&self, device_minor: u32) {
        raise_read_ahead(device_minor);
    }

    fn unmount(&self, dir: &Path, how: Unmount) -> Result<(), MountError> {
        match how {
            Unmount::Idle => unmount(dir, false),
            Unmount::Lazy => unmount(dir, true),
            Unmount::CutOff => cut_off(dir),
            Unmount::Abort => abort(dir),
        }
    }
}

/// Minor number of the mount's device; zero if the mount is gone already.
fn device_minor(dir: &Path) -> u32 {
    rustix::fs::statx(rustix::fs::CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
        .map_or(0, |stat| stat.stx_dev_minor)
}

/// Unmounts `dir`. With `lazy` it disappears at once, and ends when its last open file is closed.
///
/// # Errors
/// [`MountError::InUse`] and [`MountError::NotMounted`] above all.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(dir, lazy);
    }
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    unmount_with(dir, flags)
}

fn unmount_with(dir: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    rustix::mount::unmount(dir, flags).map_err(|errno| match errno {
        Errno::BUSY => MountError::InUse(dir.into()),
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(dir.into()),
        Errno::PERM => MountError::denied("unmount", "run it as root"),
        errno => MountError::os("unmount", dir, errno),
    })
}

/// Takes the mount at `dir` away and ends its connection.
fn cut_off(dir: &Path) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(dir, true);
    }
    // FORCE ends the connection, also where /sys/fs/fuse is not there.
    unmount_with(dir, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Ends the connection of the mount at `dir` by force; what was under way fails (root only).
fn abort(dir: &Path) -> Result<(), MountError> {
    // A forced unmount aborts the connection first, and that is done whether or not the mount can go.
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(Errno::INVAL | Errno::NOENT) => Err(MountError::NotMounted(dir.into())),
        Err(Errno::PERM) => Err(MountError::denied("abort the connection", "run it as root")),
        Err(errno) => Err(MountError::os("abort the connection of", dir, errno)),
    }
}

/// The path without symbolic links, if it can be mounted on; a dead mount is detached where `options` say so.
///
/// # Errors
/// Why it cannot, as mounting would tell.
pub fn check_mount_point(dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let resolved = match std::fs::canonicalize(dir) {
        Ok(path) => path,
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => return Err(MountError::Missing(dir.into())),
            Some(libc::ENOTDIR) => return Err(MountError::NotADirectory(dir.into())),
            Some(libc::EACCES) => {
                return Err(MountError::denied(
                    &format!("reach {}", dir.display()),
                    "check its parents' modes",
                ));
            }
            Some(libc::ENOTCONN) => return detach_dead(dir, options),
            _ => return Err(MountError::os("resolve", dir, error)),
        },
    };
    let stat = match rustix::fs::statx(rustix::fs::CWD, &resolved, AtFlags::empty(), StatxFlags::TYPE) {
        Ok(stat) => stat,
        Err(Errno::NOTCONN) => return detach_dead(dir, options),
        Err(errno) => return Err(MountError::os("examine", dir, errno)),
    };
    if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFDIR {
        return Err(MountError::NotADirectory(dir.into()));
    }
    if stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT) {
        // The kernel answers from what it remembers of a dead server's files unless it is told to ask.
        let asked =
            rustix::fs::statx(rustix::fs::CWD, &resolved, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE);
        return match asked {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => detach_dead(&resolved, options),
            _ => Err(MountError::AlreadyMounted(dir.into())),
        };
    }
    let mut entries = std::fs::read_dir(&resolved).map_err(|error| MountError::os("list", dir, error))?;
    if !options.nonempty && entries.next().is_some() {
        return Err(MountError::NotEmpty(dir.into()));
    }
    Ok(resolved)
}

/// Takes away a mount whose server is gone, and looks again.
fn detach_dead(dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    if !options.replace_dead {
        return Err(MountError::Dead(dir.into()));
    }
    // The dead mount itself cannot be resolved, but its parent can.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = dir.file_name().ok_or_else(|| MountError::Dead(dir.into()))?;
    let path =
        std::fs::canonicalize(parent).map_err(|error| MountError::os("resolve", dir, error))?.join(name);
    tracing::warn!(dir = %path.display(), "detaching a mount whose server is dead");
    unmount(&path, true)?;
    check_mount_point(&path, &MountOptions { replace_dead: false, ..options.clone() })
}

fn mount_directly(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    use rustix::fs::{Mode, OFlags, open};
    let device =
        open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
            Errno::ACCESS | Errno::PERM => MountError::denied(
                "open /dev/fuse",
                "its mode should be 0666; in a container allow the device",
            ),
            errno => MountError::os("open", Path::new("/dev/fuse"), errno),
        })?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        crate::limits::REQUEST_BYTES_MAX,
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|error| MountError::os("mount", dir, error))?;
    rustix::mount::mount(options.source.as_str(), dir, "fuse.pagefold", flags, Some(data.as_c_str()))
        .map_err(|errno| match errno {
            Errno::PERM | Errno::ACCESS => MountError::denied(
                &format!("mount at {}", dir.display()),
                "run it as root on the host, or give the container CAP_SYS_ADMIN",
            ),
            Errno::NODEV => MountError::NoDevice,
            errno => MountError::os("mount at", dir, errno),
        })?;
    Ok(device)
}

/// Raises the mount's read-ahead to one request; needs root, and is only a matter of speed.
fn raise_read_ahead(device_minor: u32) {
    let path = format!("/sys/class/bdi/0:{device_minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, crate::limits::READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, path, "read-ahead stays at the kernel's default");
    }
}

/// The kernel's bound on the pages of a request, raised to what an unaligned request of the longest kind needs where
/// we may.
fn request_pages_max() -> usize {
    const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
    let wanted = crate::limits::REQUEST_PAGES_MAX;
    let read = || std::fs::read_to_string(LIMIT).ok().and_then(|text| text.trim().parse::<usize>().ok());
    match read() {
        Some(limit) if limit < wanted => {
            if let Err(error) = std::fs::write(LIMIT, wanted.to_string()) {
                tracing::debug!(%error, "unaligned writes of 1 MiB arrive in two requests");
            }
            read().unwrap_or(limit)
        }
        Some(limit) => limit,
        // Kernels before 6.13 have no such file and a fixed bound.
        None => 256,
    }
}
