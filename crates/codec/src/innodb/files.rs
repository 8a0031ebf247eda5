//! Describes InnoDB's tablespaces.

use crate::format::files::{FileBytes, FileFormat};

/// Tablespaces, undo ones included.
pub(crate) static FILES: FileFormat = FileFormat {
    name: "innodb",
    title: "InnoDB tablespaces",
    by_bytes: page_bytes,
    begins,
    ..FileFormat::UNTOLD
};

/// Returns the page size of a tablespace. Pages start with checksum 4, page number 4, previous 4, next 4, lsn 8, type
/// 2, flush lsn 8, space id 4, all big endian. Page 0 goes on with space id 4, unused 4, size 4, free limit 4, flags 4.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    const FSP_HDR: u16 = 8;
    let (number, kind) = (file.be32(4)?, file.be16(24)?);
    if number == 0 {
        let sane = file.offset == 0 && kind == FSP_HDR && file.be32(34)? == file.be32(38)?;
        return if sane { from_flags(file.be32(54)?) } else { None };
    }
    // The page number and the offset together tell the size. Kinds: undo, inode, change buffer, system, transaction
    // system, extent descriptors, blobs; virtual (R-tree, B-tree) from 17853 on.
    let known = matches!(kind, 2..=14 | 17853..=17855);
    let size = file.offset / u64::from(number);
    let exact = size * u64::from(number) == file.offset && size.is_power_of_two();
    (known && exact && (4096..=65536).contains(&size)).then_some(size as u32)
}

/// Returns true if `page` begins as a page of an index does: type 17855; the page header's count of records in its heap
/// has the mark of the compact format.
fn begins(page: &[u8]) -> bool {
    const INDEX: u16 = 17855;
    const COMPACT: u16 = 1 << 15;
    let here = FileBytes::page(page);
    let sized = page.len().is_power_of_two() && (4096..=65536).contains(&page.len());
    sized && here.be16(24) == Some(INDEX) && here.be16(42).is_some_and(|heap| heap & COMPACT != 0)
}

/// Returns the size of a tablespace's pages in its file, from the flags in its page 0.
fn from_flags(flags: u32) -> Option<u32> {
    /// MariaDB's full_crc32 format; in the older one this bit would mean compressed pages of 128 KiB and more.
    const FULL_CRC32: u32 = 1 << 4;
    let from_shift = |shift: u32| (3..=7).contains(&shift).then(|| 512 << shift);
    if flags & FULL_CRC32 != 0 {
        return from_shift(flags & 0xF);
    }
    let (compressed, page) = (flags >> 1 & 0xF, flags >> 6 & 0xF);
    match (compressed, page) {
        // ROW_FORMAT=COMPRESSED: 1 KiB to 16 KiB.
        (1..=5, _) => Some(512 << compressed),
        (0, 0) => Some(16 << 10),
        (0, shift) => from_shift(shift),
        _ => None,
    }
}
