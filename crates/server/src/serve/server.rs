//! The server of one pool, from the first export to the end of the last.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pagefold_engine::pool::{self, Pool};
use parking_lot::{Mutex, RwLock};

use super::background::Watched;
use super::events::Ring;
use super::export::{FrontEnd, MountRequest};
use super::exports::{Announced, Attached, Exports};
use super::fullness::PoolWatch;
use super::handover::{Handover, InheritedMount, StoredMount};
use super::memory::{Looking, MemoryMonitor};
use super::mounted::{self, MountContext, Mounted};
use super::opening::{self, OpenedPool};
use super::properties::Properties;
use super::snapshotter::{SnapshotContext, Snapshotter};
use super::stopping::Stopping;
use super::streams::StreamContext;
use crate::control::{ConfinementFigures, UnmountMode};
use crate::failure::{Context, Failure, Result};
use crate::mountopts::{Confine, MountOptions, Takeover};
use crate::operations::{self, Operation, OperationResult};
use crate::registry::Known;
use crate::retention::POLICY;
use crate::{dataset_properties, engine_errors, mountopts, names, props, raw, settings, startup};

/// Pause between the reply to a request to restart and the end of the server.
const RESTART_DELAY: Duration = Duration::from_millis(20);

/// The state that a server begins with.
pub(crate) struct Beginning {
    /// The events of the server.
    pub ring: Arc<Ring>,
    /// State that another server needs to go on when this one dies.
    pub handover: Handover,
    /// The front end, by which it exports everything.
    pub front: Arc<dyn FrontEnd>,
    /// Properties of the whole pool that were given as mount options.
    pub given: Vec<(&'static str, String)>,
}

/// The server of one pool.
pub(crate) struct Server {
    pub(super) pool: Arc<Pool>,
    pub(super) exports: Arc<Exports>,
    pub(super) ring: Arc<Ring>,
    pub(super) read_only: bool,
    pub(super) started: Instant,
    pub(super) properties: Properties,
    /// State that another server needs to go on when this one dies.
    pub(super) handover: Handover,
    /// Rights that this process has given up.
    pub(super) confinement: ConfinementFigures,
    front: Arc<dyn FrontEnd>,
    stopping: Arc<Stopping>,
    watched: Watched,
    /// Locked for reading while mounts are made; for writing while the use of datasets must not change.
    pub(super) dataset_lock: Arc<RwLock<()>>,
    pool_work: Mutex<Option<pool::Background>>,
    /// The thread that makes snapshots by policy, from the first mount on.
    snapshotter: Mutex<Option<Snapshotter>>,
    /// The thread that looks after memory, from the first mount on.
    memory: Mutex<Option<MemoryMonitor>>,
}

impl Server {
    /// Opens the pool, replaying its log if need be, and makes the first export.
    pub(crate) fn start(known: &Known, wanted: &MountRequest, beginning: Beginning) -> Result<Arc<Self>> {
        // The directory is checked before the pool is touched: most mistakes are about it.
        beginning.front.check(&names::full(&known.name, &wanted.path), wanted)?;
        let opened = opening::open(known, &wanted.options, &beginning.ring, &beginning.handover)?;
        Self::start_on(opened, wanted, beginning)
    }

    /// Makes the first export of a pool that is open.
    pub(super) fn start_on(
        opened: OpenedPool,
        wanted: &MountRequest,
        beginning: Beginning,
    ) -> Result<Arc<Self>> {
        let server = Self::new(opened, &wanted.options, beginning)?;
        server.start_memory_monitor()?;
        let mounted = server.properties.obey_all().and_then(|()| server.mount(wanted));
        if let Err(failure) = mounted {
            server.close().map_err(Failure::new)?;
            return Err(failure);
        }
        server.start_snapshotter()?;
        Ok(server)
    }

    /// Opens the pool of a server that died, and goes on with its exports. `options` are those that the dead server was
    /// started with.
    pub(crate) fn resume(known: &Known, options: &MountOptions, beginning: Beginning) -> Result<Arc<Self>> {
        let opened = opening::open(known, options, &beginning.ring, &beginning.handover)?;
        let server = Self::new(opened, options, beginning)?;
        // An error from here on leaves everything to the next server: only the thread that follows a mount ends it.
        server.start_memory_monitor()?;
        server.properties.obey_all()?;
        server.go_on_with_all()?;
        server.handover.serving_again();
        server.start_snapshotter()?;
        server.front.takeover_complete();
        server.exports.end_if_unused();
        Ok(server)
    }

    fn new(opened: OpenedPool, wanted: &MountOptions, beginning: Beginning) -> Result<Arc<Self>> {
        let Beginning { ring, handover, front, given } = beginning;
        let OpenedPool { pool, read_only, confinement } = opened;
        let watched: Watched = Arc::new(Mutex::new(PoolWatch::new(&pool)));
        let at_start = || mounted::of_the_pool(wanted).into_iter().chain(given).collect();
        let temporary = handover.temporary().unwrap_or_else(at_start);
        let pool_work =
            pool.run().map_err(|error| engine_errors::failed("cannot start the pool's work", &error))?;
        let exports = Arc::new(Exports::new(Arc::clone(&pool)));
        let stopping = Stopping { pool: Arc::clone(&pool), exports: Arc::clone(&exports), read_only };
        let server = Arc::new(Self {
            properties: Properties::new(Arc::clone(&pool), Arc::clone(&exports), temporary),
            pool,
            exports,
            ring,
            read_only,
            started: Instant::now(),
            handover,
            confinement,
            front,
            stopping: Arc::new(stopping),
            watched,
            dataset_lock: Arc::default(),
            pool_work: Mutex::new(Some(pool_work)),
            snapshotter: Mutex::default(),
            memory: Mutex::default(),
        });
        let weak = Arc::downgrade(&server);
        server.pool.on_leave(move |path| {
            if let Some(server) = weak.upgrade() {
                server.handover.remove_device(path);
            }
        });
        Ok(server)
    }

    fn start_memory_monitor(&self) -> Result<()> {
        let looking = Looking {
            pool: Arc::clone(&self.pool),
            exports: Arc::clone(&self.exports),
            front: Arc::clone(&self.front),
            budget: self.properties.cache_budget(),
        };
        *self.memory.lock() = Some(MemoryMonitor::start(looking)?);
        Ok(())
    }

    fn start_snapshotter(&self) -> Result<()> {
        if !self.read_only {
            let context = SnapshotContext {
                pool: Arc::clone(&self.pool),
                exports: Arc::clone(&self.exports),
                dataset_lock: Arc::clone(&self.dataset_lock),
            };
            *self.snapshotter.lock() = Some(Snapshotter::start(context)?);
        }
        Ok(())
    }

    /// Goes on with the mounts that the previous server left. A mount with which this fails ends, and the others go on;
    /// if it fails with all of them, that is an error, and the next server tries.
    fn go_on_with_all(&self) -> Result<()> {
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

    fn go_on(&self, left: InheritedMount) -> Result<()> {
        let path = self.pool.path_of(left.record.id);
        let path = path.ok_or_else(|| Failure::new("a dataset that is mounted is not there any more"))?;
        let wanted = MountRequest { path, dir: left.record.dir().into(), options: left.record.options()? };
        let mounted = self.attach(&wanted, Some(left))?;
        self.exports.resumed(mounted);
        Ok(())
    }

    /// Mounts a dataset or snapshot.
    pub(crate) fn mount(&self, wanted: &MountRequest) -> Result<Attached> {
        let name = names::full(self.pool.name(), &wanted.path);
        let version = self.pool.version(&wanted.path);
        let id = version.map_err(|error| engine_errors::no_such_dataset(&name, &error))?.id;
        if let Announced::Not(why) = self.exports.announce(id, &name)? {
            return Ok(why);
        }
        let unchanged = self.dataset_lock.read();
        // While this waited for the lock, the name may have passed to another dataset, which is not announced.
        let is_it = self.pool.version(&wanted.path).is_ok_and(|version| version.id == id);
        let checked = if is_it { self.check(wanted, &name) } else { Err(replaced(&name)) };
        let mounted = checked.and_then(|()| self.attach(wanted, None));
        // The lock is given back once the mount is listed: whoever waits for it, to destroy, roll back or rename the
        // dataset, looks for mounts in the list, and would take an announced one for none.
        let arrived = self.exports.arrived(id, mounted);
        drop(unchanged);
        arrived.map(|()| Attached::Mounted)
    }

    /// Parses the options of a mount that was asked for. The pool's property `io_uring` holds unless they name another
    /// value.
    pub(super) fn mount_options(&self, words: &[String]) -> Result<MountOptions> {
        let (value, _) = settings::of(&*self.pool, "", props::find("io_uring")?)?;
        let of_pool = format!("io_uring={value}");
        let all: Vec<&str> =
            std::iter::once(of_pool.as_str()).chain(words.iter().map(String::as_str)).collect();
        mountopts::parse(&all)
    }

    /// Returns an error if the options contradict those with which the pool was opened.
    fn check(&self, wanted: &MountRequest, name: &str) -> Result<()> {
        let options = &wanted.options;
        let pool = self.pool.name();
        let first = self.exports.is_empty();
        if self.read_only && !options.read_only && !wanted.is_snapshot() {
            return Err(Failure::new(format!(
                "{name} cannot be mounted for writing: pool {pool} is open read-only"
            ))
            .hint(format!("mount it with -o ro, or unmount the pool first: pagefold unmount {pool}")));
        }
        let of_pool = mounted::of_the_pool(options);
        let odd = of_pool.first().map(|(name, _)| *name);
        let odd = odd.or(options.rescue.then_some("rescue")).or(options.cache.map(|_| "cache"));
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
            _ => self.front.check(name, wanted),
        }
    }

    fn attach(&self, wanted: &MountRequest, left: Option<InheritedMount>) -> Result<Arc<Mounted>> {
        let context = MountContext {
            pool: &self.pool,
            front: &*self.front,
            handover: &self.handover,
            dataset_lock: &self.dataset_lock,
            watched: &self.watched,
            read_only: self.read_only,
        };
        let mounted = Arc::new(Mounted::start(&context, wanted, left)?);
        let (stopping, followed) = (Arc::clone(&self.stopping), Arc::clone(&mounted));
        let spawned = thread::Builder::new().name("mount".into()).spawn(move || {
            followed.export.wait();
            stopping.ended(&followed);
        });
        spawned.context(|| "cannot start a thread".into())?;
        Ok(mounted)
    }

    /// Takes mounts away, the last in the list first. Returns the directory of a mount that is in use; it and those
    /// before it in the list stay.
    pub(super) fn detach(
        &self,
        mounts: &[Arc<Mounted>],
        mode: UnmountMode,
    ) -> Result<Option<PathBuf>, String> {
        self.stopping.detach(mounts, mode)
    }

    /// Ends this process a moment from now, as if it had died, so that another one goes on.
    pub(crate) fn restart(&self) -> Result<()> {
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
    pub(crate) fn sync(&self) -> Result<(), String> {
        self.stopping.sync()
    }

    /// Closes the pool after the last mount has ended.
    pub(crate) fn close(&self) -> Result<(), String> {
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
        self.exports.closed(closed.clone());
        closed
    }

    /// Changes datasets and snapshots.
    pub(super) fn perform(&self, operation: &Operation) -> Result<OperationResult> {
        let _unchanged = self.dataset_lock.write();
        let outcome = operations::perform(&self.pool, operation, &*self.exports)?;
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
        self.properties.obey_all()?;
        if let (POLICY, Some(snapshotter)) = (name, &*self.snapshotter.lock()) {
            snapshotter.look();
        }
        self.properties.obey_in_mounts(name)
    }

    /// Returns the parts of this server that streams use.
    pub(super) fn streaming(&self) -> StreamContext<'_> {
        StreamContext { pool: &self.pool, exports: &self.exports, dataset_lock: &self.dataset_lock }
    }
}

/// Returns the error of a mount whose dataset has lost its name.
fn replaced(name: &str) -> Failure {
    Failure::new(format!("{name} has just become another dataset")).hint("try again")
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
