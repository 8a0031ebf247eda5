//! Spares: devices that belong to a pool and hold nothing, until one of them stands in for a device of a mirror that fails.
//!
//! The list of spares is stored ([`list`]); a spare that is no member has a label of its own ([`super::spare_label`]). One
//! that steps in becomes a member of the group like any other: its birth, which the list tells, is all by which it is told
//! from others. So the two are changed one after the other, and whatever a crash leaves is known by both:
//!
//! - V2: the list says for which device a spare stands in before it becomes a member, and says so until it has left the
//!   group and shows the label of a spare again. If it says so and no group has such a member, the spare is given back.
//! - V3: a spare that stands in for a device stays as long as that one is not whole, or is not said to be mended. It does
//!   not leave if it is the last member that is whole (H4 of [`crate::device`]).
//! - V4: no spare steps in for a device that somebody has taken offline, that another device is about to replace, or whose
//!   spare was sent back.
//!
//! [`Pool::spare_step`] does one thing at a time ([`step`]), and [`rules`] says when.

mod list;
mod rules;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

pub(super) use self::list::{DeviceId, decode_devices, encode_devices};
use self::list::{PREFIX, SENT_BACK, SpareRecord};
pub use self::rules::DEVICE_RULES;
use self::rules::{DEVICE_WAIT, DeviceWatch, SpareRules, device_wait_ns};
use super::Pool;
use super::create::{FIRST_DATASET, check_size};
use super::label::Label;
use super::membership::{MemberEntry, Membership, mixed};
use super::spare_label::SpareLabel;
use crate::dataset::redo::CatalogueOp;
use crate::device::{Device, OneDevice};
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
    /// The last number that a spare got in this opening.
    last_id: Option<u64>,
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
                        tracing::error!(name, text, "a spare is not known any more: its entry is damaged");
                    }
                }
            }
            let sent_back = properties.get(SENT_BACK).map(String::as_str).unwrap_or_default();
            state.sent_back = decode_devices(sent_back).collect();
        }
        let tables = self.labels.tables();
        for device in aside {
            self.shared.devices.bound(device.as_ref());
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

    /// Sets a rule by which a device is left out, or spares step in: the property `devicewait` (`20s`, `none`), `autospare`
    /// (`on`, `off`), `sparewait` (`30s`, `5m`, `none`), `spareerrors` (a number, `none`) or `spareslow` (`300ms`,
    /// `none`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for another property or value.
    pub fn set_device_rule(&self, name: &str, value: &str) -> Result<()> {
        let is_set = match (name, device_wait_ns(value)) {
            (DEVICE_WAIT, Some(bound_ns)) => {
                self.shared.devices.wait_at_most(bound_ns);
                true
            }
            _ => self.spares.rules.lock().set(name, value),
        };
        if is_set {
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
        let sizes = (0..self.labels.counted()).map(|group| self.labels.group_bytes(group));
        // Groups that have left use nothing.
        let smallest = sizes.filter(|bytes| *bytes > 0).min();
        let mut new: Vec<Spare> = Vec::new();
        for device in devices {
            self.shared.devices.bound(device.as_ref());
            let one = OneDevice::of(device.as_ref());
            check_size(one)?;
            let (path, has) = (one.path(), one.size_bytes());
            if let Some(needed) = smallest.filter(|needed| has < *needed) {
                return Err(Error::Invalid(format!(
                    "{} has {has} bytes, and no device of the pool has less than {needed}: it could stand in for none",
                    path.display()
                )));
            }
            let record = SpareRecord::new(self.new_spare_id(), path);
            new.push(Spare { record, device: Some(device) });
        }
        if self.spares.state.lock().all.len() + new.len() > SPARES_MAX {
            return Err(Error::Invalid(format!("a pool has at most {SPARES_MAX} spares")));
        }
        if let Err(error) = self.make_spares(&new) {
            // Labels of spares that no pool knows would have other pools refuse the devices.
            for one in new.iter().filter_map(Spare::one) {
                if matches!(SpareLabel::read(one), Ok(Some(_))) {
                    Label::erase(one)?;
                }
            }
            return Err(error);
        }
        let mut state = self.spares.state.lock();
        state.all.extend(new);
        // In the order in which they are found when the pool is opened.
        state.all.sort_by_key(|spare| spare.record.id);
        Ok(())
    }

    /// Gives new spares their labels, and the list all of them at one instant.
    fn make_spares(&self, new: &[Spare]) -> Result<()> {
        for spare in new {
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
        })
    }

    /// Returns a number that no spare has or had: the births of devices that were spares follow from theirs.
    fn new_spare_id(&self) -> u64 {
        let mut state = self.spares.state.lock();
        let mut id = mixed(state.last_id.unwrap_or(self.labels.salt() ^ self.guid().high()));
        while state.all.iter().any(|spare| spare.record.id == id) {
            id = mixed(id);
        }
        state.last_id = Some(id);
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
            self.tell_of_leave(one.path());
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
        self.shared.devices.bound(device.as_ref());
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

    /// Forgets all spares: they are another pool's.
    pub(super) fn forget_spares(&self) -> Result<()> {
        let _turn = self.spares.turn.lock();
        let all = self.spares.state.lock().all.clone();
        all.iter().try_for_each(|spare| self.store_spare(&spare.record, None))?;
        if self.property(SENT_BACK)?.is_some() {
            self.set_property(SENT_BACK, None)?;
        }
        self.spares.state.lock().sent_back.clear();
        Ok(())
    }

    fn hold_spare(&self, id: u64, device: Option<Arc<dyn Device>>) {
        let mut state = self.spares.state.lock();
        if let Some(spare) = state.all.iter_mut().find(|spare| spare.record.id == id) {
            spare.device = device;
        }
    }
}
