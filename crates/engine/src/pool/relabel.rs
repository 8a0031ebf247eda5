//! Gives a pool that nobody has open another name or another GUID. Only labels are written: superblocks and batches
//! carry the GUID of the log, which stays.
//!
//! The first label of each device counts, and is written last; so each device has either the old label or the new one,
//! whenever the power goes.
//! - A pool has the name that is on its first device, which is written last.
//! - A pool with the new GUID on some devices only is incomplete under either GUID. Labels tell the GUID before; so
//!   [`reguid`] goes on with the new one if it is called again for all devices.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::Pool;
use super::identity::{Member, judge};
use super::label::{Guid, is_name};
use super::members::{Assembled, Without, assemble, expected};
use super::options::OpenOptions;
use super::spare_label::SpareLabel;
use crate::device::{Device, OneDevice};
use crate::{Error, Result};

/// Gives the pool on these devices another name.
///
/// # Errors
/// Errors of opening the pool, before anything is changed; errors of devices.
pub fn rename(paths: &[PathBuf], name: &str) -> Result<()> {
    rename_on(Pool::open_devices(paths, &OpenOptions::default())?, name)
}

/// As [`rename`], on devices that are already open.
///
/// # Errors
/// As [`rename`].
pub fn rename_on(devices: Vec<Arc<dyn Device>>, name: &str) -> Result<()> {
    if !is_name(name) {
        return Err(Error::Invalid(format!("'{}' is no name for a pool", name.escape_default())));
    }
    let Assembled { labels, devices, aside, .. } = assemble(devices, Without::default())?;
    labels.iter().try_for_each(super::Label::check_writable)?;
    if let Some(pool) = labels.first().map(|label| label.pool) {
        relabel_spares(&aside, pool, |spare| name.clone_into(&mut spare.name))?;
    }
    for mut label in labels.into_iter().rev() {
        name.clone_into(&mut label.name);
        label.rewrite(devices.device(label.device)?.one())?;
    }
    Ok(())
}

/// Makes the pool on these devices a separate pool with this GUID. Returns the GUID that it has then, which is another
/// one if an earlier call was interrupted.
///
/// # Errors
/// Errors of opening the pool, before anything is changed; errors of devices.
pub fn reguid(paths: &[PathBuf], guid: Guid) -> Result<Guid> {
    reguid_on(&Pool::open_devices(paths, &OpenOptions::default())?, guid)
}

/// As [`reguid`], on devices that are already open.
///
/// # Errors
/// As [`reguid`].
pub fn reguid_on(devices: &[Arc<dyn Device>], guid: Guid) -> Result<Guid> {
    let is_spare = |device: &&Arc<dyn Device>| spare_of(device).is_some();
    let (spares, devices): (Vec<_>, Vec<_>) = devices.iter().partition(is_spare);
    let spares: Vec<Arc<dyn Device>> = spares.into_iter().cloned().collect();
    let devices: Vec<Arc<dyn Device>> = devices.into_iter().cloned().collect();
    let members = Member::read_all(&devices)?;
    let (old, new) = change(&members, guid)?;
    let name = members.first().map_or("", |member| &member.label.name);
    let numbers: BTreeSet<u16> = members.iter().map(|member| member.label.device).collect();
    let expected = expected(members.iter().map(|member| &member.label));
    if numbers.len() != expected || members.len() != expected {
        return Err(Error::Invalid(format!(
            "pool '{name}' has {expected} devices, and {} are given, {} of them once; name each device once",
            members.len(),
            numbers.len()
        )));
    }
    judge(&members)?;
    members.iter().try_for_each(|member| member.label.check_writable())?;
    for (member, device) in members.iter().zip(&devices).filter(|(member, _)| member.label.pool != new) {
        let mut label = member.label.clone();
        label.guid = new.of_device(label.device);
        label.pool = new;
        label.formerly = old;
        label.rewrite(OneDevice::of(device.as_ref()))?;
    }
    relabel_spares(&spares, old, |spare| spare.pool = new)?;
    Ok(new)
}

fn spare_of(device: &Arc<dyn Device>) -> Option<SpareLabel> {
    SpareLabel::read(OneDevice::of(device.as_ref())).ok().flatten()
}

/// Changes the labels of those devices that are spares of a pool.
fn relabel_spares(devices: &[Arc<dyn Device>], pool: Guid, change: impl Fn(&mut SpareLabel)) -> Result<()> {
    for device in devices {
        if let Some(mut label) = spare_of(device).filter(|label| label.pool == pool) {
            change(&mut label);
            label.rewrite(OneDevice::of(device.as_ref()))?;
        }
    }
    Ok(())
}

/// Returns the GUID that a pool has, and the one that it is to have: `guid`, or the one that some devices have already.
fn change(members: &[Member], guid: Guid) -> Result<(Guid, Guid)> {
    let first = members.first().ok_or_else(|| Error::Invalid("no device is given".into()))?;
    if let Some(other) = members.iter().find(|member| member.label.log != first.label.log) {
        return Err(Error::Invalid(format!(
            "{} and {} belong to different pools",
            first.path.display(),
            other.path.display()
        )));
    }
    let mut pools: Vec<Guid> = members.iter().map(|member| member.label.pool).collect();
    pools.sort_unstable();
    pools.dedup();
    let formerly = |new: Guid, old: Guid| {
        members.iter().filter(|member| member.label.pool == new).all(|member| member.label.formerly == old)
    };
    match *pools.as_slice() {
        [one] if guid != one && guid != Guid::NONE => Ok((one, guid)),
        [one, other] if formerly(other, one) => Ok((one, other)),
        [one, other] if formerly(one, other) => Ok((other, one)),
        [_] => Err(Error::Invalid("a pool's new GUID has to be another one".into())),
        _ => Err(Error::Invalid("these devices belong to different pools".into())),
    }
}
