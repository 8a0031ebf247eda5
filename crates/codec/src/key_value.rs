//! Describes files of databases that are libraries, which keep keys and values: LMDB, bbolt, Berkeley DB. No format takes
//! their pages apart; the page size keeps what is written of one page from touching others.
//!
//! Sources: LMDB `mdb.c` (`MDB_page`, `MDB_meta`); bbolt `internal/common/meta.go` and `page.go`; Berkeley DB `dbinc/db_page.h`
//! (`DBMETA`) and the magic numbers of `file(1)`.

use crate::format::files::{FileBytes, FileFormat};

/// Databases of LMDB: OpenLDAP, Monero, RPM.
pub(crate) static LMDB: FileFormat =
    FileFormat { name: "lmdb", title: "LMDB", by_bytes: lmdb_page_bytes, ..FileFormat::UNTOLD };

/// Databases of bbolt: etcd, Consul, InfluxDB.
pub(crate) static BBOLT: FileFormat =
    FileFormat { name: "bbolt", title: "bbolt", by_bytes: bbolt_page_bytes, ..FileFormat::UNTOLD };

/// Databases of Berkeley DB: Postfix, Subversion, Bitcoin.
pub(crate) static BERKELEY_DB: FileFormat = FileFormat {
    name: "berkeley-db",
    title: "Berkeley DB",
    by_bytes: berkeley_page_bytes,
    ..FileFormat::UNTOLD
};

/// The first page begins with a header of 16 bytes: number 8, unused 2, flags 2, places of free bytes 4. Then: magic 4,
/// version 4, address 8, bytes of the map 8, and the description of the first tree, whose first 4 bytes are the page size.
fn lmdb_page_bytes(file: FileBytes<'_>) -> Option<u32> {
    let is_lmdb = file.offset == 0 && file.le32(16)? == 0xBEEF_C0DE;
    if is_lmdb { page_size(file.le32(40)?) } else { None }
}

/// The first page begins with a header of 16 bytes: number 8, flags 2, elements 2, pages that continue it 4. Then: magic
/// 4, version 4, page size 4.
fn bbolt_page_bytes(file: FileBytes<'_>) -> Option<u32> {
    let is_bbolt = file.offset == 0 && file.le32(16)? == 0xED0C_DAED;
    if is_bbolt { page_size(file.le32(24)?) } else { None }
}

/// The first page: place in the log 8, number 4, magic 4 (of trees, hashes, queues, heaps), version 4, page size 4; in the
/// byte order of the machine that made it.
fn berkeley_page_bytes(file: FileBytes<'_>) -> Option<u32> {
    const MAGICS: [u32; 4] = [0x0005_3162, 0x0006_1561, 0x0004_2253, 0x0007_4582];
    if file.offset != 0 {
        return None;
    }
    if MAGICS.contains(&file.le32(12)?) {
        return page_size(file.le32(20)?);
    }
    if MAGICS.contains(&file.be32(12)?) { page_size(file.be32(20)?) } else { None }
}

fn page_size(bytes: u32) -> Option<u32> {
    (bytes.is_power_of_two() && (512..=65536).contains(&bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(numbers: &[(usize, [u8; 4])]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for (at, number) in numbers {
            bytes[*at..at + 4].copy_from_slice(number);
        }
        bytes
    }

    #[test]
    fn the_page_size_is_in_the_header() {
        let page = 8192_u32.to_le_bytes();
        let lmdb = with(&[(16, 0xBEEF_C0DE_u32.to_le_bytes()), (40, page)]);
        let bbolt = with(&[(16, 0xED0C_DAED_u32.to_le_bytes()), (24, page)]);
        let btree = with(&[(12, 0x0005_3162_u32.to_le_bytes()), (20, page)]);
        let foreign = with(&[(12, 0x0006_1561_u32.to_be_bytes()), (20, 8192_u32.to_be_bytes())]);
        for (found, data) in [
            (lmdb_page_bytes as fn(FileBytes<'_>) -> Option<u32>, &lmdb),
            (bbolt_page_bytes, &bbolt),
            (berkeley_page_bytes, &btree),
            (berkeley_page_bytes, &foreign),
        ] {
            assert_eq!(found(FileBytes { offset: 0, data }), Some(8192));
            assert_eq!(found(FileBytes { offset: 4096, data }), None);
            assert_eq!(found(FileBytes { offset: 0, data: &data[..18] }), None);
            assert_eq!(found(FileBytes { offset: 0, data: &[0; 4096] }), None);
        }
        let odd = with(&[(16, 0xBEEF_C0DE_u32.to_le_bytes()), (40, 5000_u32.to_le_bytes())]);
        assert_eq!(lmdb_page_bytes(FileBytes { offset: 0, data: &odd }), None);
    }
}
