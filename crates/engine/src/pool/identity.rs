//! Which devices belong together: those of one pool that have come equally far, each once.
//!
//! A superblock is written in two phases where a pool has several devices ([`super::checkpoint::write_superblock`]): to the first ring of all devices,
//! flushed; then, as confirmed, to the second ring of all, flushed. Nothing that a checkpoint or an opening makes possible happens before. So:
//!
//! - I1: a device that lacks a superblock which another one has as confirmed is stale: an older copy, or one that went on for itself. It is not opened with
//!   the others ([`judge`]).
//! - I2: a superblock that is not confirmed anywhere tells of a crash between two devices. It never counted: what was before it is on all devices, and
//!   the pool opens by that.
//! - I3: the pool's standing is that of the newest confirmed superblock, on whatever device.
//! - I5: every superblock has a number of its own, the one after that of the newest confirmed superblock, and so lies in other slots: whatever becomes of it,
//!   the one before is as whole as it was. What was interrupted lies where the next one is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::label::{Label, Superblock};
use super::opening::{Relation, Standing};
use crate::device::Device;
use crate::segment::Devices;
use crate::{Error, Result};

/// A device, and what it tells of itself.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) path: PathBuf,
    pub(super) label: Label,
    /// Its newest superblock.
    pub(super) head: Superblock,
    /// Its newest superblock that is confirmed.
    confirmed: Option<Superblock>,
}

impl Member {
    /// Reads labels and superblocks.
    pub(super) fn read(device: &dyn Device) -> Result<Self> {
        let label = Label::read(device)?;
        Self::of(device, label)
    }

    /// Of a device whose label is known.
    pub(super) fn of(device: &dyn Device, label: Label) -> Result<Self> {
        let path = device.path().to_path_buf();
        let all = Superblock::read_all(device, &label);
        let confirmed = all.iter().find(|block| block.confirmed).copied();
        let head = *all.first().ok_or_else(|| {
            Error::corrupt(
                format!("pool '{}'", label.name),
                format!(
                    "none of the superblocks on {} is sound; creating the pool may have been interrupted",
                    path.display()
                ),
            )
        })?;
        Ok(Self { path, label, head, confirmed })
    }

    /// What the device is known to have reached.
    fn base(&self) -> &Superblock {
        self.confirmed.as_ref().unwrap_or(&self.head)
    }

    /// How far it has come.
    pub(super) fn standing(&self) -> Standing {
        self.base().standing()
    }

    /// Whether it has what `newest` has, a confirmed superblock (I1).
    fn is_current(&self, newest: &Superblock) -> bool {
        let reaches = |block: &Superblock| {
            let (there, wanted) = (&block.opening, newest.opening.id);
            let after = !block.confirmed && there.before() == wanted;
            block.generation >= newest.generation && (there.id == wanted || after)
        };
        reaches(&self.head) || self.confirmed.as_ref().is_some_and(reaches)
    }
}

/// The superblock that tells how far a pool with these devices has come (I3).
fn newest<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> Option<&'a Superblock> {
    let confirmed = members.clone().filter_map(|member| member.confirmed.as_ref());
    confirmed
        .max_by_key(|block| block.order())
        .or_else(|| members.map(|member| &member.head).max_by_key(|block| block.order()))
}

/// Devices of one pool that have come equally far.
pub(super) struct Version {
    /// By number: those of which each would do, as places in what [`versions`] was given.
    pub(super) members: BTreeMap<u16, Vec<usize>>,
    /// How far they have come.
    pub(super) standing: Standing,
}

/// Sorts devices of one pool into versions, the newest first. No device is in two.
pub(super) fn versions(members: &[Member]) -> Vec<Version> {
    let mut rest: Vec<usize> = (0..members.len()).collect();
    let mut found = Vec::new();
    while let Some(newest) = newest(rest.iter().filter_map(|at| members.get(*at))) {
        let mut version = Version { members: BTreeMap::new(), standing: newest.standing() };
        rest.retain(|at| {
            let current = members.get(*at).filter(|member| member.is_current(newest));
            if let Some(member) = current {
                version.members.entry(member.label.device).or_default().push(*at);
            }
            current.is_none()
        });
        // Its own device at least has it.
        if version.members.is_empty() {
            break;
        }
        found.push(version);
    }
    found
}

/// The superblock that a pool with these devices, which are all of it, is to be opened by: the newest that is confirmed (I2, I3). While a pool is made
/// there may be none; then it is the newest.
///
/// # Errors
/// [`Error::NotCurrent`] where a device is stale (I1), [`Error::NotAPool`] for one that was left out of the pool.
pub(super) fn judge(members: &[Member]) -> Result<Superblock> {
    let newest = newest(members.iter()).ok_or_else(|| Error::NotAPool("there is no device".into()))?;
    let stale: Vec<&Member> = members.iter().filter(|member| !member.is_current(newest)).collect();
    if !stale.is_empty() {
        let what: Vec<String> = stale.iter().map(|member| told(member, &newest.standing())).collect();
        let stale = stale.into_iter().map(|member| member.path.clone()).collect();
        return Err(Error::NotCurrent { what: what.join("; "), stale });
    }
    let epoch = members.iter().map(|member| member.label.membership.epoch).max().unwrap_or_default();
    if let Some(left) = members.iter().find(|member| member.label.membership.epoch < epoch) {
        return Err(Error::NotAPool(format!(
            "{} is no longer a device of pool '{}': it was left out when the pool's devices changed",
            left.path.display(),
            left.label.name
        )));
    }
    if newest.epoch != epoch {
        return Err(Error::Unsupported(format!(
            "pool '{}' has devices that are changing; finish that with the version of pagefold that began it",
            members.first().map_or("", |member| &member.label.name)
        )));
    }
    Ok(*newest)
}

/// An error where devices of one pool have not come equally far. Damage is for others to tell.
pub(super) fn refuse_stale(devices: &Devices) -> Result<()> {
    let read: Result<Vec<Member>> = devices.iter().map(|device| Member::read(device.as_ref())).collect();
    let Ok(members) = read else { return Ok(()) };
    let log = members.first().map(|member| member.label.log);
    if members.iter().any(|member| Some(member.label.log) != log) {
        return Ok(());
    }
    match judge(&members) {
        Err(error @ Error::NotCurrent { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// A stale device, in words.
fn told(member: &Member, newest: &Standing) -> String {
    let standing = member.standing();
    let (path, number, name) = (member.path.display(), member.label.device, &member.label.name);
    let (ours, theirs) = (standing.opening.id.number, newest.opening.id.number);
    match standing.relation(newest) {
        Relation::Apart => format!(
            "{path} is a copy of device {number} of pool '{name}' that went on apart from the other devices"
        ),
        _ if ours == theirs => format!(
            "{path} is an older copy of device {number} of pool '{name}': the other devices have {} checkpoints more",
            newest.generation.saturating_sub(standing.generation)
        ),
        _ => format!(
            "{path} is an older copy of device {number} of pool '{name}': it was last opened as number {ours}, the other devices as number {theirs}"
        ),
    }
}

/// An error unless a pool has come at least as far as is known.
///
/// # Errors
/// [`Error::NotCurrent`].
pub(super) fn demand(found: &Standing, known: &Standing, name: &str, paths: &[&Path]) -> Result<()> {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let paths = paths.join(", ");
    let what = match found.relation(known) {
        Relation::Same | Relation::After => return Ok(()),
        Relation::Before => {
            format!("on {paths} is an older copy of pool '{name}': the pool went on after it was made")
        }
        Relation::Apart => {
            format!(
                "on {paths} is a copy of pool '{name}' that went on apart from the pool that is known here"
            )
        }
    };
    Err(Error::NotCurrent { what, stale: Vec::new() })
}
