//! Describes SQLite's databases, logs and journals.

use crate::format::files::{FileBytes, FileFormat};

/// A database, its log or its journal.
pub(crate) static FILES: FileFormat = FileFormat {
    name: "sqlite",
    title: "SQLite",
    has_formless: true,
    by_bytes: page_bytes,
    begins,
    ..FileFormat::UNTOLD
};

/// Returns the page size. Databases have it at byte 16 (1 stands for 65536); logs and journals append a page with 24 and
/// 8 bytes around it, so that the next power of two takes each in one or two records.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    if file.offset != 0 {
        return None;
    }
    let database = file.data.starts_with(b"SQLite format 3\0");
    let log = matches!(file.be32(0)?, 0x377F_0682 | 0x377F_0683);
    let journal = file.data.starts_with(&[0xD9, 0xD5, 0x05, 0xF9, 0x20, 0xA1, 0x63, 0xD7]);
    let page = match (database, log, journal) {
        (true, ..) => match file.be16(16)? {
            1 => 65536,
            page => u32::from(page),
        },
        (_, true, _) => file.be32(8)?,
        (_, _, true) => file.be32(24)?,
        _ => return None,
    };
    if !page.is_power_of_two() || !(512..=65536).contains(&page) {
        return None;
    }
    Some(if database { page } else { (2 * page).min(65536) })
}

/// Returns true if `page` begins as a page of a table or an index does: kind 1 (2, 5, 10 or 13), first free block 2,
/// cells 2, where they begin 2, bytes of fragments 1 (60 at most), then cells' places, 2 each; all behind the file's
/// header in the first page.
fn begins(page: &[u8]) -> bool {
    const FILE_HEADER: usize = 100;
    const FRAGMENTS_MAX: u8 = 60;
    let here = FileBytes::page(page);
    let at = if page.starts_with(b"SQLite format 3\0") { FILE_HEADER } else { 0 };
    let (Some([kind]), Some([fragments])) = (here.bytes(at), here.bytes(at + 7)) else { return false };
    let (Some(cells), Some(content)) = (here.be16(at + 3), here.be16(at + 5)) else { return false };
    let pointers = at + if matches!(kind, 2 | 5) { 12 } else { 8 };
    let content = if content == 0 { 1 << 16 } else { usize::from(content) };
    let inside = |place: Option<u16>| {
        place.is_some_and(|place| usize::from(place) >= content && usize::from(place) < page.len())
    };
    matches!(kind, 2 | 5 | 10 | 13)
        && page.len().is_power_of_two()
        && (512..=65536).contains(&page.len())
        && fragments <= FRAGMENTS_MAX
        && pointers + 2 * usize::from(cells) <= content
        && content <= page.len()
        && (cells == 0 || inside(here.be16(pointers)))
}
