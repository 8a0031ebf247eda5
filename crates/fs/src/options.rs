//! What can be chosen at mount and at format.

use std::sync::Arc;

use pagefold_engine::memory::Gauge;

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

/// Whether the kernel still refers to an inode; true where it cannot be told. It drops the attributes that it has cached of it. Called without any lock.
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
    /// Counts what inodes take in memory, for several file systems together, and says how much they may; without it [`INODE_BYTES`] are this one's.
    ///
    /// [`INODE_BYTES`]: crate::limits::INODE_BYTES
    pub inodes: Option<Arc<Gauge>>,
    /// Pages that one change frees at most; `None`: [`crate::limits::FREE_PAGES_MAX`], of which tests do not need as many.
    pub free_pages: Option<u64>,
    /// Bytes that a rewrite copies by one change; `None`: [`crate::limits::PIECE_BYTES`], of which tests do not need as many.
    pub piece_bytes: Option<u64>,
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
