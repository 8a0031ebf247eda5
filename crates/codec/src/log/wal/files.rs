//! Describes files of PostgreSQL's write-ahead log.

use crate::format::files::{FileBytes, FileFormat, LogFacts};

/// Segments of the log.
pub(crate) static FILES: FileFormat = FileFormat {
    name: "postgres-log",
    title: "PostgreSQL log",
    log: Some(LogFacts { number: 0, one_in: 2 }),
    by_bytes: page_bytes,
    by_name_alone: |name| is_segment(name).then_some(USUAL_BYTES),
    begins,
    ..FileFormat::UNTOLD
};

/// Usual length of a block.
const USUAL_BYTES: u32 = 8192;

/// Returns true for names of timeline, log and segment in 24 hexadecimal digits, and for the temporary name under which
/// a new segment is filled. Segments are created by writing zeros, so only the name tells them then.
fn is_segment(name: &str) -> bool {
    name.starts_with("xlogtemp.")
        || (name.len() == 24 && name.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b)))
}

/// Returns the length of a block. Blocks start with magic 2 (0xD0xx or 0xD1xx by version), info 2, timeline 4, page
/// address 8, remaining length 4; the first page of a segment (info & 2) goes on with padding 4, system id 8, segment
/// size 4, block size 4.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    const LONG_HEADER: u16 = 2;
    const KNOWN_INFO: u16 = 15;
    const SEGMENT_BYTES_MIN: u64 = 1 << 20;
    let (magic, info) = (file.le16(0)?, file.le16(2)?);
    if !(0xD0..=0xD1).contains(&(magic >> 8)) || info & !KNOWN_INFO != 0 {
        return None;
    }
    if info & LONG_HEADER != 0 {
        let (segment, block) = (file.le32(32)?, file.le32(36)?);
        let sane = segment.is_power_of_two() && block.is_power_of_two() && block >= 1024;
        return (sane && block <= 64 << 10 && u64::from(segment) >= SEGMENT_BYTES_MIN).then_some(block);
    }
    let address = file.bytes(8).map(u64::from_le_bytes)?;
    let in_place = address % SEGMENT_BYTES_MIN == file.offset % SEGMENT_BYTES_MIN;
    (in_place && file.offset.is_multiple_of(u64::from(USUAL_BYTES))).then_some(USUAL_BYTES)
}

/// Returns true if `page` begins as a page of the same length of the log does.
fn begins(page: &[u8]) -> bool {
    let here = FileBytes::page(page);
    let (Some(magic), Some(info), Some(address)) = (here.le16(0), here.le16(2), here.bytes(8)) else {
        return false;
    };
    (0xD0..=0xD1).contains(&(magic >> 8))
        && info < 16
        && page.len().is_power_of_two()
        && u64::from_le_bytes(address).is_multiple_of(page.len() as u64)
        && here.le32(4).is_some_and(|timeline| timeline != 0)
        && here.le32(20) == Some(0)
}
