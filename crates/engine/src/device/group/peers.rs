//! The members of a group, and what each means to the others: whether one that does not answer can be done without.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::Members;
use crate::device::Device;
use crate::device::answers::{self, Answers, Judge};
use crate::device::member::{GroupMember, MemberState};
use crate::device::stats::Began;

/// Time within which a device has to answer, unless it is told otherwise, in nanoseconds.
const BOUND_NS: u64 = 20_000_000_000;

/// The members of a group.
pub(super) struct Peers {
    pub(super) members: RwLock<Members>,
    /// True if the pool can do without the group (H4).
    pub(super) is_spared: AtomicBool,
    /// Time for which a device is waited for that does not answer, in nanoseconds; 0: until it does.
    pub(super) bound_ns: AtomicU64,
    own: Weak<Self>,
}

impl Peers {
    pub(super) fn new(members: Members) -> Arc<Self> {
        let peers = Arc::new_cyclic(|own| Self {
            members: RwLock::new(members),
            is_spared: AtomicBool::new(false),
            bound_ns: AtomicU64::new(BOUND_NS),
            own: Weak::clone(own),
        });
        peers.members.read().iter().for_each(|member| peers.greet(member));
        peers
    }

    /// Tells the device of a new member whom it can ask for the others.
    pub(super) fn greet(&self, member: &GroupMember) {
        if let Some(answers) = member.device().and_then(|device| device.answers()) {
            answers.join(Weak::clone(&self.own) as Weak<dyn Judge>);
        }
    }
}

fn is_of(member: &GroupMember, device: &Answers) -> bool {
    member.device().and_then(|device| device.answers()).is_some_and(|answers| std::ptr::eq(answers, device))
}

impl Judge for Peers {
    fn bound_ns(&self, device: &Answers) -> Option<u64> {
        let bound_ns = self.bound_ns.load(Ordering::Relaxed);
        let is_alone = || matches!(self.members.read().as_slice(), [alone] if is_of(alone, device));
        let is_bounded = bound_ns > 0 && (self.is_spared.load(Ordering::Relaxed) || !is_alone());
        is_bounded.then_some(bound_ns)
    }

    fn goes_on_without(&self, device: &Answers, began: Began, bound_ns: u64) -> bool {
        let members = self.members.read();
        // Nothing waits for a device that has left, was closed or has another one in its place.
        let Some(own) = members.iter().find(|member| is_of(member, device)) else { return true };
        // Nothing waits for a member that is not written, and nothing is lost with a group that the pool can do without.
        if !own.state().is_written() || self.is_spared.load(Ordering::SeqCst) {
            return true;
        }
        let answers = |other: &Arc<dyn Device>| {
            other.answers().is_some_and(|answers| answers.has_answered(began, bound_ns))
        };
        others(&members, device).any(answers)
    }

    fn ask_others(&self, device: &Answers, read: bool) {
        others(&self.members.read(), device).for_each(|other| answers::try_out(other, read));
    }
}

/// Returns the whole members beside the one that this is of, of which the group could live on.
fn others<'a>(
    members: &'a [Arc<GroupMember>],
    device: &'a Answers,
) -> impl Iterator<Item = &'a Arc<dyn Device>> {
    let is_other =
        |member: &&Arc<GroupMember>| member.state() == MemberState::Whole && !is_of(member, device);
    members.iter().filter(is_other).filter_map(|member| member.device())
}
