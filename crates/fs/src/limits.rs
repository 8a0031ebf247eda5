//! Every bound of the file system, with its reason.

use pagefold_engine::limits::{ATOMIC_WRITE_MAX, RECORDSIZE_MAX, VALUE_BYTES_MAX};

/// Longest name, in bytes: what Linux passes on (NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes: PATH_MAX less its zero.
pub const TARGET_MAX: usize = 4095;
/// Longest file, in bytes: off_t.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most names of one inode: a 32-bit count is kept, and programs that keep it signed still work.
pub const LINK_MAX: u32 = i32::MAX as u32;
/// Longest value of an extended attribute (XATTR_SIZE_MAX of Linux).
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Most bytes that listxattr returns (XATTR_LIST_MAX of Linux).
pub const XATTR_LIST_MAX: usize = 64 << 10;
/// Most entries of an ACL: far above any in use, and a value stays far below [`XATTR_VALUE_MAX`].
pub const ACL_ENTRIES_MAX: usize = 1024;

/// Names whose hashes agree in all but these low bits share a run of slots of a directory.
pub const SLOT_BITS: u32 = 8;
/// Inode numbers and object ids reserved by one change of the counter: the change costs nothing per file, and
/// a crash skips at most so many.
pub const ID_BATCH: u64 = 1024;
/// Directory entries fetched at once while listing: bounds memory and the time that the directory is locked.
pub const READDIR_BATCH: usize = 128;
/// Shards of the inode cache: threads rarely meet.
pub const SHARDS: usize = 64;
/// Unreferenced inodes that a shard keeps before it looks for some to drop.
pub const SHARD_KEEP: usize = 256;
/// Pages that one call of copy_file_range shares at most, so that one change of the dataset stays small.
pub const SHARE_PAGES_MAX: u64 = 16 << 10;
/// Pages that one change frees at most while orphans are reaped.
pub const REAP_PAGES: u64 = 4096;
/// Files up to this many pages are freed at once when truncated to nothing, larger ones by reaping.
pub const PUNCH_PAGES_MAX: u64 = 64;
/// An access time older than this is renewed by relatime, in seconds.
pub const RELATIME_SECS: i64 = 24 * 60 * 60;
/// Unit of `statfs`, in bytes.
pub const STATFS_BLOCK_BYTES: u32 = 4096;
/// Zeros to write over the edges of a range: at most a page.
pub static ZEROS: [u8; RECORDSIZE_MAX as usize] = [0; RECORDSIZE_MAX as usize];

const _: () = assert!(NAME_MAX + XATTR_VALUE_MAX < VALUE_BYTES_MAX);
const _: () = assert!(4 + 8 * ACL_ENTRIES_MAX <= XATTR_VALUE_MAX);
const _: () = assert!(RECORDSIZE_MAX as usize <= ATOMIC_WRITE_MAX);
