//! Carries out the kernel's operations as calls of the file system, and replies with their results.
//!
//! Cheap calls are answered on the transport's thread; calls that may wait for a device go through [`Blocking`].

mod again;
mod change;
mod convert;
mod directory;
mod query;
mod snapshots;
mod write;

use crate::coherence::Coherence;
use crate::errno::errno;
use crate::operation::{Change, Create, Operation, Query, Write};
use crate::protocol::Opcode;
use crate::{Agreement, Blocking, Errno, Fetching, Handler, Kernel, Request, Source, Wait};
pub(crate) use convert::opened;
use convert::statfs_out;
use pagefold_engine::dataset::Journal;
use pagefold_engine::dataset::journal::during;
use pagefold_engine::dataset::{Caller, LateFetch};
use pagefold_fs::{Fs, FsError, Ino, OpenFlags, TryRead};
pub use snapshots::{HIDDEN_DIR, KnownSnapshot, SNAPSHOT_DIR, SnapshotTree, Snapshots, WithSnapshots};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use write::Writer;
use zerocopy::{Immutable, IntoBytes};

/// Answers the kernel's requests from a file system.
pub struct Dispatch {
    fs: Arc<Fs>,
    /// True if the kernel sends FSYNC by itself after synchronous writes through the page cache. Seen with 7.45 (Linux
    /// 6.18); some older kernels do not, so for those the write is made durable here.
    kernel_syncs: AtomicBool,
    /// Journal in which requests that change something are claimed, and the number of the connection there.
    claims: Option<(Arc<Journal>, u32)>,
    coherence: Arc<Coherence>,
    source: Source,
}

/// First version of the protocol whose kernels are known to send FSYNC after synchronous buffered writes.
const MINOR_KERNEL_SYNCS: u32 = 45;

impl Dispatch {
    /// Returns a handler that answers from `fs`.
    pub fn new(fs: Arc<Fs>) -> Self {
        let (kernel_syncs, coherence) = (AtomicBool::new(false), Arc::new(Coherence::new()));
        Self { fs, kernel_syncs, claims: None, coherence, source: Source::Devices }
    }

    /// Notes where calls may have to read.
    #[must_use]
    pub fn reading_from(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// As [`Dispatch::new`], but notes the requests that were carried out in the journal into which changes of `fs` are
    /// entered, under the connection's number, so that a process which takes over does not carry them out again.
    pub fn with_journal(fs: Arc<Fs>, journal: Arc<Journal>, connection: u32) -> Self {
        Self { claims: Some((journal, connection)), ..Self::new(fs) }
    }

    /// Returns the number of times that the kernel had to be told to drop cached pages beside a direct write.
    pub fn drops(&self) -> u64 {
        self.coherence.drops()
    }

    fn claim(&self, request: &mut Request, operation: &Operation) {
        if let Some((journal, connection)) = &self.claims
            && !request.is_claimed()
            && operation.changes_something()
        {
            request.claim(journal, *connection);
        }
    }

    /// Notes that the kernel will cache attributes or names from the answer, for writes that are under way beside it.
    fn note_attributes(&self, request: &Request, operation: &Operation) {
        let tells_attributes = matches!(
            operation,
            Operation::Query(Query::Attributes | Query::StatX { .. })
                | Operation::Change(Change::Attributes(_))
        );
        let tells_of_names = matches!(
            operation,
            Operation::Query(Query::Lookup { .. })
                | Operation::ReadDir { plus: true, .. }
                | Operation::Change(Change::Link { .. })
                | Operation::Create(Create::Named { .. })
        );
        if tells_attributes {
            self.coherence.tells_attributes(request.sent());
        } else if tells_of_names {
            self.coherence.tells_of_names(request.sent());
        }
    }

    /// Carries out a call on a thread that may wait.
    fn later(
        &self,
        blocking: &Blocking,
        wait: Wait,
        request: Request,
        call: impl FnOnce(&Fs, Request) + Send + 'static,
    ) {
        let (fs, origin) = (Arc::clone(&self.fs), request.origin());
        blocking.run(wait, move || during(origin, || call(&fs, request)));
    }

    /// Syncs a file or directory. No thread waits for the flush: the thread that commits answers.
    fn sync(&self, blocking: &Blocking, mut request: Request, data_only: bool) {
        let ino = Ino(request.ino());
        request.park();
        if self.fs.syncs_at_once(ino, data_only) {
            let caller = blocking.caller();
            return self.fs.fsync_then((ino, data_only), caller, |synced| done(request, synced));
        }
        self.later(blocking, Wait::Flush, request, move |fs, request| {
            fs.fsync_then((ino, data_only), Caller::MayWait, |synced| done(request, synced));
        });
    }

    /// Answers with the space of the pool once everything accepted is durable. The kernel tells a server of this kind
    /// nothing when it is unmounted; but umount(8) asks this just before, of a mount on which nothing is open any more
    /// ([decision 0038](../../../../docs/decisions/0038-unmounting.md)).
    fn stat_fs(&self, blocking: &Blocking, mut request: Request) {
        if self.fs.is_read_only() {
            return answer(request, self.fs.statfs(), statfs_out);
        }
        request.park();
        self.later(blocking, Wait::Flush, request, |fs, request| {
            let told = fs.statfs();
            fs.settle_then(Caller::MayWait, |settled| {
                if let Err(error) = settled {
                    // Writers are told of the error; the space is returned all the same.
                    tracing::warn!(%error, "what was accepted could not be made durable before an unmount");
                }
                answer(request, told, statfs_out);
            });
        });
    }
}

impl Dispatch {
    fn read(
        &self,
        mut request: Request,
        (offset, size): (u64, u32),
        into_cache: bool,
        blocking: &Blocking,
    ) -> Option<Fetching> {
        if into_cache {
            request.keep(self.coherence.caches(request.sent(), offset, u64::from(size), true));
        } else {
            self.coherence.direct.used(request.ino());
        }
        if !blocking.is_inline() {
            return self.read_at_once(request, offset, size, blocking);
        }
        self.read_later(request, offset, size, blocking);
        None
    }

    fn write(&self, mut request: Request, write: Write, blocking: &Blocking) {
        let len = write.data.len() as usize;
        if write.from_cache {
            request.keep(self.coherence.caches(request.sent(), write.offset, len as u64, false));
        }
        let writer = Writer {
            fs: Arc::clone(&self.fs),
            coherence: Arc::clone(&self.coherence),
            blocking: blocking.clone(),
            kernel_syncs: self.kernel_syncs.load(Relaxed),
        };
        let durable = write.flags & libc::O_DSYNC.cast_unsigned() != 0;
        let ino = Ino(request.ino());
        if !blocking.is_inline() && !durable && self.fs.writes_at_once(ino, write.offset, len) {
            return writer.write(request, write);
        }
        self.later(blocking, Wait::Flush, request, move |_, request| writer.write(request, write));
    }

    fn open(&self, request: Request, flags: u32, kill_privileges: bool) {
        let ino = Ino(request.ino());
        let truncate = change::has(flags, libc::O_TRUNC);
        let how = OpenFlags { truncate, exclusive: false, kill_suid: kill_privileges };
        let result = self.fs.open(ino, how);
        if result.is_ok() {
            change::note_direct(&self.coherence, ino, flags);
        }
        answer(request, result, |_| opened(flags));
    }

    fn create(&self, request: Request, create: Create, blocking: &Blocking) {
        let coherence = Arc::clone(&self.coherence);
        self.later(blocking, Wait::Flush, request, move |fs, request| {
            change::create(fs, &coherence, request, create);
        });
    }

    fn read_later(&self, request: Request, offset: u64, size: u32, blocking: &Blocking) {
        self.later(blocking, Wait::Read, request, move |fs, request| read(fs, request, offset, size));
    }

    /// Answers a read of bytes that are in memory. A read that needs one device read is returned for the transport to
    /// do; one that needs more waits on another thread.
    fn read_at_once(
        &self,
        mut request: Request,
        offset: u64,
        size: u32,
        blocking: &Blocking,
    ) -> Option<Fetching> {
        let ino = Ino(request.ino());
        match self.fs.try_read(ino, offset, request.payload(size as usize)) {
            Ok(TryRead::Done(len)) => request.payload_filled(len),
            Ok(TryRead::Fetch(fetch)) if fetch.file().is_some() => {
                return Some(Fetching { request, fetch, offset, size });
            }
            Ok(TryRead::Fetch(_) | TryRead::Wait) => self.read_later(request, offset, size, blocking),
            Err(error) => failed(request, &error),
        }
        None
    }
}

impl Dispatch {
    /// Carries out a request that asks for `operation`.
    fn carry_out(
        &self,
        mut request: Request,
        operation: &Operation,
        blocking: &Blocking,
    ) -> Option<Fetching> {
        self.claim(&mut request, operation);
        if let Some(result) = request.done_before() {
            let (coherence, operation, drops) = (Arc::clone(&self.coherence), *operation, blocking.clone());
            self.later(blocking, Wait::Flush, request, move |fs, request| {
                again::answer_done(fs, (coherence, &drops), request, operation, result);
            });
            return None;
        }
        self.note_attributes(&request, operation);
        let ino = Ino(request.ino());
        match *operation {
            Operation::Read { offset, size, into_cache } => {
                return self.read(request, (offset, size), into_cache, blocking);
            }
            Operation::Write(write) => self.write(request, write, blocking),
            // Data and holes are looked for once no commit is in flight, perhaps among all pages of a file.
            Operation::Query(query @ Query::Seek { .. }) => {
                self.later(blocking, Wait::Flush, request, move |fs, request| {
                    query::answer_query(fs, ino, request, query);
                });
            }
            // Other calls that only read metadata are answered at once: the inodes and names in use are in memory.
            Operation::Query(query) => query::answer_query(&self.fs, ino, request, query),
            // A listing waits for changes of the directory, which may have to wait for room.
            Operation::ReadDir { offset, size, plus } => {
                self.later(blocking, Wait::Flush, request, move |fs, request| {
                    query::list(fs, request, (offset, size), plus);
                });
            }
            // Calls that change something may have to wait for room.
            Operation::Change(change) => {
                self.later(blocking, Wait::Flush, request, move |fs, request| {
                    change::apply(fs, request, change);
                });
            }
            Operation::Create(create) => self.create(request, create, blocking),
            Operation::Open { flags, kill_privileges } => self.open(request, flags, kill_privileges),
            Operation::Release { handle } => {
                if handle == convert::DIRECT_HANDLE {
                    self.coherence.direct.closed(ino.0);
                }
                self.fs.release(ino);
                request.ok();
            }
            Operation::Sync { data_only } => self.sync(blocking, request, data_only),
            Operation::SyncDir => self.sync(blocking, request, false),
            Operation::StatFs => self.stat_fs(blocking, request),
            Operation::SyncFs => {
                self.later(blocking, Wait::Flush, request, |fs, request| done(request, fs.sync()));
            }
            Operation::Forget { lookups } => {
                self.fs.forget(ino, lookups);
                request.silent();
            }
            Operation::BatchForget(list) => {
                request.forgets(list).for_each(|(ino, lookups)| self.fs.forget(Ino(ino), lookups));
                request.silent();
            }
            // Interrupts are ignored: every request is answered soon, or waits for a device that cannot be interrupted
            // anyway.
            Operation::Interrupt { .. } => request.silent(),
            Operation::Destroy | Operation::ReleaseDir => request.ok(),
            // No state is kept per open directory, and nothing happens at close: ENOSYS spares the round trips.
            Operation::OpenDir | Operation::Flush => request.error(Errno::NOSYS),
            Operation::NotOffered(code) => not_offered(request, code),
            Operation::Init(_) => request.error(Errno::INVAL),
        }
        None
    }
}

impl Handler for Dispatch {
    fn source(&self) -> Source {
        self.source
    }

    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        let kernel = kernel.clone();
        self.coherence.agreed(&kernel);
        self.fs.ask_kernel(Arc::new(move |ino: Ino| kernel.holds(ino.0)));
        self.kernel_syncs.store(agreement.minor >= MINOR_KERNEL_SYNCS, Relaxed);
    }

    fn taken_over(&self, requests: &mut [Request]) {
        for request in requests {
            let Ok(operation) = request.parse() else { continue };
            self.claim(request, &operation);
            if let (Operation::Create(Create::Temporary { .. }), Some(made)) =
                (operation, request.done_before())
                && let Err(error) = self.fs.open_again(Ino(made))
            {
                tracing::error!(?request, %error, "a file without a name that was made before is lost");
            }
        }
        if let Some((journal, connection)) = &self.claims {
            journal.all_asked(*connection);
        }
    }

    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        match request.parse() {
            Ok(operation) => self.carry_out(request, &operation, blocking),
            Err(why) => {
                request.refuse(why);
                None
            }
        }
    }

    fn fetched(&self, fetching: Fetching, filled: bool, blocking: &Blocking) {
        let Fetching { mut request, fetch, offset, size } = fetching;
        let read = if filled { fetch.finish(request.payload(size as usize)) } else { Ok(None) };
        match read {
            Ok(Some(len)) => request.payload_filled(len),
            Ok(None) => self.read_later(request, offset, size, blocking),
            Err(error) => failed(request, &error),
        }
    }

    fn overdue(&self, fetching: Fetching, blocking: &Blocking) -> LateFetch {
        let Fetching { request, fetch, offset, size } = fetching;
        let late = fetch.leave_overdue();
        let is_answered = late.is_answered();
        self.later(blocking, Wait::Read, request, move |fs, request| {
            read(fs, request, offset, size);
            is_answered.store(true, Relaxed);
        });
        late
    }
}

/// Tells the kernel not to ask for this again, or that this object cannot do it (ioctl).
fn not_offered(request: Request, code: Opcode) {
    request.error(if code == Opcode::Ioctl { Errno::NOTTY } else { Errno::NOSYS });
}

/// Replies to a failed call. Damage and failed devices are logged; other errors are the caller's affair. Reads of
/// damaged files are counted, and the server of the pool reports them by the files' names: here they would be reported
/// as often as somebody reads.
fn failed(request: Request, error: &FsError) {
    let errno = errno(error);
    if errno == Errno::IO {
        if error.is_counted() && request.is_read() {
            tracing::debug!(?request, %error, "a request failed");
        } else {
            tracing::error!(?request, %error, "a request failed");
        }
    }
    request.error(errno);
}

fn done(request: Request, result: Result<(), FsError>) {
    match result {
        Ok(()) => request.ok(),
        Err(error) => failed(request, &error),
    }
}

fn answer<T, R: IntoBytes + Immutable>(
    request: Request,
    result: Result<T, FsError>,
    form: impl FnOnce(&T) -> R,
) {
    match result {
        Ok(value) => request.answer(&form(&value)),
        Err(error) => failed(request, &error),
    }
}

fn read(fs: &Fs, request: Request, offset: u64, size: u32) {
    let ino = Ino(request.ino());
    read_of(fs, ino, request, offset, size);
}

/// Answers a read with bytes of the file `ino`, which the kernel may know by another number.
fn read_of(fs: &Fs, ino: Ino, mut request: Request, offset: u64, size: u32) {
    match fs.read(ino, offset, request.payload(size as usize)) {
        Ok(len) => request.payload_filled(len),
        Err(error) => failed(request, &error),
    }
}

#[cfg(test)]
mod tests;
