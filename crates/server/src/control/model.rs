//! The requests and replies of the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::datasets::{
    DatasetFigures, Moving, Operation, OperationResult, PartialFigures, Rebased, Sendable, Transferred,
};
use super::device_figures::DeviceErrors;
use super::figures::{
    CodecFigures, ErrorFigures, Event, FileSurvey, FileUsage, ModelFigures, MoveFigures, PoolFigures,
    PropertyValue, RecompressFigures,
};

/// The ways to end a mount.
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
        /// Path of the dataset or snapshot, below the pool.
        path: String,
    },
    /// Sets a property, for good.
    Set {
        /// Path of the dataset or snapshot, below the pool.
        path: String,
        /// Name of the property.
        name: String,
        /// Its value.
        value: String,
    },
    /// All datasets and snapshots.
    Datasets {},
    /// Changes datasets and snapshots.
    Operation {
        /// The operation.
        operation: Operation,
    },
    /// Makes everything written so far durable.
    Sync {},
    /// Ends the server, so that another one, of the program as it is on disk now, takes its place.
    Restart {},
    /// Mounts a dataset or snapshot.
    Mount {
        /// Path of the dataset or snapshot, below the pool.
        path: String,
        /// Directory of the mount, an absolute path.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        /// The words of `-o`.
        options: Vec<String>,
    },
    /// Unmounts. The reply comes when all is durable and, if nothing else is mounted, the pool has been closed; for
    /// `Lazy`, when the mounts are detached.
    Unmount {
        /// Device numbers of the mounts (their minor parts); empty for all mounts.
        devices: Vec<u32>,
        /// How the mounts end.
        mode: UnmountMode,
    },
    /// Asks for logged events with a number above `after`; waits up to `wait_ms` for one.
    Events {
        /// The last number seen; 0 for all.
        after: u64,
        /// Longest wait in milliseconds (at most a minute).
        wait_ms: u32,
    },
    /// Asks for the space that files take, by inode number.
    Usage {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
    },
    /// Asks how files' pages are stored, from a sample.
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
        /// Position to go on from: index into `inodes`, and page.
        from: (usize, u64),
    },
    /// Codes pages of files again, as far as one call goes.
    Recompress {
        /// The mount's device number.
        device: u32,
        /// Inode numbers.
        inodes: Vec<u64>,
        /// Position to go on from: index into `inodes`, and page.
        from: (usize, u64),
    },
    /// Begins a scrub, or goes on with one that was stopped.
    ScrubStart {
        /// Largest number of bytes read per second; 0: no bound but that of background work.
        rate: u64,
    },
    /// Stops a scrub.
    ScrubStop {},
    /// Begins a trim.
    TrimStart {
        /// Largest number of bytes per second that devices are told of; 0: no bound.
        rate: u64,
    },
    /// Stops a trim.
    TrimStop {},
    /// Forgets errors that were counted.
    Clear {
        /// Number of the device; none for all.
        device: Option<u16>,
        /// Time of the request in seconds since 1970.
        now: u64,
    },
    /// Gives the pool a device, which the client has opened and locked: after the reply [`Reply::Ready`] it sends the
    /// descriptor.
    AddDevice {
        /// Path of the device.
        #[serde(with = "crate::raw::path")]
        path: PathBuf,
        /// The value that it is to have.
        place: DevicePlace,
    },
    /// Adds groups of devices to the pool, which the client has opened and locked: after the reply [`Reply::Ready`] it
    /// sends their descriptors, one after the other.
    AddGroups {
        /// Paths of all devices.
        #[serde(with = "crate::raw::paths")]
        paths: Vec<PathBuf>,
        /// Number of devices of each group, in their order.
        groups: Vec<usize>,
    },
    /// Gives the pool spares, which the client has opened and locked: after the reply [`Reply::Ready`] it sends their
    /// descriptors, one after the other.
    AddSpares {
        /// Paths of all spares.
        #[serde(with = "crate::raw::paths")]
        paths: Vec<PathBuf>,
    },
    /// Gives the pool a log device, or a mirror of several, which the client has opened and locked: after the reply
    /// [`Reply::Ready`] it sends their descriptors, one after the other.
    AddLogDevice {
        /// Paths of the devices.
        #[serde(with = "crate::raw::paths")]
        paths: Vec<PathBuf>,
    },
    /// Removes a spare that does not stand in for a device.
    RemoveSpare {
        /// Number by which the pool knows it, in hexadecimal.
        id: String,
    },
    /// Stops using a device, until it is given again. The client may open it then.
    OfflineDevice {
        /// Number of the device.
        device: u16,
        /// True if it need not be in use.
        release: bool,
    },
    /// Lets the pool use all of a device, which has grown.
    GrowDevice {
        /// Number of the device.
        device: u16,
    },
    /// Begins to remove a group of devices: everything moves to the others, and then it leaves the pool. The log device
    /// leaves at once.
    RemoveGroup {
        /// Number of the group.
        group: u16,
    },
    /// Ends the removal of a group before it is gone.
    KeepGroup {
        /// Number of the group.
        group: u16,
    },
    /// Begins to balance the pool: what lies on fuller groups moves to emptier ones.
    Balance {
        /// Only tells what would be moved.
        dry_run: bool,
    },
    /// Ends a balance before all groups are equally full.
    StopBalance {},
    /// Makes one device of each mirror a device of a new pool.
    Split {
        /// Name of the new pool.
        name: String,
        /// Numbers of the devices; of a mirror of which none is named, the last one that is whole.
        devices: Vec<u16>,
        /// Only tells which devices these would be.
        dry_run: bool,
    },
    /// Asks for the bytes that would be copied if the devices of a mirror were changed. Nothing is changed.
    PlanChange {
        /// The change.
        change: DeviceChange,
    },
    /// Removes a device from its mirror.
    DetachDevice {
        /// Number of the device.
        device: u16,
    },
    /// Asks for the length of a stream.
    SendSize {
        /// The contents of the stream.
        what: Sendable,
    },
    /// Makes a stream. It follows the reply in pieces, and another reply follows it.
    Send {
        /// The contents of the stream.
        what: Sendable,
    },
    /// Receives a stream, whose pieces the client sends after the reply [`Reply::Ready`].
    Receive {
        /// Path of the dataset that receives it, below the pool.
        path: String,
        /// Gives up changes that were made in the dataset since its newest snapshot.
        force: bool,
    },
    /// Compares a snapshot with another version; the differences follow the reply in pieces, a JSON object per line.
    Diff {
        /// The snapshot.
        old: String,
        /// A later snapshot, or the dataset.
        new: String,
        /// Adds the byte ranges of files that may differ.
        ranges: bool,
    },
    /// Moves a clone onto a newer snapshot; the reply comes at the end. The work is given up when the connection ends.
    Rebase {
        /// The clone and the snapshot.
        what: Moving,
    },
    /// Gives a file another recordsize. Replies: any number of [`Reply::Rewriting`], then [`Reply::Rewritten`]. The
    /// work is given up when the connection ends.
    Rewrite {
        /// The file and its new recordsize.
        what: FileRewrite,
    },
    /// Waits until mounts that were taken away have ended and all that was written to them is durable; if nothing else
    /// is mounted, until the pool is closed. The reply is [`Reply::Done`], [`Reply::Closed`], [`Reply::Streaming`] or
    /// [`Reply::Waiting`].
    Await {
        /// Device numbers of the mounts (their minor parts); empty for all mounts.
        devices: Vec<u32>,
        /// Longest wait in milliseconds.
        wait_ms: u32,
    },
    /// Gives a mount other options while it is in use.
    Remount {
        /// Device number of the mount.
        device: u32,
        /// The words of `-o`, without `remount`.
        options: Vec<String>,
        /// Only checks that the options could be changed.
        dry_run: bool,
    },
    /// Tells the server that the kernel refuses changes of a mount, or allows them again.
    ReadOnly {
        /// Device number of the mount.
        device: u32,
        /// True if changes are refused.
        on: bool,
    },
}

impl Request {
    /// Returns true if more than one reply follows, or the reply takes long; the connection is of no use afterwards.
    pub fn is_stream(&self) -> bool {
        matches!(
            self,
            Self::Send { .. }
                | Self::AddDevice { .. }
                | Self::AddGroups { .. }
                | Self::AddSpares { .. }
                | Self::AddLogDevice { .. }
                | Self::Receive { .. }
                | Self::Diff { .. }
                | Self::Rebase { .. }
                | Self::Rewrite { .. }
        )
    }

    /// Returns true if the request waits for events, which may never come: a server that ends does not wait for such a
    /// request, and the client reads the events that are kept.
    pub fn follows(&self) -> bool {
        matches!(self, Self::Events { wait_ms: 1.., .. })
    }
}

/// Place that a device is to have in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DevicePlace {
    /// Another mirror of the device with this number.
    Beside(u16),
    /// Instead of the device with this number, which leaves once this one has all.
    InPlaceOf(u16),
    /// Its own: it is a member that was not in use, or a spare that was not here.
    Own,
}

/// A change of the devices of a mirror that somebody thinks of. Devices are named by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChange {
    /// A device gets a mirror, or is replaced.
    Give {
        /// Place of the new device.
        place: DevicePlace,
        /// Path of the new device.
        #[serde(with = "crate::raw::path")]
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// A device is detached.
    Detach(u16),
    /// A device is taken offline.
    Offline(u16),
    /// A device that was not in use is taken online.
    Online(u16),
}

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Done {},
    /// The request could not be carried out.
    Error {
        /// The error, and the object that it concerns.
        what: String,
        /// Advice to the user.
        hint: Option<String>,
    },
    /// To [`Request::Unmount`]: a mount is in use.
    Busy {
        /// Directory of that mount.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
    },
    /// To [`Request::Unmount`]: the last mount has ended, and the pool is closed.
    Closed {},
    /// To [`Request::Unmount`]: the last mount has ended, and the pool will be closed when the streams under way have
    /// ended.
    Streaming {},
    /// To [`Request::Mount`]: the last mount has ended; the client waits for the server's end and starts another
    /// server.
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
        /// Figures, sorted by dataset and number of the file.
        all: Vec<ModelFigures>,
    },
    /// To [`Request::Properties`].
    Properties {
        /// Name, value, source.
        values: Vec<PropertyValue>,
    },
    /// To [`Request::Datasets`].
    Datasets {
        /// Datasets and snapshots, sorted by name.
        all: Vec<DatasetFigures>,
        /// Datasets of which a part was received.
        #[serde(default)]
        partials: Vec<PartialFigures>,
    },
    /// To [`Request::SendSize`]: the length. To [`Request::Send`] and [`Request::Diff`]: the stream follows in pieces.
    Stream {
        /// Approximate number of stored bytes of the pages in the stream.
        expected_bytes: u64,
    },
    /// To [`Request::Receive`]: the client may send the stream.
    Ready {},
    /// At the end of a stream.
    Transferred {
        /// Contents of the stream.
        all: Transferred,
    },
    /// To [`Request::Rebase`].
    Rebased {
        /// The result.
        rebased: Rebased,
    },
    /// To [`Request::Operation`].
    Operation {
        /// The result.
        outcome: OperationResult,
    },
    /// To [`Request::Clear`]: the errors that were forgotten.
    Cleared {
        /// Errors of each device, by its number.
        devices: Vec<DeviceErrors>,
        /// Files and other objects that errors struck.
        struck: ErrorFigures,
    },
    /// To [`Request::Balance`].
    Balance {
        /// True if there is anything to be moved.
        is_uneven: bool,
        /// The moves that are to be made.
        moves: Vec<MoveFigures>,
    },
    /// To [`Request::PlanChange`].
    Planned {
        /// Bytes that would be copied to a device.
        copied_bytes: u64,
    },
    /// To [`Request::Split`].
    Split {
        /// GUID of the new pool; empty if there is none yet.
        guid: String,
        /// Paths of its devices.
        #[serde(with = "crate::raw::paths")]
        devices: Vec<PathBuf>,
    },
    /// To [`Request::Events`].
    Events {
        /// Events, oldest first.
        events: Vec<Event>,
        /// Events that the ring has lost since `after`.
        lost: u64,
    },
    /// To [`Request::Usage`], in the order of the request; `None` for an inode that is no regular file.
    Usage {
        /// Space that each file takes.
        files: Vec<Option<FileUsage>>,
    },
    /// To [`Request::Survey`], in the order of the request; `None` for an inode that cannot be surveyed.
    Survey {
        /// How the pages of each file are stored.
        files: Vec<Option<FileSurvey>>,
    },
    /// To [`Request::Codecs`].
    Codecs {
        /// Sums by codec.
        codecs: Vec<CodecFigures>,
        /// Position to go on from, as in the request. `None`: nothing is left.
        next: Option<(usize, u64)>,
    },
    /// To [`Request::Recompress`].
    Recompressed {
        /// Sums of this call.
        figures: RecompressFigures,
        /// Position to go on from, as in the request. `None`: nothing is left.
        next: Option<(usize, u64)>,
    },
    /// To [`Request::Rewrite`]: the progress. More replies follow.
    Rewriting {
        /// Bytes of the file that have been copied.
        done_bytes: u64,
        /// The file's size in bytes.
        total_bytes: u64,
    },
    /// To [`Request::Rewrite`]: the file has the recordsize.
    Rewritten {
        /// Bytes that were copied. `None`: the file had the recordsize already, or has no data.
        copied_bytes: Option<u64>,
    },
    /// To [`Request::Await`] and [`Request::Mount`]: the mounts have not ended in time.
    Waiting {
        /// Device numbers of the mounts that the kernel still keeps; empty while data in memory are being written.
        devices: Vec<u32>,
    },
    /// To [`Request::Mount`]: the dataset or snapshot is mounted already.
    There {
        /// One of the directories where it is mounted.
        #[serde(with = "crate::raw::path")]
        dir: PathBuf,
        /// Device number of that mount.
        device: u32,
        /// True if that mount refuses changes.
        read_only: bool,
    },
    /// To [`Request::Remount`]: flags that the client has to change at the mount itself.
    Remounting {
        /// Refuse changes; `None`: leave that as it is.
        read_only: Option<bool>,
        /// Honour set-id bits; `None`: leave that as it is.
        suid: Option<bool>,
        /// Honour device files; `None`: leave that as it is.
        dev: Option<bool>,
        /// Allow programs to be run; `None`: leave that as it is.
        exec: Option<bool>,
    },
}

/// A file that is to have another recordsize.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRewrite {
    /// The mount's device number.
    pub device: u32,
    /// Its inode number.
    pub inode: u64,
    /// The new recordsize in bytes.
    pub recordsize: u32,
    /// Largest number of bytes copied per second; `None`: no bound.
    pub rate: Option<u64>,
    /// Its path as the client names it, for the log; empty from a client of an older version.
    #[serde(default, with = "crate::raw::path")]
    pub path: PathBuf,
}
