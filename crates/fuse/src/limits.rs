//! Every bound of the front end, with its reason.

use std::time::Duration;

/// The CPU's page. Requests carry whole pages; buffers and payloads are aligned to it.
pub const PAGE_BYTES: usize = 4096;

/// Longest WRITE and READ, in bytes: contract W1 applies a write of this length as a whole.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Number of pages that a request of [`REQUEST_BYTES_MAX`] touches if it is not aligned: one more than if it is.
pub const REQUEST_PAGES_MAX: usize = REQUEST_BYTES_MAX / PAGE_BYTES + 1;

/// Room for the data of a request or of its reply, in bytes.
pub const PAYLOAD_BYTES: usize = REQUEST_PAGES_MAX * PAGE_BYTES;

/// Number of asynchronous requests (direct I/O, read-ahead, write-back) that the kernel has under way at a time. Its
/// default of 12 would bound queue depth; NVMe devices want some hundreds.
pub const BACKGROUND_REQUESTS_MAX: u16 = 512;
/// Number of asynchronous requests under way from which on the kernel holds back read-ahead.
pub const CONGESTION_THRESHOLD: u16 = 384;

/// Time for which the kernel may believe names and attributes: nobody but the kernel itself changes them.
pub const CACHE_VALID: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which the kernel may believe attributes of regular files. It is shorter because of one attribute: the space
/// that a file takes on the device changes when its pages are compressed and recompressed. Asking once a minute costs
/// nothing.
pub const ATTRIBUTES_VALID: Duration = Duration::from_secs(60);
/// Time for which the kernel may believe attributes of a regular file that changed within the last minute.
pub const ATTRIBUTES_VALID_CHANGING: Duration = Duration::from_secs(1);

/// Bytes of the parts of a file for which reads into the kernel's page cache are noted separately: the longest request.
pub const CACHE_CHUNK_BYTES: u64 = REQUEST_BYTES_MAX as u64;
/// Number of notes about what the kernel has cached, found by a hash: 1.2 MiB per mount. Requests under way are some
/// hundreds.
pub const CACHE_NOTES: usize = 2048;
/// Number of reads that each note remembers: up to this many reads beside one buffered write of the same part of a file
/// are told apart.
pub const CACHE_READS: usize = 16;
/// Largest amount by which the number of a read may be smaller than that of a direct write although the kernel sent the
/// read later. Numbers are given when requests are sent, but asynchronous requests beyond [`BACKGROUND_REQUESTS_MAX`]
/// may wait for a few others before.
pub const ORDER_MARGIN: u64 = 2 * 16 * BACKGROUND_REQUESTS_MAX as u64;
/// As [`ORDER_MARGIN`], if the kernel drops pages only before it sends a write: a million requests may pass the write
/// in between.
pub const ORDER_MARGIN_EARLY: u64 = 2 << 20;
/// As [`ORDER_MARGIN`], for a buffered write of a file that is used directly, too: from the filling of its pages to its
/// sending.
pub const ORDER_MARGIN_FILLED: u64 = ORDER_MARGIN_EARLY;
/// Time after the last direct use of a file for which a buffered write of it may still be sending pages that were
/// filled before.
pub const DIRECT_REST: Duration = Duration::from_secs(10);
/// Largest number of threads that wait for the kernel to drop pages. Each waits for a read, so that more would not be
/// faster.
pub const DROP_THREADS_MAX: usize = 64;
/// Time that an answer waits, twice, for locked pages although we are answering no read of them: longer than a
/// processor takes to go on with a read that was answered.
pub const DROP_PATIENCE: Duration = Duration::from_millis(50);

/// Number of times [`DROP_PATIENCE`] that an answer waits for locked pages while requests for them are being answered that
/// came later than the write was applied. There may always be some.
pub const DROP_PATIENCE_LATER: u32 = 20;

/// Read-ahead of the mount, in KiB: one request.
pub const READ_AHEAD_KIB: u32 = 1024;

/// Largest number of threads that answer requests over /dev/fuse: this many requests can wait for a device or a flush.
pub const DEVICE_THREADS_MAX: usize = 64;
/// Largest number of threads that read devices for rings. Measured with 64 reads of 8 KiB under way: 16 threads give
/// 1.4 times the rate of 64, which wake each other more than they read.
pub const READ_THREADS_MAX: usize = 16;
/// Largest number of threads on which requests of rings wait for flushes and for room. They are apart from reads, which
/// they must not keep waiting, and more, since requests that wait together are served together.
pub const WAIT_THREADS_MAX: usize = 64;
/// Largest number of threads on which direct writes that came over rings wait for the kernel to drop pages. Each waits
/// for a message, so that there are as many as threads that send these.
pub const DROP_WAITS_MAX: usize = DROP_THREADS_MAX;
/// Time without work after which a thread of the blocking pool ends.
pub const BLOCKING_IDLE: Duration = Duration::from_secs(10);

/// Largest number of entries of all rings together, each with room for a request of 1 MiB. Room that was never used
/// takes no memory.
pub const RING_ENTRIES_MAX: usize = 256;
/// Largest number of entries of the ring of one CPU, and so of the requests under way there; more wait in the kernel.
/// 64 requests at depth 16 of 4 jobs on 2 CPUs fit.
pub const RING_DEPTH_MAX: usize = 32;
/// Smallest number of entries of the ring of one CPU, however many CPUs there are.
pub const RING_DEPTH_MIN: usize = 4;

/// Memory in bytes that requests' buffers of all mounts of a process keep together, so that large requests need not
/// take new pages from the system each time: as many of the largest as two CPUs have under way when a file is read
/// ahead. A buffer gives back what exceeds this once it is not in use.
pub const KEPT_BYTES: u64 = 16 << 20;
/// Memory in bytes that each buffer may keep whatever the others keep: the headers, and a request of a few database
/// pages.
pub const KEPT_SMALL_BYTES: usize = 5 * PAGE_BYTES;
/// Time without answers after which a ring gives the memory of its buffers back.
pub const RING_IDLE: Duration = Duration::from_secs(5);

/// Largest number of threads that wait in /dev/fuse for requests; others rest, and are woken when all of these are
/// busy. Each has a buffer.
pub const DEVICE_READERS_MAX: usize = 8;
/// Largest number of threads that wait in /dev/fuse if each buffer is resident as a whole, for a server that may be
/// followed by another.
pub const DEVICE_READERS_POPULATED_MAX: usize = 2;
/// Pause of a thread on /dev/fuse that found no memory for another request: as long as others may need to give some
/// back, and short beside the patience of a program.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(100);
/// Time of rest after which a thread on /dev/fuse ends.
pub const DEVICE_IDLE: Duration = Duration::from_secs(10);

/// Time that the kernel has to say INIT after a mount, and the rings to come up.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(20);

const _: () = assert!(PAYLOAD_BYTES >= REQUEST_BYTES_MAX + PAGE_BYTES);
const _: () = assert!(KEPT_SMALL_BYTES.is_multiple_of(PAGE_BYTES) && KEPT_SMALL_BYTES > PAGE_BYTES);
const _: () = assert!(CONGESTION_THRESHOLD < BACKGROUND_REQUESTS_MAX);
