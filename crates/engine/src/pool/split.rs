//! Splits a pool of mirrors that is used: one device of each mirror leaves it, and together they are a pool of their own, which
//! holds what the pool held at one instant, and is exported.
//!
//! - X1: at the instant nobody writes to the log, all of it is flushed, and no device that leaves gets anything from then on. So
//!   these have the same beginning of the log, with all that was acknowledged, as a crash would leave them.
//! - X2: what is to happen is a property of the pool ([`SplitRecord`]), and the log makes each change of it durable at one
//!   instant. It is stored before the first device leaves. While it says *prepared*, the split has not happened: whoever opens the
//!   pool takes the devices back, which are filled. From the instant on at which it says *done*, it has: whoever opens the
//!   pool goes on with it, and never uses them again.
//! - X3: the devices are *offline* by the labels of the others before the split is done; so no opening writes to them before it
//!   knows which of the two holds (Y1 of [`super::roster`]). Each gets the label of the new pool, and then those of its mirror
//!   forget it.
//! - X4: the half has the property, too, as *prepared*, and its own GUID is in it: by that its first opening knows what it is,
//!   and forgets what is not its own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::identity::Member;
use super::label::{Guid, Label, is_name};
use super::membership::{MemberEntry, Membership, mixed};
use super::spares::{DeviceId, decode_devices, encode_devices};
use super::{OpenOptions, Pool};
use crate::device::{Device, DeviceHere, MemberState, OneDevice};
use crate::{Error, Result};

/// Property that says that the pool is being split.
const STORED: &str = "pagefold:split";
/// Beginning of the field of it that has the address of the root.
const ROOT: &str = "root=";
/// Memory for caches while the half is opened for the first time, in bytes.
const HALF_CACHE_BYTES: u64 = 16 << 20;

/// A split that is under way. It is stored as its phase (`prepared`, `done`), the GUID of the new pool in hexadecimal, its name,
/// and the devices, as spares name theirs; and, when it is done, `root=` and the address of the root, in hexadecimal. A
/// space stands between them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SplitRecord {
    done: bool,
    guid: Guid,
    name: String,
    devices: BTreeSet<DeviceId>,
    /// Address of the root that the superblocks of the devices name: by that they are told from older copies. `None` if
    /// the split is not done, or was by a program that did not store it.
    root: Option<u64>,
}

impl SplitRecord {
    fn encode(&self) -> String {
        let phase = if self.done { "done" } else { "prepared" };
        let guid = u128::from_be_bytes(self.guid.0);
        let root = self.root.map(|root| format!(" {ROOT}{root:x}")).unwrap_or_default();
        format!("{phase} {guid:032x} {} {}{root}", self.name, encode_devices(&self.devices))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.splitn(4, ' ');
        let done = match words.next()? {
            "done" => true,
            "prepared" => false,
            _ => return None,
        };
        let guid = Guid(u128::from_str_radix(words.next()?, 16).ok()?.to_be_bytes());
        let name = words.next().filter(|name| is_name(name))?.to_owned();
        let rest = words.next()?;
        let devices = decode_devices(rest).collect();
        let root = match rest.split(' ').find_map(|word| word.strip_prefix(ROOT)) {
            Some(root) => Some(u64::from_str_radix(root, 16).ok()?),
            None => None,
        };
        Some(Self { done, guid, name, devices, root })
    }
}

/// A device that is to leave its mirror.
#[derive(Clone, Copy, Debug)]
struct LeavingMember {
    group: u16,
    entry: MemberEntry,
}

impl Pool {
    /// Returns the numbers of the devices that a split would take: of each mirror the one that is `named`, or else the last one
    /// that is whole.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device has no mirror, or is not whole, or no other one of its mirror is; if two of one mirror are
    /// named; or while devices are replaced, removed or added.
    pub fn planned_split(&self, named: &[u16]) -> Result<Vec<u16>> {
        Ok(self.choose_half(named)?.iter().map(|chosen| chosen.entry.number).collect())
    }

    fn choose_half(&self, named: &[u16]) -> Result<Vec<LeavingMember>> {
        let mut rest: BTreeSet<u16> = named.iter().copied().collect();
        let tables = self.labels.tables();
        if tables.len() != usize::from(self.labels.counted()) {
            return Err(Error::Busy("devices are being added".into()));
        }
        if let Some(number) = self.labels.log_group().and_then(|group| tables.get(usize::from(group))) {
            let of = number.members.first().map_or(0, |entry| entry.number);
            let path = self.shared.devices.device_path(of);
            return Err(Error::Invalid(format!(
                "{} is the log device, which cannot be divided: remove it first",
                path.display()
            )));
        }
        let mut chosen = Vec::new();
        for table in tables.iter().filter(|table| !table.members.is_empty()) {
            let entry = self.choose_member(table, &mut rest)?;
            chosen.push(LeavingMember { group: table.group, entry });
        }
        match rest.first() {
            Some(number) => Err(Error::Invalid(format!("the pool has no device number {number}"))),
            None => Ok(chosen),
        }
    }

    /// Chooses the device of a mirror that is to leave it. Takes those of the mirror out of the named ones.
    fn choose_member(&self, table: &Membership, named: &mut BTreeSet<u16>) -> Result<MemberEntry> {
        let path = |number: u16| self.shared.devices.device_path(number).display().to_string();
        let first = table.members.first().map_or(0, |entry| entry.number);
        let refuse = |number: u16, what: &str| Err(Error::Invalid(format!("{} {what}", path(number))));
        if table.leaves {
            return refuse(first, "is being removed: wait for that, or stop it");
        }
        if let Some(leaves) = table.members.iter().find(|entry| entry.leaves) {
            return refuse(leaves.number, "is being replaced: wait until the other device is whole");
        }
        if table.members.len() < 2 {
            return refuse(first, "has no mirror, and the pool cannot do without it: attach one first");
        }
        let state = |number: u16| self.shared.devices.state(number).map(|(_, state)| state);
        let is_whole = |number: u16| state(number) == Some(MemberState::Whole);
        let wanted: Vec<&MemberEntry> =
            table.members.iter().filter(|entry| named.remove(&entry.number)).collect();
        let chosen = match wanted.as_slice() {
            [] => table.members.iter().rfind(|entry| is_whole(entry.number)),
            [one] => Some(*one),
            [one, other, ..] => {
                let (one, other) = (path(one.number), path(other.number));
                return Err(Error::Invalid(format!("{one} and {other} are of one mirror: name one of them")));
            }
        };
        let Some(chosen) = chosen.copied() else {
            return refuse(first, "and the others of its mirror are not whole");
        };
        if !is_whole(chosen.number) {
            return refuse(chosen.number, "has not everything that its mirror has: wait until it is whole");
        }
        let mut others = table.members.iter().filter(|entry| entry.number != chosen.number);
        if !others.any(|entry| is_whole(entry.number)) {
            return refuse(chosen.number, "is the only device of its mirror that is whole");
        }
        Ok(chosen)
    }

    /// Makes one device of each mirror a device of a new pool with this name and GUID, which is exported. Of each mirror the one
    /// that is `named` leaves, or else the last one that is whole. The new pool holds what this one holds at one instant within
    /// the call. Returns the paths of its devices.
    ///
    /// # Errors
    /// Those of [`Pool::planned_split`]; [`Error::Invalid`] also for a name or GUID that cannot be, and if a spare stands in for a
    /// device; [`Error::ReadOnly`]; errors of devices and of commits: then the split has not happened, unless the error says so.
    pub fn split(&self, name: &str, guid: Guid, named: &[u16]) -> Result<Vec<PathBuf>> {
        self.shared.check_writable()?;
        if !is_name(name) {
            return Err(Error::Invalid(format!("'{}' is no name for a pool", name.escape_default())));
        }
        if guid == Guid::NONE || guid == self.guid() {
            return Err(Error::Invalid("the new pool needs a GUID of its own".into()));
        }
        if self.stored_split()?.is_some() {
            // A device could not be labelled when the pool was split before.
            self.settle_split(&[])?;
        }
        let groups: Vec<u16> = (0..self.labels.counted()).collect();
        let half = self.without_stand_in(&groups, || {
            let chosen = self.choose_half(named)?;
            let devices = chosen.iter().map(|leaving| DeviceId::of(&leaving.entry)).collect();
            let record = SplitRecord { done: false, guid, name: name.into(), devices, root: None };
            self.set_property(STORED, Some(&record.encode()))?;
            let parted = self.part(&chosen).and_then(|root| {
                let done = SplitRecord { done: true, root, ..record.clone() };
                self.set_property(STORED, Some(&done.encode()))?;
                Ok(done)
            });
            let done = match parted {
                Ok(done) => done,
                Err(error) => {
                    self.take_back_half(&record)?;
                    return Err(error);
                }
            };
            self.finish_split(&done, &[]).map_err(|error| {
                Error::Failed(format!(
                    "the pool is split, and that is to be finished when it is mounted next: {error}"
                ))
            })
        })?;
        let paths = half.iter().map(|device| device.path().to_path_buf()).collect::<Vec<_>>();
        if let Err(error) = self.open_half(half) {
            tracing::error!(%error, name, "the new pool could not be closed properly; it is as after a crash");
        }
        paths.iter().for_each(|path| self.tell_of_leave(path));
        tracing::info!(name, devices = ?paths, "a half of each mirror is a pool of its own");
        Ok(paths)
    }

    /// Stops using devices, all at one instant (X1). Returns the address of the root that their superblocks name.
    fn part(&self, chosen: &[LeavingMember]) -> Result<Option<u64>> {
        self.sync()?;
        let mut state = self.maintenance.lock();
        // If they come back they lack the writes since they got their last superblock.
        self.checkpoint_locked(&mut state, false)?;
        {
            let _log = self.log.lock();
            self.check_failed()?;
            self.shared.devices.flush().map_err(Error::from).inspect_err(|error| self.shared.fail(error))?;
            for LeavingMember { entry, .. } in chosen {
                if !self.shared.devices.take_offline(entry.number) {
                    return Err(self.last_one(entry.number));
                }
            }
        }
        chosen.iter().try_for_each(|leaving| self.shared.devices.record(leaving.group))?;
        Ok(chosen.first().and_then(|leaving| self.labels.root_of(leaving.entry.number)))
    }

    /// Gives the devices of a split that is done the label of the new pool, and has the mirrors forget them (X3). Devices that
    /// are `aside` may be among them. Returns those that are here.
    fn finish_split(&self, record: &SplitRecord, aside: &[Arc<dyn Device>]) -> Result<Vec<Arc<dyn Device>>> {
        let mut half = Vec::new();
        let mut rest = record.devices.clone();
        for id in &record.devices {
            let member = self
                .labels
                .tables()
                .into_iter()
                .find(|table| table.entry(id.number).is_some_and(|entry| entry.birth == id.birth));
            let mut device = self.among(aside, id, record);
            let here = member.as_ref().and_then(|_| self.shared.devices.device(id.number).ok());
            let one = here.as_ref().map(DeviceHere::one);
            if let Some(one) = one.or(device.as_deref().map(OneDevice::of)) {
                self.make_half(id, record, one)?;
                rest.remove(id);
            }
            drop(here);
            // One that is not here has its new label, or gets it when the pool is opened with it.
            if let Some(table) = member {
                // It is not written any more.
                device = self.labels.take_out(table.group, id.number)?.flatten();
            }
            half.extend(device);
        }
        let left = SplitRecord { done: true, devices: rest, ..record.clone() };
        self.set_property(STORED, Some(left.encode()).filter(|_| !left.devices.is_empty()).as_deref())?;
        Ok(half)
    }

    /// Returns the device that was this one, if it is among others.
    fn among(
        &self,
        devices: &[Arc<dyn Device>],
        id: &DeviceId,
        record: &SplitRecord,
    ) -> Option<Arc<dyn Device>> {
        let is_it = |device: &&Arc<dyn Device>| {
            let member = Member::read(OneDevice::of(device.as_ref()));
            member.is_ok_and(|member| self.is_as_parted(&member, id, record))
        };
        devices.iter().find(is_it).cloned()
    }

    /// Returns true if a device is this one, as it was when it was parted with.
    fn is_as_parted(&self, member: &Member, id: &DeviceId, record: &SplitRecord) -> bool {
        let label = &member.label;
        let birth = label.membership.entry(id.number).map(|entry| entry.birth);
        label.pool == self.guid()
            && label.device == id.number
            && birth == Some(id.birth)
            && record.root.is_none_or(|root| member.has_root(root))
    }

    /// Gives a device the label of the new pool, of which it is a group by itself.
    fn make_half(&self, id: &DeviceId, record: &SplitRecord, one: OneDevice<'_>) -> Result<()> {
        let member = Member::read(one)?;
        if !self.is_as_parted(&member, id, record) {
            let path = one.path().display();
            return Err(Error::corrupt(
                format!("label of {path}"),
                "it is another device than the one that leaves, or an older copy of it",
            ));
        }
        let label = member.label;
        let table = self.labels.table(label.membership.group).unwrap_or_else(|| label.membership.clone());
        let entry =
            MemberEntry { number: id.number, state: MemberState::Whole, leaves: false, birth: id.birth };
        let mut membership = Membership { members: vec![entry], leaves: false, ..table };
        membership.advance(|epoch| self.labels.salt().wrapping_add(epoch).rotate_left(17));
        let half = Label {
            pool: record.guid,
            guid: record.guid.of_device(id.number),
            formerly: Guid::NONE,
            name: record.name.clone(),
            membership,
            ..label
        };
        half.rewrite(one)
    }

    /// Takes devices back that were to leave (X2). They are filled with what they lack.
    fn take_back_half(&self, record: &SplitRecord) -> Result<()> {
        let mut rest = record.devices.clone();
        for id in &record.devices {
            let tables = self.labels.tables();
            let entry = tables.iter().find_map(|table| table.entry(id.number));
            let is_out = entry.is_some_and(|entry| entry.birth == id.birth)
                && self
                    .shared
                    .devices
                    .state(id.number)
                    .is_some_and(|(_, state)| state == MemberState::Offline);
            match self.shared.devices.device(id.number) {
                Ok(here) if is_out => {
                    self.take_online(here.one(), |number| self.shared.devices.reopen_here(number))?;
                }
                Err(_) if is_out => continue,
                _ => {}
            }
            rest.remove(id);
        }
        let left = SplitRecord { devices: rest, ..record.clone() };
        self.set_property(STORED, Some(left.encode()).filter(|_| !left.devices.is_empty()).as_deref())
    }

    fn stored_split(&self) -> Result<Option<SplitRecord>> {
        let Some(text) = self.property(STORED)? else { return Ok(None) };
        let record = SplitRecord::decode(&text);
        let bad = || Error::corrupt("pool", format!("its property {STORED} cannot be: '{text}'"));
        record.ok_or_else(bad).map(Some)
    }

    /// Returns an error if a device is of another pool by a split that is done, though it does not say so itself yet: then it
    /// is neither used nor erased.
    pub(super) fn check_stays(&self, device: u16) -> Result<()> {
        let record = self.stored_split()?.filter(|record| record.done);
        let leaves = |id: &DeviceId| {
            let tables = self.labels.tables();
            tables.iter().filter_map(|table| table.entry(device)).any(|entry| DeviceId::of(entry) == *id)
        };
        match record {
            Some(record) if record.devices.iter().any(leaves) => Err(Error::Busy(format!(
                "it is a device of pool {}, and is told so when this pool is mounted next",
                record.name
            ))),
            _ => Ok(()),
        }
    }

    /// Goes on with a split that a crash has interrupted, or undoes it (X2). Devices that are no members are `aside`.
    pub(super) fn settle_split(&self, aside: &[Arc<dyn Device>]) -> Result<()> {
        let Some(record) = self.stored_split()? else { return Ok(()) };
        if record.guid == self.guid() {
            return self.forget_whole();
        }
        if !record.done {
            tracing::warn!(
                name = record.name,
                "a split was interrupted and has not happened; its devices are filled"
            );
            return self.take_back_half(&record);
        }
        let half = self.finish_split(&record, aside)?;
        tracing::warn!(name = record.name, devices = half.len(), "a split that was interrupted is finished");
        half.iter().for_each(|device| self.tell_of_leave(device.path()));
        Ok(())
    }

    /// Makes a half forget what is the pool's that it came from (X4).
    fn forget_whole(&self) -> Result<()> {
        self.forget_spares()?;
        self.forget_balance()?;
        self.set_property(STORED, None)
    }

    /// Opens the new pool once, and exports it: then nothing is to be replayed, and it is known to open.
    fn open_half(&self, devices: Vec<Arc<dyn Device>>) -> Result<()> {
        let standing = Member::read_all(&devices)?.first().map(Member::standing);
        let salt = mixed(self.labels.salt() ^ standing.map_or(0, |standing| standing.generation));
        let now = self.opening.time;
        let options = OpenOptions { cache_bytes: HALF_CACHE_BYTES, salt, now, ..OpenOptions::default() };
        Self::open_on(devices, &options)?.export()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_reads_back_and_nonsense_does_not() {
        let devices = [(1, 7), (300, u64::MAX)].map(|(number, birth)| DeviceId { number, birth });
        let guid = Guid(*b"0123456789abcdef");
        for (done, root) in [(false, None), (true, None), (true, Some(u64::MAX - 9))] {
            let record = SplitRecord { done, guid, name: "half".into(), devices: devices.into(), root };
            assert_eq!(SplitRecord::decode(&record.encode()), Some(record));
        }
        for text in [
            "",
            "done",
            "done x half 1:7",
            "begun 00 half 1:7",
            "done 00 1half 1:7",
            "done 00 half 1:7 root=x",
        ] {
            assert_eq!(SplitRecord::decode(text), None, "{text}");
        }
    }
}
