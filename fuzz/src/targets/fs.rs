//! Attacks the decoders of what the file system stores.

use pagefold_fs::fuzzing;

pub(super) fn seeds() -> Vec<Vec<u8>> {
    fuzzing::seeds()
}

pub(super) fn inode(bytes: &[u8]) -> bool {
    fuzzing::inode(bytes)
}

pub(super) fn entry(bytes: &[u8]) -> bool {
    fuzzing::entry(bytes)
}

pub(super) fn header(bytes: &[u8]) -> bool {
    fuzzing::header(bytes)
}

pub(super) fn acl_seeds() -> Vec<Vec<u8>> {
    let entries: [(u16, u16, u32); 6] = [
        (1, 7, u32::MAX),
        (2, 5, 1001),
        (4, 5, u32::MAX),
        (8, 4, 2000),
        (16, 7, u32::MAX),
        (32, 4, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    vec![bytes]
}

pub(super) fn acl(bytes: &[u8]) -> bool {
    fuzzing::acl(bytes)
}
