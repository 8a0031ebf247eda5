//! Makes mounts by the descriptor of the directory, so that a mount cannot get anywhere else.
//!
//! The directory is reached step by step ([`walk`]), examined, and held open. The mount is made detached, and then
//! attached to the held directory; no path is used for that. Afterwards it is checked that the path that was asked for
//! leads to the mount: the owner of a directory on the way may have renamed that meanwhile.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::{MountError, MountOptions, helper, mountinfo, unmount};
use pagefold_engine::walk::{self, ReachedDir, WalkError};

/// A mount that was made.
pub(super) struct Made {
    /// The connection: `/dev/fuse`.
    pub(super) device: OwnedFd,
    /// Mount point, as the kernel tells it.
    pub(super) dir: PathBuf,
    /// Minor number of the mount's device.
    pub(super) device_minor: u32,
}

/// Returns the path without symbolic links, if it can be mounted on; detaches a dead mount there if `options` say so.
///
/// # Errors
/// The reason why it cannot be mounted on, as for mounting.
pub fn check_mount_point(dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    Ok(examine(dir, options)?.path().to_owned())
}

/// Returns the directory at `dir`, held open, if it can be mounted on; detaches a dead mount there if `options` say so.
pub(super) fn examine(dir: &Path, options: &MountOptions) -> Result<ReachedDir, MountError> {
    let place = walk::reach(dir).map_err(|error| walk_failed(dir, error))?;
    let asked = |flags| rustix::fs::statx(&place, "", AtFlags::EMPTY_PATH | flags, StatxFlags::TYPE);
    let stat = match asked(AtFlags::empty()) {
        Ok(stat) => stat,
        Err(Errno::NOTCONN | Errno::CONNABORTED) => return detach_dead(place, dir, options),
        Err(errno) => return Err(MountError::os("examine", dir, errno)),
    };
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        // Unless it is told to ask, the kernel answers from what it remembers of a dead server's files.
        return match asked(AtFlags::STATX_FORCE_SYNC) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => detach_dead(place, dir, options),
            _ => Err(MountError::AlreadyMounted(dir.into())),
        };
    }
    if !options.nonempty && !place.is_empty().map_err(|error| MountError::os("list", dir, error.errno()))? {
        return Err(MountError::NotEmpty(dir.into()));
    }
    Ok(place)
}

pub(super) fn walk_failed(dir: &Path, error: WalkError) -> MountError {
    if let WalkError::Planted(link) = error {
        return MountError::Planted(link);
    }
    match error.errno() {
        Errno::NOENT => MountError::Missing(dir.into()),
        Errno::NOTDIR => MountError::NotADirectory(dir.into()),
        Errno::ACCESS => MountError::denied(&format!("reach {}", dir.display()), "check its parents' modes"),
        errno => MountError::os("reach", dir, errno),
    }
}

/// Takes away a mount whose server is gone, and examines the directory again.
fn detach_dead(place: ReachedDir, dir: &Path, options: &MountOptions) -> Result<ReachedDir, MountError> {
    if !options.replace_dead {
        return Err(MountError::Dead(dir.into()));
    }
    let path = place.path().to_owned();
    tracing::warn!(dir = %path.display(), "detaching a mount whose server is dead");
    if rustix::process::geteuid().is_root() {
        detach(&place).map_err(|errno| MountError::os("detach the dead mount at", dir, errno))?;
    } else {
        unmount(&path, true)?;
    }
    drop(place);
    examine(&path, &MountOptions { replace_dead: false, ..options.clone() })
}

/// Takes away the mount whose root is `root`.
fn detach(root: impl AsFd) -> Result<(), Errno> {
    rustix::mount::unmount(walk::descriptor_path(root), UnmountFlags::DETACH)
}

/// Mounts on a directory that was examined.
pub(super) fn mount(place: &ReachedDir, options: &MountOptions) -> Result<Made, MountError> {
    if rustix::process::geteuid().is_root() {
        mount_directly(place, options)
    } else {
        let device = helper::mount(place, options)?;
        let device_minor = made_by_helper(place)?;
        Ok(Made { device, dir: place.path().to_owned(), device_minor })
    }
}

/// Returns the device of the mount that `fusermount3` has made, if it is where it was meant to be.
fn made_by_helper(place: &ReachedDir) -> Result<u32, MountError> {
    let there = walk::reach(place.path()).map_err(|error| walk_failed(place.path(), error))?;
    let minor = minor(&there).unwrap_or_default();
    if there.mount_id() == place.mount_id() || !mountinfo::is_mount_of(place.path(), minor) {
        return Err(MountError::Moved(place.path().into()));
    }
    Ok(minor)
}

/// Returns the minor number of a mount's device. Does not ask the server, which does not answer yet.
fn minor(root: impl AsFd) -> Result<u32, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(root, "", flags, StatxFlags::TYPE).map(|stat| stat.stx_dev_minor)
}

fn mount_directly(place: &ReachedDir, options: &MountOptions) -> Result<Made, MountError> {
    let dir = place.path();
    let device = open_device()?;
    let root = make(&device, options).map_err(|(what, errno)| match errno {
        Errno::PERM | Errno::ACCESS => MountError::denied(
            &format!("mount at {}", dir.display()),
            "run it as root on the host, or give the container CAP_SYS_ADMIN",
        ),
        Errno::NODEV => MountError::NoDevice,
        errno => MountError::os(what, dir, errno),
    })?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&root, "", place, "", flags).map_err(|errno| match errno {
        Errno::NOENT => MountError::Missing(dir.into()),
        errno => MountError::os("mount at", dir, errno),
    })?;
    match attached(&root, place) {
        Ok((dir, device_minor)) => Ok(Made { device, dir, device_minor }),
        Err(error) => {
            if let Err(errno) = detach(&root) {
                tracing::error!(%errno, dir = %dir.display(), "a mount that is not where it should be cannot be taken away");
            }
            Err(error)
        }
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    use rustix::fs::{Mode, OFlags, open};
    open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        Errno::ACCESS | Errno::PERM => {
            MountError::denied("open /dev/fuse", "its mode should be 0666; in a container allow the device")
        }
        errno => MountError::os("open", Path::new("/dev/fuse"), errno),
    })
}

/// Makes a mount that is attached nowhere yet; the descriptor is its root. An error comes with the step that failed.
fn make(device: &OwnedFd, options: &MountOptions) -> Result<OwnedFd, (&'static str, Errno)> {
    let at = |what: &'static str| move |errno: Errno| (what, errno);
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(at("open a file system for"))?;
    let set = |key: &str, value: &str| {
        fsconfig_set_string(fs.as_fd(), key, value).map_err(at("set up the file system for"))
    };
    let flag = |key: &str| fsconfig_set_flag(fs.as_fd(), key).map_err(at("set up the file system for"));
    set("source", &options.source)?;
    set("subtype", "pagefold")?;
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::getuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getgid().as_raw().to_string())?;
    set("max_read", &crate::limits::REQUEST_BYTES_MAX.to_string())?;
    flag("default_permissions")?;
    if options.allow_other {
        flag("allow_other")?;
    }
    if options.read_only {
        flag("ro")?;
    }
    fsconfig_create(fs.as_fd()).map_err(at("make the file system for"))?;
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only_here);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(at("make the mount for"))
}

/// Returns the mount point of a mount that was attached to `place`, and its device, if the path that was asked for
/// leads to it.
fn attached(root: &OwnedFd, place: &ReachedDir) -> Result<(PathBuf, u32), MountError> {
    let dir = place.path();
    let failed = |errno| MountError::os("examine the mount at", dir, errno);
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(root, "", flags, StatxFlags::TYPE | StatxFlags::MNT_ID).map_err(failed)?;
    let there = walk::reach(dir).map_err(|_| MountError::Moved(dir.into()))?;
    if there.mount_id() != stat.stx_mnt_id {
        return Err(MountError::Moved(dir.into()));
    }
    Ok((dir.to_owned(), stat.stx_dev_minor))
}
