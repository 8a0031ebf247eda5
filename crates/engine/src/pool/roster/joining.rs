//! Labels of devices that become members of a group, leave it, and come back.

use std::sync::Arc;

use super::{Labels, erase_what_left};
use crate::device::{Device, MemberState, OneDevice};
use crate::pool::label::Label;
use crate::pool::membership::{MEMBERS_MAX, MemberEntry, Membership, birth_in_place_of, mixed};
use crate::{Error, Result};

/// How a device becomes a member of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pool) struct Joining {
    /// Number of the member whose place it takes.
    pub(in crate::pool) replaces: Option<u16>,
    /// The birth that it gets, if it is a spare: then its label is that of a spare, which is replaced as a whole
    /// ([`super::spares`], V1).
    pub(in crate::pool) birth: Option<u64>,
}

impl Labels {
    /// Adds a device to a group, as a member that is filled. Returns its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the group has as many members as it can have; [`Error::Busy`] if another device takes the
    /// same place; errors of devices. Then the group has the members that it had, and those leave that were to leave.
    pub(in crate::pool) fn add(&self, group: u16, joining: Joining, device: Arc<dyn Device>) -> Result<u16> {
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
            // A checkpoint may give it a superblock before any other label tells of it. If the power goes then, its table is
            // the next one of its group, and none of a half that went on separately.
            table.advance(|epoch| self.salt.wrapping_add(epoch));
            let membership = table.clone();
            let size_bytes = state.sizes.get(usize::from(group)).copied().unwrap_or_default();
            let guid = self.common.pool.of_device(number);
            let label = Label { device: number, guid, size_bytes, membership, ..self.common.clone() };
            state.labels.insert(number, label.clone());
            (number, label)
        };
        self.pause();
        let is_ready = joining.birth.is_some();
        // Whenever the others' labels tell of it, it is known by its own, and found.
        let labelled = if is_ready { Ok(()) } else { label.take_over(OneDevice::of(device.as_ref())) };
        self.pause();
        let added = labelled.and_then(|()| self.devices.add(group, number, device)).and_then(|()| {
            self.pause();
            self.change(group)
        });
        if let Err(error) = added {
            self.devices.take_offline(number);
            self.devices.remove(number);
            self.forget(group, number);
            return Err(error);
        }
        Ok(number)
    }

    /// Removes a device from its group, and erases its label. If it took the place of another one, that one stays. If it
    /// was written until now, no label ever tells that it was
    /// left out: after a crash it is a member, or is none. Returns false, and changes nothing, if it is the last one that
    /// is whole.
    ///
    /// # Errors
    /// If the others' labels cannot be written. Then it is a member that was taken offline.
    pub(in crate::pool) fn remove(&self, group: u16, number: u16) -> Result<bool> {
        let Some(left) = self.take_out(group, number)? else { return Ok(false) };
        self.pause();
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
    pub(in crate::pool) fn take_out(
        &self,
        group: u16,
        number: u16,
    ) -> Result<Option<Option<Arc<dyn Device>>>> {
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
        self.pause();
        if let Err(error) = self.change(group) {
            let mut state = self.state.lock();
            if let Some(there) = state.tables.get_mut(usize::from(group)) {
                there.members = table.members;
            }
            state.labels.extend(label.map(|label| (number, label)));
            return Err(error);
        }
        self.pause();
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
    pub(in crate::pool) fn take_back(&self, number: u16, label: &Label) -> Result<()> {
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

    /// Returns the members of a group that are to leave when others have taken their places.
    pub(in crate::pool) fn replaced_in(&self, group: u16) -> Vec<u16> {
        let state = self.state.lock();
        let members = state.tables.get(usize::from(group)).map_or(&[][..], |table| &table.members);
        members.iter().filter(|entry| entry.leaves).map(|entry| entry.number).collect()
    }

    /// Returns a member that is to leave now, and the one that took its place, since that is whole, and has a label that says
    /// so (Y5).
    pub(in crate::pool) fn replaced(&self) -> Option<(u16, u16)> {
        let state = self.state.lock();
        let is_told = |number: u16| {
            let own = state.labels.get(&number).and_then(|label| label.membership.entry(number));
            own.is_some_and(|entry| entry.state == MemberState::Whole)
        };
        let is_whole = |entry: &MemberEntry| is_told(entry.number) && self.is_whole(entry.number);
        state.tables.iter().find_map(|table| table.replaced(is_whole))
    }
}
