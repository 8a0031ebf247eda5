//! Bounds, with their reasons.

use std::time::Duration;

/// Bytes of a file that one thread reads at once: a multiple of every page size, which FUSE reads in few requests.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Number of chunks that are being read, or were read and were not written yet: 24 MiB.
pub const CHUNKS_AHEAD: usize = 24;
/// Number of threads that read. They wait for the file system, so there may be more of them than cores.
pub const READERS: usize = 4;
/// Number of threads that wait for files to become durable.
pub const SYNCERS: usize = 8;
/// Largest number of threads that compress, whatever was asked for.
pub const WORKERS_MAX: usize = 64;
/// Bytes that become one frame of zstd or LZ4: a level of zstd up to 9 has a window of at most 4 MiB.
pub const FRAME_BYTES: usize = 4 << 20;
/// Bytes that one thread deflates at once; deflate looks 32 KiB back, so little is lost at the seams.
pub const DEFLATE_BYTES: usize = 1 << 20;
/// Number of blocks that wait, per thread that compresses.
pub const BLOCKS_PER_WORKER: usize = 2;
/// Largest length in bytes of a path in an archive: PostgreSQL's own bound (the header's field has 100 bytes, with a
/// zero at the end).
pub const TAR_PATH_BYTES_MAX: usize = 99;
/// Largest number of warnings about wrong checksums in one file.
pub const WARNINGS_PER_FILE: u64 = 5;
/// Largest length in bytes of a record of the log (`XLogRecordMaxSize`).
pub const WAL_RECORD_BYTES_MAX: usize = 1020 << 20;
/// Bytes of the log that are read at once.
pub const WAL_READ_BYTES: usize = 256 << 10;
/// Number of segments before the last one that are searched for the end of a transaction: an idle server writes few
/// records, and switches segments.
pub const WAL_SEGMENTS_BACK: u64 = 4;
/// Largest depth of folders in a data directory; the server's own are four deep.
pub const DEPTH_MAX: usize = 32;
/// Longest pause between two looks at whether to stop, while a rate is kept.
pub const NAP_MAX: Duration = Duration::from_millis(100);

const _: () = assert!(CHUNK_BYTES.is_multiple_of(32 << 10), "pages do not lie across chunks");
