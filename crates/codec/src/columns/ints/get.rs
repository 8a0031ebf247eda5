//! Decodes columns of integers.

use super::super::code::{ALL_COMMON, CODED, Context, Read};
use super::super::plan::Ctx;
use super::super::{Column, Grid};
use super::{Against, IntCoding, PLAIN, Planes, load, sign_extend, store};
use crate::Corrupt;
use crate::entropy::Stream;
use crate::entropy::number;

impl IntCoding {
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
pub(super) fn reference_of(page: &[u8], grid: &Grid, other: usize, t: u16, column: Column) -> u64 {
    if grid.present[usize::from(t)] >> other & 1 == 0 {
        return 0;
    }
    let at = usize::from(grid.pos[grid.cell(other, t)]);
    sign_extend(load(page, at, column), usize::from(column.width)) as u64
}
