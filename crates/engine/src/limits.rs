//! Defines every bound of the engine, with its reason.

/// Unit of device I/O and of alignment: the largest logical block size of common devices.
pub const BLOCK_BYTES: usize = 4096;

/// Length of a chunk, the unit in which space of a device is allocated. One fresh segment fills one chunk. 4 MiB keep a
/// sequential write efficient on any device, and give a 2 GiB pool 512 chunks.
pub const CHUNK_BYTES: u64 = (4 << 20) / SHRINK;
/// Divisor of a chunk's length, and of what is measured by chunks. With the feature `small-chunks` it is 8, so that the
/// simulator fills and ages pools in an eighth of the time. Such a program opens only pools that were made with the
/// feature.
pub(crate) const SHRINK: u64 = if cfg!(feature = "small-chunks") { 8 } else { 1 };

/// Smallest recordsize: the page of the CPU and of the smallest database pages in use.
pub const RECORDSIZE_MIN: u32 = 4 << 10;
/// Largest recordsize: one FUSE request, and a quarter of a chunk.
pub const RECORDSIZE_MAX: u32 = (1 << 20) / SHRINK as u32;
/// Recordsize of files whose first writes do not tell one.
pub const RECORDSIZE_DEFAULT: u32 = 16 << 10;

/// Longest write that is applied as a whole (contract W1).
pub const ATOMIC_WRITE_MAX: usize = RECORDSIZE_MAX as usize;

/// Largest number of pages that one change may share: its pointers lie in memory and in one batch of the log.
pub(crate) const SHARE_PAGES_MAX: u64 = (1 << 16) / SHRINK;

/// Longest stored record: a raw page of the largest recordsize and its header.
pub const RECORD_BYTES_MAX: usize = RECORDSIZE_MAX as usize + 16;

/// Longest value of the metadata kinds in a tree: a name of 255 bytes, or an extended attribute of 64 KiB, with
/// their framing.
pub const VALUE_BYTES_MAX: usize = (64 << 10) + 512;

/// Target size of a tree node before compression. A random overwrite of one page costs its leaf at the next checkpoint,
/// so leaves are small: 8 KiB refer to about 1,500 pages.
pub(crate) const NODE_BYTES: usize = 8 << 10;

/// Longest encoded tree node: a leaf is split until it fits its target or holds a single entry.
pub(crate) const NODE_ENCODED_MAX: usize = NODE_BYTES + VALUE_BYTES_MAX;

/// Largest number of children of a branch. A child costs about 10 bytes, at most 40, so a full branch stays near the
/// target whatever its keys are.
pub const NODE_FANOUT_MAX: usize = 512;
/// Most bytes that one child takes in a stored branch: a key of 22 bytes, and a pointer of 15.
pub(crate) const NODE_CHILD_BYTES_MAX: usize = 40;

/// Largest number of levels of a tree. With branches a quarter full (128 children), 9 levels address 2^63 leaves.
pub const TREE_LEVELS_MAX: u8 = 10;

/// Bytes of encoded tree nodes that a checkpoint hands to the log at once: enough for sequential writes, in little
/// memory.
pub(crate) const NODE_WRITE_BYTES: usize = CHUNK_BYTES as usize;

/// Largest number of slots of a segment: its directory, and 64 bitmaps of live slots, each fit a record, however short
/// records are.
pub const SEGMENT_SLOTS_MAX: u32 = (64 << 10) / SHRINK as u32;

/// Largest number of bytes of redo operations that are accepted between two commits: a commit's operations lie in one
/// batch, which lies in one segment beside its directory.
pub(crate) const REDO_BYTES_MAX: u64 = CHUNK_BYTES / 2;
/// Largest number of bytes of redo operations of one change, which may exceed [`REDO_BYTES_MAX`] if it is alone between two
/// commits: they fit a segment that has nothing else but its directory.
pub(crate) const REDO_ALONE_BYTES_MAX: u64 = CHUNK_BYTES / 8 * 7;

/// Largest number of records that a delta may be based on: reading its page needs as many more. Two bits of a tree's
/// key say which base it is.
pub const BASES_MAX: usize = 4;

/// Bytes of the journal of a pool whose mounts can outlive its server: room for a few of the largest changes (a copy of
/// 1 MiB with its edges), and so much that writers seldom have to commit for its sake. A power of two.
pub(crate) const JOURNAL_BYTES: usize = 32 << 20;
/// Largest journal that is accepted, in bytes.
pub(crate) const JOURNAL_BYTES_MAX: usize = 1 << 30;

/// Largest number of models of a pool: each is loaded as a whole, and segments list those that their records use.
pub const MODELS_MAX: usize = 1024 / SHRINK as usize;

/// Size of each place of a device that is reserved for labels and superblocks.
pub const RESERVED_BYTES: u64 = 1 << 20;

/// Smallest device: 32 chunks, so that log, cleaner and checkpoints have room beside data.
pub const DEVICE_BYTES_MIN: u64 = 32 * CHUNK_BYTES + 2 * RESERVED_BYTES;

/// Largest device: chunks are numbered with 32 bits. 16 PiB.
pub const DEVICE_BYTES_MAX: u64 = CHUNK_BYTES << 32;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES as u64));
const _: () = assert!(RECORD_BYTES_MAX as u64 * 2 < CHUNK_BYTES);
const _: () = assert!(RECORDSIZE_DEFAULT.is_power_of_two() && RECORDSIZE_MIN >= BLOCK_BYTES as u32);
const _: () =
    assert!(NODE_FANOUT_MAX * NODE_CHILD_BYTES_MAX <= 4 * NODE_BYTES && NODE_ENCODED_MAX < RECORD_BYTES_MAX);
