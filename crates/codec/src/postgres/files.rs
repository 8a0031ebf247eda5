//! Describes files of PostgreSQL's tables, indexes and maps.

use crate::format::files::{FileBytes, FileFormat};

/// Tables, indexes, maps of free space and visibility.
pub(crate) static FILES: FileFormat = FileFormat {
    name: "postgres-other",
    title: "PostgreSQL, other pages",
    has_several: true,
    by_bytes: page_bytes,
    begins,
    ..FileFormat::UNTOLD
};

/// Returns the page size of heap, index, visibility and free space map pages: PageHeaderData is lsn 8, checksum 2,
/// flags 2, lower 2, upper 2, special 2, size and version 2 (the size has its low byte clear, the version is 4), prune
/// xid 4.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    const HEADER_BYTES: u32 = 24;
    const KNOWN_FLAGS: u16 = 7;
    let [flags, lower, upper, special, size_version] = [10, 12, 14, 16, 18].map(|at| file.le16(at));
    let (size, version) = (u32::from(size_version? & 0xFF00), size_version? & 0xFF);
    let (lower, upper, special) = (u32::from(lower?), u32::from(upper?), u32::from(special?));
    let sane = version == 4
        && size.is_power_of_two()
        && size >= 1024
        && flags? & !KNOWN_FLAGS == 0
        && HEADER_BYTES <= lower
        && lower <= upper
        && upper <= special
        && special <= size
        && special.is_multiple_of(8)
        && file.offset.is_multiple_of(u64::from(size));
    sane.then_some(size)
}

/// Returns true if `page` begins as a page of PostgreSQL of the same length does.
pub(super) fn begins(page: &[u8]) -> bool {
    page_bytes(FileBytes::page(page)).is_some_and(|bytes| bytes as usize == page.len())
}
