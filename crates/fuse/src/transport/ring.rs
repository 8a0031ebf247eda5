//! FUSE over io_uring: each CPU has a queue of entries, a ring and a thread bound to that CPU, so that a request is
//! answered where it was asked (kernel documentation: fuse-io-uring.rst; Linux 6.14).
//!
//! The ring also does the device reads of requests that need only one: handing them to another thread and back would
//! take two switches, longer than the rest of the read takes the CPU.
//!
//! An entry always belongs to exactly one of three owners, which makes its memory safe to use:
//!
//! 1. the kernel, from the submission of REGISTER or COMMIT_AND_FETCH until its completion;
//! 2. a [`Request`], from the completion until it is answered, on whatever thread; while the kernel reads a device for
//!    it, the request is in `reads`, unless that takes too long and another device of a mirror is asked;
//! 3. the queue's `done` list, from the answer until the queue's thread commits the entry.
//!
//! Memory that large requests have touched is given back while the kernel has the entry. This is safe for two reasons.
//! The kernel copies a request into an entry's memory only within a system call of the queue's thread
//! (`io_uring_enter`; the ring is made with DEFER_TASKRUN), never while that thread does something else. And an entry
//! whose header is still the one of the last reply has not been given another request.

mod device_reads;
mod exchange;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle, ThreadId};
use std::{fs, io};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::thread::CpuSet;
use zerocopy::FromBytes;

use super::{Running, Wiring};
use crate::blocking::Blocking;
use crate::buffer::{Buffer, is_too_much_kept};
use crate::limits::{
    INIT_TIMEOUT, KEPT_SMALL_BYTES, PAGE_BYTES, PAYLOAD_BYTES, RING_DEPTH_MAX, RING_DEPTH_MIN,
    RING_ENTRIES_MAX, RING_IDLE,
};
use crate::protocol::{
    InHeader, RING_CMD_COMMIT_AND_FETCH, RING_CMD_REGISTER, RING_HEADER_BYTES, RING_OP_BYTES, RingEntryInOut,
};
use crate::request::{Fetching, Request};
use device_reads::DeviceReads;

/// Offset of the entry's state within its header.
const STATE_START: usize = RING_HEADER_BYTES + RING_OP_BYTES;
const HEADER_BYTES: usize = STATE_START + size_of::<RingEntryInOut>();
/// `user_data` of the wake-up; entries have their index.
const WAKE: u64 = u64::MAX;
/// `user_data` of the timer.
const TIMER: u64 = u64::MAX - 1;
/// `user_data` of the timer for device reads that are overdue.
const OVERDUE: u64 = u64::MAX - 2;
/// Set in `user_data` of a device read, beside its index in [`DeviceReads`].
const READ: u64 = 1 << 63;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// State that a queue's thread shares with the threads that answer its requests.
struct Queue {
    /// Answered entries; boxed as requests carry them, so that nothing is allocated.
    #[allow(clippy::vec_box, reason = "the boxes come from requests")]
    done: Mutex<Vec<Box<RingExchange>>>,
    /// True if the thread waits, or is about to, and wants `wake` written after `done` has grown.
    asleep: AtomicBool,
    wake: OwnedFd,
    thread: ThreadId,
}

/// An entry: a page with the headers, then the payload.
struct RingExchange {
    buffer: Buffer,
    index: u64,
    commit_id: u64,
    /// Bytes of the payload that belong to the request.
    payload_len: usize,
    /// The kernel's number of the request that was answered last. It stays in the header until another request comes.
    answered: u64,
    queue: Arc<Queue>,
}

/// The threads of all queues.
struct Rings(Vec<JoinHandle<()>>);

impl Running for Rings {
    fn join(self: Box<Self>) {
        for thread in self.0 {
            if thread.join().is_err() {
                tracing::error!("a ring's thread panicked");
            }
        }
    }
}

/// Reasons why there are no rings.
pub(super) enum NoRings {
    /// The kernel has refused an entry. From then on it uses /dev/fuse.
    Refused(io::Error),
    /// A ring is missing. The kernel holds all requests back until it has the rings of all CPUs.
    Missing(io::Error),
}

impl From<io::Error> for NoRings {
    fn from(error: io::Error) -> Self {
        Self::Missing(error)
    }
}

/// Returns true if this process may make rings. That must be known before the kernel agrees to use them.
pub(super) fn can_be_made() -> bool {
    // The end of a ring interrupts a call of the thread that has made it.
    let made = thread::Builder::new().spawn(|| make(RING_DEPTH_MIN).map(drop));
    let made = made.and_then(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
    made.inspect_err(|error| tracing::debug!(%error, "this process cannot make rings")).is_ok()
}

/// Makes a ring for the calling thread.
fn make(depth: usize) -> io::Result<Ring> {
    Ring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(depth as u32 * 2)
        .build(depth as u32 + 2)
}

/// Starts a ring for every CPU that there may be; the kernel uses none before it has them all. If one cannot be had,
/// those that were started end with the mount.
pub(super) fn start(wiring: &Wiring) -> Result<Box<dyn Running>, NoRings> {
    let (report, reports) = mpsc::channel();
    let blocking = Blocking::shared(wiring.handler.source());
    let cpus = possible_cpus()?;
    let depth = (RING_ENTRIES_MAX / cpus).clamp(RING_DEPTH_MIN, RING_DEPTH_MAX);
    let mut threads = Vec::with_capacity(cpus);
    for cpu in 0..cpus {
        let (wiring, report, blocking) = (wiring.clone(), report.clone(), blocking.clone());
        threads.push(thread::Builder::new().name(format!("pf-ring-{cpu}")).spawn(move || {
            match Worker::register(&wiring, cpu, depth) {
                Ok(mut worker) => {
                    let _ = report.send(Ok(()));
                    if let Err(error) = worker.run(&wiring, &blocking) {
                        tracing::error!(%error, cpu, "a ring failed; aborting the connection");
                        wiring.abort();
                    }
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })?);
    }
    for _ in 0..cpus {
        reports
            .recv_timeout(INIT_TIMEOUT)
            .map_err(|_| io::Error::other("a ring's thread did not start"))??;
    }
    Ok(Box::new(Rings(threads)))
}

/// Returns one past the highest number of a CPU that this machine may ever have, from a list like `0-3,8`.
fn possible_cpus() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit(['-', ',']).next().and_then(|text| text.parse::<usize>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::other(format!("cannot read the list of CPUs {list:?}")))
}

/// A queue's thread.
struct Worker {
    ring: Ring,
    queue: Arc<Queue>,
    qid: u16,
    device: Arc<OwnedFd>,
    /// Entries that the kernel has, by index.
    entries: Vec<Option<Box<RingExchange>>>,
    /// Number of entries that the kernel has not given back for good.
    alive: usize,
    reads: DeviceReads,
    wake_value: Box<u64>,
    timer: Timer,
    /// [`RING_IDLE`] in memory from which the kernel reads it.
    idle: Box<types::Timespec>,
}

/// State of the timer by which an idle ring gives its memory back.
#[derive(Default)]
struct Timer {
    armed: bool,
    /// True if requests arrived since the timer was armed.
    busy: bool,
}

impl Worker {
    /// Binds the calling thread to `cpu`, makes its ring and hands all entries to the kernel.
    fn register(wiring: &Wiring, cpu: usize, depth: usize) -> Result<Self, NoRings> {
        let qid = u16::try_from(cpu).map_err(|_| io::Error::other("more than 65536 CPUs"))?;
        if cpu < CpuSet::MAX_CPU {
            let mut here = CpuSet::new();
            here.set(cpu);
            // This fails for a CPU that is possible but not there, whose queue then serves nobody.
            if let Err(errno) = rustix::thread::sched_setaffinity(None, &here) {
                tracing::debug!(%errno, cpu, "a ring's thread is not bound to its CPU");
            }
        }
        let ring = make(depth)?;
        let queue = Arc::new(Queue {
            done: Mutex::default(),
            asleep: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?,
            thread: thread::current().id(),
        });
        let mut worker = Self {
            ring,
            queue,
            qid,
            device: Arc::clone(&wiring.device),
            entries: Vec::new(),
            alive: 0,
            reads: DeviceReads::default(),
            wake_value: Box::new(0),
            timer: Timer::default(),
            idle: Box::new(RING_IDLE.into()),
        };
        worker.hand_out_entries(depth)?;
        match worker.refusal() {
            Some(error) => Err(NoRings::Refused(error)),
            None => Ok(worker),
        }
    }

    fn hand_out_entries(&mut self, depth: usize) -> io::Result<()> {
        // The kernel reads the vectors while REGISTER is submitted, and the memory they point at as long as the entry lives.
        let mut vectors = Vec::with_capacity(depth);
        for index in 0..depth as u64 {
            let buffer = Buffer::new(PAGE_BYTES + PAYLOAD_BYTES)?;
            let start = buffer.as_mut_ptr();
            vectors.push([
                libc::iovec { iov_base: start.cast(), iov_len: HEADER_BYTES },
                libc::iovec { iov_base: start.wrapping_add(PAGE_BYTES).cast(), iov_len: PAYLOAD_BYTES },
            ]);
            let exchange = RingExchange {
                buffer,
                index,
                commit_id: 0,
                payload_len: 0,
                answered: 0,
                queue: Arc::clone(&self.queue),
            };
            self.entries.push(Some(Box::new(exchange)));
        }
        self.alive = vectors.len();
        for (index, vector) in vectors.iter().enumerate() {
            let command = self.command(RING_CMD_REGISTER, 0, Some(vector)).user_data(index as u64);
            self.push(&command)?;
        }
        self.arm_wake()?;
        self.ring.submit()?;
        drop(vectors);
        Ok(())
    }

    /// Returns the error with which the kernel has refused an entry, if it has. A refused REGISTER completes at once; an
    /// accepted one with its first request.
    fn refusal(&mut self) -> Option<io::Error> {
        let refused = |completion: &cqueue::Entry| completion.user_data() != WAKE && completion.result() < 0;
        let refused = self.ring.completion().find(refused)?;
        Some(io::Error::from_raw_os_error(-refused.result()))
    }

    /// Returns a command for this queue of the connection.
    fn command(&self, code: u32, commit_id: u64, vector: Option<&[libc::iovec; 2]>) -> squeue::Entry128 {
        // struct fuse_uring_cmd_req: flags, commit_id, qid.
        let mut arguments = [0u8; 80];
        arguments[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        arguments[16..18].copy_from_slice(&self.qid.to_ne_bytes());
        let address = vector.map(|vector| vector.as_ptr() as u64);
        let mut entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code)
            .cmd(arguments)
            .addr(address)
            .build();
        if let Some(vector) = vector {
            // SAFETY: Entry128 is the kernel's 128-byte io_uring_sqe (repr(C)); its `len`, which this operation's
            // builder does not offer, is the u32 at byte 24.
            unsafe {
                (&raw mut entry).cast::<u8>().add(24).cast::<u32>().write_unaligned(vector.len() as u32);
            };
        }
        entry
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: `self` owns the memory that an entry points at (an exchange's buffer, a fetch's buffer and file,
            // the wake-up's value, the timer's time) until the entry's completion was seen; iovecs are read during
            // submission, which their owner waits for.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    fn arm_wake(&mut self) -> io::Result<()> {
        let fd = types::Fd(self.queue.wake.as_raw_fd());
        let value: *mut u64 = &raw mut *self.wake_value;
        let read = opcode::Read::new(fd, value.cast(), 8).build().user_data(WAKE);
        self.push(&squeue::Entry128::from(read))
    }

    /// Answers requests until the connection has ended and every entry came back.
    fn run(&mut self, wiring: &Wiring, blocking: &Blocking) -> io::Result<()> {
        let mut arrived = Vec::with_capacity(self.entries.len() + 1);
        while self.alive > 0 {
            if self.commit_done()? && is_too_much_kept() {
                self.ring.submit()?;
                self.give_back(KEPT_SMALL_BYTES);
            }
            self.arm_timer()?;
            self.queue.asleep.store(true, SeqCst);
            // An answer before `asleep` was set brings no wake-up.
            let want = usize::from(self.queue.done.lock().is_empty());
            let submitted = self.ring.submit_and_wait(want);
            self.queue.asleep.store(false, SeqCst);
            match submitted {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => return Err(error),
            }
            arrived.extend(
                self.ring.completion().map(|completion| (completion.user_data(), completion.result())),
            );
            for (user_data, result) in arrived.drain(..) {
                if user_data == WAKE {
                    self.arm_wake()?;
                } else if user_data == TIMER {
                    self.timer.armed = false;
                    if !self.timer.busy {
                        self.give_back(PAGE_BYTES);
                    }
                } else if user_data == OVERDUE {
                    self.reads.hand_on_overdue(wiring, blocking);
                    self.arm_overdue()?;
                } else if user_data & READ != 0 {
                    self.read_done(user_data & !READ, result, wiring, blocking);
                } else {
                    self.arrived(user_data, result, wiring, blocking)?;
                }
            }
        }
        Ok(())
    }

    /// Gives back the memory behind the first `keep` bytes of all entries that wait for a request.
    fn give_back(&mut self, keep: usize) {
        let waiting = self.entries.iter_mut().flatten().filter(|entry| entry.buffer.keeps_more_than(keep));
        waiting.filter(|entry| entry.is_waiting()).for_each(|entry| entry.buffer.give_back(keep));
    }

    /// Arms the timer, if it is not armed and entries keep memory, so that a ring which comes to rest gives it back.
    fn arm_timer(&mut self) -> io::Result<()> {
        let mut entries = self.entries.iter().flatten();
        if self.timer.armed || !entries.any(|entry| entry.buffer.keeps_more_than(PAGE_BYTES)) {
            return Ok(());
        }
        self.timer = Timer { armed: true, busy: false };
        let timeout = opcode::Timeout::new(&raw const *self.idle).build().user_data(TIMER);
        self.push(&squeue::Entry128::from(timeout))
    }

    /// Hands answered entries back to the kernel. Returns true if one of them keeps much memory.
    fn commit_done(&mut self) -> io::Result<bool> {
        let mut done = std::mem::take(&mut *self.queue.done.lock());
        let mut much = false;
        for exchange in done.drain(..) {
            let (index, commit_id) = (exchange.index, exchange.commit_id);
            much |= exchange.buffer.keeps_much();
            if let Some(slot) = self.entries.get_mut(index as usize) {
                *slot = Some(exchange);
            }
            let command = self.command(RING_CMD_COMMIT_AND_FETCH, commit_id, None).user_data(index);
            self.push(&command)?;
        }
        // The list's memory is kept for the next round.
        let mut list = self.queue.done.lock();
        if list.is_empty() {
            *list = done;
        }
        Ok(much)
    }

    /// Handles an entry that came back, with a request or for good.
    fn arrived(&mut self, index: u64, result: i32, wiring: &Wiring, blocking: &Blocking) -> io::Result<()> {
        let Some(mut exchange) = self.entries.get_mut(index as usize).and_then(Option::take) else {
            tracing::error!(index, "a completion for an entry that the kernel does not have");
            return Ok(());
        };
        if result < 0 {
            // ENOTCONN: unmounted or aborted.
            if result != -libc::ENOTCONN {
                tracing::warn!(errno = -result, "the kernel refused an entry of a ring");
            }
            self.alive -= 1;
            return Ok(());
        }
        let bytes = exchange.buffer.as_slice();
        let state = RingEntryInOut::read_from_prefix(&bytes[STATE_START..]).map(|(state, _)| state);
        let header = InHeader::read_from_prefix(bytes).map(|(header, _)| header);
        let (Ok(state), Ok(header)) = (state, header) else { return Ok(()) };
        let extensions = usize::from(header.total_extlen) * 8;
        exchange.commit_id = state.commit_id;
        let payload_len = (state.payload_sz as usize).min(PAYLOAD_BYTES);
        exchange.buffer.touch(PAGE_BYTES + payload_len);
        exchange.payload_len = payload_len.saturating_sub(extensions);
        self.timer.busy = true;
        let request = Request::new(header, exchange, Arc::clone(&wiring.stats));
        match wiring.handler.handle(request, blocking) {
            Some(fetching) => self.start_read(fetching, wiring, blocking),
            None => Ok(()),
        }
    }

    /// Begins the device read that a request waits for.
    fn start_read(&mut self, mut fetching: Fetching, wiring: &Wiring, blocking: &Blocking) -> io::Result<()> {
        let fd = fetching.fetch.file().map(|fd| types::Fd(fd.as_raw_fd()));
        let (offset, into) = fetching.fetch.request();
        let (start, len) = (into.as_mut_ptr(), u32::try_from(into.len()));
        let (Some(fd), Ok(len)) = (fd, len) else {
            wiring.handler.fetched(fetching, false, blocking);
            return Ok(());
        };
        let index = self.reads.begin(fetching);
        let read = opcode::Read::new(fd, start, len).offset(offset).build().user_data(READ | index);
        self.push(&squeue::Entry128::from(read))?;
        self.arm_overdue()
    }

    /// Arms the timer for reads that are overdue, if it is not armed and there may be some.
    fn arm_overdue(&mut self) -> io::Result<()> {
        let Some(time) = self.reads.arm() else { return Ok(()) };
        let timeout = opcode::Timeout::new(time).build().user_data(OVERDUE);
        self.push(&squeue::Entry128::from(timeout))
    }

    /// Goes on with a request whose device read has ended: completely, short, or in an error.
    fn read_done(&mut self, index: u64, result: i32, wiring: &Wiring, blocking: &Blocking) {
        let Some(mut fetching) = self.reads.end(index, result) else { return };
        let filled = usize::try_from(result) == Ok(fetching.fetch.request().1.len());
        wiring.handler.fetched(fetching, filled, blocking);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.alive > 0 {
            // The kernel may still write into the memory of its entries: memory that leaks is better than memory that
            // changes.
            self.entries.drain(..).for_each(std::mem::forget);
            std::mem::forget(std::mem::take(&mut self.wake_value));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_is_the_kernels() {
        assert_eq!(super::HEADER_BYTES, 288);
        assert!(super::possible_cpus().unwrap() >= 1);
    }
}
