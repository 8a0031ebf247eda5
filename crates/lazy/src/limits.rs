//! Every bound of lazy reading, with its reason.

use std::time::Duration;

/// Opened blocks that are kept, in bytes: what a database reads while it starts fits several times.
pub const BLOCK_CACHE_BYTES: u64 = 64 << 20;
/// Decoded chunks of manifests that are kept, in bytes: those of some 4 GB of pages of 8 KiB.
pub const CHUNK_CACHE_BYTES: u64 = 32 << 20;
/// Models that are kept, in bytes.
pub const MODEL_CACHE_BYTES: u64 = 64 << 20;
/// Typical size of what is kept, to size the maps: a block, a chunk, a model.
pub const TYPICAL_BYTES: u64 = 128 << 10;
/// Threads that read what comes next.
pub const AHEAD_THREADS: usize = 4;
/// Jobs that wait for them at most; more is not read ahead.
pub const AHEAD_QUEUE: usize = 32;
/// Objects of which it is remembered where the last read ended.
pub const AHEAD_OBJECTS: usize = 1024;
/// Bytes that are read ahead of a reader who goes on where it was: at first, and then twice as many each time, ...
pub const AHEAD_BYTES_MIN: u64 = 512 << 10;
/// ... and so much at most. Eight requests of a MiB at 20 ms each fill a line of 3 Gbit/s.
pub const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// Chunks of a manifest that are read at once where all of them are wanted.
pub const CHUNKS_AT_ONCE: usize = 64;
/// Reads of one store that fails: the first pause, and the longest.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two tries.
pub const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pages of a group: what one value says of which are absent.
pub const GROUP_PAGES: u64 = 1024;
/// Bytes that are copied into a dataset by one change at most: as long as the longest write.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Threads that copy what nobody has read: two per processor of a small machine, as each waits for the store half of the time.
pub const HYDRATE_THREADS: usize = 4;
/// Longest name of a repository or backup in a dataset that is not complete, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// Connections of a dataset to who reads its backup, at most.
pub const CONNECTIONS_MAX: usize = 64;
/// An answer over such a connection may take so long beside the patience with the store.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(60);
