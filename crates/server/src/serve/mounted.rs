//! One dataset or snapshot that is exported, with its policy, its background work and its export.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagefold_engine::dataset::{Dataset, LiveDataset};
use pagefold_engine::pool::Pool;
use pagefold_engine::record::recordsize_hint;
use pagefold_fs::{AtimePolicy, Fs, FsOptions, Ino};
use parking_lot::{Mutex, RwLock};

use super::background::{Background, Watched};
use super::export::{Export, ExportSource, FrontEnd, MountRequest, VersionFile};
use super::handover::{Handover, InheritedMount, MountRecord, StoredMount};
use super::policy::{Policed, SyncMode};
use super::rewrites::Rewrites;
use crate::failure::{Failure, Result};
use crate::incomplete::{self, Fetcher, OpenedDataset, OverlayMode};
use crate::mountopts::MountOptions;
use crate::props::{self, Scope};
use crate::{engine_errors, names, raw, settings, units};

/// Name of the property that the engine itself follows, by dataset.
const COMPRESSION: &str = "compression";

/// The parts of a server that its mounts use.
pub(super) struct MountContext<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) front: &'a dyn FrontEnd,
    pub(super) handover: &'a Handover,
    pub(super) dataset_lock: &'a Arc<RwLock<()>>,
    pub(super) watched: &'a Watched,
    /// True if the pool is open read-only.
    pub(super) read_only: bool,
}

impl MountContext<'_> {
    /// Returns the value of a property that holds for a mount: one of its options, or else the dataset's.
    fn effective(&self, wanted: &MountRequest, name: &str) -> Result<String> {
        match wanted.options.properties.iter().rev().find(|(temporary, _)| *temporary == name) {
            Some((_, value)) => Ok(value.clone()),
            None => Ok(settings::of(&**self.pool, &wanted.path, props::find(name)?)?.0),
        }
    }

    fn is_read_only(&self, wanted: &MountRequest, left: Option<&InheritedMount>) -> Result<bool> {
        Ok(match left {
            // A property that waits for the next mount waits on.
            Some(left) => left.record.read_only,
            None => {
                wanted.options.read_only
                    || wanted.is_snapshot()
                    || self.effective(wanted, "readonly")? == "on"
            }
        })
    }
}

/// A dataset as mounts see it, and the settings that change while it is mounted.
struct PolicedDataset {
    policy: Arc<Policed>,
    /// The `recordsize` property in bytes; 0 is `auto`.
    record_size: Arc<AtomicU32>,
    bringing: Option<Fetcher>,
}

impl PolicedDataset {
    fn open(
        context: &MountContext<'_>,
        wanted: &MountRequest,
        version: Arc<LiveDataset>,
        how: OverlayMode,
    ) -> Result<Self> {
        let OpenedDataset { dataset, bringing } =
            incomplete::open(context.pool, &wanted.path, version as Arc<dyn Dataset>, how)?;
        let policy = Arc::new(Policed::new(dataset, SyncMode::Standard));
        let record_size = Arc::new(AtomicU32::new(0));
        for name in ["recordsize", "sync"] {
            take_effect(&policy, &record_size, name, &context.effective(wanted, name)?)?;
        }
        Ok(Self { policy, record_size, bringing })
    }

    /// Returns the source of an export of this dataset. `connection` is its number in the journal.
    fn source(
        &self,
        context: &MountContext<'_>,
        wanted: &MountRequest,
        (id, read_only): (u64, bool),
        (kept, left): (&Arc<StoredMount>, Option<&InheritedMount>),
    ) -> Result<ExportSource> {
        let MountContext { pool, handover, dataset_lock, .. } = context;
        let fs_options = FsOptions {
            atime: atime(&context.effective(wanted, "atime")?),
            read_only,
            resumed: left.is_some(),
            recordsize: None,
            hint: Some(hint(&self.record_size)),
            inodes: Some(Arc::clone(&pool.beside().inodes)),
            free_pages: None,
            piece_bytes: None,
        };
        let journal = handover.journal().filter(|_| !wanted.is_snapshot() && !context.read_only);
        let noted = Arc::clone(kept);
        Ok(ExportSource {
            name: names::full(pool.name(), &wanted.path),
            id,
            wanted: wanted.clone(),
            read_only,
            is_supervised: handover.is_supervised(),
            dataset: Arc::clone(&self.policy) as Arc<dyn Dataset>,
            is_incomplete: self.bringing.is_some(),
            fs_options,
            pool: Arc::clone(pool),
            dataset_lock: Arc::clone(dataset_lock),
            journal: journal.cloned(),
            connection: kept.connection,
            looked_into: left.map_or_else(Vec::new, |left| left.looked_into.clone()),
            note_snapshot: Arc::new(move |known| noted.note_snapshot(known)),
        })
    }
}

/// A mount that is served.
pub(crate) struct Mounted {
    /// Number of the dataset or snapshot.
    pub(super) id: u64,
    pub(super) export: Box<dyn Export>,
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
    /// Opens the dataset of `wanted` and exports it, or goes on with the mount `left` by the previous server.
    pub(super) fn start(
        context: &MountContext<'_>,
        wanted: &MountRequest,
        left: Option<InheritedMount>,
    ) -> Result<Self> {
        let MountContext { pool, front, handover, watched, .. } = context;
        let name = names::full(pool.name(), &wanted.path);
        let version = pool.version(&wanted.path);
        let dataset = version.map_err(|error| engine_errors::no_such_dataset(&name, &error))?;
        let read_only = context.is_read_only(wanted, left.as_ref())?;
        let how = OverlayMode { writable: !read_only, resumed: left.is_some() };
        let policed = PolicedDataset::open(context, wanted, Arc::clone(&dataset), how)?;
        let kept = Arc::new(StoredMount::new(handover, left.as_ref()));
        let source = policed.source(context, wanted, (dataset.id, read_only), (&kept, left.as_ref()))?;
        let now = units::now();
        let since = left.as_ref().map_or(now, |left| left.record.since);
        let is_new = left.is_none();
        let export = match left {
            Some(left) => front.resume(&source, left.state),
            None => front.start(&source),
        }?;
        if is_new {
            let (id, options, state) = (dataset.id, &wanted.options, export.hand_over());
            let record = MountRecord::new(kept.connection, id, read_only, since, options, &state);
            kept.made(&record, state.connection)?;
        }
        let temporary = wanted.options.properties.iter().rev().find(|(name, _)| *name == COMPRESSION);
        obey_codec(&dataset, temporary.map(|(_, value)| value.as_str()))?;
        let work = Background::start(export.files().cloned(), Arc::clone(pool), Arc::clone(watched))?;
        tracing::info!(dataset = name, dir = raw::text(export.place()), "mounted");
        let PolicedDataset { policy, record_size, bringing } = policed;
        Ok(Self {
            id: dataset.id,
            export,
            read_only: AtomicBool::new(read_only),
            since,
            options: Mutex::new(wanted.options.clone()),
            policy,
            record_size,
            dataset,
            work,
            bringing: Mutex::new(bringing),
            rewrites: Rewrites::default(),
            kept,
            ending: AtomicBool::new(false),
            ended: Mutex::new(None),
        })
    }

    /// Returns its file system.
    pub(super) fn files(&self) -> Result<&Arc<Fs>> {
        let files = self.export.files();
        files.ok_or_else(|| Failure::new(format!("{} has no files", raw::text(self.export.place()))))
    }

    /// Returns the file with this inode number, as clients see it: of this dataset, or of a snapshot below
    /// `.pagefold/snapshot`. It need not exist.
    pub(super) fn file(&self, ino: u64) -> Option<VersionFile> {
        let live =
            || Some(VersionFile { version: self.id, fs: Arc::clone(self.files().ok()?), ino: Ino(ino) });
        self.export.file_in_snapshot(ino).or_else(live)
    }

    /// Stops the background work and writes access times, which are only in memory.
    pub(super) fn settle(&self) -> Result<(), String> {
        self.rewrites.stop();
        drop(self.bringing.lock().take());
        self.work.stop();
        self.dataset.set_mount_compression(None);
        match self.export.files() {
            Some(fs) if !self.is_read_only() => fs.flush_times().map_err(|error| error.to_string()),
            _ => Ok(()),
        }
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
        self.export.places()
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
        if let ("atime", Some(fs)) = (name, self.export.files()) {
            fs.set_atime(atime(value));
        }
        if name == COMPRESSION {
            return obey_codec(&self.dataset, Some(value));
        }
        take_effect(&self.policy, &self.record_size, name, value)
    }
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
