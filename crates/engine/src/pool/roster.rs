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

mod groups;
mod joining;
mod lacking;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::label::{Label, Superblock};
use super::lacks::Leaving;
use super::members::{Assembled, Returned};
use super::membership::{FIRST_EPOCH, Membership};
use super::options::{OpenOptions, Witness};
use crate::device::{Device, Devices, MemberState, OneDevice, Roster};
use crate::faults::{FaultKind, Faults};
use crate::segment::Segments;
use crate::{Error, Result};

pub(super) use joining::Joining;

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
    witness: Option<Witness>,
    /// See [`Labels::pause`].
    at_pauses: OnceLock<PauseHook>,
    state: Mutex<State>,
}

/// Called between two steps of a verb ([`Labels::pause`]).
pub(super) type PauseHook = Arc<dyn Fn() + Send + Sync>;

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

impl Labels {
    /// Takes the labels of devices.
    pub(super) fn new(assembled: &Assembled, segments: Arc<Segments>, options: &OpenOptions) -> Result<Self> {
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
        let OpenOptions { read_only, salt, .. } = *options;
        let witness = options.witness.clone().filter(|_| !read_only);
        let at_pauses = OnceLock::new();
        Ok(Self { common, devices, segments, read_only, left_out, salt, witness, at_pauses, state })
    }

    /// Has `hook` called at each pause. The first one stays.
    pub(super) fn set_pause(&self, hook: PauseHook) {
        // A second one would be a mistake of the caller's, and changes nothing.
        let _ = self.at_pauses.set(hook);
    }

    /// Marks an instant between two steps of a verb. No lock is held that changes and checkpoints need, so that those of other
    /// threads may come here.
    pub(super) fn pause(&self) {
        if let Some(hook) = self.at_pauses.get() {
            hook();
        }
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

    /// Returns true if nothing may be written to the devices.
    pub(super) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the number that was drawn for this opening.
    pub(super) const fn salt(&self) -> u64 {
        self.salt
    }

    /// Returns the epoch of the pool that the next superblock has.
    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch.0
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

    fn is_whole(&self, number: u16) -> bool {
        self.devices.state(number).is_some_and(|(_, state)| state == MemberState::Whole)
    }

    /// Writes the table of a group to the labels of its members that are written.
    ///
    /// # Errors
    /// If the label of no whole member can be written.
    pub(super) fn change(&self, group: u16) -> Result<()> {
        self.change_in(&mut self.state.lock(), group)
    }

    fn change_in(&self, state: &mut State, group: u16) -> Result<()> {
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
                self.tell(table);
                return Ok(());
            }
        }
    }

    /// Tells the witness of the table that the labels of a group have.
    fn tell(&self, table: &Membership) {
        if let Some(witness) = &self.witness {
            witness.tell_table(&table.seen());
        }
    }

    /// Tells the witness of the tables of all mirrors, and of groups that were one.
    pub(super) fn tell_all(&self) {
        // A device that never had a mirror was never left out.
        let is_told = |table: &&Membership| table.is_mirrored() || table.group_epoch > FIRST_EPOCH;
        self.tables().iter().filter(is_told).for_each(|table| self.tell(table));
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
        let device = self.devices.device_path(device).display().to_string();
        match repaired {
            Ok(()) => {
                tracing::warn!(device, group, offset, %error, "a copy was wrong: it was read from a mirror, and written again");
            }
            Err(failed) => {
                tracing::warn!(
                    device,
                    group,
                    offset,
                    "a copy was wrong ({error}): it was read from a mirror, and could not be written again: {failed}"
                );
            }
        }
    }
}

/// Writes a superblock to every device, in slots of its own: whatever a power cut leaves of it, the one before is whole
/// (I5). If there are several devices it goes to the first ring of all, and as confirmed to the second of all, so that a
/// device which lacks it is known to be stale ([`super::identity`]). A device of a mirror that fails it is left out.
/// `confirm` is asked for what is confirmed, also if there is one device: another may have been lost just before.
pub(super) fn write_superblock(
    devices: &Devices,
    labels: &[Label],
    superblock: &Superblock,
    confirm: &dyn Fn(&Superblock) -> Result<Superblock>,
) -> Result<()> {
    if let [label] = labels {
        confirm(superblock)?.write(devices.device(label.device)?.one(), label)?;
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

/// Leaves out a device of a mirror that failed to write its label or superblock. Returns false if the pool cannot do
/// without it.
fn is_left_out(devices: &Devices, number: u16, error: &Error) -> bool {
    // Somebody else may have left it out meanwhile.
    devices.leave_out(number, error) || devices.state(number).is_none_or(|(_, state)| !state.is_written())
}

#[cfg(test)]
mod tests;
