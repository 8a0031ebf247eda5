//! Mounting and unmounting: mount(2) for root, `fusermount3` for everybody else.

mod error;
mod helper;
mod make;
mod mountinfo;
mod one;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use pagefold_engine::walk;

pub use error::MountError;
pub use make::check_mount_point;
pub(crate) use mountinfo::is_mount_of;
pub use mountinfo::is_mount_point;
pub use one::{OneMount, abort_abandoned};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source that `/proc/mounts` shows: the pool or dataset.
    pub source: String,
    /// Users other than the one who mounts may use the files, as far as permissions go. Root's mounts want this; users
    /// need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Make the file system read-only, at all places where it may be mounted.
    pub read_only: bool,
    /// Make this place read-only, whatever the file system becomes later. `fusermount3` does so if the file system is
    /// read-only, and not otherwise.
    pub read_only_here: bool,
    /// Honour set-user-ID and set-group-ID bits (root only).
    pub suid: bool,
    /// Honour device files (root only).
    pub dev: bool,
    /// Allow programs to be run from here.
    pub exec: bool,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// If a mount whose server died is still there, detach it first.
    pub replace_dead: bool,
    /// Transport of requests and replies.
    pub transport: crate::Transport,
    /// Largest number of threads on `/dev/fuse`; `None` for the default.
    pub threads_max: Option<usize>,
    /// Another process may go on with the mount when this one dies ([`crate::Session::resume`]). Requests then travel
    /// over `/dev/fuse`: those under way over a ring are lost with its process.
    pub takeover: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "pagefold".into(),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            read_only_here: false,
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

/// Ways to take a mount away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// The mount is taken away only if nobody uses it.
    Idle,
    /// The mount disappears at once, and ends when its last open file is closed.
    Lazy,
    /// As `Lazy`, and the connection ends as well, if we may do that (root only).
    CutOff,
    /// The connection ends: requests under way fail (root only).
    Abort,
}

/// Mounts and unmounts for a session: [`Here`] does so in this process; another implementation may ask a process with
/// more rights.
pub trait Mounter: Send + Sync {
    /// As [`check_mount_point`].
    ///
    /// # Errors
    /// The reason why `dir` cannot be mounted on.
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError>;

    /// Mounts at `dir` after checking it.
    ///
    /// # Errors
    /// [`MountError`] says what to do; nothing is mounted then.
    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError>;

    /// Makes the settings that are possible once the kernel was greeted.
    fn greeted(&self, device_minor: u32);

    /// Unmounts `dir`.
    ///
    /// # Errors
    /// [`MountError::InUse`] and [`MountError::NotMounted`] above all.
    fn unmount(&self, dir: &Path, how: Unmount) -> Result<(), MountError>;
}

/// Has `mounter` take the mount with this device number away from `dir`, or end its connection, unless something else is
/// mounted there: the mount may have been detached before, and another one made in its place.
///
/// # Errors
/// [`MountError::NotMounted`] if `dir` does not lead to it; those of the mounter.
pub(crate) fn take_away(
    mounter: &dyn Mounter,
    (dir, device_minor): (&Path, u32),
    how: Unmount,
) -> Result<(), MountError> {
    if is_mount_of(dir, device_minor) {
        mounter.unmount(dir, how)
    } else {
        Err(MountError::NotMounted(dir.into()))
    }
}

/// Mounts and unmounts in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Here {
    /// Returns it in the form that a session takes.
    pub fn shared() -> Arc<dyn Mounter> {
        Arc::new(Self)
    }
}

impl Mounter for Here {
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
        check_mount_point(dir, options)
    }

    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
        let place = make::examine(dir, options)?;
        if options.transport == crate::Transport::IoUring
            && !options.takeover
            && let Err(error) = crate::ring_switch::enable_ring()
        {
            tracing::debug!(%error, "FUSE over io_uring cannot be switched on");
        }
        let pages_max = request_pages_max();
        let make::Made { device, dir, device_minor } = make::mount(&place, options)?;
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

/// Unmounts `dir`. With `lazy` the mount disappears at once, and ends when its last open file is closed.
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
    let entry = Entry::of(dir)?;
    rustix::mount::unmount(entry.path(), flags | UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => MountError::InUse(dir.into()),
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(dir.into()),
        Errno::PERM => MountError::denied("unmount", "run it as root"),
        errno => MountError::os("unmount", dir, errno),
    })
}

/// A mount point, named by its parent directory, which is held open. A mount point that is open itself would be busy;
/// the name is not followed if it is a link.
struct Entry(walk::ReachedDir, OsString);

impl Entry {
    fn of(dir: &Path) -> Result<Self, MountError> {
        let reached = walk::reach_parent(dir);
        reached.map(|(place, name)| Self(place, name)).map_err(|error| match error.errno() {
            Errno::INVAL | Errno::NOENT | Errno::NOTDIR => MountError::NotMounted(dir.into()),
            _ => make::walk_failed(dir, error),
        })
    }

    fn path(&self) -> PathBuf {
        self.0.entry_path(&self.1)
    }
}

/// Takes the mount at `dir` away and ends its connection.
fn cut_off(dir: &Path) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(dir, true);
    }
    // FORCE ends the connection, even where /sys/fs/fuse is not there.
    unmount_with(dir, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Ends the connection of the mount at `dir` by force; requests under way fail (root only).
fn abort(dir: &Path) -> Result<(), MountError> {
    // A forced unmount aborts the connection first, whether or not the mount can go.
    match rustix::mount::unmount(Entry::of(dir)?.path(), UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(Errno::INVAL | Errno::NOENT) => Err(MountError::NotMounted(dir.into())),
        Err(Errno::PERM) => Err(MountError::denied("abort the connection", "run it as root")),
        Err(errno) => Err(MountError::os("abort the connection of", dir, errno)),
    }
}

/// Raises the mount's read-ahead to one request. That needs root, and matters only for speed.
fn raise_read_ahead(device_minor: u32) {
    let path = format!("/sys/class/bdi/0:{device_minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, crate::limits::READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, path, "read-ahead stays at the kernel's default");
    }
}

/// Returns the kernel's bound on the pages of a request, after raising it, if we may, to what an unaligned request of
/// the longest kind needs.
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
        // Kernels before 6.13 have no such file, and a fixed bound.
        None => 256,
    }
}
