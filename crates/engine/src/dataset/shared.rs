//! State that all datasets of an open pool share: devices, segment table, caches, the gate and admission.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex, RwLock};

use super::budget::{Budget, Claim, Refused};
use super::journal::Journal;
use super::models::ModelTable;
use super::read_amplification::ReadAmplification;
use super::reapers::Reapers;
use super::recent::RecentPages;
use super::room::{Room, RoomRequest};
use super::thin::ThinTerms;
use super::throttle::Throttle;
use super::waits::Waits;
use super::{Caller, Space, Synced};
use crate::device::Devices;
use crate::error::{DamagedAt, remedy};
use crate::faults::{FaultKind, Subject};
use crate::limits::{ATOMIC_WRITE_MAX, REDO_BYTES_MAX};
use crate::record::{Compression, RecordCache};
use crate::segment::Segments;
use crate::space::Chunks;
use crate::sums::subtract_shared;
use crate::tree::NodeCache;
use crate::{Addr, Error, Ptr, Result};

/// Largest number of times that a record is looked up and read before its damage is reported: the record may be moved
/// between look-up and read.
pub(crate) const ATTEMPTS: u32 = 4;

/// Commits on behalf of a dataset. The pool implements it.
pub trait Commit: Send + Sync {
    /// Returns when every change accepted before the call is in the log, and, with `durable`, on stable storage.
    fn commit(&self, durable: bool) -> Result<()>;
    /// Calls `then` when every change accepted before the call is on stable storage: now or later, on any thread.
    fn commit_then(&self, caller: Caller, then: Synced);
    /// Wakes the background committer, because there is something worth committing soon. Never blocks.
    fn nudge(&self);
    /// Cleans until there is room for `wanted` (`Shared::has_room`).
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is nothing left to gain; errors of the devices.
    fn make_room(&self, wanted: RoomRequest) -> Result<()>;
    /// Stores what is in memory, so that it counts with the bytes that it takes instead of those that it may take.
    ///
    /// # Errors
    /// Errors of the devices.
    fn settle(&self) -> Result<()>;
    /// Wakes the cleaner, because room runs short. Never blocks.
    fn nudge_cleaner(&self);
    /// Frees some of what was destroyed. Returns false if there is nothing to free.
    ///
    /// # Errors
    /// Errors of the devices.
    fn reap_some(&self) -> Result<bool>;
}

/// Kinds of records that the record cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PrimaryCache {
    /// Pages and metadata.
    All = 0,
    /// Metadata only.
    Metadata = 1,
    /// Nothing.
    None = 2,
}

/// Bounds of an open pool, which follow from its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Stored bytes that the pool may hold.
    pub capacity_bytes: u64,
    /// Accepted page bytes at which the background committer is woken.
    pub dirty_soft_bytes: u64,
    /// Accepted page bytes at which writers commit themselves in any case.
    pub dirty_hard_bytes: u64,
    /// Stored bytes beyond the capacity that changes may take if they free something.
    pub slack_bytes: u64,
    /// Free chunks that are kept for the cleaner alone when the pool is as full as it may be.
    pub clean_chunks: u64,
    /// Least number of free chunks that are kept for the cleaner, however much there is to gain, beside those that may
    /// be begun.
    pub least_clean_chunks: u64,
    /// Number of free chunks beyond all that is promised, below which the cleaner is at work.
    pub low_chunks: u64,
}

/// Bounds that are read all the time, and change when the pool gets devices. Who reads meanwhile may get some old and
/// some new ones: they only grow, and what they bound is there before.
pub(crate) struct SharedBounds {
    values: [AtomicU64; 7],
}

impl SharedBounds {
    fn new(bounds: Bounds) -> Self {
        let shared = Self { values: Default::default() };
        shared.set(bounds);
        shared
    }

    /// Returns the bounds.
    pub(crate) fn get(&self) -> Bounds {
        let [capacity, soft, hard, slack, clean, least, low] =
            self.values.each_ref().map(|value| value.load(Ordering::Relaxed));
        Bounds {
            capacity_bytes: capacity,
            dirty_soft_bytes: soft,
            dirty_hard_bytes: hard,
            slack_bytes: slack,
            clean_chunks: clean,
            least_clean_chunks: least,
            low_chunks: low,
        }
    }

    /// Sets the bounds.
    pub(crate) fn set(&self, bounds: Bounds) {
        let values = [
            bounds.capacity_bytes,
            bounds.dirty_soft_bytes,
            bounds.dirty_hard_bytes,
            bounds.slack_bytes,
            bounds.clean_chunks,
            bounds.least_clean_chunks,
            bounds.low_chunks,
        ];
        self.values.iter().zip(values).for_each(|(shared, value)| shared.store(value, Ordering::Relaxed));
    }
}

/// Room that is enough for any one request of the kernel, in bytes.
pub(super) const ROOMY_BYTES: u64 = 2 * ATOMIC_WRITE_MAX as u64;

/// Bytes by which a change that frees something may exceed the bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beyond {
    /// Bytes beyond the capacity of the pool, which are taken from what it keeps back.
    pub pool_bytes: u64,
    /// Bytes beyond each quota.
    pub quota_bytes: u64,
}

/// Reason why there is no room.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// The pool is full, or the rest of it is reserved.
    Pool,
    /// The pool may hold the change, but does not have enough free chunks until the cleaner has worked.
    Room,
    /// A quota is reached.
    Quota(Box<Refused>),
}

/// Counters of the engine's I/O by purpose, most of them in bytes.
#[derive(Default)]
pub(crate) struct Counters {
    /// Bytes that applications wrote.
    pub accepted_bytes: AtomicU64,
    /// Bytes that applications read.
    pub read_bytes: AtomicU64,
    /// Stored bytes of pages in the log.
    pub data_bytes: AtomicU64,
    /// Stored bytes of tree nodes.
    pub tree_bytes: AtomicU64,
    /// Stored bytes of everything else that a checkpoint writes: pages of the segment table, catalogue, root,
    /// superblocks.
    pub checkpoint_bytes: AtomicU64,
    /// Bytes written for second copies of metadata.
    pub copy_bytes: AtomicU64,
    /// Stored bytes of models.
    pub model_bytes: AtomicU64,
    /// Headers, directories, operations and padding of the log.
    pub framing_bytes: AtomicU64,
    /// Bytes written by cleaning and by coding again.
    pub moved_bytes: AtomicU64,
    /// Passes of the cleaner.
    pub clean_passes: AtomicU64,
    /// Chunks that became free by passes of the cleaner.
    pub chunks_gained: AtomicU64,
    /// Passes of the cleaner that did not do what was planned (G6). There must be none.
    pub fruitless_passes: AtomicU64,
    /// Batches written.
    pub commits: AtomicU64,
    /// Commits that had to be durable.
    pub durable_commits: AtomicU64,
    /// Checkpoints completed.
    pub checkpoints: AtomicU64,
    /// Pages stored as records.
    pub pages_stored: AtomicU64,
    /// Pages that were all zeros, which take no space.
    pub pages_zero: AtomicU64,
    /// Pages coded by a model. `pages_stored` counts them too.
    pub pages_modelled: AtomicU64,
    /// Bytes of the records of pages coded by a model.
    pub modelled_bytes: AtomicU64,
    /// Pages stored as deltas. `pages_stored` counts them too.
    pub pages_delta: AtomicU64,
    /// Bytes of the records of deltas. `data_bytes` counts them too.
    pub delta_bytes: AtomicU64,
    /// Bytes of streams that were sent and received.
    pub streamed_bytes: AtomicU64,
}

/// Adds `by` to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// State of an open pool that its datasets use.
pub(crate) struct Shared {
    /// Changes are accepted under its read side; quiescing takes its write side. While the gate is held, nothing may be
    /// awaited but a commit in flight, which never takes the gate (invariant D1: no deadlock).
    pub gate: RwLock<()>,
    /// The pool's devices.
    pub devices: Devices,
    /// The segment table.
    pub segments: Arc<Segments>,
    /// Chunks of the devices.
    pub chunks: Arc<Chunks>,
    /// Tree nodes in memory.
    pub nodes: Arc<NodeCache>,
    /// Cache of records, as they are stored.
    pub cache: RecordCache,
    /// Pages of the last small durable commits, and pages of which parts were written.
    pub recent: RecentPages,
    /// Models of pages.
    pub models: ModelTable,
    /// Bounds that follow from the size of the pool.
    pub bounds: SharedBounds,
    /// Figures of room that admission uses.
    pub room: Room,
    /// Delays writers, so that they do not outrun the cleaner.
    pub throttle: Throttle,
    /// Times that callers waited, by reason.
    pub waits: Waits,
    /// Space reserved by accepted changes, in bytes.
    pub claimed_bytes: AtomicU64,
    /// Bytes that reservations keep for their datasets alone (Q2).
    pub reserved_bytes: Arc<AtomicU64>,
    /// Bytes of accepted pages in memory.
    pub dirty_bytes: AtomicU64,
    /// Value of `dirty_bytes` at which writers commit themselves: at most [`Bounds::dirty_hard_bytes`], and less where
    /// each page changes a tree node of its own.
    pub dirty_limit: AtomicU64,
    /// Upper bound of the redo operations of accepted changes, in bytes.
    pub redo_bytes: AtomicU64,
    /// Number of accepted changes. Read under the gate's write side, it identifies a quiesce point.
    pub accepted: AtomicU64,
    /// Numbers of the datasets that accepted something since the last quiesce point. Each is listed once.
    pub touched: Mutex<Vec<u64>>,
    /// True while a commit is between its quiesce point and its end.
    pub in_flight: Mutex<bool>,
    /// Signalled at the end of each commit.
    pub landed: Condvar,
    /// Counters of I/O and other work.
    pub counters: Counters,
    /// Costs of deltas for readers.
    pub read_amplification: ReadAmplification,
    /// File systems that free the space of what was deleted in them.
    pub reapers: Reapers,
    /// Compression of new pages.
    pub compression: RwLock<Compression>,
    /// Terms in which mounts tell their space.
    pub thin_terms: Mutex<ThinTerms>,
    /// A [`PrimaryCache`], as its number.
    pub primary_cache: AtomicU8,
    /// True if the pool was opened read-only, or is being closed: its last checkpoint takes no more changes along.
    pub read_only: AtomicBool,
    failed: OnceLock<String>,
    committer: OnceLock<Weak<dyn Commit>>,
    journal: OnceLock<Arc<Journal>>,
}

impl Shared {
    /// Returns the state of a pool that is being opened.
    pub(crate) fn new(
        devices: Devices,
        (segments, chunks): (Arc<Segments>, Arc<Chunks>),
        nodes: Arc<NodeCache>,
        (cache, models): (RecordCache, ModelTable),
        bounds: Bounds,
    ) -> Self {
        Self {
            gate: RwLock::default(),
            devices,
            segments,
            chunks,
            nodes,
            cache,
            models,
            bounds: SharedBounds::new(bounds),
            room: Room::new(bounds.clean_chunks),
            throttle: Throttle::default(),
            waits: Waits::default(),
            claimed_bytes: AtomicU64::default(),
            reserved_bytes: Arc::default(),
            dirty_bytes: AtomicU64::default(),
            dirty_limit: bounds.dirty_hard_bytes.into(),
            redo_bytes: AtomicU64::default(),
            accepted: AtomicU64::default(),
            touched: Mutex::default(),
            in_flight: Mutex::default(),
            landed: Condvar::default(),
            counters: Counters::default(),
            recent: RecentPages::default(),
            read_amplification: ReadAmplification::default(),
            reapers: Reapers::default(),
            compression: RwLock::new(Compression::default()),
            thin_terms: Mutex::default(),
            primary_cache: AtomicU8::default(),
            read_only: AtomicBool::default(),
            failed: OnceLock::new(),
            committer: OnceLock::new(),
            journal: OnceLock::new(),
        }
    }

    /// Sets the committer.
    pub(crate) fn set_committer(&self, committer: Weak<dyn Commit>) {
        let _ = self.committer.set(committer);
    }

    /// Has changes entered into `journal` from now on.
    pub(crate) fn set_journal(&self, journal: Arc<Journal>) {
        let _ = self.journal.set(journal);
    }

    /// Returns the journal, if accepted changes are to survive the process.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get().map(AsRef::as_ref)
    }

    /// Returns the committer.
    ///
    /// # Errors
    /// [`Error::Failed`] once the pool is being closed.
    pub(crate) fn committer(&self) -> Result<Arc<dyn Commit>> {
        let found = self.committer.get().and_then(Weak::upgrade);
        found.ok_or_else(|| Error::Failed("the pool has been closed".into()))
    }

    /// Latches a failed write (contract W6): nothing is accepted any more.
    pub(crate) fn fail(&self, error: &Error) {
        let why = match error {
            // It says so already.
            Error::Failed(why) => why.clone(),
            other => other.to_string(),
        };
        if self.failed.set(why.clone()).is_ok() {
            let remedy = remedy(&why);
            tracing::error!(
                "the pool takes no more changes, and what was made durable stays: {why}; {remedy}"
            );
        }
    }

    /// Reads and verifies one record. If the record is kept twice, and its first copy is damaged or cannot be read, the
    /// second copy is returned.
    pub(crate) fn read_record(&self, addr: Addr) -> Result<Vec<u8>> {
        self.read_record_by(&self.devices, addr)
    }

    /// As [`Shared::read_record`], by requests of the class of `devices`.
    pub(crate) fn read_record_by(&self, devices: &Devices, addr: Addr) -> Result<Vec<u8>> {
        match self.read_one(devices, addr) {
            // A record that was freed meanwhile has no second copy any more, and is not damaged.
            Err(error) if self.segments.has_copy(addr) => {
                let struck = (Subject::Record(addr), self.place_of(&error));
                self.segments.or_second(Err(error), struck, || self.read_one(devices, addr.copy()))
            }
            first => first,
        }
    }

    /// Reads and verifies one copy of a record. A record may be moved between look-up and read, and its old place used
    /// anew; then the next look-up finds its new place. A failure is counted, unless the record is not live any more.
    pub(crate) fn read_one(&self, devices: &Devices, addr: Addr) -> Result<Vec<u8>> {
        let read = self.read_uncounted(devices, addr);
        read.map_err(|error| self.count_damage(error, Subject::Record(addr.original()), addr, 0))
    }

    /// As [`Shared::read_one`], for callers that count failures themselves.
    pub(crate) fn read_uncounted(&self, devices: &Devices, addr: Addr) -> Result<Vec<u8>> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            let mut record = Vec::new();
            let read = self.segments.read(devices, &[addr], &mut |_, bytes| {
                record = bytes.to_vec();
                Ok(())
            });
            match read {
                Ok(()) => return Ok(record),
                Err(Error::Corrupt { .. }) if attempts.next().is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts damage to a subject, at byte `offset` if it is an object, unless `addr` is of a record that is not live.
    /// Returns the error, marked as counted if it was counted.
    pub(crate) fn count_damage(
        &self,
        error: Error,
        subject: Subject,
        addr: impl Into<Option<Addr>>,
        offset: u64,
    ) -> Error {
        let Some(fault) = FaultKind::of(&error) else { return error };
        // If liveness cannot be determined, the record is taken for live.
        if addr.into().is_none_or(|addr| self.segments.is_live(addr).unwrap_or(true)) {
            self.segments.faults.count(fault, subject, self.place_of(&error), offset);
            return error.counted();
        }
        error
    }

    /// Returns the place of damage that an error names, if it names one.
    fn place_of(&self, error: &Error) -> Option<DamagedAt> {
        match error {
            Error::Io { device, offset, .. } => {
                Some(DamagedAt::new(self.devices.number_of(device)?, *offset, None))
            }
            error => error.place(),
        }
    }

    /// Marks the records of pages as dead. Pointers to records that were coded again may be out of date, so their
    /// lengths are read from the directory. The caller holds the log's lock or the gate, so that no segment is coded
    /// again meanwhile.
    pub(crate) fn free_pages(&self, ptrs: &[Ptr]) {
        ptrs.iter().for_each(|ptr| self.cache.remove(ptr.addr));
        self.segments.mark_dead(&self.exact(ptrs));
    }

    /// Returns the pointers with the lengths that are stored now.
    fn exact<'a>(&self, ptrs: &'a [Ptr]) -> Cow<'a, [Ptr]> {
        let mut exact = Cow::Borrowed(ptrs);
        for at in self.segments.recompressed(ptrs) {
            if let Some(ptr) = exact.to_mut().get_mut(at) {
                ptr.len_bytes = self.stored_len(*ptr);
            }
        }
        exact
    }

    /// Returns the length of a record as it is stored now, in bytes. If its directory cannot be read, the length in the
    /// pointer is returned.
    pub(crate) fn stored_len(&self, ptr: Ptr) -> u32 {
        match self.segments.locate(&self.devices, ptr.addr) {
            Ok(located) => located.len_bytes,
            Err(error) => {
                tracing::error!(%error, record = %ptr.addr, "the length of a record is not known; the sum of what is used is inexact");
                ptr.len_bytes
            }
        }
    }

    /// Returns the reason why the pool stopped, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Checks that the pool takes changes.
    ///
    /// # Errors
    /// [`Error::Failed`] if the pool has stopped; [`Error::ReadOnly`] if it was opened read-only, or is being closed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if let Some(why) = self.failed.get() {
            return Err(Error::Failed(why.clone()));
        }
        if self.read_only.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("the pool was opened read-only, or is being closed".into()));
        }
        Ok(())
    }

    /// Returns true if a change of at most [`crate::limits::ATOMIC_WRITE_MAX`] bytes finds the gate open and room in
    /// memory, log and pool.
    pub(crate) fn accepts_at_once(&self) -> bool {
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        let redo = self.redo_bytes.load(Ordering::Relaxed);
        let claimed = self.claimed_bytes.load(Ordering::Relaxed);
        let taken = self.taken_bytes(claimed).saturating_add(ROOMY_BYTES);
        let taken = taken.saturating_add(self.reserved_bytes.load(Ordering::Acquire));
        dirty < self.dirty_limit.load(Ordering::Relaxed) / 2
            && redo < REDO_BYTES_MAX / 2
            && taken < self.bounds.get().capacity_bytes
            && !self.wants_cleaning()
            && !self.gate.is_locked_exclusive()
            && self.journal().is_none_or(Journal::is_roomy)
    }

    /// Returns the bytes that the pool holds, or will hold at most once `claimed` bytes and the changed tree nodes are
    /// stored.
    fn taken_bytes(&self, claimed: u64) -> u64 {
        // A changed node in memory is longer than its two stored copies together.
        self.segments.used_bytes().saturating_add(claimed).saturating_add(self.nodes.unstored_bytes())
    }

    /// Reserves `bytes` of space for a change (contract W5). A change that frees space may exceed the capacity by
    /// `beyond` bytes, which come from the pool's reserve. There must also be room for `edits` more bytes, which the
    /// change takes at once.
    pub(crate) fn reserve(&self, bytes: u64, beyond: u64, edits: u64) -> Result<(), Shortage> {
        let reserved = self.reserved_bytes.load(Ordering::Acquire);
        let limit = self.bounds.get().capacity_bytes.saturating_add(beyond);
        let claimed = self.claimed_bytes.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        // When a reservation is used, its bytes leave one sum and enter the other, in either order. The larger of
        // the values before and after misses none of them.
        let reserved = reserved.max(self.reserved_bytes.load(Ordering::Acquire));
        let shortage = if self.taken_bytes(claimed).saturating_add(reserved) > limit {
            Shortage::Pool
        } else if !self.has_room(RoomRequest { edit_bytes: edits, ..RoomRequest::NONE }) {
            Shortage::Room
        } else {
            return Ok(());
        };
        self.release(bytes);
        Err(shortage)
    }

    /// As [`Shared::reserve`], for a dataset with a budget.
    pub(crate) fn reserve_within(
        &self,
        budget: &Budget,
        claim: Claim,
        beyond: Beyond,
        edits: u64,
    ) -> Result<(), Shortage> {
        self.claimed_bytes.fetch_add(claim.bytes, Ordering::AcqRel);
        let uncovered = match budget.claim(claim, beyond.quota_bytes) {
            Ok(uncovered) => uncovered,
            Err(refused) => {
                self.release(claim.bytes);
                return Err(Shortage::Quota(refused));
            }
        };
        // Bytes that a reservation covers are set aside already: for them, other reservations need not be left free.
        let reserved = if uncovered > 0 { self.reserved_bytes.load(Ordering::Acquire) } else { 0 };
        let claimed = self.claimed_bytes.load(Ordering::Acquire);
        let taken = self.taken_bytes(claimed).saturating_add(reserved);
        let shortage = if taken > self.bounds.get().capacity_bytes.saturating_add(beyond.pool_bytes) {
            Shortage::Pool
        } else if !self.has_room(RoomRequest { edit_bytes: edits, ..RoomRequest::NONE }) {
            Shortage::Room
        } else {
            return Ok(());
        };
        budget.release(claim);
        self.release(claim.bytes);
        Err(shortage)
    }

    /// Returns true if a change of `bytes` does not fit even if all other accepted changes take nothing.
    pub(crate) fn is_full(&self, bytes: u64, beyond: u64) -> bool {
        let taken = self.segments.used_bytes().saturating_add(bytes);
        let taken = taken.saturating_add(self.reserved_bytes.load(Ordering::Acquire));
        taken > self.bounds.get().capacity_bytes.saturating_add(beyond)
    }

    /// Gives reserved space back.
    pub(crate) fn release(&self, bytes: u64) {
        subtract_shared(&self.claimed_bytes, bytes);
    }

    /// Reserves room for a change in the next batch of operations. Returns false if a commit must come first. The
    /// caller holds the gate, so that no quiesce point sees the reservation without its change.
    pub(crate) fn reserve_redo(&self, bytes: u64) -> bool {
        let before = self.redo_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A change alone always fits, because all of its parts together are bounded (`REDO_ALONE_BYTES_MAX`).
        let fits = before == 0 || before.saturating_add(bytes) <= REDO_BYTES_MAX;
        if !fits {
            self.release_redo(bytes);
        }
        fits
    }

    /// Gives back room that [`Shared::reserve_redo`] reserved.
    pub(crate) fn release_redo(&self, bytes: u64) {
        self.redo_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Waits until no commit is in flight.
    pub(crate) fn wait_landed(&self) {
        let mut in_flight = self.in_flight.lock();
        while *in_flight {
            self.landed.wait(&mut in_flight);
        }
    }

    /// Returns the kinds of records that the cache holds.
    pub(crate) fn primary_cache(&self) -> PrimaryCache {
        match self.primary_cache.load(Ordering::Relaxed) {
            0 => PrimaryCache::All,
            1 => PrimaryCache::Metadata,
            _ => PrimaryCache::None,
        }
    }

    /// Returns the space of the pool. `logical_bytes` is 0: datasets add theirs.
    pub(crate) fn space(&self) -> Space {
        let claimed = self.claimed_bytes.load(Ordering::Relaxed);
        let taken = self.taken_bytes(claimed).saturating_add(self.reserved_bytes.load(Ordering::Acquire));
        let space = Space {
            capacity_bytes: self.bounds.get().capacity_bytes,
            used_bytes: self.segments.used_bytes(),
            // The sum may exceed the capacity, since changes that free something may.
            available_bytes: self.bounds.get().capacity_bytes.saturating_sub(taken),
            ..Space::default()
        };
        Space { thin: self.thin_terms.lock().thin(&space), ..space }
    }
}
