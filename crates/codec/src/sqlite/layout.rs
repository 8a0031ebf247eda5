//! Lays out values of records as rows of an image: each column has a place for each kind of value that was seen in it.
//!
//! SQLite writes integers in as few bytes as they need, and a column may hold anything. The columns that are coded have
//! one type each, so a record's column becomes up to four of them: integers, floating-point numbers, decimals among
//! these, and bytes. A row has a value in the one that its class says.

use super::page::kind;
use super::record::{Cell, MAX_VALUES, Value, class, int, int_type};
use crate::Corrupt;
use crate::columns::decimal::{as_decimal, digits_of, from_decimal};
use crate::columns::{Column, Form, Grid, MAX_COLUMNS};
use crate::wire::Reader;

/// Largest image, in bytes: places in it have 16 bits.
pub(crate) const IMAGE: usize = u16::MAX as usize;
/// Values of `from` in a [`ImageColumn`] that stand for no column of the record, but for the cell's child and row id.
const CHILD: u8 = 254;
const ROWID: u8 = 255;
/// Stands for no slot.
const NONE: u8 = 255;

/// Types of values in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageType {
    /// An integer of so many bytes in the image.
    Int(u8),
    Float,
    /// A decimal with so many digits behind the point.
    Decimal(u8),
    Bytes,
}

/// A column of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageColumn {
    /// Column of the record, or [`CHILD`] or [`ROWID`].
    from: u8,
    holds: ImageType,
}

impl ImageColumn {
    pub(crate) fn column(self) -> Column {
        Column::innodb(match self.holds {
            ImageType::Int(width) => u16::from(width),
            ImageType::Float | ImageType::Decimal(_) => 8,
            ImageType::Bytes => 0,
        })
    }

    fn order(self) -> usize {
        match self.holds {
            ImageType::Int(_) => 0,
            ImageType::Float => 1,
            ImageType::Decimal(_) => 2,
            ImageType::Bytes => 3,
        }
    }
}

/// The layout of a branch's images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SqliteLayout {
    /// Number of columns of records.
    pub(crate) values: usize,
    pub(crate) slots: Vec<ImageColumn>,
    /// Slots by a record's column, in the order of [`ImageColumn::order`].
    by_value: Vec<[u8; 4]>,
    child: u8,
    rowid: u8,
}

/// The values that were seen in a column of records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Bytes of the longest integer; 0 if there was none.
    pub(crate) int: usize,
    pub(crate) floats: Vec<f64>,
    pub(crate) bytes: bool,
}

impl Seen {
    /// Notes a value.
    pub(crate) fn note(&mut self, page: &[u8], value: &Value) {
        match value.class {
            class::INT | class::OLD => self.int = self.int.max(int_bytes(int(page, value.at, value.serial))),
            class::FLOAT => self.floats.push(float(page, value.at)),
            found => self.bytes |= class::is_bytes(found),
        }
    }

    /// Returns the fewest digits behind the point with which at least nine of ten floating-point numbers are decimals.
    fn digits(&self) -> Option<u8> {
        digits_of(&self.floats, 9)
    }
}

/// Returns the number of bytes that an integer needs, from 1 to 8. (SQLite itself has no integers of 5 or 7 bytes.)
pub(crate) fn int_bytes(value: i64) -> usize {
    (65 - (value ^ value >> 63).leading_zeros() as usize).div_ceil(8)
}

/// Returns the bytes that images have for integers, of which the longest seen one has `seen` bytes: later ones may be
/// longer.
fn room(seen: usize) -> u8 {
    match seen {
        0 | 1 => 2,
        2 | 3 => 4,
        _ => 8,
    }
}

pub(crate) fn float(page: &[u8], at: usize) -> f64 {
    let bytes = page.get(at..).and_then(|rest| rest.first_chunk().copied());
    bytes.map_or(0.0, f64::from_be_bytes)
}

/// Appends an integer as images have it: high byte first, the sign bit flipped.
fn push_int(image: &mut Vec<u8>, value: i64, width: u8) {
    let flipped = (value as u64) ^ 1 << (8 * u32::from(width) - 1);
    image.extend_from_slice(&flipped.to_be_bytes()[8 - usize::from(width)..]);
}

/// Returns the integer of `width` bytes at `at` of an image.
fn load_int(image: &[u8], at: usize, width: u8) -> i64 {
    let value =
        image[at..at + usize::from(width)].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    let shift = 64 - 8 * u32::from(width);
    ((value ^ 1 << (8 * u32::from(width) - 1)) << shift) as i64 >> shift
}

impl SqliteLayout {
    /// Makes the layout for pages of `page_kind` whose records' columns are as `seen`; the longest row id has `rowid`
    /// bytes. It has at most [`MAX_COLUMNS`] slots: cells that need more are odd.
    pub(crate) fn new(page_kind: u8, seen: &[Seen], rowid: usize) -> Self {
        let mut slots = vec![];
        if kind::is_inner(page_kind) {
            slots.push(ImageColumn { from: CHILD, holds: ImageType::Int(4) });
        }
        if kind::is_table(page_kind) {
            slots.push(ImageColumn { from: ROWID, holds: ImageType::Int(room(rowid)) });
        }
        for (from, seen) in (0..).zip(seen) {
            let mut add = |holds| slots.push(ImageColumn { from, holds });
            if seen.int > 0 {
                add(ImageType::Int(room(seen.int)));
            }
            if !seen.floats.is_empty() {
                add(ImageType::Float);
                if let Some(digits) = seen.digits() {
                    add(ImageType::Decimal(digits));
                }
            }
            if seen.bytes {
                add(ImageType::Bytes);
            }
        }
        slots.truncate(MAX_COLUMNS);
        Self::of(seen.len(), slots)
    }

    fn of(values: usize, slots: Vec<ImageColumn>) -> Self {
        let (mut child, mut rowid, mut by_value) = (NONE, NONE, vec![[NONE; 4]; values]);
        for (place, slot) in (0..).zip(&slots) {
            match slot.from {
                CHILD => child = place,
                ROWID => rowid = place,
                value => {
                    if let Some(places) = by_value.get_mut(usize::from(value)) {
                        places[slot.order()] = place;
                    }
                }
            }
        }
        Self { values, slots, by_value, child, rowid }
    }

    /// Returns the slot of values of class `found` in column `c`. It is [`NONE`] if such values have no content in the
    /// image, and `None` if the layout has no slot for them.
    fn slot(&self, c: usize, found: u8) -> Option<u8> {
        let order = match found {
            class::INT | class::OLD => 0,
            class::FLOAT => 1,
            class::DECIMAL => 2,
            found if class::is_bytes(found) => 3,
            _ => return Some(NONE),
        };
        Some(self.by_value.get(c)?[order]).filter(|&slot| slot != NONE)
    }

    /// Returns the slots that a row of these classes has, as bits; `None` if the layout lacks one of them.
    pub(crate) fn present(&self, classes: impl Iterator<Item = u8>) -> Option<u128> {
        let mut present = 0;
        for slot in [self.child, self.rowid] {
            if slot != NONE {
                present |= 1 << slot;
            }
        }
        for (c, found) in classes.enumerate() {
            match self.slot(c, found)? {
                NONE => {}
                slot => present |= 1 << slot,
            }
        }
        Some(present)
    }

    /// Appends a cell's values to the image as row `t`, and returns the slots that the row has, as bits. Returns
    /// `None`, and leaves the image as it was, if the cell does not fit this layout. Numbers that are stored as
    /// decimals get that class.
    pub(crate) fn place(
        &self,
        page: &[u8],
        cell: &Cell,
        values: &mut [Value],
        (image, grid, t): (&mut Vec<u8>, &mut Grid, usize),
    ) -> Option<u128> {
        let begin = image.len();
        let present = self.place_all(page, cell, values, (image, grid, t));
        if present.is_none() {
            image.truncate(begin);
        }
        present
    }

    fn place_all(
        &self,
        page: &[u8],
        cell: &Cell,
        values: &mut [Value],
        (image, grid, t): (&mut Vec<u8>, &mut Grid, usize),
    ) -> Option<u128> {
        (values.len() <= self.values).then_some(())?;
        let mut ids = |slot: u8, value: i64, image: &mut Vec<u8>| {
            if slot == NONE {
                return Some(());
            }
            let ImageType::Int(width) = self.slots[usize::from(slot)].holds else { return None };
            (image.len() + 8 <= IMAGE).then_some(())?;
            (int_bytes(value) <= usize::from(width)).then_some(())?;
            grid.put(slot.into(), t, (image.len(), width.into()), Form::Short);
            push_int(image, value, width);
            Some(())
        };
        ids(self.child, i64::from(cell.child as i32), image)?;
        ids(self.rowid, cell.rowid, image)?;
        for (c, value) in values.iter_mut().enumerate() {
            let mut slot = self.slot(c, value.class);
            let mut whole = 0;
            if value.class == class::FLOAT
                && let Some(decimal) = self.slot(c, class::DECIMAL)
                && let ImageType::Decimal(digits) = self.slots[usize::from(decimal)].holds
                && let Some(found) = as_decimal(float(page, value.at), digits)
            {
                (whole, slot) = (found, Some(decimal));
                value.class = class::DECIMAL;
            }
            let slot = slot?;
            if slot == NONE {
                continue;
            }
            let at = image.len();
            (at + value.len.max(8) <= IMAGE).then_some(())?;
            match self.slots[usize::from(slot)].holds {
                ImageType::Int(width) => {
                    let value = int(page, value.at, value.serial);
                    (int_bytes(value) <= usize::from(width)).then_some(())?;
                    push_int(image, value, width);
                }
                ImageType::Decimal(_) => push_int(image, whole, 8),
                ImageType::Float | ImageType::Bytes => {
                    image.extend_from_slice(&page[value.at..value.at + value.len]);
                }
            }
            let len = image.len() - at;
            grid.put(slot.into(), t, (at, len), Form::usual(len));
        }
        Some(present_of(self, values))
    }

    /// Returns a row's child and row id; 0 for those that the layout does not have.
    pub(crate) fn ids(&self, image: &[u8], grid: &Grid, t: u16) -> (u32, i64) {
        let load = |slot: u8| match self.slots.get(usize::from(slot)).map(|slot| slot.holds) {
            Some(ImageType::Int(width)) => load_int(image, grid.place(slot.into(), t).0, width),
            _ => 0,
        };
        (load(self.child) as u32, load(self.rowid))
    }

    /// Returns the value of class `found` in column `c` of row `t`: the type that it has if all of it is in this page,
    /// and its bytes. Its length follows from the image.
    pub(crate) fn value(&self, image: &[u8], grid: &Grid, (c, t): (usize, u16), found: u8) -> Stored {
        let slot = self.slot(c, found).unwrap_or(NONE);
        let holds = self.slots.get(usize::from(slot)).map(|slot| slot.holds);
        let Some(holds) = holds else { return Stored { serial: 0, number: 0, at: 0, len: 0 } };
        let (at, len) = grid.place(slot.into(), t);
        match holds {
            ImageType::Int(width) => {
                let value = load_int(image, at, width);
                let serial = if found == class::OLD { 1 } else { int_type(value) };
                let len = super::record::value_bytes(serial).unwrap_or(0);
                Stored { serial, number: value as u64, at: 0, len }
            }
            ImageType::Float => Stored { serial: 7, number: float(image, at).to_bits(), at: 0, len: 8 },
            ImageType::Decimal(digits) => {
                let number = from_decimal(load_int(image, at, 8), digits).to_bits();
                Stored { serial: 7, number, at: 0, len: 8 }
            }
            ImageType::Bytes => {
                let text = u64::from(matches!(found, class::TEXT | class::CUT_TEXT));
                Stored { serial: 12 + 2 * len as u64 + text, number: 0, at, len }
            }
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.values as u8);
        out.push(self.slots.len() as u8);
        for slot in &self.slots {
            out.push(slot.from);
            out.push(match slot.holds {
                ImageType::Int(width) => width,
                ImageType::Float => 16,
                ImageType::Bytes => 17,
                ImageType::Decimal(digits) => 32 + digits,
            });
        }
    }

    /// Reads the layout of pages of `page_kind`.
    pub(crate) fn read(reader: &mut Reader<'_>, page_kind: u8) -> Result<Self, Corrupt> {
        const BAD: Corrupt = Corrupt("a layout of records");
        let values = reader.at_most(MAX_VALUES)?;
        let mut slots = vec![];
        for _ in 0..reader.at_most(MAX_COLUMNS)? {
            let from = reader.byte()?;
            let holds = match reader.byte()? {
                width @ (2 | 4 | 8) => ImageType::Int(width),
                16 => ImageType::Float,
                17 => ImageType::Bytes,
                digits @ 32..=41 => ImageType::Decimal(digits - 32),
                _ => return Err(BAD),
            };
            let fits = match from {
                CHILD => kind::is_inner(page_kind) && holds == ImageType::Int(4),
                ROWID => kind::is_table(page_kind) && matches!(holds, ImageType::Int(_)),
                value => usize::from(value) < values,
            };
            if !fits {
                return Err(BAD);
            }
            slots.push(ImageColumn { from, holds });
        }
        let layout = Self::of(values, slots);
        let ids = (layout.child != NONE) == kind::is_inner(page_kind)
            && (layout.rowid != NONE) == kind::is_table(page_kind);
        if ids { Ok(layout) } else { Err(BAD) }
    }
}

fn present_of(layout: &SqliteLayout, values: &[Value]) -> u128 {
    layout.present(values.iter().map(|value| value.class)).unwrap_or(0)
}

/// A value as it is stored in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) serial: u64,
    /// Bits of the value, if it is a number.
    pub(crate) number: u64,
    /// Place of the value's bytes in the image, if it is no number.
    pub(crate) at: usize,
    /// Number of bytes in the page.
    pub(crate) len: usize,
}
