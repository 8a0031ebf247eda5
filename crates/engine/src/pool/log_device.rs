//! The log device of a pool: a group that gets each commit first, and holds nothing that lasts ([`crate::wal`], K1 to K3).
//!
//! The superblock names it, so an opening knows it before it replays the log. It is a group like others, with labels of its
//! own, and can be a mirror; but no chunk is given out on it. The pool can do without it whenever a checkpoint says that
//! nothing is on it alone: so one that fails, or is not here, leaves the pool, and one that is to leave does so at once.

use std::sync::Arc;

use super::Pool;
use super::create::{check_members, check_size};
use super::label::{LogGroup, Superblock};
use crate::device::{Device, IoClass, OneDevice};
use crate::wal::LogDevice;
use crate::{Error, Result};

/// State of the log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDeviceStatus {
    /// Number of its group.
    pub group: u16,
    /// Bytes of it that are used for commits.
    pub size_bytes: u64,
    /// Bytes of these that hold commits which the other devices have not made durable yet.
    pub used_bytes: u64,
}

impl Pool {
    /// Adds a log device, or a mirror of several, which gets each commit first. What is on the devices is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool has one already, or a device is too small or too large; [`Error::ReadOnly`]; errors of
    /// [`Pool::add_groups`].
    pub fn add_log_device(&self, devices: Vec<Arc<dyn Device>>) -> Result<()> {
        self.shared.check_writable()?;
        devices.iter().for_each(|device| self.shared.devices.bound(device.as_ref()));
        check_members(devices.len())?;
        devices.iter().try_for_each(|device| check_size(OneDevice::of(device.as_ref())))?;
        if self.labels.log_group().is_some() {
            return Err(Error::Invalid(
                "the pool has a log device already: attach another one to it, or remove it first".into(),
            ));
        }
        // As in `add_groups`.
        self.without_stand_in(&[], || {
            self.labels.add_log_device(devices)?;
            self.checkpoint(false)
        })
    }

    /// Begins to use a log device that a superblock names.
    pub(super) fn take_up_log_device(&self) {
        let Some(group) = self.labels.log_group() else { return };
        let mut log = self.log.lock();
        if log.writer.has_log_device() {
            return;
        }
        let size_bytes = self.labels.group_bytes(group);
        log.writer.set_log_device(Some(LogDevice::new(&self.shared.devices, group, size_bytes)));
    }

    /// Takes the log device out of the pool. It holds no pool then.
    ///
    /// # Errors
    /// Errors of a checkpoint, or of labels: then it is done by the next [`Pool::tend_log_device`].
    pub(super) fn remove_log_device(&self) -> Result<()> {
        let Some(group) = self.labels.log_group() else { return Ok(()) };
        self.flushes.leave_log_device();
        let mut state = self.maintenance.lock();
        self.checkpoint_locked(&mut state, false)?;
        // From here on nothing is on it that the pool needs, whatever happens (K3).
        let taken = self.labels.remove_group(group)?;
        self.labels.set_log_group(None);
        self.log.lock().writer.set_log_device(None);
        for (number, path) in taken {
            self.shared.segments.faults.clear(Some(number), 0);
            tracing::info!(group, device = %path.display(), "the log device has left the pool");
            self.tell_of_leave(&path);
        }
        Ok(())
    }

    /// Takes a log device out of the pool that has failed, or is not here.
    ///
    /// # Errors
    /// As of [`Pool::remove_log_device`].
    pub(super) fn tend_log_device(&self) -> Result<()> {
        let Some(group) = self.labels.log_group().filter(|group| *group < self.labels.counted()) else {
            return Ok(());
        };
        if self.has_log_device(group) {
            return Ok(());
        }
        tracing::error!(
            group,
            "the log device has failed or is missing: commits wait for the other devices, and it leaves the pool"
        );
        self.remove_log_device()
    }

    /// Returns a superblock as it is to be confirmed. If the log device failed to take it, that is no device without which
    /// the pool cannot be opened: the others have all that was acknowledged (K3).
    pub(super) fn without_lost(&self, superblock: &Superblock) -> Result<Superblock> {
        let lost =
            superblock.log_device.filter(|group| group.is_needed && !self.has_log_device(group.number));
        let Some(group) = lost else { return Ok(*superblock) };
        self.flushes.leave_log_device();
        self.flushes.settle_as(IoClass::AsyncWrite)?;
        let log_device = Some(LogGroup { is_needed: false, ..group });
        Ok(Superblock { log_device, ..*superblock })
    }

    /// Returns true if the log device works.
    pub(super) fn has_log_device(&self, group: u16) -> bool {
        !self.flushes.has_lost_log_device() && self.shared.devices.copies(group) > 0
    }

    /// Returns the state of the log device.
    pub fn log_device_status(&self) -> Option<LogDeviceStatus> {
        let group = self.labels.log_group()?;
        let log = self.log.lock();
        let (size_bytes, used_bytes) = log.writer.log_device_room()?;
        Some(LogDeviceStatus { group, size_bytes, used_bytes })
    }
}
