//! The devices of a pool: the only door to what they hold.
//!
//! A pool is a set of groups, and a place on its storage is a byte of a group. A group is one device, or a mirror of
//! several. Everything that reads, writes, flushes or discards gives the number of a group, and gets the same error if
//! none of its devices can be used ([`NoDevice`]).

mod members;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use smallvec::SmallVec;

use super::again::again;
use super::answers::{Judge, Strangers};
use super::behind::WritesBehind;
use super::class::IoClass;
use super::flush::{FlushFailure, at_once};
use super::group::{Choice, Group, GroupFlush, Roster};
use super::lane::Lane;
use super::member::{GroupMember, MemberState};
use super::missing::NoDevice;
use super::queue::PIECE_BYTES;
use super::redirected::{OtherPlace, OtherPlaces, Redirection};
use super::{AlignedBuf, Device, OneDevice, PlannedRead, ReadFrom, Span};
use crate::{Error, Result};

/// Longest read that joins neighbours, in bytes, if somebody waits for it; or less, if a device takes less as one.
pub(crate) const READ_BYTES_MAX: u64 = 1 << 20;

/// The devices of a pool.
///
/// A read hands over what verifies its bytes, so that another member can be tried, and nobody gets hold of a device's
/// own interface here.
#[derive(Clone)]
pub struct Devices {
    /// Groups are added, and keep their places.
    groups: Arc<boxcar::Vec<Group>>,
    behind: Arc<WritesBehind>,
    roster: Arc<OnceLock<Weak<dyn Roster>>>,
    strangers: Arc<Strangers>,
    choice: Choice,
    /// Class of the requests that are made by this handle.
    class: IoClass,
}

/// A member of a group, as the opening of a pool found it.
pub(crate) struct FoundMember {
    /// Number of the device.
    pub number: u16,
    /// The device, if it is here.
    pub device: Option<Arc<dyn Device>>,
    /// State of the member.
    pub state: MemberState,
}

/// A device that is here, with its place in the pool.
pub(crate) struct DeviceHere {
    /// Number of the device.
    pub number: u16,
    /// Number of its group.
    pub group: u16,
    /// State of the member.
    pub state: MemberState,
    device: Arc<dyn Device>,
}

impl DeviceHere {
    /// Returns the handle of the device.
    pub(crate) fn one(&self) -> OneDevice<'_> {
        OneDevice::of(self.device.as_ref())
    }
}

impl Devices {
    /// Takes devices, numbered in this order, each as a group of its own.
    pub fn all(devices: Vec<Arc<dyn Device>>) -> Self {
        let member = |(number, device)| GroupMember::open(number, device, MemberState::Whole);
        Self::of(devices.into_iter().zip(0..).map(|(device, number)| [member((number, device))]))
    }

    /// Takes the members of groups, numbered in this order.
    pub(crate) fn of_pool(groups: impl IntoIterator<Item = Vec<FoundMember>>) -> Self {
        let member = |FoundMember { number, device, state }| match device {
            Some(device) => GroupMember::open(number, device, state),
            None => GroupMember::away(number, state),
        };
        Self::of(groups.into_iter().map(|members| members.into_iter().map(member)))
    }

    fn of(groups: impl Iterator<Item = impl IntoIterator<Item = GroupMember>>) -> Self {
        let groups = groups.zip(0..=u16::MAX).map(|(members, number)| Group::new(number, members));
        let groups: boxcar::Vec<Group> = groups.collect();
        let bound_ns = groups.get(0).map_or(0, Group::waits_at_most);
        let (groups, strangers) = (Arc::new(groups), Arc::new(Strangers { bound_ns: bound_ns.into() }));
        let (behind, roster) = Default::default();
        Self { groups, behind, roster, strangers, choice: Choice::Any, class: IoClass::SyncRead }
    }

    /// Makes groups of devices, numbered in this order.
    pub(crate) fn groups(groups: Vec<Vec<Arc<dyn Device>>>) -> Self {
        let mut numbers = 0..=u16::MAX;
        Self::of(groups.into_iter().map(|group| {
            let member = |(device, number)| GroupMember::open(number, device, MemberState::Whole);
            group.into_iter().zip(&mut numbers).map(member).collect::<Vec<_>>()
        }))
    }

    /// Returns the same devices for requests of a class. Before, reads are waited for ([`IoClass::SyncRead`]).
    pub(crate) fn of_class(&self, class: IoClass) -> Self {
        Self { class, ..self.clone() }
    }

    /// Returns the class of the requests that are made by this handle.
    pub(crate) fn class(&self) -> IoClass {
        self.class
    }

    /// Has the requests of a class go at once from now on, because somebody waits for what they are made for; or wait for
    /// their turns again.
    pub(crate) fn hurry(&self, class: IoClass, hurried: bool) {
        self.each().for_each(|group| group.hurry(class, hurried));
    }

    /// Says how long a device is waited for that does not answer, where the pool can go on without it, in nanoseconds; 0:
    /// until it does.
    pub(crate) fn wait_at_most(&self, bound_ns: u64) {
        self.each().for_each(|group| group.wait_at_most(bound_ns));
        self.strangers.bound_ns.store(bound_ns, Ordering::SeqCst);
    }

    /// Has a device be waited for as long that is of no group: it is to become a member, or a spare.
    pub(crate) fn bound(&self, device: &dyn Device) {
        if let Some(answers) = device.answers() {
            let strangers: Weak<Strangers> = Arc::downgrade(&self.strangers);
            answers.join(strangers as Weak<dyn Judge>);
        }
    }

    /// Returns the length up to which neighbours in a group are to be read by one request of this handle, in bytes.
    pub(crate) fn read_bytes_max(&self, group: u16) -> u64 {
        let group = self.groups.get(usize::from(group));
        if self.class.waits() && group.is_some_and(|group| !group.keeps_order()) {
            return PIECE_BYTES;
        }
        group.map_or(READ_BYTES_MAX, |group| group.request_bytes_max().min(READ_BYTES_MAX))
    }

    /// Returns the same devices for one who reads the copy that member `at` of each group has, of those that can be
    /// read, and no other one, even if that is damaged. If a group has fewer such members, it is the last one.
    pub(crate) fn only_copy(&self, at: usize) -> Self {
        Self { choice: Choice::Only(at), ..self.clone() }
    }

    /// Does the same as [`Devices::only_copy`], but a copy that is damaged is read from another member, and written
    /// again.
    pub(crate) fn copy_first(&self, at: usize) -> Self {
        Self { choice: Choice::First(at), ..self.clone() }
    }

    /// Returns the largest number of members of a group that can be read.
    pub(crate) fn copies_max(&self) -> usize {
        (0..=u16::MAX).zip(self.each()).map(|(number, _)| self.copies(number)).max().unwrap_or_default()
    }

    /// Gives the devices the one who writes their labels, once.
    pub(crate) fn set_roster(&self, roster: Weak<dyn Roster>) {
        // A second one would be a mistake of the caller's, and changes nothing.
        let _ = self.roster.set(roster);
    }

    fn roster(&self) -> Option<Arc<dyn Roster>> {
        self.roster.get().and_then(Weak::upgrade)
    }

    fn each(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, group)| group)
    }

    /// Adds a group, and returns its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such number.
    pub(crate) fn add_group(&self, members: Vec<(u16, Arc<dyn Device>)>) -> Result<u16> {
        let open = |(number, device)| GroupMember::open(number, device, MemberState::Whole);
        let most = usize::from(u16::MAX);
        if self.groups.count() >= most {
            return Err(Error::Invalid(format!("a pool has at most {most} groups of devices")));
        }
        let number = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
        let bound_ns = self.each().next().map(Group::waits_at_most);
        let at = self.groups.push_with(|at| {
            let group = Group::new(number(at), members.into_iter().map(open));
            group.wait_at_most(bound_ns.unwrap_or_else(|| group.waits_at_most()));
            group
        });
        Ok(number(at))
    }

    /// Returns the mean time of the reads of a device, and of the fastest other one of its group, in nanoseconds; 0 if that
    /// is not known.
    pub(crate) fn latency_ns(&self, group: u16, device: u16) -> (u64, u64) {
        let members = self.groups.get(usize::from(group)).map(Group::members).unwrap_or_default();
        let known = members.iter().map(|member| (member.number == device, member.latency_ns()));
        let of =
            |own: bool| known.clone().filter(move |(is_own, ns)| *is_own == own && *ns > 0).map(|(_, ns)| ns);
        (of(true).min().unwrap_or_default(), of(false).min().unwrap_or_default())
    }

    /// Returns the number of groups.
    pub(crate) fn len(&self) -> usize {
        self.groups.count()
    }

    /// Returns the number of a group's first device.
    pub(crate) fn first_number(&self, group: u16) -> u16 {
        self.states(group).first().map_or(group, |(number, _)| *number)
    }

    /// Returns the number above that of every device.
    pub(crate) fn numbers(&self) -> usize {
        let of_group =
            |group: &Group| group.members().iter().map(|member| usize::from(member.number) + 1).max();
        self.each().filter_map(of_group).max().unwrap_or_default()
    }

    /// Returns the path of a group's first device that can be read, for messages.
    pub(crate) fn path_of(&self, group: u16) -> PathBuf {
        let members = self.groups.get(usize::from(group)).map(Group::members).unwrap_or_default();
        let first = members.iter().find(|member| member.readable().is_some());
        first.map(|member| member.path().to_path_buf()).unwrap_or_default()
    }

    fn group(&self, number: u16) -> Result<&Group, NoDevice> {
        let group = self.groups.get(usize::from(number)).ok_or(NoDevice::Unknown(number))?;
        if group.is_readable() { Ok(group) } else { Err(NoDevice::Missing(number)) }
    }

    /// Returns the bytes up to which every device of a group that can be read reaches.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub(crate) fn size_bytes(&self, group: u16) -> Result<u64, NoDevice> {
        let members = self.group(group)?.members();
        let sizes = members.iter().filter_map(|member| Some(member.readable()?.size_bytes()));
        sizes.min().ok_or(NoDevice::Missing(group))
    }

    /// Plans the reading of `span`.
    ///
    /// # Errors
    /// [`NoDevice`]; [`Error::Corrupt`] if the span ends beyond its device.
    pub(crate) fn plan(&self, span: Span) -> Result<PlannedRead> {
        self.plan_without(span, &[])?.ok_or_else(|| NoDevice::Missing(span.group).into())
    }

    /// Plans the reading of `span` from a member that is not in `tried`; `None` if there is none.
    pub(super) fn plan_without(&self, span: Span, tried: &[u16]) -> Result<Option<PlannedRead>> {
        let group = self.group(span.group)?;
        self.behind.wait_for(span.group, &(span.offset..span.offset + span.len_bytes));
        let turn = group.choose(span.offset, tried, self.choice, self.class);
        turn.map(|turn| PlannedRead::new(turn, span)).transpose()
    }

    /// Reads `span`, and returns what `verify` makes of its bytes, with the device that they come from. This is the
    /// plan of the read, carried out at once. `verify` is called for each member of the group, until it returns
    /// no error; then those before it are written again.
    ///
    /// # Errors
    /// Those of [`Devices::plan`], of the device, and of `verify`: the first one, if no member has the bytes.
    pub(crate) fn read<T>(&self, span: Span, verify: impl Fn(&[u8], ReadFrom<'_>) -> Result<T>) -> Result<T> {
        let read = self.carry_out_one(self.plan(span)?, &[]).and_then(|read| {
            let number = read.number();
            read.verified(&verify).map_err(|error| (number, error))
        });
        read.or_else(|(number, error)| self.read_elsewhere(span, number, error, verify))
    }

    /// Reads from other members of the group what `device` should have given; `error` says what was wrong with it there.
    ///
    /// # Errors
    /// `error`, if no other member has it.
    pub(crate) fn read_elsewhere<T>(
        &self,
        span: Span,
        device: u16,
        error: Error,
        verify: impl Fn(&[u8], ReadFrom<'_>) -> Result<T>,
    ) -> Result<T> {
        let by_itself = |error: &Error| matches!(error, Error::Io { .. });
        let mut failed: SmallVec<[(u16, Error); 3]> = smallvec::smallvec![(device, error)];
        loop {
            let tried: SmallVec<[u16; 4]> = failed.iter().map(|(number, _)| *number).collect();
            let Ok(Some(other)) = self.plan_without(span, &tried) else { break };
            let read = self.carry_out_one(other, &tried).and_then(|read| {
                let number = read.number();
                read.verified(&verify).map(|found| (number, found)).map_err(|error| (number, error))
            });
            match read {
                Ok((right, found)) => {
                    self.repair(span, &failed, right);
                    return Ok(found);
                }
                Err(other) => failed.push(other),
            }
        }
        let group = self.group(span.group)?;
        let turns = failed.iter().filter(|(_, error)| by_itself(error));
        let read = turns.filter_map(|(number, _)| group.turn(*number, self.class)).find_map(|turn| {
            let mut plan = PlannedRead::new(turn, span).ok()?;
            again(|| plan.read().and_then(|()| plan.verified(&verify)))
        });
        match read {
            Some(Ok(found)) => Ok(found),
            _ => Err(failed.swap_remove(0).1),
        }
    }

    /// Writes `span` again on members that failed to give it, from the one that has it `right`, and tells the roster of
    /// them.
    fn repair(&self, span: Span, failed: &[(u16, Error)], right: u16) {
        let (Ok(group), Some(roster)) = (self.group(span.group), self.roster()) else { return };
        for (number, error) in failed {
            let Some(member) = group.member(*number) else { continue };
            let repaired = match roster.takes_writes() {
                true => {
                    let bytes = span.offset..span.offset + span.len_bytes;
                    group.repair(&member, right, &bytes, self.class)
                }
                false => Err(Error::ReadOnly("the pool is only read".into())),
            };
            roster.corrected(*number, (span.group, span.offset), error, &repaired);
        }
    }

    /// Fills `buf` with whole blocks that nothing verifies yet: the caller looks for what may be there, or writes the
    /// same blocks again. Members of a mirror may differ in blocks that were being written when the power went; they are
    /// read in turn, by `copy` from 0 on.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device.
    pub(crate) fn read_unverified(
        &self,
        group: u16,
        copy: usize,
        offset: u64,
        buf: &mut AlignedBuf,
    ) -> Result<()> {
        self.behind.wait_for(group, &(offset..offset + buf.len() as u64));
        self.group(group)?.read_copy(copy, offset, buf, self.class)
    }

    /// Returns the number of members of a group that can be read.
    pub(crate) fn copies(&self, group: u16) -> usize {
        let members = self.groups.get(usize::from(group)).map(Group::members).unwrap_or_default();
        members.iter().filter(|member| member.readable().is_some()).count()
    }

    /// Returns the numbers of the members of a group that can be read, in the order in which [`Devices::only_copy`] counts
    /// them.
    pub(crate) fn readable(&self, group: u16) -> Vec<u16> {
        let members = self.groups.get(usize::from(group)).map(Group::members).unwrap_or_default();
        members.iter().filter(|member| member.readable().is_some()).map(|member| member.number).collect()
    }

    /// Has ranges of groups read from other places from now on, for a pool that is only read. What is read from a place that
    /// no device has is read where it was.
    pub(crate) fn redirect(&self, all: &[Redirection]) {
        let mut of_groups: BTreeMap<u16, OtherPlaces> = BTreeMap::new();
        for Redirection { place: (group, start), len_bytes, from: (from, copy, offset) } in all {
            let members = self.groups.get(usize::from(*from)).map(Group::members).unwrap_or_default();
            let device = members.iter().filter_map(|member| member.readable()).nth(*copy).cloned();
            let source = device.map(|device| OtherPlace { len_bytes: *len_bytes, device, offset: *offset });
            of_groups.entry(*group).or_default().extend(source.map(|source| (*start, source)));
        }
        for (group, sources) in of_groups {
            if let Some(group) = self.groups.get(usize::from(group)) {
                group.redirect(&Arc::new(sources));
            }
        }
    }

    /// Writes whole blocks, as [`Device::write`] does, to all members of a group.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device, if no member has them.
    pub(crate) fn write(&self, group: u16, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.group(group)?.write(offset, buf, durable, (self.class, self.roster().as_deref()))
    }

    /// Writes whole blocks as [`Devices::write`] does, but at some later time if there is a thread for it
    /// ([`Devices::serve_writes_behind`]). Reads of these bytes see them; a flush of any group tells if it failed.
    ///
    /// # Errors
    /// Those of [`Devices::write`], if it is made at once.
    pub(crate) fn write_behind(&self, group: u16, offset: u64, buf: AlignedBuf) -> Result<()> {
        self.group(group)?;
        match self.behind.take(group, offset, buf) {
            Some(buf) => self.write(group, offset, &buf, false),
            None => Ok(()),
        }
    }

    /// Says whether a thread makes the writes that nobody waits for. If not, it ends when none waits any more.
    pub(crate) fn write_behind_by_thread(&self, is_served: bool) {
        self.behind.set_served(is_served);
    }

    /// Makes the writes that nobody waits for, until there is to be no thread for it.
    pub(crate) fn serve_writes_behind(&self) {
        let devices = self.of_class(IoClass::AsyncWrite);
        self.behind.serve(&|group, offset, buf| devices.write(group, offset, buf, false));
    }

    /// Writes bytes at any offset of a group. The rest of the blocks that they lie in stays on each device as it is
    /// there.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device, if no member has them.
    pub(crate) fn overwrite(&self, group: u16, offset: u64, bytes: &[u8]) -> Result<()> {
        self.behind.wait_for(group, &(offset..offset + bytes.len() as u64));
        self.group(group)?.overwrite(offset, bytes, self.class)
    }

    /// Returns true if a durable write to a group costs less than a write and a flush after it.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub(crate) fn writes_durably(&self, group: u16) -> Result<bool, NoDevice> {
        let members = self.group(group)?.members();
        Ok(members.iter().filter_map(|member| member.writable()).all(|device| device.writes_durably()))
    }

    /// Flushes all devices at once. A group that the pool can do without is given up if it fails.
    ///
    /// # Errors
    /// [`FlushFailure`] names the first group, by number, whose flush failed.
    pub(crate) fn flush(&self) -> Result<(), FlushFailure> {
        let usable = (0..=u16::MAX).zip(self.each()).filter(|(_, group)| group.is_readable());
        let mut failure = Ok(());
        for failed in self.flush_each(usable.map(|(number, _)| number)) {
            match self.groups.get(usize::from(failed.group)).is_some_and(Group::is_spared) {
                true => self.give_up(failed.group, &failed.error),
                false => failure = failure.and(Err(failed)),
            }
        }
        failure
    }

    /// Flushes the devices of these groups at once.
    ///
    /// # Errors
    /// [`FlushFailure`] names the first group that cannot be used, or whose flush failed, in the order given.
    pub(crate) fn flush_some(&self, groups: impl IntoIterator<Item = u16>) -> Result<(), FlushFailure> {
        self.flush_each(groups).into_iter().next().map_or(Ok(()), Err)
    }

    /// Does the same, and returns all failures. If there is a group that cannot be used, and that the pool needs, none is
    /// flushed.
    fn flush_each(&self, groups: impl IntoIterator<Item = u16>) -> Vec<FlushFailure> {
        let (mut begun, mut failures) = (Vec::new(), Vec::new());
        for number in groups {
            match self.group(number).map_err(Error::from).and_then(|group| {
                // Nothing else is written to a log device than what is waited for.
                if group.is_spared() { Ok(group) } else { self.behind.settle().map(|()| group) }
            }) {
                Ok(group) => begun.push((number, group, group.begin_flush())),
                Err(error) => failures.push(FlushFailure { group: number, error }),
            }
        }
        let is_spared = |failure: &FlushFailure| {
            self.groups.get(usize::from(failure.group)).is_some_and(Group::is_spared)
        };
        if !failures.iter().all(is_spared) {
            return failures;
        }
        let devices: Vec<(usize, &Arc<GroupMember>, &Arc<dyn Device>)> = begun
            .iter()
            .enumerate()
            .flat_map(|(at, (_, _, flush))| flush.members.iter().map(move |member| (at, member)))
            .filter_map(|(at, member)| Some((at, member, member.writable()?)))
            .collect();
        let ordered = devices.iter().any(|(_, _, device)| device.keeps_order());
        let flushed =
            at_once(&devices, ordered, &|(_, _, device)| Lane::to(device.as_ref(), self.class).flush());
        let mut outcomes: Vec<Vec<(Arc<GroupMember>, Result<()>)>> =
            begun.iter().map(|_| Vec::new()).collect();
        for ((at, member, _), outcome) in devices.iter().zip(flushed) {
            if let Some(of_group) = outcomes.get_mut(*at) {
                of_group.push((Arc::clone(member), outcome));
            }
        }
        drop(devices);
        let roster = self.roster();
        let end = |((number, group, flush), outcomes): (&(u16, &Group, GroupFlush), _)| {
            let ended = group.end_flush(flush, outcomes, roster.as_deref());
            ended.err().map(|error| FlushFailure { group: *number, error })
        };
        failures.extend(begun.iter().zip(outcomes).filter_map(end));
        failures
    }

    /// Tells the devices of a group that a range holds nothing any more, as [`Device::discard`] does.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of a device.
    pub(crate) fn discard(&self, group: u16, offset: u64, len_bytes: u64) -> Result<()> {
        let members = self.group(group)?.members();
        let mut written = members.iter().filter_map(|member| member.writable());
        written.try_for_each(|device| Lane::to(device.as_ref(), IoClass::Discard).discard(offset, len_bytes))
    }

    /// Returns true if discards may have an effect on a device of a group.
    pub(crate) fn discards(&self, group: u16) -> bool {
        let members = self.group(group).map(Group::members).unwrap_or_default();
        members.iter().filter_map(|member| member.writable()).any(|device| device.discards())
    }

    /// Returns the first byte of a group from `offset` on that may be anything but zero, as [`Device::data_from`] does.
    pub(crate) fn data_from(&self, group: u16, offset: u64) -> Option<u64> {
        let members = self.group(group).ok()?.members();
        members.iter().filter_map(|member| member.readable()?.data_from(offset)).min()
    }
}
