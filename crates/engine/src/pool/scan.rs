//! Finding pools on devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::label::{Guid, Label, Superblock};
use crate::device::{FileDevice, OpenMode};
use crate::limits::DEVICE_BYTES_MIN;
use crate::{Error, Result};

/// What state a found pool is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundState {
    /// It was exported and can be opened anywhere.
    Exported,
    /// It was not exported: its server was stopped or crashed. Opening it replays its log.
    NotExported,
    /// A process has it open.
    InUse,
    /// Some of its devices were not found.
    Incomplete,
}

/// A pool that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: Guid,
    /// The devices that were found, by number.
    pub devices: Vec<PathBuf>,
    /// How many devices it has.
    pub expected: u16,
    /// Its state.
    pub state: FoundState,
}

/// Finds the pools whose devices are among `paths`; a folder stands for the files and block devices in it.
/// What holds no pool is passed over; `progress` is called with each path before it is looked at.
pub fn scan(paths: &[PathBuf], progress: &mut dyn FnMut(&Path)) -> Result<Vec<Found>> {
    let mut pools: BTreeMap<[u8; 16], (Found, BTreeMap<u16, PathBuf>)> = BTreeMap::new();
    for path in candidates(paths)? {
        progress(&path);
        let Some((label, state)) = look(&path) else { continue };
        let entry = pools.entry(label.pool.0).or_insert_with(|| {
            let found = Found {
                name: label.name.clone(),
                guid: label.pool,
                devices: Vec::new(),
                expected: label.devices,
                state,
            };
            (found, BTreeMap::new())
        });
        if state == FoundState::InUse || entry.0.state == FoundState::Exported {
            entry.0.state = state;
        }
        entry.1.entry(label.device).or_insert(path);
    }
    Ok(pools
        .into_values()
        .map(|(mut found, devices)| {
            if devices.len() < usize::from(found.expected) && found.state != FoundState::InUse {
                found.state = FoundState::Incomplete;
            }
            found.devices = devices.into_values().collect();
            found
        })
        .collect())
}

fn candidates(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
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
    // Links are not followed: /dev/disk and the like name devices twice.
    std::fs::symlink_metadata(path).is_ok_and(|meta| {
        meta.file_type().is_block_device() || (meta.is_file() && meta.len() >= DEVICE_BYTES_MIN)
    })
}

fn look(path: &Path) -> Option<(Label, FoundState)> {
    match FileDevice::open(path, OpenMode::ReadOnly) {
        Ok(device) => {
            let label = Label::read(&device).ok()?;
            let newest = Superblock::read_all(&device, &label).into_iter().next()?;
            Some((label, if newest.exported { FoundState::Exported } else { FoundState::NotExported }))
        }
        Err(Error::Busy(_)) => Some((peek(path)?, FoundState::InUse)),
        Err(_) => None,
    }
}

/// The label of a device that another process has open.
fn peek(path: &Path) -> Option<Label> {
    let device = FileDevice::open(path, OpenMode::Unlocked).ok()?;
    Label::read(&device).ok()
}
