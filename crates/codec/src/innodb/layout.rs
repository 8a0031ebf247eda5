//! Describes the parts of an index's records.
//!
//! Before a record's origin lie, backwards: the header, a null bitmap, and one or two bytes of length per value of
//! varying length. Behind the origin lie the values, in the order of columns, without padding. A page tells none of
//! that: see [`super::infer`].

use super::page::RECORD;
use crate::Corrupt;
use crate::columns::{Column, Form, Grid, MAX_COLUMNS, MAX_WIDTH};
use crate::wire::{Reader, put_varint};

/// Largest null bitmap, in bytes.
pub(crate) const MAX_BITMAP: usize = 6;
/// Stands for no bit of the null bitmap.
const NEVER: u8 = 255;
/// Bits of a length's first byte: a second byte follows; the value goes on elsewhere.
const TWO_BYTES: u8 = 0x80;
const EXTERNAL: u8 = 0x40;
/// Largest length that a column with long values stores in one byte.
const ONE_BYTE_MAX: usize = 127;
const LONGEST: usize = 0x3FFF;

/// A column of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Bytes of each value; 0 if they vary.
    pub(crate) width: u16,
    /// The bit of the null bitmap that is set if there is no value.
    pub(crate) null: Option<u8>,
    /// True if lengths above 127 have two bytes.
    pub(crate) long: bool,
}

/// The columns of an index's leaf pages, or of its other pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InnodbLayout {
    pub(crate) fields: Vec<Field>,
    /// Bytes of the null bitmap.
    pub(crate) bitmap_bytes: usize,
    /// Values of the bits that belong to no field, which are the same in all records.
    pub(crate) usual: u64,
}

/// A record's begin and end, and its null bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bitmap: u64,
}

/// Returns the null bitmap, of `bytes` bytes, of the record at `origin`; 0 if none fits there.
pub(crate) fn bitmap(page: &[u8], origin: usize, bytes: usize) -> u64 {
    let from = origin.saturating_sub(RECORD + bytes);
    let stored = page.get(from..from + bytes).unwrap_or_default();
    stored.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Reads the length that ends before `at`. Returns where it begins, the length, and whether the value goes on
/// elsewhere.
#[inline(always)]
pub(crate) fn length(page: &[u8], at: usize, long: bool) -> Option<(usize, usize, bool)> {
    let at = at.checked_sub(1)?;
    let first = *page.get(at)?;
    if !long || first & TWO_BYTES == 0 {
        return Some((at, usize::from(first), false));
    }
    let at = at.checked_sub(1)?;
    let len = usize::from(first) << 8 & LONGEST | usize::from(*page.get(at)?);
    Some((at, len, first & EXTERNAL != 0))
}

impl Field {
    pub(crate) fn column(self) -> Column {
        Column::innodb(self.width)
    }

    /// Returns the bytes of the length of a value of this column, if there is a form for it.
    pub(crate) fn length_bytes(self, len: usize, form: Form) -> Option<usize> {
        match (self.long, form) {
            (_, Form::Compressed) => None,
            (false, form) => (len <= 255 && form == Form::usual(len)).then_some(1),
            (true, Form::External) => (len <= LONGEST).then_some(2),
            (true, _) if form != Form::usual(len) || len > LONGEST => None,
            (true, _) => Some(if len > ONE_BYTE_MAX { 2 } else { 1 }),
        }
    }

    /// Writes a length that ends before `at`; returns where it begins.
    pub(crate) fn write_length(self, page: &mut [u8], at: usize, len: usize, form: Form) -> usize {
        let external = if form == Form::External { EXTERNAL } else { 0 };
        if self.length_bytes(len, form) == Some(2) {
            page[at - 1] = TWO_BYTES | external | (len >> 8) as u8;
            page[at - 2] = len as u8;
            at - 2
        } else {
            page[at - 1] = len as u8;
            at - 1
        }
    }
}

impl InnodbLayout {
    /// Returns the columns that a record with this bitmap has, as bits; `None` if a bit that belongs to no column is
    /// not as usual.
    #[inline(always)]
    pub(crate) fn present(&self, bitmap: u64) -> Option<u128> {
        let mut present = 0;
        let mut known = 0;
        for (c, field) in self.fields.iter().enumerate() {
            let is_null = field.null.is_some_and(|bit| {
                known |= 1 << bit;
                bitmap >> bit & 1 == 1
            });
            present |= u128::from(!is_null) << c;
        }
        (bitmap & !known == self.usual & !known).then_some(present)
    }

    /// Notes the places of the values of the record at `origin`, as row `t`; returns its extent and its columns.
    /// Returns `None` if it cannot be a record of this layout between `floor` and `ceiling`.
    pub(crate) fn locate(
        &self,
        page: &[u8],
        origin: usize,
        (floor, ceiling): (usize, usize),
        grid: &mut Grid,
        t: usize,
    ) -> Option<(Extent, u128)> {
        let bits = bitmap(page, origin, self.bitmap_bytes);
        let present = self.present(bits)?;
        let mut before = origin.checked_sub(RECORD + self.bitmap_bytes).filter(|&at| at >= floor)?;
        let mut end = origin;
        for (c, field) in self.fields.iter().enumerate() {
            if present >> c & 1 == 0 {
                continue;
            }
            let (mut len, mut form) = (usize::from(field.width), Form::Short);
            if field.width == 0 {
                let (at, stored, external) = length(page, before, field.long)?;
                form = if external { Form::External } else { Form::usual(stored) };
                // InnoDB would have written this length in one byte, but it has two.
                if before - at != field.length_bytes(stored, form)? {
                    return None;
                }
                (before, len) = (at, stored);
            }
            grid.put(c, t, (end, len), form);
            end += len;
            if end > ceiling {
                return None;
            }
        }
        (before >= floor).then_some((Extent { start: before, end, bitmap: bits }, present))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.bitmap_bytes as u8);
        put_varint(out, self.usual);
        put_varint(out, self.fields.len() as u64);
        for field in &self.fields {
            put_varint(out, u64::from(field.width));
            out.push(field.null.unwrap_or(NEVER));
            out.push(u8::from(field.long));
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        const BAD: Corrupt = Corrupt("a layout of records");
        let bitmap_bytes = reader.at_most(MAX_BITMAP)?;
        let usual = reader.varint()?;
        let count = reader.at_most(MAX_COLUMNS)?;
        let mut fields = Vec::with_capacity(count);
        for _ in 0..count {
            let width = reader.at_most(MAX_WIDTH)? as u16;
            let null = match reader.byte()? {
                NEVER => None,
                bit if usize::from(bit) < 8 * bitmap_bytes => Some(bit),
                _ => return Err(BAD),
            };
            fields.push(Field { width, null, long: reader.byte()? == 1 });
        }
        if usual >> (8 * bitmap_bytes) != 0 {
            return Err(BAD);
        }
        Ok(Self { fields, bitmap_bytes, usual })
    }
}
