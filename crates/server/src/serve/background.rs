//! Background work of one mount: frees deleted files and what was cut out of others, writes access times, and warns
//! when the pool or a quota fills up.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagefold_engine::pool::Pool;
use pagefold_fs::Fs;
use pagefold_fs::limits::REAP_PAGES;
use parking_lot::{Condvar, Mutex};

use super::fullness::PoolWatch;
use crate::failure::{Context, Result};
use crate::units;

/// Interval between two checks whether there are such pages.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which access times are written.
const TIMES_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failure, so that a broken device does not fill the log.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// The watch on the fullness of the pool and its quotas, which all mounts share, so that each warning comes once.
pub(crate) type Watched = Arc<Mutex<PoolWatch>>;

/// The thread that does this work for one mount.
pub(crate) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts the thread. Without a file system it only warns.
    pub(crate) fn start(fs: Option<Arc<Fs>>, pool: Arc<Pool>, watched: Watched) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("reap".into())
            .spawn(move || work(fs.as_deref(), &pool, &watched, &stopped));
        let thread = thread.context(|| "cannot start a thread".into())?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(&self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the background thread of the file system panicked");
        }
    }
}

fn work(fs: Option<&Fs>, pool: &Pool, watched: &Watched, stop: &(Mutex<bool>, Condvar)) {
    let mut times_written = Instant::now();
    loop {
        watched.lock().look(pool, units::now());
        let pause = fs.map_or(REAP_INTERVAL, |fs| tend(fs, &mut times_written));
        let mut stopped = stop.0.lock();
        if !*stopped && !pause.is_zero() {
            stop.1.wait_for(&mut stopped, pause);
        }
        if *stopped {
            drop(stopped);
            // The last look reports what was met since the previous one.
            watched.lock().look(pool, units::now());
            return;
        }
    }
}

/// Frees some pages, and writes access times if that is due. Returns the pause before the next turn.
fn tend(fs: &Fs, times_written: &mut Instant) -> Duration {
    let mut pause = REAP_INTERVAL;
    match fs.reap(REAP_PAGES) {
        Ok(true) => pause = Duration::ZERO,
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%error, "cannot free what was deleted or cut out of files");
            pause = FAILURE_PAUSE;
        }
    }
    if times_written.elapsed() >= TIMES_INTERVAL || fs.are_times_due() {
        *times_written = Instant::now();
        if let Err(error) = fs.flush_times() {
            tracing::warn!(%error, "cannot write access times");
            pause = FAILURE_PAUSE;
        }
    }
    pause
}
