//! Makes steps with permissions, owners, times and extended attributes.

use super::Maker;
use crate::op::{Data, Op, Text, Time};

impl Maker {
    pub(super) fn mode(&mut self) -> u32 {
        match self.random.below(4) {
            0 => self.pick(&[0o644, 0o755, 0o600, 0o777, 0o666]),
            1 => self.pick(&[0o4755, 0o2755, 0o2745, 0o6777, 0o1777, 0o2770]),
            2 => self.random.below(0o10000) as u32,
            _ => 0o777,
        }
    }

    pub(super) fn time(&mut self) -> Time {
        match self.random.below(10) {
            0..3 => Time::Now,
            3..5 => Time::Omit,
            _ => {
                let seconds =
                    self.pick(&[0, 1, -1, 1_000_000_000, 1_600_000_000, 4_000_000_000, -2_000_000_000]);
                let nanoseconds = self.pick(&[0, 1, 500_000_000, 999_999_999, 123_456_789]);
                Time::At(seconds, nanoseconds)
            }
        }
    }

    pub(super) fn attributes(&mut self) -> Op {
        let target = self.target();
        match self.random.below(100) {
            0..25 => Op::Mode { target, mode: self.mode() },
            25..45 => {
                let id =
                    |maker: &mut Self| maker.pick(&[u32::MAX, u32::MAX, 0, 1001, 1002, 1003, 2000, 70_000]);
                Op::Owner { target, uid: id(self), gid: id(self) }
            }
            45..60 => Op::Times { target, atime: self.time(), mtime: self.time() },
            60..80 => {
                let (name, value) = self.xattr();
                let flags = self.pick(&[0, 0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
                Op::SetXattr { target, name, value, flags }
            }
            80..88 => {
                let (name, _) = self.xattr();
                Op::GetXattr { target, name, size: self.pick(&[0, 1, 10, 100, 4096, 65536]) }
            }
            88..93 => Op::ListXattr { target, size: self.pick(&[0, 5, 100, 4096]) },
            _ => {
                let (name, _) = self.xattr();
                Op::RemoveXattr { target, name }
            }
        }
    }

    pub(super) fn xattr(&mut self) -> (Text, Text) {
        if self.chance(40) {
            let name = self.pick(&[&b"system.posix_acl_access"[..], b"system.posix_acl_default"]);
            return (Text(name.to_vec()), Text(self.acl()));
        }
        let name = match self.random.below(20) {
            0..9 => b"user.a".to_vec(),
            9..12 => b"user.b".to_vec(),
            12 => b"trusted.t".to_vec(),
            13 => b"security.s".to_vec(),
            14 => b"user.".to_vec(),
            15 => b"other.x".to_vec(),
            16 => [b"user.", &[b'n'; 250][..]].concat(),
            17 => [b"user.", &[b'n'; 251][..]].concat(),
            18 => b"system.none".to_vec(),
            _ => b"plain".to_vec(),
        };
        let len = self.pick(&[0, 1, 3, 10, 100, 300]);
        (Text(name), Text(Data { kind: self.random.bits() as u8, len }.bytes()))
    }

    /// Returns an access control list in the kernel's form (`linux/posix_acl_xattr.h`): mostly right, sometimes not.
    pub(super) fn acl(&mut self) -> Vec<u8> {
        const NONE: u32 = u32::MAX;
        let mut entries: Vec<(u16, u16, u32)> = vec![(1, self.random.below(8) as u16, NONE)];
        let named = self.chance(70);
        if named {
            entries.push((2, self.random.below(8) as u16, 1001));
            if self.chance(50) {
                entries.push((2, self.random.below(8) as u16, 1003));
            }
        }
        entries.push((4, self.random.below(8) as u16, NONE));
        if named && self.chance(40) {
            entries.push((8, self.random.below(8) as u16, 2000));
        }
        if named || self.chance(10) {
            entries.push((16, self.random.below(8) as u16, NONE));
        }
        entries.push((32, self.random.below(8) as u16, NONE));
        match self.random.below(30) {
            0 => {
                entries.pop();
            }
            1 => entries.swap(0, 1),
            2 => entries.clear(),
            3 => entries[0].1 = 9,
            _ => {}
        }
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        if self.chance(2) {
            bytes.pop();
        }
        bytes
    }
}
