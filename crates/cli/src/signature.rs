//! Recognises what a device already holds, so that `create` does not overwrite it by mistake.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes from the start within which all signatures below lie.
const PROBE_BYTES: usize = 0x11000;

/// Name, byte offset, magic bytes. Sources: the on-disk headers of each format, as libblkid knows them.
const MAGICS: &[(&str, usize, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xEF]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x10040, b"_BHRfS_M"),
    ("a bcachefs file system or bcache", 0x1018, &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA]),
    ("an F2FS file system", 0x400, &[0x10, 0x20, 0xF5, 0xF2]),
    ("a swap area", 0xFF6, b"SWAPSPACE2"),
    ("an encrypted LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("a member of a Linux RAID", 0x1000, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("a member of a Linux RAID", 0, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("a GPT partition table", 0x200, b"EFI PART"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("a squashfs file system", 0, b"hsqs"),
    ("an EROFS file system", 0x400, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("an SQLite database", 0, b"SQLite format 3\0"),
    ("a partition table", 0x1FE, &[0x55, 0xAA]),
];

/// Words in a ZFS label (name/value pairs from 16 KiB on), which has no magic at a fixed place.
const ZFS_PAIRS: &[u8] = b"pool_guid";

/// Returns a name for the contents of `device`, or `None` if the first `PROBE_BYTES` are all zeros.
///
/// # Errors
/// If it cannot be read.
pub fn of(device: &File) -> std::io::Result<Option<&'static str>> {
    let mut bytes = vec![0; PROBE_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        match device.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    bytes.truncate(filled);
    Ok(recognise(&bytes))
}

fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let holds = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|at| at.starts_with(magic));
    if bytes
        .get(0x4000..)
        .is_some_and(|label| label.windows(ZFS_PAIRS.len()).take(0x1000).any(|w| w == ZFS_PAIRS))
    {
        return Some("a member of a ZFS pool");
    }
    if let Some((name, ..)) = MAGICS.iter().find(|(_, offset, magic)| holds(*offset, magic)) {
        return Some(name);
    }
    bytes.iter().any(|byte| *byte != 0).then_some("data of an unknown kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_signature_is_recognised_at_its_place() {
        for (name, offset, magic) in MAGICS {
            let mut bytes = vec![0; PROBE_BYTES];
            bytes[*offset..*offset + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise(&bytes), Some(*name));
        }
    }

    #[test]
    fn empty_and_short_files_hold_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(of(&file).unwrap(), None);
        file.write_all(&[0; 100]).unwrap();
        assert_eq!(of(&file).unwrap(), None);
        file.write_all(b"my thesis").unwrap();
        assert_eq!(of(&file).unwrap(), Some("data of an unknown kind"));
    }
}
