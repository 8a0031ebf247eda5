//! The labels of a pool that is open: they tell which members each group has, and which of them are whole.
//!
//! - Y1: the labels of a group say that a member is not whole before anything is acknowledged that it lacks
//!   ([`crate::device`], H1); and that it is whole only when all that was acknowledged is on it.
//! - Y2: a change of a group's table gets an epoch of its own, and a random number. Whole members get it first. If the
//!   power goes in between, the table with the highest epoch counts.
//! - Y3: groups that are added get labels of the pool's next epoch first. They count from the superblock of that epoch
//!   on, on all devices at one instant; only then anything is put on them, and the others' labels tell of them.
//! - Y4: nothing is put on a part of a device that its label does not say to be used. A group uses no more than each of its
//!   members has.
//! - Y5: a member whose place another one takes leaves when that one is whole and its label says so; not when any
//!   other member is whole. If the one that was to take its place is removed before, it stays.
//! - Y6: a flush that failed leaves what was written before it on the device or not, and reads do not tell. So a copy of a
//!   label is written only while another one is known to be durable; and the labels and the superblock by which a
//!   pool is opened are written again, as they are, before anything that follows from them.
//! - Y7: a copy of a label is repaired only while the label is the device's own ([`Labels::with_written`]). A device that
//!   leaves loses its label here first, and is erased after that: so no repair gives it back a label.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::identity::Member;
use super::label::{Label, Superblock};
use super::lacks::{Lacks, Leaving, Since};
use super::members::{Assembled, Returned};
use super::membership::{FIRST_EPOCH, MEMBERS_MAX, MemberEntry, Membership, birth_in_place_of, mixed};
use crate::device::{ALL, Device, Devices, MemberState, OneDevice, Roster};
use crate::faults::{FaultKind, Faults};
use crate::limits::DEVICE_BYTES_MAX;
use crate::ranges::Ranges;
use crate::segment::Segments;
use crate::space::Chunk;
use crate::{Error, Result};

/// The labels of a pool's devices.
pub(super) struct Labels {
    /// A label, for what all of them have in common.
    common: Label,
    devices: Devices,
    segments: Arc<Segments>,
    read_only: bool,
    /// True if a member was left out since [`Labels::take_left_out`].
    left_out: AtomicBool,
    /// Drawn for this opening.
    salt: u64,
    state: Mutex<State>,
}

struct State {
    /// Label of each device that is here and is written, or was.
    labels: BTreeMap<u16, Label>,
    /// For each member: what its label and superblocks say, by which it is known if it is left out and comes back.
    left: BTreeMap<u16, Leaving>,
    /// Members that were found in this opening: see [`Assembled`].
    returned: Vec<Returned>,
    missing: Vec<u16>,
    /// The table of each group.
    tables: Vec<Membership>,
    /// Bytes that each group uses.
    sizes: Vec<u64>,
    /// Epoch of the pool that the next superblock has, and the number of groups in it.
    epoch: (u64, u16),
    /// Number of groups that a superblock has counted.
    counted: u16,
    /// Number of times that groups were to be added in this opening, and devices to groups.
    additions: u64,
    joinings: u64,
    /// Number of the group that is the log device.
    log_group: Option<u16>,
}

/// How a device becomes a member of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Joining {
    /// Number of the member whose place it takes.
    pub(super) replaces: Option<u16>,
    /// The birth that it gets, if it is a spare: then its label is that of a spare, which is replaced as a whole
    /// ([`super::spares`], V1).
    pub(super) birth: Option<u64>,
}

/// Groups that count from a superblock on.
#[derive(Debug, Default)]
pub(super) struct NewGroups {
    /// Bytes of each of them that chunks may lie in, by ascending numbers.
    pub(super) sizes: Vec<u64>,
    /// Groups whose labels do not tell of them yet.
    untold: Vec<u16>,
}

impl Labels {
    /// Takes the labels of devices.
    pub(super) fn new(
        assembled: &Assembled,
        segments: Arc<Segments>,
        read_only: bool,
        salt: u64,
    ) -> Result<Self> {
        let whole = |label: &&Label| {
            let state = assembled.devices.state(label.device);
            state.is_some_and(|(_, state)| state == MemberState::Whole)
        };
        let common = assembled.labels.iter().find(whole).cloned();
        let common = common.ok_or_else(|| Error::NotAPool("there is no device".into()))?;
        // A device that was away while the pool was renamed has the former name.
        let named = |label: &Label| (label.device, Label { name: common.name.clone(), ..label.clone() });
        let labels = assembled.labels.iter().map(named).collect();
        let groups = u16::try_from(assembled.tables.len()).unwrap_or(u16::MAX);
        let root = assembled.superblock.addr.raw();
        let of_whole = |label: &Label| (label.device, Leaving { told: Some(label.membership.id()), root });
        let left = assembled.labels.iter().filter(whole).map(of_whole).collect();
        let state = Mutex::new(State {
            labels,
            left,
            returned: assembled.returned.clone(),
            missing: assembled.missing.clone(),
            tables: assembled.tables.clone(),
            sizes: assembled.sizes.clone(),
            epoch: (assembled.superblock.epoch, groups),
            counted: groups,
            additions: 0,
            joinings: 0,
            log_group: assembled.superblock.log_device.map(|group| group.number),
        });
        let devices = assembled.devices.clone();
        let left_out = false.into();
        Ok(Self { common, devices, segments, read_only, left_out, salt, state })
    }

    /// Returns a label, for what all of them have in common.
    pub(super) fn common(&self) -> &Label {
        &self.common
    }

    /// Returns the labels of the devices that are written, by ascending numbers.
    pub(super) fn written(&self) -> Vec<Label> {
        let state = self.state.lock();
        let is_written =
            |number: u16| self.devices.state(number).is_some_and(|(_, state)| state.is_written());
        state
            .labels
            .iter()
            .filter(|(number, _)| is_written(**number))
            .map(|(_, label)| label.clone())
            .collect()
    }

    /// Calls `act` with the label of a device that is written, and the device. Meanwhile no label changes, and no device
    /// joins or leaves the pool. Returns `None` if no such device has this number.
    pub(super) fn with_written<T>(
        &self,
        number: u16,
        act: impl FnOnce(&Label, OneDevice<'_>) -> T,
    ) -> Option<T> {
        let state = self.state.lock();
        let label = state.labels.get(&number)?;
        let here = self.devices.device(number).ok().filter(|here| here.state.is_written())?;
        Some(act(label, here.one()))
    }

    /// Returns the table of a group.
    pub(super) fn table(&self, group: u16) -> Option<Membership> {
        self.state.lock().tables.get(usize::from(group)).cloned()
    }

    /// Has the labels and superblocks by which the pool is opened be durable before anything that follows from them (Y6).
    ///
    /// # Errors
    /// Errors of devices that cannot be left out.
    pub(super) fn settle(&self, superblock: &Superblock) -> Result<()> {
        for label in &self.written() {
            let Ok(here) = self.devices.device(label.device) else { continue };
            let settled = label.settle(superblock, here.one()).and_then(|()| here.one().flush());
            if let Err(error) = settled
                && !is_left_out(&self.devices, label.device, &error)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes copies of labels again that a crash has torn, or left as they were before a change. A pool that was closed, and
    /// whose labels were never changed, has none: what is wrong with them is damage, which a scrub finds, counts and mends.
    ///
    /// # Errors
    /// If the label of no whole member can be written.
    pub(super) fn mend(&self, was_closed: bool) -> Result<()> {
        for label in &self.written() {
            let Ok(here) = self.devices.device(label.device) else { continue };
            let Membership { epoch, group_epoch, .. } = label.membership;
            let changes = label.membership.is_mirrored() || epoch.max(group_epoch) > FIRST_EPOCH;
            let is_right = |offset: &u64| label.lies_at(here.one(), *offset);
            if (changes || !was_closed) && !label.offsets().iter().all(is_right) {
                self.change(label.membership.group)?;
            }
        }
        Ok(())
    }

    /// Returns the lowest number that no device has.
    fn free_number(tables: &[Membership]) -> Result<u16> {
        Self::free_numbers(tables)
            .next()
            .ok_or_else(|| Error::Invalid("the pool has too many devices".into()))
    }

    fn free_numbers(tables: &[Membership]) -> impl Iterator<Item = u16> + '_ {
        (0..=u16::MAX).filter(|number| !tables.iter().any(|table| table.entry(*number).is_some()))
    }

    /// Returns true if a member was left out since the last call.
    pub(super) fn take_left_out(&self) -> bool {
        self.left_out.swap(false, Ordering::AcqRel)
    }

    /// Returns the bytes of its devices that a group uses.
    pub(super) fn group_bytes(&self, group: u16) -> u64 {
        self.state.lock().sizes.get(usize::from(group)).copied().unwrap_or_default()
    }

    /// Returns the number of the group that is the log device.
    pub(super) fn log_group(&self) -> Option<u16> {
        self.state.lock().log_group
    }

    /// Has the next superblock name a group as the log device, or none.
    pub(super) fn set_log_group(&self, group: Option<u16>) {
        self.state.lock().log_group = group;
    }

    /// Returns true if nothing may be written to the devices.
    pub(super) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the tables of all groups.
    pub(super) fn tables(&self) -> Vec<Membership> {
        self.state.lock().tables.clone()
    }

    /// Returns the number that was drawn for this opening.
    pub(super) const fn salt(&self) -> u64 {
        self.salt
    }

    /// Adds a device to a group, as a member that is filled. Returns its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the group has as many members as it can have; [`Error::Busy`] if another device takes the
    /// same place; errors of devices. Then the group has the members that it had, and those leave that were to leave.
    pub(super) fn add(&self, group: u16, joining: Joining, device: Arc<dyn Device>) -> Result<u16> {
        let (number, label) = {
            let mut state = self.state.lock();
            let number = Self::free_number(&state.tables)?;
            let joinings = state.joinings;
            state.joinings += 1;
            let table = state.tables.get_mut(usize::from(group));
            let table = table.filter(|table| table.members.len() < MEMBERS_MAX);
            let table = table
                .ok_or_else(|| Error::Invalid("the mirror has as many devices as it can have".into()))?;
            // No other device had this number in this epoch, nor was to have it when that failed. Of a device that replaces
            // another one the lower half alone tells.
            let drawn = mixed(self.salt).wrapping_add(table.group_epoch).wrapping_add(joinings << 20);
            let mut birth = joining.birth.unwrap_or(drawn);
            if let Some(replaced) = joining.replaces {
                table.check_replaced(replaced)?;
                for replaced in table.members.iter_mut().filter(|entry| entry.number == replaced) {
                    replaced.leaves = true;
                    birth = birth_in_place_of(replaced.birth, drawn);
                }
            }
            table.members.push(MemberEntry { number, state: MemberState::Filling, leaves: false, birth });
            table.members.sort_by_key(|entry| entry.number);
            let membership = table.clone();
            let size_bytes = state.sizes.get(usize::from(group)).copied().unwrap_or_default();
            let guid = self.common.pool.of_device(number);
            let label = Label { device: number, guid, size_bytes, membership, ..self.common.clone() };
            state.labels.insert(number, label.clone());
            (number, label)
        };
        let is_ready = joining.birth.is_some();
        // Whenever the others' labels tell of it, it is known by its own, and found.
        let labelled = if is_ready { Ok(()) } else { label.take_over(OneDevice::of(device.as_ref())) };
        let added =
            labelled.and_then(|()| self.devices.add(group, number, device)).and_then(|()| self.change(group));
        if let Err(error) = added {
            self.devices.take_offline(number);
            self.devices.remove(number);
            self.forget(group, number);
            return Err(error);
        }
        Ok(number)
    }

    /// Returns the epoch of the pool that the next superblock has.
    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch.0
    }

    /// Adds groups of these devices, which get labels. They count from the next superblock on (Y3).
    ///
    /// # Errors
    /// [`Error::Busy`] if other groups are being added; errors of the devices. Then none is added.
    pub(super) fn add_groups(&self, groups: Vec<Vec<Arc<dyn Device>>>) -> Result<()> {
        self.add_groups_as(groups, false)
    }

    /// Adds a group as the log device, as [`Labels::add_groups`] adds others. Returns its number.
    ///
    /// # Errors
    /// Those of [`Labels::add_groups`].
    pub(super) fn add_log_device(&self, devices: Vec<Arc<dyn Device>>) -> Result<u16> {
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
    pub(super) fn count_groups(&self, epoch: u64) -> NewGroups {
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

    /// Lets a group use all of its devices, which may have grown: as many bytes as the smallest one has. Returns their
    /// number, if that makes more chunks. On return all labels say so (Y4).
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device of the group is not in use: it may be too small; errors of devices.
    pub(super) fn grow(&self, group: u16) -> Result<Option<u64>> {
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

    /// Returns the number of groups that a superblock has counted.
    pub(super) fn counted(&self) -> u16 {
        self.state.lock().counted
    }

    /// Returns the groups that leave, ascending.
    pub(super) fn leaving(&self) -> Vec<u16> {
        self.state.lock().tables.iter().filter(|table| table.leaves).map(|table| table.group).collect()
    }

    /// Returns the number of groups that stay.
    pub(super) fn staying(&self) -> usize {
        let state = self.state.lock();
        let counted = state.tables.iter().take(state.counted.into());
        let holds_data = |table: &&Membership| {
            !table.leaves && !table.members.is_empty() && Some(table.group) != state.log_group
        };
        counted.filter(holds_data).count()
    }

    /// Makes the labels of a group say that it leaves, or stays (E2 of [`super::removal`]).
    ///
    /// # Errors
    /// Errors of labels; then they may say so, or not.
    pub(super) fn set_leaving(&self, group: u16, leaves: bool) -> Result<()> {
        if let Some(table) = self.state.lock().tables.get_mut(usize::from(group)) {
            table.leaves = leaves;
        }
        self.change(group)
    }

    /// Returns true if a label may say that a group is gone.
    pub(super) fn may_be_gone(&self, group: u16) -> bool {
        self.state.lock().tables.iter().any(|table| table.gone.has(group.into()))
    }

    /// Makes the labels of all other groups say that a group is gone, on which nothing lies, and takes its devices out.
    /// They hold no pool then (E3 of [`super::removal`]). Returns their numbers and paths.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the labels have no place to say so; errors of labels: then some of them may say so, and it has
    /// to be done again.
    pub(super) fn remove_group(&self, group: u16) -> Result<Vec<(u16, PathBuf)>> {
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

    /// Makes the labels of the groups that were there before tell of new ones. It suffices if that happens at the next
    /// opening.
    pub(super) fn tell_of(&self, new: &NewGroups) {
        for group in &new.untold {
            if let Err(error) = self.change(*group) {
                tracing::warn!(%error, group, "labels do not tell of devices that were added yet; the next opening mends that");
            }
        }
    }

    /// Removes a device from its group, and erases its label. If it took the place of another one, that one stays. If it
    /// was written until now, no label ever tells that it was
    /// left out: after a crash it is a member, or is none. Returns false, and changes nothing, if it is the last one that
    /// is whole.
    ///
    /// # Errors
    /// If the others' labels cannot be written. Then it is a member that was taken offline.
    pub(super) fn remove(&self, group: u16, number: u16) -> Result<bool> {
        let Some(left) = self.take_out(group, number)? else { return Ok(false) };
        if let Some(device) = left {
            erase_what_left(device.as_ref());
        }
        Ok(true)
    }

    /// Does the same as [`Labels::remove`], but leaves the device its label. Returns the device, if it is here; `None` if it is
    /// the last one that is whole.
    ///
    /// # Errors
    /// As of [`Labels::remove`].
    pub(super) fn take_out(&self, group: u16, number: u16) -> Result<Option<Option<Arc<dyn Device>>>> {
        let (label, table) = {
            let mut state = self.state.lock();
            let Some(table) = state.tables.get_mut(usize::from(group)) else { return Ok(Some(None)) };
            // Nobody writes labels between the two steps.
            let is_written = self.devices.state(number).is_some_and(|(_, state)| state.is_written());
            if is_written && !self.devices.take_offline(number) {
                return Ok(None);
            }
            let before = table.clone();
            table.remove(number);
            (state.labels.remove(&number), before)
        };
        if let Err(error) = self.change(group) {
            let mut state = self.state.lock();
            if let Some(there) = state.tables.get_mut(usize::from(group)) {
                there.members = table.members;
            }
            state.labels.extend(label.map(|label| (number, label)));
            return Err(error);
        }
        Ok(Some(self.devices.remove(number)))
    }

    fn forget(&self, group: u16, number: u16) {
        let mut state = self.state.lock();
        state.labels.remove(&number);
        if let Some(table) = state.tables.get_mut(usize::from(group)) {
            table.remove(number);
        }
    }

    /// Takes the label of a device that is a member and has come back, if it is the one that the table names.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not.
    pub(super) fn take_back(&self, number: u16, label: &Label) -> Result<()> {
        let mut state = self.state.lock();
        let birth = |table: &Membership| table.entry(number).map(|entry| entry.birth);
        let known = state.tables.iter().find_map(birth);
        if label.pool != self.common.pool
            || label.device != number
            || known != birth(&label.membership)
            || known.is_none()
        {
            return Err(Error::Invalid("it is another device than the one that is missing".into()));
        }
        let name = self.common.name.clone();
        state.labels.insert(number, Label { name, ..label.clone() });
        Ok(())
    }

    /// Writes a superblock to all devices that are written, durably. Returns their number. `confirm` is asked for what is
    /// confirmed, once it is known which devices have it.
    ///
    /// # Errors
    /// Errors of devices that cannot be left out, and of `confirm`.
    pub(super) fn publish(
        &self,
        superblock: &Superblock,
        confirm: &dyn Fn(&Superblock) -> Result<Superblock>,
    ) -> Result<usize> {
        let labels = self.written();
        write_superblock(&self.devices, &labels, superblock, confirm)?;
        let mut state = self.state.lock();
        for Label { device, .. } in &labels {
            if self.devices.state(*device).is_some_and(|(_, state)| state.is_written()) {
                state.left.entry(*device).or_default().root = superblock.addr.raw();
            }
        }
        Ok(labels.len())
    }

    /// Returns the address of the root that the newest superblock of a device names, as far as that is known.
    pub(super) fn root_of(&self, number: u16) -> Option<u64> {
        self.state.lock().left.get(&number).map(|left| left.root)
    }

    /// Returns true if a device is as it was when it was left out.
    pub(super) fn is_as_left(&self, device: &Member) -> bool {
        let (label, state) = (&device.label, self.state.lock());
        let left = state.left.get(&label.device).filter(|left| device.has_root(left.root));
        let table = state.tables.get(usize::from(label.membership.group));
        left.zip(table).is_some_and(|(left, table)| is_told(left, table, label))
    }

    /// Finds out what the members lack that are not whole, from what the checkpoint has `stored` of them, and from what
    /// was written `since` (U2). Comes before anything is written to a group in this opening.
    ///
    /// # Errors
    /// Errors of labels.
    pub(super) fn settle_lacks(&self, stored: &[Lacks], since: &Since, newest: &Superblock) -> Result<()> {
        let mut state = self.state.lock();
        let (returned, missing) = (std::mem::take(&mut state.returned), std::mem::take(&mut state.missing));
        let (mut found, mut untold) = (Vec::new(), Vec::new());
        for table in &state.tables {
            let mut written = Ranges::default();
            since.add_to(table.group, &mut written);
            self.devices.set_since(table.group, &written);
            let others = table.members.iter().copied().filter(|entry| !self.is_whole(entry.number));
            for MemberEntry { number, birth, .. } in others {
                // One that was whole until now has all that any checkpoint has stored of it.
                let stored = stored.iter().filter(|_| !missing.contains(&number));
                let stored = stored.into_iter().find(|lacks| (lacks.number, lacks.birth) == (number, birth));
                let mut regions = written.clone();
                stored
                    .iter()
                    .flat_map(|lacks| lacks.regions.iter())
                    .for_each(|range| regions.insert_range(range));
                let root = stored.and_then(|lacks| lacks.root).unwrap_or(newest.addr.raw());
                let mut left = Leaving { told: stored.and_then(|lacks| lacks.told), root };
                let here = returned.iter().find(|returned| returned.label.device == number);
                if let Some(Returned { label, member }) = here {
                    let has_root = member.as_ref().is_some_and(|member| member.has_root(root));
                    if !has_root || !is_told(&left, table, label) {
                        regions.insert_range(ALL);
                        untold.push(table.group);
                    }
                    left.told = Some(label.membership.id());
                }
                found.push((number, left, regions));
            }
        }
        for (number, left, regions) in found {
            // Labels of this opening may have been written to it already.
            let told = state.left.get(&number).map_or(left.told, |there| there.told);
            state.left.insert(number, Leaving { told, ..left });
            self.devices.set_lacking_only(number, regions);
            self.left_out.store(true, Ordering::Release);
        }
        drop(state);
        untold.dedup();
        untold.into_iter().try_for_each(|group| self.change(group))
    }

    /// Returns what the members lack that are not whole (U1).
    pub(super) fn lacks(&self) -> Vec<Lacks> {
        let state = self.state.lock();
        let mut all = Vec::new();
        for MemberEntry { number, birth, .. } in state.tables.iter().flat_map(|table| &table.members) {
            let Some((member, mut regions)) = self.devices.state_and_lacking(*number) else { continue };
            if member == MemberState::Whole {
                continue;
            }
            let left = state.left.get(number);
            if left.is_none() {
                regions.insert_range(ALL);
            }
            let Leaving { told, root } = left.copied().unwrap_or_default();
            let root = Some(root).filter(|_| !member.is_written());
            all.push(Lacks { number: *number, birth: *birth, told, root, regions });
        }
        all
    }

    /// Returns the largest number of bytes of the stored form of what members may lack.
    pub(super) fn lacks_bytes_max(&self) -> u64 {
        let state = self.state.lock();
        let groups = state.tables.iter().zip(&state.sizes);
        let others = |table: &Membership| (table.members.len() as u64).saturating_sub(1);
        groups.map(|(table, bytes)| others(table) * Lacks::bytes_max(*bytes)).sum()
    }

    /// Makes a member whole that lacks nothing any more. Returns false if it was left out meanwhile.
    ///
    /// # Errors
    /// Errors of labels.
    pub(super) fn complete(&self, group: u16, number: u16) -> Result<bool> {
        if !self.devices.complete(number) {
            return Ok(false);
        }
        self.change(group)?;
        // It may have failed to take the label that calls it whole.
        Ok(self.is_whole(number))
    }

    fn is_whole(&self, number: u16) -> bool {
        self.devices.state(number).is_some_and(|(_, state)| state == MemberState::Whole)
    }

    /// Returns the members of a group that are to leave when others have taken their places.
    pub(super) fn replaced_in(&self, group: u16) -> Vec<u16> {
        let state = self.state.lock();
        let members = state.tables.get(usize::from(group)).map_or(&[][..], |table| &table.members);
        members.iter().filter(|entry| entry.leaves).map(|entry| entry.number).collect()
    }

    /// Returns a member that is to leave now, and the one that took its place, since that is whole, and has a label that says
    /// so (Y5).
    pub(super) fn replaced(&self) -> Option<(u16, u16)> {
        let state = self.state.lock();
        let is_told = |number: u16| {
            let own = state.labels.get(&number).and_then(|label| label.membership.entry(number));
            own.is_some_and(|entry| entry.state == MemberState::Whole)
        };
        let is_whole = |entry: &MemberEntry| is_told(entry.number) && self.is_whole(entry.number);
        state.tables.iter().find_map(|table| table.replaced(is_whole))
    }

    /// Writes the table of a group to the labels of its members that are written.
    ///
    /// # Errors
    /// If the label of no whole member can be written.
    pub(super) fn change(&self, group: u16) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let State { labels, left, tables, sizes, .. } = &mut *state;
            let at = usize::from(group);
            let (Some(table), Some(size_bytes)) = (tables.get_mut(at), sizes.get(at).copied()) else {
                return Ok(());
            };
            table.advance(|epoch| self.salt.wrapping_add(epoch));
            let states = self.devices.states(group);
            for entry in &mut table.members {
                let found = states.iter().find(|(number, _)| *number == entry.number);
                entry.state = found.map_or(entry.state, |(_, state)| *state);
            }
            if self.write_table(labels, left, table, size_bytes)? {
                return Ok(());
            }
        }
    }

    /// Writes a table to the labels of the members that are written. Returns false if one of them had to be left out
    /// meanwhile.
    fn write_table(
        &self,
        labels: &mut BTreeMap<u16, Label>,
        left: &mut BTreeMap<u16, Leaving>,
        table: &Membership,
        size_bytes: u64,
    ) -> Result<bool> {
        for wanted in [MemberState::Whole, MemberState::Filling] {
            for entry in table.members.iter().filter(|entry| entry.state == wanted) {
                let (Ok(here), Some(label)) =
                    (self.devices.device(entry.number), labels.get_mut(&entry.number))
                else {
                    continue;
                };
                let new = Label { membership: table.clone(), size_bytes, ..label.clone() };
                match new.grow_from(label, here.one()) {
                    Ok(()) => {
                        left.entry(entry.number).or_default().told = Some(table.id());
                        *label = new;
                    }
                    Err(error) => {
                        let is_out = is_left_out(&self.devices, entry.number, &error);
                        return if is_out { Ok(false) } else { Err(error) };
                    }
                }
            }
        }
        Ok(true)
    }

    fn faults(&self) -> &Faults {
        &self.segments.faults
    }
}

impl Roster for Labels {
    fn record(&self, group: u16) -> Result<()> {
        self.change(group)?;
        self.left_out.store(true, Ordering::Release);
        Ok(())
    }

    fn takes_writes(&self) -> bool {
        !self.read_only
    }

    fn corrected(&self, device: u16, place: (u16, u64), error: &Error, repaired: &Result<()>) {
        let of_error = FaultKind::of(error).filter(|kind| *kind == FaultKind::Checksum);
        let kinds = of_error.into_iter().chain([FaultKind::Corrected]);
        kinds
            .chain(repaired.is_ok().then_some(FaultKind::Repaired))
            .for_each(|kind| self.faults().note_device(kind, device));
        let (group, offset) = place;
        match repaired {
            Ok(()) => {
                tracing::warn!(device, group, offset, %error, "a copy was wrong: it was read from a mirror, and written again");
            }
            Err(failed) => {
                tracing::warn!(device, group, offset, %error, %failed, "a copy was wrong: it was read from a mirror, and not written again");
            }
        }
    }
}

/// Writes a superblock to every device, in slots of its own: whatever a power cut leaves of it, the one before is whole
/// (I5). If there are several devices it goes to the first ring of all, and as confirmed to the second of all, so that a
/// device which lacks it is known to be stale ([`super::identity`]). A device of a mirror that fails it is left out.
pub(super) fn write_superblock(
    devices: &Devices,
    labels: &[Label],
    superblock: &Superblock,
    confirm: &dyn Fn(&Superblock) -> Result<Superblock>,
) -> Result<()> {
    if let [label] = labels {
        superblock.write(devices.device(label.device)?.one(), label)?;
        return Ok(devices.flush()?);
    }
    for (ring, confirmed) in [(0, false), (1, true)] {
        let written = if confirmed { confirm(superblock)? } else { *superblock };
        let written = Superblock { confirmed, ..written };
        for label in labels {
            let here = devices.device(label.device).ok().filter(|here| here.state.is_written());
            let Some(here) = here else { continue };
            if let Err(error) = written.write_to(ring, here.one(), label)
                && !is_left_out(devices, label.device, &error)
            {
                return Err(error);
            }
        }
        devices.flush()?;
    }
    Ok(())
}

/// Makes a device that has left the pool hold none.
fn erase_what_left(device: &dyn Device) {
    if let Err(error) = Label::erase(OneDevice::of(device)) {
        tracing::warn!(%error, device = %device.path().display(), "a device that has left the pool still has its label");
    }
}

/// Returns true if the label of a device is the one that is known.
fn is_told(left: &Leaving, table: &Membership, label: &Label) -> bool {
    let own = &label.membership;
    match left.told {
        Some(id) => id == own.id(),
        None => {
            let calls_it_whole =
                own.entry(label.device).is_some_and(|entry| entry.state == MemberState::Whole);
            calls_it_whole && table.came_from(own)
        }
    }
}

/// Leaves out a device of a mirror that failed to write its label or superblock. Returns false if the pool cannot do
/// without it.
fn is_left_out(devices: &Devices, number: u16, error: &Error) -> bool {
    // Somebody else may have left it out meanwhile.
    devices.leave_out(number, error) || devices.state(number).is_none_or(|(_, state)| !state.is_written())
}
