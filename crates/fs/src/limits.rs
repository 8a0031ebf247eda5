//! Every bound of the file system, with its reason.

use pagefold_engine::limits::{ATOMIC_WRITE_MAX, RECORDSIZE_MAX, VALUE_BYTES_MAX};

/// Longest name, in bytes: the longest that Linux passes on (NAME_MAX).
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

/// Number of low bits that are cut off hashes of names: names whose hashes agree in all other bits share a run of slots
/// of a directory.
pub const SLOT_BITS: u32 = 8;
/// Number of inode numbers and object ids that one change of the counter reserves: the change costs next to nothing per
/// file, and a crash skips at most this many numbers.
pub const ID_BATCH: u64 = 1024;
/// Directory entries fetched at once while listing: bounds memory and the time that the directory is locked.
pub const READDIR_BATCH: usize = 128;
/// Shards of the inode cache: threads rarely meet.
pub const SHARDS: usize = 64;
/// Number of inodes that must come into a shard before it looks again for some to drop, if it found none: the cost per
/// inode is constant.
pub const SHARD_STEP: usize = 8;
/// Default memory for inodes, in bytes: room for some 70,000 of them.
pub const INODE_BYTES: u64 = 24 << 20;
/// Number of access times waiting to be written from which on the background writes them at once: their inodes stay in
/// memory until then.
pub const TIMES_MAX: usize = 8192;
/// Largest number of pages that one call of copy_file_range shares, so that one change of the dataset stays small.
pub const SHARE_PAGES_MAX: u64 = 4 << 10;
/// Largest number of pages that one change frees; reaping frees larger amounts slice by slice. Other changes of the
/// dataset wait for a slice: 1,024 pages lie in a few leaves of the tree, and are freed in about a millisecond.
pub const FREE_PAGES_MAX: u64 = 1024;
/// Number of pages of deleted files, and of what was cut out of others, freed before other work gets its turn, or before
/// a change that found no space is tried again.
pub const REAP_PAGES: u64 = 4096;
/// Largest number of ranges of an inode that are yet to be freed: they are stored with the inode, which stays small.
pub const FREEING_RANGES_MAX: usize = 64;
/// Number of bytes that a rewrite copies by one change, unless a record is longer. Other changes of the file wait for
/// one such piece: at most 64 reads of pages of 4 KiB, and one change.
pub const PIECE_BYTES: u64 = 256 << 10;
/// Largest number of ranges that a rewrite has yet to copy; beyond it, neighbours are joined, and more is copied than
/// need be.
pub const TODO_RANGES_MAX: usize = 1024;
/// An access time older than this is renewed by relatime, in seconds.
pub const RELATIME_SECS: i64 = 24 * 60 * 60;
/// Unit of `statfs`, in bytes.
pub const STATFS_BLOCK_BYTES: u32 = 4096;
/// Zeros to write over the edges of a range: at most a page.
pub static ZEROS: [u8; RECORDSIZE_MAX as usize] = [0; RECORDSIZE_MAX as usize];

const _: () = assert!(NAME_MAX + XATTR_VALUE_MAX < VALUE_BYTES_MAX);
const _: () = assert!(4 + 8 * ACL_ENTRIES_MAX <= XATTR_VALUE_MAX);
const _: () = assert!(RECORDSIZE_MAX as usize <= ATOMIC_WRITE_MAX);
