//! Opens the devices of a pool, and finds out which member of it each of them is.
//!
//! The newest confirmed superblock, on whatever device, says how far the pool has come (I3 of [`super::identity`]). Of
//! the devices that have come as far, the label with the highest epoch of its group says which members the group has,
//! and which of them are whole. A pool can be opened if each group has a whole member that has come as far.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity::{Member, check_epoch, is_ahead, newest, stale_error};
use super::label::{Label, Superblock};
use super::membership::{MemberEntry, Membership, TableSeen};
use super::opening::{Relation, Standing};
use super::spare_label::SpareLabel;
use super::{OpenOptions, Pool};
use crate::device::{
    Device, Devices, FileDevice, FoundMember, MemberState, OneDevice, OpenMode, RecordedDevice, Recording,
};
use crate::ranges::Ranges;
use crate::{Error, Result};

impl Pool {
    /// Opens the devices of a pool as [`Pool::open`] does, for [`Pool::open_on`]. Does not read them.
    pub fn open_devices(paths: &[PathBuf], options: &OpenOptions) -> Result<Vec<Arc<dyn Device>>> {
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let mut devices: Vec<Arc<dyn Device>> = Vec::with_capacity(paths.len());
        for path in paths {
            devices.push(Arc::new(FileDevice::open(path, mode)?));
        }
        if let Some(path) = &options.record {
            devices = recorded(devices, path)?;
        }
        Ok(devices)
    }
}

/// Wraps the devices so that each of them records its writes and flushes.
fn recorded(devices: Vec<Arc<dyn Device>>, path: &Path) -> Result<Vec<Arc<dyn Device>>> {
    let sizes: Vec<u64> = devices.iter().map(|device| device.size_bytes()).collect();
    let recording = Recording::create(path, &sizes)?;
    let wrap = |(number, device)| {
        let recording = Arc::clone(&recording);
        Arc::new(RecordedDevice::new(device, number, recording)) as Arc<dyn Device>
    };
    Ok((0..=u16::MAX).zip(devices).map(wrap).collect())
}

/// The devices of a pool that are here, each in its place.
pub(super) struct Assembled {
    /// Labels of the devices that are written, by ascending numbers.
    pub(super) labels: Vec<Label>,
    /// Tables of all groups as they are to be from now on; `changed` has the groups whose labels say something else.
    pub(super) tables: Vec<Membership>,
    pub(super) changed: Vec<u16>,
    /// Bytes that each group uses.
    pub(super) sizes: Vec<u64>,
    pub(super) devices: Devices,
    /// Members that are here and not whole, and numbers of those that were whole and are not here.
    pub(super) returned: Vec<Returned>,
    pub(super) missing: Vec<u16>,
    /// The superblock that counts.
    pub(super) superblock: Superblock,
    /// Largest number of an opening that was seen.
    pub(super) opening_seen: u64,
    /// Devices that are no members: spares are among them.
    pub(super) aside: Vec<Arc<dyn Device>>,
}

impl Assembled {
    /// Returns the bytes of each group that chunks may lie in: none of a log device.
    pub(super) fn sizes_for_chunks(&self) -> Vec<u64> {
        let mut sizes = self.sizes.clone();
        let log_device = self.superblock.log_device.map(|group| usize::from(group.number));
        log_device.and_then(|at| sizes.get_mut(at)).into_iter().for_each(|bytes| *bytes = 0);
        sizes
    }
}

/// Returns an error if a mirror is known to have left out the devices that are here, and to have gone on without them.
///
/// # Errors
/// [`Error::NotCurrent`].
pub(super) fn demand_tables(assembled: &Assembled, known: &[TableSeen]) -> Result<()> {
    for seen in known {
        let table = assembled.tables.get(usize::from(seen.group)).filter(|table| !table.members.is_empty());
        if table.is_none_or(|table| table.has_come_to(seen)) {
            continue;
        }
        let of_group = |label: &&Label| label.membership.group == seen.group;
        let labels: Vec<&Label> = assembled.labels.iter().filter(of_group).collect();
        let name = labels.first().map(|label| label.name.as_str()).unwrap_or_default();
        let here = assembled.devices.here();
        let is_one = |number: u16| labels.iter().any(|label| label.device == number);
        let paths = here.iter().filter(|device| is_one(device.number));
        let paths: Vec<String> = paths.map(|device| device.one().path().display().to_string()).collect();
        let what = format!(
            "on {} is an older copy of pool '{name}': the pool left it out and went on with other devices of the mirror, which are not here",
            paths.join(", ")
        );
        return Err(Error::NotCurrent { what, stale: Vec::new() });
    }
    Ok(())
}

/// Things that a pool may be opened without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Without {
    /// Devices whose superblocks cannot be read are left out, and none is too old.
    pub(super) rescue: bool,
    /// The log device, though it may have what no other device has.
    pub(super) needed_log_device: bool,
}

/// A member of a mirror that is here and not whole, as it describes itself.
#[derive(Clone, Debug)]
pub(super) struct Returned {
    pub(super) label: Label,
    /// The same device with its superblocks; `None` if none is sound.
    pub(super) member: Option<Member>,
}

/// A device with a label of the pool.
struct Candidate {
    device: Arc<dyn Device>,
    label: Label,
    /// The newest of its superblocks; `None` if none is sound.
    member: Option<Member>,
}

impl Candidate {
    fn one(&self) -> OneDevice<'_> {
        OneDevice::of(self.device.as_ref())
    }

    /// Returns what the device says of itself.
    fn entry(&self) -> Option<&MemberEntry> {
        self.label.membership.entry(self.label.device)
    }

    fn is(&self, entry: &MemberEntry) -> bool {
        self.entry().is_some_and(|own| (own.number, own.birth) == (entry.number, entry.birth))
    }

    fn is_current(&self, newest: &Superblock) -> bool {
        self.member.as_ref().is_some_and(|member| member.is_current(newest))
    }
}

/// The devices that have a label, and what is wrong with others.
#[derive(Default)]
struct Candidates {
    all: Vec<Candidate>,
    /// Error of the first device without a label.
    unlabelled: Option<Error>,
    /// Error of the first device that has a label and no sound superblock.
    unsound: Option<Error>,
    /// The same of the first one that is being filled: it gets superblocks when it has everything.
    unfilled: Option<Error>,
    /// Devices with the label of a spare.
    spares: Vec<Arc<dyn Device>>,
}

/// Finds the place of each device of a pool.
///
/// # Errors
/// [`Error::NotCurrent`] if a device is stale (I1), unless it is of a mirror that has another one;
/// [`Error::NotAPool`] if there is no pool, if devices are missing, or for a device that was left out of the pool.
pub(super) fn assemble(devices: Vec<Arc<dyn Device>>, without: Without) -> Result<Assembled> {
    let rescue = without.rescue;
    let Candidates { all, unlabelled, unsound, unfilled, spares: mut aside } = candidates(devices)?;
    if all.is_empty() {
        let only_spares = || Error::NotAPool("only spares of a pool are here, and they hold no data".into());
        let unlabelled = unlabelled.or_else(|| (!aside.is_empty()).then(only_spares));
        return Err(unlabelled.unwrap_or_else(|| Error::NotAPool("there is no device".into())));
    }
    let Some(superblock) = weigh(&all, rescue) else {
        let pool = format!("pool '{}'", all.first().map_or("", |candidate| &candidate.label.name));
        return Err(unsound
            .or(unfilled)
            .unwrap_or_else(|| Error::corrupt(pool, "none of its superblocks is sound")));
    };
    let (all, ahead): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|candidate| rescue || !is_ahead(&candidate.label, &superblock));
    for Candidate { device, label, .. } in &ahead {
        let device = device.path().display();
        tracing::warn!(%device, pool = label.name, "it was being added to the pool when that ended, and is not part of it; it is left alone");
    }
    let tables = tables(&all, &superblock, rescue)?;
    let groups = groups_of(&all, &superblock, rescue);
    let (all, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|candidate| rescue || !is_other(candidate, &tables, &groups, &superblock));
    for Candidate { device, label, .. } in &others {
        let device = device.path().display();
        tracing::info!(%device, pool = label.name, "it is not a device of the pool, which has others in its place");
    }
    aside.extend(others.into_iter().map(|candidate| candidate.device));
    let spared =
        superblock.log_device.filter(|group| !group.is_needed || without.needed_log_device || rescue);
    let spared = spared.map(|group| group.number);
    let is_left = |candidate: &Candidate| {
        !rescue && Some(candidate.label.membership.group) == spared && !candidate.is_current(&superblock)
    };
    let (left, all): (Vec<_>, Vec<_>) = all.into_iter().partition(is_left);
    for Candidate { device, label, .. } in &left {
        let device = device.path().display();
        tracing::warn!(%device, pool = label.name, "it was the log device, and the pool has gone on without it");
    }
    aside.extend(left.into_iter().map(|candidate| candidate.device));
    let placed = place(all, &tables, &groups, superblock, (rescue, spared)).map(|mut assembled| {
        assembled.aside.append(&mut aside);
        assembled
    });
    match (placed, unlabelled.or(unsound)) {
        (Err(Error::NotAPool(_)), Some(error)) => Err(error),
        (Ok(assembled), Some(error)) => {
            tracing::error!(%error, "a device is left alone: the pool can be opened without it");
            Ok(assembled)
        }
        (assembled, _) => assembled,
    }
}

/// Returns true if a pool can be opened on these devices, perhaps without some that it misses. Only labels and
/// superblocks are read.
pub fn can_open(devices: &[Arc<dyn Device>]) -> bool {
    assemble(devices.to_vec(), Without::default()).is_ok()
}

/// Returns the reason for which a pool cannot be opened on these devices if nothing is in the way but that its log device is
/// not among them, and may have what no other device has. Only labels and superblocks are read.
pub fn lacks_log_device(devices: &[Arc<dyn Device>]) -> Option<Error> {
    let refused = assemble(devices.to_vec(), Without::default()).err()?;
    let without = Without { needed_log_device: true, ..Without::default() };
    assemble(devices.to_vec(), without).is_ok().then_some(refused)
}

/// Returns the number of devices that a pool has, as far as these labels tell: of a group that none of them is of, at
/// least one.
pub(super) fn expected<'a>(labels: impl Iterator<Item = &'a Label> + Clone) -> usize {
    let groups = Groups::told_by(labels.clone());
    let newest = newest_tables(labels);
    let tables = newest.iter().filter(|(group, _)| groups.has(**group));
    let members =
        |all: (usize, usize), (_, table): (&u16, &&Membership)| (all.0 + 1, all.1 + table.members.len());
    let (known, members) = tables.fold((0, 0), members);
    members + groups.count().saturating_sub(known)
}

/// Returns the newest table of each group among labels of devices that have come equally far.
pub(super) fn newest_tables<'a>(labels: impl Iterator<Item = &'a Label>) -> BTreeMap<u16, &'a Membership> {
    let mut newest: BTreeMap<u16, &Membership> = BTreeMap::new();
    for table in labels.map(|label| &label.membership) {
        match newest.get(&table.group) {
            Some(known) if known.group_epoch >= table.group_epoch => {}
            _ => drop(newest.insert(table.group, table)),
        }
    }
    newest
}

/// Returns true if a device of a mirror was left behind: all that was acknowledged by it is on others as well, which have
/// come as far as `newest`, and whose tables are `tables`.
///
/// If the device was in use when the power failed, its log may have more than its last superblock, and the openings that
/// came after that do not tell. But nothing was acknowledged that is not on each member which its label calls whole (H1 of
/// [`crate::device`]). So if one of them is whole now, or if the table of now came from the table in its label, which one
/// of them has changed, then nothing is missed.
///
/// A device that its own label does not call whole holds no pool by itself, whatever its superblocks say: nothing was
/// acknowledged that only it has. It may know of an opening or a checkpoint that nobody else does, if the power failed
/// while that was confirmed.
pub(super) fn was_left(member: &Member, newest: &Standing, tables: &BTreeMap<u16, &Membership>) -> bool {
    let own = &member.label.membership;
    let Some(table) = tables.get(&own.group).filter(|table| table.is_mirrored()) else { return false };
    let is_whole = own.entry(member.label.device).is_none_or(|entry| entry.state == MemberState::Whole);
    let vouches = |entry: &MemberEntry| {
        let known = own.entry(entry.number).filter(|known| known.birth == entry.birth);
        entry.number != member.label.device
            && entry.state == MemberState::Whole
            && known.is_some_and(|known| known.state == MemberState::Whole)
    };
    member.standing().relation(newest) == Relation::Before
        || is_behind(member, newest) && (table.came_from(own) || table.members.iter().any(vouches))
        || !is_whole && table.came_from(own)
}

/// Returns true if a pool that has come as far as `newest` went on from a superblock of a device, which may have done
/// more since.
fn is_behind(member: &Member, newest: &Standing) -> bool {
    let at_superblock = Standing { open: false, ..member.standing() };
    at_superblock.relation(newest) == Relation::Before
}

/// Returns true if devices with these labels, which have come equally far, suffice to open their pool.
/// They may lack a group that is `spared`.
pub(super) fn suffice<'a>(labels: impl Iterator<Item = &'a Label>, spared: Option<u16>) -> bool {
    let labels: Vec<&Label> = labels.collect();
    let newest = newest_tables(labels.iter().copied());
    let is_whole = |label: &&Label| {
        let known = newest.get(&label.membership.group).and_then(|table| table.entry(label.device));
        known.is_some_and(|entry| {
            entry.state == MemberState::Whole
                && label.membership.entry(label.device).is_some_and(|own| own.birth == entry.birth)
        })
    };
    let groups = Groups::told_by(labels.iter().copied());
    let whole: BTreeSet<u16> =
        labels.iter().copied().filter(|label| is_whole(label)).map(|label| label.membership.group).collect();
    let spared = spared.filter(|group| groups.has(*group) && !whole.contains(group));
    whole.into_iter().filter(|group| groups.has(*group)).count() + usize::from(spared.is_some())
        == groups.count()
}

/// The groups of a pool, as labels of devices tell that have come equally far.
#[derive(Clone, Debug, Default)]
struct Groups {
    /// Number above those of all groups that there were.
    numbers: u16,
    /// Numbers of those that are gone: all that any of the labels names, since none comes back (E3 of
    /// [`super::removal`]).
    gone: Ranges,
}

impl Groups {
    fn told_by<'a>(labels: impl Iterator<Item = &'a Label> + Clone) -> Self {
        let all = labels.map(|label| &label.membership);
        let newest = all.clone().max_by_key(|membership| membership.epoch);
        let numbers = newest.map_or(0, |membership| membership.groups);
        let mut gone = Ranges::default();
        all.flat_map(|membership| membership.gone.iter()).for_each(|range| gone.insert_range(range));
        Self { numbers, gone }
    }

    fn has(&self, group: u16) -> bool {
        group < self.numbers && !self.gone.has(group.into())
    }

    fn count(&self) -> usize {
        usize::from(self.numbers).saturating_sub(self.gone.len() as usize)
    }
}

/// Reads the labels and superblocks of devices.
fn candidates(devices: Vec<Arc<dyn Device>>) -> Result<Candidates> {
    let mut found: BTreeMap<(u16, u64), Candidate> = BTreeMap::new();
    let (mut unlabelled, mut unsound, mut unfilled, mut spares) = (None, None, None, Vec::new());
    for device in devices {
        let one = OneDevice::of(device.as_ref());
        if matches!(SpareLabel::read(one), Ok(Some(_))) {
            spares.push(device);
            continue;
        }
        let label = match Label::read(one) {
            Ok(label) => label,
            Err(error) => {
                unlabelled = unlabelled.or(Some(error));
                continue;
            }
        };
        if let Some(other) = found.values().next()
            && other.label.pool != label.pool
        {
            return Err(Error::Invalid(two_pools((&label, one), (&other.label, other.one()))));
        }
        let own = label.membership.entry(label.device);
        let (birth, state) = own.map_or((0, None), |entry| (entry.birth, Some(entry.state)));
        let member = match Member::of(one, label.clone()) {
            Ok(member) => Some(member),
            Err(error) => {
                let first = if state == Some(MemberState::Filling) { &mut unfilled } else { &mut unsound };
                first.get_or_insert(error);
                None
            }
        };
        let key = (label.device, birth);
        let new = Candidate { device: Arc::clone(&device), label, member };
        if let Some(twin) = found.insert(key, new) {
            return Err(Error::Invalid(format!(
                "{} and {} are the same device of the pool: one is a copy",
                twin.device.path().display(),
                device.path().display()
            )));
        }
    }
    Ok(Candidates { all: found.into_values().collect(), unlabelled, unsound, unfilled, spares })
}

/// Returns a message that tells why two devices are not of one pool.
fn two_pools((label, device): (&Label, OneDevice<'_>), (other, twin): (&Label, OneDevice<'_>)) -> String {
    let (path, twin) = (device.path().display(), twin.path().display());
    if label.log == other.log && (label.formerly == other.pool || other.formerly == label.pool) {
        return format!(
            "{path} and {twin} have GUIDs of two pools, one of which was made of the other: if that was interrupted, go on with pagefold reguid --device for each of them"
        );
    }
    format!("{path} belongs to pool '{}' and not to '{}', as {twin} does", label.name, other.name)
}

/// Returns true if a device is none of its group, as the labels of devices that have come as far as `newest` tell: it left
/// the group, or was being added when that ended, before others were added.
fn is_other(
    candidate: &Candidate,
    tables: &BTreeMap<u16, Membership>,
    groups: &Groups,
    newest: &Superblock,
) -> bool {
    let group = candidate.label.membership.group;
    let table = tables.get(&group);
    groups.gone.has(group.into())
        || !candidate.is_current(newest)
            && table.is_some_and(|table| !table.members.iter().any(|entry| candidate.is(entry)))
}

/// Returns the groups of the pool.
fn groups_of(candidates: &[Candidate], newest: &Superblock, rescue: bool) -> Groups {
    let counts = |candidate: &&Candidate| rescue || candidate.is_current(newest);
    Groups::told_by(candidates.iter().filter(counts).map(|candidate| &candidate.label))
}

/// Returns the superblock that counts; `None` if there is no sound one.
fn weigh(candidates: &[Candidate], rescue: bool) -> Option<Superblock> {
    let members = candidates.iter().filter_map(|candidate| candidate.member.as_ref());
    if rescue {
        // The newest superblock that can be read counts; all that it leads to is verified when it is read.
        return members.map(|member| member.head).max_by_key(Superblock::order);
    }
    newest(members).copied()
}

/// Returns the newest table of each group, by its number.
fn tables(candidates: &[Candidate], newest: &Superblock, rescue: bool) -> Result<BTreeMap<u16, Membership>> {
    let mut tables: BTreeMap<u16, (Membership, &Path)> = BTreeMap::new();
    let counts = |candidate: &&Candidate| rescue || candidate.is_current(newest);
    for candidate in candidates.iter().filter(counts) {
        let (table, path) = (&candidate.label.membership, candidate.device.path());
        match tables.get(&table.group) {
            Some((other, of)) if other.is_apart(table) && !rescue => {
                let (path, of) = (path.display(), of.display());
                return Err(Error::NotCurrent {
                    what: format!(
                        "{path} and {of} are halves of a mirror, each of which went on without the other"
                    ),
                    stale: Vec::new(),
                });
            }
            Some((other, _)) if other.group_epoch >= table.group_epoch => {}
            _ => {
                tables.insert(table.group, (table.clone(), path));
            }
        }
    }
    Ok(tables.into_iter().map(|(group, (table, _))| (group, table)).collect())
}

/// Puts each device in its place.
fn place(
    mut candidates: Vec<Candidate>,
    tables: &BTreeMap<u16, Membership>,
    groups: &Groups,
    newest: Superblock,
    (rescue, spared): (bool, Option<u16>),
) -> Result<Assembled> {
    let label = candidates.first().map(|candidate| candidate.label.clone());
    let label = label.ok_or_else(|| Error::NotAPool("there is no device".into()))?;
    if !rescue {
        let current = candidates.iter().filter(|one| one.is_current(&newest));
        check_epoch(current.filter_map(|one| one.member.as_ref()), &newest)?;
    }
    let members: Vec<&Member> = candidates.iter().filter_map(|one| one.member.as_ref()).collect();
    let opening_seen = members.iter().map(|member| member.head.opening.id.number).max().unwrap_or_default();
    let stale: Vec<&Member> = members.iter().copied().filter(|member| !member.is_current(&newest)).collect();
    let borrowed = tables.iter().map(|(group, table)| (*group, table)).collect();
    if !rescue && !stale.iter().all(|member| was_left(member, &newest.standing(), &borrowed)) {
        return Err(stale_error(&stale, &newest));
    }
    if !rescue {
        // Superblocks of others name a root after which the device may have got more than anybody knows.
        let standing = newest.standing();
        for candidate in &mut candidates {
            candidate.member.take_if(|member| !member.is_current(&newest) && !is_behind(member, &standing));
        }
    }
    let mut placed = Placed { rest: candidates, ..Placed::default() };
    for group in 0..groups.numbers {
        let (numbers, gone) = (groups.numbers, groups.gone.clone());
        match tables.get(&group).filter(|_| groups.has(group)) {
            Some(told) => {
                let table = Membership { groups: numbers, gone, ..told.clone() }.of_epoch(newest.epoch);
                placed.group(table, told, &newest, rescue);
            }
            // The pool goes on without it, or is not opened.
            None if groups.has(group) => placed.none(Membership { gone, ..Membership::none(group, numbers) }),
            None => placed.none(Membership { gone, ..Membership::none(group, numbers) }),
        }
    }
    for other in &placed.rest {
        let device = other.device.path().display();
        tracing::info!(%device, pool = label.name, "it is no longer a device of the pool");
    }
    let needed = newest.log_device.map(|group| group.number).filter(|group| groups.has(*group));
    let lacks = |group: &u16| !placed.whole.contains(group);
    if let Some(group) = needed.filter(|group| lacks(group) && Some(*group) != spared)
        && placed.whole.len() + 1 == groups.count()
    {
        let known = tables.get(&group).map_or(String::new(), |table| {
            format!(" (device {})", table.members.first().map_or(0, |entry| entry.number))
        });
        return Err(Error::NotAPool(format!(
            "the log device{known} of pool '{}' is not here, and may have commits that no other device has; name it, too, or give them up: pagefold import --accept-loss {}",
            label.name, label.name
        )));
    }
    let spared = spared.filter(|group| groups.has(*group) && lacks(group));
    if placed.whole.len() + usize::from(spared.is_some()) < groups.count() {
        let known = tables.iter().filter(|(group, _)| groups.has(**group)).map(|(_, table)| table);
        let members: usize = known.clone().map(|table| table.members.len()).sum();
        let expected = members + groups.count().saturating_sub(known.count());
        let Placed { here, not_whole, .. } = placed;
        if here >= expected && !not_whole.is_empty() {
            return Err(Error::NotAPool(format!(
                "of pool '{}' no device is here that has everything its mirror has: {}; name that one, too, or import with -d",
                label.name,
                not_whole.join(", ")
            )));
        }
        return Err(Error::NotAPool(format!(
            "pool '{}' has {expected} devices and {here} of them are here; name them all, or import with -d",
            label.name
        )));
    }
    placed.labels.sort_by_key(|label| label.device);
    Ok(Assembled {
        labels: placed.labels,
        tables: placed.tables,
        changed: placed.changed,
        sizes: placed.sizes,
        devices: Devices::of_pool(placed.groups),
        returned: placed.returned,
        missing: placed.missing,
        superblock: newest,
        opening_seen,
        aside: placed.rest.into_iter().map(|candidate| candidate.device).collect(),
    })
}

/// Devices that have got their places so far, and the rest.
#[derive(Default)]
struct Placed {
    rest: Vec<Candidate>,
    groups: Vec<Vec<FoundMember>>,
    tables: Vec<Membership>,
    labels: Vec<Label>,
    sizes: Vec<u64>,
    changed: Vec<u16>,
    returned: Vec<Returned>,
    missing: Vec<u16>,
    /// Groups that have a whole member, and the number of devices that are here.
    whole: BTreeSet<u16>,
    here: usize,
    /// The devices that are here of other groups, and why they are not whole.
    not_whole: Vec<String>,
}

impl Placed {
    /// Leaves the place of a group that is gone empty.
    fn none(&mut self, table: Membership) {
        self.sizes.push(0);
        self.groups.push(Vec::new());
        self.tables.push(table);
    }

    /// Returns the bytes that a group uses: as the newest label of its whole members says (Y4 of [`super::roster`]).
    fn size_of(&self, table: &Membership, newest: &Superblock, any: bool) -> Option<u64> {
        let is_whole = |candidate: &&Candidate| {
            let entry = table.members.iter().find(|entry| candidate.is(entry));
            entry.is_some_and(|entry| entry.state == MemberState::Whole)
                && (any || candidate.is_current(newest))
        };
        let labels = self.rest.iter().filter(is_whole).map(|candidate| &candidate.label);
        labels.max_by_key(|label| label.membership.group_epoch).map(|label| label.size_bytes)
    }

    /// Puts the members of a group in their places. One that is whole by the table is *away* if it is not here, and is
    /// filled again if it has not come as far as the others.
    fn group(&mut self, mut table: Membership, told: &Membership, newest: &Superblock, rescue: bool) {
        // A crash may have come before the labels said that a device stays, since nobody takes its place any more.
        table.keep_unreplaced();
        let of_group = |candidate: &&Candidate| candidate.label.membership.group == table.group;
        let any = rescue && !self.rest.iter().filter(of_group).any(|candidate| candidate.is_current(newest));
        let size_bytes = self.size_of(&table, newest, any);
        let mut members = Vec::new();
        let (mut is_readable, mut is_behind, mut not_whole) = (false, false, Vec::new());
        for entry in &mut table.members {
            let at = self.rest.iter().position(|candidate| candidate.is(entry));
            let found = at.map(|at| self.rest.remove(at));
            // It was away while the group grew.
            let fits = |found: &Candidate| found.device.size_bytes() >= size_bytes.unwrap_or_default();
            if let Some(Candidate { device, .. }) = found.as_ref().filter(|found| !fits(found)) {
                let device = device.path().display();
                tracing::error!(%device, ?size_bytes, "it is smaller than what its mirror uses, and is left alone");
            }
            let found = found.filter(fits);
            let current = found.as_ref().is_some_and(|found| any || found.is_current(newest));
            if found.is_none() && entry.state == MemberState::Whole {
                self.missing.push(entry.number);
            }
            let before = entry.state;
            entry.state = match (entry.state, &found) {
                (MemberState::Whole, Some(_)) if current => MemberState::Whole,
                (MemberState::Whole | MemberState::Filling | MemberState::Away, Some(_)) => {
                    MemberState::Filling
                }
                (MemberState::Whole | MemberState::Filling, None) => MemberState::Away,
                (state, _) => state,
            };
            if let Some(found) = &found {
                self.here += 1;
                if entry.state == MemberState::Whole {
                    is_readable = true;
                    // A crash may have left the table on some of the members: alone, this one would not know it.
                    is_behind |=
                        Some(found.label.size_bytes) != size_bytes || found.label.membership != *told;
                } else {
                    let (label, member) = (found.label.clone(), found.member.clone());
                    self.returned.push(Returned { label, member });
                    not_whole.push(format!("{} {}", found.device.path().display(), why_not_whole(before)));
                }
                if entry.state.is_written() {
                    self.labels.push(found.label.clone());
                }
            }
            let device = found.map(|found| found.device);
            members.push(FoundMember { number: entry.number, device, state: entry.state });
        }
        if table != *told || is_behind {
            self.changed.push(table.group);
        }
        if is_readable {
            self.whole.insert(table.group);
        } else {
            self.not_whole.append(&mut not_whole);
        }
        self.sizes.push(size_bytes.unwrap_or_default());
        self.groups.push(members);
        self.tables.push(table);
    }
}

/// Says why a device that is here is not whole, though the table of its mirror calls it so; or because it does not.
const fn why_not_whole(told: MemberState) -> &'static str {
    match told {
        MemberState::Whole => "is an older copy",
        MemberState::Filling => "was still being filled",
        MemberState::Offline => "was taken offline before",
        MemberState::Faulted => "had failed before",
        MemberState::Away => "was not there when the pool was used last",
    }
}
