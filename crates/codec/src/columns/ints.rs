//! Codes columns of integers (and of all that has 1, 2, 4 or 8 bytes; in InnoDB, of all that has up to 8).

use super::code::{ALL_COMMON, CODED, Context, Read, Write};
use super::decimal::{self, as_decimal, from_decimal};
use super::plan::{Ctx, Plans};
use super::{Column, Grid};
use crate::Corrupt;
use crate::entropy::number::{self, unzigzag, zigzag};
use crate::entropy::{Sink, Stream};
use crate::wire::{Reader, put_varint};

/// References of values: the residual is the difference to one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// A constant.
    Constant,
    /// The value of the row before.
    Previous,
    /// The value of an earlier column in the same row.
    Column(u8),
}

/// Codings of residuals as symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planes {
    /// A [`number`].
    Number,
    /// `coded` bytes from the highest that is ever used, each in the context of the one above; then `plain` bytes as
    /// they are.
    Bytes { coded: u8, plain: u8 },
}

/// The coding of a column of integers. The residual is `(value - reference) / step`; zigzag if it may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntCoding {
    /// Digits behind the point, if values are floating-point numbers that are coded as decimals.
    pub(crate) digits: Option<u8>,
    pub(crate) against: Against,
    pub(crate) planes: Planes,
    /// The reference, or that of the first row.
    pub(crate) base: u64,
    pub(crate) step: u64,
    /// The most frequent residual: a page that has no other is marked as such.
    pub(crate) common: u64,
}

/// The third state of a column in a page: some value has no residual, and all are kept as they are.
const PLAIN: u8 = 2;

/// Returns the low `width` bytes of `value` as a signed number.
#[inline(always)]
fn sign_extend(value: u64, width: usize) -> i64 {
    let shift = 64 - 8 * width as u32;
    (value << shift) as i64 >> shift
}

#[inline(always)]
fn mask(width: usize) -> u64 {
    u64::MAX >> (64 - 8 * width as u32)
}

/// Returns the value of `column` at `at`.
#[inline(always)]
pub(crate) fn load(page: &[u8], at: usize, column: Column) -> u64 {
    if column.is_innodb() {
        return load_innodb(page, at, usize::from(column.width));
    }
    match column.width {
        1 => page.get(at).map_or(0, |&byte| u64::from(byte)),
        2 => page
            .get(at..at + 2)
            .and_then(|b| b.first_chunk().copied())
            .map_or(0, |b| u64::from(u16::from_le_bytes(b))),
        4 => page
            .get(at..at + 4)
            .and_then(|b| b.first_chunk().copied())
            .map_or(0, |b| u64::from(u32::from_le_bytes(b))),
        _ => page.get(at..at + 8).and_then(|b| b.first_chunk().copied()).map_or(0, u64::from_le_bytes),
    }
}

/// Returns the integer of `width` bytes at `at`. The high byte comes first, and its highest bit is set for numbers that
/// are not negative.
#[inline(always)]
fn load_innodb(page: &[u8], at: usize, width: usize) -> u64 {
    let value = match page.get(at..at + 8).and_then(|b| b.first_chunk().copied()) {
        Some(bytes) => u64::from_be_bytes(bytes) >> (64 - 8 * width as u32),
        None => page.iter().skip(at).take(width).fold(0, |value, &byte| value << 8 | u64::from(byte)),
    };
    value ^ 1 << (8 * width as u32 - 1)
}

#[inline(always)]
fn store(page: &mut [u8], at: usize, column: Column, value: u64) {
    if column.is_innodb() {
        return store_innodb(page, at, usize::from(column.width), value);
    }
    let bytes = value.to_le_bytes();
    match column.width {
        1 => page[at] = bytes[0],
        2 => page[at..at + 2].copy_from_slice(&bytes[..2]),
        4 => page[at..at + 4].copy_from_slice(&bytes[..4]),
        _ => page[at..at + 8].copy_from_slice(&bytes),
    }
}

#[inline(always)]
fn store_innodb(page: &mut [u8], at: usize, width: usize, value: u64) {
    let bytes = (value ^ 1 << (8 * width as u32 - 1)).to_be_bytes();
    let to = &mut page[at..at + width];
    // A copy of a length that the compiler knows takes an instruction or two.
    match width {
        1 => to.copy_from_slice(&bytes[7..]),
        2 => to.copy_from_slice(&bytes[6..]),
        3 => to.copy_from_slice(&bytes[5..]),
        4 => to.copy_from_slice(&bytes[4..]),
        5 => to.copy_from_slice(&bytes[3..]),
        6 => to.copy_from_slice(&bytes[2..]),
        7 => to.copy_from_slice(&bytes[1..]),
        _ => to.copy_from_slice(&bytes),
    }
}

impl IntCoding {
    pub(crate) fn streams(&self) -> usize {
        match self.planes {
            Planes::Number => 1,
            Planes::Bytes { coded, .. } => usize::from(coded),
        }
    }

    /// Returns the column that values are differences to, if there is one.
    pub(crate) fn reference(&self) -> Option<usize> {
        match self.against {
            Against::Column(c) => Some(usize::from(c)),
            Against::Constant | Against::Previous => None,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(
            out,
            match self.against {
                Against::Constant => 0,
                Against::Previous => 1,
                Against::Column(c) => 2 + u64::from(c),
            },
        );
        out.push(match self.planes {
            Planes::Number => 0,
            Planes::Bytes { coded, plain } => 1 + coded * 16 + plain,
        });
        out.push(self.digits.map_or(0, |digits| 1 + digits));
        for value in [self.base, self.step, self.common] {
            put_varint(out, value);
        }
    }

    /// Reads the coding of `column`, the one with number `c`.
    pub(crate) fn read(reader: &mut Reader<'_>, c: usize, column: Column) -> Result<Self, Corrupt> {
        let against = match reader.at_most(1 + c)? {
            0 => Against::Constant,
            1 => Against::Previous,
            other => Against::Column((other - 2) as u8),
        };
        let planes = match reader.byte()? {
            0 => Planes::Number,
            other => {
                let (coded, plain) = ((other - 1) / 16, (other - 1) % 16);
                if coded + plain > 8 {
                    return Err(Corrupt("an integer of more than 8 bytes"));
                }
                Planes::Bytes { coded, plain }
            }
        };
        let digits =
            reader.at_most(1 + usize::from(decimal::MAX_DIGITS))?.checked_sub(1).map(|digits| digits as u8);
        if digits.is_some() && !column.is_float() {
            return Err(Corrupt("decimals of another width"));
        }
        let [base, step, common] = [reader.varint()?, reader.varint()?, reader.varint()?];
        if step == 0 {
            return Err(Corrupt("a step of zero"));
        }
        Ok(Self { digits, against, planes, base, step, common })
    }

    /// Returns the residual of `value`, or `None` if the difference is no multiple of the step.
    #[inline(always)]
    fn residual(&self, value: u64, reference: u64, width: usize) -> Option<u64> {
        let difference = value.wrapping_sub(reference) & mask(width);
        match self.against {
            Against::Constant if self.step == 1 => Some(difference),
            Against::Constant => difference.is_multiple_of(self.step).then(|| difference / self.step),
            _ => {
                let signed = sign_extend(difference, width);
                if self.step == 1 {
                    return Some(zigzag(signed));
                }
                let step = i64::try_from(self.step).ok()?;
                (signed % step == 0).then(|| zigzag(signed / step))
            }
        }
    }

    #[inline(always)]
    fn value(&self, residual: u64, reference: u64, width: usize) -> u64 {
        let difference = match self.against {
            Against::Constant => residual.wrapping_mul(self.step),
            _ => (unzigzag(residual) as u64).wrapping_mul(self.step),
        };
        reference.wrapping_add(difference) & mask(width)
    }

    /// Returns the number that the residual of a stored value is made of; `None` if it should be a decimal and is not.
    #[inline(always)]
    fn number(&self, value: u64) -> Option<u64> {
        match self.digits {
            None => Some(value),
            Some(digits) => as_decimal(f64::from_bits(value), digits).map(|whole| whole as u64),
        }
    }

    /// Inverts [`IntCoding::number`].
    #[inline(always)]
    fn stored(&self, number: u64) -> u64 {
        self.digits.map_or(number, |digits| from_decimal(number as i64, digits).to_bits())
    }

    /// Fills `residuals`. Returns false if a value has none that the coding can store.
    pub(crate) fn residuals(
        &self,
        page: &[u8],
        grid: &Grid,
        c: usize,
        rows: &[u16],
        plans: &Plans,
        residuals: &mut Vec<u64>,
    ) -> bool {
        let column = plans.columns[c];
        let width = usize::from(column.width);
        residuals.clear();
        let mut previous = self.base;
        let beyond = match self.planes {
            Planes::Bytes { coded, plain } if coded + plain < 8 => u64::MAX << (8 * u32::from(coded + plain)),
            _ => 0,
        };
        for &t in rows {
            let value = load(page, usize::from(grid.pos[grid.cell(c, t)]), column);
            let Some(value) = self.number(value) else { return false };
            let reference = match self.against {
                Against::Constant => self.base,
                Against::Previous => previous,
                Against::Column(other) => {
                    reference_of(page, grid, usize::from(other), t, plans.columns[usize::from(other)])
                }
            };
            let Some(residual) = self.residual(value, reference, width) else { return false };
            if residual & beyond != 0 {
                return false;
            }
            residuals.push(residual);
            previous = value;
        }
        true
    }

    /// Writes column `c`, which is `column`.
    pub(crate) fn put<S: Sink>(
        &self,
        w: &mut Write<'_>,
        sink: &mut S,
        c: usize,
        column: Column,
        context: Context,
    ) {
        let width = usize::from(column.width);
        let mut residuals = std::mem::take(w.residuals);
        let known = self.residuals(w.page, w.grid, c, w.rows, w.plans, &mut residuals);
        let base = context.base;
        if !known {
            sink.put(base, 0, PLAIN);
            for &t in w.rows {
                let cell = w.grid.cell(c, t);
                sink.long_bits(load(w.page, usize::from(w.grid.pos[cell]), column), 8 * width as u32);
                w.grid.sym[cell] = 0;
            }
        } else if residuals[self.apart(&residuals)..].iter().all(|&residual| residual == self.common) {
            sink.put(base, 0, ALL_COMMON);
            let apart = self.apart(&residuals);
            self.put_residuals(w, sink, c, &residuals[..apart], context);
            let symbol = self.symbol(self.common);
            for &t in &w.rows[apart..] {
                let cell = w.grid.cell(c, t);
                w.grid.sym[cell] = symbol;
            }
        } else {
            sink.put(base, 0, CODED);
            self.put_residuals(w, sink, c, &residuals, context);
        }
        *w.residuals = residuals;
    }

    /// Returns the number of rows, 0 or 1, that are coded even in a page of common residuals: the first row has no row
    /// before it.
    #[inline(always)]
    fn apart<T>(&self, rows: &[T]) -> usize {
        usize::from(self.against == Against::Previous).min(rows.len())
    }

    /// Returns the symbol of a residual that contexts consist of.
    #[inline(always)]
    fn symbol(&self, residual: u64) -> u8 {
        match self.planes {
            Planes::Number => number::split(residual).0,
            Planes::Bytes { coded: 0, .. } => 0,
            Planes::Bytes { coded, plain } => (residual >> (8 * u32::from(coded + plain - 1))) as u8,
        }
    }

    fn put_residuals<S: Sink>(
        &self,
        w: &mut Write<'_>,
        sink: &mut S,
        c: usize,
        residuals: &[u64],
        context: Context,
    ) {
        let stream = context.base + 1;
        let mut last = 0;
        for (&t, &residual) in w.rows.iter().zip(residuals) {
            let ctx = context.of(w.grid, t, last);
            last = self.symbol(residual);
            let cell = w.grid.cell(c, t);
            w.grid.sym[cell] = last;
            match self.planes {
                Planes::Number => {
                    number::put(sink, stream, ctx, residual);
                }
                Planes::Bytes { coded: 0, .. } => {}
                Planes::Bytes { .. } => sink.put(stream, ctx, last),
            }
        }
        let Planes::Bytes { coded, plain } = self.planes else { return };
        // Bytes are coded plane by plane: so the byte above was decoded a whole column before.
        for i in 1..coded {
            let shift = 8 * u32::from(coded + plain - 1 - i);
            for residual in residuals {
                sink.put(stream + usize::from(i), (residual >> shift >> 8) as u8, (residual >> shift) as u8);
            }
        }
        for residual in residuals {
            w.plain.extend_from_slice(&residual.to_le_bytes()[..usize::from(plain)]);
        }
    }

    /// Reads values that [`IntCoding::put`] wrote, into the page.
    pub(crate) fn get(
        &self,
        r: &mut Read<'_, '_>,
        c: usize,
        column: Column,
        context: Context,
    ) -> Result<(), Corrupt> {
        let width = usize::from(column.width);
        let state = r.decoder.get(r.streams[context.base].view(0));
        match state {
            PLAIN => {
                for &t in r.rows {
                    let cell = r.grid.cell(c, t);
                    let value = r.decoder.long_bits(8 * width as u32);
                    store(r.page, usize::from(r.grid.pos[cell]), column, value);
                    r.grid.sym[cell] = 0;
                }
                return Ok(());
            }
            ALL_COMMON => {
                let (symbol, apart) = (self.symbol(self.common), self.apart(r.rows));
                self.get_residuals(r, c, &r.rows[..apart], context)?;
                r.residuals.resize(r.rows.len(), self.common);
                for &t in &r.rows[apart..] {
                    let cell = r.grid.cell(c, t);
                    r.grid.sym[cell] = symbol;
                }
            }
            CODED => self.get_residuals(r, c, r.rows, context)?,
            _ => return Err(Corrupt("a column's state")),
        }
        // The usual widths have a loop each: the processor stores them by one instruction.
        match column.width {
            4 if !column.is_innodb() => self.put_back(r, c, width, |page, at, value| {
                page[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
            }),
            8 if !column.is_innodb() => self.put_back(r, c, width, |page, at, value| {
                page[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }),
            _ => self.put_back(r, c, width, |page, at, value| store(page, at, column, value)),
        }
        Ok(())
    }

    /// Makes values of residuals, and writes them to their places in the page.
    #[inline(always)]
    fn put_back(&self, r: &mut Read<'_, '_>, c: usize, width: usize, store: impl Fn(&mut [u8], usize, u64)) {
        let rows = r.grid.rows;
        let positions = &r.grid.pos[c * rows..][..rows];
        let cells = r.rows.iter().zip(r.residuals.iter());
        match self.against {
            Against::Constant => {
                for (&t, &residual) in cells {
                    let at = usize::from(positions[usize::from(t)]);
                    store(r.page, at, self.stored(self.value(residual, self.base, width)));
                }
            }
            Against::Previous => {
                let mut previous = self.base;
                for (&t, &residual) in cells {
                    previous = self.value(residual, previous, width);
                    store(r.page, usize::from(positions[usize::from(t)]), self.stored(previous));
                }
            }
            Against::Column(other) => {
                let other = usize::from(other);
                let other_column = r.plans.columns[other];
                for (&t, &residual) in cells {
                    let reference = reference_of(r.page, r.grid, other, t, other_column);
                    let at = usize::from(positions[usize::from(t)]);
                    store(r.page, at, self.stored(self.value(residual, reference, width)));
                }
            }
        }
    }

    fn get_residuals(
        &self,
        r: &mut Read<'_, '_>,
        c: usize,
        rows: &[u16],
        context: Context,
    ) -> Result<(), Corrupt> {
        // Each kind of context has a loop of its own.
        match context.ctx {
            Ctx::Nothing => self.get_residuals_in(r, c, rows, context.base, |_, _, _| 0),
            Ctx::Previous => self.get_residuals_in(r, c, rows, context.base, |_, _, last| last),
            Ctx::Column(other) => {
                let from = usize::from(other) * r.grid.rows;
                self.get_residuals_in(r, c, rows, context.base, |symbols, t, _| {
                    symbols[from + usize::from(t)]
                })
            }
        }
    }

    #[inline(always)]
    fn get_residuals_in(
        &self,
        r: &mut Read<'_, '_>,
        c: usize,
        rows: &[u16],
        base: usize,
        ctx: impl Fn(&[u8], u16, u8) -> u8,
    ) -> Result<(), Corrupt> {
        let streams: &[Stream] = &r.streams[base + 1..];
        let symbols = &mut r.grid.sym[..];
        let cells = c * r.grid.rows;
        let mut d = *r.decoder;
        r.residuals.clear();
        let mut last = 0;
        match self.planes {
            Planes::Number => {
                let stream = &streams[0];
                r.residuals.extend(rows.iter().map(|&t| {
                    let (symbol, residual) = number::get(&mut d, stream, ctx(symbols, t, last));
                    last = symbol;
                    symbols[cells + usize::from(t)] = symbol;
                    residual
                }));
            }
            Planes::Bytes { coded: 0, .. } => {
                r.residuals.resize(rows.len(), 0);
                rows.iter().for_each(|&t| symbols[cells + usize::from(t)] = 0);
            }
            Planes::Bytes { coded, .. } => {
                let stream = &streams[0];
                r.residuals.extend(rows.iter().map(|&t| {
                    last = d.get(stream.view(ctx(symbols, t, last)));
                    symbols[cells + usize::from(t)] = last;
                    u64::from(last)
                }));
                for stream in &streams[1..usize::from(coded)] {
                    for residual in r.residuals.iter_mut() {
                        *residual = *residual << 8 | u64::from(d.get(stream.view(*residual as u8)));
                    }
                }
            }
        }
        *r.decoder = d;
        match self.planes {
            Planes::Bytes { plain, .. } if plain > 0 => {
                append_low(r.residuals, &mut r.plain, usize::from(plain))
            }
            _ => Ok(()),
        }
    }
}

/// Puts `width` bytes of `plain` below each of `residuals`.
fn append_low(residuals: &mut [u64], plain: &mut &[u8], width: usize) -> Result<(), Corrupt> {
    let (low, rest) = plain.split_at_checked(residuals.len() * width).ok_or(Corrupt("bytes are missing"))?;
    *plain = rest;
    let value = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    for (residual, bytes) in residuals.iter_mut().zip(low.chunks_exact(width)) {
        // A load of a width that the compiler knows is one instruction.
        *residual = match width {
            1 => *residual << 8 | value(&bytes[..1]),
            2 => *residual << 16 | value(&bytes[..2]),
            4 => *residual << 32 | value(&bytes[..4]),
            8 => value(&bytes[..8]),
            _ => *residual << (8 * width) | value(bytes),
        };
    }
    Ok(())
}

/// Returns the value of column `other` in row `t`; 0 if the row does not have it.
#[inline(always)]
fn reference_of(page: &[u8], grid: &Grid, other: usize, t: u16, column: Column) -> u64 {
    if grid.present[usize::from(t)] >> other & 1 == 0 {
        return 0;
    }
    let at = usize::from(grid.pos[grid.cell(other, t)]);
    sign_extend(load(page, at, column), usize::from(column.width)) as u64
}
