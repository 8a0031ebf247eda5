//! Steps of a history, and the acts and operations that they consist of.

use pagefold_engine::Key;
use pagefold_engine::device::SimOp;
use pagefold_engine::limits::RECORDSIZE_MAX;

/// Objects that histories write.
pub const OBJECTS: std::ops::Range<u64> = 2..9;

/// Returns the page size of an object in bytes.
pub const fn record_size(object: u64) -> u32 {
    match object {
        2 | 3 => 4 << 10,
        4 | 5 => 8 << 10,
        6 => 16 << 10,
        7 => 128 << 10,
        _ => RECORDSIZE_MAX,
    }
}

/// Kinds of bytes that a write stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing but zeros.
    Zeros,
    /// Incompressible.
    Noise,
    /// Compressible.
    Rows,
    /// Pages of a table of PostgreSQL.
    Heap,
    /// Pages of an index.
    Btree,
}

/// Part of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in pagefold_engine::dataset::Change")]
pub enum Act {
    Put { key: Key, len: u64, seed: u64 },
    Delete { key: Key },
    Codec { object: u64, codec: u8 },
    Write { object: u64, offset: u64, len: u64, fill: Fill, seed: u64 },
    Punch { object: u64, from: u64, to: u64 },
    Share { from: (u64, u64), to: (u64, u64), count: u64 },
}

/// Paths of the datasets that histories make, beside the pool's own.
pub const DATASETS: [&str; 3] = ["a", "b", "a/x"];

/// An operation on datasets and snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the methods of pagefold_engine::pool::Pool")]
pub enum CatalogueOp {
    Create {
        path: String,
    },
    Snapshot {
        datasets: Vec<String>,
        name: String,
    },
    Clone {
        snapshot: String,
        path: String,
    },
    DestroyDataset {
        path: String,
    },
    DestroySnapshots {
        snapshots: Vec<String>,
    },
    Rollback {
        snapshot: String,
        newer: bool,
    },
    Reset {
        path: String,
        own: bool,
    },
    /// Moves a clone onto a newer snapshot, where the two go together.
    Rebase {
        path: String,
        onto: String,
        own: bool,
    },
    Promote {
        path: String,
    },
    Rename {
        path: String,
        to: String,
    },
    Hold {
        snapshot: String,
    },
    Release {
        snapshot: String,
    },
    /// Sends a snapshot, or what changed since `from`, and receives it into a dataset of the same pool.
    Receive {
        snapshot: String,
        from: Option<String>,
        path: String,
    },
}

/// One step of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A change of the pool's own dataset.
    Apply(Vec<Act>),
    /// A change of another dataset, if there is such.
    ApplyTo(String, Vec<Act>),
    /// A change of the catalogue.
    Catalogue(CatalogueOp),
    /// A stream into a dataset. The snapshot that is sent follows from `pick` and from the snapshots that there are by
    /// then; there may be none.
    Stream {
        /// The dataset that receives.
        path: String,
        /// Decides between the snapshots.
        pick: u64,
        /// Thousandths of the stream after which it ends early.
        torn: Option<u64>,
    },
    /// A reset of a clone to its origin, or a move onto a newer snapshot. Which, and of which clone, follows from
    /// `pick` and from the clones and snapshots that there are by then.
    Graft {
        /// Chooses the clone and the snapshot, and whether the clone's own snapshots are destroyed.
        pick: u64,
    },
    /// Makes everything durable.
    Sync,
    /// First half of a durable commit.
    Begin {
        /// Number of those who wait for it.
        waiters: u64,
    },
    /// Second half of a commit that was begun.
    End {
        /// True to end the commit that was begun last, instead of first.
        newest: bool,
    },
    /// Commits without waiting for the device.
    Commit,
    /// A checkpoint.
    Checkpoint,
    /// A checkpoint, with steps between its cut and its writing, and before its end.
    Overlap(Vec<Step>, Vec<Step>),
    /// Has the cleaner do a pass.
    Clean,
    /// Maintenance that the background would do.
    Maintain,
    /// Devices are told which chunks are free: all of them, after a checkpoint, or those that became free lately.
    Trim {
        /// True to tell of all free chunks.
        all: bool,
    },
    /// Learns a model of the object that wants one most.
    Learn,
    /// Codes again what is stored.
    Recode,
    /// Nothing happens for a second or two.
    Rest,
    /// Exports and opens again.
    Export,
    /// Reads and compares.
    Read {
        /// Object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Compares everything and checks the pool.
    Check,
    /// The process dies, the power stays.
    Kill,
    /// Arms a power cut on one device.
    Cut {
        /// Device.
        device: u64,
        /// Number of writes and flushes until then.
        calls: u64,
    },
    /// A power cut now, and further ones during recovery.
    Crash {
        /// Decides what survives.
        seed: u64,
        /// For each further power cut, the number of writes and flushes of the recovery until then.
        again: Vec<u64>,
    },
    /// A power cut now, after which each write that was not flushed is there as a whole or not at all. Then the first
    /// lost change is made again.
    Outage {
        /// Decides what survives.
        seed: u64,
    },
    /// A power cut now. Then the first lost change is made again.
    Tear {
        /// Decides what survives.
        seed: u64,
    },
    /// A verb of mirrors, and then some of what the background does. Which verb, and on which devices, follows from
    /// `pick` and from the devices that there are by then.
    Verb {
        /// Chooses.
        pick: u64,
    },
    /// A verb as [`Step::Verb`], in the middle of which other steps are taken: changes, commits and checkpoints.
    Beside {
        /// Chooses.
        pick: u64,
        /// Number of pauses of the verb before them.
        pauses: u64,
        /// The steps.
        steps: Vec<Step>,
    },
    /// Copies of the devices are damaged and judged: those of mirrors but for one of each, and the log device. What becomes
    /// of them follows from `pick`.
    Damage {
        /// Chooses.
        pick: u64,
    },
    /// Arms a power cut of all devices at once.
    Blackout {
        /// Number of writes and flushes of all of them until then.
        calls: u64,
    },
    /// Calls to a device fail.
    Fault {
        /// Device.
        device: u64,
        /// Kind of calls that fail.
        op: SimOp,
        /// Number of calls that succeed first.
        skip: u64,
        /// Number of calls that fail then.
        times: u64,
    },
    /// A bit flips.
    Flip {
        /// Device.
        device: u64,
        /// Byte.
        offset: u64,
        /// Bit of it.
        bit: u8,
    },
    /// A bit flips in what was written lately.
    Rot {
        /// Device.
        device: u64,
        /// Number of writes after the one that is hit.
        back: u64,
        /// Byte, counted from the beginning of the write.
        byte: u64,
        /// Bit of it.
        bit: u8,
    },
}
