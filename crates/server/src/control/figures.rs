//! Figures that replies carry: of pools, mounts, devices, files and events.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::datasets::PartialFigures;
use super::device_figures::{DeviceErrors, DeviceFigures, LogDeviceFigures, ReadSpeed, SpareFigures};
use super::pace::WorkPace;

/// Sums of pages that were coded again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecompressFigures {
    /// Number of pages looked at.
    pub pages: u64,
    /// Their length before compression, in bytes.
    pub logical_bytes: u64,
    /// Number of these pages that became shorter.
    pub recoded: u64,
    /// Stored bytes of the shortened pages before.
    pub before_bytes: u64,
    /// Stored bytes of the shortened pages now.
    pub after_bytes: u64,
    /// Bytes written to devices for that.
    pub written_bytes: u64,
}

impl RecompressFigures {
    /// Adds the sums of another call.
    pub fn add(&mut self, other: &Self) {
        self.pages += other.pages;
        self.logical_bytes += other.logical_bytes;
        self.recoded += other.recoded;
        self.before_bytes += other.before_bytes;
        self.after_bytes += other.after_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Space of the records of one codec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecFigures {
    /// Name of the codec.
    pub codec: String,
    /// Pages that are stored by it.
    pub pages: u64,
    /// Number of their records, those included that deltas are based on.
    pub records: u64,
    /// Length of the pages before compression, in bytes.
    pub logical_bytes: u64,
    /// Length of the records, as `STORED` counts it, in bytes.
    pub stored_bytes: u64,
}

/// A file whose pages look like a database's, and the model that codes its new pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFigures {
    /// `pool/dataset:/path`; for logs, which share a model, the dataset's name and `logs`.
    pub file: String,
    /// Number of the model. `None`: none was learned yet, or none saved anything.
    pub model: Option<u32>,
    /// Name of its codec.
    pub codec: Option<String>,
    /// Stored length of the model in bytes.
    pub model_bytes: u64,
    /// Number of models that were learned from the file, this one included.
    pub learned: u32,
    /// Number of pages that the model was learned from.
    pub sampled_pages: u32,
    /// Number of pages that the file had when the model was learned.
    pub learned_pages: u64,
    /// Average length of the sampled pages' records in bytes.
    pub record_bytes: u32,
    /// Number of pages that the file has.
    pub pages: u64,
    /// Number of pages that the model coded since it was learned or the pool was opened.
    pub coded_pages: u64,
    /// Length of their records in bytes.
    pub coded_bytes: u64,
    /// Number of pages that were stored without a model in that time.
    pub other_pages: u64,
    /// True if pages that were stored before the model existed still have to be coded again.
    pub waits: bool,
}

/// How a file's pages are stored, from a sample of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSurvey {
    /// Number of pages looked at.
    pub sampled_pages: u64,
    /// Number of sampled pages by codec, most frequent first.
    pub codecs: Vec<CodecShare>,
    /// Number of sampled pages by kind, most frequent first.
    pub kinds: Vec<KindShare>,
    /// Number of the model that codes new pages.
    pub model: Option<u32>,
}

/// Pages by one codec and model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecShare {
    /// Name of the codec.
    pub codec: String,
    /// Number of the model, if one is used.
    pub model: Option<u32>,
    /// Number of pages in the sample.
    pub pages: u64,
}

/// Pages of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindShare {
    /// Name of the format, as the registry of `crates/codec` has it (`docs/CODEC.md` lists them); `other` for none.
    pub kind: String,
    /// Number of pages in the sample.
    pub pages: u64,
}

/// The origin of a property's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueSource {
    /// Never set.
    Default,
    /// Set on the dataset or snapshot itself.
    Local,
    /// Set on the dataset of this name, above it.
    Inherited(String),
    /// An option of this mount.
    Temporary,
    /// Computed.
    None,
}

impl ValueSource {
    /// Returns the text that `get` prints.
    pub fn text(&self) -> String {
        match self {
            Self::Default => "default".into(),
            Self::Local => "local".into(),
            Self::Inherited(from) => format!("inherited from {from}"),
            Self::Temporary => "temporary".into(),
            Self::None => "-".into(),
        }
    }
}

/// A property's value: exact, for machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PropertyValue {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// Origin of the value.
    pub source: ValueSource,
}

/// One logged event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its number, from 1.
    pub number: u64,
    /// Time in milliseconds since the epoch.
    pub time_ms: u64,
    /// `ERROR`, `WARN`, `INFO`, `DEBUG`, `TRACE`.
    pub level: String,
    /// Part of the program that logged it.
    pub target: String,
    /// The message.
    pub message: String,
    /// Details, name and value.
    pub fields: Vec<(String, String)>,
}

/// Space that one file takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUsage {
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes of its stored pages before compression.
    pub logical_bytes: u64,
    /// Bytes of its stored pages.
    pub stored_bytes: u64,
    /// Its page size in bytes.
    pub record_size: u32,
}

/// State of the last filling of a device, since the pool was opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FillFigures {
    /// Number of the device.
    pub device: u16,
    /// Time at which it began, in seconds since 1970.
    pub started: u64,
    /// Time at which the device was whole, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were copied.
    pub done_bytes: u64,
    /// Bytes that are left.
    pub left_bytes: u64,
    /// Bytes of the copy that were verified, and that will have been in the end, while another device waits for that to
    /// leave; 0 otherwise.
    #[serde(default)]
    pub verified_bytes: u64,
    /// See `verified_bytes`.
    #[serde(default)]
    pub to_verify_bytes: u64,
    /// How fast it is, and the time that it takes.
    #[serde(flatten)]
    pub pace: WorkPace,
}

/// State of the last removal of a group of devices, since the pool was opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RemovalFigures {
    /// Number of the group.
    pub group: u16,
    /// Time at which it began, or went on after the pool was opened, in seconds since 1970; 0 before its first step.
    pub started: u64,
    /// Time at which the group was gone, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were moved.
    pub moved_bytes: u64,
    /// Bytes of it that are in use.
    pub left_bytes: u64,
    /// How fast it is, and the time that it takes.
    #[serde(flatten)]
    pub pace: WorkPace,
    /// Reason why it does not go on at present.
    #[serde(default)]
    pub obstacle: Option<String>,
}

/// Bytes that are to move from one group of devices to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFigures {
    /// Number of the fuller group.
    pub from: u16,
    /// Number of the emptier group.
    pub onto: u16,
    /// Bytes of the chunks.
    pub bytes: u64,
}

/// State of the last balance, since the pool was opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BalanceFigures {
    /// Time at which it began, or went on after the pool was opened, in seconds since 1970; 0 before its first step.
    pub started: u64,
    /// Time at which it ended, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were moved.
    pub moved_bytes: u64,
    /// Bytes of chunks that lie on groups beyond their parts; after its end, those that could not be moved.
    pub left_bytes: u64,
    /// How fast it is, and the time that it takes.
    #[serde(flatten)]
    pub pace: WorkPace,
    /// Reason why it does not go on at present.
    #[serde(default)]
    pub obstacle: Option<String>,
}

/// Something that errors struck.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StruckFigures {
    /// `file`, `record`, `metadata`, `log`.
    pub what: String,
    /// A file's name as `dataset:/path`, or as `dataset: object NUMBER`; for anything else, a description.
    pub name: String,
    /// For a file: offset of the byte in it that the last error struck.
    pub offset: Option<u64>,
    /// The device on which the last error was met.
    #[serde(default, with = "crate::raw::maybe_path")]
    pub device: Option<PathBuf>,
    /// Offset of that error on the device, in bytes.
    pub place: Option<u64>,
    /// Number of reads that failed.
    pub read_errors: u64,
    /// Number of reads whose data did not match their checksum.
    pub checksum_errors: u64,
    /// Number of reads of both kinds that a second copy answered.
    pub corrected: u64,
    /// Number of repairs from the other copy.
    pub repaired: u64,
}

impl StruckFigures {
    /// Returns the place and the counts as a text for people.
    pub fn text(&self) -> String {
        let Self { read_errors, checksum_errors, corrected, repaired, .. } = *self;
        let counts = DeviceErrors { read_errors, checksum_errors, corrected, repaired, write_errors: 0 };
        let at = self.offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let on = match (&self.device, self.place) {
            (Some(device), Some(place)) => format!(" (byte {place} of {})", crate::raw::text(device)),
            _ => String::new(),
        };
        crate::raw::printable(&format!("{}{at}: {}{on}", self.name, counts.text()))
    }
}

/// Objects that errors have struck since the errors were cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorFigures {
    /// Time at which errors were cleared, in seconds since 1970; 0: never.
    pub cleared: u64,
    /// Errors of objects that are not in `struck`, because that list is full.
    pub unlisted: u64,
    /// Objects that errors struck.
    pub struck: Vec<StruckFigures>,
}

/// Space of a pool in bytes before compression, as its mounts tell it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThinFigures {
    /// The property `logicalcapacity`.
    pub logicalcapacity: String,
    /// Size.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that are available.
    pub available_bytes: u64,
    /// Bytes before compression for each stored byte that are expected.
    pub ratio: f64,
    /// Bytes that the pool holds in all at this ratio.
    pub holds_bytes: u64,
}

impl ThinFigures {
    /// Returns true if the pool cannot hold the size that it tells; a twentieth less is left to chance.
    pub fn is_short(&self) -> bool {
        self.holds_bytes < self.size_bytes - self.size_bytes / 20
    }
}

/// Growth of a pool, and what follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastFigures {
    /// Whole days until it is full; `None` if it does not grow, or would take ten years.
    pub full_in_days: Option<u64>,
    /// Stored bytes that come to it in a day; negative if it shrinks.
    pub growth_bytes_per_day: i64,
    /// The same before compression.
    pub logical_growth_bytes_per_day: i64,
    /// Time that this follows from, in seconds.
    pub over_seconds: u64,
}

/// Space that snapshots hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFigures {
    /// Stored bytes that only snapshots hold.
    pub bytes: u64,
    /// Name of the snapshot that frees most if it alone is destroyed.
    pub largest: String,
    /// Bytes that destroying it frees.
    pub largest_bytes: u64,
}

/// The last trim of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrimFigures {
    /// `running`, `stopped`, `finished`.
    pub state: String,
    /// Time at which it began, in seconds since the epoch.
    pub started: u64,
    /// Time at which it ended, in seconds since the epoch; 0 until then.
    pub finished: u64,
    /// Bytes that devices had to be told of when it began.
    pub total_bytes: u64,
    /// Bytes that devices were told of.
    pub done_bytes: u64,
    /// Number of discards that failed.
    pub errors: u64,
}

/// The last scrub of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubFigures {
    /// `running`, `stopped`, `finished`.
    pub state: String,
    /// Time at which it began, in seconds since the epoch.
    pub started: u64,
    /// Time at which it ended, in seconds since the epoch; 0 until then.
    pub finished: u64,
    /// Bytes that were live when it began.
    pub total_bytes: u64,
    /// Bytes of these that it has read.
    pub done_bytes: u64,
    /// Number of records that are intact.
    pub sound: u64,
    /// Number of records that do not match their checksum.
    pub damaged: u64,
    /// Number of records that a device cannot read.
    pub unreadable: u64,
    /// Number of damaged and unreadable records that were written again from their other copy.
    #[serde(default)]
    pub repaired: u64,
}

/// Figures of the record cache.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Largest size in bytes.
    pub limit_bytes: u64,
    /// Bytes of the compressed records in it.
    pub used_bytes: u64,
    /// Number of reads that it answered.
    pub hits: u64,
    /// Number of reads that went to a device.
    pub misses: u64,
}

/// Memory of a server, by kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Bound of all that is counted: the option `cache`.
    pub budget_bytes: u64,
    /// Resident memory without pages of files, as the system tells it.
    pub resident_bytes: u64,
    /// Sum of the fields below, without `other_bytes` and `given_up_bytes`.
    pub counted_bytes: u64,
    /// Records in their stored form.
    pub records_bytes: u64,
    /// Decoded pages.
    pub pages_bytes: u64,
    /// Tree nodes that are stored.
    pub nodes_bytes: u64,
    /// Tree nodes that a checkpoint will write.
    pub changed_nodes_bytes: u64,
    /// Directories of segments.
    pub directories_bytes: u64,
    /// Models of pages.
    pub models_bytes: u64,
    /// Changes that were accepted and are not in the log yet.
    pub accepted_bytes: u64,
    /// The journal, which exists if there is a supervisor.
    pub journal_bytes: u64,
    /// The segment table.
    pub segments_bytes: u64,
    /// Datasets and snapshots.
    pub catalogue_bytes: u64,
    /// Buffers of device reads.
    pub device_buffers_bytes: u64,
    /// Inodes.
    pub inodes_bytes: u64,
    /// Buffers of requests.
    pub requests_bytes: u64,
    /// Resident memory that no field counts: the program, its threads, and memory that the allocator has not given
    /// back.
    pub other_bytes: u64,
    /// Memory that the caches gave up because more was resident than the budget allows.
    pub given_up_bytes: u64,
}

/// Figures of takeovers: another server going on with the mounts of one that died.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TakeoverFigures {
    /// True if another server would take over.
    pub on: bool,
    /// Number of servers before this one.
    pub restarts: u32,
    /// How the last of them ended; `restart` if it was told to. Empty if there was none.
    pub last_reason: String,
    /// Time for which no server answered then, in milliseconds.
    pub last_stall_ms: Option<u64>,
}

/// Rights that a server has given up, and limits that the kernel enforces on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementFigures {
    /// True unless the server was asked not to confine itself.
    pub on: bool,
    /// Capabilities that the server keeps, by their names in capabilities(7).
    pub capabilities: Vec<String>,
    /// True if the kernel filters its system calls.
    pub system_calls: bool,
    /// True if it can open a few paths only.
    pub paths: bool,
    /// Measures that could not be taken, each with the reason.
    pub missing: Vec<String>,
}

/// A mount of a dataset or snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountFigures {
    /// Name of the dataset or snapshot.
    pub name: String,
    /// Its path below the pool.
    pub path: String,
    /// Directory of the mount.
    #[serde(with = "crate::raw::path")]
    pub dir: PathBuf,
    /// Other directories where it is mounted as well.
    #[serde(default, with = "crate::raw::paths")]
    pub also_at: Vec<PathBuf>,
    /// True if it is not mounted there any more, and is open only because somebody still uses it.
    #[serde(default)]
    pub detached: bool,
    /// Minor part of the device number of its files; the major part is 0.
    pub device: u32,
    /// True if changes are refused.
    pub read_only: bool,
    /// The server's process.
    pub pid: u32,
    /// Time of mounting, in seconds since the epoch.
    pub since: u64,
    /// How requests travel: `/dev/fuse` or `io_uring`.
    pub transport: String,
}

/// A pool's figures, mounted or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolFigures {
    /// Name.
    pub name: String,
    /// Unique number, in hexadecimal.
    pub guid: String,
    /// `ONLINE`, `DEGRADED`, `EXPORTED`, `CRASHED`, `FAULTED`, `RESCUE`; `UNAVAIL` if it cannot be opened, `SILENT` if its
    /// server does not answer: then nothing else is known.
    pub state: String,
    /// Description of a problem, if there is one.
    pub problem: Option<String>,
    /// The server's process, if there is one.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Figures of takeovers, if there is a server.
    #[serde(default)]
    pub takeover: Option<TakeoverFigures>,
    /// Rights that its server has given up, if there is one.
    #[serde(default)]
    pub confinement: Option<ConfinementFigures>,
    /// The mount of the pool's own dataset if that is mounted, or else the first mount.
    pub mount: Option<MountFigures>,
    /// All mounts of its datasets and snapshots, in the order in which they were made.
    #[serde(default)]
    pub mounts: Vec<MountFigures>,
    /// Devices.
    pub devices: Vec<DeviceFigures>,
    /// How fast devices are read, of those of which that is known.
    #[serde(default)]
    pub read_speeds: Vec<ReadSpeed>,
    /// False if reads of mirrors wait for a device however long it takes, as the kernel refuses io_uring to the server;
    /// `None` if there is no server.
    #[serde(default)]
    pub hedges: Option<bool>,
    /// Spares.
    #[serde(default)]
    pub spares: Vec<SpareFigures>,
    /// The log device, if there is one that is in use.
    #[serde(default)]
    pub log_device: Option<LogDeviceFigures>,
    /// The last filling of a device, if there was one.
    #[serde(default)]
    pub fill: Option<FillFigures>,
    /// The last removal of a group of devices, if there was one.
    #[serde(default)]
    pub removal: Option<RemovalFigures>,
    /// The last balance, if there was one.
    #[serde(default)]
    pub balance: Option<BalanceFigures>,
    /// Errors of files and other objects.
    #[serde(default)]
    pub errors: ErrorFigures,
    /// Space that snapshots hold, if the pool is nearly full.
    #[serde(default)]
    pub snapshots: Option<SnapshotFigures>,
    /// Sum of the devices' sizes in bytes.
    pub size_bytes: u64,
    /// Stored bytes that the pool can hold, without the reserve.
    pub capacity_bytes: u64,
    /// Stored bytes in use.
    pub used_bytes: u64,
    /// Stored bytes that can still be accepted.
    pub available_bytes: u64,
    /// Stored bytes that reservations keep for their datasets alone.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// All quotas of datasets that are set.
    #[serde(default)]
    pub quotas: Vec<QuotaFigures>,
    /// Space as its mounts tell it, if it has a thin capacity.
    #[serde(default)]
    pub thin: Option<ThinFigures>,
    /// When it will be full, if it has a day of history.
    #[serde(default)]
    pub forecast: Option<ForecastFigures>,
    /// Bytes of all stored pages before compression.
    pub logical_bytes: u64,
    /// Bytes of all stored pages, metadata not counted.
    pub stored_bytes: u64,
    /// Bytes in which the pages of `logical_bytes` are stored, all metadata counted. A record that pages share counts
    /// for each of them, as it does in `logical_bytes`.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Bytes of the devices in chunks that are in use.
    pub allocated_bytes: u64,
    /// Bytes that were accepted and are not durable yet.
    pub dirty_bytes: u64,
    /// True if destroyed datasets or snapshots are being freed in the background.
    #[serde(default)]
    pub freeing: bool,
    /// Part of `used_bytes` that destroyed snapshots still hold. What destroyed datasets hold is not known until it is
    /// freed.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Datasets of which a part was received.
    #[serde(default)]
    pub partials: Vec<PartialFigures>,
    /// True if some dataset has a policy of backups.
    #[serde(default)]
    pub backup_policies: bool,
    /// Bytes of the log that a replay would read.
    pub log_bytes: u64,
    /// Number of models of pages, learned from what is stored.
    #[serde(default)]
    pub models: u64,
    /// Stored bytes of the models.
    #[serde(default)]
    pub model_bytes: u64,
    /// Memory of the models that are in memory, in bytes.
    #[serde(default)]
    pub model_memory_bytes: u64,
    /// Number of times that metadata was read from its second copy, because the first was damaged or could not be read.
    #[serde(default)]
    pub second_copies_read: u64,
    /// Number of subtractions that would have left an account below zero: faults of the engine, or damage.
    #[serde(default)]
    pub account_faults: u64,
    /// Number that the next batch of the log gets.
    pub next_batch: u64,
    /// Number of checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// The record cache.
    pub cache: CacheFigures,
    /// Memory of its server, if there is one.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// The last scrub, if there was one.
    #[serde(default)]
    pub scrub: Option<ScrubFigures>,
    /// The last trim since the pool was opened, if there was one.
    #[serde(default)]
    pub trim: Option<TrimFigures>,
    /// Free bytes that devices which take discards were not told of since the pool was opened.
    #[serde(default)]
    pub untrimmed_bytes: u64,
    /// Bytes written to devices / bytes written by applications, since the pool was opened.
    pub write_amplification: Option<f64>,
}

/// A quota of a dataset, and what counts against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaFigures {
    /// The dataset.
    pub name: String,
    /// `quota`, `refquota`, `logicalquota`.
    pub property: String,
    /// The quota in bytes.
    pub limit_bytes: u64,
    /// Bytes that count against it.
    pub used_bytes: u64,
}
