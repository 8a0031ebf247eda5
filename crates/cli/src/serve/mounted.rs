//! One dataset or snapshot with its file system and its mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagefold_engine::Key;
use pagefold_engine::dataset::{Dataset, LiveDataset};
use pagefold_engine::record::recordsize_hint;
use pagefold_fs::{AtimePolicy, Fs, FsError, FsOptions, SystemClock};
use pagefold_fuse::{
    Dispatch, Handler, MountError, Mounter, Session, SnapshotTree, Transport, WithSnapshots,
};
use parking_lot::Mutex;

use super::background::Background;
use super::handover::{InheritedMount, MountRecord, StoredMount};
use super::policy::{Policed, SyncMode};
use super::rewriting::Rewrites;
use super::server::Server;
use super::snapdir::SnapshotsOf;
use crate::failure::{Context, Failure, Result};
use crate::incomplete::{self, Fetcher, OpenedDataset, OverlayMode};
use crate::mountopts::{IoUring, MountOptions};
use crate::props::{self, Scope};
use crate::{engine_errors, mounts, names, pools, raw, settings, units};

/// Name of the property that the engine itself follows, by dataset.
const COMPRESSION: &str = "compression";

/// A mount that was asked for.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// Path of the dataset or snapshot, below the pool.
    pub path: String,
    /// Directory of the mount, an absolute path.
    pub dir: PathBuf,
    /// Options of the mount.
    pub options: MountOptions,
}

/// A mount that is served.
pub struct Mounted {
    /// Number of the dataset or snapshot.
    pub(super) id: u64,
    pub(super) fs: Arc<Fs>,
    /// The snapshots that the mount shows.
    pub(super) tree: Arc<SnapshotTree>,
    pub(super) session: Session,
    pub(super) read_only: AtomicBool,
    /// Time at which it became usable, in seconds since 1970.
    pub(super) since: u64,
    /// Options of the mount.
    pub(super) options: Mutex<MountOptions>,
    policy: Arc<Policed>,
    /// The `recordsize` property in bytes; 0 is `auto`.
    record_size: Arc<AtomicU32>,
    /// The dataset without the policy around it.
    dataset: Arc<LiveDataset>,
    work: Background,
    /// The thread that fetches the rest of a dataset that is not complete.
    bringing: Mutex<Option<Fetcher>>,
    /// Files that are being given another recordsize.
    pub(super) rewrites: Rewrites,
    /// State that is kept of it for the next server.
    pub(super) kept: Arc<StoredMount>,
    /// True once a thread handles its end.
    pub(super) ending: AtomicBool,
    /// Result of its end, once it has ended.
    pub(super) ended: Mutex<Option<Result<(), String>>>,
}

impl Mounted {
    /// Opens the file system of `wanted` and mounts it, or goes on with the mount `left` by the previous server.
    pub(super) fn start(
        server: &Server,
        wanted: &MountRequest,
        left: Option<InheritedMount>,
    ) -> Result<Self> {
        let Server { pool, handover, dataset_lock, watched, mounter, .. } = server;
        let name = names::full(pool.name(), &wanted.path);
        let version = pool.version(&wanted.path);
        let version = version.map_err(|error| engine_errors::no_such_dataset(&name, &error))?;
        let temporary = &wanted.options.properties;
        let effective = |name: &str| -> Result<String> {
            match temporary.iter().rev().find(|(temporary, _)| *temporary == name) {
                Some((_, value)) => Ok(value.clone()),
                None => Ok(settings::of(pool, &wanted.path, props::find(name)?)?.0),
            }
        };
        let is_snapshot = wanted.path.contains('@');
        let read_only = match &left {
            // A property that waits for the next mount waits on.
            Some(left) => left.record.read_only,
            None => wanted.options.read_only || is_snapshot || effective("readonly")? == "on",
        };
        let mut fuse_options = fuse_options(&name, &wanted.options, read_only);
        fuse_options.takeover = handover.is_supervised();
        let id = version.id;
        let own = Arc::clone(&version);
        let how = OverlayMode { writable: !read_only, resumed: left.is_some() };
        let OpenedDataset { dataset: whole, bringing } =
            incomplete::open(pool, &wanted.path, version as Arc<dyn Dataset>, how)?;
        let policy = Arc::new(Policed::new(whole, SyncMode::Standard));
        let record_size = Arc::new(AtomicU32::new(0));
        for name in ["recordsize", "sync"] {
            take_effect(&policy, &record_size, name, &effective(name)?)?;
        }
        let fs_options = FsOptions {
            atime: atime(&effective("atime")?),
            read_only,
            recordsize: None,
            hint: Some(hint(&record_size)),
            inodes: Some(Arc::clone(&pool.beside().inodes)),
            free_pages: None,
            piece_bytes: None,
        };
        let dataset = Arc::clone(&policy) as Arc<dyn Dataset>;
        let open = || Fs::mount(Arc::clone(&dataset), Arc::new(SystemClock), fs_options.clone());
        let fs = match open() {
            // A crash came after the dataset was made, and before its file system was.
            Err(FsError::NotFound) if !read_only && is_empty(dataset.as_ref())? => {
                pools::format(dataset.as_ref())?;
                open()
            }
            opened => opened,
        };
        let fs = Arc::new(fs.context(|| format!("cannot open the file system of {name}"))?);
        let kept = Arc::new(StoredMount::new(handover, left.as_ref()));
        let snapshots = SnapshotsOf {
            pool: Arc::clone(pool),
            id,
            dataset_lock: Arc::clone(dataset_lock),
            kept: Arc::clone(&kept),
        };
        let looked_into = left.as_ref().map_or_else(Vec::new, |left| left.record.looked_into.clone());
        let tree = Arc::new(SnapshotTree::resume(Box::new(snapshots), looked_into));
        let live = match handover.journal().filter(|_| !is_snapshot && !server.read_only) {
            Some(journal) => Dispatch::with_journal(Arc::clone(&fs), Arc::clone(journal), kept.connection),
            None => Dispatch::new(Arc::clone(&fs)),
        };
        let handler: Arc<dyn Handler> =
            if is_snapshot { Arc::new(live) } else { Arc::new(WithSnapshots::new(live, Arc::clone(&tree))) };
        let now = units::now();
        let since = left.as_ref().map_or(now, |left| left.record.since);
        let is_new = left.is_none();
        let session = match left {
            Some(left) => Session::resume(Arc::clone(mounter), handler, left.held, wanted.options.threads),
            None => Session::mount_by(Arc::clone(mounter), handler, &wanted.dir, &fuse_options),
        };
        let session = session.map_err(|error| mount_failed(&error))?;
        if is_new {
            let held = session.held();
            kept.made(
                MountRecord::new(kept.connection, id, read_only, since, &wanted.options, &held),
                &held,
            )?;
        }
        let temporary = wanted.options.properties.iter().rev().find(|(name, _)| *name == COMPRESSION);
        obey_codec(&own, temporary.map(|(_, value)| value.as_str()))?;
        let work = Background::start(Arc::clone(&fs), Arc::clone(pool), Arc::clone(watched))?;
        tracing::info!(dataset = name, dir = raw::text(session.dir()), "mounted");
        Ok(Self {
            id,
            fs,
            tree,
            session,
            read_only: AtomicBool::new(read_only),
            since,
            options: Mutex::new(wanted.options.clone()),
            policy,
            record_size,
            dataset: own,
            work,
            bringing: Mutex::new(bringing),
            rewrites: Rewrites::default(),
            kept,
            ending: AtomicBool::new(false),
            ended: Mutex::new(None),
        })
    }

    /// Stops the background work and writes access times, which are only in memory.
    pub(super) fn settle(&self) -> Result<(), String> {
        self.rewrites.stop();
        drop(self.bringing.lock().take());
        self.work.stop();
        self.dataset.set_mount_compression(None);
        if self.is_read_only() { Ok(()) } else { self.fs.flush_times().map_err(|error| error.to_string()) }
    }

    /// Returns true if the mount refuses changes.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Returns the properties that hold for this mount only.
    pub(super) fn temporary(&self) -> Vec<(&'static str, String)> {
        self.options.lock().properties.clone()
    }

    /// Returns the directories where it is mounted, in this process's namespace: its own directory first, if it is
    /// still mounted there. Empty if the mount was taken away and only programs that use it keep it.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let found = mounts::of_devices(&[self.session.device_minor()]).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot see what is mounted where");
            Vec::new()
        });
        let mut dirs: Vec<PathBuf> = found.into_iter().map(|mount| mount.dir).collect();
        dirs.sort_by_key(|dir| dir != self.session.dir());
        dirs
    }

    /// Applies a property that was set while this is mounted, unless an option of the mount overrides it.
    pub(super) fn take_effect(&self, name: &str, value: &str) -> Result<()> {
        if self.options.lock().properties.iter().any(|(temporary, _)| *temporary == name) {
            return Ok(());
        }
        // The engine follows `compression` itself, by dataset.
        if name == COMPRESSION { Ok(()) } else { self.obey(name, value) }
    }

    /// Applies the value of a property, which may come from the dataset or from an option of this mount.
    pub(super) fn obey(&self, name: &str, value: &str) -> Result<()> {
        if name == "atime" {
            self.fs.set_atime(atime(value));
        }
        if name == COMPRESSION {
            return obey_codec(&self.dataset, Some(value));
        }
        take_effect(&self.policy, &self.record_size, name, value)
    }
}

/// Returns true if a dataset has no entries at all.
fn is_empty(dataset: &dyn Dataset) -> Result<bool> {
    let found = dataset.range(&Key::new(0, 0, 0), &Key::new(u64::MAX, 0, 0), 1);
    found
        .map(|found| found.is_empty())
        .map_err(|error| engine_errors::failed("cannot read the dataset", &error))
}

/// Returns an error if `wanted` cannot be mounted because of its directory. Nothing else is touched.
pub(super) fn check_dir(mounter: &dyn Mounter, pool: &str, wanted: &MountRequest) -> Result<()> {
    let read_only = wanted.options.read_only || wanted.path.contains('@');
    let options = fuse_options(&names::full(pool, &wanted.path), &wanted.options, read_only);
    mounter.check(&wanted.dir, &options).map(drop).map_err(|error| mount_failed(&error))
}

/// Returns the properties among a mount's options that hold for the whole pool.
pub(super) fn of_the_pool(options: &MountOptions) -> Vec<(&'static str, String)> {
    let of_pool = |name: &str| props::find(name).is_ok_and(|property| property.scope == Scope::Pool);
    options.properties.iter().filter(|(name, _)| of_pool(name)).cloned().collect()
}

/// Applies `sync` or `recordsize` to a mount; other properties change nothing here.
fn take_effect(policy: &Policed, record_size: &AtomicU32, name: &str, value: &str) -> Result<()> {
    let unknown =
        || Failure::new(format!("the property {name} has the value \"{value}\", which is unknown here"));
    match name {
        "sync" => policy.set(SyncMode::parse(value).ok_or_else(unknown)?),
        "recordsize" => {
            let bytes = if value == "auto" { 0 } else { units::parse_size(value)? };
            record_size.store(u32::try_from(bytes).map_err(|_| unknown())?, Ordering::Relaxed);
        }
        _ => {}
    }
    Ok(())
}

/// Passes to the engine the codec that holds for a mount.
fn obey_codec(dataset: &LiveDataset, value: Option<&str>) -> Result<()> {
    let codec = value.map(str::parse).transpose();
    dataset.set_mount_compression(codec.map_err(|error| engine_errors::failed("cannot mount", &error))?);
    Ok(())
}

/// Returns the function that gives the page size of a new file: the property, or what the file's first write suggests.
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

/// Returns the front end's options for a mount.
pub fn fuse_options(name: &str, wanted: &MountOptions, read_only: bool) -> pagefold_fuse::MountOptions {
    let mut options = pagefold_fuse::MountOptions {
        source: name.to_owned(),
        read_only,
        suid: wanted.suid,
        dev: wanted.dev,
        exec: wanted.exec,
        nonempty: wanted.nonempty,
        replace_dead: true,
        transport: match wanted.io_uring {
            IoUring::Auto => Transport::Auto,
            IoUring::On => Transport::IoUring,
            IoUring::Off => Transport::Dev,
        },
        threads_max: wanted.threads,
        ..pagefold_fuse::MountOptions::default()
    };
    if let Some(allow_other) = wanted.allow_other {
        options.allow_other = allow_other;
    }
    options
}

/// Converts an error of the front end. Its text has advice after a semicolon, which becomes a line of its own.
pub fn mount_failed(error: &MountError) -> Failure {
    let text = error.to_string();
    match text.split_once("; ") {
        Some((what, hint)) => Failure::new(what).hint(hint),
        None => Failure::new(text),
    }
}
