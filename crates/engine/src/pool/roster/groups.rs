//! Labels of groups that are added, grow, and leave.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Labels, State, erase_what_left};
use crate::device::{Device, MemberState, OneDevice};
use crate::limits::DEVICE_BYTES_MAX;
use crate::pool::label::Label;
use crate::pool::membership::{MemberEntry, Membership};
use crate::space::Chunk;
use crate::{Error, Result};

/// Groups that count from a superblock on.
#[derive(Debug, Default)]
pub(in crate::pool) struct NewGroups {
    /// Bytes of each of them that chunks may lie in, by ascending numbers.
    pub(in crate::pool) sizes: Vec<u64>,
    /// Groups whose labels do not tell of them yet.
    untold: Vec<u16>,
}

impl Labels {
    /// Returns the bytes of its devices that a group uses.
    pub(in crate::pool) fn group_bytes(&self, group: u16) -> u64 {
        self.state.lock().sizes.get(usize::from(group)).copied().unwrap_or_default()
    }

    /// Returns the number of the group that is the log device.
    pub(in crate::pool) fn log_group(&self) -> Option<u16> {
        self.state.lock().log_group
    }

    /// Has the next superblock name a group as the log device, or none.
    pub(in crate::pool) fn set_log_group(&self, group: Option<u16>) {
        self.state.lock().log_group = group;
    }

    /// Returns the tables of all groups.
    pub(in crate::pool) fn tables(&self) -> Vec<Membership> {
        self.state.lock().tables.clone()
    }

    /// Returns the number of groups that a superblock has counted.
    pub(in crate::pool) fn counted(&self) -> u16 {
        self.state.lock().counted
    }

    /// Returns the groups that leave, ascending.
    pub(in crate::pool) fn leaving(&self) -> Vec<u16> {
        self.state.lock().tables.iter().filter(|table| table.leaves).map(|table| table.group).collect()
    }

    /// Returns the number of groups that stay.
    pub(in crate::pool) fn staying(&self) -> usize {
        let state = self.state.lock();
        let counted = state.tables.iter().take(state.counted.into());
        let holds_data = |table: &&Membership| {
            !table.leaves && !table.members.is_empty() && Some(table.group) != state.log_group
        };
        counted.filter(holds_data).count()
    }

    /// Returns true if a label may say that a group is gone.
    pub(in crate::pool) fn may_be_gone(&self, group: u16) -> bool {
        self.state.lock().tables.iter().any(|table| table.gone.has(group.into()))
    }

    /// Makes the labels of a group say that it leaves, or stays (E2 of [`super::removal`]).
    ///
    /// # Errors
    /// Errors of labels. Then the pool goes on as before. If a label says otherwise and could not be written back, the next
    /// change of the group's table does that, or the next opening obeys it.
    pub(in crate::pool) fn set_leaving(&self, group: u16, leaves: bool) -> Result<()> {
        let state = &mut *self.state.lock();
        let at = usize::from(group);
        let before = state.tables.get_mut(at).map(|table| std::mem::replace(&mut table.leaves, leaves));
        let changed = self.change_in(state, group);
        if changed.is_err()
            && let (Some(before), Some(table)) = (before, state.tables.get_mut(at))
        {
            table.leaves = before;
            if let Err(error) = self.change_in(state, group) {
                tracing::warn!(%error, group, "labels may tell otherwise whether the devices leave the pool");
            }
        }
        changed
    }

    /// Adds groups of these devices, which get labels. They count from the next superblock on (Y3).
    ///
    /// # Errors
    /// [`Error::Busy`] if other groups are being added; errors of the devices. Then none is added.
    pub(in crate::pool) fn add_groups(&self, groups: Vec<Vec<Arc<dyn Device>>>) -> Result<()> {
        self.add_groups_as(groups, false)
    }

    /// Adds a group as the log device, as [`Labels::add_groups`] adds others. Returns its number.
    ///
    /// # Errors
    /// Those of [`Labels::add_groups`].
    pub(in crate::pool) fn add_log_device(&self, devices: Vec<Arc<dyn Device>>) -> Result<u16> {
        self.add_groups_as(vec![devices], true)?;
        self.log_group().ok_or_else(|| Error::Invalid("the log device was not added".into()))
    }

    fn add_groups_as(&self, groups: Vec<Vec<Arc<dyn Device>>>, is_log: bool) -> Result<()> {
        let mut state = self.state.lock();
        if usize::from(state.counted) < state.tables.len() {
            return Err(Error::Busy("other devices are being added".into()));
        }
        let most = || Error::Invalid("the pool has too many devices".into());
        let first = state.counted;
        let all =
            u16::try_from(groups.len()).ok().and_then(|more| first.checked_add(more)).ok_or_else(most)?;
        let epoch = state.epoch.0 + 1;
        state.additions += 1;
        let mut tables = state.tables.clone();
        let mut new = Vec::new();
        for (number, devices) in (first..all).zip(groups) {
            let size_bytes = devices.iter().map(|device| device.size_bytes()).min().unwrap_or_default();
            let mut members = Vec::new();
            let mut numbered = Vec::new();
            for device in devices {
                // Those of this group are not in the tables yet.
                let taken = |number: &u16| members.iter().any(|entry: &MemberEntry| entry.number == *number);
                let free = Self::free_numbers(&tables).find(|number| !taken(number)).ok_or_else(most)?;
                // No other device had this number in this epoch, nor was to have it when an addition failed.
                let draw = state.additions << 32 | epoch << 16 | u64::from(free);
                let birth = self.salt.rotate_left(32).wrapping_add(draw);
                members.push(MemberEntry { number: free, state: MemberState::Whole, leaves: false, birth });
                numbered.push((free, device));
            }
            let table = Membership::first(number, all, members).of_epoch(epoch);
            let gone = tables.first().map(|table| table.gone.clone()).unwrap_or_default();
            let table = Membership { gone, ..table };
            tables.push(table.clone());
            new.push((table, size_bytes, numbered));
        }
        let mut labels = Vec::new();
        for (table, size_bytes, devices) in &new {
            for (number, device) in devices {
                let guid = self.common.pool.of_device(*number);
                let membership = table.clone();
                let label = Label {
                    device: *number,
                    guid,
                    size_bytes: *size_bytes,
                    membership,
                    ..self.common.clone()
                };
                label.take_over(OneDevice::of(device.as_ref()))?;
                labels.push(label);
            }
        }
        for (_, size_bytes, devices) in new {
            self.devices.add_group(devices)?;
            state.sizes.push(size_bytes);
        }
        state.labels.extend(labels.into_iter().map(|label| (label.device, label)));
        (state.tables, state.epoch) = (tables, (epoch, all));
        if is_log {
            state.log_group = Some(first);
            self.devices.spare(first, true);
        }
        Ok(())
    }

    /// Notes that a superblock with the epoch `epoch` counts. Returns the groups that count from it on.
    pub(in crate::pool) fn count_groups(&self, epoch: u64) -> NewGroups {
        let mut state = self.state.lock();
        let (first, (of, groups)) = (state.counted, state.epoch);
        if of != epoch || first == groups {
            return NewGroups::default();
        }
        state.counted = groups;
        for table in state.tables.iter_mut().take(first.into()) {
            (table.epoch, table.groups) = (epoch, groups);
        }
        let new = state.sizes.iter().zip(0_u16..).skip(first.into());
        let log_group = state.log_group;
        let sizes = new.map(|(bytes, group)| if Some(group) == log_group { 0 } else { *bytes }).collect();
        NewGroups { sizes, untold: (0..first).collect() }
    }

    /// Makes the labels of the groups that were there before tell of new ones. It suffices if that happens at the next
    /// opening.
    pub(in crate::pool) fn tell_of(&self, new: &NewGroups) {
        for group in &new.untold {
            if let Err(error) = self.change(*group) {
                tracing::warn!(%error, group, "labels do not tell of devices that were added yet; the next opening mends that");
            }
        }
    }

    /// Lets a group use all of its devices, which may have grown: as many bytes as the smallest one has. Returns their
    /// number, if that makes more chunks. On return all labels say so (Y4).
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device of the group is not in use: it may be too small; errors of devices.
    pub(in crate::pool) fn grow(&self, group: u16) -> Result<Option<u64>> {
        let mut sizes = Vec::new();
        for (number, member) in self.devices.states(group) {
            let here = self.devices.device(number).ok().filter(|_| member.is_written());
            let here = here.ok_or_else(|| {
                Error::Invalid(format!(
                    "device {number} of the same mirror is not in use, and may be smaller: take it online, or detach it"
                ))
            })?;
            here.one().measure()?;
            sizes.push(here.one().size_bytes());
        }
        let before = self.group_bytes(group);
        let after = sizes.into_iter().min().unwrap_or_default().min(DEVICE_BYTES_MAX);
        if Chunk::count(after) <= Chunk::count(before) {
            return Ok(None);
        }
        let set = |bytes: u64| {
            if let Some(size) = self.state.lock().sizes.get_mut(usize::from(group)) {
                *size = bytes;
            }
        };
        set(after);
        self.change(group).inspect_err(|_| set(before))?;
        Ok(Some(after))
    }

    /// Makes the labels of all other groups say that a group is gone, on which nothing lies, and takes its devices out.
    /// They hold no pool then (E3 of [`super::removal`]). Returns their numbers and paths.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the labels have no place to say so; errors of labels: then some of them may say so, and it has
    /// to be done again.
    pub(in crate::pool) fn remove_group(&self, group: u16) -> Result<Vec<(u16, PathBuf)>> {
        let others: Vec<u16> = {
            let mut state = self.state.lock();
            let mut others = state.tables.iter_mut().filter(|table| table.group != group);
            others.try_for_each(|table| table.add_gone(group))?;
            let there = |table: &&Membership| table.group != group && !table.members.is_empty();
            state.tables.iter().filter(there).map(|table| table.group).collect()
        };
        others.into_iter().try_for_each(|other| self.change(other))?;
        let taken = {
            let mut state = self.state.lock();
            let State { labels, left, tables, sizes, .. } = &mut *state;
            if let Some(table) = tables.get_mut(usize::from(group)) {
                table.add_gone(group)?;
                *table = Membership { gone: table.gone.clone(), ..Membership::none(group, table.groups) };
            }
            sizes.get_mut(usize::from(group)).into_iter().for_each(|bytes| *bytes = 0);
            let taken = self.devices.states(group);
            for (number, _) in &taken {
                labels.remove(number);
                left.remove(number);
            }
            taken.into_iter().map(|(number, _)| (number, self.devices.device_path(number))).collect()
        };
        for (_, device) in self.devices.dissolve(group) {
            if let Some(device) = device {
                erase_what_left(device.as_ref());
            }
        }
        Ok(taken)
    }
}
