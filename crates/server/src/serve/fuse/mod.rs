//! FUSE as a front end: datasets and snapshots as mounts. Only this folder of the server names the FUSE crate.

mod options;
mod snapdir;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_fs::Fs;
use pagefold_fuse::{
    Agreement, Dispatch, Handler, Held, KnownSnapshot, MountError, Mounter, Session, SnapshotTree, Source,
    Unmount, WithSnapshots,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::snapdir::SnapshotsOf;
use super::export::{Export, ExportSource, ExportState, FrontEnd, MountRequest, StopMode, VersionFile};
use super::looked_into::LookedInto;
use crate::failure::{Context, Result};
use crate::mounter::{MounterClient, TakeoverMounter};
use crate::mountopts::MountOptions;
use crate::mounts::Standing;
use crate::{mounts, raw};

pub use options::{fuse_options, is_takeover_wanted, mount_failed};

/// The front end, which mounts by way of the mounter.
pub(crate) struct FuseFrontEnd {
    mounter: Arc<dyn Mounter>,
    /// The same mounter, while this server goes on for another one.
    takeover: Option<Arc<TakeoverMounter<MounterClient>>>,
}

impl FuseFrontEnd {
    /// Starts the mounter of a pool. Must be called while there is only one thread, as [`MounterClient::start`].
    pub(crate) fn start(pool: &str, options: &MountOptions) -> Result<Self> {
        Ok(Self { mounter: Arc::new(MounterClient::start(pool, options)?), takeover: None })
    }

    /// As [`FuseFrontEnd::start`], for a server that goes on with the mounts of another one.
    pub(crate) fn resume(pool: &str, options: &MountOptions) -> Result<Self> {
        let mounter = Arc::new(TakeoverMounter::new(MounterClient::start(pool, options)?));
        Ok(Self { mounter: Arc::clone(&mounter) as Arc<dyn Mounter>, takeover: Some(mounter) })
    }

    /// Opens the file system of `source`, and mounts it as `begin` says.
    fn export(
        &self,
        source: &ExportSource,
        begin: impl FnOnce(Arc<dyn Mounter>, Arc<dyn Handler>) -> Result<Session, MountError>,
    ) -> Result<Box<dyn Export>> {
        let fs = source.open_files()?;
        let snapshots = SnapshotsOf {
            pool: Arc::clone(&source.pool),
            id: source.id,
            dataset_lock: Arc::clone(&source.dataset_lock),
            note_snapshot: Arc::clone(&source.note_snapshot),
        };
        let known = |known: &LookedInto| KnownSnapshot {
            place: known.place,
            number: known.snapshot,
            references: known.references,
        };
        let known: Vec<KnownSnapshot> = source.looked_into.iter().map(known).collect();
        let tree = Arc::new(SnapshotTree::resume(Box::new(snapshots), &known));
        let live = match &source.journal {
            Some(journal) => Dispatch::with_journal(Arc::clone(&fs), Arc::clone(journal), source.connection),
            None => Dispatch::new(Arc::clone(&fs)),
        };
        let reads = if source.is_incomplete { Source::Store } else { Source::Devices };
        let live = live.reading_from(reads);
        let handler: Arc<dyn Handler> = match source.wanted.is_snapshot() {
            true => Arc::new(live),
            false => Arc::new(WithSnapshots::new(live, Arc::clone(&tree))),
        };
        let session = begin(Arc::clone(&self.mounter), handler).map_err(|error| mount_failed(&error))?;
        Ok(Box::new(FuseMount { fs, tree, session, mounter: Arc::clone(&self.mounter) }))
    }
}

impl FrontEnd for FuseFrontEnd {
    fn check(&self, name: &str, wanted: &MountRequest) -> Result<()> {
        let read_only = wanted.options.read_only || wanted.is_snapshot();
        let options = fuse_options(name, &wanted.options, read_only);
        self.mounter.check(&wanted.dir, &options).map(drop).map_err(|error| mount_failed(&error))
    }

    fn start(&self, source: &ExportSource) -> Result<Box<dyn Export>> {
        let mut options = fuse_options(&source.name, &source.wanted.options, source.read_only);
        options.takeover = source.is_supervised;
        self.export(source, |mounter, handler| {
            Session::mount_by(mounter, handler, &source.wanted.dir, &options)
        })
    }

    fn resume(&self, source: &ExportSource, state: ExportState) -> Result<Box<dyn Export>> {
        let held = held(state)?;
        let threads = source.wanted.options.threads;
        self.export(source, |mounter, handler| Session::resume(mounter, handler, held, threads))
    }

    fn takeover_complete(&self) {
        if let Some(mounter) = &self.takeover {
            mounter.complete();
        }
    }

    fn request_bytes(&self) -> u64 {
        pagefold_fuse::request_bytes()
    }
}

/// A mount.
struct FuseMount {
    fs: Arc<Fs>,
    /// The snapshots that it shows.
    tree: Arc<SnapshotTree>,
    session: Session,
    mounter: Arc<dyn Mounter>,
}

impl FuseMount {
    /// Unmounts `place`; it may have been unmounted before. Another mount that stands there by now stays.
    fn unmount(&self, place: &Path, how: Unmount) -> Result<(), MountError> {
        let all = mounts::all().map_err(|failure| MountError::Told(failure.to_string()))?;
        match mounts::standing(&all, place, self.session.device_minor()) {
            Standing::Itself => {}
            Standing::Gone => return Ok(()),
            Standing::Below(other) => {
                let (other, place) = (raw::printable(&other.source), raw::text(place));
                return Err(MountError::Told(format!(
                    "{other} was mounted above it at {place}; unmount that first"
                )));
            }
        }
        match self.mounter.unmount(place, how) {
            Err(MountError::NotMounted(_)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Unmounts all places, the last first. Directories of it that were bound elsewhere go, too.
    fn take_away(&self, how: Unmount) -> Result<Option<PathBuf>, String> {
        let places = self.places();
        let places = if places.is_empty() { vec![self.place().to_owned()] } else { places };
        for place in places.iter().rev() {
            match self.unmount(place, how) {
                Ok(()) => {}
                Err(MountError::InUse(_)) => return Ok(Some(place.clone())),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(None)
    }

    fn cut_off(&self) -> Result<(), String> {
        for place in self.places() {
            let done = self.unmount(&place, Unmount::CutOff);
            done.map_err(|error| format!("cannot detach {}: {error}", raw::text(&place)))?;
        }
        Ok(())
    }
}

impl Export for FuseMount {
    fn place(&self) -> &Path {
        self.session.dir()
    }

    fn places(&self) -> Vec<PathBuf> {
        let found = mounts::of_devices(&[self.session.device_minor()]).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot see what is mounted where");
            Vec::new()
        });
        mounts::places(found, self.session.dir())
    }

    fn device(&self) -> u32 {
        self.session.device_minor()
    }

    fn transport(&self) -> &'static str {
        if self.session.agreement().over_ring() { "io_uring" } else { "/dev/fuse" }
    }

    fn files(&self) -> Option<&Arc<Fs>> {
        Some(&self.fs)
    }

    fn file_in_snapshot(&self, ino: u64) -> Option<VersionFile> {
        self.tree.file(ino).map(|(version, fs, ino)| VersionFile { version, fs, ino })
    }

    fn set_read_only(&self, on: bool) {
        self.fs.set_read_only(on);
    }

    fn stop(&self, mode: StopMode) -> Result<Option<PathBuf>, String> {
        match mode {
            StopMode::Idle => self.take_away(Unmount::Idle),
            StopMode::Lazy => self.take_away(Unmount::Lazy),
            StopMode::CutOff => self.cut_off().map(|()| None),
            StopMode::Abort => self.session.abort().map(|()| None).map_err(|error| error.to_string()),
        }
    }

    fn wait(&self) {
        self.session.wait();
    }

    fn hand_over(&self) -> ExportState {
        let Held { device, dir, device_minor, agreement } = self.session.held();
        let detail = Detail::from(agreement).into_map();
        ExportState { connection: device, place: dir, device: device_minor, detail }
    }

    fn open_files(&self, id: u64) -> u64 {
        self.tree.open_files(id)
    }

    fn close_snapshot(&self, id: u64) -> bool {
        self.tree.close(id)
    }

    fn trim_memory(&self) {
        self.fs.trim_inodes();
        self.tree.trim_inodes();
    }
}

/// The agreement with the kernel, as the supervisor keeps it.
#[derive(Serialize, Deserialize)]
struct Detail {
    minor: u32,
    flags: u64,
    atomic_write_bytes: usize,
}

impl From<Agreement> for Detail {
    fn from(agreement: Agreement) -> Self {
        let Agreement { minor, flags, atomic_write_bytes } = agreement;
        Self { minor, flags, atomic_write_bytes }
    }
}

impl Detail {
    fn into_map(self) -> Map<String, Value> {
        let Self { minor, flags, atomic_write_bytes } = self;
        let pairs: [(&str, Value); 3] = [
            ("minor", minor.into()),
            ("flags", flags.into()),
            ("atomic_write_bytes", atomic_write_bytes.into()),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Converts the state that the supervisor kept of a mount.
fn held(state: ExportState) -> Result<Held> {
    let ExportState { connection, place, device, detail } = state;
    let Detail { minor, flags, atomic_write_bytes } = serde_json::from_value(Value::Object(detail))
        .context(|| format!("cannot take over the mount at {}", raw::text(&place)))?;
    let agreement = Agreement { minor, flags, atomic_write_bytes };
    Ok(Held { device: connection, dir: place, device_minor: device, agreement })
}
