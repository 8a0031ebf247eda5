//! Why a mount or unmount failed.

use std::io;
use std::path::{Path, PathBuf};

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
    /// Others may have made a link on the way to it.
    #[error(
        "{0} is a link in a directory that others may change, and is not followed; name the directory that it leads to"
    )]
    Planted(PathBuf),
    /// The directory is not any more where it was.
    #[error(
        "{0} was moved, or mounted over, while it was being mounted on; nothing is mounted: look who does that, and try again"
    )]
    Moved(PathBuf),
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
    /// What another process said, which mounts for this one.
    #[error("{0}")]
    Told(String),
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

    pub(super) fn denied(what: &str, hint: &str) -> Self {
        Self::Denied { what: what.into(), hint: hint.into() }
    }
}
