//! POSIX ACLs. The stored form is that of the xattrs `system.posix_acl_access` and `system.posix_acl_default` (version
//! 2: 4 bytes; then per entry tag 2, permissions 2, id 4; little-endian).

use pagefold_engine::types::Key;

use crate::codec::{Inode, flag, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::limits::ACL_ENTRIES_MAX;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The two ACLs of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    Access,
    Default,
}

impl Which {
    /// Returns the ACL that an xattr's name means; `None` for any other name.
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"system.posix_acl_access" => Some(Self::Access),
            b"system.posix_acl_default" => Some(Self::Default),
            _ => None,
        }
    }

    pub(crate) const fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    pub(crate) fn key(self, ino: u64) -> Key {
        Key::new(ino, kind::ACL, u64::from(self == Self::Default))
    }

    pub(crate) fn flag(self) -> u16 {
        match self {
            Self::Access => flag::ACL_ACCESS,
            Self::Default => flag::ACL_DEFAULT,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ace {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A well-formed ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Ace>);

impl Acl {
    /// Decodes the xattr's bytes. Errors: `Invalid`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        const BAD: FsError = FsError::Invalid("malformed ACL");
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(BAD)?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() > ACL_ENTRIES_MAX * ENTRY_BYTES {
            return Err(BAD);
        }
        let (chunks, tail) = rest.as_chunks::<ENTRY_BYTES>();
        if !tail.is_empty() {
            return Err(BAD);
        }
        let ace = |c: &[u8; ENTRY_BYTES]| Ace {
            tag: u16::from_le_bytes([c[0], c[1]]),
            perm: u16::from_le_bytes([c[2], c[3]]),
            id: u32::from_le_bytes([c[4], c[5], c[6], c[7]]),
        };
        let acl = Self(chunks.iter().map(ace).collect());
        if acl.is_valid() { Ok(acl) } else { Err(BAD) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for ace in &self.0 {
            out.extend_from_slice(&ace.tag.to_le_bytes());
            out.extend_from_slice(&ace.perm.to_le_bytes());
            out.extend_from_slice(&ace.id.to_le_bytes());
        }
        out
    }

    /// Returns true if there are one owner, one owning group and one other, in this order; users and groups by id need
    /// exactly one mask.
    fn is_valid(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|a| a.tag == tag).count();
        let named = count(USER) + count(GROUP);
        self.0.iter().all(|a| a.perm <= 7 && [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&a.tag))
            && self.0.is_sorted_by_key(|a| a.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&tag| count(tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    /// Returns true if permission bits alone say the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns `perm` with its nine bits as in the ACL; the group's bits are the mask if there is one.
    pub(crate) fn perm(&self, perm: u16) -> u16 {
        let group_tag = self.group_tag();
        self.0.iter().fold(perm & !0o777, |perm, ace| match ace.tag {
            USER_OBJ => perm | ace.perm << 6,
            OTHER => perm | ace.perm,
            tag if tag == group_tag => perm | ace.perm << 3,
            _ => perm,
        })
    }

    /// Sets the ACL's entries from the nine bits of `perm`.
    pub(crate) fn chmod(&mut self, perm: u16) {
        let group_tag = self.group_tag();
        for ace in &mut self.0 {
            match ace.tag {
                USER_OBJ => ace.perm = perm >> 6 & 7,
                OTHER => ace.perm = perm & 7,
                tag if tag == group_tag => ace.perm = perm >> 3 & 7,
                _ => {}
            }
        }
    }

    /// Returns the tag of the entry that the group bits stand for.
    fn group_tag(&self) -> u16 {
        if self.0.iter().any(|a| a.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    /// Returns the access ACL and permissions of a file created with `perm` in a directory with this default ACL: they
    /// grant no more than either.
    pub(crate) fn inherit(&self, perm: u16) -> (Self, u16) {
        let mut access = self.clone();
        let granted = access.perm(perm) & perm & 0o777 | perm & !0o777;
        access.chmod(granted);
        (access, granted)
    }
}

impl Fs {
    /// Returns the stored ACL. Errors: `NoAttr` if there is none.
    pub(crate) fn stored_acl(&self, ino: u64, which: Which) -> Result<Acl> {
        let bytes = self.dataset.get(&which.key(ino))?.ok_or(FsError::NoAttr)?;
        let damaged = |e: FsError| FsError::Corrupt { ino, what: "ACL", detail: e.to_string() };
        Acl::decode(&bytes).map_err(damaged)
    }

    /// Returns the default ACL of directory `ino`, if it has one.
    pub(crate) fn default_acl(&self, ino: u64, dir: &Inode) -> Result<Option<Acl>> {
        if dir.has(flag::ACL_DEFAULT) { self.stored_acl(ino, Which::Default).map(Some) } else { Ok(None) }
    }
}
