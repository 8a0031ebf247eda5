//! Steps that spares take by themselves, one at a time; and what becomes of them when somebody parts with a device.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::list::{DeviceId, SENT_BACK, SpareRecord, StandsFor, encode_devices};
use super::rules::{Cause, DeviceSeen, DeviceWatch};
use super::{Spare, SparesState, born, members};
use crate::device::{Device, MemberState, OneDevice};
use crate::pool::Pool;
use crate::pool::membership::{MEMBERS_MAX, MemberEntry, Membership};
use crate::pool::roster::Joining;
use crate::pool::spare_label::SpareLabel;
use crate::{Error, Result};

/// A device for which a spare is to step in.
#[derive(Clone, Copy)]
struct Need {
    group: u16,
    device: DeviceId,
    cause: Cause,
}

/// The fate of a spare that stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It stays.
    Stays,
    /// It stays, and its device is not only suspected any more.
    StaysForGood,
    /// It can step in again.
    Returns,
    /// It has failed itself.
    Failed,
}

/// Decides what is to become of a spare: by its state as a member, if it is one; by whether its device is here and no
/// member; and by the state of the device for which it stands in, if that is a member still.
fn fate(spare: Option<MemberState>, is_aside: bool, device: Option<MemberState>, suspect: bool) -> Fate {
    match (spare, device) {
        (Some(MemberState::Faulted), _) => Fate::Failed,
        // It was about to become a member when the power failed.
        (Some(MemberState::Away), _) if is_aside => Fate::Returns,
        (None, _) | (_, None) => Fate::Returns,
        (_, Some(MemberState::Whole)) if !suspect => Fate::Returns,
        (_, Some(MemberState::Whole)) => Fate::Stays,
        (_, Some(_)) if suspect => Fate::StaysForGood,
        _ => Fate::Stays,
    }
}

impl Pool {
    /// Lets a spare step in for a device that fails, or gives one back whose device is mended: one at a time. Returns true
    /// if something was done, at `now` (seconds since 1970).
    ///
    /// # Errors
    /// Errors of a commit, and of devices that cannot be left out.
    pub fn spare_step(&self, now: u64) -> Result<bool> {
        if self.shared.check_writable().is_err() || self.spares.state.lock().all.is_empty() {
            return Ok(false);
        }
        let _turn = self.spares.turn.lock();
        let tables = self.labels.tables();
        let needs = self.needs(&tables, now)?;
        let all = self.spares.state.lock().all.clone();
        for spare in all {
            if let (true, Some(device)) = (spare.record.failed, &spare.device) {
                // It failed in an earlier opening. Whoever mends it opens it, and gives it back.
                self.hold_spare(spare.record.id, None);
                self.tell_of_leave(device.path());
            }
            if let Some(stands) = spare.record.stands
                && self.settle_spare(&spare, stands, &tables, &needs)?
            {
                return Ok(true);
            }
        }
        for need in needs {
            if self.step_in(&need)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the devices for which a spare is to step in.
    fn needs(&self, tables: &[Membership], now: u64) -> Result<Vec<Need>> {
        let counts = self.faults().devices;
        let rules = *self.spares.rules.lock();
        let mut state = self.spares.state.lock();
        let SparesState { all, sent_back, watches, .. } = &mut *state;
        watches.retain(|device, _| members(tables).any(|(_, entry)| DeviceId::of(entry) == *device));
        let stands_in = |device: DeviceId| {
            all.iter().any(|spare| spare.record.stands.is_some_and(|of| of.device == device))
        };
        let is_spare = |birth: u64| {
            all.iter().any(|spare| spare.record.stands.is_some() && spare.record.birth() == birth)
        };
        let leaves = |group: u16| tables.iter().any(|table| table.group == group && table.leaves);
        let (mut needs, mut mended) = (Vec::new(), sent_back.clone());
        for (group, entry) in members(tables) {
            let Some((_, member)) = self.shared.devices.state(entry.number) else { continue };
            let device = DeviceId::of(entry);
            let errors = counts.get(usize::from(entry.number)).copied().unwrap_or_default();
            let is_checked = self.copy_checked() == Some(entry.number);
            let counts = [errors.reads, if is_checked { 0 } else { errors.checksums }];
            let latency_ns = self.shared.devices.latency_ns(group, entry.number);
            let seen = DeviceSeen { state: member, counts, latency_ns };
            let cause = watches.entry(device).or_default().look(&rules, now, &seen);
            if member != MemberState::Whole || cause.is_some() {
                mended.remove(&device);
            }
            if let Some(cause) = cause
                && !(entry.leaves
                    || leaves(group)
                    // A log device that has failed as a whole leaves the pool.
                    || self.shared.devices.copies(group) == 0
                    || stands_in(device)
                    || is_spare(entry.birth)
                    || sent_back.contains(&device))
            {
                needs.push(Need { group, device, cause });
            }
        }
        if !rules.on {
            needs.clear();
        }
        if mended.is_empty() {
            return Ok(needs);
        }
        let left: BTreeSet<DeviceId> = sent_back.difference(&mended).copied().collect();
        drop(state);
        self.store_sent_back(left)?;
        Ok(needs)
    }

    /// Does something while no spare steps in or is given back, and no device is taken online or detached.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a spare is a member of one of the groups; those of `work`.
    pub(in crate::pool) fn without_stand_in<T>(
        &self,
        groups: &[u16],
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _turn = self.spares.turn.lock();
        let tables: Vec<Membership> = groups.iter().filter_map(|group| self.labels.table(*group)).collect();
        let is_member =
            |spare: &Spare| spare.record.stands.is_some() && born(&tables, spare.record.birth()).is_some();
        if let Some(spare) = self.spares.state.lock().all.iter().find(|spare| is_member(spare)) {
            return Err(Error::Invalid(format!(
                "spare {} stands in for a device of it: give it back first, or keep it for good",
                spare.record.path.display()
            )));
        }
        work()
    }

    fn store_sent_back(&self, devices: BTreeSet<DeviceId>) -> Result<()> {
        let text = Some(encode_devices(&devices)).filter(|text| !text.is_empty());
        self.set_property(SENT_BACK, text.as_deref())?;
        self.spares.state.lock().sent_back = devices;
        Ok(())
    }

    /// Looks after a spare that stands in. Returns true if something was changed.
    fn settle_spare(
        &self,
        spare: &Spare,
        stands: StandsFor,
        tables: &[Membership],
        needs: &[Need],
    ) -> Result<bool> {
        let record = &spare.record;
        let state_of = |number: u16| self.shared.devices.state(number).map(|(_, state)| state);
        let own = born(tables, record.birth());
        let device = members(tables).find(|(_, entry)| DeviceId::of(entry) == stands.device);
        let device = device.and_then(|(_, entry)| state_of(entry.number));
        let state = own.and_then(|(_, entry)| state_of(entry.number));
        let is_missing = own.is_some_and(|(_, entry)| self.is_missing_long(&DeviceId::of(&entry)));
        match fate(state, spare.device.is_some(), device, stands.suspect) {
            _ if is_missing => self.give_back(spare, own, false),
            Fate::Stays => Ok(false),
            Fate::StaysForGood => {
                let stands = StandsFor { suspect: false, ..stands };
                self.store_spare(record, Some(&SpareRecord { stands: Some(stands), ..record.clone() }))?;
                Ok(true)
            }
            Fate::Failed => self.give_back(spare, own, true),
            Fate::Returns => {
                let other = needs.iter().find(|need| own.is_some_and(|(group, _)| group == need.group));
                match other.filter(|_| state.is_some_and(MemberState::is_written)) {
                    // It has what the other device of its group has, too.
                    Some(Need { device, cause, .. }) => {
                        let stands = StandsFor { device: *device, suspect: cause.is_suspicion() };
                        let new = SpareRecord { stands: Some(stands), ..record.clone() };
                        self.store_spare(record, Some(&new))?;
                        tracing::warn!(spare = %record.path.display(), stands_for = device.number, %cause, "a spare stands in for another device of its mirror now");
                        Ok(true)
                    }
                    None => self.give_back(spare, own, false),
                }
            }
        }
    }

    /// Returns true if a spare that is a member is missing for so long that another one may step in.
    fn is_missing_long(&self, device: &DeviceId) -> bool {
        self.spares.state.lock().watches.get(device).is_some_and(DeviceWatch::is_missing_long)
    }

    /// Removes a spare from its group, and makes it one again that can step in, unless it has failed. Returns false if
    /// nothing was changed, since it is the last member that is whole.
    fn give_back(&self, spare: &Spare, member: Option<(u16, MemberEntry)>, failed: bool) -> Result<bool> {
        let (record, mut device) = (&spare.record, spare.device.clone());
        if let Some((group, MemberEntry { number, .. })) = member {
            let Some(taken) = self.labels.take_out(group, number)? else { return Ok(false) };
            device = device.or(taken);
        }
        self.hold_spare(record.id, device.clone());
        let mut new = SpareRecord { stands: None, failed, ..record.clone() };
        if let Some(one) = device.as_deref().map(OneDevice::of).filter(|_| !failed)
            && let Err(error) = self.spare_label(record.id).take_back(one)
        {
            tracing::error!(%error, spare = %one.path().display(), "a spare has failed");
            new.failed = true;
        }
        self.store_spare(record, Some(&new))?;
        let path = record.path.display();
        if new.failed {
            tracing::error!(spare = %path, "a spare has failed itself, and is not used any more");
            self.hold_spare(record.id, None);
            self.tell_of_leave(&record.path);
        } else {
            tracing::info!(spare = %path, "a spare can step in again");
        }
        Ok(true)
    }

    /// Lets the smallest spare that is large enough step in for a device. Returns false if there is none.
    fn step_in(&self, need: &Need) -> Result<bool> {
        if self.labels.table(need.group).is_none_or(|table| table.members.len() >= MEMBERS_MAX) {
            return Ok(false);
        }
        let needed = self.labels.group_bytes(need.group);
        let size_of = |spare: &Spare| spare.device.as_ref().map_or(0, |device| device.size_bytes());
        let mut fitting = self.spares.state.lock().all.clone();
        fitting.retain(|spare| {
            let is_free = spare.record.stands.is_none() && !spare.record.failed;
            is_free && spare.device.is_some() && size_of(spare) >= needed
        });
        fitting.sort_by_key(|spare| (size_of(spare), spare.record.id));
        for spare in fitting {
            let Spare { record, device: Some(device) } = &spare else { continue };
            if !self.is_ready(record.id, device) {
                continue;
            }
            let stands = StandsFor { device: need.device, suspect: need.cause.is_suspicion() };
            let new = SpareRecord { times: record.times + 1, stands: Some(stands), ..record.clone() };
            self.store_spare(record, Some(&new))?;
            let joined = SpareLabel::prepare(OneDevice::of(device.as_ref())).and_then(|()| {
                let joining = Joining { replaces: None, birth: Some(new.birth()) };
                self.labels.add(need.group, joining, Arc::clone(device))
            });
            let (path, number) = (device.path().display(), need.device.number);
            match joined {
                Ok(joined) => {
                    self.hold_spare(record.id, None);
                    // Errors of one that had the number before are not its own.
                    self.shared.segments.faults.clear(Some(joined), 0);
                    tracing::warn!(spare = %path, device = joined, stands_for = number, cause = %need.cause, "a spare stands in for a device, and is being filled");
                    self.spares.state.lock().told = None;
                    return Ok(true);
                }
                Err(error) => {
                    let told = format!("{path} cannot stand in for device number {number}: {error}");
                    self.tell_once(&told);
                    let failed = matches!(error, Error::Io { .. } | Error::Failed(_));
                    self.give_back(&Spare { record: new, ..spare.clone() }, None, failed)?;
                }
            }
        }
        Ok(false)
    }

    fn tell_once(&self, told: &str) {
        let before = self.spares.state.lock().told.replace(told.to_owned());
        if before.as_deref() != Some(told) {
            tracing::error!("no spare steps in: {told}");
        }
    }

    /// Returns true if a device is the spare still that it was. If it is not, it is closed.
    fn is_ready(&self, id: u64, device: &Arc<dyn Device>) -> bool {
        let one = OneDevice::of(device.as_ref());
        let all = self.spares.state.lock().all.clone();
        let is_it = self.id_of_spare(one, &all, &self.labels.tables()) == Some(id);
        let is_labelled = is_it && matches!(SpareLabel::read(one), Ok(Some(_)));
        // It was a member that went missing, and is here again.
        let is_ready = is_labelled || is_it && self.spare_label(id).take_back(one).is_ok();
        if !is_ready {
            let path = one.path();
            tracing::error!(spare = %path.display(), "it cannot be read, or is no spare of the pool any more");
            self.hold_spare(id, None);
            self.tell_of_leave(path);
        }
        is_ready
    }

    /// Takes a device for mended, or all of them, for which spares step in or have stepped in, though it is in use: its
    /// errors were cleared.
    pub(in crate::pool) fn mend_suspects(&self, device: Option<u16>) -> Result<()> {
        let _turn = self.spares.turn.lock();
        let is_it = |number: u16| device.is_none_or(|device| device == number);
        let all = {
            let mut state = self.spares.state.lock();
            let watches = state.watches.iter_mut().filter(|(device, _)| is_it(device.number));
            watches.for_each(|(_, watch)| watch.forget());
            state.all.clone()
        };
        for Spare { record, .. } in &all {
            if let Some(stands) = record.stands.filter(|stands| stands.suspect && is_it(stands.device.number))
            {
                let stands = Some(StandsFor { suspect: false, ..stands });
                self.store_spare(record, Some(&SpareRecord { stands, ..record.clone() }))?;
            }
        }
        Ok(())
    }

    /// Removes a device from its group because the user wants it. A spare goes back, and no other one steps in for the
    /// same device; a spare that stands in for the device stays for good.
    pub(in crate::pool) fn part_with(&self, number: u16) -> Result<()> {
        let _turn = self.spares.turn.lock();
        self.part_with_in_turn(number, true)
    }

    /// Removes a device from its group whose place another one took (Y5 of [`crate::pool::roster`]). Returns false if
    /// there is none.
    pub(in crate::pool) fn part_with_replaced(&self) -> Result<bool> {
        let _turn = self.spares.turn.lock();
        let Some((number, _)) = self.labels.replaced() else { return Ok(false) };
        self.part_with_in_turn(number, false)?;
        Ok(true)
    }

    /// Does what [`Pool::part_with`] does. A spare that stands in for the device stays for good if it is `wanted`.
    fn part_with_in_turn(&self, number: u16, wanted: bool) -> Result<()> {
        self.check_stays(number)?;
        let tables = self.labels.tables();
        let entry = members(&tables).find(|(_, entry)| entry.number == number);
        let all = self.spares.state.lock().all.clone();
        let standing = || all.iter().filter_map(|spare| Some((spare, spare.record.stands?)));
        let own =
            entry.and_then(|(_, entry)| standing().find(|(spare, _)| spare.record.birth() == entry.birth));
        if let (Some((spare, stands)), Some((group, entry))) = (own, entry) {
            let mut sent_back = self.spares.state.lock().sent_back.clone();
            if sent_back.insert(stands.device) {
                self.store_sent_back(sent_back)?;
            }
            return match self.give_back(spare, Some((group, *entry)), false)? {
                true => Ok(()),
                false => Err(self.last_one(number)),
            };
        }
        let (group, _) = self.state_of(number)?;
        let spare =
            entry.and_then(|(_, entry)| standing().find(|(_, stands)| stands.device == DeviceId::of(entry)));
        if let Some((spare, _)) = spare.filter(|_| wanted) {
            self.store_spare(&spare.record, None)?;
            tracing::info!(device = %spare.record.path.display(), "a spare is a device of the pool for good");
        }
        let path = self.shared.devices.device_path(number);
        if !self.labels.remove(group, number)? {
            return Err(self.last_one(number));
        }
        self.tell_of_leave(&path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Away, Faulted, Filling, Offline, Whole};

    #[test]
    fn a_spare_stays_until_its_device_is_whole_or_gone() {
        for own in [Whole, Filling] {
            for device in [Faulted, Away, Filling, Offline] {
                assert_eq!(fate(Some(own), false, Some(device), false), Fate::Stays);
                assert_eq!(fate(Some(own), false, Some(device), true), Fate::StaysForGood);
            }
            assert_eq!(fate(Some(own), false, Some(Whole), false), Fate::Returns);
            assert_eq!(
                fate(Some(own), false, Some(Whole), true),
                Fate::Stays,
                "nobody said that it is mended"
            );
            assert_eq!(fate(Some(own), false, None, true), Fate::Returns);
        }
        assert_eq!(fate(Some(Faulted), false, Some(Faulted), false), Fate::Failed);
        assert_eq!(fate(None, true, Some(Faulted), false), Fate::Returns, "it never became a member");
        assert_eq!(fate(Some(Away), true, Some(Faulted), false), Fate::Returns);
        assert_eq!(fate(Some(Away), false, Some(Faulted), false), Fate::Stays);
    }
}
