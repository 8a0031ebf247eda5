use proptest::prelude::*;

use crate::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
use crate::record::recordsize_hint;

/// First bytes of files made by PostgreSQL 15, MariaDB 10.11, SQLite 3.40 and RRDtool 1.7, padded with zeros.
fn fixture(hex: &str, len_bytes: usize) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |d: u8| char::from(d).to_digit(16).unwrap() as u8;
    let mut bytes: Vec<u8> = digits.chunks(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect();
    bytes.resize(len_bytes, 0);
    bytes
}

const PG_HEAP: &str = "00000000 10514901 00000500 d400501e 00200420 00000000 2f000100 00000000";
const PG_WAL_FIRST: &str = "10d10200 01000000 00000001 00000000 00000000 00000000 a7a6d19e 6992006b
                            00000001 00200000 72000000 00000000";
const IBDATA: &str = "00000000 00000000 ffffffff ffffffff 00000000 0000aeb8 00080000 00000000
                      00000000 00000000 00000000 00000000 03000000 01400000 00150000 00320000";
const IB_LOG: &str = "50687973 00000000 00000000 00003000 4d617269 61444220 31302e31 312e3139";
const SQLITE: &str = "53514c69 74652066 6f726d61 74203300 20000101 00402020 00000002 00000002";
const SQLITE_WAL: &str = "377f0682 002de218 00001000 00000000 16416f80 a22e6401 5556 4429 0ee24a70";
const RRD: &str = "52524400 30303033 00000000 00000000 2f25c0c7 432b1f5b 01000000 00000000";

#[test]
fn formats_win_over_the_length_of_the_write() {
    assert_eq!(recordsize_hint(0, &fixture(PG_HEAP, 65536), None), Some(8192));
    assert_eq!(recordsize_hint(0, &fixture(IBDATA, 4096), None), Some(16384));
    assert_eq!(recordsize_hint(0, &[0; 65536], Some("ib_logfile0")), Some(4096));
    assert_eq!(recordsize_hint(0, &[0; 65536], Some("#ib_redo12")), Some(4096));
}

#[test]
fn zeros_tell_by_their_length_and_the_name_of_the_file() {
    let hint = |len_bytes: usize, name: &str| recordsize_hint(0, &vec![0; len_bytes], Some(name));
    assert_eq!(hint(8192, "16384"), Some(8192));
    assert_eq!(hint(16384, "t.ibd"), Some(16384));
    assert_eq!(hint(65536, "16384"), None);
    for wal in ["000000010000000A000000FE", "xlogtemp.4711"] {
        assert_eq!(hint(256 << 10, wal), Some(8192));
    }
    for other in ["000000010000000a000000fe", "000000010000000A000000F", "G00000010000000A000000FE"] {
        assert_eq!(hint(256 << 10, other), None);
    }
}

#[test]
fn sqlite_sizes_are_rounded_to_what_a_record_can_be() {
    let with_size = |size: u16| {
        let mut page = fixture(SQLITE, 100);
        page[16..18].copy_from_slice(&size.to_be_bytes());
        recordsize_hint(0, &page, None)
    };
    assert_eq!([512, 1024, 4096, 32768, 1].map(with_size), [4096, 4096, 4096, 32768, 65536].map(Some));
    assert_eq!([0, 3, 256, 5000].map(with_size), [None; 4]);
}

#[test]
fn plain_writes_tell_by_their_length() {
    let hint = |offset: u64, len_bytes: usize| recordsize_hint(offset, &vec![b'x'; len_bytes], None);
    for len_bytes in [4096, 8192, 16384, 32768, 65536] {
        assert_eq!(hint(len_bytes as u64 * 3, len_bytes), Some(len_bytes as u32));
        assert_eq!(hint(len_bytes as u64 / 2, len_bytes), None);
    }
    for len_bytes in [0, 1, 2048, 5000, 12288, 128 << 10, 1 << 20] {
        assert_eq!(hint(0, len_bytes), None);
    }
}

proptest! {
    #[test]
    fn every_answer_is_a_recordsize(
        start in proptest::sample::select(vec![PG_HEAP, PG_WAL_FIRST, IBDATA, IB_LOG, SQLITE, SQLITE_WAL, RRD, ""]),
        cut in 0usize..200,
        noise in proptest::collection::vec((0usize..64, any::<u8>()), 0..6),
        offset in prop_oneof![Just(0u64), any::<u64>(), (0u64..100).prop_map(|n| n * 4096)],
    ) {
        let mut data = fixture(start, 200);
        for (at, byte) in noise {
            data[at] = byte;
        }
        data.truncate(cut);
        if let Some(size) = recordsize_hint(offset, &data, None) {
            prop_assert!(size.is_power_of_two() && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&size));
        }
    }
}
