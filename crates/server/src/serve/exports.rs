//! The exports of a pool, from the first to the last: which datasets are exported or about to be, the streams beside
//! them, and the phase that follows from both. Every wait for their ends is here.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagefold_engine::pool::Pool;
use parking_lot::{Condvar, Mutex};

use super::mounted::Mounted;
use super::stream_list::StreamList;
use crate::control::Reply;
use crate::failure::{Failure, Result};
use crate::operations::Mounts;
use crate::{raw, timeouts};

/// Phases of a server's life.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Something is mounted, or about to be.
    Serving,
    /// The last mount has ended; the pool is being closed.
    Unmounted,
    /// The pool is closed, or the error tells why it could not be closed.
    Closed(Result<(), String>),
}

struct ExportsState {
    phase: Phase,
    /// True once the server was told to end: it mounts nothing any more.
    told_to_end: bool,
    /// Mounts in the order in which they were made.
    mounts: Vec<Arc<Mounted>>,
    /// Numbers of the datasets and snapshots that are being mounted or received.
    coming: Vec<u64>,
    streams: StreamList,
    /// Device numbers of mounts that ended with an error, and the error, for clients that ask later.
    unsettled: Vec<(u32, String)>,
}

/// Result of asking a running server for a mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// The mount is usable.
    Mounted,
    /// The server is closing the pool, and a new one has to be started.
    Ending,
    /// It is mounted already: directory, device number, and whether that mount is read-only.
    There(PathBuf, u32, bool),
    /// Its previous mount, with this device number, was taken away and has not ended.
    StillUsed(u32),
}

/// Result of announcing a mount.
pub(super) enum Announced {
    Now,
    Not(Attached),
}

/// The exports of one pool.
pub(crate) struct Exports {
    pool: Arc<Pool>,
    state: Mutex<ExportsState>,
    changed: Condvar,
}

impl Exports {
    /// Creates the list, with nothing exported, of a pool that has just been opened.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        let state = ExportsState {
            phase: Phase::Serving,
            told_to_end: false,
            mounts: Vec::new(),
            coming: Vec::new(),
            streams: StreamList::default(),
            unsettled: Vec::new(),
        };
        Self { pool, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Reserves the mount of a dataset or snapshot, unless something prevents it.
    pub(super) fn announce(&self, id: u64, name: &str) -> Result<Announced> {
        let deadline = Instant::now() + timeouts::BEFORE_MOUNTING;
        let mut state = self.state.lock();
        loop {
            if state.phase != Phase::Serving || state.told_to_end {
                return Ok(Announced::Not(Attached::Ending));
            }
            let there = state.mounts.iter().find(|mounted| mounted.id == id).cloned();
            let Some(there) = there else { break };
            let device = there.export.device();
            // umount(8) returns before this server has noticed.
            if let Some(place) = there.places().into_iter().next() {
                return Ok(Announced::Not(Attached::There(place, device, there.is_read_only())));
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Ok(Announced::Not(Attached::StillUsed(device)));
            }
        }
        if state.coming.contains(&id) {
            return Err(Failure::new(format!("{name} is just being mounted or received")));
        }
        state.coming.push(id);
        Ok(Announced::Now)
    }

    /// Returns true if the dataset was announced, and did not arrive yet.
    #[cfg(test)]
    pub(super) fn is_coming(&self, id: u64) -> bool {
        self.state.lock().coming.contains(&id)
    }

    /// Adds a mount that was announced, or takes the announcement back after a failure.
    pub(super) fn arrived(&self, id: u64, mounted: Result<Arc<Mounted>>) -> Result<()> {
        let mut state = self.state.lock();
        state.coming.retain(|coming| *coming != id);
        match mounted {
            Ok(mounted) => {
                let device = mounted.export.device();
                state.unsettled.retain(|(ended, _)| *ended != device);
                state.mounts.push(mounted);
                Ok(())
            }
            Err(failure) => {
                self.end_if_empty(&mut state);
                Err(failure)
            }
        }
    }

    /// Adds a mount that the previous server left.
    pub(super) fn resumed(&self, mounted: Arc<Mounted>) {
        self.state.lock().mounts.push(mounted);
    }

    /// Removes a mount that has ended, with its outcome.
    pub(super) fn left(&self, mounted: &Mounted, outcome: Result<(), String>) {
        let mut state = self.state.lock();
        let device = mounted.export.device();
        state.unsettled.retain(|(ended, _)| *ended != device);
        if let Err(error) = &outcome {
            state.unsettled.push((device, error.clone()));
        }
        *mounted.ended.lock() = Some(outcome);
        state.mounts.retain(|other| !std::ptr::eq(Arc::as_ptr(other), mounted));
        self.end_if_empty(&mut state);
        self.changed.notify_all();
    }

    /// Notes that the pool is closed, or why it could not be closed.
    pub(super) fn closed(&self, outcome: Result<(), String>) {
        self.state.lock().phase = Phase::Closed(outcome);
        self.changed.notify_all();
    }

    /// Begins the end if nothing uses the pool.
    pub(super) fn end_if_unused(&self) {
        self.end_if_empty(&mut self.state.lock());
    }

    /// Returns true if nothing is exported.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().mounts.is_empty()
    }

    /// Returns the mounts in the order in which they were made.
    pub(super) fn all(&self) -> Vec<Arc<Mounted>> {
        self.state.lock().mounts.clone()
    }

    /// Returns the mount with this device number.
    pub(super) fn of(&self, device: u32) -> Result<Arc<Mounted>> {
        let found = self.all().into_iter().find(|mounted| mounted.export.device() == device);
        found.ok_or_else(|| {
            Failure::new(format!("pool {} has no mount with device number 0:{device}", self.pool.name()))
                .hint("see what is mounted: pagefold status")
        })
    }

    /// Returns true if something is mounted or about to be; false if the pool is being closed or is closed.
    pub(super) fn is_serving(&self) -> bool {
        self.state.lock().phase == Phase::Serving
    }

    /// Refuses new mounts from now on, since this server ends.
    pub(super) fn refuse_mounts(&self) {
        self.state.lock().told_to_end = true;
    }

    /// Returns when the last mount has ended or its users were cut off.
    pub(super) fn wait_for_unmount(&self) {
        let mut state = self.state.lock();
        while state.phase == Phase::Serving {
            self.changed.wait(&mut state);
        }
    }

    /// Waits at most `patience` for the last mount to end. Returns true if it has.
    pub(super) fn wait_until_unmounted(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.phase == Phase::Serving {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.phase != Phase::Serving;
            }
        }
        true
    }

    /// Waits at most `patience` until a mount has ended. Returns how it ended, or `None`.
    pub(super) fn wait_until_ended(
        &self,
        mounted: &Mounted,
        patience: Option<Duration>,
    ) -> Option<Result<(), String>> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = mounted.ended.lock().clone() {
                return Some(outcome);
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => {
                    return mounted.ended.lock().clone();
                }
                Some(_) => {}
            }
        }
    }

    /// Waits until mounts have ended and all that was written is durable. If nothing else was mounted, also waits until
    /// the pool is closed, and returns true.
    pub(super) fn wait_until_gone(&self, mounts: &[Arc<Mounted>]) -> Result<bool, String> {
        for mounted in mounts {
            if let Some(outcome) = self.wait_until_ended(mounted, None) {
                outcome?;
            }
        }
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Serving => return Ok(false),
                Phase::Closed(outcome) => return outcome.clone().map(|()| true),
                Phase::Unmounted => self.changed.wait(&mut state),
            }
        }
    }

    /// Does the same as [`Exports::wait_until_gone`] for the mounts with these device numbers (none: for all), for at
    /// most `wait`.
    pub(super) fn await_end(&self, devices: &[u32], wait: Duration) -> Result<Reply> {
        let deadline = Instant::now() + wait;
        let concerned = |device: u32| devices.is_empty() || devices.contains(&device);
        let mut state = self.state.lock();
        loop {
            if let Some((_, error)) = state.unsettled.iter().find(|(device, _)| concerned(*device)) {
                return Err(Failure::new(error.clone()).hint("mounting the pool again recovers it"));
            }
            let there = state.mounts.iter().filter(|mounted| concerned(mounted.export.device()));
            let left: Vec<Arc<Mounted>> = there.cloned().collect();
            match &state.phase {
                Phase::Closed(Ok(())) => return Ok(Reply::Closed {}),
                Phase::Closed(Err(error)) => {
                    return Err(Failure::new(error.clone()).hint("mounting the pool again recovers it"));
                }
                Phase::Serving if left.is_empty() && state.mounts.is_empty() && !state.streams.is_empty() => {
                    return Ok(Reply::Streaming {});
                }
                Phase::Serving if left.is_empty() => return Ok(Reply::Done {}),
                Phase::Serving | Phase::Unmounted => {}
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                // The kernel has let go of the others; their data in memory are being written.
                let held = left.iter().filter(|mounted| !mounted.ending.load(Ordering::Acquire));
                return Ok(Reply::Waiting { devices: held.map(|mounted| mounted.export.device()).collect() });
            }
        }
    }

    fn end_if_empty(&self, state: &mut ExportsState) {
        let unused = state.mounts.is_empty() && state.coming.is_empty() && state.streams.is_empty();
        if state.phase == Phase::Serving && unused {
            state.phase = Phase::Unmounted;
            self.changed.notify_all();
        }
    }
}

/// Streams.
impl Exports {
    /// Registers a stream and returns its number. With `target`, the dataset with that number must not be mounted.
    /// `name` names datasets for people.
    pub(super) fn begin_stream(
        &self,
        connection: &UnixStream,
        target: Option<u64>,
        name: &dyn Fn(u64) -> String,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        if state.phase != Phase::Serving {
            return Err(Failure::new("the server is just closing the pool").hint("try again in a moment"));
        }
        if let Some(id) = target {
            if let Some(mounted) = state.mounts.iter().find(|mounted| mounted.id == id) {
                let (name, dir) = (name(id), raw::text(mounted.export.place()));
                return Err(Failure::new(format!("{name} is mounted at {dir}"))
                    .hint(format!("unmount it first: pagefold unmount {name}")));
            }
            if state.coming.contains(&id) {
                return Err(Failure::new(format!("{} is just being mounted or received", name(id)))
                    .hint("wait until that has ended, or end it"));
            }
        }
        let number = state.streams.begin(connection)?;
        state.coming.extend(target);
        Ok(number)
    }

    /// Removes a stream that has ended.
    pub(super) fn stream_ended(&self, number: u64, target: Option<u64>) {
        let mut state = self.state.lock();
        state.streams.end(number);
        state.coming.retain(|coming| Some(*coming) != target);
        self.end_if_empty(&mut state);
        self.changed.notify_all();
    }

    /// Ends the streams that are under way; receivers can go on with each later. With `for_good`, no more streams
    /// begin.
    pub(super) fn cut_streams(&self, for_good: bool) {
        self.state.lock().streams.cut(for_good);
    }

    /// Returns true if only streams keep the pool open.
    pub(super) fn only_streams(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Serving && state.mounts.is_empty() && !state.streams.is_empty()
    }
}

impl Mounts for Exports {
    fn mounted_at(&self, id: u64) -> Option<PathBuf> {
        let found = self.all().into_iter().find(|mounted| mounted.id == id);
        found.map(|mounted| mounted.export.place().to_owned())
    }

    fn open_below(&self, id: u64) -> Option<(PathBuf, u64)> {
        self.all().into_iter().find_map(|mounted| {
            let files = mounted.export.open_files(id);
            (files > 0).then(|| (mounted.export.place().to_owned(), files))
        })
    }

    fn is_detached(&self, id: u64) -> bool {
        self.all().iter().any(|mounted| mounted.id == id && mounted.places().is_empty())
    }

    fn close_snapshot(&self, id: u64) {
        for mounted in self.all() {
            if !mounted.export.close_snapshot(id) {
                tracing::warn!(snapshot = id, "it goes while requests read it");
            }
        }
    }
}
