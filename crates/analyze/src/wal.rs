//! Counts how much of PostgreSQL's log are images of whole pages (`full_page_writes`).
//!
//! Sources of the format: PostgreSQL's `xlog_internal.h`, `xlogrecord.h` (9.5 to 18). Pages of 8 KiB begin with a
//! header of 24 bytes, the first of a segment with one of 40; records are aligned to 8 bytes and go on over page
//! borders.

use std::io;

use crate::source::Source;

const PAGE_BYTES: usize = 8192;
/// Largest number of bytes of a segment that are examined.
const SEGMENT_BYTES_MAX: usize = 16 << 20;
const RECORD_HEADER_BYTES: usize = 24;
/// Magic number from which on (PostgreSQL 15) flags of images are numbered anew.
const MAGIC_15: u16 = 0xD110;

/// Bytes of records, and of images in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Images {
    /// Bytes of all records that were parsed.
    pub(crate) record_bytes: u64,
    /// Bytes of images among these.
    pub(crate) image_bytes: u64,
}

/// Counts the images in a segment of the log.
pub(crate) fn images(source: &Source) -> io::Result<Images> {
    Ok(count(&source.head(0, SEGMENT_BYTES_MAX)?))
}

/// Counts until something is no record: the log's end, or an earlier content of the segment.
fn count(segment: &[u8]) -> Images {
    let mut counted = Images::default();
    let Some(magic) = le16(segment, 0) else { return counted };
    let Some((log, first)) = payload(segment) else { return counted };
    let mut at = first;
    while let Some(record_bytes) = le32(&log, at).map(|bytes| bytes as usize) {
        if record_bytes < RECORD_HEADER_BYTES || at + record_bytes > log.len() {
            break;
        }
        let record = &log[at + RECORD_HEADER_BYTES..at + record_bytes];
        let Some(image_bytes) = image_bytes(record, magic >= MAGIC_15) else { break };
        counted.record_bytes += record_bytes as u64;
        counted.image_bytes += image_bytes;
        at = (at + record_bytes).next_multiple_of(8);
    }
    counted
}

/// Returns the segment without its pages' headers, and the offset of its first whole record.
fn payload(segment: &[u8]) -> Option<(Vec<u8>, usize)> {
    const LONG_HEADER: u16 = 2;
    let mut log = Vec::with_capacity(segment.len());
    let begin = le64(segment, 8)?;
    for (number, page) in segment.chunks(PAGE_BYTES).enumerate() {
        let header_bytes = if le16(page, 2)? & LONG_HEADER != 0 { 40 } else { 24 };
        // A page of an older use of the file ends the log.
        if le64(page, 8)? != begin.wrapping_add((number * PAGE_BYTES) as u64) {
            break;
        }
        log.extend_from_slice(page.get(header_bytes..)?);
    }
    // Records are aligned within the file; headers are multiples of 8, so within the payload, too.
    Some((log, (le32(segment, 16)? as usize).next_multiple_of(8)))
}

/// Returns the bytes of images in a record, which is given without its header; `None` if it is not a record.
fn image_bytes(record: &[u8], since_15: bool) -> Option<u64> {
    const HAS_IMAGE: u8 = 0x10;
    const SAME_RELATION: u8 = 0x80;
    const HAS_HOLE: u8 = 1;
    let compressed: u8 = if since_15 { 0x1C } else { 2 };
    let mut images = 0;
    // Headers go on until the lengths that they announce fill the rest.
    let (mut at, mut announced) = (0, 0);
    while at + announced < record.len() {
        let id = *record.get(at)?;
        match id {
            0..=32 => {
                let flags = *record.get(at + 1)?;
                announced += usize::from(le16(record, at + 2)?);
                at += 4;
                if flags & HAS_IMAGE != 0 {
                    let (len, info) = (le16(record, at)?, *record.get(at + 4)?);
                    announced += usize::from(len);
                    images += u64::from(len);
                    at += if info & HAS_HOLE != 0 && info & compressed != 0 { 7 } else { 5 };
                }
                at += if flags & SAME_RELATION != 0 { 4 } else { 16 };
            }
            252 => at += 5,
            253 => at += 3,
            254 => {
                announced += le32(record, at + 1)? as usize;
                at += 5;
            }
            255 => {
                announced += usize::from(*record.get(at + 1)?);
                at += 2;
            }
            _ => return None,
        }
    }
    (at + announced == record.len()).then_some(images)
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with one block: an image of `image` bytes, and `data` bytes of its own.
    fn record(image: u16, data: u8) -> Vec<u8> {
        let mut body = vec![0, if image > 0 { 0x10 } else { 0 }];
        body.extend_from_slice(&0u16.to_le_bytes());
        if image > 0 {
            body.extend_from_slice(&image.to_le_bytes());
            body.extend_from_slice(&[100, 0, 1]);
        }
        body.extend_from_slice(&[1; 16]);
        body.extend_from_slice(&[255, data]);
        body.resize(body.len() + usize::from(image) + usize::from(data), 7);
        let mut record = ((RECORD_HEADER_BYTES + body.len()) as u32).to_le_bytes().to_vec();
        record.resize(RECORD_HEADER_BYTES, 0);
        record.extend(body);
        record.resize(record.len().next_multiple_of(8), 0);
        record
    }

    /// A segment that holds `log`, whose first `carried` bytes belong to a record of the segment before.
    fn segment(log: &[u8], carried: u32, address: u64) -> Vec<u8> {
        let mut segment = Vec::new();
        let mut rest = log;
        while !rest.is_empty() || !segment.len().is_multiple_of(PAGE_BYTES) {
            if segment.len().is_multiple_of(PAGE_BYTES) {
                let first = segment.is_empty();
                let begin = segment.len();
                segment.extend_from_slice(&MAGIC_15.to_le_bytes());
                segment.extend_from_slice(&(if first { 2u16 } else { 0 }).to_le_bytes());
                segment.extend_from_slice(&1u32.to_le_bytes());
                segment.extend_from_slice(&(address + begin as u64).to_le_bytes());
                segment.extend_from_slice(&(if first { carried } else { 0 }).to_le_bytes());
                segment.resize(begin + if first { 40 } else { 24 }, 0);
            }
            let room = PAGE_BYTES - segment.len() % PAGE_BYTES;
            let (now, later) = rest.split_at(room.min(rest.len()));
            segment.extend_from_slice(now);
            segment.resize(segment.len() + room - now.len(), 0);
            rest = later;
        }
        segment
    }

    #[test]
    fn images_are_counted_over_page_borders() {
        let log = [vec![9; 16], record(5000, 3), record(0, 40), record(7777, 0)].concat();
        let counted = count(&segment(&log, 13, 0x1600_0000));
        assert_eq!(counted.image_bytes, 5000 + 7777);
        let padding =
            [record(5000, 3), record(0, 40), record(7777, 0)].concat().len() as u64 - counted.record_bytes;
        assert!(padding < 24, "{padding}");
    }

    #[test]
    fn what_a_segment_held_before_is_not_counted() {
        let log = record(100, 1).repeat(400);
        let mut one = segment(&log, 0, 1 << 24);
        let whole = count(&one);
        one[2 * PAGE_BYTES + 8..2 * PAGE_BYTES + 16].copy_from_slice(&77u64.to_le_bytes());
        let cut = count(&one);
        assert!(cut.image_bytes > 0 && cut.image_bytes * 3 < whole.image_bytes, "{cut:?} of {whole:?}");
    }

    #[test]
    fn bytes_that_are_no_log_count_nothing() {
        assert_eq!(count(&[]), Images::default());
        assert_eq!(count(&vec![0; 3 * PAGE_BYTES]), Images::default());
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let mut log = segment(&record(3000, 9).repeat(9), 0, 0);
            for _ in 0..20 {
                let at = random.usize(..log.len());
                log[at] = random.u8(..);
            }
            let counted = count(&log);
            assert!(counted.image_bytes <= counted.record_bytes);
        }
    }
}
