//! Mounting and unmounting: mount(2) for root, `fusermount3` for everybody else.

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
        }
    }
}

/// Why a mount or unmount failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point does not exist.
    #[error("mount point {0} does not exist; create it with `mkdir -p {0}`")]
    Missing(PathBuf),
    /// The mount point is a file.
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// The mount point has entries, which the mount would hide.
    #[error("mount point {0} is not empty; choose another, or mount over it with -o nonempty")]
    NotEmpty(PathBuf),
    /// Something is mounted there.
    #[error("{0} is a mount point already; unmount it first with `umount {0}`")]
    AlreadyMounted(PathBuf),
    /// A mount whose server died is there.
    #[error(
        "the server of the mount at {0} is dead (\"Transport endpoint is not connected\"); detach it with `umount -l {0}`"
    )]
    Dead(PathBuf),
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse does not exist; load the module with `modprobe fuse` (in a container: --device /dev/fuse)"
    )]
    NoDevice,
    /// Permission is missing.
    #[error("no permission to {what}: {hint}")]
    Denied {
        /// What was refused.
        what: String,
        /// What to do.
        hint: String,
    },
    /// `fusermount3` is not installed.
    #[error(
        "fusermount3 was not found, which users other than root need for mounting; install the package fuse3"
    )]
    NoFusermount,
    /// `fusermount3` refused.
    #[error("fusermount3 refused {dir}: {message}")]
    Fusermount {
        /// The mount point.
        dir: PathBuf,
        /// What it said.
        message: String,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// Files are open.
    #[error("{0} is in use; stop what uses it (`fuser -vm {0}` shows it), or detach it with -l")]
    InUse(PathBuf),
    /// The kernel and this program found no agreement.
    #[error("cannot mount at {dir}: {source}")]
    Init {
        /// The mount point.
        dir: PathBuf,
        /// What was missing.
        source: crate::InitError,
    },
    /// Any other failure of the operating system.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// On which object.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn os(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Os { what, path: path.into(), source: source.into() }
    }
}

/// A mounted connection on which nobody has answered yet.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) device: OwnedFd,
    /// The mount point without symbolic links.
    pub(crate) dir: PathBuf,
}

/// Mounts at `dir` after checking it.
pub(crate) fn mount(dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let dir = check_mount_point(dir, options)?;
    let device = if rustix::process::geteuid().is_root() {
        mount_directly(&dir, options)?
    } else {
        mount_by_helper(&dir, options)?
    };
    Ok(Mounted { device, dir })
}

/// Unmounts `dir`. With `lazy` it disappears at once, and ends when its last open file is closed.
///
/// # Errors
/// [`MountError::InUse`] and [`MountError::NotMounted`] above all.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        let flag = if lazy { "-uz" } else { "-u" };
        let output =
            helper().arg(flag).arg("--").arg(dir).stdin(Stdio::null()).output().map_err(no_helper)?;
        return if output.status.success() { Ok(()) } else { Err(helper_error(dir, &output.stderr)) };
    }
    let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(dir, flags).map_err(|errno| match errno {
        Errno::BUSY => MountError::InUse(dir.into()),
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(dir.into()),
        Errno::PERM => denied("unmount", "run it as root"),
        errno => MountError::os("unmount", dir, errno),
    })
}

/// Ends the connection of the mount at `dir` by force; what was under way fails (root only).
pub(crate) fn abort(dir: &Path) -> Result<(), MountError> {
    // A forced unmount aborts the connection first, and that is done whether or not the mount can go.
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(Errno::INVAL | Errno::NOENT) => Err(MountError::NotMounted(dir.into())),
        Err(Errno::PERM) => Err(denied("abort the connection", "run it as root")),
        Err(errno) => Err(MountError::os("abort the connection of", dir, errno)),
    }
}

fn denied(what: &str, hint: &str) -> MountError {
    MountError::Denied { what: what.into(), hint: hint.into() }
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
                return Err(denied(&format!("reach {}", dir.display()), "check its parents' modes"));
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
            Errno::ACCESS | Errno::PERM => {
                denied("open /dev/fuse", "its mode should be 0666; in a container allow the device")
            }
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
            Errno::PERM | Errno::ACCESS => denied(
                &format!("mount at {}", dir.display()),
                "run it as root on the host, or give the container CAP_SYS_ADMIN",
            ),
            Errno::NODEV => MountError::NoDevice,
            errno => MountError::os("mount at", dir, errno),
        })?;
    Ok(device)
}

fn helper() -> Command {
    Command::new("fusermount3")
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => MountError::os("run", Path::new("fusermount3"), error),
    }
}

fn helper_error(dir: &Path, stderr: &[u8]) -> MountError {
    let message = String::from_utf8_lossy(stderr);
    let message = message.trim().trim_start_matches("fusermount3:").trim();
    if message.contains("not found in") || message.contains("not mounted") {
        return MountError::NotMounted(dir.into());
    }
    if message.contains("busy") {
        return MountError::InUse(dir.into());
    }
    if message.contains("allow_other") {
        return denied(
            "mount with allow_other",
            "add the line user_allow_other to /etc/fuse.conf, or mount without allow_other",
        );
    }
    MountError::Fusermount { dir: dir.into(), message: message.into() }
}

/// Asks `fusermount3`, which is set-user-ID root, to mount, and takes the descriptor over a socket.
fn mount_by_helper(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let os = |source: Errno| MountError::os("talk to", Path::new("fusermount3"), source);
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoDevice);
    }
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(os)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(os)?;
    let child = helper()
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child
        .wait_with_output()
        .map_err(|error| MountError::os("wait for", Path::new("fusermount3"), error))?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(error) if output.status.success() => {
            Err(MountError::os("receive a descriptor from", Path::new("fusermount3"), error))
        }
        _ => Err(helper_error(dir, &output.stderr)),
    }
}

/// The options as `fusermount3` takes them; commas in the source are escaped.
fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = vec![
        format!("fsname={source}"),
        "subtype=pagefold".into(),
        "default_permissions".into(),
        format!("max_read={}", crate::limits::REQUEST_BYTES_MAX),
        (if options.read_only { "ro" } else { "rw" }).into(),
        (if options.exec { "exec" } else { "noexec" }).into(),
    ];
    if options.allow_other {
        list.push("allow_other".into());
    }
    list.join(",")
}

/// One descriptor sent along with a byte; `None` if the other end closed without sending.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Whether something is mounted at `dir`, answering or not. Asks the kernel's list, so that a dead or slow server does not
/// matter.
pub fn is_mount_point(dir: &Path) -> bool {
    let wanted = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.into());
    mounts_at(&wanted).next().is_some()
}

/// Whether the mount of the device `0:minor` is at `dir` (without symbolic links), and no other above it.
pub(crate) fn is_mount_of(dir: &Path, device_minor: u32) -> bool {
    mounts_at(dir).last().is_some_and(|device| device == format!("0:{device_minor}"))
}

/// The devices mounted at `dir`, the topmost last.
fn mounts_at(dir: &Path) -> impl Iterator<Item = String> {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let of = |line: &[u8]| {
        let mut fields = line.split(|&b| b == b' ').skip(2);
        let (device, path) = (fields.next()?, fields.nth(1)?);
        (unescape(path) == dir.as_os_str().as_bytes()).then(|| String::from_utf8_lossy(device).into_owned())
    };
    list.split(|&b| b == b'\n').filter_map(of).collect::<Vec<_>>().into_iter()
}

/// A path of mountinfo: blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                path.push(byte);
                rest = &after[3..];
            }
            _ => {
                path.push(first);
                rest = after;
            }
        }
    }
    path
}

/// Raises the mount's read-ahead to one request; needs root, and is only a matter of speed.
pub(crate) fn raise_read_ahead(device_minor: u32) {
    let path = format!("/sys/class/bdi/0:{device_minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, crate::limits::READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, path, "read-ahead stays at the kernel's default");
    }
}

/// The kernel's bound on the pages of a request, raised to what an unaligned request of the longest kind needs where
/// we may.
pub(crate) fn request_pages_max() -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo() {
        assert_eq!(unescape(br"/a\040b\134c\0"), br"/a b\c\0");
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
        assert!(!is_mount_of(Path::new("/proc"), u32::MAX));
    }

    #[test]
    fn options_for_the_helper() {
        let options = MountOptions {
            source: r"a,b\c".into(),
            allow_other: true,
            read_only: true,
            ..Default::default()
        };
        assert_eq!(
            helper_options(&options),
            r"fsname=a\,b\\c,subtype=pagefold,default_permissions,max_read=1048576,ro,exec,allow_other"
        );
    }

    #[test]
    fn what_the_helper_says_becomes_what_to_do() {
        let error = |text: &str| helper_error(Path::new("/m"), text.as_bytes());
        assert!(matches!(
            error("fusermount3: entry for /m not found in /etc/mtab"),
            MountError::NotMounted(_)
        ));
        assert!(matches!(
            error("fusermount3: failed to unmount /m: Device or resource busy"),
            MountError::InUse(_)
        ));
        let denied = error(
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
        );
        assert!(denied.to_string().contains("add the line user_allow_other"));
        assert!(error("fusermount3: something else").to_string().ends_with("something else"));
    }
}
