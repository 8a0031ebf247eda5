//! The classic transport: threads that read requests from `/dev/fuse` and write replies to it.
//!
//! Each thread has its own clone of the device, so that the kernel's list of requests in processing is not shared. A
//! thread may wait for a device inside a request: when the last thread that reads takes a request, another is woken or
//! started, up to a bound. Few threads read at a time, since each needs a buffer for the next request; the others rest,
//! and end after a while.

use super::{Running, Wiring};
use crate::blocking::Blocking;
use crate::buffer::Buffer;
use crate::kernel::clone_device;
use crate::limits::{
    DEVICE_IDLE, DEVICE_READERS_MAX, DEVICE_READERS_POPULATED_MAX, MEMORY_PAUSE, PAGE_BYTES, PAYLOAD_BYTES,
};
use crate::operation::Arguments;
use crate::protocol::{InHeader, OutHeader, WriteIn};
use crate::request::{Exchange, Outcome, Request};
use crate::stats::Stats;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::{io, thread};
use zerocopy::{FromBytes, IntoBytes};

/// Offset at which a request is read, so that the data of a WRITE begins on a page.
const REQUEST_START: usize = PAGE_BYTES - size_of::<InHeader>() - size_of::<WriteIn>();
/// Offset from which a reply is written, so that its data begins on a page.
const REPLY_START: usize = PAGE_BYTES - size_of::<OutHeader>();
const BUFFER_BYTES: usize = PAGE_BYTES + PAYLOAD_BYTES;
/// Room of a request that waits for a short answer.
const PARKED_BYTES: usize = 2 * PAGE_BYTES;

/// A clone of the device and the buffers that wait for their next request.
struct Channel {
    device: Arc<OwnedFd>,
    /// Buffers that wait; boxed as requests carry them, so that reuse does not allocate.
    #[allow(clippy::vec_box, reason = "the boxes move on into requests")]
    spare: Mutex<Vec<Box<DevExchange>>>,
}

/// A request that came over a channel, in its buffer.
struct DevExchange {
    buffer: Buffer,
    /// Bytes of the request, its header included.
    len: usize,
    /// Set while the request is under way.
    channel: Option<Arc<Channel>>,
}

impl Exchange for DevExchange {
    fn arguments(&self) -> Arguments<'_> {
        let from = REQUEST_START + size_of::<InHeader>();
        Arguments { head: &self.buffer.as_slice()[from..REQUEST_START + self.len], tail: None }
    }

    fn payload(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[PAGE_BYTES..]
    }

    fn park(&mut self) {
        // Other buffers take only the memory that was touched.
        let Some(channel) = self.channel.as_ref().filter(|_| self.buffer.is_populated()) else { return };
        match Buffer::new(PARKED_BYTES) {
            Ok(short) => {
                let buffer = std::mem::replace(&mut self.buffer, short);
                self.len = size_of::<InHeader>();
                channel.put_back(Box::new(Self { buffer, len: 0, channel: None }));
            }
            Err(error) => tracing::debug!(%error, "a request keeps its buffer while it waits"),
        }
    }

    fn finish(mut self: Box<Self>, unique: u64, reply: Outcome) {
        let Some(channel) = self.channel.take() else { return };
        let (error, len) = match reply {
            Outcome::Ok(len) => (0, len.min(PAYLOAD_BYTES)),
            Outcome::Error(errno) => (-errno.raw_os_error(), 0),
            Outcome::Silent => return channel.put_back(self),
        };
        let total = size_of::<OutHeader>() + len;
        self.buffer.touch(REPLY_START + total);
        let header = OutHeader { len: total as u32, error, unique };
        let message = &mut self.buffer.as_mut_slice()[REPLY_START..REPLY_START + total];
        message[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        match rustix::io::write(&*channel.device, message) {
            // ENOENT: the request was interrupted or its process died. ENODEV: unmounted meanwhile.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => {
                tracing::error!(%errno, unique, len, "the kernel refused a reply; answering EIO instead");
                let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EIO, unique };
                if let Err(errno) = rustix::io::write(&*channel.device, header.as_bytes()) {
                    tracing::error!(%errno, unique, "the kernel refused that, too");
                }
            }
        }
        channel.put_back(self);
    }
}

impl Channel {
    /// Keeps the buffer of a request that was answered, if it has room for any other.
    fn put_back(&self, mut exchange: Box<DevExchange>) {
        if exchange.buffer.as_slice().len() == BUFFER_BYTES {
            exchange.buffer.settle();
            self.spare.lock().push(exchange);
        }
    }
}

/// State that the threads of a session share.
struct Workers {
    wiring: Wiring,
    /// Requests that were read before there were threads.
    backlog: Mutex<VecDeque<Request>>,
    /// Number of threads that read, or are about to.
    readers: AtomicUsize,
    /// Largest number of threads that read.
    readers_max: usize,
    threads: Mutex<Threads>,
    ended: Condvar,
    /// Signalled to wake a thread that rests.
    wanted: Condvar,
}

#[derive(Default)]
struct Threads {
    alive: usize,
    resting: usize,
    /// Number of resting threads that are to read again.
    called: usize,
    /// True if the connection has ended.
    over: bool,
}

impl Workers {
    /// Counts the caller among the threads that read, unless there are enough of them.
    fn may_read(&self) -> bool {
        if self.readers.fetch_add(1, SeqCst) < self.readers_max {
            return true;
        }
        // The last reader stays: two threads that go to rest may each have counted on the other.
        let without_me = |readers| (readers > 1).then(|| readers - 1);
        self.readers.fetch_update(SeqCst, SeqCst, without_me).is_err()
    }

    /// Waits until too few threads read. Returns false if the thread is to end: it has rested for long, or the
    /// connection has ended.
    fn rest(&self) -> bool {
        let mut threads = self.threads.lock();
        // The last reader may have looked for a resting thread before this thread rested.
        if self.readers.load(SeqCst) == 0 {
            return !threads.over;
        }
        threads.resting += 1;
        let mut patient = true;
        while !threads.over && threads.called == 0 && patient {
            patient = !self.wanted.wait_for(&mut threads, DEVICE_IDLE).timed_out();
        }
        threads.resting -= 1;
        let called = threads.called > 0;
        threads.called -= usize::from(called);
        called && !threads.over
    }

    /// Ends the session's threads, because the connection has ended.
    fn end(&self) {
        self.threads.lock().over = true;
        self.wanted.notify_all();
    }
}

struct Joinable(Arc<Workers>);

impl Running for Joinable {
    fn join(self: Box<Self>) {
        let mut threads = self.0.threads.lock();
        while threads.alive > 0 {
            self.0.ended.wait(&mut threads);
        }
    }
}

pub(super) fn start(wiring: Wiring, backlog: Vec<Request>) -> io::Result<Box<dyn Running>> {
    let readers_max = if wiring.takeover { DEVICE_READERS_POPULATED_MAX } else { DEVICE_READERS_MAX };
    let workers = Arc::new(Workers {
        wiring,
        backlog: Mutex::new(backlog.into()),
        readers: AtomicUsize::new(0),
        readers_max,
        threads: Mutex::default(),
        ended: Condvar::new(),
        wanted: Condvar::new(),
    });
    spawn(&workers)?;
    Ok(Box::new(Joinable(workers)))
}

/// Lets one more thread read: one that rests, or a new one, unless the bound is reached.
fn spawn(workers: &Arc<Workers>) -> io::Result<()> {
    let index = {
        let mut threads = workers.threads.lock();
        if threads.resting > threads.called {
            threads.called += 1;
            workers.wanted.notify_one();
            return Ok(());
        }
        if threads.alive >= workers.wiring.threads_max {
            return Ok(());
        }
        threads.alive += 1;
        threads.alive - 1
    };
    // Made here, so that a thread that cannot be started is counted out, too.
    let mine = Alive(Arc::clone(workers));
    // The requests in processing of a clone would end in errors with the process.
    let device = if index == 0 || workers.wiring.takeover {
        Arc::clone(&workers.wiring.device)
    } else {
        let shared = |error| {
            tracing::debug!(%error, "no clone of /dev/fuse; sharing the descriptor");
            Arc::clone(&workers.wiring.device)
        };
        clone_device(&workers.wiring.device).map_or_else(shared, Arc::new)
    };
    let channel = Arc::new(Channel { device, spare: Mutex::default() });
    let spawned = thread::Builder::new().name(format!("pf-fuse-{index}")).spawn(move || {
        if let Err(error) = work(&mine.0, &channel) {
            tracing::error!(%error, "a thread on /dev/fuse failed; aborting the connection");
            mine.0.wiring.abort();
        }
    });
    spawned.map(drop)
}

/// Counts a thread out when it ends, however it does.
struct Alive(Arc<Workers>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.threads.lock().alive -= 1;
        self.0.ended.notify_all();
    }
}

/// Reads and answers requests until the connection ends, or the thread has rested for long.
fn work(workers: &Arc<Workers>, channel: &Arc<Channel>) -> io::Result<()> {
    let (blocking, wiring) = (Blocking::inline(), &workers.wiring);
    loop {
        if !workers.may_read() {
            if workers.rest() {
                continue;
            }
            return Ok(());
        }
        let waiting = workers.backlog.lock().pop_front();
        let received =
            waiting.map_or_else(|| receive(channel, &wiring.stats, wiring.takeover), |r| Ok(Some(r)));
        let was_last = workers.readers.fetch_sub(1, SeqCst) == 1;
        let request = match received {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            // Others may give some back. All users of the mount would lose it otherwise.
            Err(Errno::NOMEM) => {
                tracing::warn!("no memory for the next request of /dev/fuse");
                thread::sleep(MEMORY_PAUSE);
                continue;
            }
            // ENODEV: unmounted. ECONNABORTED: the connection was aborted.
            Err(Errno::NODEV | Errno::CONNABORTED) => {
                workers.end();
                return Ok(());
            }
            Err(errno) => {
                workers.end();
                return Err(errno.into());
            }
        };
        // A thread that is stuck in a request must not keep others waiting: one thread always reads.
        if was_last && let Err(error) = spawn(workers) {
            tracing::warn!(%error, "cannot start another thread for /dev/fuse");
        }
        // Nothing is returned if `blocking` is inline; if something were, it would be answered all the same.
        if let Some(fetching) = wiring.handler.handle(request, &blocking) {
            wiring.handler.fetched(fetching, false, &blocking);
        }
    }
}

/// Reads a request. Returns `None` if there was none after all.
fn receive(channel: &Arc<Channel>, stats: &Arc<Stats>, takeover: bool) -> Result<Option<Request>, Errno> {
    let spare = channel.spare.lock().pop();
    let mut exchange = match spare {
        Some(exchange) => exchange,
        None => {
            let make = if takeover { Buffer::populated } else { Buffer::new };
            let buffer = make(BUFFER_BYTES).map_err(|_| Errno::NOMEM)?;
            Box::new(DevExchange { buffer, len: 0, channel: None })
        }
    };
    let len = match rustix::io::read(&*channel.device, &mut exchange.buffer.as_mut_slice()[REQUEST_START..]) {
        Ok(len) => len,
        // ENOENT: the request was taken back before we could read it.
        Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {
            channel.put_back(exchange);
            return Ok(None);
        }
        Err(errno) => return Err(errno),
    };
    exchange.buffer.touch(REQUEST_START + len);
    let bytes = &exchange.buffer.as_slice()[REQUEST_START..REQUEST_START + len];
    let header = match InHeader::read_from_prefix(bytes) {
        Ok((header, _)) if header.len as usize == len => header,
        _ => {
            tracing::error!(len, "the kernel sent a message that is no request");
            channel.put_back(exchange);
            return Ok(None);
        }
    };
    let extensions = usize::from(header.total_extlen) * 8;
    exchange.len = len.saturating_sub(extensions).max(size_of::<InHeader>());
    exchange.channel = Some(Arc::clone(channel));
    Ok(Some(Request::new(header, exchange, Arc::clone(stats))))
}

/// Reads one request on the caller's thread: INIT, before any other can come.
pub(super) fn read_one(device: &Arc<OwnedFd>, stats: &Arc<Stats>) -> io::Result<Request> {
    let channel = Arc::new(Channel { device: Arc::clone(device), spare: Mutex::default() });
    loop {
        if let Some(request) = receive(&channel, stats, false)? {
            return Ok(request);
        }
    }
}

/// Reads the requests that the kernel asks again after a notification: these come before all others, except notices.
pub(super) fn drain(device: &Arc<OwnedFd>, stats: &Arc<Stats>) -> io::Result<Vec<Request>> {
    let channel = Arc::new(Channel { device: Arc::clone(device), spare: Mutex::default() });
    let mut found = Vec::new();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut ready = [PollFd::new(&**device, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&now)))? == 0 {
            return Ok(found);
        }
        match receive(&channel, stats, true) {
            Ok(None) => {}
            Ok(Some(request)) => {
                let more = request.is_again() || request.is_notice();
                found.push(request);
                if !more {
                    return Ok(found);
                }
            }
            // Unmounted meanwhile: the next read will report it.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(found),
            Err(errno) => return Err(errno.into()),
        }
    }
}
