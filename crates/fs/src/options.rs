//! What can be chosen at mount and at format.

use std::sync::Arc;

use crate::types::Ino;

/// When reading changes the access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimePolicy {
    /// When it is older than the last change or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// Tells a file's recordsize in bytes from its first write: byte offset, bytes, and the file's name where known.
/// A power of two from 4 KiB to 1 MiB; `None` where the bytes tell nothing.
pub type RecordsizeHint = Arc<dyn Fn(u64, &[u8], Option<&str>) -> Option<u32> + Send + Sync>;

/// Whether the kernel still refers to an inode. Called without any lock.
pub type KernelHolds = Arc<dyn Fn(Ino) -> bool + Send + Sync>;

/// Choices at mount.
#[derive(Clone, Default)]
pub struct FsOptions {
    /// When reading changes the access time.
    pub atime: AtimePolicy,
    /// Refuse every change.
    pub read_only: bool,
    /// Recordsize of new files in bytes (the `recordsize` property): a power of two from 4 KiB to 1 MiB; `None` finds it out.
    pub recordsize: Option<u32>,
    /// Finds out the recordsize where `recordsize` is `None`; without it every file gets 16 KiB.
    pub hint: Option<RecordsizeHint>,
    /// The mount goes on from a process that died: the kernel has references that nobody has counted, so that unlinked files may be
    /// open, and it is asked before one is removed.
    pub resumed: Option<KernelHolds>,
}

/// Choices at format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Seed of the name hashes: random, so that nobody can choose names that collide.
    pub seed: u64,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permissions of the root directory.
    pub perm: u16,
}
