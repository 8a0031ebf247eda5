//! Runs requests that may wait: for a device, for a flush, for each other.

use crate::limits::{BLOCKING_IDLE, DROP_WAITS_MAX, READ_THREADS_MAX, WAIT_THREADS_MAX};
use pagefold_engine::dataset::Caller;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
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
    /// The kernel, which drops pages when requests that have them locked were answered. These may wait as
    /// [`Wait::Flush`] says, and never as this says.
    Drop,
}

/// Places from which requests of a mount may have to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Devices of this machine.
    Devices,
    /// A store of backups, too, which may be away for minutes.
    Store,
    /// Snapshots that a mount shows beside its files: any of them may have to read from a store.
    Snapshots,
}

#[derive(Clone, Debug)]
struct Pools {
    read: Arc<Pool>,
    flush: Arc<Pool>,
    drop: Arc<Pool>,
}

/// Threads that are started when there is work and end when there is none.
///
/// The thread that became idle last gets the next job: its memory is in the caches of its CPU, and those that a burst of
/// jobs has started end soon after it.
pub(crate) struct Pool {
    name: &'static str,
    threads_max: usize,
    /// Time without work after which a thread ends.
    patience: Duration,
    birth: Option<MakeBirth>,
    state: Mutex<State>,
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
    /// Threads that wait for jobs, the one that has waited longest first.
    idle: Vec<Arc<Condvar>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Pool({} threads, {} idle, {} jobs)", state.threads, state.idle.len(), state.jobs.len())
    }
}

impl Blocking {
    /// Returns a value that runs jobs at once, on the caller's thread.
    pub(crate) fn inline() -> Self {
        Self(None)
    }

    /// Returns a value that runs jobs on threads which all mounts of the process that read from there share: each thread
    /// has memory of its own, and devices and CPUs are good for this many at a time however many mounts there are.
    pub(crate) fn shared(source: Source) -> Self {
        static DEVICES: OnceLock<Pools> = OnceLock::new();
        static STORES: OnceLock<Pools> = OnceLock::new();
        static SNAPSHOTS: OnceLock<Pools> = OnceLock::new();
        let of_source = match source {
            Source::Devices => &DEVICES,
            Source::Store => &STORES,
            Source::Snapshots => &SNAPSHOTS,
        };
        let pool = |threads_max| Pool::new("pf-blocking", threads_max);
        let pools = || Pools {
            read: pool(READ_THREADS_MAX),
            flush: pool(WAIT_THREADS_MAX),
            drop: pool(DROP_WAITS_MAX),
        };
        Self(Some(of_source.get_or_init(pools).clone()))
    }

    /// Returns a value whose jobs read from `source`, and keep none of this value waiting, unless the caller's thread runs
    /// them.
    pub(crate) fn for_source(&self, source: Source) -> Self {
        if self.is_inline() { Self::inline() } else { Self::shared(source) }
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
            (Some(pools), Wait::Drop) => &pools.drop,
        };
        pool.run(Box::new(job));
    }
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Arc<Self> {
        Self::of(name, threads_max, BLOCKING_IDLE, None)
    }

    /// Returns a pool whose threads are each prepared by what `birth` returns.
    pub(crate) fn with_births(
        name: &'static str,
        threads_max: usize,
        birth: impl Fn() -> Option<Birth> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::of(name, threads_max, BLOCKING_IDLE, Some(Box::new(birth)))
    }

    fn of(name: &'static str, threads_max: usize, patience: Duration, birth: Option<MakeBirth>) -> Arc<Self> {
        Arc::new(Self { name, threads_max, patience, birth, state: Mutex::default() })
    }

    /// Runs `job` on a thread; if all are busy and no more may be started, jobs wait in order.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        if let Some(last) = state.idle.pop() {
            last.notify_one();
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
        let called = Arc::new(Condvar::new());
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle.push(Arc::clone(&called));
            let is_idle = |state: &mut State| state.idle.iter().any(|one| Arc::ptr_eq(one, &called));
            let timed_out = called.wait_while_for(&mut state, is_idle, self.patience).timed_out();
            if timed_out && is_idle(&mut state) {
                state.idle.retain(|one| !Arc::ptr_eq(one, &called));
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::ThreadId;
    use std::time::Instant;

    /// Runs `number` jobs at the same time, and returns their threads once all have ended.
    fn run_together(pool: &Arc<Pool>, number: usize) -> Vec<ThreadId> {
        let together = Arc::new(std::sync::Barrier::new(number));
        let (say, said) = mpsc::channel();
        for _ in 0..number {
            let (together, say) = (Arc::clone(&together), say.clone());
            pool.run(Box::new(move || {
                together.wait();
                say.send(thread::current().id()).unwrap();
            }));
        }
        drop(say);
        let threads = said.iter().collect();
        let all_idle = || {
            let state = pool.state.lock();
            state.idle.len() == state.threads
        };
        while !all_idle() {
            thread::yield_now();
        }
        threads
    }

    /// A store of backups that does not answer keeps reads of datasets that are not complete waiting for minutes.
    #[test]
    fn reads_that_wait_for_a_store_keep_no_others_waiting() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for _ in 0..2 * READ_THREADS_MAX {
            let gate = Arc::clone(&gate);
            Blocking::shared(Source::Store).run(Wait::Read, move || drop(gate.lock()));
        }
        let (say, said) = mpsc::channel();
        Blocking::shared(Source::Devices).run(Wait::Read, move || say.send(()).unwrap());
        let answered = said.recv_timeout(Duration::from_secs(60));
        drop(closed);
        answered.unwrap();
    }

    #[test]
    fn threads_of_a_burst_end_although_there_is_always_a_little_work() {
        let pool = Pool::of("test", 8, Duration::from_millis(200), None);
        assert_eq!(run_together(&pool, 8).len(), 8);
        let start = Instant::now();
        let mut last = None;
        while pool.state.lock().threads > 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "{pool:?}");
            let [thread] = run_together(&pool, 1)[..] else { unreachable!() };
            assert_eq!(*last.get_or_insert(thread), thread, "another thread than the one that was busy last");
        }
        assert_eq!(run_together(&pool, 1), last.as_slice());
        // And there are as many again as there is work for.
        assert_eq!(run_together(&pool, 8).len(), 8);
    }
}
