//! Makes the kernel drop cached pages and attributes that became old by a direct write for which no caller waits.
//!
//! A direct write passes the page cache. The kernel drops what it has cached of the range before it sends the request,
//! and once more afterwards: if the caller waits (pwrite), after our answer; if it does not (io_uring, libaio), as soon
//! as the request is on its way. Pages that are read into the cache after that, and answered before the write is
//! applied, would stay there, old. The same holds for attributes. So we tell the kernel to drop them before we answer
//! the write:
//! 1. A request that reads into the cache, or writes from it, is noted before the file is looked at. A direct write
//!    looks for notes after it was applied. So it always sees the note of a read that may be older than the write.
//! 2. Numbers of requests grow in the order in which the kernel sends them. A read that was sent before the write had
//!    its pages in the cache by then, and the kernel has dropped them itself. So only later reads matter, and these are
//!    rare: they race with the write. If nobody reads into the cache, there is nothing to tell.
//! 3. Telling waits for pages that a read keeps locked: a read that we are answering, or one that has not reached us
//!    yet. There may be no room to receive the latter as long as waiting writes take all of it. So telling has threads
//!    of its own, and a write waits only as long as we are answering requests of its range, and [`DROP_PATIENCE`]
//!    longer. A read that comes later gets what was written; its page is dropped all the same once the read has been
//!    answered. So such requests count for a while only ([`DROP_PATIENCE_LATER`]): there may always be some.
//! 4. Requests that are being answered must not wait for writes that wait for them. They never wait to tell the kernel
//!    (a buffered write that has to is not counted any more), and those of rings that wait for anything else have
//!    threads on which nobody waits for the kernel ([`Wait::Drop`](crate::Wait)). Over `/dev/fuse` each request that is
//!    being answered has its thread.
//!
//! Notes are kept by a hash of inode and range: two ranges with the same hash cost a needless message, never more.
//!
//! A buffered write of a part of a page may keep this page locked until it is answered. Telling the kernel to drop it
//! then waits for nothing but the end of its patience, so buffered writes ask for it only where direct I/O is in use.

use crate::blocking::Pool;
use crate::direct_uses::DirectUses;
use crate::kernel::{Kernel, drop_pages};
use crate::limits::{
    CACHE_CHUNK_BYTES, CACHE_NOTES, CACHE_READS, DROP_PATIENCE, DROP_PATIENCE_LATER, DROP_THREADS_MAX,
    ORDER_MARGIN, ORDER_MARGIN_EARLY, ORDER_MARGIN_FILLED,
};
use crate::own_files;
use parking_lot::{Condvar, Mutex};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

/// Name of the threads that do nothing but tell the kernel to drop pages. Such a thread waits, and cannot be killed,
/// while a request that concerns these pages has not been answered: a process that dies before it answers ends only
/// when that request does.
pub const DROP_THREADS: &str = "pf-drop";

/// Facts about the requests that concern the cached pages of a chunk.
#[derive(Default)]
struct Note {
    /// Number of the last of these requests.
    last: AtomicU64,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    /// Numbers of those that are being answered.
    under_way: Vec<u64>,
    /// The last reads; a new one replaces the oldest.
    reads: [ReadInto; CACHE_READS],
    /// Place of the oldest of them.
    next: usize,
}

#[derive(Clone, Copy, Default)]
struct ReadInto {
    number: u64,
    ino: u64,
    start: u64,
    end: u64,
}

/// A range of a file in chunks.
#[derive(Clone)]
struct Chunks {
    ino: u64,
    chunks: RangeInclusive<u64>,
}

impl Chunks {
    fn new(ino: u64, offset: u64, len: u64) -> Self {
        let last = offset.saturating_add(len.saturating_sub(1));
        Self { ino, chunks: offset / CACHE_CHUNK_BYTES..=last / CACHE_CHUNK_BYTES }
    }
}

fn place(ino: u64, chunk: u64) -> usize {
    let mixed = (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ chunk).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 32) as usize % CACHE_NOTES
}

/// A direct write that was applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct {
    /// The inode.
    pub(crate) ino: u64,
    /// Byte offset of the write.
    pub(crate) offset: u64,
    /// Number of bytes written.
    pub(crate) len: u64,
    /// True if the handle was opened for direct I/O, and not made so later by fcntl(2). For other handles the kernel
    /// drops pages only before it sends the write.
    pub(crate) opened_direct: bool,
}

/// Kinds of things that the kernel may have cached since it sent a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stale {
    Nothing,
    Attributes,
    Pages,
}

/// The notes of one mount.
pub(crate) struct Coherence {
    kernel: Arc<OnceLock<Kernel>>,
    pages: Vec<Note>,
    /// Inodes that are used directly.
    pub(crate) direct: DirectUses,
    /// Numbers of the last requests that returned attributes of inodes, by hash.
    attributes: Vec<AtomicU64>,
    /// Number of the last request that returned attributes of the inode that a name led to.
    named: AtomicU64,
    /// Number of times that the kernel was told to drop pages.
    drops: AtomicU64,
    /// The last error of telling the kernel that was not logged yet: the threads that tell have no file to log to.
    failed: Arc<Mutex<Option<io::Error>>>,
    threads: Arc<Pool>,
}

impl fmt::Debug for Coherence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coherence({} drops)", self.drops())
    }
}

/// A request, as the kernel sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Its inode.
    pub(crate) ino: u64,
    /// Its place in the order in which the kernel sent requests.
    pub(crate) number: u64,
    /// True if the kernel asks it again, after a server died.
    pub(crate) again: bool,
}

/// Marks a request that concerns cached pages as being answered.
pub(crate) struct Caching {
    coherence: Arc<Coherence>,
    chunks: Chunks,
    number: u64,
}

impl Drop for Caching {
    fn drop(&mut self) {
        for note in self.coherence.notes(&self.chunks) {
            let mut requests = note.requests.lock();
            if let Some(at) = requests.under_way.iter().position(|number| *number == self.number) {
                requests.under_way.swap_remove(at);
            }
        }
    }
}

impl Coherence {
    pub(crate) fn new() -> Self {
        let kernel = Arc::new(OnceLock::new());
        let of_births = Arc::clone(&kernel);
        let birth = move || of_births.get().and_then(own_files::part);
        Self {
            kernel,
            pages: (0..CACHE_NOTES).map(|_| Note::default()).collect(),
            direct: DirectUses::default(),
            attributes: (0..CACHE_NOTES).map(|_| AtomicU64::new(0)).collect(),
            named: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            failed: Arc::default(),
            threads: Pool::with_births(DROP_THREADS, DROP_THREADS_MAX, birth),
        }
    }

    /// Sets the kernel's end of the connection. Must be called before the first request.
    pub(crate) fn agreed(&self, kernel: &Kernel) {
        // A handler serves one connection.
        let _first = self.kernel.set(kernel.clone());
    }

    /// Returns the number of times that the kernel was told to drop pages.
    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(SeqCst)
    }

    fn notes(&self, chunks: &Chunks) -> impl Iterator<Item = &Note> {
        let ino = chunks.ino;
        chunks.chunks.clone().map(move |chunk| &self.pages[place(ino, chunk)])
    }

    /// Notes that `sent` reads into the page cache, or writes from it. Must be called before the file is looked at.
    pub(crate) fn caches(self: &Arc<Self>, sent: Sent, offset: u64, len: u64, reads: bool) -> Caching {
        let Sent { ino, number, .. } = sent;
        let chunks = Chunks::new(ino, offset, len);
        for note in self.notes(&chunks) {
            let mut requests = note.requests.lock();
            if reads {
                let next = requests.next;
                requests.reads[next] =
                    ReadInto { number, ino, start: offset, end: offset.saturating_add(len) };
                requests.next = (next + 1) % CACHE_READS;
            }
            requests.under_way.push(number);
            drop(requests);
            note.last.fetch_max(number, SeqCst);
        }
        Caching { coherence: Arc::clone(self), chunks, number }
    }

    /// Returns the numbers of the requests for these chunks that are being answered.
    fn under_way(&self, chunks: &Chunks) -> Vec<u64> {
        self.notes(chunks).flat_map(|note| note.requests.lock().under_way.clone()).collect()
    }

    /// Notes that `sent` returns attributes of its inode. Must be called before these are looked at.
    pub(crate) fn tells_attributes(&self, sent: Sent) {
        self.attributes[place(sent.ino, 0)].fetch_max(sent.number, SeqCst);
    }

    /// As [`Self::tells_attributes`], for inodes that are not known yet.
    pub(crate) fn tells_of_names(&self, sent: Sent) {
        self.named.fetch_max(sent.number, SeqCst);
    }

    /// Returns what the kernel may have cached of the range that `sent` has written, since it sent the request. Must
    /// be called after the write was applied.
    pub(crate) fn stale(&self, sent: Sent, write: &Direct) -> Stale {
        fence(SeqCst);
        // It is not known which reads ran beside a write that is asked again.
        if sent.again {
            return Stale::Pages;
        }
        let (number, margin) = (sent.number, margin(write.opened_direct));
        let since = |last: &AtomicU64, margin: u64| match last.load(SeqCst) {
            0 => false,
            last => last.saturating_add(margin) > number,
        };
        let chunks = Chunks::new(write.ino, write.offset, write.len);
        if self.notes(&chunks).any(|note| since(&note.last, margin)) {
            Stale::Pages
        } else if since(&self.attributes[place(write.ino, 0)], 0) || since(&self.named, 0) {
            Stale::Attributes
        } else {
            Stale::Nothing
        }
    }

    /// Returns true if pages that `sent` writes from the cache were read after it was sent: then they were dropped
    /// from the cache while it was on its way (by a direct write beside it, or by a mapping of a direct handle), and
    /// the pages that were read are old. The kernel fills pages before it gives the write its number, and may rest in
    /// between (for a processor, or for the caller's memory): so if an inode is used directly, reads with lower numbers
    /// count, too. Must be called after the write was applied.
    pub(crate) fn was_read_beside(&self, sent: Sent, write: &Direct) -> bool {
        fence(SeqCst);
        let margin = if self.direct.counts(write.ino) { ORDER_MARGIN_FILLED } else { 0 };
        let (number, end) = (sent.number.saturating_sub(margin), write.offset.saturating_add(write.len));
        let chunks = Chunks::new(write.ino, write.offset, write.len);
        let beside = |note: &Note| {
            let requests = note.requests.lock();
            let newer = |read: &ReadInto| read.number > number;
            let meets =
                |read: &ReadInto| read.ino == write.ino && read.start < end && write.offset < read.end;
            // If all reads that are kept are newer, others may have been forgotten.
            requests.reads.iter().all(newer) || requests.reads.iter().any(|read| newer(read) && meets(read))
        };
        sent.again || self.notes(&chunks).any(beside)
    }

    /// Makes the kernel forget the attributes of an inode. Does not wait.
    pub(crate) fn drop_attributes(&self, ino: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.holds(ino);
        }
    }

    /// Makes the kernel drop what it has cached of a range, and the inode's attributes. Returns when it has, or when
    /// the only pages left to be dropped are being read anew.
    pub(crate) fn drop_pages(&self, write: &Direct) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        let mut rest = Rest::new(self, Chunks::new(write.ino, write.offset, write.len));
        self.drops.fetch_add(1, SeqCst);
        let told = Arc::new((Mutex::new(false), Condvar::new()));
        let (tell, write, failed) = (Arc::clone(&told), *write, Arc::clone(&self.failed));
        self.threads.run(Box::new(move || {
            let dropped =
                own_files::tell(&kernel, |device| drop_pages(device, write.ino, write.offset, write.len));
            if let Err(error) = dropped {
                *failed.lock() = Some(error);
            }
            *tell.0.lock() = true;
            tell.1.notify_one();
        }));
        let mut done = told.0.lock();
        while !*done {
            if told.1.wait_for(&mut done, DROP_PATIENCE).timed_out() && rest.is_over(self) && !*done {
                tracing::debug!(?write, "answering a write although pages beside it are being read");
                break;
            }
        }
        // It may be that of an earlier write, which was answered before its pages were dropped.
        if let Some(error) = self.failed.lock().take() {
            tracing::error!(%error, "the kernel does not drop what it has cached: readers may see old bytes");
        }
    }
}

/// The wait of a write for pages that requests have locked, which always ends: at once when none is being answered, soon
/// when only later ones are.
struct Rest {
    chunks: Chunks,
    /// Numbers of the requests that were being answered when the write had been applied.
    before: Vec<u64>,
    /// Number of further looks at which later requests count.
    later: u32,
    was_quiet: bool,
}

impl Rest {
    fn new(coherence: &Coherence, chunks: Chunks) -> Self {
        let before = coherence.under_way(&chunks);
        Self { chunks, before, later: DROP_PATIENCE_LATER, was_quiet: false }
    }

    /// Returns true if the wait is over. Is asked each time that [`DROP_PATIENCE`] has passed.
    fn is_over(&mut self, coherence: &Coherence) -> bool {
        let under_way = coherence.under_way(&self.chunks);
        let has_older = under_way.iter().any(|number| self.before.contains(number));
        if !has_older {
            self.later = self.later.saturating_sub(1);
        }
        let quiet = !has_older && (under_way.is_empty() || self.later == 0);
        std::mem::replace(&mut self.was_quiet, quiet) && quiet
    }
}

/// Returns by how much the number of a read may be smaller than the write's although the kernel did not drop its pages
/// by itself.
const fn margin(opened_direct: bool) -> u64 {
    if opened_direct { ORDER_MARGIN } else { ORDER_MARGIN_EARLY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(coherence: &Arc<Coherence>, number: u64) -> Caching {
        coherence.caches(Sent { ino: 5, number, again: false }, 0, 4096, true)
    }

    fn looks(rest: &mut Rest, coherence: &Coherence) -> u32 {
        (1..).find(|_| rest.is_over(coherence)).unwrap_or(0)
    }

    #[test]
    fn a_write_waits_for_requests_that_were_there_and_not_for_ever_for_later_ones() {
        let coherence = Arc::new(Coherence::new());
        let rest = || Rest::new(&coherence, Chunks::new(5, 0, 4096));
        assert_eq!(looks(&mut rest(), &coherence), 2);
        // Whoever was there before is waited for, however long that takes.
        let before = reads(&coherence, 2);
        let mut waiting = rest();
        let later = reads(&coherence, 4);
        assert!((0..10 * DROP_PATIENCE_LATER).all(|_| !waiting.is_over(&coherence)));
        drop(before);
        assert_eq!(looks(&mut waiting, &coherence), DROP_PATIENCE_LATER + 1);
        // There is always a later one.
        let mut waiting = rest();
        let mut last = later;
        let ended = (6..1000).find(|number| {
            last = reads(&coherence, *number);
            waiting.is_over(&coherence)
        });
        assert!(ended.is_some());
        drop(last);
        assert!(coherence.under_way(&Chunks::new(5, 0, 4096)).is_empty());
    }
}
