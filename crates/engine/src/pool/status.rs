//! State and counters of an open pool.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Guid, Pool, ReplayReport, RescueReport, Rewrites};
use crate::dataset::{Reason, Space, Waited};
use crate::device::{AllocationClass, DeviceCounts, DeviceHere, HedgeCounts, MemberState, RequestCounts};
use crate::faults::FaultReport;
use crate::limits::CHUNK_BYTES;
use crate::record::RecordCacheStats;

/// State of a device in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It is read and written.
    Online,
    /// It is written, and gets what it lacks from its mirror.
    Filling,
    /// Somebody has taken it offline.
    Offline,
    /// It failed a write or a flush, and is used no more.
    Faulted,
    /// It was not found, or not opened.
    Missing,
}

impl DeviceState {
    /// Returns true if writes go to it.
    pub const fn is_written(self) -> bool {
        matches!(self, Self::Online | Self::Filling)
    }
}

impl From<MemberState> for DeviceState {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Whole => Self::Online,
            MemberState::Filling => Self::Filling,
            MemberState::Offline => Self::Offline,
            MemberState::Faulted => Self::Faulted,
            MemberState::Away => Self::Missing,
        }
    }
}

/// One device of an open pool.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// Number of the device.
    pub number: u16,
    /// Number of its group: devices of one group are mirrors of each other.
    pub group: u16,
    /// State of the device.
    pub state: DeviceState,
    /// True if another device takes its place.
    pub leaves: bool,
    /// True if everything moves off its group, which leaves the pool then.
    pub removing: bool,
    /// True if its group is the log device.
    pub is_log: bool,
    /// Bytes of its group's chunks that are in use.
    pub allocated_bytes: u64,
    /// Bytes of its group's other chunks.
    pub free_bytes: u64,
    /// Path by which the user named the device, or the one that it had when it was here; empty if it never was.
    pub path: PathBuf,
    /// Size in bytes; 0 if it is not here.
    pub size_bytes: u64,
    /// Counts of the device's operations since the pool was opened.
    pub counts: DeviceCounts,
    /// The same by class and kind; kinds of requests that were never made are left out.
    pub requests: Vec<RequestCounts>,
    /// Its reads that were sent to another device of its mirror, too, because they were overdue.
    pub hedges: HedgeCounts,
    /// Mean time of its reads of late, in nanoseconds, or the age of one that is overdue, if that is long, and much longer
    /// than that of another device of its mirror.
    pub slow_ns: Option<u64>,
    /// True if the device takes discards, as far as is known.
    pub discards: bool,
    /// Use for which space on the device is allocated.
    pub class: AllocationClass,
}

/// Monotonic counters since the pool was opened, in bytes unless said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Bytes written by applications.
    pub accepted_bytes: u64,
    /// Bytes read by applications.
    pub read_bytes: u64,
    /// Bytes of pages written to the log, compressed; deltas included.
    pub data_bytes: u64,
    /// Bytes of tree nodes written.
    pub tree_bytes: u64,
    /// Bytes that checkpoints wrote beside tree nodes: pages of the segment table, catalogue, root, superblocks.
    pub checkpoint_bytes: u64,
    /// Bytes of second copies of metadata written. Second copies of directories count as framing, those of superblocks
    /// as checkpoints.
    pub copy_bytes: u64,
    /// Bytes of models written.
    pub model_bytes: u64,
    /// Bytes of headers, directories, operations and padding of the log.
    pub framing_bytes: u64,
    /// Bytes written by cleaning and recompression.
    pub moved_bytes: u64,
    /// Number of passes of the cleaner.
    pub clean_passes: u64,
    /// Number of chunks that these passes made free.
    pub chunks_gained: u64,
    /// Number of batches.
    pub commits: u64,
    /// Number of commits that a caller waited for.
    pub durable_commits: u64,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// Number of pages stored.
    pub pages_stored: u64,
    /// Number of pages of zeros, which take no space.
    pub pages_zero: u64,
    /// Number of stored pages that were coded by a model.
    pub pages_modelled: u64,
    /// Bytes of the records of these pages.
    pub modelled_bytes: u64,
    /// Number of pages stored as deltas.
    pub pages_delta: u64,
    /// Bytes of the records of these pages.
    pub delta_bytes: u64,
}

impl Totals {
    /// Returns all bytes written to devices since the pool was opened.
    pub fn written_bytes(&self) -> u64 {
        let log = self.data_bytes + self.tree_bytes + self.checkpoint_bytes + self.model_bytes;
        log + self.copy_bytes + self.framing_bytes + self.moved_bytes
    }

    /// Returns bytes written to devices per byte that applications wrote; 0 before the first write.
    pub fn write_amplification(&self) -> f64 {
        let written = self.written_bytes();
        if self.accepted_bytes == 0 { 0.0 } else { written as f64 / self.accepted_bytes as f64 }
    }
}

/// State of an open pool.
#[derive(Clone, Debug)]
pub struct Status {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: Guid,
    /// Time at which the pool was created, in seconds since 1970.
    pub created: u64,
    /// Format version.
    pub version: u32,
    /// Devices of the pool.
    pub devices: Vec<DeviceStatus>,
    /// Reason for which the pool stopped accepting changes, if it did.
    pub failure: Option<String>,
    /// True if the pool was opened read-only, or is being closed.
    pub read_only: bool,
    /// Size of all devices' chunks, in bytes.
    pub size_bytes: u64,
    /// Bytes of chunks that are not free.
    pub allocated_bytes: u64,
    /// Stored bytes that the pool may hold.
    pub capacity_bytes: u64,
    /// Stored bytes of everything live, including all metadata.
    pub used_bytes: u64,
    /// Stored bytes that can still be accepted. A dataset with a reservation can have its reserved bytes beside these.
    pub available_bytes: u64,
    /// Stored bytes that reservations keep for their datasets alone.
    pub reserved_bytes: u64,
    /// Logical bytes of all pages.
    pub logical_bytes: u64,
    /// Stored bytes of all pages.
    pub stored_bytes: u64,
    /// Stored bytes of these pages and of the trees of datasets, where a shared record is counted for each page that
    /// has it (as in `logical_bytes`), plus stored bytes that belong to no version of a dataset: models, the segment
    /// table, the catalogue, second copies.
    pub physical_bytes: u64,
    /// Bytes accepted and not yet in the log.
    pub dirty_bytes: u64,
    /// Memory of tree nodes that are not stored yet.
    pub unstored_tree_bytes: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// Number of checkpoints since the pool was opened.
    pub checkpoint: u64,
    /// Number of the next batch of the log.
    pub next_batch: u64,
    /// Counters.
    pub totals: Totals,
    /// Number of models of pages that are stored.
    pub models: u64,
    /// Stored bytes of these models.
    pub model_bytes: u64,
    /// Memory that the loaded models take, in bytes.
    pub model_memory_bytes: u64,
    /// State of the record cache.
    pub record_cache: RecordCacheStats,
    /// State of the node cache.
    pub node_cache: crate::tree::NodeCacheStats,
    /// State of the last scrub.
    pub scrub: super::ScrubStatus,
    /// State of the last removal of a group of devices.
    pub removal: super::RemovalStatus,
    /// State of the last balance.
    pub balance: super::BalanceStatus,
    /// State of the last filling of a device.
    pub fill: super::FillStatus,
    /// State of the last trim.
    pub trim: super::TrimStatus,
    /// Free bytes that devices which take discards have not been told of.
    pub untrimmed_bytes: u64,
    /// Number of times that a second copy of metadata was read because the first one was damaged or could not be read.
    pub second_copies_read: u64,
    /// Number of subtractions in this process that would have left an account below zero: faults of the engine, or
    /// damage.
    pub account_faults: u64,
    /// Errors that were met since the counts were last cleared, by device and by subject.
    pub faults: FaultReport,
    /// Result of the replay at opening.
    pub replayed: ReplayReport,
    /// Damage that was found, if the pool was opened for rescue.
    pub rescue: Option<RescueReport>,
}

/// Sums over the pages of all datasets.
pub(super) struct PageTotals {
    /// As [`Status::logical_bytes`].
    pub logical_bytes: u64,
    /// As [`Status::stored_bytes`].
    pub stored_bytes: u64,
    /// As [`Status::physical_bytes`].
    pub physical_bytes: u64,
}

/// Mean time of a read from which on a device may be slow.
const SLOW_NS: u64 = 100_000_000;
/// A device is slow only if it takes more than this many times as long as the fastest other one of its mirror.
const SLOW_TIMES: u64 = 4;

/// Returns the time of a device's reads if it is slow, by that and the time of the fastest other one of its mirror.
fn slow_ns((own, fastest): (u64, u64)) -> Option<u64> {
    (fastest > 0 && own >= SLOW_NS && own / SLOW_TIMES >= fastest).then_some(own)
}

impl Pool {
    /// Sums up the pages of all datasets.
    pub(super) fn page_totals(&self) -> PageTotals {
        let used_bytes = self.shared.space().used_bytes;
        let datasets = self.datasets.read().clone();
        let totals = datasets.iter().map(|dataset| dataset.totals().unwrap_or_default());
        let (logical_bytes, stored_bytes) = totals.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let node_bytes: u64 = datasets.iter().map(|dataset| dataset.accounting.lock().node_bytes).sum();
        // The locks are taken one after the other, never together: a thread that waits to change the catalogue may come
        // between two readings.
        let of_versions = self.catalogue.read().held_bytes();
        let held_bytes = of_versions.saturating_add(self.unreferenced_bytes());
        // The two sums are taken one after the other, so they may be of different instants.
        let own_bytes = used_bytes.saturating_sub(held_bytes);
        let physical_bytes = stored_bytes.saturating_add(node_bytes).saturating_add(own_bytes);
        PageTotals { logical_bytes, stored_bytes, physical_bytes }
    }

    /// Returns the counters since the pool was opened.
    pub fn totals(&self) -> Totals {
        let counters = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            accepted_bytes: get(&counters.accepted_bytes),
            read_bytes: get(&counters.read_bytes),
            data_bytes: get(&counters.data_bytes),
            tree_bytes: get(&counters.tree_bytes),
            checkpoint_bytes: get(&counters.checkpoint_bytes),
            copy_bytes: get(&counters.copy_bytes),
            model_bytes: get(&counters.model_bytes),
            framing_bytes: get(&counters.framing_bytes),
            moved_bytes: get(&counters.moved_bytes),
            clean_passes: get(&counters.clean_passes),
            chunks_gained: get(&counters.chunks_gained),
            commits: get(&counters.commits),
            durable_commits: get(&counters.durable_commits),
            checkpoints: get(&counters.checkpoints),
            pages_stored: get(&counters.pages_stored),
            pages_zero: get(&counters.pages_zero),
            pages_modelled: get(&counters.pages_modelled),
            modelled_bytes: get(&counters.modelled_bytes),
            pages_delta: get(&counters.pages_delta),
            delta_bytes: get(&counters.delta_bytes),
        }
    }

    /// Returns counts of the records that commits have written for pages that had a record before, since the pool was
    /// opened: first for pages of databases, then for all others.
    pub fn rewrites(&self) -> (Rewrites, Rewrites) {
        self.rewrites.snapshot()
    }

    /// Returns how long changes waited for `reason` before they were accepted, since the last call for that reason.
    pub fn take_waits(&self, reason: Reason) -> Waited {
        self.shared.waits.take(reason)
    }

    /// Returns the space of the pool, without the bounds of datasets. Logical bytes are not summed up.
    pub fn space(&self) -> Space {
        self.shared.space()
    }

    /// Returns true if reads of mirrors that take too long are sent to another device, too: the kernel does not refuse
    /// it.
    #[must_use]
    pub fn hedging_is_possible(&self) -> bool {
        crate::device::hedging_is_possible()
    }

    /// Returns the devices of the pool, by group and number, those that are missing included.
    pub fn device_status(&self) -> Vec<DeviceStatus> {
        let devices = &self.shared.devices;
        let here = devices.here();
        let log_group = self.labels.log_group();
        let mut all = Vec::new();
        for group in 0..=u16::MAX {
            let Some(table) = self.labels.table(group) else { break };
            let allocated_bytes = self.chunks.used_count(group) * CHUNK_BYTES;
            for (number, state) in devices.states(group) {
                let one = here.iter().find(|device| device.number == number).map(DeviceHere::one);
                let (size_bytes, discards, class) = one.map_or((0, false, AllocationClass::Normal), |one| {
                    (one.size_bytes(), one.discards(), one.class())
                });
                let counted = one.map(|one| (one.counts(), one.requests(), one.hedges()));
                let (counts, requests, hedges) = counted.unwrap_or_default();
                all.push(DeviceStatus {
                    number,
                    group,
                    state: state.into(),
                    leaves: table.entry(number).is_some_and(|entry| entry.leaves),
                    removing: table.leaves,
                    is_log: Some(group) == log_group,
                    allocated_bytes,
                    free_bytes: (self.chunks.count_of(group) * CHUNK_BYTES).saturating_sub(allocated_bytes),
                    path: devices.device_path(number),
                    size_bytes,
                    counts,
                    requests,
                    hedges,
                    slow_ns: slow_ns(devices.latency_ns(group, number)),
                    discards,
                    class,
                });
            }
        }
        all
    }

    /// Returns the numbers and paths of devices that are files which were deleted: what is on them is lost once the pool is
    /// closed, unless other devices take their places before.
    pub fn deleted_devices(&self) -> Vec<(u16, PathBuf)> {
        let here = self.shared.devices.here();
        let deleted = here.iter().filter(|device| device.one().is_deleted());
        deleted.map(|device| (device.number, device.one().path().to_path_buf())).collect()
    }

    /// Returns the state of the pool. Waits for a commit or checkpoint that is under way.
    pub fn status(&self) -> Status {
        let space = self.shared.space();
        let PageTotals { logical_bytes, stored_bytes, physical_bytes } = self.page_totals();
        let (log_bytes, next_batch) = {
            let log = self.log.lock();
            (log.window_bytes, log.writer.position().batch)
        };
        let (size_bytes, allocated_bytes) = {
            let (total, used) = self.chunks.total_and_used();
            (total * CHUNK_BYTES, used * CHUNK_BYTES)
        };
        let label = self.labels.common();
        let models = self.shared.models.all();
        Status {
            name: self.name().into(),
            guid: self.guid(),
            created: label.created,
            version: label.version,
            devices: self.device_status(),
            failure: self.shared.failure().map(Into::into),
            read_only: self.shared.read_only.load(Ordering::Relaxed),
            size_bytes,
            allocated_bytes,
            capacity_bytes: space.capacity_bytes,
            used_bytes: space.used_bytes,
            available_bytes: space.available_bytes,
            reserved_bytes: self.shared.reserved_bytes.load(Ordering::Acquire),
            logical_bytes,
            stored_bytes,
            physical_bytes,
            dirty_bytes: self.shared.dirty_bytes.load(Ordering::Relaxed),
            unstored_tree_bytes: self.nodes.unstored_bytes(),
            log_bytes,
            checkpoint: self.shared.counters.checkpoints.load(Ordering::Relaxed),
            next_batch,
            totals: self.totals(),
            models: models.len() as u64,
            model_bytes: models.iter().map(|(_, entry)| u64::from(entry.ptr.len_bytes)).sum(),
            model_memory_bytes: self.shared.models.memory_bytes(),
            record_cache: self.shared.cache.stats(),
            node_cache: self.nodes.stats(),
            scrub: self.scrub_status(),
            fill: self.fill_status(),
            removal: self.removal_status(),
            balance: self.balance_status(),
            trim: self.trim_status(),
            untrimmed_bytes: self.untrimmed_bytes(),
            second_copies_read: self.shared.segments.stood_in(),
            account_faults: crate::sums::faults() + crate::sums::inexact(),
            faults: self.faults(),
            replayed: self.replayed,
            rescue: self.rescue.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_slow_beside_another_one_that_is_not() {
        const MS: u64 = 1_000_000;
        assert_eq!(slow_ns((30_000 * MS, MS)), Some(30_000 * MS));
        assert_eq!(slow_ns((100 * MS, 25 * MS)), Some(100 * MS));
        for at in [(99 * MS, MS), (400 * MS, 101 * MS), (30_000 * MS, 0), (0, MS)] {
            assert_eq!(slow_ns(at), None, "{at:?}");
        }
    }
}
