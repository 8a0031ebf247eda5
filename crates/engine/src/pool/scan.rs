//! Finds pools on devices, and tells their copies apart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::identity::{Member, MemberSet, newest as newest_of, versions};
use super::label::{Guid, Label, Superblock};
use super::members::{expected, newest_tables, suffice, was_left};
use super::membership::{Membership, TableSeen};
use super::opening::{Relation, Standing};
use super::paths::{PathTarget, SYS, made_of, target};
use super::spare_label::SpareLabel;
use crate::device::{FileDevice, OneDevice, OpenMode};
use crate::limits::DEVICE_BYTES_MIN;
use crate::{Error, Result};

/// State of a pool that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundState {
    /// The pool was exported and can be opened anywhere.
    Exported,
    /// The pool was not exported: its server was stopped or crashed. Opening it replays its log.
    NotExported,
    /// A process has the pool open.
    InUse,
    /// Some of the pool's devices were not found. It can be opened without them, since they have mirrors.
    Degraded,
    /// Some of the pool's devices were not found, and it cannot be opened without them.
    Incomplete,
    /// Some of the pool's devices were found several times, and nothing tells which of the copies is the right one.
    Copies,
    /// Copies of the pool went on from here: these devices are older.
    Old,
    /// Copies of the pool went on separately, and this is one of them.
    Apart,
}

/// A pool that was found, or one of several copies of it.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: Guid,
    /// GUID that the pool had before its last change.
    pub formerly: Option<Guid>,
    /// Devices that were found, by number; the first of several equal copies.
    pub devices: Vec<PathBuf>,
    /// Number of devices that the pool has.
    pub expected: u16,
    /// State of the pool.
    pub state: FoundState,
    /// True if the pool was exported, whatever its state.
    pub exported: bool,
    /// True if a process has the pool open, whatever its state.
    pub in_use: bool,
    /// Standing that the pool has reached.
    pub standing: Standing,
    /// Tables of its groups, by number.
    tables: BTreeMap<u16, Membership>,
    /// Paths of all equal copies of a device, for each device of which there are several.
    pub alike: Vec<Vec<PathBuf>>,
    /// Other paths to the devices.
    pub also: Vec<PathBuf>,
    /// Spares that were found.
    pub spares: Vec<PathBuf>,
    /// True if its log device was not found, and each other group was. If it is incomplete all the same, the log device may
    /// have what no other device has.
    pub lacks_log_device: bool,
    /// True if nothing of it was found but its log device, or a device that was that once.
    pub is_log_device: bool,
}

impl FoundPool {
    /// Returns false if a mirror is known to have left out the devices that were found, and to have gone on without them.
    #[must_use]
    pub fn has_come_to(&self, seen: &[TableSeen]) -> bool {
        seen.iter().all(|seen| self.tables.get(&seen.group).is_none_or(|table| table.has_come_to(seen)))
    }
}

/// A device of a pool.
struct Seen {
    member: Member,
    target: PathTarget,
    exported: bool,
    in_use: bool,
    also: Vec<PathBuf>,
}

/// Finds the pools whose devices are among `paths`; a folder stands for the files and block devices in it. Paths that
/// hold no pool are skipped; `progress` is called with each path before it is read. Each copy of a pool is found by
/// itself, the newest first. No device is part of two pools, and several paths to one device count as one.
///
/// # Errors
/// [`Error::Io`] for a path that does not exist or a folder that cannot be read.
pub fn scan(paths: &[PathBuf], progress: &mut dyn FnMut(&Path)) -> Result<Vec<FoundPool>> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut spares: Vec<(PathBuf, PathTarget, Guid)> = Vec::new();
    for path in candidates(paths)? {
        progress(&path);
        let Some(target) = target(&path, Path::new(SYS)) else { continue };
        if let Some(label) = spare_label(&path) {
            if !spares.iter().any(|(_, other, _)| *other == target) {
                spares.push((path, target, label.pool));
            }
            continue;
        }
        match seen.iter_mut().find(|other| other.target == target) {
            Some(other) if other.member.path == path || other.also.contains(&path) => {}
            Some(other) => other.also.push(path),
            None => seen.extend(look(&path, target)),
        }
    }
    let seen = without_lower_paths(seen);
    let mut pools: BTreeMap<(Guid, Guid), Vec<Seen>> = BTreeMap::new();
    for one in seen {
        pools.entry((one.member.label.pool, one.member.label.log)).or_default().push(one);
    }
    let mut found: Vec<FoundPool> = pools.values().flat_map(|seen| of_one_pool(seen)).collect();
    let current = |pool: &&mut FoundPool| !matches!(pool.state, FoundState::Old | FoundState::Apart);
    for pool in found.iter_mut().filter(current) {
        let own = spares.iter().filter(|(_, _, guid)| *guid == pool.guid);
        pool.spares = own.map(|(path, _, _)| path.clone()).collect();
    }
    Ok(found)
}

fn spare_label(path: &Path) -> Option<SpareLabel> {
    let device = FileDevice::open(path, OpenMode::Unlocked).ok()?;
    SpareLabel::read(OneDevice::of(&device)).ok()?
}

/// Removes devices that others in `seen` are made of and that show the same; adds their paths to those others.
fn without_lower_paths(mut seen: Vec<Seen>) -> Vec<Seen> {
    let mut at = 0;
    while let Some(lower) = seen.get(at) {
        let above = made_of(lower.target, Path::new(SYS));
        let same = |other: &Seen| {
            above.contains(&other.target)
                && other.member.label == lower.member.label
                && other.member.head == lower.member.head
        };
        let Some(upper) = seen.iter().position(same) else {
            at += 1;
            continue;
        };
        let lower = seen.remove(at);
        if let Some(upper) = seen.get_mut(upper - usize::from(upper > at)) {
            upper.also.push(lower.member.path);
            upper.also.extend(lower.also);
        }
    }
    seen
}

/// Returns the copies of a pool, each as a find of its own.
fn of_one_pool(seen: &[Seen]) -> Vec<FoundPool> {
    let members: Vec<Member> = seen.iter().map(|one| one.member.clone()).collect();
    let mut versions = versions(&members);
    rejoin(&mut versions, &members);
    // A log device holds no pool: whatever became of one, it is no copy from which another could be apart.
    let holds_data = |version: &&MemberSet| {
        let of = |at: &usize| members.get(*at);
        version.members.values().flatten().filter_map(of).any(|member| !member.is_of_log_device())
    };
    let relation = |version: &MemberSet| {
        let to = |other: &MemberSet| version.standing.relation(&other.standing);
        let others: Vec<Relation> = versions.iter().filter(holds_data).map(to).collect();
        [Relation::Before, Relation::Apart].into_iter().find(|relation| others.contains(relation))
    };
    versions.iter().filter_map(|version| found(seen, version, relation(version))).collect()
}

/// Moves devices of mirrors that were left behind to the newest version, which has them as members and lacks them.
fn rejoin(versions: &mut Vec<MemberSet>, members: &[Member]) {
    let Some((newest, older)) = versions.split_first_mut() else { return };
    let of = |at: &usize| members.get(*at);
    let labels = |set: &MemberSet| -> Vec<&Label> {
        set.members.values().flatten().filter_map(of).map(|member| &member.label).collect()
    };
    let tables = newest_tables(labels(newest).into_iter());
    let is_left = |member: &Member| {
        let label = &member.label;
        let entry = tables.get(&label.membership.group).and_then(|table| table.entry(label.device));
        let birth = label.membership.entry(label.device).map(|own| own.birth);
        entry.is_some_and(|entry| Some(entry.birth) == birth) && was_left(member, &newest.standing, &tables)
    };
    let mut back = Vec::new();
    for version in older {
        let is_back = |(number, at): &(&u16, &Vec<usize>)| {
            let one = at.len() == 1 && !newest.members.contains_key(number);
            one && at.iter().filter_map(of).all(is_left)
        };
        let numbers: Vec<u16> = version.members.iter().filter(is_back).map(|(number, _)| *number).collect();
        back.extend(numbers.into_iter().filter_map(|number| version.members.remove_entry(&number)));
    }
    for (number, at) in back {
        newest.members.entry(number).or_insert(at);
    }
    versions.retain(|version| !version.members.is_empty());
}

fn found(seen: &[Seen], version: &MemberSet, relation: Option<Relation>) -> Option<FoundPool> {
    let of = |members: &[usize]| -> Vec<&Seen> { members.iter().filter_map(|at| seen.get(*at)).collect() };
    let first = of(version.members.values().next()?).into_iter().next()?;
    let all: Vec<Vec<&Seen>> = version.members.values().map(|members| of(members)).collect();
    let alike: Vec<Vec<PathBuf>> = all
        .iter()
        .filter(|copies| copies.len() > 1)
        .map(|copies| copies.iter().map(|one| one.member.path.clone()).collect())
        .collect();
    let in_use = all.iter().flatten().any(|one| one.in_use);
    let exported = all.iter().flatten().all(|one| one.exported);
    let label = &first.member.label;
    let labels = || all.iter().flatten().map(|one| &one.member.label);
    let expected = expected(labels());
    let heads = all.iter().flatten().map(|one| one.member.head);
    let newest = heads.filter(|head| head.confirmed).max_by_key(Superblock::order);
    let log_device = newest.and_then(|head| head.log_device);
    let spared = log_device.filter(|group| !group.is_needed).map(|group| group.number);
    let is_log = |label: &Label| log_device.is_some_and(|log| log.number == label.membership.group);
    // Devices that were left behind are here to be filled: the pool lives on those that have come as far as any.
    let base = newest_of(all.iter().flatten().map(|one| &one.member)).copied();
    let is_current = |member: &Member| base.is_none_or(|base| member.is_current(&base));
    let current = || all.iter().flatten().filter(|one| is_current(&one.member)).map(|one| &one.member.label);
    let lacks_log_device = !labels().any(is_log) && suffice(current(), log_device.map(|log| log.number));
    let state = match relation {
        Some(Relation::Before) => FoundState::Old,
        Some(_) => FoundState::Apart,
        None if !suffice(current(), spared) => FoundState::Incomplete,
        None if !alike.is_empty() => FoundState::Copies,
        None if in_use => FoundState::InUse,
        None if all.len() < expected => FoundState::Degraded,
        None if exported => FoundState::Exported,
        None => FoundState::NotExported,
    };
    Some(FoundPool {
        name: label.name.clone(),
        guid: label.pool,
        formerly: (label.formerly != Guid::NONE).then_some(label.formerly),
        devices: all.iter().filter_map(|copies| Some(copies.first()?.member.path.clone())).collect(),
        expected: u16::try_from(expected).unwrap_or(u16::MAX),
        state,
        exported,
        in_use,
        standing: version.standing,
        tables: newest_tables(labels()).into_iter().map(|(group, table)| (group, table.clone())).collect(),
        alike,
        also: all.iter().flatten().flat_map(|one| one.also.iter().cloned()).collect(),
        spares: Vec::new(),
        lacks_log_device: log_device.is_some() && lacks_log_device,
        is_log_device: labels().all(is_log),
    })
}

/// Returns the paths that [`scan`] reads: a folder stands for the files and block devices in it.
///
/// # Errors
/// As [`scan`].
pub fn candidates(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        let io = |source| Error::Io { op: "open", device: path.clone(), offset: 0, len_bytes: 0, source };
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            let mut entries: Vec<PathBuf> =
                std::fs::read_dir(path).map_err(io)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
            entries.sort();
            found.extend(entries.into_iter().filter(|entry| may_hold_pool(entry)));
        } else {
            found.push(path.clone());
        }
    }
    Ok(found)
}

fn may_hold_pool(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    // Links are skipped: /dev/disk and the like name devices a second time.
    std::fs::symlink_metadata(path).is_ok_and(|meta| {
        meta.file_type().is_block_device() || (meta.is_file() && meta.len() >= DEVICE_BYTES_MIN)
    })
}

fn look(path: &Path, target: PathTarget) -> Option<Seen> {
    let (device, in_use) = match FileDevice::open(path, OpenMode::ReadOnly) {
        Ok(device) => (device, false),
        Err(Error::Busy(_)) => (FileDevice::open(path, OpenMode::Unlocked).ok()?, true),
        Err(_) => return None,
    };
    let member = Member::read(OneDevice::of(&device)).ok()?;
    let exported = member.head.exported;
    Some(Seen { member, target, exported, in_use, also: Vec::new() })
}

/// Reads all of a device that [`scan`] reads, and forgets it. It does not lock the device.
pub fn read_as_scan(path: &Path) {
    if let Ok(device) = FileDevice::open(path, OpenMode::Unlocked) {
        let _forgotten = (SpareLabel::read(OneDevice::of(&device)), Member::read(OneDevice::of(&device)));
    }
}

/// Returns the label of a device and how far its pool has come, even if a process has it open.
///
/// # Errors
/// Errors of reading it; an error if it holds no pool.
pub fn stands(path: &Path) -> Result<(Label, Standing)> {
    let member = Member::read(OneDevice::of(&FileDevice::open(path, OpenMode::Unlocked)?))?;
    let standing = member.standing();
    Ok((member.label, standing))
}

/// Returns true if a device is of the log device of its pool, as far as it tells itself, even if a process has it open.
///
/// # Errors
/// Those of [`stands`].
pub fn is_log_device(path: &Path) -> Result<bool> {
    let device = FileDevice::open(path, OpenMode::Unlocked)?;
    Ok(Member::read(OneDevice::of(&device))?.is_of_log_device())
}
