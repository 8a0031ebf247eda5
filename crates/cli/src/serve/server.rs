//! An open pool and its mounts, from the first mount to the end of the last.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagefold_engine::dataset::PrimaryCache;
use pagefold_engine::pool::{self, OpenOptions, Pool, RescueReport};
use pagefold_fuse::{MountError, Mounter, Unmount};
use parking_lot::{Condvar, Mutex, RwLock};

use super::background::Watched;
use super::events::Ring;
use super::fullness::PoolWatch;
use super::handover::{Handover, InheritedMount, StoredMount};
use super::memory::MemoryMonitor;
use super::mounted::{self, MountRequest, Mounted};
use super::plan::MountPlan;
use super::snapshotter::{Snapshotter, Turns};
use super::streams::Streams;
use crate::control::{ConfinementFigures, Reply, UnmountMode, ValueSource};
use crate::event_log::EventLog;
use crate::failure::{Context, Failure, Result};
use crate::mounter::{MounterClient, TakeoverMounter};
use crate::mountopts::{Confine, MountOptions, Takeover};
use crate::operations::{self, Mounts, Operation, OperationResult};
use crate::registry::Known;
use crate::retention::POLICY;
use crate::{
    confine, dataset_properties, engine_errors, mountopts, names, pools, props, raw, settings, startup,
    timeouts,
};

/// Pause between the reply to a request to restart and the end of the server.
const RESTART_DELAY: Duration = Duration::from_millis(20);

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

struct ServerState {
    phase: Phase,
    /// True once the server was told to end: it mounts nothing any more.
    told_to_end: bool,
    /// Mounts in the order in which they were made.
    mounts: Vec<Arc<Mounted>>,
    /// Numbers of the datasets and snapshots that are being mounted or received.
    coming: Vec<u64>,
    streams: Streams,
    /// Device numbers of mounts that ended with an error, and the error, for clients that ask later.
    unsettled: Vec<(u32, String)>,
}

/// Result of asking a running server for a mount.
#[derive(Debug, PartialEq, Eq)]
pub enum Attached {
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
enum Announced {
    Now,
    Not(Attached),
}

/// The server of one pool.
pub struct Server {
    pub(super) pool: Arc<Pool>,
    pub(super) ring: Arc<Ring>,
    pub(super) read_only: bool,
    pub(super) started: Instant,
    /// Properties of the whole pool that hold while it is open.
    pub(super) temporary: Mutex<Vec<(&'static str, String)>>,
    /// State that another server needs to go on when this one dies.
    pub(super) handover: Handover,
    /// The mounter, which mounts and unmounts for this process.
    pub(super) mounter: Arc<dyn Mounter>,
    /// Rights that this process has given up.
    pub(super) confinement: ConfinementFigures,
    pub(super) watched: Watched,
    /// Locked for reading while mounts are made; for writing while the use of datasets must not change.
    pub(super) dataset_lock: Arc<RwLock<()>>,
    pool_work: Mutex<Option<pool::Background>>,
    /// The thread that makes snapshots by policy, from the first mount on.
    snapshotter: Mutex<Option<Snapshotter>>,
    /// The thread that looks after memory, from the first mount on.
    memory: Mutex<Option<MemoryMonitor>>,
    state: Mutex<ServerState>,
    changed: Condvar,
}

impl Server {
    /// Opens the pool, replaying its log if need be, and makes the first mount.
    pub fn start(plan: &MountPlan, ring: Arc<Ring>, handover: Handover) -> Result<Arc<Self>> {
        // The directory is checked before the pool is touched: most mistakes are about it.
        let mounter = Arc::new(MounterClient::start(&plan.known.name, &plan.wanted.options)?);
        mounted::check_dir(&*mounter, &plan.known.name, &plan.wanted)?;
        let given = plan.given.clone();
        let server = Self::open(&plan.known, &plan.wanted.options, given, mounter, ring, handover)?;
        *server.memory.lock() = Some(MemoryMonitor::start(&server)?);
        let mounted = server.obey_all().and_then(|()| server.mount(&plan.wanted));
        if let Err(failure) = mounted {
            server.close().map_err(Failure::new)?;
            return Err(failure);
        }
        server.start_snapshotter()?;
        Ok(server)
    }

    /// Opens the pool of a server that died, and goes on with its mounts. `options` are those that the dead server was
    /// started with.
    pub fn resume(
        known: &Known,
        options: &MountOptions,
        given: Vec<(&'static str, String)>,
        ring: Arc<Ring>,
        handover: Handover,
    ) -> Result<Arc<Self>> {
        let mounter = Arc::new(TakeoverMounter::new(MounterClient::start(&known.name, options)?));
        let server =
            Self::open(known, options, given, Arc::clone(&mounter) as Arc<dyn Mounter>, ring, handover)?;
        // An error from here on leaves everything to the next server: only the thread that follows a mount ends it.
        *server.memory.lock() = Some(MemoryMonitor::start(&server)?);
        server.obey_all()?;
        server.go_on_with_all()?;
        server.handover.serving_again();
        server.start_snapshotter()?;
        mounter.complete();
        server.end_if_empty(&mut server.state.lock());
        Ok(server)
    }

    fn start_snapshotter(self: &Arc<Self>) -> Result<()> {
        if !self.read_only {
            *self.snapshotter.lock() = Some(Snapshotter::start(self)?);
        }
        Ok(())
    }

    /// Makes and removes the snapshots that are due by policy at `now`, in seconds since 1970.
    pub(super) fn keep_snapshots(&self, turns: &mut Turns, now: u64) -> Result<()> {
        if self.is_serving() { turns.turn(&self.pool, self, &self.dataset_lock, now) } else { Ok(()) }
    }

    /// Goes on with the mounts that the previous server left. A mount with which this fails ends, and the others go on;
    /// if it fails with all of them, that is an error, and the next server tries.
    fn go_on_with_all(self: &Arc<Self>) -> Result<()> {
        let (mut resumed, mut failed) = (0, Vec::new());
        for left in self.handover.take_left() {
            let (dir, kept) = (raw::text(left.record.dir()), StoredMount::new(&self.handover, Some(&left)));
            match self.go_on(left) {
                Ok(()) => resumed += 1,
                Err(failure) => failed.push((dir, kept, failure)),
            }
        }
        if resumed == 0
            && let Some((_, _, failure)) = failed.pop()
        {
            return Err(failure);
        }
        for (dir, kept, failure) in failed {
            tracing::error!(
                dir,
                failure = failure.what(),
                "cannot go on with a mount, which ends: unmount the directory, and mount it again"
            );
            kept.ended();
        }
        Ok(())
    }

    fn go_on(self: &Arc<Self>, left: InheritedMount) -> Result<()> {
        let path = self.pool.path_of(left.record.id);
        let path = path.ok_or_else(|| Failure::new("a dataset that is mounted is not there any more"))?;
        let wanted = MountRequest { path, dir: left.record.dir().into(), options: left.record.options()? };
        let mounted = self.attach(&wanted, Some(left))?;
        self.state.lock().mounts.push(mounted);
        Ok(())
    }

    fn open(
        known: &Known,
        wanted: &MountOptions,
        given: Vec<(&'static str, String)>,
        mounter: Arc<dyn Mounter>,
        ring: Arc<Ring>,
        handover: Handover,
    ) -> Result<Arc<Self>> {
        let mut options = OpenOptions {
            read_only: wanted.read_only,
            accept_loss: wanted.rescue,
            rescue: wanted.rescue,
            journal: handover.journal().cloned(),
            record: wanted.record.clone(),
            ..OpenOptions::default()
        };
        if let Some(bytes) = wanted.cache_bytes {
            options.cache_bytes = bytes;
        }
        let options = match handover.followed() {
            Some(_) => pools::attentive_still(known, options),
            None => pools::attentive(known, options)?,
        };
        let devices = handover.open_devices(known, &options)?;
        // The log of events is opened with the same rights as the devices; without it the pool is served all the same.
        let events = EventLog::open(&known.guid);
        // So far only the labels of the devices have been read.
        let confinement = confine::server(wanted.confine.unwrap_or_default())?;
        match events.and_then(|(log, kept)| ring.keep(log, kept)) {
            Ok(()) => {}
            Err(failure) => tracing::warn!(failure = failure.what(), "events end with this server"),
        }
        let pool = pools::open_on(known, devices, &options)?;
        log_replay(&pool);
        let watched: Watched = Arc::new(Mutex::new(PoolWatch::new(&pool)));
        let at_start = || mounted::of_the_pool(wanted).into_iter().chain(given).collect();
        let temporary = handover.temporary().unwrap_or_else(at_start);
        let pool_work =
            pool.run().map_err(|error| engine_errors::failed("cannot start the pool's work", &error))?;
        Ok(Arc::new(Self {
            pool,
            ring,
            handover,
            mounter,
            confinement,
            read_only: options.read_only,
            started: Instant::now(),
            temporary: Mutex::new(temporary),
            watched,
            dataset_lock: Arc::default(),
            pool_work: Mutex::new(Some(pool_work)),
            snapshotter: Mutex::default(),
            memory: Mutex::default(),
            state: Mutex::new(ServerState {
                phase: Phase::Serving,
                told_to_end: false,
                mounts: Vec::new(),
                coming: Vec::new(),
                streams: Streams::default(),
                unsettled: Vec::new(),
            }),
            changed: Condvar::new(),
        }))
    }

    /// Mounts a dataset or snapshot.
    pub fn mount(self: &Arc<Self>, wanted: &MountRequest) -> Result<Attached> {
        let name = names::full(self.pool.name(), &wanted.path);
        let version = self.pool.version(&wanted.path);
        let id = version.map_err(|error| engine_errors::no_such_dataset(&name, &error))?.id;
        if let Announced::Not(why) = self.announce(id, &name)? {
            return Ok(why);
        }
        let unchanged = self.dataset_lock.read();
        let mounted = self.check(wanted, &name).and_then(|()| self.attach(wanted, None));
        drop(unchanged);
        let mut state = self.state.lock();
        state.coming.retain(|coming| *coming != id);
        match mounted {
            Ok(mounted) => {
                let device = mounted.session.device_minor();
                state.unsettled.retain(|(ended, _)| *ended != device);
                state.mounts.push(mounted);
            }
            Err(failure) => {
                self.end_if_empty(&mut state);
                return Err(failure);
            }
        }
        Ok(Attached::Mounted)
    }

    /// Parses the options of a mount that was asked for. The pool's property `io_uring` holds unless they name another
    /// value.
    pub(super) fn mount_options(&self, words: &[String]) -> Result<MountOptions> {
        let (value, _) = settings::of(&self.pool, "", props::find("io_uring")?)?;
        let of_pool = format!("io_uring={value}");
        let all: Vec<&str> =
            std::iter::once(of_pool.as_str()).chain(words.iter().map(String::as_str)).collect();
        mountopts::parse(&all)
    }

    /// Reserves the mount of a dataset or snapshot, unless something prevents it.
    fn announce(&self, id: u64, name: &str) -> Result<Announced> {
        let deadline = Instant::now() + timeouts::BEFORE_MOUNTING;
        let mut state = self.state.lock();
        loop {
            if state.phase != Phase::Serving || state.told_to_end {
                return Ok(Announced::Not(Attached::Ending));
            }
            let there = state.mounts.iter().find(|mounted| mounted.id == id).cloned();
            let Some(there) = there else { break };
            let device = there.session.device_minor();
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

    /// Returns an error if the options contradict those with which the pool was opened.
    fn check(&self, wanted: &MountRequest, name: &str) -> Result<()> {
        let options = &wanted.options;
        let pool = self.pool.name();
        let first = self.state.lock().mounts.is_empty();
        if self.read_only && !options.read_only && !wanted.path.contains('@') {
            return Err(Failure::new(format!(
                "{name} cannot be mounted for writing: pool {pool} is open read-only"
            ))
            .hint(format!("mount it with -o ro, or unmount the pool first: pagefold unmount {pool}")));
        }
        let of_pool = mounted::of_the_pool(options);
        let odd = of_pool.first().map(|(name, _)| *name);
        let odd = odd.or(options.rescue.then_some("rescue")).or(options.cache_bytes.map(|_| "cache"));
        let other_takeover = match options.takeover {
            None | Some(Takeover::Auto) => false,
            Some(Takeover::On) => !self.handover.is_supervised(),
            Some(Takeover::Off) => self.handover.is_supervised(),
        };
        let odd = odd.or(other_takeover.then_some("takeover"));
        let other_confinement = match options.confine {
            None | Some(Confine::Auto) => false,
            Some(Confine::On) => !self.confinement.on || !self.confinement.missing.is_empty(),
            Some(Confine::Off) => self.confinement.on,
        };
        let odd = odd.or(other_confinement.then_some("confine"));
        match odd {
            Some(option) if !first => Err(Failure::usage(format!(
                "the mount option {option} is for the whole pool {pool}, which is in use already"
            ))
            .hint(for_the_whole_pool(option, pool))),
            _ => mounted::check_dir(&*self.mounter, pool, wanted),
        }
    }

    fn attach(self: &Arc<Self>, wanted: &MountRequest, left: Option<InheritedMount>) -> Result<Arc<Mounted>> {
        let mounted = Arc::new(Mounted::start(self, wanted, left)?);
        let (server, followed) = (Arc::clone(self), Arc::clone(&mounted));
        let spawned = thread::Builder::new().name("mount".into()).spawn(move || {
            followed.session.wait();
            server.ended(&followed);
        });
        spawned.context(|| "cannot start a thread".into())?;
        Ok(mounted)
    }

    /// Returns the mounts in the order in which they were made.
    pub(super) fn mounts(&self) -> Vec<Arc<Mounted>> {
        self.state.lock().mounts.clone()
    }

    /// Returns the mount with this device number.
    pub(super) fn mount_of(&self, device: u32) -> Result<Arc<Mounted>> {
        let found = self.mounts().into_iter().find(|mounted| mounted.session.device_minor() == device);
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
    pub fn wait_for_unmount(&self) {
        let mut state = self.state.lock();
        while state.phase == Phase::Serving {
            self.changed.wait(&mut state);
        }
    }

    /// Waits at most `patience` for the last mount to end. Returns true if it has.
    pub fn wait_until_unmounted(&self, patience: Duration) -> bool {
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
    fn wait_until_ended(&self, mounted: &Mounted, patience: Option<Duration>) -> Option<Result<(), String>> {
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

    /// Takes mounts away, the last in the list first. Returns the directory of a mount that is in use; it and those
    /// before it in the list stay.
    pub fn detach(&self, mounts: &[Arc<Mounted>], mode: UnmountMode) -> Result<Option<PathBuf>, String> {
        for mounted in mounts.iter().rev() {
            let dir = mounted.session.dir();
            if mode == UnmountMode::Force {
                self.cut_off(mounted)?;
                continue;
            }
            let how = if mode == UnmountMode::Lazy { Unmount::Lazy } else { Unmount::Idle };
            // Directories of it that were bound elsewhere go, too.
            let places = mounted.places();
            let places = if places.is_empty() { vec![dir.to_owned()] } else { places };
            for place in places.iter().rev() {
                match self.mounter.unmount(place, how) {
                    // It may have been unmounted lazily before.
                    Ok(()) | Err(MountError::NotMounted(_)) => {}
                    Err(MountError::InUse(_)) => return Ok(Some(place.clone())),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        if mode == UnmountMode::Force {
            if self.mounts().iter().all(|other| mounts.iter().any(|mounted| Arc::ptr_eq(other, mounted))) {
                self.cut_streams(false);
            }
            self.end_cut_off(mounts)?;
        }
        Ok(None)
    }

    /// Completes the end of mounts whose users were cut off. If nothing else is mounted, the pool is closed, no matter
    /// who still holds the mounts; otherwise their file systems are in use until the last requests were answered.
    fn end_cut_off(&self, mounts: &[Arc<Mounted>]) -> Result<(), String> {
        let goes = |mounted: &Arc<Mounted>| mounts.iter().any(|other| Arc::ptr_eq(other, mounted));
        if self.mounts().iter().all(goes) {
            mounts.iter().for_each(|mounted| self.ended(mounted));
            return Ok(());
        }
        for mounted in mounts {
            if self.wait_until_ended(mounted, Some(timeouts::CUT_OFF)).is_none() {
                let dir = raw::text(mounted.session.dir());
                return Err(format!(
                    "{dir} is detached, and the programs that have files there open keep it in use"
                ));
            }
        }
        Ok(())
    }

    /// Takes a mount away and ends its connection; programs that still use it get errors.
    fn cut_off(&self, mounted: &Mounted) -> Result<(), String> {
        let session = &mounted.session;
        for place in mounted.places() {
            match self.mounter.unmount(&place, Unmount::CutOff) {
                Ok(()) | Err(MountError::NotMounted(_)) => {}
                Err(error) => return Err(format!("cannot detach {}: {error}", raw::text(&place))),
            }
        }
        if self.wait_until_ended(mounted, Some(timeouts::CUT_OFF_GRACE)).is_some() {
            return Ok(());
        }
        if let Err(error) = session.abort() {
            // The connection ends with this process at the latest; the pool refuses changes before that.
            tracing::warn!(%error, "cannot end the connection to the kernel");
        }
        Ok(())
    }

    /// Ends this process a moment from now, as if it had died, so that another one goes on.
    pub fn restart(&self) -> Result<()> {
        if !self.handover.is_supervised() {
            return Err(Failure::new(format!(
                "the server of pool {} has no supervisor, which would keep its mounts meanwhile",
                self.pool.name()
            ))
            .hint("it was mounted with takeover=off, or requests travel over io_uring and would be lost; mount it with takeover=on"));
        }
        // Syncing leaves little for the next server to redo.
        self.sync().map_err(Failure::new)?;
        tracing::info!("told to let another server go on");
        self.handover.again();
        let ending = thread::Builder::new().name("restart".into()).spawn(|| {
            // The pause lets the reply leave first.
            thread::sleep(RESTART_DELAY);
            // SAFETY: this ends the process at once; nothing of it is used afterwards, and the state that it leaves is
            // made to be taken over.
            unsafe { libc::_exit(0) }
        });
        ending.map(drop).context(|| "cannot start a thread".into())
    }

    /// Makes everything written so far durable, whatever the `sync` property says.
    pub fn sync(&self) -> Result<(), String> {
        self.pool.sync().map_err(|error| error.to_string())
    }

    /// Closes the pool after the last mount has ended.
    pub fn close(&self) -> Result<(), String> {
        let snapshotter = self.snapshotter.lock().take();
        if let Some(snapshotter) = snapshotter {
            snapshotter.stop();
        }
        let memory = self.memory.lock().take();
        if let Some(memory) = memory {
            memory.stop();
        }
        if let Some(work) = self.pool_work.lock().take() {
            work.stop();
        }
        let closed = self.pool.export().map_err(|error| error.to_string());
        match &closed {
            Ok(()) => tracing::info!("the pool is closed"),
            Err(error) => tracing::error!(error, "the pool could not be closed"),
        }
        self.state.lock().phase = Phase::Closed(closed.clone());
        self.changed.notify_all();
        closed
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

    /// Does the same as [`Server::wait_until_gone`] for the mounts with these device numbers (none: for all), for at
    /// most `wait`.
    pub(super) fn await_end(&self, devices: &[u32], wait: Duration) -> Result<Reply> {
        let deadline = Instant::now() + wait;
        let concerned = |device: u32| devices.is_empty() || devices.contains(&device);
        let mut state = self.state.lock();
        loop {
            if let Some((_, error)) = state.unsettled.iter().find(|(device, _)| concerned(*device)) {
                return Err(Failure::new(error.clone()).hint("mounting the pool again recovers it"));
            }
            let there = state.mounts.iter().filter(|mounted| concerned(mounted.session.device_minor()));
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
                return Ok(Reply::Waiting {
                    devices: held.map(|mounted| mounted.session.device_minor()).collect(),
                });
            }
        }
    }

    /// Handles the end of a mount: makes its data durable, and removes it from the list.
    fn ended(&self, mounted: &Mounted) {
        if mounted.ending.swap(true, Ordering::AcqRel) {
            return;
        }
        // Syncing comes first: the user who unmounted it has been told already that the mount is gone.
        let synced = if self.read_only { Ok(()) } else { self.sync() };
        tracing::info!(dir = raw::text(mounted.session.dir()), "unmounted");
        mounted.kept.ended();
        let settled = mounted.settle();
        let mut outcome = synced.and(settled);
        if outcome.is_ok() && self.mounts().len() > 1 && !self.read_only {
            outcome = self.sync();
        }
        if let Err(error) = &outcome {
            tracing::error!(error, "what was written last may not be durable");
        }
        let mut state = self.state.lock();
        let device = mounted.session.device_minor();
        state.unsettled.retain(|(ended, _)| *ended != device);
        if let Err(error) = &outcome {
            state.unsettled.push((device, error.clone()));
        }
        *mounted.ended.lock() = Some(outcome);
        state.mounts.retain(|other| !std::ptr::eq(Arc::as_ptr(other), mounted));
        self.end_if_empty(&mut state);
        self.changed.notify_all();
    }

    fn end_if_empty(&self, state: &mut ServerState) {
        let unused = state.mounts.is_empty() && state.coming.is_empty() && state.streams.is_empty();
        if state.phase == Phase::Serving && unused {
            state.phase = Phase::Unmounted;
            self.changed.notify_all();
        }
    }
}

/// Streams.
impl Server {
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
                let (name, dir) = (name(id), raw::text(mounted.session.dir()));
                return Err(Failure::new(format!("{name} is mounted at {dir}"))
                    .hint(format!("unmount it first: pagefold unmount {name}")));
            }
            if state.coming.contains(&id) {
                return Err(Failure::new(format!("{} is just being mounted or received", name(id))));
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

/// Datasets and their properties.
impl Server {
    /// Returns the directory where the dataset or snapshot with this number is mounted.
    pub(super) fn mounted_at(&self, id: u64) -> Option<PathBuf> {
        let found = self.mounts().into_iter().find(|mounted| mounted.id == id);
        found.map(|mounted| mounted.session.dir().to_owned())
    }

    /// Changes datasets and snapshots.
    pub(super) fn perform(&self, operation: &Operation) -> Result<OperationResult> {
        let _unchanged = self.dataset_lock.write();
        let outcome = operations::perform(&self.pool, operation, self)?;
        if !matches!(operation, Operation::Destroy { dry_run: true, .. }) {
            tracing::info!(?operation, "done");
        }
        if let Operation::Inherit { path, name } = operation {
            startup::store(&self.pool, path, name)?;
            self.obey(name)?;
        }
        Ok(outcome)
    }

    /// Stores a property of a dataset or snapshot, makes it durable and applies it.
    pub(super) fn set_property(&self, path: &str, name: &str, value: &str) -> Result<()> {
        dataset_properties::set_one(&self.pool, path, name, Some(value))?;
        startup::store(&self.pool, path, name)?;
        tracing::info!(dataset = names::full(self.pool.name(), path), property = name, value, "set");
        self.obey(name)
    }

    /// Applies a property that was changed to the pool and the mounts.
    fn obey(&self, name: &str) -> Result<()> {
        self.obey_all()?;
        if let (POLICY, Some(snapshotter)) = (name, &*self.snapshotter.lock()) {
            snapshotter.look();
        }
        for mounted in self.mounts() {
            let Some(of) = self.pool.path_of(mounted.id) else { continue };
            if let Ok(property) = crate::props::find(name) {
                mounted.take_effect(name, &crate::settings::of(&self.pool, &of, property)?.0)?;
            }
        }
        Ok(())
    }

    /// Passes to the engine the properties that hold for the whole pool, and the `compression` that its datasets
    /// inherit.
    pub(super) fn obey_all(&self) -> Result<()> {
        let temporary = self.temporary.lock().clone();
        let values = dataset_properties::all(&self.pool, "", &temporary)?;
        for name in ["compression", "primarycache", "autotrim", "cache"] {
            let found = values.iter().find(|value| value.name == name && value.source != ValueSource::None);
            if let Some(value) = found {
                self.obey_for_pool(name, &value.value)?;
            }
        }
        Ok(())
    }

    fn obey_for_pool(&self, name: &str, value: &str) -> Result<()> {
        let unknown = || {
            Failure::new(format!(
                "the pool's property {name} has the value \"{value}\", which is unknown here"
            ))
        };
        match name {
            "compression" => self.pool.set_compression(value.parse().map_err(|_| unknown())?),
            "autotrim" => self.pool.set_autotrim(value == "on"),
            "cache" => self.pool.set_cache_bytes(value.parse().map_err(|_| unknown())?),
            _ => self.pool.set_primary_cache(match value {
                "all" => PrimaryCache::All,
                "metadata" => PrimaryCache::Metadata,
                "none" => PrimaryCache::None,
                _ => return Err(unknown()),
            }),
        }
        Ok(())
    }
}

impl Mounts for Server {
    fn mounted_at(&self, id: u64) -> Option<PathBuf> {
        Self::mounted_at(self, id)
    }

    fn close_snapshot(&self, id: u64) {
        for mounted in self.mounts() {
            if !mounted.tree.close(id) {
                tracing::warn!(snapshot = id, "it goes while requests read it");
            }
        }
    }
}

/// Returns advice on how to give an option that holds for the whole pool.
fn for_the_whole_pool(option: &str, pool: &str) -> String {
    let first =
        format!("give it to the pool's first mount: pagefold unmount {pool}, then mount with -o {option}");
    match props::find(option) {
        Ok(_) => format!("{first}; or keep it in the pool: pagefold set {option}=VALUE {pool}"),
        Err(_) => first,
    }
}

/// Logs what opening the pool did.
fn log_replay(pool: &Pool) {
    let replayed = pool.replayed();
    let name = pool.name();
    tracing::info!(
        pool = name,
        clean = replayed.clean,
        batches = replayed.batches,
        bytes = replayed.bytes,
        "opened the pool"
    );
    if replayed.damaged > 0 {
        tracing::error!(
            pool = name,
            batches = replayed.damaged,
            "the log has damaged records: reading them fails"
        );
    }
    if let Some(lost) = replayed.damage {
        tracing::error!(
            pool = name,
            device = lost.device,
            offset = lost.offset,
            "the log is damaged: what was acknowledged behind it is not shown"
        );
    }
    for damage in pool.rescue().map(RescueReport::messages).unwrap_or_default() {
        tracing::error!(pool = name, damage, "opened for rescue");
    }
}
