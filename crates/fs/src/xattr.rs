//! Extended attributes.
//!
//! `user.pagefold.recordsize` is the recordsize of a file in bytes; setting it on an empty file decides it.
//! `user.pagefold.compression` is the codec of a file's new pages; what is made in a directory inherits the
//! directory's.

use pagefold_engine::dataset::Change;
use pagefold_engine::record::Compression;
use pagefold_engine::types::Key;

use crate::acl::{Acl, Which};
use crate::codec::{Inode, flag, is_recordsize, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Txn;
use crate::limits::{NAME_MAX, READDIR_BATCH, XATTR_LIST_MAX, XATTR_VALUE_MAX};
use crate::named::{Probe, join, split};
use crate::perm::without_sgid;
use crate::types::{FileKind, Ino, XattrMode};

/// File capabilities, which are removed when the contents change.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// The recordsize of a file.
const RECORDSIZE: &[u8] = b"user.pagefold.recordsize";
/// The codec of a file's pages, and of what is made in a directory.
const COMPRESSION: &[u8] = b"user.pagefold.compression";

/// Most bytes that the names of stored attributes take in a list. What is left is for those that are stored in other ways:
/// the kernel lists no names if all together are too long.
const STORED_LIST_MAX: usize = XATTR_LIST_MAX
    - (Which::Access.name().len() + 1)
    - (Which::Default.name().len() + 1)
    - (RECORDSIZE.len() + 1)
    - (COMPRESSION.len() + 1);

/// Prefixes of attributes that are stored as they come; the kernel decides who may use them.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl Fs {
    /// Sets an extended attribute. With `kill_sgid`, setting an access ACL clears set-group-id too.
    ///
    /// Errors: `Exists` / `NoAttr` by `mode`; `AttrTooBig`, `NameTooLong`, `Unsupported` namespace, `Invalid` ACL or
    /// recordsize, `NoSpace`.
    pub fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        self.with_space(|| self.setxattr_once(ino, name, value, mode, kill_sgid))
    }

    fn setxattr_once(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(FsError::AttrTooBig);
        }
        let node = self.node(ino)?;
        let mut txn = Txn::lock(&[&node]);
        let now = self.now();
        let inode = txn.edit(ino.0)?;
        let mut changes = Vec::new();
        if let Some(which) = Which::from_name(name) {
            check_mode(mode, inode.has(which.flag()))?;
            set_acl(ino.0, inode, which, value, kill_sgid, &mut changes)?;
        } else if name == RECORDSIZE {
            check_mode(mode, inode.wish != 0 || inode.recordsize != 0)?;
            set_recordsize(inode, value)?;
        } else if name == COMPRESSION {
            check_mode(mode, inode.compression.is_some())?;
            inode.compression = Some(codec(inode, value)?);
        } else {
            let probe = self.places.probe(self.dataset(), ino.0, kind::XATTR, true, name)?;
            check_mode(mode, matches!(probe, Probe::Found { .. }))?;
            let place = match probe {
                Probe::Found { place, .. } => place,
                Probe::Vacant { place } => {
                    inode.xattr_bytes += name.len() as u32 + 1;
                    if inode.xattr_bytes as usize > STORED_LIST_MAX {
                        return Err(FsError::NoSpace(format!(
                            "inode {ino} has as many attributes as can be listed"
                        )));
                    }
                    place
                }
            };
            if name == CAPABILITY {
                inode.set(flag::CAPS, true);
            }
            changes.push(Change::Put(Key::new(ino.0, kind::XATTR, place), join(name, value)));
        }
        inode.ctime = now;
        txn.commit(self.dataset(), changes)
    }

    /// Returns an extended attribute's value. Errors: `NoAttr`, `Unsupported`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let node = self.node(ino)?;
        let inode = &node.snapshot();
        if let Some(which) = Which::from_name(name) {
            if !inode.has(which.flag()) {
                return Err(FsError::NoAttr);
            }
            return Ok(self.stored_acl(ino.0, which)?.encode());
        }
        if name == RECORDSIZE && inode.kind == FileKind::Regular {
            return match self.recordsize_or_default(inode) {
                _ if inode.recordsize == 0 && inode.wish == 0 => Err(FsError::NoAttr),
                bytes => Ok(bytes.to_string().into_bytes()),
            };
        }
        if name == COMPRESSION {
            return inode.compression.map(|codec| codec.to_string().into_bytes()).ok_or(FsError::NoAttr);
        }
        // The kernel asks for capabilities before writes: most inodes answer without reading the map.
        if inode.xattr_bytes == 0 || (name == CAPABILITY && !inode.has(flag::CAPS)) {
            return Err(FsError::NoAttr);
        }
        match self.places.probe(self.dataset(), ino.0, kind::XATTR, true, name)? {
            Probe::Found { payload, .. } => Ok(payload),
            Probe::Vacant { .. } => Err(FsError::NoAttr),
        }
    }

    /// Returns all names of extended attributes, each followed by a zero byte.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let inode = &node.snapshot();
        let mut names = Vec::new();
        let push = |names: &mut Vec<u8>, name: &[u8]| {
            names.extend_from_slice(name);
            names.push(0);
        };
        for which in [Which::Access, Which::Default] {
            if inode.has(which.flag()) {
                push(&mut names, which.name());
            }
        }
        if inode.wish != 0 {
            push(&mut names, RECORDSIZE);
        }
        if inode.compression.is_some() {
            push(&mut names, COMPRESSION);
        }
        let mut from = Key::new(ino.0, kind::XATTR, 0);
        let end = Key::new(ino.0, kind::XATTR + 1, 0);
        if inode.xattr_bytes == 0 {
            return Ok(names);
        }
        loop {
            let batch = self.dataset.range(&from, &end, READDIR_BATCH)?;
            for (_, value) in &batch {
                push(&mut names, split(ino.0, value)?.0);
            }
            // A forged image may have any number of them. Attributes that come and go meanwhile are no damage.
            if names.len() > 2 * XATTR_LIST_MAX {
                let detail = "their names are longer than can be".to_owned();
                return Err(FsError::Corrupt { ino: ino.0, what: "attributes", detail });
            }
            let last = batch.last().filter(|_| batch.len() == READDIR_BATCH);
            let Some(next) = last.and_then(|(last, _)| last.offset.checked_add(1)) else { return Ok(names) };
            from = Key::new(ino.0, kind::XATTR, next);
        }
    }

    /// Removes an extended attribute. Errors: `NoAttr`, `Unsupported`.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        let node = self.node(ino)?;
        let mut txn = Txn::lock(&[&node]);
        let now = self.now();
        let inode = txn.edit(ino.0)?;
        let mut changes = Vec::new();
        if let Some(which) = Which::from_name(name) {
            // An inode without a stored ACL has the one that its mode implies: removing that is no error, and no
            // change.
            if !inode.has(which.flag()) {
                return Ok(());
            }
            inode.set(which.flag(), false);
            changes.push(Change::Delete(which.key(ino.0)));
        } else if name == RECORDSIZE {
            if std::mem::take(&mut inode.wish) == 0 {
                return Err(FsError::NoAttr);
            }
        } else if name == COMPRESSION {
            if inode.compression.take().is_none() {
                return Err(FsError::NoAttr);
            }
        } else {
            let Probe::Found { place, .. } =
                self.places.probe(self.dataset(), ino.0, kind::XATTR, true, name)?
            else {
                return Err(FsError::NoAttr);
            };
            inode.xattr_bytes = inode.xattr_bytes.saturating_sub(name.len() as u32 + 1);
            if name == CAPABILITY {
                inode.set(flag::CAPS, false);
            }
            changes.push(Change::Delete(Key::new(ino.0, kind::XATTR, place)));
        }
        inode.ctime = now;
        txn.commit(self.dataset(), changes)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.contains(&0) {
        return Err(FsError::Invalid("an attribute's name contains a zero byte"));
    }
    let stored = NAMESPACES.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    if stored || Which::from_name(name).is_some() {
        return Ok(());
    }
    if NAMESPACES.contains(&name) {
        return Err(FsError::Invalid("an attribute's name is its namespace alone"));
    }
    Err(FsError::Unsupported("extended attributes are user.*, trusted.*, security.* and POSIX ACLs"))
}

fn check_mode(mode: XattrMode, exists: bool) -> Result<()> {
    match (mode, exists) {
        (XattrMode::Create, true) => Err(FsError::Exists),
        (XattrMode::Replace, false) => Err(FsError::NoAttr),
        _ => Ok(()),
    }
}

/// Sets an ACL, and the permission bits that an access ACL implies. An access ACL that says no more than the bits is
/// not stored.
fn set_acl(
    ino: u64,
    inode: &mut Inode,
    which: Which,
    value: &[u8],
    kill_sgid: bool,
    changes: &mut Vec<Change<'_>>,
) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        return Err(FsError::Unsupported("symbolic links have no ACL"));
    }
    // A header without entries removes the ACL, as the kernel does for a null one.
    let acl = if value.len() == 4 { None } else { Some(Acl::decode(value)?) };
    let keep = match (which, acl) {
        (Which::Default, Some(_)) if inode.kind != FileKind::Directory => return Err(FsError::Access),
        (Which::Default, acl) => acl,
        (Which::Access, None) => None,
        (Which::Access, Some(acl)) => {
            inode.perm = acl.perm(inode.perm);
            if kill_sgid {
                inode.perm = without_sgid(inode.perm);
            }
            Some(acl).filter(|acl| !acl.is_minimal())
        }
    };
    inode.set(which.flag(), keep.is_some());
    changes.push(match keep {
        Some(acl) => Change::Put(which.key(ino), acl.encode()),
        None => Change::Delete(which.key(ino)),
    });
    Ok(())
}

/// Parses the codec that an attribute's value names, in the form of the property `compression`.
fn codec(inode: &Inode, value: &[u8]) -> Result<Compression> {
    if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
        return Err(FsError::Invalid("only regular files and directories have a compression"));
    }
    let text = std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0'));
    text.and_then(|text| text.parse().ok()).ok_or(FsError::Invalid(
        "user.pagefold.compression is off, lz4, zstd[-1..19], zlib[-1..12], page[-1..19] or auto",
    ))
}

/// Decides the recordsize of a file that has no data yet.
fn set_recordsize(inode: &mut Inode, value: &[u8]) -> Result<()> {
    const BAD: FsError =
        FsError::Invalid("user.pagefold.recordsize is a power of two from 4096 to 1048576, or 4K to 1M");
    if inode.kind != FileKind::Regular {
        return Err(FsError::Invalid("only regular files have a recordsize"));
    }
    let text = std::str::from_utf8(value).map_err(|_| BAD)?.trim_end_matches('\0').trim();
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits
        .parse::<u32>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|&n| is_recordsize(n))
        .ok_or(BAD)?;
    if inode.object != 0 && inode.recordsize != bytes {
        return Err(FsError::Invalid("the recordsize of a file with data cannot be changed"));
    }
    inode.wish = bytes;
    Ok(())
}
