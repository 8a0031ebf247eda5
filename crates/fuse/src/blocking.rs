//! Where requests go that may wait: for a device, for a flush, for each other.

use crate::limits::{BLOCKING_IDLE, BLOCKING_THREADS_MAX};
use parking_lot::{Condvar, Mutex};
use std::{collections::VecDeque, fmt, sync::Arc, thread};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs that may wait: on a pool that grows with what is waiting, or at once where the transport's own threads may
/// wait.
#[derive(Clone, Debug)]
pub struct Blocking(Option<Arc<Pool>>);

struct Pool {
    state: Mutex<State>,
    work: Condvar,
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
    /// Jobs run at once, on the caller's thread.
    pub(crate) fn inline() -> Self {
        Self(None)
    }

    /// Jobs run on up to [`BLOCKING_THREADS_MAX`] threads of their own.
    #[allow(dead_code, reason = "the ring's, which lands next")]
    pub(crate) fn pool() -> Self {
        Self(Some(Arc::new(Pool { state: Mutex::default(), work: Condvar::new() })))
    }

    /// Whether [`Blocking::run`] runs jobs on the caller's thread: then trying first without waiting gains nothing.
    pub fn is_inline(&self) -> bool {
        self.0.is_none()
    }

    /// Runs `job`. With a pool it returns at once; jobs beyond the number of threads wait in order.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let Some(pool) = &self.0 else { return job() };
        let mut state = pool.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            pool.work.notify_one();
            return;
        }
        if state.threads < BLOCKING_THREADS_MAX {
            state.threads += 1;
            let worker = Arc::clone(pool);
            let spawned = thread::Builder::new().name("pf-blocking".into()).spawn(move || worker.work());
            if let Err(error) = spawned {
                state.threads -= 1;
                // With no thread at all the job would never run: the caller's thread does it.
                if state.threads == 0
                    && let Some(job) = state.jobs.pop_back()
                {
                    drop(state);
                    tracing::warn!(%error, "no thread for a request that waits; its transport thread waits instead");
                    job();
                }
            }
        }
    }
}

impl Pool {
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
