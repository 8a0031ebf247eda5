//! Tells what a change of the devices of a mirror would do, without making it.

use std::path::Path;

use super::Pool;
use super::create::check_size_of;
use super::membership::MIRROR_MAX;
use crate::limits::CHUNK_BYTES;
use crate::{Error, Result};

/// A change of the devices of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorChange<'a> {
    /// See [`Pool::attach`].
    Attach {
        /// Number of the device that gets a mirror, or is replaced.
        beside: u16,
        /// Path of the new device, for messages.
        path: &'a Path,
        /// Its size in bytes.
        size_bytes: u64,
        /// True if it takes the other one's place.
        replace: bool,
    },
    /// See [`Pool::detach`]; the device has this number.
    Detach(u16),
    /// See [`Pool::offline`]; the device has this number.
    Offline(u16),
    /// See [`Pool::online`]; the device has this number, and is as it was when it was left out.
    Online(u16),
}

impl Pool {
    /// Returns the bytes that a change would have copied to a device. Nothing is changed.
    ///
    /// # Errors
    /// Those that the change would have, apart from errors of devices.
    pub fn planned_change(&self, change: MirrorChange<'_>) -> Result<u64> {
        self.shared.check_writable()?;
        match change {
            MirrorChange::Attach { beside, path, size_bytes, replace } => {
                let group = self.check_attach(beside, (path, size_bytes), replace)?;
                Ok(self.chunks.used_of(group).len() as u64 * CHUNK_BYTES)
            }
            MirrorChange::Detach(device) => {
                self.check_stays(device)?;
                let (_, state) = self.state_of(device)?;
                if state.is_written() { self.check_other(device).map(|()| 0) } else { Ok(0) }
            }
            MirrorChange::Offline(device) => {
                self.check_written(device)?;
                self.check_other(device).map(|()| 0)
            }
            MirrorChange::Online(device) => {
                self.check_stays(device)?;
                if self.state_of(device)?.1.is_written() {
                    return Err(Error::Invalid("it is in use already".into()));
                }
                Ok(self.lacking_bytes(device))
            }
        }
    }

    /// Returns the group of `beside` if a device of that path and size can be attached there.
    pub(super) fn check_attach(
        &self,
        beside: u16,
        (path, bytes): (&Path, u64),
        replace: bool,
    ) -> Result<u16> {
        let (group, _) = self.state_of(beside)?;
        let table = self.labels.table(group).ok_or_else(unknown)?;
        if replace {
            table.check_replaced(beside)?;
        } else if table.members.iter().filter(|entry| !entry.leaves).count() >= MIRROR_MAX {
            return Err(Error::Invalid(format!("a mirror has at most {MIRROR_MAX} devices")));
        }
        check_size_of(path, bytes)?;
        self.check_holds(group, (path, bytes))?;
        Ok(group)
    }

    /// Returns an error if a device of that path and size is smaller than a group needs.
    pub(super) fn check_holds(&self, group: u16, (path, bytes): (&Path, u64)) -> Result<()> {
        let needed = self.labels.group_bytes(group);
        if bytes >= needed {
            return Ok(());
        }
        let path = path.display();
        Err(Error::Invalid(format!(
            "{path} has {bytes} bytes, and {needed} are needed: as many as its mirror uses"
        )))
    }

    /// Returns the group of a device that is written.
    pub(super) fn check_written(&self, device: u16) -> Result<u16> {
        match self.state_of(device)? {
            (group, state) if state.is_written() => Ok(group),
            _ => Err(Error::Invalid("it is not in use now".into())),
        }
    }

    pub(super) fn check_other(&self, device: u16) -> Result<()> {
        if self.shared.devices.has_another(device) { Ok(()) } else { Err(self.last_one(device)) }
    }
}

pub(super) fn unknown() -> Error {
    Error::Invalid("the pool has no such device".into())
}
