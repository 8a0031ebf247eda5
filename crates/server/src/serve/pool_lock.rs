//! The lock on a pool: its name and its devices, locked by the supervisor before there is a server. So nobody else can
//! take them between two servers, and their locks belong to a process that lives.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pagefold_engine::device;

use crate::control::{Listener, lock_name};
use crate::failure::{Context, Failure, Result};
use crate::pools::{self, OpenDevices};
use crate::registry::Known;
use crate::supervisor::{Inherited, Link, StoredItem};

const NAME: &str = "lock";
/// Prefix of the names of devices; their index in [`Known::devices`] follows.
const DEVICE: &str = "device:";

/// Name and devices of a pool, locked as long as any process has the descriptors.
pub(super) struct PoolLock {
    pub(super) known: Known,
    name: OwnedFd,
    /// Descriptors of [`Known::devices`].
    devices: Vec<OwnedFd>,
}

impl PoolLock {
    /// Takes the name and the devices of a pool.
    pub(super) fn take(known: Known, read_only: bool) -> Result<Self> {
        let name = lock_name(&known.name)?;
        let devices = pools::hand_over_devices(&known, read_only)?;
        Ok(Self { known, name, devices })
    }

    /// Converts the lock for [`PoolLock::inherited`]. Each path goes with its device: all of them may be too long for
    /// one message.
    pub(super) fn into_items(self) -> Result<BTreeMap<String, StoredItem>> {
        let Self { mut known, name, devices } = self;
        let paths = std::mem::take(&mut known.devices);
        let body = serde_json::to_vec(&known)
            .map_err(|error| Failure::new(format!("cannot write down whose pool it is: {error}")))?;
        let mut kept = BTreeMap::from([(NAME.to_owned(), StoredItem { body, fd: Some(name) })]);
        for (at, (path, device)) in paths.iter().zip(devices).enumerate() {
            let body = path.as_os_str().as_bytes().to_vec();
            kept.insert(device_name(at), StoredItem { body, fd: Some(device) });
        }
        Ok(kept)
    }

    /// Takes over the lock that the supervisor keeps.
    pub(super) fn inherited(inherited: &mut Inherited) -> Result<Self> {
        let (body, name) = inherited
            .take(NAME)
            .ok_or_else(|| Failure::new("the supervisor does not have the pool's name"))?;
        let mut known: Known = serde_json::from_slice(&body)
            .map_err(|error| Failure::new(format!("cannot take over the pool's name: {error}")))?;
        let mut devices = Vec::new();
        while let Some((path, device)) = inherited.take(&device_name(devices.len())) {
            known.devices.push(OsString::from_vec(path).into());
            devices.push(device);
        }
        Ok(Self { known, name, devices })
    }

    pub(super) fn listen(&self) -> Result<Listener> {
        let name = self.name.try_clone().context(|| "cannot take over the pool's name".into())?;
        Listener::listen(&self.known.name, name)
    }

    pub(super) fn open_devices(&self, read_only: bool) -> Result<OpenDevices> {
        pools::adopt_devices(&self.known, &self.devices, read_only)
    }

    /// Unlocks the devices at once. Any other protection of an open device ends when the supervisor has closed it, too.
    pub(super) fn unlock_devices(&self, link: &Link) {
        for (at, device) in self.devices.iter().enumerate() {
            device::unlock(device);
            link.drop_kept(&device_name(at));
        }
    }
}

fn device_name(at: usize) -> String {
    format!("{DEVICE}{at}")
}
