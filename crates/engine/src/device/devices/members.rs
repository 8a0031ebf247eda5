//! Members of groups: devices that join, fail, come back, are filled and leave.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{DeviceHere, Devices};
use crate::device::Device;
use crate::device::group::Group;
use crate::device::member::{GroupMember, MemberState};
use crate::device::missing::NoDevice;
use crate::ranges::Ranges;
use crate::{Error, Result};

impl Devices {
    /// Returns the devices that are here, in ascending order of their numbers.
    pub(crate) fn here(&self) -> Vec<DeviceHere> {
        let of_group = |(number, group): (u16, &Group)| {
            let here = |member: Arc<GroupMember>| {
                let device = Arc::clone(member.device()?);
                Some(DeviceHere { number: member.number, group: number, state: member.state(), device })
            };
            group.members().into_iter().filter_map(here).collect::<SmallVec<[DeviceHere; 3]>>()
        };
        let mut all: Vec<DeviceHere> = (0..=u16::MAX).zip(self.each()).flat_map(of_group).collect();
        all.sort_by_key(|device| device.number);
        all
    }

    /// Returns the device of a number.
    ///
    /// # Errors
    /// [`NoDevice`] if it is not here.
    pub(crate) fn device(&self, number: u16) -> Result<DeviceHere, NoDevice> {
        self.here().into_iter().find(|device| device.number == number).ok_or(NoDevice::Missing(number))
    }

    /// Returns the members of a group, with their states.
    pub(crate) fn states(&self, group: u16) -> Vec<(u16, MemberState)> {
        let members = self.groups.get(usize::from(group)).map(Group::members).unwrap_or_default();
        members.iter().map(|member| (member.number, member.state())).collect()
    }

    /// Returns the number of the device with this path.
    pub(crate) fn number_of(&self, path: &Path) -> Option<u16> {
        self.here().iter().find(|device| device.one().path() == path).map(|device| device.number)
    }

    /// Says whether the pool can do without a group.
    pub(crate) fn spare(&self, group: u16, is_spared: bool) {
        if let Ok(group) = self.group(group) {
            group.spare(is_spared);
        }
    }

    /// Has a group that the pool can do without be used for nothing any more.
    pub(crate) fn give_up(&self, group: u16, reason: &dyn std::fmt::Display) {
        let Some(group) = self.groups.get(usize::from(group)).filter(|group| group.is_spared()) else {
            return;
        };
        for member in group.members() {
            group.leave_out(&member, MemberState::Faulted, reason);
        }
    }

    /// Leaves a device out of its group, because it failed something that did not go through this door. Returns false
    /// if the group has no other device that is whole.
    pub(crate) fn leave_out(&self, number: u16, reason: &Error) -> bool {
        self.find(number)
            .is_some_and(|(group, member)| group.leave_out(&member, MemberState::Faulted, reason))
    }

    /// Returns true if another device of its group has what it has.
    pub(crate) fn has_another(&self, number: u16) -> bool {
        self.find(number).is_some_and(|(group, _)| group.has_another(number))
    }

    /// Takes a device out of its group, because somebody wants that. Returns false if the group has no other device that
    /// is whole, or if it is not written anyway.
    pub(crate) fn take_offline(&self, number: u16) -> bool {
        let Some((group, member)) = self.find(number) else { return false };
        group.leave_out(&member, MemberState::Offline, &"it was taken offline")
    }

    /// Makes the labels tell of all members that were left out before the call.
    ///
    /// # Errors
    /// If no label of a whole member can be written.
    pub(crate) fn record(&self, group: u16) -> Result<()> {
        self.group(group)?.record(self.roster().as_deref())
    }

    /// Adds a device to a group, as a member that lacks everything and is filled. All writes that begin from now on go
    /// to it.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub(crate) fn add(&self, group: u16, number: u16, device: Arc<dyn Device>) -> Result<()> {
        self.group(group)?.add(GroupMember::open(number, device, MemberState::Filling));
        Ok(())
    }

    /// Removes a device that is not written any more from its group. Returns the device, if it is here.
    pub(crate) fn remove(&self, number: u16) -> Option<Arc<dyn Device>> {
        let (group, _) = self.find(number)?;
        group.remove(number)?.device().cloned()
    }

    /// Removes all devices of a group on which nothing lies. Returns their numbers, and those that are here.
    pub(crate) fn dissolve(&self, group: u16) -> Vec<(u16, Option<Arc<dyn Device>>)> {
        let members = self.groups.get(usize::from(group)).map(Group::dissolve).unwrap_or_default();
        members.iter().map(|member| (member.number, member.device().cloned())).collect()
    }

    /// Lets a device take the place of one that is not written any more: it is the same one, opened again. It is filled
    /// with what that one lacks. Returns false if the device is written.
    pub(crate) fn reopen(&self, number: u16, device: Arc<dyn Device>) -> bool {
        self.find(number).is_some_and(|(group, _)| group.reopen(number, device, MemberState::Filling))
    }

    /// Does what [`Devices::reopen`] does, with the device that is here. Returns false if it is not here, or is written.
    pub(crate) fn reopen_here(&self, number: u16) -> bool {
        let device = self.find(number).and_then(|(_, member)| member.device().cloned());
        device.is_some_and(|device| self.reopen(number, device))
    }

    /// Gives up a device that is not written any more. Those who use it now still do, until it is closed
    /// ([`Devices::is_closed`]).
    pub(crate) fn release(&self, number: u16) {
        if let Some((group, _)) = self.find(number) {
            group.release(number);
        }
    }

    /// Returns true if a device is not here, and nobody uses it any more since it was given up.
    pub(crate) fn is_closed(&self, number: u16) -> bool {
        self.find(number).is_none_or(|(_, member)| member.is_closed())
    }

    /// Returns the path of a device, or the one that it had while it was here.
    pub(crate) fn device_path(&self, number: u16) -> PathBuf {
        self.find(number).map(|(_, member)| member.path().to_path_buf()).unwrap_or_default()
    }

    /// Makes a device whole that lacks nothing. Returns false if it is not one that is being filled.
    pub(crate) fn complete(&self, number: u16) -> bool {
        self.find(number).is_some_and(|(group, member)| group.complete(&member))
    }

    /// Returns the group of a device, and its state.
    pub(crate) fn state(&self, number: u16) -> Option<(u16, MemberState)> {
        let states =
            |group: u16| self.states(group).into_iter().map(move |(number, state)| (group, number, state));
        let mut all = (0..=u16::MAX).zip(self.each()).flat_map(|(group, _)| states(group));
        all.find(|(_, of, _)| *of == number).map(|(group, _, state)| (group, state))
    }

    fn find(&self, number: u16) -> Option<(&Group, Arc<GroupMember>)> {
        self.each().find_map(|group| Some((group, group.member(number)?)))
    }

    /// Returns the regions of which a device lacks something.
    pub(crate) fn lacking(&self, number: u16) -> Ranges {
        self.find(number).map(|(_, member)| member.lacking()).unwrap_or_default()
    }

    /// Notes that a device lacks something of these regions.
    pub(crate) fn set_lacking(&self, number: u16, regions: impl IntoIterator<Item = Range<u64>>) {
        if let Some((_, member)) = self.find(number) {
            member.lacks(regions.into_iter());
        }
    }

    /// Notes that a device lacks something of these regions, and of no others.
    pub(crate) fn set_lacking_only(&self, number: u16, regions: Ranges) {
        if let Some((_, member)) = self.find(number) {
            member.lacks_only(regions);
        }
    }

    /// Returns the state of a device, and the regions of which it lacks something, as of one moment.
    pub(crate) fn state_and_lacking(&self, number: u16) -> Option<(MemberState, Ranges)> {
        self.find(number).and_then(|(group, _)| group.lacking(number))
    }

    /// Notes what was written to a group since the superblock by which the pool was opened.
    pub(crate) fn set_since(&self, group: u16, written: &Ranges) {
        if let Some(group) = self.groups.get(usize::from(group)) {
            group.writes().set_since(written);
        }
    }

    /// Notes that a superblock is to be written, which has everything that was written to any group by now. The flush
    /// that makes that durable follows.
    pub(crate) fn begin_superblock(&self) {
        self.each().for_each(|group| group.writes().begin_superblock());
    }

    /// Notes that the superblock is on every device that is written, or could not be written.
    pub(crate) fn end_superblock(&self, counts: bool) {
        self.each().for_each(|group| group.writes().end_superblock(counts));
    }

    /// Notes that a device lacks nothing.
    #[cfg(test)]
    pub(in crate::device) fn set_complete(&self, number: u16) {
        if let Some((_, member)) = self.find(number) {
            member.has(crate::device::member::ALL);
        }
    }

    /// Copies to a device the lowest region that it lacks and that is wanted, by its first byte, from others of its
    /// group: from those in `leaving` only what no other one can read. Returns the bytes copied; `None` if it lacks nothing, or
    /// is not written.
    ///
    /// # Errors
    /// Errors of the device; then it is left out.
    pub(crate) fn fill_next(
        &self,
        number: u16,
        leaving: &[u16],
        is_wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Option<u64>> {
        let Some((group, member)) = self.find(number) else { return Ok(None) };
        group.fill_next(&member, leaving, is_wanted).inspect_err(|error| {
            group.leave_out(&member, MemberState::Faulted, error);
        })
    }
}
