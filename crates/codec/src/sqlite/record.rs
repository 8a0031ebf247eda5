//! Takes cells and records apart: numbers of varying length, types of values, and the parts of a cell.

use super::page::kind;
use crate::wire::be32;

/// Largest number of columns of a record that is taken apart.
pub(crate) const MAX_VALUES: usize = 60;
/// Longest value in a page, in bytes: lengths have 15 bits.
pub(crate) const MAX_LOCAL: usize = (1 << 15) - 1;

/// Classes of values. They tell the kind of a value, and how much of it lies in this page.
pub(crate) mod class {
    /// The record has fewer columns.
    pub(crate) const ABSENT: u8 = 0;
    pub(crate) const NULL: u8 = 1;
    /// An integer in as few bytes as it needs.
    pub(crate) const INT: u8 = 2;
    /// 0 or 1 in one byte, as old files have them.
    pub(crate) const OLD: u8 = 3;
    pub(crate) const FLOAT: u8 = 4;
    /// A floating-point number that is an integer divided by a power of ten.
    pub(crate) const DECIMAL: u8 = 5;
    pub(crate) const TEXT: u8 = 6;
    pub(crate) const BLOB: u8 = 7;
    /// The value goes on in an overflow page.
    pub(crate) const CUT_TEXT: u8 = 8;
    pub(crate) const CUT_BLOB: u8 = 9;
    /// All of the value is in overflow pages.
    pub(crate) const BEYOND: u8 = 10;
    /// The number goes on in an overflow page: some of its bytes are here.
    pub(crate) const CUT_NUMBER: u8 = 11;
    pub(crate) const COUNT: u8 = 12;

    /// Returns true if the image has the value's bytes as they are.
    pub(crate) const fn is_bytes(class: u8) -> bool {
        matches!(class, TEXT | BLOB | CUT_TEXT | CUT_BLOB | CUT_NUMBER)
    }

    /// Returns true if the number of missing bytes is stored: the value's length follows from it.
    pub(crate) const fn is_cut(class: u8) -> bool {
        matches!(class, CUT_TEXT | CUT_BLOB)
    }

    /// Returns true if the value's type is stored: its bytes in this page do not determine it.
    pub(crate) const fn is_told(class: u8) -> bool {
        matches!(class, CUT_NUMBER | BEYOND)
    }

    /// Returns true if the record goes on in overflow pages.
    pub(crate) const fn overflows(class: u8) -> bool {
        is_cut(class) || is_told(class)
    }
}

/// Reads the number at `at`; returns it and its length. Returns `None` if the number is cut off, or longer than it has
/// to be.
#[inline]
pub(crate) fn varint(page: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *page.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let mut value = 0;
    for n in 0..8 {
        let byte = *page.get(at + n)?;
        value = value << 7 | u64::from(byte & 0x7F);
        if byte < 0x80 {
            return (varint_len(value) == n + 1).then_some((value, n + 1));
        }
    }
    let value = value << 8 | u64::from(*page.get(at + 8)?);
    (varint_len(value) == 9).then_some((value, 9))
}

/// Returns the bytes that a number takes: seven bits each, but all eight of the ninth.
#[inline]
pub(crate) fn varint_len(value: u64) -> usize {
    let bits = 64 - value.leading_zeros() as usize;
    if bits > 56 { 9 } else { bits.div_ceil(7).max(1) }
}

/// Writes a number at `at`, where there is room for it; returns where it ends.
#[inline]
pub(crate) fn put_varint(page: &mut [u8], at: usize, value: u64) -> usize {
    let len = varint_len(value);
    let (last, mut rest) =
        if len == 9 { (value as u8, value >> 8) } else { (value as u8 & 0x7F, value >> 7) };
    page[at + len - 1] = last;
    for byte in page[at..at + len - 1].iter_mut().rev() {
        *byte = rest as u8 | 0x80;
        rest >>= 7;
    }
    at + len
}

/// Returns the bytes of a value of type `serial`; `None` for types that do not exist, and for lengths that no file can
/// have.
#[inline]
pub(crate) fn value_bytes(serial: u64) -> Option<usize> {
    match serial {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(serial as usize),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        _ => usize::try_from((serial - 12) / 2).ok().filter(|&len| len <= i32::MAX as usize),
    }
}

/// Returns the type of an integer in as few bytes as it needs.
#[inline]
pub(crate) fn int_type(value: i64) -> u64 {
    match value {
        0 => 8,
        1 => 9,
        _ => match 65 - (value ^ value >> 63).leading_zeros() {
            ..=8 => 1,
            9..=16 => 2,
            17..=24 => 3,
            25..=32 => 4,
            33..=48 => 5,
            _ => 6,
        },
    }
}

/// Returns the integer of type `serial` at `at`, all of which is in `page`.
#[inline]
pub(crate) fn int(page: &[u8], at: usize, serial: u64) -> i64 {
    if serial >= 8 {
        return serial as i64 - 8;
    }
    let bytes = &page[at..at + value_bytes(serial).unwrap_or(0)];
    let value = bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    let shift = 64 - 8 * bytes.len() as u32;
    (value << shift) as i64 >> shift
}

/// A cell, taken apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) at: usize,
    /// Offset behind the cell's last byte in this page.
    pub(crate) end: usize,
    /// The cell could not be taken apart: its bytes are kept as they are.
    pub(crate) odd: bool,
    pub(crate) child: u32,
    pub(crate) rowid: i64,
    /// Index of the cell's first value, among the values of all cells.
    pub(crate) first: usize,
    pub(crate) values: usize,
    /// The overflow page, if there is one.
    pub(crate) overflow: u32,
}

/// A value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Value {
    pub(crate) class: u8,
    pub(crate) serial: u64,
    pub(crate) at: usize,
    /// Number of bytes in this page.
    pub(crate) len: usize,
}

/// Returns the number of bytes that a payload of `total` bytes has in its cell's page, of which `usable` bytes are
/// SQLite's.
pub(crate) fn local_bytes(kind: u8, total: u64, usable: usize) -> usize {
    let usable = usable as u64;
    let least = (usable - 12) * 32 / 255 - 23;
    let most = if kind == kind::TABLE_LEAF { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
    if total <= most {
        return total as usize;
    }
    let some = least + (total - least) % (usable - 4);
    (if some <= most { some } else { least }) as usize
}

/// Takes the cell at `at` apart, which ends at or before `ceiling`, and appends its values to `values`. Returns `None`,
/// and leaves `values` as they were, if the cell could not be written again from its parts.
pub(crate) fn parse(
    page: &[u8],
    kind: u8,
    at: usize,
    (ceiling, usable): (usize, usize),
    values: &mut Vec<Value>,
) -> Option<Cell> {
    let first = values.len();
    let cell = parse_parts(page.get(..ceiling)?, kind, at, usable, values);
    if cell.is_none() {
        values.truncate(first);
    }
    cell
}

fn parse_parts(page: &[u8], kind: u8, at: usize, usable: usize, values: &mut Vec<Value>) -> Option<Cell> {
    let mut cell = Cell { at, first: values.len(), ..Cell::default() };
    let mut next = at;
    if kind::is_inner(kind) {
        cell.child = be32(page, next);
        next += 4;
    }
    let mut payload = 0;
    if kind::has_record(kind) {
        let (value, len) = varint(page, next)?;
        payload = value;
        next += len;
    }
    if kind::is_table(kind) {
        let (value, len) = varint(page, next)?;
        cell.rowid = value as i64;
        next += len;
    }
    cell.end = next;
    if !kind::has_record(kind) {
        return (next <= page.len()).then_some(cell);
    }
    let local = local_bytes(kind, payload, usable);
    let end = next + local;
    if end > page.len() {
        return None;
    }
    let total = parse_record(page, next, end, values)?;
    cell.values = values.len() - cell.first;
    cell.end = end;
    if payload > local as u64 {
        cell.overflow = be32(page.get(..end + 4)?, end);
        cell.end = end + 4;
        // The decoder knows of the overflow page only from a value that goes on in it, so there has to be one.
        values[cell.first..].iter().any(|value| class::overflows(value.class)).then_some(())?;
    }
    (total == payload).then_some(cell)
}

/// Returns the bytes of a record's header whose types take `types` bytes. The header's length, which it begins with,
/// counts.
pub(crate) fn head_bytes(types: usize) -> usize {
    types + varint_len(if types > 126 { types as u64 + 2 } else { types as u64 + 1 })
}

/// Appends the values of the record from `begin` on, of which this page has the bytes up to `end`; returns the length
/// of the whole record in bytes.
fn parse_record(page: &[u8], begin: usize, end: usize, values: &mut Vec<Value>) -> Option<u64> {
    let (head, len) = varint(page, begin)?;
    let head = usize::try_from(head).ok().filter(|&head| head >= len && head <= end - begin)?;
    let (mut next, body) = (begin + len, begin + head);
    let mut at = body as u64;
    let first = values.len();
    while next < body {
        let (serial, len) = varint(&page[..body], next)?;
        next += len;
        let value = value(page, serial, at, end)?;
        at += value_bytes(serial)? as u64;
        values.push(value);
        (values.len() - first <= MAX_VALUES).then_some(())?;
    }
    (head == head_bytes(head - len)).then_some(at - begin as u64)
}

fn value(page: &[u8], serial: u64, at: u64, end: usize) -> Option<Value> {
    let len = value_bytes(serial)?;
    let begin = usize::try_from(at).unwrap_or(usize::MAX);
    if len > 0 && begin >= end {
        return Some(Value { class: class::BEYOND, serial, at: end, len: 0 });
    }
    let here = len.min(end.saturating_sub(begin));
    let cut = here < len;
    let class = match serial {
        0 => class::NULL,
        1..=6 | 8 | 9 if !cut => {
            let value = int(page, begin, serial);
            match serial {
                _ if int_type(value) == serial => class::INT,
                1 => class::OLD,
                _ => return None,
            }
        }
        7 if !cut => class::FLOAT,
        1..=7 if cut => class::CUT_NUMBER,
        12.. if here > MAX_LOCAL => return None,
        12.. => match (serial & 1 == 1, cut) {
            (true, false) => class::TEXT,
            (false, false) => class::BLOB,
            (true, true) => class::CUT_TEXT,
            (false, true) => class::CUT_BLOB,
        },
        _ => return None,
    };
    // An empty value may lie beyond the page.
    Some(Value { class, serial, at: begin.min(end), len: here })
}
