use proptest::prelude::*;

use pagefold_engine::record::Compression;

use crate::FileKind;
use crate::Time;
use crate::codec::{Header, INODE_BYTES, Inode, Pointee, flag};

/// Every field is at its place: this test fails if the layout changes.
#[test]
fn inode_is_laid_out_as_documented() {
    let mut inode = Inode::new(FileKind::Regular, 0o4755, Time::default());
    inode.flags = flag::CAPS | flag::TAIL;
    inode.compression = Some(Compression::Zstd(3));
    inode.recordsize = 8192;
    inode.wish = 4096;
    inode.uid = 0x0A0B_0C0D;
    inode.gid = 2;
    inode.nlink = 3;
    inode.rdev = 4;
    inode.size = 5;
    inode.atime = Time { secs: -1, nanos: 6 };
    inode.mtime = Time { secs: 7, nanos: 8 };
    inode.ctime = Time { secs: 9, nanos: 10 };
    inode.btime = Time { secs: 11, nanos: 12 };
    inode.object = 13;
    inode.entries = 14;
    inode.displaced = 15;
    inode.xattr_bytes = 16;
    let b = inode.encode();
    assert_eq!(b.len(), INODE_BYTES);
    assert_eq!(b[..8], [1, 8, 0xED, 0x09, 33, 19, 13, 12]);
    assert_eq!(b[8..24], [0x0D, 0x0C, 0x0B, 0x0A, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    let long = |at: usize| i64::from_le_bytes(b[at..at + 8].try_into().unwrap());
    let int = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    assert_eq!([24, 32, 40, 48, 56].map(long), [5, -1, 7, 9, 11]);
    assert_eq!([64, 68, 72, 76].map(int), [6, 8, 10, 12]);
    assert_eq!([80, 88].map(long), [13, 14]);
    assert_eq!([96, 100].map(int), [15, 16]);
    assert_eq!(Inode::decode(1, &b).unwrap(), inode);
}

#[test]
fn unreasonable_inodes_are_refused() {
    let good = Inode::new(FileKind::Regular, 0o644, Time::default()).encode();
    assert!(Inode::decode(1, &good).is_ok());
    for (at, value) in [
        (0, 2),
        (1, 3),
        (3, 0xF0),
        (4, 64),
        (5, 36),
        (5, 64),
        (6, 11),
        (6, 13),
        (7, 21),
        (31, 0x80),
        (67, 0xFF),
        (80, 1),
        (103, 1),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(Inode::decode(1, &bad).is_err(), "byte {at} = {value}");
    }
    assert!(Inode::decode(1, &good[..103]).is_err());
}

#[test]
fn header_survives_and_is_verified() {
    let header = Header { seed: u64::MAX - 1, formatted: Time { secs: 3, nanos: 4 } };
    let bytes = header.encode();
    assert_eq!(bytes.len(), 28);
    assert_eq!(Header::decode(&bytes).unwrap(), header);
    for at in [0, 4] {
        let mut bad = bytes.clone();
        bad[at] ^= 2;
        assert!(Header::decode(&bad).is_err());
    }
}

proptest! {
    /// Whatever the bytes are, decoding does not panic, and an accepted inode encodes to the same bytes.
    #[test]
    fn decoding_trusts_nothing(mut bytes in prop::collection::vec(any::<u8>(), INODE_BYTES), plausible: bool) {
        if plausible {
            (bytes[0], bytes[1], bytes[3], bytes[5], bytes[6], bytes[7]) = (1, 4, bytes[3] & 15, 0, 0, 0);
            bytes[4] &= 63;
            bytes[31] &= 127;
            for at in [67, 71, 75, 79] { bytes[at] &= 31; }
            (bytes[98], bytes[99], bytes[102], bytes[103]) = (0, 0, 0, 0);
        }
        if let Ok(inode) = Inode::decode(1, &bytes) {
            prop_assert_eq!(inode.encode(), bytes);
        }
    }

    #[test]
    fn short_values_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = (Pointee::decode(1, &bytes), Header::decode(&bytes), crate::named::split(1, &bytes), crate::acl::Acl::decode(&bytes));
    }
}
