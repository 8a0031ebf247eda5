//! Tests the signs of files: first bytes as servers wrote them, names, and what is close to them.

use crate::registry::REGISTRY;

/// First bytes of files made by PostgreSQL 15, MariaDB 10.11, SQLite 3.40 and RRDtool 1.7, padded with zeros.
fn fixture(hex: &str, len_bytes: usize) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |d: u8| char::from(d).to_digit(16).unwrap() as u8;
    let mut bytes: Vec<u8> = digits.chunks(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect();
    bytes.resize(len_bytes, 0);
    bytes
}

const PG_HEAP: &str = "00000000 10514901 00000500 d400501e 00200420 00000000 2f000100 00000000";
const PG_INDEX: &str = "00000000 00143101 00000000 4800f01f f01f0420 00000000 62310500 04000000";
const PG_WAL_FIRST: &str = "10d10200 01000000 00000001 00000000 00000000 00000000 a7a6d19e 6992006b
                            00000001 00200000 72000000 00000000";
const PG_WAL_NEXT: &str = "10d10500 01000000 00200001 00000000 35020000 00000000 00000000 00640028";
const IBDATA: &str = "00000000 00000000 ffffffff ffffffff 00000000 0000aeb8 00080000 00000000
                      00000000 00000000 00000000 00000000 03000000 01400000 00150000 00320000";
const IBD_INDEX_PAGE_3: &str = "00000000 00000003 ffffffff ffffffff 00000000 0000aa80 45bf0000 00000000
                                00000000 00010002 00bb8003 00000000 007f0005 00000001 00000000 00000000";
const IB_LOG: &str = "50687973 00000000 00000000 00003000 4d617269 61444220 31302e31 312e3139";
const SQLITE: &str = "53514c69 74652066 6f726d61 74203300 20000101 00402020 00000002 00000002";
const SQLITE_WAL: &str = "377f0682 002de218 00001000 00000000 16416f80 a22e6401 5556 4429 0ee24a70";
const RRD: &str = "52524400 30303033 00000000 00000000 2f25c0c7 432b1f5b 01000000 00000000";

/// Returns the name of the file's format, and its page size.
fn file(offset: u64, data: &[u8], name: Option<&str>) -> Option<(&'static str, u32)> {
    REGISTRY.recognise_file(offset, data, name).map(|(file, bytes)| (file.name, bytes))
}

fn page_bytes(offset: u64, data: &[u8], name: Option<&str>) -> Option<u32> {
    file(offset, data, name).map(|(_, bytes)| bytes)
}

#[test]
fn files_of_databases_are_recognised() {
    for (hex, offset, len_bytes, expected) in [
        (PG_HEAP, 0, 24 << 10, ("postgres-other", 8192)),
        (PG_HEAP, 8192 * 5, 128 << 10, ("postgres-other", 8192)),
        (PG_INDEX, 8192, 24 << 10, ("postgres-other", 8192)),
        (PG_WAL_FIRST, 0, 1 << 20, ("postgres-log", 8192)),
        (PG_WAL_NEXT, 8192, 24 << 10, ("postgres-log", 8192)),
        (PG_WAL_NEXT, (1 << 20) + 8192, 1 << 20, ("postgres-log", 8192)),
        (IBDATA, 0, 1 << 20, ("innodb", 16384)),
        (IBD_INDEX_PAGE_3, 3 * 16384, 48 << 10, ("innodb", 16384)),
        (IBD_INDEX_PAGE_3, 3 * 65536, 192 << 10, ("innodb", 65536)),
        (IB_LOG, 0, 12288, ("innodb-log", 4096)),
        (SQLITE, 0, 12288, ("sqlite", 8192)),
        (SQLITE_WAL, 0, 32, ("sqlite", 8192)),
        (RRD, 0, 664, ("rrd", 4096)),
    ] {
        let data = fixture(hex, len_bytes);
        assert_eq!(file(offset, &data, Some("file")), Some(expected), "{hex} at {offset}");
    }
}

#[test]
fn pages_that_models_may_describe_are_told_from_others() {
    for (hex, len_bytes) in
        [(PG_HEAP, 8192), (PG_INDEX, 8192), (IBD_INDEX_PAGE_3, 16384), (IBD_INDEX_PAGE_3, 4096)]
    {
        assert!(REGISTRY.looks_like_database(&fixture(hex, len_bytes)), "{hex}");
    }
    for (hex, len_bytes) in
        [(PG_HEAP, 4096), (IBDATA, 16384), (IBD_INDEX_PAGE_3, 40), (SQLITE, 8192), ("", 8192)]
    {
        assert!(!REGISTRY.looks_like_database(&fixture(hex, len_bytes)), "{hex}");
    }
}

/// Overflow pages are learned from if pages of trees prevail, and not otherwise.
#[test]
fn pages_of_sqlite_are_told_by_their_header() {
    let mut tree = vec![0; 4096];
    tree[..10].copy_from_slice(&[13, 0, 0, 0, 1, 15, 240, 3, 15, 240]);
    assert!(REGISTRY.looks_like_database(&tree));
    // A tree's page is known behind the file's header, too. Refused are cells that begin beyond the page, too many
    // fragments, and a line of text.
    let mut first = fixture(SQLITE, 4096);
    first.truncate(100);
    first.extend_from_slice(&tree[..3996]);
    assert!(REGISTRY.looks_like_database(&first));
    for (at, byte) in [(0, 3), (5, 17), (7, 61), (8, 17), (8, 1)] {
        let mut other = tree.clone();
        other[at] = byte;
        assert!(!REGISTRY.looks_like_database(&other), "{byte} at {at}");
    }
    assert!(
        !REGISTRY
            .looks_like_database(&b"\r\n of text, of which a line begins with 13 or 10".repeat(256)[..4096])
    );
    assert!(!REGISTRY.looks_like_database(&tree[..4000]));

    let overflow = b"\0\0\0\x07text".repeat(512);
    let (zeros, heap) = (vec![0; 4096], fixture(PG_HEAP, 8192));
    let mixed = vec![overflow.clone(), tree.clone(), zeros, tree.clone()];
    assert_eq!(REGISTRY.worth_learning(mixed), [tree.clone(), tree, overflow.clone()]);
    assert_eq!(REGISTRY.worth_learning(vec![overflow, heap.clone()]), [heap]);
}

#[test]
fn innodb_flags_tell_the_page_size() {
    let with_flags = |flags: u32| {
        let mut page = fixture(IBDATA, 12288);
        page[54..58].copy_from_slice(&flags.to_be_bytes());
        page_bytes(0, &page, None)
    };
    // MariaDB full_crc32: bit 4 and the shift in bits 0 to 3.
    for (shift, expected) in [(3, 4096), (4, 8192), (5, 16384), (6, 32768), (7, 65536)] {
        assert_eq!(with_flags(0x10 | shift), Some(expected));
        // The original format has the shift in bits 6 to 9, beside others.
        assert_eq!(with_flags(shift << 6 | 0x21), Some(expected));
    }
    assert_eq!(with_flags(0), Some(16384));
    assert_eq!(with_flags(0x4021), Some(16384));
    // ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8, 4, 1.
    assert_eq!(
        (with_flags(4 << 1 | 0x21), with_flags(3 << 1 | 0x21), with_flags(1 << 1 | 0x21)),
        (Some(8192), Some(4096), Some(1024))
    );
    assert_eq!((with_flags(0x1F), with_flags(6 << 1 | 1)), (None, None));
}

#[test]
fn headers_that_do_not_hold_are_not_believed() {
    let spoilt = |hex: &str, at: usize, byte: u8| {
        let mut page = fixture(hex, 24 << 10);
        page[at] = byte;
        page_bytes(0, &page, None)
    };
    // PostgreSQL: lower beyond upper, upper beyond special, special beyond the page, flags, version.
    for (at, byte) in [(13, 0x1F), (15, 0x21), (17, 0x40), (10, 0x80), (18, 5), (12, 1)] {
        assert_eq!(spoilt(PG_HEAP, at, byte), None, "byte {at}");
    }
    // WAL: magic, info, block size; a page that belongs elsewhere.
    for (at, byte) in [(1, 0xD4), (3, 1), (37, 0x21), (32, 3)] {
        assert_eq!(spoilt(PG_WAL_FIRST, at, byte), None, "byte {at}");
    }
    assert_eq!(page_bytes(16384, &fixture(PG_WAL_NEXT, 24 << 10), None), None);
    // InnoDB: kind of page, space id, page number.
    for (at, byte) in [(25, 1), (37, 9), (7, 1)] {
        assert_eq!(spoilt(IBDATA, at, byte), None, "byte {at}");
    }
    assert_eq!(page_bytes(16384, &fixture(IBD_INDEX_PAGE_3, 24 << 10), None), None);
    assert_eq!(page_bytes(4096, &fixture(SQLITE, 100), None), None);
}

#[test]
fn names_tell_files_that_bytes_do_not() {
    let zeros = [0; 4096];
    for name in ["ib_logfile0", "#ib_redo12"] {
        assert_eq!(file(0, &zeros, Some(name)), Some(("innodb-log", 4096)));
        assert_eq!(file(0, &fixture(PG_HEAP, 8192), Some(name)), Some(("innodb-log", 4096)));
    }
    for name in ["000000010000000A000000FE", "xlogtemp.4711"] {
        assert_eq!(file(0, &zeros, Some(name)), Some(("postgres-log", 8192)));
        assert_eq!(file(0, &fixture(PG_HEAP, 8192), Some(name)), Some(("postgres-other", 8192)));
    }
    for name in ["000000010000000a000000fe", "000000010000000A000000F", "G00000010000000A000000FE", "16384"] {
        assert_eq!(file(0, &zeros, Some(name)), None);
    }
}

#[test]
fn logs_are_told_by_their_pages() {
    let page = fixture(PG_WAL_NEXT, 8192);
    assert!(REGISTRY.looks_like_log(&page) && !REGISTRY.looks_like_database(&page));
    assert!(!REGISTRY.looks_like_log(&page[..4095]) && !REGISTRY.looks_like_log(&fixture(PG_HEAP, 8192)));
    let mut checkpoint = vec![0; 4096];
    checkpoint[7] = 9;
    let sum = crc32c::crc32c(&checkpoint[..60]).to_be_bytes();
    checkpoint[60..64].copy_from_slice(&sum);
    let marks = [0, 1, 2, 3].map(|number| REGISTRY.marks_log(number, &checkpoint));
    assert_eq!(marks, [false, true, true, false]);
    checkpoint[8] = 1;
    assert!(!REGISTRY.marks_log(1, &checkpoint) && !REGISTRY.marks_log(1, &page));
}
