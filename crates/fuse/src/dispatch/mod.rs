//! Carries out the kernel's operations as calls of the file system, and replies with their results.
//!
//! Cheap calls are answered on the transport's thread; calls that may wait for a device go through [`Blocking`].

mod again;
mod convert;
mod directory;
mod snapshots;
mod write;

use crate::coherence::Coherence;
use crate::errno::errno;
use crate::operation::{Operation, SetAttributes};
use crate::protocol as p;
use crate::{Agreement, Blocking, Errno, Fetching, Handler, Kernel, Request, Wait};
pub(crate) use convert::opened;
use convert::{attr_out, entry_out, no_entry, set_attr, statfs_out, statx_out};
use directory::Listing;
use pagefold_engine::dataset::Journal;
use pagefold_engine::dataset::journal::during;
use pagefold_fs::{Attr, Caller, Entry, FileKind, Fs, FsError, Ino, OpenFlags, Seek, SetAttr, TryRead};
pub use snapshots::{HIDDEN_DIR, SNAPSHOT_DIR, SnapshotTree, Snapshots, WithSnapshots};
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
}

/// First version of the protocol whose kernels are known to send FSYNC after synchronous buffered writes.
const MINOR_KERNEL_SYNCS: u32 = 45;

impl Dispatch {
    /// Returns a handler that answers from `fs`.
    pub fn new(fs: Arc<Fs>) -> Self {
        Self { fs, kernel_syncs: AtomicBool::new(false), claims: None, coherence: Arc::new(Coherence::new()) }
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

    fn claim(&self, request: &mut Request) {
        if let Some((journal, connection)) = &self.claims
            && !request.is_claimed()
            && request.changes_something()
        {
            request.claim(journal, *connection);
        }
    }

    /// Notes that the kernel will cache attributes or names from the answer, for writes that are under way beside it.
    fn note_attributes(&self, request: &Request) {
        use p::Opcode as Code;
        match request.opcode() {
            Some(Code::Getattr | Code::Statx | Code::Setattr) => self.coherence.tells_attributes(request),
            Some(Code::Lookup | Code::Readdirplus | Code::Link | Code::Create) => {
                self.coherence.tells_of_names(request);
            }
            _ => {}
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
    fn sync(&self, blocking: &Blocking, request: Request, data_only: bool) {
        let ino = Ino(request.ino());
        if self.fs.syncs_at_once(ino, data_only) {
            return self.fs.fsync_then(ino, data_only, |synced| done(request, synced));
        }
        self.later(blocking, Wait::Flush, request, move |fs, request| {
            fs.fsync_then(ino, data_only, |synced| done(request, synced));
        });
    }

    /// Answers with the space of the pool once everything accepted is durable. The kernel tells a server of this kind
    /// nothing when it is unmounted; but umount(8) asks this just before, of a mount on which nothing is open any more
    /// ([decision 0038](../../../../docs/decisions/0038-unmounting.md)).
    fn stat_fs(&self, blocking: &Blocking, request: Request) {
        if self.fs.is_read_only() {
            return answer(request, self.fs.statfs(), statfs_out);
        }
        self.later(blocking, Wait::Flush, request, |fs, request| {
            let told = fs.statfs();
            fs.settle_then(|settled| {
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

impl Handler for Dispatch {
    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        let kernel = kernel.clone();
        self.coherence.agreed(&kernel);
        self.fs.ask_kernel(Arc::new(move |ino: Ino| kernel.holds(ino.0)));
        self.kernel_syncs.store(agreement.minor >= MINOR_KERNEL_SYNCS, Relaxed);
    }

    fn taken_over(&self, requests: &mut [Request]) {
        requests.iter_mut().for_each(|request| self.claim(request));
        if let Some((journal, connection)) = &self.claims {
            journal.all_asked(*connection);
        }
    }

    fn handle(&self, mut request: Request, blocking: &Blocking) -> Option<Fetching> {
        self.claim(&mut request);
        if let Some(result) = request.done_before() {
            let coherence = Arc::clone(&self.coherence);
            self.later(blocking, Wait::Flush, request, move |fs, request| {
                again::answer_done(fs, &coherence, request, result);
            });
            return None;
        }
        let ino = Ino(request.ino());
        self.note_attributes(&request);
        let operation = match request.operation() {
            Ok(operation) => operation,
            Err(why) => {
                request.refuse(why);
                return None;
            }
        };
        match operation {
            Operation::Read { offset, size, into_cache } => {
                if into_cache {
                    self.coherence.caches(&mut request, offset, u64::from(size), true);
                } else {
                    self.coherence.used_directly(ino.0);
                }
                if !blocking.is_inline() {
                    return self.read_at_once(request, offset, size, blocking);
                }
                self.read_later(request, offset, size, blocking);
            }
            Operation::Write { offset, data, flags, from_cache, .. } => {
                let len = data.len();
                if from_cache {
                    self.coherence.caches(&mut request, offset, len as u64, false);
                }
                let writer = Writer {
                    fs: Arc::clone(&self.fs),
                    coherence: Arc::clone(&self.coherence),
                    blocking: blocking.clone(),
                    kernel_syncs: self.kernel_syncs.load(Relaxed),
                };
                let durable = flags & libc::O_DSYNC.cast_unsigned() != 0;
                if !blocking.is_inline() && !durable && self.fs.writes_at_once(ino, offset, len) {
                    writer.write(request);
                    return None;
                }
                self.later(blocking, Wait::Flush, request, move |_, request| writer.write(request));
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
                list.iter().for_each(|(ino, lookups)| self.fs.forget(Ino(ino), lookups));
                request.silent();
            }
            // Interrupts are ignored: every request is answered soon, or waits for a device that cannot be interrupted
            // anyway.
            Operation::Interrupt { .. } => request.silent(),
            Operation::Destroy | Operation::ReleaseDir => request.ok(),
            // No state is kept per open directory, and nothing happens at close: ENOSYS spares the round trips.
            Operation::OpenDir | Operation::Flush | Operation::NotOffered(_) => refuse_for_good(request),
            Operation::Init(_) => request.error(Errno::INVAL),
            // Calls that only read metadata are answered at once: the inodes and names in use are in memory.
            Operation::Lookup { .. }
            | Operation::GetAttributes
            | Operation::StatX { .. }
            | Operation::ReadLink
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::Seek { .. } => metadata(&self.fs, request),
            Operation::Open { .. } | Operation::Release => open(&self.fs, &self.coherence, request),
            Operation::Create { .. } | Operation::TemporaryFile { .. } => {
                let coherence = Arc::clone(&self.coherence);
                self.later(blocking, Wait::Flush, request, move |fs, request| open(fs, &coherence, request));
            }
            Operation::ReadDir { .. } => self.later(blocking, Wait::Read, request, metadata),
            // Calls that change something may have to wait for room.
            _ => self.later(blocking, Wait::Flush, request, metadata),
        }
        None
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
}

/// Tells the kernel not to ask for this again, or that this object cannot do it (ioctl).
fn refuse_for_good(request: Request) {
    let ioctl = matches!(request.operation(), Ok(Operation::NotOffered(p::Opcode::Ioctl)));
    request.error(if ioctl { Errno::NOTTY } else { Errno::NOSYS });
}

/// Replies to a failed call. Damage and failed devices are logged; other errors are the caller's affair. Reads of
/// damaged files are counted, and the server of the pool reports them by the files' names: here they would be reported
/// as often as somebody reads.
fn failed(request: Request, error: &FsError) {
    let errno = errno(error);
    if errno == Errno::IO {
        if error.is_counted() && matches!(request.operation(), Ok(Operation::Read { .. })) {
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

/// Carries out calls on names and attributes.
fn metadata(fs: &Fs, request: Request) {
    let ino = Ino(request.ino());
    let Ok(operation) = request.operation() else { return request.error(Errno::INVAL) };
    let caller = |umask: u32| Caller { uid: request.uid(), gid: request.gid(), umask };
    match operation {
        Operation::Lookup { name } => match fs.lookup(ino, name) {
            Err(FsError::NotFound) => request.answer(&no_entry()),
            found => entry(request, found),
        },
        Operation::GetAttributes => answer(request, fs.getattr(ino), attr_out),
        Operation::StatX { .. } => answer(request, fs.getattr(ino), statx_out),
        Operation::SetAttributes(set) => {
            let nothing = set == SetAttributes::default();
            let uid = request.uid();
            let result = if nothing { set_nothing(fs, ino, uid) } else { fs.setattr(ino, &set_attr(&set)) };
            answer(request, result, attr_out);
        }
        Operation::ReadLink => match fs.readlink(ino) {
            Ok(target) => request.bytes(&target),
            Err(error) => failed(request, &error),
        },
        Operation::Symlink { name, target } => {
            let made = fs.symlink(ino, name, target, &caller(0));
            entry(request, made);
        }
        Operation::MakeNode { name, mode, umask, device } => {
            let made = FileKind::from_mode(mode)
                .ok_or(FsError::Invalid("a kind of file that mknod(2) does not know"))
                .and_then(|kind| fs.mknod(ino, name, kind, mode & 0o7777, device, &caller(umask)));
            entry(request, made);
        }
        Operation::MakeDir { name, mode, umask } => {
            let made = fs.mkdir(ino, name, mode & 0o7777, &caller(umask));
            entry(request, made);
        }
        Operation::Unlink { name } => {
            let result = fs.unlink(ino, name);
            done(request, result);
        }
        Operation::RemoveDir { name } => {
            let result = fs.rmdir(ino, name);
            done(request, result);
        }
        Operation::Rename { name, new_parent, new_name, flags } => {
            let result = convert::rename_mode(flags)
                .ok_or(FsError::Invalid("rename flags"))
                .and_then(|mode| fs.rename(ino, name, Ino(new_parent), new_name, mode));
            done(request, result);
        }
        Operation::Link { ino: target, new_name } => {
            let made = fs.link(Ino(target), ino, new_name);
            entry(request, made);
        }
        Operation::ReadDir { offset, size, plus } => list(fs, request, offset, size, plus),
        _ => contents(fs, request),
    }
}

/// Carries out a SETATTR that sets nothing. It is a chown(2) with neither user nor group, or announces a change of
/// contents by somebody who may not keep set-id bits. The kernel does not tell which, and has not asked whether the
/// caller owns the file: so for others than the owner and root nothing is taken away. The change of contents that
/// follows an announcement does that itself.
fn set_nothing(fs: &Fs, ino: Ino, uid: u32) -> Result<Attr, FsError> {
    let attr = fs.getattr(ino)?;
    if uid == 0 || uid == attr.uid { fs.setattr(ino, &SetAttr::default()) } else { Ok(attr) }
}

fn entry(request: Request, found: Result<Entry, FsError>) {
    answer(request, found, entry_out);
}

/// Carries out calls that open and close.
fn open(fs: &Fs, coherence: &Coherence, request: Request) {
    let ino = Ino(request.ino());
    let Ok(operation) = request.operation() else { return request.error(Errno::INVAL) };
    let has = |flags: u32, flag: i32| flags & flag.cast_unsigned() != 0;
    let caller = |umask: u32| Caller { uid: request.uid(), gid: request.gid(), umask };
    let (made, flags) = match operation {
        Operation::Open { flags, kill_privileges } => {
            let how = OpenFlags {
                truncate: has(flags, libc::O_TRUNC),
                exclusive: false,
                kill_suid: kill_privileges,
            };
            let result = fs.open(ino, how);
            note_direct(coherence, ino, flags);
            return answer(request, result, |_| opened(flags));
        }
        Operation::Release => {
            fs.release(ino);
            return request.ok();
        }
        Operation::Create { name, flags, mode, umask } => {
            let truncate = has(flags, libc::O_TRUNC);
            let how = OpenFlags { truncate, exclusive: has(flags, libc::O_EXCL), kill_suid: truncate };
            (fs.create(ino, name, mode & 0o7777, how, &caller(umask)), flags)
        }
        Operation::TemporaryFile { flags, mode, umask } => {
            (fs.tmpfile(ino, mode & 0o7777, &caller(umask)), flags)
        }
        _ => return request.error(Errno::INVAL),
    };
    made_open(coherence, request, made, flags);
}

/// Answers with a file that was made and is open.
fn made_open(coherence: &Coherence, request: Request, made: Result<Entry, FsError>, flags: u32) {
    match made {
        Ok(entry) => {
            note_direct(coherence, entry.ino, flags);
            request.answer_pair(&entry_out(&entry), &opened(flags));
        }
        Err(error) => failed(request, &error),
    }
}

/// Notes a handle opened for direct I/O, whose use makes the kernel drop pages, before anybody has the handle.
fn note_direct(coherence: &Coherence, ino: Ino, flags: u32) {
    if flags & libc::O_DIRECT.cast_unsigned() != 0 {
        coherence.used_directly(ino.0);
    }
}

fn list(fs: &Fs, mut request: Request, offset: u64, size: u32, plus: bool) {
    let ino = Ino(request.ino());
    let mut listing = Listing::new(request.payload(size as usize));
    let result = if plus {
        fs.readdirplus(ino, offset, &mut |entry, found| listing.push_plus(entry, found))
    } else {
        fs.readdir(ino, offset, &mut |entry| listing.push(entry))
    };
    let used = listing.used();
    match result {
        Ok(()) => request.payload_filled(used),
        // Entries that were listed are references given, so they must reach the kernel; it meets the error at its next
        // call.
        Err(_) if used > 0 => request.payload_filled(used),
        Err(error) => failed(request, &error),
    }
}

/// Carries out calls that read extended attributes, or seek data, of the file `ino`, which the kernel may know by
/// another number.
fn looks(fs: &Fs, ino: Ino, request: Request) {
    let Ok(operation) = request.operation() else { return request.error(Errno::INVAL) };
    match operation {
        Operation::GetXattr { name, size } => {
            let value = fs.getxattr(ino, name);
            sized(request, value, size);
        }
        Operation::ListXattr { size } => {
            let names = fs.listxattr(ino).map(|names| listed_to(request.uid(), names));
            sized(request, names, size);
        }
        Operation::Seek { offset, whence } => {
            let found = match whence.cast_signed() {
                libc::SEEK_DATA => fs.seek(ino, offset, Seek::Data),
                libc::SEEK_HOLE => fs.seek(ino, offset, Seek::Hole),
                _ => Err(FsError::Invalid("whence of lseek(2)")),
            };
            answer(request, found, |&offset| p::LseekOut { offset });
        }
        _ => request.error(Errno::INVAL),
    }
}

/// Carries out calls on extended attributes and ranges of data.
fn contents(fs: &Fs, request: Request) {
    let ino = Ino(request.ino());
    // For writes and truncations the kernel tells whether the caller may keep set-id bits; for fallocate and
    // copy_file_range it does not.
    let kills = request.uid() != 0;
    let Ok(operation) = request.operation() else { return request.error(Errno::INVAL) };
    match operation {
        Operation::SetXattr { name, value, flags, kill_sgid } => {
            let result = convert::xattr_mode(flags)
                .ok_or(FsError::Invalid("flags of setxattr(2)"))
                .and_then(|mode| fs.setxattr(ino, name, value, mode, kill_sgid));
            done(request, result);
        }
        Operation::GetXattr { .. } | Operation::ListXattr { .. } | Operation::Seek { .. } => {
            looks(fs, ino, request);
        }
        Operation::RemoveXattr { name } => {
            let result = fs.removexattr(ino, name);
            done(request, result);
        }
        Operation::Allocate { offset, len, mode } => {
            let result = convert::allocate_mode(mode)
                .ok_or(FsError::Unsupported("this mode of fallocate(2)"))
                .and_then(|mode| fs.fallocate(ino, offset, len, mode, kills));
            done(request, result);
        }
        Operation::CopyFileRange { flags, .. } if flags != 0 => request.error(Errno::INVAL),
        Operation::CopyFileRange { offset_in, ino_out, offset_out, len, wide: false, .. } => {
            let len = len.min(u64::from(u32::MAX));
            let copied = fs.copy_file_range(ino, offset_in, Ino(ino_out), offset_out, len, kills);
            answer(request, copied, |&copied| p::WriteOut { size: copied as u32, padding: 0 });
        }
        Operation::CopyFileRange { offset_in, ino_out, offset_out, len, wide: true, .. } => {
            let copied = fs.copy_file_range(ino, offset_in, Ino(ino_out), offset_out, len, kills);
            answer(request, copied, |&bytes_copied| p::CopyFileRangeOut { bytes_copied });
        }
        _ => request.error(Errno::NOSYS),
    }
}

/// Returns the names of attributes that a user may see: `trusted.*` is for root alone, and the kernel does not filter
/// these names.
fn listed_to(uid: u32, names: Vec<u8>) -> Vec<u8> {
    if uid == 0 {
        return names;
    }
    let told = names.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted."));
    told.flatten().copied().collect()
}

/// Answers with bytes, of which the caller can take `size`; a `size` of zero asks for their number.
fn sized(request: Request, value: Result<Vec<u8>, FsError>, size: u32) {
    match value {
        Err(error) => failed(request, &error),
        Ok(value) if size == 0 => request.answer(&p::GetxattrOut { size: value.len() as u32, padding: 0 }),
        Ok(value) if value.len() > size as usize => request.error(Errno::RANGE),
        Ok(value) => request.bytes(&value),
    }
}
