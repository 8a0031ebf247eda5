//! Bounds, with their reasons.

use std::time::Duration;

/// Bytes of a file that one thread reads at once: a multiple of every page size, and what FUSE reads in few requests.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Chunks that were read, or are being read, and were not written yet: 24 MiB.
pub const CHUNKS_AHEAD: usize = 24;
/// Threads that read. More than cores: they wait for the file system.
pub const READERS: usize = 4;
/// Threads that wait for files to become durable.
pub const SYNCERS: usize = 8;
/// Most threads that compress, whatever was asked for.
pub const WORKERS_MAX: usize = 64;
/// Bytes that become one frame of zstd or LZ4: a level of zstd up to 9 has a window of at most 4 MiB.
pub const FRAME_BYTES: usize = 4 << 20;
/// Bytes that one thread deflates at once; deflate looks 32 KiB back, so little is lost at the seams.
pub const DEFLATE_BYTES: usize = 1 << 20;
/// Blocks that wait, per thread that compresses.
pub const BLOCKS_PER_WORKER: usize = 2;
/// Longest path in an archive, as PostgreSQL's own (the header's field has 100 bytes, with a zero at the end).
pub const TAR_PATH_BYTES_MAX: usize = 99;
/// A file that tells of a wrong checksum is told of so many times.
pub const WARNINGS_PER_FILE: u64 = 5;
/// Longest record of the log (`XLogRecordMaxSize`).
pub const WAL_RECORD_BYTES_MAX: usize = 1020 << 20;
/// Bytes of the log that are read at once.
pub const WAL_READ_BYTES: usize = 256 << 10;
/// Segments before the last one in which the end of a transaction is looked for: a server that rests writes few records, and switches.
pub const WAL_SEGMENTS_BACK: u64 = 4;
/// Deepest folder of a data directory; the server's own are four deep.
pub const DEPTH_MAX: usize = 32;
/// Longest rest between two looks at whether to stop, where a rate is kept.
pub const NAP_MAX: Duration = Duration::from_millis(100);

const _: () = assert!(CHUNK_BYTES.is_multiple_of(32 << 10), "pages do not lie across chunks");
