//! State that a server has its supervisor keep, so that another server can go on when it dies: connections and the
//! journal's memory, beside the [`PoolLock`] that the supervisor has from the beginning.

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
    /// Numbers of the snapshots that were looked into.
    pub(super) looked_into: Vec<u64>,
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
        for (name, kept) in inherited.kept {
            let Some(device) = kept.fd.filter(|_| name.starts_with(MOUNT)) else { continue };
            let record: MountRecord = serde_json::from_slice(&kept.body)
                .map_err(|error| Failure::new(format!("cannot take over {name}: {error}")))?;
            let state = record.state(device);
            left.push(InheritedMount { record, state });
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

/// The supervisor's record of a mount.
pub(super) struct StoredMount {
    link: Option<Arc<Link>>,
    /// Number of the connection.
    pub(super) connection: u32,
    state: Mutex<StoredState>,
}

#[derive(Default)]
struct StoredState {
    /// The record and the connection, once it is mounted.
    mounted: Option<(MountRecord, Arc<OwnedFd>)>,
    looked_into: Vec<u64>,
}

impl StoredMount {
    /// Creates the record of a mount that is about to be made, or that the previous server left.
    pub(super) fn new(handover: &Handover, left: Option<&InheritedMount>) -> Self {
        let connection = left.map_or_else(|| handover.connection(), |left| left.record.connection);
        let state = left.map_or_else(StoredState::default, |left| StoredState {
            mounted: Some((left.record.clone(), Arc::clone(&left.state.connection))),
            looked_into: left.record.looked_into.clone(),
        });
        Self { link: handover.link.clone(), connection, state: Mutex::new(state) }
    }

    /// Has the supervisor keep the mount, now that it exists.
    pub(super) fn made(&self, record: MountRecord, connection: Arc<OwnedFd>) -> Result<()> {
        let mut state = self.state.lock();
        state.mounted = Some((record, connection));
        self.send(&mut state)
    }

    fn send(&self, state: &mut StoredState) -> Result<()> {
        let (Some(link), Some((record, device))) = (&self.link, &mut state.mounted) else { return Ok(()) };
        record.looked_into.clone_from(&state.looked_into);
        let body = serde_json::to_vec(record)
            .map_err(|error| Failure::new(format!("cannot write down a mount: {error}")))?;
        link.keep(&format!("{MOUNT}{}", self.connection), &body, device.as_fd())
    }

    /// Notes which snapshots were looked into: the kernel knows nodes of these.
    pub(super) fn looked_into(&self, numbers: &[u64]) {
        let mut state = self.state.lock();
        state.looked_into = numbers.to_vec();
        if let Err(failure) = self.send(&mut state) {
            tracing::warn!(%failure, "what is open in a snapshot will be stale if this server dies");
        }
    }

    /// Has the supervisor forget the mount, which has ended.
    pub(super) fn ended(&self) {
        if let Some(link) = &self.link {
            link.drop_kept(&format!("{MOUNT}{}", self.connection));
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
        let mut written = serde_json::to_value(&record).unwrap();
        assert_eq!(written.as_object_mut().unwrap().remove("options"), Some(Value::Null));
        assert_eq!(written, serde_json::from_str::<Value>(EARLIER).unwrap());
    }
}
