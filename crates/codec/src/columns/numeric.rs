//! Codes PostgreSQL's numeric: a header of two bytes (sign, scale, weight), then digits to the base of 10,000.
//!
//! Streams behind those of lengths: high and low byte of the header, then two halves to the base of 100 for each digit.
//! All are conditioned on the number of digits, which follows from the length. In a page that has a value of another
//! shape, the column is text.

use super::code::{CODED, Read, UNFIT, Write};
use super::plan::DIGITS;
use crate::Corrupt;
use crate::entropy::Sink;
use crate::wire::le16;

/// Largest number of bytes that are taken for a numeric.
const MAX_BYTES: usize = 126;
/// The base of digits, which are below it.
const BASE: u16 = 10_000;

/// Returns true if `content` is a numeric with the short header and valid digits.
pub(crate) fn is_numeric(content: &[u8]) -> bool {
    let shape = content.len() >= 2 && content.len().is_multiple_of(2) && content.len() <= MAX_BYTES;
    // The short form of the header: its two high bits are 10; 11 is NaN or an infinity.
    shape
        && content[1] >> 6 == 2
        && content[2..].as_chunks::<2>().0.iter().all(|&d| u16::from_le_bytes(d) < BASE)
}

pub(crate) fn put<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, base: usize) {
    if !w.rows.iter().all(|&t| is_numeric(w.grid.content(w.page, c, t))) {
        sink.put(base + 3, 255, UNFIT);
        for &t in w.rows {
            w.text.extend_from_slice(w.grid.content(w.page, c, t));
        }
        return;
    }
    sink.put(base + 3, 255, CODED);
    for &t in w.rows {
        let cell = w.grid.cell(c, t);
        let content = w.grid.content(w.page, c, t);
        let count = (content.len() / 2) as u8;
        sink.put(base + 3, count, content[1]);
        sink.put(base + 4, count, content[0]);
        for i in 1..usize::from(count) {
            let digit = le16(content, 2 * i);
            let streams = base + 5 + 2 * (i - 1).min(DIGITS - 1);
            sink.put(streams, count, (digit / 100) as u8);
            sink.put(streams + 1, count, (digit % 100) as u8);
        }
        w.grid.sym[cell] = if count > 1 { (le16(content, 2) / 100) as u8 } else { 0 };
    }
}

pub(crate) fn get(r: &mut Read<'_, '_>, c: usize, base: usize) -> Result<(), Corrupt> {
    let plain = !r.is_coded(base + 3, 255)?;
    let mut d = *r.decoder;
    for &t in r.rows {
        let cell = r.grid.cell(c, t);
        let (at, len) = r.grid.place(c, t);
        if plain {
            r.take_text(at, len)?;
            continue;
        }
        if len < 2 || !len.is_multiple_of(2) || len > MAX_BYTES {
            return Err(Corrupt("a numeric's length"));
        }
        let streams = &r.streams[base + 3..];
        let count = (len / 2) as u8;
        let content = &mut r.page[at..at + len];
        content[1] = d.get(streams[0].view(count));
        content[0] = d.get(streams[1].view(count));
        for i in 1..usize::from(count) {
            let pair = &streams[2 + 2 * (i - 1).min(DIGITS - 1)..];
            let high = d.get(pair[0].view(count));
            let low = d.get(pair[1].view(count));
            let digit = u16::from(high) * 100 + u16::from(low);
            content[2 * i..2 * i + 2].copy_from_slice(&digit.to_le_bytes());
            if i == 1 {
                r.grid.sym[cell] = high;
            }
        }
    }
    *r.decoder = d;
    Ok(())
}
