//! Options of mounting and of formatting a file system.

use std::sync::Arc;

use pagefold_engine::memory::Gauge;

use crate::types::Ino;

/// Policies by which reading changes access times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimePolicy {
    /// If the access time is not newer than the last change, or is a day old.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// A function that tells a file's recordsize in bytes from its first write: byte offset, bytes, and the file's name if
/// known. It returns a power of two from 4 KiB to 1 MiB, or `None` if the bytes tell nothing.
pub type RecordsizeHint = Arc<dyn Fn(u64, &[u8], Option<&str>) -> Option<u32> + Send + Sync>;

/// A function that returns true if the kernel still refers to an inode, or if that cannot be told. The kernel also
/// drops the inode's attributes from its cache. Called without any lock.
pub type KernelHolds = Arc<dyn Fn(Ino) -> bool + Send + Sync>;

/// Choices at mount.
#[derive(Clone, Default)]
pub struct FsOptions {
    /// Policy by which reading changes access times.
    pub atime: AtimePolicy,
    /// Refuse every change.
    pub read_only: bool,
    /// The kernel knows inodes from a process that died: nothing that was deleted is freed before
    /// [`Fs::ask_kernel`](crate::Fs::ask_kernel) was called.
    pub resumed: bool,
    /// Recordsize of new files in bytes (the `recordsize` property): a power of two from 4 KiB to 1 MiB; `None`: `hint`
    /// finds it out.
    pub recordsize: Option<u32>,
    /// Finds out the recordsize if `recordsize` is `None`; without a hint every file gets 16 KiB.
    pub hint: Option<RecordsizeHint>,
    /// Gauge of the memory that the inodes of several file systems take together, with its bound. Without it, this file
    /// system alone may take [`INODE_BYTES`].
    ///
    /// [`INODE_BYTES`]: crate::limits::INODE_BYTES
    pub inodes: Option<Arc<Gauge>>,
    /// Largest number of pages that one change frees; `None`: [`crate::limits::FREE_PAGES_MAX`]. Tests set a smaller
    /// one.
    pub free_pages: Option<u64>,
    /// Number of bytes that a rewrite copies by one change; `None`: [`crate::limits::PIECE_BYTES`]. Tests set a smaller
    /// one.
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
