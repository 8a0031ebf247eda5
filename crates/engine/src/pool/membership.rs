//! Membership: the part of a label that tells the device's place in the pool.
//!
//! A pool is a set of groups; a group is a device, or several that hold the same. This program makes and opens groups
//! of one device, each with the number of that device. The other fields are there so that mirrors need no other label:
//!
//! | offset | field | size |
//! |---|---|---|
//! | 116 | epoch: rises by one with every change of membership; all labels of a pool, and its superblocks, have the same | 8 |
//! | 124 | number of the group | 2 |
//! | 126 | number of groups | 2 |
//! | 128 | kind of the group: 0 a device, 1 a mirror | 1 |
//! | 129 | devices of the group | 1 |
//! | 130 | which of them this one is | 1 |
//! | 131 | state of the device: 0 it holds all of its group | 1 |
//! | 132 | in another state: it holds what was written up to this generation | 8 |

use crate::Result;
use crate::wire::Reader;

/// A device's place in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Rises by one with every change of membership.
    pub epoch: u64,
    /// Number of the group.
    pub group: u16,
    /// Number of groups of the pool.
    pub groups: u16,
    /// Kind of the group: 0 a device, 1 a mirror.
    pub kind: u8,
    /// Number of devices of the group.
    pub members: u8,
    /// Number of this device among those of the group.
    pub member: u8,
    /// State of the device: 0 if it holds all of its group.
    pub state: u8,
    /// In another state: the generation up to which the device holds what was written.
    pub whole_to: u64,
}

impl Membership {
    /// Returns the membership of device `device` of `devices`, each a group of its own.
    pub fn single(device: u16, devices: u16) -> Self {
        Self {
            epoch: 1,
            group: device,
            groups: devices,
            kind: 0,
            members: 1,
            member: 0,
            state: 0,
            whole_to: 0,
        }
    }

    /// Returns true if the membership is that of [`Membership::single`], in whatever epoch.
    pub(super) fn is_single(&self, device: u16, devices: u16) -> bool {
        *self == Self { epoch: self.epoch, ..Self::single(device, devices) }
    }

    /// Appends the stored form.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.groups.to_le_bytes());
        out.extend_from_slice(&[self.kind, self.members, self.member, self.state]);
        out.extend_from_slice(&self.whole_to.to_le_bytes());
    }

    /// Reads the stored form.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            epoch: reader.u64()?,
            group: reader.u16()?,
            groups: reader.u16()?,
            kind: reader.u8()?,
            members: reader.u8()?,
            member: reader.u8()?,
            state: reader.u8()?,
            whole_to: reader.u64()?,
        })
    }
}
