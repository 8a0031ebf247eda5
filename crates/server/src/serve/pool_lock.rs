//! The lock on a pool: its name and its devices, locked by the supervisor before there is a server. So nobody else can
//! take them between two servers, and their locks belong to a process that lives.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pagefold_engine::device;
use parking_lot::Mutex;

use crate::control::{Listener, lock_name};
use crate::failure::{Context, Failure, Result};
use crate::pools::{self, OpenDevices};
use crate::registry::Known;
use crate::supervisor::{Inherited, Link, StoredItem};

const NAME: &str = "lock";
/// Prefix of the names of devices; a number follows.
const DEVICE: &str = "device:";

/// Name and devices of a pool, locked as long as any process has the descriptors.
pub(super) struct PoolLock {
    pub(super) known: Known,
    name: OwnedFd,
    /// Devices that are open, by the numbers under which the supervisor keeps them.
    devices: Mutex<BTreeMap<usize, (PathBuf, OwnedFd)>>,
}

impl PoolLock {
    /// Takes the name and the devices of a pool.
    pub(super) fn take(known: Known, (read_only, accept_loss): (bool, bool)) -> Result<Self> {
        let name = lock_name(&known.name)?;
        let (paths, files) = pools::hand_over_devices(&known, (read_only, accept_loss))?;
        let devices = paths.into_iter().zip(files).enumerate().collect();
        Ok(Self { known, name, devices: Mutex::new(devices) })
    }

    /// Converts the lock for [`PoolLock::inherited`]. Each path goes with its device: all of them may be too long for
    /// one message.
    pub(super) fn into_items(self) -> Result<BTreeMap<String, StoredItem>> {
        let Self { mut known, name, devices } = self;
        known.devices.clear();
        let body = serde_json::to_vec(&known)
            .map_err(|error| Failure::new(format!("cannot write down whose pool it is: {error}")))?;
        let mut kept = BTreeMap::from([(NAME.to_owned(), StoredItem { body, fd: Some(name) })]);
        for (at, (path, device)) in devices.into_inner() {
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
        let number = |name: &String| name.strip_prefix(DEVICE)?.parse::<usize>().ok();
        let numbers: BTreeSet<usize> = inherited.kept.keys().filter_map(number).collect();
        let take = |at: usize| {
            let (path, device) = inherited.take(&device_name(at))?;
            Some((at, (PathBuf::from(OsString::from_vec(path)), device)))
        };
        let devices: BTreeMap<_, _> = numbers.into_iter().filter_map(take).collect();
        known.devices = devices.values().map(|(path, _)| path.clone()).collect();
        Ok(Self { known, name, devices: Mutex::new(devices) })
    }

    pub(super) fn listen(&self) -> Result<Listener> {
        let name = self.name.try_clone().context(|| "cannot take over the pool's name".into())?;
        Listener::listen(&self.known.name, name)
    }

    pub(super) fn open_devices(&self, read_only: bool) -> Result<OpenDevices> {
        pools::adopt_devices(&self.known, self.devices.lock().values(), read_only)
    }

    /// Keeps a device that the pool has got, for the servers that follow.
    pub(super) fn add_device(&self, link: &Link, path: &Path, device: OwnedFd) -> Result<()> {
        let mut devices = self.devices.lock();
        let at = devices.last_key_value().map_or(0, |(at, _)| at + 1);
        link.keep(&device_name(at), path.as_os_str().as_bytes(), device.as_fd())?;
        devices.insert(at, (path.to_owned(), device));
        Ok(())
    }

    /// Unlocks a device that is not in use any more, and keeps it no longer.
    pub(super) fn remove_device(&self, link: &Link, path: &Path) {
        let mut devices = self.devices.lock();
        devices.retain(|at, (of, device)| {
            let leaves = of == path;
            if leaves {
                device::unlock(&*device);
                link.drop_kept(&device_name(*at));
            }
            !leaves
        });
    }

    /// Unlocks the devices at once. Any other protection of an open device ends when the supervisor has closed it, too.
    pub(super) fn unlock_devices(&self, link: &Link) {
        for (at, (_, device)) in self.devices.lock().iter() {
            device::unlock(device);
            link.drop_kept(&device_name(*at));
        }
    }
}

fn device_name(at: usize) -> String {
    format!("{DEVICE}{at}")
}
