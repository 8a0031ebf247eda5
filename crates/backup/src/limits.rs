//! Every bound of backups, with its reason.

/// Length in bytes at which a pack is ended: long enough that requests cost little, short enough that some packs fit
/// into memory.
pub const PACK_BYTES: usize = 16 << 20;
/// Alignment of direct writes in bytes, in memory and in a file: a multiple of all devices' blocks.
pub const DIRECT_ALIGN_BYTES: usize = 4096;
/// Largest length in bytes of a pack that is accepted: [`PACK_BYTES`], one block more, and a manifest's last parts.
pub const PACK_BYTES_MAX: u64 = 256 << 20;
/// Largest length in bytes of records that are sealed together, unless one alone is longer: to read a record, its whole
/// block is read.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Largest length of a block in bytes, sealed or not: the largest record or a part of a root.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Length of a part of a root in bytes, before it is compressed.
pub const ROOT_PART_BYTES: usize = 1 << 20;
/// Largest length of a root in bytes: at 40 bytes for each chunk of 4096 pages of 8 KiB, that is the root of some 200
/// TiB.
pub const ROOT_BYTES_MAX: usize = 256 << 20;
/// Largest number of entries in a chunk of a manifest.
pub const CHUNK_ENTRIES: usize = 4096;
/// Length in bytes at which a chunk is ended, before it is compressed.
pub const CHUNK_BYTES: usize = 128 << 10;
/// Number of entries below which a chunk is put together with the next one that is read.
pub const CHUNK_ENTRIES_MIN: usize = CHUNK_ENTRIES / 8;
/// Largest length of a commit in bytes: a hundred thousand backups and condemned packs fit.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;
/// Largest length in bytes of the object that describes a repository.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;
/// Number of packs that are uploaded at once, each of them in memory.
pub const UPLOADS: usize = 3;
/// Bytes of blocks that are read ahead for the next pages.
pub const WINDOW_BYTES: usize = 32 << 20;
/// Bytes of blocks that a restore fetches at once ...
pub const RESTORE_WINDOW_BYTES: usize = 8 << 20;
/// ... and number of models, which may take a MiB each once they are opened.
pub const WINDOW_MODELS: usize = 8;
/// Number of such windows that a restore fetches while it writes one: together they fill a line of 10 Gbit/s whose
/// answers take 20 ms.
pub const WINDOWS_AHEAD: usize = 4;
/// Bytes of blocks that are kept after they were used.
pub const BLOCK_CACHE_BYTES: usize = 24 << 20;
/// Number of read requests at once.
pub const READS: usize = 8;
/// Largest distance in bytes between ranges of a pack that are read as one.
pub const COALESCE_BYTES: u64 = 256 << 10;
/// Number of chunks of manifests that are kept decoded.
pub const CHUNK_CACHE: usize = 8;
/// Number of chunks that are read at once by whoever reads one after the other ...
pub const CHUNKS_AHEAD: usize = 16;
/// ... and their bytes, as they are stored.
pub const CHUNKS_AHEAD_BYTES: usize = 2 << 20;
/// Number of creates that race at `init`.
pub const PROBE_RACERS: usize = 8;
/// Number of times that a commit is tried before it gives up because other writers took its number.
pub const COMMIT_TRIES: u32 = 64;
/// Bytes of a part of an object that a serving host returns at once.
pub const PART_BYTES: usize = 1 << 20;
/// Number of parts of an object that are asked for before its reader needs them.
pub const PARTS_AHEAD: usize = 4;
/// Number of names that a serving host lists at once.
pub const NAMES_PER_ANSWER: usize = 4096;
/// Largest length in bytes of an object's name that a serving host accepts.
pub const NAME_BYTES_MAX: usize = 200;
/// Largest length in bytes of a directory's name that a serving host accepts: the bound of Linux.
pub const DIRECTORY_BYTES_MAX: usize = 4096;
/// Largest length in bytes of a message in words.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Largest length in bytes of an answer of a serving host.
pub const ANSWER_BYTES_MAX: u64 = 2 << 20;
/// Number of requests that a serving host works on at once.
pub const SERVE_WORKERS: usize = 8;
/// Bytes of objects that a serving host has in memory at once, unless one alone is longer.
pub const SERVE_BYTES: usize = 64 << 20;

/// Bytes of a piece in which a file of a log is compressed and sealed: long enough to find repetitions, and short
/// enough that a segment has some for each core.
pub const WAL_BLOCK_BYTES: usize = 2 << 20;
/// Largest length of a file of a log in bytes: the longest segment that PostgreSQL can be told to make.
pub const WAL_FILE_BYTES_MAX: usize = 1 << 30;
/// Largest length in bytes of the object of such a file: a block that cannot be compressed takes some bytes more.
pub const WAL_OBJECT_BYTES_MAX: usize =
    WAL_FILE_BYTES_MAX + WAL_MODEL_BYTES_MAX + (WAL_FILE_BYTES_MAX / WAL_BLOCK_BYTES + 2) * 4096;
/// Largest length in bytes of a sealed model of a log: that of the codec's models, and a seal.
pub const WAL_MODEL_BYTES_MAX: usize = (512 << 10) + 64;
/// Largest length in bytes of the sealed head of such an object: 512 blocks, whose lengths take up to five bytes each,
/// and a name.
pub const WAL_HEAD_BYTES_MAX: usize = 4096;
/// Largest length in bytes of an archived part of a binary log: a part is in memory as a whole.
pub const BINLOG_PART_BYTES_MAX: usize = 8 << 20;
/// Largest number of databases in one dataset that a backup notes.
pub const CLUSTERS_MAX: usize = 1000;
/// Largest length in bytes of a data directory's path.
pub const DATA_PATH_BYTES_MAX: usize = 4096;

const _: () = assert!(WAL_BLOCK_BYTES + 4096 < BLOCK_BYTES_MAX);
const _: () = assert!(WAL_FILE_BYTES_MAX / WAL_BLOCK_BYTES * 5 + 512 < WAL_HEAD_BYTES_MAX);
/// Largest number of records that one repacking copies; it bounds the memory, some 100 bytes for each.
pub const REPACK_RECORDS: u64 = 512 << 10;
/// Bytes of records that a prune copies out of packs that are mostly dead, unless the caller says another bound.
pub const REPACK_BYTES: u64 = 1 << 30;
/// Length in bytes below which a pack is small.
pub const REPACK_SMALL_BYTES: u64 = PACK_BYTES as u64 / 4;
/// Number of small packs at which they are put together: continuous backups write one each time.
pub const REPACK_SMALL_MIN: usize = 32;
/// Number of commits that a check reads, from the newest on: continuous backups make three million a year.
pub const CHECK_COMMITS: u64 = 10_000;
/// Largest number of lost commits whose numbers a repair takes: more of them were never written.
pub(crate) const LOST_COMMITS_MAX: usize = 1000;

const _: () = assert!(NAMES_PER_ANSWER * (NAME_BYTES_MAX + 9) + 64 < ANSWER_BYTES_MAX as usize);
const _: () = assert!(PART_BYTES + 64 < ANSWER_BYTES_MAX as usize && NAME_BYTES_MAX < 256);
const _: () = assert!(BLOCK_BYTES < BLOCK_BYTES_MAX && ROOT_PART_BYTES * 2 < BLOCK_BYTES_MAX);
const _: () = assert!(pagefold_engine::limits::RECORD_BYTES_MAX + BLOCK_BYTES < BLOCK_BYTES_MAX);
