//! What is asked and answered.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::told::{Deed, Figures, Moving, Outcome, PartialFigures, Rebased, Sendable, Transferred};

/// How a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmountMode {
    /// Only if nobody uses it.
    Normal,
    /// Detach now, close when the last user is gone.
    Lazy,
    /// Detach now and close at once.
    Force,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The pool's figures.
    Status {},
    /// I/O counters since the pool was opened.
    Counters {},
    /// Models of pages, and the files that have them or wait for one.
    Models {},
    /// All properties of a dataset or snapshot with their values and sources.
    Properties {
        /// Which, below the pool.
        path: String,
    },
    /// Sets a property, for good.
    Set {
        /// On which dataset or snapshot, below the pool.
        path: String,
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// All datasets and snapshots.
    Datasets {},
    /// Changes datasets and snapshots.
    Deed {
        /// What is to be done.
        deed: Deed,
    },
    /// Makes everything written so far durable.
    Sync {},
    /// Ends the server, so that another goes on, of the program as it is on disk now.
    Restart {},
    /// Mounts a dataset or snapshot.
    Mount {
        /// Which, below the pool.
        path: String,
        /// Where, absolute.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        /// The words of `-o`.
        options: Vec<String>,
    },
    /// Unmounts; answered when all is durable, and if nothing else is mounted, when the pool has been closed (for `Lazy`: when
    /// detached).
    Unmount {
        /// Device numbers of the mounts (their minor parts); none for all.
        devices: Vec<u32>,
        /// How.
        mode: UnmountMode,
    },
    /// Logged events with a number above `after`; waits up to `wait_ms` for one.
    Events {
        /// The last number seen; 0 for all.
        after: u64,
        /// Longest wait in milliseconds (at most a minute).
        wait_ms: u32,
    },
    /// What files take, by inode number.
    Usage {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
    },
    /// How files' pages are stored, from a sample.
    Survey {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
    },
    /// Sums records of files by codec, as far as one call goes.
    Codecs {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
        /// Where to go on: position among the inodes, and page.
        from: (usize, u64),
    },
    /// Codes pages of files again, as far as one call goes.
    Fold {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
        /// Where to go on: position among the inodes, and page.
        from: (usize, u64),
    },
    /// Begins a scrub, or goes on with one that was stopped.
    ScrubStart {
        /// Bytes read per second at most; 0: no bound but the background's own.
        rate: u64,
    },
    /// Stops a scrub.
    ScrubStop {},
    /// Begins a trim.
    TrimStart {
        /// Bytes told of per second at most; 0: no bound.
        rate: u64,
    },
    /// Stops a trim.
    TrimStop {},
    /// Forgets errors that were counted.
    Clear {
        /// Number of the device; none for all.
        device: Option<u16>,
        /// Seconds since 1970.
        now: u64,
    },
    /// Tells how long a stream would be.
    SendSize {
        /// Of what.
        what: Sendable,
    },
    /// Makes a stream, which follows the reply in pieces, and then another reply.
    Send {
        /// Of what.
        what: Sendable,
    },
    /// Receives a stream, which follows in pieces after the reply [`Reply::Ready`].
    Receive {
        /// Into which dataset, below the pool.
        path: String,
        /// Gives up what was changed in it since its newest snapshot.
        force: bool,
    },
    /// Tells how a snapshot and another version differ, in pieces that follow the reply: a JSON object per line.
    Diff {
        /// The snapshot.
        old: String,
        /// A later one, or the dataset.
        new: String,
        /// With the bytes of files that may be others.
        ranges: bool,
    },
    /// Moves a clone onto a newer snapshot; answered when that is done. Given up when the connection ends.
    Rebase {
        /// Which, and onto what.
        what: Moving,
    },
    /// Gives a file another recordsize: any number of [`Reply::Rewriting`], then [`Reply::Rewritten`]. Given up when the connection ends.
    Rewrite {
        /// Which file, and how.
        what: FileRewrite,
    },
    /// Waits until mounts that were taken away have ended and all that was written to them is durable; if nothing else is mounted, until
    /// the pool is closed. Answered by [`Reply::Done`], [`Reply::Closed`], [`Reply::Streaming`], or [`Reply::Waiting`].
    Await {
        /// Their device numbers (the minor parts); none for all.
        devices: Vec<u32>,
        /// Longest wait in milliseconds.
        wait_ms: u32,
    },
    /// Gives a mount other options while it is in use.
    Remount {
        /// Its device number.
        device: u32,
        /// The words of `-o`, without `remount`.
        options: Vec<String>,
        /// Only checks whether that could be done.
        dry_run: bool,
    },
    /// The kernel lets nobody change a mount any more, or does again.
    ReadOnly {
        /// Its device number.
        device: u32,
        /// No changes.
        on: bool,
    },
}

impl Request {
    /// Whether more than a reply follows, or it takes long; the connection is of no use afterwards.
    pub fn is_stream(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::Receive { .. }
                | Self::Diff { .. }
                | Self::Rebase { .. }
                | Self::Rewrite { .. }
        )
    }

    /// Whether it waits for events, which may never come: a server that ends does not wait for it, and the client reads what is kept.
    pub fn follows(&self) -> bool {
        matches!(self, Self::Events { wait_ms: 1.., .. })
    }
}

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Done {},
    /// It could not be done.
    Error {
        /// What happened, to which object.
        what: String,
        /// What to do.
        hint: Option<String>,
    },
    /// To [`Request::Unmount`]: somebody uses a mount.
    Busy {
        /// Where it is.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
    },
    /// To [`Request::Unmount`]: that was the last, and the pool is closed.
    Closed {},
    /// To [`Request::Unmount`]: that was the last, and the pool is closed when the streams that are under way have ended.
    Streaming {},
    /// To [`Request::Mount`]: the last mount has ended; wait for the server's end and start another.
    Ending {},
    /// To [`Request::Status`].
    Status {
        /// The figures.
        figures: Box<PoolFigures>,
    },
    /// To [`Request::Counters`].
    Counters {
        /// The counters.
        activity: Activity,
    },
    /// To [`Request::Models`].
    Models {
        /// By dataset and number of the file.
        all: Vec<ModelFigures>,
    },
    /// To [`Request::Properties`].
    Properties {
        /// Name, value, source.
        values: Vec<PropertyValue>,
    },
    /// To [`Request::Datasets`].
    Datasets {
        /// By name.
        all: Vec<Figures>,
        /// What was received in part.
        #[serde(default)]
        partials: Vec<PartialFigures>,
    },
    /// To [`Request::SendSize`]; and to [`Request::Send`] and [`Request::Diff`]: it follows in pieces.
    Stream {
        /// Stored bytes of the pages that it has, about.
        expected_bytes: u64,
    },
    /// To [`Request::Receive`]: go on.
    Ready {},
    /// At the end of a stream.
    Transferred {
        /// What it had.
        all: Transferred,
    },
    /// To [`Request::Rebase`].
    Rebased {
        /// What came of it.
        rebased: Rebased,
    },
    /// To [`Request::Deed`].
    Deed {
        /// What was done.
        outcome: Outcome,
    },
    /// To [`Request::Clear`]: what was forgotten.
    Cleared {
        /// By number of the device.
        devices: Vec<DeviceErrors>,
        /// What was struck.
        struck: ErrorFigures,
    },
    /// To [`Request::Events`].
    Events {
        /// Oldest first.
        events: Vec<Event>,
        /// Events that the ring has lost since `after`.
        lost: u64,
    },
    /// To [`Request::Usage`], in the order asked; `None` for what is no inode.
    Usage {
        /// What each takes.
        files: Vec<Option<FileUsage>>,
    },
    /// To [`Request::Survey`], in the order asked; `None` for what is no inode.
    Survey {
        /// How each is stored.
        files: Vec<Option<FileSurvey>>,
    },
    /// To [`Request::Codecs`].
    Codecs {
        /// What was found.
        codecs: Vec<CodecFigures>,
        /// Where to go on, as in the request. `None`: all was looked at.
        next: Option<(usize, u64)>,
    },
    /// To [`Request::Fold`].
    Folded {
        /// What was done.
        folded: Folded,
        /// Where to go on, as in the request. `None`: all was looked at.
        next: Option<(usize, u64)>,
    },
    /// To [`Request::Rewrite`]: how far it is. More follows.
    Rewriting {
        /// Bytes of the file that are copied.
        done_bytes: u64,
        /// The file's size in bytes.
        total_bytes: u64,
    },
    /// To [`Request::Rewrite`]: the file has the recordsize.
    Rewritten {
        /// Bytes that were copied; `None`: it had the recordsize, or has no data.
        copied_bytes: Option<u64>,
    },
    /// To [`Request::Await`] and [`Request::Mount`]: what was waited for has not happened.
    Waiting {
        /// Device numbers of the mounts that the kernel has not let go; none where what was in memory is being written.
        devices: Vec<u32>,
    },
    /// To [`Request::Mount`]: it is mounted already, in one place at least.
    There {
        /// That place.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        /// Its device number.
        device: u32,
        /// No changes.
        read_only: bool,
    },
    /// To [`Request::Remount`]: what is left to be done where the mount is.
    Remounting {
        /// Whether there are to be no changes; `None`: as it is.
        read_only: Option<bool>,
        /// Whether set-id bits are to be honoured; `None`: as it is.
        suid: Option<bool>,
        /// Whether device files are; `None`: as it is.
        dev: Option<bool>,
        /// Whether programs may be run; `None`: as it is.
        exec: Option<bool>,
    },
}

/// What coding again did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// Pages looked at.
    pub pages: u64,
    /// Their length before compression.
    pub logical_bytes: u64,
    /// Of these, pages that became shorter.
    pub recoded: u64,
    /// What these took before.
    pub before_bytes: u64,
    /// What they take now.
    pub after_bytes: u64,
    /// Written to devices for it.
    pub written_bytes: u64,
}

impl Folded {
    /// Adds another call's.
    pub fn add(&mut self, other: &Self) {
        self.pages += other.pages;
        self.logical_bytes += other.logical_bytes;
        self.recoded += other.recoded;
        self.before_bytes += other.before_bytes;
        self.after_bytes += other.after_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// A file that is to have another recordsize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRewrite {
    /// The mount's device number.
    pub device: u32,
    /// Its inode number.
    pub inode: u64,
    /// Bytes.
    pub recordsize: u32,
    /// Bytes copied per second at most; `None`: no bound.
    pub rate: Option<u64>,
}

/// Space of the records of one codec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecFigures {
    /// Name of the codec.
    pub codec: String,
    /// Pages that are stored by it.
    pub pages: u64,
    /// Their records, and those that deltas are based on.
    pub records: u64,
    /// Length of the pages before compression, in bytes.
    pub logical_bytes: u64,
    /// Length of the records, as `STORED` counts it, in bytes.
    pub stored_bytes: u64,
}

/// A file whose pages look like a database's, and the model that codes its new pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFigures {
    /// `pool/dataset:/path`; of logs, which share a model, the dataset's name and `logs`.
    pub file: String,
    /// Number of the model; `None`: there is none yet, or none gained.
    pub model: Option<u32>,
    /// Name of its codec.
    pub codec: Option<String>,
    /// Its length as it is stored.
    pub model_bytes: u64,
    /// Number of models that were learned of the file, this one included.
    pub learned: u32,
    /// Pages that it was learned from.
    pub sampled_pages: u32,
    /// Pages that the file had then.
    pub learned_pages: u64,
    /// Average length of the sampled pages' records.
    pub record_bytes: u32,
    /// Pages that the file has.
    pub pages: u64,
    /// Pages that the model coded since it was learned or the pool was opened.
    pub coded_pages: u64,
    /// Length of their records.
    pub coded_bytes: u64,
    /// Pages that were stored without a model in that time.
    pub other_pages: u64,
    /// Pages that were stored before the model was there wait to be coded again.
    pub waits: bool,
}

/// How a file's pages are stored, from a sample of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSurvey {
    /// Pages looked at.
    pub sampled_pages: u64,
    /// How many of them each codec codes, most first.
    pub codecs: Vec<CodecShare>,
    /// How many of them are of each kind, most first.
    pub kinds: Vec<KindShare>,
    /// The model of new pages.
    pub model: Option<u32>,
}

/// Pages by one codec and model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecShare {
    /// Name of the codec.
    pub codec: String,
    /// The model, if it has one.
    pub model: Option<u32>,
    /// Pages of the sample.
    pub pages: u64,
}

/// Pages of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindShare {
    /// `postgres-heap`, `postgres-btree`, `postgres-other`, `innodb`, `sqlite`, `other`.
    pub kind: String,
    /// Pages of the sample.
    pub pages: u64,
}

/// Where a property's value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
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

impl Source {
    /// As `get` prints it.
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
    /// Where it comes from.
    pub source: Source,
}

/// One logged event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its number, from 1.
    pub number: u64,
    /// Milliseconds since the epoch.
    pub time_ms: u64,
    /// `ERROR`, `WARN`, `INFO`, `DEBUG`, `TRACE`.
    pub level: String,
    /// Which part of the program.
    pub target: String,
    /// What happened.
    pub message: String,
    /// Details, name and value.
    pub fields: Vec<(String, String)>,
}

/// What one file takes.
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

/// One device of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Its path.
    #[serde(with = "crate::raw::path")]
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// Failed reads, writes and flushes since errors were cleared.
    pub io_errors: u64,
    /// Errors since they were cleared, by kind.
    #[serde(flatten)]
    pub errors: DeviceErrors,
    /// Whether it takes discards; `None`: that is not known.
    #[serde(default)]
    pub discards: Option<bool>,
}

/// Errors of a device since they were cleared, over all openings of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceErrors {
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// What was read and did not have its checksum.
    pub checksum_errors: u64,
    /// Of failed and wrong reads, those that a second copy answered.
    pub corrected: u64,
    /// What was written again from its other copy.
    pub repaired: u64,
}

impl DeviceErrors {
    /// Whether there are none.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { read_errors, write_errors, checksum_errors, corrected, repaired } = *self;
        let kinds = [
            ("failed reads", read_errors),
            ("failed writes", write_errors),
            ("wrong checksums", checksum_errors),
            ("answered by a second copy", corrected),
            ("repaired", repaired),
        ];
        let told =
            kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}"));
        told.collect::<Vec<_>>().join(", ")
    }
}

/// Something that errors struck.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StruckFigures {
    /// `file`, `record`, `metadata`, `log`.
    pub what: String,
    /// A file's name as `dataset:/path`, or as `dataset: object NUMBER`; what else it is.
    pub name: String,
    /// Of a file: the byte that the last error struck.
    pub offset: Option<u64>,
    /// The device on which the last error was met.
    #[serde(default, with = "crate::raw::maybe_path")]
    pub device: Option<PathBuf>,
    /// The byte there.
    pub place: Option<u64>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads of what did not have its checksum.
    pub checksum_errors: u64,
    /// Of both, those that a second copy answered.
    pub corrected: u64,
    /// Written again from the other copy.
    pub repaired: u64,
}

impl StruckFigures {
    /// For people.
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

/// What errors have struck since they were cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorFigures {
    /// When they were, in seconds since 1970; 0: never.
    pub cleared: u64,
    /// Errors of what is not in the list, which is full.
    pub unlisted: u64,
    /// The list.
    pub struck: Vec<StruckFigures>,
}

/// What snapshots hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFigures {
    /// Stored bytes that only snapshots hold.
    pub bytes: u64,
    /// The snapshot that frees most if it alone is destroyed.
    pub largest: String,
    /// How much that is.
    pub largest_bytes: u64,
}

/// The last trim of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrimFigures {
    /// `running`, `stopped`, `finished`.
    pub state: String,
    /// When it began, seconds since the epoch.
    pub started: u64,
    /// When it ended, seconds since the epoch; 0 before.
    pub finished: u64,
    /// What there was to tell of when it began.
    pub total_bytes: u64,
    /// What devices were told of.
    pub done_bytes: u64,
    /// Discards that failed.
    pub errors: u64,
}

/// The last scrub of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubFigures {
    /// `running`, `stopped`, `finished`.
    pub state: String,
    /// When it began, seconds since the epoch.
    pub started: u64,
    /// When it ended, seconds since the epoch; 0 before.
    pub finished: u64,
    /// What was live when it began.
    pub total_bytes: u64,
    /// Of that, what it has looked at.
    pub done_bytes: u64,
    /// Records that are right.
    pub sound: u64,
    /// Records whose checksum does not hold.
    pub damaged: u64,
    /// Records that a device cannot read.
    pub unreadable: u64,
    /// Of these and the damaged ones, those that were written again from their other copy.
    #[serde(default)]
    pub repaired: u64,
}

/// The record cache.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Its bound.
    pub limit_bytes: u64,
    /// What it holds, compressed.
    pub used_bytes: u64,
    /// Reads answered from it.
    pub hits: u64,
    /// Reads that had to go to a device.
    pub misses: u64,
}

/// What a server has in memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// What all that is counted may take: the option `cache`.
    pub budget_bytes: u64,
    /// Resident, as the system tells, files not counted.
    pub resident_bytes: u64,
    /// The sum of what follows, but for `other_bytes`.
    pub counted_bytes: u64,
    /// Records as they are stored.
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
    /// What was accepted and is not in the log yet.
    pub accepted_bytes: u64,
    /// The journal, with a holder.
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
    /// Resident and none of these: the program, its threads, and what the allocator has not given back.
    pub other_bytes: u64,
    /// What the caches give up since more was resident than may be.
    pub given_up_bytes: u64,
}

/// What becomes of the mounts when their server dies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TakeoverFigures {
    /// Another server goes on with them.
    pub on: bool,
    /// How many servers went before this one.
    pub restarts: u32,
    /// How the last of them ended; `restart` if it was told to. Empty without one.
    pub last_reason: String,
    /// How long nobody answered then, in milliseconds.
    pub last_stall_ms: Option<u64>,
}

/// What a server has given up, and what the kernel refuses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementFigures {
    /// It was not asked to stay as it is.
    pub on: bool,
    /// What it keeps of root's power: names as in capabilities(7).
    pub capabilities: Vec<String>,
    /// The kernel runs a filter over its system calls.
    pub system_calls: bool,
    /// It can open a few paths only.
    pub paths: bool,
    /// What could not be done, and why.
    pub missing: Vec<String>,
}

/// A mount of a dataset or snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountFigures {
    /// Of what.
    pub name: String,
    /// The same, below the pool.
    pub path: String,
    /// Where.
    #[serde(with = "crate::raw::path")]
    pub dir: PathBuf,
    /// Other places where it is mounted, too.
    #[serde(default, with = "crate::raw::paths")]
    pub also_at: Vec<PathBuf>,
    /// Minor part of the device number of its files; the major part is 0.
    pub device: u32,
    /// No changes.
    pub read_only: bool,
    /// The server's process.
    pub pid: u32,
    /// Since when, seconds since the epoch.
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
    /// `ONLINE`, `EXPORTED`, `CRASHED`, `FAULTED`, `RESCUE`.
    pub state: String,
    /// What is wrong, if something is.
    pub problem: Option<String>,
    /// The server's process, if there is one.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Whether another server goes on when this one dies, if there is one.
    #[serde(default)]
    pub takeover: Option<TakeoverFigures>,
    /// What its server has given up, if there is one.
    #[serde(default)]
    pub confinement: Option<ConfinementFigures>,
    /// The mount of its own dataset if that is mounted, or else the first one.
    pub mount: Option<MountFigures>,
    /// All mounts of its datasets and snapshots, in the order in which they were made.
    #[serde(default)]
    pub mounts: Vec<MountFigures>,
    /// Devices.
    pub devices: Vec<DeviceFigures>,
    /// Errors that were met.
    #[serde(default)]
    pub errors: ErrorFigures,
    /// What snapshots hold, of a pool that is nearly full.
    #[serde(default)]
    pub snapshots: Option<SnapshotFigures>,
    /// Sum of the devices.
    pub size_bytes: u64,
    /// What it can hold in stored bytes, less the reserve.
    pub capacity_bytes: u64,
    /// Stored bytes in use.
    pub used_bytes: u64,
    /// Stored bytes that can still be accepted.
    pub available_bytes: u64,
    /// Stored bytes that reservations keep for their datasets alone.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Quotas of datasets, all that are set.
    #[serde(default)]
    pub quotas: Vec<QuotaFigures>,
    /// Bytes of all stored pages before compression.
    pub logical_bytes: u64,
    /// Bytes of all stored pages, metadata not counted.
    pub stored_bytes: u64,
    /// What `logical_bytes` are stored in, all metadata counted: shared records count for each page that has them, as they do there.
    #[serde(default)]
    pub physical_bytes: u64,
    /// Bytes of the devices in chunks that are in use.
    pub allocated_bytes: u64,
    /// Accepted, not yet durable.
    pub dirty_bytes: u64,
    /// Something was destroyed and is being freed in the background.
    #[serde(default)]
    pub freeing: bool,
    /// Of `used_bytes`, what destroyed snapshots still hold; what destroyed datasets hold is not known before.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Some dataset has a policy of backups.
    #[serde(default)]
    pub backup_policies: bool,
    /// Log that a replay would read.
    pub log_bytes: u64,
    /// Models of pages, learned from what is stored.
    #[serde(default)]
    pub models: u64,
    /// What they take, stored.
    #[serde(default)]
    pub model_bytes: u64,
    /// What those in memory take there.
    #[serde(default)]
    pub model_memory_bytes: u64,
    /// How often metadata was read from its second copy, since the first was damaged or could not be read.
    #[serde(default)]
    pub second_copies_read: u64,
    /// Subtractions that would have left an account below zero: faults of the engine, or damage.
    #[serde(default)]
    pub account_faults: u64,
    /// Transaction group (batch) last committed.
    pub txg: u64,
    /// Checkpoints since the pool was opened.
    pub checkpoints: u64,
    /// The record cache.
    pub cache: CacheFigures,
    /// What its server has in memory, if there is one.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// The last scrub, if there was one.
    #[serde(default)]
    pub scrub: Option<ScrubFigures>,
    /// The last trim since the pool was opened, if there was one.
    #[serde(default)]
    pub trim: Option<TrimFigures>,
    /// Free bytes of which devices that take discards were not told since the pool was opened.
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
    /// Its bytes.
    pub limit_bytes: u64,
    /// What is taken of it.
    pub used_bytes: u64,
}

/// One monotonic counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// What is counted, e.g. `data_written`.
    pub name: String,
    /// How many.
    pub operations: u64,
    /// How much.
    pub bytes: u64,
}

/// Counters at one instant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    /// Milliseconds since the pool was opened.
    pub age_ms: u64,
    /// All counters.
    pub counters: Vec<Counter>,
    /// Records that took the place of others.
    #[serde(default)]
    pub rewrites: Vec<RewriteFigures>,
}

/// Records that took the place of others: of one kind of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteFigures {
    /// Of which pages: `rewritten_database` or `rewritten_other`.
    pub name: String,
    /// How many.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// By length, ascending.
    pub lengths: Vec<LengthFigures>,
}

/// Records of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthFigures {
    /// The longest that is counted here, in bytes; the shortest is longer than the longest of the entry before, and at least eight ninths of it.
    pub at_most_bytes: u32,
    /// How many.
    pub operations: u64,
}

impl RewriteFigures {
    /// A length in bytes that so many per cent of the records do not exceed; `None` where there are none.
    pub fn percentile(&self, percent: u64) -> Option<u32> {
        let total: u64 = self.lengths.iter().map(|length| length.operations).sum();
        let rank = (u128::from(total) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = self.lengths.iter().find(|length| {
            seen += u128::from(length.operations);
            seen >= rank
        });
        reached.map(|length| length.at_most_bytes)
    }
}
