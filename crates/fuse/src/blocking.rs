//! Runs requests that may wait: for a device, for a flush, for each other.

use crate::limits::{BLOCKING_IDLE, READ_THREADS_MAX, WAIT_THREADS_MAX};
use pagefold_engine::dataset::Caller;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};
use std::{collections::VecDeque, fmt, thread};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs that may wait: on a pool that grows with the waiting jobs, or at once if the transport's own threads may
/// wait.
#[derive(Clone, Debug)]
pub struct Blocking(Option<Pools>);

/// Things that a job waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A device to read: as many jobs at a time as the device and the CPUs are good for.
    Read,
    /// A flush, or room for changes: possibly long.
    Flush,
}

#[derive(Clone, Debug)]
struct Pools {
    read: Arc<Pool>,
    flush: Arc<Pool>,
}

/// Threads that are started when there is work and end when there is none.
pub(crate) struct Pool {
    name: &'static str,
    threads_max: usize,
    birth: Option<MakeBirth>,
    state: Mutex<State>,
    work: Condvar,
}

/// Makes the preparations of a new thread; none if it needs none.
type MakeBirth = Box<dyn Fn() -> Option<Birth> + Send + Sync>;

/// Preparations of a new thread.
pub(crate) struct Birth {
    /// Runs on the new thread, before its first job.
    pub(crate) on_thread: Box<dyn FnOnce() + Send>,
    /// Runs on the thread that has started it.
    pub(crate) beside: Box<dyn FnOnce()>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Pool({} threads, {} idle, {} jobs)", state.threads, state.idle, state.jobs.len())
    }
}

impl Blocking {
    /// Returns a value that runs jobs at once, on the caller's thread.
    pub(crate) fn inline() -> Self {
        Self(None)
    }

    /// Returns a value that runs jobs on threads which all mounts of the process share: each thread has memory of its
    /// own, and devices and CPUs are good for this many at a time however many mounts there are.
    pub(crate) fn shared() -> Self {
        static POOLS: OnceLock<Pools> = OnceLock::new();
        let pool = |threads_max| Pool::new("pf-blocking", threads_max);
        let pools = || Pools { read: pool(READ_THREADS_MAX), flush: pool(WAIT_THREADS_MAX) };
        Self(Some(POOLS.get_or_init(pools).clone()))
    }

    /// Returns true if [`Blocking::run`] runs jobs on the caller's thread: then it is no use to try first without
    /// waiting.
    pub fn is_inline(&self) -> bool {
        self.0.is_none()
    }

    /// Returns what the transport's own threads may do.
    pub(crate) fn caller(&self) -> Caller {
        if self.is_inline() { Caller::MayWait } else { Caller::MustNotWait }
    }

    /// Runs `job`. With a pool it returns at once; jobs beyond the number of threads wait in order.
    pub fn run(&self, wait: Wait, job: impl FnOnce() + Send + 'static) {
        let pool = match (&self.0, wait) {
            (None, _) => return job(),
            (Some(pools), Wait::Read) => &pools.read,
            (Some(pools), Wait::Flush) => &pools.flush,
        };
        pool.run(Box::new(job));
    }
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Arc<Self> {
        Self::of(name, threads_max, None)
    }

    /// Returns a pool whose threads are each prepared by what `birth` returns.
    pub(crate) fn with_births(
        name: &'static str,
        threads_max: usize,
        birth: impl Fn() -> Option<Birth> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::of(name, threads_max, Some(Box::new(birth)))
    }

    fn of(name: &'static str, threads_max: usize, birth: Option<MakeBirth>) -> Arc<Self> {
        Arc::new(Self { name, threads_max, birth, state: Mutex::default(), work: Condvar::new() })
    }

    /// Runs `job` on a thread; if all are busy and no more may be started, jobs wait in order.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.work.notify_one();
            return;
        }
        if state.threads < self.threads_max {
            state.threads += 1;
            let worker = Arc::clone(self);
            let birth = self.birth.as_ref().and_then(|birth| birth());
            let (on_thread, beside) = birth.map(|birth| (birth.on_thread, birth.beside)).unzip();
            let spawned = thread::Builder::new().name(self.name.into()).spawn(move || {
                if let Some(on_thread) = on_thread {
                    on_thread();
                }
                worker.work();
            });
            let mut own_job = None;
            if let Err(error) = &spawned {
                state.threads -= 1;
                // Without any thread the job would never run: the caller's thread does it.
                if state.threads == 0 {
                    own_job = state.jobs.pop_back();
                    tracing::warn!(%error, "no thread for a request that waits; its transport thread waits instead");
                }
            }
            drop(state);
            if let Some(beside) = beside {
                beside();
            }
            if let Some(job) = own_job {
                job();
            }
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, BLOCKING_IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
