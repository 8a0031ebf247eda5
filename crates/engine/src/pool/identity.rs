//! Decides which devices belong together: those of one pool that have come equally far, each once.
//!
//! In a pool of several devices a superblock is written in two phases ([`super::checkpoint::write_superblock`]): to the
//! first ring of all devices, flushed; then, as confirmed, to the second ring of all, flushed. Nothing that a
//! checkpoint or an opening makes possible happens before. So:
//!
//! - I1: a device that lacks a confirmed superblock of another one is stale: an older copy, or one that went on for
//!   itself. It is not opened with the others ([`judge`]).
//! - I2: a superblock that is confirmed nowhere tells of a crash between two devices. It never counted: the superblock
//!   before it is on all devices, and the pool opens by that.
//! - I3: the pool's standing is that of the newest confirmed superblock, on whatever device.
//! - I5: every superblock has a number of its own, the one after that of the newest confirmed superblock, and so lies
//!   in other slots: whatever becomes of it, the one before stays as whole as it was. The next superblock is written
//!   over an interrupted one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::label::{Label, Superblock};
use super::opening::{Relation, Standing};
use crate::device::{Device, OneDevice};
use crate::{Error, Result};

/// A device, with its label and superblocks.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) path: PathBuf,
    pub(super) label: Label,
    /// The device's newest superblock.
    pub(super) head: Superblock,
    /// The device's newest superblock that is confirmed.
    confirmed: Option<Superblock>,
}

impl Member {
    /// Reads the label and the superblocks of a device.
    pub(super) fn read(device: OneDevice<'_>) -> Result<Self> {
        let label = Label::read(device)?;
        Self::of(device, label)
    }

    /// Reads labels and superblocks of devices, in their order.
    pub(super) fn read_all(devices: &[Arc<dyn Device>]) -> Result<Vec<Self>> {
        devices.iter().map(|device| Self::read(OneDevice::of(device.as_ref()))).collect()
    }

    /// Reads the superblocks of a device whose label is known.
    pub(super) fn of(device: OneDevice<'_>, label: Label) -> Result<Self> {
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

    /// Returns the superblock that the device is known to have reached.
    fn base(&self) -> &Superblock {
        self.confirmed.as_ref().unwrap_or(&self.head)
    }

    /// Returns how far the device has come.
    pub(super) fn standing(&self) -> Standing {
        self.base().standing()
    }

    /// Returns true if the device is of the log device of its pool, as far as it tells itself.
    pub(super) fn is_of_log_device(&self) -> bool {
        self.head.log_device.is_some_and(|log| log.number == self.label.membership.group)
    }

    /// Returns true if the device has a superblock that names the root with this address: of its newest ones.
    pub(super) fn has_root(&self, root: u64) -> bool {
        self.head.addr.raw() == root || self.base().addr.raw() == root
    }

    /// Returns true if the device has what `newest`, a confirmed superblock, has (I1).
    pub(super) fn is_current(&self, newest: &Superblock) -> bool {
        let reaches = |block: &Superblock| {
            let (there, wanted) = (&block.opening, newest.opening.id);
            let after = !block.confirmed && there.before() == wanted;
            block.generation >= newest.generation && (there.id == wanted || after)
        };
        reaches(&self.head) || self.confirmed.as_ref().is_some_and(reaches)
    }
}

/// Returns the superblock that tells how far a pool with these devices has come (I3).
pub(super) fn newest<'a>(members: impl Iterator<Item = &'a Member> + Clone) -> Option<&'a Superblock> {
    let confirmed = members.clone().filter_map(|member| member.confirmed.as_ref());
    confirmed
        .max_by_key(|block| block.order())
        .or_else(|| members.map(|member| &member.head).max_by_key(|block| block.order()))
}

/// Devices of one pool that have come equally far.
pub(super) struct MemberSet {
    /// For each number of a device the members of which any would do, as positions in what [`versions`] was given.
    pub(super) members: BTreeMap<u16, Vec<usize>>,
    /// Standing of the devices: how far they have come.
    pub(super) standing: Standing,
}

/// Sorts devices of one pool into versions, the newest first. No device is in two.
pub(super) fn versions(members: &[Member]) -> Vec<MemberSet> {
    let mut rest: Vec<usize> = (0..members.len()).collect();
    let mut found = Vec::new();
    while let Some(newest) = newest(rest.iter().filter_map(|at| members.get(*at))) {
        let mut version = MemberSet { members: BTreeMap::new(), standing: newest.standing() };
        rest.retain(|at| members.get(*at).is_none_or(|member| !is_ahead(&member.label, newest)));
        rest.retain(|at| {
            let current = members.get(*at).filter(|member| member.is_current(newest));
            if let Some(member) = current {
                version.members.entry(member.label.device).or_default().push(*at);
            }
            current.is_none()
        });
        // At least the device that has the superblock is current.
        if version.members.is_empty() {
            break;
        }
        found.push(version);
    }
    found
}

/// Returns the superblock by which a pool is to be opened that consists of these devices: the newest confirmed one (I2,
/// I3). While a pool is made there may be none; then it is the newest.
///
/// # Errors
/// [`Error::NotCurrent`] if a device is stale (I1), [`Error::NotAPool`] if devices are missing that were added.
pub(super) fn judge(members: &[Member]) -> Result<Superblock> {
    let newest = newest(members.iter()).ok_or_else(|| Error::NotAPool("there is no device".into()))?;
    let stale: Vec<&Member> = members.iter().filter(|member| !member.is_current(newest)).collect();
    if !stale.is_empty() {
        return Err(stale_error(&stale, newest));
    }
    check_epoch(members.iter(), newest)?;
    Ok(*newest)
}

/// Returns the error for devices that have not come as far as `newest`.
pub(super) fn stale_error(stale: &[&Member], newest: &Superblock) -> Error {
    let what: Vec<String> = stale.iter().map(|member| told(member, &newest.standing())).collect();
    let stale = stale.iter().map(|member| member.path.clone()).collect();
    Error::NotCurrent { what: what.join("; "), stale }
}

/// Returns an error unless one of these devices, which have come equally far, has a label of the epoch of the pool, which
/// is that of its superblock. Others may have an earlier one, if a crash came before they were told of devices that were
/// added.
///
/// # Errors
/// [`Error::NotAPool`].
pub(super) fn check_epoch<'a>(members: impl Iterator<Item = &'a Member>, newest: &Superblock) -> Result<()> {
    let mut name = "";
    for Member { label, .. } in members {
        if label.membership.epoch == newest.epoch {
            return Ok(());
        }
        name = &label.name;
    }
    Err(Error::NotAPool(format!("devices were added to pool '{name}' that are not here; name them all")))
}

/// Returns true if a device with this label is not of the pool yet, whose newest superblock is `newest`: it was being
/// added when the power failed, and nothing was put on it (Y3 of [`super::roster`]).
pub(super) fn is_ahead(label: &Label, newest: &Superblock) -> bool {
    label.membership.epoch > newest.epoch
}

/// Describes a stale device in words.
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

/// Returns an error unless a pool has come at least as far as `known`.
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
