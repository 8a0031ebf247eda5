//! Gives fuzz targets access to the decoders of stored values.

use crate::acl::Acl;
use crate::codec::{Header, Inode, Pointee, decode_counter};
use crate::named::{join, split};
use crate::types::{FileKind, Time};

const TIME: Time = Time { secs: 1_700_000_000, nanos: 5 };

/// Returns stored values to begin with: inodes, directory entries, attributes, header, counter.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut file = Inode::new(FileKind::Regular, 0o644, TIME);
    (file.object, file.recordsize, file.size) = (9, 8192, 100_000);
    let mut dir = Inode::new(FileKind::Directory, 0o755, TIME);
    (dir.object, dir.entries) = (1, 3);
    for inode in [file, dir, Inode::new(FileKind::Symlink, 0o777, TIME)] {
        seeds.push(inode.encode());
    }
    seeds.push(join(b"name", &Pointee { ino: 7, kind: FileKind::Regular }.encode()));
    seeds.push(join(b"user.attribute", b"value"));
    seeds.push(Header { seed: 3, formatted: TIME }.encode());
    seeds.push(9_u64.to_le_bytes().to_vec());
    seeds
}

/// Returns true if `bytes` are an inode. Asserts that the inode survives encoding and decoding.
pub fn inode(bytes: &[u8]) -> bool {
    let Ok(inode) = Inode::decode(7, bytes) else { return false };
    assert_eq!(Inode::decode(7, &inode.encode()).ok(), Some(inode));
    true
}

/// Returns true if `bytes` are a named value. If they are a directory entry, asserts that it encodes to the same bytes.
pub fn entry(bytes: &[u8]) -> bool {
    let Ok((name, payload)) = split(7, bytes) else { return false };
    if let Ok(pointee) = Pointee::decode(7, payload) {
        assert_eq!(join(name, &pointee.encode()), bytes);
    }
    true
}

/// Returns true if `bytes` are the file system's header or counter.
pub fn header(bytes: &[u8]) -> bool {
    decode_counter(bytes).is_ok() || Header::decode(bytes).is_ok_and(|header| header.encode() == bytes)
}

/// Returns true if `bytes` are an ACL. Asserts that it encodes to the same bytes and can be used.
pub fn acl(bytes: &[u8]) -> bool {
    let Ok(mut acl) = Acl::decode(bytes) else { return false };
    assert_eq!(acl.encode(), bytes);
    let (child, _) = acl.inherit(0o777);
    assert!(Acl::decode(&child.encode()).is_ok());
    acl.chmod(0o750);
    assert_eq!(acl.perm(0) & !0o777, 0);
    assert!(Acl::decode(&acl.encode()).is_ok());
    true
}
