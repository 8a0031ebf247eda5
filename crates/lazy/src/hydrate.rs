//! Brings the pages that nobody has read, so that the backup is not needed any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::absent::Run;
use crate::limits::HYDRATE_THREADS;
use crate::overlay::{Overlay, Trouble};

/// Pause after a pass that could not bring everything.
const PASS_PAUSE: Duration = Duration::from_secs(30);

/// Pages and bytes that are left to bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of pages that are absent.
    pub pages: u64,
    /// Bytes of these pages' records, about.
    pub bytes: u64,
}

/// Threads that bring what is absent. They end when this is dropped.
pub struct Hydrating {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    overlay: Arc<Overlay>,
    stop: AtomicBool,
    stopped: (Mutex<()>, Condvar),
    /// Object and page at which the next piece is looked for.
    cursor: Mutex<Cursor>,
    pace: Pace,
}

#[derive(Default)]
struct Cursor {
    object: u64,
    page: u64,
    /// Number of pieces of this pass that failed; `why` is the reason of the first.
    failed: u64,
    why: Option<String>,
    /// Number of threads that are bringing a piece.
    busy: usize,
}

/// Bounds the bytes a second, by a time that each piece moves on.
struct Pace {
    bytes_per_second: Option<u64>,
    next: Mutex<Instant>,
}

impl Pace {
    /// Returns the time to wait before `bytes` more.
    fn wait(&self, bytes: u64) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let now = Instant::now();
        let mut next = self.next.lock();
        let begin = (*next).max(now);
        *next = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        begin - now
    }
}

impl Hydrating {
    /// Starts to bring the absent pages of `overlay`, at most `bytes_per_second` bytes of records a second.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(overlay: Arc<Overlay>, bytes_per_second: Option<u64>) -> std::io::Result<Self> {
        let pace = Pace { bytes_per_second, next: Mutex::new(Instant::now()) };
        let shared = Arc::new(Shared {
            overlay,
            stop: AtomicBool::new(false),
            stopped: (Mutex::default(), Condvar::new()),
            cursor: Mutex::default(),
            pace,
        });
        let mut hydrating = Self { shared, threads: Vec::new() };
        for _ in 0..HYDRATE_THREADS {
            let shared = Arc::clone(&hydrating.shared);
            let thread = thread::Builder::new().name("hydrate".into()).spawn(move || shared.work())?;
            hydrating.threads.push(thread);
        }
        Ok(hydrating)
    }

    /// Returns what is left to bring.
    pub fn progress(&self) -> Progress {
        let (pages, bytes) = self.shared.overlay.absent();
        Progress { pages, bytes }
    }
}

impl Drop for Hydrating {
    fn drop(&mut self) {
        let held = self.shared.stopped.0.lock();
        self.shared.stop.store(true, Ordering::Release);
        drop(held);
        self.shared.stopped.1.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a thread has been logged already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while !self.stop.load(Ordering::Acquire) && !self.overlay.is_complete() {
            let Some(run) = self.next() else {
                self.rest(PASS_PAUSE);
                continue;
            };
            self.rest(self.pace.wait(self.overlay.record_bytes(&run)));
            let brought =
                if self.stop.load(Ordering::Acquire) { Ok(()) } else { self.overlay.bring_run(&run) };
            self.done(&run, brought);
        }
    }

    /// Waits for `time`, unless the threads are to end.
    fn rest(&self, time: Duration) {
        let mut held = self.stopped.0.lock();
        let until = Instant::now() + time;
        while !self.stop.load(Ordering::Acquire) && !self.overlay.is_complete() {
            if self.stopped.1.wait_until(&mut held, until).timed_out() {
                return;
            }
        }
    }

    /// Returns the next piece; `None` at the end of this pass.
    fn next(&self) -> Option<Run> {
        let mut cursor = self.cursor.lock();
        if let Some(run) = self.overlay.next_piece(cursor.object, cursor.page) {
            (cursor.object, cursor.page) = (run.object, run.to);
            cursor.busy += 1;
            return Some(run);
        }
        // The last thread that was still bringing a piece begins the next pass.
        if cursor.busy == 0 && cursor.failed > 0 {
            tracing::warn!(
                pieces = cursor.failed,
                why = cursor.why.as_deref().unwrap_or_default(),
                pages = self.overlay.absent().0,
                "not all could be brought: it is tried again"
            );
        }
        if cursor.busy == 0 {
            *cursor = Cursor::default();
        }
        None
    }

    fn done(&self, run: &Run, brought: Result<(), Trouble>) {
        let mut cursor = self.cursor.lock();
        cursor.busy -= 1;
        if let Err(trouble) = brought {
            cursor.failed += 1;
            let error = trouble.into_error();
            tracing::debug!(object = run.object, page = run.from, %error, "cannot bring pages");
            cursor.why.get_or_insert_with(|| error.to_string());
        }
        drop(cursor);
        if self.overlay.is_complete() {
            let held = self.stopped.0.lock();
            self.stopped.1.notify_all();
            drop(held);
        }
    }
}
