//! A member of a group: a device that the pool has, whether it is here or not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Device;
use super::class::{IoClass, IoKind};
use super::latency::Latency;
use super::queue::IoTurn;
use super::stats::{Began, RequestStats};
use crate::ranges::Ranges;
use crate::{Error, Result};

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MemberState {
    /// It holds all of its group: it is read and written.
    Whole = 0,
    /// It is written, and gets what it lacks. It is not read.
    Filling = 1,
    /// It is neither read nor written: somebody has taken it out.
    Offline = 2,
    /// It is neither read nor written: it failed a write or a flush.
    Faulted = 3,
    /// It is neither read nor written: it was not found, or had not come as far as the other members.
    Away = 4,
}

impl MemberState {
    /// Returns the state of a stored form; `None` if there is none.
    pub(crate) fn from_raw(raw: u8) -> Option<Self> {
        [Self::Whole, Self::Filling, Self::Offline, Self::Faulted, Self::Away]
            .into_iter()
            .find(|state| *state as u8 == raw)
    }

    /// Returns true if writes go to members of this state.
    pub(crate) fn is_written(self) -> bool {
        matches!(self, Self::Whole | Self::Filling)
    }
}

/// All regions of whatever device.
pub(crate) const ALL: std::ops::Range<u64> = 0..u64::MAX / super::REGION_BYTES;

/// A member of a group.
pub(super) struct GroupMember {
    /// Number of the device in the pool.
    pub(super) number: u16,
    /// The device; `None` if it is not here.
    device: Option<Arc<dyn Device>>,
    /// The device that was given up, as long as somebody uses it; `None` if none was.
    released: Option<Weak<dyn Device>>,
    /// Path of the device, for messages, or of the one that was here; empty if there was none.
    path: PathBuf,
    state: AtomicU8,
    /// Number of reads of the device that are planned or under way.
    reads: AtomicU32,
    /// The time that they take. A device that keeps the order of calls is not timed: time would make the order another one.
    latency: Latency,
    is_timed: bool,
    /// Regions of which it lacks something. A device that takes this one's place has the same.
    lacks: Arc<Mutex<Ranges>>,
}

impl GroupMember {
    /// Returns the member for a device that is open. Unless it is whole, it lacks everything.
    pub(super) fn open(number: u16, device: Arc<dyn Device>, state: MemberState) -> Self {
        let path = device.path().to_path_buf();
        let is_timed = !device.keeps_order();
        Self { device: Some(device), path, is_timed, ..Self::new(number, state) }
    }

    /// Returns the member for a device that is not here.
    pub(super) fn away(number: u16, state: MemberState) -> Self {
        debug_assert!(!state.is_written());
        Self::new(number, state)
    }

    fn new(number: u16, state: MemberState) -> Self {
        let mut lacks = Ranges::default();
        if state != MemberState::Whole {
            lacks.insert_range(ALL);
        }
        let lacks = Arc::new(Mutex::new(lacks));
        let path = PathBuf::new();
        let latency = Latency::default();
        let (state, reads) = ((state as u8).into(), 0.into());
        let (device, released) = (None, None);
        Self { number, device, released, path, state, reads, latency, is_timed: false, lacks }
    }

    /// Returns the member with another device, in another state. It lacks what this one lacks.
    pub(super) fn with_device(&self, device: Arc<dyn Device>, state: MemberState) -> Self {
        Self { lacks: Arc::clone(&self.lacks), ..Self::open(self.number, device, state) }
    }

    /// Returns the member without its device, in the same state.
    pub(super) fn without_device(&self) -> Self {
        let (lacks, path) = (Arc::clone(&self.lacks), self.path.clone());
        let released = self.device().map(Arc::downgrade).or_else(|| self.released.clone());
        Self { lacks, path, released, ..Self::new(self.number, self.state()) }
    }

    /// Returns true if the device is not here, and nobody uses it any more since it was given up.
    pub(super) fn is_closed(&self) -> bool {
        let is_used = self.released.as_ref().is_some_and(|device| device.strong_count() > 0);
        self.device.is_none() && !is_used
    }

    /// Returns the member's state.
    pub(super) fn state(&self) -> MemberState {
        MemberState::from_raw(self.state.load(Ordering::SeqCst)).unwrap_or(MemberState::Away)
    }

    /// Gives the member another state. Returns the one before.
    pub(super) fn set_state(&self, state: MemberState) -> MemberState {
        let before = self.state.swap(state as u8, Ordering::SeqCst);
        MemberState::from_raw(before).unwrap_or(MemberState::Away)
    }

    /// Returns the device, if it is here.
    pub(super) fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    /// Returns the device, if it is read.
    pub(super) fn readable(&self) -> Option<&Arc<dyn Device>> {
        self.device().filter(|_| self.state() == MemberState::Whole)
    }

    /// Returns the device, if it is written.
    pub(super) fn writable(&self) -> Option<&Arc<dyn Device>> {
        self.device().filter(|_| self.state().is_written())
    }

    /// Returns the path of the device, for messages, or of the one that was here; an empty one if there was none.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of reads that are planned or under way.
    pub(super) fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns the mean time of a read, in nanoseconds; 0 if it is not known.
    pub(super) fn latency_ns(&self) -> u64 {
        if self.is_timed { self.latency.ns() } else { 0 }
    }

    /// Notes that the member lacks something of these regions.
    pub(super) fn lacks(&self, regions: impl Iterator<Item = std::ops::Range<u64>>) {
        let mut lacks = self.lacks.lock();
        regions.for_each(|range| lacks.insert_range(range));
    }

    /// Returns the regions of which it lacks something.
    pub(super) fn lacking(&self) -> Ranges {
        self.lacks.lock().clone()
    }

    /// Returns the lowest region of which it lacks something.
    pub(super) fn first_lacking(&self) -> Option<u64> {
        self.lacks.lock().iter().next().map(|range| range.start)
    }

    /// Notes that the member lacks something of these regions, and of no others.
    pub(super) fn lacks_only(&self, regions: Ranges) {
        *self.lacks.lock() = regions;
    }

    /// Notes that the member has all of these regions.
    pub(super) fn has(&self, regions: std::ops::Range<u64>) {
        self.lacks.lock().remove_range(regions);
    }
}

/// A read of a member that is under way, or is about to be made. Readers take the member that has the fewest.
///
/// It is one request from its planning on, until it ends or is dropped. One of a class that waits for its turn is waiting
/// until it starts.
pub(super) struct ReadUnderWay {
    member: Arc<GroupMember>,
    class: IoClass,
    /// The instant at which it began; `None` if it has ended.
    began: Option<Began>,
    /// The instant at which it has started, if it had to wait before.
    started: Option<Began>,
    /// True if another member could be read instead, and somebody waits.
    has_others: bool,
    /// True if it is overdue.
    is_overdue: bool,
}

impl ReadUnderWay {
    pub(super) fn begin(member: &Arc<GroupMember>, class: IoClass) -> Self {
        member.reads.fetch_add(1, Ordering::Relaxed);
        let (has_others, is_overdue) = (false, false);
        let member = Arc::clone(member);
        let mut read = Self { member, class, began: None, started: None, has_others, is_overdue };
        read.plan();
        read
    }

    /// Notes whether another member could be read instead.
    pub(super) fn with_others(mut self, has_others: bool) -> Self {
        self.has_others = has_others && self.class == IoClass::SyncRead && self.member.is_timed;
        self
    }

    /// Returns true if another member may be read, too, when this one is overdue.
    pub(super) fn has_others(&self) -> bool {
        self.has_others
    }

    /// Returns the time at which the read is overdue, and the time from its beginning to then.
    pub(super) fn due_ns(&self) -> (u64, u64) {
        let bound_ns = self.member.latency.patience().bound_ns();
        (self.began.map_or(u64::MAX, |began| began.ns().saturating_add(bound_ns)), bound_ns)
    }

    /// Notes that the read is overdue, and that another member is read, too.
    pub(super) fn overdue(&mut self) {
        if let (Some(began), false, Some(device)) = (self.began, self.is_overdue, self.member.device()) {
            self.is_overdue = true;
            self.member.latency.overdue(began);
            device.stats().hedge();
        }
    }

    /// Notes that somebody else has what the read is for. If it is overdue, another member has answered first.
    pub(super) fn is_lost(&self) {
        if let (true, Some(device)) = (self.is_overdue, self.member.device()) {
            device.stats().hedge_won();
        }
    }

    /// Leaves the read alone, which nobody waits for any more. What it takes is counted when it ends.
    pub(super) fn leave(mut self) -> LateTurn {
        let device = self.member.device().map(Arc::downgrade);
        // It stays under way, as the end of `self` counts one as ended.
        self.member.reads.fetch_add(1, Ordering::Relaxed);
        LateTurn {
            device,
            member: Arc::downgrade(&self.member),
            class: self.class,
            began: self.began.take(),
            is_overdue: std::mem::take(&mut self.is_overdue),
        }
    }

    fn plan(&mut self) {
        self.started = None;
        self.began = match self.class.waits() {
            true => self.stats().map(RequestStats::arrive),
            false => self.stats().map(RequestStats::begin),
        };
    }

    /// Returns true if the read has to wait for its turn ([`ReadUnderWay::wait`]) before it starts.
    pub(super) fn waits(&self) -> bool {
        self.class.waits() && self.member.is_timed
    }

    /// Waits until it is the turn of reads at `offset` of `device`, the member's, of which the caller can make `wanted`
    /// at once, of `bytes` each.
    pub(super) fn wait<'a>(&self, device: &'a dyn Device, place: (u64, u64), wanted: usize) -> IoTurn<'a> {
        device.stats().wait(self.class, place, wanted)
    }

    /// Notes that a read that has waited starts. Does nothing if it need not wait, or has started.
    pub(super) fn start(&mut self) {
        if !self.class.waits() || self.started.is_some() {
            return;
        }
        if self.began.is_none() {
            self.plan();
        }
        if let Some(stats) = self.stats() {
            stats.start();
            self.started = Some(Began::now());
        }
    }

    /// Returns the member.
    pub(super) fn member(&self) -> &Arc<GroupMember> {
        &self.member
    }

    fn stats(&self) -> Option<&RequestStats> {
        Some(self.member.device()?.stats().of(self.class, IoKind::Read))
    }

    fn end_overdue(&mut self) {
        if std::mem::take(&mut self.is_overdue) {
            self.member.latency.overdue_ended();
        }
    }

    /// Counts the read as done.
    pub(super) fn end(&mut self, bytes: u64) {
        self.start();
        self.end_overdue();
        let started = self.started.take();
        if let (Some(began), Some(stats)) = (self.began.take(), self.stats()) {
            let took_ns = stats.end(began, bytes);
            if self.member.is_timed {
                self.member.latency.note(started.map_or(took_ns, Began::elapsed_ns));
            }
        }
    }

    /// Counts the read as failed: others are preferred for a while.
    pub(super) fn fail(&mut self, error: &Error) {
        self.start();
        self.end_overdue();
        self.started = None;
        if let (Some(_), Some(stats)) = (self.began.take(), self.stats()) {
            stats.fail(error);
            if self.member.is_timed {
                self.member.latency.note_failure();
            }
        }
    }

    /// Makes the read of `bytes` at `offset` when it is its turn, anew if it has ended, and counts it.
    pub(super) fn make(
        &mut self,
        (offset, bytes): (u64, u64),
        read: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.began.is_none() {
            self.plan();
        }
        let made = if self.waits() {
            let member = Arc::clone(&self.member);
            let turn = member.device().map(|device| self.wait(device.as_ref(), (offset, bytes), 1));
            self.start();
            let made = read();
            drop(turn);
            made
        } else {
            self.start();
            read()
        };
        match &made {
            Ok(()) => self.end(bytes),
            Err(error) => self.fail(error),
        }
        made
    }
}

impl Drop for ReadUnderWay {
    fn drop(&mut self) {
        self.member.reads.fetch_sub(1, Ordering::Relaxed);
        self.end_overdue();
        let is_waiting = self.class.waits() && self.started.is_none();
        match (self.began.take(), self.stats()) {
            (Some(_), Some(stats)) if is_waiting => stats.leave(),
            (Some(_), Some(stats)) => stats.give_up(),
            _ => {}
        }
    }
}

/// A read that nobody waits for any more. It does not keep its device open.
pub(super) struct LateTurn {
    device: Option<Weak<dyn Device>>,
    member: Weak<GroupMember>,
    class: IoClass,
    began: Option<Began>,
    is_overdue: bool,
}

/// Age of a late read from which on it is told of.
const TOLD_NS: u64 = 1_000_000_000;

impl LateTurn {
    /// Tells that the device has not answered for long. Returns true if it need not be asked again.
    pub(super) fn tell(&self) -> bool {
        let (Some(member), Some(began)) = (self.member.upgrade(), self.began) else { return true };
        let age_ns = began.elapsed_ns();
        if self.is_overdue && age_ns < TOLD_NS {
            return false;
        }
        if self.is_overdue && member.latency.is_to_be_told() {
            let (device, seconds) = (member.path().display(), age_ns / 1_000_000_000);
            tracing::warn!(%device, seconds, "it does not answer a read; its mirror is read instead");
        }
        true
    }

    /// Notes that another member has answered before.
    pub(super) fn is_lost(&self) {
        if let (true, Some(device)) = (self.is_overdue, self.device.as_ref().and_then(Weak::upgrade)) {
            device.stats().hedge_won();
        }
    }

    /// Counts the read as ended: done, failed, or given up. Who has left meanwhile counts nothing.
    pub(super) fn end(self, outcome: Option<Result<u64>>) {
        let member = self.member.upgrade();
        let mut took_ns = None;
        if let (Some(device), Some(began)) = (self.device.and_then(|device| device.upgrade()), self.began) {
            let stats = device.stats().of(self.class, IoKind::Read);
            match &outcome {
                Some(Ok(bytes)) => took_ns = Some(stats.end(began, *bytes)),
                Some(Err(error)) => stats.fail(error),
                None => stats.give_up(),
            }
        }
        let Some(member) = member else { return };
        member.reads.fetch_sub(1, Ordering::Relaxed);
        if self.is_overdue {
            let is_long = took_ns.is_some_and(|took_ns| took_ns >= TOLD_NS);
            if is_long && member.latency.is_to_be_told() {
                let (device, ms) = (member.path().display(), took_ns.unwrap_or_default() / 1_000_000);
                tracing::warn!(%device, ms, "it took long to answer a read; its mirror was read instead");
            }
            member.latency.overdue_ended();
        }
        match (took_ns, outcome) {
            (Some(took_ns), _) => member.latency.note(took_ns),
            (_, Some(Err(_))) => member.latency.note_failure(),
            _ => {}
        }
    }
}
