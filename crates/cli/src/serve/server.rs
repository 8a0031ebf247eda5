//! A pool, its file system and its mount, held together from start to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagefold_engine::dataset::{Dataset, PrimaryCache};
use pagefold_engine::pool::{self, OpenOptions, Pool};
use pagefold_engine::record::recordsize_hint;
use pagefold_fs::{AtimePolicy, Fs, FsOptions, SystemClock};
use pagefold_fuse::{MountError, Session, Transport};
use parking_lot::{Condvar, Mutex};

use super::background::Background;
use super::events::Ring;
use super::plan::Plan;
use super::policy::{Policed, SyncMode};
use crate::control::{Source, UnmountMode};
use crate::failure::{Context, Failure, Result};
use crate::mountopts::{IoUring, MountOptions};
use crate::{mounts, places, pools, units};

/// How long the connection may take to end by itself after the mount was detached by force.
const CUT_OFF_GRACE: Duration = Duration::from_millis(200);

/// How far the mount's life has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Mounted.
    Serving,
    /// Unmounted; the pool is being closed.
    Unmounted,
    /// The pool is closed, or why it could not be.
    Closed(Result<(), String>),
}

/// The server of one mounted pool.
pub struct Server {
    pub(super) pool: Arc<Pool>,
    pub(super) fs: Arc<Fs>,
    pub(super) session: Session,
    pub(super) ring: Arc<Ring>,
    pub(super) options: MountOptions,
    pub(super) read_only: bool,
    /// When the mount became usable, for people and for spans.
    pub(super) since: u64,
    pub(super) started: Instant,
    policy: Arc<Policed>,
    /// The `recordsize` property in bytes; 0 is `auto`.
    record_size: Arc<AtomicU32>,
    fs_work: Background,
    pool_work: Mutex<Option<pool::Background>>,
    phase: Mutex<Phase>,
    phase_changed: Condvar,
}

impl Server {
    /// Opens the pool, replaying its log if need be, and mounts it.
    pub fn start(plan: &Plan, ring: Arc<Ring>) -> Result<Self> {
        let wants_read_only = plan.options.read_only || stored_read_only(plan)?;
        let mut options = OpenOptions {
            read_only: wants_read_only,
            accept_loss: plan.options.rescue,
            ..OpenOptions::default()
        };
        if let Some(bytes) = plan.options.cache_bytes {
            options.cache_bytes = bytes;
        }
        // Before the pool is touched: most mistakes are about the directory.
        detach_dead(plan)?;
        let fuse_options = fuse_options(plan, options.read_only);
        pagefold_fuse::check_mount_point(&plan.dir, &fuse_options).map_err(|error| mount_failed(&error))?;
        let pool = pools::open_known(&plan.known, &options)?;
        let replayed = pool.replayed();
        tracing::info!(
            pool = plan.pool,
            clean = replayed.clean,
            batches = replayed.batches,
            bytes = replayed.bytes,
            "opened the pool"
        );
        if replayed.damaged > 0 {
            tracing::error!(
                pool = plan.pool,
                batches = replayed.damaged,
                "the log has damaged records: reading them fails"
            );
        }
        if let Some(lost) = replayed.lost {
            tracing::error!(
                pool = plan.pool,
                device = lost.device,
                offset = lost.offset,
                "the log is damaged: what was acknowledged behind it is not shown"
            );
        }
        let policy = Arc::new(Policed::new(pool.dataset(), SyncMode::Standard));
        let record_size = Arc::new(AtomicU32::new(0));
        let fs_options = FsOptions {
            atime: atime(&effective(&pool, &plan.options, "atime")?),
            read_only: options.read_only,
            recordsize: None,
            hint: Some(hint(&record_size)),
        };
        let dataset = Arc::clone(&policy) as Arc<dyn Dataset>;
        let fs = Fs::mount(dataset, Arc::new(SystemClock), fs_options);
        let fs = Arc::new(fs.context(|| format!("cannot open the file system of pool {}", plan.pool))?);
        for name in ["compression", "primarycache", "recordsize", "sync"] {
            take_effect(&pool, &policy, &record_size, name, &effective(&pool, &plan.options, name)?)?;
        }
        let pool_work = pool.run().map_err(|error| pools::failed("cannot start the pool's work", &error))?;
        let session =
            Session::mount(Arc::clone(&fs), &plan.dir, &fuse_options).map_err(|error| mount_failed(&error));
        let session = match session {
            Ok(session) => session,
            Err(failure) => {
                pool_work.stop();
                close(&fs, &pool, options.read_only).map_err(Failure::new)?;
                return Err(failure);
            }
        };
        let fs_work = Background::start(Arc::clone(&fs), pool.dataset())?;
        tracing::info!(pool = plan.pool, dir = %session.dir().display(), "mounted");
        Ok(Self {
            pool,
            fs,
            session,
            ring,
            options: plan.options.clone(),
            read_only: options.read_only,
            since: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            started: Instant::now(),
            policy,
            record_size,
            fs_work,
            pool_work: Mutex::new(Some(pool_work)),
            phase: Mutex::new(Phase::Serving),
            phase_changed: Condvar::new(),
        })
    }

    /// Follows the mount to its end, by whomever; for a thread of its own.
    pub fn follow_mount(&self) {
        self.session.wait();
        self.unmounted();
    }

    /// Returns when the mount has ended or its users were cut off.
    pub fn wait_for_unmount(&self) {
        let mut phase = self.phase.lock();
        while *phase == Phase::Serving {
            self.phase_changed.wait(&mut phase);
        }
    }

    /// Whether the mount is there, as opposed to a pool that is being closed.
    pub(super) fn is_serving(&self) -> bool {
        *self.phase.lock() == Phase::Serving
    }

    /// Waits at most `patience` for the mount to end; whether it has.
    pub fn wait_until_unmounted(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut phase = self.phase.lock();
        while *phase == Phase::Serving {
            if self.phase_changed.wait_until(&mut phase, deadline).timed_out() {
                return *phase != Phase::Serving;
            }
        }
        true
    }

    /// Takes the mount away; false if it is in use.
    pub fn detach(&self, mode: UnmountMode) -> Result<bool, String> {
        if *self.phase.lock() != Phase::Serving {
            return Ok(true);
        }
        if mode == UnmountMode::Force {
            return self.cut_off().map(|()| true);
        }
        match self.session.unmount(mode == UnmountMode::Lazy) {
            // A lazy unmount may have come before.
            Ok(()) | Err(MountError::NotMounted(_)) => Ok(true),
            Err(MountError::InUse(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes the mount away and ends the connection; whoever still uses it gets errors.
    fn cut_off(&self) -> Result<(), String> {
        use rustix::mount::UnmountFlags;
        let detached = if places::is_root() {
            // FORCE ends the connection, also where /sys/fs/fuse is not there.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            match rustix::mount::unmount(self.session.dir(), flags) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
                Err(errno) => Err(std::io::Error::from(errno).to_string()),
            }
        } else {
            match self.session.unmount(true) {
                Ok(()) | Err(MountError::NotMounted(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        };
        detached.map_err(|error| format!("cannot detach {}: {error}", self.session.dir().display()))?;
        if !self.wait_until_unmounted(CUT_OFF_GRACE)
            && let Err(error) = self.session.abort()
        {
            // The connection ends with this process at the latest; the pool refuses changes before.
            tracing::warn!(%error, "cannot end the connection to the kernel");
        }
        self.unmounted();
        Ok(())
    }

    /// Makes everything written so far durable, whatever the `sync` property says.
    pub fn sync(&self) -> Result<(), String> {
        self.pool.sync().map_err(|error| error.to_string())
    }

    /// Closes the pool after the mount has ended.
    pub fn close(&self) -> Result<(), String> {
        self.fs_work.stop();
        if let Some(work) = self.pool_work.lock().take() {
            work.stop();
        }
        let closed = close(&self.fs, &self.pool, self.read_only);
        match &closed {
            Ok(()) => tracing::info!("the pool is closed"),
            Err(error) => tracing::error!(error, "the pool could not be closed"),
        }
        *self.phase.lock() = Phase::Closed(closed.clone());
        self.phase_changed.notify_all();
        closed
    }

    /// Waits until the pool is closed; whether it could be.
    pub(super) fn wait_until_closed(&self) -> Result<(), String> {
        let mut phase = self.phase.lock();
        loop {
            if let Phase::Closed(outcome) = &*phase {
                return outcome.clone();
            }
            self.phase_changed.wait(&mut phase);
        }
    }

    fn unmounted(&self) {
        let mut phase = self.phase.lock();
        if *phase == Phase::Serving {
            tracing::info!("unmounted");
            *phase = Phase::Unmounted;
            self.phase_changed.notify_all();
        }
    }

    /// Stores a property, makes it durable and lets it take effect.
    pub(super) fn set_property(&self, name: &str, value: &str) -> Result<()> {
        let property = crate::props::find(name)?;
        let value = property.parse(value)?;
        let failed = |error| pools::failed(format!("cannot set {name}"), &error);
        self.pool.set_property(property.name, Some(&value)).map_err(failed)?;
        self.pool.sync().map_err(failed)?;
        tracing::info!(property = name, value, "set");
        if self.options.properties.iter().any(|(temporary, _)| *temporary == property.name) {
            // The mount's own option goes on until it ends.
            return Ok(());
        }
        take_effect(&self.pool, &self.policy, &self.record_size, property.name, &value)
    }
}

/// Takes mounts of ours off the directory whose server has died.
fn detach_dead(plan: &Plan) -> Result<()> {
    for mount in mounts::ours()?.iter().filter(|mount| mount.dir == plan.dir && mounts::is_dead(mount)) {
        tracing::warn!(pool = mount.source, dir = %mount.dir.display(), "detaching a mount whose server has died");
        pagefold_fuse::unmount(&mount.dir, true).map_err(|error| mount_failed(&error))?;
    }
    Ok(())
}

/// Writes what is only in memory and closes the pool.
fn close(fs: &Fs, pool: &Pool, read_only: bool) -> Result<(), String> {
    if !read_only {
        fs.flush_times().map_err(|error| error.to_string())?;
    }
    pool.export().map_err(|error| error.to_string())
}

/// Whether the pool's own `readonly` property is on. Asked first, since it decides how the pool is opened.
fn stored_read_only(plan: &Plan) -> Result<bool> {
    Ok(pools::property_offline(&plan.known, "readonly")?.as_deref() == Some("on"))
}

/// A property's value for this mount: its option, what is stored, or the default.
fn effective(pool: &Pool, options: &MountOptions, name: &str) -> Result<String> {
    let values = pools::properties(pool, &options.properties)?;
    let found = values.into_iter().find(|value| value.name == name && value.source != Source::None);
    found.map(|value| value.value).ok_or_else(|| Failure::new(format!("there is no property {name}")))
}

/// Tells the engine and the file system about a property that they obey while mounted.
fn take_effect(
    pool: &Pool,
    policy: &Policed,
    record_size: &AtomicU32,
    name: &str,
    value: &str,
) -> Result<()> {
    let unknown = || {
        Failure::new(format!("the pool's property {name} has the value \"{value}\", which is unknown here"))
    };
    match name {
        "compression" => pool.set_compression(value.parse().map_err(|_| unknown())?),
        "primarycache" => pool.set_primary_cache(match value {
            "all" => PrimaryCache::All,
            "metadata" => PrimaryCache::Metadata,
            "none" => PrimaryCache::None,
            _ => return Err(unknown()),
        }),
        "sync" => policy.set(SyncMode::parse(value).ok_or_else(unknown)?),
        "recordsize" => {
            let bytes = if value == "auto" { 0 } else { units::parse_size(value)? };
            record_size.store(u32::try_from(bytes).map_err(|_| unknown())?, Ordering::Relaxed);
        }
        _ => {}
    }
    Ok(())
}

/// The page size of new files: the property, or what their first write tells.
fn hint(record_size: &Arc<AtomicU32>) -> pagefold_fs::RecordsizeHint {
    let record_size = Arc::clone(record_size);
    Arc::new(move |offset, data, name| match record_size.load(Ordering::Relaxed) {
        0 => recordsize_hint(offset, data, name),
        bytes => Some(bytes),
    })
}

fn atime(value: &str) -> AtimePolicy {
    match value {
        "on" => AtimePolicy::Strict,
        "off" => AtimePolicy::Never,
        _ => AtimePolicy::Relative,
    }
}

fn fuse_options(plan: &Plan, read_only: bool) -> pagefold_fuse::MountOptions {
    let mut options = pagefold_fuse::MountOptions {
        source: plan.pool.clone(),
        read_only,
        suid: plan.options.suid,
        dev: plan.options.dev,
        exec: plan.options.exec,
        nonempty: plan.options.nonempty,
        replace_dead: true,
        transport: match plan.options.io_uring {
            IoUring::Auto => Transport::Auto,
            IoUring::On => Transport::IoUring,
            IoUring::Off => Transport::Dev,
        },
        threads_max: plan.options.threads,
        ..pagefold_fuse::MountOptions::default()
    };
    if let Some(allow_other) = plan.options.allow_other {
        options.allow_other = allow_other;
    }
    options
}

/// The front end's errors say what to do after a semicolon; we say it on a line of its own.
fn mount_failed(error: &MountError) -> Failure {
    let text = error.to_string();
    match text.split_once("; ") {
        Some((what, hint)) => Failure::new(what).hint(hint),
        None => Failure::new(text),
    }
}
