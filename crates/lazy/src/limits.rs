//! Every bound of lazy reading, with its reason.

use std::time::Duration;

/// Bytes of opened blocks that are kept: several times what a database reads while it starts.
pub const BLOCK_CACHE_BYTES: u64 = 64 << 20;
/// Bytes of decoded chunks of manifests that are kept: those of some 4 GB of pages of 8 KiB.
pub const CHUNK_CACHE_BYTES: u64 = 32 << 20;
/// Bytes of models that are kept.
pub const MODEL_CACHE_BYTES: u64 = 64 << 20;
/// Part of the memory for blocks that is for those which were wanted again. The rest must hold what is read ahead until
/// it is wanted.
pub const BLOCKS_OFTEN: f64 = 0.5;
/// The same part of the memory for chunks and models: nearly all, because each is wanted by many pages.
pub const OTHERS_OFTEN: f64 = 0.97;
/// Typical size in bytes of a kept block, chunk or model, by which the maps are sized.
pub const TYPICAL_BYTES: u64 = 128 << 10;
/// Number of threads that read ahead.
pub const AHEAD_THREADS: usize = 4;
/// Largest number of jobs that wait for them; beyond it nothing is read ahead.
pub const AHEAD_QUEUE: usize = 32;
/// Number of objects whose last read's end is remembered.
pub const AHEAD_OBJECTS: usize = 1024;
/// Bytes that are read ahead of a reader that goes on where it was: at first this many, then twice as many each time
/// ...
pub const AHEAD_BYTES_MIN: u64 = 512 << 10;
/// ... up to this many. Eight requests of a MiB at 20 ms each fill a line of 3 Gbit/s.
pub const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// One part in this many of the memory for blocks is the most that is read ahead of one reader, too.
pub const AHEAD_PART: u64 = 8;
/// Number of chunks of a manifest that are read at once if all of them are wanted.
pub const CHUNKS_AT_ONCE: usize = 64;
/// First pause before a store that fails is tried again.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
pub const RETRY_MAX: Duration = Duration::from_secs(5);
/// Longest time between two tries of one outage: readers that wait try more often.
pub const OUTAGE_GAP: Duration = Duration::from_secs(2 * RETRY_MAX.as_secs());
/// Number of pages of a group: one value says which of them are absent.
pub const GROUP_PAGES: u64 = 1024;
/// Largest number of bytes that are copied into a dataset by one change: that of the longest write.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Number of threads that copy pages nobody has read: two per processor of a small machine, as each waits for the store
/// half of the time.
pub const HYDRATE_THREADS: usize = 4;
/// Largest length in bytes of a repository's or backup's name in a dataset that is not complete.
pub const NAME_BYTES_MAX: usize = 4096;
/// Largest number of connections of a dataset to the process that reads its backup.
pub const CONNECTIONS_MAX: usize = 64;
/// Largest number of connections that one process which reads a backup answers.
pub const ANSWERED_MAX: usize = 2 * CONNECTIONS_MAX;
/// Number of connections beyond which that process ends those that ask nothing: others need the places.
pub const CROWDED: usize = CONNECTIONS_MAX;
/// Time without a question after which it ends them.
pub const UNASKED_MAX: Duration = Duration::from_secs(1);
/// Time that an answer over such a connection may take beyond the patience with the store.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(60);
