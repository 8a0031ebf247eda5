//! Messages between a server and its mounter.

use std::path::PathBuf;

use pagefold_fuse::{MountError, MountOptions, Transport, Unmount};
use serde::{Deserialize, Serialize};

/// Requests of a server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "wish", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum MounterRequest {
    /// Check that a directory can be mounted on.
    Check {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        how: MountFlags,
    },
    /// Mount there.
    Mount {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        how: MountFlags,
    },
    /// The first exchange with the kernel is over on the mount with this device number.
    Greeted { device_minor: u32 },
    /// Unmount.
    Unmount {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        how: Unmounting,
    },
}

/// Answers of the mounter. With [`MounterReply::Mounted`] comes a descriptor: the connection to the kernel.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum MounterReply {
    Done {},
    Checked {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
    },
    Mounted {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        device_minor: u32,
        pages_max: usize,
    },
    InUse {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
    },
    NotMounted {
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
    },
    Refused {
        text: String,
    },
}

/// Options of a mount that the mounter has to know.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MountFlags {
    pub(super) source: String,
    pub(super) allow_other: bool,
    pub(super) read_only: bool,
    pub(super) read_only_here: bool,
    pub(super) suid: bool,
    pub(super) dev: bool,
    pub(super) exec: bool,
    pub(super) nonempty: bool,
    pub(super) replace_dead: bool,
    pub(super) ring: bool,
    pub(super) takeover: bool,
}

/// Ways to unmount.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unmounting {
    Idle,
    Lazy,
    CutOff,
    Abort,
}

impl From<&MountOptions> for MountFlags {
    fn from(options: &MountOptions) -> Self {
        Self {
            source: options.source.clone(),
            allow_other: options.allow_other,
            read_only: options.read_only,
            read_only_here: options.read_only_here,
            suid: options.suid,
            dev: options.dev,
            exec: options.exec,
            nonempty: options.nonempty,
            replace_dead: options.replace_dead,
            ring: options.transport == Transport::IoUring,
            takeover: options.takeover,
        }
    }
}

impl From<MountFlags> for MountOptions {
    fn from(how: MountFlags) -> Self {
        Self {
            source: how.source,
            allow_other: how.allow_other,
            read_only: how.read_only,
            read_only_here: how.read_only_here,
            suid: how.suid,
            dev: how.dev,
            exec: how.exec,
            nonempty: how.nonempty,
            replace_dead: how.replace_dead,
            transport: if how.ring { Transport::IoUring } else { Transport::Auto },
            takeover: how.takeover,
            ..Self::default()
        }
    }
}

impl From<Unmount> for Unmounting {
    fn from(how: Unmount) -> Self {
        match how {
            Unmount::Idle => Self::Idle,
            Unmount::Lazy => Self::Lazy,
            Unmount::CutOff => Self::CutOff,
            Unmount::Abort => Self::Abort,
        }
    }
}

impl From<Unmounting> for Unmount {
    fn from(how: Unmounting) -> Self {
        match how {
            Unmounting::Idle => Self::Idle,
            Unmounting::Lazy => Self::Lazy,
            Unmounting::CutOff => Self::CutOff,
            Unmounting::Abort => Self::Abort,
        }
    }
}

impl From<&MountError> for MounterReply {
    fn from(error: &MountError) -> Self {
        match error {
            MountError::InUse(dir) => Self::InUse { dir: dir.clone() },
            MountError::NotMounted(dir) => Self::NotMounted { dir: dir.clone() },
            other => Self::Refused { text: other.to_string() },
        }
    }
}
