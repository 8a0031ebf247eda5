//! State that a server has its supervisor keep, so that another server can go on when it dies: connections and the
//! journal's memory, beside the [`PoolLock`] that the supervisor has from the beginning.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pagefold_engine::dataset::Journal;
use pagefold_engine::pool::OpenOptions;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::export::ExportState;
use super::looked_into::{self, LookedInto};
use super::pool_lock::PoolLock;
use crate::control::{Listener, TakeoverFigures};
use crate::failure::{Context, Failure, Result};
use crate::mountopts::MountOptions;
use crate::pools::{self, OpenDevices};
use crate::props;
use crate::registry::Known;
use crate::supervisor::{Hello, Inherited, Link, uptime};

const JOURNAL: &str = "journal";
/// Name of the properties of the whole pool that hold while it is open.
const TEMPORARY: &str = "temporary";
/// Prefix of the names of mounts; the number of their connection follows.
const MOUNT: &str = "mount:";
/// The same, of what clients of a mount know of snapshots ([`looked_into`]).
const SNAPSHOTS: &str = "snapshots:";

/// Facts about an export, kept beside its connection. The fields of the front end ([`ExportState::detail`]) stand among
/// the others, where servers of earlier versions wrote them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MountRecord {
    /// Number of the connection in the journal.
    pub(super) connection: u32,
    /// Number of the dataset or snapshot.
    pub(super) id: u64,
    pub(super) read_only: bool,
    /// Time at which it became usable, in seconds since 1970.
    pub(super) since: u64,
    threads: Option<usize>,
    properties: Vec<(String, String)>,
    /// All options but properties. Servers of earlier versions did not write them down.
    #[serde(default)]
    options: Option<MountOptions>,
    #[serde(with = "crate::raw::path")]
    dir: PathBuf,
    device_minor: u32,
    /// Numbers of the snapshots that have the places from 1 on, if a server of an earlier version wrote this.
    #[serde(default)]
    looked_into: Vec<u64>,
    #[serde(flatten)]
    detail: Map<String, Value>,
}

impl MountRecord {
    pub(super) fn new(
        connection: u32,
        id: u64,
        read_only: bool,
        since: u64,
        options: &MountOptions,
        state: &ExportState,
    ) -> Self {
        let properties = options.properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Self {
            connection,
            id,
            read_only,
            since,
            threads: options.threads,
            properties: properties.collect(),
            options: Some(options.clone()),
            dir: state.place.clone(),
            device_minor: state.device,
            looked_into: Vec::new(),
            detail: state.detail.clone(),
        }
    }

    /// Returns the options that hold as long as the mount does.
    pub(super) fn options(&self) -> Result<MountOptions> {
        let unknown =
            || MountOptions { read_only: self.read_only, threads: self.threads, ..MountOptions::default() };
        let mut options = self.options.clone().unwrap_or_else(unknown);
        for (name, value) in &self.properties {
            options.properties.push((props::find(name)?.name, value.clone()));
        }
        Ok(options)
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Returns what a server of an earlier version wrote of snapshots.
    fn looked_into(&self) -> impl Iterator<Item = LookedInto> {
        let places = (1..u16::MAX).zip(&self.looked_into);
        places.map(|(place, number)| LookedInto { place, snapshot: *number, references: LookedInto::UNKNOWN })
    }

    fn state(&self, connection: OwnedFd) -> ExportState {
        ExportState {
            connection: Arc::new(connection),
            place: self.dir.clone(),
            device: self.device_minor,
            detail: self.detail.clone(),
        }
    }
}

/// A mount that the previous server left.
#[derive(Debug)]
pub(super) struct InheritedMount {
    pub(super) record: MountRecord,
    pub(super) state: ExportState,
    /// Snapshots of which its clients know files, and the memory that has them.
    pub(super) looked_into: Vec<LookedInto>,
    memory: Option<Arc<File>>,
}

/// The server's side of the state that the supervisor keeps. Without a supervisor nothing is kept.
pub(super) struct Handover {
    link: Option<Arc<Link>>,
    hello: Hello,
    journal: Option<Arc<Journal>>,
    left: Mutex<Vec<InheritedMount>>,
    pool_lock: Option<PoolLock>,
    /// Properties of the whole pool that hold while it is open, if an earlier server was given others than at its
    /// start.
    temporary: Option<Vec<(&'static str, String)>>,
    next_connection: AtomicU32,
    /// Time for which no server answered; set once this one does.
    stall: Mutex<Option<Duration>>,
}

impl Handover {
    /// Returns the state of a server without a supervisor.
    pub(super) fn none() -> Self {
        Self {
            link: None,
            hello: Hello::default(),
            journal: None,
            left: Mutex::default(),
            pool_lock: None,
            temporary: None,
            next_connection: AtomicU32::new(1),
            stall: Mutex::default(),
        }
    }

    /// Takes the state over from the supervisor behind `link`. The first server of a writable pool makes a journal.
    pub(super) fn from_link(link: Link, mut inherited: Inherited, writable: bool) -> Result<Self> {
        let reading = |what: &str| format!("cannot take over {what}");
        let journal = match inherited.take(JOURNAL) {
            Some((_, file)) => Some(Journal::adopt(file).context(|| reading("the journal"))?),
            None if writable && inherited.hello.restarts == 0 => {
                Some(Journal::create().context(|| "cannot make the journal".into())?)
            }
            None => None,
        };
        let pool_lock = PoolLock::inherited(&mut inherited)?;
        let temporary = inherited.kept.remove(TEMPORARY).map(|kept| properties_of(&kept.body)).transpose()?;
        let mut left = Vec::new();
        let is_mount = |name: &&String| name.starts_with(MOUNT);
        let mounts: Vec<String> = inherited.kept.keys().filter(is_mount).cloned().collect();
        for name in mounts {
            let Some((body, device)) = inherited.take(&name) else { continue };
            let record: MountRecord = serde_json::from_slice(&body)
                .map_err(|error| Failure::new(format!("cannot take over {name}: {error}")))?;
            let state = record.state(device);
            let memory = snapshots_memory(&link, &mut inherited, &record)
                .context(|| format!("cannot take over what is known of snapshots by {name}"))?;
            let looked_into = memory.as_ref().map(looked_into::read).transpose();
            let looked_into =
                looked_into.context(|| format!("cannot read what is known of snapshots by {name}"))?;
            let (looked_into, memory) = (looked_into.unwrap_or_default(), memory.map(Arc::new));
            left.push(InheritedMount { record, state, looked_into, memory });
        }
        left.sort_by_key(|left| left.record.connection);
        let next = left.last().map_or(0, |left| left.record.connection) + 1;
        let handover = Self {
            link: Some(Arc::new(link)),
            hello: inherited.hello,
            journal: journal.map(Arc::new),
            left: Mutex::new(left),
            pool_lock: Some(pool_lock),
            temporary,
            next_connection: AtomicU32::new(next),
            stall: Mutex::default(),
        };
        if let (Some(link), Some(journal)) = (&handover.link, &handover.journal) {
            link.keep(JOURNAL, &[], journal.file())?;
        }
        Ok(handover)
    }

    /// Returns true if another server goes on when this one dies.
    pub(super) fn is_supervised(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the pool of the previous server, if this one goes on for a server that died or was told to restart.
    pub(super) fn followed(&self) -> Option<Known> {
        let pool_lock = self.pool_lock.as_ref().filter(|_| self.hello.restarts > 0);
        pool_lock.map(|pool_lock| pool_lock.known.clone())
    }

    /// Returns the journal of accepted changes, if there is one.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// Takes the mounts that the previous server left, in the order in which they were made.
    pub(super) fn take_left(&self) -> Vec<InheritedMount> {
        std::mem::take(&mut self.left.lock())
    }

    /// Returns the properties of the whole pool that hold while it is open, if an earlier server was given others than
    /// at its start.
    pub(super) fn temporary(&self) -> Option<Vec<(&'static str, String)>> {
        self.temporary.clone()
    }

    /// Has the supervisor keep the properties of the whole pool that hold while it is open.
    pub(super) fn note_temporary(&self, properties: &[(&'static str, String)]) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let body = serde_json::to_vec(properties)
            .map_err(|error| Failure::new(format!("cannot write down properties: {error}")))?;
        link.note(TEMPORARY, &body)
    }

    /// Listens under the pool's name. Without a supervisor, which already has the name, takes it first.
    pub(super) fn listen(&self, pool: &str) -> Result<Listener> {
        self.pool_lock.as_ref().map_or_else(|| Listener::bind(pool), PoolLock::listen)
    }

    /// Returns the pool's devices: those of the supervisor, or else opens them.
    pub(super) fn open_devices(&self, known: &Known, options: &OpenOptions) -> Result<OpenDevices> {
        match &self.pool_lock {
            Some(pool_lock) => pool_lock.open_devices(options.read_only),
            None => pools::open_devices(known, options),
        }
    }

    /// Keeps a device that the pool has got, for the servers that follow.
    pub(super) fn add_device(&self, path: &Path, device: OwnedFd) -> Result<()> {
        match (&self.link, &self.pool_lock) {
            (Some(link), Some(pool_lock)) => pool_lock.add_device(link, path, device),
            // The pool has a copy of the descriptor.
            _ => Ok(()),
        }
    }

    /// Unlocks a device that the pool does not use any more.
    pub(super) fn remove_device(&self, path: &Path) {
        if let (Some(link), Some(pool_lock)) = (&self.link, &self.pool_lock) {
            pool_lock.remove_device(link, path);
        }
    }

    /// Unlocks the devices after the pool is closed: a process that has seen this one end may open the pool, and the
    /// supervisor ends only a moment later.
    pub(super) fn let_go_of_devices(&self) {
        if let (Some(link), Some(pool_lock)) = (&self.link, &self.pool_lock) {
            pool_lock.unlock_devices(link);
        }
    }

    /// Returns the number for a new connection.
    pub(super) fn connection(&self) -> u32 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks the supervisor to start another server once this one has ended.
    pub(super) fn again(&self) {
        if let Some(link) = &self.link {
            link.again();
        }
    }

    /// Sends `state` to systemd, through the supervisor if there is one.
    pub(super) fn notify(&self, state: &str) {
        match &self.link {
            Some(link) => link.notify(state),
            None => crate::report::notify(state),
        }
    }

    /// Notes and logs that requests are answered again.
    pub(super) fn serving_again(&self) {
        let stall = uptime().saturating_sub(Duration::from_nanos(self.hello.ended_ns));
        *self.stall.lock() = Some(stall);
        let Hello { restarts, reason, planned, .. } = &self.hello;
        if *planned {
            tracing::info!(
                restarts,
                stall_ms = stall.as_millis(),
                "this server goes on for one that was to be followed"
            );
        } else {
            tracing::error!(
                restarts,
                reason,
                stall_ms = stall.as_millis(),
                "this server goes on for one that died"
            );
        }
    }

    /// Returns the figures for `status`.
    pub(super) fn figures(&self) -> TakeoverFigures {
        TakeoverFigures {
            on: self.is_supervised(),
            restarts: self.hello.restarts,
            last_reason: self.hello.reason.clone(),
            last_stall_ms: self
                .stall
                .lock()
                .map(|stall| u64::try_from(stall.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// Reads properties that an earlier server had the supervisor keep.
fn properties_of(body: &[u8]) -> Result<Vec<(&'static str, String)>> {
    let kept: Vec<(String, String)> = serde_json::from_slice(body)
        .map_err(|error| Failure::new(format!("cannot take over properties: {error}")))?;
    kept.into_iter().map(|(name, value)| Ok((props::find(&name)?.name, value))).collect()
}

/// Returns the memory of what clients of a mount know of snapshots, if they have looked into any. For a server of an
/// earlier version, which had none, makes it.
fn snapshots_memory(link: &Link, inherited: &mut Inherited, record: &MountRecord) -> Result<Option<File>> {
    let name = format!("{SNAPSHOTS}{}", record.connection);
    if let Some((_, file)) = inherited.take(&name) {
        return Ok(Some(File::from(file)));
    }
    if record.looked_into.is_empty() {
        return Ok(None);
    }
    let file = looked_into::create().context(|| "cannot make memory".into())?;
    for known in record.looked_into() {
        looked_into::write(&file, known).context(|| "cannot write to memory".into())?;
    }
    link.keep(&name, &[], file.as_fd())?;
    Ok(Some(file))
}

/// The supervisor's record of a mount.
pub(super) struct StoredMount {
    link: Option<Arc<Link>>,
    /// Number of the connection.
    pub(super) connection: u32,
    /// Memory of what clients know of snapshots, once they have looked into one.
    snapshots: Mutex<Option<Arc<File>>>,
}

impl StoredMount {
    /// Creates the record of a mount that is about to be made, or that the previous server left.
    pub(super) fn new(handover: &Handover, left: Option<&InheritedMount>) -> Self {
        let connection = left.map_or_else(|| handover.connection(), |left| left.record.connection);
        let snapshots = Mutex::new(left.and_then(|left| left.memory.clone()));
        Self { link: handover.link.clone(), connection, snapshots }
    }

    /// Has the supervisor keep the mount, now that it exists, or as it is now.
    pub(super) fn made(&self, record: &MountRecord, connection: impl AsFd) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let body = serde_json::to_vec(record)
            .map_err(|error| Failure::new(format!("cannot write down a mount: {error}")))?;
        link.keep(&format!("{MOUNT}{}", self.connection), &body, connection.as_fd())
    }

    /// Notes what clients know of a snapshot, for the next server.
    pub(super) fn note_snapshot(&self, known: LookedInto) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let mut snapshots = self.snapshots.lock();
        let memory = match &*snapshots {
            Some(memory) => memory,
            None => {
                let memory = looked_into::create()
                    .context(|| "cannot make memory for what is known of snapshots".into())?;
                link.keep(&format!("{SNAPSHOTS}{}", self.connection), &[], memory.as_fd())?;
                snapshots.insert(Arc::new(memory))
            }
        };
        looked_into::write(memory, known).context(|| "cannot note what is known of snapshots".into())
    }

    /// Has the supervisor forget the mount, which has ended.
    pub(super) fn ended(&self) {
        if let Some(link) = &self.link {
            link.drop_kept(&format!("{MOUNT}{}", self.connection));
            link.drop_kept(&format!("{SNAPSHOTS}{}", self.connection));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as servers without front ends wrote it.
    const EARLIER: &str = r#"{"connection":3,"id":7,"read_only":false,"since":1795266462,"threads":2,
        "properties":[["sync","always"]],"dir":"/mnt/tank","device_minor":61,"minor":41,"flags":18446744073709551615,
        "atomic_write_bytes":1048576,"looked_into":[4,9]}"#;

    #[test]
    fn records_of_earlier_servers_are_taken_over_and_written_the_same() {
        let record: MountRecord = serde_json::from_str(EARLIER).unwrap();
        let detail: Vec<&str> = record.detail.keys().map(String::as_str).collect();
        assert_eq!(detail, ["atomic_write_bytes", "flags", "minor"]);
        assert_eq!(record.options().unwrap().properties, [("sync", "always".to_owned())]);
        let of = |place, snapshot| LookedInto { place, snapshot, references: LookedInto::UNKNOWN };
        assert_eq!(record.looked_into().collect::<Vec<_>>(), [of(1, 4), of(2, 9)]);
        let mut written = serde_json::to_value(&record).unwrap();
        assert_eq!(written.as_object_mut().unwrap().remove("options"), Some(Value::Null));
        assert_eq!(written, serde_json::from_str::<Value>(EARLIER).unwrap());
    }
}
