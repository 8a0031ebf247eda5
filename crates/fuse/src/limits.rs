//! Every bound of the front end, with its reason.

use std::time::Duration;

/// The CPU's page. Requests carry whole pages; buffers and payloads are aligned to it.
pub const PAGE_BYTES: usize = 4096;

/// Longest WRITE and READ: what contract W1 applies as a whole.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Pages that a request of [`REQUEST_BYTES_MAX`] touches if it is not aligned: one more than if it is.
pub const REQUEST_PAGES_MAX: usize = REQUEST_BYTES_MAX / PAGE_BYTES + 1;

/// Room for the data of a request or of its reply.
pub const PAYLOAD_BYTES: usize = REQUEST_PAGES_MAX * PAGE_BYTES;

/// Asynchronous requests (direct I/O, read-ahead, write-back) that the kernel has under way at a time. Its default of 12
/// would bound queue depth; NVMe devices want some hundreds.
pub const BACKGROUND_REQUESTS_MAX: u16 = 512;
/// From here on the kernel holds back read-ahead.
pub const CONGESTION_THRESHOLD: u16 = 384;

/// How long the kernel may believe names and attributes: nobody but the kernel itself changes them.
pub const CACHE_VALID: Duration = Duration::from_secs(24 * 60 * 60);
/// The same for attributes of regular files, because of one of them: what a file takes on the device changes when its
/// pages are compressed and folded. Once a minute costs nothing.
pub const ATTRIBUTES_VALID: Duration = Duration::from_secs(60);
/// The same where the file changed within the last minute.
pub const ATTRIBUTES_VALID_CHANGING: Duration = Duration::from_secs(1);

/// Parts of a file in bytes of which is noted apart who reads them into the kernel's page cache: what one request reads.
pub const CACHE_CHUNK_BYTES: u64 = REQUEST_BYTES_MAX as u64;
/// Notes about what the kernel has cached, by a hash: 1.2 MiB a mount. Requests under way are some hundreds.
pub const CACHE_NOTES: usize = 2048;
/// Reads that each note remembers: that many beside one buffered write of the same part of a file are told apart.
pub const CACHE_READS: usize = 16;
/// How much smaller than a direct write's number that of a read may be which the kernel sent after it. Numbers are given when
/// requests are sent, but asynchronous ones beyond [`BACKGROUND_REQUESTS_MAX`] may wait for a few others before.
pub const ORDER_MARGIN: u64 = 2 * 16 * BACKGROUND_REQUESTS_MAX as u64;
/// The same where the kernel drops pages only before it sends a write: a million requests may pass it in between.
pub const ORDER_MARGIN_EARLY: u64 = 2 << 20;
/// The same for a buffered write of a file that is used directly, too: from the filling of its pages to its sending.
pub const ORDER_MARGIN_FILLED: u64 = ORDER_MARGIN_EARLY;
/// Threads that wait for the kernel to drop pages at most. Each waits for a read, so that more would not be faster.
pub const DROP_THREADS_MAX: usize = 64;
/// How long an answer waits for pages that nobody reads who has reached us: longer than a processor takes to go on with a
/// read that was answered. Twice.
pub const DROP_PATIENCE: Duration = Duration::from_millis(50);

/// Read-ahead of the mount in KiB; one request.
pub const READ_AHEAD_KIB: u32 = 1024;

/// Threads that answer requests over /dev/fuse at most: that many requests can wait for a device or a flush.
pub const DEVICE_THREADS_MAX: usize = 64;
/// Threads that read devices for rings at most. Measured with 64 reads of 8 KiB under way: 16 threads give 1.4 times the
/// rate of 64, which wake each other more than they read.
pub const READ_THREADS_MAX: usize = 16;
/// Threads on which requests of rings wait for flushes and for room at most: apart from reads, which they must not keep
/// waiting, and more, since those who wait together are served together.
pub const WAIT_THREADS_MAX: usize = 64;
/// A thread of the blocking pool ends after having had nothing to do for this long.
pub const BLOCKING_IDLE: Duration = Duration::from_secs(10);

/// Entries of all rings together at most, each with room for a request of 1 MiB. Room that was never used takes no memory.
pub const RING_ENTRIES_MAX: usize = 256;
/// Entries of the ring of one CPU at most: the requests under way there, more wait in the kernel. 64 requests at depth 16 of 4
/// jobs on 2 CPUs fit.
pub const RING_DEPTH_MAX: usize = 32;
/// And at least, however many CPUs there are.
pub const RING_DEPTH_MIN: usize = 4;

/// Memory that requests' buffers of all mounts of a process keep together, in bytes, so that large requests need not take new pages from the
/// system each time: as many of the largest as two CPUs have under way when a file is read ahead. What is beyond is given back once it is not in use.
pub const KEPT_BYTES: u64 = 16 << 20;
/// Of it each buffer may keep so much whatever the others keep, in bytes: the headers, and a request of a few database pages.
pub const KEPT_SMALL_BYTES: usize = 5 * PAGE_BYTES;
/// A ring that has answered nothing for so long gives the memory of its buffers back.
pub const RING_IDLE: Duration = Duration::from_secs(5);

/// Threads that wait in /dev/fuse for requests at most; others rest, and are woken when all of these are busy. Each has a buffer.
pub const DEVICE_READERS_MAX: usize = 8;
/// The same where each buffer is resident as a whole, for a server that may be followed by another.
pub const DEVICE_READERS_POPULATED_MAX: usize = 2;
/// A thread on /dev/fuse ends after having rested for this long.
pub const DEVICE_IDLE: Duration = Duration::from_secs(10);

/// How long the kernel has to say INIT after a mount, and the ring to come up.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(20);

const _: () = assert!(PAYLOAD_BYTES >= REQUEST_BYTES_MAX + PAGE_BYTES);
const _: () = assert!(KEPT_SMALL_BYTES.is_multiple_of(PAGE_BYTES) && KEPT_SMALL_BYTES > PAGE_BYTES);
const _: () = assert!(CONGESTION_THRESHOLD < BACKGROUND_REQUESTS_MAX);
