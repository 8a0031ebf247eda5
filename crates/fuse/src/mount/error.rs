//! Errors of mounting and unmounting.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns a path for people to read: bytes that are not UTF-8 are shown as `\xff`.
fn shown(path: &Path) -> String {
    let mut seen = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        seen.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| seen.push_str(&format!("\\x{byte:02x}")));
    }
    seen
}

/// Reasons why a mount or unmount failed, with advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point does not exist.
    #[error("mount point {at} does not exist; create it with `mkdir -p {at}`", at = shown(.0))]
    Missing(PathBuf),
    /// The mount point is a file.
    #[error("mount point {at} is not a directory", at = shown(.0))]
    NotADirectory(PathBuf),
    /// The mount point has entries, which the mount would hide.
    #[error("mount point {at} is not empty; choose another, or mount over it with -o nonempty", at = shown(.0))]
    NotEmpty(PathBuf),
    /// There is a link on the way to the mount point that others may have made.
    #[error("{at} is a link in a directory that others may change, and is not followed; name the directory that it leads to", at = shown(.0))]
    Planted(PathBuf),
    /// The directory is no longer where it was.
    #[error("{at} was moved, or mounted over, while it was being mounted on; nothing is mounted: look who does that, and try again", at = shown(.0))]
    Moved(PathBuf),
    /// Something is mounted there.
    #[error("{at} is a mount point already; unmount it first with `umount {at}`", at = shown(.0))]
    AlreadyMounted(PathBuf),
    /// A mount whose server died is there.
    #[error("the server of the mount at {at} is dead (\"Transport endpoint is not connected\"); detach it with `umount -l {at}`", at = shown(.0))]
    Dead(PathBuf),
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse does not exist; load the module with `modprobe fuse` (in a container: --device /dev/fuse)"
    )]
    NoDevice,
    /// Permission is missing.
    #[error("no permission to {what}: {hint}")]
    Denied {
        /// The operation that was refused.
        what: String,
        /// Advice to the user.
        hint: String,
    },
    /// `fusermount3` is not installed.
    #[error(
        "fusermount3 was not found, which users other than root need for mounting; install the package fuse3"
    )]
    NoFusermount,
    /// `fusermount3` refused.
    #[error("fusermount3 refused {at}: {message}", at = shown(.dir))]
    Fusermount {
        /// The mount point.
        dir: PathBuf,
        /// Message of `fusermount3`.
        message: String,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted at {at}", at = shown(.0))]
    NotMounted(PathBuf),
    /// Files are open.
    #[error("{at} is in use; stop what uses it (`fuser -vm {at}` shows it), or detach it with -l", at = shown(.0))]
    InUse(PathBuf),
    /// The kernel and this program could not agree.
    #[error("cannot mount at {at}: {source}", at = shown(.dir))]
    Init {
        /// The mount point.
        dir: PathBuf,
        /// The reason.
        source: crate::InitError,
    },
    /// An error told by another process, which mounts for this one.
    #[error("{0}")]
    Told(String),
    /// Any other failure of the operating system.
    #[error("cannot {what} {at}: {source}", at = shown(.path))]
    Os {
        /// The operation that was attempted.
        what: &'static str,
        /// The object of the operation.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn os(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Os { what, path: path.into(), source: source.into() }
    }

    pub(super) fn denied(what: &str, hint: &str) -> Self {
        Self::Denied { what: what.into(), hint: hint.into() }
    }
}
