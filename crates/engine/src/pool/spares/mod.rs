//! Spares: devices that belong to a pool and hold nothing, until one of them stands in for a device of a mirror that fails.
//!
//! The list of spares is stored ([`list`]); a spare that is no member has a label of its own ([`super::spare_label`]). One that steps in
//! becomes a member of the group like any other: its birth, which the list tells, is all by which it is told from others.
//! So the two are changed one after the other, and whatever a crash leaves is known by both:
//!
//! - V2: the list says for which device a spare stands in before it becomes a member, and says so until it has left the
//!   group and shows the label of a spare again. If it says so and no group has such a member, the spare is given back.
//! - V3: a spare that stands in for a device stays as long as that one is not whole, or is not said to be mended. It does
//!   not leave if it is the last member that is whole (H4 of [`crate::device`]).
//! - V4: no spare steps in for a device that somebody has taken offline, that another device is about to replace, or whose
//!   spare was sent back.
//!
//! [`Pool::spare_step`] does one of these things at a time, and [`rules`] says when.

mod list;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::list::{
    DeviceId, PREFIX, SENT_BACK, SpareRecord, StandsFor, decode_devices, encode_devices, mixed,
};
pub use self::rules::SPARE_RULES;
use self::rules::{Cause, DeviceSeen, DeviceWatch, SpareRules};
use super::Pool;
use super::create::{FIRST_DATASET, check_size};
use super::label::Label;
use super::membership::{MemberEntry, Membership};
use super::roster::Joining;
use super::spare_label::SpareLabel;
use crate::dataset::redo::CatalogueOp;
use crate::device::{Device, MemberState, OneDevice};
use crate::{Error, Result};

/// Largest number of spares of a pool.
pub const SPARES_MAX: usize = 64;

/// State of a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareState {
    /// It can step in.
    Available,
    /// It stands in for a device.
    InUse,
    /// It is not here, or has failed.
    Unavailable,
}

/// A spare of an open pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareStatus {
    /// Number by which the pool knows it.
    pub id: u64,
    /// The path that it had last; empty if it is not known.
    pub path: PathBuf,
    /// Size in bytes; 0 if it is not here.
    pub size_bytes: u64,
    /// Its state.
    pub state: SpareState,
    /// Number of the device that it is, while it is a member of a group.
    pub device: Option<u16>,
    /// Number of the device for which it stands in.
    pub stands_for: Option<u16>,
}

/// The spares of an open pool.
#[derive(Default)]
pub(super) struct Spares {
    /// Locked by whoever changes what spares are.
    turn: Mutex<()>,
    rules: Mutex<SpareRules>,
    state: Mutex<SparesState>,
}

#[derive(Default)]
struct SparesState {
    all: Vec<Spare>,
    /// Devices whose spares were sent back.
    sent_back: BTreeSet<DeviceId>,
    watches: BTreeMap<DeviceId, DeviceWatch>,
    /// The last reason for which no spare could step in.
    told: Option<String>,
}

#[derive(Clone)]
struct Spare {
    record: SpareRecord,
    /// The device, if it is here and no member.
    device: Option<Arc<dyn Device>>,
}

impl Spare {
    fn one(&self) -> Option<OneDevice<'_>> {
        self.device.as_deref().map(OneDevice::of)
    }
}

/// A device for which a spare is to step in.
#[derive(Clone, Copy)]
struct Need {
    group: u16,
    device: DeviceId,
    cause: Cause,
}

/// What is to become of a spare that stands in.
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

/// Returns the member of a group that has this birth.
fn born(tables: &[Membership], birth: u64) -> Option<(u16, MemberEntry)> {
    tables.iter().find_map(|table| {
        let entry = table.members.iter().find(|entry| entry.birth == birth)?;
        Some((table.group, *entry))
    })
}

fn members(tables: &[Membership]) -> impl Iterator<Item = (u16, &MemberEntry)> {
    tables.iter().flat_map(|table| table.members.iter().map(|entry| (table.group, entry)))
}

const fn id_of(entry: &MemberEntry) -> DeviceId {
    DeviceId { number: entry.number, birth: entry.birth }
}

impl Pool {
    /// Takes up the list of spares, with those devices that are here and no members.
    pub(super) fn load_spares(&self, aside: Vec<Arc<dyn Device>>) -> Result<()> {
        let mut state = SparesState::default();
        {
            let catalogue = self.catalogue.read();
            let properties = &catalogue.get(FIRST_DATASET)?.properties;
            for (name, text) in properties.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
                match SpareRecord::decode(name, text) {
                    Some(record) => state.all.push(Spare { record, device: None }),
                    None => {
                        tracing::error!(name, text, "a spare is not known any more: its entry is damaged")
                    }
                }
            }
            let sent_back = properties.get(SENT_BACK).map(String::as_str).unwrap_or_default();
            state.sent_back = decode_devices(sent_back).collect();
        }
        let tables = self.labels.tables();
        for device in aside {
            let id = self.id_of_spare(OneDevice::of(device.as_ref()), &state.all, &tables);
            let spare = state.all.iter_mut().find(|spare| Some(spare.record.id) == id);
            match spare.filter(|spare| spare.device.is_none()) {
                Some(spare) => {
                    spare.record.path = device.path().to_path_buf();
                    spare.device = Some(device);
                }
                None => {
                    let path = device.path().display();
                    tracing::warn!(device = %path, "it is neither a device nor a spare of the pool, and is left alone");
                }
            }
        }
        *self.spares.state.lock() = state;
        Ok(())
    }

    /// Returns the number of the spare that a device is: by its label as a spare, or by the one that it had as a member
    /// and that was not replaced yet.
    fn id_of_spare(&self, device: OneDevice<'_>, all: &[Spare], tables: &[Membership]) -> Option<u64> {
        let known = |is_it: &dyn Fn(&SpareRecord) -> bool| {
            all.iter().map(|spare| &spare.record).find(|record| is_it(record)).map(|record| record.id)
        };
        if let Ok(Some(label)) = SpareLabel::read(device) {
            return known(&|record| label.pool == self.guid() && record.id == label.id);
        }
        let label = Label::read(device).ok().filter(|label| label.pool == self.guid())?;
        let birth = label.membership.entry(label.device)?.birth;
        known(&|record| record.birth() == birth && born(tables, birth).is_none())
    }

    /// Returns the spares of the pool.
    pub fn spares(&self) -> Vec<SpareStatus> {
        let tables = self.labels.tables();
        let size_of =
            |number: u16| self.shared.devices.device(number).map_or(0, |here| here.one().size_bytes());
        let of = |Spare { record, device }: &Spare| {
            let member = record.stands.and_then(|_| born(&tables, record.birth()));
            let number = member.map(|(_, entry)| entry.number);
            let own = device.as_ref().map_or(0, |device| device.size_bytes());
            SpareStatus {
                id: record.id,
                path: record.path.clone(),
                size_bytes: number.map_or(own, size_of),
                state: match number {
                    Some(_) => SpareState::InUse,
                    None if device.is_some() && !record.failed => SpareState::Available,
                    None => SpareState::Unavailable,
                },
                device: number,
                stands_for: number.and(record.stands).map(|stands| stands.device.number),
            }
        };
        self.spares.state.lock().all.iter().map(of).collect()
    }

    /// Sets a rule by which spares step in: the property `autospare` (`on`, `off`), `sparewait` (`30s`, `5m`, `none`),
    /// `spareerrors` (a number, `none`) or `spareslow` (`300ms`, `none`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for another property or value.
    pub fn set_spare_rule(&self, name: &str, value: &str) -> Result<()> {
        if self.spares.rules.lock().set(name, value) {
            return Ok(());
        }
        Err(Error::Invalid(format!("'{value}' is no value of {name}")))
    }

    /// Gives the pool spares. What is on the devices is lost. All are added, or none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device is too small for every group of the pool, or there would be too many;
    /// [`Error::ReadOnly`]; errors of the devices, and of a commit.
    pub fn add_spares(&self, devices: Vec<Arc<dyn Device>>) -> Result<()> {
        self.shared.check_writable()?;
        let _turn = self.spares.turn.lock();
        let smallest = (0..self.labels.counted()).map(|group| self.labels.group_bytes(group)).min();
        let mut new: Vec<Spare> = Vec::new();
        for device in devices {
            let one = OneDevice::of(device.as_ref());
            check_size(one)?;
            let (path, has) = (one.path(), one.size_bytes());
            if let Some(needed) = smallest.filter(|needed| has < *needed) {
                return Err(Error::Invalid(format!(
                    "{} has {has} bytes, and no device of the pool has less than {needed}: it could stand in for none",
                    path.display()
                )));
            }
            let record = SpareRecord::new(self.new_spare_id(&new), path);
            new.push(Spare { record, device: Some(device) });
        }
        if self.spares.state.lock().all.len() + new.len() > SPARES_MAX {
            return Err(Error::Invalid(format!("a pool has at most {SPARES_MAX} spares")));
        }
        for spare in &new {
            spare.one().map_or(Ok(()), |one| self.spare_label(spare.record.id).take_over(one))?;
        }
        let texts: Vec<_> = new.iter().map(|spare| (spare.record.name(), spare.record.encode())).collect();
        self.perform(|_, _| {
            let set = texts.iter().map(|(name, value)| CatalogueOp::Property {
                id: FIRST_DATASET,
                name,
                value: Some(value),
            });
            Ok(set.collect())
        })?;
        let mut state = self.spares.state.lock();
        state.all.extend(new);
        // In the order in which they are found when the pool is opened.
        state.all.sort_by_key(|spare| spare.record.id);
        Ok(())
    }

    fn new_spare_id(&self, new: &[Spare]) -> u64 {
        let state = self.spares.state.lock();
        let is_taken = |id: u64| state.all.iter().chain(new).any(|spare| spare.record.id == id);
        let mut id = mixed(self.labels.salt() ^ self.guid().high());
        while is_taken(id) {
            id = mixed(id);
        }
        id
    }

    fn spare_label(&self, id: u64) -> SpareLabel {
        SpareLabel { pool: self.guid(), id, name: self.name().into() }
    }

    /// Removes a spare that does not stand in for a device. It belongs to no pool then.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such spare, or it stands in for a device; [`Error::ReadOnly`]; errors of a commit.
    pub fn remove_spare(&self, id: u64) -> Result<()> {
        self.shared.check_writable()?;
        let _turn = self.spares.turn.lock();
        let Some(spare) = self.spare(id) else {
            return Err(Error::Invalid("the pool has no such spare".into()));
        };
        if let Some(stands) = spare.record.stands {
            let number = stands.device.number;
            return Err(Error::Invalid(format!(
                "it stands in for device number {number}: detach it first, which gives it back"
            )));
        }
        self.store_spare(&spare.record, None)?;
        if let Some(one) = spare.one() {
            if let Err(error) = Label::erase(one) {
                let path = one.path().display();
                tracing::warn!(%error, device = %path, "a device that was a spare of the pool still has its label");
            }
            self.tell_of_leaving(one.path());
        }
        Ok(())
    }

    fn spare(&self, id: u64) -> Option<Spare> {
        self.spares.state.lock().all.iter().find(|spare| spare.record.id == id).cloned()
    }

    /// Takes a spare back that was not here or has failed, opened again. Returns false if the device is no spare.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the spare is here already; [`Error::ReadOnly`]; errors of the device, and of a commit.
    pub fn online_spare(&self, device: &Arc<dyn Device>) -> Result<bool> {
        self.shared.check_writable()?;
        let _turn = self.spares.turn.lock();
        let one = OneDevice::of(device.as_ref());
        let all = self.spares.state.lock().all.clone();
        let Some(id) = self.id_of_spare(one, &all, &self.labels.tables()) else { return Ok(false) };
        let Some(spare) = all.into_iter().find(|spare| spare.record.id == id) else { return Ok(false) };
        if spare.device.is_some() {
            return Err(Error::Invalid(format!("{} is here already", one.path().display())));
        }
        self.spare_label(id).take_back(one)?;
        let new = SpareRecord { failed: false, path: one.path().to_path_buf(), ..spare.record.clone() };
        self.store_spare(&spare.record, Some(&new))?;
        self.hold_spare(id, Some(Arc::clone(device)));
        Ok(true)
    }

    /// Stores what a spare is from now on; with `None` it is one no more.
    fn store_spare(&self, before: &SpareRecord, after: Option<&SpareRecord>) -> Result<()> {
        self.set_property(&before.name(), after.map(SpareRecord::encode).as_deref())?;
        let mut state = self.spares.state.lock();
        match after {
            Some(after) => {
                let of = state.all.iter_mut().filter(|spare| spare.record.id == after.id);
                of.for_each(|spare| spare.record = after.clone());
            }
            None => state.all.retain(|spare| spare.record.id != before.id),
        }
        Ok(())
    }

    fn hold_spare(&self, id: u64, device: Option<Arc<dyn Device>>) {
        let mut state = self.spares.state.lock();
        if let Some(spare) = state.all.iter_mut().find(|spare| spare.record.id == id) {
            spare.device = device;
        }
    }

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
        watches.retain(|device, _| members(tables).any(|(_, entry)| id_of(entry) == *device));
        let stands_in = |device: DeviceId| {
            all.iter().any(|spare| spare.record.stands.is_some_and(|of| of.device == device))
        };
        let is_spare = |birth: u64| {
            all.iter().any(|spare| spare.record.stands.is_some() && spare.record.birth() == birth)
        };
        let (mut needs, mut mended) = (Vec::new(), sent_back.clone());
        for (group, entry) in members(tables) {
            let Some((_, member)) = self.shared.devices.state(entry.number) else { continue };
            let device = id_of(entry);
            let errors = counts.get(usize::from(entry.number)).copied().unwrap_or_default();
            let counts = [errors.reads, errors.checksums];
            let latency_ns = self.shared.devices.latency_ns(group, entry.number);
            let seen = DeviceSeen { state: member, counts, latency_ns };
            let cause = watches.entry(device).or_default().look(&rules, now, &seen);
            if member != MemberState::Whole || cause.is_some() {
                mended.remove(&device);
            }
            if let Some(cause) = cause
                && !(entry.leaves
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
        let device = members(tables).find(|(_, entry)| id_of(entry) == stands.device);
        let device = device.and_then(|(_, entry)| state_of(entry.number));
        let state = own.and_then(|(_, entry)| state_of(entry.number));
        let is_missing = own.is_some_and(|(_, entry)| self.is_missing_long(&id_of(&entry)));
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
            let is_written = self.shared.devices.state(number).is_some_and(|(_, state)| state.is_written());
            if is_written && !self.shared.devices.take_offline(number) {
                return Ok(false);
            }
            let taken = self.labels.take_out(group, number)?;
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
            self.tell_of_leaving(&record.path);
        } else {
            tracing::info!(spare = %path, "a spare can step in again");
        }
        Ok(true)
    }

    /// Lets the smallest spare that is large enough step in for a device. Returns false if there is none.
    fn step_in(&self, need: &Need) -> Result<bool> {
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
                    self.tell_once(told);
                    let failed = matches!(error, Error::Io { .. } | Error::Failed(_));
                    self.give_back(&Spare { record: new, ..spare.clone() }, None, failed)?;
                }
            }
        }
        Ok(false)
    }

    fn tell_once(&self, told: String) {
        let before = self.spares.state.lock().told.replace(told.clone());
        if before.as_ref() != Some(&told) {
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
            self.tell_of_leaving(path);
        }
        is_ready
    }

    /// Takes a device for mended, or all of them, for which spares step in or have stepped in, though it is in use: its
    /// errors were cleared.
    pub(super) fn mend_suspects(&self, device: Option<u16>) -> Result<()> {
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

    /// Removes a device from its group because the user or a device that took its place wants it. A spare goes back, and no
    /// other one steps in for the same device; a spare that stands in for the device stays for good if it is `wanted`.
    pub(super) fn part_with(&self, number: u16, wanted: bool) -> Result<()> {
        let _turn = self.spares.turn.lock();
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
        let (group, state) = self.state_of(number)?;
        if state.is_written() && !self.shared.devices.take_offline(number) {
            return Err(self.last_one(number));
        }
        let spare = entry.and_then(|(_, entry)| standing().find(|(_, stands)| stands.device == id_of(entry)));
        if let Some((spare, _)) = spare.filter(|_| wanted) {
            self.store_spare(&spare.record, None)?;
            tracing::info!(device = %spare.record.path.display(), "a spare is a device of the pool for good");
        }
        let path = self.shared.devices.device_path(number);
        self.labels.remove(group, number)?;
        self.tell_of_leaving(&path);
        Ok(())
    }

    fn tell_of_leaving(&self, path: &Path) {
        if let Some(hook) = self.on_leave.get() {
            hook(path);
        }
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
