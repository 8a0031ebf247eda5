//! A member of a group: a device that the pool has, whether it is here or not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::Device;
use crate::ranges::Ranges;

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

/// A member of a group.
pub(super) struct GroupMember {
    /// Number of the device in the pool.
    pub(super) number: u16,
    /// The device; `None` if it is not here.
    device: Option<Arc<dyn Device>>,
    state: AtomicU8,
    /// Number of reads of the device that are planned or under way.
    reads: AtomicU32,
    /// Regions of which it lacks something.
    lacks: Mutex<Ranges>,
}

impl GroupMember {
    /// Returns the member for a device that is open.
    pub(super) fn open(number: u16, device: Arc<dyn Device>, state: MemberState) -> Self {
        Self::new(number, Some(device), state)
    }

    /// Returns the member for a device that is not here.
    pub(super) fn away(number: u16, state: MemberState) -> Self {
        debug_assert!(!state.is_written());
        Self::new(number, None, state)
    }

    fn new(number: u16, device: Option<Arc<dyn Device>>, state: MemberState) -> Self {
        Self { number, device, state: (state as u8).into(), reads: 0.into(), lacks: Mutex::default() }
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

    /// Returns the path of the device, for messages; an empty one if it is not here.
    pub(super) fn path(&self) -> &Path {
        self.device().map_or(Path::new(""), |device| device.path())
    }

    /// Returns the number of reads that are planned or under way.
    pub(super) fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
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

    /// Notes that the member has all of a region.
    pub(super) fn has(&self, region: u64) {
        self.lacks.lock().remove_range(region..region + 1);
    }
}

/// A member that is being read, or is about to be. Readers take the member that has the fewest.
pub(super) struct ReadUnderWay(Arc<GroupMember>);

impl ReadUnderWay {
    pub(super) fn begin(member: &Arc<GroupMember>) -> Self {
        member.reads.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(member))
    }

    /// Returns the member.
    pub(super) fn member(&self) -> &Arc<GroupMember> {
        &self.0
    }
}

impl Drop for ReadUnderWay {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
    }
}
