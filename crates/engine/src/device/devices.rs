//! The devices of a pool, by number: the only door to what they hold.
//!
//! A member that is missing is known as such. Everything that reads, writes, flushes or discards gives a number, and
//! gets the same error if no device can be reached by it ([`NoDevice`]).

use std::path::Path;
use std::sync::Arc;

use super::flush::{FlushFailure, flush_at_once};
use super::{AlignedBuf, Device, DeviceCounts, PlannedRead, Span};
use crate::{Error, Result};

/// The devices of a pool.
///
/// A number stands for one device today. Nothing in the interface depends on that: a read hands over what verifies
/// its bytes, so that another copy can be tried, and nobody gets hold of a device's own interface here.
#[derive(Clone)]
pub struct Devices {
    members: Arc<[MemberState]>,
}

/// State of a member of the pool.
enum MemberState {
    /// It is open.
    Online(Arc<dyn Device>),
    /// The pool has this member, and it was not found.
    Missing,
}

/// Use for which space on a device is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationClass {
    /// Everything.
    Normal,
}

/// The reason why no device can be reached by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoDevice {
    /// The pool has no device of this number.
    #[error("the pool has no device number {0}")]
    Unknown(u16),
    /// The pool has this device, and it was not found.
    #[error("device number {0} is missing")]
    Missing(u16),
}

impl NoDevice {
    /// Returns the error for something that lies on such a device.
    pub(crate) fn in_place_of(self, what: impl Into<String>) -> Error {
        let detail = match self {
            Self::Unknown(_) => "it lies on a device that the pool does not have",
            Self::Missing(_) => "it lies on a device that is missing",
        };
        Error::corrupt(what, detail)
    }
}

/// A number comes from something stored, so a device that cannot be reached by it counts as damage: there may be a
/// copy on another one.
impl From<NoDevice> for Error {
    fn from(none: NoDevice) -> Self {
        match none {
            NoDevice::Unknown(number) => {
                Self::corrupt(format!("device number {number}"), "the pool has no such device")
            }
            NoDevice::Missing(number) => Self::corrupt(format!("device number {number}"), "it is missing"),
        }
    }
}

impl Devices {
    /// Takes devices as members, numbered in this order.
    pub fn all(devices: Vec<Arc<dyn Device>>) -> Self {
        Self { members: devices.into_iter().map(MemberState::Online).collect() }
    }

    /// Takes devices as the members of these numbers. A pool has `expected` members; those that are not given are
    /// missing.
    pub(crate) fn of_pool(expected: u16, devices: impl IntoIterator<Item = (u16, Arc<dyn Device>)>) -> Self {
        let mut members: Vec<MemberState> = (0..expected).map(|_| MemberState::Missing).collect();
        for (number, device) in devices {
            if members.len() <= usize::from(number) {
                members.resize_with(usize::from(number) + 1, || MemberState::Missing);
            }
            members[usize::from(number)] = MemberState::Online(device);
        }
        Self { members: members.into() }
    }

    /// Returns the number of members, missing ones included.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if there is no member.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the numbers of the members that are missing.
    pub(crate) fn missing(&self) -> Vec<u16> {
        let is_missing = |(number, member)| matches!(member, &MemberState::Missing).then_some(number);
        (0..=u16::MAX).zip(self.members.iter()).filter_map(is_missing).collect()
    }

    fn online(&self, number: u16) -> Result<&Arc<dyn Device>, NoDevice> {
        match self.members.get(usize::from(number)) {
            Some(MemberState::Online(device)) => Ok(device),
            Some(MemberState::Missing) => Err(NoDevice::Missing(number)),
            None => Err(NoDevice::Unknown(number)),
        }
    }

    /// Returns a handle of one device.
    ///
    /// # Errors
    /// [`NoDevice`] if there is none of this number.
    pub(crate) fn get(&self, number: u16) -> Result<OneDevice<'_>, NoDevice> {
        self.online(number).map(|device| OneDevice(device.as_ref()))
    }

    /// Returns handles of all devices that are online, with their numbers, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, OneDevice<'_>)> {
        (0..=u16::MAX).zip(self.members.iter()).filter_map(|(number, member)| match member {
            MemberState::Online(device) => Some((number, OneDevice(device.as_ref()))),
            MemberState::Missing => None,
        })
    }

    /// Returns the number of the device with this path.
    pub(crate) fn number_of(&self, path: &Path) -> Option<u16> {
        self.iter().find(|(_, device)| device.path() == path).map(|(number, _)| number)
    }

    /// Plans the reading of `span`.
    ///
    /// # Errors
    /// [`NoDevice`]; [`Error::Corrupt`] if the span ends beyond its device.
    pub(crate) fn plan(&self, span: Span) -> Result<PlannedRead> {
        PlannedRead::new(self.online(span.device)?, span)
    }

    /// Reads `span`, and returns what `verify` makes of its bytes and the path of the device that they come from. This
    /// is the plan of the read, carried out at once. `verify` may be called for each copy that there is, until it
    /// returns no error.
    ///
    /// # Errors
    /// Those of [`Devices::plan`], of the device, and of `verify`.
    pub(crate) fn read<T>(&self, span: Span, verify: impl Fn(&[u8], &Path) -> Result<T>) -> Result<T> {
        let mut planned = self.plan(span)?;
        planned.read()?;
        planned.verified(verify)
    }

    /// Fills `buf` with whole blocks that nothing verifies yet: the caller looks for what may be there, or writes the
    /// same blocks again.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device.
    pub(crate) fn read_unverified(&self, number: u16, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.online(number)?.read(offset, buf)
    }

    /// Writes whole blocks, as [`Device::write`] does.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device.
    pub(crate) fn write(&self, number: u16, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.online(number)?.write(offset, buf, durable)
    }

    /// Returns true if a durable write to a device costs less than a write and a flush after it.
    ///
    /// # Errors
    /// [`NoDevice`] if there is none of this number.
    pub(crate) fn writes_durably(&self, number: u16) -> Result<bool, NoDevice> {
        self.online(number).map(|device| device.writes_durably())
    }

    /// Flushes all devices at once.
    ///
    /// # Errors
    /// [`FlushFailure`] names the first device, by number, whose flush failed.
    pub(crate) fn flush(&self) -> Result<(), FlushFailure> {
        let online: Vec<(u16, &dyn Device)> =
            self.iter().map(|(number, OneDevice(device))| (number, device)).collect();
        flush_at_once(&online)
    }

    /// Flushes the devices of these numbers at once.
    ///
    /// # Errors
    /// [`FlushFailure`] names the first device, in the order given, whose flush failed or that there is not.
    pub(crate) fn flush_some(&self, numbers: impl IntoIterator<Item = u16>) -> Result<(), FlushFailure> {
        let online = |number| match self.online(number) {
            Ok(device) => Ok((number, device.as_ref())),
            Err(none) => Err(FlushFailure { device: number, error: none.into() }),
        };
        let wanted = numbers.into_iter().map(online).collect::<Result<Vec<_>, _>>()?;
        flush_at_once(&wanted)
    }

    /// Tells a device that a range holds nothing any more, as [`Device::discard`] does.
    ///
    /// # Errors
    /// [`NoDevice`]; errors of the device.
    pub(crate) fn discard(&self, number: u16, offset: u64, len_bytes: u64) -> Result<()> {
        self.online(number)?.discard(offset, len_bytes)
    }

    /// Returns the first byte of a device from `offset` on that may be anything but zero, as [`Device::data_from`]
    /// does.
    pub(crate) fn data_from(&self, number: u16, offset: u64) -> Option<u64> {
        self.online(number).ok()?.data_from(offset)
    }
}

/// One device. It serves those who read and write labels and superblocks: these tell which device it is, and so are
/// read before it is a member of [`Devices`].
#[derive(Clone, Copy)]
pub struct OneDevice<'a>(&'a dyn Device);

impl<'a> OneDevice<'a> {
    /// Returns the handle of a device that is open.
    pub fn of(device: &'a dyn Device) -> Self {
        Self(device)
    }

    /// Returns the path of the device as the user named it, for messages.
    pub(crate) fn path(self) -> &'a Path {
        self.0.path()
    }

    /// Returns the size in bytes, a multiple of the block size.
    pub(crate) fn size_bytes(self) -> u64 {
        self.0.size_bytes()
    }

    /// Returns the use for which space on the device is allocated.
    pub(crate) fn class(self) -> AllocationClass {
        AllocationClass::Normal
    }

    /// Returns true if discards may have an effect on the device.
    pub(crate) fn discards(self) -> bool {
        self.0.discards()
    }

    /// Returns the values of the device's counters.
    pub(crate) fn counts(self) -> DeviceCounts {
        self.0.stats().counts()
    }

    /// Fills `buf` with whole blocks, which the caller verifies.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn read(self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.0.read(offset, buf)
    }

    /// Writes whole blocks, which are durable after a flush.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn write(self, offset: u64, buf: &AlignedBuf) -> Result<()> {
        self.0.write(offset, buf, false)
    }

    /// Makes all writes to the device that completed before this call durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn flush(self) -> Result<()> {
        self.0.flush()
    }
}
