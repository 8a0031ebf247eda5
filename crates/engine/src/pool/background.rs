//! Runs the pool's background work: commits at least every second, checkpoints, cleaning, learning, scrubs and trims.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::late::{self, Late};
use super::traffic::Traffic;
use super::trim::AutotrimPace;
use super::{LearnOptions, Pool, ScrubState};
use crate::dataset::{Commit, count};
use crate::device::{self, IoClass};
use crate::{Error, Result};

/// Longest time until an accepted change is durable (contract W3).
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks whether a checkpoint or cleaning is due.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(200);
/// Learning takes at most one part in this many of a core's time while the pool is idle. The next two hold while it is
/// busy: for objects that have no model, so that most of a load is coded by one; and for others.
const LEARNING_SHARE: u32 = 2;
const LEARNING_SHARE_FIRST: u32 = 3;
const LEARNING_SHARE_BUSY: u32 = 16;
/// A scrub takes one part in this many of the time of one thread while the pool is idle; the next holds while it is
/// not.
const SCRUB_SHARE: u32 = 2;
const SCRUB_SHARE_BUSY: u32 = 8;
/// Time between two looks whether a device can be emptied further that could not.
const OBSTACLE_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two looks whether a device has grown, or is to be replaced by a spare.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Filling a device of a mirror, emptying one, or balancing devices takes one part in this many of the time of one thread
/// while the pool is busy, and all of it while the pool is idle.
pub const FILL_SHARE_BUSY: u32 = 3;
/// Time between two looks whether a checkpoint is to be made for what is to be discarded.
const AUTOTRIM_INTERVAL: Duration = Duration::from_secs(2);
/// An age of pages that were coded in haste.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// The time that a step in the background works. While its requests wait for their turns it takes nothing from anybody:
/// that time does not count for its share.
struct Work {
    begun: Instant,
    waited: Duration,
}

impl Work {
    fn begin() -> Self {
        Self { begun: Instant::now(), waited: device::waited() }
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(device::waited().saturating_sub(self.waited))
    }
}

/// Threads that keep a pool going. [`Pool::export`] tells them to end; [`Background::stop`], or dropping this, waits for
/// that, too.
#[must_use = "the threads end when it is dropped"]
pub struct Background {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the pool's background work, which goes on until what is returned is stopped or dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] if a thread cannot be started; then none is left.
    pub fn run(self: &Arc<Self>) -> Result<Background> {
        let mut background = Background { pool: Arc::clone(self), threads: Vec::new() };
        self.shared.throttle.start();
        self.shared.devices.write_behind_by_thread(true);
        for (name, work) in [
            // Others wait for it, and so it comes first: the next one may not be startable.
            ("write-behind", (|pool| pool.shared.devices.serve_writes_behind()) as fn(&Self)),
            ("commit", Self::commit_loop),
            ("maintenance", Self::maintenance_loop),
            ("learning", Self::learning_loop),
            ("scrub", Self::scrub_loop),
            ("fill", Self::fill_loop),
            ("trim", Self::trim_loop),
            ("sync-0", Self::committer_loop),
            ("sync-1", Self::committer_loop),
        ] {
            let pool = Arc::clone(self);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&pool));
            background.threads.push(
                thread.map_err(|source| Error::Busy(format!("a thread could not be started: {source}")))?,
            );
        }
        Ok(background)
    }

    /// Writes to the log what was not done because of `error`. Of a pool that takes no more changes that was told once, when
    /// it began.
    pub(super) fn tell_of_failure(&self, what: &str, error: &Error) {
        if self.shared.failure().is_none() {
            tracing::error!("{what}: {error}");
        }
    }

    pub(super) fn stop_background(&self) {
        self.signal.lock().stop = true;
        self.shared.throttle.stop();
        self.shared.devices.write_behind_by_thread(false);
        self.wake.notify_all();
        self.clean_wake.notify_all();
        self.stop_committers();
    }

    fn commit_loop(&self) {
        let mut last_durable = std::time::Instant::now();
        let mut last_batch = 0;
        loop {
            let nudged = {
                let mut signal = self.signal.lock();
                if !signal.commit && !signal.stop {
                    self.wake.wait_for(&mut signal, COMMIT_INTERVAL.saturating_sub(last_durable.elapsed()));
                }
                if signal.stop {
                    return;
                }
                std::mem::take(&mut signal.commit)
            };
            let due = last_durable.elapsed() >= COMMIT_INTERVAL;
            if !(nudged || due) {
                continue;
            }
            if due {
                last_durable = std::time::Instant::now();
            }
            let done = self.commit(due).and_then(|()| {
                if due {
                    self.store_new_faults()?;
                    self.store_history()?;
                    // A log that is written to attests its flushes by the way.
                    let batch = self.log.lock().writer.position().batch;
                    if std::mem::replace(&mut last_batch, batch) == batch {
                        return self.attest();
                    }
                }
                Ok(())
            });
            if let Err(error) = done {
                self.tell_of_failure("changes were not made durable; this is tried again", &error);
                std::thread::sleep(COMMIT_INTERVAL);
            }
        }
    }

    /// Has the log state that its last batches were flushed, if nothing states so yet: damage to them would otherwise
    /// be taken for the torn end that a crash leaves (T7). To be called when nothing is written for a while.
    ///
    /// # Errors
    /// Of devices; then the pool has failed.
    pub fn attest(&self) -> Result<()> {
        if self.shared.check_writable().is_err() || !self.log.lock().writer.wants_attest() {
            return Ok(());
        }
        match self.prepare_commit() {
            // The checkpoint that comes next states it, too.
            Err(Error::NoSpace(_)) => return Ok(()),
            prepared => prepared?,
        }
        let attested = self.flushes.flush().and_then(|()| {
            let mut log = self.log.lock();
            let Some(appended) = log.writer.attest()? else { return Ok(()) };
            log.window_bytes += appended.written_bytes;
            drop(log);
            count(&self.shared.counters.framing_bytes, appended.framing_bytes);
            if appended.durable { Ok(()) } else { self.flushes.flush() }
        });
        attested.inspect_err(|error| self.shared.fail(error))
    }

    /// Sleeps for `rest`, in short steps, so that threads end soon after they are told to. Returns false if they are to
    /// end.
    fn rested(&self, mut rest: Duration) -> bool {
        loop {
            let step = rest.min(MAINTENANCE_INTERVAL);
            std::thread::sleep(step);
            rest -= step;
            if self.signal.lock().stop {
                return false;
            }
            if rest.is_zero() {
                return true;
            }
        }
    }

    fn maintenance_loop(&self) {
        let mut pace = CommitSpeed::default();
        loop {
            {
                let mut wanted = self.cleaning.lock();
                if !*wanted {
                    self.clean_wake.wait_for(&mut wanted, MAINTENANCE_INTERVAL);
                }
                *wanted = false;
            }
            if self.signal.lock().stop {
                return;
            }
            match self.maintain_timed(&mut pace) {
                Ok(()) => {}
                Err(error) => {
                    self.tell_of_failure(
                        "space was not freed, or a checkpoint not written; this is tried again",
                        &error,
                    );
                    if !self.rested(COMMIT_INTERVAL) {
                        return;
                    }
                }
            }
        }
    }

    /// Does rounds of maintenance as long as there is something to gain and room is short.
    fn maintain_timed(&self, pace: &mut CommitSpeed) -> Result<()> {
        loop {
            let done = self.maintain()?;
            pace.committed(self);
            if !done || !self.shared.wants_cleaning() || self.signal.lock().stop {
                return Ok(());
            }
        }
    }

    /// Goes on with a scrub, if one is under way, and rests after each step.
    fn scrub_loop(&self) {
        let mut traffic = Traffic::default();
        let mut rest = MAINTENANCE_INTERVAL;
        while self.rested(rest) {
            rest = MAINTENANCE_INTERVAL;
            let work = Work::begin();
            traffic.observe(self, work.begun);
            match self.scrub_step(now_s()) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    let rate = self.scrub_status().rate;
                    rest = scrub_rest(bytes, &work, rate, traffic.idle_since);
                }
                Err(error) => tracing::warn!(%error, "where the scrub stands could not be stored"),
            }
        }
        if self.scrub_status().state == ScrubState::Running
            && let Err(error) = self.store_scrub()
        {
            tracing::warn!(%error, "where the scrub stands could not be stored");
        }
    }

    /// Fills devices that lack something, empties those that leave, balances devices, and codes pages again that were
    /// coded in haste; rests after each step. Takes up growth of devices, if that is wanted, and lets spares step in.
    fn fill_loop(&self) {
        let mut traffic = Traffic::default();
        let mut rest = MAINTENANCE_INTERVAL;
        let mut measured: Option<Instant> = None;
        let mut aged = Instant::now();
        let mut told = String::new();
        while self.rested(rest) {
            let work = Work::begin();
            traffic.observe(self, work.begun);
            if measured.is_none_or(|last| work.begun.duration_since(last) >= MEASURE_INTERVAL) {
                measured = Some(work.begun);
                if let Err(error) = self.growth_step() {
                    tracing::warn!(
                        "a device has grown, and the pool does not use that yet; this is tried again: {error}"
                    );
                }
                let failed =
                    self.spare_step(now_s()).err().map(|error| error.to_string()).unwrap_or_default();
                // It is tried again and again, and told once.
                if !failed.is_empty() && failed != told {
                    tracing::error!(
                        "a spare was to step in or to be given back, and could not; this is tried again: {failed}"
                    );
                }
                told = failed;
            }
            if work.begun.duration_since(aged) >= AGE_INTERVAL {
                aged = work.begun;
                self.age_pages();
            }
            let code_quiet = |pool: &Self, _: u64| pool.code_quiet();
            let chained = |pool: &Self, _: u64| pool.store_chained();
            let steps = [Self::fill_step, Self::removal_step, Self::balance_step, code_quiet, chained];
            let none_yet = |done: &Result<Option<u64>>| matches!(done, Ok(None));
            let step = steps.iter().map(|step| step(self, now_s())).find(|done| !none_yet(done));
            let step = step.unwrap_or(Ok(None));
            let waits = || self.removal_status().obstacle.or(self.balance_status().obstacle).is_some();
            rest = match step {
                Ok(None) if waits() => OBSTACLE_INTERVAL,
                Ok(None) => MAINTENANCE_INTERVAL,
                Ok(Some(_)) if traffic.idle_since.is_some() => Duration::ZERO,
                Ok(Some(_)) => work.elapsed() * (FILL_SHARE_BUSY - 1),
                Err(error) => {
                    self.tell_of_failure(
                        "a device was not filled, emptied or balanced; this is tried again",
                        &error,
                    );
                    COMMIT_INTERVAL
                }
            };
        }
    }

    /// Goes on with a trim, if one is under way; otherwise, with `autotrim`, discards chunks that became free. Rests
    /// after each step.
    fn trim_loop(&self) {
        let mut traffic = Traffic::default();
        let mut pace = AutotrimPace::default();
        let mut looked = Instant::now();
        let mut stuck = 0;
        let mut rest = MAINTENANCE_INTERVAL;
        while self.rested(rest) {
            rest = MAINTENANCE_INTERVAL;
            let work = Work::begin();
            if work.begun.duration_since(looked) >= AUTOTRIM_INTERVAL {
                looked = work.begun;
                traffic.observe(self, work.begun);
                if traffic.idle_since.is_some()
                    && let Err(error) = self.free_for_autotrim(&mut stuck)
                {
                    self.tell_of_failure("free space was not discarded; this is tried again", &error);
                }
            }
            let rate = self.trim_status().rate;
            let done = match self.trim_step(now_s()) {
                Ok(None) => {
                    let done = self.autotrim_step_at(&pace);
                    done.map(|done| done.map(|_| (pace.rest_after(work.elapsed()), 0)))
                }
                done => done.map(|done| done.map(|bytes| (Duration::ZERO, bytes))),
            };
            match done {
                Ok(None) => {}
                Ok(Some((share, bytes))) => {
                    let due = if rate == 0 { 0.0 } else { bytes as f64 / rate as f64 };
                    let due = Duration::from_secs_f64(due).saturating_sub(work.begun.elapsed());
                    rest = share.max(due).max(Duration::from_millis(1));
                }
                Err(error) => tracing::warn!(%error, "a discard failed; the pool is as good as before"),
            }
        }
    }

    /// Learns models, codes again what was stored before them, and rests in between, so that this takes only a share of
    /// the time.
    fn learning_loop(&self) {
        let mut rest = MAINTENANCE_INTERVAL;
        let mut waiting = Late::default();
        // Time from which on, while the pool is busy, objects that have a model may get a new one.
        let mut next_later = Instant::now();
        while self.rested(rest) {
            let work = Work::begin();
            let begun = work.begun;
            waiting.traffic.observe(self, begun);
            let idle = waiting.is_idle();
            let small = idle && self.has_few_models();
            let options = if small { LearnOptions::IDLE } else { LearnOptions::default() };
            let took_share = match self.learn_of(&options, !idle && begun < next_later) {
                Ok(Some(_)) if idle => LEARNING_SHARE,
                Ok(Some(learned)) if learned.first => LEARNING_SHARE_FIRST,
                Ok(Some(_)) => {
                    next_later = begun + work.elapsed() * LEARNING_SHARE_BUSY;
                    1
                }
                Ok(None) => match waiting.step(self, begun) {
                    Ok(_) if idle => late::SHARE,
                    Ok(_) => late::SHARE_BUSY,
                    Err(error) => {
                        tracing::error!(%error, "coding pages again in the background failed");
                        late::SHARE_BUSY
                    }
                },
                Err(error) => {
                    tracing::error!(%error, "learning a model in the background failed");
                    LEARNING_SHARE_BUSY
                }
            };
            rest = (work.elapsed() * (took_share - 1)).max(MAINTENANCE_INTERVAL);
        }
    }

    /// Does one round of maintenance: shares memory out among the caches, frees what was destroyed, writes a checkpoint
    /// if one is due, and has the cleaner do a pass if chunks run low. Returns true if a round after it may gain more.
    pub fn maintain(&self) -> Result<bool> {
        self.settle_caches();
        if self.shared.check_writable().is_err() {
            return Ok(false);
        }
        self.tend_log_device()?;
        let window = self.log.lock().window_bytes;
        let steps = self.reap_steps()?;
        let low = self.shared.wants_cleaning();
        // Writers wait for the room that the cleaner makes.
        self.shared.devices.hurry(IoClass::Cleaning, low);
        let due = window >= self.sizing().window_bytes
            || self.nodes.dirty_bytes() >= self.sizing().dirty_tree_bytes
            || self.shared.segments.wants_checkpoint()
            // The rest can be freed only after a checkpoint has stored it.
            || (steps == 0 && self.is_reaping());
        if !due && !low {
            return Ok(steps > 0);
        }
        let mut state = self.maintenance.lock();
        if due || self.chunks.pending_free() >= self.sizing().bounds.low_chunks {
            self.checkpoint_locked(&mut state, false)?;
            if !self.shared.wants_cleaning() {
                return Ok(true);
            }
        }
        let passed = self.clean_pass(&mut state, self.wanted_gain())?;
        if passed.is_some() {
            self.checkpoint_locked(&mut state, false)?;
        }
        self.restore_room(&mut state)?;
        Ok(due || steps > 0 || passed.is_some())
    }
}

/// Speed at which commits write.
#[derive(Default)]
struct CommitSpeed {
    commit_ns_per_mib: f64,
    /// Bytes that commits had written at the last look, and its time.
    seen: Option<(u64, Instant)>,
}

/// Part of the difference by which a new measurement moves the known value.
const PACE_SHARE: f64 = 0.25;

fn approach(known: &mut f64, now: f64) -> u64 {
    *known = if *known == 0.0 { now } else { *known + (now - *known) * PACE_SHARE };
    *known as u64
}

impl CommitSpeed {
    /// Measures what commits have written since the last look.
    fn committed(&mut self, pool: &Pool) {
        let (bytes, now) = (pool.totals().data_bytes, Instant::now());
        let (before, then) = self.seen.replace((bytes, now)).unwrap_or((bytes, now));
        let (written, took) = (bytes.saturating_sub(before), now.duration_since(then));
        // A pool at rest does not show how fast it could write.
        if written > pool.shared.dirty_limit.load(Ordering::Relaxed) / 2 {
            let ns = took.as_nanos() as f64 / (written as f64 / f64::from(1 << 20));
            let ns = approach(&mut self.commit_ns_per_mib, ns);
            pool.shared.room.commit_ns_per_mib.store(ns, Ordering::Relaxed);
        }
    }
}

/// Returns the time that a scrub rests after a step that has read `bytes`. It stays within `rate` bytes per second (0:
/// any), and takes half of the time while the pool is idle, an eighth while it is not.
fn scrub_rest(bytes: u64, work: &Work, rate: u64, idle_since: Option<Instant>) -> Duration {
    let share = if idle_since.is_some() { SCRUB_SHARE } else { SCRUB_SHARE_BUSY };
    let due = if rate == 0 { Duration::ZERO } else { Duration::from_secs_f64(bytes as f64 / rate as f64) };
    (work.elapsed() * (share - 1)).max(due.saturating_sub(work.begun.elapsed())).max(Duration::from_millis(1))
}

fn now_s() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

impl Background {
    /// Stops the threads and waits for them, as dropping this does.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.pool.stop_background();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread of the pool panicked");
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::pool::testing::{fresh, write};
    use crate::pool::{ReceiveOptions, Source};

    /// Threads that nobody could stop any more kept the pool, and its devices, open.
    #[test]
    fn threads_end_when_their_handle_is_dropped() {
        let (_, pool) = fresh();
        drop(pool.run().unwrap());
        assert_eq!(Arc::strong_count(&pool), 1, "threads still have the pool");
        write(&pool, 0..64, 1);
        pool.sync().unwrap();
    }

    #[test]
    fn streams_are_traffic() {
        let (_, pool) = fresh();
        write(&pool, 0..64, 1);
        pool.snapshot(&[""], "one", 1).unwrap();
        let (mut traffic, mut now) = (Traffic::default(), Instant::now());
        let mut is_idle = |rest: Duration| {
            now += rest;
            traffic.observe(&pool, now);
            traffic.idle_since.is_some()
        };
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(10));
        assert!(is_idle(short) && is_idle(short));
        let mut stream = Vec::new();
        pool.send(&Source::Snapshot { path: "@one", from: None }, &mut stream, &mut |_| {}).unwrap();
        assert!(!is_idle(short), "a stream was sent");
        assert!(is_idle(long));
        let options = ReceiveOptions { created: 1, keep: false, force: false };
        pool.receive("copy", &options, &mut stream.as_slice(), &mut |_| {}).unwrap();
        assert!(!is_idle(short), "a stream was received");
        assert!(is_idle(long));
    }
}
