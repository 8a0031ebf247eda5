//! Every bound of backups, with its reason.

/// A pack is ended when it has so much: long enough that requests cost little, short enough that some fit into memory.
pub const PACK_BYTES: usize = 16 << 20;
/// Longest pack that is believed: [`PACK_BYTES`], one block more, and a manifest's last parts.
pub const PACK_BYTES_MAX: u64 = 256 << 20;
/// Records are sealed together up to so much: a record is read by reading its block.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Longest block, sealed or not: the largest record or a part of a root.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// A part of a root, before it is compressed.
pub const ROOT_PART_BYTES: usize = 1 << 20;
/// Longest root: at 40 bytes for each chunk of 4096 pages of 8 KiB, that of some 200 TiB.
pub const ROOT_BYTES_MAX: usize = 256 << 20;
/// A chunk of a manifest has so many entries at most ...
pub const CHUNK_ENTRIES: usize = 4096;
/// ... and is ended at this length, in bytes, before it is compressed.
pub const CHUNK_BYTES: usize = 128 << 10;
/// A chunk with fewer entries is put together with the next one that is read.
pub const CHUNK_ENTRIES_MIN: usize = CHUNK_ENTRIES / 8;
/// Longest commit: a hundred thousand backups and condemned packs fit.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;
/// Longest object that describes a repository.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;
/// Packs that are uploaded at once, each in memory.
pub const UPLOADS: usize = 3;
/// Blocks that are read for pages that come next, in bytes.
pub const WINDOW_BYTES: usize = 16 << 20;
/// Blocks that are kept after they were used, in bytes.
pub const BLOCK_CACHE_BYTES: usize = 24 << 20;
/// Requests that read, at once.
pub const READS: usize = 8;
/// Ranges of a pack that are so near are read as one.
pub const COALESCE_BYTES: u64 = 256 << 10;
/// Chunks of manifests that are kept decoded.
pub const CHUNK_CACHE: usize = 8;
/// Creates that race at `init`.
pub const PROBE_RACERS: usize = 8;
/// Times that a commit is tried again after another writer took its number.
pub const COMMIT_TRIES: u32 = 64;
/// A part of an object that a serving host gives back at once, in bytes.
pub const PART_BYTES: usize = 1 << 20;
/// Parts of an object that are asked for ahead of who reads it.
pub const PARTS_AHEAD: usize = 4;
/// Names that a serving host lists at once.
pub const NAMES_PER_ANSWER: usize = 4096;
/// Longest name of an object that a serving host takes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest name of a directory that it takes: that of Linux.
pub const DIRECTORY_BYTES_MAX: usize = 4096;
/// Longest message in words.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Longest answer of a serving host.
pub const ANSWER_BYTES_MAX: u64 = 2 << 20;
/// Requests that a serving host works on at once.
pub const SERVE_WORKERS: usize = 8;
/// Objects that a serving host has in memory at once, in bytes, unless one alone is longer.
pub const SERVE_BYTES: usize = 64 << 20;

/// A file of a log is compressed and sealed in pieces of so many bytes: long enough to find what repeats, and a segment has some for each core.
pub const WAL_BLOCK_BYTES: usize = 2 << 20;
/// Longest file of a log: the longest segment that PostgreSQL can be told to make.
pub const WAL_FILE_BYTES_MAX: usize = 1 << 30;
/// Longest object of one: a block that cannot be compressed takes some bytes more.
pub const WAL_OBJECT_BYTES_MAX: usize =
    WAL_FILE_BYTES_MAX + (WAL_FILE_BYTES_MAX / WAL_BLOCK_BYTES + 2) * 4096;
/// Longest head of such an object, sealed: 512 blocks of up to five bytes' length each, and a name.
pub const WAL_HEAD_BYTES_MAX: usize = 4096;
/// Databases in one dataset that a backup notes.
pub const CLUSTERS_MAX: usize = 1000;
/// Longest path of a data directory.
pub const DATA_PATH_BYTES_MAX: usize = 4096;

const _: () = assert!(WAL_BLOCK_BYTES + 4096 < BLOCK_BYTES_MAX);
const _: () = assert!(WAL_FILE_BYTES_MAX / WAL_BLOCK_BYTES * 5 + 512 < WAL_HEAD_BYTES_MAX);
/// Records that one repacking copies at most: so much memory, some 100 bytes for each.
pub const REPACK_RECORDS: u64 = 512 << 10;
/// Bytes of records that a prune copies out of packs that are mostly dead, unless another bound is said.
pub const REPACK_BYTES: u64 = 1 << 30;
/// A shorter pack is small ...
pub const REPACK_SMALL_BYTES: u64 = PACK_BYTES as u64 / 4;
/// ... and so many small ones are put together: continuous backups write one each time.
pub const REPACK_SMALL_MIN: usize = 32;
/// Commits that a check reads, from the newest on: continuous backups make three million a year.
pub const CHECK_COMMITS: u64 = 10_000;

const _: () = assert!(NAMES_PER_ANSWER * (NAME_BYTES_MAX + 9) + 64 < ANSWER_BYTES_MAX as usize);
const _: () = assert!(PART_BYTES + 64 < ANSWER_BYTES_MAX as usize && NAME_BYTES_MAX < 256);
const _: () = assert!(BLOCK_BYTES < BLOCK_BYTES_MAX && ROOT_PART_BYTES * 2 < BLOCK_BYTES_MAX);
const _: () = assert!(pagefold_engine::limits::RECORD_BYTES_MAX + BLOCK_BYTES < BLOCK_BYTES_MAX);
