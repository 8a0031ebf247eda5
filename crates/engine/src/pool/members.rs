//! Opens the devices of a pool, and finds out which member of it each of them is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity::{Member, judge};
use super::label::{Label, Superblock};
use super::{OpenOptions, Pool};
use crate::device::{Device, Devices, FileDevice, FoundMember, MemberState, OneDevice, OpenMode, RecordedDevice, Recording};
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

/// Returns the devices of a pool by number, and their labels in this order. This is where it is decided that a pool is
/// opened only with all of its devices: without mirrors, what lies on a missing one lies nowhere else.
pub(super) fn in_order(devices: Vec<Arc<dyn Device>>) -> Result<(Vec<Label>, Devices)> {
    let mut found: BTreeMap<u16, (Label, Arc<dyn Device>)> = BTreeMap::new();
    for device in devices {
        let one = OneDevice::of(device.as_ref());
        let label = Label::read(one)?;
        if let Some((other, twin)) = found.values().next()
            && other.pool != label.pool
        {
            return Err(Error::Invalid(two_pools((&label, one), (other, OneDevice::of(twin.as_ref())))));
        }
        if let Some((_, twin)) = found.insert(label.device, (label, Arc::clone(&device))) {
            return Err(Error::Invalid(format!(
                "{} and {} are the same device of the pool: one is a copy",
                twin.path().display(),
                device.path().display()
            )));
        }
    }
    let expected = found.values().next().map_or(0, |(label, _)| label.devices);
    let (labels, found): (Vec<Label>, Vec<_>) =
        found.into_iter().map(|(number, (label, device))| (label, (number, device))).unzip();
    let here = found.len();
    let mut found: BTreeMap<u16, Arc<dyn Device>> = found.into_iter().collect();
    let member = |number| match found.remove(&number) {
        Some(device) => FoundMember { number, device: Some(device), state: MemberState::Whole },
        None => FoundMember { number, device: None, state: MemberState::Away },
    };
    let devices = Devices::of_pool((0..expected).map(member).map(|member| vec![member]));
    if devices.here().len() != usize::from(expected) || here != usize::from(expected) || expected == 0 {
        let name = labels.first().map_or("", |label| &label.name);
        return Err(Error::NotAPool(format!(
            "pool '{name}' has {expected} devices and {here} of them are here; name them all, or import with -d"
        )));
    }
    Ok((labels, devices))
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

/// Reads the superblocks of all devices; returns the devices as members, and the superblock that counts. With `rescue`,
/// devices whose superblocks cannot be read are left out.
pub(super) fn weigh(labels: &[Label], devices: &Devices, rescue: bool) -> Result<(Vec<Member>, Superblock)> {
    let read = |label: &Label| Member::of(devices.device(label.device)?.one(), label.clone());
    let members: Vec<Result<Member>> = labels.iter().map(read).collect();
    if rescue {
        // The newest superblock that can be read counts; all that it leads to is verified when it is read.
        let members: Vec<Member> = members.into_iter().filter_map(Result::ok).collect();
        let newest = members.iter().map(|member| member.head).max_by_key(Superblock::order);
        let name = labels.first().map_or("", |label| &label.name);
        let none = || Error::corrupt(format!("pool '{name}'"), "none of its superblocks is sound");
        return Ok((members, newest.ok_or_else(none)?));
    }
    let members = members.into_iter().collect::<Result<Vec<Member>>>()?;
    let superblock = judge(&members)?;
    Ok((members, superblock))
}
